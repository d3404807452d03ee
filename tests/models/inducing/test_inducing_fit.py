"""How fits and streams end: the state, the report and the warnings."""

import warnings

import numpy as np
import pytest
import torch
from inside import HAS_CALLBACKS
from numpy.testing import assert_allclose, assert_array_equal
from oracles import normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from watching import Watch

from skscalablegp import SGPRRegressor, SVGPClassifier, SVGPRegressor
from skscalablegp.core.posteriors import KernelModule
from skscalablegp.core.training import Adam
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import Rows
from skscalablegp.models.inducing import NaturalBelief, WhitenedBelief
from skscalablegp.models.inducing._collapsed import left_out_scales
from skscalablegp.priors import LogNormal
from skscalablegp.workers import Workers

pytestmark = pytest.mark.usefixtures("remembered_starts")

KERNEL = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.05)
MODELS = [
    SVGPRegressor(n_inducing=15, max_iter=5),
    SVGPRegressor(n_inducing=15, max_iter=5, likelihood="student_t"),
    SVGPClassifier(n_inducing=15, max_iter=5),
    SGPRRegressor(n_inducing=15, max_iter=5),
]
NAMES = ["svgp", "student t", "classes", "sgpr"]


def table(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(n)


def target(model, y):
    return (np.digitize(y, [-0.4, 0.4]) if isinstance(model, SVGPClassifier) else y).astype(float)


def fit(model, X, y, method="fit"):
    """The ConvergenceWarnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(model, method)(X, target(model, y))
    return [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


def answers(model, X):
    if isinstance(model, SVGPClassifier):
        return [model.predict_proba(X)]
    return [*model.predict(X, return_std=True)]


def least(model):
    """The score of what one step has made; a heavy tail takes more of them."""
    return 0.0 if model.get_params().get("likelihood") == "student_t" else 0.3


def at(stage, act):
    return lambda step: act() if step.stage == stage else None


def interrupt():
    raise KeyboardInterrupt


def fail():
    raise RuntimeError("ours")


@pytest.fixture(autouse=True)
def small_starts(thresholds):
    thresholds(START_ROWS=50)


# ------------------------------------------------------------------ fits with a start


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@pytest.mark.parametrize("stage", [pytest.param("start", marks=pytest.mark.slow), "full"])
def test_failures_and_interrupts_at_every_stage(model, stage):
    X, y = table()
    model = clone(model).set_params(random_state=0)
    fit(model, X, y)
    assert set(model.history_["stage"]) == {"start", "full"}
    before, state = answers(model, X[:5]), dict(vars(model))
    model.callbacks = at(stage, fail)
    with pytest.raises(RuntimeError, match="ours"):
        fit(model, X[:140], y[:140])
    model.callbacks = None
    assert vars(model) == state
    for old, new in zip(before, answers(model, X[:5]), strict=True):
        assert_array_equal(old, new)
    model.callbacks = at(stage, interrupt)
    warned = fit(model, X, y)
    assert len(warned) == 1 and "interrupted" in warned[0]
    assert model.fit_report_.status == "interrupted"
    assert model.history_["stage"][-1] == stage
    assert np.isfinite(np.concatenate([a.ravel() for a in answers(model, X[:5])])).all()


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_an_interrupt_between_stages_keeps_the_start(model, stand_in):
    """While points are chosen: once is repeated, twice leaves nothing."""
    X, y = table()
    chosen = []

    def press(*args):
        chosen.append(1)
        if len(chosen) <= times:
            raise KeyboardInterrupt
        return select(*args)

    select = stand_in("select_inducing", press)
    times, model = 1, clone(model).set_params(random_state=0)
    assert len(fit(model, X, y)) == 1
    assert model.fit_report_.status == "interrupted" and set(model.history_["stage"]) == {"start"}
    assert model.score(X, target(model, y)) > least(model)
    old = dict(vars(model))
    chosen.clear()
    times = 2
    with pytest.raises(KeyboardInterrupt):
        fit(model, X, y)
    assert vars(model) == old


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_first_score_interrupted_leaves_the_start(model, stand_in):
    X, y = table()
    name = "collapsed_bound" if isinstance(model, SGPRRegressor) else "variational_bound"
    pressed = []

    def press(*args, **settings):
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt
        return plain(*args, **settings)

    plain = stand_in(name, press)
    model = clone(model).set_params(random_state=0)
    warned = fit(model, X, y)
    assert len(warned) == 1 and "interrupted" in warned[0]
    assert model.score(X, target(model, y)) > least(model)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_scikit_learn_callbacks_predict_at_both_stages(model, stand_in):
    X, y = table()
    # Callbacks see the steps before the scales are set.
    stand_in("SparseStepper.rescale", lambda self: None)

    seen = []
    watch = Watch(lambda between: seen.append(answers(between, X[:5])))
    plain, model = clone(model).set_params(random_state=0), clone(model)
    fit(plain, X, y)
    fit(model.set_params(random_state=0).set_callbacks(watch), X, y)
    assert len(seen) == len(plain.history_["stage"])
    assert all(np.isfinite(a).all() for one in seen for a in one)
    for a, b in zip(answers(plain, X[:5]), answers(model, X[:5]), strict=True):
        assert_array_equal(a, b)
    if not isinstance(model, SVGPClassifier):
        # The last one is the model but for calibration.
        for a, b in zip(seen[-1], answers(model, X[:5]), strict=True):
            assert_allclose(a, b, rtol=0, atol=0.05)


@pytest.mark.slow
def test_calibration_is_optional(monkeypatch):
    X, y = table()
    settings = dict(n_inducing=15, random_state=0)
    plain = SVGPClassifier(**settings, calibrate=False)
    fit(plain, X, y)
    model = SVGPClassifier(**settings)
    fit(model, X, y)
    assert model.probability_power_ != 1 and "calibration" in model.fit_report_.seconds
    monkeypatch.setattr(SVGPClassifier, "_losses_of_powers", lambda *args: interrupt())
    warned = fit(model, X, y)
    assert len(warned) == 1 and "interrupted" in warned[0]
    assert model.probability_power_ == 1.0
    assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    monkeypatch.setattr(SVGPClassifier, "_losses_of_powers", lambda *args: fail())
    old = dict(vars(model))
    with pytest.raises(RuntimeError, match="ours"):
        fit(model, X[:100], y[:100])
    assert vars(model) == old
    # A fit that was ended before does not begin to calibrate.
    model.max_seconds = 1e-9
    fit(model, X, y)
    assert model.probability_power_ == 1.0


# ------------------------------------------------------------------ status


@pytest.mark.parametrize("Model", [SVGPRegressor, SVGPClassifier])
@pytest.mark.parametrize(
    "max_iter, status", [("auto", "completed"), (30, "completed"), (29, "max_iter")]
)
def test_a_planned_schedule_is_complete_and_a_shorter_one_is_not(Model, max_iter, status):
    X, y = table(60)
    model = Model(n_inducing=10, max_iter=max_iter, random_state=0)
    warned = fit(model, X, y)
    assert model.fit_report_.status == status
    assert len(warned) == (status == "max_iter")
    assert not warned or "raise max_iter" in warned[0]


def test_choices_and_what_has_no_effect():
    X, y = table(60)
    model = SVGPRegressor(n_inducing=10, batch_size=20, random_state=0).fit(X, y)
    choices = {name: choice.value for name, choice in model.fit_report_.choices.items()}
    assert choices == {
        "max_iter": 30,
        "variational_learning_rate": 0.1,
        "dtype": "float64",
        "normalize_y": True,
        "priors": None,
    }
    assert set(model.fit_report_.ignored) == {"activation"}
    report = SVGPRegressor(KERNEL, optimizer=None, n_inducing=10).fit(X, y).fit_report_
    assert report.status == "converged" and report.n_iter == 0
    closed = {"batch_size", "max_iter", "variational_learning_rate", "learning_rate"}
    assert closed < set(report.ignored)
    report = SVGPRegressor(random_state=0).fit(X, y).fit_report_
    assert "exact likelihood" in report.ignored["learning_rate"]
    report = SGPRRegressor(KERNEL, dtype="float32", optimizer="bfgs").fit(X, y).fit_report_
    assert {"dtype", "learning_rate", "n_iter_no_change"} <= set(report.ignored)
    report = SGPRRegressor(KERNEL, optimizer="adam", n_inducing=10).fit(X, y).fit_report_
    assert report.choices["learning_rate"].value == 0.1 and not report.ignored
    with pytest.raises(ValueError, match="learning_rate=0.3 contradicts optimizer=Adam"):
        SGPRRegressor(KERNEL, optimizer=Adam(0.1), learning_rate=0.3).fit(X, y)


def test_a_rate_is_the_users():
    """A natural step of 1 on batches keeps nothing but the last one."""
    X, y = table(60)
    settings = dict(kernel=KERNEL, n_inducing=10, optimizer=None, likelihood="student_t")
    settings |= dict(random_state=0, max_iter=30, batch_size=20)
    slow = SVGPRegressor(**settings, variational_learning_rate=0.05).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="diverged.*a variational_learning_rate below 1.0"):
        fast = SVGPRegressor(**settings, variational_learning_rate=1.0).fit(X, y)
    assert slow.lower_bound_ > fast.lower_bound_ + 1


@pytest.mark.parametrize(
    "params, message",
    [
        ({"optimizer": "natural"}, "Unknown optimizer 'natural'.*variational_optimizer"),
        ({"optimizer": "lbfgs"}, "Unknown optimizer 'lbfgs'"),
        ({"variational_optimizer": "sgd"}, "Unknown variational_optimizer 'sgd'.*natural"),
        ({"variational_learning_rate": 2.0}, "variational_learning_rate=2.0.*at most 1"),
        ({"feature_extractor": (4,), "activation": "relu6"}, "activation"),
    ],
)
@pytest.mark.parametrize("Model", [SVGPRegressor, SVGPClassifier])
def test_wrong_settings(Model, params, message):
    X, y = table(40)
    with pytest.raises(ValueError, match=message):
        Model(**params).fit(X, y > 0)


def test_memory_is_that_of_the_device(stand_in):
    asked = []
    stand_in("check_memory", lambda *args, device: asked.append(device), at="_run")
    X, y = table(40)
    SVGPRegressor(random_state=0, max_iter=30).fit(X, y).partial_fit(X, y)
    SGPRRegressor(random_state=0).fit(X, y)
    assert asked == [torch.device("cuda" if torch.cuda.is_available() else "cpu")] * 3


# ------------------------------------------------------------------ further rows


@pytest.mark.parametrize(
    "model", [SVGPRegressor(KERNEL, likelihood="student_t"), SVGPClassifier()], ids=["t", "classes"]
)
def test_how_a_stream_may_end(model):
    X, y = table()
    model = clone(model).set_params(n_inducing=15, random_state=0)
    fit(model, X[:60], y[:60])
    before, state = answers(model, X), dict(vars(model))

    def restart():
        vars(model).clear()
        vars(model).update(state)

    model.callbacks = lambda step: fail()
    with pytest.raises(RuntimeError, match="ours"):
        fit(model, X[60:], y[60:], "partial_fit")
    assert vars(model) == state | {"callbacks": model.callbacks}
    restart()
    assert not fit(model, X[60:], y[60:], "partial_fit")
    assert model.fit_report_.status == "completed" and model.n_samples_seen_ == 150
    assert model.n_iter_ == len(model.history_["stage"]) == 30
    objective = model.history_["objective"]
    assert set(model.history_["stage"]) == {"new rows"} and objective[-1] > objective[0]
    whole = answers(model, X)
    assert np.abs(whole[0] - before[0]).max() > 0.01
    ends = {
        "callback": {"callbacks": lambda step: True},
        "interrupted": {"callbacks": lambda step: interrupt()},
        "max_seconds": {"max_seconds": 1e-9},
        "max_iter": {"max_iter": 1},
    }
    for status, params in ends.items():
        restart()
        model.set_params(**params)
        warned = fit(model, X[60:], y[60:], "partial_fit")
        assert model.fit_report_.status == status and model.n_iter_ == 1
        assert len(warned) == (status != "callback")
        # One pass has been taken, most of the way.
        assert np.abs(answers(model, X)[0] - before[0]).max() > 0.01


@pytest.mark.parametrize("likelihood, passes", [("gaussian", 1), ("student_t", 60)])
def test_a_stream_converges(likelihood, passes):
    """Then further passes change nothing."""
    X, y = table()
    model = SVGPRegressor(KERNEL, likelihood=likelihood, optimizer=None, n_inducing=15)
    model.set_params(random_state=0, max_iter=30).fit(X[:60], y[:60])
    model.set_params(max_iter=200).partial_fit(X[60:], y[60:])
    assert model.fit_report_.status == "converged"
    assert model.n_iter_ == 1 if passes == 1 else 30 < model.n_iter_ < passes


def test_a_table_of_other_targets_leaves_the_model():
    X, y = table(60)
    model = SVGPRegressor(KERNEL, optimizer=None, n_inducing=10).fit(X, y)
    state = dict(vars(model))
    with pytest.raises(ValueError, match="2 targets"):
        model.partial_fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="columns|features"):
        model.partial_fit(X[:, :1], y)
    assert vars(model) == state


# ------------------------------------------------------------------ networks


def test_networks_of_every_kind_and_their_features():
    X, y = table(60)
    module = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    kept = [p.detach().clone() for p in module.parameters()]
    settings = dict(n_inducing=10, max_iter=30, random_state=0)
    model = SVGPRegressor(feature_extractor=module, **settings).fit(X, y)
    assert all(torch.equal(a, b) for a, b in zip(kept, module.parameters(), strict=True))
    Z = model.extract_features(X)
    assert Z.shape == (60, 3)
    # Standardised rows through the trained tensors, by hand.
    rows = (X - X.mean(0)) / X.std(0)
    W, b, V, c = model._weights
    assert_allclose(Z, np.tanh(rows @ W.T + b) @ V.T + c, rtol=1e-6, atol=1e-8)
    assert np.abs(W - kept[0].numpy()).max() > 1e-3
    # Settings changed after the fit are those of the next one.
    mean = model.predict(X)
    assert_array_equal(model.set_params(feature_extractor=None).predict(X), mean)
    smooth = SVGPClassifier(feature_extractor=4, activation="tanh", **settings).fit(X, y > 0)
    assert np.abs(smooth.extract_features(X)).max() < 1
    assert_allclose(SVGPRegressor(**settings).fit(X, y).extract_features(X), X, rtol=1e-10)


# ------------------------------------------------------------------ pieces


@pytest.mark.parametrize("s", [1, 3])
def test_divergence_of_two_beliefs(s):
    """Against torch's distributions; that from the prior is the known one."""

    def belief(seed):
        C = 0.3 * normal(s, 4, 4, seed=seed).tril() + 0.7 * torch.eye(4, dtype=torch.float64)
        S = C @ C.mT
        return WhitenedBelief(normal(4, 3, seed=seed + 1), S, torch.logdet(S))

    ours, other = belief(1), belief(5)
    Normal = torch.distributions.MultivariateNormal
    expected = sum(
        torch.distributions.kl_divergence(
            Normal(ours.mean[:, k], ours.covariance[k % s]),
            Normal(other.mean[:, k], other.covariance[k % s]),
        )
        for k in range(3)
    )
    assert_allclose(ours.divergence_from(NaturalBelief.of(other)), float(expected), rtol=1e-9)
    prior = NaturalBelief.prior(4, 3, s, torch.device("cpu"))
    assert_allclose(ours.divergence_from(prior), ours.divergence(), rtol=1e-9)
    again = NaturalBelief.of(ours).whitened()
    assert_allclose(again.mean, ours.mean, rtol=1e-9)
    assert_allclose(again.log_det, ours.log_det, rtol=1e-9, atol=1e-12)


def test_a_prediction_evaluates_the_kernel_once(monkeypatch):
    X, y = table(60)
    model = SGPRRegressor(KERNEL, optimizer=None, n_inducing=10, random_state=0).fit(X, y)
    model.predict(X)
    counted, cross = [], KernelModule.cross
    monkeypatch.setattr(
        KernelModule, "cross", lambda self, *args: counted.append(1) or cross(self, *args)
    )
    mean, std = model.predict(X, return_std=True)
    assert len(counted) == 1
    assert_array_equal(mean, model.predict(X))
    assert_array_equal(std, model.predict_std(X))


@pytest.mark.parametrize("model", MODELS[:2] + MODELS[3:])
def test_the_bound_is_below_a_likelihood(model):
    """More points raise it; it is never called a likelihood."""
    X, y = table()
    model = clone(model).set_params(kernel=KERNEL, optimizer=None, random_state=0)
    bounds = []
    for m in (5, 20, 60):
        fit(model.set_params(n_inducing=m, max_iter=40), X, y)
        bounds.append(model.lower_bound_)
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1] - 1
    assert not hasattr(model, "log_marginal_likelihood_value_")
    assert not hasattr(model, "log_marginal_likelihood")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_left_out_do_not_overrule_priors(stand_in, monkeypatch):
    """A prior, however flat, switches the closed form of the scales off."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (2100, 1))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(2100)
    flat = {"k2__noise_level": LogNormal(1.0, 1e9), "k1__k1__constant_value": LogNormal(1.0, 1e9)}
    model = SVGPRegressor(n_inducing=8, max_iter=5, batch_size=300, random_state=0)
    scaled, bound = (
        clone(model).set_params(priors=priors).fit(X, y).kernel_.theta for priors in (None, flat)
    )
    stand_in("SparseStepper.rescale", lambda self: None)
    free = clone(model).set_params(priors=None).fit(X, y).kernel_.theta
    np.testing.assert_allclose(bound, free, atol=1e-6)
    assert abs(scaled[-1] - free[-1]) > 0.01
    narrow = {"k2__noise_level": LogNormal(0.5, 1e-3)}
    monkeypatch.undo()
    noise = clone(model).set_params(priors=narrow, max_iter=40).fit(X, y).kernel_.k2.noise_level
    assert abs(np.log(noise / 0.5)) < abs(np.log(np.exp(scaled[-1]) / 0.5)) / 2


def test_scales_are_the_best_for_rows_left_out():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (80, 1))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(80)
    kernel = compile_kernel(ConstantKernel(1.0) * RBF(0.5) + WhiteKernel(1e-4), 1)
    Z = np.linspace(-2, 2, 9)[:, None]
    rows = Rows.of(torch.tensor(X), torch.tensor(y)[:, None])
    sums = Workers(rows).sum
    prior, noise = left_out_scales(kernel, kernel.theta0, torch.tensor(Z), sums, rows)

    def loss(prior, noise):
        """By a fit of each row's own, without that row."""
        K = prior * RBF(0.5)(Z) + 1e-8 * prior * np.eye(9)
        A = np.linalg.solve(np.linalg.cholesky(K), prior * RBF(0.5)(Z, X))
        nll = []
        for i in range(80):
            B, b = np.delete(A, i, 1), np.delete(y, i)
            S = np.linalg.inv(np.eye(9) + B @ B.T / noise)
            a = A[:, i]
            variance = a @ S @ a + prior - a @ a + noise
            nll.append(np.log(variance) + (y[i] - a @ S @ B @ b / noise) ** 2 / variance)
        return np.mean(nll)

    best = loss(prior, 1e-4 * noise)
    assert 0.15 < np.sqrt(1e-4 * noise) < 0.45
    for a, b in ((1.3, 1), (1 / 1.3, 1), (1, 1.3), (1, 1 / 1.3), (1.2, 1.2), (1 / 1.2, 1 / 1.2)):
        # The grid of ratios is an eighth of a decade wide.
        assert best < loss(a * prior, 1e-4 * b * noise) + 4e-3


def test_an_interrupt_before_anything_is_trained_is_an_error(stand_in):
    X, y = table(40)
    model = SGPRRegressor(KERNEL, n_inducing=15, max_iter=3).fit(X, y)
    before = model.predict(X)
    stand_in("train", lambda *args, **kwargs: interrupt(), at="inducing")
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, -y)
    assert_array_equal(model.predict(X), before)
