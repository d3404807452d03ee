"""Random orders of rows, and subsets from which training starts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

# Orders of more rows are computed where they are asked for, from a few keys: those of twenty
# million rows would take 160 MB.
_MOST_LISTED = 2**22
# Rounds of the permutation, and the constants of its hash (those of SplitMix64).
_ROUNDS, _FIRST, _SECOND = 6, -0x61C8864680B583EB, -0x40A7B892E31B1A47


class RandomOrder:
    """A random order of n rows, which needs little memory for any n.

    Up to four million rows it is a list. A longer one is a Feistel network (Luby and Rackoff, 1988)
    on the numbers below the next power of four: each of its rounds adds a hash of one half of the
    bits to the other half, so that different numbers stay different. A number of no row is mapped
    again (Black and Rogaway, 2002).

    Parameters
    ----------
    n : int
    state : Tensor
        All row numbers in the order, or the keys of the rounds.
    """

    def __init__(self, n: int, state: Int[Tensor, " k"]):
        self.n, self.state = n, state

    @classmethod
    def drawn(cls, n: int, generator: Generator) -> RandomOrder:
        """A new order."""
        on: dict = {"generator": generator, "device": generator.device}
        if n <= _MOST_LISTED:
            return cls(n, torch.randperm(n, **on))
        return cls(n, torch.randint(2**62, (_ROUNDS,), **on))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, places: slice) -> Int[Tensor, " k"]:
        """The rows at some places."""
        if self.n <= _MOST_LISTED:
            return self.state[places]
        numbers = torch.arange(*places.indices(self.n), device=self.state.device)
        found, outside = numbers, torch.ones_like(numbers, dtype=torch.bool)
        while outside.any():
            found = torch.where(outside, self._mapped(found), found)
            outside = found >= self.n
        return found

    def _mapped(self, numbers: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
        half = ((self.n - 1).bit_length() + 1) // 2
        mask = 2**half - 1
        left, right = numbers >> half, numbers & mask
        for key in self.state:
            mixed = (right + key) * _FIRST
            mixed = (mixed ^ (mixed >> 29)) * _SECOND
            left, right = right, left ^ ((mixed >> 32) & mask)
        return (left << half) | right


def random_rows(n: int, size: int, generator: Generator) -> Int[Tensor, " size"]:
    """`size` distinct rows out of n, in increasing order."""
    return RandomOrder.drawn(n, generator)[:size].sort().values


def centroid_subsets(
    X: Float[Tensor, "n d"], n_centroids: int, size: int, generator: Generator
) -> list[Int[Tensor, " size"]]:
    """The `size` rows nearest to each of some random rows (Lin et al. 2024, appendix B).

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Rows.
    n_centroids : int
        Number of random rows; the paper takes 10.
    size : int
        Number of rows in each subset; the paper takes 10,000.
    """
    centroids = random_rows(len(X), n_centroids, generator)
    # One centroid at a time needs memory for n distances instead of n x n_centroids x d numbers.
    return [
        torch.topk((X - X[c]).square().sum(1), min(size, len(X)), largest=False)
        .indices.sort()
        .values
        for c in centroids.to(X.device)
    ]
