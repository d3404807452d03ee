"""Combination rules against densities multiplied on a grid."""

import math

import numpy as np
import pytest
import torch
from oracles import normal
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.models.experts import COMBINATIONS
from skscalablegp.models.experts._posterior import ExpertPosterior

K, M = 4, 6


def moments():
    """Means and variances of four experts, the first of them the least sure, and a wide prior."""
    mean = normal(K, M, 2, seed=1)
    variance = 0.2 + 0.6 * torch.rand(K, M, generator=torch.Generator().manual_seed(2)).double()
    variance[0] = 0.9
    return mean, variance, torch.full((K, M), 1.3, dtype=torch.float64)


def log_normal(grid, mean, variance):
    return -0.5 * (grid - mean).square() / variance - 0.5 * math.log(2 * math.pi * variance)


def powers(name, variance, prior):
    """What the papers raise each density to; the last entry is the prior's power."""
    v, p = [float(x) for x in variance], float(prior)
    if name == "poe":
        return [1.0] * K, 0.0
    if name == "bcm":
        return [1.0] * K, 1.0 - K
    if name == "grbcm":
        beta = [1.0] + [0.5 * math.log(v[0] / x) for x in v[2:]]
        return [1 - sum(beta), *beta], 0.0
    beta = [0.5 * math.log(p / x) for x in v]
    if name == "gpoe":
        return [b / sum(beta) for b in beta], 0.0
    return beta, 1 - sum(beta)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_rules_multiply_densities(name):
    mean, variance, prior = moments()
    combined = COMBINATIONS[name](mean, variance, prior)
    grid = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    for row in range(M):
        beta, rest = powers(name, variance[:, row], prior[0, row])
        for target in range(2):
            log_density = rest * log_normal(grid, 0.0, float(prior[0, row]))
            for k in range(K):
                density = log_normal(grid, float(mean[k, row, target]), float(variance[k, row]))
                log_density = log_density + beta[k] * density
            weights = torch.softmax(log_density, 0)
            expected = (weights * grid).sum()
            spread = (weights * (grid - expected).square()).sum()
            assert float(combined.mean[row, target]) == pytest.approx(float(expected), abs=1e-9)
            assert float(combined.variance[row]) == pytest.approx(float(spread), rel=1e-9)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_single_expert_is_left_alone(name):
    mean, variance, prior = (part[:1] for part in moments())
    combined = COMBINATIONS[name](mean, variance, prior)
    torch.testing.assert_close(combined.mean, mean[0])
    torch.testing.assert_close(combined.variance, variance[0])


@pytest.mark.parametrize("name, ratio", [("poe", K), ("gpoe", 1), ("bcm", 1), ("rbcm", 1)])
def test_where_no_expert_knows_anything(name, ratio):
    """All rules but the plain product give the prior back."""
    prior = torch.full((K, M), 1.3, dtype=torch.float64)
    combined = COMBINATIONS[name](torch.zeros(K, M, 1, dtype=torch.float64), prior, prior)
    torch.testing.assert_close(combined.variance, prior[0] / ratio)


def test_experts_that_single_precision_cannot_hold_predict_in_double():
    X = np.random.default_rng(0).uniform(-2, 2, (300, 2))
    kernel = compile_kernel(RBF(3.0) + WhiteKernel(1e-10), 2)
    rows, Y = torch.as_tensor(X), torch.as_tensor(np.sin(X[:, :1]))
    posterior = ExpertPosterior.of(GPProblem(kernel, Rows.of(rows, Y)), kernel.theta0)[0]
    before = posterior.variance(rows)
    posterior.invert()
    assert posterior.inverse is None
    assert torch.equal(posterior.variance(rows), before)
