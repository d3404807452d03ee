"""Steps of relevance vector machines: which functions are dropped and added, and the evidence."""

import copy
import warnings

import numpy as np
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSRVMRegressor, draw_functions
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.core.training import Budget
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.sampled import Dictionary
from skscalablegp.models.sampled._relevance import RelevanceStepper

KERNEL = compile_kernel(ConstantKernel(1.5) * RBF([0.8, 1.3]) + WhiteKernel(0.05), 2)


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    Y = np.sin(2 * X[:, :1]) + 0.2 * rng.standard_normal((n, 1))
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    return RowSource.of(X, Y, unit, torch.float64)


def stepper(source, **settings):
    dictionary = Dictionary.of(KERNEL, source, np.arange(80), 1e4)
    return RelevanceStepper(dictionary, source, Budget(), **settings)


def test_the_unit_of_precisions_is_the_mean_square_of_all_rows_before_merging():
    source = rows()
    counts = np.arange(1.0, 61.0)
    counted = RowSource.of(source.X, source.Y, source.scaling, torch.float64, weight=counts)
    unit = Dictionary.of(KERNEL, counted, np.arange(5), 1e4).unit
    long = np.repeat(source.Y, counts.astype(int), axis=0)
    assert_allclose(unit, np.mean(long**2), rtol=1e-12)


def test_the_function_that_adds_least_is_dropped():
    run = stepper(rows(80), singly=0)
    for _ in range(10):
        run.step()
    before, active, without = run.evidence, run.active, []
    for i in range(len(active)):
        run.active = torch.cat([active[:i], active[i + 1 :]])
        run._solve()
        without.append(run.evidence)
    run.active = active
    run._solve()
    assert max(without) > before - 0.5 > min(without)
    assert run.drop(1)
    assert_allclose(run.evidence, max(without), rtol=1e-9)


def test_functions_are_dropped_one_by_one_until_each_is_worth_half_a_nat():
    run = stepper(rows(80), singly=0)
    for _ in range(3):
        run.step()
    singly = copy.deepcopy(run)
    assert run.drop(100) and len(singly.active) - len(run.active) > 20
    while singly.drop(1):
        pass
    assert run.active.tolist() == singly.active.tolist()


def test_the_function_that_adds_most_comes_back_with_its_best_precision():
    run = stepper(rows(80))
    for _ in range(30):
        run.step()
    run.active = run.active[1:]
    run._solve()
    best, before, active = -np.inf, run.evidence, run.active
    for i in set(range(80)) - set(active.tolist()):
        run.active = torch.cat([active, torch.tensor([i])])

        def loss(log_s, i=i):
            run.precision[i] = np.exp(log_s)
            run._solve()
            return -run.evidence

        best = max(best, -minimize_scalar(loss, bounds=(-7, 9), method="bounded").fun)
    run.active = active
    run._solve()
    run.add(1)
    assert len(run.active) == len(active) + 1 and best > before + 1.5
    assert_allclose(run.evidence, best, rtol=1e-7)


def test_relevance_steps_raise_the_evidence():
    source = rows(80)
    whole = source.take(slice(None))
    X, Y = whole.X, whole.Y
    phi = KERNEL.cross(KERNEL.theta0, X, X) / KERNEL.diag(KERNEL.theta0, X)
    run = stepper(source)
    assert run.flops == 2 * 80**3

    def evidence():
        a = run.active
        C = run.noise * torch.eye(80) + (phi[:, a] / run.precision[a]) @ phi[:, a].T
        zero = torch.zeros(80, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(zero, C).log_prob(Y[:, 0])

    before = run.score()
    assert_allclose(run.evidence, evidence(), rtol=1e-6)
    assert_allclose(run.score(), (0.5 * len(run.active) - run.evidence) / 80)
    for _ in range(30):
        run.step()
    assert_allclose(run.evidence, evidence(), rtol=1e-6)
    assert_allclose(run.score(), (0.5 * len(run.active) - run.evidence) / 80)
    assert run.score() < before and len(run.active) < 40


def test_drawn_functions_have_the_moments_of_the_closed_form():
    """The machine's mean, and the process with the relevance vectors as inducing points."""
    rng, s = np.random.default_rng(0), 250
    X, new = rng.uniform(-3, 3, (150, 2)), rng.uniform(-4, 4, (15, 2))
    y = 100 + 50 * (np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(150))
    model = QSRVMRegressor(
        2.0 * RBF([0.7, 0.7]) + WhiteKernel(0.1),
        optimizer=None,
        n_components=40,
        normalize_y=True,
        standardize=False,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    kernel, Z = model.kernel_.k1, model.relevance_vectors_
    K, cross, seen = kernel(Z), kernel(new, Z), kernel(Z, X)
    right = y.mean() + y.std() * cross / kernel.diag(Z) @ model.coef_.reshape(len(Z))
    inner = np.linalg.inv(K + seen @ seen.T / model.noise_variance_) - np.linalg.inv(K)
    covariance = y.var() * (kernel(new) + cross @ inner @ cross.T)
    # One factor, which fits the errors of held-out rows, multiplies all variances.
    factor = model.predict_std(new, include_noise=False) ** 2 / covariance.diagonal()
    assert_allclose(factor, factor[0], rtol=1e-6)
    assert factor[0] < 0.9
    covariance *= factor[0]
    means, products = [], []
    for seed in range(16):
        f = draw_functions(model, s, random_state=seed).values(new) - right[:, None]
        means.append(f.mean(1))
        products.append(f @ f.T / s)
    std = np.sqrt(covariance.diagonal())
    assert np.abs(np.mean(means, 0) / std).max() < 4.5 / (16 * s) ** 0.5
    error = np.maximum(np.std(products, 0, ddof=1) / 4, np.outer(std, std) / (16 * s) ** 0.5)
    assert (np.abs(np.mean(products, 0) - covariance) < 5 * error).all()
