"""The choice of inducing points."""

import pytest
import torch
from oracles import generator, normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

from skscalablegp.core import INDUCING_METHODS, select_inducing
from skscalablegp.kernels import compile_kernel


def left_over(kernel, X, chosen):
    """tr(K - Q): what the chosen rows leave open."""
    K = kernel.cross(kernel.theta0, X, X)
    Kz = K[chosen]
    eye = 1e-9 * torch.eye(len(chosen), dtype=torch.float64)
    return float(
        (K.diagonal() - (Kz * torch.linalg.solve(K[chosen][:, chosen] + eye, Kz)).sum(0)).sum()
    )


@pytest.mark.parametrize("method", INDUCING_METHODS)
def test_rows_are_different_and_follow_the_seed(method):
    kernel, X = compile_kernel(RBF(0.5), 2), normal(60, 2)
    a = select_inducing(kernel, kernel.theta0, X, 12, method, generator(0))
    assert len(set(a.tolist())) == 12
    b = select_inducing(kernel, kernel.theta0, X, 12, method, generator(0))
    assert torch.equal(a, b)
    assert torch.equal(
        select_inducing(kernel, kernel.theta0, X, 60, method, generator(0)), torch.arange(60)
    )


def test_greedy_variance_is_pivoted_cholesky():
    kernel, X = compile_kernel(ConstantKernel(2.0) * RBF(0.7) + DotProduct(), 2), normal(40, 2)
    got = select_inducing(kernel, kernel.theta0, X, 6, "conditional_variance", generator())
    K, chosen = kernel.cross(kernel.theta0, X, X), []
    for _ in range(6):
        if chosen:
            Kz = K[chosen]
            rest = K.diagonal() - (Kz * torch.linalg.solve(K[chosen][:, chosen], Kz)).sum(0)
        else:
            rest = K.diagonal()
        chosen.append(int(rest.argmax()))
    assert got.tolist() == chosen


def test_both_beat_random_rows():
    """Groups of very different sizes, as many as there are points."""
    sizes = torch.arange(1, 16) ** 2
    centres = torch.arange(15, dtype=torch.float64).repeat_interleave(sizes)[:, None]
    X = 5 * centres + 0.05 * normal(len(centres), 1)
    kernel = compile_kernel(RBF(1.0), 1)

    def mean(method):
        runs = [
            select_inducing(kernel, kernel.theta0, X, 15, method, generator(s)) for s in range(5)
        ]
        return sum(left_over(kernel, X, chosen) for chosen in runs) / 5

    chance = mean("random")
    assert mean("conditional_variance") < 0.3 * chance
    assert mean("kmeans++") < 0.5 * chance


@pytest.mark.parametrize("method", ["kmeans++", "conditional_variance"])
def test_equal_rows_are_chosen_once(method):
    X = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64).repeat(10, 1)
    kernel = compile_kernel(RBF(0.3), 1)
    got = select_inducing(kernel, kernel.theta0, X, 8, method, generator())
    assert sorted(X[got, 0].tolist()) == [0.0, 1.0, 2.0]
