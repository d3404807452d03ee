"""A uniform sample of the rows of a stream."""

from __future__ import annotations

import numpy as np

from ...core.data import have_merged

# Number of rows that are stored for the exact passes of partial_fit.
KEPT_ROWS = 8192


def sampled(
    kept: tuple[np.ndarray, ...] | None,
    rows: tuple[np.ndarray, ...],
    seen: int,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, ...]:
    """A uniform sample of all rows so far (reservoir sampling, Vitter 1985, algorithm R).

    Parameters
    ----------
    kept : tuple of ndarray or None
        The sample of the `seen` earlier rows.
    rows : tuple of ndarray
        Further rows: inputs, targets and known noise.
    seen : int
    random_state : RandomState
    """
    n = len(rows[0])
    if kept is None:
        kept = tuple(part[:0] for part in rows)
    room = max(0, KEPT_ROWS - len(kept[0])) if seen <= len(kept[0]) else 0
    kept = tuple(np.concatenate([a, b[:room]]) for a, b in zip(kept, rows, strict=True))
    later = np.arange(min(room, n), n)
    places = random_state.randint(0, seen + later + 1) if len(later) else later
    stays = places < len(kept[0])
    for i, place in zip(later[stays], places[stays], strict=True):
        for part, new in zip(kept, rows, strict=True):
            part[place] = new[i]
    return kept


def repeated(counts: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Numbers of merged rows as often as they count: a uniform sample of the rows before merging.

    All of them, if they are whole numbers and not too many. Many rows that all count once are drawn
    without their copies.

    Parameters
    ----------
    counts : ndarray of shape (n,)
    random_state : RandomState
    """
    if counts.sum() <= KEPT_ROWS and (counts == counts.round()).all():
        return np.repeat(np.arange(len(counts)), counts.astype(int))
    if not have_merged(counts):
        return np.unique(random_state.randint(len(counts), size=KEPT_ROWS))
    size = int(min(KEPT_ROWS, max(1, round(counts.sum()))))
    return np.sort(random_state.choice(len(counts), size, p=counts / counts.sum()))
