"""Bounds through inducing points against dense algebra, exact processes and finite differences."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import generator, normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood
from skscalablegp.models.inducing import (
    KernelValues,
    NaturalBelief,
    WhitenedBelief,
    Whitening,
    collapsed_bound,
    variational_bound,
)

KERNEL = ConstantKernel(1.3) * Matern([0.9, 1.4], nu=1.5) + WhiteKernel(0.2)


def problem(n=40, t=1, kernel=KERNEL, extra=True):
    X = normal(n, 2, seed=1)
    Y = torch.sin(X[:, :1] * 2) + 0.3 * normal(n, t, seed=2)
    noise = torch.linspace(0.01, 0.3, n, dtype=torch.float64) if extra else 0.0
    return GPProblem(compile_kernel(kernel, 2), Rows.of(X, Y, noise))


def values(kernel, theta, Z, X, extra=0.0):
    return KernelValues(
        kernel.cross(theta, Z, Z),
        kernel.cross(theta, Z, X),
        kernel.diag(theta, X),
        kernel.noise(theta, X) + extra,
    )


@pytest.mark.parametrize("t", [1, 3])
def test_collapsed_bound_is_its_definition(t):
    ours = problem(t=t)
    theta, Z = ours.kernel.theta0, normal(7, 2, seed=3)
    bound = collapsed_bound(ours.kernel, theta, Z, ours.total, block_rows=9)
    K = ours.kernel.cross(theta, ours.X, ours.X)
    Kzx, Kzz = ours.kernel.cross(theta, Z, ours.X), ours.kernel.cross(theta, Z, Z)
    Q = Kzx.T @ torch.linalg.solve(Kzz + 1e-8 * 1.3 * torch.eye(7, dtype=Q_DTYPE), Kzx)
    D = torch.diag(ours.kernel.noise(theta, ours.X) + ours.rows.noise)
    normal_ = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=Q_DTYPE), Q + D)
    trace = ((K - Q).diagonal() / D.diagonal()).sum()
    expected = normal_.log_prob(ours.Y.T).sum() - 0.5 * t * trace
    assert_allclose(bound.value, float(expected), rtol=1e-9)


Q_DTYPE = torch.float64


@pytest.mark.parametrize("t", [1, 2])
def test_bound_is_below_the_likelihood_and_tight_with_all_rows(t):
    ours = problem(t=t)
    theta = ours.kernel.theta0
    exact = exact_marginal_likelihood(ours, theta, eval_gradient=True)
    last = -math.inf
    for m in (3, 10, 25, 39):
        bound = collapsed_bound(ours.kernel, theta, ours.X[:m], ours.total)
        assert last < bound.value < exact.value
        last = bound.value
    tight = collapsed_bound(ours.kernel, theta, ours.X, ours.total, eval_gradient=True)
    assert abs(tight.value - exact.value) < 1e-5 * abs(exact.value)
    assert_allclose(tight.grad, exact.grad, rtol=1e-3, atol=1e-3)


def test_collapsed_gradient_of_points_that_all_but_agree():
    """A condition of 1e7 and little noise: errors must not be those of the points' inverse."""
    kernel = compile_kernel(180.0 * Matern([13.0, 21.0], nu=1.5) + WhiteKernel(5e-4), 2)
    X = normal(60, 2, seed=4)
    ours = GPProblem(kernel, Rows.of(X, torch.sin(X[:, :1])))
    grads = torch.stack(
        [
            collapsed_bound(
                kernel, kernel.theta0 + 1e-14 * e, X, ours.total, eval_gradient=True
            ).grad
            for e in normal(10, len(kernel.theta0), seed=5)
        ]
    )
    assert grads.std(0).max() < 1e-9 * grads.abs().max()


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("kernel", [KERNEL, RBF(0.8) + DotProduct() + WhiteKernel(0.1)])
def test_collapsed_gradient_by_finite_differences(t, kernel):
    ours = problem(n=30, t=t, kernel=kernel)
    Z = normal(6, 2, seed=3)
    theta = ours.kernel.theta0

    def value(theta, Z):
        return collapsed_bound(ours.kernel, theta, Z, ours.total).value

    got = collapsed_bound(ours.kernel, theta, Z, ours.total, block_rows=7, eval_gradient=True)
    h = 1e-5
    for k in range(len(theta)):
        e = torch.zeros_like(theta)
        e[k] = h
        slope = (value(theta + e, Z) - value(theta - e, Z)) / (2 * h)
        assert_allclose(float(got.grad[k]), slope, rtol=1e-5, atol=1e-4)
    for i, j in ((0, 0), (2, 1), (5, 0)):
        E = torch.zeros_like(Z)
        E[i, j] = h
        slope = (value(theta, Z + E) - value(theta, Z - E)) / (2 * h)
        assert_allclose(float(got.grad_inducing[i, j]), slope, rtol=1e-5, atol=1e-4)


def random_belief(m, q, s):
    C = 0.3 * normal(s, m, m, seed=5).tril() + 0.5 * torch.eye(m, dtype=torch.float64)
    S = C @ C.mT
    return WhitenedBelief(normal(m, q, seed=6), S, torch.logdet(S))


LIKELIHOODS = [
    (Gaussian(), 1, 1, 1),
    (Gaussian(), 3, 3, 1),
    (StudentT(3.0, n_nodes=60), 1, 1, 1),
    (Bernoulli("logit", n_nodes=60), 1, 1, 1),
    (Bernoulli("probit", n_nodes=60), 1, 1, 1),
]


def targets(likelihood, n, t):
    if isinstance(likelihood, Bernoulli):
        return (torch.arange(n, dtype=torch.float64) % 2)[:, None]
    return normal(n, t, seed=7)


@pytest.mark.parametrize("likelihood, t, q, s", LIKELIHOODS, ids=lambda v: str(v))
def test_gradients_of_the_variational_bound(likelihood, t, q, s):
    """Through kernel, points and noise, by finite differences; rows are reweighted."""
    kernel, n, m = compile_kernel(KERNEL, 2), 12, 5
    X, Z, Y = normal(n, 2, seed=1), normal(m, 2, seed=3), targets(likelihood, n, t)
    belief, theta = random_belief(m, q, s), kernel.theta0

    def evaluate(theta, Z, eval_gradient=False):
        K = values(kernel, theta, Z, X)
        rows = Rows.of(X, Y, weight=2.5)
        return K, variational_bound(likelihood, belief, K, rows, eval_gradient=eval_gradient)

    leaves = [theta.clone().requires_grad_(True), Z.clone().requires_grad_(True)]
    K, result = evaluate(*leaves, eval_gradient=True)
    K.backward(result.grad)
    h = 1e-5
    for which, leaf in enumerate(leaves):
        for k in range(leaf.numel()):
            shift = torch.zeros(leaf.numel(), dtype=torch.float64)
            shift[k] = h
            at = [theta, Z]
            ends = []
            for sign in (1, -1):
                at[which] = leaf.detach() + sign * shift.reshape(leaf.shape)
                ends.append(evaluate(*at)[1].value)
            slope = (ends[0] - ends[1]) / (2 * h)
            assert_allclose(-float(leaf.grad.flatten()[k]), slope, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("likelihood, t, q, s", LIKELIHOODS, ids=lambda v: str(v))
def test_statistics_are_gradients_in_the_belief(likelihood, t, q, s):
    kernel, n, m = compile_kernel(KERNEL, 2), 12, 4
    X, Z, Y = normal(n, 2, seed=1), normal(m, 2, seed=3), targets(likelihood, n, t)
    K, belief = values(kernel, kernel.theta0, Z, X), random_belief(m, q, s)
    whole = variational_bound(likelihood, belief, K, Rows.of(X, Y))
    rows = whole.rows
    alone = variational_bound(likelihood, belief, K, Rows.of(X, Y), value_only=True)
    assert alone.value == whole.value == whole.expected - belief.divergence()

    def value(mean, S):
        shifted = WhitenedBelief(mean, S, torch.logdet(S))
        bound = variational_bound(likelihood, shifted, K, Rows.of(X, Y), eval_gradient=False)
        return bound.expected

    h = 1e-5
    for i in range(m):
        E = torch.zeros_like(belief.mean)
        E[i, 0] = h
        up, down = (
            value(belief.mean + E, belief.covariance),
            value(belief.mean - E, belief.covariance),
        )
        assert_allclose(float(rows.d_mean[i, 0]), (up - down) / (2 * h), rtol=1e-4, atol=1e-5)
    if isinstance(likelihood, StudentT):
        return  # where it is convex in f the statistics leave the curvature out
    E = torch.zeros_like(belief.covariance)
    E[0, 0, 1] = E[0, 1, 0] = h
    slope = value(belief.mean, belief.covariance + E) - value(belief.mean, belief.covariance - E)
    # The derivative is -P / 2 for each target; two entries moved.
    assert_allclose(-float(rows.precision[0, 0, 1]) * q / s, slope / (2 * h), rtol=1e-4, atol=1e-6)


def test_one_natural_step_on_all_rows_is_the_optimum():
    ours = problem(t=2, extra=False)
    theta, Z = ours.kernel.theta0, normal(8, 2, seed=3)
    K = values(ours.kernel, theta, Z, ours.X)
    prior = NaturalBelief.prior(8, 2, 1, torch.device("cpu"))
    rows = variational_bound(Gaussian(), prior.whitened(), K, ours.rows).rows
    best = collapsed_bound(ours.kernel, theta, Z, ours.total)
    stepped = prior.towards(prior.plus(rows), 1.0)
    assert_allclose(stepped.precision, best.belief.precision, rtol=1e-8, atol=1e-10)
    assert_allclose(stepped.shift, best.belief.shift, rtol=1e-8)
    again = variational_bound(Gaussian(), stepped.whitened(), K, ours.rows)
    assert_allclose(again.value, best.value, rtol=1e-9)


def test_batches_are_unbiased():
    """Over a partition of the rows, statistics and bound average to those of all rows."""
    ours = problem(t=1, extra=False)
    theta, Z = ours.kernel.theta0, normal(6, 2, seed=3)
    belief = random_belief(6, 1, 1)

    def bound(part, weight):
        K = values(ours.kernel, theta, Z, ours.X[part])
        rows = Rows.of(ours.X[part], ours.Y[part], weight=weight)
        return variational_bound(Gaussian(), belief, K, rows)

    whole = bound(slice(None), 1.0)
    parts = [bound(slice(k, k + 10), 4.0) for k in range(0, 40, 10)]
    assert_allclose(np.mean([p.value for p in parts]), whole.value)
    for name in ("precision", "shift", "d_mean"):
        mean = torch.stack([getattr(p.rows, name) for p in parts]).mean(0)
        assert_allclose(mean, getattr(whole.rows, name), rtol=1e-9, atol=1e-9)
    # Without the factor n / b the statistics would be those of ten rows.
    plain = bound(slice(0, 10), 1.0)
    assert float(
        plain.rows.precision.trace()
        if plain.rows.precision.ndim == 2
        else plain.rows.precision[0].trace()
    ) < 0.5 * float(whole.rows.precision[0].trace())


@pytest.mark.parametrize("m", [2, 5])
def test_whitening_keeps_points_that_coincide(m):
    kernel = compile_kernel(RBF(1.0), 2)
    Z = torch.ones(m, 2, dtype=torch.float64)
    white = Whitening.of(kernel.cross(kernel.theta0, Z, Z))
    assert torch.isfinite(white.inverse).all() and white.jitter >= 1e-8


def test_softmax_terms_are_unbiased():
    mean, variance = normal(6, 3, seed=1), normal(6, 3, seed=2).square() + 0.1
    Y = torch.tensor([[0.0], [1], [2], [0], [1], [2]], dtype=torch.float64)
    noise = torch.zeros(6, dtype=torch.float64)
    exact = Softmax(400_000).expected(Y, mean, variance, noise, generator(1))
    g = generator(2)
    draws = [Softmax(4).expected(Y, mean, variance, noise, g) for _ in range(400)]
    for name in ("value", "d_mean", "d_variance"):
        values_ = torch.stack([getattr(d, name) for d in draws])
        z = (values_.mean(0) - getattr(exact, name)) / (values_.std(0) / 20 + 1e-4)
        assert float(z.abs().max()) < 4
    # Derivatives belong to the value: one step in the mean of a class.
    h, shifted = 1e-3, mean.clone()
    shifted[0, 1] += h
    up = Softmax(400_000).expected(Y, shifted, variance, noise, generator(1))
    assert_allclose(float((up.value - exact.value)[0] / h), float(exact.d_mean[0, 1]), atol=2e-3)


def test_two_softmax_classes_are_a_logit():
    """f_1 - f_0 has the sum of the variances."""
    mean, variance = normal(9, 2, seed=1), normal(9, 2, seed=2).square()
    draws = normal(200_000, 2, seed=3)
    p = Softmax().probabilities(mean, variance, 2, draws)[:, 1]
    q = Bernoulli("logit", n_nodes=80).probabilities(
        (mean[:, 1] - mean[:, 0])[:, None], variance.sum(1, keepdim=True)
    )[:, 1]
    assert_allclose(p, q, atol=3e-3)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli_probabilities_by_integration(link):
    mean, variance = torch.tensor([[0.7], [-2.0]]).double(), torch.tensor([[0.5], [3.0]]).double()
    f = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    density = torch.exp(-0.5 * (f - mean).square() / variance) / (2 * math.pi * variance).sqrt()
    p = torch.sigmoid(f) if link == "logit" else torch.special.ndtr(f)
    expected = (density * p).sum(1) * (f[1] - f[0])
    got = Bernoulli(link, n_nodes=64).probabilities(mean, variance)
    assert_allclose(got[:, 1], expected, rtol=1e-6)
    assert_allclose(got.sum(1), 1)


def test_many_degrees_of_freedom_are_gaussian():
    Y, mean, variance = normal(8, 1), normal(8, 1, seed=1), normal(8, 1, seed=2).square() + 0.1
    noise = torch.full((8,), 0.3, dtype=torch.float64)
    t = StudentT(1e7, n_nodes=60).expected(Y, mean, variance, noise)
    g = Gaussian().expected(Y, mean, variance, noise)
    for a, b in zip(t, g, strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-4)
