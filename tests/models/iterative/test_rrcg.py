"""RRCGRegressor: settings of training, searches over them, and the trained hyperparameters."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import IterativeGPRegressor, RRCGRegressor
from skscalablegp.training import LBFGS, Adam
from skscalablegp.truncation import ExponentialTruncation, FixedTruncation, GeometricTruncation


def table(n=150, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(n)


def kernel():
    return ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)


@pytest.mark.slow
def test_training_ends_at_the_exact_optimum():
    X, y = table()
    ours = RRCGRegressor(
        kernel(),
        truncation=ExponentialTruncation(0.1, min_iter=10),
        preconditioner=None,
        max_iter=150,
        optimizer=Adam(0.1, decay=0.1),
        random_state=0,
    ).fit(X, y)
    exact = GaussianProcessRegressor(kernel()).fit(X, y)
    best = exact.log_marginal_likelihood_value_
    assert best - ours.log_marginal_likelihood_value_ < 0.02 * len(X)
    assert ours.log_marginal_likelihood(ours.kernel_.theta) == pytest.approx(
        ours.log_marginal_likelihood_value_
    )


def test_predictions_are_exact_whatever_the_truncation():
    X, y = table(60)
    ours = RRCGRegressor(
        kernel(), truncation=FixedTruncation(1), optimizer=None, preconditioner=None
    ).fit(X, y)
    exact = GaussianProcessRegressor(kernel(), optimizer=None).fit(X, y)
    for a, b in zip(
        ours.predict(X + 0.1, return_std=True), exact.predict(X + 0.1, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert ours.posterior_ == "exact" and ours.solver_ == "cg"


@pytest.mark.parametrize("posterior", ["solve", "pathwise"])
def test_other_posteriors(posterior):
    X, y = table(60)
    model = RRCGRegressor(kernel(), posterior=posterior, n_probes=32, max_iter=3, random_state=0)
    model.fit(X, y)
    reference = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(X, y)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), atol=1e-3)


def test_float32_and_orthogonality_are_reported():
    X, y = table(80)
    model = RRCGRegressor(
        kernel(), truncation="exponential", dtype="float32", preconditioner=None, max_iter=2
    )
    model.fit(X, y)
    assert model.fit_report_.orthogonality_loss > 0
    assert model.fit_report_.status == "max_iter"
    assert len(model.history_["epochs"]) == model.n_iter_ == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "RRCGRegressor: max_iter=2 ended")
        RRCGRegressor(
            kernel(), truncation="exponential", reorthogonalize=True, max_iter=2, random_state=0
        ).fit(X, y)


def test_small_tables_are_trained_exactly_unless_a_setting_asks_for_truncation():
    X, y = table(80)
    model = RRCGRegressor(kernel(), random_state=0).fit(X, y)
    exact = IterativeGPRegressor(kernel(), random_state=0).fit(X, y)
    np.testing.assert_allclose(model.kernel_.theta, exact.kernel_.theta, rtol=1e-9)
    assert model.solver_ == "cholesky"
    assert {"n_probes", "n_draws"} <= set(model.fit_report_.ignored)
    for asked in ({"truncation": "exponential"}, {"optimizer": "adam"}, {"posterior": "solve"}):
        model = RRCGRegressor(kernel(), max_iter=2, **asked).fit(X, y)
        assert model.solver_ == "cg"
        assert model.fit_report_.epochs > 0


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_grid_search_over_truncations_in_a_pipeline(n_jobs):
    X, y = table(60)
    pipeline = make_pipeline(StandardScaler(), RRCGRegressor(max_iter=2, random_state=0))
    search = GridSearchCV(
        pipeline,
        [
            {
                "rrcgregressor__truncation": [ExponentialTruncation(), ExponentialTruncation(0.2)],
                "rrcgregressor__truncation__rate": [0.05, 0.1],
            },
            {"rrcgregressor__truncation": [GeometricTruncation(), FixedTruncation(5)]},
        ],
        cv=2,
        n_jobs=n_jobs,
        error_score="raise",
    ).fit(X, y)
    assert len(search.cv_results_["params"]) == 6
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    pickle.loads(pickle.dumps(search.best_estimator_)).predict(X)


@pytest.mark.parametrize(
    "params, message",
    [
        ({"truncation": ExponentialTruncation(0)}, "rate must be .* 0.05"),
        ({"truncation": ExponentialTruncation(min_iter=61)}, "at most min_iter=60"),
        ({"truncation": FixedTruncation(0)}, "n_iter"),
        ({"truncation": "poisson"}, "Unknown truncation 'poisson': use one of 'auto', 'exp"),
        ({"probes": "sobol"}, "probes"),
        ({"n_probes": 0}, "n_probes"),
        ({"optimizer": "lbfgs"}, "optimizer='adam'"),
        ({"optimizer": LBFGS()}, "optimizer='adam'"),
        ({"optimizer": "magic"}, "Unknown optimizer 'magic'"),
        ({"preconditioner": "magic"}, "Unknown preconditioner"),
    ],
    ids=str,
)
def test_wrong_settings(params, message):
    X, y = table(60)
    with pytest.raises(ValueError, match=message):
        RRCGRegressor(**params).fit(X, y)
