"""Metrics against scipy, numerical integration and scikit-learn's conventions."""

import pickle

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from scipy import integrate, stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import (
    KISSGPRegressor,
    PoERegressor,
    QSGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SVGPRegressor,
)
from skscalablegp.metrics import (
    coverage_scorer,
    crps,
    interval_coverage,
    interval_score,
    msll,
    neg_crps_scorer,
    neg_interval_score_scorer,
    neg_nlpd_scorer,
    neg_pinball_scorer,
    nlpd,
    pinball_loss,
    predict_interval,
    predict_quantiles,
    predict_std,
)

METRICS = {
    "nlpd": nlpd,
    "crps": crps,
    "coverage": interval_coverage,
    "msll": lambda *args, **kwargs: msll(*args, train_mean=0.3, train_std=2.0, **kwargs),
}


def predictions(n=50, t=None, seed=0):
    rng = np.random.default_rng(seed)
    shape = (n,) if t is None else (n, t)
    mean = rng.normal(size=shape)
    std = rng.uniform(0.1, 3.0, size=shape)
    return mean + std * rng.normal(size=shape), mean, std


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def gp():
    return GaussianProcessRegressor(RBF() + WhiteKernel(0.1), optimizer=None)


def test_nlpd_is_scipys_log_density():
    y, mean, std = predictions()
    assert_allclose(nlpd(y, mean, std), -stats.norm(mean, std).logpdf(y).mean(), rtol=1e-12)


def test_crps_is_the_integral_that_defines_it():
    y, mean, std = predictions(n=8)
    for one_y, one_mean, one_std in zip(y, mean, std, strict=True):
        law = stats.norm(one_mean, one_std)
        below = integrate.quad(lambda v, law=law: law.cdf(v) ** 2, -np.inf, one_y)[0]
        above = integrate.quad(lambda v, law=law: law.sf(v) ** 2, one_y, np.inf)[0]
        assert_allclose(crps([one_y], [one_mean], [one_std]), below + above, rtol=1e-6)


def test_crps_of_a_certain_prediction_is_the_absolute_error():
    y, mean, _ = predictions()
    assert_allclose(crps(y, mean, np.full_like(y, 1e-12)), np.abs(y - mean).mean(), rtol=1e-9)


def test_msll_of_the_trivial_model_is_zero_and_a_better_one_is_negative():
    y, mean, std = predictions(n=500)
    mu, sd = y.mean(), y.std()
    flat = np.full_like(y, mu), np.full_like(y, sd)
    assert msll(y, *flat, train_mean=mu, train_std=sd) == 0
    assert msll(y, mean, std, train_mean=mu, train_std=sd) < 0


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_coverage_of_the_true_distribution_is_the_nominal_one(coverage):
    y, mean, std = predictions(n=20_000)
    error = np.sqrt(coverage * (1 - coverage) / len(y))
    assert abs(interval_coverage(y, mean, std, coverage=coverage) - coverage) < 4 * error


@pytest.mark.parametrize("name", METRICS)
def test_integer_weights_repeat_rows(name):
    y, mean, std = predictions()
    weight = np.random.default_rng(1).integers(0, 4, size=len(y))
    repeated = [np.repeat(a, weight) for a in (y, mean, std)]
    assert_allclose(
        METRICS[name](y, mean, std, sample_weight=weight), METRICS[name](*repeated), rtol=1e-12
    )


@pytest.mark.parametrize("name", METRICS)
def test_multioutput_follows_scikit_learn(name):
    metric = METRICS[name]
    y, mean, std = predictions(t=3)
    columns = [metric(y[:, j], mean[:, j], std[:, j]) for j in range(3)]
    raw = metric(y, mean, std, multioutput="raw_values")
    assert_allclose(raw, columns, rtol=1e-12)
    assert isinstance(metric(y, mean, std), float)
    assert_allclose(metric(y, mean, std), np.mean(columns), rtol=1e-12)
    weighted = metric(y, mean, std, multioutput=[1, 0, 3])
    assert_allclose(weighted, np.average(columns, weights=[1, 0, 3]), rtol=1e-12)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    "y, mean, std, options, message",
    [
        ([0, 1], [0, 1], [1, 0], {}, "std must be positive and finite; 1 of 2 values are not"),
        ([0, 1], [0, 1], [1, -2], {}, "the first of them -2"),
        ([0, 1], [0, 1], [1, np.nan], {}, "std contains NaN"),
        ([0, np.inf], [0, 1], [1, 1], {}, "y_true contains infinity"),
        ([0, 1], [0, 1, 2], [1, 1], {}, "inconsistent numbers of samples"),
        ([[0, 1]], [[0, 1]], [1], {}, "must have one shape"),
        ([0, 1], [0, 1], [1, 1], {"sample_weight": [1]}, r"must have shape \(2,\), got \(1,\)"),
        ([0, 1], [0, 1], [1, 1], {"sample_weight": [1, -1]}, "no negative value"),
        ([0, 1], [0, 1], [1, 1], {"multioutput": "mean"}, "multioutput must be 'raw_values'"),
        ([0, 1], [0, 1], [1, 1], {"multioutput": [0]}, "multioutput must have .* one above zero"),
    ],
)
def test_wrong_input_is_named(name, y, mean, std, options, message):
    with pytest.raises(ValueError, match=message):
        METRICS[name](y, mean, std, **options)


def test_coverage_outside_the_unit_interval():
    with pytest.raises(ValueError, match="coverage must lie strictly between 0 and 1"):
        interval_coverage([0], [0], [1], coverage=95)
    with pytest.raises(ValueError, match="coverage must lie strictly between 0 and 1"):
        coverage_scorer(1.0)


def test_msll_needs_a_positive_training_std():
    with pytest.raises(ValueError, match="train_std must be positive"):
        msll([0, 1], [0, 1], [1, 1], train_mean=0.0, train_std=0.0)


@pytest.mark.parametrize(
    "scorer, metric, sign",
    [(neg_nlpd_scorer, nlpd, -1), (neg_crps_scorer, crps, -1)],
)
@pytest.mark.parametrize("model", [gp(), BayesianRidge(), make_pipeline(StandardScaler(), gp())])
def test_scorer_is_the_metric_of_the_prediction(scorer, metric, sign, model):
    X, y = table()
    model = clone(model).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert scorer(model, X, y) == sign * metric(y, mean, std)
    weight = np.arange(len(y))
    assert scorer(model, X, y, sample_weight=weight) == sign * metric(
        y, mean, std, sample_weight=weight
    )


@pytest.mark.parametrize("scorer", [neg_nlpd_scorer, neg_crps_scorer, coverage_scorer(0.8)])
def test_scorers_pickle_and_copy(scorer):
    X, y = table()
    model = gp().fit(X, y)
    again = pickle.loads(pickle.dumps(scorer))
    assert repr(again) == repr(scorer)
    assert again(model, X, y) == scorer(model, X, y) == clone(scorer, safe=False)(model, X, y)


def test_scorers_say_what_they_are():
    assert repr(neg_nlpd_scorer) == "neg_nlpd_scorer"
    assert repr(coverage_scorer(0.8)) == "coverage_scorer(coverage=0.8)"


@pytest.mark.parametrize("routing", [False, True])
def test_scorers_in_cross_validation_and_search(routing):
    X, y = table()
    pipe = make_pipeline(StandardScaler(), gp())
    scoring = {"nlpd": neg_nlpd_scorer, "coverage": coverage_scorer()}
    grid = {"gaussianprocessregressor__kernel": [RBF(0.01) + WhiteKernel(0.1), gp().kernel]}
    with sklearn.config_context(enable_metadata_routing=routing):
        # scikit-learn 1.6.0 wants params where there are none.
        result = cross_validate(pipe, X, y, scoring=scoring, cv=3, error_score="raise", params={})
        assert np.isfinite(result["test_nlpd"]).all()
        assert ((result["test_coverage"] >= 0) & (result["test_coverage"] <= 1)).all()
        search = GridSearchCV(pipe, grid, scoring=neg_nlpd_scorer, cv=3, error_score="raise")
        assert search.fit(X, y).best_index_ == 1
        # A search can itself be scored: nested cross-validation.
        nested = cross_val_score(search, X, y, scoring=neg_crps_scorer, cv=2, params={})
        assert np.isfinite(nested).all()


def test_weights_reach_a_scorer_that_asks_for_them():
    X, y = table()
    weight = np.random.default_rng(0).uniform(size=len(y))
    model = gp().fit(X, y)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = neg_nlpd_scorer.set_score_request(sample_weight=True)
        kwargs = dict(scoring=asking, cv=[(np.arange(40), np.arange(40))])
        score = cross_val_score(model, X, y, params={"sample_weight": weight}, **kwargs)
        assert_allclose(score, asking(model, X, y, sample_weight=weight), rtol=1e-6)
        with pytest.raises(Exception, match="sample_weight"):
            cross_val_score(model, X, y, params={"sample_weight": weight}, scoring=neg_nlpd_scorer)


class _Fails(RegressorMixin, BaseEstimator):
    def predict(self, X, return_std=False):
        raise TypeError("another cause")


def test_estimators_without_std_are_named():
    X, y = table()
    with pytest.raises(TypeError, match="LinearRegression.predict has no return_std"):
        neg_nlpd_scorer(LinearRegression().fit(X, y), X, y)
    for made in (VotingRegressor([("a", gp())]), BaggingRegressor(gp()), RegressorChain(gp())):
        fitted = made.fit(X, np.column_stack([y, y]) if isinstance(made, RegressorChain) else y)
        for ask in (predict_std, predict_interval, lambda m, X: neg_crps_scorer(m, X, y)):
            with pytest.raises(
                TypeError, match=f"{type(made).__name__} cannot combine the uncertainty"
            ):
                ask(fitted, X)
    inside = MultiOutputRegressor(TransformedTargetRegressor(gp())).fit(X, y[:, None])
    with pytest.raises(TypeError, match="put MultiOutputRegressor inside"):
        neg_nlpd_scorer(inside, X, y)
    with pytest.raises(TypeError, match="another cause"):
        neg_nlpd_scorer(_Fails(), X, y)


# ---------------------------------------------------------------- intervals and quantiles


def test_interval_score_is_proper_and_is_what_its_paper_defines():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(20_000)

    def score(z):
        return interval_score(y, np.full_like(y, -z), np.full_like(y, z), coverage=0.9)

    best = stats.norm.ppf(0.95)
    assert score(best) < min(score(0.8 * best), score(1.25 * best))
    # Gneiting and Raftery (2007), equation 43, a row at a time.
    lower, upper, y = np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0]), np.array([-1.0, 1, 5])
    paper = [
        (u - lo) + 20 * max(lo - v, 0) + 20 * max(v - u, 0)
        for lo, u, v in zip(lower, upper, y, strict=True)
    ]
    assert_allclose(interval_score(y, lower, upper, coverage=0.9), np.mean(paper), rtol=1e-12)


def test_pinball_loss_is_scikit_learns_averaged():
    rng = np.random.default_rng(0)
    y, quantiles, q = rng.standard_normal(30), rng.standard_normal((30, 3)), [0.1, 0.5, 0.8]
    weight = rng.uniform(size=30)
    expected = np.mean(
        [mean_pinball_loss(y, quantiles[:, k], alpha=q[k], sample_weight=weight) for k in range(3)]
    )
    assert_allclose(pinball_loss(y, quantiles, q=q, sample_weight=weight), expected, rtol=1e-12)
    wide = pinball_loss(
        np.column_stack([y, y]), np.stack([quantiles] * 2, 1), q=q, multioutput="raw_values"
    )
    assert_allclose(wide, pinball_loss(y, quantiles, q=q))


def test_pinball_loss_of_many_quantiles_is_half_the_crps():
    y, mean, std = predictions()
    q = (np.arange(2000) + 0.5) / 2000
    quantiles = mean[:, None] + std[:, None] * stats.norm.ppf(q)
    assert_allclose(2 * pinball_loss(y, quantiles, q=q), crps(y, mean, std), rtol=1e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: interval_score([0], [0], [1], coverage=95), "coverage must lie strictly between"),
        (lambda: interval_score([0], [0], [1], coverage=[0.5, 0.9]), "coverage must be one number"),
        (lambda: interval_score([0], [2], [1]), "lower must not exceed upper"),
        (lambda: interval_score([0, 1], [2], [3]), "inconsistent numbers of samples"),
        (lambda: pinball_loss([0], [[1]], q=[0.5, 0.6]), "a last axis of 2"),
        (lambda: pinball_loss([0], [[1]], q=1.0), "q must lie strictly between 0 and 1"),
        (lambda: pinball_loss([0], [[1]], q="half"), "q must lie strictly between 0 and 1"),
        (lambda: neg_pinball_scorer([]), "q must lie strictly between 0 and 1"),
        (lambda: neg_interval_score_scorer(2), "coverage must lie strictly between"),
    ],
)
def test_wrong_intervals_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("model", [gp(), BayesianRidge(), SGPRRegressor(max_iter=5)])
def test_deviations_and_intervals_through_pipelines_searches_and_targets(model):
    X, y = table()
    wrapped = GridSearchCV(
        make_pipeline(
            StandardScaler(), TransformedTargetRegressor(clone(model), transformer=StandardScaler())
        ),
        {"standardscaler__with_mean": [True]},
        cv=2,
    ).fit(X, 100 + 5 * y)
    alone = clone(model).fit(StandardScaler().fit_transform(X), (y - y.mean()) / y.std())
    mean, std = alone.predict(StandardScaler().fit_transform(X), return_std=True)
    unit = 5 * y.std()
    # scikit-learn's own way ends in an error.
    with pytest.raises((TypeError, AttributeError, ValueError)):
        wrapped.predict(X, return_std=True)
    assert_allclose(predict_std(wrapped, X), unit * std, rtol=1e-6)
    centre = 100 + 5 * (y.mean() + y.std() * mean)
    z = stats.norm.ppf(0.95)
    expected = np.column_stack([centre - z * unit * std, centre + z * unit * std])
    assert_allclose(predict_interval(wrapped, X, 0.9), expected, rtol=1e-6)
    assert_allclose(predict_quantiles(wrapped, X, 0.05), expected[:, 0], rtol=1e-6)
    # The regressor's own units, where noise is known.
    noisy = predict_std(wrapped, X, noise_variance=0.3)
    assert_allclose(noisy, unit * np.sqrt(std**2 + 0.3), rtol=1e-6)
    for scorer in (neg_pinball_scorer(), neg_interval_score_scorer(0.9)):
        assert np.isfinite(scorer(wrapped, X, y))
    assert_allclose(
        coverage_scorer(0.9)(wrapped, X, 100 + 5 * y),
        np.mean((100 + 5 * y >= expected[:, 0]) & (100 + 5 * y <= expected[:, 1])),
    )


def test_scores_of_a_logarithm_are_those_of_a_log_normal():
    X, y = table()
    mean, std = gp().fit(X, y).predict(X, return_std=True)
    seen = np.exp(y)
    law = stats.lognorm(std, scale=np.exp(mean))
    a = (y - mean) / std
    # Baran and Lerch (2015), equation 8.
    expected = seen * (2 * law.cdf(seen) - 1) - 2 * law.mean() * (
        stats.norm.cdf(a - std) + stats.norm.cdf(std / np.sqrt(2)) - 1
    )
    rises = TransformedTargetRegressor(gp(), func=np.log, inverse_func=np.exp)
    falls = TransformedTargetRegressor(
        TransformedTargetRegressor(gp(), func=np.negative, inverse_func=np.negative),
        func=lambda y: -np.log(y),
        inverse_func=lambda z: np.exp(-z),
        check_inverse=False,
    )
    for model in (rises.fit(X, seen), falls.fit(X, seen)):
        assert_allclose(neg_nlpd_scorer(model, X, seen), law.logpdf(seen).mean(), rtol=1e-6)
        assert_allclose(neg_crps_scorer(model, X, seen), -expected.mean(), rtol=1e-3)
    flat = TransformedTargetRegressor(gp(), func=np.abs, inverse_func=np.sign, check_inverse=False)
    with pytest.raises(ValueError, match="is not finite, invertible and smooth"):
        neg_nlpd_scorer(flat.fit(X, y), X, y)


def test_several_targets_of_separate_regressors():
    X, y = table()
    ours = SGPRRegressor(max_iter=5, random_state=0)
    Y = np.column_stack([y, 3 - 2 * y])
    apart = [clone(ours).fit(X, column) for column in Y.T]
    known = np.column_stack([np.full(len(X), 0.1), np.linspace(0, 1, len(X))])
    together = MultiOutputRegressor(ours).fit(X, Y)
    expected = [m.predict_std(X, noise_variance=v) for m, v in zip(apart, known.T, strict=True)]
    assert_allclose(predict_std(together, X, noise_variance=known), np.column_stack(expected))
    expected = np.stack([m.predict_interval(X, 0.9) for m in apart], 1)
    assert_allclose(predict_interval(together, X, 0.9), expected)
    assert predict_quantiles(together, X, 0.3).shape == Y.shape
    one = np.mean([neg_nlpd_scorer(m, X, c) for m, c in zip(apart, Y.T, strict=True)])
    assert_allclose(neg_nlpd_scorer(together, X, Y), one)
    # The scaler's slope is one number a target.
    outside = TransformedTargetRegressor(MultiOutputRegressor(ours), transformer=StandardScaler())
    outside.fit(X, Y)
    z = StandardScaler().fit_transform(Y)
    inner = MultiOutputRegressor(ours).fit(X, z)
    shift = np.log(Y.std(0)).mean()
    score = neg_nlpd_scorer(outside, X, Y)
    assert_allclose(score, neg_nlpd_scorer(inner, X, z) - shift, rtol=1e-6)
    assert_allclose(predict_std(outside, X), predict_std(inner, X) * Y.std(0), rtol=1e-6)


def test_quantiles_of_transformed_targets():
    X, y = table()
    q = np.array([0.01, 0.3, 0.975])
    alone = gp().fit(X, y)
    mean, std = alone.predict(X, return_std=True)
    for forth, back, law in (
        (np.log, np.exp, stats.lognorm(std, scale=np.exp(mean))),
        # A falling transform: low quantiles of y are high ones of what the regressor sees.
        (np.negative, np.negative, stats.norm(-mean, std)),
    ):
        target = TransformedTargetRegressor(gp(), func=forth, inverse_func=back).fit(X, back(y))
        expected = np.stack([law.ppf(share) for share in q], 1)
        assert_allclose(predict_quantiles(target, X, q), expected, rtol=1e-6, atol=1e-6)
        assert_allclose(predict_std(target, X), law.std(), rtol=1e-6)
    square = TransformedTargetRegressor(
        gp(), func=lambda v: v, inverse_func=np.square, check_inverse=False
    ).fit(X, y)
    with pytest.raises(ValueError, match="is not monotone for"):
        predict_interval(square, X)


def test_quantiles_of_several_transformed_targets():
    X, y = table()
    Y = np.column_stack([np.exp(y), 3 * np.exp(-y)])
    target = TransformedTargetRegressor(gp(), func=np.log, inverse_func=np.exp).fit(X, Y)
    mean, std = gp().fit(X, np.log(Y)).predict(X, return_std=True)
    expected = np.exp(mean[..., None] + std[..., None] * stats.norm.ppf([0.05, 0.95]))
    assert_allclose(predict_interval(target, X, 0.9), expected, rtol=1e-6)
    mixed = TransformedTargetRegressor(gp(), transformer=PCA()).fit(X, Y)
    with pytest.raises(ValueError, match="mixes the targets"):
        predict_interval(mixed, X)


def test_foreign_regressors_cannot_leave_noise_out():
    X, y = table()
    with pytest.raises(ValueError, match="cannot leave out the noise"):
        predict_std(gp().fit(X, y), X, include_noise=False)
    with pytest.raises(TypeError, match="LinearRegression.predict has no return_std"):
        predict_interval(LinearRegression().fit(X, y), X)
    with pytest.raises(TypeError, match="estimator must be a fitted regressor, got None"):
        predict_interval(None, X)
    with pytest.raises(NotFittedError):
        predict_interval(TransformedTargetRegressor(gp()), X)


# ---------------------------------------------------------------- known noise

KNOWN_NOISE = [
    SGPRRegressor(n_inducing=40, random_state=0),
    SVGPRegressor(n_inducing=30, random_state=0),
    PoERegressor(expert_size=60, random_state=0),
    RFFRegressor(n_components=100, max_iter=15, random_state=0),
    KISSGPRegressor(grid_size=20, max_iter=15, random_state=0),
    SCGDDKLRegressor(feature_extractor=(16,), max_epochs=20, random_state=0),
    QSGPRegressor(random_state=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", KNOWN_NOISE, ids=lambda model: type(model).__name__)
def test_coverage_under_known_noise_is_the_level(model):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (450, 2))
    noise = 10 ** rng.uniform(-3, 0.5, 450)
    y = np.sin(2 * X[:, 0]) + X[:, 1] + np.sqrt(noise) * rng.standard_normal(450)
    with sklearn.config_context(enable_metadata_routing=True):
        score = cross_val_score(
            make_pipeline(StandardScaler(), model.set_fit_request(noise_variance=True)),
            X,
            y,
            scoring=coverage_scorer(0.95).set_score_request(noise_variance=True),
            params={"noise_variance": noise},
            cv=3,
            error_score="raise",
        )
    assert 0.93 <= score.mean() <= 0.97


def test_scorers_ask_what_becomes_of_known_noise():
    X, y = table()
    noise = np.full(len(y), 0.1)
    with sklearn.config_context(enable_metadata_routing=True):
        model = SGPRRegressor(max_iter=5).set_fit_request(noise_variance=True)
        with pytest.raises(ValueError, match="noise_variance"):
            cross_val_score(
                model, X, y, scoring=coverage_scorer(0.95), params={"noise_variance": noise}, cv=2
            )
        search = GridSearchCV(
            model,
            {"n_inducing": [5, 10]},
            scoring=neg_nlpd_scorer.set_score_request(noise_variance="known"),
            cv=2,
            error_score="raise",
        )
        search.fit(X, y, noise_variance=noise, known=noise)
        assert np.isfinite(search.best_score_)
