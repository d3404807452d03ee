"""How many rows a budget allows, and which member it goes to next, on a clock of the test."""

import pytest
from inside import clock

from skscalablegp.core.training import Budget
from skscalablegp.meta._auto_base import _next
from skscalablegp.meta._leaderboard import in_words
from skscalablegp.meta._members import candidates
from skscalablegp.meta._trials import grown


class Hand:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def sizes_tried(budget, n, per_row, later, first=2000):
    hand, tried = Hand(), []

    def fit(size):
        tried.append(size)
        hand.time += per_row * size
        return size, False, later(size)

    with clock(hand):
        fitted, size, cut, _ = grown(fit, n, Budget(budget), first)
    assert fitted == size and not cut
    return tried


def test_without_a_limit_there_is_one_fit():
    assert sizes_tried(None, 50_000, 1.0, lambda size: 1e9) == [50_000]


def test_costs_that_do_not_grow_are_not_extrapolated():
    # 0.2 and 0.8 seconds of fits; predictions take a second whatever the rows. All 32,000 rows take
    # 3.2 seconds, so that 1.3 * (3.2 + 1) are needed of the 5.5 that are left.
    tried = sizes_tried(6.5, 32_000, 1e-4, lambda size: 1.0)
    assert tried == [2000, 8000, 32_000]
    # Predictions that grow with the rows take four seconds after all rows.
    tried = sizes_tried(6.5, 32_000, 1e-4, lambda size: size / 8000)
    assert tried == [2000, 8000]


def test_a_fit_whose_answers_would_come_too_late_is_left():
    hand = Hand()

    def fit(size):
        hand.time += 1e-4 * size
        return size, False, 0.1 if size == 2000 else 100.0

    with clock(hand):
        fitted, size, _, _ = grown(fit, 8000, Budget(5.0), 2000)
    assert fitted == size == 2000


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ("neighbors", ["iterative", "trained_neighbors", "deep", "randomized_trees"]),
        ("trees", ["randomized_trees", "iterative", "trained_neighbors", "deep"]),
        ("linear", ["iterative", "trained_neighbors", "randomized_trees", "deep"]),
    ],
)
def test_what_refines_the_best_member_comes_first(best, expected):
    waiting, order = candidates("auto", 9000), []
    while waiting:
        order.append(waiting.pop(_next(waiting, best)).name)
    assert order == ["linear", "trees", "exact", "neighbors", *expected]


def test_what_predicts_is_said_in_words():
    assert in_words(["exact"], [1.0]) == "exact predicts alone, chosen"
    said = "60% neighbors, 30% trees and 10% linear predict, weighted"
    assert in_words(["neighbors", "trees", "linear"], [0.6, 0.3, 0.1]) == said
