"""Deep kernels: the fitted model is the exact Gaussian process on the trained features."""

import pickle
import warnings
from itertools import count

import named
import numpy as np
import pytest
import torch
from inside import HAS_CALLBACKS, clock
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    WhiteKernel,
)
from torch import nn

from skscalablegp import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.linalg.gradients import exact_marginal_likelihood
from skscalablegp.models.deep import cosine
from skscalablegp.models.deep._source import exact_problem

# Where a network begins is asked in a few tests at the end, and in tests/core/test_first_layer.py.
pytestmark = pytest.mark.usefixtures("remembered_starts")

ALL = [SCGDDKLRegressor, MinimaxDKLRegressor, BSGDDKLRegressor]
FIRST_QUICK = [ALL[0], *(pytest.param(cls, marks=pytest.mark.slow) for cls in ALL[1:])]
SMALL = {"feature_extractor": (12,), "max_epochs": 8, "random_state": 0}


def table(n=120, seed=0):
    return make_friedman1(n_samples=n, noise=0.5, random_state=seed)


def quick(cls=SCGDDKLRegressor, **params):
    return cls(**{**SMALL, **params})


def standardised(model, X, y):
    """Rows and target in the model's units, by NumPy alone."""
    return (y - y.mean(0)) / y.std(0), y.mean(0), y.std(0)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("kernel", [None, ConstantKernel() * RBF()], ids=str)
def test_predictions_are_those_of_a_dense_process_on_the_features(cls, kernel):
    """Mean, covariance and likelihood by n x n algebra on kernel_ at features(X)."""
    X, y = table(60)
    model = quick(cls, kernel=kernel, n_components=600, max_epochs=2).fit(X, y)
    X_new = table(9, seed=1)[0]
    target, mean, std = standardised(model, X, y)
    Z, Z_new, s2 = model.extract_features(X), model.extract_features(X_new), model.noise_variance_
    K, cross, prior = (model.kernel_(a, b) for a, b in ((Z, Z), (Z_new, Z), (Z_new, Z_new)))
    H = K + s2 * np.eye(len(X))
    # Random features average to the kernel; the linear one is exact.
    tolerance = 1e-7 if kernel is None else 0.15
    expected = mean + std * (cross @ np.linalg.solve(H, target))
    ours, covariance = model.predict(X_new, return_cov=True)
    assert_allclose(ours, expected, atol=3 * tolerance * std)
    latent = prior - cross @ np.linalg.solve(H, cross.T) + s2 * np.eye(len(X_new))
    assert_allclose(covariance, std**2 * latent, atol=tolerance * std**2)
    if kernel is None:
        dense = multivariate_normal(cov=H).logpdf(target)
        assert_allclose(model.log_marginal_likelihood(), dense, rtol=1e-8)
        assert_allclose(model.history_["objective"][-1], dense / len(X), rtol=0.2)


@pytest.mark.parametrize("cls", FIRST_QUICK)
def test_training_learns_and_keeps_the_best_score(cls):
    X, y = table(400)
    X_new, y_new = table(200, seed=1)
    model = cls(feature_extractor=(32,), max_epochs=60, early_stopping=False, random_state=0).fit(
        X, y
    )
    scores = np.array(model.history_["objective"])
    assert scores.max() > scores[0] + 0.3
    assert_allclose(
        model.log_marginal_likelihood_value_ / len(X), scores.max(), rtol=1e-3, atol=1e-3
    )
    assert model.fit_report_.status == "completed"
    assert set(model.history_["objective_name"]) == {"log marginal likelihood per row"}
    assert model.score(X_new, y_new) > 0.85
    mean, std = model.predict(X_new, return_std=True)
    assert 0.8 < np.mean(np.abs(y_new - mean) < 2 * std) <= 1.0


def test_targets_share_features_and_factor():
    X, y = table()
    Y = np.column_stack([y, X[:, 0] ** 2, np.full(len(y), 3.0)])
    # The last feature is for rows outside the box.
    model = quick().fit(X, Y)
    assert model.coef_.shape == (14, 3) and model.coef_precision_cholesky_.shape == (14, 14)
    target, _, _ = standardised(model, X, Y[:, :2])
    Z = model.extract_features(X)
    H = model.kernel_(Z) + model.noise_variance_ * np.eye(len(X))
    dense = [multivariate_normal(cov=H).logpdf(c) for c in (*target.T, np.zeros(len(X)))]
    assert_allclose(model.log_marginal_likelihood_value_, sum(dense), rtol=1e-8)
    assert_allclose(model.predict(X)[:, 2], 3.0)


def test_without_layers_the_kernel_sees_the_standardised_columns():
    X, y = table()
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1]))
    model = quick(feature_extractor=(), kernel=kernel, n_components=60).fit(X, y)
    assert_allclose(model.extract_features(X), (X - X.mean(0)) / X.std(0))
    assert model.kernel_.k2.length_scale.shape == (X.shape[1],)
    assert not np.allclose(model.kernel_.k2.length_scale, 1)
    assert model.coef_.shape == (60, 1)


def test_bounds_and_fixed_hyperparameters_are_honoured():
    X, y = table()
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.0, (0.9, 1.1))
    fitted = quick(kernel=kernel, n_components=50, learning_rate=0.1).fit(X, y).kernel_
    assert fitted.k1.constant_value == 2.0
    assert 0.9 <= fitted.k2.length_scale <= 1.1


@pytest.mark.parametrize("start", [1e-9, 1e9])
def test_a_constant_outside_its_bounds_gets_there(start):
    X, y = table()
    model = quick(kernel=ConstantKernel(start) * DotProduct()).fit(X, y)
    assert 1e-5 <= model.kernel_.k1.constant_value <= 1e5
    assert model.score(X, y) > 0.5


def test_a_stream_keeps_the_kernel_of_its_first_chunk():
    X, y = table()
    model = quick().partial_fit(X, y)
    first = str(model.kernel_)
    model.set_params(kernel=ConstantKernel() * RBF(), optimizer=None).partial_fit(X, y)
    assert str(model.kernel_) == first


def test_rates_fall_with_the_time_budget():
    """A budget that ends training early ends it with small steps, too."""
    spent = [0.0]
    rate = cosine(1000, lambda: spent[0])
    assert rate(0) == 1 and rate(500) == pytest.approx(0.5)
    spent[0] = 0.9
    assert rate(10) == pytest.approx(cosine(10)(9)) and rate(950) == cosine(1000)(950)
    X, y = table()
    ticks = count()
    model = quick(max_epochs=10_000, max_seconds=20)
    with clock(lambda: 0.1 * next(ticks)), pytest.warns(ConvergenceWarning, match="time budget"):
        model.fit(X, y)
    assert model.fit_report_.epochs < 10_000 and model.score(X, y) > 0.5


def test_noise_stays_above_its_bound():
    X, _ = table()
    model = quick(min_noise=0.2, feature_extractor=()).fit(X, X[:, 0])
    assert model.noise_variance_ == pytest.approx(0.04)


@pytest.mark.slow
def test_without_normalisation_the_prior_mean_is_zero():
    X, y = table()
    raw = quick(normalize_y=False, kernel=RBF(), feature_extractor=()).fit(X, y + 100)
    far = raw.predict(np.full((1, X.shape[1]), 1e6))
    assert abs(far[0]) < 150 and raw._y_train_mean[0] == 0


def module(d):
    return nn.Sequential(nn.Linear(d, 6), nn.LayerNorm(6), nn.Tanh())


@pytest.mark.parametrize("cls", ALL)
def test_any_module_may_make_the_features(cls):
    X, y = table()
    model = cls(feature_extractor=module, max_epochs=4, random_state=0).fit(X, y)
    assert model.extract_features(X).shape == (len(X), 6)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X[:5]), model.predict(X[:5]))
    assert_array_equal(clone(model).fit(X, y).predict(X[:5]), model.predict(X[:5]))


def test_a_given_module_is_copied_and_trained_from_where_it_is():
    X, y = table()
    torch.manual_seed(0)
    given = module(X.shape[1])
    before = [p.detach().clone() for p in given.parameters()]
    still = quick(feature_extractor=given, optimizer=None).fit(X, y)
    scaled = torch.tensor((X - X.mean(0)) / X.std(0))
    expected = given.double()(scaled).detach() / 6**0.5
    given.float()
    assert_allclose(still.extract_features(X), expected, atol=1e-6)
    moved = quick(feature_extractor=given).fit(X, y)
    assert np.abs(moved.extract_features(X) - still.extract_features(X)).max() > 0.01
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), before, strict=True))
    assert "activation" in moved.fit_report_.ignored
    again = clone(moved).fit(X, y)
    assert_array_equal(again.predict(X), moved.predict(X))
    assert_array_equal(pickle.loads(pickle.dumps(moved)).predict(X), moved.predict(X))


@pytest.mark.slow
def test_products_share_the_components():
    X, y = table()
    two = ConstantKernel() * RBF() + RBF(3.0)
    model = quick(kernel=two, n_components=60, max_epochs=1).fit(X, y)
    assert model.coef_.shape == (61, 1)
    # The linear kernel's 13 columns are exact and come on top.
    model = quick(kernel=two + DotProduct(), n_components=60, max_epochs=1).fit(X, y)
    assert model.coef_.shape == (74, 1)
    assert quick(kernel=RBF(), max_epochs=1).fit(X, y).coef_.shape == (1001, 1)
    assert "n_components" in quick(max_epochs=1).fit(X, y).fit_report_.ignored


class Undefined(nn.Module):
    """NaN from the start, which only rows in the thousands show."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, X):
        return torch.log(X * self.weight)


@pytest.mark.parametrize(
    "network, message",
    [
        (lambda d: nn.Sequential(nn.Linear(d, 3), nn.BatchNorm1d(3)), "batch norm"),
        (lambda d: nn.Flatten(0), "must turn"),
        (Undefined, "NaN or infinity"),
    ],
)
def test_wrong_networks(network, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        SCGDDKLRegressor(feature_extractor=network, max_epochs=2).fit(X, y)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_rate_that_diverges_leaves_the_best_state_and_names_itself(cls, optimizer):
    X, y = table()
    model = quick(cls, learning_rate=1e30, optimizer=optimizer)
    with pytest.warns(ConvergenceWarning, match="learning_rate below 1e\\+30"):
        model.fit(X, y)
    assert model.fit_report_.status == "diverged"
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all()
    assert model.score(X, y) > 0.3


def test_batches_larger_than_the_table_are_the_table():
    X, y = table()
    large = quick(batch_size=500).fit(X, y)
    assert "120 rows" in large.fit_report_.ignored["batch_size"]
    assert_array_equal(large.predict(X), quick(batch_size=120).fit(X, y).predict(X))


def test_kernels_that_have_no_features():
    X, y = table()
    with pytest.raises(ValueError, match="no finite features: use sums or products of RBF"):
        quick(kernel=RBF() ** 0.5).fit(X, y)


def test_features_that_do_not_fit_are_refused_before_any_work():
    X, y = table()
    with pytest.raises(MemoryError, match="1001 columns.*n_components"):
        quick(kernel=RBF(), memory_budget=1e6).fit(X, y)


def test_an_unknown_optimizer_lists_the_known():
    X, y = table()
    with pytest.raises(ValueError, match="'lbfgs' is unknown: use one of 'adam', .*'sgd'"):
        quick(optimizer="lbfgs").fit(X, y)


def test_without_an_optimizer_nothing_moves():
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = quick(optimizer=None, min_noise=0.5).fit(X, y)
    assert model.noise_variance_ == pytest.approx(0.25) and model.n_iter_ == 0
    assert model.fit_report_.status == "converged"
    assert {"learning_rate", "max_epochs", "averaging"} <= set(model.fit_report_.ignored)
    assert "dual_rate" not in model.fit_report_.ignored


@pytest.mark.parametrize("optimizer", ["adadelta", "adamw", "adagrad", "rmsprop", "sgd"])
def test_other_optimizers(optimizer):
    X, y = table()
    model = quick(optimizer=optimizer).fit(X, y)
    assert model.history_["objective"][0] < max(model.history_["objective"])


def test_an_optimizer_may_be_a_function():
    X, y = table()
    model = quick(optimizer=lambda groups: torch.optim.Adam(groups, betas=(0.8, 0.99)))
    model.fit(X, y)
    assert model.fit_report_.epochs == 8 and model.n_iter_ == 8 * (120 // 64)


def test_neighbours_make_local_batches():
    X, y = table()
    local = quick(BSGDDKLRegressor, batches="neighbours", batch_size=16).fit(X, y)
    random = quick(BSGDDKLRegressor, batch_size=16).fit(X, y)
    assert not np.allclose(local.predict(X), random.predict(X))


@pytest.mark.seldom("SCGDDKLRegressor", "BSGDDKLRegressor")
@pytest.mark.slow
@pytest.mark.parametrize("cls", ALL)
def test_a_network_that_knows_its_rows_by_heart_still_knows_the_noise(cls):
    rng = np.random.default_rng(0)
    X, X_new = rng.uniform(size=(480, 10)), rng.uniform(size=(300, 10))
    # Where all columns matter alike, the first layer does not keep noise out of the network.
    y, y_new = (Z.sum(1) + rng.standard_normal(len(Z)) for Z in (X, X_new))
    settings = dict(feature_extractor=(128, 128), random_state=0)
    mean, std = cls(**settings).fit(X, y).predict(X_new, return_std=True)
    assert np.mean(np.abs(y_new - mean) < 1.96 * std) > 0.85
    # Without rows held out the noise goes to what is left of the rows that training saw.
    known = cls(early_stopping=False, **settings).fit(X, y)
    mean, std = known.predict(X_new, return_std=True)
    assert np.mean(np.abs(y_new - mean) < 1.96 * std) < 0.5


def test_early_stopping_scores_held_out_rows():
    X, y = table(200)
    plain = quick(max_epochs=30, early_stopping=False).fit(X, y)
    model = quick(max_epochs=30, early_stopping=True, n_iter_no_change=2, tol=10.0).fit(X, y)
    assert model.fit_report_.status == "converged" and model.fit_report_.epochs < 30
    assert model.history_["objective"][0] != plain.history_["objective"][0]
    # The last pass is over all rows, and predictions stay those of an exact posterior.
    Z = model.extract_features(X)
    H = model.kernel_(Z) + model.noise_variance_ * np.eye(len(X))
    target, mean, std = standardised(model, X, y)
    expected = mean + std * (model.kernel_(Z[:4], Z) @ np.linalg.solve(H, target))
    assert_allclose(model.predict(X[:4]), expected, atol=1e-6)
    with pytest.raises(ValueError, match="leaves no training row of 1"):
        quick(early_stopping=True).fit(X[:1], y[:1])


def test_callbacks_end_a_training():
    X, y = table()
    seen = []
    model = quick(callbacks=lambda step: seen.append(step.objective) or len(seen) == 3)
    model.fit(X, y)
    assert len(seen) == 3 and model.fit_report_.status == "callback"


# ---------------------------------------------------------------- one fit


class Interrupted:
    """The last pass, interrupted so many times."""

    def __init__(self, stand_in, times):
        self.times = times
        self.original = stand_in("WeightSpaceStepper.finish", lambda *args: self(*args))

    def __call__(self, *args):
        self.times -= 1
        if self.times >= 0:
            raise KeyboardInterrupt
        return self.original(*args)


def test_the_last_pass_survives_one_interrupt(stand_in):
    X, y = table()
    expected = quick().fit(X, y).predict(X)
    Interrupted(stand_in, 1)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = quick().fit(X, y)
    assert model.fit_report_.status == "interrupted"
    assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_second_interrupt_leaves_the_old_model(stand_in, method):
    X, y = table()
    model, twin = quick().fit(X, y), quick().fit(X, y)
    before, mean = dict(vars(model)), model.predict(X)
    Interrupted(stand_in, 2)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, method)(X + 1, y)
    assert vars(model) == before
    assert_array_equal(model.predict(X), mean)
    # The stream goes on as if nothing had happened.
    assert_array_equal(model.partial_fit(X, y).predict(X), twin.partial_fit(X, y).predict(X))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_any_step_of_a_stream_may_end_it(method):
    X, y = table()
    for settings, status in (
        ({"callbacks": lambda step: True}, "callback"),
        ({"callbacks": interrupt}, "interrupted"),
        ({"max_seconds": 1e-9}, "max_seconds"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = getattr(quick(**settings), method)(X, y)
        assert model.fit_report_.status == status and len(caught) == (status != "callback")
        assert model.score(X, y) > 0.3


def interrupt(step):
    raise KeyboardInterrupt


class Watch:
    """A scikit-learn callback that keeps the models that it is shown."""

    def __init__(self):
        self.models = []

    def setup(self, estimator, context):
        pass

    teardown = setup

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name == "iteration":
            self.models.append(fitted_estimator)


@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("held_out", [False, True])
def test_a_callback_sees_the_model_of_its_step(method, held_out):
    X, y = table()
    settings = {"early_stopping": held_out, "max_epochs": 2}
    watch, plain = Watch(), getattr(quick(**settings), method)(X, y)
    model = getattr(quick(**settings).set_callbacks(watch), method)(X, y)
    assert_array_equal(model.predict(X), plain.predict(X))
    assert len(watch.models) == len(plain.history_["stage"])
    values = [seen.log_marginal_likelihood_value_ / len(X) for seen in watch.models]
    if method == "partial_fit" or not held_out:
        assert_allclose(values, plain.history_["objective"], rtol=1e-6, atol=1e-6)
    seen = watch.models[0]
    # Training goes on from where it was, in tensors of its own.
    features, tensors = seen._trained(torch.float64)
    trained = features.kernel_at(tensors[features.theta_at])
    assert_allclose(trained.theta, seen.kernel_.theta, atol=1e-12)
    Z = seen.extract_features(X)
    H = seen.kernel_(Z) + seen.noise_variance_ * np.eye(len(X))
    dense = multivariate_normal(cov=H).logpdf((y - y.mean()) / y.std())
    assert_allclose(values[0] * len(X), dense, rtol=1e-7)


def test_a_model_of_a_device_that_is_gone_predicts_on_the_cpu():
    X, y = table()
    model = quick().fit(X, y)
    away = pickle.loads(pickle.dumps(model))
    away.device_ = "cpu" if torch.cuda.is_available() else "cuda:0"
    for ours, theirs in zip(
        away.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        assert_allclose(ours, theirs, rtol=1e-9)
    assert_allclose(away.extract_features(X), model.extract_features(X), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_maps_are_the_same_table(tmp_path, dtype):
    X, y = table()
    X = X.astype(dtype)
    stored = np.memmap(tmp_path / "X", dtype=dtype, mode="w+", shape=X.shape)
    stored[:] = X
    stored.flush()
    model = quick().fit(np.memmap(tmp_path / "X", dtype=dtype, mode="r", shape=X.shape), y)
    assert_array_equal(model.predict(X), quick().fit(X, y).predict(X))


# ---------------------------------------------------------------- streams


def test_streams_improve_and_repeat():
    X, y = table(600)
    X_new, y_new = table(200, seed=1)
    scores, models = [], []
    for _ in range(2):
        model = quick(batch_size=16, learning_rate=0.02)
        for start in range(0, 600, 100):
            model.partial_fit(X[start : start + 100], y[start : start + 100])
            scores.append(model.score(X_new, y_new))
        models.append(model)
    assert scores[5] > scores[0] and scores[5] > 0.7
    assert scores[:6] == scores[6:]
    assert models[0].n_samples_seen_ == 600
    assert_array_equal(models[0].predict(X), models[1].predict(X))


def test_a_stream_goes_on_after_a_pickle_and_after_fit():
    X, y = table(200)
    model = quick().fit(X[:100], y[:100])
    copy = pickle.loads(pickle.dumps(model))
    for m in (model, copy):
        m.partial_fit(X[100:], y[100:])
    assert_array_equal(model.predict(X), copy.predict(X))
    assert model.n_samples_seen_ == 200
    # Up to 8,192 rows the posterior is exact for all of them.
    Z = model.extract_features(X)
    H = model.kernel_(Z) + model.noise_variance_ * np.eye(200)
    target = (y - model._y_train_mean[0]) / model._y_train_std[0]
    dense = multivariate_normal(cov=H).logpdf(target)
    assert_allclose(model.log_marginal_likelihood_value_, dense, rtol=1e-7)


def test_longer_streams_keep_a_uniform_sample():
    from skscalablegp.models.deep._source import KEPT_ROWS, sampled

    kept, seen = None, 0
    random_state = np.random.RandomState(0)
    for _ in range(12):
        rows = np.arange(seen, seen + 2000.0)[:, None]
        kept = sampled(kept, (rows, rows), seen, random_state)
        seen += 2000
    sample = kept[0][:, 0]
    assert len(sample) == len(np.unique(sample)) == KEPT_ROWS
    assert_array_equal(kept[0], kept[1])
    # Mean of a uniform sample without replacement: its z-score.
    sd = seen / 12**0.5 * ((1 - len(sample) / seen) / len(sample)) ** 0.5
    assert abs(sample.mean() - seen / 2) / sd < 3


def test_streams_refuse_other_widths():
    X, y = table()
    model = quick().partial_fit(X, y)
    with pytest.raises(ValueError, match="X has 9 features"):
        model.partial_fit(X[:, 1:], y)
    with pytest.raises(ValueError, match="2 targets, but earlier chunks had 1"):
        model.partial_fit(X, np.column_stack([y, y]))


def test_no_warnings_on_a_plain_fit():
    X, y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick().fit(X, y)


def test_likelihood_elsewhere_is_not_known():
    X, y = table()
    with pytest.raises(ValueError, match="keeps no training rows"):
        quick().fit(X, y).log_marginal_likelihood(np.zeros(2))


@pytest.mark.parametrize("cls", ALL)
def test_far_away_the_deviation_is_the_targets(cls):
    X, y = table()
    model = quick(cls).fit(X, y)
    mean, std = model.predict(100 * X, return_std=True)
    assert (std > 0.9 * y.std()).all() and (np.abs(mean - y.mean()) < 5 * y.std()).all()
    # Within the range of the rows a clipped column is the column.
    inside = model.predict_std(X, include_noise=False)
    assert (inside < 0.5 * y.std()).all()


def test_ascent_and_descent_draw_their_own_batches(monkeypatch):
    from skscalablegp.models.deep import MinimaxGradient

    X, y = make_friedman1(300, random_state=0)
    estimate, same = MinimaxGradient.estimate, []

    def recorded(self, batch, state):
        same.append(torch.equal(batch.phi.detach(), batch.other))
        return estimate(self, batch, state)

    monkeypatch.setattr(MinimaxGradient, "estimate", recorded)
    MinimaxDKLRegressor(feature_extractor=(8,), max_epochs=2, random_state=0).fit(X, y)
    assert len(same) > 4 and not any(same)


# The multiplier of the minimax problem takes longer to follow the features.
@pytest.mark.slow
@pytest.mark.parametrize(
    "made, epochs",
    [(SCGDDKLRegressor, 60), pytest.param(MinimaxDKLRegressor, 90, marks=pytest.mark.slow)],
)
def test_steps_alone_train_without_exact_passes(made, epochs):
    X, y = make_friedman1(600, noise=0.5, random_state=0)
    params = dict(feature_extractor=(16,), random_state=0, max_epochs=epochs)
    alone = made(exact_passes=False, **params).fit(X[:400], y[:400])
    assert alone.score(X[400:], y[400:]) > 0.85
    assert abs(alone.fit_report_.slope_bias) < 0.5
    settled = made(**params).fit(X[:400], y[:400])
    assert not np.allclose(alone.predict(X[400:]), settled.predict(X[400:]))


@pytest.mark.parametrize("settings", [{}, {"exact_passes": False}], ids=str)
def test_a_last_pass_does_not_change_the_training(settings, monkeypatch):
    """Also where the noise beside the known one is searched for, with rows held out or not."""
    X, y = table(100)
    noise = np.linspace(0.01, 2.0, 100)

    def early(self):
        before, n_scores = dict(vars(self)), len(self.likelihoods)
        self.finish(self.rows.scored, self.rows.n)
        assert all(vars(self)[name] is value for name, value in before.items())
        assert len(self.likelihoods) == n_scores
        return whole(self)

    for held_out in (False, True):
        params = dict(early_stopping=held_out, max_epochs=3, **settings)
        alone = quick(**params).fit(X, y, noise_variance=noise)
        with monkeypatch.context() as patched:
            whole = named.stand_in(patched, "WeightSpaceStepper.score", early)
            model = quick(**params).fit(X, y, noise_variance=noise)
        assert_array_equal(model.predict(X), alone.predict(X))


@pytest.mark.parametrize("held_out", [False, True])
def test_a_score_is_one_pass_where_nothing_is_trained(held_out, stand_in):
    passes = []
    whole = stand_in("feature_moments", lambda *args: passes.append(1) or whole(*args))
    X, y = table(100)
    settings = dict(optimizer=None, early_stopping=held_out)
    model = quick(**settings).fit(X, y, noise_variance=np.linspace(0.01, 2.0, 100))
    # One of the score, and one of the posterior.
    assert model.n_iter_ == 0 and len(passes) == 2


def test_held_out_rows_choose_the_noise_without_exact_passes(stand_in):
    chosen = []
    search = stand_in("held_out_noise", lambda *args: chosen.append(search(*args)) or chosen[-1])
    X, y = table(100)
    model = quick(exact_passes=False, early_stopping=True).fit(X, y)
    assert model.noise_variance_ == chosen[-1][0]
    # The steps themselves have another one.
    assert abs(np.log(model.noise_variance_) - model.history_["theta"][-1][-1]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "Model",
    [
        SCGDDKLRegressor,
        pytest.param(MinimaxDKLRegressor, marks=pytest.mark.slow),
        pytest.param(BSGDDKLRegressor, marks=pytest.mark.slow),
    ],
)
def test_networks_begin_with_the_columns_that_matter(Model):
    """With equal first weights the test variance explained is 0.34 after these steps, at most."""
    X, y = four_of_many(1_000, 32)
    model = Model(feature_extractor=(32, 32), max_epochs=20, random_state=0)
    assert model.fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.7


def four_of_many(n, d):
    """Rows of d columns of which four matter."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = np.sin(2 * X[:, 3]) * X[:, 7] + X[:, -1] + np.cos(2 * X[:, 0])
    return X, y + 0.1 * rng.standard_normal(n)


def first_weights(X, y, sample_weight=None, **settings):
    """Of a network that is not trained any further."""
    model = SCGDDKLRegressor(feature_extractor=(5,), max_epochs=1, learning_rate=1e-12)
    model.set_params(**{"early_stopping": False, "random_state": 0, **settings})
    return model.fit(X, y, sample_weight=sample_weight)._tensors[0]


@pytest.mark.slow
def test_first_weights_are_random_numbers_over_length_scales(monkeypatch):
    """Beside the factors they are those of a network that knows nothing of the columns."""
    X, y = four_of_many(150, 9)
    found = first_weights(X, y)
    assert_array_equal(first_weights(X, y), found)
    other = first_weights(X, y, random_state=1)
    with monkeypatch.context() as patched:
        patched.setattr("skscalablegp.models.deep._source.first_layer_rows", lambda *_: None)
        equal, alone = first_weights(X, y), first_weights(X, y, random_state=1)
    assert_allclose(found / equal, np.broadcast_to((found / equal)[:1], found.shape), rtol=1e-5)
    # The factors do not depend on the seed.
    assert_allclose(other / alone, found / equal, rtol=1e-5)
    factors = (found / equal)[0]
    assert_allclose(np.square(factors).mean(), 1, rtol=1e-5)
    assert set(np.argsort(factors)[-4:]) == {0, 3, 7, 8}


def test_first_weights_are_the_same_with_weights_and_with_repeated_rows():
    X, y = four_of_many(110, 9)
    counts = np.r_[np.full(20, 3), np.ones(90, dtype=int)]
    weighted = first_weights(X, y, sample_weight=counts)
    repeated = first_weights(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert_allclose(weighted, repeated, rtol=1e-6)
    assert np.abs(weighted / first_weights(X, y) - 1).max() > 1e-3


def test_the_process_of_the_first_layer_counts_merged_rows():
    """Its likelihood is that of scikit-learn for the repeated rows."""
    X, y = four_of_many(40, 9)
    counts = np.r_[np.full(15, 3), np.ones(25, dtype=int)]
    units = Scaling(np.zeros(9), np.ones(9), np.zeros(1), np.ones(1))
    source = RowSource.of(X, y[:, None], units, torch.float64, torch.device("cpu"))
    kernel = ConstantKernel(2.0) * RBF(np.full(9, 3.0)) + WhiteKernel(0.3)
    rows = source.counted(np.arange(40), counts.astype(float))
    problem = exact_problem(kernel, rows)
    found = exact_marginal_likelihood(problem, problem.kernel.theta0).value
    process = GaussianProcessRegressor(kernel, optimizer=None)
    process.fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    assert found == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-8)


def test_nothing_is_fitted_for_a_module_or_without_training(stand_in):
    stand_in("first_layer_rows", None, at="deep")
    X, y = four_of_many(110, 9)
    module = nn.Linear(9, 4)
    given = module.weight.detach().numpy().copy()
    quick(feature_extractor=module, max_epochs=1).fit(X, y)
    assert_array_equal(module.weight.detach().numpy(), given)
    quick(optimizer=None).fit(X, y)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        quick().fit(X, y)
