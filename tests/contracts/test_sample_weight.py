"""Weights of rows: k stands for k equal rows, in every estimator whose fit takes them."""

import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

import skscalablegp
from skscalablegp import (
    BSGDDKLRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    MinimaxDKLRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.core import GivenRows
from skscalablegp.files import load, save

SETTINGS = {"random_state": 0, "max_iter": 2}
FEW = {"optimizer": None, **SETTINGS}
METHOD = {"small_table": "method", **SETTINGS}
# Few rows are held out, so that contracts see this path too.
DEEP = {"feature_extractor": (4, 2), "n_components": 12, "batch_size": 8, "max_epochs": 3}
DEEP |= {"early_stopping": True, "validation_fraction": 0.2, "random_state": 0}
STEPS = {"inference": "stochastic", "n_components": 200, "batch_size": 10, "max_iter": 8}
STEPS |= {"control_variate_rank": 9, "random_state": 0}
MODELS = {
    "exact": IterativeGPRegressor(**SETTINGS),
    "solves": IterativeGPRegressor(solver="cg", posterior="pathwise", **SETTINGS),
    "subsets": IterativeGPRegressor(train_on="subsets", subset_size=15, **SETTINGS),
    "nearest": IterativeGPRegressor(
        train_on="subsets", subset_size=15, posterior="neighbors", **SETTINGS
    ),
    "natural": IterativeGPRegressor(optimizer="natural", solver="cg", **SETTINGS),
    "truncated": RRCGRegressor(**METHOD),
    "neighbours": NNGPRegressor(n_neighbors=8, n_centers=12, subset_size=None, **SETTINGS),
    "inducing points and neighbours": NNGPRegressor(
        n_neighbors=8, n_inducing=6, objective="vecchia", subset_size=None, **SETTINGS
    ),
    "blocks": NNGPRegressor(
        n_neighbors=8, n_centers=12, objective="blocks", subset_size=None, **SETTINGS
    ),
    "points": SGPRRegressor(n_inducing=8, **METHOD),
    "experts": PoERegressor(expert_size=10, **SETTINGS),
    "committee": PoERegressor(expert_size=10, combination="grbcm", partition="random", **SETTINGS),
    "features": RFFRegressor(n_components=14, **SETTINGS),
    "many-features": RFFRegressor(n_components=80, **SETTINGS),
    "series": SSRFFRegressor(min_components=8, component_step=8, **METHOD),
    "variational": SVGPRegressor(n_inducing=8, batch_size=10, **METHOD),
    "all-points": SVGPRegressor(**SETTINGS),
    "student": SVGPRegressor(likelihood="student_t", n_inducing=8, **SETTINGS),
    "grid": KISSGPRegressor(grid_size=8, **SETTINGS),
    "few-on-a-grid": KISSGPRegressor(grid_size=20, **SETTINGS),
    "no-grid": KISSGPRegressor(**SETTINGS),
    "grid-solves": KISSGPRegressor(grid_size=8, solver="cg", **SETTINGS),
    "sum-of-grids": KISSGPRegressor(structure="additive", **SETTINGS),
    "grid-features": KISSGPRegressor(
        feature_extractor=(4, 1), max_epochs=3, grid_size=12, **SETTINGS
    ),
    "low-rank": LOVEPredictor(KISSGPRegressor(grid_size=8, solver="cg", **SETTINGS)),
    "low-rank-rows": LOVEPredictor(IterativeGPRegressor(**SETTINGS), random_state=0),
    "deep": SCGDDKLRegressor(**DEEP),
    "deep-minimax": MinimaxDKLRegressor(**DEEP),
    "deep-batches": BSGDDKLRegressor(**DEEP),
    "deep-rows": SCGDDKLRegressor(random_state=0),
    "sampled": QSGPRegressor(random_state=0),
    "sampled-features": QSGPRegressor(n_components=40, random_state=0),
    "sampled-steps": QSGPRegressor(**STEPS),
    "sampled-paper": QSGPRegressor(
        optimizer="adam",
        covariance="chevron",
        control_variate="squares",
        variational_optimizer="adagrad",
        **STEPS,
    ),
    "sampled-rows": QSGPRegressor(basis="rows", **STEPS | {"n_components": "auto"}),
    "sampled-laplace": QSGPRegressor(likelihood="laplace", random_state=0),
    "sampled-classes": QSGPClassifier(random_state=0),
    "sampled-steps-of-classes": QSGPClassifier(**STEPS),
    "relevance": QSRVMRegressor(random_state=0),
    "some-relevance": QSRVMRegressor(n_components=12, random_state=0),
    "classes": SVGPClassifier(n_inducing=8, batch_size=10, **SETTINGS),
    "two-classes": SVGPClassifier(n_inducing=8, **SETTINGS),
}
TAKE_WEIGHTS = {type(model).__name__ for model in MODELS.values()}
FOLDS = (
    "folds of rows for members of any kind: two equal rows may lie in two, a row of weight two not"
)
# Every estimator without weights, and why; doc/how_to/per_row_noise.rst has the same reasons.
NO_WEIGHTS = {
    "AutoGPClassifier": FOLDS,
    "AutoGPRegressor": FOLDS,
    "HeteroscedasticRegressor": FOLDS,
    "MeanFunctionRegressor": FOLDS,
    "StackedGPRegressor": FOLDS,
}
# Methods that take rows, and the only ones of them without weights.
NO_WEIGHTS_LATER = dict.fromkeys(
    ("BSGDDKLRegressor", "MinimaxDKLRegressor", "SCGDDKLRegressor"),
    "partial_fit keeps a uniform sample of the stream's rows",
)

pytestmark = pytest.mark.filterwarnings("ignore")
# One setting of each family for quick tests.
QUICK = ("exact", "neighbours", "experts", "features", "variational", "classes", "grid")
QUICK += ("low-rank", "deep", "sampled-steps", "sampled-classes")
each = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS],
)


def table(n=30, t=None, seed=0):
    """Rows, targets, and weights, the first of which is zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)
    if t is not None:
        y = y[:, None] * np.arange(1, t + 1) + 0.1 * rng.normal(size=(n, t))
    weights = rng.integers(0, 4, size=n)
    weights[0] = 0
    return X, y, weights


def repeated(weights, *arrays, seed=1):
    """Each row as often as its weight says, in a random order."""
    order = np.random.default_rng(seed).permutation(weights.sum())
    return [np.repeat(array, weights, axis=0)[order] for array in arrays]


def target(name, y):
    """The targets of a model, which are classes for classifiers."""
    labels = np.array(["none", "some", "many"])[1 * (y > 0) + (y > 0.8)]
    several = name in ("classes", "sampled-classes", "sampled-steps-of-classes")
    return labels if several else y > 0 if name == "two-classes" else y


def assert_same(one, other, X):
    assert_array_equal(one.predict(X), other.predict(X))
    for name in ("predict_std", "predict_proba"):
        if hasattr(one, name):
            assert_array_equal(getattr(one, name)(X), getattr(other, name)(X))
    if hasattr(one, "latent_mean_and_variance"):
        # Probabilities may be the shares of the classes.
        both = (each.latent_mean_and_variance(X) for each in (one, other))
        for found, expected in zip(*both, strict=True):
            assert_array_equal(found, expected)
    assert_array_equal(one.kernel_.theta, other.kernel_.theta)
    for name in ("log_marginal_likelihood_value_", "lower_bound_"):
        assert_array_equal(getattr(one, name, 0.0), getattr(other, name, 0.0))
    assert one.n_samples_seen_ == other.n_samples_seen_


# ---------------------------------------------------------------- the contract


def test_the_estimators_that_take_weights_are_those_of_this_contract():
    def taking(method):
        entries = {name: getattr(skscalablegp, name) for name in skscalablegp.__all__}
        methods = {n: getattr(e, method) for n, e in entries.items() if hasattr(e, method)}
        takes = {
            n for n, m in methods.items() if "sample_weight" in inspect.signature(m).parameters
        }
        return takes, set(methods) - takes

    assert taking("fit") == (TAKE_WEIGHTS, set(NO_WEIGHTS))
    assert taking("partial_fit")[1] == set(NO_WEIGHTS_LATER)


@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_the_page_names_the_estimators_without_weights(name):
    page = Path(__file__).parents[2] / "doc/how_to/per_row_noise.rst"
    reasons = page.read_text().split("has no ``sample_weight``")[1].split("Limits")[0]
    assert f"`~skscalablegp.{name}`" in reasons and "folds" in reasons


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "fit") for name in NO_WEIGHTS),
        *((name, "partial_fit") for name in NO_WEIGHTS_LATER),
    ],
)
def test_other_methods_say_why_they_take_no_weights(name, method):
    model = getattr(skscalablegp, name)()
    X, y = np.zeros((3, 1)), np.arange(3)
    with pytest.raises(TypeError) as caught:
        getattr(model, method)(X, y, sample_weight=np.ones(3))
    text = str(caught.value)
    assert text.startswith(f"{name}.{method} takes no sample_weight, because it ")
    assert "np.repeat(X, sample_weight, axis=0)" in text
    assert not has_fit_parameter(model, "sample_weight") or method == "partial_fit"
    # No weights are no reason to refuse, as in scikit-learn.
    with pytest.raises(ValueError, match="X has 0 rows|0 sample"):
        getattr(model, method)(X[:0], y[:0], sample_weight=None)


@each
def test_whole_weights_are_repeated_rows_in_any_order(name):
    X, y, weights = table()
    y = target(name, y)
    weighted = clone(MODELS[name]).fit(X, y, sample_weight=weights)
    assert_same(weighted, clone(MODELS[name]).fit(*repeated(weights, X, y)), X)
    assert weighted.n_samples_seen_ == weights.sum()
    kept = getattr(weighted, "X_train_", None)
    assert kept is None or len(kept) == np.count_nonzero(weights)


@each
def test_zero_leaves_a_row_out_and_one_is_no_weight(name):
    X, y, _ = table()
    y = target(name, y)
    kept = np.arange(len(X)) % 4 > 0
    without = clone(MODELS[name]).fit(X[kept], y[kept])
    assert_same(clone(MODELS[name]).fit(X, y, sample_weight=kept), without, X)
    ones = clone(MODELS[name]).fit(X[kept], y[kept], sample_weight=np.ones(kept.sum()))
    assert_same(ones, without, X)


@pytest.mark.parametrize("name", ["exact", "experts", "points", "variational", "grid", "deep"])
def test_known_noise_and_alpha_are_those_of_each_repeated_row(name):
    X, y, weights = table(t=2)
    noise = np.random.default_rng(2).uniform(0.05, 0.2, size=len(X))
    model = clone(MODELS[name])
    if name != "deep":
        model.set_params(alpha=0.01)
    weighted = clone(model).fit(X, y, noise_variance=noise, sample_weight=weights)
    Xr, yr, noise_r = repeated(weights, X, y, noise)
    assert_same(weighted, clone(model).fit(Xr, yr, noise_variance=noise_r), X)


def test_equal_rows_whose_known_noise_differs_are_no_repetitions():
    X, y, _ = table(3)
    model = IterativeGPRegressor(optimizer=None)
    for rows, n in ([1, 1, 2], 3), ([1, 2, 2], 2):
        found = clone(model).fit(X[rows], y[rows], noise_variance=[0.1, 0.2, 0.2])
        assert len(found.X_train_) == n


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1e31, 1e-40])
def test_weights_that_are_no_weights_are_refused(wrong):
    X, y, _ = table(8)
    weights = np.ones(8)
    weights[3] = wrong
    with pytest.raises(ValueError, match=r"sample_weight must be .*entry 3"):
        IterativeGPRegressor().fit(X, y, sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(7), "7 != 8"),
        (np.ones((8, 1)), r"sample_weight has shape \(8, 1\) for 8 rows"),
        (np.zeros(8), "zero for all 8 rows"),
        (["a"] * 8, "must hold real numbers"),
    ],
)
def test_arrays_that_are_no_weights_are_refused(weights, message):
    X, y, _ = table(8)
    with pytest.raises(ValueError, match=message):
        IterativeGPRegressor().fit(X, y, sample_weight=weights)


def test_weights_need_noise():
    X, y, _ = table(8)
    model = IterativeGPRegressor(RBF(), alpha=0.0, optimizer=None)
    with pytest.raises(ValueError, match="1 of the 8 different rows of X .* sample_weight"):
        model.fit(X, y, sample_weight=[1, 1, 0.5, 1, 1, 1, 1, 1])


# ---------------------------------------------------------------- the exact process


def dense(kernel, X, y):
    covariance = kernel(X) + 1e-10 * np.eye(len(X))
    return multivariate_normal(np.zeros(len(X)), covariance).logpdf(y)


def test_the_likelihood_is_that_of_all_rows_and_so_is_its_gradient():
    X, y, weights = table()
    Xr, yr = repeated(weights, X, y)
    yr = yr + 0.2 * np.random.default_rng(3).normal(size=len(yr))
    kernel = ConstantKernel(1.5) * RBF([0.8, 1.2]) + WhiteKernel(0.1)
    model = IterativeGPRegressor(kernel, optimizer=None).fit(Xr, yr)
    assert len(model.X_train_) < len(Xr)
    assert_allclose(model.log_marginal_likelihood_value_, dense(kernel, Xr, yr), rtol=1e-9)
    theta = kernel.theta + 0.1
    value, grad = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert_allclose(value, dense(kernel.clone_with_theta(theta), Xr, yr), rtol=1e-9)
    step = 1e-5 * np.eye(len(theta))
    slopes = [
        (dense(kernel.clone_with_theta(theta + e), Xr, yr))
        - dense(kernel.clone_with_theta(theta - e), Xr, yr)
        for e in step
    ]
    assert_allclose(grad, np.array(slopes) / 2e-5, rtol=1e-5)


@pytest.mark.parametrize("cls", [IterativeGPRegressor, NNGPRegressor, PoERegressor])
def test_equal_rows_whose_weights_add_up_to_one(cls):
    """Halves of rows with other targets are rows with twice the noise and the scale of all."""
    X, y, _ = table()
    rng = np.random.default_rng(1)
    both, targets = np.vstack([X, X]), np.append(y, y + rng.standard_normal(len(y)))
    signal, v = ConstantKernel(1.5) * RBF([0.8, 1.2]), 0.1
    model = cls(signal + WhiteKernel(v), optimizer=None, normalize_y=True)
    model.fit(both, targets, sample_weight=np.full(len(both), 0.5))
    oracle = GaussianProcessRegressor(signal, alpha=2 * v, optimizer=None, normalize_y=True)
    assert_allclose(model.predict(X), oracle.fit(both, targets).predict(X), rtol=1e-6, atol=1e-8)
    z = (targets - targets.mean()).reshape(2, -1) / targets.std()
    expected = multivariate_normal(cov=signal(X) + v * np.eye(len(X))).logpdf(z.mean(0))
    expected -= 0.5 * np.square(z - z.mean(0)).sum() * 0.5 / v
    theta = model.kernel_.theta
    assert model.log_marginal_likelihood_value_ == pytest.approx(expected)
    for each in (model, pickle.loads(pickle.dumps(model))):
        assert each.log_marginal_likelihood(theta) == pytest.approx(expected)


def test_weights_are_exponents_of_the_density_of_their_row():
    """A weighted likelihood by quadrature over f, for one row: no formula of Gaussians."""
    y, k, s, v = 0.7, 2.3, 1.5, 0.2
    kernel = ConstantKernel(s) * RBF() + WhiteKernel(v)
    model = IterativeGPRegressor(kernel, alpha=0.0, optimizer=None)
    model.fit([[0.0]], [y], sample_weight=[k])
    f = np.linspace(-12, 12, 200_001)
    prior = np.exp(-0.5 * f**2 / s) / np.sqrt(2 * np.pi * s)
    likelihood = (np.exp(-0.5 * (y - f) ** 2 / v) / np.sqrt(2 * np.pi * v)) ** k
    evidence = np.trapezoid(prior * likelihood, f)
    assert_allclose(model.log_marginal_likelihood_value_, np.log(evidence), rtol=1e-8)
    mean = np.trapezoid(f * prior * likelihood, f) / evidence
    assert_allclose(model.predict([[0.0]]), mean, rtol=1e-8)


# ---------------------------------------------------------------- inducing points


def test_a_class_without_weight_is_none():
    X, y, _ = table()
    labels = target("classes", y)
    model = SVGPClassifier(n_inducing=5, max_iter=2, random_state=0)
    model.fit(X, labels, sample_weight=labels != "many")
    assert_array_equal(model.classes_, ["none", "some"])
    with pytest.raises(ValueError, match="one class: .*none"):
        model.fit(X, labels, sample_weight=labels == "none")


# ---------------------------------------------------------------- grids


@pytest.mark.parametrize(
    "name",
    [
        "grid",
        "no-grid",
        "neighbours",
        "variational",
        "student",
        "two-classes",
        "sampled-features",
        "sampled-steps",
        "sampled-steps-of-classes",
    ],
)
def test_weights_of_rows_that_join_are_repeated_rows(name):
    X, y, weights = table(40)
    y = target(name, y)
    parts = slice(0, 25), slice(25, None)
    weighted, again = clone(MODELS[name]), clone(MODELS[name])
    for part in parts:
        weighted.partial_fit(X[part], y[part], sample_weight=weights[part])
        again.partial_fit(*repeated(weights[part], X[part], y[part]))
    assert_same(weighted, again, X)
    assert weighted.n_samples_seen_ == weights.sum()
    once = clone(MODELS[name]).fit(X[:25], y[:25], sample_weight=weights[:25])
    # The same rows, each of them once.
    once.partial_fit(X[25:], y[25:], sample_weight=(weights[25:] > 0).astype(float))
    ask = "predict_proba" if "classes" in name else "predict_std"
    found = [getattr(each, ask)(X) for each in (once, weighted)]
    if name == "sampled-steps-of-classes":
        found = [each.latent_mean_and_variance(X)[0] for each in (once, weighted)]
    assert np.abs(found[0] - found[1]).max() > 1e-4
    if name == "grid":
        fixed = KISSGPRegressor(weighted.kernel_, normalize_y=False, optimizer=None, grid_size=12)
        y = y - y.mean()
        whole = clone(fixed).fit(X, y, sample_weight=weights)
        some, rest = (np.where(np.arange(40) % 2 == k, weights, 0) for k in (0, 1))
        # Rows that join do not move the grid.
        grown = clone(fixed).fit(X, y, sample_weight=some + 1e-12 * (weights > 0))
        grown.partial_fit(X, y, sample_weight=rest)
        assert_allclose(grown.predict(X), whole.predict(X), rtol=1e-6)
        assert_allclose(grown.predict_std(X), whole.predict_std(X), rtol=1e-6)


def test_the_unit_of_low_rank_errors_is_that_of_all_rows():
    X, y, weights = table(t=2)
    Xr, yr = repeated(weights, X, y)
    yr = yr + np.random.default_rng(3).normal(size=yr.shape)
    mean, std = np.array([0.1, 0.2]), np.array([1.5, 0.5])
    given = GivenRows.read(IterativeGPRegressor(), Xr, yr)
    unit = np.square((yr - mean) / std).mean()
    assert len(given) < len(Xr)
    assert_allclose(given.in_units(mean, std).mean_square(), unit, rtol=1e-12)


def test_weights_of_regressors_under_low_rank_variances():
    X, y, weights = table()

    class Unweighted(IterativeGPRegressor):
        def fit(self, X, y):
            return super().fit(X, y)

    with pytest.raises(TypeError, match="Unweighted takes no sample_weight, which LOVE"):
        LOVEPredictor(Unweighted()).fit(X, y, sample_weight=weights)
    frozen = LOVEPredictor(FrozenEstimator(clone(MODELS["grid"]).fit(X, y)))
    with pytest.raises(ValueError, match="pass sample_weight where it is fitted"):
        frozen.fit(X, y, sample_weight=weights)


# ---------------------------------------------------------------- deep kernels


def test_a_stream_goes_on_from_all_rows():
    X, y, weights = table()
    for name in ("deep", "deep-rows"):
        weighted = clone(MODELS[name]).fit(X, y, sample_weight=weights)
        again = clone(MODELS[name]).fit(*repeated(weights, X, y))
        for model in (weighted, again):
            model.set_params(feature_extractor=(4, 2), n_components=12).partial_fit(X[:9], y[:9])
        assert_same(weighted, again, X)
        assert weighted.n_samples_seen_ == weights.sum() + 9
        assert len(weighted._kept[0]) == weights.sum() + 9
    half = clone(MODELS["deep"]).fit(X, y, sample_weight=weights + 0.5).partial_fit(X[:9], y[:9])
    assert np.isfinite(half.predict(X)).all()


# ---------------------------------------------------------------- around a fit


def test_routing_and_fit_parameters_of_pipelines():
    X, y, weights = table()
    last = IterativeGPRegressor(ConstantKernel() * RBF() + WhiteKernel(0.1), optimizer=None)
    expected = clone(last).fit(StandardScaler().fit_transform(X), y, sample_weight=weights)
    grid = {"model__alpha": [1e-10, 1e-2]}
    old = Pipeline([("scale", StandardScaler()), ("model", last)])
    old.fit(X, y, model__sample_weight=weights)
    assert_array_equal(old.predict(X), expected.predict(StandardScaler().fit_transform(X)))
    with sklearn.config_context(enable_metadata_routing=True):
        asks = Pipeline(
            [
                ("scale", StandardScaler().set_fit_request(sample_weight=False)),
                ("model", clone(last).set_fit_request(sample_weight=True)),
            ]
        )
        asks["model"].set_score_request(sample_weight=False)
        search = GridSearchCV(asks, grid, cv=3).fit(X, y, sample_weight=weights)
        best = search.best_estimator_
    assert best["model"].n_samples_seen_ == weights.sum()


KEPT = ["exact", "solves", "points", "experts", "variational", "grid", "sampled-steps", "relevance"]


@pytest.mark.parametrize("name", KEPT)
def test_files_and_pickles_keep_what_rows_stand_for(name, tmp_path):
    X, y, weights = table()
    model = clone(MODELS[name]).fit(X, y, sample_weight=weights)
    save(model, tmp_path / "model.skgp")
    ask = getattr(model, "log_marginal_likelihood", None)
    theta = model.kernel_.theta + 0.1
    for other in (load(tmp_path / "model.skgp"), pickle.loads(pickle.dumps(model))):
        assert_same(model, other, X)
        if ask is not None:
            assert other.log_marginal_likelihood(theta) == ask(theta)


def test_rows_that_join_count_once():
    X, y, weights = table()
    kernel = ConstantKernel(1.5) * RBF([0.8, 1.2]) + WhiteKernel(0.1)
    model = NNGPRegressor(kernel, n_neighbors=100, optimizer=None)
    grown = clone(model).fit(X[:20], y[:20], sample_weight=weights[:20])
    grown.partial_fit(X[18:], y[18:])
    joined = np.append(weights[:20], np.ones(12))
    whole = clone(model).fit(np.r_[X[:20], X[18:]], np.r_[y[:20], y[18:]], sample_weight=joined)
    assert_allclose(grown.predict(X), whole.predict(X), rtol=1e-7)
    assert_allclose(grown.predict_std(X), whole.predict_std(X), rtol=1e-7)


def test_rows_that_are_no_numbers_have_weights():
    from sklearn.gaussian_process.kernels import GenericKernelMixin, Kernel, StationaryKernelMixin

    class Lengths(GenericKernelMixin, StationaryKernelMixin, Kernel):
        def __call__(self, X, Y=None, eval_gradient=False):
            Y = X if Y is None else Y
            K = np.exp(-np.abs(np.subtract.outer([len(x) for x in X], [len(x) for x in Y])))
            return (K, np.empty((*K.shape, 0))) if eval_gradient else K

        def diag(self, X):
            return np.ones(len(X))

        def __init__(self):
            pass

    X, y = np.array(["a", "bb", "cccc"]), np.array([0.0, 1.0, -1.0])
    model = IterativeGPRegressor(Lengths(), alpha=0.1, optimizer=None)
    weighted = clone(model).fit(X, y, sample_weight=[2, 0, 1])
    assert_allclose(weighted.predict(X), clone(model).fit(X[[0, 0, 2]], y[[0, 0, 2]]).predict(X))


def test_weights_on_torch_tensors():
    X, y, weights = table(12)
    got = IterativeGPRegressor(optimizer=None).fit(X, y, sample_weight=torch.tensor(weights))
    assert_same(got, IterativeGPRegressor(optimizer=None).fit(X, y, sample_weight=weights), X)
