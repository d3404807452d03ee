"""Weights and evidence from square roots of moments, against arithmetic with fifty digits."""

import mpmath as mp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF

from skscalablegp.models.sampled._moments import Moments


def table(n=40, m=14):
    X = np.linspace(-2, 2, n)[:, None]
    return RBF(1.0)(X, X[:: n // m][:m]), np.c_[np.sin(3 * X), np.cos(X)]


def exact(phi, Y, s, noise):
    """Mean, variances and evidence, as lists of floats."""
    with mp.workdps(50):
        n, m, noise = len(phi), phi.shape[1], mp.mpf(noise)
        P, T, S = mp.matrix(phi.tolist()), mp.matrix(Y.tolist()), mp.diag(s.tolist())
        H = P.T * P / noise + S
        inverse = mp.inverse(H)
        mean = inverse * P.T * T / noise
        R, fit = T - P * mean, mp.mpf(0)
        for j in range(Y.shape[1]):
            w, r = mean[:, j], R[:, j]
            fit += (r.T * r)[0] / noise + (w.T * S * w)[0]
        log_det = mp.log(mp.det(H)) - sum(mp.log(v) for v in s) + n * mp.log(2 * mp.pi * noise)
        evidence = -(Y.shape[1] * log_det + fit) / 2
        mean = np.array(mean.tolist(), dtype=float)
        return mean, np.array([float(inverse[i, i]) for i in range(m)]), float(evidence)


@pytest.mark.parametrize("noise", [1e-1, 1e-5, 1e-10])
@pytest.mark.parametrize("n", [40, 12])
def test_weights_keep_their_digits(n, noise):
    phi, Y = table(n, 12)
    s = np.geomspace(1e-3, 1e2, phi.shape[1])
    moments = Moments.of([(torch.tensor(phi), torch.tensor(Y), torch.ones(len(Y)))], 1.0)
    found = moments.weights(torch.arange(len(s)), torch.tensor(s), noise)
    mean, variance, evidence = exact(phi, Y, s, noise)
    assert_allclose(phi @ found.mean.numpy(), phi @ mean, atol=1e-9)
    assert_allclose(found.covariance.diagonal(), variance, rtol=1e-5)
    assert_allclose(found.evidence, evidence, atol=1e-3)
    assert_allclose(found.residual, np.square(Y - phi @ mean).sum(), rtol=1e-6, atol=1e-20)


def test_a_function_alone_is_the_exact_one_in_the_last_digits():
    """S and Q of a function that others nearly replace."""
    phi, Y = table(40, 12)
    s, noise, at = np.geomspace(1e-3, 1e2, 11), 1e-10, torch.arange(11)
    moments = Moments.of([(torch.tensor(phi), torch.tensor(Y), torch.ones(len(Y)))], 1.0)
    now = moments.weights(at, torch.tensor(s), noise)
    S, Q = moments.alone(torch.tensor([11]), at, now)
    with mp.workdps(50):
        P, T = mp.matrix(phi[:, :11].tolist()), mp.matrix(Y.tolist())
        own = mp.matrix(phi[:, 11:].tolist())
        C = P * mp.diag([1 / v for v in s.tolist()]) * P.T + mp.mpf(noise) * mp.eye(40)
        solved = mp.lu_solve(C, own)
        expected_s, expected_q = (solved.T * own)[0], solved.T * T
    assert_allclose(float(S[0]), float(expected_s), rtol=1e-4)
    assert_allclose(Q[0], [float(q) for q in expected_q], rtol=1e-3)


def test_blocks_of_rows_give_the_moments_of_all():
    phi, Y = (torch.tensor(part) for part in table(40, 12))
    rows = phi, Y, torch.ones(40)
    whole = Moments.of([rows], 1.0)
    blocks = zip(*(part.split(15) for part in rows), strict=True)
    parts = Moments.of(blocks, 1.0)
    assert parts.n == whole.n == 40 and parts.floor > whole.floor
    for moments in (whole, parts):
        assert_allclose(moments.gram, phi.T @ phi, rtol=1e-12)
        assert_allclose(moments.root.T @ moments.root, phi.T @ phi, rtol=1e-10)
        assert_allclose(moments.root.T @ moments.target, phi.T @ Y, rtol=1e-6, atol=1e-8)
        square = float(moments.target.square().sum()) + moments.rest
        assert_allclose(square, float(Y.square().sum()), rtol=1e-10)
    s = torch.ones(12).double()
    found = [moments.weights(torch.arange(12), s, 1e-2) for moments in (whole, parts)]
    assert_allclose(found[1].evidence, found[0].evidence, rtol=1e-8)


@pytest.mark.parametrize("n", [30, 13])
def test_counts_of_rows_are_repeated_rows(n):
    phi, Y = (torch.tensor(part) for part in table(n, 12))
    counts = torch.arange(n) % 4 + 1
    found = Moments.of([(phi, Y, counts)], 1.0)
    parts = Moments.of([(phi[:5], Y[:5], counts[:5]), (phi[5:], Y[5:], counts[5:])], 1.0)
    repeated = (part.repeat_interleave(counts, 0) for part in (phi, Y))
    whole = Moments.of([(*repeated, torch.ones(int(counts.sum())))], 1.0)
    at, precision = torch.arange(12), torch.linspace(0.5, 2.0, 12).double()
    want = whole.weights(at, precision, 0.3)
    for moments in (found, parts):
        assert moments.n == whole.n == counts.sum()
        got = moments.weights(at, precision, 0.3)
        assert_allclose(got.mean, want.mean, rtol=1e-6)
        assert_allclose(got.covariance, want.covariance, atol=1e-9)
        assert_allclose([got.evidence, got.residual], [want.evidence, want.residual], rtol=1e-6)
