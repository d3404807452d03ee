"""As many random features or inducing points as a time budget has room for."""

from __future__ import annotations

from collections.abc import Callable

from ._run import FitRun

# Size and rows of the two evaluations that are timed, and the smallest size that a budget leaves.
_TIMED_SIZE, _TIMED_ROWS, _LEAST_SIZE = 512, (1024, 4096), 256


def affordable_size(
    parameter: str, size: int, n: int, evaluate: Callable[[int, int], object], run: FitRun
) -> int:
    """The largest size of a model whose evaluation on n rows takes its share of the time left.

    A smaller size than the given one is warned of. Without a limit nothing is timed.

    Parameters
    ----------
    parameter : str
        The parameter that gives the size.
    size : int
        Its value.
    n : int
        Number of rows.
    evaluate : callable
        ``evaluate(m, rows)`` evaluates a model of size m on so many rows, in a m^2 rows + b m^3
        seconds. It is called for small ones, of which the times of two give a and b.
    run : FitRun
    """
    budget, (few, more) = run.budget, _TIMED_ROWS
    if budget.limit is None or size <= _TIMED_SIZE or n <= 2 * few:
        return size
    more = min(n, more)
    # The first call is slower than others.
    evaluate(_TIMED_SIZE, few)
    of_few = budget.timed(lambda: evaluate(_TIMED_SIZE, few))
    of_more = budget.timed(lambda: evaluate(_TIMED_SIZE, more))
    of_row = max(of_more - of_few, 0.0) / (more - few)
    square = of_row * n / _TIMED_SIZE**2
    cube = max(of_few - of_row * few, 0.0) / _TIMED_SIZE**3
    sizes = range(_LEAST_SIZE, size + 1)
    most = budget.share("evaluation").affordable(lambda m: square * m**2 + cube * m**3, sizes)
    if most < size:
        run.shortened(f"max_seconds leaves time for {parameter}={most} in place of {size}.")
    return most
