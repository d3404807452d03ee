"""The contract of fits: the promises of every estimator, with the methods of large tables.

Each row is an estimator whose settings reach its real path on a small table.
"""

import pickle
import warnings
from copy import copy

import numpy as np
import pytest
from contracts.cases import Contract, few_are_quick, needs, on_all_rows, once_a_base
from contracts.estimator_contract import Row, assert_sane, table
from inside import HAS_CALLBACKS, clock
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from watching import Watch

from skscalablegp.core import FitRun
from skscalablegp.solvers import End

# Rows of the table; larger than the contract's, so that subsets and batches are proper ones.
N = 60

HISTORY = {
    "stage",
    "iteration",
    "theta",
    "objective",
    "objective_name",
    "residual",
    "probe_residual",
    "epochs",
    "seconds",
}
REPORT = {
    "status",
    "stop_reason",
    "choices",
    "ignored",
    "n_iter",
    "epochs",
    "seconds",
    "residuals",
    "n_unconverged",
    "jitter",
    "summary",
    "failures",
}


class Injected(Exception):
    """A fault of ours."""


def data(row: Row, seed: int = 0):
    X, y, X_new = table(seed, n=N)
    return X, row.target(y), X_new


def fit(row: Row, model=None, seed: int = 0, **params):
    """The fitted model, new rows, and the ConvergenceWarnings of the fit."""
    X, y, X_new = data(row, seed)
    model = row.new() if model is None else model
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.set_params(**params).fit(X, y)
    ours = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
    return model, X_new, ours


def answers(row: Row, model, X):
    return [model.predict_proba(X)] if row.classifier else [*model.predict(X, return_std=True)]


_SHARED = {}


def shared(row: Row):
    """As `fit` without more ado, but one model for all tests that only read it."""
    if row.name not in _SHARED:
        _SHARED[row.name] = fit(row)
    return _SHARED[row.name]


def copied(row: Row):
    """A pickled copy of the shared model, and new rows."""
    model, X_new, _ = shared(row)
    return pickle.loads(pickle.dumps(model)), X_new


def stages(row: Row):
    """The name of every training stage, in order."""
    model, _, _ = shared(row)
    return list(dict.fromkeys(model.history_["stage"]))


def at_stage(stage, act):
    """A callback that acts at the second step of a stage, or its only one."""
    seen = []

    def callback(step):
        if step.stage == stage:
            seen.append(step)
            if len(seen) == 1:
                return act()
        return None

    return callback


def raising(error):
    def act():
        raise error

    return act


class Jump:
    """A clock that stands still, and jumps far ahead after some readings."""

    def __init__(self, last: int | None):
        self.last, self.readings = last, 0

    def __call__(self) -> float:
        self.readings += 1
        return 0.0 if self.last is None or self.readings <= self.last else 1e9 + self.readings


@pytest.mark.usefixtures("remembered_starts")
class FitContract(Contract):
    """The suite over the rows that reach an estimator's real path."""

    # ------------------------------------------------------------ what a fit leaves

    @on_all_rows
    def test_report(self, row):
        model, _, warned = shared(row)
        report = model.fit_report_
        assert set(report) >= REPORT
        assert report.status in list(End) and report.stop_reason
        assert report.n_iter == model.n_iter_
        assert report.seconds["total"] > 0 and len(report.seconds) > 1
        assert report.status in ("converged", "completed") or len(warned) == 1
        left_open = {
            name
            for name, value in model.get_params(deep=False).items()
            if isinstance(value, str) and value == "auto"
        }
        # What a machine has is not a choice.
        left_open -= {"memory_budget", "device"}
        assert left_open <= set(report.choices) | set(report.ignored)
        assert not set(report.choices) & set(report.ignored)
        assert all(choice.reason for choice in report.choices.values())
        assert all(report.ignored.values())
        assert set(report.ignored) <= set(model.get_params(deep=False))
        assert report.status in str(report)
        assert str(pickle.loads(pickle.dumps(report))) == str(report)

    @on_all_rows
    def test_history(self, row):
        model, _, _ = shared(row)
        history = model.history_
        assert set(history) == HISTORY
        lengths = {len(column) for column in history.values()}
        assert len(lengths) == 1 and lengths != {0}
        assert all(history["objective_name"])
        assert (np.diff(history["seconds"]) >= 0).all()
        for stage in set(history["stage"]):
            own = [k for k, name in enumerate(history["stage"]) if name == stage]
            values = np.array([history["objective"][k] for k in own], dtype=float)
            known = values[np.isfinite(values)]
            # What is maximised does not fall over a stage.
            assert len(known) < 3 or known.max() >= known[0]

    @on_all_rows
    def test_attributes(self, row):
        model, _, _ = shared(row)
        own = vars(model)
        # A stack has as many kernels as processes, which keep them.
        members = own.get("estimators_", [model])
        process = next((each for each in members if hasattr(each, "kernel_")), members[0])
        check_is_fitted(process, "kernel_")
        values = "log_marginal_likelihood_value_", "lower_bound_"
        assert any(hasattr(process, name) for name in values)
        assert model.n_samples_seen_ == N
        assert model.device_ and model.dtype_ in ("float32", "float64")
        assert not [name for name in own if name in ("solver_info_", "coef_cholesky_")]

    # ------------------------------------------------------------ what may end it

    def test_a_callback_ends_it(self, row):
        model, X_new, warned = fit(row, callbacks=lambda step: True)
        assert model.fit_report_.status == "callback" and not warned
        assert_sane(row, model, X_new)

    def test_time_ends_it(self, row):
        model, X_new, warned = fit(row, max_seconds=1e-9)
        assert model.fit_report_.status == "max_seconds"
        assert len(warned) == 1 and "max_seconds" in warned[0]
        assert_sane(row, model, X_new)

    @once_a_base
    def test_time_ends_it_between_any_two_steps(self, row):
        """The clock stands still until one of its readings, from which on the time is spent."""
        still = Jump(None)
        with clock(still):
            fit(row, max_seconds=1e6)
        for last in np.unique(np.linspace(1, still.readings - 1, 4).astype(int)):
            with clock(Jump(last)):
                model, X_new, _ = fit(row, max_seconds=1e6)
            late = np.asarray(model.history_["seconds"]) > 1e6
            # A step that has begun is recorded, and one that replaces a rejected one. Each fit
            # inside the fit makes a step, without which it has no model.
            stages = np.cumsum(np.asarray(model.history_["iteration"]) == 1)
            most = np.bincount(stages[late], minlength=1).max()
            assert most <= 2, f"{most} steps after reading {last}"
            assert_sane(row, model, X_new)

    def test_an_interrupt_keeps_the_best(self, row):
        for stage in stages(row):
            callback = at_stage(stage, raising(KeyboardInterrupt()))
            model, X_new, warned = fit(row, callbacks=callback)
            assert model.fit_report_.status == "interrupted", stage
            assert len(warned) == 1 and "interrupted" in warned[0]
            assert_sane(row, model, X_new)

    def test_an_interrupt_of_the_last_part_keeps_the_best(self, row, monkeypatch):
        finish, pressed = FitRun.finish, []

        def interrupted(run, name, part):
            def once():
                if not pressed:
                    pressed.append(name)
                    raise KeyboardInterrupt
                return part()

            return finish(run, name, once)

        monkeypatch.setattr(FitRun, "finish", interrupted)
        model, X_new, warned = fit(row)
        assert pressed
        assert model.fit_report_.status == "interrupted"
        assert len(warned) == 1 and "interrupted" in warned[0]
        assert_sane(row, model, X_new)

    @needs("limit")
    def test_a_limit_is_named(self, row):
        model, X_new, warned = fit(row, **row.limit)
        assert model.fit_report_.status == "max_iter"
        (name,) = row.limit
        assert len(warned) == 1 and f"raise {name}" in warned[0]
        assert type(model).__name__ in warned[0]
        assert_sane(row, model, X_new)

    # ------------------------------------------------------------ what a failure leaves

    @on_all_rows
    def test_a_failed_refit_leaves_the_old_model(self, row):
        model, X_new = copied(row)
        before, state = answers(row, model, X_new), dict(vars(model))
        for stage in stages(row):
            model.callbacks = at_stage(stage, raising(Injected(stage)))
            with pytest.raises(Injected):
                fit(row, model, seed=1)
            model.callbacks = None
            assert vars(model) == state | {"callbacks": None}
            for old, new in zip(before, answers(row, model, X_new), strict=True):
                assert_array_equal(old, new)
            again = pickle.loads(pickle.dumps(model))
            for old, new in zip(before, answers(row, again, X_new), strict=True):
                assert_array_equal(old, new)

    def test_a_budget_of_one_byte_is_refused(self, row):
        model, X_new = copied(row)
        before = answers(row, model, X_new)
        with pytest.raises(MemoryError, match="memory budget is 1 bytes: "):
            fit(row, model, seed=1, memory_budget=1)
        model.set_params(memory_budget="auto")
        for old, new in zip(before, answers(row, model, X_new), strict=True):
            assert_array_equal(old, new)

    def test_a_failed_first_fit_leaves_nothing(self, row):
        model = row.new(callbacks=lambda step: raising(Injected())())
        with pytest.raises(Injected):
            fit(row, model)
        assert set(vars(model)) == set(model.get_params(deep=False))

    # ------------------------------------------------------------ who is told

    @few_are_quick
    @pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
    def test_scikit_learn_callbacks_see_a_working_model(self, row):
        plain, X_new, _ = shared(row)
        sane = Sane(row, X_new)
        watch = Watch(sane)
        model = row.new().set_callbacks(watch)
        fit(row, model)
        assert watch.events[0] == "setup" and watch.events[-1] == "teardown"
        ended = watch.events.count("end iteration")
        assert ended == len(plain.history_["stage"])
        assert sane.count == ended
        # What it was given stays what it was.
        for seen, said in sane.kept:
            again = pickle.loads(pickle.dumps(seen))
            for old, new in zip(said, answers(row, again, X_new), strict=True):
                assert_array_equal(old, new)
        # Looking on changes nothing.
        for old, new in zip(answers(row, plain, X_new), answers(row, model, X_new), strict=True):
            assert_array_equal(old, new)
        assert not [name for name in vars(model) if "context" in name]

    @few_are_quick
    def test_progress_is_shown(self, row, capsys):
        fit(row, verbose=1)
        assert "fit (" in capsys.readouterr().err
        fit(row, verbose=0)
        assert not capsys.readouterr().err


class Sane:
    """Asks models for predictions, and keeps two of the models."""

    def __init__(self, row, X_new):
        self.row, self.X_new = row, X_new
        self.count, self.kept = 0, []

    def __call__(self, model):
        assert_sane(self.row, model, self.X_new)
        self.count += 1
        if self.count in (1, 3):
            seen = copy(model).set_callbacks()
            self.kept.append((seen, answers(self.row, seen, self.X_new)))
