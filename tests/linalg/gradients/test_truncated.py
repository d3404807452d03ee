"""The randomly truncated gradient against dense algebra: z-scores over fixed seeds."""

import pytest
import torch
from oracles import generator, normal, z_score
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp.gradients import ExactGradient, GradientState, TruncatedGradient
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.linalg.truncation import WeightedColumns, roulette_cg, roulette_weights
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import End
from skscalablegp.truncation import ExponentialTruncation, FixedTruncation, ReciprocalTruncation

N, N_DRAWS = 30, 10_000
RANDOM, FIXED = ExponentialTruncation(0.2, min_iter=2), FixedTruncation(3)


def problem(t=1, n=N):
    X = normal(n, 2, seed=5)
    Y = torch.sin(2 * X[:, :1]) + 0.1 * normal(n, t, seed=6)
    kernel = ConstantKernel(1.3) * RBF([0.8, 1.4]) + WhiteKernel(0.02)
    return GPProblem(compile_kernel(kernel, 2), Rows.of(X, Y))


def exact(ours):
    theta = ours.kernel.theta0
    estimate, _ = ExactGradient().estimate(ours, theta, GradientState())
    return estimate


def derivatives(ours):
    _, dH = ours.kernel.kernel(ours.X.numpy(), eval_gradient=True)
    return torch.from_numpy(dH).permute(2, 0, 1).contiguous()


def components(ours, settings, preconditioner):
    """N_DRAWS gradients with probes and three truncation points each, from one batched run."""
    operator, g = ours.operator(ours.kernel.theta0), generator(11)
    bound = settings.on(N)
    left, right, trace = (roulette_weights(bound, bound.sample(N_DRAWS, g)) for _ in range(3))
    Z, _ = TruncatedGradient(n_probes=N_DRAWS).draw(ours, g)
    result = roulette_cg(
        operator,
        torch.cat([ours.Y, Z], 1),
        [
            WeightedColumns(slice(0, 1), left),
            WeightedColumns(slice(0, 1), right),
            WeightedColumns(slice(1, 1 + N_DRAWS), trace),
        ],
        preconditioner=preconditioner and preconditioner.build(operator, generator()),
    )
    V, U, S = result.values
    dH = derivatives(ours)
    fit = (V * (dH @ U)).sum(1)
    return 0.5 * (fit - (S * (dH @ Z)).sum(1))


@pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(rank=5)], ids=str)
def test_every_component_is_unbiased(preconditioner):
    ours = problem()
    for values, expected in zip(
        components(ours, RANDOM, preconditioner), exact(ours).grad, strict=True
    ):
        assert abs(z_score(values, float(expected))) < 4


@pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(rank=5)], ids=str)
def test_truncated_conjugate_gradients_are_not(preconditioner):
    ours = problem()
    scores = [
        z_score(values, float(expected))
        for values, expected in zip(
            components(ours, FIXED, preconditioner), exact(ours).grad, strict=True
        )
    ]
    assert max(map(abs, scores)) > 4
    # The length scales are pulled up and the fit is let go: the bias towards underfitting.
    assert scores[1] > 4 and scores[2] > 4


@pytest.mark.parametrize(
    "t, probes",
    [
        (2, "rademacher"),
        pytest.param(1, "normal", marks=pytest.mark.slow),
        pytest.param(1, "rademacher", marks=pytest.mark.slow),
        pytest.param(2, "normal", marks=pytest.mark.slow),
    ],
)
def test_the_estimator_itself(probes, t):
    ours = problem(t)
    estimator = TruncatedGradient(RANDOM, n_probes=9, probes=probes)
    g, grads = generator(2), []
    for _ in range(100):
        estimate, state = estimator.estimate(ours, ours.kernel.theta0, GradientState(g))
        grads.append(estimate.grad)
    for values, expected in zip(torch.stack(grads).T, exact(ours).grad, strict=True):
        assert abs(z_score(values, float(expected))) < 4
    assert estimate.value is None and estimate.solution.status is End.CONVERGED
    assert 0 <= state.extra["orthogonality_loss"] < 0.1


def test_full_length_runs_with_many_probes_are_exact_up_to_them():
    ours = problem()
    estimator = TruncatedGradient(FixedTruncation(N), n_probes=2000, reorthogonalize=True)
    estimate, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState(generator()))
    torch.testing.assert_close(estimate.grad, exact(ours).grad, rtol=0.05, atol=0.2)


def test_three_independent_truncation_points():
    ours = problem()
    seen = []
    for seed in range(5):
        estimate, _ = TruncatedGradient(RANDOM, n_probes=2).estimate(
            ours, ours.kernel.theta0, GradientState(generator(seed))
        )
        draws = estimate.solution.stats["draws"]
        assert len(draws) == 3
        assert estimate.solution.n_iter == max(draws)
        # One product a step, none for the preconditioner; and the bilinear form.
        assert estimate.solution.epochs == pytest.approx(max(draws) + 1)
        seen += draws
    assert len(set(seen)) > 5


def test_settings():
    estimator = TruncatedGradient(ExponentialTruncation(0.1), n_probes=3)
    assert clone(estimator).set_params(truncation__rate=0.3).truncation.rate == 0.3
    with pytest.raises(ValueError, match="probes must be one of"):
        TruncatedGradient(probes="sobol").bound(10)
    with pytest.raises(ValueError, match="at most min_iter=10"):
        TruncatedGradient(ExponentialTruncation(min_iter=11)).bound(10)


@pytest.mark.slow
@pytest.mark.parametrize("t", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_averaged_draws_and_preconditioned_probes_are_unbiased_and_quieter(t):
    ours, spreads = problem(t), []
    for settings in (
        {"n_draws": 1},
        {"n_draws": 6, "probes": "preconditioned", "preconditioner": PivotedCholesky(rank=5)},
    ):
        estimator, g, grads = TruncatedGradient(RANDOM, n_probes=3, **settings), generator(2), []
        for _ in range(150):
            estimate, _ = estimator.estimate(ours, ours.kernel.theta0, GradientState(g))
            grads.append(estimate.grad)
        grads = torch.stack(grads)
        for values, expected in zip(grads.T, exact(ours).grad, strict=True):
            assert abs(z_score(values, float(expected))) < 4
        spreads.append(grads.std(0))
    assert (spreads[1] < spreads[0]).all()


def test_cuts_come_later_where_two_estimates_differ():
    ours, state, first = problem(n=80), GradientState(generator(1)), []
    for law in (ExponentialTruncation(0.2), ExponentialTruncation(0.2, min_iter=20)):
        estimator, state = TruncatedGradient(law, n_probes=2), GradientState(generator(1))
        hard = ours.kernel.theta0 + torch.tensor([3.0, 0, 0, -5.0], dtype=torch.float64)
        for _ in range(6):
            _, state = estimator.estimate(ours, hard, state)
        first.append(estimator.bound(80, state.extra["first_cut"]).low)
    assert first[0] > first[1] == 20


@pytest.mark.parametrize(
    "law", [ExponentialTruncation(max_iter=30), ReciprocalTruncation(max_iter=9)]
)
def test_cuts_come_no_later_than_the_largest_one(law):
    ours, state = problem(n=80), GradientState(generator(1))
    hard = ours.kernel.theta0 + torch.tensor([3.0, 0, 0, -5.0], dtype=torch.float64)
    estimator = TruncatedGradient(law, n_probes=2)
    for _ in range(8):
        _, state = estimator.estimate(ours, hard, state)
    bound = estimator.bound(80, state.extra["first_cut"])
    assert bound.low == bound.high == law.max_iter
