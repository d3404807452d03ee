"""How solves, trainings and fits end: what each end means, and what to do about it."""

from __future__ import annotations

from enum import StrEnum

_RAN_OUT = (
    "The {} ran out before the tolerance was reached: raise it, loosen the tolerance "
    "(solver_tol), raise the preconditioner's rank, or bound the noise variance from below."
)


class End(StrEnum):
    """How a solve, a training or a fit has ended.

    Members are strings: ``fit_report_.status`` is the value of one.

    Attributes
    ----------
    fails : bool
        Whether the work ended before its goal, which is worth a warning.
    said : str
        How training ended and what to do, in words; the report fills in the names in braces.
    remedy : str
        What to change after a linear solve that failed in this way: a sentence.
    """

    fails: bool
    said: str
    remedy: str

    def __new__(cls, value: str, fails: bool = False, said: str = "", remedy: str = "") -> End:
        end = str.__new__(cls, value)
        end._value_, end.fails, end.said, end.remedy = value, fails, said, remedy
        return end

    CONVERGED = "converged", False, "training converged after {steps}"
    # A number of steps that was planned has been made.
    COMPLETED = "completed", False, "the planned {steps} are done"
    MAX_ITER = (
        "max_iter",
        True,
        "{limit}={value!r} ended {where} before it had converged{slope}, {kept}: raise {limit}",
        _RAN_OUT.format("number of iterations"),
    )
    # A fit says "max_iter" in its place.
    MAX_EPOCHS = (
        "max_epochs",
        True,
        "",
        _RAN_OUT.format("budget of solver epochs (solver_max_epochs)"),
    )
    MAX_SECONDS = (
        "max_seconds",
        True,
        "the time budget max_seconds={seconds:g} ended the fit after {steps}, {kept}: raise "
        "max_seconds",
        _RAN_OUT.format("time (max_seconds)"),
    )
    CALLBACK = "callback", False, "a callback ended training after {steps}, {kept}"
    INTERRUPTED = (
        "interrupted",
        True,
        "the fit was interrupted after {steps}, {kept}: fit again to complete it",
    )
    STAGNATED = (
        "stagnated",
        True,
        "training stagnated after {steps} although the gradient is not small, {kept}: no step "
        "along the gradient raises the objective. Use dtype='float64', {more_noise}, and look for "
        "columns or a target of extreme size",
        "The residual stopped falling because the working precision is exhausted: use "
        "dtype='float64', loosen the tolerance, raise the preconditioner's rank, or bound the "
        "noise variance from below.",
    )
    # Simple models predict held-out rows clearly better; the check of the signal says which.
    NO_SIGNAL = "no_signal", True
    DIVERGED = "diverged", True, "training diverged after {steps}, {kept}{smaller}"
    # The matrix of a solve is not positive definite in the working precision.
    BREAKDOWN = (
        "breakdown",
        True,
        "training stopped after {steps} because a linear solve broke down, {kept}: {more_noise}, "
        "or use dtype='float64'",
        "The matrix or the preconditioner is not numerically positive definite: increase the noise "
        "(alpha or the WhiteKernel's lower bound), use dtype='float64', and look for duplicate "
        "rows or non-finite inputs.",
    )

    @property
    def complete(self) -> bool:
        """Whether the work has reached its goal."""
        return self in (End.CONVERGED, End.COMPLETED)

    @property
    def ends_fit(self) -> bool:
        """Whether no further part of a fit begins after a part with this end."""
        return self in (End.MAX_SECONDS, End.CALLBACK, End.INTERRUPTED)

    @property
    def of_fit(self) -> End:
        """The end of a fit whose training or last solve ended in this way."""
        return {End.MAX_EPOCHS: End.MAX_ITER, End.BREAKDOWN: End.DIVERGED}.get(self, self)
