"""Rows to initialise on."""

import pytest
import torch
from oracles import generator, normal

from skscalablegp.core.data import centroid_subsets, random_rows


@pytest.mark.parametrize(("n", "size"), [(50, 7), (50, 50), (10, 20), (1, 1)])
def test_random_rows_are_distinct_ordered_and_repeatable(n, size):
    idx = random_rows(n, size, generator(3))
    assert len(idx) == min(n, size) == len(idx.unique())
    assert torch.equal(idx, idx.sort().values) and 0 <= int(idx[0]) and int(idx[-1]) < n
    assert torch.equal(idx, random_rows(n, size, generator(3)))


def test_every_row_is_as_likely_as_the_others():
    g, counts = generator(0), torch.zeros(20)
    for _ in range(1000):
        counts[random_rows(20, 5, g)] += 1
    z = (counts - 250) / (1000 * 0.25 * 0.75) ** 0.5
    assert float(z.abs().max()) < 4


def test_neighbourhoods_are_the_nearest_rows():
    X = normal(60, 3)
    subsets = centroid_subsets(X, 4, 9, generator(1))
    centroids = random_rows(60, 4, generator(1))
    assert len(subsets) == 4
    for c, idx in zip(centroids, subsets, strict=True):
        nearest = (X - X[c]).norm(dim=1).argsort()[:9]
        assert torch.equal(idx, nearest.sort().values)
        assert c in idx
    again = centroid_subsets(X, 4, 9, generator(1))
    assert all(torch.equal(a, b) for a, b in zip(subsets, again, strict=True))


def test_neighbourhoods_larger_than_the_table_are_the_table():
    X = normal(6, 2)
    for idx in centroid_subsets(X, 10, 100, generator()):
        assert torch.equal(idx, torch.arange(6))


def test_duplicated_rows_count_as_rows():
    X = torch.zeros(8, 2)
    for idx in centroid_subsets(X, 3, 5, generator()):
        assert len(idx.unique()) == 5
