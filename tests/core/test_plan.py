"""Plans: what they choose, what has no effect, and how a run reports them."""

from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.base import RegressorMixin

from skscalablegp.core import Choice, FitRun, GPModel, Machine, MemoryNeed, Plan, ignore, resolve
from skscalablegp.solvers import End


class Model(RegressorMixin, GPModel):
    """The smallest estimator whose fit follows a plan."""

    def __init__(
        self,
        max_iter="auto",
        learning_rate="auto",
        batch_size=7,
        memory_budget="auto",
        device="cpu",
        random_state=0,
        callbacks=None,
        max_seconds=None,
        verbose=0,
    ):
        self._set(locals())

    def _build_posterior(self):
        raise NotImplementedError

    def fit(self, *plans):
        with FitRun(self) as run:
            for plan in plans:
                run.follow(plan)
            run.ended(End.CONVERGED, n_iter=3)
        return self


@dataclass(frozen=True, kw_only=True)
class Steps(Plan):
    max_iter: Choice
    batch_size: Choice


@dataclass(frozen=True, kw_only=True)
class Both(Plan):
    steps: Steps
    learning_rate: Choice
    rows: int = 5


def plan(params, n):
    steps = Steps(
        max_iter=resolve(params.max_iter, n // 2, f"{n} rows"),
        batch_size=resolve(params.batch_size, n, "all rows"),
        ignored=ignore("random_state", because="nothing is drawn"),
    )
    rate = resolve(params.learning_rate, 0.1, "few rows")
    return Both(steps=steps, learning_rate=rate, ignored=ignore("device", "verbose", because="no"))


def test_plans_collect_their_choices_and_those_of_their_parts():
    made = plan(Model(learning_rate=3.0), 10)
    assert made.choices == {
        "max_iter": (5, "10 rows"),
        "batch_size": (7, "as given"),
        "learning_rate": (3.0, "as given"),
    }
    assert made.without_effect == {
        "random_state": "nothing is drawn",
        "device": "no",
        "verbose": "no",
    }
    with pytest.raises(FrozenInstanceError):
        made.rows = 6


def test_arrays_are_given_values():
    points = np.zeros(3)
    assert resolve(points, 5, "few").value is points


def test_reports_have_the_choices_that_were_auto():
    report = Model().fit(plan(Model(), 10)).fit_report_
    assert report.choices == {"max_iter": (5, "10 rows"), "learning_rate": (0.1, "few rows")}
    assert report.ignored["random_state"] == "nothing is drawn"
    assert "max_iter = 5 (10 rows)" in str(report)


def test_a_plan_that_changed_is_followed_again():
    first = plan(Model(), 10)
    second = replace(first, learning_rate=Choice(0.2, "the first one diverged"))
    report = Model().fit(first, second).fit_report_
    assert report.choices["learning_rate"] == (0.2, "the first one diverged")
    assert report.choices["max_iter"].value == 5


def test_plans_that_do_not_fit_into_memory_are_refused():
    need = MemoryNeed(2e6, "A large matrix", "use fewer rows")
    large = replace(plan(Model(), 10), needs=(need,))
    Model(memory_budget=3e6).fit(large)
    with pytest.raises(MemoryError, match=r"A large matrix needs .* budget is .*use fewer rows"):
        Model(memory_budget=1e6).fit(large)


def test_memory_is_checked_once_before_the_work(monkeypatch):
    seen = []
    monkeypatch.setattr(FitRun, "check_memory", lambda self, *need: seen.append(need))
    need = MemoryNeed(2e6, "A large matrix", "use fewer rows")
    large = replace(plan(Model(), 10), needs=(need,))
    Model().fit(large, replace(large, rows=7))
    assert seen == [need]


def test_runs_know_their_machine():
    with FitRun(Model(memory_budget=1e6, max_seconds=9.0)) as run:
        machine = run.machine
        run.ended(End.CONVERGED, n_iter=0)
    assert machine == Machine(torch.device("cpu"), 1e6, machine.cores, 9.0, machine.compiler)
    assert machine.cores >= 1
