"""Kernels on columns and of categories, against scikit-learn on sliced columns."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import generator
from sklearn.base import clone
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
from sklearn.preprocessing import OrdinalEncoder

from skscalablegp import IterativeGPRegressor, KISSGPRegressor, NNGPRegressor
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import (
    Categorical,
    Columns,
    LowRankCategorical,
    SpectralMixture,
    compile_kernel,
)
from skscalablegp.linalg.operators import KernelOperator, StationaryKernel


def table(n=30, seed=0):
    """Two columns of numbers, then four categories, then three of which one is never seen."""
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=(n, 2)), rng.integers(0, 4, n), rng.integers(-1, 3, n)])


CLOSED = {
    "ard": Columns(RBF([1.0, 2.0]), [1, 0]) + WhiteKernel(0.1),
    "kink": Columns(Matern(0.7, nu=0.5), 1) * Columns(Matern(1.5, nu=2.5), [0]),
    "category": Columns(Matern([1.0, 2.0]), [0, 1]) * Columns(Categorical(0.3), [2]),
    "categories": ConstantKernel(2.0) * Columns(Categorical([0.3, 0.6]), [3, 2]),
    "one correlation": Columns(Categorical(0.4), [3, 2]) + Columns(RBF(), 0) + RBF(2.0),
    "nested": Columns(Columns(RBF(), [0]) * Columns(Categorical(0.2), [1]), [1, 2]),
    "power": Columns(RBF() + Columns(Matern(2.0), 0) + WhiteKernel(0.2), [1, 0]) ** 2,
    "fixed": Columns(RBF([1.0, 3.0], "fixed"), [1, 0]) * Columns(Categorical(0.1, "fixed"), 2),
    "quadratic": Columns(RationalQuadratic(1.3, 0.6), [0, 1]) * Columns(Categorical(0.5), 2),
}
OTHERS = {
    "season": Columns(ExpSineSquared(1.1, 2.0), 1) * Columns(RBF(), 0),
    "low rank": Columns(LowRankCategorical(3, 2), 3) * Columns(Matern(), [0, 1]),
    "loadings": Columns(LowRankCategorical(3, 1, [0.5, -1.0, 0.2], [0.1, 0.2, 0.3]), 3),
    "fixed loadings": Columns(LowRankCategorical(4, loadings_bounds="fixed"), 2),
    "linear": Columns(DotProduct(0.5) + Matern(), 0) * Columns(Categorical(0.3), 2),
    "mixture": Columns(SpectralMixture(1, [1.0], [0.2, 0.1], [0.1, 0.3]), [1, 0]),
    "four factors": Columns(RBF(), 0) * Columns(RBF(), 1) * Columns(Categorical(), [2, 3]),
}
KERNELS = CLOSED | OTHERS


def finite_differences(kernel, X, step=1e-6):
    theta = kernel.theta
    return np.stack(
        [
            (kernel.clone_with_theta(theta + e)(X) - kernel.clone_with_theta(theta - e)(X))
            / (2 * step)
            for e in step * np.eye(len(theta))
        ],
        -1,
    ) if len(theta) else np.empty((len(X), len(X), 0))  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_scikit_learn_kernel_and_compiled_form(name):
    kernel, X = KERNELS[name], table()
    K, gradient = kernel(X, eval_gradient=True)
    assert_allclose(kernel(X), K, rtol=1e-12)
    assert_allclose(kernel.diag(X), np.diag(K), rtol=1e-12)
    assert_allclose(gradient, finite_differences(kernel, X), atol=1e-7)
    assert np.linalg.eigvalsh(K).min() > -1e-9
    compiled, rows = compile_kernel(kernel, 4), torch.tensor(X)
    theta = compiled.theta0.requires_grad_(True)
    noise = torch.diag(compiled.noise(theta, rows))
    values = compiled.cross(theta, rows, rows) + noise
    assert_allclose(values.detach().numpy(), K, rtol=1e-10, atol=1e-13)
    diag = (compiled.diag(theta, rows) + compiled.noise(theta, rows)).detach()
    assert_allclose(diag.numpy(), np.diag(K), rtol=1e-10)
    W = torch.randn(30, 30, generator=generator(1), dtype=torch.float64)
    W = W + W.T
    operator = KernelOperator(compiled, compiled.theta0, rows)
    assert isinstance(operator.bound, StationaryKernel) == (name in CLOSED)
    assert_allclose(operator.to_dense().numpy(), K, rtol=1e-9, atol=1e-12)
    expected = np.einsum("ijp,ij->p", gradient, W.numpy())
    assert_allclose(operator.bilinear_grad(W).numpy(), expected, rtol=1e-8, atol=1e-8)
    single = KernelOperator(compiled, compiled.theta0, rows.float())
    assert_allclose(single.to_dense().numpy(), K, atol=2e-5)


def test_values_are_those_of_sliced_columns():
    X, Z = table(), table(7, seed=1)
    kernel = Columns(RBF([1.0, 2.0]), [1, 0]) * Columns(Matern(1.5), 2) + Columns(DotProduct(), 3)
    expected = RBF([1.0, 2.0])(X[:, [1, 0]], Z[:, [1, 0]]) * Matern(1.5)(X[:, [2]], Z[:, [2]])
    expected += DotProduct()(X[:, [3]], Z[:, [3]])
    assert_allclose(kernel(X, Z), expected)
    compiled = compile_kernel(kernel, 4)
    ours = compiled.cross(compiled.theta0, torch.tensor(X), torch.tensor(Z))
    assert_allclose(ours.numpy(), expected, rtol=1e-10)


def test_parameters_are_those_of_scikit_learns_kernels():
    kernel = 2.0 * Columns(RBF([1.0, 2.0]) + WhiteKernel(0.5, "fixed"), ["a", "b"])
    assert kernel.k2.get_params()["kernel__k1__length_scale"] == [1.0, 2.0]
    assert [h.name for h in kernel.hyperparameters] == [
        "k1__constant_value",
        "k2__kernel__k1__length_scale",
        "k2__kernel__k2__noise_level",
    ]
    assert clone(kernel) == kernel and clone(kernel).k2 is not kernel.k2
    assert kernel != 2.0 * Columns(RBF([1.0, 2.0]) + WhiteKernel(0.5, "fixed"), ["a", "c"])
    inner = kernel.k2.kernel
    assert_allclose(kernel.theta, np.append(np.log(2), inner.theta))
    assert_allclose(kernel.bounds[1:], inner.bounds)
    moved = kernel.clone_with_theta(kernel.theta + 1)
    assert_allclose(moved.theta, kernel.theta + 1)
    assert_allclose(kernel.theta[0], np.log(2))
    assert not kernel.k2.is_stationary() or inner.is_stationary()
    kernel.set_params(k2__kernel__k1__length_scale=[3.0, 4.0])
    assert inner.k1.length_scale == [3.0, 4.0]
    signed = LowRankCategorical(3, 1, [-1.0, 0.0, 2.0])
    assert_allclose(signed.theta, [-1, 0, 2, *[np.log(0.5)] * 3])
    assert_allclose(signed.bounds[:3], [[-100, 100]] * 3)
    assert_allclose((1.0 * signed).clone_with_theta(np.zeros(7)).k2.loadings, 0)


def test_unseen_categories():
    seen, new = np.array([[0.0], [1.0], [2.0]]), np.array([[-1.0], [7.0]])
    kernel = Categorical(0.3)
    assert_allclose(kernel(new, seen), 0.3)
    assert_allclose(kernel(new), [[1, 0.3], [0.3, 1]])
    low = LowRankCategorical(3, 2, [1.0, 0.0, -2.0, 1.0, 0.5, 0.5], [0.1, 0.2, 0.3])
    W = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 0.5]])
    assert_allclose(low(seen), W @ W.T + np.diag([0.1, 0.2, 0.3]))
    # A mean category: covariances and variance are the mean ones.
    assert_allclose(low(new[:1], seen)[0], W.mean(0) @ W.T)
    assert_allclose(low.diag(new), np.diag(low(seen)).mean())
    compiled, rows = compile_kernel(low, 1), torch.tensor(np.vstack([seen, new]))
    ours = compiled.cross(compiled.theta0, rows, rows).numpy()
    assert_allclose(ours, low(rows.numpy()), rtol=1e-12)
    assert np.linalg.eigvalsh(ours).min() > -1e-12


@pytest.mark.parametrize("name", ["category", "categories", "quadratic", "low rank", "linear"])
def test_features_average_to_the_kernel(name):
    # "linear" and "low rank" have factors with finite maps.
    kernel, X = KERNELS[name], torch.tensor(table(12))
    compiled = compile_kernel(kernel, 4)
    n_pairs = 6000 if name == "low rank" else 20_000
    features = sample_prior_features(compiled, 4, n_pairs, generator=generator(3))
    theta = compiled.theta0
    phi = features.evaluate(theta, X)
    expected = compiled.cross(theta, X, X)
    # Standard errors of a mean of so many bounded terms.
    scale = float(expected.abs().max())
    assert float((phi @ phi.T - expected).abs().max()) < 5 * scale / n_pairs**0.5


def test_slope_of_category_features_is_that_of_their_mean():
    compiled = compile_kernel(Categorical(0.4), 1)
    X = torch.arange(5, dtype=torch.float64)[:, None]
    theta = compiled.theta0.requires_grad_(True)
    features = sample_prior_features(compiled, 1, 50_000, generator=generator(0))
    W = torch.tensor(np.arange(25.0).reshape(5, 5))
    phi = features.evaluate(theta, X)
    (grad,) = torch.autograd.grad((phi @ phi.T * W).sum(), theta)
    (expected,) = torch.autograd.grad((compiled.cross(theta, X, X) * W).sum(), theta)
    # The largest term is 24 times a slope of at most 2 pi 4, fifty thousand times.
    assert_allclose(grad, expected, atol=5 * 24 * 8 * np.pi * 25**0.5 / 50_000**0.5)


def test_in_scikit_learns_own_regressor():
    X = table(40)
    y = np.sin(X[:, 0]) + 0.5 * X[:, 2] + 0.3 * np.cos(50 * X[:, 1])
    kernel = Columns(RBF(), [0]) * Columns(Categorical(), 2) + WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    ours = IterativeGPRegressor(kernel, normalize_y=True).fit(X, y)
    ours_value, value = ours.log_marginal_likelihood_value_, theirs.log_marginal_likelihood_value_
    assert ours_value > value - 0.02
    assert_allclose(
        ours.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)[1],
        theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)[1],
        atol=1e-5,
    )


def test_names_of_a_data_frame():
    X = pd.DataFrame(table(), columns=["a", "b", "carrier", "day"])
    X["carrier"] = X["carrier"].map({0: "AA", 1: "UA", 2: "DL", 3: "WN"}).astype("category")
    y = np.arange(30.0)
    kernel = Columns(RBF(), "b") + Columns(Columns(Categorical(), "carrier"), ["b", "carrier"])
    codes = X.assign(carrier=X["carrier"].cat.codes)
    gp = IterativeGPRegressor(kernel, alpha=0.1, optimizer=None).fit(codes, y)
    assert kernel.k1.columns == "b"
    assert gp.kernel_ == Columns(RBF(), [1]) + Columns(Columns(Categorical(), [1]), [1, 2])
    assert repr(gp.kernel_.k1) == "Columns(RBF(length_scale=1), columns=[1])"
    assert clone(gp.kernel_) == gp.kernel_
    assert_allclose(gp.predict(codes), gp.predict(codes))
    again = IterativeGPRegressor(gp.kernel_, alpha=0.1, optimizer=None)
    assert_allclose(again.fit(codes.to_numpy(), y).predict(codes.to_numpy()), gp.predict(codes))
    encoded = OrdinalEncoder().set_output(transform="pandas").fit_transform(X[["carrier"]])
    other = X.assign(carrier=encoded["carrier"])
    assert_allclose(again.fit(other.to_numpy(), y).predict(other.to_numpy()), gp.predict(codes))


@pytest.mark.parametrize(
    "columns, message",
    [
        ("b", "X has no column names"),
        ([4], "numbers from 0 to 3: X has 4 columns"),
        ([-1], "numbers from 0 to 3"),
        ([], "numbers from 0 to 3"),
        ([True], "numbers from 0 to 3"),
        ([1, 1], "has a column twice"),
    ],
)
def test_columns_that_are_not_there(columns, message):
    kernel = Columns(RBF(), columns)
    with pytest.raises(ValueError, match=message):
        kernel(table())
    with pytest.raises(ValueError, match=message):
        IterativeGPRegressor(kernel).fit(table(), np.arange(30.0))
    frame = pd.DataFrame(table(), columns=list("abcd"))
    with pytest.raises(ValueError, match=r"names \['e'\], but the columns of X are \['a', 'b'"):
        IterativeGPRegressor(Columns(RBF(), ["a", "e"])).fit(frame, np.arange(30.0))


def test_categories_that_are_none():
    X = table()
    with pytest.raises(ValueError, match="categories in column 0, which are whole numbers"):
        IterativeGPRegressor(Columns(Categorical(), [2, 0])).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="takes one column of codes, not 2"):
        compile_kernel(LowRankCategorical(3), 2)
    with pytest.raises(ValueError, match="has 4 loadings and 3 variances"):
        compile_kernel(LowRankCategorical(3, 1, [1.0] * 4), 1)
    with pytest.raises(ValueError, match="has 3 correlations, but the data have 2"):
        compile_kernel(Categorical([0.1] * 3), 2)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Categorical(1.5)([[0], [1]])


def test_rows_are_measured_from_their_mean_where_they_can_be():
    kernel = Columns(RBF(), [0]) + Columns(DotProduct(), 1) * Columns(Categorical(), 2)
    compiled = compile_kernel(kernel, 4)
    assert compiled.origin(np.ones(4)).tolist() == [1, 0, 0, 1]
    assert compiled.coded == [2]


def test_a_grid_takes_single_columns_and_refuses_categories():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 10, 200), rng.uniform(0, 4, 200)])
    y = 0.3 * X[:, 0] + np.sin(2 * np.pi * X[:, 1] / 2)
    kernel = Columns(Matern(5.0, nu=2.5), 0) * Columns(ExpSineSquared(1.0, 2.0), 1)
    kernel = 2.0 * kernel + WhiteKernel(0.01)
    grid = KISSGPRegressor(kernel, optimizer=None, grid_size=40).fit(X, y)
    exact = IterativeGPRegressor(kernel, optimizer=None).fit(X, y)
    assert_allclose(grid.predict(X[:50]), exact.predict(X[:50]), atol=2e-3)
    with pytest.raises(ValueError, match="sums the kernel over all columns"):
        KISSGPRegressor(kernel, structure="additive").fit(X, y)
    with pytest.raises(ValueError, match="a grid cannot interpolate between their codes"):
        KISSGPRegressor(Columns(Categorical(), 1)).fit(np.rint(X), y)


def test_later_rows_must_have_whole_numbers_as_well():
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.normal(size=20), np.arange(20) % 3]), rng.normal(size=20)
    kernel = Columns(RBF(), 0) * Columns(Categorical(), 1) + WhiteKernel()
    model = NNGPRegressor(kernel, optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match="NNGPRegressor: .* whole numbers, but X has 0.4"):
        model.partial_fit(X + 0.4, y)
