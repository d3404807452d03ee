"""Sparse variational estimators: limiting cases, options and reports."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from skscalablegp import SGPRRegressor, SVGPClassifier, SVGPRegressor
from skscalablegp.core import Choice
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Bernoulli, Gaussian, StudentT
from skscalablegp.models.inducing import SparseModel
from skscalablegp.models.inducing._stepper import (
    SparseStepper,
    SparseTraining,
)
from skscalablegp.models.inducing._training import best_noise


def table(n=80, d=2, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + noise * rng.standard_normal(n)


KERNEL = ConstantKernel(1.5) * Matern([0.8, 1.5], nu=1.5) + WhiteKernel(0.05)


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(KERNEL, optimizer=None),
        SGPRRegressor(KERNEL, optimizer=None),
        SVGPRegressor(
            KERNEL,
            variational_optimizer="adam",
            variational_learning_rate=1e-12,
            learning_rate=1e-12,
            max_iter=1,
        ),
    ],
    ids=["svgp", "sgpr", "adam far from its end"],
)
def test_all_rows_as_points_are_the_exact_process(model):
    X, y = table()
    X_new = table(seed=1)[0]
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    mean, cov = exact.predict(X_new, return_cov=True)
    model.fit(X, y)
    ours = model.predict(X_new)
    if model.get_params().get("variational_optimizer") == "adam":
        # The same comparison can fail: a distribution that has not moved is the prior.
        assert np.abs(ours - mean).max() > 0.5
        return
    assert_allclose(ours, mean, atol=1e-4)
    assert_allclose(model.predict(X_new, return_cov=True)[1], cov, atol=1e-4)
    assert_allclose(model.predict_std(X_new) ** 2, cov.diagonal(), atol=1e-4)
    assert_allclose(model.lower_bound_, exact.log_marginal_likelihood_value_, rtol=1e-4)


def stepper(settings, n=80, m=80, likelihood=None):
    X, y = table(n)
    scaling = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    source = RowSource.of(X, y[:, None], scaling, torch.float64)
    kernel = compile_kernel(KERNEL, 2)
    model = SparseModel(kernel, likelihood or Gaussian(), 1)
    Z = torch.as_tensor(X[:m])
    base = dict(
        optimize_inducing=False,
        optimizer="adam",
        learning_rate=0.05,
        variational_optimizer="natural",
        variational_learning_rate=0.1,
        batch_size=n,
        max_iter=200,
    )
    plan = SimpleNamespace(**base | settings)
    for name in ("max_iter", "variational_learning_rate"):
        setattr(plan, name, Choice(getattr(plan, name), ""))
    units = torch.ones(2, dtype=torch.float64)
    training = SparseTraining(model, source, plan, [], 1.0)
    return SparseStepper(training, kernel.theta0, Z, units, torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_full_batches_train_to_the_exact_likelihoods_maximum():
    """With all rows as points the stepper's own steps climb the exact marginal likelihood."""
    ours = stepper({"max_iter": 300, "learning_rate": 0.1})
    for _ in range(300):
        ours.step()
    X, y = table()
    best = GaussianProcessRegressor(KERNEL).fit(X, y).log_marginal_likelihood_value_
    assert best - 0.05 < -80 * ours.score() < best


@pytest.mark.parametrize("optimizer, steps", [("natural", 1), ("adam", 1000)])
def test_both_ways_end_at_the_same_distribution(optimizer, steps):
    """Hyperparameters held: one natural step, or many of Adam."""
    settings = {"variational_optimizer": optimizer, "max_iter": steps, "optimizer": None}
    if optimizer == "adam":
        settings["variational_learning_rate"] = 0.02
    ours = stepper(settings, m=8)
    for _ in range(steps):
        ours.step()
    best = stepper({}, m=8)
    best.step()
    mean, S = ours.belief.whitened().mean, ours.belief.whitened().covariance
    expected = best.belief.whitened()
    assert_allclose(mean, expected.mean, atol=2e-3)
    assert_allclose(S, expected.covariance, atol=2e-3)


def test_small_batches_are_unbiased_for_the_bound():
    """Statistics of random batches average to those of all rows; without n / b they would not."""
    ours = stepper({"batch_size": 8}, m=6)
    n, weights = 80, torch.ones(80, dtype=torch.float64)
    whole = ours._batch_sums(torch.arange(n), weights, False).precision[0]
    draws = []
    for _ in range(100):
        draws.append(ours._batch_sums(*next(ours._batches), False).precision[0])
    # Ten batches are an epoch, whose sum is exact: epochs cannot deviate.
    epochs = torch.stack(draws).reshape(10, 10, 6, 6).mean(1)
    assert_allclose(epochs, whole.expand_as(epochs), rtol=1e-9, atol=1e-9)
    unscaled = torch.stack(draws).mean(0) * 8 / n
    assert float((unscaled - whole).abs().max()) > 0.5 * float(whole.abs().max())


@pytest.mark.parametrize(
    "inducing",
    [
        pytest.param("kmeans++", marks=pytest.mark.slow),
        "conditional_variance",
        pytest.param("random", marks=pytest.mark.slow),
    ],
)
def test_points_are_found_and_help(inducing):
    X, y = table(600)
    settings = dict(inducing=inducing, random_state=0, max_iter=60)
    few = SVGPRegressor(n_inducing=4, **settings).fit(X, y)
    many = SVGPRegressor(n_inducing=40, **settings).fit(X, y)
    assert many.inducing_points_.shape == (40, 2)
    assert many.lower_bound_ > few.lower_bound_ + 20
    X_new, y_new = table(300, seed=1)
    assert many.score(X_new, y_new) > 0.9


def test_points_of_the_users_own_stay_where_they_are():
    X, y = table()
    Z = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.5]])
    model = SVGPRegressor(inducing=Z, optimize_inducing=False, max_iter=3).fit(X, y)
    assert_allclose(model.inducing_points_, Z, atol=1e-12)
    with pytest.raises(ValueError, match=r"shape \(m, 2\)"):
        SVGPRegressor(inducing=Z[:, :1]).fit(X, y)
    with pytest.raises(ValueError, match="kmeans"):
        SVGPRegressor(inducing="magic").fit(X, y)


def test_partial_fit_is_the_fit_of_all_rows():
    """With Gaussian noise, fixed hyperparameters and fixed points, whatever the order."""
    X, y = table(120)
    settings = dict(kernel=KERNEL, optimizer=None, inducing=X[:10])
    whole = SVGPRegressor(**settings).fit(X, y)
    parts = SVGPRegressor(**settings)
    for part in (slice(0, 50), slice(50, 60), slice(60, 120)):
        parts.partial_fit(X[part], y[part])
    assert parts.n_samples_seen_ == 120
    X_new = table(30, seed=1)[0]
    for a, b in zip(
        parts.predict(X_new, return_std=True), whole.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(a, b, atol=1e-6)
    with pytest.raises(ValueError, match="2 targets"):
        parts.partial_fit(X, np.column_stack([y, y]))


def test_partial_fit_of_a_classifier_learns_and_knows_its_classes():
    X, y = make_moons(300, noise=0.2, random_state=0)
    names = np.array(["left", "right"])[y]
    model = SVGPClassifier(n_inducing=30, random_state=0)
    model.partial_fit(X[:60], names[:60], classes=["left", "right"])
    before = log_loss(names[200:], model.predict_proba(X[200:]))
    model.partial_fit(X[60:200], names[60:200])
    assert log_loss(names[200:], model.predict_proba(X[200:])) < before
    with pytest.raises(ValueError, match="but the classes of the model are"):
        model.partial_fit(X[:2], ["left", "up"])


@pytest.mark.slow
def test_wild_targets_do_not_bend_a_student_t_model():
    X, y = table(300)
    wild = y.copy()
    wild[::10] += 20.0
    X_new, _ = table(200, seed=1)
    truth = np.sin(2 * X_new[:, 0]) + 0.3 * X_new[:, 1]
    settings = dict(n_inducing=40, random_state=0)
    robust = SVGPRegressor(likelihood=StudentT(df=3.0), **settings).fit(X, wild)
    plain = SVGPRegressor(**settings).fit(X, wild)
    error = np.abs(robust.predict(X_new) - truth).mean()
    assert error < 0.2 and error < 0.3 * np.abs(plain.predict(X_new) - truth).mean()
    draws = robust.sample_y(X_new[:1], 20_000, random_state=0)
    # Half of the draws are where t with 3 degrees of freedom has them, far inside a Gaussian's.
    inside = np.abs(draws - np.median(draws)) < 0.675 * robust.predict_std(X_new[:1])
    assert inside.mean() > 0.55


def test_noise_by_row_and_what_it_must_not_be():
    X, y = table()
    with pytest.raises(ValueError, match="needs noise in every row"):
        SVGPRegressor(RBF(), alpha=0.0).fit(X, y)
    with pytest.raises(ValueError, match="df > 2"):
        SVGPRegressor(likelihood=StudentT(df=2.0)).fit(X, y)
    with pytest.raises(ValueError, match="one target"):
        SVGPRegressor(likelihood="student_t").fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="not for regression"):
        SVGPRegressor(likelihood=Bernoulli()).fit(X, y)
    with pytest.raises(ValueError, match="Unknown likelihood 'poisson'.*gaussian"):
        SVGPRegressor(likelihood="poisson").fit(X, y)


@pytest.mark.slow
def test_a_network_learns_what_a_stationary_kernel_cannot():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (800, 2))
    y = np.sign(X[:, 0] + X[:, 1]) + 0.05 * rng.standard_normal(800)
    model = SVGPRegressor(feature_extractor=[32, 16], n_inducing=30, random_state=0, max_iter=200)
    model.fit(X[:600], y[:600])
    assert model.inducing_points_.shape == (30, 16)
    assert model.score(X[600:], y[600:]) > 0.85


def test_large_means_do_not_cost_digits():
    X, y = table(400)
    settings = dict(n_inducing=30, max_iter=30, random_state=0, dtype="float32")
    near = SVGPRegressor(**settings).fit(X, y).predict(X[:20])
    far = SVGPRegressor(**settings).fit(X + 1e6, y).predict(X[:20] + 1e6)
    assert_allclose(near, far, atol=0.03)


@pytest.mark.parametrize("scores", [None, [1.0, 0.5, float("nan")]], ids=["far", "no number"])
def test_steps_that_diverge_leave_a_model_and_say_so(scores, stand_in):
    X, y = table()
    if scores is not None:
        stand_in("SparseStepper.score", lambda self: scores.pop(0))
    model = SVGPRegressor(n_inducing=10, learning_rate=1e20, max_iter=20, batch_size=20)
    with pytest.warns(ConvergenceWarning, match="diverged.*learning_rate below 1e\\+20"):
        model.fit(X, y)
    assert model.fit_report_.status == "diverged"
    assert np.isfinite(model.predict(X, return_std=True)).all()


def test_history_shows_the_start_and_the_bound():
    X, y = table(700)
    model = SVGPRegressor(n_inducing=20, max_iter=40, random_state=0).fit(X, y)
    stages = model.history_["stage"]
    assert stages[0] == "start" and stages[-1] == "full"
    scores = [
        s for s, stage in zip(model.history_["objective"], stages, strict=True) if stage == "full"
    ]
    assert scores[-1] > scores[0]
    assert model.n_iter_ == 40 + stages.count("start")


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_two_classes(link):
    X, y = make_moons(500, noise=0.2, random_state=0)
    model = SVGPClassifier(n_inducing=40, likelihood=Bernoulli(link), random_state=0)
    model.fit(X[:350], y[:350])
    assert log_loss(y[350:], model.predict_proba(X[350:])) < 0.12
    assert model.draws_ is None
    # Far from every row nothing is known.
    assert_allclose(model.predict_proba([[50.0, 50.0]]), 0.5, atol=0.02)


def test_likelihoods_of_classes():
    X, y = make_moons(60, noise=0.2, random_state=0)
    with pytest.raises(ValueError, match="two classes, but y has 3"):
        SVGPClassifier(likelihood="bernoulli").fit(X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="not for classes"):
        SVGPClassifier(likelihood=Gaussian()).fit(X, y)
    with pytest.raises(ValueError, match="link"):
        SVGPClassifier(likelihood=Bernoulli("cauchy")).fit(X, y)


@pytest.mark.night
def test_digits():
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.25, random_state=0, stratify=y
    )
    names = np.array([f"digit {k}" for k in range(10)])
    model = SVGPClassifier(n_inducing=128, max_iter=60, random_state=0)
    model.fit(X_train, names[y_train])
    proba = model.predict_proba(X_test)
    assert model.score(X_test, names[y_test]) >= 0.97
    assert log_loss(y_test, proba) <= 0.12
    confidence, right = proba.max(1), proba.argmax(1) == y_test
    bins = np.minimum((confidence * 15).astype(int), 14)
    error = sum(abs((confidence - right)[bins == k].sum()) / len(right) for k in range(15))
    assert error <= 0.03
    cautious = SVGPClassifier(n_inducing=20, max_iter=5, calibrate=False, random_state=0)
    assert cautious.fit(X_train[:150], y_train[:150]).probability_power_ == 1.0


@pytest.mark.parametrize(
    "model, least",
    [
        (SVGPRegressor(n_inducing=20), 0.5),
        (SVGPRegressor(n_inducing=20, likelihood="student_t"), 0.1),
        (SVGPClassifier(n_inducing=20), 0.7),
        (SGPRRegressor(n_inducing=20), 0.5),
        (SGPRRegressor(n_inducing=20, optimize_inducing=True), 0.5),
    ],
)
@pytest.mark.parametrize("reason", ["interrupted", "callback"])
def test_what_ends_the_start_ends_the_fit(model, least, reason, thresholds, given_start):
    thresholds(START_ROWS=50)
    X, y = table(150)
    y = (y > 0).astype(int) if isinstance(model, SVGPClassifier) else y

    def stop(step):
        if step.iteration == 2 and reason == "interrupted":
            raise KeyboardInterrupt
        return step.iteration == 2

    model = clone(model).set_params(callbacks=stop, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y)
    messages = [w.message for w in caught if issubclass(w.category, ConvergenceWarning)]
    assert len(messages) == (reason == "interrupted")
    assert model.fit_report_.status == reason
    assert model.history_["stage"] == ["start", "start"]
    assert model.score(X, y) > least


def test_an_interrupt_ends_the_restarts():
    X, y = table(60)
    stages = []

    def press(step):
        stages.append(step.iteration)
        if len(stages) == 3:
            raise KeyboardInterrupt

    model = SGPRRegressor(KERNEL, n_restarts_optimizer=3, callbacks=press, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit(X, y)
    assert stages == [1, 2, 3] and model.fit_report_.status == "interrupted"
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("Model", [SVGPRegressor, SVGPClassifier, SGPRRegressor])
@pytest.mark.parametrize(
    "inducing, message",
    [
        ([[0.0, np.nan]], "inducing must be a finite number"),
        (np.empty((0, 2)), "must have shape"),
        (np.zeros((3, 1)), "must have shape"),
    ],
)
def test_inducing_points_are_finite_and_at_least_one(Model, inducing, message):
    X, y = table(40)
    with pytest.raises(ValueError, match=message):
        Model(inducing=inducing).fit(X, y > 0)


@pytest.mark.parametrize(
    "best, start",
    [(0.002, 0.002), (0.05, 0.015), (0.1, 0.015), (0.3, 0.03), (0.9, 0.06)],
)
def test_training_starts_at_a_noise_that_its_steps_can_leave(stand_in, best, start):
    # A start at 0.03 where the bound is best at 0.06 cost 4,000 rows of pol 0.145 nats a test row.
    unit = 2.5

    def bound(kernel, theta, Z, sums, block_rows):
        return SimpleNamespace(value=-((float(theta[-1]) - math.log(best * unit)) ** 2))

    stand_in("collapsed_bound", bound)
    train = stepper({})
    theta = train.model.kernel.theta0.clone()
    theta[-1] = math.log(1e-4 * unit)
    chosen = best_noise(
        train.model, theta, torch.zeros(1, 2), train.source, unit, torch.Generator().manual_seed(0)
    )
    assert_allclose(chosen[:-1], theta[:-1])
    assert_allclose(chosen[-1], math.log(start * unit))


@pytest.mark.slow
def test_a_classifier_starts_with_the_columns_that_matter():
    """At one length scale for all of thirty columns, rows are as good as unrelated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_400, 30))
    y = np.sin(2.5 * X[:, 3]) + X[:, 7] > 0
    model = SVGPClassifier(n_inducing=100, max_iter=3, random_state=0).fit(X[:1_000], y[:1_000])
    assert model.score(X[1_000:], y[1_000:]) > 0.85
    assert set(np.argsort(model.kernel_.k2.length_scale)[:2]) == {3, 7}
    assert "columns used by boosted trees" in str(model.fit_report_)


@pytest.mark.slow
def test_batches_resolve_little_noise():
    """In single precision the error is two to five times as large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (3700, 4))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    y = f[:3200] + 0.1 * rng.standard_normal(3200)
    model = SVGPRegressor(n_inducing=200, max_iter=40, random_state=0).fit(X[:3200], y)
    assert np.sqrt(np.mean((model.predict(X[3200:]) - f[3200:]) ** 2)) < 0.035
