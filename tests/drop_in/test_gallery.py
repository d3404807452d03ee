"""The calls of scikit-learn's gallery of Gaussian processes, with both regressors.

Each script is given the class and returns what it would draw. Where both end at the same optimum
the pictures are the same; an optimum of our own has to be at least as high.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
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
from sklearn.gaussian_process.tests._mini_sequence_kernel import MiniSeqKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import RandomizedSearchCV

from skscalablegp import IterativeGPRegressor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


def both(script, *args):
    return script(GaussianProcessRegressor, *args), script(IterativeGPRegressor, *args)


PRIORS = [
    1.0 * RBF(length_scale=1.0, length_scale_bounds=(1e-1, 10.0)),
    1.0 * RationalQuadratic(length_scale=1.0, alpha=0.1, alpha_bounds=(1e-5, 1e15)),
    1.0
    * ExpSineSquared(
        length_scale=1.0,
        periodicity=3.0,
        length_scale_bounds=(0.1, 10.0),
        periodicity_bounds=(1.0, 10.0),
    ),
    ConstantKernel(0.1, (0.01, 10.0)) * DotProduct(1.0, (0.1, 10.0)) ** 2,
    1.0 * Matern(length_scale=1.0, length_scale_bounds=(1e-1, 10.0), nu=1.5),
]


def prior_and_posterior(Regressor, kernel):
    rng = np.random.RandomState(4)
    X_train = rng.uniform(0, 5, 10).reshape(-1, 1)
    y_train = np.sin((X_train[:, 0] - 2.5) ** 2)
    x = np.linspace(0, 5, 30).reshape(-1, 1)
    gpr = Regressor(kernel=kernel, random_state=0, alpha=1e-2)
    prior = [*gpr.predict(x, return_std=True), gpr.sample_y(x, n_samples=3)]
    gpr.fit(X_train, y_train)
    assert gpr.kernel_.theta.shape == kernel.theta.shape and str(gpr.kernel)
    posterior = [*gpr.predict(x, return_std=True), gpr.sample_y(x, n_samples=3)]
    return prior, posterior, gpr.log_marginal_likelihood(gpr.kernel_.theta)


@pytest.mark.parametrize("kernel", PRIORS, ids=lambda kernel: type(kernel.k2).__name__)
def test_prior_and_posterior(kernel):
    (prior, posterior, value), (our_prior, our_posterior, our_value) = both(
        prior_and_posterior, kernel
    )
    for theirs, ours in zip(prior, our_prior, strict=True):
        # Draws come from a factor of a nearly singular matrix.
        assert_allclose(ours, theirs, atol=1e-5)
    assert our_value > value - 1e-4
    if our_value < value + 1e-4:
        for theirs, ours in zip(posterior[:2], our_posterior[:2], strict=True):
            assert_allclose(ours, theirs, atol=2e-3)


def noise_level(Regressor):
    rng = np.random.RandomState(0)
    X = rng.uniform(0, 5, size=20).reshape(-1, 1)
    y = 0.5 * np.sin(3 * X[:, 0]) + np.random.RandomState(1).normal(0, 0.3, size=20)
    grid = np.linspace(0, 5, 30).reshape(-1, 1)
    found = []
    for scale, noise in ((1e1, 1.0), (1e-1, 1e-2)):
        kernel = 1.0 * RBF(length_scale=scale, length_scale_bounds=(1e-2, 1e3)) + WhiteKernel(
            noise_level=noise, noise_level_bounds=(1e-10, 1e1)
        )
        gpr = Regressor(kernel=kernel, alpha=0.0).fit(X, y)
        mean, std = gpr.predict(grid, return_std=True)
        found.append((mean, std, gpr.log_marginal_likelihood(gpr.kernel_.theta)))
    surface = [
        [gpr.log_marginal_likelihood(theta=np.log([0.36, s, v])) for v in np.logspace(-2, 1, 5)]
        for s in np.logspace(-2, 3, 5)
    ]
    return found, np.array(surface)


def test_noise_level():
    (theirs, surface), (ours, our_surface) = both(noise_level)
    assert_allclose(our_surface, surface, rtol=1e-9)
    for (mean, std, value), (our_mean, our_std, our_value) in zip(theirs, ours, strict=True):
        assert our_value > value - 1e-5
        assert_allclose(our_mean, mean, atol=2e-3)
        assert_allclose(our_std, std, atol=2e-3)
    # Two starts, two local optima.
    assert abs(ours[0][2] - ours[1][2]) > 0.1


def structured_data(Regressor):
    X = np.array(["AGCT", "AGC", "AACT", "TAA", "AAA", "GAACA"])
    y = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    train = [0, 1, 3, 4]
    # Its gradient is not that of the logarithm: what to make of it differs.
    kernel = MiniSeqKernel(baseline_similarity_bounds=(1e-5, 1))
    unfitted = Regressor(kernel=kernel).predict(X, return_cov=True)[1]
    assert_allclose(unfitted, kernel(X))
    fixed = MiniSeqKernel(baseline_similarity_bounds="fixed")
    gpr = Regressor(kernel=1.0 * fixed + WhiteKernel(0.1, "fixed"), alpha=0.0)
    gpr.fit(X[train], y[train])
    Regressor(kernel=kernel).fit(X[train], y[train]).predict(X)
    assert gpr.sample_y(list(X), 2).shape == (6, 2)
    return gpr.predict(X, return_std=True)


def test_structured_data():
    theirs, ours = both(structured_data)
    for a, b in zip(theirs, ours, strict=True):
        assert_allclose(b, a, atol=2e-3)


def kernel_ridge(Regressor):
    rng = np.random.RandomState(0)
    data = np.linspace(0, 30, num=600).reshape(-1, 1)
    target = np.sin(data).ravel()
    chosen = rng.choice(np.arange(0, 250), size=40, replace=False)
    X, y = data[chosen], target[chosen] + 0.5 * rng.randn(40)
    ridge = RandomizedSearchCV(
        KernelRidge(kernel=ExpSineSquared()),
        {"alpha": np.logspace(0, 3, 7), "kernel__periodicity": np.logspace(0, 1, 7)},
        n_iter=3,
        random_state=0,
        cv=3,
    ).fit(X, y)
    kernel = 1.0 * ExpSineSquared(1.0, 5.0, periodicity_bounds=(1e-2, 1e1)) + WhiteKernel(1e-1)
    gpr = Regressor(kernel=kernel).fit(X, y)
    assert np.isfinite(ridge.predict(data)).all() and gpr.get_params()["kernel__k2__noise_level"]
    return gpr.predict(data, return_std=True), gpr.log_marginal_likelihood(gpr.kernel_.theta)


def test_comparison_with_kernel_ridge():
    ((mean, std), value), ((our_mean, our_std), our_value) = both(kernel_ridge)
    assert our_value == pytest.approx(value, abs=1e-4)
    assert_allclose(our_mean, mean, atol=5e-3)
    assert_allclose(our_std, std, atol=5e-3)


def mauna_loa(Regressor):
    """Thirty years of quarters of a rising, seasonal series, and ten more."""
    rng = np.random.RandomState(0)
    t = 1960 + np.arange(120).reshape(-1, 1) / 4
    rise = 0.8 * (t[:, 0] - 1960) + 0.012 * (t[:, 0] - 1960) ** 2
    season = 3.0 * np.sin(2 * np.pi * t[:, 0]) + np.cos(4 * np.pi * t[:, 0])
    y = 315 + rise + season + 0.2 * rng.normal(size=len(t))
    long_term = 50.0**2 * RBF(length_scale=50.0)
    seasonal = (
        2.0**2
        * RBF(length_scale=100.0)
        * ExpSineSquared(length_scale=1.0, periodicity=1.0, periodicity_bounds="fixed")
    )
    irregular = 0.5**2 * RationalQuadratic(length_scale=1.0, alpha=1.0)
    noise = 0.1**2 * RBF(length_scale=0.1) + WhiteKernel(0.1**2, noise_level_bounds=(1e-5, 1e5))
    kernel = long_term + seasonal + irregular + noise
    y_mean = y.mean()
    gpr = Regressor(kernel=kernel, normalize_y=False).fit(t, y - y_mean)
    ahead = np.arange(1990, 2000, 0.5).reshape(-1, 1)
    mean, std = gpr.predict(ahead, return_std=True)
    return mean + y_mean, std, gpr.log_marginal_likelihood(gpr.kernel_.theta)


def test_mauna_loa():
    (mean, std, value), (our_mean, our_std, our_value) = both(mauna_loa)
    assert our_value > value - 0.01
    assert_allclose(our_mean[:4], mean[:4], atol=0.3)
    assert (our_std > 0).all() and our_std[-1] > our_std[0]


def test_a_bound_that_was_too_narrow_is_named():
    X = np.linspace(0, 5, 12).reshape(-1, 1)
    kernel = RBF(length_scale=0.2, length_scale_bounds=(1e-3, 0.3))
    with pytest.warns(ConvergenceWarning, match="upper bound 0.3. Increasing the bound"):
        IterativeGPRegressor(kernel).fit(X, np.sin(X[:, 0]))
