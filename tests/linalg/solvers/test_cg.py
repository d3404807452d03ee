"""Properties of conjugate gradients beyond the contract."""

import pytest
import torch
from oracles import DenseOperator, Problem, kernel_problem, normal, spectrum_problem

from skscalablegp.linalg.operators import SelfAdjointOperator
from skscalablegp.linalg.solvers import Column, lanczos, resolve_solver
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import (
    CG,
    BlockCG,
    End,
    MaxEpochs,
    MaxIterations,
    RelativeResidual,
    solve,
)


@pytest.mark.parametrize("solver", [CG(), CG(PivotedCholesky(5)), CG(residual_refresh=3)])
def test_increments_add_up_to_the_solution(solver):
    problem = spectrum_problem(1e2)
    operator = problem.operator()
    state = solver.init(operator, problem.B, None, None)
    total = torch.zeros_like(problem.B)
    for _ in range(12):
        solver.step(operator, state)
        total += state.gamma * state.direction
    torch.testing.assert_close(state.x, total)


def test_after_convergence_increments_are_zero():
    problem = spectrum_problem(1e1, n=6)
    operator, solver = problem.operator(), CG(residual_refresh=None)
    state = solver.init(operator, problem.B, None, None)
    for _ in range(60):
        solver.step(operator, state)
    assert (state.columns == Column.SETTLED).all()
    assert not state.gamma.any()
    assert problem.relative_residuals(state.x).max() < 1e-13


def test_directions_are_conjugate_and_columns_independent():
    problem = spectrum_problem(1e2)
    operator, solver = problem.operator(), CG()
    state = solver.init(operator, problem.B, None, None)
    directions = []
    for _ in range(6):
        solver.step(operator, state)
        directions.append(state.direction.clone())
    D = torch.stack(directions)
    gram = torch.einsum("ans,nm,bms->sab", D, problem.H, D)
    scale = gram.diagonal(dim1=1, dim2=2).sqrt()
    cosines = gram / scale[:, :, None] / scale[:, None, :]
    assert float((cosines - torch.eye(6, dtype=torch.float64)).abs().max()) < 1e-8
    alone = solve(operator, problem.B[:, 2:3], solver, stopping=MaxIterations(6))
    torch.testing.assert_close(alone.value, state.x[:, 2:3])


class WithPrior(SelfAdjointOperator):
    """I + G K, which is self-adjoint in the inner product of K."""

    def __init__(self, G, K):
        super().__init__(len(G), G.dtype, G.device)
        self.G, self.K, self.n_products = G, K, 0

    def dual(self, V):
        self.n_products += 1
        return self.K @ V

    def norms(self, V):
        return (V * (self.K @ V)).sum(0).sqrt()

    def image(self, V, dual):
        return V + self.G @ dual

    def matmul(self, V):
        return self.image(V, self.dual(V))


def test_an_operator_may_have_its_own_inner_product():
    G, K = spectrum_problem(1e2).H, spectrum_problem(1e3, seed=5).H
    operator, B = WithPrior(20 * G, K), normal(40, 3)
    A = torch.eye(40, dtype=torch.float64) + 20 * G @ K
    plain = CG(residual_refresh=None)
    tol = torch.tensor([1e-3, 1e-6, 1e-10], dtype=torch.float64)
    solution = solve(operator, B, plain, stopping=RelativeResidual(tol) | MaxIterations(200))
    assert solution.converged and solution.n_iter < 60
    # One product with K a step.
    assert operator.n_products <= solution.n_iter + 2
    torch.testing.assert_close(solution.value, torch.linalg.solve(A, B), rtol=1e-5, atol=1e-5)
    residuals = operator.norms(B - A @ solution.value) / operator.norms(B)
    torch.testing.assert_close(solution.residuals, residuals, rtol=1e-3, atol=1e-12)
    warm = solve(operator, B, plain, stopping=MaxIterations(0), x0=solution.value)
    torch.testing.assert_close(warm.residuals, residuals, rtol=1e-6, atol=1e-14)
    # From K^1/2 b Lanczos tridiagonalises I + K^1/2 G K^1/2.
    values, vectors = torch.linalg.eigh(K)
    root = (vectors * values.sqrt()) @ vectors.T
    symmetric = DenseOperator(torch.eye(40, dtype=torch.float64) + 20 * root @ G @ root)
    expected, made = lanczos(symmetric, root @ B, 9), lanczos(operator, B, 9)
    torch.testing.assert_close(made.matrix(), expected.matrix())
    torch.testing.assert_close(made.basis @ root, expected.basis)


def test_epochs_are_products_plus_preconditioner_rows():
    problem = spectrum_problem(1e3)
    operator = problem.operator()
    solution = solve(operator, problem.B, CG(PivotedCholesky(10)), stopping=MaxIterations(7))
    assert solution.epochs == pytest.approx(7 + 10 / 40)
    assert solution.stats["preconditioner_rank"] == 10
    warm = solve(operator, problem.B, CG(), stopping=MaxIterations(7), x0=solution.value)
    assert warm.epochs == pytest.approx(8)
    built = PivotedCholesky(10).build(operator)
    shared = solve(operator, problem.B, CG(), stopping=MaxIterations(7), preconditioner=built)
    assert shared.epochs == pytest.approx(7)
    torch.testing.assert_close(shared.value, solution.value)


class Coarse(DenseOperator):
    """Products in twelve bits: what rounding does to a solve, whatever the processor."""

    def matmul(self, V):
        product = super().matmul(V)
        grid = torch.exp2(product.abs().amax(0).clamp_min(1e-300).log2().floor() - 12)
        return (product / grid).round() * grid


@pytest.mark.parametrize(
    "solver", [CG(residual_refresh=5), CG(residual_refresh=20), BlockCG(residual_refresh=5)]
)
def test_a_stagnated_solve_is_no_worse_than_its_start(solver):
    problem = spectrum_problem(1e2)
    operator = Coarse(problem.H, problem.noise)
    stopping = RelativeResidual(1e-8) | MaxEpochs(4000)
    for x0 in (None, torch.linalg.solve(problem.H, problem.B)):
        solution = solve(operator, problem.B, solver, stopping=stopping, x0=x0)
        first = torch.zeros_like(problem.B) if x0 is None else x0
        reached, began = (
            (problem.B - operator.matmul(x)).norm(dim=0) / problem.B.norm(dim=0)
            for x in (solution.value, first)
        )
        assert solution.status is End.STAGNATED and solution.epochs < 300
        assert (reached <= 1.01 * began).all()
        torch.testing.assert_close(solution.residuals, reached)
        assert x0 is not None or float(reached.max()) < 1e-3


@pytest.mark.parametrize("solver", [CG(), CG(residual_refresh=20)])
def test_a_residual_that_never_falls_is_noticed(solver):
    """I + S with a skew S: curvatures are positive, and every step leads further away."""
    J = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    H = torch.eye(20, dtype=torch.float64) + torch.block_diag(*[J] * 10)
    B = normal(20, 3)
    stopping = RelativeResidual(1e-6) | MaxEpochs(4000)
    solution = solve(DenseOperator(H), B, solver, stopping=stopping)
    assert solution.status is End.STAGNATED
    assert 250 <= solution.n_iter < 300
    assert not solution.value.any() and (solution.residuals == 1).all()
    # A sequence of plain increments is another matter: it has no such check.
    plain = CG(residual_refresh=None)
    assert solve(DenseOperator(H), B, plain, stopping=MaxIterations(400)).n_iter == 400


def test_float32_recurrence_alone_would_stop_too_early():
    problem = kernel_problem(n=300, noise=1e-3)
    stopping = RelativeResidual(2e-3) | MaxEpochs(3000)
    operator = problem.operator(torch.float32)
    H = operator.H.double()

    def truth(solution):
        residual = problem.B - H @ solution.value.double()
        return (residual.norm(dim=0) / problem.B.norm(dim=0))[1:].max().item()

    drifting = solve(operator, problem.B, CG(residual_refresh=None), stopping=stopping)
    honest = solve(operator, problem.B, CG(), stopping=stopping)
    assert drifting.converged and truth(drifting) > 3e-3
    assert honest.residuals[1:].max().item() == pytest.approx(truth(honest), rel=0.2)
    assert honest.stats["residuals_exact"] and honest.stats["n_refreshes"] >= 1


def test_float32_that_cannot_reach_the_tolerance_says_so():
    problem = kernel_problem(n=100, noise=1e-3)
    solution = solve(
        problem.operator(torch.float32),
        problem.B,
        CG(PivotedCholesky(50)),
        stopping=RelativeResidual(1e-7) | MaxEpochs(3000),
    )
    assert solution.status is End.STAGNATED
    assert "float64" in solution.status.remedy
    assert solution.stats["residuals_exact"]
    assert float(problem.relative_residuals(solution.value).max()) < 0.1


@pytest.mark.parametrize("kind", [CG, BlockCG])
def test_float64_residuals_solve_ill_conditioned_problems_in_float32(kind):
    problem = spectrum_problem(1e6, n=300)
    operator, stopping = problem.operator(torch.float32), RelativeResidual(1e-6) | MaxEpochs(3000)
    stored = Problem("stored", operator.H.double(), problem.noise, problem.B.float().double())
    P = PivotedCholesky(100).build(operator)
    precise, plain = kind(P, residual_dtype="float64"), kind(P)
    solution = solve(operator, problem.B, precise, stopping=stopping)
    assert solution.converged and solution.value.dtype == torch.float64
    assert float(stored.relative_residuals(solution.value).max()) <= 1.01e-6
    warm = solve(operator, problem.B, precise, stopping=stopping, x0=solution.value)
    assert warm.converged and warm.epochs <= 2
    # Nothing in float32 comes near, not even the true solution, rounded.
    assert float(stored.relative_residuals(solution.value.float()).max()) > 1e-4
    assert not solve(operator, problem.B, plain, stopping=stopping).converged


def test_a_residual_that_rests_for_long_has_not_stagnated():
    problem = spectrum_problem(1e6, n=300, s=1)
    stopping = RelativeResidual(1e-6) | MaxEpochs(10_000)
    solution = solve(problem.operator(), problem.B, CG(), stopping=stopping)
    assert solution.converged and solution.n_iter > 1000


def test_float64_pays_for_a_check_only_where_rounding_could_matter():
    problem = kernel_problem(n=100)
    easy = solve(problem.operator(), problem.B, CG(), stopping=RelativeResidual(1e-2))
    assert easy.stats["n_refreshes"] == 0
    hard = solve(problem.operator(), problem.B, CG(), stopping=RelativeResidual(1e-11))
    assert hard.stats["n_refreshes"] >= 1 and hard.stats["residuals_exact"]


def test_one_bad_column_does_not_spoil_the_others():
    problem = spectrum_problem(1e2)
    H = torch.block_diag(problem.H, -torch.eye(1, dtype=torch.float64))
    B = torch.zeros(41, 3, dtype=torch.float64)
    B[:40, 0], B[40, 1], B[:40, 2] = problem.B[:, 0], 1.0, problem.B[:, 1]
    solution = solve(
        DenseOperator(H), B, CG(), stopping=RelativeResidual(1e-8, [0, 2]) | MaxEpochs(500)
    )
    assert solution.converged
    assert solution.value.isfinite().all()
    assert solution.residuals[1] == 1
    every = solve(DenseOperator(H), B, CG(), stopping=RelativeResidual(1e-8) | MaxEpochs(500))
    assert every.status is End.BREAKDOWN


def test_a_right_hand_side_that_is_not_finite_is_a_breakdown():
    problem = spectrum_problem(1e2)
    B = problem.B.clone()
    B[0, 0] = float("nan")
    solution = solve(problem.operator(), B, CG(), stopping=RelativeResidual(1e-6))
    assert solution.status is End.BREAKDOWN
    x0 = problem.B.clone()
    x0[0, 0] = float("inf")
    repaired = solve(problem.operator(), problem.B, CG(), stopping=RelativeResidual(1e-6), x0=x0)
    assert repaired.converged


def test_budget_without_a_goal_stops_once_nothing_moves():
    problem = spectrum_problem(1e1, n=5)
    solution = solve(problem.operator(), problem.B, CG(), stopping=MaxIterations(10_000))
    assert solution.status is not End.MAX_ITER and solution.n_iter < 200
    assert problem.relative_residuals(solution.value).max() < 1e-14


def test_preconditioner_with_many_columns_matches_dense():
    problem = kernel_problem(n=150, s=33, d=3, heteroscedastic=True)
    solution = solve(
        problem.operator(), problem.B, CG("rpcholesky"), stopping=RelativeResidual(1e-10)
    )
    torch.testing.assert_close(
        solution.value, torch.linalg.solve(problem.H, problem.B), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("value", [0, -1, 2.5, "often", True])
def test_wrong_refresh_says_so(value):
    solver = CG(residual_refresh=value)
    problem = kernel_problem(n=5)
    with pytest.raises(ValueError, match="residual_refresh must be .*25; got"):
        solve(problem.operator(), problem.B, solver, stopping=MaxIterations(1))


def test_wrong_precision_says_so():
    problem = kernel_problem(n=5)
    with pytest.raises(ValueError, match="residual_dtype must be 'same' or 'float64'; got 'half'"):
        solve(problem.operator(), problem.B, CG(residual_dtype="half"), stopping=MaxIterations(1))


def test_names():
    assert isinstance(resolve_solver("cg"), CG)
    solver = CG(PivotedCholesky(200))
    assert resolve_solver(solver) is solver
    with pytest.raises(ValueError, match="'lu'.*'cg', 'cholesky'"):
        resolve_solver("lu")
    with pytest.raises(ValueError, match="Unknown solver"):
        resolve_solver(CG)


@pytest.mark.gpu
def test_on_the_gpu(gpu):
    problem = kernel_problem(n=500, s=9, d=3)
    for dtype, tol in ((torch.float32, 1e-2), (torch.float64, 1e-8)):
        operator = DenseOperator(problem.H.to(gpu, dtype), problem.noise.to(gpu, dtype))
        for solver in (CG("rpcholesky"), CG("nystrom"), CG("pivoted_cholesky"), CG()):
            solution = solve(operator, problem.B, solver, stopping=RelativeResidual(tol))
            assert solution.converged
            on_cpu = Problem(problem.name, problem.H, problem.noise, problem.B)
            assert float(on_cpu.relative_residuals(solution.value.cpu()).max()) < 1.2 * tol


def test_does_not_touch_the_global_generator():
    problem = kernel_problem()
    before = torch.random.get_rng_state()
    solve(problem.operator(), problem.B, CG("rpcholesky"), stopping=MaxIterations(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert normal(2).shape == (2,)


def test_parameters_are_set_all_or_none():
    inner = PivotedCholesky(rank=5)
    solver = CG(preconditioner=inner)
    with pytest.raises(ValueError, match="wrong"):
        solver.set_params(residual_refresh=3, preconditioner__rank=7, preconditioner__wrong=1)
    assert solver.residual_refresh == "auto" and solver.preconditioner is inner and inner.rank == 5
    solver = CG(preconditioner="nystrom")
    for wrong in ({"wrong": 1}, {"preconditioner__wrong": 1}):
        with pytest.raises(ValueError, match="wrong"):
            solver.set_params(preconditioner__rank=7, **wrong)
        assert solver.preconditioner == "nystrom"
    assert solver.set_params(preconditioner__rank=7).preconditioner.rank == 7
