"""The outer loop of training: its result for every way of ending."""

import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from oracles import generator, normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp.core.training import (
    Budget,
    Monitor,
    StopTraining,
    resolve_optimizer,
    restart_points,
    train,
)
from skscalablegp.gradients import (
    ExactGradient,
    GradientEstimate,
    GradientEstimator,
    GradientState,
    StandardGradient,
)
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.solvers import CG, End
from skscalablegp.training import LBFGS, Adam, QuasiNewton

KERNEL = ConstantKernel(1.0) * Matern([1.0, 1.0], nu=1.5) + WhiteKernel(1.0)
PEAK = np.array([0.5, -1.0, 0.3, -2.0])


def problem(n=40):
    X = normal(n, 2)
    Y = torch.sin(2 * X[:, :1]) + 0.2 * normal(n, 1, seed=1)
    return GPProblem(compile_kernel(KERNEL, 2), Rows.of(X, Y))


class Hill(GradientEstimator):
    """-|theta - PEAK|^2 / 2, with something that happens at a chosen evaluation."""

    def __init__(self, at=None, event=None, value=True, noise=0.0):
        self.at, self.event, self.value, self.noise = at, event, value, noise

    def estimate(self, problem, theta, state):
        count = state.extra.get("count", 0) + 1
        if count == self.at:
            state.extra["count"] = count
            self.event()
        peak = torch.from_numpy(PEAK)
        grad = peak - theta
        if self.noise:
            grad = grad + self.noise * torch.randn(
                4, generator=state.generator, dtype=torch.float64
            )
        value = -0.5 * float((theta - peak).square().sum()) if self.value else None
        return GradientEstimate(grad, value), replace(state, extra={"count": count})


def raising(error):
    def event():
        raise error

    return event


def run(estimator, optimizer=None, *, max_iter=50, start=None, ours=None, monitor=None, **options):
    bounds = options.pop("bounds", np.array([[-5.0, 5.0]] * 4))
    monitor = Monitor() if monitor is None else monitor
    result = train(
        problem(5) if ours is None else ours,
        estimator,
        optimizer or Adam(0.1),
        np.zeros(4) if start is None else start,
        bounds,
        max_iter=max_iter,
        monitor=monitor,
        generator=generator(),
        **options,
    )
    return result, monitor


# ---------------------------------------------------------------- the real objective


def scipy_optimizer(obj_func, initial_theta, bounds):
    result = scipy.optimize.minimize(obj_func, initial_theta, jac=True, bounds=bounds)
    return result.x, result.fun


@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        (LBFGS(1e-10), 200),
        (QuasiNewton(1e-10), 200),
        (Adam(0.1, decay=0.05), 300),
        (resolve_optimizer(scipy_optimizer), 200),
    ],
    ids=["lbfgs", "bfgs", "adam", "callable"],
)
def test_reaches_the_likelihood_that_scikit_learn_reaches(optimizer, steps):
    ours = problem()
    theirs = GaussianProcessRegressor(KERNEL, alpha=0.0 + 1e-300)
    theirs.fit(ours.X.numpy(), ours.Y.numpy()[:, 0])
    bounds = ours.kernel.bounds.numpy()
    result, _ = run(
        ExactGradient(), optimizer, max_iter=steps, start=ours.kernel.theta0.numpy(), ours=ours,
        bounds=bounds,
    )  # fmt: skip
    assert result.value == pytest.approx(theirs.log_marginal_likelihood_value_, abs=0.02)
    at_theta = theirs.log_marginal_likelihood(result.theta)
    assert result.value == pytest.approx(at_theta, rel=1e-9)


@pytest.mark.parametrize(
    "optimizer",
    [LBFGS(), QuasiNewton(), resolve_optimizer(scipy_optimizer)],
    ids=["lbfgs", "bfgs", "callable"],
)
def test_evaluations_of_line_searches_are_no_limit(optimizer):
    """All of these evaluate more often than they step, and a callable has no limit of ours."""
    ours = problem()
    settings = {"start": ours.kernel.theta0.numpy(), "bounds": ours.kernel.bounds.numpy()}
    free, _ = run(ExactGradient(), optimizer, max_iter=500, ours=ours, **settings)
    same, _ = run(ExactGradient(), optimizer, max_iter=free.n_iter, ours=ours, **settings)
    assert free.stop_reason == same.stop_reason == "converged"
    assert np.array_equal(free.theta, same.theta)
    cut, _ = run(ExactGradient(), optimizer, max_iter=4, ours=ours, **settings)
    assert (cut.stop_reason == "max_iter") == (cut.n_iter < free.n_iter)


def test_stochastic_gradients_lead_to_the_same_place():
    ours = problem()
    start, bounds = ours.kernel.theta0.numpy(), ours.kernel.bounds.numpy()
    exact, _ = run(ExactGradient(), LBFGS(), start=start, ours=ours, bounds=bounds)
    noisy, monitor = run(
        StandardGradient(CG(), n_probes=64, solver_tol=1e-3), Adam(0.1, decay=0.3), max_iter=80,
        start=start, ours=ours, bounds=bounds, average=5,
    )  # fmt: skip
    theta = torch.from_numpy(noisy.theta)
    there, _ = ExactGradient().estimate(ours, theta, GradientState())
    assert there.value > exact.value - 1.0
    assert noisy.state.previous.shape == (40, 65)
    assert len(monitor.solutions) == 80
    assert {s.status for s in monitor.solutions} == {End.CONVERGED}


# ---------------------------------------------------------------- bounds and results


@pytest.mark.parametrize("optimizer", [Adam(0.3), LBFGS(), QuasiNewton()])
def test_bounds_are_honoured_and_the_start_is_moved_into_them(optimizer):
    bounds = np.array([[-0.5, 0.2], [-0.4, 4.0], [1.0, 2.0], [-1.5, -1.0]])
    result, monitor = run(Hill(), optimizer, start=np.full(4, 9.0), bounds=bounds)
    visited = np.array([step.theta for step in monitor.steps])
    assert (visited >= bounds[:, 0]).all() and (visited <= bounds[:, 1]).all()
    np.testing.assert_allclose(result.theta, [0.2, -0.4, 1.0, -1.5], atol=1e-6)


def test_exact_values_keep_the_best_iterate():
    # A rate so large that the last iterates are worse than earlier ones.
    result, monitor = run(Hill(), Adam(1.0), max_iter=12)
    values = [step.objective for step in monitor.steps]
    assert result.value == max(values) and values[-1] < max(values)
    np.testing.assert_array_equal(result.theta, monitor.steps[int(np.argmax(values))].theta)


@pytest.mark.parametrize("average", [1, 4])
def test_unknown_values_give_the_mean_of_the_last_iterates(average):
    result, monitor = run(Hill(value=False, noise=1.0), max_iter=9, average=average)
    last = np.array([step.theta for step in monitor.steps])[-average:]
    np.testing.assert_allclose(result.theta, last.mean(0))


def test_fewer_iterates_than_the_average_takes():
    result, monitor = run(Hill(value=False), max_iter=2, average=5)
    np.testing.assert_allclose(result.theta, np.mean([s.theta for s in monitor.steps], axis=0))


def test_the_state_goes_from_step_to_step():
    result, _ = run(Hill(noise=0.1), max_iter=3)
    assert result.state.extra["count"] == 3
    fresh = torch.randn(12, generator=generator(), dtype=torch.float64)
    drawn = torch.randn(4, generator=result.state.generator, dtype=torch.float64)
    assert not torch.isin(drawn, fresh).any()  # the generator has moved on


# ---------------------------------------------------------------- ends


def test_the_number_of_steps_is_a_limit():
    result, monitor = run(Hill(), max_iter=7)
    assert result.n_iter == len(monitor.steps) == 7
    assert result.stop_reason == "max_iter"
    converged, _ = run(Hill(), LBFGS(), max_iter=100)
    assert converged.stop_reason == "converged" and converged.n_iter < 30


def test_no_change_over_some_steps_is_convergence():
    result, monitor = run(Hill(), Adam(0.1, decay=1e-6), max_iter=500, n_iter_no_change=5, tol=1e-3)
    assert result.stop_reason == "converged" and result.n_iter < 500
    recent = np.array([step.theta for step in monitor.steps[-5:]])
    assert np.ptp(recent, axis=0).max() < 1e-3
    earlier = np.array([step.theta for step in monitor.steps[-6:-1]])
    assert np.ptp(earlier, axis=0).max() >= 1e-3


@pytest.mark.parametrize("known", [True, False], ids=["values", "no-values"])
def test_an_interruption_keeps_the_best_so_far(known):
    result, monitor = run(Hill(at=5, event=raising(KeyboardInterrupt()), value=known))
    assert result.stop_reason == "interrupted" and result.n_iter == 4
    np.testing.assert_array_equal(result.theta, monitor.steps[-1].theta)
    assert result.state.extra["count"] >= 4


def test_an_interruption_before_anything_is_known_passes_through():
    with pytest.raises(KeyboardInterrupt):
        run(Hill(at=1, event=raising(KeyboardInterrupt())))


def test_an_interruption_inside_a_line_search_keeps_the_best():
    result, _ = run(Hill(at=3, event=raising(KeyboardInterrupt())), LBFGS())
    assert result.stop_reason == "interrupted" and result.n_iter == 2
    assert np.isfinite(result.value)


def test_callbacks_see_every_step_and_may_stop():
    seen = []

    def stop(step):
        seen.append(step)
        return step.iteration == 3

    others = []
    monitor = Monitor([stop, lambda step: others.append(step)])
    result, _ = run(Hill(), monitor=monitor)
    assert result.stop_reason == "callback" and result.n_iter == 3
    assert [step.iteration for step in seen] == [1, 2, 3] and len(others) == 3
    assert seen[2].stage == "full" and seen[2].residual == 0 and seen[2].epochs == 0
    np.testing.assert_allclose(seen[0].grad, PEAK)


def test_callbacks_get_copies():
    monitor = Monitor([lambda step: step.theta.fill(99.0)])
    result, _ = run(Hill(), Adam(0.1), max_iter=300, monitor=monitor)
    assert np.abs(result.theta).max() < 5


def test_the_time_budget_ends_the_run():
    monitor = Monitor([lambda step: time.sleep(0.02)], Budget(0.1))
    result, _ = run(Hill(), max_iter=1000, monitor=monitor)
    assert result.stop_reason == "max_seconds" and 1 <= result.n_iter < 12
    spent = Monitor(budget=Budget(0.0))
    assert run(Hill(), monitor=spent)[0].n_iter == 1  # one step is always made
    with pytest.raises(StopTraining):
        spent.budget.check()


def test_a_gradient_that_is_not_finite_ends_the_run():
    class Broken(Hill):
        def estimate(self, problem, theta, state):
            estimate, state = super().estimate(problem, theta, state)
            bad = state.extra["count"] > 4
            return GradientEstimate(estimate.grad / (0.0 if bad else 1.0), estimate.value), state

    result, _ = run(Broken())
    assert result.stop_reason == "diverged" and result.n_iter == 4
    assert np.isfinite(result.theta).all()


# ---------------------------------------------------------------- no factor


class Cliff(Hill):
    """No factor where the first parameter exceeds 0.4."""

    def estimate(self, problem, theta, state):
        if float(theta[0]) > 0.4:
            raise torch.linalg.LinAlgError("no factor")
        return super().estimate(problem, theta, state)


@pytest.mark.parametrize("optimizer", [LBFGS(), QuasiNewton()])
def test_a_line_search_retreats_from_points_without_a_factor(optimizer):
    result, monitor = run(Cliff(), optimizer, max_iter=100)
    assert max(step.theta[0] for step in monitor.steps) <= 0.4
    # It goes on from there: most of the way up is made, along every coordinate.
    assert result.value > 0.1 * monitor.steps[0].objective
    assert (np.abs(result.theta) > 0.5 * np.abs(PEAK)).all()


def test_adam_retreats_too():
    result, monitor = run(Cliff(), Adam(0.1), max_iter=60)
    assert np.isfinite([step.theta for step in monitor.steps]).all()
    assert result.theta[0] <= 0.4


def test_a_start_without_a_factor_is_an_error():
    with pytest.raises(torch.linalg.LinAlgError):
        run(Cliff(), LBFGS(), start=np.ones(4))


# ---------------------------------------------------------------- history


def test_history_has_one_entry_a_step():
    monitor = Monitor()
    monitor.begin("subset", 3)
    run(Hill(), max_iter=3, monitor=monitor)
    monitor.begin("full", 2)
    ours = problem()
    run(StandardGradient(CG(), n_probes=2), max_iter=2, ours=ours, monitor=monitor)
    history = monitor.history()
    assert {len(entries) for entries in history.values()} == {5}
    assert history["stage"] == ["subset"] * 3 + ["full"] * 2
    assert [step.iteration for step in monitor.steps] == [1, 2, 3, 1, 2]
    assert np.isfinite(history["objective"][:3]).all() and np.isnan(history["objective"][3:]).all()
    assert history["epochs"][0] == 0 < history["epochs"][3]
    assert 0 < history["residual"][3] <= 1
    assert history["seconds"] == sorted(history["seconds"])
    assert len(monitor.solutions) == 2


def test_a_progress_bar_only_where_asked_for(capsys):
    run(Hill(), max_iter=2)
    assert capsys.readouterr().err == ""
    monitor = Monitor(verbose=1)
    monitor.begin("full", 2)
    run(Hill(), max_iter=2, monitor=monitor)
    monitor.close()
    assert "fit (full)" in capsys.readouterr().err


# ---------------------------------------------------------------- restarts


def test_restart_points_are_uniform_within_the_bounds():
    bounds = np.array([[-1.0, 1.0], [2.0, 5.0]])
    points = np.array(restart_points(bounds, 400, np.random.RandomState(0)))
    assert points.shape == (400, 2)
    assert (points >= bounds[:, 0]).all() and (points <= bounds[:, 1]).all()
    z = (points.mean(0) - bounds.mean(1)) / (points.std(0) / 20)
    assert np.abs(z).max() < 4
    np.testing.assert_array_equal(points[:3], restart_points(bounds, 3, np.random.RandomState(0)))


def test_restarts_need_finite_bounds():
    bounds = np.array([[-1.0, np.inf]])
    assert restart_points(bounds, 0, np.random.RandomState(0)) == []
    with pytest.raises(ValueError, match="bounds are finite"):
        restart_points(bounds, 1, np.random.RandomState(0))
