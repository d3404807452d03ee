"""Random orders of rows, of which long ones are computed where they are asked for."""

import numpy as np
import pytest
import torch
from torch import Tensor

from skscalablegp.core.data import (
    RandomOrder,
    RowSource,
    Scaling,
    counted_batches,
    random_rows,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def few_listed(thresholds):
    thresholds(_MOST_LISTED=10)


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
def test_batches_cover_an_epoch(thresholds, listed):
    thresholds(_MOST_LISTED=listed)
    batches = counted_batches(torch.ones(100), 10, seeded())
    epochs = [torch.cat([next(batches)[0] for _ in range(10)]) for _ in range(2)]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, torch.arange(100))
    assert not torch.equal(*epochs)
    # From the record of a checkpoint.
    first, again = (counted_batches(torch.ones(100), 30, seeded(seed)) for seed in (0, 1))
    next(first)
    vars(again).update({name: vars(first)[name] for name in first.moving})
    assert torch.equal(next(first)[0], next(again)[0])


COUNTS = torch.tensor([1.0, 2, 3, 40, 5, 6, 7, 0.5, 100, 1, 4, 4])


@pytest.mark.parametrize("size", [1, 3, 7, 11, 12, 20])
def test_weights_of_batches_add_up_to_the_counts(size):
    batches, mean = counted_batches(COUNTS, size, seeded()), torch.zeros(len(COUNTS)).double()
    for _ in range(5000):
        rows, weights = next(batches)
        assert len(rows.unique()) == len(rows) == min(size, len(COUNTS))
        torch.testing.assert_close(weights.sum(), COUNTS.double().sum())
        mean[rows] += weights / 5000
    # A row of probability q is in a share of the batches whose deviation is below that of
    # independent ones, sqrt(q / 5000).
    least = weights.min()
    error = 5 * (COUNTS.double() * least / 5000).sqrt()
    assert ((mean - COUNTS).abs() <= error).all()


def test_rows_with_most_of_the_weight_are_in_every_batch():
    batches = counted_batches(COUNTS, 7, seeded())
    for _ in range(20):
        found = dict(zip(*map(Tensor.tolist, next(batches)), strict=True))
        assert found[8] == 100 and found[3] == 40


def test_equal_counts_give_the_batches_of_an_epoch():
    batches = counted_batches(torch.full((100,), 3.0), 10, seeded())
    epochs = [[next(batches) for _ in range(10)] for _ in range(2)]
    for epoch in epochs:
        assert torch.equal(torch.cat([rows for rows, _ in epoch]).sort().values, torch.arange(100))
        assert all((weights == 30).all() for _, weights in epoch)
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    # From the record of a checkpoint.
    first, again = (counted_batches(COUNTS, 5, seeded(seed)) for seed in (0, 1))
    next(first)
    vars(again).update({name: vars(first)[name] for name in first.moving})
    for one, other in zip(next(first), next(again), strict=True):
        assert torch.equal(one, other)


def test_resident_rows_are_those_of_the_table():
    X, Y = np.random.default_rng(0).normal(size=(20_000, 2)), np.arange(20_000.0)[:, None]
    source = RowSource.of(X, Y, Scaling(np.ones(2), np.full(2, 3.0), np.zeros(1), np.full(1, 2.0)))
    found = (vars(s.take(slice(None))).values() for s in (source.resident(), source))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
