"""Properties of row-based solvers and of block conjugate gradients beyond the contract."""

import pytest
import torch
from oracles import Problem, kernel_problem, spectrum_problem

from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import (
    ADASAP,
    AP,
    CG,
    SDD,
    SGD,
    BlockCG,
    MaxEpochs,
    MaxIterations,
    RelativeResidual,
    Status,
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
    assert solution.status is Status.STAGNATED
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
    assert solution.status is Status.CONVERGED
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
