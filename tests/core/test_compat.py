"""The thin layer over scikit-learn's callbacks."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import qmc
from sklearn.base import BaseEstimator, RegressorMixin, clone

from skscalablegp._compat import HAS_CALLBACKS, CallbackMixin, FitEvents, fit_context, sobol
from skscalablegp._validation import check_noise

needs_callbacks = pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")


class Stepwise(CallbackMixin, RegressorMixin, BaseEstimator):
    """Counts to `n_steps`, one event each."""

    _parameter_constraints: dict = {"n_steps": [int]}

    def __init__(self, n_steps=3):
        self.n_steps = n_steps

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y):
        events = FitEvents(self, X, y)
        check_noise(self.n_steps, len(X))
        for i in range(self.n_steps):
            self.steps_ = i + 1
            if events.step(lambda i=i: {"level_": i, "steps_": i + 1}):
                break
        self.level_ = self.steps_ - 1
        events.end()
        return self

    def predict(self, X):
        return np.full(len(X), float(self.level_))


class Recorder:
    """Notes each event and the level the model has reached; may stop or raise at one of them."""

    def __init__(self, stop_at=None, fail_at=None):
        self.events, self.levels = [], []
        self.stop_at, self.fail_at = stop_at, fail_at

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X=None):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.events.append(f"end {context.task_name}")
        level = fitted_estimator.predict(X)[0]
        self.levels.append(level)
        if context.task_name == "iteration" and level == self.fail_at:
            raise KeyboardInterrupt
        return level == self.stop_at


X, y = np.zeros((2, 1)), np.zeros(2)


def test_no_callback():
    model = Stepwise().fit(X, y)
    assert vars(model) == {"n_steps": 3, "steps_": 3, "level_": 2}


@needs_callbacks
def test_events_in_order():
    recorder = Recorder()
    model = Stepwise(2).set_callbacks(recorder).fit(X, y)
    steps = ["begin iteration", "end iteration"] * 2
    assert recorder.events == ["setup", "begin fit", *steps, "end fit", "teardown"]
    assert recorder.levels == [0.0, 1.0, 1.0]
    assert not any("context" in name for name in vars(model))


@needs_callbacks
def test_a_callback_stops_the_fit():
    model = Stepwise(9).set_callbacks(Recorder(stop_at=3)).fit(X, y)
    assert model.steps_ == 4


@needs_callbacks
def test_an_interrupt_is_torn_down():
    recorder = Recorder(fail_at=1)
    model = Stepwise().set_callbacks(recorder)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert recorder.events[-1] == "teardown"
    assert not any("context" in name for name in vars(model))


@needs_callbacks
def test_clones_keep_their_callbacks():
    recorder = Recorder()
    clone(Stepwise().set_callbacks(recorder)).fit(X, y)
    assert recorder.events[0] == "setup" and recorder.events[-1] == "teardown"


def test_sobol_points_whatever_the_seed_is_called(monkeypatch):
    new = sobol(3, 16, 0)
    assert new.shape == (16, 3) and ((new >= 0) & (new < 1)).all()
    assert_array_equal(new, qmc.Sobol(3, seed=np.random.default_rng(0)).random(16))
    newest = qmc.Sobol

    class Older:
        def __init__(self, d, *, scramble=True, bits=None, seed=None, optimization=None):
            self.points = newest(d, scramble=scramble, seed=seed)

        def random(self, n):
            return self.points.random(n)

    monkeypatch.setattr(qmc, "Sobol", Older)
    assert_array_equal(sobol(3, 16, 0), new)
