"""A low-rank factor with dense blocks of near rows beside it."""

import numpy as np
import pytest
import torch
from oracles import DenseOperator, generator, kernel_problem, normal

from skscalablegp.linalg.preconditioners._pic import near_rows
from skscalablegp.preconditioners import PIC, PivotedCholesky
from skscalablegp.solvers import CG, MaxIterations, RelativeResidual, solve


def dense(P, n):
    return torch.linalg.inv(P.solve(torch.eye(n, dtype=torch.float64)))


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_blocks_are_those_of_the_matrix_and_the_rest_is_the_factor(heteroscedastic):
    n = 60
    problem = kernel_problem(n=n, heteroscedastic=heteroscedastic)
    P = PIC(8, block_size=10, random_state=0).build(problem.operator())
    factor = PivotedCholesky(8, True, random_state=0).build(problem.operator())
    low_rank = dense(factor, n) - torch.diag(problem.noise)
    full, within = dense(P, n), torch.zeros(n, n, dtype=torch.bool)
    start = 0
    for F in P.factors:
        rows = P.rows[start : start + len(F)]
        within[rows[:, None], rows] = True
        start += len(F)
    assert start == n == len(P.rows.unique()) and max(map(len, P.factors)) <= 10
    expected = torch.where(within, problem.H, low_rank)
    torch.testing.assert_close(full, expected, rtol=1e-8, atol=1e-8)


def test_rows_that_are_near_share_a_block():
    """Sixteen distant groups of 20 rows; halves of halves are the groups."""
    centres = 1000.0 * torch.arange(16, dtype=torch.float64)
    groups = torch.arange(320) % 16
    points = torch.stack([normal(320, 1, seed=1)[:, 0], centres[groups]])
    blocks = near_rows(points + 0.1 * normal(2, 320), 20)
    assert len(blocks) == 16
    assert all(len(groups[rows].unique()) == 1 for rows in blocks)
    assert torch.cat(blocks).sort().values.tolist() == list(range(320))


def test_equal_rows_are_divided_all_the_same():
    blocks = near_rows(torch.ones(3, 50, dtype=torch.float64), 8)
    assert sum(map(len, blocks)) == 50 and max(map(len, blocks)) <= 8


def test_conjugate_gradients_gain_from_the_blocks_where_noise_is_little():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.uniform(-1, 1, (900, 3)))
    r = 3**0.5 * torch.cdist(X, X)
    noise = torch.full((900,), 1e-5, dtype=torch.float64)
    H = (1 + r) * torch.exp(-r) + torch.diag(noise)
    operator, stopping = DenseOperator(H, noise), RelativeResidual(1e-3) | MaxIterations(900)
    B = torch.sin(3 * X[:, :1]) + 0.1 * normal(900, 1)
    counts = [
        solve(operator, B, CG(made), stopping=stopping).n_iter
        for made in (PivotedCholesky(60, True, remainder=True), PIC(60, 150))
    ]
    assert counts[1] < 0.7 * counts[0]


def test_wrong_block_sizes_say_so():
    operator = kernel_problem(n=5).operator()
    with pytest.raises(ValueError, match=r"block_size must be .*1000.*got"):
        PIC(3, block_size=0).build(operator, generator())
