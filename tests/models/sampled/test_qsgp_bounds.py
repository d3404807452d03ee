"""Sampled estimates of the ELBO against dense algebra: z-scores over 10,000 fixed draws."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.func import grad_and_value, vmap

from skscalablegp.likelihoods import Bernoulli, Gaussian, Laplace
from skscalablegp.models.sampled import (
    BasisDraw,
    Projection,
    Site,
    SupportSquares,
    constant_estimate,
    covariance_estimate,
    likelihood_bound,
    mean_estimate,
    optimal_diagonal,
    sampled_variance,
)

N, M, T, COLUMNS, ROWS_DRAWN, DRAWN, REPEATS = 14, 10, 2, 2, 5, 4, 10_000
NOISE = 0.3


class Problem:
    """A small model in double precision, with a dense ELBO."""

    def __init__(self, seed=0, dense_prior=False):
        g = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        self.phi, self.Y, self.mu = normal(N, M), normal(N, T), normal(M, T)
        self.dense = torch.tril(normal(M, COLUMNS)) * 0.3
        self.dense[range(COLUMNS), range(COLUMNS)] = torch.tensor([0.7, 1.2], dtype=torch.float64)
        self.diagonal = 0.3 + torch.rand(M - COLUMNS, generator=g, dtype=torch.float64)
        root = normal(M, M)
        self.S = root @ root.T + torch.eye(M) if dense_prior else torch.diag(1 + self.mu[:, 0] ** 2)
        self.support = torch.arange(6)

    def C(self):
        sparse = torch.zeros(M, M - COLUMNS, dtype=torch.float64)
        sparse[range(COLUMNS, M), range(M - COLUMNS)] = self.diagonal
        return torch.cat([self.dense, sparse], 1)

    def L_mu(self, mu):
        fit = (-2 * (self.Y * (self.phi @ mu)).sum() + (self.phi @ mu).square().sum()) / NOISE
        return fit + torch.trace(mu.T @ self.S @ mu)

    def L_sigma(self, C):
        trace = torch.trace(self.S @ C @ C.T)
        return (self.phi @ C).square().sum() / NOISE + trace - torch.logdet(C @ C.T)

    def control(self, kind, weights):
        a = self.phi[self.support] @ weights.detach()
        if kind == "projection":
            A = self.phi @ torch.linalg.pinv(self.phi[self.support])
            return lambda rows: Projection(A[rows], a)
        return lambda rows: SupportSquares(a) if kind == "squares" else None

    def draw(self, weights, rows, columns):
        return BasisDraw(
            self.phi[rows][:, columns],
            weights[columns],
            M / DRAWN,
            self.phi[self.support][:, columns],
        )

    def prior(self, i, j, dense):
        if dense:
            return self.S[i][:, j], None
        return self.S.diagonal()[i], self.S.diagonal()[j]


def draws(seed=1, same=False):
    """Rows, and three independent sets of functions, without replacement."""
    g = torch.Generator().manual_seed(seed)

    def subsets(m, size):
        return torch.rand(REPEATS, m, generator=g).argsort(1)[:, :size]

    rows, i, j = subsets(N, ROWS_DRAWN), subsets(M, DRAWN), subsets(M, DRAWN)
    return rows, i, i if same else j, subsets(M - COLUMNS, DRAWN) + COLUMNS


def z_scores(values, expected):
    error = values.mean(0) - expected
    return (error / (values.std(0) / math.sqrt(len(values)) + 1e-12)).abs().max().item()


@pytest.mark.parametrize("dense_prior", [False, True], ids=["diagonal S", "dense S"])
@pytest.mark.parametrize("kind", [None, "squares", "projection"])
def test_the_mean_estimate_is_unbiased(kind, dense_prior):
    p = Problem(dense_prior=dense_prior)
    control = p.control(kind, p.mu)

    def estimate(mu, rows, i, j):
        prior = p.prior(i, j, dense_prior)
        left, right = p.draw(mu, rows, i), p.draw(mu, rows, j)
        return mean_estimate(p.Y[rows], left, right, *prior, NOISE, N, control(rows))

    rows, i, j, _ = draws()
    gradients, values = vmap(grad_and_value(estimate), (None, 0, 0, 0))(p.mu, rows, i, j)
    dense_gradient, dense = grad_and_value(p.L_mu)(p.mu)
    assert z_scores(values, dense) < 4
    assert z_scores(gradients, dense_gradient) < 4.5


def test_one_draw_for_both_members_is_biased():
    p = Problem()

    def estimate(mu, rows, i, j):
        left, right = p.draw(mu, rows, i), p.draw(mu, rows, j)
        return mean_estimate(p.Y[rows], left, right, *p.prior(i, j, False), NOISE, N)

    rows, i, j, _ = draws(same=True)
    gradients, values = vmap(grad_and_value(estimate), (None, 0, 0, 0))(p.mu, rows, i, j)
    dense_gradient, dense = grad_and_value(p.L_mu)(p.mu)
    assert z_scores(values, dense) > 20
    assert z_scores(gradients, dense_gradient) > 20


@pytest.mark.parametrize("kind", [None, "squares", "projection"])
def test_the_covariance_estimate_is_unbiased(kind):
    p = Problem()
    control = p.control(kind, p.dense)
    s = p.S.diagonal()

    def estimate(free, rows, i, j, r):
        dense, diagonal = free
        left, right = p.draw(dense, rows, i), p.draw(dense, rows, j)
        return covariance_estimate(
            (left, right, *p.prior(i, j, False)),
            dense[range(COLUMNS), range(COLUMNS)],
            p.phi[rows][:, r],
            diagonal[r - COLUMNS],
            s[r],
            (M - COLUMNS) / DRAWN,
            NOISE,
            N,
            control(rows),
        )

    def dense_loss(free):
        sparse = torch.nn.functional.pad(torch.diag(free[1]), (0, 0, COLUMNS, 0))
        return p.L_sigma(torch.cat([torch.tril(free[0]), sparse], 1))

    free = p.dense, p.diagonal
    gradients, values = vmap(grad_and_value(estimate), (None, 0, 0, 0, 0))(free, *draws())
    expected, dense = grad_and_value(dense_loss)(free)
    lower = torch.tril(torch.ones(M, COLUMNS)).bool()
    assert z_scores(values, dense) < 4
    assert z_scores(gradients[0][:, lower], expected[0][lower]) < 4.5
    assert z_scores(gradients[1], expected[1]) < 4.5


def test_the_pieces_add_up_to_the_elbo():
    p = Problem()
    C, everything = p.C(), torch.arange(M)
    left = p.draw(p.mu, torch.arange(N), everything)
    full = BasisDraw(left.phi, left.weights, 1.0)
    s = p.S.diagonal()
    columns = BasisDraw(p.phi, p.dense, 1.0)
    rest = everything[COLUMNS:]
    total = T * covariance_estimate(
        (columns, columns, s, s),
        p.dense.diagonal(),
        p.phi[:, rest],
        p.diagonal,
        s[rest],
        1.0,
        NOISE,
        N,
    )
    total = total + mean_estimate(p.Y, full, full, s, s, NOISE, N)
    noise = torch.tensor(NOISE, dtype=torch.float64)
    constant = constant_estimate(p.Y, s, 1.0, noise, N, M)
    total = total + constant + (T - 1) * (-s.log().sum() - M)
    mean, variance = p.phi @ p.mu, (p.phi @ C).square().sum(1, keepdim=True)
    expected_log = -0.5 * (math.log(2 * math.pi * NOISE) + ((p.Y - mean) ** 2 + variance) / NOISE)
    q = torch.distributions.MultivariateNormal(p.mu.T, scale_tril=C)
    prior = torch.distributions.MultivariateNormal(torch.zeros(T, M).double(), precision_matrix=p.S)
    elbo = expected_log.sum() - torch.distributions.kl_divergence(q, prior).sum()
    assert_allclose(-0.5 * total, elbo, rtol=1e-10)


def test_the_closed_form_diagonal_is_the_optimum():
    p = Problem()
    r = 7
    best = optimal_diagonal(p.phi[:, r].square().sum(), 1 / NOISE, p.S[r, r])

    def loss(c):
        return p.phi[:, r].square().sum() / NOISE * c**2 + p.S[r, r] * c**2 - 2 * c.log()

    at = best.clone().requires_grad_()
    assert_allclose(torch.autograd.grad(loss(at), at)[0], 0, atol=1e-12)


# ------------------------------------------------------------------------------- likelihoods

SITES = {
    "gaussian": Site(Gaussian(), 0.4, 2.5),
    "laplace": Site(Laplace(), 0.5, 2.0),
    "logistic": Site(Bernoulli(n_nodes=101), 0.0, 0.25),
}


def log_density(name, y, f):
    if name == "gaussian":
        return -0.5 * np.log(2 * np.pi * 0.4) - (y - f) ** 2 / 0.8
    if name == "laplace":
        return -np.log(1.0) - np.abs(y - f) / 0.5
    return -np.logaddexp(0, (1 - 2 * y) * f)


@pytest.mark.parametrize("name", SITES)
def test_expectations_against_numerical_integration(name):
    mean = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    std = torch.tensor([[0.01], [0.3], [1.0], [2.0], [5.0], [0.1], [1.5]], dtype=torch.float64)
    y = torch.tensor([1.0, 0, 1, 0, 1, 0, 1], dtype=torch.float64)[:, None]
    z = np.linspace(-12, 12, 200_001)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()

    def oracle(mean):
        f = mean.numpy() + std.numpy() * z
        return (log_density(name, y.numpy(), f) * weight).sum(1, keepdims=True)

    site, variance = SITES[name], std.square()
    found = site.terms(y, mean, variance)
    assert_allclose(found.value[:, None], oracle(mean), rtol=1e-6, atol=1e-7)
    h = 1e-3
    slope = (oracle(mean + h) - oracle(mean - h)) / (2 * h)
    assert_allclose(found.d_mean, slope, rtol=2e-4, atol=2e-5)
    ends = [site.terms(y, mean + sign * h, variance).d_mean for sign in (1, -1)]
    step = (ends[0] - ends[1]) / (2 * h)
    assert_allclose(2 * found.d_variance, step, rtol=1e-3, atol=1e-4)


def test_additive_noise_needs_a_variance():
    with pytest.raises(ValueError, match=r"Laplace\(\) needs a positive noise variance, got 0.0"):
        Site.of(Laplace(), 0.0, torch.zeros(3, 1).double())


@pytest.mark.parametrize("kind", [None, "projection"])
@pytest.mark.parametrize("name", ["laplace", "logistic"])
def test_the_bound_is_below_the_elbo_and_meets_it(name, kind):
    p, site = Problem(), SITES[name]
    Y = (p.Y > 0).double()
    C = p.C()
    mu = 0.3 * p.mu
    control = p.control(kind, mu)
    std = (p.phi @ C).square().sum(1, keepdim=True).sqrt()
    # Gauss-Hermite with all indices.
    f = (p.phi @ mu)[..., None].numpy()
    nodes, weights = np.polynomial.hermite_e.hermegauss(301)
    points = f + std.numpy()[..., None] * nodes
    exact = (log_density(name, Y.numpy()[..., None], points) @ (weights / weights.sum())).sum()

    gaps = []
    for drawn in (3, 6, M):
        g = torch.Generator().manual_seed(3)
        scores = [torch.rand(REPEATS, M, generator=g).argsort(1)[:, :drawn] for _ in range(2)]
        others = torch.rand(REPEATS, M - COLUMNS, generator=g).argsort(1)[:, : drawn - COLUMNS]

        def bound(i, j, r, drawn=drawn):
            support = p.phi[p.support]
            draw = BasisDraw(p.phi[:, i], mu[i], M / drawn, support[:, i])
            dense = M / drawn * (p.phi[:, j] @ p.dense[j])
            scale = (M - COLUMNS) / (drawn - COLUMNS)
            variance = sampled_variance(
                dense, p.phi[:, COLUMNS:][:, r], p.diagonal[r][:, None], scale
            )
            return likelihood_bound(site, Y, draw, variance, N, control(torch.arange(N)))

        values = vmap(bound)(*scores, others)
        error = values.std() / math.sqrt(REPEATS)
        assert values.mean() < exact + 4 * error + 1e-6 * abs(exact)
        gaps.append(exact - values.mean().item())
    assert gaps[0] > gaps[1] > gaps[2]
    assert abs(gaps[2]) < (1e-6 if name == "logistic" else 0.05) * abs(exact)


def test_the_gradient_of_the_bound_is_unbiased_with_a_control_variate():
    """Two draws: the known part's gradient must not meet the draw that it was computed from."""
    p, site = Problem(), SITES["logistic"]
    Y, mu = (p.Y > 0).double(), 0.5 * p.mu
    support, variance = p.phi[p.support], torch.full((N, 1), 0.25, dtype=torch.float64)
    A = p.phi @ torch.linalg.pinv(support)
    scale = M / DRAWN

    def estimate(mu, i, j, other):
        control = Projection(A, (support @ mu).detach())
        draw = BasisDraw(p.phi[:, i], mu[i], scale, support[:, i])
        second = BasisDraw(p.phi[:, j], mu[j], scale, support[:, j]) if other else None
        return likelihood_bound(site, Y, draw, variance, N, control, second)

    def dense(mu, i):
        f = scale * (p.phi[:, i] @ mu[i]) + A @ (support @ mu - scale * support[:, i] @ mu[i])
        return site.terms(Y, f, variance).value.sum()

    _, i, j, _ = draws()
    expected = vmap(grad_and_value(dense), (None, 0))(mu, i)[0]
    difference = vmap(grad_and_value(lambda *a: estimate(*a, True)), (None, 0, 0))(mu, i, j)[0]
    assert z_scores(difference - expected, 0.0) < 4.5
    shared = vmap(grad_and_value(lambda *a: estimate(*a, False)), (None, 0, 0))(mu, i, j)[0]
    assert z_scores(shared - expected, 0.0) > 6


def test_the_printed_variance_is_not_a_deviation():
    """Equation 5 multiplies z by the variance; with that the bound misses the exact value."""
    p, site = Problem(), SITES["logistic"]
    mean, variance = p.phi @ (0.3 * p.mu), (p.phi @ p.C()).square().sum(1, keepdim=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(301)
    Y = (p.Y > 0).double()

    def quadrature(spread):
        points = mean.numpy()[..., None] + spread.numpy()[..., None] * nodes
        values = log_density("logistic", Y.numpy()[..., None], points)
        return (values @ (weights / weights.sum())).sum()

    full = BasisDraw(p.phi, 0.3 * p.mu, 1.0)
    ours = likelihood_bound(site, Y, full, variance, N)
    assert_allclose(ours, quadrature(variance.sqrt()), rtol=1e-6)
    assert abs(quadrature(variance) - ours) > 0.05 * abs(ours)
