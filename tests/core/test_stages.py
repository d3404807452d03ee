"""The stages of training: early errors, and the state after an interrupt."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import IterativeGPRegressor, PoERegressor
from skscalablegp.core import Run, exact_start, well_conditioned
from skscalablegp.core.training import Monitor
from skscalablegp.gradients import ExactGradient
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.training import LBFGS, QuasiNewton


def table(n=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def kernel():
    return ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"optimizer": "foo"}, "Unknown optimizer 'foo'"),
        ({"optimizer": "foo", "solver": "cg"}, "Unknown optimizer 'foo'"),
        ({"optimizer": "lbfgs", "solver": "cg"}, "needs exact values.*optimizer='adam'"),
        ({"optimizer": LBFGS(), "solver": "cg"}, "needs exact values.*optimizer='adam'"),
    ],
    ids=str,
)
def test_wrong_optimisers_fail_before_any_evaluation(settings, message):
    X, y = table()
    seen = []
    model = IterativeGPRegressor(kernel(), subset_size=20, callbacks=seen.append, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert seen == []


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("stage, rows", [("nested", 60), ("neighbourhoods", 20)])
def test_an_interrupt_in_a_later_subset_leaves_the_earlier_ones(
    stage, rows, thresholds, monkeypatch
):
    """In its first evaluation, when that subset has nothing to show yet."""
    X, y = table(200)
    thresholds(SUBSET_ROWS=20)
    if stage == "neighbourhoods":
        thresholds(CENTROID_ROWS=100)
    steps, estimate = [], ExactGradient.estimate

    def interrupted(self, problem, *args):
        if len(problem.X) == rows and len(starts) == 2:
            raise KeyboardInterrupt
        return estimate(self, problem, *args)

    starts, begin = [], Monitor.begin

    def beginning(self, name, *args):
        if name != "starts":
            starts.append(name)
        return begin(self, name, *args)

    monkeypatch.setattr(Monitor, "begin", beginning)
    monkeypatch.setattr(ExactGradient, "estimate", interrupted)
    model = IterativeGPRegressor(kernel(), callbacks=[steps.append], random_state=0).fit(X, y)
    assert starts[2:] == ["final solve"]
    assert model.fit_report_.status == "interrupted"
    assert model.n_iter_ == len(steps) > 0
    assert not np.allclose(model.kernel_.theta, kernel().theta)
    assert np.isfinite(model.predict(X)).all()


def test_the_smallest_noise_of_all_rows_decides_about_precision():
    X = torch.rand(1500, 1, generator=torch.Generator().manual_seed(0))
    noise = torch.full((1500,), 0.1)
    problem = GPProblem(compile_kernel(RBF(0.3), 1), Rows.of(X, torch.sin(9 * X), noise))
    theta = problem.kernel.theta0.numpy()
    assert well_conditioned(problem, theta).X.dtype == torch.float32
    noise[1400] = 1e-8
    assert well_conditioned(problem, theta).X.dtype == torch.float64


@pytest.mark.parametrize("optimizer", ["lbfgs", LBFGS()], ids=str)
def test_an_optimiser_that_needs_values_gets_them_whatever_the_rows(optimizer, thresholds):
    thresholds(EXACT_TRAINING_ROWS=30)
    X, y = table()
    model = IterativeGPRegressor(kernel(), optimizer=optimizer, device="cpu").fit(X, y)
    assert model.solver_ == "cholesky"


def test_restarts_are_of_the_stage_that_they_start(monkeypatch):
    """And those that fail are named, beside the best that is kept."""
    X, y = (torch.as_tensor(part) for part in table(30))
    compiled, monitor, calls = compile_kernel(kernel(), 2), Monitor(), []
    plain = ExactGradient.estimate

    def estimate(self, problem, theta, state):
        if monitor._stage == "start":
            calls.append(theta)
        if len(calls) == fails:
            raise torch.linalg.LinAlgError("no factor")
        return plain(self, problem, theta, state)

    def start():
        run = Run(monitor, torch.Generator().manual_seed(0), np.random.RandomState(0))
        problem = GPProblem(compiled, Rows.of(X, y[:, None]))
        return exact_start(problem, run, max_iter=3, n_restarts=2)

    monkeypatch.setattr(ExactGradient, "estimate", estimate)
    fails = -1
    start()
    assert {step.stage for step in monitor.steps} == {"start"} and not monitor.failures
    first = [k for k, step in enumerate(monitor.steps) if step.iteration == 1][1]
    monitor, calls, fails = Monitor(), [], first + 1
    assert np.isfinite(start().value)
    assert monitor.failures == ["restart 1: no Cholesky factor at its start"]


def test_an_exact_start_begins_with_some_rows():
    X, y = (torch.as_tensor(part) for part in table(90))
    ends = {}
    for size in (None, 30):
        run = Run(Monitor(), torch.Generator().manual_seed(0), np.random.RandomState(0))
        problem = GPProblem(compile_kernel(kernel(), 2), Rows.of(X, y[:, None]))
        ends[size] = exact_start(problem, run, max_iter=100, subset_size=size)
        stages = list(dict.fromkeys(step.stage for step in run.monitor.steps))
        assert stages == (["start"] if size is None else ["30", "start"])
    np.testing.assert_allclose(ends[30].value, ends[None].value, atol=0.5)


@pytest.mark.slow
def test_a_subset_does_not_end_on_a_plateau():
    # Twenty steps gain 0.3 nats in all here, the next ones two hundred.
    X, f = make_friedman1(2000, n_features=10, random_state=0)
    noise = np.random.default_rng([0, *b"friedman-10d-1000"]).standard_normal(2000)
    X, y = X[:1000], (f + 0.2 * f.std() * noise)[:1000]
    model = PoERegressor(random_state=0).fit(X, y)
    assert model.log_marginal_likelihood_value_ > 100


@pytest.mark.parametrize("compares", [True, False])
def test_an_optimizer_may_begin_where_it_is_told(compares):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, 2))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    kernel = ConstantKernel(2.0) * RBF([0.3, 3.0]) + WhiteKernel(0.05)
    optimizer = QuasiNewton(compare_starts=compares)
    gp = IterativeGPRegressor(kernel, optimizer=optimizer, normalize_y=True).fit(X, y)
    assert ("starts" in gp.fit_report_.seconds) is compares
    first = gp.history_["theta"][gp.history_["stage"].index("full")]
    assert np.allclose(first, kernel.theta) is not compares
