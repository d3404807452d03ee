"""SpectralMixture against its formula, finite differences and scikit-learn's regressor."""

import numpy as np
import pytest
import torch
from oracles import generator
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel

from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import SpectralMixture, compile_kernel


def make(d=2, **settings):
    rng = np.random.default_rng(d)
    return SpectralMixture(
        3, [0.5, 1.0, 0.2], rng.uniform(0.1, 1, 3 * d), rng.uniform(0.05, 0.3, 3 * d), **settings
    ), rng.uniform(-1, 1, (12, d))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"means_bounds": "fixed"}])
def test_kernel_gradient_and_compiled_form(d, settings):
    kernel, X = make(d, **settings)
    K, gradient = kernel(X, eval_gradient=True)
    assert np.linalg.eigvalsh(K).min() > -1e-10
    np.testing.assert_allclose(np.diag(K), kernel.diag(X))
    theta = kernel.theta
    assert gradient.shape == (12, 12, len(theta))
    compiled = compile_kernel(kernel + WhiteKernel(0.1), d)
    rows = torch.from_numpy(X)
    np.testing.assert_allclose(compiled.cross(compiled.theta0, rows, rows), K, atol=1e-13)
    jacobian = torch.autograd.functional.jacobian(
        lambda t: compiled.cross(t, rows, rows), compiled.theta0
    )
    np.testing.assert_allclose(jacobian[..., :-1], gradient, atol=1e-12)
    for k in range(len(theta)):
        moved = [kernel.clone_with_theta(theta + s * 1e-6 * np.eye(len(theta))[k]) for s in (1, -1)]
        slope = (moved[0](X) - moved[1](X)) / 2e-6
        np.testing.assert_allclose(gradient[..., k], slope, atol=1e-7)


def test_features_average_to_the_kernel():
    kernel, X = make(2)
    compiled = compile_kernel(kernel, 2)
    features = sample_prior_features(compiled, 2, 20_000, generator(0))
    phi = features.evaluate(compiled.theta0, torch.from_numpy(X))
    np.testing.assert_allclose(phi @ phi.T, kernel(X), atol=0.05)


def test_clones_and_defaults():
    kernel = SpectralMixture(3)
    assert clone(kernel) == kernel and len(kernel.theta) == 9
    with pytest.raises(ValueError, match="3 components has 3 means.*2 columns"):
        compile_kernel(kernel, 2)
    with pytest.raises(ValueError, match="2 columns"):
        kernel(np.zeros((2, 2)))


@pytest.mark.parametrize("bounds", [(1e-5, 1e5), "fixed"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weights": [1.0]}, "2 components has 1 weights"),
        ({"weights": [1.0, 1.0, 1.0]}, "2 components has 3 weights"),
        ({"scales": [0.05]}, "2 components has 1 scales.*1 column: give 2 x 1"),
        ({"scales": [0.05] * 4}, "2 components has 4 scales"),
        ({"means": [0.1]}, "2 components has 1 means"),
    ],
)
def test_numbers_of_parameters(wrong, message, bounds):
    given = {"weights": [0.5, 0.5], "means": [0.1, 0.2], "scales": [0.05, 0.05]} | wrong
    limits = {f"{name}_bounds": bounds for name in ("weights", "means", "scales")}
    kernel = SpectralMixture(2, **given, **limits)
    with pytest.raises(ValueError, match=message):
        compile_kernel(kernel + WhiteKernel(0.3), 1)
    with pytest.raises(ValueError, match=message):
        kernel(np.zeros((3, 1)))


def test_periodogram_finds_frequencies_in_scikit_learns_regressor():
    x = np.arange(80.0)[:, None]
    y = 2 * np.sin(2 * np.pi * 0.1 * x[:, 0]) + np.sin(2 * np.pi * 0.31 * x[:, 0])
    kernel = SpectralMixture.from_data(x, y, 3)
    np.testing.assert_allclose(np.sort(kernel.means)[1:], [0.1, 0.31], atol=0.01)
    gp = GaussianProcessRegressor(kernel + WhiteKernel(0.1), normalize_y=False).fit(x, y)
    future = np.arange(80.0, 90.0)
    truth = 2 * np.sin(2 * np.pi * 0.1 * future) + np.sin(2 * np.pi * 0.31 * future)
    np.testing.assert_allclose(gp.predict(future[:, None]), truth, atol=0.1)


def test_starting_values_of_any_table(thresholds):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 10, (300, 2)), rng.standard_normal(300)
    whole = SpectralMixture.from_data(X, y, 3)
    # Rows come in blocks.
    thresholds("kernels", _BLOCK_NUMBERS=1000)
    kernel = SpectralMixture.from_data(X, y[:, None], 3)
    for name in ("weights", "means", "scales"):
        np.testing.assert_allclose(getattr(kernel, name), getattr(whole, name), rtol=1e-8)
    constant = SpectralMixture.from_data(X, np.full(300, 2.0), 3)
    for made in (kernel, constant):
        low, high = made.bounds.T
        assert (low <= made.theta).all() and (made.theta <= high).all()
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        SpectralMixture.from_data(X[:, 0], y)
    with pytest.raises(ValueError, match=r"y should be a 1d array.*\(300, 2\)"):
        SpectralMixture.from_data(X, X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        SpectralMixture.from_data(X, y[:-1])
    with pytest.raises(ValueError, match="n_components must be an integer of at least 1"):
        SpectralMixture.from_data(X, y, 0)
