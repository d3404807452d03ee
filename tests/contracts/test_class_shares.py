"""Probabilities of classifiers on drawn tables whose true probabilities are known.

On fresh rows, mean probabilities are within two standard errors of the classes' shares among the
training rows, and the log loss exceeds that of the shares alone by at most LOSS.
"""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, softmax
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skscalablegp import (
    AutoGPClassifier,
    QSGPClassifier,
    SVGPClassifier,
    SVGPRegressor,
    load,
    save,
    to_torch,
)
from skscalablegp.core.likelihoods import (
    best_power,
    class_shares,
    losses_of_powers,
    towards_shares,
    without_own_target,
)
from skscalablegp.likelihoods import Bernoulli, Gaussian, Likelihood, Softmax

CLASSIFIERS = [SVGPClassifier, QSGPClassifier, AutoGPClassifier]
FRESH, LOSS = 4000, 0.02


def table(kind, n, d, share, n_classes, seed):
    """n rows with labels, and FRESH rows with the true probabilities of their classes.

    With two classes, the second one has this share of the population; with more, the last one has
    it where there is no signal.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + FRESH, d))
    f = np.zeros((len(X), n_classes))
    if kind == "linear":
        f += 1.5 * X @ rng.standard_normal((d, n_classes)) / np.sqrt(d)
    elif kind == "wave":
        f += 3 * np.sin(2 * X[:, :1] + 2 * np.arange(n_classes))
    if n_classes == 2:
        f[:, 0] = 0.0
        f[:, 1] += brentq(lambda b: expit(f[:, 1] + b).mean() - share, -30, 30)
    else:
        f[:, -1] += np.log(share * (n_classes - 1) / (1 - share))
    p = softmax(f, axis=1)
    y = (rng.random((len(X), 1)) > p.cumsum(1)).sum(1).clip(0, n_classes - 1)
    return X[:n], y[:n], X[n:], p[n:]


def judged(kind, X, y, fresh, p):
    """Standard errors between mean probabilities and shares, and the excess log loss."""
    c = p.shape[1]
    counts = np.bincount(y, minlength=c)
    shares = (counts + 1 / c) / (len(y) + 1)
    model = kind(random_state=0).fit(X, y)
    found = np.zeros_like(p)
    found[:, model.classes_] = model.predict_proba(fresh)
    away = found.mean(0) - counts / len(y)
    z = np.abs(away) / np.sqrt(shares * (1 - shares) / len(y))
    excess = (p * (np.log(shares) - np.log(np.maximum(found, 1e-12)))).sum(1).mean()
    return z.max(), excess


def log_loss(model, X, p):
    return -(p * np.log(model.predict_proba(X))).sum(1).mean()


QUICK = [
    ("noise", 100, 3, 0.3, 2, 0),
    ("linear", 100, 3, 0.06, 2, 1),
    ("noise", 80, 4, 0.15, 4, 0),
    ("wave", 150, 3, 0.5, 2, 0),
]


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("drawn", QUICK, ids=lambda drawn: "-".join(map(str, drawn)))
def test_never_worse_than_the_shares(kind, drawn):
    z, excess = judged(kind, *table(*drawn))
    assert z <= 2
    assert excess <= LOSS


SLOW = [
    ("noise", 50, 8, 0.5, 2),
    ("linear", 50, 2, 0.1, 2),
    ("noise", 400, 8, 0.05, 2),
    ("linear", 200, 8, 0.3, 2),
    ("linear", 400, 4, 0.1, 5),
    ("linear", 3000, 3, 0.01, 2),
]


@pytest.mark.night
@pytest.mark.parametrize("kind", [SVGPClassifier, QSGPClassifier])
def test_never_worse_than_the_shares_on_many_tables(kind):
    for drawn in SLOW:
        found = [judged(kind, *table(*drawn, seed)) for seed in range(3 if drawn[1] < 1000 else 1)]
        z, excess = np.transpose(found)
        assert z.max() <= 2, drawn
        assert excess.mean() <= LOSS, drawn


def rare(n=200, seed=4):
    """200 rows of three normal columns with P(positive) = 1 / (1 + exp(3 - x0))."""
    rng = np.random.default_rng(seed)
    X, fresh = rng.standard_normal((n, 3)), rng.standard_normal((5000, 3))
    y = (rng.random(n) < expit(X[:, 0] - 3)).astype(int)
    return X, y, fresh, expit(fresh[:, 0] - 3)


def test_a_rare_class_keeps_its_share():
    X, y, fresh, p = rare()
    model = SVGPClassifier(random_state=0).fit(X, y)
    found = model.predict_proba(fresh)[:, 1]
    assert abs(found.mean() - y.mean()) < 0.04
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p)).mean()
    loss = -(p * np.log(found) + (1 - p) * np.log1p(-found)).mean()
    assert loss < entropy + 0.06


def test_far_rows_have_the_learned_constant():
    """Where the kernel vanishes, the latent function is normal around the constant."""
    X, y, _, _ = rare()
    model = SVGPClassifier(calibrate=False, random_state=0).fit(X, y)
    variance = model.kernel_.k1.constant_value
    z, w = np.polynomial.hermite_e.hermegauss(101)
    expected = expit(model.latent_constant_[0] + np.sqrt(variance) * z) @ w / w.sum()
    assert_allclose(model.predict_proba([[1e6, 0, 0]])[0, 1], expected, rtol=1e-2)
    assert model.latent_constant_[0] < -1


@pytest.mark.parametrize(
    "link, constant", [("logit", np.log(1.5 / 4.5)), ("probit", norm.ppf(0.25))]
)
def test_constants_start_at_the_shares(link, constant):
    y = torch.tensor([1.0, 0, 0, 0, 0])[:, None]
    assert_allclose(Bernoulli(link).constant(y, 2).numpy(), [constant])
    weighted = Softmax().constant(
        torch.tensor([[0.0], [1], [2]]).double(), 3, np.array([1.0, 2, 5])
    )
    assert_allclose(weighted.exp().numpy(), np.array([4, 7, 16]) / 27)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_files_modules_and_logarithms_carry_the_constant(kind, tmp_path):
    X, y, fresh, _ = rare(60)
    if kind is AutoGPClassifier:
        # A table of which the members know more than the shares, but not as much as they believe.
        X = np.random.default_rng(0).standard_normal((100, 3))
        y = (X[:, 0] + 1.2 * np.random.default_rng(3).standard_normal(100) > 0.8).astype(int)
    model = kind(random_state=0).fit(X, y)
    assert kind is not AutoGPClassifier or 1 < model.temperature_ < 10
    p = model.predict_proba(fresh[:50])
    assert_allclose(model.predict_log_proba(fresh[:50]), np.log(p), rtol=1e-12)
    save(model, tmp_path / "model")
    assert_allclose(load(tmp_path / "model").predict_proba(fresh[:50]), p, rtol=1e-12)
    found = to_torch(model)(torch.tensor(fresh[:50])).numpy()
    assert_allclose(found, p, rtol=1e-8)


def test_logarithms_of_vanishing_probabilities_are_finite(monkeypatch):
    X, y, fresh, _ = rare(60)
    model = SVGPClassifier(random_state=0).fit(X, y)
    monkeypatch.setattr(model, "_probabilities", lambda X: np.tile([0.0, 1.0], (len(X), 1)))
    assert_allclose(model.predict_log_proba(fresh[:2])[:, 0], np.log(np.finfo(float).tiny))


def test_powers_lie_between_the_shares_and_the_probabilities():
    p, shares = torch.tensor([[0.2, 0.3, 0.5]]).double(), torch.tensor([0.6, 0.3, 0.1]).double()
    assert_allclose(towards_shares(p, shares, 0.0)[0], shares)
    assert_allclose(towards_shares(p, shares, 1.0), p)
    half = np.sqrt(p.numpy() * shares.numpy())
    assert_allclose(towards_shares(p, shares, 0.5), half / half.sum())


@pytest.mark.parametrize("informative", [False, True])
def test_only_probabilities_that_know_more_than_shares_count(informative):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 300)
    y = rng.random(300) < (p if informative else 0.5)
    both = torch.tensor(np.stack([1 - p, p], 1))
    shares, codes = class_shares(y, 2), torch.tensor(y).long()
    losses = losses_of_powers(both, codes, torch.tensor(shares))
    power = best_power(losses)
    assert abs(power - 1) < 0.4 if informative else power == 0
    # A gain of g nats over the shares is shrunk by five of them.
    log_odds, sign = np.log(p / (1 - p) * shares[0] / shares[1]), 2 * y - 1

    def gain(power):
        odds = power * log_odds + np.log(shares[1] / shares[0])
        return np.sum(np.log(expit(sign * odds)) - np.log(shares[y.astype(int)]))

    best = minimize_scalar(lambda at: 0.5 * at**2 - gain(np.exp(at)), bounds=(-2, 2))
    expected = np.exp(best.x) * max(0, 1 + 5 / best.fun)
    assert_allclose(power, expected if best.fun < 0 else 0, rtol=5e-3)
    # Each trained hyperparameter takes half a nat of what the model gains.
    half = losses_of_powers(both, codes, torch.tensor(shares), n_trained=-best.fun)
    if informative:
        assert_allclose(best_power(half), np.exp(best.x) * (1 + 10 / best.fun), rtol=5e-3)


def three_of_3000(seed, d):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((3000, d)), (np.arange(3000) < 3).astype(int)


def test_three_rows_of_a_class_take_few_small_factorisations():
    model = QSGPClassifier(random_state=0).fit(*three_of_3000(0, 3))
    # Measured: 32 steps of the start and of Newton's method, and one function.
    assert model.n_iter_ <= 60
    assert model.n_basis_ <= 20


@pytest.mark.slow
def test_rare_and_many_classes_take_bounded_work():
    # Measured: 67 steps with 577 functions, and 82 steps with 64 points for each of 45 classes.
    model = QSGPClassifier(random_state=0).fit(*three_of_3000(1, 10))
    assert model.n_iter_ * model.n_basis_**2 <= 100 * 700**2
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((1000, 5)), rng.standard_normal((5, 50))
    y = (X @ W + 0.5 * rng.gumbel(size=(1000, 50))).argmax(1)
    model = SVGPClassifier(random_state=0).fit(X, y)
    assert model.n_iter_ <= 110
    assert len(model.inducing_points_) <= 64
    assert model.variational_cov_.shape[0] == len(model.classes_) > 40


@pytest.mark.parametrize("n", [60, 300])
def test_one_row_of_a_class_is_no_error(n):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, 3)), np.zeros(n, int)
    y[7] = 1
    members = ["linear", "trees"] if n > 200 else "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AutoGPClassifier(members, random_state=0).fit(X, y)
    p = model.predict_proba(rng.standard_normal((500, 3)))[:, 1]
    assert 0.2 / n < p.mean() < 3 / n
    assert 7 not in model.held_out_


def one_against_the_rest(K, y, constant):
    """The optimal normal belief about f ~ N(constant, K + 1): slopes and curvatures at the rows."""
    z, w = np.polynomial.hermite_e.hermegauss(101)
    w = w / w.sum()
    prior, mean, variance = K + 1, np.full(len(y), constant), np.diag(K) + 1
    for _ in range(300):
        p = expit(mean[:, None] + np.sqrt(variance)[:, None] * z)
        slope, curvature = y - p @ w, (p * (1 - p)) @ w
        target = mean - constant + slope / curvature
        A = np.linalg.solve(prior + np.diag(1 / curvature), np.c_[target, prior])
        new = constant + prior @ A[:, 0], np.diag(prior - prior @ A[:, 1:])
        mean, variance = 0.5 * (mean + new[0]), 0.5 * (variance + new[1])
    return slope, curvature


@pytest.mark.parametrize("n_classes", [2, 3])
def test_constants_of_sampled_models_are_those_of_dense_algebra(n_classes):
    """A constant with a normal prior of variance one around the log odds of the class."""
    X, y, fresh, _ = table("linear", 60, 2, 0.1, n_classes, 0)
    kernel = ConstantKernel(9.0) * RBF(1.5)
    given = {"optimizer": None, "standardize": False, "basis": "rows"}
    model = QSGPClassifier(kernel, random_state=0, **given).fit(X, y)
    mean, variance = model.latent_mean_and_variance(fresh[:20])
    cross, curvatures = kernel(fresh[:20], X), []
    for k, found in enumerate(np.atleast_2d(mean.T)):
        labels = (y == (1 if n_classes == 2 else k)).astype(float)
        start = np.log((labels.sum() + 0.5) / (len(y) - labels.sum() + 0.5))
        slope, curvature = one_against_the_rest(kernel(X), labels, start)
        curvatures.append(curvature)
        if n_classes == 2:
            assert abs(slope.sum()) > 0.2
            constant = start + slope.sum()
            assert_allclose(model.latent_constant_[k], constant, atol=1e-4)
            assert_allclose(found, constant + cross @ slope, atol=1e-4)
            given = np.linalg.solve(kernel(X) + np.diag(1 / curvature), cross.T)
            assert_allclose(variance, 9 - (cross * given.T).sum(1), atol=1e-4)
        else:
            # Classes share their curvature, which this belief does not.
            assert_allclose(model.latent_constant_[k], start + slope.sum(), atol=0.1)


def test_steps_learn_the_constants_of_full_batches():
    # With fewer rows, steps that leave out the variance of the constant converge, too.
    X, y, _, _ = rare(300)
    kernel = ConstantKernel(9.0) * RBF(1.0)
    settings = {"optimizer": None, "n_components": 256, "control_variate_rank": 20}
    found = [
        QSGPClassifier(kernel, inference=inference, random_state=0, **settings).fit(X, y)
        for inference in ("exact", "stochastic")
    ]
    log_odds = np.log((y.sum() + 0.5) / (len(y) - y.sum() + 0.5))
    exact, steps = (model.latent_constant_[0] - log_odds for model in found)
    assert abs(exact) > 0.2
    assert_allclose(steps, exact, atol=0.15)


def test_leaving_out_a_target_is_a_fit_without_it():
    rng = np.random.default_rng(0)
    X, y, noise = rng.standard_normal((12, 2)), rng.standard_normal((12, 3)), 0.3
    K = RBF(1.0)(X)
    hat = K @ np.linalg.inv(K + noise * np.eye(12))
    mean, variance = torch.tensor(hat @ y), torch.tensor(np.diag(K - hat @ K)[:, None].copy())
    at = torch.full((12,), noise, dtype=torch.float64)
    terms = Gaussian().expected(torch.tensor(y), mean, variance, at)
    found = without_own_target(terms, mean, variance)
    for i in range(12):
        others = np.delete(np.arange(12), i)
        weights = np.linalg.solve(K[np.ix_(others, others)] + noise * np.eye(11), K[others, i])
        assert_allclose(found[0][i], weights @ y[others], rtol=1e-10)
        assert_allclose(found[1][i], K[i, i] - weights @ K[others, i], rtol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"inference": "stochastic"}])
def test_powers_of_sampled_models_know_what_was_trained(settings):
    """Without signal almost the shares predict; those of a strong one are worth their number."""
    X, y, fresh, p = table("noise", 50, 8, 0.5, 2, 13)
    model = QSGPClassifier(random_state=0, **settings).fit(X, y)
    assert model.probability_power_ < 0.2
    assert log_loss(model, fresh, p) < np.log(2) + LOSS
    X, y, fresh, p = table("wave", 100, 2, 0.5, 2, 0)
    model = QSGPClassifier(random_state=0, **settings).fit(X, y)
    assert 0.5 < model.probability_power_ < 2
    assert log_loss(model, fresh, p) < -(p * np.log(p)).sum(1).mean() + 0.1


def test_further_rows_keep_the_constant():
    X, y, _, _ = table("linear", 300, 2, 0.2, 2, 0)
    model = QSGPClassifier(n_components=64, random_state=0).partial_fit(X[:200], y[:200])
    before = model.latent_constant_.copy()
    model.partial_fit(X[200:], y[200:])
    assert_allclose(model.latent_constant_, before)


def streams(X):
    """Models with a given kernel that take further rows, and whose fits know as much."""
    kernel = ConstantKernel(9.0) * RBF(1.5)
    given = {"optimizer": None, "random_state": 0}
    yield QSGPClassifier(kernel, standardize=False, n_components=64, **given)
    yield SVGPClassifier(kernel, inducing=X[-30:], optimize_inducing=False, **given)


@pytest.mark.parametrize("number", [0, 1], ids=["sampled", "sparse"])
def test_further_rows_count_as_those_of_a_fit(number):
    """Twelve rows without a signal predict their shares, and 400 further ones their classes."""
    X, y, fresh, p = table("linear", 412, 2, 0.3, 2, 1)
    y[:12] = np.random.default_rng(1).permutation(np.arange(12) % 2)
    model, full = (list(streams(X))[number] for _ in range(2))
    model.partial_fit(X[:12], y[:12])
    assert model.probability_power_ == 0
    model.partial_fit(X[12:], y[12:])
    shares = (np.bincount(y) + 0.5) / 413
    assert_allclose(model.class_prior_, shares)
    loss = log_loss(model, fresh, p)
    assert loss < -(p * np.log(shares)).sum(1).mean() - 0.1
    assert loss < log_loss(full.fit(X, y), fresh, p) + 0.01
    power = model.probability_power_
    model.partial_fit(X[:1], y[:1])
    assert_allclose(model.probability_power_, power, rtol=0.05)
    assert_allclose(model.class_prior_[y[0]], (np.sum(y == y[0]) + 1.5) / 414)


def test_uncalibrated_streams_keep_their_probabilities():
    X, y, _, _ = table("linear", 60, 2, 0.5, 2, 1)
    model = list(streams(X))[1].set_params(calibrate=False).partial_fit(X[:12], y[:12])
    assert model.partial_fit(X[12:], y[12:]).probability_power_ == 1.0


@pytest.mark.parametrize("rows", [1, 50])
def test_powers_of_many_calls_are_those_of_all_rows(rows):
    """True probabilities, whose power is one, in 400 calls of a row or 40 calls of 50 rows."""
    rng, losses = np.random.default_rng(0), 0.0
    for _ in range(400 if rows == 1 else 40):
        p = expit(1.5 * rng.standard_normal(rows))
        codes = torch.tensor(rng.random(rows) < p).long()
        both, shares = torch.tensor(np.stack([1 - p, p], 1)), torch.full((2,), 0.5).double()
        losses = losses + losses_of_powers(both, codes, shares)
    assert abs(np.log(best_power(losses))) < 0.25


@pytest.mark.parametrize("number", [0, 1], ids=["sampled", "sparse"])
def test_streams_of_single_rows_leave_the_shares(number):
    """Twelve rows without a signal, and then rows whose classes are nearly certain."""
    rng = np.random.default_rng(1)
    X, fresh = rng.standard_normal((72, 2)), rng.standard_normal((FRESH, 2))
    y, p = (X[:, 0] > 0).astype(int), (fresh[:, :1] > 0) == [False, True]
    y[:12] = rng.permutation(np.arange(12) % 2)
    model = list(streams(X))[number].partial_fit(X[:12], y[:12])
    assert model.probability_power_ == 0
    for row in range(12, len(X)):
        model.partial_fit(X[row : row + 1], y[row : row + 1])
    assert log_loss(model, fresh, p) < 0.8 * np.log(2)


class Counts(Likelihood):
    """Poisson counts with the rate exp(f)."""

    log_concave = True

    def log_density(self, y, f, noise):
        return y * f - torch.exp(f) - torch.lgamma(y + 1)

    def moments(self, f, noise):
        return torch.exp(f), torch.exp(f)

    def start_targets(self, Y):
        return torch.log(Y + 0.5)


def test_counts_far_from_one_keep_their_mean():
    """Counts have no function of the rows; fresh ones have the mean of the others."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((150, 6)), rng.poisson(40.0, 150).astype(float)
    model = SVGPRegressor(likelihood=Counts(), random_state=0).fit(X, y)
    assert_allclose(model.latent_constant_, [np.log(40)], atol=0.1)
    assert_allclose(model.predict(rng.standard_normal((500, 6))).mean(), 40, rtol=0.03)


def test_approximate_variances_do_not_lower_a_power():
    """Those of steps with some functions leave a row less of its neighbours than it has."""
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(400, 8)), rng.normal(size=(1000, 8))
    y, y_new = X[:, 0] + X[:, 1] > 0, X_new[:, 0] + X_new[:, 1] > 0
    model = QSGPClassifier(
        n_components=400, inference="stochastic", max_iter=60, random_state=0
    ).fit(X, y)

    def loss():
        return -np.log(model.predict_proba(X_new)[np.arange(1000), y_new.astype(int)]).mean()

    with_power = loss()
    model.probability_power_ = 1.0
    assert with_power < loss() + 0.01
