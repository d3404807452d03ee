"""NNGPRegressor against dense algebra on neighbours found by looking at every row."""

import gc
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)
from torch.utils._python_dispatch import TorchDispatchMode

from skscalablegp import NNGPRegressor
from skscalablegp.core import Machine, fitted_process
from skscalablegp.core.posteriors import ExactPosterior
from skscalablegp.kernels import Categorical, Columns, LowRankCategorical, compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood
from skscalablegp.models.neighbors import Metric, Scales, neighbours_of
from skscalablegp.models.neighbors._local import (
    blocks,
    chain,
    condition_in_place,
    left_out,
    predict,
)
from skscalablegp.models.neighbors._metric import Index
from skscalablegp.models.neighbors._nngp import _fewest
from skscalablegp.models.neighbors._plan import plan
from skscalablegp.priors import LogNormal

KERNEL = ConstantKernel(2.0) * Matern([0.7, 1.5], nu=1.5) + WhiteKernel(0.05)
KERNELS = {
    "default": KERNEL,
    "kink": Matern(1.1, nu=0.5) + WhiteKernel(0.1),
    "sum of products": ConstantKernel(1.5) * RBF(0.9) * RationalQuadratic(1.2, 0.7)
    + ConstantKernel(0.3) * Matern([2.0, 0.5], nu=2.5)
    + WhiteKernel(0.05),
    "noise in a product": ConstantKernel(1.5) * (RBF(0.9) + WhiteKernel(0.1)),
    "power": ConstantKernel(1.5) * RBF([0.9, 2.0]) ** 2 + WhiteKernel(0.1),
    "linear": DotProduct(0.5) + RBF(0.5) + WhiteKernel(0.1),
    "constant": ConstantKernel(0.5) + RBF(0.8) + WhiteKernel(0.1),
    "categories": Columns(RBF(0.8), [0]) * Columns(Categorical(0.4), [1]) + WhiteKernel(0.1),
    "category covariance": Columns(RBF(0.8), [0]) * Columns(LowRankCategorical(3), [1])
    + WhiteKernel(0.1),
}


def table(n=80, seed=0, m=9):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n + m, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X.sum(1) + 0.2 * rng.standard_normal(n + m)
    return X[:n], y[:n], X[n:]


def problem(kernel, n=40, t=2, codes=False, noise=0.0):
    X, y, X_new = table(n)
    if codes:
        X[:, 1], X_new[:, 1] = np.arange(n) % 3, np.arange(len(X_new)) % 3
    Y = torch.tensor(np.column_stack([y, np.cos(3 * y)])[:, :t])
    compiled = compile_kernel(kernel, 2)
    return GPProblem(compiled, Rows.of(torch.tensor(X), Y, noise)), torch.tensor(X_new)


def of(name, **more):
    return problem(KERNELS[name], codes="categor" in name, **more)


def model(**params):
    settings = dict(optimizer=None, kernel=KERNEL, n_neighbors=12, random_state=0)
    settings |= dict(n_wide_neighbors=0)
    return NNGPRegressor(**(settings | params))


# -------------------------------------------------------------------- one row at a time


def test_all_rows_as_neighbours_are_the_exact_process():
    X, y, X_new = table()
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    for m in ("auto", len(X), 10**6):
        ours = model(n_neighbors=m).fit(X, y)
        assert ours.n_neighbors_ == len(X)
        for a, b in zip(
            ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
        ):
            assert_allclose(a, b, rtol=1e-8)
    # The systems of the neighbours themselves, with all rows but one.
    nearly = model(n_neighbors=len(X) - 1).fit(X, y)
    for i in range(3):
        apart = ((X - X_new[i]) / KERNEL.k1.k2.length_scale) ** 2
        rest = np.delete(np.arange(len(X)), apart.sum(1).argmax())
        alone = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X[rest], y[rest])
        assert_allclose(nearly.predict(X_new[[i]]), alone.predict(X_new[[i]]), rtol=1e-8)


def test_predictions_are_those_of_the_nearest_rows():
    X, y, X_new = table()
    noise = np.linspace(0.01, 0.5, len(X))
    ours = model(dtype="float64").fit(X, y, noise_variance=noise)
    mean, std = ours.predict(X_new, return_std=True, noise_variance=0.0)
    for i, x in enumerate(X_new):
        near = (((X - x) / KERNEL.k1.k2.length_scale) ** 2).sum(1).argsort()[:12]
        H = KERNEL(X[near]) + np.diag(noise[near])
        k = KERNEL(x[None], X[near])[0]
        w = np.linalg.solve(H, k)
        assert_allclose(mean[i], w @ y[near], rtol=1e-8)
        assert_allclose(std[i] ** 2, KERNEL(x[None])[0, 0] - w @ k, rtol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_with_all_rows_near(name):
    p, X_new = of(name, noise=np.linspace(0.01, 0.3, 40))
    theta = p.kernel.theta0
    exact = ExactPosterior.of(p, theta)[0]
    near = torch.arange(40).expand(len(X_new), 40)
    found = predict(p, theta, X_new, near, torch.float64)
    for ours, theirs in zip(found[:2], exact.moments(X_new)[:2], strict=True):
        assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_far_from_all_rows_is_the_prior():
    X, y, X_new = table()
    ours = model(dtype="float32").fit(X, y)
    mean, std = ours.predict(X_new + 1e6, return_std=True)
    assert_allclose(mean, 0, atol=1e-12)
    assert_allclose(std, np.sqrt(2.05))


SUMS = {
    "one term": 2.0 * Matern([1.0, 2.0, 3.0], nu=1.5),
    "a kink": 3.0 * RBF(1.0) + 0.5 * Matern(2.0, nu=0.5),
    "a product and a constant": RBF(1.0) * Matern(2.0, nu=2.5) * 1.5 + ConstantKernel(2.0),
    "a constant first": ConstantKernel(2.0) + RBF(0.5),
    "no closed form": DotProduct() + RBF(1.0),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("m", [1, 150])
def test_rows_given_their_neighbours_in_single_precision_against_dense_algebra(name, m):
    rng = np.random.default_rng(m)
    kernel = SUMS[name] + WhiteKernel(0.1)
    Z, Y = rng.standard_normal((2, m + 1, 3)), rng.standard_normal((2, m, 2))
    noise = rng.uniform(0.1, 0.3, (2, m))
    compiled = compile_kernel(kernel, 3)
    with torch.no_grad():
        arrays = map(torch.tensor, (Z, noise, Y))
        found = condition_in_place(compiled, compiled.theta0, *arrays)
    assert not found.failed.any()
    for i in range(2):
        K = SUMS[name](Z[i])
        H, k = K[:-1, :-1] + np.diag(noise[i]), K[:-1, -1]
        assert_allclose(found.mean[i], k @ np.linalg.solve(H, Y[i]), atol=1e-4)
        assert_allclose(found.prior[i], K[-1, -1], rtol=1e-6)
        assert_allclose(found.variance[i], K[-1, -1] - k @ np.linalg.solve(H, k), atol=1e-5)
        L = np.linalg.cholesky(H)
        assert_allclose(found.factor[i], L, atol=1e-4)
        assert_allclose(found.half[i, :, 1:], np.linalg.solve(L, Y[i]), atol=1e-3)


def test_a_matrix_without_a_factor_in_single_precision_is_said_to_have_none():
    compiled = compile_kernel(RBF(1.0) + WhiteKernel(1e-9), 1)
    Z = torch.zeros(1, 20, 1, dtype=torch.float64)
    found = condition_in_place(
        compiled, compiled.theta0, Z, torch.zeros(1, 19), torch.ones(1, 19, 1)
    )
    assert found.failed.all()


class Alive(TorchDispatchMode):
    """Counts the bytes that tensors hold whenever a matrix is factorised."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "cholesky" in str(func):
            gc.collect()
            # Not those of exports, which have no numbers.
            tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.is_cpu]
            tensors = [x for x in tensors if not torch._is_functional_tensor(x)]
            held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
            self.found.append(sum(held.values()))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_keep_no_matrix(dtype):
    """Each kept result had held on to half of a matrix."""
    rng, m = np.random.default_rng(0), 1100
    X = torch.from_numpy(rng.uniform(-2, 2, (m + 8, 3)))
    compiled = compile_kernel(Matern() + WhiteKernel(0.1), 3)
    problem = GPProblem(compiled, Rows.of(X, X.sum(1, keepdim=True)))
    near = torch.stack([torch.arange(m) + i for i in range(8)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a mode sees what its own thread does
    try:
        with Alive() as alive:
            predict(problem, compiled.theta0, X[-8:], near, dtype)
    finally:
        torch.set_num_threads(threads)
    matrix = dtype.itemsize * m**2
    assert len(alive.found) >= 8
    assert alive.found[-1] < alive.found[0] + matrix


@pytest.mark.parametrize("amplitude, length_scale", [(4.0, [0.8, 2.0]), (400.0, [2.0, 5.0])])
def test_single_precision_keeps_the_digits_of_close_rows(amplitude, length_scale):
    rng = np.random.default_rng(0)
    X = np.repeat(1e4 + rng.uniform(-1, 1, (60, 2)), 5, axis=0)
    X += 1e-5 * rng.standard_normal(X.shape)
    y = np.sin(3 * X[:, 0]) + 0.01 * rng.standard_normal(len(X))
    kernel = ConstantKernel(amplitude) * Matern(length_scale, nu=2.5) + WhiteKernel(1e-4)
    X_new = 1e4 + rng.uniform(-1, 1, (40, 2))
    single, double = (
        model(kernel=kernel, n_neighbors=60, dtype=dtype).fit(X, y)
        for dtype in ("float32", "float64")
    )
    means, stds = zip(*(m.predict(X_new, return_std=True) for m in (single, double)), strict=True)
    assert_allclose(*means, atol=2e-3)
    assert_allclose(*stds, rtol=1e-2)
    latent = [m.predict_std(X_new, include_noise=False) for m in (single, double)]
    assert_allclose(*latent, rtol=2e-2)


# -------------------------------------------------------------------- several rows at once


@pytest.mark.parametrize("name", ["default", "sum of products", "category covariance"])
def test_the_chain_with_full_sets_is_the_exact_covariance(name):
    p, X_new = of(name)
    theta, b = p.kernel.theta0, len(X_new)
    exact = ExactPosterior.of(p, theta)[0].covariance(X_new)
    order = torch.tensor([4, 0, 8, 2, 6, 1, 7, 3, 5])
    place = order.argsort()
    earlier = torch.arange(b).expand(b, b)
    half = chain(
        p,
        theta,
        X_new,
        torch.arange(40).expand(b, 40),
        order,
        earlier,
        place[None] < place[:, None],
    )
    assert_allclose(half @ half.T, exact, atol=1e-8)


def test_joint_answers():
    X, y, X_new = table(n=60)
    X_new = np.vstack([X_new, X_new[:2]])  # asked for twice
    ours = model(n_neighbors=59).fit(X, y)
    mean, cov = ours.predict(X_new, return_cov=True)
    exact = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y)
    expected = exact.predict(X_new, return_cov=True)[1]
    assert_allclose(cov, expected, atol=2e-3)
    assert_allclose(np.sqrt(np.diag(cov)), ours.predict_std(X_new), rtol=1e-8)
    draws = ours.sample_y(X_new, 40_000)
    assert_allclose(draws.mean(1), mean, atol=4 * np.sqrt(2.05 / 40_000))
    assert_allclose(np.cov(draws), cov, atol=0.02)
    few = model(n_neighbors=5).fit(X, y)
    cov = few.predict(X_new, return_cov=True)[1]
    assert np.linalg.eigvalsh(cov).min() > 0
    assert_allclose(np.sqrt(np.diag(cov)), few.predict_std(X_new), rtol=1e-8)


# -------------------------------------------------------------------- what training maximises


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("objective", [left_out, blocks])
def test_gradients(name, objective):
    p, _ = of(name, noise=np.linspace(0.01, 0.3, 40))
    theta, rows = p.kernel.theta0, torch.tensor([3, 17, 39, 4])
    near = neighbours_of(p, theta, rows, 7)
    value, grad = objective(p, theta, rows, near)
    assert_allclose(objective(p, theta, rows, near, False)[0], value, rtol=1e-12)
    for j in range(len(theta)):
        step = torch.zeros_like(theta)
        step[j] = 1e-5
        up, down = (objective(p, theta + s, rows, near, False)[0] for s in (step, -step))
        assert_allclose(grad[j], (up - down) / 2e-5, rtol=1e-5, atol=1e-7)


def test_rows_left_out_against_models_without_them():
    p, _ = of("default", t=1)
    X, y = p.X.numpy(), p.Y.numpy()[:, 0]
    rows = torch.arange(0, 40, 7)
    near = neighbours_of(p, p.kernel.theta0, rows, 10)
    expected = []
    for i in rows:
        rest = np.delete(np.arange(40), i)
        alone = model(n_neighbors=10).fit(X[rest], y[rest])
        mean, std = alone.predict(X[[i]], return_std=True)
        expected.append(-0.5 * ((y[i] - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi)))
    assert_allclose(
        left_out(p, p.kernel.theta0, rows, near, False)[0], np.mean(expected), rtol=1e-8
    )


def test_one_block_is_the_exact_likelihood():
    p, _ = of("sum of products")
    theta, row = p.kernel.theta0, torch.tensor([5])
    value, grad = blocks(p, theta, row, neighbours_of(p, theta, row, 39))
    exact = exact_marginal_likelihood(p, theta)
    assert_allclose(40 * value, exact.value, rtol=1e-9)
    assert_allclose(40 * grad, exact.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("objective", ["leave_one_out", "blocks", "subset"])
def test_what_was_maximised_is_answered_again(objective):
    X, y, _ = table(120)
    settings = dict(objective=objective, subset_size=30, n_centers=40, optimizer="auto")
    calibrate = objective != "leave_one_out"  # the gradient below is that of training
    ours = model(kernel=None, calibrate=calibrate, **settings).fit(X, y)
    value = ours.log_marginal_likelihood_value_
    theta = ours.kernel_.theta
    assert_allclose(ours.log_marginal_likelihood(theta), value, rtol=1e-9)
    _, grad = ours.log_marginal_likelihood(theta, eval_gradient=True)
    again = pickle.loads(pickle.dumps(ours)).log_marginal_likelihood(theta)
    assert again == ours.log_marginal_likelihood(theta)
    if objective == "leave_one_out":
        assert np.abs(grad).max() < 0.05 * len(X)
        assert ours.log_marginal_likelihood(theta + 0.3) < value
    assert ("calibration" in ours.fit_report_.seconds) == calibrate


@pytest.mark.parametrize("objective", ["leave_one_out", "subset"])
def test_calibration_scales_the_kernel_by_rows_left_out(objective):
    X, y, X_new = table(300)
    settings = dict(objective=objective, subset_size=40, optimizer="auto", kernel=None)
    settings |= dict(n_centers=100)
    plain, ours = (model(calibrate=c, **settings).fit(X, y) for c in (False, True))
    scale = ours.fit_report_.scale
    assert abs(scale - 1) > 1e-3
    assert_allclose(ours.kernel_(X[:9]), scale * plain.kernel_(X[:9]), rtol=1e-8)
    assert_allclose(ours.predict(X_new), plain.predict(X_new), rtol=1e-8)
    # The mean squared error of the rows left out is one, in units of their variance.
    rows = np.setdiff1d(np.arange(300), plain._seen if objective == "leave_one_out" else [])
    assert len(rows) == (200 if objective == "leave_one_out" else 300)
    Y, squares = (y - y.mean()) / y.std(), []
    for i in rows:
        apart = ((X - X[i]) / ours.kernel_.k1.k2.length_scale) ** 2
        near = apart.sum(1).argsort()[1:13]
        k = ours.kernel_(X[near], X[[i]])[:, 0]
        w = np.linalg.solve(ours.kernel_(X[near]), k)
        squares.append((Y[i] - w @ Y[near]) ** 2 / (ours.kernel_(X[[i]])[0, 0] - w @ k))
    assert_allclose(np.mean(squares), 1, rtol=1e-3)


@pytest.mark.exact_input
def test_equal_rows_are_left_out_together_and_each_is_predicted():
    X, y, _ = table(300)
    rng = np.random.default_rng(0)
    many = np.repeat(np.arange(300), rng.integers(1, 5, 300))
    X, y = X[many], y[many] + 0.3 * rng.standard_normal(len(many)) * (many % 3)
    settings = dict(subset_size=40, optimizer="auto", kernel=None, n_centers=100)
    ours = model(**settings).fit(X, y)
    assert ours.X_train_.shape == (300, X.shape[1])
    place = {row.tobytes(): i for i, row in enumerate(ours.X_train_)}
    of = np.array([place[row.tobytes()] for row in X])
    counts, Y = np.bincount(of), (y - y.mean()) / y.std()
    means = np.bincount(of, Y) / counts
    latent, noise = ours.kernel_.k1, ours.kernel_.k2.noise_level
    T, squares = ours.X_train_, []
    for i in np.setdiff1d(np.arange(300), ours._seen):
        near = (((T - T[i]) / latent.k2.length_scale) ** 2).sum(1).argsort()[1:13]
        H, k = latent(T[near]) + np.diag(noise / counts[near]), latent(T[near], T[[i]])[:, 0]
        w = np.linalg.solve(H, k)
        total = latent(T[[i]])[0, 0] - w @ k + noise
        squares += list((Y[of == i] - w @ means[near]) ** 2 / total)
    assert len(squares) == counts[np.setdiff1d(np.arange(300), ours._seen)].sum()
    assert_allclose(np.mean(squares), 1, rtol=1e-3)


def test_priors_count_beside_all_observations_of_equal_rows():
    p, _ = of("default", n=150)
    rng, priors = np.random.default_rng(0), {"k1__k1__constant_value": LogNormal(1.0, 0.1)}
    counts, within = rng.integers(1, 7, 150), 0.5 * rng.chisquare(3, 150)
    p = replace(
        p,
        kernel=compile_kernel(KERNEL, 2, priors=priors),
        rows=Rows.of(p.X, p.Y, p.rows.noise, counts, within),
    )
    theta, rows = p.kernel.theta0, torch.arange(150)
    near = neighbours_of(p, theta, rows, 12)
    found = Scales(p, theta).best(rows, near, torch.float64, local=False)
    given = predict(p, theta, p.X, near, torch.float64)
    squares = counts * (p.Y - given.mean).square().sum(1).numpy() + within
    total, n = float((squares / (given.variance.numpy() + 0.05)).sum()), 2 * counts.sum()
    moved = torch.as_tensor(p.kernel.variances).numpy()

    def loss(at):
        return 0.5 * (total * np.exp(-at) + n * at) - p.log_prior(theta.numpy() + at * moved)[0]

    best = np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded").x)
    assert found.scale == pytest.approx(best, rel=1e-3)
    assert abs(best - total / n) > 0.05


def test_kernels_without_an_amplitude_are_not_calibrated():
    X, y, X_new = table(100)
    kernel = Matern(1.0) + WhiteKernel(0.1)
    settings = dict(kernel=kernel, optimizer="auto", subset_size=40, n_centers=40)
    plain, ours = (model(calibrate=c, **settings).fit(X, y) for c in (False, True))
    assert "scale the whole kernel" in ours.fit_report_.ignored["calibrate"]
    assert_array_equal(ours.predict(X_new), plain.predict(X_new))


def test_calibration_counts_known_noise():
    known = np.linspace(0.01, 0.5, 40)
    p, _ = problem(KERNEL, t=1, noise=known)
    theta, rows = p.kernel.theta0, torch.arange(40)
    near = neighbours_of(p, theta, rows, 9)
    found = Scales(p, theta).best(rows, near, torch.float64, local=False)
    assert_allclose(found.theta - theta, np.log(found.scale) * np.array([1, 0, 0, 1]), atol=1e-12)
    X, Y = p.X.numpy(), p.Y.numpy()[:, 0]

    def density(scale):
        values = []
        for i, others in enumerate(near.numpy()):
            k = KERNEL(X[others], X[[i]])[:, 0]
            w = np.linalg.solve(KERNEL(X[others]) + np.diag(known[others]), k)
            variance = scale * (2.05 - w @ k) + known[i]
            values.append(norm.logpdf(Y[i], w @ Y[others], variance**0.5))
        return np.mean(values)

    assert_allclose(found.density, density(found.scale), rtol=1e-8)

    def penalised(scale):
        """With a standard normal prior of the logarithm beside 40 rows."""
        return density(scale) - 0.5 * np.log(scale) ** 2 / 40

    top = penalised(found.scale)
    assert top > max(penalised(0.97 * found.scale), penalised(1.03 * found.scale))


def test_known_noise_that_hides_all_else_leaves_the_scale_near_one():
    """The scale was once anywhere between 0.007 and 148."""
    for seed in range(8):
        p, _ = problem(KERNEL, t=1, noise=np.full(40, 1e3))
        Y = torch.tensor(1e3**0.5 * np.random.default_rng(seed).standard_normal((40, 1)))
        p, rows = replace(p, rows=replace(p.rows, Y=Y)), torch.arange(40)
        near = neighbours_of(p, p.kernel.theta0, rows, 9)
        assert 0.5 < Scales(p, p.kernel.theta0).best(rows, near, torch.float64).scale < 2


def few_neighbors(thresholds, worth):
    """The default compares 8 and 60 neighbours."""
    thresholds("neighbors", _NEIGHBORS=8, _OTHER_NEIGHBORS=(60,))
    thresholds("_nngp", _WORTH=worth)


@pytest.mark.parametrize(
    "n, params, neighbors, dtype, subset, n_rows",
    [
        (2_000, {}, 2_000, "float64", None, 0),
        (2_001, {}, 200, "float64", 1_000, 1_000),
        (100_000, {}, 200, "float32", 1_000, 1_000),
        (5_000, {"n_centers": 30, "n_neighbors": 9}, 9, "float64", 1_000, 30),
        (5_000, {"objective": "subset"}, 200, "float64", 3_000, 3_000),
        (5_000, {"subset_size": None}, 200, "float64", None, 1_000),
        (500, {"n_neighbors": 20, "dtype": "float32"}, 20, "float32", 500, 500),
    ],
    ids=str,
)
def test_plans(n, params, neighbors, dtype, subset, n_rows):
    made = plan(NNGPRegressor(**params), n, 4, Machine(), n_params=6)
    assert (made.n_neighbors.value, made.dtype.value, made.n_rows) == (neighbors, dtype, n_rows)
    assert (made.subset_size and made.subset_size.value) == subset
    assert ("objective" in made.without_effect) == (neighbors == n)
    assert ("n_centers" in made.without_effect) == (neighbors == n or "objective" in params)
    assert made.compared == (
        () if neighbors == n else (200, 50, 100, 400) if neighbors == 200 else (neighbors,)
    )


@pytest.mark.parametrize(
    "worth, chosen, calibrate", [(0.02, 60, True), (10, 8, True), (10, 8, False)]
)
def test_predictions_take_more_neighbours_where_rows_left_out_show_a_gain(
    thresholds, worth, chosen, calibrate, given_start
):
    few_neighbors(thresholds, worth)
    X, y, X_new = table(400)
    settings = dict(kernel=None, n_neighbors="auto", optimizer="auto", subset_size=40)
    settings |= dict(n_centers=40, small_table="method")
    ours = model(calibrate=calibrate, **settings).fit(X, y)
    assert ours.n_neighbors_ == ours.fit_report_.choices["n_neighbors"].value == chosen
    given = model(kernel=ours.kernel_, n_neighbors=chosen, normalize_y=True).fit(X, y)
    assert_allclose(ours.predict(X_new), given.predict(X_new), rtol=1e-8)
    # By dense algebra: rows given their nearest others.
    Y, K = (y - y.mean()) / y.std(), ours.kernel_(X)

    def left_out(i, m):
        apart = ((X - X[i]) / ours.kernel_.k1.k2.length_scale) ** 2
        near = apart.sum(1).argsort()[1 : 1 + m]
        w = np.linalg.solve(K[np.ix_(near, near)], K[near, i])
        return Y[i] - w @ Y[near], (K[i, i] - w @ K[near, i]) ** 0.5

    density = {}
    for m in (8, 60):
        others = np.setdiff1d(np.arange(400), ours._seen)
        error, std = np.transpose([left_out(i, m) for i in others])
        if calibrate:
            std *= np.sqrt(np.mean((error / std) ** 2))
        density[m] = norm.logpdf(error, 0, std).mean()
    told = float(ours.fit_report_.choices["n_neighbors"].reason.split()[-1])
    assert_allclose(told, density[60], atol=1e-3)
    assert 0.02 < density[60] - density[8] < 10
    # The likelihood is that of the neighbours from which rows are predicted, before and after
    # more rows. Those of the fewer neighbours are the nearest at earlier hyperparameters.
    error, std = np.transpose([left_out(i, chosen) for i in ours._seen])
    value = 400 * norm.logpdf(error, 0, std).mean()
    tolerance = 1e-6 if chosen == 60 else 0.1
    assert_allclose(ours.log_marginal_likelihood_value_, value, rtol=tolerance)
    assert ours.partial_fit(X_new, X_new[:, 0]).n_neighbors_ == chosen
    again = ours.log_marginal_likelihood(ours.kernel_.theta)
    assert_allclose(ours.log_marginal_likelihood_value_, again, rtol=1e-9)


@pytest.mark.parametrize(
    ("density", "chosen"),
    [
        ({200: 1.0, 50: 0.97, 100: 0.985, 400: 1.002}, 100),
        ({200: 1.0, 50: np.nan, 400: 1.3}, 400),
        ({200: np.nan, 50: np.nan}, 200),
        ({9: np.nan}, 9),
    ],
    ids=str,
)
def test_the_fewest_neighbours_that_are_hardly_worse(density, chosen):
    assert _fewest(density) == chosen


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("calibrate", [True, False])
def test_training_that_predicts_all_rows(thresholds, calibrate):
    """Neighbours are compared all the same; no held-out rows can give the scale."""
    few_neighbors(thresholds, 0.0)
    X, y, _ = table(120)
    settings = dict(kernel=None, optimizer="auto", subset_size=40, max_iter=3, n_centers=120)
    settings |= dict(n_neighbors="auto", small_table="method")
    ours = model(calibrate=calibrate, **settings).fit(X, y)
    reason = ours.fit_report_.choices["n_neighbors"].reason
    assert ours.n_neighbors_ == 60 and "of 8 and 60 the fewest within 0.0 of the" in reason
    assert ("calibrate" in ours.fit_report_.ignored) == calibrate


def uneven(n=500):
    """Rows whose noise is thirty times larger on one side, and rows between."""
    X, _, X_new = table(n)
    rng = np.random.default_rng(1)
    return X, np.sin(X[:, 0]) + np.where(X[:, 1] > 0, 0.6, 0.02) * rng.standard_normal(n), X_new


@pytest.mark.usefixtures("given_start")
def test_variances_follow_the_errors_of_the_nearest_rows():
    X, y, X_new = uneven()
    settings = dict(kernel=None, n_neighbors=50, optimizer="auto", subset_size=100, n_centers=100)
    settings |= dict(random_state=2)
    plain, ours = (model(calibrate=c, **settings).fit(X, y) for c in (False, True))
    assert plain.local_power_ == 0 and ours.local_power_ >= 0.5
    Y, unit = (y - y.mean()) / y.std(), y.std()
    mean, std = ours.predict(X_new, return_std=True)
    latent = ours.predict_std(X_new, include_noise=False)
    assert_allclose(mean, plain.predict(X_new), rtol=1e-8)

    def by_hand(x, near):
        """The mean, the variance with noise, and the factor, by errors one row after the other."""
        errors, before = [], plain.kernel_  # the power was chosen before the kernel was scaled
        for j in range(30):
            k = before(X[near[:j]], X[near[j : j + 1]])[:, 0] if j else np.zeros(0)
            w = np.linalg.solve(before(X[near[:j]]), k) if j else k
            own = before(X[near[j : j + 1]])[0, 0] - w @ k
            errors.append((Y[near[j]] - w @ Y[near[:j]]) ** 2 / own)
        k = ours.kernel_(X[near], x[None])[:, 0]
        w = np.linalg.solve(ours.kernel_(X[near]), k)
        variance = ours.kernel_(x[None])[0, 0] - w @ k
        return w @ Y[near], variance, ((np.mean(errors) + 0.03) / 1.03) ** ours.local_power_

    def order(x):
        return (((X - x) / ours.kernel_.k1.k2.length_scale) ** 2).sum(1).argsort()

    noise = ours.kernel_.k2.noise_level
    for i, x in enumerate(X_new):
        centre, variance, factor = by_hand(x, order(x)[:50])
        assert_allclose(mean[i], unit * centre + y.mean(), rtol=1e-6)
        assert_allclose(std[i] ** 2, unit**2 * factor * variance, rtol=1e-6)
        assert_allclose(latent[i] ** 2, unit**2 * factor * (variance - noise), rtol=1e-5)
    rows = np.arange(0, 500, 100)
    predicted = fitted_process(ours).left_out(X, y, None, rows)
    left, left_std = predicted.mean, predicted.std
    for i, row in enumerate(rows):
        centre, variance, factor = by_hand(X[row], order(X[row])[1:51])
        assert_allclose(left[i], unit * centre + y.mean(), rtol=1e-6)
        assert_allclose(left_std[i] ** 2, unit**2 * factor * variance, rtol=1e-6)
    # Joint predictions, single rows, pickles and rows that are added know the factor, too.
    covariance = ours.predict(X_new, return_cov=True)[1]
    assert_allclose(covariance.diagonal(), std**2, rtol=1e-6)
    draws = ours.sample_y(X_new, 4000)
    assert_allclose(draws.std(1), std, rtol=0.06)
    again = pickle.loads(pickle.dumps(ours))
    alone = [float(again.predict(x[None], return_std=True)[1][0]) for x in X_new]
    assert_allclose(alone, std, rtol=1e-9)
    far = np.full((1, 2), 50.0)
    assert_allclose(ours.partial_fit(far, [0.0]).predict_std(X_new), std, rtol=1e-6)


def test_errors_of_rows_that_nearly_agree_keep_their_digits():
    """In single precision, also where the variance of the new row itself is large."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-2, 2, (60, 2)), 2, axis=0)
    X[1::2] += 5e-4
    y = np.sin(2 * X[:, :1]) + 0.01 * rng.standard_normal((120, 1))
    kernel = compile_kernel(ConstantKernel(1.0) * Matern(1.0, nu=1.5) + WhiteKernel(1e-6), 2)
    p = GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y)))
    new = torch.tensor(rng.uniform(-2, 2, (20, 2))) + 4.0
    near = torch.cdist(new, p.X).argsort(1)[:, :40]

    def found(dtype, errors=True):
        return predict(p, kernel.theta0, new, near, dtype, errors)

    double = found(torch.float64)
    assert_allclose(found(torch.float32).surprise, double.surprise, rtol=1e-6)
    rough = found(torch.float32, errors=False)
    assert_allclose(rough.variance, double.variance, rtol=1e-3)
    assert not np.allclose(rough.surprise, double.surprise, rtol=0.01)


def test_calibration_with_a_prior_variance_of_a_smooth_function():
    """The prior variance is 1e5, and its rounding in single precision exceeds the variances."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (1500, 2))
    y = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.05 * rng.standard_normal(1500)
    kernel = ConstantKernel(1e5) * Matern([150, 150], nu=1.5) + WhiteKernel(0.0025)
    problem = compile_kernel(kernel, 2)
    problem = GPProblem(problem, Rows.of(torch.tensor(X), torch.tensor(y[:, None])))
    theta, rows = problem.kernel.theta0 - 0.1, torch.arange(0, 1500, 2)
    near = neighbours_of(problem, theta, rows, 50)
    scales = Scales(problem, theta)
    found = scales.best(rows, near, torch.float32, local=False)
    predicted = predict(problem, theta, problem.X[rows], near, torch.float64, False)
    total = predicted.variance + problem.kernel.noise(theta, problem.X[rows])
    expected = float(((problem.Y[rows] - predicted.mean)[:, 0].square() / total).mean())
    assert 0.3 < expected < 1.05
    assert found.scale == pytest.approx(expected, rel=1e-3)


def test_local_scales_are_for_uneven_noise_and_can_be_switched_off():
    X, y, _ = table(500)
    settings = dict(kernel=None, n_neighbors=50, optimizer="auto", subset_size=100, n_centers=100)
    assert model(**settings).fit(X, y).local_power_ == 0
    X, y, _ = uneven()
    assert model(local_scale=False, **settings).fit(X, y).local_power_ == 0


def test_calibration_of_a_kernel_without_variance_between_copies():
    p, _ = problem(ConstantKernel(1.0) * RBF(1.0), t=1)
    twice = GPProblem(p.kernel, Rows.of(p.X.repeat(2, 1), torch.cat([p.Y, p.Y + 0.1])))
    near = torch.arange(40, 80)[:, None]
    found = Scales(twice, p.kernel.theta0).best(torch.arange(40), near, torch.float64)
    assert np.isfinite([found.scale, found.density]).all() and found.scale > 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_callbacks_see_the_likelihood_of_all_rows():
    X, y, _ = table(120)
    seen = {}

    def callback(step):
        shown = step.model()
        value = shown.log_marginal_likelihood(shown.kernel_.theta)
        if step.stage == "full":  # whose neighbours are those of its first step
            assert_allclose(step.objective, value, rtol=0.2)
            value = step.objective
        assert_allclose(shown.log_marginal_likelihood_value_, value, rtol=1e-9)
        seen[step.stage] = value

    settings = dict(kernel=None, optimizer="auto", max_iter=3, callbacks=callback)
    model(objective="blocks", subset_size=30, n_centers=40, **settings).fit(X, y)
    assert list(seen) == ["30", "full"]


def test_an_interrupted_calibration_leaves_the_trained_model(stand_in):
    X, y, X_new = table(120)
    settings = dict(objective="subset", subset_size=40, optimizer="auto", kernel=None)
    plain = model(calibrate=False, **settings).fit(X, y)

    def interrupted(*args):
        raise KeyboardInterrupt

    stand_in("neighbours_of", interrupted, at="_nngp")
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        ours = model(**settings).fit(X, y)
    assert ours.fit_report_.status == "interrupted"
    assert_array_equal(ours.predict(X_new), plain.predict(X_new))


# -------------------------------------------------------------------- who is near


def test_nearness_is_the_kernels():
    p, X_new = of("category covariance")
    metric = Metric(p.kernel, p.kernel.theta0, p.X)
    found = Index(metric.points).nearest(metric(X_new), 40)[1]
    near_codes = p.X[torch.as_tensor(found[:, :5]), 1].numpy()
    assert (near_codes == X_new[:, 1:].numpy()).mean() > 0.7
    # A column whose length scale is past all bounds does not count.
    kernel = compile_kernel(RBF([1.0, 1e12]), 2)
    assert Metric(kernel, kernel.theta0, p.X).points.shape == (40, 1)


def test_kernels_without_neighbours_are_refused():
    X, y, _ = table()
    with pytest.raises(ValueError, match="ExpSineSquared has no distance.*IterativeGPRegressor"):
        model(kernel=Columns(ExpSineSquared(), 0) + WhiteKernel()).fit(X, y)
    # As an exact process they need none; they are covariances of one column.
    model(kernel=ExpSineSquared() + WhiteKernel(), n_neighbors="auto").fit(X[:, :1], y)


def test_a_row_is_never_its_own_neighbour():
    p, _ = of("default")
    X = p.X.clone()
    X[5:15] = X[5]  # ten equal rows
    p = GPProblem(p.kernel, Rows.of(X, p.Y))
    near = neighbours_of(p, p.kernel.theta0, torch.arange(40), 3)
    assert (near != torch.arange(40)[:, None]).all()
    assert all(len(set(row.tolist())) == 3 for row in near)


def test_an_index_that_grows():
    points = np.random.default_rng(0).normal(size=(3000, 3))
    whole = Index(points).nearest(points[:50], 20)
    index = Index(points[:500])
    for start in range(500, 3000, 250):
        index = index.plus(points[start : start + 250])
    for a, b in zip(whole, index.nearest(points[:50], 20), strict=True):
        assert_allclose(a, b)


@pytest.mark.parametrize(
    ("n", "q", "exact"), [(40_000, 6, False), (40_000, 5, True), (900, 6, True)]
)
def test_the_search_is_exact_but_among_many_points_of_many_dimensions(n, q, exact):
    rng = np.random.default_rng(0)
    points, wanted, k = rng.uniform(size=(n, q)), rng.uniform(size=(40, q)), 60
    index = Index(points)
    away, found = index.nearest(wanted, k)
    every = np.linalg.norm(wanted[:, None] - points, axis=2)
    nearest = np.sort(every, axis=1)[:, :k]
    assert_allclose(away, np.take_along_axis(every, found, 1))
    assert (away <= 1.5 * nearest + 1e-12).all()
    rows = np.argsort(every, axis=1)[:, :k]
    share = np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(rows, found, strict=True)])
    if exact:
        assert_allclose(away, nearest)
        assert share == 1
    else:
        assert 0.85 < share < 1
        assert_allclose(away[:, :5].mean(), nearest[:, :5].mean(), rtol=0.01)
    # Whatever else is searched for at the same time.
    for i in (0, 7, 39):
        assert_array_equal(index.nearest(wanted[i : i + 1], k)[1][0], found[i])


# -------------------------------------------------------------------- further rows


@pytest.mark.parametrize("m", [12, 70, "auto"])
def test_added_rows_are_as_if_they_had_been_there(m):
    X, y, X_new = table(80)
    noise = np.linspace(0.01, 0.5, 80)
    parts = model(n_neighbors=m, normalize_y=False)
    for some in (slice(0, 60), slice(60, 61), slice(61, 80)):
        parts.partial_fit(X[some], y[some], noise_variance=noise[some])
    whole = model(n_neighbors=m, normalize_y=False).fit(X, y, noise_variance=noise)
    assert parts.n_samples_seen_ == 80 and parts.n_neighbors_ == whole.n_neighbors_
    for made in (parts, pickle.loads(pickle.dumps(parts))):
        for a, b in zip(
            made.predict(X_new, return_cov=True, noise_variance=0.1),
            whole.predict(X_new, return_cov=True, noise_variance=0.1),
            strict=True,
        ):
            assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("m", [12, 100, "auto"])
def test_the_likelihood_after_rows_were_added(m):
    """Also where the first rows were few enough to be neighbours of each other."""
    X, y, _ = table(120)
    ours = model(n_neighbors=m).fit(X[::-1], y[::-1]).fit(X[:60], y[:60])
    for some in (slice(60, 99), slice(99, 120)):
        ours.partial_fit(X[some], y[some])
    theta = ours.kernel_.theta
    assert_allclose(
        ours.log_marginal_likelihood(theta), ours.log_marginal_likelihood_value_, rtol=1e-9
    )
    if m == "auto":
        Y = (y - ours._y_train_mean) / ours._y_train_std
        all_rows = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, Y)
        assert_allclose(
            ours.log_marginal_likelihood(), all_rows.log_marginal_likelihood(), rtol=1e-7
        )
    assert len(ours.log_marginal_likelihood(theta, eval_gradient=True)[1]) == len(theta)


@pytest.mark.parametrize("codes", [False, True], ids=["column", "category"])
def test_added_rows_that_differ_in_what_was_the_same(codes):
    X, y, X_new = table(80)
    kernel = KERNELS["category covariance"] if codes else KERNEL
    X[:60, 1], X[60:, 1], X_new[:, 1] = 0, np.arange(20) % 2 + 1, 2
    parts = model(kernel=kernel, normalize_y=False).fit(X[:60], y[:60])
    parts.partial_fit(X[60:], y[60:])
    whole = model(kernel=kernel, normalize_y=False).fit(X, y)
    assert_allclose(parts.predict(X_new), whole.predict(X_new), rtol=1e-8)


def test_wrong_rows_are_not_added():
    X, y, X_new = table()
    ours = model().fit(X, y)
    before = ours.predict(X_new)
    with pytest.raises(ValueError, match="3 features"):
        ours.partial_fit(np.ones((2, 3)), np.ones(2))
    with pytest.raises(ValueError, match="NaN"):
        ours.partial_fit(X[:2], np.full(2, np.nan))
    assert_array_equal(ours.predict(X_new), before)
    assert len(ours.X_train_) == len(X)


def test_threads_change_nothing():
    X, y, X_new = table(120)
    settings = dict(kernel=None, optimizer="auto", subset_size=40, n_centers=60)
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ours = model(**settings).fit(X, y)
            answers.append(ours.predict(X_new, return_std=True))
    finally:
        torch.set_num_threads(before)
    assert_allclose(*answers, rtol=1e-9)


def test_rows_that_are_added_change_the_precision_with_the_size(thresholds):
    thresholds(_DOUBLE_ROWS=100)
    X = np.random.default_rng(0).random((120, 2))
    y = np.sin(6 * X[:, 0])
    ours = NNGPRegressor(n_neighbors=20, random_state=0).fit(X[:90], y[:90])
    assert ours.dtype_ == "float64" and ours.partial_fit(X[90:], y[90:]).dtype_ == "float32"
