"""Prior features: their mean is the kernel, their randomness is frozen."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.features import frequencies_per_product, sample_prior_features
from skscalablegp.kernels import Columns, NoSpectralDensity, compile_kernel, default_kernel

C = ConstantKernel
D = 2


def rows(n=5, d=D):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def sample(kernel, n_pairs=20, seed=0, **options):
    compiled = compile_kernel(kernel, D)
    generator = torch.Generator().manual_seed(seed)
    return compiled, sample_prior_features(compiled, D, n_pairs, generator, **options)


KERNELS = [
    RBF(0.7),
    Matern([0.5, 2.0], nu=0.5),
    Matern([0.5, 2.0], nu=1.5),
    Matern(nu=2.5),
    Matern(nu=np.inf),
    RationalQuadratic(0.8, alpha=0.3),
    RationalQuadratic(0.8, alpha=20.0),
    C(2.0) * Matern() + C(0.5) + WhiteKernel(),
    RBF(2.0) * Matern(nu=0.5) * C(3.0, "fixed"),
    RBF() ** 3,
    (Matern() + C(0.3) + WhiteKernel()) ** 2,
    DotProduct(0.5) * RBF(1.5) + DotProduct(2.0),
]


TAILS = [Matern([0.5, 2.0], nu=1.5), Columns(Matern(nu=0.5), 1) * Matern(nu=2.5) + RBF()]


@pytest.mark.parametrize(
    "kernel, tails",
    [*((kernel, False) for kernel in KERNELS), *((kernel, True) for kernel in TAILS)],
    ids=str,
)
def test_covariance_of_the_features_is_the_kernel_on_average(kernel, tails):
    X, n_draws, covariances = rows(), 300, []
    for seed in range(n_draws):
        compiled, features = sample(kernel, seed=seed, tails=tails)
        theta = compiled.theta0 + 0.2
        phi = features.evaluate(theta, X)
        covariances.append(phi @ phi.T)
    covariances = torch.stack(covariances)
    K = compiled.cross(theta, X, X)
    error, spread = (covariances.mean(0) - K).abs(), covariances.std(0)
    # Entries that every draw gets exactly right, such as a stationary diagonal, have no spread.
    exact = spread < 1e-12
    assert error[exact].max() < 1e-12 if exact.any() else True
    z = error[~exact] / spread[~exact] * n_draws**0.5
    assert z.max() < 4.5
    assert z.square().mean() < 3.0


@pytest.mark.parametrize("noise", [1e-3, 1e-6])
@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_many_rows_leave_the_variance_of_high_frequencies(noise, nu):
    """The variance of f(x) - E[f(x) | 600 rows], which is 2e-4 to 3e-3 of the prior's."""
    rng = np.random.default_rng(0)
    X, Z = rng.uniform(size=(600, D)) / [0.5, 1.0], rng.uniform(size=(50, D)) / [0.5, 1.0]
    kernel = Matern(1.0, nu=nu)
    weights = np.linalg.solve(kernel(X) + noise * np.eye(len(X)), kernel(X, Z))
    exact = 1 - np.sum(kernel(X, Z) * weights, 0)
    ratios = []
    for seed in range(8):
        compiled, features = sample(kernel, n_pairs=500, seed=seed, tails=True)
        at_rows, at_new = (features.evaluate(compiled.theta0, torch.tensor(A)) for A in (X, Z))
        rest = at_new.numpy() - weights.T @ at_rows.numpy()
        ratios.append(np.sum(np.sum(rest**2, 1) + noise * np.sum(weights**2, 0)) / exact.sum())
    ratios = np.sqrt(ratios)
    assert abs(ratios.mean() - 1) < 0.05
    assert np.abs(ratios - 1).max() < 0.25


def test_modules_and_smaller_draws_have_the_weights_of_high_frequencies():
    compiled, features = sample(TAILS[1], n_pairs=50, tails=True)
    X, theta = rows(), compiled.theta0
    phi = features.evaluate(theta, X)
    torch.testing.assert_close(features.module(theta)(X), phi)
    first = features.head(20).evaluate(theta, X)
    torch.testing.assert_close(first[:, :20], phi[:, :20] * (50 / 20) ** 0.5)
    weights = phi.unflatten(1, (2, 2, 50)).square().sum(2)[:, 0]
    assert weights.std(0).max() < 1e-12
    assert 0 < weights.min() < weights.max() < 4 / 50 + 1e-12


@pytest.mark.parametrize("kernel", [C(2.0), DotProduct(0.7), DotProduct(0.7) ** 2 * C(0.4)])
def test_finite_dimensional_kernels_are_exact(kernel):
    compiled, features = sample(kernel)
    X, theta = rows(), compiled.theta0
    phi = features.evaluate(theta, X)
    torch.testing.assert_close(phi @ phi.T, compiled.cross(theta, X, X))
    assert phi.shape == (5, features.n_features)


def test_number_of_features():
    kernel = RBF() + C() * Matern() + C() + DotProduct() + WhiteKernel() + RBF() * DotProduct()
    _, features = sample(kernel, n_pairs=10)
    assert features.n_features == 20 + 20 + 1 + (1 + D) + 20 * (1 + D)
    compiled, features = sample(WhiteKernel())
    assert features.n_features == 0
    assert features.evaluate(compiled.theta0, rows()).shape == (5, 0)


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (C() * RBF() + C() + DotProduct() + WhiteKernel(), 50),
        (RBF() + C() * Matern() + C() + WhiteKernel(), 25),
        (RBF() + Matern() + RBF() * DotProduct(), 16),
        (DotProduct() + C(), 50),
        (sum((RBF() for _ in range(99)), RBF()), 1),
    ],
)
def test_components_are_shared_among_the_products(kernel, expected):
    assert frequencies_per_product(compile_kernel(kernel, D), 101) == expected


def test_randomness_is_frozen_and_rows_are_independent():
    compiled, features = sample(default_kernel(D))
    X, theta = rows(), compiled.theta0
    first = features.evaluate(theta, X)
    features.evaluate(theta + 1, X)
    torch.testing.assert_close(features.evaluate(theta, X), first, rtol=0, atol=0)
    torch.testing.assert_close(sample(default_kernel(D))[1].evaluate(theta, X), first)
    chunks = torch.cat([features.evaluate(theta, X[i : i + 2]) for i in (0, 2, 4)])
    torch.testing.assert_close(chunks, first)
    copy = pickle.loads(pickle.dumps(features))
    torch.testing.assert_close(copy.evaluate(theta, X), first, rtol=0, atol=0)
    # Twice the length scale is half of every row, with the same frequencies.
    longer = theta + torch.tensor([0.0, np.log(2), np.log(2), 0.0])
    torch.testing.assert_close(features.evaluate(longer, X), features.evaluate(theta, X / 2))


def test_dtype_changes_the_rounding_only():
    compiled, features = sample(C(2.0) * RBF() + C(3.0) * RationalQuadratic())
    _, single = sample(C(2.0) * RBF() + C(3.0) * RationalQuadratic(), dtype=torch.float32)
    X, theta = rows(), compiled.theta0
    phi = single.evaluate(theta, X.float())
    assert phi.dtype == torch.float32
    torch.testing.assert_close(phi.double(), features.evaluate(theta, X), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "kernel", [C(2.0) * Matern([0.5, 2.0]) + DotProduct(), RationalQuadratic(0.8, alpha=0.3)]
)
def test_features_are_differentiable_in_theta(kernel):
    compiled, features = sample(kernel, n_pairs=4)
    X = rows()
    weights = torch.randn(features.n_features, generator=torch.Generator().manual_seed(1)).double()
    theta = compiled.theta0.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: features.evaluate(t, X) @ weights, theta, atol=1e-5)


def test_the_rational_quadratic_tends_to_the_rbf():
    compiled, features = sample(RationalQuadratic(0.8, alpha=1e5))
    _, limit = sample(RBF(0.8))
    X = rows()
    phi, phi_limit = features.evaluate(compiled.theta0, X), limit.evaluate(compiled.theta0[1:], X)
    torch.testing.assert_close(phi, phi_limit, rtol=0, atol=0.02)


def test_extreme_shapes_stay_finite():
    compiled, features = sample(RationalQuadratic(alpha=1e-5))
    theta = compiled.theta0.requires_grad_()
    phi = features.evaluate(theta, rows())
    (gradient,) = torch.autograd.grad(phi.sum(), theta)
    assert torch.isfinite(phi).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    "kernel, name",
    [
        (RBF() + Columns(ExpSineSquared(), 0), "ExpSineSquared"),
        (RBF() ** 0.5, "Exponentiation"),
        (RBF() * DotProduct() ** 12, "DotProduct"),
    ],
    ids=["periodic", "power", "too many"],
)
def test_kernels_without_features_say_what_else_to_use(kernel, name):
    with pytest.raises(NoSpectralDensity, match=f'{name}.*gradient="standard"'):
        sample(kernel)


def test_arguments_are_checked():
    compiled = compile_kernel(RBF(), D)
    with pytest.raises(ValueError, match="2 columns, not 3"):
        sample_prior_features(compiled, 3, 10, torch.Generator())
    with pytest.raises(TypeError, match="torch.Generator"):
        sample_prior_features(compiled, D, 10)
    with pytest.raises(TypeError):
        compile_kernel(PairwiseKernel(), D)


@pytest.mark.gpu
def test_features_on_a_gpu_are_those_of_the_cpu(gpu):
    compiled, features = sample(default_kernel(D) + RationalQuadratic())
    _, moved = sample(default_kernel(D) + RationalQuadratic(), device=gpu)
    X, theta = rows(), compiled.theta0
    phi = moved.evaluate(theta, X.to(gpu))
    torch.testing.assert_close(phi.cpu(), features.evaluate(theta, X))
