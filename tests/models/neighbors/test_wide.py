"""Wide neighbourhoods, which correct the predictions of few neighbours, against dense algebra."""

import pickle
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from simulated import simulated
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Matern,
    WhiteKernel,
)

from skscalablegp import NNGPRegressor, files, to_torch
from skscalablegp.core import Machine, fitted_process
from skscalablegp.core.training import Budget, StopTraining
from skscalablegp.models.neighbors._metric import Index
from skscalablegp.models.neighbors._plan import plan
from skscalablegp.models.neighbors._wide import (
    _RIDGE,
    WideFit,
    close_rows,
    combination,
    judged,
)
from skscalablegp.solvers import End

D, M, WIDE = 4, 10, 120
SCALES = np.linspace(1, 3, D)
KERNEL = ConstantKernel(1.3) * Matern(SCALES, nu=1.5) + WhiteKernel(0.01)


def table(n=1000, n_test=500, t=1, seed=0):
    """Rows and targets drawn from the process of the kernel."""
    return tuple(part.copy() for part in drawn(n, n_test, t, seed))


@cache
def drawn(n, n_test, t, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n + n_test, D))
    y = np.linalg.cholesky(KERNEL(X)) @ rng.standard_normal((len(X), t))
    y = y[:, 0] if t == 1 else y
    return X[:n], y[:n], X[n:], y[n:]


def model(**settings):
    given = dict(kernel=KERNEL, optimizer=None, n_neighbors=M, random_state=0, dtype="float64")
    return NNGPRegressor(**(given | dict(n_wide_neighbors=WIDE) | settings))


def conditioned(X, y, x, noise):
    """Mean and latent variance of one row given these."""
    k = KERNEL.k1(X, x[None])[:, 0]
    w = np.linalg.solve(KERNEL.k1(X) + np.diag(noise), k)
    return w @ y, 1.3 - w @ k


def nearest(X, x, m=M, leave=()):
    away = (((X - x) / SCALES) ** 2).sum(1)
    away[list(leave)] = np.inf
    return np.argsort(away)[:m]


def shares_of(centres, x):
    """The minimum of |sum w (c - x)|^2 + ridge |w|^2 with sum w = 1, by its Lagrange equations."""
    offsets = (centres - x) / SCALES
    gram = offsets @ offsets.T
    k = len(gram)
    system = np.ones((k + 1, k + 1))
    system[:k, :k] = gram + _RIDGE * np.trace(gram) / k * np.eye(k)
    system[k, k] = 0
    return np.linalg.solve(system, np.eye(k + 1)[k])[:k]


def wide_mean(gp, X, y, noise, x, without=()):
    """From the fitted centres and their rows, with weights computed anew without some rows."""
    centres, hoods = X[gp._wide[3]].mean(1), gp._wide[4]
    near = nearest(centres, x, min(6, len(centres)))
    shares, means = shares_of(centres[near], x), []
    for hood in hoods[near]:
        rows = [i for i in hood if i not in without]
        means.append(conditioned(X[rows], y[rows], x, noise[rows])[0])
    return shares @ np.array(means)


def corrected(gp, own, variance, wide):
    weight, shrink, typical = gp._wide[:3]
    size = (1 - variance / 1.3) * variance / (variance + 0.05 * typical)
    return own + weight * size * (wide - own), variance * (1 - (1 - shrink) * size)


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_are_those_of_neighbours_corrected_by_wide_ones(t, known, dtype):
    X, y, X_test, _ = table(t=t)
    noise_variance = np.linspace(0.001, 0.1, len(X)) if known else None
    gp = model(dtype=dtype).fit(X, y, noise_variance=noise_variance)
    noise = 0.01 + (0.0 if noise_variance is None else noise_variance) * np.ones(len(X))
    mean, std = gp.predict(X_test[:40], return_std=True)
    assert gp.wide_weight_ == gp._wide[0] > 0.5 and gp._wide[1] < 0.99
    assert gp.n_wide_neighbors_ == WIDE
    # A group has 0.53 sqrt(120) = 6 rows. The rows of a neighbourhood are those nearest to the mean
    # of its group, but for those that are held out of all.
    groups, hoods = gp._wide[3:5]
    assert groups.shape == (150, 6) and hoods.shape == (150, WIDE)
    assert len(np.unique(groups)) == 900
    held_out = np.setdiff1d(np.arange(1000), groups)
    assert not np.isin(hoods, held_out).any()
    for i in range(0, 150, 9):
        assert set(hoods[i]) == set(nearest(X, X[groups[i]].mean(0), WIDE, leave=held_out))
    close = dict(rtol=1e-7, atol=1e-8) if dtype == "float64" else dict(rtol=1e-4, atol=1e-4)
    for i, x in enumerate(X_test[:40]):
        near = nearest(X, x)
        own, variance = conditioned(X[near], y[near], x, noise[near])
        m, v = corrected(gp, own, variance, wide_mean(gp, X, y, noise, x))
        assert_allclose(mean[i], m, **close)
        assert_allclose(std[i] ** 2, v + 0.01, rtol=close["rtol"])


def test_the_shares_of_one_centre_and_of_equal_centres():
    ones = combination(torch.zeros(2, 3, 4, dtype=torch.float64))
    assert_allclose(ones, np.full((2, 3), 1 / 3))
    assert_allclose(combination(torch.full((1, 1, 4), 1e30, dtype=torch.float64)), [[1.0]])
    on_one_side = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    assert combination(on_one_side)[0, 0] > 1 > 0 > combination(on_one_side)[0, 1]


@pytest.mark.parametrize("everything", [False, True])
def test_a_training_row_is_left_out_of_the_neighbourhoods(everything):
    """Exactly if its neighbours and those of the neighbourhoods are all other rows."""
    X, y, _, _ = table(200 if everything else 1000)
    n = len(X)
    settings = dict(n_neighbors=n - 1, n_wide_neighbors=n) if everything else {}
    gp = model(**settings).fit(X, y)
    posterior, noise = gp._posterior(), np.full(n, 0.01)
    if gp._wide is None:  # All rows know what all rows know: there is nothing to correct.
        assert everything
        gp._wide = _all_rows(X, y, noise)
        posterior = posterior.corrected(gp._kept_wide(posterior.problem))
    shrink = gp._wide[1]
    rows = torch.tensor([3, 10, 50, 77, 150])
    known = torch.zeros(len(rows), dtype=torch.float64)
    given = torch.tensor(X[rows]), torch.tensor(y[rows])[:, None], known
    found = posterior.leave_one_out(rows, *given)[0][:, 0].numpy()
    with_own = gp.predict(X[rows])
    expected = []
    for i in rows.tolist():
        near = nearest(X, X[i], gp.n_neighbors_, leave=[i])
        own, variance = conditioned(X[near], y[near], X[i], noise[near])
        wide = wide_mean(gp, X, y, noise, X[i], without=[i])
        expected.append(corrected(gp, own, variance, wide)[0])
    if everything:
        assert shrink == 1.0
        assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    else:
        # The variance of few neighbours is a little larger than that of many.
        error = np.abs(found - expected).mean()
        assert error < 0.35 * np.abs(with_own - expected).mean()


def _all_rows(X, y, noise):
    """A correction by one neighbourhood of all rows."""
    a = np.linalg.solve(KERNEL.k1(X) + np.diag(noise), y)[:, None]
    rows = np.arange(len(X), dtype=np.int32)
    return 0.9, 1.0, 0.1, rows[None], rows[None], a[None], len(rows)


def nlpd(gp, X, y):
    mean, std = gp.predict(X, return_std=True)
    return np.mean(0.5 * ((y - mean) / std) ** 2 + np.log(std))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_new_rows_gain_what_held_out_rows_say(seed):
    X, y, X_test, y_test = table(1500, 1500, seed=seed)
    gp, plain = model().fit(X, y), model(n_wide_neighbors=0).fit(X, y)
    assert plain.wide_weight_ == plain.n_wide_neighbors_ == 0 and plain._wide is None
    assert nlpd(plain, X_test, y_test) - nlpd(gp, X_test, y_test) > 0.05
    mean, std = gp.predict(X_test, return_std=True)
    assert 0.85 < np.mean(((y_test - mean) / std) ** 2) < 1.15


def test_predictions_are_close_to_those_of_many_neighbours():
    X, y, X_test, _ = table(1500, 500)
    many = model(n_neighbors=WIDE, n_wide_neighbors=0).fit(X, y).predict(X_test)
    gp, few = model().fit(X, y), model(n_wide_neighbors=0).fit(X, y)
    errors = [np.square(g.predict(X_test) - many).mean() for g in (gp, few)]
    assert errors[0] < 0.35 * errors[1]


def test_the_factor_of_variances_is_no_new_scale():
    """A kernel three times too large stays as given, but for what the correction explains."""
    X, y, _, _ = table(1500)
    shrinks = []
    for scale in (1.0, 3.0):
        kernel = ConstantKernel(1.3 * scale) * KERNEL.k1.k2 + WhiteKernel(0.01 * scale)
        shrinks.append(model(kernel=kernel, local_scale=False).fit(X, y)._wide[1])
    assert 0.5 < shrinks[0] < 0.99
    assert shrinks[1] == pytest.approx(shrinks[0], abs=0.03)


def test_groups_are_of_close_rows():
    points = np.random.default_rng(0).uniform(size=(1003, 3))
    groups = close_rows(points, 10)
    assert groups.shape == (100, 10) and len(np.unique(groups)) == 1000
    spread = points[groups].std(1).mean()
    # A cube of a hundredth of the volume has the side 0.215, and this standard deviation.
    assert spread < 1.15 * 0.215 / 12**0.5
    neighbours = np.linalg.norm(np.diff(points[groups].mean(1), axis=0), axis=1).mean()
    assert neighbours < 0.5 * np.linalg.norm(points[:500] - points[500:1000], axis=1).mean()
    assert_array_equal(np.sort(close_rows(points, 1003)[0]), np.arange(1003))


@pytest.mark.parametrize("known", [False, True])
def test_weight_and_factor_are_those_of_held_out_rows(thresholds, known):
    """Least squares and the log density on a grid, from dense algebra."""
    thresholds("_wide", _WORTH=-9.0)
    thresholds(_CERTAIN=-9.0)
    X, y, _, _ = table(700)
    rng = np.random.default_rng(5)
    noise_variance = rng.uniform(0, 0.3, len(X)) if known else np.zeros(len(X))
    y = y + np.sqrt(noise_variance) * rng.standard_normal(len(y))
    gp = model(local_scale=False).fit(X, y, noise_variance=noise_variance if known else None)
    noise = 0.01 + noise_variance
    held_out = np.setdiff1d(np.arange(len(X)), gp._wide[3])
    assert len(held_out) == 70
    e, v, wide = np.empty((3, 70))
    for i, j in enumerate(held_out):
        near = nearest(X, X[j], leave=[j])
        own, v[i] = conditioned(X[near], y[near], X[j], noise[near])
        e[i], wide[i] = y[j] - own, wide_mean(gp, X, y, noise, X[j]) - own
    weight, shrink, typical = gp._wide[:3]
    assert typical == pytest.approx(v.mean(), rel=1e-6)
    size = (1 - v / 1.3) * v / (v + 0.05 * typical)
    A, total = size * wide, v + noise[held_out]
    assert weight == pytest.approx((A * e / total).sum() / (A * A / total).sum(), rel=1e-6)

    def loss(log_scale, log_shrink, error):
        latent = v * (1 - (1 - np.exp(log_shrink)) * size)
        total = np.exp(log_scale) * (latent + 0.01) + noise_variance[held_out]
        return (error**2 / total + np.log(total)).mean()

    grid = np.linspace(-3, 3, 1201)
    scale = min(grid, key=lambda at: loss(at, 0.0, e))
    best = min(grid[grid <= 0], key=lambda at: loss(scale, at, e - weight * A))
    assert np.log(shrink) == pytest.approx(best, abs=0.02)


def test_the_calibration_comes_first_and_does_not_move_means():
    X, y, X_test, _ = table(2500)
    settings = dict(optimizer="auto", max_iter=1, n_centers=50, subset_size=None)
    settings |= dict(kernel=ConstantKernel(9.0) * KERNEL.k1.k2 + WhiteKernel(0.1))
    gp, plain = (model(calibrate=c, **settings).fit(X, y) for c in (True, False))
    assert gp._scale < 0.7 and plain._scale == 1.0
    stages = [*gp.fit_report_.seconds]
    assert stages.index("calibration") < stages.index("wide neighbourhoods")
    for g in (gp, plain):  # a fit with an own scale has the same rows in other neighbourhoods
        few = NNGPRegressor(g.kernel_, optimizer=None, n_neighbors=M, normalize_y=False)
        few.set_params(n_wide_neighbors=0, dtype="float64", local_scale=False).fit(X, y)
        change = np.abs(g.predict(X_test) - few.predict(X_test)).mean()
        assert 0.01 < change < 0.1


def test_none_without_a_gain():
    X, y, _, _ = table()
    noise = np.random.default_rng(1).standard_normal(len(y))
    fitted = model().fit(X, noise)
    assert fitted.wide_weight_ == fitted.n_wide_neighbors_ == 0 and fitted._wide is None
    alone = model(n_wide_neighbors=0).fit(X, noise)
    assert_array_equal(fitted.predict(X[:9]), alone.predict(X[:9]))


def test_a_trial_comes_before_the_work(thresholds, stand_in):
    """The neighbourhoods around a few held-out rows are fewer than a quarter of all."""
    X, y, _, _ = table(2000, 1)
    noise = np.random.default_rng(1).standard_normal(len(y))
    solved = []

    def counted(self, near):
        solved.append(len(near))
        return solve(self, near)

    solve = stand_in("NeighborPosterior.solved", counted)
    thresholds(_TRIED=8, _PROMISE=4.0)
    gp = model().fit(X, noise)
    assert 64 < sum(solved) <= 64 + 8 * 6
    assert "in a trial of 8 rows their weight was" in str(gp.fit_report_)
    solved.clear()
    thresholds(_PROMISE=-9)
    thresholds("neighbors", _WIDE=WIDE)
    settings = dict(optimizer="auto", max_iter=1, n_centers=50, calibrate=False)
    gp = model(n_wide_neighbors="auto", **settings).fit(X, y)
    assert sum(solved) == 300 and len(solved) > 1
    assert gp.wide_weight_ > 0
    why = "n_wide_neighbors = 120 (they change the log density of 200 held-out rows by +"
    assert why in str(gp.fit_report_)


def test_far_rows_have_the_prior():
    X, y, _, _ = table()
    gp = model().fit(X, y)
    assert gp.wide_weight_ > 0
    mean, std = gp.predict(np.full((1, D), 1e5), return_std=True)
    assert_allclose(mean, 0.0, atol=1e-9)
    assert_allclose(std**2, 1.3 + 0.01, rtol=1e-9)


def test_rows_without_noise_are_interpolated():
    X, _, X_test, _ = table()
    kernel = ConstantKernel(1.3) * Matern(SCALES, nu=1.5) + WhiteKernel(1e-8)
    rng = np.random.default_rng(0)
    y = np.linalg.cholesky(kernel(np.vstack([X, X_test]))) @ rng.standard_normal(1500)
    gp = model(kernel=kernel).fit(X, y[:1000])
    assert gp.wide_weight_ > 0.3
    assert_allclose(gp.predict(X), y[:1000], atol=1e-3)


def test_single_precision_that_cannot_solve_a_neighbourhood_is_not_used():
    X = 0.05 * table()[0]
    kernel = ConstantKernel(1.3) * Matern(SCALES, nu=2.5) + WhiteKernel(1e-9)
    y = np.sin(X.sum(1))
    single, double = (model(kernel=kernel, dtype=d).fit(X, y) for d in ("float32", "float64"))
    found, expected = (g._posterior() for g in (single, double))
    points = found.points(torch.tensor(X))
    near = torch.as_tensor(Index(points).nearest(points[:20], M)[1])
    weights, exact = (p.solved(near) for p in (found, expected))
    assert_allclose(weights, exact, rtol=1e-6, atol=1e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("far", [False, True])
def test_single_precision_that_cannot_resolve_the_rows_is_not_used(far):
    """Near a row whose coordinate is a hundred thousand length scales, neighbours are as close."""
    X, y, X_test, _ = table(n_test=1)
    if far:
        X[0], X_test[0] = 1e5, 1e5
    single, double = (model(dtype=d).fit(X, y) for d in ("float32", "float64"))
    rows = single._posterior()._wide_rows
    assert rows.dtype == (torch.float64 if far else torch.float32)
    assert double._posterior()._wide_rows.dtype == torch.float64
    assert_allclose(single.predict(X_test + 0.01), double.predict(X_test + 0.01), atol=1e-5)


def test_why_there_are_none_is_in_the_report():
    X, y, _, _ = table()
    gp = model(n_wide_neighbors="auto").fit(X, y)
    assert gp.wide_weight_ == 0
    assert "n_wide_neighbors = 0 (the hyperparameters are given)" in str(gp.fit_report_)
    assert "n_wide_neighbors" not in model().fit(X, y).fit_report_.ignored
    gp = model(n_inducing=20).fit(X, y)
    assert gp.wide_weight_ == 0 and "n_wide_neighbors" in gp.fit_report_.ignored
    noise = np.random.default_rng(1).standard_normal(len(y))
    assert "log density" in model().fit(X, noise).fit_report_.ignored["n_wide_neighbors"]
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        gp = model(optimizer="auto", n_wide_neighbors="auto", max_seconds=1e-3).fit(X, y)
    assert gp.wide_weight_ == 0
    assert not gp.fit_report_.choices["n_wide_neighbors"].value


@pytest.mark.parametrize(("wide", "taken"), [(0, 20), (WIDE, 10), (22, 20)])
def test_more_neighbours_are_weighed_against_wide_ones(thresholds, wide, taken):
    thresholds(_NEIGHBORS=20, _OTHER_NEIGHBORS=(10,))
    thresholds("_nngp", _WORTH=0.04)
    thresholds("_wide", _WORTH=-9.0)
    thresholds(_CERTAIN=-9.0)
    X, y, _, _ = table()
    settings = dict(optimizer="auto", max_iter=1, n_centers=50, n_neighbors="auto")
    gp = model(**settings, n_wide_neighbors=wide, small_table="method").fit(X, y)
    assert gp.n_neighbors_ == taken
    assert gp.n_wide_neighbors_ == wide
    why = gp.fit_report_.choices["n_neighbors"].reason
    assert why.startswith("of 10 and 20 the fewest within 0.04 of the highest log density of held")
    if wide:
        # They were solved with another multiple of the kernel.
        rows, weights = gp._wide[4:6]
        for near, found in zip(rows[::9], weights[::9], strict=True):
            expected = np.linalg.solve(gp.kernel_(X[near]), y[near])
            assert_allclose(found[:, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["interrupt", "no time"])
def test_a_fit_that_ends_among_wide_neighbourhoods_is_calibrated(thresholds, stand_in, how):
    def ended(self, near):
        raise KeyboardInterrupt if how == "interrupt" else StopTraining(End.MAX_SECONDS)

    stand_in("NeighborPosterior.solved", ended)
    thresholds(_NEIGHBORS=20, _OTHER_NEIGHBORS=(10,))
    X, y, X_test, _ = table()
    with pytest.warns(ConvergenceWarning):
        gp = model(**ENDED).fit(X, y)
    plain = without_wide_ones()
    assert gp._scale == plain._scale != 1.0 and gp.n_neighbors_ == plain.n_neighbors_ == 20
    assert_array_equal(gp.predict(X_test), plain.predict(X_test))


ENDED = dict(optimizer="auto", max_iter=1, n_centers=50, n_neighbors="auto")
ENDED |= dict(small_table="method", kernel=None, max_seconds=1e6)


@cache
def without_wide_ones():
    X, y, _, _ = table()
    return model(**ENDED, n_wide_neighbors=0).fit(X, y)


def test_auto_is_a_number_of_rows():
    plans = [plan(NNGPRegressor(), n, 3, Machine()) for n in (2_500, 300_000, 1_000_000)]
    assert [made.n_wide.value for made in plans] == [1000, 1000, 0]
    assert plans[0].n_neighbors.value == 200


def ticking(monkeypatch):
    """A clock that moves by a second whenever it is read."""
    clock = iter(range(10**6))
    monkeypatch.setattr(Budget, "seconds", property(lambda self: float(next(clock))))


@pytest.mark.parametrize(
    ("limit", "rows"), [(None, WIDE), (900.0, WIDE), (60.0, "fewer"), (8.0, None)]
)
def test_a_small_time_budget_allows_smaller_neighbourhoods_or_none(
    thresholds, monkeypatch, limit, rows
):
    X, y, _, _ = table(900, 1)
    posterior = model(n_wide_neighbors=0).fit(X, y)._posterior()
    ticking(monkeypatch)
    thresholds(_CHUNK=4)
    given = Budget(limit), torch.Generator().manual_seed(0), torch.float64
    fit = WideFit(posterior, [posterior], 0, WIDE, *given)
    found, why = fit.find()
    if rows is None:
        assert not found and "time budget is too small" in why
    else:
        assert len(found) == 1 and found[0].clear
        m = fit.wide.rows.shape[1]
        assert m == WIDE if rows == WIDE else 2 * M <= m < WIDE
        assert (fit.wide.rows >= 0).all()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.linalg.LinAlgError("singular"), "a matrix has no Cholesky factor"),
        (MemoryError("too much"), "memory ran out"),
        (RuntimeError("can't allocate memory: you tried to allocate 9 bytes"), "memory ran out"),
        (FloatingPointError("overflow"), "a number is not finite"),
    ],
)
def test_a_failure_to_solve_them_costs_only_the_correction(stand_in, error, words):
    X, y, X_test, _ = table()

    def broken(self, near):
        raise error

    stand_in("NeighborPosterior.solved", broken)
    gp = model().fit(X, y)
    assert f"could not be solved: {words}" in gp.fit_report_.ignored["n_wide_neighbors"]
    plain = model(n_wide_neighbors=0).fit(X, y)
    assert_array_equal(gp.predict(X_test), plain.predict(X_test))


@pytest.mark.slow
def test_copies_files_and_processes_have_them(tmp_path):
    X, y, X_test, _ = table()
    gp = model().fit(X, y)
    expected = gp.predict(X_test, return_std=True)
    for other in (pickle.loads(pickle.dumps(gp)), model(n_jobs=2).fit(X, y)):
        assert_array_equal(other.predict(X_test, return_std=True), expected)
    for compact in (False, True):
        files.save(gp, tmp_path / "model", compact=compact)
        again = files.load(tmp_path / "model")
        assert again.wide_weight_ == gp.wide_weight_
        assert_array_equal(again.predict(X_test, return_std=True), expected)


def test_the_module_and_functions_have_them():
    X, y, X_test, _ = table(t=2)
    gp = model(local_scale=False).fit(X, y)
    mean, std = gp.predict(X_test[:30], return_std=True)
    found = to_torch(gp)(torch.tensor(X_test[:30]))
    assert_allclose(found[0], mean, rtol=1e-6, atol=1e-7)
    plain, x = model(n_wide_neighbors=0, local_scale=False).fit(X, y), X_test[:5]
    # The same draws, around the corrected mean and with the corrected deviations.
    away = []
    for g in (gp, plain):
        draws = g._posterior().functions(3, torch.Generator().manual_seed(0))
        process = fitted_process(g)
        mean, variance, _ = process.moments(x)
        with torch.no_grad():
            f = draws(process.inputs(x)).numpy() * np.reshape(process.y_std, (-1, 1))
        f = f + np.reshape(process.y_mean, (-1, 1))
        away.append((f - mean[:, :, None]) / np.sqrt(variance)[:, :, None])
    assert np.abs(gp.predict(x) - plain.predict(x)).max() > 0.01
    assert_allclose(away[0], away[1], rtol=1e-4, atol=1e-4)


def test_added_rows_are_neighbours_beside_the_same_wide_neighbourhoods():
    X, y, X_test, _ = table()
    gp = model().fit(X[:900], y[:900])
    kept = gp._wide
    gp.partial_fit(X[900:], y[900:])
    assert gp._wide is kept
    noise, found = np.full(1000, 0.01), gp.predict(X_test[:20])
    for i, x in enumerate(X_test[:20]):
        near = nearest(X, x)
        own, variance = conditioned(X[near], y[near], x, noise[near])
        wide = wide_mean(gp, X[:900], y[:900], noise, x)
        assert_allclose(found[i], corrected(gp, own, variance, wide)[0], rtol=1e-7, atol=1e-8)
    again = pickle.loads(pickle.dumps(gp))
    assert_allclose(again.predict(X_test), gp.predict(X_test), rtol=1e-10, atol=1e-12)


def test_among_many_added_rows_the_nearest_ones_are_alone(thresholds):
    thresholds(_CERTAIN=1.0)
    X, y, X_test, _ = table(1250)
    gp = model().fit(X[:1000], y[:1000]).partial_fit(X[1000:1150], y[1000:1150])
    assert gp.n_wide_neighbors_ == WIDE
    gp.partial_fit(X[1150:], y[1150:])
    assert gp.n_wide_neighbors_ == gp.wide_weight_ == 0 and gp._wide is None
    plain = model(n_wide_neighbors=0).fit(X, y)
    assert_allclose(gp.predict(X_test), plain.predict(X_test), rtol=1e-7, atol=1e-9)


def test_joint_predictions_and_samples_have_the_corrected_moments():
    X, y, X_test, _ = table()
    gp, x = model().fit(X, y), X_test[:6]
    mean, std = gp.predict(x, return_std=True)
    joint, covariance = gp.predict(x, return_cov=True)
    assert_allclose(joint, mean, rtol=1e-9)
    assert_allclose(covariance.diagonal(), std**2, rtol=1e-6)
    draws = gp.sample_y(x, 4000, random_state=0)
    assert_allclose(draws.mean(1), mean, atol=5 * std.max() / 4000**0.5)
    found = gp._posterior().module().joint(torch.tensor(x)[None])
    assert_allclose(found.mean[0, :, 0].numpy(), mean, rtol=1e-6, atol=1e-7)
    diagonal = (found.covariance[0] + found.noise[0].diag()).diagonal().numpy()
    assert_allclose(diagonal, std**2, rtol=1e-6)


@pytest.mark.parametrize("changed", [dict(dtype="float32"), dict(n_neighbors=M + 2)])
def test_added_rows_in_another_precision_or_with_more_neighbours(changed):
    X, y, X_test, _ = table()
    gp = model().fit(X[:900], y[:900]).set_params(**changed).partial_fit(X[900:], y[900:])
    if "dtype" in changed:
        assert gp.wide_weight_ > 0
        both = model().fit(X[:900], y[:900]).partial_fit(X[900:], y[900:])
        assert_allclose(gp.predict(X_test), both.predict(X_test), atol=1e-3)
    else:
        assert gp.wide_weight_ == gp.n_wide_neighbors_ == 0 and gp._wide is None
        plain = model(n_wide_neighbors=0, **changed).fit(X, y)
        assert_allclose(gp.predict(X_test), plain.predict(X_test), rtol=1e-6, atol=1e-8)


@pytest.mark.exact_input
def test_equal_rows_are_held_out_together(thresholds):
    """Merged rows have the noise of their mean, here and in the oracle."""
    thresholds(_CERTAIN=0.5)
    X, y, X_test, _ = table()
    rng = np.random.default_rng(2)
    many = np.repeat(np.arange(1000), rng.integers(1, 9, 1000))
    noisy = y[many] + 0.1 * rng.standard_normal(len(many))
    kernel = KERNEL.k1 + WhiteKernel(0.01)
    gp = model(kernel=kernel).fit(X[many], noisy)
    rows, place = gp.X_train_, {row.tobytes(): i for i, row in enumerate(gp.X_train_)}
    assert len(rows) == 1000
    which = np.array([place[row.tobytes()] for row in X[many]])
    counts = np.bincount(which)
    means, noise = np.bincount(which, noisy) / counts, 0.01 / counts
    for i, x in enumerate(X_test[:10]):
        near = nearest(rows, x)
        own, variance = conditioned(rows[near], means[near], x, noise[near])
        m, _ = corrected(gp, own, variance, wide_mean(gp, rows, means, noise, x))
        assert gp.predict(X_test[i : i + 1])[0] == pytest.approx(m, rel=1e-7, abs=1e-8)


def test_a_device_has_them():
    X, y, X_test, _ = table()
    gp = model().fit(X, y)
    assert gp.wide_weight_ > 0
    expected = gp.predict(X_test[:50], return_std=True)
    with simulated():
        on_device = model(device="cuda").fit(X, y)
        assert_allclose(on_device.predict(X_test[:50], return_std=True), expected, rtol=1e-8)
        module = to_torch(on_device)
        assert_allclose(on_device.predict(X_test[:50]), expected[0], rtol=1e-8)
    assert_allclose(module(torch.tensor(X_test[:50]))[0], expected[0], rtol=1e-6, atol=1e-7)


@pytest.mark.night
def test_onnx_files_have_them(thresholds, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if torch.__version__ < "2.13":
        pytest.skip("earlier versions write no loops")
    thresholds(_CERTAIN=0.0)
    X, y, X_test, _ = table(500)
    gp = model(local_scale=False, n_wide_neighbors=60).fit(X, y)
    assert gp.wide_weight_ > 0
    # In a process of its own: the exporter reads code, which the checks of shapes change in tests.
    files.save(gp, tmp_path / "model.gp")
    code = "import sys, skscalablegp as sk; sk.export_onnx(sk.load(sys.argv[1]), sys.argv[2])"
    paths = [tmp_path / "model.gp", tmp_path / "model.onnx"]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    found = session.run(["mean", "std"], {"X": X_test[:20]})
    assert_allclose(found, gp.predict(X_test[:20], return_std=True), rtol=1e-5, atol=1e-6)


def test_noise_that_hides_latent_variances_leaves_their_factor_near_one():
    """Half of the factors were once at their bound of 0.05."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        v = torch.tensor(rng.uniform(0.005, 0.015, 200))
        e = torch.tensor(np.sqrt(1 + v.numpy()) * rng.standard_normal(200))[:, None]
        ones, Y = torch.ones(200).double(), torch.tensor(rng.standard_normal((200, 1)))
        parts = dict(left_out=(e, v, ones, ones), noises=(ones, 0 * ones))
        calls = {name: lambda rows, part=part: part for name, part in parts.items()}
        hidden = SimpleNamespace(problem=SimpleNamespace(Y=Y), n_neighbors=M, **calls)
        vars(hidden).update(dict.fromkeys(("solved", "points", "wide_mean"), pytest.fail))
        wide = Y - e + 0.01 * torch.tensor(rng.standard_normal((200, 1)))
        assert judged(hidden, torch.arange(200), wide).shrink > 0.7
