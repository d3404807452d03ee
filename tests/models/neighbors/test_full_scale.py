"""Inducing points beside neighbours, against dense algebra in double precision."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import NNGPRegressor, to_torch
from skscalablegp.core import Machine, fitted_process
from skscalablegp.export import NotExportable
from skscalablegp.kernels import Categorical, Columns, compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood
from skscalablegp.models.neighbors import Metric
from skscalablegp.models.neighbors._full_scale import WholeLikelihood, earlier_rows
from skscalablegp.models.neighbors._plan import plan

KERNEL = ConstantKernel(2.0) * Matern([0.7, 1.5], nu=1.5) + WhiteKernel(0.05)
KERNELS = {
    "default": KERNEL,
    "sum": ConstantKernel(1.5) * RBF(0.9) + Matern([2.0, 0.5], nu=2.5) + WhiteKernel(0.05),
    "categories": Columns(RBF(0.8), [0]) * Columns(Categorical(0.4), [1]) + WhiteKernel(0.1),
}


def table(n=80, m=9):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n + m, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X.sum(1) + 0.2 * rng.standard_normal(n + m)
    return X[:n], y[:n], X[n:]


def problem(name="default", n=40):
    X, y, _ = table(n)
    if name == "categories":
        X[:, 1] = np.arange(n) % 3
    Y = torch.tensor(np.column_stack([y, np.cos(3 * y)]))
    kernel = compile_kernel(KERNELS[name], 2)
    noise = torch.linspace(0.01, 0.3, n, dtype=torch.float64)
    p = GPProblem(kernel, Rows.of(torch.tensor(X), Y, noise))
    return p, kernel.theta0


def earlier(p, theta, k):
    return earlier_rows(Metric(p.kernel, theta, p.X).points, k, seed=3)


def likelihood(p, theta, q, k, eval_gradient=True, at=None):
    """With the first q rows as inducing points, and the neighbours of `at`."""
    chosen = torch.arange(q)
    near = earlier(p, theta if at is None else at, k)
    return WholeLikelihood(p, chosen, near).at(theta, eval_gradient)


def model(**params):
    settings = dict(optimizer=None, kernel=KERNEL, n_neighbors=12, random_state=0)
    settings |= dict(small_table="method")  # also where all rows are inducing points
    return NNGPRegressor(**(settings | params))


# -------------------------------------------------------------------- the likelihood


@pytest.mark.parametrize("q, k", [(40, 3), (0, 39), (7, 39), (0, 100)])
@pytest.mark.parametrize("name", KERNELS)
def test_all_rows_as_inducing_points_or_as_neighbours_are_the_exact_likelihood(name, q, k):
    p, theta = problem(name)
    exact = exact_marginal_likelihood(p, theta)
    value, grad = likelihood(p, theta, q, k)
    assert_allclose(value, exact.value, rtol=1e-8)
    assert_allclose(grad, exact.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("q, k", [(6, 4), (0, 5)])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients(name, q, k):
    p, theta = problem(name)
    value, grad = likelihood(p, theta, q, k)
    assert abs(value - exact_marginal_likelihood(p, theta, False).value) > 0.1
    for j in range(len(theta)):
        step = torch.zeros_like(theta)
        step[j] = 1e-5
        up, down = (likelihood(p, theta + s, q, k, False, theta)[0] for s in (step, -step))
        assert_allclose(grad[j], (up - down) / 2e-5, rtol=1e-5, atol=1e-6)


def dense(p, theta, Z, near):
    """The joint covariance of the targets, and u at all rows, row by row."""
    n, X = len(p.X), p.X
    K = p.kernel.cross(theta, X, X).numpy()
    L = np.linalg.cholesky(p.kernel.cross(theta, Z, Z).numpy())
    U = np.linalg.solve(L, p.kernel.cross(theta, Z, X).numpy()).T
    R = K - U @ U.T + np.diag(p.noise(theta).numpy())
    B, d = np.eye(n), np.empty(n)
    for row, some, counts in zip(*(part.numpy() for part in near), strict=True):
        some = some[counts]
        w = np.linalg.solve(R[np.ix_(some, some)], R[some, row])
        B[row, some], d[row] = -w, R[row, row] - w @ R[some, row]
    half = np.linalg.inv(B)
    return U @ U.T + half @ np.diag(d) @ half.T, U, L


def test_the_likelihood_is_that_of_the_factorised_covariance():
    p, theta = problem(n=200)
    near = earlier(p, theta, 5)
    value, _ = WholeLikelihood(p, torch.arange(12), near).at(theta, False)
    covariance = dense(p, theta, p.X[:12], near)[0]
    expected = sum(multivariate_normal.logpdf(y, cov=covariance) for y in p.Y.numpy().T)
    assert_allclose(value, expected, rtol=1e-8)


def test_neighbours_are_the_nearest_of_the_first_rows():
    points = np.random.default_rng(0).normal(size=(300, 3))
    order, near, counts = (part.numpy() for part in earlier_rows(points, 7, seed=1))
    assert_array_equal(np.sort(order), np.arange(300))
    place = np.argsort(order)
    for i, row in enumerate(order):
        some = near[i][counts[i]]
        assert len(set(some)) == min(i, 7) and (place[some] < i).all() and row not in near[i]
        away = np.linalg.norm(points - points[row], axis=1)
        first = order[: 2 * i // 3]
        if i >= 12:  # no row among the first two thirds is nearer than those that are taken
            assert away[some].max() <= np.sort(away[first])[6] + 1e-12


# -------------------------------------------------------------------- predictions


def test_all_rows_as_inducing_points_are_the_exact_process():
    X, y, X_new = table()
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    ours = model(n_inducing=80, calibrate=False, dtype="float64").fit(X, y)
    assert ours.n_inducing_ == 80 and "n_inducing" not in ours.fit_report_.ignored
    for a, b in zip(
        ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(a, b, rtol=1e-8)
    covariance = ours.predict(X_new, return_cov=True)[1]
    assert_allclose(covariance, exact.predict(X_new, return_cov=True)[1], atol=1e-8)
    draws = ours.sample_y(X_new, 20_000)
    assert_allclose(draws.mean(1), exact.predict(X_new), atol=4 * np.sqrt(2.05 / 20_000))
    assert_allclose(np.cov(draws), covariance, atol=0.03)
    # Another kernel changes the posterior of the weights, too.
    moved = pickle.loads(pickle.dumps(ours))
    moved.log_marginal_likelihood(KERNEL.theta + 0.5, clone_kernel=False)
    other = KERNEL.clone_with_theta(KERNEL.theta + 0.5)
    expected = GaussianProcessRegressor(other, optimizer=None).fit(X, y).predict(X_new)
    assert_allclose(moved.predict(X_new), expected, atol=1e-8)
    # Rows without their own targets, by the closed form of the exact process.
    inverse = np.linalg.inv(KERNEL(X))
    rows = np.arange(0, 80, 9)
    left = fitted_process(ours).left_out(X, y, None, rows)
    assert_allclose(left.mean, (y - inverse @ y / inverse.diagonal())[rows], rtol=1e-6)
    assert_allclose(left.std**2, 1 / inverse.diagonal()[rows], rtol=1e-6)


def test_predictions_are_those_of_the_joint_process():
    """Inducing points, all rows in the posterior of their weights, and the nearest rows."""
    X, y, X_new = table(200)
    noise = np.linspace(0.01, 0.5, 200)
    Y = np.column_stack([y, np.cos(y)])
    ours = model(n_inducing=15, dtype="float64").fit(X, Y, noise_variance=noise)
    Z = torch.tensor(X[ours._inducing])
    p = GPProblem(compile_kernel(KERNEL, 2), Rows.of(torch.tensor(X), torch.tensor(Y), noise))
    theta = p.kernel.theta0
    near = earlier_rows(Metric(p.kernel, theta, p.X).points, 12, ours._order_seed)
    covariance, U, L = dense(p, theta, Z, near)
    kept = np.linalg.inv(covariance)
    v, spread = U.T @ kept @ Y, np.eye(15) - U.T @ kept @ U
    mean, std = ours.predict(X_new, return_std=True, noise_variance=0.0)
    cov = ours.predict(X_new, return_cov=True, noise_variance=0.0)[1]
    for i, x in enumerate(X_new):
        at = np.linalg.solve(L, KERNEL(Z.numpy(), x[None])[:, 0])
        some = (((X - x) / KERNEL.k1.k2.length_scale) ** 2).sum(1).argsort()[:12]
        R = KERNEL(X[some]) + np.diag(noise[some]) - U[some] @ U[some].T
        r = KERNEL(X[some], x[None])[:, 0] - U[some] @ at
        w = np.linalg.solve(R, r)
        h = at - w @ U[some]
        assert_allclose(mean[i], w @ (Y[some] - U[some] @ v) + at @ v, rtol=1e-7)
        variance = 2.05 - at @ at - w @ r + h @ spread @ h
        assert_allclose(std[i] ** 2, variance, rtol=1e-7)
    assert_allclose(cov[..., 0].diagonal(), std[:, 0] ** 2, rtol=1e-7)
    assert np.linalg.eigvalsh(cov[..., 0]).min() > 0


def test_single_precision():
    X, y, X_new = table(300)
    single, double = (
        model(n_inducing=30, dtype=dtype).fit(X, y) for dtype in ("float32", "float64")
    )
    for a, b in zip(*(m.predict(X_new, return_std=True) for m in (single, double)), strict=True):
        assert_allclose(a, b, rtol=1e-3, atol=1e-4)


# -------------------------------------------------------------------- fits


@pytest.mark.usefixtures("given_start")
@pytest.mark.parametrize("n_inducing", ["auto", 20])
def test_what_was_maximised_is_answered_again(n_inducing):
    X, y, X_new = table(200)
    settings = dict(objective="vecchia", subset_size=30, optimizer="auto", kernel=None)
    ours = model(n_inducing=n_inducing, calibrate=False, **settings).fit(X, y)
    theta, value = ours.kernel_.theta, ours.log_marginal_likelihood_value_
    assert "all rows" in model(n_centers=5, **settings).fit(X, y).fit_report_.ignored["n_centers"]
    again = pickle.loads(pickle.dumps(ours))
    assert_allclose(ours.log_marginal_likelihood(theta), value, rtol=1e-9)
    assert again.log_marginal_likelihood(theta) == ours.log_marginal_likelihood(theta)
    _, grad = ours.log_marginal_likelihood(theta, eval_gradient=True)
    assert np.abs(grad).max() < 0.05 * len(X)
    assert ours.log_marginal_likelihood(theta + 0.3) < value
    assert_array_equal(again.predict(X_new), ours.predict(X_new))
    # A kernel of one's own changes the posterior of the weights.
    moved = again.kernel_.theta + 0.3
    again.log_marginal_likelihood(moved, clone_kernel=False)
    fixed = model(kernel=again.kernel_, n_inducing=n_inducing, normalize_y=True, calibrate=False)
    fixed = fixed.fit(X, y)
    if n_inducing == "auto":
        assert_allclose(again.predict(X_new), fixed.predict(X_new), rtol=1e-7)
    assert not np.allclose(again.predict(X_new), ours.predict(X_new), rtol=1e-3)


@pytest.mark.usefixtures("given_start")
def test_calibration_scales_the_kernel_by_the_same_process(stand_in):
    X, y, X_new = table(300)
    settings = dict(kernel=None, optimizer="auto", subset_size=40, n_centers=100, n_inducing=20)
    searches = []

    def searched(*given):
        searches.append(given)
        return earlier_rows(*given)

    stand_in("earlier_rows", searched, at="_nngp")
    plain = model(calibrate=False, **settings).fit(X, y)
    searches.clear()
    ours = model(calibrate=True, **settings).fit(X, y)
    assert len(searches) == 1
    scale = ours.fit_report_.scale
    assert abs(scale - 1) > 1e-3
    assert_allclose(ours.predict(X_new), plain.predict(X_new), rtol=1e-6)
    ratio = (ours.predict_std(X_new) / plain.predict_std(X_new)) ** 2
    assert_allclose(ratio, scale, rtol=1e-6)
    # The rows that training has not predicted have squared standardised errors of one.
    rows = np.setdiff1d(np.arange(300), plain._seen)
    left = fitted_process(ours).left_out(X, y, None, rows)
    assert_allclose(np.mean(((left.mean - y[rows]) / left.std) ** 2), 1, rtol=1e-2)


@pytest.mark.usefixtures("given_start")
def test_a_fit_with_all_rows_as_inducing_points_is_the_exact_fit():
    X, y, X_new = table(300)
    settings = dict(kernel=None, optimizer="auto", small_table="exact", normalize_y="auto")
    ours = model(n_inducing=300, **settings).fit(X, y)
    exact = model(n_neighbors=300, **settings).fit(X, y)
    assert ours.n_inducing_ == 0 and "inducing points" in str(ours.fit_report_)
    assert_array_equal(ours.predict(X_new), exact.predict(X_new))
    # Further rows are too many for the exact process.
    more, _, _ = table(330)
    ours.partial_fit(more[300:], np.sin(2 * more[300:, 0]))
    assert ours.n_inducing_ == 300 and ours.n_neighbors_ == 12


def test_added_rows_change_the_weights():
    X, y, X_new = table(120)
    noise = np.linspace(0.01, 0.5, 120)
    parts = model(n_inducing=100, normalize_y=False)
    for some in (slice(0, 100), slice(100, 120)):
        parts.partial_fit(X[some], y[some], noise_variance=noise[some])
    # The first 100 rows are inducing points, and the others have them and their neighbours.
    exact = GaussianProcessRegressor(KERNEL, alpha=noise, optimizer=None).fit(X, y)
    for made in (parts, pickle.loads(pickle.dumps(parts))):
        mean, std = made.predict(X_new, return_std=True, noise_variance=0.0)
        expected = exact.predict(X_new, return_std=True)
        assert_allclose(mean, expected[0], atol=0.02)
        assert_allclose(std, expected[1], rtol=0.01)
    first = model(n_inducing=100, normalize_y=False).fit(X[:100], y[:100], noise[:100])
    assert np.abs(first.predict(X_new) - parts.predict(X_new)).max() > 0.02


@pytest.mark.usefixtures("given_start")
def test_repeated_rows_are_weights():
    X, y, X_new = table(60)
    rows = np.concatenate([np.arange(60), np.arange(0, 60, 3)])
    weights = 1.0 + (np.arange(60) % 3 == 0)
    settings = dict(n_inducing=10, objective="vecchia", optimizer="auto", subset_size=None)
    twice = model(**settings).fit(X[rows], y[rows])
    weighted = model(**settings).fit(X, y, sample_weight=weights)
    assert_allclose(weighted.predict(X_new), twice.predict(X_new), rtol=1e-6)
    value = weighted.log_marginal_likelihood_value_
    assert_allclose(value, twice.log_marginal_likelihood_value_, rtol=1e-8)
    # The exact likelihood of all rows, where all are inducing points.
    whole = model(n_inducing=60, objective="vecchia", normalize_y=False).fit(X[rows], y[rows])
    alone = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X[rows], y[rows])
    assert_allclose(
        whole.log_marginal_likelihood_value_, alone.log_marginal_likelihood_value_, rtol=1e-8
    )


def test_exports_are_refused():
    X, y, _ = table()
    with pytest.raises(NotExportable, match="n_inducing"):
        to_torch(model(n_inducing=5).fit(X, y))


def test_plans():
    made = plan(NNGPRegressor(), 30_000, 4, Machine(), n_params=6)
    assert made.n_inducing.value == 0 and "neighbours" in made.n_inducing.reason
    given = dict(n_inducing=50, n_neighbors=9)
    few = plan(NNGPRegressor(small_table="method", **given), 40, 4, Machine(), n_params=6)
    assert (few.n_inducing.value, few.n_earlier) == (40, 9) and not few.exact_instead
    for n in (40, 50):
        all_rows = plan(NNGPRegressor(**given), n, 4, Machine(), n_params=6)
        assert "inducing points" in all_rows.exact_instead
        assert "n_neighbors" in all_rows.without_effect
    assert not plan(NNGPRegressor(**given), 51, 4, Machine(), n_params=6).exact_instead
    small = plan(NNGPRegressor(n_inducing=50), 40, 4, Machine(), n_params=6)
    assert small.exact_instead and "n_inducing" in small.without_effect


def test_added_rows_make_a_small_table_large(stand_in):
    stand_in("small_table_rows", lambda params: 100, at="neighbors")
    X, y, X_new = table(120)
    ours = model(n_neighbors="auto", n_inducing=30, normalize_y=False, small_table="exact")
    ours.fit(X[:90], y[:90])
    assert ours.n_inducing_ == 0
    ours.partial_fit(X[90:], y[90:])
    assert ours.n_inducing_ == 30
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    assert_allclose(ours.predict(X_new), exact.predict(X_new), atol=0.05)
