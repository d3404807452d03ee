"""The contract of linear operators.

A new one is one `OperatorRow` in ``tests/operators/test_operator_contract.py``. The oracle is
scikit-learn: H and its noise from the kernel's values, dH from ``eval_gradient=True``, float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from oracles import normal
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Kernel,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.kernels import Columns, default_kernel
from skscalablegp.linalg.operators import LinearOperator

SMALL_TILE = 7  # several tiles, the last one not full, in every problem below


@dataclass(frozen=True, eq=False)
class OperatorProblem:
    """Rows, a scikit-learn kernel and known noise; what H is follows from scikit-learn alone.

    ``digits`` are the correct ones of a float64 entry: the square root in a Matern function
    halves those of a distance that should be zero.
    """

    name: str
    kernel: Kernel
    X: np.ndarray
    extra_noise: np.ndarray | None = None
    digits: float = 1e-11

    def __post_init__(self):
        X = self.X
        H, derivatives = self.kernel(X, eval_gradient=True)
        # White noise is the diagonal that k(X) has and k(X, X) has not.
        noise = np.diag(H) - np.diag(self.kernel(X, X))
        extra = np.zeros(len(X)) if self.extra_noise is None else self.extra_noise
        object.__setattr__(self, "H", torch.from_numpy(H + np.diag(extra)))
        object.__setattr__(self, "noise", torch.from_numpy(noise + extra))
        object.__setattr__(self, "derivatives", torch.from_numpy(derivatives).permute(2, 0, 1))
        object.__setattr__(self, "theta", torch.from_numpy(np.array(self.kernel.theta)))

    def rows(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.X).to(dtype)

    def known_noise(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None if self.extra_noise is None else torch.from_numpy(self.extra_noise).to(dtype)


@dataclass(frozen=True)
class OperatorRow:
    """One operator of the table.

    Attributes
    ----------
    make : callable
        (problem, dtype) -> operator.
    """

    name: str
    make: Callable[[OperatorProblem, torch.dtype], LinearOperator]


C, W = ConstantKernel, WhiteKernel


def table(n: int = 23, d: int = 3, *, duplicates: bool = False, shift: float = 0.0) -> np.ndarray:
    X = normal(n, d, seed=n + d).numpy() + shift
    if duplicates:
        X[n // 2 :] = X[: n - n // 2]
    return X


LEVELS = np.logspace(-3, 0, 23)
PROBLEMS = [
    OperatorProblem("default", default_kernel(3), table()),
    OperatorProblem(
        "default-ard", C(1.7) * Matern([0.4, 1.3, 3.0], nu=1.5) + W(0.2), table(), LEVELS
    ),
    OperatorProblem("rbf-ard", C(0.6) * RBF([0.5, 1.0, 2.0]) + C(0.3), table(), LEVELS),
    OperatorProblem("matern12", C(2.0) * Matern([0.5, 1.0, 2.0], nu=0.5) + W(0.1), table()),
    OperatorProblem("matern52", Matern(0.8, nu=2.5) + C(0.4) + W(0.1), table(), LEVELS),
    OperatorProblem("matern-inf", Matern([0.7, 1.1, 2.0], nu=np.inf) + W(0.1), table()),
    OperatorProblem("rq", C(1.4) * RationalQuadratic(0.7, alpha=0.6) + W(0.1), table()),
    OperatorProblem(
        "sum-shares-parameters",
        (C(2.0) + RationalQuadratic(1.3, 2.0)) * C(0.5) + C(0.7) * Matern(1.2) + W(0.3),
        table(),
        LEVELS,
    ),
    OperatorProblem("distributed", (C(2.0) + C(0.5)) * Matern([0.9, 1.0, 2.0]), table(), LEVELS),
    OperatorProblem(
        "partly-fixed", C(2.0, "fixed") * RBF([1.0, 2.0, 0.5], "fixed") + C(0.3) + W(0.1), table()
    ),
    OperatorProblem("all-fixed", RBF(1.1, "fixed") + W(0.1, "fixed"), table()),
    OperatorProblem("constant-only", C(0.8), table(), LEVELS),
    OperatorProblem("white-only", W(0.7), table(), LEVELS),
    OperatorProblem(
        "periodic",
        Columns(ExpSineSquared(1.2, 2.5), 2) * RBF(1.5) + W(0.1),
        table(),
        digits=1e-9,
    ),
    OperatorProblem(
        "linear", C(0.3) * DotProduct(0.7) + Matern(0.9, nu=0.5) * RBF(2.0) + W(0.2), table()
    ),
    OperatorProblem("noise-in-products", (Matern(1.2) + W(0.3)) ** 2 * C(0.5), table(), LEVELS),
    OperatorProblem("noise-by-row", DotProduct(0.5) * W(0.4) + RBF(1.0), table(), LEVELS),
    OperatorProblem("shifted", default_kernel(3), table(shift=300.0), digits=1e-9),
    OperatorProblem("duplicates-matern32", default_kernel(3), table(duplicates=True), LEVELS),
    OperatorProblem(
        "duplicates-matern12", Matern(0.9, nu=0.5) + W(0.1), table(duplicates=True), digits=1e-6
    ),
    OperatorProblem(
        "duplicates-matern52", Matern([0.9, 1, 2], nu=2.5) + W(0.1), table(duplicates=True)
    ),
    OperatorProblem("one-column", default_kernel(1), table(d=1)),
    OperatorProblem("one-row", default_kernel(3), table(n=1), np.array([0.3])),
    OperatorProblem("one-row-linear", DotProduct(0.5) + W(0.3), table(n=1)),
]
FLOAT32 = [p for p in PROBLEMS if p.name in ("default-ard", "rbf-ard", "matern52", "rq", "linear")]
FLOAT32 += [p for p in PROBLEMS if p.name.startswith("duplicates") or p.name == "one-row"]


def cases(single: bool = True) -> list:
    found = [pytest.param(p, torch.float64, id=p.name) for p in PROBLEMS]
    if single:
        found += [pytest.param(p, torch.float32, id=f"{p.name}-float32") for p in FLOAT32]
    return found


def expect_close(problem: OperatorProblem, actual, expected, scale=None) -> None:
    """Errors as a fraction of the largest entry (of what was summed, where that is larger)."""
    digits = problem.digits
    if actual.dtype == torch.float32:
        digits = 3e-3 if digits > 1e-8 else 2e-5
    assert actual.shape == expected.shape
    scale = float(expected.abs().max()) if scale is None else scale
    assert float((actual.double() - expected).abs().max()) <= digits * max(scale, 1e-300)


def expect_products(problem: OperatorProblem, operator: LinearOperator, idx) -> None:
    H, chosen = problem.H[idx], operator.chosen(idx)
    assert chosen.size == len(H)
    V, U = normal(len(problem.H), 3, seed=5), normal(len(H), 3, seed=6)
    dtype, scale = operator.dtype, float(problem.H.abs().max())
    for _ in range(2):  # a product leaves nothing behind
        expect_close(problem, chosen.block(), H[:, idx], scale)
        size = float((H.abs() @ V.abs()).max())
        expect_close(problem, chosen.matmul(V.to(dtype)), H @ V, size)
        size = float((H.T.abs() @ U.abs()).max())
        expect_close(problem, chosen.rmatmul(U.to(dtype)), H.T @ U, size)


class OperatorContract:
    """Inherit and parametrize ``row``."""

    @pytest.mark.parametrize(("problem", "dtype"), cases())
    def test_values_are_those_of_scikit_learn(self, row, problem, dtype):
        operator = row.make(problem, dtype)
        H, n = problem.H, len(problem.H)
        assert operator.shape == (n, n) and operator.dtype == dtype
        dense = operator.to_dense()
        expect_close(problem, dense, H)
        expect_close(problem, dense, dense.T.double())
        expect_close(problem, operator.diag(), H.diagonal())
        expect_close(problem, operator.noise, problem.noise, float(H.diagonal().max()))
        V = normal(n, 4, seed=1)
        size = float((H.abs() @ V.abs()).max())
        expect_close(problem, operator.matmul(V.to(dtype)), H @ V, size)
        expect_close(problem, operator.matmul(V[:, :1].to(dtype)), H @ V[:, :1], size)
        assert operator.matmul(V[:, :0].to(dtype)).shape == (n, 0)

    @pytest.mark.parametrize(("problem", "dtype"), cases())
    def test_rows_and_blocks_are_parts_of_the_matrix(self, row, problem, dtype):
        operator = row.make(problem, dtype)
        n = len(problem.H)
        H, scale = problem.H, float(problem.H.abs().max())
        unordered = torch.tensor([n - 1, 0, n // 2, n // 3]).unique(sorted=False)
        repeated = torch.tensor([0, n - 1, 0])
        for idx in (unordered, repeated, torch.arange(n), torch.tensor([], dtype=torch.long)):
            for kept in (False, True):  # before and after H exists, where it is kept
                if kept:
                    operator.matmul(torch.zeros(n, 1, dtype=dtype))
                if len(idx) == 0:
                    assert operator.rows(idx).shape == (0, n)
                    assert operator.block(idx).shape == (0, 0)
                    continue
                expect_close(problem, operator.rows(idx), H[idx], scale)
                expect_close(problem, operator.block(idx), H[idx][:, idx], scale)
        for some in (slice(n // 3, n), slice(0, n)):
            expect_close(problem, row.make(problem, dtype).rows(some), H[some], scale)
            expect_close(problem, operator.rows(some), H[some], scale)

    @pytest.mark.parametrize(("problem", "dtype"), cases())
    def test_products_of_chosen_rows(self, row, problem, dtype):
        """Of few rows, which tiles evaluate, and of many, which are stored."""
        operator = row.make(problem, dtype)
        H, n = problem.H, len(problem.H)
        for idx in (torch.tensor([n - 1, 0]).unique(sorted=False), slice(n // 2, n // 2 + 1)):
            expect_products(problem, operator, idx)
        expect_products(problem, operator, slice(n // 3, n))
        expect_products(problem, operator, torch.arange(n).flip(0))
        chosen = operator.chosen(torch.tensor([n // 2]))
        none = torch.zeros(n, 0, dtype=dtype)
        assert chosen.size == 1 and chosen.matmul(none).shape == (1, 0)
        assert chosen.rmatmul(none[:1]).shape == (n, 0)
        expect_close(problem, operator.to_dense(), H)

    @pytest.mark.parametrize(("problem", "dtype"), cases())
    def test_bilinear_gradient(self, row, problem, dtype):
        operator = row.make(problem, dtype)
        n = len(problem.H)
        left, right = normal(n, 3, seed=2), normal(n, 3, seed=3)
        # Neither symmetric nor positive: left and right are treated alike only in the sum.
        expected = torch.einsum("is,pij,js->p", left, problem.derivatives, right)
        grad = operator.bilinear_grad(left.to(dtype), right.to(dtype))
        assert grad.dtype == torch.float64 and grad.device.type == "cpu"
        size = (
            torch.einsum("is,pij,js->p", left.abs(), problem.derivatives.abs(), right.abs()).max()
            if len(expected)
            else torch.tensor(0.0)
        )
        assert grad.shape == expected.shape
        if len(expected):
            tol = {"float64": problem.digits, "float32": max(2e-5, 10 * problem.digits**0.5)}
            limit = tol[str(dtype).removeprefix("torch.")] * float(size)
            assert float((grad - expected).abs().max()) <= limit

    @pytest.mark.parametrize(("problem", "dtype"), cases(single=False))
    def test_gradient_against_symmetric_weights(self, row, problem, dtype):
        """Only the sum of a weight and its mirror image counts, so weights must be symmetric."""
        operator = row.make(problem, dtype)
        A = normal(len(problem.H), len(problem.H), seed=4)
        weights = A + A.T
        untouched = weights.clone()
        grad = operator.bilinear_grad(weights.to(dtype))
        expected = (problem.derivatives * weights).sum((1, 2))
        size = float((problem.derivatives * weights).abs().sum((1, 2)).max()) if len(grad) else 0.0
        assert grad.shape == expected.shape
        if len(grad):
            assert float((grad - expected).abs().max()) <= problem.digits * size
        assert torch.equal(weights, untouched)

    def test_arguments_are_left_alone(self, row):
        problem = PROBLEMS[0]
        operator = row.make(problem, torch.float64)
        V, idx = normal(len(problem.H), 2), torch.tensor([3, 1])
        V0, idx0 = V.clone(), idx.clone()
        operator.matmul(V)
        operator.bilinear_grad(V, V)
        operator.rows(idx).zero_()
        operator.block(idx).zero_()
        operator.diag().zero_()
        operator.to_dense().zero_()
        assert torch.equal(V, V0) and torch.equal(idx, idx0)
        expect_close(problem, operator.to_dense(), problem.H)
        expect_close(problem, operator.matmul(V), problem.H @ V, 100.0)
        expect_close(problem, operator.diag(), problem.H.diagonal())

    def test_counts_epochs(self, row):
        problem = PROBLEMS[0]
        operator, n = row.make(problem, torch.float64), len(problem.H)
        assert operator.epochs == 0
        total = 0.0
        for access, cost in [
            (lambda: operator.matmul(normal(n, 9)), 1),
            (lambda: operator.matmul(normal(n, 1)), 1),
            (lambda: operator.rows(torch.arange(5)), 5 / n),
            (lambda: operator.rows(slice(2, 7)), 5 / n),
            (lambda: operator.block(torch.arange(5)), (5 / n) ** 2),
            (lambda: operator.chosen(torch.arange(2)).matmul(normal(n, 2)), 2 / n),
            (lambda: operator.chosen(slice(2, 7)).rmatmul(normal(5, 2)), 5 / n),
            (lambda: operator.diag(), 0),
            (lambda: operator.bilinear_grad(normal(n, 3), normal(n, 3)), 1),
            (lambda: operator.to_dense(), 1),
        ]:
            access()
            total += cost
            assert operator.epochs == pytest.approx(total)

    def test_repeats_exactly(self, row):
        problem, V = PROBLEMS[0], normal(23, 3)
        first, second = (row.make(problem, torch.float64) for _ in range(2))
        assert torch.equal(first.matmul(V), second.matmul(V))
        assert torch.equal(first.matmul(V), first.matmul(V))
        assert torch.equal(first.bilinear_grad(V, V), second.bilinear_grad(V, V))
