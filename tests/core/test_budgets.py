"""Time budgets: the part that is reserved for the computations after training."""

import warnings

import numpy as np
import pytest
import torch
from inside import clock as read_clock
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from test_run import Model
from test_steps import Walk

from skscalablegp import (
    IterativeGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    SGPRRegressor,
    SSRFFRegressor,
)
from skscalablegp.core import FactorBudget, fitted_process, to_torch
from skscalablegp.core.data import Table
from skscalablegp.core.training import Budget, Monitor, StopTraining, train_steps
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.blocks import watched
from skscalablegp.models.fourier import collapsed_marginal_likelihood
from skscalablegp.solvers import End


class Clock:
    """A clock that only the tests move."""

    now = 100.0


@pytest.fixture
def clock():
    moved = Clock()
    with read_clock(lambda: moved.now):
        yield moved


def test_training_leaves_what_is_reserved(clock):
    watch = Budget(10.0)
    watch.reserve(4.0)
    clock.now += 3.0
    assert watch.left == 3.0 and watch.spent() == 0.5
    watch.check()
    clock.now += 3.0
    with pytest.raises(StopTraining, match="max_seconds"):
        watch.check()
    watch.reserve(0.0)
    assert watch.left == 4.0
    watch.reserve(100.0)
    assert watch.reserved == 5.0
    free = Budget()
    free.reserve(4.0)
    assert free.reserved == 0 and free.left is None and free.spent() == 0


def test_a_share_is_a_part_of_what_is_left(clock):
    whole = Budget(10.0)
    clock.now += 2.0
    part = whole.share(0.25)
    assert part.limit == 2.0 and whole.share("cross-fitting").limit == 0.5 * 8
    clock.now += 2.0
    assert part.left == 0.0 and not part.allows(0.0) and whole.left == 6.0
    assert Budget().share(0.5).left is None and Budget().allows(1e9)


def test_the_largest_size_that_can_be_afforded(clock):
    budget = Budget(10.0)
    sizes = range(2, 9)
    assert [budget.affordable(lambda k, c=c: c * k, sizes) for c in (1.0, 2.0, 4.0, 9.0)] == [
        *(8, 5, 2, 2)
    ]
    assert Budget().affordable(lambda k: 1e9 * k, sizes) == 8


def test_an_interrupt_ends_a_share_and_the_whole_but_spent_time_only_the_share():
    for reason, both in ((End.MAX_SECONDS, None), (End.INTERRUPTED, End.INTERRUPTED)):
        whole = Budget(10.0)
        part = whole.share(0.5)
        assert part.end(reason) == reason
        assert (part.ended, whole.ended) == (reason, both)
    done = End.CONVERGED
    assert part.end(done) is done and Budget().end(done) is done
    fresh = Budget()
    fresh.end(done)
    assert fresh.ended is None


@pytest.mark.parametrize(
    "error, reason",
    [
        (KeyboardInterrupt(), "interrupted"),
        (StopTraining(End.CALLBACK), "callback"),
        (StopTraining(End.DIVERGED), "diverged"),
    ],
)
def test_all_that_ends_a_part_ends_it_the_same_way(error, reason):
    budget = Budget()
    with budget.may_end() as ending:
        raise error
    assert ending.reason == reason
    assert budget.ended == (None if reason == "diverged" else reason)
    for keep in (False, lambda told: told != reason):
        with pytest.raises(type(error)), Budget().may_end(keep):
            raise error


def test_an_inner_fit_without_a_model_ends_a_part_only_under_a_limit():
    with Budget(10.0).may_end(inner=True) as ending:
        raise TimeoutError("no model")
    assert ending.reason == "max_seconds"
    for budget in (Budget(), Budget()):
        with pytest.raises(TimeoutError), budget.may_end(inner=True):
            raise TimeoutError("no model")
    with pytest.raises(TimeoutError), Budget(10.0).may_end():
        raise TimeoutError("of the network")


def test_what_must_be_completed_is_started_again_once():
    calls, budget = [], Budget()

    def part():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return "model"

    assert budget.completed(part) == "model" and budget.ended == "interrupted"
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        budget.completed(part)


def test_a_run_times_a_piece_of_what_follows_and_gives_it_back(clock):
    def body(run):
        run.budget.reserve_for(lambda: setattr(clock, "now", clock.now + 0.5), times=6)
        assert run.budget.reserved == 3.0 and run.budget.left == 6.5
        assert run.finish("factor", lambda: run.budget.left) == 9.5

    Model(max_seconds=10.0).fit(1, body)

    def unlimited(run):
        run.budget.reserve_for(lambda: pytest.fail("timed in vain"), times=2)

    Model().fit(1, unlimited)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_inducing_points_leave_time_for_their_last_bound(clock, stand_in):
    """Each block of rows takes a second; there are three, and three more for the final bound."""

    def second(noise):
        clock.now += 1.0

    stand_in("inducing.check_noise", second)
    rows, began = table(3 * 2048), clock.now
    model = SGPRRegressor(RBF(0.5) + WhiteKernel(), n_inducing=4, max_seconds=20.5, random_state=0)
    model.fit(rows.X, rows.y)
    assert model.fit_report_.status == "max_seconds" and model.n_iter_ >= 3
    # The blocks of a bound that has begun are given up when the time of training is spent.
    assert 20.5 - 3 < clock.now - began <= 20.5 + 1


def table(n):
    X = np.random.default_rng(0).uniform(-2, 2, (n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * np.random.default_rng(1).standard_normal(n)
    return Table(X, y, np.zeros(()), np.ones(()), np.full(n, 1e-10))


@pytest.mark.parametrize("trained_for, rows", [(2.0, None), (3.814, 1785)])
def test_as_many_rows_are_factorised_as_there_is_time_for(clock, stand_in, trained_for, rows):
    def cholesky(H):
        clock.now += 1.0
        return H, torch.tensor(0)

    stand_in("cholesky_", cholesky, at="core")
    ours, kernel = table(2000), compile_kernel(RBF() + WhiteKernel(), 2)
    problem = ours.problem(kernel, torch.float64, torch.device("cpu"), keep=False)

    def body(run):
        budget = FactorBudget(problem, run)
        # (2000 / 1500)^3 = 2.37 seconds for all rows; a tenth of the budget may be exceeded.
        assert_allclose(run.budget.reserved, 2.37, atol=0.01)
        clock.now += trained_for - 1.0
        kept = []
        budget.finish("factor", ours, kept.append, lambda: None)
        (some,) = kept
        if rows is None:
            assert some is ours and run.budget.ended is None
            return
        assert len(some.X) == rows and run.budget.ended == "max_seconds"
        pairs = {tuple(x): y for x, y in zip(ours.X, ours.y, strict=True)}
        assert len({tuple(x) for x in some.X}) == rows
        assert_array_equal([pairs[tuple(x)] for x in some.X], some.y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Model(max_seconds=5.0).fit(1, body)
    # The estimate for m rows is (m / 1500)^3 seconds; 1.186 and a half are left in the second case.
    said = [str(warning.message) for warning in caught]
    assert rows is None or "1,785 random rows, since factorising all 2,000" in said[0], said
    assert rows is not None or not said


@pytest.mark.parametrize("model", [IterativeGPRegressor(), SSRFFRegressor(optimizer="adam")])
def test_a_spent_budget_leaves_the_exact_process_of_some_rows(model):
    ours = table(1800)
    with pytest.warns(ConvergenceWarning, match="1,500 random rows"):
        model.set_params(max_seconds=1e-6, random_state=0).fit(ours.X, ours.y)
    assert model.fit_report_.status == "max_seconds" and model.n_samples_seen_ == 1800
    assert model.X_train_.shape == (1500, 2) and model.alpha_.shape == (1500,)
    # Nobody knows any more which rows of the table these are.
    assert fitted_process(model).left_out(ours.X, ours.y, None, np.array([0, 1799])) is None
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None)
    mean, std = exact.fit(model.X_train_, model.y_train_).predict(ours.X[:9], return_std=True)
    ours_mean, ours_std = model.predict(ours.X[:9], return_std=True)
    centre, unit = ours.y.mean(), ours.y.std()
    assert_allclose(ours_mean, centre + unit * mean, atol=1e-6)
    assert_allclose(ours_std, unit * std, rtol=1e-5)


@pytest.mark.parametrize("when", ["training", "factor"])
def test_an_interrupt_leaves_the_exact_process_of_some_rows(when, clock, stand_in):
    """As many as are factorised in a second; in the other case the factorisation has begun."""
    ours, began = table(1800), []

    def cholesky(H):
        clock.now += 1.0
        return factor(H)

    def interrupt(*args, **kwargs):
        if when == "factor" and len(args[0].X) < 1500:
            return whole(*args, **kwargs)  # a check of the start
        began.append(len(args[0].X) if when == "factor" else None)
        if len(began) == 1:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    factor = stand_in("cholesky_", cholesky, at="core")
    model = IterativeGPRegressor(RBF() + WhiteKernel(0.1), max_iter=1, random_state=0)
    if when == "training":
        model.set_params(callbacks=interrupt)
        whole = bool
    else:
        whole = stand_in("ExactPosterior.of", staticmethod(interrupt))
    with pytest.warns(ConvergenceWarning, match="1,500 random rows.* 2 s: fit again, or end"):
        model.fit(ours.X, ours.y)
    assert model.fit_report_.status == "interrupted"
    assert model.X_train_.shape == (1500, 2)
    assert when == "training" or began == [1800, 1500]
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None)
    mean = exact.fit(model.X_train_, model.y_train_).predict(ours.X[:9])
    assert_allclose(model.predict(ours.X[:9]), mean, atol=1e-6)


def test_features_look_at_the_clock_at_every_batch():
    ours, looks = table(60), []
    model = RFFRegressor(n_components=10, optimizer=None, random_state=0).fit(ours.X, ours.y)
    kernel = compile_kernel(model.kernel_, 2)
    problem = ours.problem(kernel, torch.float64, torch.device("cpu"), keep=False)
    with watched(lambda: looks.append(1)):
        collapsed_marginal_likelihood(problem, kernel.theta0, to_torch(model._features), True, 10)
    assert len(looks) >= 12


def test_a_budget_that_is_spent_at_the_start_costs_one_score():
    class Counted(Walk):
        scored = 0

        def score(self):
            self.scored += 1
            return super().score()

    walk = Counted([3.0, 2.0, 1.0])
    train_steps(walk, max_steps=2, check_every=1, monitor=Monitor(budget=Budget(0.0)))
    assert walk.scored == 1


def test_relevance_vectors_are_not_calibrated_after_the_deadline(stand_in):
    ours = table(80)
    stand_in("compared", lambda *_: pytest.fail("no time for it"))
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model = QSRVMRegressor(max_seconds=1e-6, random_state=0).fit(ours.X, ours.y)
    assert np.isfinite(model.predict(ours.X)).all()
