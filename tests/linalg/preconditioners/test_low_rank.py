"""Accuracy of the projection form, the random pivots' law, and the table of names."""

import pytest
import torch
from contracts.preconditioner_contract import dense
from oracles import DenseOperator, generator, kernel_problem, normal, z_score

from skscalablegp.linalg.preconditioners import (
    IdentityPreconditioner,
    LowRankPreconditioner,
    resolve_preconditioner,
)
from skscalablegp.linalg.preconditioners._pivoted_cholesky import _random_factor
from skscalablegp.linalg.solvers import solve
from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import CG, MaxIterations, RelativeResidual


def test_float32_keeps_digits_that_woodbury_loses():
    n, noise = 400, 1e-4
    X = normal(n, 2)
    K = torch.exp(-0.5 * torch.cdist(X, X).square())
    values, vectors = torch.linalg.eigh(K)
    # exact in float32, so that only the solve's own rounding is measured
    L = (vectors[:, -60:] * values[-60:].clamp_min(0).sqrt()).float()
    levels = torch.full((n,), noise)
    P = LowRankPreconditioner.from_factor(L, levels)
    dense = L.double() @ L.double().T + noise * torch.eye(n, dtype=torch.float64)
    b = torch.sin(X[:, :1]).float()
    exact = torch.linalg.solve(dense, b.double())

    def error(V):
        E = V.double() - exact
        return float(((E * (dense @ E)).sum() / (exact * (dense @ exact)).sum()).sqrt())

    inner = torch.eye(60) + L.T @ L / noise
    woodbury = (b - L @ torch.linalg.solve(inner, L.T @ b / noise)) / noise
    assert error(P.solve(b)) < 1e-3
    assert error(P.solve(b)) < 0.1 * error(woodbury)
    assert P.log_det() == pytest.approx(float(torch.linalg.slogdet(dense)[1]), rel=1e-5)


def test_rank_zero_and_full_rank_factors():
    noise = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    V = normal(3, 2)
    P = LowRankPreconditioner.from_factor(torch.zeros(3, 0, dtype=torch.float64), noise)
    torch.testing.assert_close(P.solve(V), V / noise[:, None])
    assert P.log_det() == pytest.approx(float(noise.log().sum()))
    assert P.sample(4, generator()).shape == (3, 4)
    zero = LowRankPreconditioner.from_factor(torch.zeros(3, 2, dtype=torch.float64), noise)
    torch.testing.assert_close(zero.solve(V), V / noise[:, None])


def test_greedy_pivots_match_a_dense_factor():
    problem = kernel_problem(n=25)
    P = PivotedCholesky(rank=6).build(problem.operator())
    remainder = problem.H - torch.diag(problem.noise)
    for _ in range(6):
        column = remainder[:, remainder.diagonal().argmax()]
        remainder = remainder - torch.outer(column, column) / column.max()
    torch.testing.assert_close(dense(P, 25), problem.H - remainder, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("randomized", [False, True])
def test_the_remainder_is_added_to_the_noise(randomized):
    problem = kernel_problem(n=60, noise=1e-3)
    operator = problem.operator()
    plain, more = (
        PivotedCholesky(8, randomized, random_state=0, remainder=r).build(operator)
        for r in (False, True)
    )
    one, other, noise = dense(plain, 60), dense(more, 60), torch.diag(problem.noise)
    rest = float((problem.H - one).diagonal().mean())  # H - P = K - L L'
    assert rest > 3e-3
    torch.testing.assert_close(other, one + rest * torch.eye(60), rtol=1e-7, atol=1e-7)
    # The bound on the eigenvalues holds, and is attained by the smallest noise.
    assert plain.lower == 1 and more.lower == pytest.approx(
        float((noise.diag() / (noise.diag() + rest)).min())
    )
    assert (
        float(torch.linalg.eigvals(torch.linalg.solve(other, problem.H)).real.min()) >= more.lower
    )


def test_conjugate_gradients_gain_from_the_remainder_on_a_rough_kernel():
    X = normal(300, 3)
    noise = torch.full((300,), 1e-4, dtype=torch.float64)
    H = 10 * torch.exp(-torch.cdist(X, X) / 5) + torch.diag(noise)
    operator, stopping = DenseOperator(H, noise), RelativeResidual(1e-3) | MaxIterations(500)
    plain, more = (
        solve(operator, X[:, :1].sin(), CG(PivotedCholesky(30, remainder=r)), stopping=stopping)
        for r in (False, True)
    )
    assert more.n_iter < 0.8 * plain.n_iter


def test_stops_early_where_nothing_is_left():
    X = normal(50, 1)
    problem = kernel_problem(n=50)
    linear = type(problem)("linear", X @ X.T + torch.diag(problem.noise), problem.noise, X)
    for randomized in (False, True):
        P = PivotedCholesky(rank=30, randomized=randomized).build(linear.operator(), generator())
        assert P.rank == 1


def test_random_pivots_follow_the_remaining_diagonal():
    problem = kernel_problem(n=6, d=1, noise=0.1, heteroscedastic=True)
    scale = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    K = scale[:, None] * (problem.H - torch.diag(problem.noise)) * scale
    H = K + torch.diag(problem.noise)
    expected = 0.0
    for i in range(6):
        first = K - torch.outer(K[:, i], K[:, i]) / K[i, i]
        remaining = first.diagonal().clamp_min(0)
        for j in range(6):
            if j != i:
                second = remaining - first[:, j].square() / first[j, j]
                chance = K[i, i] / K.trace() * remaining[j] / remaining.sum()
                expected += float(chance * second.sum())
    operator = type(problem)("scaled", H, problem.noise, problem.B).operator()
    randomness = generator(11)
    traces = []
    for _ in range(1500):
        Lt = _random_factor(operator, 2, randomness)
        traces.append(K.trace() - Lt.square().sum())
    assert abs(z_score(torch.stack(traces), expected)) < 4


def test_random_pivots_ignore_outliers():
    # far-away points have the largest remaining diagonal for ever; greedy spends its rank there
    problem = kernel_problem(n=200)
    X = torch.cat([0.3 * normal(170, 2), 50 * normal(30, 2, seed=2)])
    K = torch.exp(-0.5 * torch.cdist(X, X).square())
    clustered = type(problem)("outliers", K + torch.diag(problem.noise), problem.noise, problem.B)

    def remainder(config):
        P = config.build(clustered.operator(), generator())
        return float((clustered.H - dense(P, 200))[:170, :170].diagonal().sum())

    assert remainder(PivotedCholesky(10, randomized=True)) < remainder(PivotedCholesky(10))


def test_the_settings_seed_goes_before_the_generator():
    problem = kernel_problem()
    V = normal(60, 1)
    for config in (Nystrom(5, random_state=4), PivotedCholesky(5, True, random_state=4)):
        first, second = (config.build(problem.operator(), generator(i)) for i in range(2))
        assert torch.equal(first.solve(V), second.solve(V))


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_a_corrected_diagonal_is_that_of_the_matrix(name):
    problem, dtype = kernel_problem(), getattr(torch, name)
    operator = problem.operator(dtype=dtype)
    P = PivotedCholesky(5).build(operator, generator())
    Q = P.with_diagonal_of(operator)
    before, after = (dense(one, 60, dtype).double() for one in (P, Q))
    H = operator.to_dense().double()
    tol = 1e-8 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(after.diagonal(), H.diagonal(), rtol=tol, atol=tol)
    rest = (after - before).double()
    torch.testing.assert_close(rest, torch.diag(rest.diagonal()), rtol=tol, atol=tol)
    assert float(rest.diagonal().min()) > -tol and float(rest.diagonal().max()) > 0.1
    identity = IdentityPreconditioner(4)
    assert identity.with_diagonal_of(operator) is identity


def test_identity():
    P = IdentityPreconditioner(4)
    V = normal(4, 2)
    assert torch.equal(P.solve(V), V) and P.solve(V) is not V
    assert (P.log_det(), P.rank) == (0.0, 0)
    assert P.sample(3, generator()).shape == (4, 3)


def test_names():
    assert resolve_preconditioner(None) is None
    assert isinstance(resolve_preconditioner("pivoted_cholesky"), PivotedCholesky)
    assert isinstance(resolve_preconditioner("nystrom"), Nystrom)
    assert resolve_preconditioner("rpcholesky").randomized
    for thing in (Nystrom(3), IdentityPreconditioner(3)):
        assert resolve_preconditioner(thing) is thing
    with pytest.raises(
        ValueError, match="'jacobi'.*'nystrom', 'pic', 'pivoted_cholesky', 'rpcholesky'"
    ):
        resolve_preconditioner("jacobi")
    with pytest.raises(ValueError, match="Unknown preconditioner 3"):
        resolve_preconditioner(3)


@pytest.mark.gpu
def test_builds_on_the_gpu_with_a_cpu_generator(gpu):
    problem = kernel_problem(n=100)
    operator = DenseOperator(problem.H.to(gpu), problem.noise.to(gpu))
    for config in (PivotedCholesky(20), PivotedCholesky(20, randomized=True), Nystrom(20)):
        P = config.build(operator, generator())
        V = P.sample(3, generator())
        assert V.device.type == "cuda"
        inverse = P.solve(torch.eye(100, dtype=V.dtype, device=gpu))
        torch.testing.assert_close(torch.linalg.solve(inverse, P.solve(V)), V)
