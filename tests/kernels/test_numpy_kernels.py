"""Kernels without a compiled form, and rows that are no numbers, against scikit-learn."""

import pickle
import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    GenericKernelMixin,
    Hyperparameter,
    Kernel,
    Matern,
    PairwiseKernel,
    WhiteKernel,
)

from skscalablegp import IterativeGPRegressor, RRCGRegressor
from skscalablegp.kernels import Columns, ObjectRows, compile_kernel
from skscalablegp.linalg.operators import KernelOperator


class Overlap(GenericKernelMixin, Kernel):
    """Shared letters, as a covariance of strings: (a + number of equal pairs) ** power."""

    def __init__(self, offset=0.5, power=1.0, offset_bounds=(1e-3, 1e3), power_bounds=(0.1, 2.0)):
        self.offset, self.power = offset, power
        self.offset_bounds, self.power_bounds = offset_bounds, power_bounds

    @property
    def hyperparameter_offset(self):
        return Hyperparameter("offset", "numeric", self.offset_bounds)

    @property
    def hyperparameter_power(self):
        return Hyperparameter("power", "numeric", self.power_bounds)

    def __call__(self, X, Y=None, eval_gradient=False):
        if Y is not None and eval_gradient:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        Y = X if Y is None else Y
        pairs = np.array([[sum(a == b for a in x for b in y) for y in Y] for x in X], dtype=float)
        base = self.offset + pairs
        K = base**self.power
        if not eval_gradient:
            return K
        in_offset = self.power * base ** (self.power - 1) * self.offset
        slopes = {"offset": in_offset, "power": K * np.log(base) * self.power}
        free = [slopes[h.name] for h in self.hyperparameters if not h.fixed]
        return K, np.moveaxis(np.reshape(free, (-1, *K.shape)), 0, 2)

    def diag(self, X):
        return np.array([self([x])[0, 0] for x in X])

    def is_stationary(self):
        return False


class Own(RBF):
    """A subclass, which may be anything, so that it is not taken for its parent."""


def words(n=11, seed=0):
    rng = np.random.default_rng(seed)
    return np.array(["".join(rng.choice(list("ACGT"), rng.integers(1, 6))) for _ in range(n)])


def vectors(n=11):
    return np.random.default_rng(1).normal(size=(n, 2))


CASES = [
    (Overlap(), words()),
    (2.0 * Overlap(power=1.5) ** 2 + WhiteKernel(0.3), words()),
    (Overlap(offset_bounds="fixed") * WhiteKernel(0.3) + ConstantKernel(2.0), words()),
    (2.0 * Overlap(offset_bounds="fixed", power_bounds="fixed"), words()),
    (Own([1.0, 2.0]), vectors()),
    (Columns(Own(0.7), 1) * RBF([1.0, 2.0]) + WhiteKernel(0.3), vectors()),
    (1.5 * Matern(nu=0.7) + Matern(nu=1.5), vectors()),
    (PairwiseKernel(metric="rbf") + WhiteKernel(0.3), vectors()),
]


def operator(kernel, X, dtype=torch.float64, **settings):
    compiled = compile_kernel(kernel, 2, any_kernel=True)
    rows = torch.tensor(X) if compiled.vectors else ObjectRows.of(X)
    return KernelOperator(compiled, compiled.theta0, rows.to(dtype), **settings)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kernel, X", CASES, ids=lambda case: repr(case)[:40])
def test_operators_agree_with_scikit_learn(kernel, X, keep):
    H, dH = kernel(X, eval_gradient=True)
    op, n = operator(kernel, X, keep=keep, tile=4), len(X)
    rng = np.random.default_rng(2)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11 * np.abs(H).max())  # noqa: E731
    V, W = rng.normal(size=(2, n, 3))
    close(op.to_dense(), H)
    close(op.matmul(torch.tensor(V)), H @ V)
    idx = torch.tensor([7, 0, 3])
    close(op.rows(idx), H[idx])
    close(op.block(idx), H[np.ix_(idx, idx)])
    close(op.diag(), np.diag(H))
    close(op.noise, np.diag(H) - np.diag(kernel(X, X)))
    # scikit-learn's own derivative of PairwiseKernel is a difference quotient.
    tolerance = 1e-4 if "Pairwise" in repr(kernel) else 1e-10
    S = W @ W.T
    both = [
        (op.bilinear_grad(torch.tensor(S)), np.einsum("ij,ijp->p", S, dH)),
        (op.bilinear_grad(*map(torch.tensor, (V, W))), np.einsum("is,ijp,js->p", V, dH, W)),
    ]
    for found, expected in both:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * len(X))
    Z = X[:5][::-1]
    new = torch.tensor(Z.copy()) if Z.ndim > 1 else ObjectRows.of(Z)
    cross = op.cross(new)
    close(cross.to_dense(), kernel(Z, X))
    close(cross.prior_diag() + cross.prior_noise(), kernel.diag(Z))


def test_single_precision_sees_the_same_values():
    kernel, X = CASES[1]
    H = operator(kernel, X, torch.float32).to_dense()
    assert H.dtype == torch.float32
    np.testing.assert_allclose(H, kernel(X), rtol=1e-6)


def test_object_rows_are_chosen_and_moved_like_tensors():
    rows = ObjectRows.of(words())
    chosen = rows[torch.tensor([3, 1])][:1].to(torch.float32)
    assert list(chosen.objects) == [words()[3]]
    assert chosen.dtype == torch.float32 and chosen.shape == (1, 1)
    assert type(chosen.new_zeros(3)) is torch.Tensor and type(chosen + 1) is torch.Tensor


def test_nothing_is_known_of_such_kernels_but_their_values():
    compiled = compile_kernel(Own(1.0) + Matern(nu=1.5), 2, any_kernel=True)
    assert compiled.numpy_code == ["Own"]
    assert not compiled.stationary and compiled.stationary_terms() is None
    again = pickle.loads(pickle.dumps(compiled))
    assert again.numpy_code == ["Own"] and again.n_params == 2
    # The default is to refuse them.
    with pytest.raises(TypeError, match="Own has no compiled form.*IterativeGPRegressor"):
        compile_kernel(Own(), 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.usefixtures("given_start")
@pytest.mark.parametrize(
    "model",
    [
        IterativeGPRegressor(),
        IterativeGPRegressor(solver="cg", posterior="solve", max_iter=2),
        IterativeGPRegressor(solver="adasap", posterior="neighbors", optimizer=None),
        RRCGRegressor(posterior="solve", max_iter=2),
    ],
    ids=str,
)
def test_estimators_call_them_in_the_thread_of_the_fit(model, set_workers):
    """Which may be the only one that such code stands, for instance with a cache of its own."""

    class Counted(Own):
        def __call__(self, *args, **kwargs):
            threads.add(threading.get_ident())
            return super().__call__(*args, **kwargs)

    set_workers(2)
    threads, rng = set(), np.random.default_rng(0)
    X, X_new = rng.uniform(-2, 2, (80, 2)), rng.uniform(-2, 2, (9, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    answers = []
    for leaf in (Counted(0.8), RBF(0.8)):
        kernel = ConstantKernel(1.5) * leaf + WhiteKernel(0.05)
        fitted = clone(model).set_params(kernel=kernel, random_state=0, dtype="float64").fit(X, y)
        answers.append(np.stack(fitted.predict(X_new, return_std=True)))
    assert threads == {threading.get_ident()}
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)
