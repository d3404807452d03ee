"""Linear solves of predictions that did not reach their tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...linalg.solvers import SolveSummary

_REPORTED: ContextVar[list[SolveSummary] | None] = ContextVar("unfinished solves", default=None)


@contextmanager
def unfinished_solves() -> Iterator[list[SolveSummary]]:
    """A list of the solves in this block that posteriors report; empty for an inner block.

    Solves are reported to the outermost block, so that one prediction warns once.
    """
    if _REPORTED.get() is not None:
        yield []
        return
    reported: list[SolveSummary] = []
    token = _REPORTED.set(reported)
    try:
        yield reported
    finally:
        _REPORTED.reset(token)


def report_unfinished(solve: SolveSummary) -> None:
    """Report a solve that did not reach its tolerance; without effect outside of a prediction."""
    reported = _REPORTED.get()
    if reported is not None:
        reported.append(solve)
