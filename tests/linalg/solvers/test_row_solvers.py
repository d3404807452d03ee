"""Properties of row-based solvers and of block conjugate gradients beyond the contract."""

import pytest
import torch
from oracles import Problem, kernel_problem, spectrum_problem
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import (
    ADASAP,
    AP,
    CG,
    SDD,
    SGD,
    BlockCG,
    End,
    MaxEpochs,
    MaxIterations,
    RelativeResidual,
    solve,
)

ROW_SOLVERS = [AP(12), SGD(12), SDD(12), ADASAP(12, rank=4)]
with_row_solvers = pytest.mark.parametrize("solver", ROW_SOLVERS, ids=lambda s: type(s).__name__)


@with_row_solvers
def test_a_step_is_a_block_of_rows(solver):
    problem = kernel_problem()
    operator = problem.operator()
    state = solver.init(operator, problem.B, None, None)
    before = operator.epochs
    assert before <= (12 / 60) ** 2 + 1e-12
    solver.step(operator, state)
    assert operator.epochs - before == pytest.approx(12 / 60)


@with_row_solvers
def test_warm_starts_know_their_residual(solver):
    problem = kernel_problem()
    operator = problem.operator()
    x0 = torch.linalg.solve(problem.H, problem.B) + 0.01
    state = solver.init(operator, problem.B, x0, None)
    for _ in range(40):
        solver.step(operator, state)
    truth = problem.relative_residuals(state.x)
    if isinstance(solver, SGD):
        # rows keep the residual of their last visit
        assert ((state.residual_norms / truth) < 10).all()
        assert ((state.residual_norms / truth) > 0.1).all()
    else:
        torch.testing.assert_close(state.residual_norms, truth, rtol=1e-8, atol=1e-13)


def test_the_block_with_the_largest_residual_goes_first():
    problem = kernel_problem(s=2)
    B = torch.zeros_like(problem.B)
    # a column counts by its relative size
    B[30:40, 0], B[:, 1] = 1e6, 1e-3
    operator, solver = problem.operator(), AP(10)
    state = solver.step(operator, solver.init(operator, B, None, None))
    assert state.chosen == 3
    residual = B - problem.H @ state.x
    assert float(residual[30:40].abs().max()) < 1e-7


def test_factors_beyond_the_memory_are_made_anew():
    problem = kernel_problem(noise=1.0)
    stopping = RelativeResidual(1e-6) | MaxEpochs(500)
    full, none = (
        solve(problem.operator(), problem.B, AP(10, factor_memory=room), stopping=stopping)
        for room in (1e9, 0.0)
    )
    assert full.converged and torch.allclose(full.value, none.value)


@pytest.mark.parametrize("solver", [AP(10), ADASAP(10, rank=None)], ids=["AP", "ADASAP"])
def test_a_singular_block_gets_reported_jitter(solver):
    problem = kernel_problem(duplicates=True, noise=0.0)
    H = problem.H.roll((5, 5), (0, 1))  # duplicates within one block
    H = H[:40, :40].clone()
    H[5:10, :], H[:, 5:10] = H[:5, :].clone(), H[:, :5].clone()
    H[5:10, :5] = H[:5, :5]
    H[5:10, 5:10] = H[:5, :5]
    operator = Problem("singular", H, problem.noise[:40], H @ problem.B[:40]).operator()
    solution = solve(operator, H @ problem.B[:40], solver, stopping=MaxIterations(20))
    assert solution.stats["jitter"] > 0
    assert solution.value.isfinite().all()


@pytest.mark.parametrize("solver", [SGD(20, step_size=100.0), SDD(20, step_size=100.0)])
def test_a_step_that_diverges_is_halved_and_reported(solver):
    problem = kernel_problem(noise=0.1)
    stopping = RelativeResidual(1e-2) | MaxEpochs(2000)
    solution = solve(problem.operator(), problem.B, solver, stopping=stopping)
    assert solution.converged
    assert solution.stats["n_halvings"] > 3
    assert float(problem.relative_residuals(solution.value).max()) <= 1e-2


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64]
)
@pytest.mark.parametrize(
    "solver", [AP(8), SGD(8, step_size=0.1), SDD(8), ADASAP(8, rank=4)], ids=lambda s: repr(s)[:3]
)
def test_what_rows_cannot_reach_is_noticed(solver, dtype):
    """Two equal rows with opposite targets: their residual stays as it is, exactly."""
    good = spectrum_problem(1e1, n=30, s=2)
    H = torch.block_diag(good.H, torch.ones(2, 2, dtype=torch.float64))
    B = torch.cat([good.B, torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 2)])
    problem = Problem("inconsistent", H, torch.full((32,), 1e-3, dtype=torch.float64), B)
    stopping = RelativeResidual(1e-2) | MaxEpochs(3000)
    solution = solve(problem.operator(dtype), B, solver, stopping=stopping)
    assert solution.status is End.STAGNATED
    assert 200 < solution.epochs < 600
    assert (solution.residuals < 0.5).all()


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("duplicates", [False, True])
def test_projections_solve_kernel_matrices(duplicates, tol):
    problem = kernel_problem(noise=0.1, duplicates=duplicates)
    stopping = RelativeResidual(tol) | MaxEpochs(2000)
    solution = solve(problem.operator(), problem.B, AP(20), stopping=stopping)
    assert solution.converged
    assert float(problem.relative_residuals(solution.value).max()) <= 1.01 * tol


def test_acceleration_pays():
    problem = spectrum_problem(1e4)
    stopping = RelativeResidual(1e-2) | MaxEpochs(1000)
    plain = solve(problem.operator(), problem.B, AP(10), stopping=stopping)
    fast = solve(problem.operator(), problem.B, ADASAP(10, rank=None), stopping=stopping)
    assert fast.converged and fast.epochs < 0.5 * plain.epochs


def test_the_tail_average_is_the_weighted_mean_of_the_iterates():
    problem, iterates = kernel_problem(noise=0.1), []
    for average in (False, True):
        operator, solver = problem.operator(), ADASAP(12, rank=4, tail_averaging=average)
        state = solver.init(operator, problem.B, None, None)
        for _ in range(9):
            solver.step(operator, state)
            if not average:
                iterates.append(state.x.clone())
    torch.testing.assert_close(state.x, iterates[-1])
    # Number t has the weight t (t + 1) ... (t + 6).
    t = torch.arange(1, 10, dtype=torch.float64)
    weights = torch.stack([t + k for k in range(7)]).prod(0)
    expected = torch.einsum("t,tns->ns", weights / weights.sum(), torch.stack(iterates))
    torch.testing.assert_close(state.average, expected)
    torch.testing.assert_close(state.average_R, problem.B - problem.H @ expected)
    solver.check(operator, state)
    torch.testing.assert_close(state.average_R, problem.B - problem.H @ expected)


def test_a_solve_that_ends_early_returns_the_better_of_iterate_and_average():
    problem, chosen = spectrum_problem(1e6, s=6), []
    for n_steps in range(20, 60, 5):
        last, best = (
            solve(
                problem.operator(),
                problem.B,
                ADASAP(10, rank=3, tail_averaging=average),
                stopping=MaxIterations(n_steps),
            )
            for average in (False, True)
        )
        assert (best.residuals <= last.residuals * (1 + 1e-9)).all()
        truth = problem.relative_residuals(best.value)
        torch.testing.assert_close(best.residuals, truth, rtol=1e-6, atol=1e-12)
        chosen += (best.residuals < last.residuals).tolist()
    assert True in chosen and False in chosen


@pytest.mark.night
def test_sketch_and_project_does_not_diverge_in_badly_conditioned_problems():
    """Fifty of them, 50 passes; the NLPD is compared with that of the dense solution."""
    excess = {"adasap": [], "cg": []}
    for number in range(50):
        H, y, cross, y_new, std, problem = _badly_conditioned(number)
        preconditioner = PivotedCholesky(20, randomized=True, random_state=0)
        solvers = {"adasap": ADASAP(100, rank=10), "cg": CG(preconditioner)}
        for name, solver in solvers.items():
            found = solve(problem, y.float(), solver, stopping=MaxEpochs(50)).value.double()
            if name == "adasap":
                assert float((y - H @ found).norm() / y.norm()) < 0.5, number
            errors = [y_new - cross @ x for x in (found, torch.linalg.solve(H, y))]
            of, exact = (0.5 * float((e / std).square().mean()) for e in errors)
            excess[name].append(of - exact)
    pairs = list(zip(excess["adasap"], excess["cg"], strict=True))
    assert sum(ours <= theirs + 0.05 for ours, theirs in pairs) >= 45
    means = {name: sum(values) / len(values) for name, values in excess.items()}
    assert means["cg"] > means["adasap"] + 1


def _badly_conditioned(number, n=600, n_new=100):
    """A process with little noise: H, y, k(new, rows), new targets, deviations, and H in tiles."""
    generator = torch.Generator().manual_seed(number)
    d, draw = 1 + number % 8, torch.rand(2, generator=generator)
    length_scale, noise = 0.3 * 27 ** float(draw[0]), 10 ** float(-6 + 4 * draw[1])
    nu = (1.5, 2.5, float("inf"))[number % 3]
    kernel = compile_kernel(Matern(length_scale, nu=nu) + WhiteKernel(noise), d)
    X = torch.randn(n + n_new, d, generator=generator, dtype=torch.float64)
    G = kernel.cross(kernel.theta0, X, X)
    G.diagonal().add_(noise)
    white = torch.randn(n + n_new, 1, generator=generator, dtype=torch.float64)
    y = torch.linalg.cholesky(G) @ white
    H, cross = G[:n, :n], G[n:, :n]
    left = G.diagonal()[n:] - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    problem = GPProblem(kernel, Rows.of(X[:n].float(), y[:n].float()))
    std = left.clamp_min(noise).sqrt()[:, None]
    return H, y[:n], cross, y[n:], std, problem.operator(kernel.theta0)


@pytest.mark.parametrize(
    "solver, name",
    [
        (AP(0), "block_size"),
        (AP(10, factor_memory=-1), "factor_memory"),
        (SGD(10, momentum=1.0), "momentum"),
        (SGD(2.5), "batch_size"),
        (SDD(10, step_size="big"), "step_size"),
        (SDD(10, averaging_epochs=-1.0), "averaging_epochs"),
        (ADASAP(10, rank=0), "rank"),
        (ADASAP(10, strength=2.0), "strength"),
    ],
)
def test_wrong_settings_say_which(solver, name):
    problem = kernel_problem()
    with pytest.raises(ValueError, match=name):
        solve(problem.operator(), problem.B, solver, stopping=MaxIterations(1))


@pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(rank=10)])
def test_sharing_directions_saves_iterations(preconditioner):
    problem = spectrum_problem(1e4)
    stopping = RelativeResidual(1e-4) | MaxEpochs(500)
    alone, shared = (
        solve(problem.operator(), problem.B, kind(preconditioner), stopping=stopping)
        for kind in (CG, BlockCG)
    )
    assert shared.converged and shared.n_iter < 0.5 * alone.n_iter
    # n / s steps see the whole space
    assert shared.n_iter <= 40 / 5 + 4


def test_dependent_right_hand_sides_do_no_harm():
    problem = kernel_problem()
    B = torch.cat([problem.B, problem.B, problem.B[:, :1] * 1e-8, problem.B * 0], 1)
    stopping = RelativeResidual(1e-9) | MaxEpochs(500)
    solution = solve(problem.operator(), B, BlockCG(), stopping=stopping)
    assert solution.status is End.CONVERGED
    assert torch.allclose(solution.value[:, :5], solution.value[:, 5:10], rtol=1e-6, atol=1e-7)


def test_a_sequence_of_short_warm_solves_does_not_grow():
    """Steps a little too long grow by a factor that no single budget notices."""
    problem = kernel_problem()
    step_size = 2.3 / float(torch.linalg.eigvalsh(problem.H).max())
    solver, x = SGD(60, step_size=step_size, momentum=0.0), None
    for _ in range(12):
        solution = solve(problem.operator(), problem.B, solver, stopping=MaxEpochs(6), x0=x)
        x = solution.value
        assert float(problem.relative_residuals(x).mean()) < 5
