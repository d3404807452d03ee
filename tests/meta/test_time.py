"""Time budgets of fits inside a fit, on a clock that only training steps move."""

from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
from inside import clock as read_clock
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    LOVEPredictor,
    RFFRegressor,
    StackedGPRegressor,
)
from skscalablegp.core import fitted_process


class Clock:
    """A clock that is a callback, which takes a second."""

    now = 100.0

    def __call__(self, step):
        self.now += 1.0


@pytest.fixture
def clock():
    moved = Clock()
    with read_clock(lambda: moved.now):
        yield moved


def slow(**params):
    return IterativeGPRegressor(optimizer="adam", max_iter=10_000, random_state=0, **params)


def curve(n=100):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, 1))
    return X, np.sin(6 * X[:, 0]) + (0.03 + X[:, 0] ** 2) * rng.standard_normal(n)


def fitted(model, clock):
    """The model fitted to `curve`, and the steps of each of its fits."""
    begun = clock.now
    with pytest.warns(ConvergenceWarning) as warned:
        model.set_params(callbacks=clock, random_state=0).fit(*curve())
    assert len(warned) == 1 and str(warned[0].message).count("raise max_seconds") == 1
    assert model.fit_report_.status == "max_seconds"
    # A fit of no time makes one step.
    assert clock.now - begun <= 1.1 * model.max_seconds
    iteration = np.array([*model.history_["iteration"], 1])
    return model, iteration[:-1][np.diff(iteration) < 1]


def test_a_slow_member_leaves_the_others_their_time(clock):
    named = [("slow", slow()), ("line", Ridge()), ("late", slow())]
    model, steps = fitted(StackedGPRegressor(named, max_seconds=60), clock)
    assert len(model.estimators_) == 3 and model.n_held_out_ == 100
    assert len(np.unique(model.weights_)) > 1
    # Of 60 seconds 0.7 are for three members. The first one may take half, and 0.7 of it for its
    # fit.
    assert steps.tolist() == [15, 19]


def test_variances_by_products_have_time(clock):
    _, steps = fitted(LOVEPredictor(slow(), max_seconds=60), clock)
    assert 20 < steps[0] <= 0.6 * 60


def test_the_noise_has_time(clock):
    model, _ = fitted(HeteroscedasticRegressor(slow(), max_seconds=6), clock)
    assert model.n_residuals_ == 100 and model.noise_gain_ > 0.1


def test_a_fit_that_is_cut_is_evaluated_on_its_own_fold(clock):
    """Other folds and a fit to all rows would be cut differently: they are not begun."""
    model, steps = fitted(HeteroscedasticRegressor(slow(), residuals=4, max_seconds=100), clock)
    assert steps.tolist() == [60]
    assert model.n_residuals_ == 25 and model.estimator_.n_samples_seen_ == 75


@pytest.mark.exact_input
def test_a_round_that_is_cut_leaves_the_one_before(clock):
    """The step after the two folds of the first round takes all the time."""
    steps = []

    def late(step):
        steps.append(step)
        clock.now += 1.0 if len(steps) <= 8 else 1000.0

    X, y = curve()
    quick = IterativeGPRegressor(optimizer="adam", max_iter=4, random_state=0)
    model = HeteroscedasticRegressor(quick, residuals=2, n_refits=1, max_seconds=500)
    with pytest.warns(ConvergenceWarning, match="max_seconds=500"):
        model.set_params(callbacks=late, random_state=0).fit(X, y)
    assert len(steps) == 9 and model.n_residuals_ == 100
    seen = np.isin(X, model.estimator_.X_train_)[:, 0]
    assert seen.sum() == 50
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        alone = quick.fit(X[seen], y[seen])
    np.testing.assert_allclose(model.predict(X), alone.predict(X))


def test_what_will_not_end_is_not_begun(clock):
    """A fit takes 30 seconds, so that one to all rows needs 0.3 * 125 seconds and a margin."""

    class Line(Ridge):
        sizes = []

        def fit(self, X, y):
            clock.now += 30.0
            self.sizes.append(len(X))
            return super().fit(X, y)

    expected = {60: [80], 90: [80, 100], 200: 3 * [80] + [100], 300: 5 * [80] + [100]}
    for seconds, sizes in expected.items():
        Line.sizes.clear()
        model = HeteroscedasticRegressor(Line(), max_seconds=seconds, random_state=0)
        with catch_warnings():
            simplefilter("ignore", ConvergenceWarning)
            model.fit(*curve())
        assert Line.sizes == sizes
        assert model.n_residuals_ == 20 * sizes.count(80)


def test_closed_forms_leave_out_as_many_rows_as_time_allows(clock):
    """Here ten rows take a second, and the second member has none to lose."""

    class Costly(RFFRegressor):
        def _left_out(self, X, y, noise_variance, rows):
            clock.now += 0.1 * len(rows)
            return super()._left_out(X, y, noise_variance, rows)

    X, y = curve(1500)
    costly = Costly(optimizer=None, n_components=20)
    named = [("costly", costly), ("zero", DummyRegressor(strategy="constant", constant=0.0))]
    model = StackedGPRegressor(named, max_seconds=100, random_state=0).fit(X, y)
    # The first member may take two thirds of 0.7 of the time. 200 rows tell the cost; then half of
    # what there was before them is left for all rows.
    assert model.n_held_out_ == 233
    held = fitted_process(model).left_out(X, y, None, None)
    rows, mean = held.rows, held.mean
    alone = costly.set_params(random_state=model.estimators_[0].random_state).fit(X, y)
    left = fitted_process(alone).left_out(X, y, None, rows).mean
    assert model.weights_[0] > 0.9
    np.testing.assert_allclose(mean, model.weights_[0] * left, rtol=1e-6)


def test_a_member_with_a_budget_of_its_own(clock):
    """Its own budget ends it with its own words, and does not end the stack."""
    named = [("slow", slow(max_seconds=3)), ("line", Ridge())]
    model, steps = fitted(StackedGPRegressor(named, max_seconds=60), clock)
    assert steps.tolist() == [3] and model.n_held_out_ == 100


def test_a_fold_that_is_cut_differently_does_not_count(clock):
    """The second of two folds is cut, so that its errors are not those of the first one."""
    steps = []

    def late(step):
        steps.append(step)
        clock.now += 1.0 if len(steps) <= 4 else 1000.0

    quick = IterativeGPRegressor(optimizer="adam", max_iter=4, random_state=0)
    model = HeteroscedasticRegressor(quick, residuals=2, max_seconds=500, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_seconds=500"):
        model.set_params(callbacks=late).fit(*curve())
    assert model.n_residuals_ == 50 and model.estimator_.n_samples_seen_ == 50
