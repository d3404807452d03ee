"""Subsets of rows from which training starts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor


def random_rows(n: int, size: int, generator: Generator) -> Int[Tensor, " size"]:
    """`size` distinct rows out of n, in increasing order."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    return order[:size].sort().values


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
