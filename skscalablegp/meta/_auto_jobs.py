"""Members of automatic estimators in joblib's processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..core import FitRun
from ._comparison import FAILURES
from ._division import DividedTable
from ._jobs import Done, PartFits, has_jobs, parts_by_jobs
from ._members import Candidate

# A member before its fit, and its seed.
Start = tuple[Candidate, int]


def evaluated_by_jobs(
    auto: Any, starts: Sequence[Start], kernel: Any, rows: DividedTable, run: FitRun
) -> dict[str, Done]:
    """Members that jobs fit and evaluate at the same time, by name; none if there are no jobs.

    `kernel` is the trained one that they share.
    """
    if not has_jobs(run, len(starts)):
        return {}
    ready = []
    for candidate, seed in starts:
        # Random numbers are drawn here, in the order of fits in one process. Settings that
        # contradict each other are an error of the member when its turn comes.
        with suppress(*FAILURES):
            fresh = auto._opened_member(candidate.make(kernel), seed, run)
            auto._find_scores(fresh, rows, run)
            some = rows.drawn(candidate.rows, run.random_state)
            ready.append((replace(candidate, make=partial(_made, fresh), some=some), seed))
    parts = PartFits(auto, _evaluated, rows, ready)
    done = parts_by_jobs(parts, run, [candidate.make(None) for candidate, _ in ready])
    return (
        {} if done is None else {each.name: one for (each, _), one in zip(ready, done, strict=True)}
    )


def refitted_by_jobs(
    auto: Any, members: Sequence[Any], rows: DividedTable, run: FitRun
) -> dict[str, Done]:
    """Fits of these members to all rows by jobs, by name; none if there are no jobs."""
    parts = PartFits(auto, _refitted, rows, members)
    done = parts_by_jobs(parts, run, [member.fresh for member in members])
    return {} if done is None else dict(zip((m.name for m in members), done, strict=True))


def _made(fresh: Any, kernel: Any) -> Any:
    return fresh


def _evaluated(auto: Any, run: FitRun, rows: DividedTable, start: Start) -> Any:
    candidate, seed = start
    return auto._evaluated(candidate, None, seed, rows, run.budget, run)


def _refitted(auto: Any, run: FitRun, rows: DividedTable, member: Any) -> Any:
    return auto._on_all_rows(member, rows, run.budget, run)
