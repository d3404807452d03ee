"""A stationary kernel in one file: here the generalised Cauchy function."""

import numpy as np
import pytest
import torch
from oracles import normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Hyperparameter,
    Kernel,
    StationaryKernelMixin,
    WhiteKernel,
)

from skscalablegp import IterativeGPRegressor, KISSGPRegressor, QSGPRegressor, RFFRegressor
from skscalablegp.kernels import (
    NoSpectralDensity,
    Profile,
    ScaledFrequencies,
    compile_kernel,
    register_kernel,
)
from skscalablegp.linalg.operators import KernelOperator, StationaryKernel

# ---------------------------------------------------------------- the file of a new kernel


class Cauchy(StationaryKernelMixin, Kernel):
    """(1 + r^2)^(-beta), r the scaled distance: what scikit-learn's own regressor works with."""

    def __init__(
        self,
        length_scale=1.0,
        beta=1.0,
        length_scale_bounds=(1e-3, 1e3),
        beta_bounds=(1e-2, 1e2),
    ):
        self.length_scale, self.length_scale_bounds = length_scale, length_scale_bounds
        self.beta, self.beta_bounds = beta, beta_bounds

    @property
    def hyperparameter_length_scale(self):
        size = np.size(self.length_scale)
        return Hyperparameter("length_scale", "numeric", self.length_scale_bounds, size)

    @property
    def hyperparameter_beta(self):
        return Hyperparameter("beta", "numeric", self.beta_bounds)

    def __call__(self, X, Y=None, eval_gradient=False):
        X, Z = np.atleast_2d(X), np.atleast_2d(X if Y is None else Y)
        squares = np.square((X[:, None] - Z[None]) / self.length_scale)
        base = 1 + squares.sum(-1)
        K = base**-self.beta
        if not eval_gradient:
            return K
        by_scale = 2 * self.beta * (K / base)[..., None] * squares
        if np.size(self.length_scale) == 1:
            by_scale = by_scale.sum(-1, keepdims=True)
        # scikit-learn's order of hyperparameters is that of their names.
        return K, np.concatenate([(-self.beta * K * np.log(base))[..., None], by_scale], -1)

    def diag(self, X):
        return np.ones(len(X))


class CauchyProfile(Profile):
    """(1 + u)^(-beta)."""

    shape = ("beta",)

    def value_and_slope(self, u, beta):
        base = u + 1
        k = base**-beta
        return k, 2 * beta * k / base, -beta * k * torch.log(base)


class SampledProfile(CauchyProfile):
    """With a spectral density: a scale mixture of normals, at beta = 1 exponential."""

    def frequencies(self, leaf, draws):
        scale = torch.sqrt(-2 * torch.log(draws.uniform()))[:, None]
        return ScaledFrequencies(draws.stored(draws.normal() * scale), leaf.length_scale)


# ---------------------------------------------------------------- what it is worth

C, W = ConstantKernel, WhiteKernel


@pytest.fixture(params=[CauchyProfile], autouse=True)
def registered(request, own_kernels):
    register_kernel(Cauchy, request.param().build)


with_sampler = pytest.mark.parametrize("registered", [SampledProfile], indirect=True)


def table(n=60, d=2):
    X, noise = normal(n, d, seed=0).numpy(), normal(n, 1, seed=1).numpy()
    return X, np.sin(2 * X[:, 0]) + 0.1 * noise[:, 0]


@pytest.mark.parametrize("scale", [0.8, np.array([0.6, 1.5])])
def test_values_and_gradients(scale):
    X, Z = normal(9, 2, seed=1), normal(6, 2, seed=2)
    rows = X.numpy()
    kernel = C(1.7) * Cauchy(scale, 0.6) + W(0.3)
    compiled = compile_kernel(kernel, 2)
    theta = compiled.theta0
    np.testing.assert_allclose(compiled.cross(theta, X, Z), kernel(rows, Z.numpy()), rtol=1e-12)
    operator = KernelOperator(compiled, theta, X)
    assert isinstance(operator.bound, StationaryKernel)
    np.testing.assert_allclose(operator.to_dense(), kernel(rows), rtol=1e-12)
    weights = normal(9, 9, seed=3)
    weights = weights + weights.T

    def value(theta):
        K = compiled.cross(theta, X, X) + torch.diag(compiled.noise(theta, X))
        return (weights * K).sum()

    def theirs(shift):
        return float((weights.numpy() * kernel.clone_with_theta(theta.numpy() + shift)(rows)).sum())

    steps = 1e-5 * np.eye(len(theta))
    slopes = [(theirs(step) - theirs(-step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(operator.bilinear_grad(weights), slopes, rtol=1e-6)
    automatic = torch.autograd.functional.jacobian(value, theta)
    np.testing.assert_allclose(automatic, slopes, rtol=1e-6)
    X.requires_grad_()
    assert torch.autograd.gradcheck(lambda X: compiled.cross(theta, X, Z), X)


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_exact_regression_agrees_with_scikit_learn(solver):
    X, y = table()
    kernel = C(0.9) * Cauchy([1.0, 2.0]) + W(0.05)
    model = IterativeGPRegressor(kernel, solver=solver, optimizer=None, dtype="float64")
    theirs = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10).fit(X, y)
    new = X[:5] + 0.1
    mean, std = model.fit(X, y).predict(new, return_std=True)
    expected, expected_std = theirs.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(std, expected_std, atol=1e-3)


def test_hyperparameters_are_trained():
    X, y = table()
    kernel = C() * Cauchy() + W(0.5)
    model = IterativeGPRegressor(kernel, dtype="float64", random_state=0).fit(X, y)
    theirs = GaussianProcessRegressor(kernel).fit(X, y).log_marginal_likelihood_value_
    assert model.log_marginal_likelihood_value_ > theirs - 0.5


@pytest.mark.parametrize("model", [RFFRegressor(), QSGPRegressor(basis="fourier")])
def test_without_a_sampler_there_are_no_random_features(model):
    X, y = table()
    with pytest.raises(NoSpectralDensity, match="Cauchy has no spectral density"):
        model.set_params(kernel=C() * Cauchy() + W()).fit(X, y)


def test_a_product_grid_wants_to_know_about_columns():
    X, y = table()
    with pytest.raises(ValueError, match="Cauchy is not a product over columns"):
        KISSGPRegressor(C() * Cauchy() + W(), structure="product").fit(X, y)
    additive = KISSGPRegressor(C() * Cauchy() + W(), structure="additive").fit(X, y)
    assert additive.score(X, y) > 0.5


@with_sampler
def test_random_features_with_a_sampler():
    X, y = table()
    kernel = C(0.9) * Cauchy([1.0, 2.0], beta_bounds="fixed") + W(0.05)
    model = RFFRegressor(kernel, n_components=700, optimizer=None, random_state=0).fit(X, y)
    theirs = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10).fit(X, y)
    np.testing.assert_allclose(model.predict(X), theirs.predict(X), atol=0.05)


def test_hyperparameters_that_the_profile_does_not_take():
    register_kernel(Cauchy, type("Wrong", (CauchyProfile,), {"shape": ()})().build)
    with pytest.raises(ValueError, match="hyperparameters .'beta'. besides length_scale"):
        compile_kernel(Cauchy(), 2)
