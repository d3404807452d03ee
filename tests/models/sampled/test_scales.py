"""Factors of variances and noise from held-out rows, and the folds that they come from."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import QSRVMRegressor
from skscalablegp.models.sampled._posterior import fitted_scales


def drawn(variance, truth, seed, t=1):
    """Residuals of variance a v + b, with truth = (a, b)."""
    rng = np.random.default_rng(seed)
    std = np.sqrt(truth[0] * variance + truth[1])
    return std[:, None] * rng.standard_normal((len(variance), t))


def nearly_equal(seed, n=1000):
    return 0.1 * np.random.default_rng(100 + seed).uniform(0.9, 1.1, n)


def of_all_sizes(seed, n=1000):
    return 10.0 ** np.random.default_rng(100 + seed).uniform(-3, 1, n)


def penalised(z, variance, residual, known, trained, counts):
    """The log density of the residuals, times standard normal priors of the log factors."""
    total = np.exp(z[0]) * variance + np.exp(z[1]) * trained + known
    density = norm.logpdf(residual, scale=np.sqrt(total)[:, None])
    return float((counts[:, None] * density).sum()) + norm.logpdf(z).sum()


@pytest.mark.parametrize("variances", [nearly_equal, of_all_sizes])
@pytest.mark.parametrize(("truth", "trained"), [((1.0, 0.3), 0.3), ((0.2, 2.0), 0.5)])
def test_scales_are_the_highest_point_of_the_penalised_density(variances, truth, trained):
    rng = np.random.default_rng(1)
    variance, known = variances(0, 60), rng.uniform(0, 0.2, 60)
    counts = rng.integers(1, 4, 60).astype(float)
    args = variance, drawn(variance, truth, 0, t=2), known, trained, counts
    centre, width = np.zeros(2), 6.0
    for _ in range(8):
        grid = centre[:, None] + np.linspace(-width, width, 21)
        points = np.stack(np.meshgrid(*grid), -1).reshape(-1, 2)
        centre = max(points, key=lambda z: penalised(z, *args))
        width /= 3
    assert_allclose(fitted_scales(*args), np.exp(centre), rtol=3e-3)
    # Without a trained noise there is one factor; a noise that is known adds what this one does.
    fixed = args[:2] + (known + trained,)
    grid = np.linspace(-6, 6, 4001)
    best = max(grid, key=lambda at: penalised((at, 0.0), *fixed, 0.0, counts))
    assert_allclose(fitted_scales(*fixed, counts=counts), (np.exp(best), 1), rtol=4e-3)


def test_variances_that_are_nearly_equal_leave_factors_near_one():
    """The residuals then tell the sum alone; without a prior, 4 of 16 factors were below 1e-5."""
    for seed in range(16):
        variance = nearly_equal(seed)
        residual = drawn(variance, (1, 0.3), seed)
        factor, of_noise = fitted_scales(variance, residual, 0.0, 0.3)
        assert 0.4 < factor < 2.6 and 0.5 < of_noise < 1.5
        assert_allclose(factor * 0.1 + of_noise * 0.3, 0.4, rtol=0.15)


@pytest.mark.parametrize("truth", [(1.0, 0.3), (0.1, 0.3), (8.0, 0.3), (1.0, 0.02), (1.0, 3.0)])
def test_variances_of_all_sizes_tell_both_scales(truth):
    for seed in range(8):
        variance = of_all_sizes(seed, 2000)
        factor, of_noise = fitted_scales(variance, drawn(variance, truth, seed), 0.0, 0.3)
        assert_allclose((factor, 0.3 * of_noise), truth, rtol=0.4)


def test_each_fold_has_a_noise_of_its_own(stand_in):
    """The last fold's noise once stood for that of all, here from a fifth to nine times of it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (100, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(100)
    folds, found, calls = [], [], []

    def with_another_noise(functions, source, *args):
        stepper = trained(functions, source, *args)
        stepper.noise *= [1.0, 9.0, 0.2, 3.0, 0.5][len(folds)]
        stepper._solve()
        folds.append((stepper, source))
        return stepper

    def kept(*args):
        calls.append(args)
        found.append(compared(*args))
        return found[0]

    trained = stand_in("sampled._trained", with_another_noise)
    compared = stand_in("compared", kept)
    kernel = RBF(0.7) + WhiteKernel(0.1)
    with pytest.warns(ConvergenceWarning, match="sparse model"):
        QSRVMRegressor(kernel, optimizer=None, n_components=40, random_state=0).fit(X, y)
    compiled, source = calls[0][0].kernel, calls[0][1]
    rows = source.take(slice(None))
    X, Y = rows.X.numpy(), rows.Y.numpy()
    kernel = compiled.to_sklearn(compiled.theta0)
    parts = []
    for stepper, rest in folds:
        others = rest.take(slice(None))
        R, T = others.X.numpy(), others.Y.numpy()
        held = ~(X[:, None] == R).all(2).any(1)
        functions, weights = stepper.model().process()
        mean, variance, _ = functions.posterior(weights).moments(torch.tensor(X[held]))
        process = GaussianProcessRegressor(kernel, optimizer=None, alpha=0).fit(R, T)
        exact = norm.logpdf(Y[held, 0], *process.predict(X[held], return_std=True))
        e, noise = Y[held] - mean.numpy(), np.full(held.sum(), stepper.noise)
        parts.append((variance.numpy(), e[:, 0], noise, exact))
    v, e, noise, exact = map(np.concatenate, zip(*parts, strict=True))
    assert len(e) == 100 and len(set(noise)) == 5
    factors = np.exp(np.linspace(-6, 6, 2401))
    own = norm.logpdf(e, scale=np.sqrt(factors[:, None] * v + noise))
    best = np.argmax(own.sum(1) + norm.logpdf(np.log(factors)))
    assert_allclose(found[0].scale, factors[best], rtol=6e-3)
    assert_allclose(found[0].loss, (exact - own[best]).mean(), atol=1e-4)


def test_held_out_targets_change_nothing_in_their_fold(stand_in):
    """Their mean square was once the unit of the prior in all folds."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (80, 1))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(80)
    folds = []

    def kept(self, held, rest):
        folds.append([held])
        return without(self, held, rest)

    def predicted(*args):
        stepper = trained(*args)
        new = torch.linspace(-3, 3, 30, dtype=torch.float64)[:, None]
        functions, weights = stepper.model().process()
        mean, variance, _ = functions.posterior(weights).moments(new)
        folds[-1] += [mean.numpy(), variance.numpy(), stepper.noise]
        return stepper

    def fitted_folds(y):
        folds.clear()
        kernel = RBF(0.7) + WhiteKernel(0.1)
        QSRVMRegressor(kernel, optimizer=None, n_components=40, random_state=0).fit(X, y)
        return list(folds)

    without = stand_in("Dictionary.without", kept)
    trained = stand_in("sampled._trained", predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        before = fitted_folds(y)
        for k in range(5):
            moved = y.copy()
            moved[before[k][0]] += 5 * rng.standard_normal(16)
            after = fitted_folds(moved)
            for one, other in zip(after[k], before[k], strict=True):
                assert_allclose(one, other, rtol=1e-8, atol=1e-10)
            assert np.abs(after[k - 1][1] - before[k - 1][1]).max() > 0.1
