"""Likelihoods against numerical integration, and one of a user's own in both kinds of model."""

import inspect
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import minimize
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss

from skscalablegp import QSGPRegressor, SVGPClassifier, SVGPRegressor
from skscalablegp.likelihoods import Bernoulli, Gaussian, Laplace, Likelihood, Softmax, StudentT


class Counts(Likelihood):
    """Poisson counts with the rate softplus(f)."""

    log_concave = True

    def log_density(self, y, f, noise):
        rate = torch.nn.functional.softplus(f)
        return y * torch.log(rate) - rate - torch.lgamma(y + 1)

    def moments(self, f, noise):
        rate = torch.nn.functional.softplus(f)
        return rate, rate

    def draw(self, f, noise, random_state):
        return random_state.poisson(np.logaddexp(0, f))

    def cdf(self, y, f, noise):
        return scipy.stats.poisson.cdf(y, np.logaddexp(0, f))


class Cauchit(Likelihood):
    """Two classes with tails heavier than a logit's."""

    classes = True

    def log_density(self, y, f, noise):
        return torch.log(0.5 + torch.atan((2 * y - 1) * f) / torch.pi)


def log_density(likelihood, y, f, noise):
    """By scipy."""
    if isinstance(likelihood, Gaussian):
        return stats.norm.logpdf(y, f, np.sqrt(noise))
    if isinstance(likelihood, Laplace):
        return stats.laplace.logpdf(y, f, np.sqrt(noise / 2))
    if isinstance(likelihood, StudentT):
        return stats.t.logpdf(y, likelihood.df, f, np.sqrt(noise))
    if isinstance(likelihood, Counts):
        return stats.poisson.logpmf(y, np.logaddexp(0, f))
    law = stats.norm if likelihood.link == "probit" else stats.logistic
    return law.logcdf((2 * y - 1) * f)


@pytest.mark.parametrize(
    "likelihood",
    [
        Gaussian(),
        Laplace(),
        StudentT(5.0, n_nodes=100),
        Bernoulli(n_nodes=100),
        Bernoulli("probit", n_nodes=100),
        Counts(),
    ],
    ids=str,
)
def test_terms_by_numerical_integration(likelihood):
    """The expectation and its derivatives in mean, variance and noise."""
    y = np.array([[0.0], [1.0], [1.0], [0.0]])
    at = np.array([[0.3, 0.5, 0.4], [-1.0, 0.9, 0.3], [2.0, 0.2, 1.0], [0.1, 1.5, 0.7]])
    z = np.linspace(-9, 9, 40_001)
    weight = stats.norm.pdf(z) / stats.norm.pdf(z).sum()

    def oracle(at):
        mean, variance, noise = at.T[:, :, None]
        return log_density(likelihood, y, mean + np.sqrt(variance) * z, noise) @ weight

    mean, variance, noise = (torch.as_tensor(part)[:, None] for part in at.T)
    found = likelihood.expected(torch.as_tensor(y), mean, variance, noise[:, 0])
    assert_allclose(found.value, oracle(at), rtol=1e-5)
    h = 1e-4
    for k, ours in enumerate((found.d_mean[:, 0], found.d_variance[:, 0], found.d_noise)):
        step = h * np.eye(3)[k]
        slope = (oracle(at + step) - oracle(at - step)) / (2 * h)
        assert_allclose(ours, slope, rtol=2e-4, atol=2e-5)
    # What a value carries back is its derivative in the mean.
    mean.requires_grad_(True)
    value = likelihood.expected(torch.as_tensor(y), mean, variance, noise[:, 0]).value.sum()
    assert_allclose(torch.autograd.grad(value, mean)[0], found.d_mean, rtol=1e-4, atol=1e-6)


def test_both_parts_of_an_observations_variance_come_from_one_evaluation(monkeypatch):
    X, y = np.linspace(-2, 2, 30)[:, None], np.arange(30) % 5
    model = SVGPRegressor(likelihood=Counts(), optimizer=None, n_inducing=8).fit(X, y)
    std = model.predict_std(X)
    mean, latent, _ = model._posterior().latent.moments(model._inputs(X))
    # The law of total variance; the rate is also the variance given f.
    f = mean[:, :1] + latent.sqrt()[:, None] * torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weights = torch.exp(-0.5 * torch.linspace(-8, 8, 4001, dtype=torch.float64).square())
    weights /= weights.sum()
    rate = torch.nn.functional.softplus(f)
    first, second = (rate**k @ weights for k in (1, 2))
    assert_allclose(std, (second - first**2 + first).sqrt(), rtol=1e-4)

    latent, seen = type(model._posterior().latent), []
    whole = latent.moments
    monkeypatch.setattr(latent, "moments", lambda s, X: seen.append(1) or whole(s, X))
    assert_allclose(model.predict_std(X), std, rtol=1e-12)
    assert len(seen) == 1
    assert_allclose(model.predict(X, return_std=True)[1], std, rtol=1e-12)
    assert len(seen) == 2


@pytest.mark.parametrize("likelihood", [Gaussian(), Laplace(), StudentT(9.0), Counts()], ids=str)
def test_moments_are_those_of_draws(likelihood):
    rng, n = np.random.RandomState(0), 400_000
    mean, variance, noise = (torch.full((1, 1), v).double() for v in (0.7, 0.4, 0.3))
    found = likelihood.predictive(mean, variance, noise[0])
    f = 0.7 + np.sqrt(0.4) * rng.standard_normal(n)
    y = likelihood.draw(f, np.full(n, 0.3), rng)
    total = float(found.variance + found.noise)
    assert abs(y.mean() - float(found.mean)) < 4 * np.sqrt(total / n)
    assert_allclose(y.var(), total, rtol=0.02)
    given = likelihood.draw(np.full(n, 0.7), np.full(n, 0.3), rng)
    f = torch.full((1,), 0.7).double()
    assert_allclose(given.var(), float(likelihood.moments(f, noise[0])[1]), rtol=0.02)


def variational_optimum(K, y):
    """The best N(m, S) over function values at the rows, by L-BFGS on its ELBO."""
    n = len(y)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    nodes, weights = torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())
    L, y = torch.linalg.cholesky(torch.as_tensor(K)), torch.as_tensor(y)[:, None]
    lower = torch.tril_indices(n, n)

    def unpack(x):
        C = torch.zeros(n, n, dtype=torch.float64).index_put((lower[0], lower[1]), x[n:])
        return L @ x[:n], L @ C, C

    def loss(x):
        x = torch.as_tensor(x).requires_grad_(True)
        m, factor, C = unpack(x)
        f = m[:, None] + factor.square().sum(1).sqrt()[:, None] * nodes
        rate = torch.log1p(torch.exp(f))
        expected = ((y * rate.log() - rate - torch.lgamma(y + 1)) @ weights).sum()
        divergence = 0.5 * (x[:n].square().sum() + C.square().sum() - n)
        divergence = divergence - C.diagonal().abs().log().sum()
        value = divergence - expected
        (gradient,) = torch.autograd.grad(value, x)
        return float(value.detach()), gradient.numpy()

    start = np.concatenate([np.zeros(n), np.eye(n)[lower[0], lower[1]]])
    best = minimize(
        loss, start, jac=True, method="L-BFGS-B", options=dict(maxiter=5000, ftol=1e-15)
    )
    m, factor, _ = unpack(torch.as_tensor(best.x))
    return m.numpy(), factor.square().sum(1).numpy(), -best.fun


KERNEL = ConstantKernel(4.0) * RBF(1.2)


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(KERNEL, likelihood=Counts(), optimizer=None, max_iter=60),
        QSGPRegressor(
            KERNEL, likelihood=Counts(), basis="rows", n_components=12, optimizer=None,
            inference="exact", standardize=False,
        ),
    ],
    ids=["inducing points", "sampled functions"],
)  # fmt: skip
def test_counts_end_at_the_best_gaussian_belief(model):
    """Both models, all rows as points, against a dense numerical optimisation."""
    rng = np.random.default_rng(0)
    X = np.linspace(-2, 2, 12)[:, None]
    y = rng.poisson(np.logaddexp(0, 3 * np.sin(2 * X[:, 0]))).astype(float)
    mean, variance, bound = variational_optimum(KERNEL(X) + 1e-9 * np.eye(12), y)
    z = np.linspace(-9, 9, 20_001)
    rate = np.logaddexp(0, mean[:, None] + np.sqrt(variance)[:, None] * z)
    weight = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    model.fit(X, y)
    found, std = model.predict(X, return_std=True)
    assert_allclose(found, rate @ weight, rtol=1e-4)
    spread = (rate**2) @ weight - (rate @ weight) ** 2
    assert_allclose(std**2, rate @ weight + spread, rtol=1e-3)
    assert_allclose(model.predict_std(X, include_noise=False) ** 2, spread, rtol=2e-3)
    if isinstance(model, SVGPRegressor):
        assert_allclose(model.lower_bound_, bound, rtol=1e-5)


def counts(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    rate = np.logaddexp(0, 3 * np.sin(1.5 * X[:, 0]) + 1)
    return X, rng.poisson(rate).astype(float), rate


@pytest.mark.parametrize(
    "Model, settings",
    [
        pytest.param(SVGPRegressor, dict(n_inducing=20), marks=pytest.mark.slow),
        pytest.param(SVGPRegressor, dict(n_inducing=20, batch_size=100), marks=pytest.mark.slow),
        (QSGPRegressor, dict(n_components=64)),
        pytest.param(
            QSGPRegressor,
            dict(n_components=32, n_dense=32, inference="stochastic", max_iter=60),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_counts_are_learned(Model, settings):
    X, y, _ = counts(400, 0)
    X_new, y_new, rate = counts(1000, 1)
    model = Model(likelihood=Counts(), random_state=0, **settings).fit(X, y)
    plain = Model(random_state=0, **settings).fit(X, y)
    found = model.predict(X_new)
    assert np.sqrt(np.mean((found - rate) ** 2)) < 0.2
    density = stats.poisson.logpmf(y_new, found).mean()
    assert density > stats.norm.logpdf(y_new, *plain.predict(X_new, return_std=True)).mean() + 0.2
    # The standard deviation follows the counts, as no constant noise can.
    z = (y_new - found) / model.predict_std(X_new)
    assert all(0.85 < z[part].std() < 1.15 for part in (rate < 1, rate > 2.5))
    draws = model.sample_y(X_new[:5], 4000)
    assert_allclose(draws.mean(1), found[:5], atol=0.2)
    assert (draws == np.round(draws)).all()
    more = model.partial_fit(*counts(200, 2)[:2]).predict(X_new)
    assert np.sqrt(np.mean((more - rate) ** 2)) < 0.25


def test_what_counts_cannot_do():
    X, y, _ = counts(30, 0)
    for Model in (SVGPRegressor, QSGPRegressor):
        with pytest.raises(ValueError, match=r"Counts\(\) needs y in its own units.*normalize_y"):
            Model(likelihood=Counts(), normalize_y=True).fit(X, y)
        with pytest.raises(ValueError, match=r"Counts\(\) supports one target, but y has 2"):
            Model(likelihood=Counts()).fit(X, np.column_stack([y, y]))
        model = Model(likelihood=Counts(), random_state=0, max_iter=5).fit(X, y)
        with pytest.raises(ValueError, match="no closed form"):
            model.predict(X, return_cov=True)
    with pytest.raises(ValueError, match="noise_variance is the variance of additive noise"):
        SVGPRegressor(likelihood=Counts()).fit(X, y, noise_variance=0.1)
    with pytest.raises(ValueError, match="not for classes"):
        SVGPClassifier(likelihood=Counts()).fit(X, y > 2)


def test_sampled_models_refuse_what_is_not_log_concave():
    X, y, _ = counts(30, 0)
    for likelihood in ("student_t", StudentT(3.0)):
        with pytest.raises(ValueError, match=r"StudentT\(.*not log-concave.*use SVGPRegressor"):
            QSGPRegressor(likelihood=likelihood).fit(X, y)
    with pytest.raises(ValueError, match="not for regression"):
        QSGPRegressor(likelihood=Bernoulli()).fit(X, y)


def test_outliers_in_both_models():
    """One Laplace likelihood, two models: the same function."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 1))
    y = np.sin(2 * X[:, 0]) + 0.05 * rng.standard_normal(200)
    y[::20] += 8
    settings = dict(likelihood="laplace", random_state=0)
    models = SVGPRegressor(n_inducing=30, **settings), QSGPRegressor(n_components=64, **settings)
    grid = np.linspace(-1.9, 1.9, 50)[:, None]
    for model in models:
        assert np.abs(model.fit(X, y).predict(grid) - np.sin(2 * grid[:, 0])).max() < 0.25


def test_classes_of_a_users_own():
    X, y = make_moons(300, noise=0.2, random_state=0)
    model = SVGPClassifier(n_inducing=30, likelihood=Cauchit(), random_state=0)
    p = model.fit(X[:200], y[:200]).predict_proba(X[200:])
    assert_allclose(p.sum(1), 1)
    assert log_loss(y[200:], p) < 0.15


def test_the_guide_has_these_counts():
    guide = Path(__file__).resolve().parents[2] / "doc" / "how_to" / "own_likelihood.rst"
    lines = textwrap.indent(inspect.getsource(Counts), "    ").splitlines()
    assert "\n".join(line.rstrip() for line in lines) in guide.read_text(encoding="utf-8")
    assert len(lines) <= 20


@pytest.mark.parametrize("n_samples", [0, -3])
def test_draws_of_a_softmax_are_counted(n_samples):
    X = np.random.default_rng(0).normal(size=(12, 1))
    model = SVGPClassifier(likelihood=Softmax(n_samples), max_iter=1)
    with pytest.raises(ValueError, match="n_samples must be an integer of at least 1"):
        model.fit(X, np.arange(12) % 3)
