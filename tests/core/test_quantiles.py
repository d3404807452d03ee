"""Quantiles of predictive distributions against scipy's, and against numerical integration."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import LOVEPredictor, QSGPRegressor, SVGPRegressor
from skscalablegp.core.posteriors import additive_quantiles
from skscalablegp.likelihoods import Gaussian, Laplace, Likelihood, StudentT

Q = np.array([1e-6, 0.025, 0.3, 0.7, 0.975, 1 - 1e-6])
ONE = np.ones((1, 1))


class Logistic(Likelihood):
    """Logistic noise, of variance `noise`, with a distribution function and no mixture."""

    additive = True

    def log_density(self, y, f, noise):
        z = (y - f) * torch.pi / torch.sqrt(3 * noise)
        return (
            -z - 2 * torch.nn.functional.softplus(-z) + torch.log(torch.pi / torch.sqrt(3 * noise))
        )

    def moments(self, f, noise):
        return f, noise

    def cdf(self, y, f, noise):
        return stats.logistic.cdf(y, f, np.sqrt(3 * noise) / np.pi)


class Falling(Likelihood):
    """Exponential waiting times whose rate exp(f) grows with f."""

    def log_density(self, y, f, noise):
        return f - y * torch.exp(f)

    def moments(self, f, noise):
        return torch.exp(-f), torch.exp(-2 * f)

    def cdf(self, y, f, noise):
        return -np.expm1(-np.maximum(y, 0) * np.exp(f))


def noise_law(likelihood, variance):
    if isinstance(likelihood, StudentT):
        return stats.t(likelihood.df, scale=np.sqrt(variance * (1 - 2 / likelihood.df)))
    if isinstance(likelihood, Laplace):
        return stats.laplace(scale=np.sqrt(variance / 2))
    if isinstance(likelihood, Logistic):
        return stats.logistic(scale=np.sqrt(3 * variance) / np.pi)
    return stats.norm(scale=np.sqrt(variance))


def share_below(y, mean, variance, law):
    """P(f + e <= y), integrated over f."""
    spread = np.sqrt(variance)
    return integrate.quad(
        lambda z: stats.norm.pdf(z) * law.cdf(y - mean - spread * z),
        -12, 12, limit=400, epsabs=1e-12, points=[np.clip((y - mean) / spread, -11, 11)],
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    "likelihood", [Gaussian(), StudentT(2.1), StudentT(4), StudentT(200), Laplace()], ids=str
)
def test_quantiles_of_the_noise_alone_are_scipys(likelihood):
    found = additive_quantiles(likelihood, 3 * ONE, 0 * ONE, 2 * ONE, Q)[0, 0]
    assert_allclose(found - 3, noise_law(likelihood, 2.0).ppf(Q), rtol=1e-9)
    assert additive_quantiles(likelihood, 3 * ONE, ONE, ONE, np.array([0.5])) == 3


@pytest.mark.parametrize(
    "likelihood", [Gaussian(), StudentT(3), Laplace(), Logistic()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("variance", [0.01, 1.0, 30.0])
def test_a_share_q_lies_below_a_quantile(likelihood, variance):
    found = additive_quantiles(likelihood, 2 * ONE, variance * ONE, 1.5 * ONE, Q[1:-1])[0, 0]
    shares = [share_below(y, 2.0, variance, noise_law(likelihood, 1.5)) for y in found]
    assert_allclose(shares, Q[1:-1], atol=1e-9)


def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.standard_t(3, 60)


@pytest.mark.parametrize("likelihood", [StudentT(4.0), Laplace(), Logistic()], ids=str)
@pytest.mark.parametrize("normalize_y", [False, True])
def test_intervals_of_a_model_with_such_noise(likelihood, normalize_y):
    X, y = table()
    kernel = RBF() + WhiteKernel(0.05)
    model = SVGPRegressor(
        kernel, likelihood=likelihood, optimizer=None, n_inducing=15, max_iter=20, random_state=0,
        normalize_y=normalize_y,
    ).fit(X, y)  # fmt: skip
    x = np.array([[0.3], [6.0]])
    mean, latent = model.predict(x), model.predict_std(x, include_noise=False)
    known = np.array([0.0, 2.0])
    ends = model.predict_interval(x, 0.9, noise_variance=known)
    scale = y.std() if normalize_y else 1.0
    white = 0.05 * scale**2 * likelihood.variance_factor()
    for i in range(2):
        law = noise_law(likelihood, white + known[i])
        shares = [share_below(end, mean[i], latent[i] ** 2, law) for end in ends[i]]
        assert_allclose(shares, [0.05, 0.95], atol=1e-8)
    assert_allclose(
        model.predict_std(x, noise_variance=known), np.sqrt(latent**2 + white + known), rtol=1e-6
    )


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(
            RBF() + WhiteKernel(0.05), likelihood=StudentT(3.0), optimizer=None, n_inducing=15,
            max_iter=20, random_state=0,
        ),
        LOVEPredictor(
            SVGPRegressor(
                RBF() + WhiteKernel(0.05), likelihood=StudentT(3.0), optimizer=None, n_inducing=15,
                max_iter=20,
            ),
            random_state=0,
        ),
        QSGPRegressor(
            RBF() + WhiteKernel(0.05), likelihood="laplace", optimizer=None, random_state=0
        ),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_samples_have_the_noise_of_the_likelihood(model):
    """Known noise is of its kind too: one variable of the whole variance, not a sum of two."""
    X, y = table()
    model = clone(model).fit(X, y)
    draws = model.sample_y(X[:1], 20_000, random_state=0, noise_variance=5.0)[0]
    q = np.array([0.005, 0.1, 0.5, 0.9, 0.995])
    below = (draws[:, None] <= model.predict_quantiles(X[:1], q, noise_variance=5.0)).mean(0)
    assert (np.abs(below - q) < 4 * np.sqrt(q * (1 - q) / len(draws))).all()


def test_known_noise_of_a_fit_is_noise_of_the_likelihoods_kind():
    X, y = table()
    settings = dict(optimizer=None, n_inducing=15, max_iter=20, random_state=0)
    for likelihood in (Gaussian(), StudentT(4.0)):
        # A white kernel's level is the square of a scale, a known variance is a variance.
        known = 0.3 * likelihood.variance_factor()
        one = SVGPRegressor(RBF() + WhiteKernel(0.3), likelihood=likelihood, **settings).fit(X, y)
        other = SVGPRegressor(RBF(), likelihood=likelihood, **settings)
        other.fit(X, y, noise_variance=known)
        assert_allclose(other.predict(X), one.predict(X), rtol=1e-6)
        assert_allclose(other.predict_std(X, noise_variance=known), one.predict_std(X), rtol=1e-6)


def test_quantiles_of_what_is_not_a_function_plus_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    y = rng.exponential(np.exp(-np.sin(X[:, 0])))
    model = SVGPRegressor(
        RBF(), likelihood=Falling(), optimizer=None, n_inducing=15, max_iter=20, random_state=0
    ).fit(X, y)
    latent = model._posterior().latent
    mean, variance, white = (a.numpy().ravel() for a in latent.moments(model._inputs(X[:3])))
    variance = variance + white
    ends = model.predict_interval(X[:3], 0.9)
    for i in range(3):
        for end, share in zip(ends[i], (0.05, 0.95), strict=True):
            found = integrate.quad(
                lambda f, i=i, end=end: stats.norm.pdf(f, mean[i], variance[i] ** 0.5)
                * -np.expm1(-end * np.exp(f)),
                mean[i] - 10, mean[i] + 10,
            )  # fmt: skip
            assert_allclose(found[0], share, atol=1e-6)
    # The mean exp(-f) falls in f: its low quantile is where f is high.
    spread = stats.norm.ppf(0.95) * np.sqrt(variance)
    expected = np.exp(-np.column_stack([mean + spread, mean - spread]))
    assert_allclose(model.predict_interval(X[:3], 0.9, include_noise=False), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="noise_variance is the variance of additive noise"):
        model.predict_std(X, noise_variance=0.1)


def test_counts_have_whole_quantiles():
    from core.test_likelihoods import Counts

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 1))
    y = rng.poisson(3 + 2 * np.sin(X[:, 0]))
    model = SVGPRegressor(RBF(), likelihood=Counts(), n_inducing=15, max_iter=20, random_state=0)
    model.fit(X, y)
    found = model.predict_quantiles(X, [0.1, 0.5, 0.9])
    assert_array_equal(found, np.round(found))
    draws = model.sample_y(X, 4000)
    for k, q in enumerate((0.1, 0.5, 0.9)):
        at, below = found[:, k, None], 4 * np.sqrt(q * (1 - q) / 4000)
        assert ((draws <= at).mean(1) > q - below).all()
        assert ((draws <= at - 1).mean(1) < q + below).all()


def test_a_likelihood_without_a_distribution_function_says_so():
    class Bare(Logistic):
        cdf = Likelihood.cdf

    X, y = table()
    model = SVGPRegressor(likelihood=Bare(), n_inducing=5, max_iter=2).fit(X, y)
    with pytest.raises(NotImplementedError, match=r"Bare has no cdf\(y, f, noise\)"):
        model.predict_interval(X)
