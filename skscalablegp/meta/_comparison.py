"""Members that are fitted and evaluated one by one, within a share of the time of a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from .._end import End
from ..core import FitRun
from ..core.training import Budget
from ._leaderboard import Leaderboard, LeaderboardRow
from ._trials import Late

T = TypeVar("T")

# Errors of a member that do not end the fit of the others.
FAILURES = (ArithmeticError, ValueError, TypeError, RuntimeError, MemoryError, TimeoutError)


class Comparison:
    """What has become of each member, and the time of those that follow.

    Parameters
    ----------
    run : FitRun
    part : str
        Name of the share of the time, as in `Budget.share`.

    Attributes
    ----------
    phase : Budget
        The time of all members.
    notes : dict of (float, str)
        Seconds of each member, and what has happened to it.
    cut : list of str
        Members of which time has cut some work.
    """

    def __init__(self, run: FitRun, part: str):
        self.run, self.phase = run, run.budget.share(part)
        self.notes: dict[str, tuple[float, str]] = {}
        self.cut: list[str] = []
        self._succeeded, self._failure = 0, None

    def begins(self, name: str) -> bool:
        """Whether a member begins: the first ones until one succeeds, others if time is left."""
        if self._succeeded and (self.run.stopped or self.phase.nearly_spent):
            if self.run.budget.left == 0:
                self.run.budget.end(End.MAX_SECONDS)
            self.notes[name] = 0.0, "not begun: no time was left for it"
            self.cut.append(name)
            return False
        return True

    def share(self, part: float, others: Sequence[float]) -> Budget:
        """The time of a member: twice its part of what is left, since the first ones need less.

        `others` are the parts of the members that follow.
        """
        return self.phase.share(min(1.0, 2 * part / (2 * part + sum(others))))

    def tried(self, name: str, work: Callable[[], T], took: float = 0.0) -> T | None:
        """The result of a member's fit and evaluation; None if it fails or is cut.

        The first member that does not fail is never cut. `took` are seconds of work on it so far.
        """
        budget = self.run.budget
        begun, found = budget.seconds - took, None
        try:
            with budget.may_end(keep=lambda _: self._succeeded > 0, inner=True) as end:
                found = work()
        except FAILURES as error:
            self._failure = self._failure or error
            self.notes[name] = budget.seconds - begun, f"dropped: {first_line(error)}"
            self.cut += [name] if isinstance(error, Late) else []
            return None
        if end.reason is not None:
            self.notes[name] = budget.seconds - begun, "dropped: it was cut before its predictions"
            self.cut.append(name)
            return None
        self._succeeded += 1
        self.notes[name] = budget.seconds - begun, ""
        return found

    def adds(self, name: str, begun: float, note: str) -> None:
        """Add the seconds since `begun` to those of a member, and replace its note."""
        self.notes[name] = self.notes[name][0] + self.run.budget.seconds - begun, note

    def check(self) -> None:
        """Raise the first error if no member has succeeded."""
        if not self._succeeded:
            raise self._failure or TimeoutError("no member was fitted")

    def leaderboard(
        self, scores: dict[str, tuple[float, float]], weights: dict[str, float]
    ) -> Leaderboard:
        """All members with their NLL and CRPS, where they have been evaluated."""
        nothing = np.nan, np.nan
        return Leaderboard(
            [
                LeaderboardRow(name, *scores.get(name, nothing), weights.get(name, 0.0), *note)
                for name, note in self.notes.items()
            ]
        )


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error) or type(error).__name__).splitlines()[0]
