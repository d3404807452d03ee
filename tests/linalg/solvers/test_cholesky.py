"""Properties of the Cholesky solver beyond the contract."""

import pytest
import torch
from oracles import Problem, kernel_problem, spectrum_problem

from skscalablegp.linalg.solvers import cholesky_with_jitter
from skscalablegp.solvers import Cholesky, End, MaxEpochs, RelativeResidual, solve


def test_no_jitter_where_none_is_needed():
    problem = kernel_problem()
    given = problem.H.clone()
    L, jitter = cholesky_with_jitter(given)
    assert jitter == 0
    assert torch.equal(given, problem.H)
    torch.testing.assert_close(L, torch.linalg.cholesky(problem.H))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jitter_grows_until_it_works_and_is_reported(dtype):
    H = kernel_problem(n=80, d=1, noise=0.0, duplicates=True).H.to(dtype) * 7
    L, jitter = cholesky_with_jitter(H)
    eps = torch.finfo(dtype).eps
    assert 0 < jitter <= 7e-3
    assert jitter / 7 / (10 * eps) == pytest.approx(10 ** round_log(jitter / 7 / (10 * eps)))
    torch.testing.assert_close(
        L @ L.T, H + jitter * torch.eye(80, dtype=dtype), rtol=1e-4, atol=100 * eps
    )
    assert not L.triu(1).any()


def round_log(value):
    return round(torch.tensor(value, dtype=torch.float64).log10().item())


def test_in_place_factor_writes_over_the_matrix_and_rebuilds_it():
    H = kernel_problem(n=80, d=1, noise=0.0, duplicates=True).H
    built = []

    def rebuild():
        built.append(H.clone())
        return built[-1]

    first = rebuild()
    L, jitter = cholesky_with_jitter(first, rebuild=rebuild)
    assert len(built) > 1
    assert L.data_ptr() == built[-1].data_ptr()
    expected, same = cholesky_with_jitter(H)
    assert same == jitter
    torch.testing.assert_close(L, expected)


def test_the_largest_jitter_is_the_last():
    H = -torch.eye(3, dtype=torch.float64)
    with pytest.raises(torch.linalg.LinAlgError, match="Increase the noise"):
        cholesky_with_jitter(H)
    H = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-3]], dtype=torch.float64)
    with pytest.raises(torch.linalg.LinAlgError, match="1e-07"):
        cholesky_with_jitter(H, max_jitter=1e-7)
    assert cholesky_with_jitter(H, max_jitter=1e-2)[1] == pytest.approx(2.2e-3, rel=0.1)
    with pytest.raises(torch.linalg.LinAlgError):
        cholesky_with_jitter(torch.full((2, 2), float("nan")))


def test_solver_keeps_the_factor_and_counts_two_epochs():
    problem = kernel_problem()
    operator, solver = problem.operator(), Cholesky()
    state = solver.step(operator, solver.init(operator, problem.B))
    torch.testing.assert_close(state.L, torch.linalg.cholesky(problem.H))
    assert operator.epochs == 2
    solution = solve(operator, problem.B, solver, stopping=RelativeResidual(1e-8))
    assert (solution.n_iter, solution.epochs, solution.stats["jitter"]) == (1, 2, 0)


def test_refinement_removes_what_jitter_did():
    problem = spectrum_problem(1e3)
    bad = problem.H - 1.5e-3 * torch.eye(40, dtype=torch.float64)
    shifted = Problem("indefinite", bad, problem.noise, problem.B)
    solution = solve(
        shifted.operator(), problem.B, Cholesky(), stopping=RelativeResidual(1e-8) | MaxEpochs(60)
    )
    assert solution.status is End.BREAKDOWN
    float32 = solve(
        problem.operator(torch.float32), problem.B, Cholesky(), stopping=RelativeResidual(1e-5)
    )
    assert float32.converged


def test_indefinite_is_a_breakdown_with_a_reason():
    problem = spectrum_problem(1e2)
    negative = Problem("negative", -problem.H, problem.noise, problem.B)
    solution = solve(negative.operator(), problem.B, Cholesky(), stopping=RelativeResidual(1e-2))
    assert solution.status is End.BREAKDOWN
    assert "noise" in solution.status.remedy and "jitter" in solution.stats["error"]


@pytest.mark.parametrize("value", [-1e-3, "some", None, True, float("nan")])
def test_wrong_jitter_says_so(value):
    problem = kernel_problem(n=5)
    with pytest.raises(ValueError, match="max_jitter must be .*0.001; got"):
        Cholesky(max_jitter=value).init(problem.operator(), problem.B)
