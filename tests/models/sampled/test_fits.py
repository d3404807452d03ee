"""How fits of sampled models end, what they leave and what they report."""

import numpy as np
import pytest
import torch
from inside import HAS_CALLBACKS
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from watching import Watch

from skscalablegp import QSGPClassifier, QSGPRegressor, QSRVMRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.core.posteriors import KernelPosterior, Posterior
from skscalablegp.core.training import Budget
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.sampled import Dictionary, Fit

KERNEL = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)
FIXED = dict(kernel=KERNEL, optimizer=None, random_state=0, standardize=False)
STEPS = dict(inference="stochastic", n_components=64, component_batch_size=32)


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(n)


def evidence(model, X, Y):
    """Of Bayesian linear regression on the model's own features."""
    phi = model._build_posterior().psi(model._inputs(X))
    covariance = (phi @ phi.T).numpy() + 0.1 * np.eye(len(X))
    return sum(multivariate_normal.logpdf(y, cov=covariance) for y in np.atleast_2d(Y.T))


def test_the_bound_of_full_batches_is_the_log_evidence_of_all_rows_and_targets():
    X, y = table()
    Y = np.column_stack([y, -2 * y])
    model = QSGPRegressor(n_components=40, **FIXED).fit(X, Y)
    assert_allclose(model.lower_bound_, evidence(model, X, Y), rtol=1e-7)
    (objective,) = model.history_["objective"]
    assert_allclose(objective * Y.size, model.lower_bound_)
    stream = QSGPRegressor(n_components=40, **FIXED)
    for rows in np.split(np.arange(120), 3):
        stream.partial_fit(X[rows], Y[rows])
    assert_allclose(stream.lower_bound_, model.lower_bound_, rtol=1e-7)
    assert stream.n_samples_seen_ == 120


def test_the_bound_of_steps_is_below_the_log_evidence():
    X, y = table()
    settings = dict(n_components=64, control_variate_rank=60, dtype="float64", **FIXED)
    exact = QSGPRegressor(**settings, inference="exact").fit(X, y)
    model = QSGPRegressor(inference="stochastic", n_dense=20, **settings).fit(X, y)
    # An estimate from some rows: the diagonal part of the covariance leaves a clear gap.
    assert -3 * 120 < model.lower_bound_ < exact.lower_bound_


@pytest.mark.parametrize(
    "model, ignored, used",
    [
        (QSGPRegressor(), {"batch_size", "variational_optimizer", "covariance"}, {"subset_size"}),
        (QSGPRegressor(inference="stochastic"), set(), {"batch_size", "covariance", "n_dense"}),
        (
            QSGPRegressor(basis="rows", inference="stochastic", n_dense=50),
            {"n_dense", "covariance", "learning_rate", "freeze", "control_variate"},
            {"batch_size"},
        ),
        (
            QSGPClassifier(inference="stochastic", control_variate="squares"),
            {"control_variate"},
            {"n_dense"},
        ),
        (QSGPRegressor(optimizer=None), {"learning_rate", "n_restarts_optimizer"}, {"kernel"}),
        (QSGPClassifier(basis="rows", inference="stochastic"), {"n_dense"}, {"covariance"}),
        (QSRVMRegressor(), {"batch_size", "component_batch_size", "control_variate_rank"}, {"tol"}),
    ],
)
def test_parameters_without_effect_are_reported(model, ignored, used):
    X, y = table(60)
    y = y > 0 if isinstance(model, QSGPClassifier) else y
    report = model.set_params(random_state=0).fit(X, y).fit_report_
    assert ignored <= set(report.ignored) and not used & set(report.ignored)
    assert ("dense columns" in report.summary) == ("n_dense" in used)


def test_ignored_parameters_do_not_change_the_model():
    X, y = table(60)
    settings = dict(basis="rows", inference="stochastic", dtype="float64", **FIXED)
    plain = QSGPRegressor(**settings).fit(X, y)
    settings |= dict(n_dense=50, covariance="chevron", freeze=0.5, control_variate=None)
    other = QSGPRegressor(**settings).fit(X, y)
    for ours, theirs in zip(plain.predict(X, True), other.predict(X, True), strict=True):
        assert_array_equal(ours, theirs)


def test_a_fit_that_continues_reports_what_the_first_one_has_set():
    X, y = table(60)
    of_the_first = {"optimizer", "subset_size", "kernel", "normalize_y", "standardize"}
    warm = QSGPRegressor(warm_start=True, random_state=0).fit(X, y)
    report = warm.fit(X, y).fit_report_
    assert of_the_first <= set(report.ignored) and "optimizer" not in report.choices
    stream = QSGPRegressor(random_state=0).partial_fit(X, y)
    kept = stream.likelihood_
    stream.set_params(likelihood="laplace").partial_fit(X + 0.1, y)
    assert {"likelihood", *of_the_first} <= set(stream.fit_report_.ignored)
    assert stream.likelihood_ is kept


def interrupted_once(monkeypatch, when):
    """Ctrl-C while the basis is passed over for the n-th time."""
    evaluations, calls = Fit.evaluations, []

    def broken(self, basis, theta, X):
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return evaluations(self, basis, theta, X)

    monkeypatch.setattr(Fit, "evaluations", broken)


@pytest.mark.parametrize("when", [1, 2])
def test_an_interrupt_before_the_first_step_leaves_the_process_of_the_starts_rows(
    when, monkeypatch
):
    X, y = table()
    interrupted_once(monkeypatch, when)
    with pytest.warns(ConvergenceWarning, match="interrupted") as caught:
        model = QSGPRegressor(**STEPS, **FIXED).fit(X, y)
    assert len(caught) == 1 and model.inference_ == "exact" and model.n_basis_ == 120
    K = ConstantKernel(1.0) * RBF([1.0, 1.0])
    expected = K(X, X) @ np.linalg.solve(K(X) + 0.1 * np.eye(120), y)
    assert_allclose(model.predict(X), expected, atol=1e-5)


def test_an_interrupt_before_the_first_step_of_more_rows_leaves_the_past(monkeypatch):
    X, y = table()
    model = QSGPRegressor(**STEPS, max_iter=100, **FIXED).fit(X, y)
    before = model.predict(X)
    interrupted_once(monkeypatch, 1)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.partial_fit(X[:30] + 0.1, y[:30])
    assert_array_equal(model.predict(X), before)


def test_the_pass_over_the_basis_keeps_to_the_time_budget():
    X, y = table()
    settings = dict(inference="stochastic", n_components=4_000_000, n_dense=0, max_seconds=0.5)
    with pytest.warns(ConvergenceWarning, match="max_seconds=0.5 ended the fit"):
        model = QSGPRegressor(**settings, **FIXED).fit(X, y)
    seconds = model.fit_report_.seconds
    assert seconds["total"] < 10
    assert model.n_basis_ == 120 and model.score(X, y) > 0.8


def test_going_on_after_such_an_end_begins_anew(monkeypatch):
    X, y = table()
    settings = dict(**STEPS, max_iter=100, **FIXED)
    model = QSGPRegressor(warm_start=True, **settings)
    interrupted_once(monkeypatch, 1)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    monkeypatch.undo()
    plain = QSGPRegressor(**settings).fit(X, y)
    assert_array_equal(model.fit(X, y).predict(X), plain.predict(X))


def test_newton_steps_have_a_limit_that_is_a_parameter():
    X, y = table()
    with pytest.warns(ConvergenceWarning, match="max_iter=2 ended training .* raise max_iter"):
        model = QSGPClassifier(n_components=60, max_iter=2, **FIXED).fit(X, y > 0)
    assert model.n_iter_ == 2 and model.fit_report_.status == "max_iter"
    assert model.score(X, y > 0) > 0.8


def test_the_posterior_is_what_it_says_and_stays_what_it_was():
    X, y = table()
    model = QSGPRegressor(**STEPS, max_iter=100, **FIXED).fit(X, y)
    posterior = model._build_posterior()
    assert isinstance(posterior, Posterior) and not isinstance(posterior, KernelPosterior)
    before = model.predict(X, return_std=True)
    model.set_params(covariance="chevron")
    model._remember(None)
    for old, new in zip(before, model.predict(X, return_std=True), strict=True):
        assert_array_equal(old, new)
    chevron = QSGPRegressor(covariance="chevron", **STEPS, max_iter=100, **FIXED).fit(X, y)
    mean, std = chevron.predict(X, return_std=True)
    assert_array_equal(mean, chevron.predict(X))
    assert_array_equal(std, chevron.predict_std(X))
    assert (std != before[1]).all()


# ------------------------------------------------------------------------------- relevance vectors


@pytest.fixture
def rounds(thresholds):
    thresholds("sampled", EXACT_DICTIONARY=60, _ROUNDS=2)
    rng = np.random.default_rng(0)
    X = rng.uniform(-10, 10, (150, 1))
    y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(150)
    return QSRVMRegressor(n_components=150, control_variate_rank=50, random_state=0), X, y


@pytest.mark.parametrize("stage", ["start", "batches", "full"])
def test_rounds_can_be_interrupted(stage, rounds):
    model, X, y = rounds

    def press(step):
        if step.stage == stage:
            raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted") as caught:
        model.set_params(callbacks=press).fit(X, y)
    assert len(caught) == 1 and model.fit_report_.status == "interrupted"
    after = model.history_["stage"][model.history_["stage"].index(stage) + 1 :]
    # The state that is kept is scored, no more.
    assert after in ([], ["full"])
    assert len(model.relevance_) <= 60 and model.score(X, y) > 0.5


def test_rounds_keep_to_the_time_budget(rounds):
    model, X, y = rounds
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.set_params(max_seconds=1e-9).fit(X, y)
    assert model.fit_report_.status == "max_seconds" and len(model.relevance_) <= 60
    assert np.isfinite(model.predict(X, return_std=True)).all()


def test_moments_that_are_cut_short_are_those_of_the_first_rows(thresholds):
    thresholds(MOMENT_ROWS=50)
    X, y = table()
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    source = RowSource.of(X, y[:, None], unit, torch.float64)
    dictionary = Dictionary.of(compile_kernel(KERNEL, 2), source, np.arange(10), 1e4)
    cut = dictionary.moments(source, Budget(1e-9))
    whole = dictionary.moments(source.subset(np.arange(50)), Budget())
    assert cut.n == whole.n == 50
    assert_allclose(cut.gram, whole.gram)
    assert_allclose(cut.root.T @ cut.target, whole.root.T @ whole.target)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
def test_rounds_show_a_working_model(rounds):
    model, X, y = rounds
    plain = model.fit(X, y).predict(X)
    seen = []

    watch = Watch(lambda between: seen.append(between.score(X, y)))
    again = clone(model).set_callbacks(watch)
    assert_array_equal(again.fit(X, y).predict(X), plain)
    assert len(seen) == len(again.history_["stage"]) and min(seen) > 0.3
    assert "batches" in again.history_["stage"]


def test_a_function_without_noise_has_less_noise_than_the_bound():
    """With kernel functions at all rows; the oracle is the dense process of the trained kernel."""
    rng = np.random.default_rng(0)
    X, X_new = rng.uniform(size=(150, 2)), rng.uniform(size=(50, 2))
    y, y_new = (np.sin(3 * Z[:, 0]) + Z[:, 1] ** 2 for Z in (X, X_new))
    model = QSGPRegressor(random_state=0, subset_size=120).fit(X, y)
    noise = model.kernel_.k2.noise_level
    assert noise < 1e-5 and "below the bound of the noise" in model.fit_report_.seconds
    Z, Z_new = ((part - X.mean(0)) / X.std(0) for part in (X, X_new))
    K, cross = model.kernel_.k1(Z), model.kernel_.k1(Z_new, Z)
    solved = np.linalg.solve(K + noise * np.eye(150), np.c_[(y - y.mean()) / y.std(), cross.T])
    mean, std = model.predict(X_new, return_std=True)
    assert_allclose(mean, y.mean() + y.std() * cross @ solved[:, 0], atol=1e-4)
    variance = model.kernel_.k1.diag(Z_new) - np.einsum("ij,ji->i", cross, solved[:, 1:])
    assert_allclose(std, y.std() * np.sqrt(variance + noise), rtol=0.05)
    assert np.sqrt(np.mean((y_new - mean) ** 2)) < 3e-3 and std.mean() < 5e-3
    y = y + 0.1 * rng.standard_normal(150)
    assert QSGPRegressor(random_state=0).fit(X, y).kernel_.k2.noise_level > 1e-2
