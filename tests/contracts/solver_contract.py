"""The contract of solvers.

A new solver is one `SolverRow` in ``tests/solvers/test_solver_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from contracts.cases import Contract
from oracles import PROBLEMS, Problem, kernel_problem, spectrum_problem, with_zero_column
from sklearn.base import clone

from skscalablegp.solvers import (
    End,
    MaxEpochs,
    MaxIterations,
    MaxSeconds,
    RelativeResidual,
    Solver,
    SolverState,
    solve,
)

SLOW, NIGHT = pytest.mark.slow, pytest.mark.night


@dataclass(frozen=True)
class SolverRow:
    """One solver of the table.

    Attributes
    ----------
    make : callable
        Makes a fresh one.
    max_condition : float
        Beyond it the solver is not expected to reach small tolerances.
    max_epochs : float
        Enough for every problem up to ``max_condition``.
    smallest_tol : float
        The smallest tolerance to ask for in float64.
    direct : bool
        One step reaches the solution.
    """

    name: str
    make: Callable[[], Solver]
    max_condition: float = 1e7
    max_epochs: float = 5000
    smallest_tol: float = 1e-8
    direct: bool = False


def expect_solved(row: SolverRow, problem: Problem, tol: float, dtype=torch.float64) -> None:
    operator = problem.operator(dtype)
    stopping = RelativeResidual(tol) | MaxEpochs(row.max_epochs)
    solution = solve(operator, problem.B, row.make(), stopping=stopping)
    truth = problem.relative_residuals(solution.value)
    assert solution.status is End.CONVERGED and solution.converged
    assert solution.status.remedy == ""
    assert solution.value.dtype == dtype and solution.residuals.dtype == torch.float64
    slack = 1.01 if dtype == torch.float64 else 1.2
    assert float(truth.max()) <= slack * tol
    assert solution.epochs == pytest.approx(operator.epochs)


def _marks(problem, tol):
    if tol > 1e-4:
        return NIGHT
    return () if tol == 1e-4 and problem.condition <= 1e3 else SLOW


class SolverContract(Contract):
    """The suite over a table of solvers."""

    def pytest_generate_tests(self, metafunc):
        if metafunc.function.__name__ != "test_reaches_the_tolerance":
            super().pytest_generate_tests(metafunc)
            return
        promised = {
            f"{row.name}-{problem.name}-s{problem.B.shape[1]}-{tol}": (row, problem, tol)
            for row, problem, tol in product(self.rows, PROBLEMS, (1e-2, 1e-4, 1e-8))
            if problem.condition <= row.max_condition and tol >= row.smallest_tol
        }
        # `make test` asks for the tolerance between the others where steps are cheap; the night
        # asks for the largest one, too.
        params = [pytest.param(*case, marks=_marks(case[1], case[2])) for case in promised.values()]
        metafunc.parametrize("row, problem, tol", params, ids=promised.keys())

    def test_reaches_the_tolerance(self, row, problem, tol):
        expect_solved(row, problem, tol)

    @pytest.mark.parametrize(
        ("problem", "tol"),
        [
            (spectrum_problem(1e1), 1e-5),
            (spectrum_problem(1e3), 1e-3),
            (kernel_problem(heteroscedastic=True, noise=0.1), 1e-2),
            (with_zero_column(kernel_problem()), 1e-2),
        ],
        ids=lambda v: getattr(v, "name", None),
    )
    def test_reaches_the_tolerance_in_float32(self, row, problem, tol):
        expect_solved(row, problem, tol, torch.float32)

    @pytest.mark.parametrize(
        "tol", [pytest.param(1e-2, marks=SLOW), 1e-4, pytest.param(1e-8, marks=SLOW)]
    )
    def test_an_ill_conditioned_end_is_honest(self, row, tol):
        problem = spectrum_problem(1e6)
        stopping = RelativeResidual(tol) | MaxEpochs(200)
        solution = solve(problem.operator(), problem.B, row.make(), stopping=stopping)
        truth = float(problem.relative_residuals(solution.value).max())
        if solution.converged:
            assert truth <= 1.01 * tol
        else:
            assert solution.status in (End.MAX_EPOCHS, End.STAGNATED)
            assert solution.status.remedy and truth > 0.99 * tol
            assert 0.5 * truth < float(solution.residuals.max()) < 2 * truth

    def test_columns_of_any_size_are_solved(self, row):
        """Squares of the first two leave the range of float32."""
        problem = spectrum_problem(1e2)
        operator = problem.operator(torch.float32)
        size = torch.tensor([1e-25, 1e25, 1e-4, 1.0, 1.0])
        B = problem.B.float() * size
        stopping = RelativeResidual(1e-2) | MaxEpochs(row.max_epochs)
        for x0 in (None, torch.zeros_like(B)):
            solution = solve(operator, B, row.make(), stopping=stopping, x0=x0)
            assert solution.status is End.CONVERGED
            truth = problem.relative_residuals(solution.value.double() / size.double())
            assert float(truth.max()) < 1.1e-2

    def test_zero_right_hand_side(self, row):
        problem = kernel_problem(s=2)
        B = torch.zeros_like(problem.B)
        stopping = RelativeResidual(1e-8) | MaxEpochs(5)
        x0 = torch.ones_like(B)
        for guess in (None, x0):
            solution = solve(problem.operator(), B, row.make(), stopping=stopping, x0=guess)
            assert solution.converged
            assert not solution.value.any() and not solution.residuals.any()

    def test_warm_start_from_the_solution(self, row):
        problem = kernel_problem()
        exact = torch.linalg.solve(problem.H, problem.B)
        solution = solve(
            problem.operator(), problem.B, row.make(), stopping=RelativeResidual(1e-6), x0=exact
        )
        assert solution.converged
        assert solution.n_iter <= 1

    def test_warm_start_from_nearby_is_faster(self, row):
        problem = spectrum_problem(1e3)
        exact = torch.linalg.solve(problem.H, problem.B)
        near = exact * (1 + 1e-5)
        given = near.clone()
        stopping = RelativeResidual(1e-4) | MaxEpochs(row.max_epochs)
        cold = solve(problem.operator(), problem.B, row.make(), stopping=stopping)
        warm = solve(problem.operator(), problem.B, row.make(), stopping=stopping, x0=near)
        assert warm.converged
        assert warm.n_iter < cold.n_iter or row.direct
        assert torch.equal(near, given)

    def test_budgets_stop_where_they_say(self, row):
        problem = spectrum_problem(1e6)
        never = RelativeResidual(0)

        def status(rule):
            return solve(problem.operator(), problem.B, row.make(), stopping=never | rule)

        two = status(MaxIterations(2))
        assert (two.status, two.n_iter) == (End.MAX_ITER, 2) or row.direct
        epochs = status(MaxEpochs(3))
        assert epochs.status is End.MAX_EPOCHS
        # the step that crosses the line is finished, and one true residual may go with it
        assert 3 <= epochs.epochs < 6
        late = status(MaxSeconds(0))
        assert (late.status, late.n_iter) == (End.MAX_SECONDS, 0)
        for solution in (two, epochs, late):
            assert solution.status.remedy
            assert solution.residuals.max() > 0

    def test_reported_residuals_are_honest(self, row):
        problem = spectrum_problem(1e4)
        for k in (0, 1, 3):
            solution = solve(problem.operator(), problem.B, row.make(), stopping=MaxIterations(k))
            truth = problem.relative_residuals(solution.value)
            if solution.stats["residuals_exact"]:
                torch.testing.assert_close(solution.residuals, truth, rtol=1e-4, atol=1e-11)

    def test_inputs_are_left_alone_and_solves_repeat(self, row):
        problem = kernel_problem()
        B, x0 = problem.B.clone(), problem.B.clone()
        stopping = RelativeResidual(1e-3) | MaxEpochs(20)
        first, second = (
            solve(problem.operator(), B, row.make(), stopping=stopping, x0=x0) for _ in range(2)
        )
        assert torch.equal(B, problem.B) and torch.equal(x0, problem.B)
        assert torch.equal(first.value, second.value)

    def test_callback_sees_every_step(self, row):
        problem, seen = spectrum_problem(1e2), []
        solution = solve(
            problem.operator(),
            problem.B,
            row.make(),
            stopping=MaxIterations(3),
            callback=lambda state: seen.append((state.iteration, isinstance(state, SolverState))),
        )
        assert seen == [(i + 1, True) for i in range(solution.n_iter)]

    def test_an_interruption_leaves_a_usable_state(self, row):
        problem = spectrum_problem(1e2)
        operator, solver = problem.operator(), row.make()
        state = solver.init(operator, problem.B, None, None)
        for _ in range(2):
            solver.step(operator, state)

        def interrupt(*args):
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            for name in ("matmul", "rows", "block", "to_dense"):
                patch.setattr(operator, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                solver.step(operator, state)
        assert state.x.isfinite().all()
        before = float(problem.relative_residuals(state.x).max())
        assert before > 1e-6 or row.direct, "ten more steps would show rounding, not progress"
        for _ in range(10):
            solver.step(operator, state)
        solver.check(operator, state)
        truth = problem.relative_residuals(state.x)
        torch.testing.assert_close(state.residual_norms, truth, rtol=1e-6, atol=1e-12)
        assert float(truth.max()) < before or row.direct

    def test_what_is_not_positive_definite_is_a_status(self, row):
        problem = spectrum_problem(1e2)
        indefinite = Problem("indefinite", -problem.H, problem.noise, problem.B)
        broken = Problem("nan", problem.H * float("nan"), problem.noise, problem.B)
        for bad in (indefinite, broken):
            solution = solve(
                bad.operator(),
                bad.B,
                row.make(),
                stopping=RelativeResidual(1e-6) | MaxEpochs(50),
            )
            assert not solution.converged
            assert solution.status.remedy
            assert solution.value.isfinite().all()

    def test_wrong_shapes_say_so(self, row):
        problem = kernel_problem()
        with pytest.raises(ValueError, match=r"B must have shape \(60, s\)"):
            solve(problem.operator(), problem.B[:7], row.make(), stopping=MaxIterations(1))

    def test_settings_are_kept_and_cloned(self, row):
        solver = row.make()
        before = repr(solver.get_params(deep=False))
        problem = kernel_problem()
        solve(problem.operator(), problem.B, solver, stopping=MaxIterations(2))
        assert repr(solver.get_params(deep=False)) == before
        assert repr(clone(solver)) == repr(solver)
