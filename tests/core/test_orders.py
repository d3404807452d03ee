"""Random orders of rows, of which long ones are computed where they are asked for."""

import numpy as np
import pytest
import torch

from skscalablegp.core.data import RandomOrder, RowSource, Scaling, _subsets, random_rows
from skscalablegp.core.data._rows import shuffled


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def few_listed(monkeypatch):
    monkeypatch.setattr(_subsets, "_MOST_LISTED", 10)


def test_short_orders_are_permutations_of_torch():
    expected = torch.randperm(100, generator=seeded())
    assert torch.equal(RandomOrder.drawn(100, seeded())[:], expected)
    assert torch.equal(random_rows(100, 7, seeded()), expected[:7].sort().values)


@pytest.mark.parametrize("n", [11, 16, 17, 255, 1000, 4097, 65_536])
def test_long_orders_have_each_row_once(few_listed, n):
    order = RandomOrder.drawn(n, seeded())
    assert len(order) == n and len(order.state) < 10
    found = order[:]
    assert torch.equal(found.sort().values, torch.arange(n))
    # A part is the same as within the whole.
    assert torch.equal(order[n // 3 : n // 2], found[n // 3 : n // 2])
    assert not torch.equal(found, RandomOrder.drawn(n, seeded(1))[:])


def test_long_orders_are_random(few_listed):
    """Rows at places, neighbours and their differences are as likely as in lists (chi-square)."""
    n, seeds = 64, range(3000)
    orders = torch.stack([RandomOrder.drawn(n, seeded(seed))[:] for seed in seeds]).numpy()
    # The expected counts are those of independent uniform draws.
    for place in (0, 1, n - 1):
        counts = np.bincount(orders[:, place], minlength=n)
        assert ((counts - len(seeds) / n) ** 2).sum() / (len(seeds) / n) < n + 5 * (2 * n) ** 0.5
    gaps = np.bincount((orders[:, 1:] - orders[:, :-1]).ravel() % n, minlength=n)[1:]
    expected = gaps.sum() / (n - 1)
    assert ((gaps - expected) ** 2).sum() / expected < n + 5 * (2 * n) ** 0.5


def test_twenty_million_rows_take_no_list():
    rows = random_rows(20_000_000, 100_000, seeded())
    assert len(rows.unique()) == 100_000 and 0 <= rows.min() and rows.max() < 20_000_000
    # A fifth of the rows is in each fifth of the table.
    counts = np.histogram(rows.numpy(), bins=5, range=(0, 20_000_000))[0]
    assert abs(counts - 20_000).max() < 5 * (100_000 * 0.16) ** 0.5


@pytest.mark.parametrize("listed", [10, 10**6])
def test_batches_cover_an_epoch(monkeypatch, listed):
    monkeypatch.setattr(_subsets, "_MOST_LISTED", listed)
    batches = shuffled(100, 10, seeded())
    epochs = [torch.cat([next(batches) for _ in range(10)]) for _ in range(2)]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, torch.arange(100))
    assert not torch.equal(*epochs)
    # From the record of a checkpoint.
    first = shuffled(100, 30, seeded())
    next(first)
    again = shuffled(100, 30, seeded(1))
    vars(again).update({name: vars(first)[name] for name in first.moving})
    assert torch.equal(next(first), next(again))


def test_resident_rows_are_those_of_the_table():
    X, Y = np.random.default_rng(0).normal(size=(20_000, 2)), np.arange(20_000.0)[:, None]
    source = RowSource(X, Y, Scaling(np.ones(2), np.full(2, 3.0), np.zeros(1), np.full(1, 2.0)))
    for a, b in zip(source.resident().rows(slice(None)), source.rows(slice(None)), strict=True):
        assert torch.equal(a, b)
