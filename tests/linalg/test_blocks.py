"""Calls in blocks give the results of whole calls, and look up between the blocks."""

import pytest
import torch
from torch.testing import assert_close

from skscalablegp.linalg import blocks
from skscalablegp.linalg.solvers import cholesky_with_jitter


@pytest.fixture(autouse=True)
def small_blocks(thresholds):
    thresholds("blocks", _WHOLE_FACTOR=20, _WHOLE_INVERSE=20, _BLOCK=16)
    thresholds("blocks", _FEW_FLOPS=30_000, _MOST_FLOPS=30_000, _ROWS=1, _COLUMNS=16)


def covariance(n, rank=None):
    root = torch.randn(
        n, rank or n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)
    )
    return root @ root.T


@pytest.mark.parametrize("n", [21, 64, 117])
def test_factor_and_inverse(n):
    H = covariance(n) + torch.eye(n, dtype=torch.float64)
    L, jitter = cholesky_with_jitter(H)
    assert jitter == 0
    assert_close(L, torch.linalg.cholesky(H), rtol=1e-10, atol=1e-10)
    assert_close(blocks.cholesky_inverse(L), torch.linalg.inv(H), rtol=1e-8, atol=1e-8)
    B = covariance(n)[:, :3]
    assert_close(H @ blocks.cholesky_solve(B, L), B, rtol=1e-8, atol=1e-8)


def test_a_singular_matrix_gets_jitter():
    H = covariance(90, rank=40)
    L, jitter = cholesky_with_jitter(H)
    assert 0 < jitter < 1e-8
    assert_close(L @ L.T, H, rtol=1e-6, atol=1e-6)
    built = []
    L2, again = cholesky_with_jitter(H.clone(), rebuild=lambda: built.append(1) or H.clone())
    assert again == jitter and built
    assert_close(L2, L)
    with pytest.raises(torch.linalg.LinAlgError, match="No Cholesky factor"):
        cholesky_with_jitter(-H)


def test_products():
    A, B = covariance(50)[:, :40], covariance(40)
    assert_close(blocks.matmul(A, B), A @ B)
    S = torch.ones(50, 40, dtype=torch.float64)
    blocks.addmm_(S, A, B)
    assert_close(S, A @ B + 1)
    blocks.addmm_(S, A, B, alpha=-3)
    assert_close(S, 1 - 2 * A @ B)
    S = torch.ones(40, 40, dtype=torch.float64)
    blocks.add_gram_(S, A)
    assert_close(S.tril(), (A.T @ A + 1).tril())


@pytest.mark.parametrize("m", [1, 16, 50])
def test_triangular_solves(m):
    L = torch.linalg.cholesky(covariance(60) + torch.eye(60, dtype=torch.float64))
    B = covariance(60)[:, :m]
    for right in (B, B.T.contiguous().T):
        assert_close(blocks.solve_triangular(L, right), torch.linalg.inv(L) @ right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_the_same_for_any_number_of_workers(dtype):
    H = (covariance(117) + torch.eye(117, dtype=torch.float64)).to(dtype)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            L = cholesky_with_jitter(H)[0]
            found.append((L, blocks.cholesky_inverse(L), blocks.matmul(H, L)))
            found[-1] += (blocks.solve_triangular(L, H),)
    finally:
        torch.set_num_threads(threads)
    for alone, together in zip(*found, strict=True):
        assert torch.equal(alone, together)


@pytest.mark.parametrize("work", ["factor", "inverse", "product"])
def test_what_looking_up_raises_ends_the_work(work):
    H = covariance(100) + torch.eye(100, dtype=torch.float64)
    L = torch.linalg.cholesky(H)
    looks = []

    def look_up():
        looks.append(1)
        if len(looks) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError), blocks.watched(look_up):
        if work == "factor":
            cholesky_with_jitter(H)
        elif work == "inverse":
            blocks.cholesky_inverse(L)
        else:
            blocks.matmul(H, H)
    # Outside nobody is asked.
    cholesky_with_jitter(H)
    assert len(looks) == 3
