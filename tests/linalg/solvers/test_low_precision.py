"""Products that a device rounds: true residuals in double precision end a solve at its target."""

import numpy as np
import pytest
import torch
from oracles import generator
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.operators import KernelOperator
from skscalablegp.solvers import CG, BlockCG, End, MaxIterations, RelativeResidual, solve


def kept_bits(A, bits):
    """A with this many bits after the leading one, rounded to nearest."""
    mantissa, exponent = torch.frexp(A)
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round(), exponent - bits - 1)


def tf32(A, B):
    """One product of factors with ten bits."""
    return kept_bits(A, 10) @ kept_bits(B, 10)


def bf16x3(A, B):
    """Three products of factors with seven bits, without that of the two rests."""
    A1, B1 = kept_bits(A, 7), kept_bits(B, 7)
    A2, B2 = kept_bits(A - A1, 7), kept_bits(B - B1, 7)
    return A1 @ B1 + (A1 @ B2 + A2 @ B1)


class Rounded(KernelOperator):
    """H, whose products in single precision are those of a device with other units for them."""

    product = staticmethod(tf32)

    def matmul(self, V):
        if V.dtype == torch.float64:
            return super().matmul(V)
        self._count(self.shape[0] ** 2)
        return self.product(self._kept(), V)


def problem(seed):
    """Drawn rows, kernel, noise and tolerance; some rows are nearly equal."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(20, 120)), int(rng.integers(1, 6))
    X = rng.standard_normal((n, d))
    X[: n // 10] = X[-(n // 10) :][: n // 10] + 1e-3 * rng.standard_normal((n // 10, d))
    length, noise = np.exp(rng.uniform(-0.5, 1.0)), 10 ** rng.uniform(-3, 0)
    shape = RBF(length) if rng.random() < 0.3 else Matern(length, nu=[0.5, 1.5, 2.5][seed % 3])
    kernel = compile_kernel(shape + WhiteKernel(noise), d)
    B = torch.as_tensor(rng.standard_normal((n, 3))).float()
    return kernel, torch.as_tensor(X).float(), B, 10 ** rng.uniform(-5, -2)


def residuals_in_targets(seed, product, solver=CG):
    kernel, X, B, tol = problem(seed)
    H = Rounded(kernel, kernel.theta0, X, keep=True)
    H.product = product
    solver = solver(residual_dtype="float64", residual_refresh=10)
    solution = solve(H, B, solver, stopping=RelativeResidual(tol) | MaxIterations(3000))
    dense = KernelOperator(kernel, kernel.theta0, X.double()).to_dense()
    true = (B.double() - dense @ solution.value.double()).norm(dim=0) / B.double().norm(dim=0)
    return float(true.max()) / tol, solution


def check(product, seeds):
    """Every solve converges, and has reached its target."""
    for seed in seeds:
        ratio, solution = residuals_in_targets(seed, product)
        assert solution.status is End.CONVERGED and ratio <= 2, (seed, ratio, solution.status)


@pytest.mark.slow
@pytest.mark.parametrize("product", [tf32, bf16x3])
def test_targets_are_reached(product):
    check(product, range(25))


@pytest.mark.night
@pytest.mark.parametrize("product", [tf32, bf16x3])
def test_targets_are_reached_in_a_thousand_problems(product):
    check(product, range(500))


def test_products_that_are_too_rough_become_precise():
    """The matrix is off by most of its smallest eigenvalue; steps with it get no further."""
    ratio, solution = residuals_in_targets(43, tf32)
    assert solution.status is End.CONVERGED and ratio <= 2
    assert solution.stats["n_sharpened"] == 1
    assert residuals_in_targets(43, tf32, BlockCG)[0] <= 2
    kernel, X, _, _ = problem(43)
    H = Rounded(kernel, kernel.theta0, X, keep=True)
    rounded, dense = H.matmul(torch.eye(len(X))).double(), H.to_dense().double()
    error = torch.linalg.matrix_norm(rounded - dense, 2)
    assert error > 0.5 * torch.linalg.eigvalsh(dense)[0] > 0


def test_what_is_emulated():
    A, B = (torch.randn(50, 50, generator=generator(i)) for i in (0, 1))
    exact = A.double() @ B.double()
    errors = [float((p(A, B) - exact).abs().max()) for p in (tf32, bf16x3, torch.mm)]
    assert errors[0] > 30 * errors[1] > 30 * errors[2]


def test_distances_are_in_double_precision_where_products_are_rounded():
    """The setting is the user's, for all of torch; here it is put back."""
    X = torch.randn(20, 3, generator=generator(0))
    kernel = compile_kernel(RBF([1.0, 2.0, 3.0]), 3)
    before = torch.get_float32_matmul_precision()
    try:
        for allowed, dtype in (("highest", torch.float32), ("high", torch.float64)):
            torch.set_float32_matmul_precision(allowed)
            H = KernelOperator(kernel, kernel.theta0, X)
            assert H.bound.scales[0].dtype == dtype
    finally:
        torch.set_float32_matmul_precision(before)
