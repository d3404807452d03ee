"""Lanczos matrices against dense algebra, log determinants by z-score."""

import pytest
import torch
from oracles import DenseOperator, generator, kernel_problem, normal, spectrum_problem, z_score

from skscalablegp.linalg.solvers import LogDet, WithLogDet, lanczos, radau, solve
from skscalablegp.linalg.solvers._lanczos import quadrature_log
from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import ADASAP, CG, BlockCG, RelativeResidual


def test_basis_and_matrix_belong_together():
    problem = spectrum_problem(1e4)
    result = lanczos(problem.operator(), problem.B, 25)
    Q, T = result.basis.mT, result.matrix()
    eye = torch.eye(25, dtype=torch.float64).expand(5, -1, -1)
    torch.testing.assert_close(Q.mT @ Q, eye, rtol=0, atol=1e-12)
    torch.testing.assert_close(Q.mT @ problem.H @ Q, T, rtol=0, atol=1e-12)
    torch.testing.assert_close(Q[:, :, 0].T, problem.B / problem.B.norm(dim=0))


def test_all_steps_find_every_eigenvalue():
    problem = spectrum_problem(1e2, n=15)
    result = lanczos(problem.operator(), problem.B, 100)
    values = torch.linalg.eigvalsh(problem.H).expand(5, -1)
    torch.testing.assert_close(torch.linalg.eigvalsh(result.matrix()), values)


def test_preconditioned_matrix_matches_the_square_root():
    problem = kernel_problem(n=40, heteroscedastic=True)
    operator = problem.operator()
    P = PivotedCholesky(8).build(operator)
    values, vectors = torch.linalg.eigh(P.solve(torch.eye(40, dtype=torch.float64)))
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    expected = lanczos(DenseOperator(root @ problem.H @ root), root @ problem.B, 12)
    result = lanczos(operator, problem.B, 12, preconditioner=P)
    torch.testing.assert_close(result.matrix(), expected.matrix(), rtol=1e-7, atol=1e-7)


def test_exhausted_spaces_end_quietly():
    H = torch.diag(torch.tensor([1.0, 1, 1, 2, 2, 5], dtype=torch.float64))
    V = normal(6, 3)
    V[:, 1] = 0
    V[1:, 2] = 0
    result = lanczos(DenseOperator(H), V, 6)
    assert result.diagonal.isfinite().all() and result.off_diagonal.isfinite().all()
    assert (result.off_diagonal > 0).sum(1).tolist() == [2, 0, 0]
    found = torch.linalg.eigvalsh(result.matrix()[0, :3, :3])
    torch.testing.assert_close(found, torch.tensor([1.0, 2, 5], dtype=torch.float64))


@pytest.mark.parametrize("config", [None, PivotedCholesky(10), Nystrom(10, random_state=0)])
def test_log_det_is_unbiased(config):
    problem = kernel_problem(n=60, noise=0.1)
    operator = problem.operator()
    P = None if config is None else config.build(operator)
    truth = float(torch.linalg.slogdet(problem.H)[1])
    estimates, errors = [], []
    for seed in range(40):
        estimate, error = LogDet(operator, 8, 60, generator(seed), P).estimate()
        estimates.append(estimate)
        errors.append(error)
    estimates = torch.tensor(estimates, dtype=torch.float64)
    assert abs(z_score(estimates, truth)) < 3.5
    # the reported error is the spread over seeds
    assert torch.tensor(errors).mean().item() == pytest.approx(float(estimates.std()), rel=0.5)


@pytest.mark.parametrize("config", [None, PivotedCholesky(8)])
@pytest.mark.parametrize("k", [2, 5, 9])
def test_gauss_and_radau_bracket_the_logarithm(k, config):
    """Of every probe, against the eigenvectors of P^-1/2 H P^-1/2."""
    n, s, noise = 50, 6, 0.05
    problem = kernel_problem(n=n, noise=noise)
    operator = problem.operator()
    eye = torch.eye(n, dtype=torch.float64)
    P = None if config is None else config.build(operator)
    lower, inverse, log_det = (noise, eye, 0.0) if P is None else (1.0, P.solve(eye), P.log_det())
    values, vectors = torch.linalg.eigh(inverse)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    values, vectors = torch.linalg.eigh(root @ problem.H @ root)
    assert float(values[0]) > lower * (1 - 1e-9)
    Z = normal(n, s, seed=3) if P is None else P.sample(s, generator(3))
    weights = (vectors.T @ root @ Z).square()
    weights /= weights.sum(0)
    truth = values.log() @ weights

    gauss = lanczos(operator, Z, k, preconditioner=P)
    below = radau(gauss, lower)
    over, under = quadrature_log(gauss), quadrature_log(below)
    assert (under < truth).all() and (truth < over).all()
    # The rule has its node at the bound, and is exact for polynomials of degree 2 k - 2.
    T = below.matrix()
    at = torch.full((s,), lower, dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.eigvalsh(T)[:, 0], at, rtol=1e-5, atol=0)
    for degree in range(2 * k - 1):
        moments = torch.linalg.matrix_power(T, degree)[:, 0, 0]
        torch.testing.assert_close(moments, values**degree @ weights, rtol=1e-8, atol=0)

    estimate, error = LogDet(operator, s, k, generator(3), P, lower).estimate()
    middle, half = n * (over + under) / 2, n * float((over - under).mean()) / 2
    assert estimate == pytest.approx(log_det + float(middle.mean()), rel=1e-9)
    assert error == pytest.approx(float(middle.std()) / s**0.5 + half, rel=1e-9)


def test_all_steps_leave_no_bias():
    operator = kernel_problem(n=15, noise=0.05).operator()
    with_bound = LogDet(operator, 4, 15, generator(), lower=0.05).estimate()
    assert with_bound == LogDet(operator, 4, 15, generator()).estimate()


def test_error_falls_with_the_preconditioner():
    problem = kernel_problem(n=80, noise=1e-2)
    operator = problem.operator()
    truth = float(torch.linalg.slogdet(problem.H)[1])
    errors = []
    for rank in (1, 20, 80):
        P = PivotedCholesky(rank).build(operator)
        estimate, error = LogDet(operator, 10, 40, generator(), P).estimate()
        errors.append(error)
        assert abs(estimate - truth) < 4 * error + 1e-5
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_float32_agrees():
    problem = kernel_problem(n=80, noise=1e-1)
    operator = problem.operator(torch.float32)
    P = PivotedCholesky(20).build(operator)
    estimate, error = LogDet(operator, 16, 30, generator(), P).estimate()
    truth = float(torch.linalg.slogdet(problem.H)[1])
    assert abs(estimate - truth) < 4 * error + 1e-2


@pytest.mark.parametrize("solver", [CG(), BlockCG(), ADASAP()], ids=repr)
@pytest.mark.parametrize("n_steps", [4, 60])
def test_a_solve_that_shares_its_products(solver, n_steps):
    problem = kernel_problem(n=80)
    P = PivotedCholesky(20).build(problem.operator())

    def solved(operator):
        return solve(operator, problem.B, solver, stopping=RelativeResidual(1e-6), preconditioner=P)

    def log_det(operator):
        return LogDet(operator, 3, n_steps, generator(1), P, P.lower)

    alone, shared = problem.operator(), problem.operator()
    plain, expected = solved(alone), log_det(alone).estimate()
    both = log_det(shared)
    solution = solved(WithLogDet(shared, both))
    taken = 0 if isinstance(solver, ADASAP) else min(n_steps, solution.n_iter)
    torch.testing.assert_close(solution.value, plain.value)
    assert solution.epochs == pytest.approx(plain.epochs)
    assert both.estimate() == pytest.approx(expected)
    assert shared.epochs == pytest.approx(alone.epochs - taken, abs=1.01)


def test_one_probe_has_no_error_and_seed_zero_is_the_default():
    problem = kernel_problem(n=20)
    estimate, error = LogDet(problem.operator(), 1, 5).estimate()
    assert error != error
    assert (estimate,) == LogDet(problem.operator(), 1, 5, generator(0)).estimate()[:1]


def test_wrong_counts_say_so():
    problem = kernel_problem(n=5)
    with pytest.raises(ValueError, match="n_probes must be an integer of at least 1"):
        LogDet(problem.operator(), 0).estimate()
    with pytest.raises(ValueError, match="n_steps must be an integer of at least 1"):
        lanczos(problem.operator(), problem.B, 0)
