"""The exact log marginal likelihood against scikit-learn's and against finite differences."""

import numpy as np
import pytest
import torch
from oracles import normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.kernels import Columns, compile_kernel, default_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood

C, W = ConstantKernel, WhiteKernel
N, D = 30, 2
KERNELS = {
    "default": C(1.4) * Matern([0.7, 1.6], nu=1.5) + W(0.1),
    "rbf": RBF(0.8),
    "matern12": C(0.6) * Matern([0.7, 1.6], nu=0.5),
    "rq": RationalQuadratic(0.9, 0.7) + C(0.3) * Matern(1.2, nu=2.5) + W(0.05),
    "periodic": Columns(ExpSineSquared(3.0, 6.0), 0) * RBF(1.0) + W(0.2),
    "linear": DotProduct(0.4) + RBF() + W(0.2),
    "noise-in-a-product": (Matern(1.2) + W(0.3)) * C(0.7),
    "partly-fixed": C(2.0, "fixed") * RBF(1.1) + W(0.1),
}
ALPHA = {"scalar": 1e-2, "vector": np.logspace(-3, 0, N)}


def problem(kernel, *, t=1, alpha=0.0, dtype=torch.float64, keep=True):
    X = normal(N, D)
    Y = torch.sin(2 * X[:, :1]) + normal(N, t, seed=1)
    return GPProblem(compile_kernel(kernel, D), Rows.of(X, Y, alpha), keep=keep).to(dtype)


@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("alpha", ALPHA.values(), ids=ALPHA.keys())
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_value_and_gradient_are_those_of_scikit_learn(kernel, alpha, t):
    ours = problem(kernel, t=t, alpha=alpha)
    y = ours.Y.numpy() if t > 1 else ours.Y.numpy()[:, 0]
    theirs = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(ours.X.numpy(), y)
    for shift in (0.0, 0.4):
        theta = kernel.theta + shift
        value, grad = theirs.log_marginal_likelihood(theta, eval_gradient=True)
        result = exact_marginal_likelihood(ours, torch.from_numpy(theta))
        assert result.value == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(result.grad, grad, rtol=1e-7, atol=1e-8)
        assert result.jitter == 0 and result.grad.dtype == torch.float64


@pytest.mark.parametrize("keep", [True, False])
def test_gradient_against_finite_differences(keep):
    ours, kernel = problem(KERNELS["rq"], t=2, alpha=0.1, keep=keep), KERNELS["rq"]
    theta, step = torch.from_numpy(kernel.theta), 1e-5
    grad = exact_marginal_likelihood(ours, theta).grad
    for e, slope in zip(torch.eye(len(theta), dtype=torch.float64) * step, grad, strict=True):
        values = [exact_marginal_likelihood(ours, theta + s * e, False).value for s in (1, -1)]
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(slope), rel=1e-6)


def test_factor_and_weights_belong_to_the_same_matrix():
    ours = problem(KERNELS["default"], t=2, alpha=ALPHA["vector"])
    theta = torch.from_numpy(KERNELS["default"].theta)
    result = exact_marginal_likelihood(ours, theta, eval_gradient=False)
    H = torch.from_numpy(KERNELS["default"](ours.X.numpy()) + np.diag(ALPHA["vector"]))
    torch.testing.assert_close(result.factor.tril() @ result.factor.tril().T, H)
    torch.testing.assert_close(H @ result.weights, ours.Y)
    assert result.grad is None


def test_targets_add_up():
    theta, ours = torch.from_numpy(KERNELS["default"].theta), problem(KERNELS["default"], t=3)
    whole = exact_marginal_likelihood(ours, theta)
    parts = []
    for c in range(3):
        part = GPProblem(ours.kernel, Rows.of(ours.X, ours.Y[:, c : c + 1]))
        parts.append(exact_marginal_likelihood(part, theta))
    assert whole.value == pytest.approx(sum(p.value for p in parts))
    torch.testing.assert_close(whole.grad, sum(p.grad for p in parts))


@pytest.mark.parametrize("kernel", [KERNELS["default"], KERNELS["linear"]], ids=["default", "lin"])
def test_single_precision_follows_double(kernel):
    theta = torch.from_numpy(kernel.theta)
    double = exact_marginal_likelihood(problem(kernel, alpha=1e-2), theta)
    single = exact_marginal_likelihood(problem(kernel, alpha=1e-2, dtype=torch.float32), theta)
    assert single.factor.dtype == torch.float32 and single.grad.dtype == torch.float64
    assert single.value == pytest.approx(double.value, rel=1e-5)
    np.testing.assert_allclose(single.grad, double.grad, rtol=1e-3, atol=1e-3)


def test_one_buffer_serves_every_evaluation():
    ours = problem(KERNELS["default"])
    theta = torch.from_numpy(KERNELS["default"].theta)
    first, second = (exact_marginal_likelihood(ours, theta + shift) for shift in (0.0, 0.1))
    assert first.factor.data_ptr() == second.factor.data_ptr()
    assert exact_marginal_likelihood(ours, theta).value == first.value


def test_jitter_is_reported_and_its_lack_is_an_error():
    X = normal(N, D).repeat(2, 1)
    kernel, Y = compile_kernel(RBF(1.0), D), normal(2 * N, 1)
    result = exact_marginal_likelihood(GPProblem(kernel, Rows.of(X, Y)), kernel.theta0)
    assert 0 < result.jitter <= 1e-3 and np.isfinite(result.value)
    bad = GPProblem(kernel, Rows.of(X * float("nan"), Y))
    with pytest.raises(torch.linalg.LinAlgError, match="[Ii]ncrease the noise"):
        exact_marginal_likelihood(bad, kernel.theta0)


def test_one_row():
    kernel = compile_kernel(default_kernel(1), 1)
    ours = GPProblem(kernel, Rows.of(normal(1, 1), torch.tensor([[0.7]], dtype=torch.float64)))
    result = exact_marginal_likelihood(ours, kernel.theta0)
    expected = -0.25 * 0.49 - 0.5 * np.log(2.0) - 0.5 * np.log(2 * np.pi)
    assert result.value == pytest.approx(expected)
    np.testing.assert_allclose(result.grad, [-0.25 + 0.0625 * 0.98, 0, -0.25 + 0.0625 * 0.98])


def test_subsets_and_precisions_of_a_problem():
    ours = problem(KERNELS["default"], t=2, alpha=ALPHA["vector"])
    idx = torch.tensor([4, 1, 7])
    part = ours.subset(idx)
    assert torch.equal(part.X, ours.X[idx]) and torch.equal(part.Y, ours.Y[idx])
    assert torch.equal(part.rows.noise, ours.rows.noise[idx])
    assert part.workspace is not ours.workspace
    single = ours.to(torch.float32)
    assert single.X.dtype == single.Y.dtype == single.rows.noise.dtype == torch.float32
