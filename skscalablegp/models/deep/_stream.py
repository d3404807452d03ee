"""What a stream leaves behind: a uniform sample of its rows."""

from __future__ import annotations

import numpy as np

# Rows that are kept for the exact passes of partial_fit.
KEPT_ROWS = 8192


def sampled(
    kept: tuple[np.ndarray, np.ndarray] | None,
    X: np.ndarray,
    Y: np.ndarray,
    seen: int,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """A uniform sample of all rows so far (reservoir sampling, Vitter 1985, algorithm R).

    Parameters
    ----------
    kept : tuple of ndarray or None
        The sample of the `seen` rows before these.
    X, Y : ndarray of shape (n, d), (n, t)
        Further rows.
    seen : int
    random_state : RandomState
    """
    if kept is None:
        kept = X[:0], Y[:0]
    kept_X, kept_Y = np.array(kept[0]), np.array(kept[1])
    room = max(0, KEPT_ROWS - len(kept_X)) if seen <= len(kept_X) else 0
    kept_X = np.concatenate([kept_X, X[:room]])
    kept_Y = np.concatenate([kept_Y, Y[:room]])
    later = np.arange(min(room, len(X)), len(X))
    places = random_state.randint(0, seen + later + 1) if len(later) else later
    for i, place in zip(later[places < len(kept_X)], places[places < len(kept_X)], strict=True):
        kept_X[place], kept_Y[place] = X[i], Y[i]
    return kept_X, kept_Y
