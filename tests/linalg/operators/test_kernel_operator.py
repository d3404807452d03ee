"""Kernel operators beyond the contract: ways of multiplying, closed forms, new rows, memory."""

import threading
import time
from functools import partial
from itertools import count as count_from

import numpy as np
import pytest
import torch
from contracts.operator_contract import PROBLEMS, SMALL_TILE
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import generator, normal
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
from skscalablegp.linalg.operators import (
    AutodiffKernel,
    ChosenRows,
    KernelOperator,
    StationaryKernel,
    Workspace,
    bind,
    tile_size,
)

C, W = ConstantKernel, WhiteKernel
STATIONARY = {
    "rbf": RBF([0.6, 1.1, 2.0]),
    "matern12": Matern([0.6, 1.1, 2.0], nu=0.5),
    "matern32": Matern([0.6, 1.1, 2.0], nu=1.5),
    "matern52": Matern([0.6, 1.1, 2.0], nu=2.5),
    "rq": RationalQuadratic(0.9, alpha=0.4),
    "constant": C(0.8),
    "isotropic": C(1.3) * Matern(0.9, nu=2.5),
    "sum": (C(2.0) + C(0.3)) * Matern([0.6, 1.1, 2.0]) + C(0.5) * RationalQuadratic() + C(0.2),
    "product": C(1.3) * Matern([0.6, 1.1, 2.0], nu=0.5) * RationalQuadratic(0.9, alpha=0.4),
    "three": RBF(1.4, "fixed") * Matern(0.9, nu=2.5) * (C(0.5) * RBF([0.6, 1.1, 2.0]) + C(0.3)),
    "square": (C(0.7) * Matern(0.9) + RBF()) ** 2,
}
AUTODIFF = [Columns(ExpSineSquared(1.2, 2.5), 1) * RBF(1.5), DotProduct(0.7) + RBF(), RBF() ** 4]


def operator(kernel, X, *, dtype=torch.float64, tile=SMALL_TILE, **options):
    compiled = compile_kernel(kernel, X.shape[1])
    return KernelOperator(compiled, compiled.theta0, X.to(dtype), tile=tile, **options)


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("kernel", STATIONARY.values(), ids=STATIONARY.keys())
def test_closed_form_agrees_with_automatic_differentiation(kernel):
    compiled = compile_kernel(kernel, 3)
    theta = compiled.theta0 + 0.1
    X, Z, weights = normal(9, 3, seed=1), normal(6, 3, seed=2), normal(9, 6, seed=3)
    closed, automatic = bind(compiled, theta, X), AutodiffKernel(compiled, theta)
    assert isinstance(closed, StationaryKernel)
    values, grads = [], []
    for bound in (closed, automatic):
        left, right = bound.prepare(X), bound.prepare(Z)
        values.append(bound.tile(left, right))
        grads.append(bound.tile_grad(left, right, weights.clone()))
    torch.testing.assert_close(*values, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kernel", AUTODIFF, ids=str)
def test_other_kernels_are_differentiated_automatically(kernel):
    assert isinstance(operator(kernel, normal(5, 2)).bound, AutodiffKernel)


@pytest.mark.parametrize("kernel", STATIONARY.values(), ids=STATIONARY.keys())
def test_gradient_against_finite_differences(kernel):
    X, left, right = normal(15, 3), normal(15, 2, seed=1), normal(15, 2, seed=2)
    compiled = compile_kernel(kernel + W(0.2), 3)
    theta, step = compiled.theta0, 1e-5
    made = partial(KernelOperator, compiled, X=X, tile=SMALL_TILE)

    def value(theta):
        return float((left * made(theta).matmul(right)).sum())

    unit = torch.eye(len(theta), dtype=torch.float64) * step
    expected = [(value(theta + e) - value(theta - e)) / (2 * step) for e in unit]
    grad = made(theta).bilinear_grad(left, right)
    np.testing.assert_allclose(grad, expected, rtol=1e-6, atol=1e-7)


def test_single_precision_gradient_of_the_kernel_with_a_kink_keeps_its_digits():
    # On the diagonal the slope of exp(-r) is infinite and what it multiplies is zero.
    X = normal(40, 3)
    weights = torch.eye(40, dtype=torch.float64) * 50 + 0.1
    kernel = Matern([0.5, 1.0, 2.0], nu=0.5)
    exact = operator(kernel, X).bilinear_grad(weights)
    single = operator(kernel, X, dtype=torch.float32).bilinear_grad(weights.float())
    np.testing.assert_allclose(single, exact, rtol=1e-4)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, np.inf])
@pytest.mark.parametrize("length_scale", [0.5, 0.05, 0.005])
def test_single_precision_keeps_near_rows_apart_at_any_length_scale(nu, length_scale):
    # Rows of a time series, each with a near neighbour and one equal to it.
    X = 1.7 * (2 * torch.rand(300, 1, generator=generator(0), dtype=torch.float64) - 1)
    X[100:200] = X[:100] + 0.1 * length_scale * normal(100, 1)
    X[200:] = X[:100]
    X = X.float().double()
    kernel, weights = Matern(length_scale, nu=nu), normal(300, 300, seed=1)
    weights = weights + weights.T
    exact, single = operator(kernel, X), operator(kernel, X, dtype=torch.float32)
    error = (single.to_dense().double() - exact.to_dense()).abs().max()
    assert float(error) < 1e-5
    assert float(torch.linalg.eigvalsh(single.to_dense().double())[0]) > -2e-5
    _, dK = kernel(X.numpy(), eval_gradient=True)
    size = float((np.abs(dK) * weights.abs().numpy()[:, :, None]).sum())
    gap = single.bilinear_grad(weights.float()) - exact.bilinear_grad(weights)
    assert float(gap.abs().max()) < 1e-5 * size


# ---------------------------------------------------------------- tiled and kept

POSITIVE = st.floats(0.2, 5.0)


@st.composite
def kernels(draw, d):
    scales = draw(st.one_of(POSITIVE, st.lists(POSITIVE, min_size=d, max_size=d).map(np.array)))
    stationary = draw(
        st.sampled_from(
            [
                RBF(scales),
                Matern(scales, nu=0.5),
                Matern(scales, nu=1.5),
                Matern(scales, nu=2.5),
                RationalQuadratic(draw(POSITIVE), draw(POSITIVE)),
                Columns(ExpSineSquared(draw(POSITIVE), draw(POSITIVE)), 0) + RBF(scales),
                DotProduct(draw(POSITIVE)),
            ]
        )
    )
    kernel = C(draw(POSITIVE)) * stationary
    if draw(st.booleans()):
        kernel = kernel + C(draw(POSITIVE))
    return kernel + W(draw(st.floats(1e-3, 1.0)))


@settings(max_examples=40)
@given(st.data())
def test_every_way_gives_the_same_numbers(data):
    n, d = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 4))
    s, tile = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 12))
    kernel = data.draw(kernels(d))
    X = normal(n, d, seed=data.draw(st.integers(0, 1000)))
    V, U = normal(n, s, seed=1), normal(n, s, seed=2)
    H, dH = kernel(X.numpy(), eval_gradient=True)
    ways = [operator(kernel, X, tile=tile, keep=keep) for keep in (False, True)]
    products = [op.matmul(V) for op in ways]
    grads = [op.bilinear_grad(U, V) for op in ways]
    scale = float((np.abs(H) @ np.abs(V.numpy())).max())
    for product in products:
        np.testing.assert_allclose(product, H @ V.numpy(), rtol=0, atol=1e-10 * scale)
    expected = np.einsum("is,ijp,js->p", U, dH, V)
    size = np.einsum("is,ijp,js->p", U.abs(), np.abs(dH), V.abs()).max()
    for grad in grads:
        np.testing.assert_allclose(grad, expected, rtol=0, atol=1e-9 * size)


def test_a_tile_larger_than_the_table_changes_nothing():
    X, V = normal(20, 2), normal(20, 3)
    whole = operator(default_kernel(2), X, tile=None)
    assert len(whole._slices) == 1 and tile_size(X.device) >= 256
    tiled = operator(default_kernel(2), X, tile=6)
    assert len(tiled._slices) == 4
    torch.testing.assert_close(whole.matmul(V), tiled.matmul(V), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole.bilinear_grad(V, V), tiled.bilinear_grad(V, V))


def test_tiled_products_evaluate_each_pair_of_tiles_once(monkeypatch):
    X = normal(4 * SMALL_TILE, 2)
    op = operator(default_kernel(2), X)
    calls, tile = [], op.bound.tile
    monkeypatch.setattr(op.bound, "tile", lambda a, b: calls.append(1) or tile(a, b))
    op.matmul(normal(len(X), 3))
    assert len(calls) == 10  # 4 * 5 / 2


def now_and_then_late(work, calls, *args):
    time.sleep(0.004 * (next(calls) % 3 == 0))
    return work(*args)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kernel", [STATIONARY["sum"] + W(0.1), AUTODIFF[1] + W(0.1)], ids=str)
def test_every_bit_is_the_same_with_any_number_of_workers(keep, kernel, set_workers, monkeypatch):
    X, U, V = normal(60, 3), normal(60, 4, seed=1), normal(60, 4, seed=2)

    def results(count):
        set_workers(count)
        op = operator(kernel, X, keep=keep)
        calls = count_from()
        for name in ("tile", "tile_grad"):
            # Some tiles take long, so that later ones are done before them.
            late = partial(now_and_then_late, getattr(op.bound, name), calls)
            monkeypatch.setattr(op.bound, name, late)
        few = torch.arange(0, 60, 5)
        cross = op.cross(V[:20, :3])
        return [
            *(op.rows(few), op.block(few), op.matmul(V), op.to_dense(), cross.matmul(V)),
            *(op.chosen(few[:3]).matmul(V), op.chosen(few[:3]).rmatmul(V[:3])),
            *(op.bilinear_grad(U, V), op.bilinear_grad(U @ U.T), cross.to_dense()),
        ]

    alone = results(1)
    for count in (2, 3):
        assert all(map(torch.equal, results(count), alone))


@pytest.mark.parametrize("keep", [False, True])
def test_products_have_the_precision_of_their_vectors(keep):
    X, V = normal(50, 3).float(), normal(50, 4)
    kernel = STATIONARY["sum"] + W(0.1)
    noise = torch.full((50,), 0.3)
    compiled = compile_kernel(kernel, 3)
    op = KernelOperator(compiled, compiled.theta0, X, noise, keep=keep)
    op.matmul(V.float())
    exact = torch.from_numpy(kernel(X.double().numpy())) @ V + noise.double()[:, None] * V
    before = op.epochs
    torch.testing.assert_close(op.matmul(V), exact, rtol=1e-12, atol=1e-12)
    assert op.epochs == before + 1
    assert op.matmul(V.float()).dtype == op.cross(X[:5]).matmul(V).dtype == torch.float32


def test_other_peoples_numpy_code_runs_in_the_callers_thread(set_workers):
    class Own(RBF):
        def __call__(self, *args, **kwargs):
            threads.add(threading.get_ident())
            return super().__call__(*args, **kwargs)

    set_workers(2)
    threads, X = set(), normal(40, 3)
    compiled = compile_kernel(Own(), 3, any_kernel=True)
    op = KernelOperator(compiled, compiled.theta0, X, tile=SMALL_TILE)
    op.matmul(X)
    op.bilinear_grad(X, X)
    assert threads == {threading.get_ident()}


# ---------------------------------------------------------------- the shared buffer


def test_a_workspace_is_allocated_once():
    X, workspace = normal(20, 2), Workspace()
    first = operator(default_kernel(2), X, keep=True, workspace=workspace)
    first.matmul(X)
    address = workspace.matrix(20, torch.float64, X.device).data_ptr()
    second = operator(default_kernel(2), X + 1, keep=True, workspace=workspace)
    expected = operator(default_kernel(2), X + 1).matmul(X)
    torch.testing.assert_close(second.matmul(X), expected)
    assert workspace.matrix(20, torch.float64, X.device).data_ptr() == address
    assert workspace.matrix(20, torch.float32, X.device).dtype == torch.float32
    assert workspace.matrix(8, torch.float64, X.device).shape == (8, 8)
    workspace.release()
    assert workspace._buffer is None


@pytest.mark.parametrize("keep", [True, False])
def test_the_dense_matrix_is_handed_over_for_factorising_in_place(keep):
    X, V, workspace = normal(20, 2), normal(20, 2, seed=1), Workspace()
    op = operator(default_kernel(2), X, keep=keep, workspace=workspace)
    expected = op.matmul(V)
    H = op.release_dense()
    torch.testing.assert_close(H @ V, expected)
    assert H.data_ptr() == workspace.matrix(20, H.dtype, H.device).data_ptr()
    H.fill_(float("nan"))
    # From here on the operator makes do with tiles, and can hand the matrix over once more.
    torch.testing.assert_close(op.matmul(V), expected)
    torch.testing.assert_close(op.rows(torch.arange(20)) @ V, expected)
    torch.testing.assert_close(op.release_dense() @ V, expected)


@pytest.mark.parametrize("kernel", STATIONARY.values(), ids=STATIONARY.keys())
def test_products_of_chosen_rows_in_several_tiles(kernel):
    """Chosen rows at both edges of tiles, in any order, and more of them than a tile has rows."""
    X = normal(150, 3)
    X[7], X[21] = X[6], X[1]
    op = operator(kernel + W(0.2), X)
    op_H, idx = op.to_dense(), torch.tensor([7, 6, 0, 149, 13, 14, 148, 27, 28, 21, 1, 146])
    chosen, V = op.chosen(idx), normal(150, 4, seed=1)
    assert type(chosen) is not ChosenRows and len(idx) > SMALL_TILE
    close = {"rtol": 1e-7, "atol": 1e-6}
    torch.testing.assert_close(chosen.matmul(V), op_H[idx] @ V, **close)
    torch.testing.assert_close(chosen.rmatmul(V[idx]), op_H[:, idx] @ V[idx], **close)
    # The diagonal is exact, that of a Matern function with a kink at zero included.
    one = torch.eye(150, dtype=torch.float64)[:, idx]
    torch.testing.assert_close(chosen.matmul(one).diagonal(), op.diag()[idx], rtol=0, atol=1e-15)


# ---------------------------------------------------------------- new rows


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_cross_covariances(problem):
    X, kernel = problem.rows(torch.float64), problem.kernel
    compiled = compile_kernel(kernel, X.shape[1])
    noise = problem.known_noise(torch.float64)
    op = KernelOperator(compiled, problem.theta, X, noise, tile=SMALL_TILE)
    new = torch.cat([normal(16, X.shape[1], seed=9) + X.mean(0), X[:1]])
    cross = op.cross(new)
    expected, prior = kernel(new.numpy(), X.numpy()), kernel(new.numpy(), new.numpy())
    scale, tol = max(np.abs(prior).max(), 1e-300), {"rtol": 0, "atol": max(problem.digits, 1e-7)}
    assert cross.shape == (17, len(X))
    np.testing.assert_allclose(cross.to_dense() / scale, expected / scale, **tol)
    V = normal(len(X), 3)
    size = (np.abs(expected) @ np.abs(V.numpy())).max() + 1
    np.testing.assert_allclose(cross.matmul(V) / size, expected @ V.numpy() / size, **tol)
    np.testing.assert_allclose(cross.prior_covariance() / scale, prior / scale, **tol)
    np.testing.assert_allclose(cross.prior_diag(), np.diag(prior), rtol=1e-12, atol=1e-12)
    white = np.diag(kernel(new.numpy())) - np.diag(prior)
    np.testing.assert_allclose(cross.prior_noise(), white, rtol=1e-9, atol=1e-12)
    assert op.cross(new[:0]).to_dense().shape == (0, len(X))


def test_known_noise_belongs_to_training_rows_only():
    X = normal(10, 2)
    op = operator(RBF() + W(0.2), X, extra_noise=torch.ones(10, dtype=torch.float64))
    np.testing.assert_allclose(op.noise, 1.2)
    np.testing.assert_allclose(op.cross(X).prior_noise(), 0.2)
    np.testing.assert_allclose(op.cross(X).to_dense().diagonal(), 1.0, atol=1e-7)


def test_a_gpu_gives_the_same_numbers(gpu):
    for kernel in (default_kernel(3), AUTODIFF[0] + W(0.1)):
        X, V = normal(50, 3), normal(50, 4)
        compiled = compile_kernel(kernel, 3)
        here = KernelOperator(compiled, compiled.theta0, X)
        there = KernelOperator(compiled, compiled.theta0, X.to(gpu))
        torch.testing.assert_close(there.matmul(V.to(gpu)).cpu(), here.matmul(V))
        grad = there.bilinear_grad(V.to(gpu), V.to(gpu))
        torch.testing.assert_close(grad, here.bilinear_grad(V, V))
