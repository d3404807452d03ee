"""Gradient estimators against the exact gradient: z-scores over fixed seeds, no tolerances.

The expected gradient comes from scikit-learn's dK and dense algebra. Each estimate of a test uses
its own generator, so the estimates are independent and their mean has a known standard error.
Probes are many and estimates few, since the cost of an estimate hardly depends on their number.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import generator, normal, z_score
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.features import sample_prior_features
from skscalablegp.gradients import (
    ExactGradient,
    GradientState,
    PathwiseGradient,
    StandardGradient,
    TruncatedGradient,
)
from skscalablegp.kernels import NoSpectralDensity, compile_kernel
from skscalablegp.linalg.gradients import (
    GPProblem,
    PathwiseProbes,
    Rows,
    fisher_information,
    resolve_gradient,
)
from skscalablegp.linalg.operators import Workspace
from skscalablegp.linalg.solvers import Progress
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import CG, Cholesky, End
from skscalablegp.truncation import FixedTruncation

N, D = 40, 2
C, W = ConstantKernel, WhiteKernel
DEFAULT = C(1.4) * Matern([0.7, 1.6], nu=1.5) + W(0.1)
RICH = C(0.5) * RationalQuadratic(0.9, 0.7) + RBF(2.0) * C(0.8) + DotProduct(0.5) + W(0.2)
PERIODIC = ExpSineSquared(1.1, 2.0) * RBF(2.0) + W(0.2)
CG_EXACT = {"solver": CG(PivotedCholesky(rank=20)), "solver_tol": 1e-10}


def problem(kernel=DEFAULT, *, t=1, heteroscedastic=False, n=N, d=D):
    X = normal(n, d, seed=5)
    Y = torch.sin(2 * X[:, :1]) + 0.3 * normal(n, t, seed=6)
    noise = torch.logspace(-2, 0, n, dtype=torch.float64) if heteroscedastic else 0.0
    return GPProblem(compile_kernel(kernel, d), Rows.of(X, Y, noise))


def dense(problem, theta=None):
    """H and dH from scikit-learn."""
    kernel = problem.kernel.kernel
    kernel = kernel if theta is None else kernel.clone_with_theta(theta.numpy())
    H, dH = kernel(problem.X.numpy(), eval_gradient=True)
    H = torch.from_numpy(H)
    H = H + torch.diag(problem.rows.noise)
    return H, torch.from_numpy(dH).permute(2, 0, 1)


def expected_gradient(problem, second_moment=None):
    """1/2 sum v' dH v - t/2 tr(H^-1 M H^-1 dH), where M is what probes have instead of H."""
    H, dH = dense(problem)
    V = torch.linalg.solve(H, problem.Y)
    inverse = torch.linalg.inv(H)
    if second_moment is not None:
        inverse = inverse @ second_moment @ inverse
    fit = torch.einsum("it,pij,jt->p", V, dH, V)
    return 0.5 * (fit - problem.Y.shape[1] * torch.einsum("ij,pij->p", inverse, dH))


# 2,400 probes in all.
S, SEEDS = 120, 20


def estimates(problem, estimator, n_seeds=SEEDS, start=0):
    """One gradient a seed, each with its own probes."""
    grads = []
    for seed in range(start, start + n_seeds):
        estimate, _ = estimator.estimate(
            problem, problem.kernel.theta0, GradientState(generator(seed))
        )
        grads.append(estimate.grad)
    return torch.stack(grads)


def z_scores(grads, expected):
    """Standard errors between the estimates' mean and what is expected, for every component."""
    return (grads.mean(0) - expected) / (grads.std(0) / len(grads) ** 0.5)


# ---------------------------------------------------------------- unbiased

ESTIMATORS = {
    "standard-cholesky": StandardGradient(Cholesky(), n_probes=S, solver_tol=1e-10),
    "standard-cg": StandardGradient(**CG_EXACT, n_probes=S),
    "pathwise-cholesky": PathwiseGradient(Cholesky(), n_probes=S, solver_tol=1e-10, prior="exact"),
    "pathwise-cg": PathwiseGradient(**CG_EXACT, n_probes=S, prior="exact"),
    # Features drawn anew for each estimate: their second moment is K on average.
    "pathwise-fourier": PathwiseGradient(Cholesky(), n_probes=48, solver_tol=1e-10, n_pairs=50),
}
PROBLEMS = {
    "default": problem(),
    "heteroscedastic": problem(RBF([0.6, 1.0]), heteroscedastic=True),
    "rich": problem(RICH),
    "three-targets": problem(t=3),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in PROBLEMS
        for method in ESTIMATORS
        if not method.endswith("cg") or name in ("default", "three-targets")
    ],
)
def test_unbiased(name, method):
    ours = PROBLEMS[name]
    seeds = 50 if method == "pathwise-fourier" else SEEDS
    grads = estimates(ours, ESTIMATORS[method], n_seeds=seeds)
    z = z_scores(grads, expected_gradient(ours))
    assert float(z.abs().max()) < 4
    # Not by being too noisy to tell: the standard error is small beside the trace term.
    scale = torch.einsum("ij,pij->p", torch.linalg.inv(dense(ours)[0]), dense(ours)[1]).abs()
    assert float((grads.std(0) / len(grads) ** 0.5).max()) < 0.1 * float(scale.max())


@pytest.mark.parametrize("make", [StandardGradient, PathwiseGradient])
def test_unbiased_without_a_spectral_density(make):
    ours = problem(PERIODIC, d=1)  # periodic functions of a distance are valid in one column only
    options = {"prior": "exact"} if make is PathwiseGradient else {}
    grads = estimates(ours, make(Cholesky(), n_probes=S, solver_tol=1e-10, **options))
    assert float(z_scores(grads, expected_gradient(ours)).abs().max()) < 4


def test_exact_gradient_has_no_spread():
    ours = problem(t=2, heteroscedastic=True)
    grads = estimates(ours, ExactGradient(), n_seeds=2)
    torch.testing.assert_close(grads[0], expected_gradient(ours), rtol=1e-9, atol=1e-9)
    assert torch.equal(grads[0], grads[1])
    assert ExactGradient.exact and not PathwiseGradient.exact


# ---------------------------------------------------------------- the test can fail


def test_the_z_score_sees_a_truncated_solve():
    truncated = {"solver": CG(), "solver_max_epochs": 2, "solver_tol": 1e-10, "n_probes": S}
    for estimator in (StandardGradient(**truncated), PathwiseGradient(**truncated, prior="exact")):
        z = z_scores(estimates(problem(), estimator), expected_gradient(problem()))
        assert float(z.abs().max()) > 10


def frozen_features(ours, n_pairs, seed, n_seeds=0):
    """Gradients whose features are the same draw each time, and what they are biased towards."""
    features = sample_prior_features(ours.kernel, D, n_pairs, generator(1000 + seed))
    phi = features.evaluate(ours.kernel.theta0, ours.X)
    operator = ours.operator(ours.kernel.theta0)
    target = expected_gradient(ours, phi @ phi.T + torch.diag(operator.noise))
    estimator = PathwiseGradient(Cholesky(), n_probes=48, solver_tol=1e-10, n_pairs=n_pairs)
    grads = []
    for k in range(n_seeds):
        g = generator(5000 + k)
        weights = torch.randn(features.n_features, 48, generator=g, dtype=torch.float64)
        noise = torch.randn(len(ours.X), 48, generator=g, dtype=torch.float64)
        state = GradientState(g, PathwiseProbes(features, weights, noise))
        grads.append(estimator.estimate(ours, ours.kernel.theta0, state)[0].grad)
    return (torch.stack(grads) if grads else None), target


def test_the_z_score_sees_too_few_fourier_pairs():
    ours = problem()
    grads, biased = frozen_features(ours, n_pairs=10, seed=0, n_seeds=50)
    assert float(z_scores(grads, expected_gradient(ours)).abs().max()) > 10
    assert float(z_scores(grads, biased).abs().max()) < 4  # the bias is the features', only


def test_fourier_prior_converges_as_pairs_grow():
    ours = problem()
    exact, errors = expected_gradient(ours), []
    for n_pairs in (30, 300, 3000):
        targets = [frozen_features(ours, n_pairs, seed)[1] for seed in range(20)]
        errors.append(float((torch.stack(targets) - exact).square().mean().sqrt()))
    # Ten times the pairs: the error falls by the square root of ten.
    assert 2.2 < errors[0] / errors[1] < 4.5
    assert 2.2 < errors[1] / errors[2] < 4.5


# ---------------------------------------------------------------- warm starts


@pytest.mark.parametrize("make", [StandardGradient, PathwiseGradient])
def test_warm_start_freezes_the_probes_and_saves_epochs(make):
    ours = problem(n=200)
    estimator = make(CG(), n_probes=8, solver_tol=1e-6, solver_max_epochs=5000)
    theta, g = ours.kernel.theta0, generator()
    first, state = estimator.estimate(ours, theta, GradientState(g))
    second, warm = estimator.estimate(ours, theta + 0.003, state)
    cold, _ = estimator.estimate(ours, theta + 0.003, GradientState(g, state.probes))
    assert warm.probes is state.probes
    assert first.solution.converged and second.solution.converged
    assert second.solution.epochs < 0.9 * cold.solution.epochs
    torch.testing.assert_close(second.grad, cold.grad, rtol=1e-3, atol=1e-3)
    # Solving the same system again costs the look at its residual.
    again, _ = estimator.estimate(ours, theta + 0.003, warm)
    assert again.solution.n_iter <= 1


def test_without_warm_start_each_step_draws_probes():
    ours, g = problem(), generator()
    estimator = StandardGradient(Cholesky(), n_probes=4, solver_warm_start=False)
    _, state = estimator.estimate(ours, ours.kernel.theta0, GradientState(g))
    _, later = estimator.estimate(ours, ours.kernel.theta0, state)
    assert not torch.equal(state.probes[0], later.probes[0])


def right_hand_sides(ours, estimator, theta, state):
    probes = estimator.right_hand_sides(ours, ours.operator(theta), state.probes)
    return torch.cat([ours.Y, probes], 1)


def test_prior_samples_follow_the_hyperparameters():
    ours, g = problem(), generator()
    estimator = PathwiseGradient(Cholesky(), n_probes=4)
    theta = ours.kernel.theta0
    _, state = estimator.estimate(ours, theta, GradientState(g))
    _, moved = estimator.estimate(ours, theta + 0.5, state)
    _, back = estimator.estimate(ours, theta, moved)
    B = right_hand_sides(ours, estimator, theta, state)
    torch.testing.assert_close(dense(ours)[0] @ back.previous, B, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(back.previous, state.previous, rtol=0, atol=0)
    assert not torch.allclose(right_hand_sides(ours, estimator, theta + 0.5, moved), B)


def test_equal_generators_give_equal_estimates():
    ours = problem()
    estimator = PathwiseGradient(CG(), n_probes=4)
    first, second = (
        estimator.estimate(ours, ours.kernel.theta0, GradientState(generator(3)))[0].grad
        for _ in range(2)
    )
    assert torch.equal(first, second)


# ---------------------------------------------------------------- when a solve ends


@pytest.mark.parametrize("tol", [0.1, 0.01, 1e-6])
@pytest.mark.parametrize("t", [1, 3])
def test_targets_and_probes_reach_the_tolerance(tol, t):
    ours = problem(t=t, n=100)
    estimator = PathwiseGradient(CG(), n_probes=6, solver_tol=tol, solver_max_epochs=5000)
    estimate, state = estimator.estimate(ours, ours.kernel.theta0, GradientState(generator()))
    assert estimate.solution.status is End.CONVERGED
    B = right_hand_sides(ours, estimator, ours.kernel.theta0, state)
    residuals = B - dense(ours)[0] @ state.previous
    relative = residuals.norm(dim=0) / B.norm(dim=0)
    assert float(relative[:t].max()) <= 1.01 * tol
    assert float(relative[t:].mean()) <= 1.01 * tol


def test_the_rule_looks_at_every_target_and_at_the_mean_of_the_probes():
    rule = StandardGradient(n_probes=3, solver_tol=0.1, solver_max_epochs=50).stopping(2)

    def status(*residuals, epochs=0.0):
        return rule.check(Progress(torch.tensor(residuals, dtype=torch.float64), epochs=epochs))

    assert status(0.05, 0.1, 0.05, 0.05, 0.15) is End.CONVERGED
    assert status(0.05, 0.11, 0.0, 0.0, 0.0) is None
    assert status(0.05, 0.05, 0.0, 0.0, 0.31) is None
    assert status(1.0, 1.0, 1.0, 1.0, 1.0, epochs=50) is End.MAX_EPOCHS


def test_a_spent_budget_is_reported_and_the_gradient_still_there():
    ours = problem()
    estimator = StandardGradient(CG(), n_probes=4, solver_tol=1e-10, solver_max_epochs=3)
    estimate, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState(generator()))
    assert estimate.solution.status is End.MAX_EPOCHS
    assert estimate.grad.isfinite().all() and estimate.value is None
    assert 3 <= estimate.solution.epochs < 5


def test_an_own_preconditioner_takes_the_place_of_the_solvers():
    ours = problem()
    estimator = StandardGradient(CG("nystrom"), preconditioner=PivotedCholesky(rank=7), n_probes=2)
    estimate, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState(generator()))
    assert estimate.solution.stats["preconditioner_rank"] == 7


# ---------------------------------------------------------------- settings


def test_kernels_without_a_spectral_density_say_so():
    ours = problem(PERIODIC, d=1)
    with pytest.raises(NoSpectralDensity, match="ExpSineSquared"):
        PathwiseGradient().estimate(ours, ours.kernel.theta0, GradientState(generator()))


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
def test_settings_are_cloned_and_untouched(estimator):
    before = str(estimator.get_params())
    estimates(problem(), estimator, n_seeds=1)
    assert str(estimator.get_params()) == before
    assert clone(estimator).set_params(n_probes=3).n_probes == 3


def test_single_precision_estimates_the_same_gradient():
    ours = problem(n=80)
    estimator = PathwiseGradient(Cholesky(), n_probes=64)
    double, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState(generator()))
    # torch draws other numbers in float32, so the probes of float64 are handed over.
    probes = estimator.draw(ours.to(torch.float32), generator(7))
    single, _ = estimator.estimate(
        ours.to(torch.float32), ours.kernel.theta0, GradientState(generator(), probes)
    )
    assert single.grad.dtype == torch.float64
    spread = estimates(ours, estimator, n_seeds=30).std(0)
    assert float(((single.grad - double.grad) / spread).abs().max()) < 5
    assert np.isfinite(single.grad.numpy()).all()


def test_names_stand_for_estimators():
    assert type(resolve_gradient("exact")) is ExactGradient
    pathwise = resolve_gradient("pathwise", n_probes=7, solver_tol=0.5)
    assert type(pathwise) is PathwiseGradient and (pathwise.n_probes, pathwise.solver_tol) == (
        7,
        0.5,
    )
    own = StandardGradient(n_probes=3)
    assert resolve_gradient(own, n_probes=7) is own and own.n_probes == 3
    with pytest.raises(ValueError, match="Unknown gradient 'best': use .*'standard'"):
        resolve_gradient("best")


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (PathwiseGradient(prior="cholesky"), "prior"),
        (PathwiseGradient(n_pairs=0), "n_pairs"),
        (StandardGradient(solver_tol=-1.0), "solver_tol"),
    ],
)
def test_wrong_settings_say_which(estimator, name):
    with pytest.raises(ValueError, match=f"{name} must be .*got"):
        resolve_gradient(estimator)


def test_all_epochs_of_an_estimate_are_counted():
    ours = problem(n=80)
    estimator = PathwiseGradient(Cholesky(), n_probes=2, prior="exact")
    estimate, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState())
    # The prior's factor, and the factor and the residual of the solve.
    assert estimate.solution.epochs == 3


def test_what_trains_on_a_subset():
    own = ExactGradient(max_jitter=1e-5)
    assert own.on_subset() is own
    assert StandardGradient().on_subset() is None


@pytest.mark.slow
def test_probes_of_the_preconditioners_covariance_are_unbiased_and_quieter():
    ours = problem(n=80)
    own = {"n_probes": 4, "preconditioner": "pivoted_cholesky", "solver_warm_start": False}
    plain = estimates(ours, StandardGradient("cg", solver_tol=1e-8, **own), n_seeds=200)
    quiet = StandardGradient("cg", solver_tol=1e-8, probes="preconditioned", **own)
    quiet = estimates(ours, quiet, n_seeds=200)
    truth, _ = ExactGradient().estimate(ours, ours.kernel.theta0, GradientState(generator()))
    for values, expected in zip(quiet.T, truth.grad, strict=True):
        assert abs(z_score(values, float(expected))) < 4
    assert float(quiet.std(0).norm()) < float(plain.std(0).norm())


@pytest.mark.parametrize(
    "make", [StandardGradient, pytest.param(TruncatedGradient, marks=pytest.mark.slow)]
)
def test_few_columns_and_little_noise_leave_the_probes_quiet(make):
    """Draws from N(0, H) would cost p / 2s nats; those of the low-rank part and noise over 100."""
    ours, s = problem(Matern([0.5, 0.7], nu=1.5) + W(1e-4), n=80), 4
    theta, settings = ours.kernel.theta0, {"n_probes": s, "probes": "preconditioned"}
    if make is StandardGradient:
        settings |= {"solver": "cg", "solver_tol": 1e-8, "solver_warm_start": False}
    else:
        settings["truncation"] = FixedTruncation(80)
    grads = estimates(ours, make(preconditioner=PivotedCholesky(rank=10), **settings), n_seeds=30)
    F = fisher_information(ours, theta, 80, generator())
    noise = grads - expected_gradient(ours)
    cost = 0.5 * (noise * torch.linalg.solve(F, noise.T).T).sum(1).mean()
    assert float(cost) < 5 * len(theta) / (2 * s)


def test_fisher_information_is_the_covariance_of_the_score():
    ours, theta = problem(n=40), problem(n=40).kernel.theta0
    F = fisher_information(ours, theta, 40, generator())
    L = torch.linalg.cholesky(ours.operator(theta).to_dense())
    scores = []
    for seed in range(400):
        drawn = replace(
            ours, rows=Rows.of(ours.X, L @ normal(40, 1, seed=seed)), workspace=Workspace()
        )
        scores.append(ExactGradient().estimate(drawn, theta, GradientState())[0].grad)
    covariance = torch.stack(scores).T.cov()
    scale = F.diagonal().sqrt()
    assert float(((covariance - F) / scale / scale[:, None]).abs().max()) < 0.25
    half = fisher_information(ours, theta, 20, generator())
    assert 0.5 < float(half.diagonal().sum() / F.diagonal().sum()) < 2
