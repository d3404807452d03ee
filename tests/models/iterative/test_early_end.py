"""The end of a last solve whose mean neighbours correct."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, to_torch
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.linalg.solvers import Progress, solve
from skscalablegp.models.iterative._early_end import HeldOutErrors
from skscalablegp.models.iterative._final_solve import _estimate_likelihood, _log_det
from skscalablegp.preconditioners import PIC
from skscalablegp.solvers import BlockCG, End, MaxIterations


def problem_of(n, t=2, noise=0.01):
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.uniform(-2, 2, (n, 2)))
    Y = torch.stack([torch.sin(3 * X[:, 0]) * X[:, 1], torch.cos(2 * X[:, 1])][:t], 1)
    Y = Y + noise**0.5 * torch.tensor(rng.standard_normal((n, t)))
    kernel = compile_kernel(Matern(0.8, nu=1.5) + WhiteKernel(noise), 2)
    return GPProblem(kernel, Rows.of(X, Y), keep=False)


SOLVED = torch.ones(40, dtype=torch.bool)
SOLVED[[3, 17, 30]] = False


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("noisy", [False, True], ids=["white noise", "known noise, merged rows"])
def test_errors_are_those_of_the_corrected_mean(keep, noisy):
    """For any weights: what weights and neighbours predict for held-out rows, by dense algebra."""
    problem, k = problem_of(40), 12
    Y, noise, rng = problem.Y, torch.full((40,), 0.01).double(), np.random.default_rng(1)
    if noisy:
        counts, known = (torch.tensor(rng.uniform(0.1, 3, 40)) for _ in range(2))
        problem = replace(problem, rows=Rows.of(problem.X, Y, known, counts))
        noise = (noise + known) / counts
    operator = problem.operator(problem.kernel.theta0)
    H = torch.tensor(Matern(0.8, nu=1.5)(problem.X.numpy())) + noise.diag()
    solved = SOLVED.nonzero()[:, 0]
    units = Y[solved].norm(dim=0)
    v = torch.tensor(rng.standard_normal((37, 2)))
    r = Y[solved] - H[solved][:, solved] @ v
    found = HeldOutErrors(operator, Y, SOLVED, k, keep).errors(v / units, r / units)
    for i, error in zip([3, 17, 30], found, strict=True):
        near = H[i, solved].argsort(descending=True)[:k]
        N = solved[near]
        mean = H[i, solved] @ v + H[i, N] @ torch.linalg.solve(H[N][:, N], r[near])
        torch.testing.assert_close(error, (Y[i] - mean) / units)


def test_scores_do_not_depend_on_the_size_of_targets():
    """Solvers rescale targets of an extreme size."""
    problem = problem_of(40)
    operator = problem.operator(problem.kernel.theta0)
    part = problem.subset(SOLVED.nonzero()[:, 0])
    scores = []
    for size in (1.0, 1e-100):
        rule = HeldOutErrors(operator, size * problem.Y, SOLVED, 12)
        settings = dict(stopping=MaxIterations(3), callback=rule.watch)
        solve(part.operator(problem.kernel.theta0), size * part.Y, BlockCG(), **settings)
        scores.append(rule.scores)
    assert len(scores[0]) == 3
    np.testing.assert_allclose(scores[0], scores[1])


def test_a_solve_ends_when_four_steps_reduce_nothing():
    problem = problem_of(400)
    operator = problem.operator(problem.kernel.theta0)
    solved = torch.arange(400) % 4 > 0
    part = problem.subset(solved.nonzero()[:, 0])
    rule = HeldOutErrors(operator, problem.Y, solved, 30)
    assert rule.check(Progress(torch.ones(2))) is None
    settings = dict(stopping=rule | MaxIterations(300), callback=rule.watch)
    solution = solve(part.operator(problem.kernel.theta0), part.Y, BlockCG(), **settings)
    assert solution.status is End.CONVERGED and len(rule.scores) < 100
    assert float(solution.residuals.max()) > 1e-3
    best = math.log(0.995)
    assert min(rule.scores[-4:]) > min(rule.scores[:-4]) + best
    for end in range(5, len(rule.scores)):
        assert min(rule.scores[end - 4 : end]) <= min(rule.scores[: end - 4]) + 0.99 * best


def test_the_likelihood_after_an_early_end_is_within_its_error(monkeypatch):
    """Without R' H^-1 R, of which the preconditioner knows most, the value is far too high."""
    problem = problem_of(300, t=1, noise=1e-4)
    operator = problem.operator(problem.kernel.theta0)
    H = operator.to_dense()
    P = PIC(20, 60, random_state=0).build(operator)
    V = solve(operator, problem.Y, BlockCG(), stopping=MaxIterations(2), preconditioner=P).value
    normal = torch.distributions.MultivariateNormal(torch.zeros(300, dtype=torch.float64), H)
    truth = float(normal.log_prob(problem.Y[:, 0]))
    seed = torch.Generator().manual_seed(0)
    log_det = float(torch.logdet(H))
    known, R = _log_det(operator, P, seed), problem.Y - H @ V
    monkeypatch.setattr(known, "estimate", lambda: (log_det, 0.0))
    value, error = _estimate_likelihood(problem, problem.kernel.theta0, V, R, P, known)
    rest = float((R * torch.linalg.solve(H, R)).sum()) / 2
    assert abs(value - truth) < min(error, 0.5 * rest)


def test_a_fit_ends_its_last_solve_early_and_says_so(thresholds):
    thresholds(EXACT_TRAINING_ROWS=200, EXACT_POSTERIOR_ROWS=300, SUBSET_ROWS=200)
    thresholds(EXACT_SUBSET_ROWS=200)
    thresholds(_FEWEST_HELD=20)
    rng = np.random.default_rng(0)
    X, new = rng.uniform(-2, 2, (1000, 2)), rng.uniform(-2, 2, (200, 2))
    y = 3 + 2 * np.sin(3 * X[:, 0]) * X[:, 1] + 0.01 * rng.standard_normal(1000)
    kernel = 1.0 * RBF(0.3) + WhiteKernel(1e-4)
    settings = dict(optimizer=None, train_on="all", normalize_y=True, posterior="neighbors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = IterativeGPRegressor(kernel, random_state=0, **settings).fit(X, y)
    report = ours.fit_report_
    assert report.residuals.max() > 0.006 and report.n_unconverged == 0
    assert "the 256 nearest rows correct the mean" in report.summary
    exact = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(X, y)
    mean, std = exact.predict(new, return_std=True)
    np.testing.assert_allclose(ours.predict(new), mean, atol=0.1 * std.mean())
    for found, value in zip(
        to_torch(ours)(torch.tensor(new)), ours.predict(new, True), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), value, atol=1e-5)
    # With a solver given, the solve goes on, and weights alone are the mean.
    ours.set_params(solver="block_cg").fit(X, y)
    assert ours.fit_report_.residuals.max() <= 0.005 and ours._residual is None


def test_the_report_estimates_the_error_of_new_rows(thresholds):
    thresholds("iterative", NEAREST=40, _CENTRES=5)
    thresholds("_neighbourhoods", _ROWS=64)
    thresholds(EXACT_TRAINING_ROWS=200, EXACT_POSTERIOR_ROWS=300, SUBSET_ROWS=200)
    thresholds(EXACT_SUBSET_ROWS=200)
    rng = np.random.default_rng(0)
    X, new = rng.uniform(-2, 2, (1200, 2)), rng.uniform(-2, 2, (1000, 2))
    y, y_new = (5 + 20 * np.sin(2 * Z[:, 0]) + 2 * rng.standard_normal(len(Z)) for Z in (X, new))
    ours = IterativeGPRegressor(random_state=0).fit(X, y)
    words = ours.fit_report_.summary.split("leave-one-out errors of 1,200 rows have an RMSE of ")[1]
    rmse, nlpd = words.split(" and an NLPD of ")
    mean, std = ours.predict(new, return_std=True)
    assert float(rmse) == pytest.approx(np.sqrt(np.mean((y_new - mean) ** 2)), rel=0.1)
    density = -0.5 * ((y_new - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert float(nlpd) == pytest.approx(-density.mean(), abs=0.1)
