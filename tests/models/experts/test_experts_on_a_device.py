"""Experts on a simulated GPU: those of equal size are factorised and predict together."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from simulated import simulated
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

from skscalablegp import PoERegressor

KERNEL = ConstantKernel(2.0) * Matern([1.0, 2.0, 1.5]) + WhiteKernel(0.05)


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(X.sum(1)) + 0.2 * rng.standard_normal(n)


def experts(device, kernel=KERNEL, **params):
    settings = dict(expert_size=20, partition="random", optimizer=None, random_state=0)
    return PoERegressor(kernel, device=device, small_table="method", **settings | params)


def counted(gpu, work):
    gpu.forget()
    work()
    return dict(gpu.launches), sum(gpu.waits.values())


@pytest.mark.parametrize("n_experts", ["auto", 2])
def test_the_number_of_experts_changes_no_count(n_experts):
    """Operations and waits of a likelihood with its gradient, of a posterior and of predictions."""
    counts, new = [], table(50, 1)[0]
    with simulated() as gpu:
        for n in (80, 160):
            model = experts("cuda", n_experts=n_experts).fit(*table(n))
            work = [
                partial(model.log_marginal_likelihood, model.kernel_.theta, eval_gradient=True),
                model._build_posterior,
                partial(model.predict, new, return_std=True),
            ]
            counts.append([counted(gpu, one) for one in work])
            assert len(model.experts_) == n // 20
    assert counts[0] == counts[1]
    assert [launches["linalg_cholesky_ex"] for launches, _ in counts[0][:2]] == [1, 1]


@pytest.mark.parametrize("combination", ["gpoe", "grbcm"])
@pytest.mark.parametrize("kernel", [KERNEL, DotProduct() + WhiteKernel(0.05)], ids=str)
@pytest.mark.parametrize("size, n_experts", [(20, "auto"), (17, 2)])
def test_the_answers_are_those_of_single_experts(combination, kernel, size, n_experts):
    """Likelihoods, gradients, predictions and leave-one-out; 70 rows are parts of two sizes."""
    X, y = table(70)
    new, found = table(40, 1)[0], []
    params = dict(combination=combination, expert_size=size, n_experts=n_experts)
    for device in ("cpu", "cuda"):
        with simulated():
            model = experts(device, kernel, **params).fit(X, y)
            value, grad = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
            mean, std = model.predict(new, return_std=True)
            found.append([value, model.log_marginal_likelihood_value_, grad, mean, std])
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(theirs, ours, rtol=1e-7, atol=1e-9)


def test_experts_without_a_factor_get_jitter():
    """Almost equal rows without noise: as on the CPU, the fit reports a jitter and predicts."""
    X, y = table(40)
    X, y = np.concatenate([X, X + 1e-12]), np.tile(y, 2)
    with simulated():
        model = experts("cuda", ConstantKernel(1.0, "fixed") * Matern(), partition="kmeans")
        model.set_params(alpha=1e-300).fit(X, y)
        assert 0 < model.fit_report_.jitter < 1e-6
        assert_allclose(model.predict(X), y, atol=0.01)
