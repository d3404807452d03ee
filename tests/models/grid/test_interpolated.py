"""Grid kernels and interpolated operators against dense W Kuu W'."""

from functools import reduce

import numpy as np
import pytest
import scipy.linalg
import torch
from interpolated import InterpolatedOperator, dense_grid, rows_of
from oracles import normal
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.kernels import compile_kernel
from skscalablegp.models.grid import (
    GridKernel,
    grid_moments,
    kronecker_matmul,
    make_grid,
    offset_sums,
    toeplitz,
    toeplitz_matmul,
)

C, W = ConstantKernel, WhiteKernel
PRODUCT = {
    1: C(1.3) * Matern(0.4, nu=1.5) + C(0.2) * ExpSineSquared(1.1, 0.9) + W(0.1),
    2: C(1.3) * RBF([0.5, 0.9]) + C(0.4) * RBF(0.3) + W(0.1),
    3: C(0.7) * RBF([0.5, 0.9, 1.4]) + W(0.1),
}
CASES = [(d, "product", kernel) for d, kernel in PRODUCT.items()]
CASES += [(3, "additive", C(0.7) * Matern([0.5, 0.9, 1.4], nu=2.5) + RationalQuadratic() + W(0.1))]


def make(d, structure, kernel, n=40):
    X = np.random.default_rng(d).uniform(-1, 2, (n, d))
    compiled = compile_kernel(kernel, d)
    return X, compiled.theta0, GridKernel(compiled, make_grid(X, [9, 10, 11], structure))


def grid_points(grid):
    """Every component's points, and the columns that they have values for."""
    for axes in grid.components:
        mesh = np.meshgrid(*[axis.points for axis in axes], indexing="ij")
        yield [axis.column for axis in axes], np.column_stack([part.ravel() for part in mesh])


def dense_kuu(kernel, grid):
    blocks = []
    for columns, points in grid_points(grid):
        X = np.zeros((len(points), grid.n_features))
        X[:, columns] = points
        blocks.append(torch.from_numpy(kernel(X, X.copy())))
    return torch.block_diag(*blocks)


@pytest.mark.parametrize("m", [1, 2, 7, 300])
def test_toeplitz_products(m):
    column, V = torch.exp(-torch.arange(m, dtype=torch.float64) / 5), normal(m, 3)
    expected = torch.from_numpy(scipy.linalg.toeplitz(column)) @ V
    torch.testing.assert_close(toeplitz_matmul(column, V), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(toeplitz(column) @ V, expected, rtol=0, atol=1e-11)


def test_kronecker_products():
    columns, V = [normal(m, seed=m) for m in (4, 300, 2)], normal(2400, 2)
    product = kronecker_matmul(columns, V)
    torch.testing.assert_close(
        product, reduce(torch.kron, map(toeplitz, columns)) @ V, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(("d", "structure", "kernel"), CASES)
class TestInterpolated:
    def test_everything_against_dense_algebra(self, d, structure, kernel):
        X, theta, grid_kernel = make(d, structure, kernel)
        extra = torch.linspace(0.1, 0.5, len(X), dtype=torch.float64)
        operator = InterpolatedOperator(grid_kernel, theta, X, extra)
        weights = torch.from_numpy(grid_kernel.grid.interpolate(X).toarray())
        Kuu = dense_kuu(kernel, grid_kernel.grid)
        noise = torch.diag(extra + 0.1)
        H = weights @ Kuu @ weights.T + noise
        V, idx = normal(len(X), 3), torch.tensor([3, 1, 3])
        close = dict(rtol=0, atol=1e-10)
        torch.testing.assert_close(dense_grid(grid_kernel, theta), Kuu, **close)
        torch.testing.assert_close(operator.matmul(V), H @ V, **close)
        torch.testing.assert_close(operator.to_dense(), H, **close)
        torch.testing.assert_close(operator.diag(), H.diagonal(), **close)
        torch.testing.assert_close(operator.block(idx), H[idx][:, idx], **close)
        unique = torch.tensor([3, 1])
        torch.testing.assert_close(operator.rows(unique), H[unique], **close)
        # Everything from the moments, too.
        moments = grid_moments(rows_of(X, V.numpy()), grid_kernel.grid)
        expected = (weights.T @ weights).numpy()
        np.testing.assert_allclose(moments.gram.toarray(), expected, atol=1e-10)
        np.testing.assert_allclose(moments.rhs, (weights.T @ V).numpy(), atol=1e-10)

    def test_factor_and_traces(self, d, structure, kernel):
        X, theta, grid_kernel = make(d, structure, kernel)
        Kuu = dense_grid(grid_kernel, theta)
        F = grid_kernel.factor(theta, 1e-11).F
        torch.testing.assert_close(F @ F.T, Kuu, rtol=0, atol=1e-10)
        prior = float(grid_kernel.prior(theta))
        assert prior == pytest.approx(float(kernel.diag(X)[0] - 0.1) * len(grid_kernel.grid.shapes))
        rough = Kuu - (part := grid_kernel.factor(theta, 1e-2).F) @ part.T
        assert -1e-12 < float(rough.trace()) <= 1e-2 + 1e-9
        gram = grid_moments(rows_of(X, X[:, :1]), grid_kernel.grid).gram
        sums, grid = [], grid_kernel.grid
        for shape, start in zip(grid.shapes, grid.starts, strict=True):
            part = slice(start, start + int(np.prod(shape)))
            sums.append(torch.from_numpy(offset_sums(gram[part, part], shape)))
        expected = float((torch.from_numpy(gram.toarray()) * Kuu).sum())
        assert float(grid_kernel.trace(grid_kernel.columns(theta), sums)) == pytest.approx(
            expected, rel=1e-11
        )

    def test_gradient(self, d, structure, kernel):
        X, theta, grid_kernel = make(d, structure, kernel)
        operator = InterpolatedOperator(grid_kernel, theta, X)
        left, right = normal(len(X), 2, seed=1), normal(len(X), 2, seed=2)
        grad = operator.bilinear_grad(left, right)
        for k in range(len(theta)):
            values = []
            for sign in (1, -1):
                moved = theta.clone()
                moved[k] += sign * 1e-5
                H = InterpolatedOperator(grid_kernel, moved, X).to_dense()
                values.append(float((left * (H @ right)).sum()))
            slope = (values[0] - values[1]) / 2e-5
            assert float(grad[k]) == pytest.approx(slope, rel=1e-6, abs=1e-6)
        A = normal(len(X), len(X), seed=3)
        torch.testing.assert_close(
            operator.bilinear_grad(A + A.T),
            operator.bilinear_grad(A + A.T, torch.eye(len(X), dtype=torch.float64)),
        )

    def test_off_the_grid_means_a_larger_grid(self, d, structure, kernel):
        X, theta, grid_kernel = make(d, structure, kernel)
        far = X * 1.7 + 0.3
        larger = grid_kernel.grid.extended(far)
        numbers = grid_kernel.grid.numbers_in(larger)
        extended = GridKernel(grid_kernel.kernel, larger)
        around = torch.from_numpy(larger.interpolate(far).toarray())
        Kuu = dense_grid(extended, theta)
        close = dict(rtol=0, atol=1e-10)
        torch.testing.assert_close(
            grid_kernel.rows(theta, far), (around @ Kuu)[:, numbers], **close
        )
        expected = around @ Kuu @ around.T
        torch.testing.assert_close(grid_kernel.cross(theta, far, far), expected, **close)
        torch.testing.assert_close(grid_kernel.cross(theta, far), expected.diagonal(), **close)
        # Block by block, at every lag once.
        sizes, terms = [], GridKernel._terms

        def recorded(self, theta, axes, lags):
            sizes.extend(apart.numel() for apart in lags)
            return terms(self, theta, axes, lags)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GridKernel, "_terms", recorded)
            grid_kernel.cross(theta, far, far)
            assert max(sizes) < 7 * 60 < len(far) ** 2
            patch.setattr("skscalablegp.models.grid._grid_kernel._BLOCK_PAIRS", 70)
            torch.testing.assert_close(grid_kernel.cross(theta, far, far), expected, **close)
        factor = grid_kernel.factor(theta, 1e-13)
        g = grid_kernel.coordinates(theta, far, factor)
        torch.testing.assert_close(g @ factor.F.T, grid_kernel.rows(theta, far), rtol=0, atol=1e-6)
        assert torch.linalg.eigvalsh(expected - g @ g.T).min() > -1e-9


@pytest.mark.parametrize(
    ("kernel", "structure", "message"),
    [
        (DotProduct(), "additive", "DotProduct is not stationary"),
        (Matern(), "product", "Matern is not a product over columns.*additive"),
        (RBF() ** 0.5, "additive", "Exponentiation.*whole numbers up to 16"),
        (RBF() + DotProduct() * WhiteKernel(), "product", "DotProduct is not stationary"),
        (RBF() + (DotProduct() + WhiteKernel()) ** 0.5, "product", "DotProduct is not stat"),
    ],
)
def test_unsuitable_kernels(kernel, structure, message):
    X = np.random.default_rng(0).uniform(size=(5, 2))
    with pytest.raises(ValueError, match=message):
        GridKernel(compile_kernel(kernel, 2), make_grid(X, [9, 9], structure))
