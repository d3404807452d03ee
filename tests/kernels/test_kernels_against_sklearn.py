"""Values, diagonals, noise and gradients of random kernel trees against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.kernels import Columns, compile_kernel, default_kernel

TOL = 1e-10
BOUNDS = st.sampled_from([(1e-5, 1e5), "fixed"])
POSITIVE = st.floats(0.3, 3.0)


def length_scales(d):
    per_column = st.lists(POSITIVE, min_size=d, max_size=d).map(np.array)
    return st.one_of(POSITIVE, per_column)


def stationary(d):
    return st.one_of(
        st.builds(RBF, length_scales(d), BOUNDS),
        st.builds(Matern, length_scales(d), BOUNDS, nu=st.sampled_from([0.5, 1.5, 2.5, np.inf])),
        st.builds(RationalQuadratic, POSITIVE, POSITIVE, BOUNDS, BOUNDS),
        st.builds(
            lambda *settings, column: Columns(ExpSineSquared(*settings), column),
            *(POSITIVE, POSITIVE, BOUNDS, BOUNDS),
            column=st.integers(0, d - 1),
        ),
    )


def trees(d):
    leaves = st.one_of(
        stationary(d),
        st.builds(ConstantKernel, POSITIVE, BOUNDS),
        st.builds(WhiteKernel, POSITIVE, BOUNDS),
        st.builds(DotProduct, POSITIVE, BOUNDS),
        st.builds(Exponentiation, stationary(d), st.sampled_from([0.5, 1.5])),
    )
    return st.recursive(
        leaves,
        lambda part: st.one_of(
            st.builds(lambda a, b: a + b, part, part),
            st.builds(lambda a, b: a * b, part, part),
            st.builds(Exponentiation, part, st.sampled_from([1, 2, 3.0])),
        ),
        max_leaves=5,
    )


@st.composite
def cases(draw):
    d = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    X = rng.normal(draw(st.sampled_from([0.0, 30.0])), 1, size=(9, d))
    X[6] = X[0]
    X[7] = X[1] + 1e-9
    return draw(trees(d)), X, rng.uniform(-1, 1, size=(9, 9))


def check(kernel, X, W, offset=0.0):
    """Compare at rows X + offset; scikit-learn, which does not centre, gets X."""
    compiled = compile_kernel(kernel, X.shape[1])
    theta = compiled.theta0.requires_grad_()
    rows = torch.from_numpy(X + offset)
    K, dK = kernel(X, eval_gradient=True)
    scale = np.abs(K).max()

    smooth = compiled.cross(theta, rows, rows)
    noise = compiled.noise(theta, rows)
    assert np.abs(smooth.detach().numpy() - kernel(X, X)).max() <= TOL * scale
    diag = compiled.diag(theta, rows).detach().numpy()
    assert np.abs(diag - np.diag(kernel(X, X))).max() <= TOL * scale
    expected_noise = np.diag(kernel(X)) - np.diag(kernel(X, X))
    assert np.abs(noise.detach().numpy() - expected_noise).max() <= TOL * scale
    cross = compiled.cross(theta, rows[:3], rows).detach().numpy()
    assert np.abs(cross - kernel(X[:3], X)).max() <= TOL * scale

    total = (torch.from_numpy(W) * (smooth + torch.diag(noise))).sum()
    (gradient,) = torch.autograd.grad(total, theta)
    expected = np.einsum("ij,ijk->k", W, dK)
    assert np.abs(gradient.numpy() - expected).max(initial=0) <= TOL * max(
        scale, np.abs(dK).max(initial=0)
    )


@settings(max_examples=40)
@given(cases())
def test_some_random_trees_agree_with_scikit_learn(case):
    check(*case)


@pytest.mark.slow
@settings(max_examples=200)
@given(cases())
def test_random_trees_agree_with_scikit_learn(case):
    check(*case)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, np.inf])
def test_near_duplicates_keep_their_digits(nu, offset):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 3))
    gaps = 10.0 ** -np.arange(1, 9)
    X = np.concatenate([X] + [X + gap for gap in gaps])
    X = (X + offset) - offset
    kernel = ConstantKernel(2.0) * Matern([0.1, 1.0, 10.0], nu=nu) + WhiteKernel(1e-3)
    check(kernel, X, rng.uniform(-1, 1, size=(len(X), len(X))), offset)


def test_short_length_scales_keep_their_digits():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 12))
    X[1:] = X[0] + 1e-4 * X[1:]
    check(RBF(1e-4) + Matern(1e-4) + RationalQuadratic(1e-4), X, rng.normal(size=(40, 40)))


def test_default_kernel_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    for d in (1, 3):
        kernel = default_kernel(d)
        assert len(kernel.theta) == d + 2
        check(kernel, rng.normal(size=(10, d)), rng.normal(size=(10, 10)))


@pytest.mark.parametrize(
    "kernel",
    [
        Matern(nu=0.5),
        Matern(nu=1.5),
        Matern(nu=2.5),
        RBF(),
        RationalQuadratic(),
        Columns(ExpSineSquared(), 1),
        Exponentiation(WhiteKernel() + Matern(nu=0.5), 0.5),
        Exponentiation(WhiteKernel(), 0.5),
        Exponentiation(RBF(1e-2), 0.5),
    ],
    ids=str,
)
def test_gradients_are_finite_at_zero_distance(kernel):
    compiled = compile_kernel(kernel, 2)
    theta = compiled.theta0.requires_grad_()
    X = torch.ones(4, 2, dtype=torch.float64)
    X[3] = 50.0
    X.requires_grad_()
    total = compiled.cross(theta, X, X).sum() + compiled.noise(theta, X).sum()
    for gradient in torch.autograd.grad(total, (theta, X), allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5, np.inf])
def test_gradients_in_the_inputs_are_those_of_finite_differences(nu):
    compiled = compile_kernel(ConstantKernel(2.0) * Matern([0.5, 2.0], nu=nu), 2)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    Z = torch.randn(4, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    theta = compiled.theta0.requires_grad_()
    assert torch.autograd.gradcheck(compiled.cross, (theta, X, Z))


@pytest.mark.parametrize("d", [3, 20])
def test_float32_rows_give_float32_results_near_the_float64_ones(d):
    kernel = default_kernel(d)
    compiled = compile_kernel(kernel, d)
    generator = torch.Generator().manual_seed(0)
    # float32 rows that are exact in float64, so that only the arithmetic differs.
    X = (torch.randn(30, d, generator=generator) + 100).double()
    theta = compiled.theta0.requires_grad_()
    K = compiled.cross(theta, X, X)
    K32 = compiled.cross(theta, X.float(), X.float())
    assert K32.dtype == torch.float32
    assert compiled.diag(theta, X.float()).dtype == torch.float32
    assert compiled.noise(theta, X.float()).dtype == torch.float32
    # Above a few columns a squared distance is off by float32's rounding of |x|^2, here about 40.
    assert (K - K32).abs().max() < (1e-6 if d <= 8 else 1e-4)
    (gradient,) = torch.autograd.grad(K32.sum(), theta)
    assert gradient.dtype == torch.float64
    (expected,) = torch.autograd.grad(K.sum(), theta)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
