"""Random batches of rows, of which some may stand for several equal ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ._subsets import RandomOrder


class _Shuffled(Iterator[tuple[Tensor, Tensor]]):
    """Batches of `size` of n rows in a new order in each epoch; each stands for n / size rows."""

    moving = ("_order", "_at", "_generator")

    def __init__(self, n: int, size: int, generator: Generator):
        self._n, self._size, self._generator = n, size, generator
        # The state of an order; before the first batch there is none.
        self._order, self._at = torch.empty(0, dtype=torch.int64), n
        self._weights = torch.full((size,), n / size, dtype=torch.float64)

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._at + self._size > self._n:
            self._order, self._at = RandomOrder.drawn(self._n, self._generator).state, 0
        self._at += self._size
        index = RandomOrder(self._n, self._order)[self._at - self._size : self._at]
        return index, self._weights


def counted_batches(
    counts: Float[Tensor, " n"], size: int, generator: Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """An endless sequence of batches of a table whose equal rows were merged.

    Sums over merged rows that are all drawn equally often would vary much from batch to batch if
    few rows have most of the weight. Here the probability of a row is proportional to its count,
    and a row for which that would be above one is in every batch. Rows that all count once are in a
    random order, each at most once in an epoch.

    Parameters
    ----------
    counts : Tensor of shape (n,)
        How many rows each merged row stands for.
    size : int
        Number of merged rows of a batch, at most n.
    generator : Generator

    Returns
    -------
    batches : iterator of (index, weights)
        Numbers of the merged rows, and for how many rows each stands: its count divided by its
        probability. The weights of every batch sum to the number of all rows.
    """
    if bool((counts == 1).all()):
        return _Shuffled(len(counts), min(size, len(counts)), generator)
    return _Counted(counts, min(size, len(counts)), generator)


class _Counted(Iterator[tuple[Tensor, Tensor]]):
    """Systematic samples of rows in random orders.

    The rows that are not in every batch lie behind one another, each as long as its count. A batch
    has the rows at points of equal distance, and those of an epoch shift these points. Madow
    (1949), On the theory of systematic sampling, II.
    """

    moving = ("_order", "_ends", "_shifts", "_at", "_generator")

    def __init__(self, counts: Tensor, size: int, generator: Generator):
        self._counts, self._generator = counts.double(), generator
        every, drawn = _of_every_batch(self._counts, size)
        self._every, self._drawn, self._n_drawn = every, drawn, size - len(every)
        self._step = float(self._counts[drawn].sum()) / max(self._n_drawn, 1)
        # Before the first batch there are neither an order nor shifts of its points.
        self._order, self._at = torch.empty(0, dtype=torch.int64), 0
        self._ends = self._shifts = self._counts[:0]

    def __next__(self) -> tuple[Tensor, Tensor]:
        if not self._n_drawn:
            return self._every, self._counts[self._every]
        if self._at == len(self._shifts):
            self._begin_epoch()
        points = torch.arange(self._n_drawn).to(self._counts) + self._shifts[self._at]
        self._at += 1
        places = torch.searchsorted(self._ends, points * self._step, right=True)
        rows = self._order[places.clamp_max(len(self._order) - 1)]
        weights = self._counts[self._every], torch.full_like(points, self._step)
        return torch.cat([self._every, rows]), torch.cat(weights)

    def _begin_epoch(self) -> None:
        n, device = len(self._drawn), self._counts.device
        self._order = self._drawn[RandomOrder.drawn(n, self._generator)[:].to(device)]
        self._ends, self._at = self._counts[self._order].cumsum(0), 0
        n_batches = -(-n // self._n_drawn)
        turns = RandomOrder.drawn(n_batches, self._generator)[:].double()
        within = torch.rand(1, generator=self._generator, device=turns.device)
        self._shifts = ((turns + within) / n_batches).to(self._counts)


def _of_every_batch(counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rows that are in every batch of `size` rows, and the others."""
    ordered, order = counts.sort(descending=True, stable=True)
    if size >= len(counts):
        return order.sort().values, order[:0]
    # The distance of points if the k largest counts are in every batch.
    left = ordered.flip(0).cumsum(0).flip(0)[:size]
    distances = left / torch.arange(size, 0, -1).to(left)
    k = int((ordered[:size] <= distances).nonzero()[0])
    return order[:k].sort().values, order[k:].sort().values
