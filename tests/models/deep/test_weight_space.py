"""The likelihood of a finite feature map from its moments, and its two stochastic forms."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from skscalablegp.linalg.gradients import Rows
from skscalablegp.models.deep import (
    best_scales,
    data_fit,
    feature_moments,
    held_out_noise,
    log_det_direction,
    weight_space_likelihood,
)
from skscalablegp.workers import Workers

N, M, T = 30, 5, 2


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def table(n=N, m=M, t=T, seed=0):
    g = seeded(seed)
    Z = torch.randn(n, m, generator=g, dtype=torch.float64)
    Y = Z @ torch.randn(m, t, generator=g, dtype=torch.float64)
    return Z, Y + 0.3 * torch.randn(n, t, generator=g, dtype=torch.float64)


def dense(Z, Y, s2):
    """log N(Y; 0, ZZ' + s2 I) summed over targets."""
    H = (Z @ Z.T).numpy() + s2 * np.eye(len(Z))
    return sum(multivariate_normal(cov=H).logpdf(y) for y in Y.numpy().T)


def moments_of(Z, Y, size=7):
    return feature_moments(Rows.of(Z, Y).blocks(size), lambda X: X)


@pytest.mark.parametrize("n, m", [(30, 5), (4, 9)])
def test_likelihood_is_that_of_the_dense_matrix(n, m):
    Z, Y = table(n, m)
    evaluation = weight_space_likelihood(moments_of(Z, Y), 0.3)
    assert_allclose(evaluation.value, dense(Z, Y, 0.3), rtol=1e-9)
    w = torch.linalg.solve(Z.T @ Z + 0.3 * torch.eye(m), Z.T @ Y)
    torch.testing.assert_close(evaluation.weights, w)
    L = evaluation.posterior(0.3).factor
    torch.testing.assert_close(L @ L.T, (Z.T @ Z) / 0.3 + torch.eye(m, dtype=torch.float64))


def test_moments_scale_with_features_and_rows():
    Z, Y = table()
    moments = moments_of(Z, Y)
    doubled = moments_of(2 * Z, Y)
    torch.testing.assert_close(moments.scaled(4.0).gram, doubled.gram)
    torch.testing.assert_close(moments.scaled(4.0).cross, doubled.cross)
    twice, extended = moments_of(torch.cat([Z, Z]), torch.cat([Y, Y])), moments.extended(2 * N)
    torch.testing.assert_close(extended.gram, twice.gram)
    assert (extended.n, extended.square) == (twice.n, pytest.approx(twice.square))


def test_the_separable_part_and_a_determinant_make_the_likelihood():
    Z, Y = table()
    s2 = torch.tensor(0.3, dtype=torch.float64)
    F = Z.T @ Z + s2 * torch.eye(M)
    w = torch.linalg.solve(F, Z.T @ Y)
    total = N * data_fit(Z, Y, w, s2.log(), N) + T * torch.logdet(F) + N * T * np.log(2 * np.pi)
    assert_allclose(-0.5 * float(total), dense(Z, Y, 0.3), rtol=1e-9)


def test_the_direction_at_the_inverse_is_the_determinants_gradient():
    Z, _ = table()
    Z.requires_grad_(True)
    log_noise = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    F = Z.T @ Z + log_noise.exp() * torch.eye(M)
    P = torch.linalg.inv(F).detach()
    exact = torch.autograd.grad(torch.logdet(F) / N, [Z, log_noise])
    ours = log_det_direction(Z, P, P.diagonal().sum(), log_noise, N)
    for a, b in zip(torch.autograd.grad(ours, [Z, log_noise]), exact, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("free", [True, False])
def test_best_scales_are_the_likelihoods_maximum(free):
    Z, Y = table()
    moments = moments_of(Z, Y)
    bounds = (1e-3, 1e3) if free else (1.0, 1.0)
    noise, amplitude = best_scales(moments, 5.0, (1e-4, 1e2), bounds)

    def negative(z):
        return -dense(Z * np.exp(z[1] / 2) if free else Z, Y, np.exp(z[0]))

    found = minimize(negative, [0.0, 0.0][: 2 if free else 1], method="Nelder-Mead",
                     options={"xatol": 1e-6, "fatol": 1e-9})  # fmt: skip
    assert_allclose(np.log([noise, amplitude][: len(found.x)]), found.x, atol=2e-3)
    assert free or amplitude == 1.0


def test_best_scales_keep_to_their_bounds():
    Z, Y = table()
    assert best_scales(moments_of(Z, Y), 1.0, (0.5, 1e2), (1.0, 1.0))[0] == pytest.approx(0.5)


def test_held_out_noise_is_the_held_out_rows_choice():
    Z, Y = table(40)
    (Z, unseen), (Y, target) = Z.split(30), Y.split(30)
    held_out = Workers(Rows.of(unseen, target))

    def density(log_noise):
        """Of each held-out target by dense Gaussian conditioning."""
        s2 = np.exp(log_noise)
        K = (torch.cat([Z, unseen]) @ torch.cat([Z, unseen]).T).numpy()
        solved = np.linalg.solve(K[:30, :30] + s2 * np.eye(30), K[:30, 30:])
        mean = solved.T @ Y.numpy()
        variance = np.diag(K[30:, 30:] - K[30:, :30] @ solved)[:, None] + s2
        error = (target.numpy() - mean) ** 2
        return 0.5 * np.mean(error / variance + np.log(2 * np.pi * variance))

    noise, value = held_out_noise(moments_of(Z, Y), held_out, (1e-4, 1e2))
    best = minimize(lambda z: density(z[0]), [0.0], method="Nelder-Mead", options={"xatol": 1e-4})
    assert_allclose(np.log(noise), best.x[0], atol=2e-2)
    assert_allclose(value, density(np.log(noise)), rtol=1e-9)
    assert held_out_noise(moments_of(Z, Y), held_out, (0.7, 0.7))[0] == pytest.approx(0.7)


def test_a_batch_is_unbiased_for_the_separable_part():
    Z, Y = table()
    w = torch.randn(M, T, generator=seeded(1), dtype=torch.float64)
    s = torch.tensor(-0.5, dtype=torch.float64)
    parts = [data_fit(Z[i : i + 5], Y[i : i + 5], w, s, N) for i in range(0, N, 5)]
    torch.testing.assert_close(torch.stack(parts).mean(), data_fit(Z, Y, w, s, N))
