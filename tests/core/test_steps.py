"""The driver of random batches: budgets, patience, divergence and the best parameters."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from skscalablegp.core.data import Moments, RowSource, Scaling, column_limits
from skscalablegp.core.training import Budget, Monitor, Stepper, train_steps


class Walk(Stepper):
    """A position that moves by one a step; its score follows a list."""

    def __init__(self, scores, interrupt_at=None):
        self.scores, self.interrupt_at = scores, interrupt_at
        self.at = 0

    def step(self):
        if self.at == self.interrupt_at:
            raise KeyboardInterrupt
        self.at += 1

    def score(self):
        return self.scores[self.at]

    def theta(self):
        return np.array([float(self.at)])

    def snapshot(self):
        return self.at

    def restore(self, snapshot):
        self.at = snapshot


def run(walk, monitor=None, **settings):
    settings = {"max_steps": len(walk.scores) - 1, "check_every": 1} | settings
    return train_steps(walk, monitor=monitor or Monitor(), **settings)


def test_the_best_parameters_stay():
    walk, monitor = Walk([5.0, 3.0, 1.0, 2.0, 4.0]), Monitor()
    result = run(walk, monitor, epochs_per_step=0.5)
    assert (walk.at, result.score, result.n_steps, result.stop_reason) == (2, 1.0, 4, "max_iter")
    assert monitor.history()["objective"] == [-score for score in walk.scores]
    assert monitor.history()["epochs"] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_the_last_parameters_stay_where_scores_are_not_comparable():
    walk = Walk([5.0, 3.0, 1.0, 2.0, 4.0])
    run(walk, keep_best=False)
    assert walk.at == 4


def test_patience_counts_scores_without_a_gain():
    walk = Walk([5.0, 4.0, 3.99, 3.98, 1.0, 0.0])
    result = run(walk, n_iter_no_change=2, tol=0.1)
    assert (walk.at, result.stop_reason) == (3, "converged")


@pytest.mark.parametrize(("flops", "threads"), [(1e8, 1), (1e10, 3)])
def test_small_steps_run_in_one_thread(set_workers, flops, threads):
    class Watching(Walk):
        def step(self):
            super().step()
            seen.append(torch.get_num_threads())

    set_workers(3)
    seen, walk = [], Watching([3.0, 2.0, float("nan")])
    walk.flops = flops
    assert run(walk).stop_reason == "diverged"
    assert seen == [threads] * 2 and torch.get_num_threads() == 3


def test_divergence_goes_back_to_the_best():
    walk = Walk([5.0, 4.0, float("nan"), 0.0])
    result = run(walk)
    assert (walk.at, result.score, result.stop_reason) == (1, 4.0, "diverged")


@pytest.mark.parametrize("keep_best", [True, False])
@pytest.mark.parametrize(
    "scores, reason",
    [([1.0, 6.0, 3.0], "diverged"), ([1.0, 1.5, 1.9], "max_iter"), ([1.0, 0.9, 3.0], "max_iter")],
)
def test_steps_that_only_lead_away_have_diverged(scores, reason, keep_best):
    assert run(Walk(scores), keep_best=keep_best).stop_reason == reason


@pytest.mark.parametrize("last", [6.0, np.nan])
def test_after_divergence_the_best_stay_even_where_scores_are_not_comparable(last):
    walk = Walk([1.0, 6.0, 3.0, last])
    result = run(walk, keep_best=False)
    assert (walk.at, result.score, result.stop_reason) == (0, 1.0, "diverged")


def test_parameters_that_have_a_score_are_not_scored_again():
    walk, scored = Walk([5.0, 4.0, 4.5, 3.0]), []
    walk.score = lambda: scored.append(walk.at) or walk.scores[walk.at]
    stop = Monitor([lambda step: step.iteration == 3 and setattr(stop.budget, "limit", 0.0)])
    result = run(walk, stop)
    assert (walk.at, result.stop_reason, scored) == (1, "max_seconds", [0, 1, 2])


class Slowing(Walk):
    """Steps of a length that `slow_down` halves, twice at most; the score is the distance to 1."""

    def __init__(self):
        super().__init__([])
        self.at, self.length = 0.0, 3.0

    def step(self):
        self.at += self.length if self.at < 1 else -self.length

    def score(self):
        return abs(self.at - 1.0)

    def slow_down(self):
        self.length /= 2
        return self.length >= 1


def test_worse_scores_send_steps_back_and_make_them_smaller():
    walk, monitor = Slowing(), Monitor()
    result = run(walk, monitor, max_steps=3, retreat=0.5)
    # From 0 to 3 and back; half of that to 1.5; back to 0, which is not so much worse.
    assert monitor.history()["objective"] == [-1.0, -2.0, -0.5, -1.0]
    assert (walk.at, walk.length, result.score, result.stop_reason) == (1.5, 1.5, 0.5, "max_iter")


def test_after_steps_back_the_parameters_they_led_to_are_the_last_ones():
    walk = Walk([2.0, 1.0, 1.2, 3.0])
    walk.slow_down = lambda: True
    result = run(walk, max_steps=3, keep_best=False, retreat=0.5)
    assert (walk.at, result.score, result.stop_reason) == (1, 1.0, "max_iter")


def test_steps_that_cannot_be_smaller_have_diverged():
    walk = Slowing()
    walk.length = 16.0
    walk.slow_down = lambda: False
    result = run(walk, max_steps=5, retreat=0.5)
    assert (walk.at, result.stop_reason, result.n_steps) == (0.0, "diverged", 1)


def test_nothing_useful_is_said_not_hidden():
    result = run(Walk([float("inf"), 1.0]))
    assert result.stop_reason == "diverged" and result.score == np.inf


def test_an_interrupt_scores_what_it_finds():
    walk = Walk([5.0, 4.0, 3.0, 2.0, 1.0], interrupt_at=3)
    result = run(walk, check_every=2)
    assert (walk.at, result.score, result.stop_reason) == (3, 2.0, "interrupted")


def test_an_interrupt_before_any_score_is_the_users():
    class Early(Walk):
        def score(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Early([1.0, 1.0]))


def test_budgets_and_callbacks_stop_between_steps():
    assert run(Walk([3.0, 2.0, 1.0]), Monitor(budget=Budget(0.0))).stop_reason == "max_seconds"
    stop = Monitor([lambda step: step.iteration == 2])
    walk = Walk([3.0, 2.0, 1.0])
    assert (run(walk, stop).stop_reason, walk.at) == ("callback", 1)


@pytest.mark.parametrize("offset, scale", [(0.0, 1.0), (1e8, 1.0), (-3.0, 1e-12), (1e3, 1e9)])
def test_column_moments_are_those_of_all_rows(offset, scale):
    rng = np.random.default_rng(0)
    X = offset + scale * rng.standard_normal((100, 3))
    X[:, 1] = 0.1
    mean, std = Moments.of(X, block=7).scales()
    assert_allclose(mean, X.mean(0), rtol=1e-12)
    assert_allclose(std[[0, 2]], X.std(0)[[0, 2]], rtol=1e-4)
    assert std[1] == 1.0


@pytest.mark.parametrize("value", [-0.010977102461386692, 0.1, 7.3, 1e9 / 3])
@pytest.mark.parametrize("block", [300, 4096])
def test_constant_columns_among_many_have_no_scale_of_rounding(value, block):
    """Sums of equal numbers, row by row, have errors of far more than their last digit."""
    X = np.random.default_rng(0).normal(size=(3000, 18))
    X[:, 14] = value
    for limits in (None, column_limits(X)):
        mean, std = Moments.of(X, limits, block).scales()
        assert std[14] == 1 and mean[14] == value
    # A rare entry is no rounding.
    X[1234, 14] = 2 * value
    assert Moments.of(X, None, block).scales()[1][14] == pytest.approx(
        abs(value) / 3000**0.5, rel=1e-3
    )


def make_source(n=10, dtype=torch.float64):
    rng = np.random.default_rng(1)
    X, Y = rng.uniform(5, 9, (n, 2)), rng.standard_normal((n, 3))
    return RowSource.of(X, Y, Scaling(*Moments.of(X).scales(), *Moments.of(Y).scales()), dtype)


def test_rows_are_standardised_wherever_they_are(tmp_path):
    source = make_source()
    rows = source.take(slice(None))
    X, Y = rows.X, rows.Y
    assert_allclose(X.mean(0), 0, atol=1e-12)
    assert_allclose(Y.std(0, correction=0), 1)
    assert source.weight.flags.writeable  # torch warns of arrays that it must not change
    stored = np.memmap(tmp_path / "X", dtype=float, mode="w+", shape=source.X.shape)
    stored[:] = source.X
    index = torch.tensor([3, 1, 4])
    for other in (source.resident(), RowSource.of(stored, source.Y, source.scaling, torch.float64)):
        torch.testing.assert_close(other.take(index).X, X[index])
        torch.testing.assert_close(torch.cat([some.X for some in other.blocks(4)]), X)
    some = source.resident().subset(index.numpy())
    torch.testing.assert_close(some.take(slice(None)).Y, Y[index])


def test_batches_are_epochs_without_replacement():
    source = make_source(10)
    batches = source.batches(3, torch.Generator().manual_seed(0))
    epoch, weights = zip(*[next(batches) for _ in range(3)], strict=True)
    assert [len(b) for b in epoch] == [3, 3, 3]
    assert len(set(torch.cat(epoch).tolist())) == 9
    assert all((part == 10 / 3).all() for part in weights)
    index, weights = next(source.batches(64, torch.Generator().manual_seed(0)))
    assert len(index) == 10 and (weights == 1).all()
