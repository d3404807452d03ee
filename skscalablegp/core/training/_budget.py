"""The time of a fit: its limit, the shares of its parts, and how it ends."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..._clock import now
from ..._end import End

T = TypeVar("T")

# The part that gives the result has at least this share of the limit, even if no time is left.
_LEAST_FOR_RESULT = 0.1
# A further part of equal rank does not begin with less than this share of the limit.
_LEAST_FOR_ANOTHER = 0.02

# Shares of the time that is left. Parts that follow one another take theirs in turn.
SHARES = {
    # Reserved during training: for the weights of sampled models; for the solves behind
    # predictions, which continue those of training if it used all rows.
    "weights": 0.2,
    "final solve": 0.3,
    "first solve": 0.5,
    # Storing the kernel matrix of that solve, as told by few rows: 20,000 take three times as long.
    "matrix of a solve": 0.15,
    # Of the time for the solve behind predictions, if neighbours correct what it has left.
    "solve of the mean": 0.75,
    # The comparison of starts before training on a grid or of a network.
    "start": 0.25,
    # One evaluation of the likelihood, of which training needs several and the model one.
    "evaluation": 0.15,
    # The kernel of a network's features on a grid, which is trained after the network.
    "kernel of features": 0.15,
    # A regressor, before low-rank variances that need products with the table's matrix.
    "regressor of variances": 0.6,
    # A larger preconditioner for the solve of the targets.
    "preconditioner": 0.5,
    # A mean function: the process alone; its cross-fitting; and the process on its errors.
    "process alone": 0.4,
    "cross-fitting": 0.5,
    "process on errors": 0.9,
    # Whether columns with heavy tails become normal scores, before the first process.
    "normal scores": 0.15,
    # Members without the held-out rows, of a stack and of automatic estimators; the noise model of
    # classes needs no time.
    "stacked members": 0.7,
    "members": 0.6,
    "members for classes": 0.65,
    # Of the time of one member: its fit, and at least for its predictions of held-out rows; for
    # leave-one-out predictions with means of folds; and for each later fold at least.
    "fit": 0.7,
    "held-out rows": 0.3,
    "leave one out": 0.5,
    "fold": 0.1,
    # All rounds of a regressor whose noise is learned, and the noise model.
    "rounds": 0.85,
    "noise": 0.5,
    # Noise models of an automatic estimator, if fits to all rows leave them so much.
    "most noise": 0.9,
    # A fit to all rows, after which a little time is left to end in.
    "all rows": 0.999,
}


class StopTraining(Exception):
    """Raised inside an evaluation to end the optimiser; `end` says why."""

    def __init__(self, end: End):
        super().__init__(end)
        self.end = end


@dataclass
class Ending:
    """Why a part of a fit has ended early; `reason` is None if it has not."""

    reason: End | None = None


class Budget:
    """The time that a fit may take, and what has ended it.

    Parameters
    ----------
    limit : float or None
        Seconds from now on; None sets no limit.
    outer : Budget, optional
        The budget of which this one is a share. An interrupt or a callback ends both.

    Attributes
    ----------
    ended : End or None
        Why no further part may begin: MAX_SECONDS, CALLBACK or INTERRUPTED.
    reserved : float
        Seconds that training leaves to the work after it.
    """

    def __init__(self, limit: float | None = None, outer: Budget | None = None):
        self.limit = limit
        self.ended: End | None = None
        self._outer, self._begun, self.reserved = outer, now(), 0.0

    # ------------------------------------------------------------------ time

    @property
    def seconds(self) -> float:
        """Seconds since the budget began."""
        return now() - self._begun

    @property
    def left(self) -> float | None:
        """Seconds that are left without the reserved ones, at least 0; None without a limit."""
        return None if self.limit is None else max(0.0, self.limit - self.reserved - self.seconds)

    def spent(self) -> float:
        """The share of the time, without the reserved one, that has passed; 0 without a limit."""
        left = self.left
        return 0.0 if left is None else self.seconds / max(self.seconds + left, 1e-9)

    def allows(self, seconds: float) -> bool:
        """Whether more than this time is left."""
        left = self.left
        return left is None or left > seconds

    @property
    def nearly_spent(self) -> bool:
        """Whether too little time is left to begin another part of equal rank."""
        return not self.allows(_LEAST_FOR_ANOTHER * (self.limit or 0.0))

    def check(self) -> None:
        """Raise StopTraining if no time is left."""
        if self.left == 0:
            raise StopTraining(End.MAX_SECONDS)

    def share(self, part: str | float) -> Budget:
        """A budget of a part of what is left: a number, or a name in `SHARES`."""
        share, left = SHARES[part] if isinstance(part, str) else part, self.left
        return Budget(None if left is None else share * left, self)

    def at_least(self, part: str) -> Budget:
        """What is left of this share, but at least a part of it, of the time of the whole fit."""
        fit = self
        while fit._outer is not None:
            fit = fit._outer
        if self.limit is None:
            return fit.share(1.0)
        wanted = max(self.left or 0.0, SHARES[part] * self.limit)
        return fit.share(min(wanted / max(fit.left or 0.0, 1e-9), 1.0))

    def reserve(self, part: str | float) -> None:
        """Keep time for the work after training: a share of the limit by name, or seconds.

        At most half of the limit. What was reserved before is no longer.
        """
        if self.limit is not None:
            seconds = SHARES[part] * self.limit if isinstance(part, str) else part
            self.reserved = min(seconds, 0.5 * self.limit)

    def for_result(self, part: str | float = 1.0) -> float | None:
        """Seconds for the part that gives the result, or a share of them by name.

        They are what is left, but at least a tenth of all.
        """
        left, share = self.left, SHARES[part] if isinstance(part, str) else part
        if self.limit is None or left is None:
            return None
        return share * max(left, _LEAST_FOR_RESULT * self.limit)

    def reserve_for(self, work: Callable[[], Any], times: float) -> None:
        """Reserve the time of `times` calls of `work`, which is called once if there is a limit."""
        if self.limit is not None:
            self.reserve(times * self.timed(work))

    def timed(self, work: Callable[[], Any]) -> float:
        """Do some work; returns its seconds."""
        begun = self.seconds
        work()
        return max(self.seconds - begun, 1e-9)

    def affordable(self, cost: Callable[[int], float], sizes: Sequence[int]) -> int:
        """The largest of increasing sizes whose cost in seconds is at most what is left.

        Without a limit the largest one; the smallest one if there is no time for any.
        """
        left = self.left
        if left is None:
            return sizes[-1]
        return sizes[max(0, bisect(sizes, left, key=cost) - 1)]

    # ------------------------------------------------------------------ the end

    def end(self, reason: End) -> End:
        """Record why a part has ended, if no other may follow; returns the reason."""
        if reason.ends_fit:
            self.ended = self.ended or reason
        if reason in (End.INTERRUPTED, End.CALLBACK) and self._outer is not None:
            self._outer.end(reason)
        return reason

    def completed(self, part: Callable[[], T]) -> T:
        """The result of a part without which there is no model.

        The first interrupt starts the part again, so that there is a model. A second one, or one
        after training was interrupted, ends the fit.
        """
        try:
            return part()
        except KeyboardInterrupt:
            if self.ended is End.INTERRUPTED:
                raise
            self.end(End.INTERRUPTED)
            return part()

    @contextmanager
    def may_end(
        self,
        keep: bool | Callable[[End], Any] = True,
        inner: bool = False,
    ) -> Iterator[Ending]:
        """A part of a fit that time, a callback or an interrupt may end; the fit then continues.

        Parameters
        ----------
        keep : bool or callable, default=True
            Whether there is a result to continue with; if not, the exception is raised again. A
            callable receives the reason, and decides at the end.
        inner : bool, default=False
            Whether the part fits another estimator, whose time is that of this budget: its
            TimeoutError also ends the part.

        Yields
        ------
        ending : Ending
            With the reason, if the part has ended early.
        """
        ending = Ending()
        try:
            yield ending
        except (StopTraining, KeyboardInterrupt, TimeoutError) as error:
            reason = self._reason(error, inner)
            if reason is None or not (keep(reason) if callable(keep) else keep):
                raise
            ending.reason = self.end(reason)

    def _reason(self, error: BaseException, inner: bool) -> End | None:
        """Why the part has ended; None if the error has nothing to do with this budget."""
        if isinstance(error, KeyboardInterrupt):
            return End.INTERRUPTED
        if inner:
            return self.ended or (None if self.limit is None else End.MAX_SECONDS)
        return error.end if isinstance(error, StopTraining) else None
