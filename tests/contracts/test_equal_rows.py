"""Equal rows in all estimators: a row of weight k, k equal rows, and copies with other targets.

Every estimator with fixed hyperparameters is compared with dense algebra in which each copy is a
row of its own.
"""

import itertools
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import log_ndtr, ndtri, roots_hermitenorm
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import skscalablegp
from skscalablegp import (
    BSGDDKLRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    MeanFunctionRegressor,
    MinimaxDKLRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.core.posteriors import Copies
from skscalablegp.likelihoods import Bernoulli
from skscalablegp.models.experts import COMBINATIONS

pytestmark = pytest.mark.filterwarnings("ignore")
SIGNAL, WHITE = ConstantKernel(1.5) * RBF([0.8, 1.2]), 0.1
FIXED = {"kernel": SIGNAL + WhiteKernel(WHITE), "optimizer": None, "random_state": 0}
SCALED = FIXED | {"normalize_y": True}
METHOD = SCALED | {"small_table": "method"}
DEEP = {"feature_extractor": (4, 2), "max_epochs": 2, "dtype": "float64", "random_state": 0}
MEMBERS = [("a", IterativeGPRegressor(**SCALED)), ("b", NNGPRegressor(n_neighbors=99, **SCALED))]


def table(n=24):
    """Different rows, a number of copies of each, the rows' numbers in the long table, noise."""
    rng = np.random.default_rng(3)
    X, counts = rng.normal(size=(n, 2)), rng.integers(1, 5, n)
    of = rng.permutation(np.repeat(np.arange(n), counts))
    return X, counts, of, rng.choice([0.05, 0.3], size=n)


def targets(X, t=2):
    y = np.column_stack([3 + np.sin(2 * X[:, 0]), np.cos(X[:, 1])])[:, :t]
    return y + 0.15 * np.random.default_rng(len(X)).normal(size=y.shape)


# ---------------------------------------------------------------- the oracle


@dataclass
class Dense:
    """A Gaussian process by dense algebra over all rows, in which each copy is a row.

    `covariance` gives the prior covariance of two sets of rows, and `diag` the prior variances,
    which may be larger than its diagonal.
    """

    covariance: object
    diag: object
    X: np.ndarray
    y: np.ndarray
    noise: np.ndarray
    white: float = WHITE

    @cached_property
    def H(self):
        return self.covariance(self.X, self.X) + np.diag(self.noise)

    def predict(self, X):
        cross = self.covariance(X, self.X)
        mean = cross @ np.linalg.solve(self.H, self.y)
        explained = np.einsum("ij,ji->i", cross, np.linalg.solve(self.H, cross.T))
        return mean, np.sqrt(self.diag(X) - explained + self.white)

    def value(self):
        return multivariate_normal(cov=self.H).logpdf(self.y.T).sum()

    def bound(self):
        """The lower bound of Titsias (2009) if the covariance is that of inducing points."""
        rest = self.diag(self.X) - np.diag(self.covariance(self.X, self.X))
        return self.value() - 0.5 * self.y.shape[1] * (rest / self.noise).sum()

    def without(self, i):
        """Mean and standard deviation of row i given all others, its copies among them."""
        keep = np.arange(len(self.X)) != i
        X, y, noise = (part[keep] for part in (self.X, self.y, self.noise))
        own = self.noise[i]
        mean, std = Dense(self.covariance, self.diag, X, y, noise, own).predict(self.X[i : i + 1])
        return mean[0], std[0]


def exact(model):
    return lambda A, B: SIGNAL(A, B), SIGNAL.diag


def inducing(model):
    Z = model.inducing_points_
    inverse = np.linalg.inv(SIGNAL(Z) + 1e-12 * np.eye(len(Z)))
    return lambda A, B: SIGNAL(A, Z) @ inverse @ SIGNAL(Z, B), SIGNAL.diag


def grid(model):
    grid = getattr(model, "estimator_", model).grid_
    (axes,) = grid.components
    points = np.stack(np.meshgrid(*(axis.points for axis in axes), indexing="ij"), -1)
    K = SIGNAL(points.reshape(-1, 2))

    def covariance(A, B):
        first, second = (grid.interpolate(part).toarray() for part in (A, B))
        return first @ K @ second.T

    return covariance, lambda X: np.diag(covariance(X, X))


def features(model):
    posterior = model._posterior()

    def phi(X):
        return posterior.psi(model._inputs(X)).numpy()

    def diag(X):
        # A process at points has the prior's remainder beside its functions.
        return SIGNAL.diag(X) if isinstance(model, QSGPRegressor) else np.square(phi(X)).sum(1)

    return lambda A, B: phi(A) @ phi(B).T, diag


def network(model):
    """Rows outside the box of the first ones have a function of their own in common."""
    kernel, inputs, units = model.kernel_, model.extract_features, model._scaling

    def outside(X):
        Z = (X - units.x_mean) / units.x_scale
        beyond = Z - np.clip(Z, *np.array(model._trained(torch.float64)[0].box))
        return np.sqrt(-np.expm1(-np.square(beyond).sum(1) / 2))

    def covariance(A, B):
        return kernel(inputs(A), inputs(B)) + np.outer(outside(A), outside(B))

    return covariance, lambda X: kernel.diag(inputs(X)) + np.square(outside(X))


def trained(model):
    def rows(X):
        return model._inputs(X).numpy()

    return lambda A, B: model.kernel_(rows(A), rows(B)), lambda X: model.kernel_.diag(rows(X))


# Without leave-one-out predictions in closed form.
NOT_LEFT_OUT = "solves", "grid", "few-on-a-grid", "grid-solves", "deep", "deep-minimax"
NOT_LEFT_OUT += "deep-batches", "low-rank-grid", "stack"
QUICK = "exact", "neighbours", "points", "variational", "features", "grid", "deep", "low-rank"
# Estimators with their prior covariance, and with the relative precision of dense algebra.
CASES = {
    "exact": (IterativeGPRegressor(**SCALED), exact, 1e-8),
    "solves": (IterativeGPRegressor(solver="cg", posterior="solve", **SCALED), exact, 1e-4),
    "near": (IterativeGPRegressor(solver="cg", posterior="neighbors", **SCALED), exact, 1e-4),
    "truncated": (RRCGRegressor(**METHOD), exact, 1e-4),
    "neighbours": (NNGPRegressor(n_neighbors=99, **SCALED), exact, 1e-6),
    "vecchia": (NNGPRegressor(n_neighbors=99, objective="vecchia", **SCALED), exact, 1e-6),
    "blocks": (NNGPRegressor(n_neighbors=99, objective="blocks", **SCALED), exact, 1e-6),
    "one-expert": (PoERegressor(expert_size=99, **METHOD), exact, 1e-6),
    "points": (SGPRRegressor(n_inducing=8, optimize_inducing=False, **METHOD), inducing, 1e-6),
    "variational": (SVGPRegressor(n_inducing=8, **METHOD), inducing, 1e-6),
    "batches": (SVGPRegressor(n_inducing=8, batch_size=10, **METHOD), inducing, 1e-6),
    "features": (RFFRegressor(n_components=14, **METHOD), features, 1e-6),
    "many-features": (RFFRegressor(n_components=80, **METHOD), features, 1e-6),
    "series": (SSRFFRegressor(min_components=8, component_step=8, **METHOD), exact, 1e-6),
    "grid": (KISSGPRegressor(grid_size=9, **SCALED), grid, 1e-5),
    "few-on-a-grid": (KISSGPRegressor(grid_size=20, **SCALED), grid, 1e-5),
    "grid-solves": (KISSGPRegressor(grid_size=9, solver="cg", **SCALED), grid, 1e-5),
    "deep": (SCGDDKLRegressor(n_components=12, **DEEP), network, 1e-5),
    "deep-minimax": (MinimaxDKLRegressor(n_components=12, **DEEP), network, 1e-5),
    "deep-batches": (BSGDDKLRegressor(n_components=12, **DEEP), network, 1e-5),
    "deep-rows": (SCGDDKLRegressor(random_state=0), trained, 1e-5),
    "low-rank": (LOVEPredictor(IterativeGPRegressor(**SCALED)), exact, 1e-6),
    "low-rank-grid": (
        LOVEPredictor(KISSGPRegressor(grid_size=9, solver="cg", **SCALED)),
        grid,
        1e-4,
    ),
    "sampled": (QSGPRegressor(**SCALED), features, 1e-6),
    "sampled-features": (QSGPRegressor(n_components=40, **SCALED), features, 1e-6),
    "stack": (StackedGPRegressor(MEMBERS, random_state=0), exact, 1e-6),
    "mean-function": (
        MeanFunctionRegressor(
            IterativeGPRegressor(**SCALED), DummyRegressor(strategy="constant", constant=0.0)
        ),
        exact,
        1e-6,
    ),
}


ONE_TARGET = "stack", "mean-function"
KINDS = ("copies", False), ("weights", True), ("other targets", False), ("other targets", True)


@dataclass
class Fit:
    """A fitted case, and the long table that it stands for, in which each copy is a row."""

    name: str
    kind: str
    noisy: bool
    settings: dict = field(default_factory=dict)

    def __post_init__(self):
        X, counts, of, noise = table()
        t = 1 if self.noisy or self.settings or self.name in ONE_TARGET else 2
        short, given = targets(X, t), {}
        self.X, self.y, known = X[of], short[of], noise[of]
        if self.kind == "other targets":
            self.y, known = targets(self.X, t), np.random.default_rng(5).permutation(noise[of])
        rows, ys, noises = self.X, self.y, known
        if self.kind == "weights":
            rows, ys, noises, given = X, short, noise, {"sample_weight": counts}
        if self.noisy:
            given["noise_variance"] = noises
        self.given = known if self.noisy else None
        self.model = (
            clone(CASES[self.name][0])
            .set_params(**self.settings)
            .fit(rows, ys[:, 0] if t == 1 else ys, **given)
        )

    @cached_property
    def oracle(self):
        """Dense algebra in normalised targets."""
        self.mean, self.std = self.y.mean(0), self.y.std(0)
        white = getattr(self.model, "noise_variance_", WHITE)
        noise = np.full(len(self.X), white)
        noise += 0.0 if self.given is None else self.given / self.std[0] ** 2
        covariance, diag = CASES[self.name][1](self.model)
        return Dense(covariance, diag, self.X, (self.y - self.mean) / self.std, noise, white)


def fits():
    for name, (kind, noisy) in itertools.product(CASES, KINDS):
        if kind != "weights" or name not in ONE_TARGET:
            quick = (kind, noisy) == KINDS[-1] and name in QUICK
            yield pytest.param(name, kind, noisy, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "kind", "noisy"), list(fits()))
def test_equal_rows_are_those_of_dense_algebra(name, kind, noisy):
    fit, rtol = Fit(name, kind, noisy), CASES[name][2]
    at = np.random.default_rng(1).normal(size=(9, 2))
    found = [part.reshape(9, -1) for part in fit.model.predict(at, return_std=True)]
    mean, std = fit.oracle.predict(at)
    assert_allclose(found[0], mean * fit.std + fit.mean, rtol=rtol, atol=rtol)
    assert_allclose(found[1], std[:, None] * fit.std, rtol=rtol)
    value = fit.oracle.bound() if CASES[name][1] is inducing else fit.oracle.value()
    doubt = 4 * getattr(fit.model, "log_marginal_likelihood_std_error_", 0.0)
    for attribute in {"log_marginal_likelihood_value_", "lower_bound_"} & set(vars(fit.model)):
        assert_allclose(getattr(fit.model, attribute), value, rtol=rtol, atol=doubt)


# ---------------------------------------------------------------- one of several equal rows


def left_out():
    for name, kind in itertools.product(CASES, ["copies", "other targets"]):
        if name not in NOT_LEFT_OUT:
            quick = kind == "other targets" and name in (*QUICK, "deep-rows")
            yield pytest.param(name, kind, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "kind"), list(left_out()))
def test_one_of_several_equal_rows_is_left_out_alone(name, kind):
    fit, rtol = Fit(name, kind, True), CASES[name][2]
    rows = np.arange(0, len(fit.X), 5)
    left = fit.model._left_out(fit.X, fit.y[:, 0], fit.given, rows)
    assert left.how == "leave_one_out"
    mean, std = np.transpose([[part.item() for part in fit.oracle.without(i)] for i in rows])
    assert_allclose(left.mean, mean * fit.std + fit.mean, rtol=rtol, atol=rtol)
    assert_allclose(left.std, std * fit.std, rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_LEFT_OUT)
def test_others_have_no_closed_form(name):
    fit = Fit(name, "other targets", True)
    left = fit.model._left_out(fit.X, fit.y[:, 0], fit.given, np.arange(3))
    assert left is None or left.how == "held_out"


# ---------------------------------------------------------------- some of the rows


def by_parts(fit, parts, x, keep):
    """Latent means and variances at x of exact processes of some different rows, all copies."""
    found, of = [], table()[2]
    for part in parts:
        rows = np.isin(of, part) & keep
        of_part = Dense(*exact(None), *(a[rows] for a in (fit.X, fit.oracle.y, fit.oracle.noise)))
        mean, std = of_part.predict(x[None])
        found.append((mean[0], std[0] ** 2 - WHITE))
    return [torch.tensor(np.array(part)) for part in zip(*found, strict=True)]


@pytest.mark.exact_input
@pytest.mark.parametrize(
    "rule", ["grbcm", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("gpoe", "rbcm"))]
)
def test_experts_have_all_copies_of_their_rows(rule):
    settings = {"combination": rule, "expert_size": 8, "n_experts": 99}
    fit = Fit("one-expert", "other targets", False, settings)
    rows = np.arange(0, len(fit.X), 7)
    numbers = np.array([np.flatnonzero((table()[0] == x).all(1))[0] for x in fit.model.X_train_])
    parts = [numbers[part] for part in fit.model.experts_]
    if rule != "grbcm":  # whose parts overlap
        of, oracle = table()[2], fit.oracle
        shares = [np.isin(of, part) for part in parts]
        arrays = oracle.X, oracle.y, oracle.noise
        each = [Dense(*exact(None), *(a[share] for a in arrays)).value() for share in shares]
        assert_allclose(fit.model.log_marginal_likelihood_value_, sum(each), rtol=1e-9)
    left = fit.model._left_out(fit.X, fit.y[:, 0], fit.given, rows)
    found = zip(rows, *fit.model.predict(fit.X[rows], return_std=True), strict=True)
    for (i, *predicted), *alone in zip(found, left.mean, left.std, strict=True):
        for answer, noise, keep in (
            (predicted, WHITE, np.arange(len(fit.X)) >= 0),
            (alone, fit.oracle.noise[i], np.arange(len(fit.X)) != i),
        ):
            means, latent = by_parts(fit, parts, fit.X[i], keep)
            both = means[:, None], latent[:, None], torch.full((len(means), 1), 1.5).double()
            combined = COMBINATIONS[rule](*both)
            mean = float(combined.mean) * fit.std + fit.mean
            std = np.sqrt(float(combined.variance) + noise) * fit.std
            assert_allclose(answer, [mean[0], std[0]], rtol=1e-7)


def test_neighbours_are_different_rows_with_all_their_copies():
    fit = Fit("neighbours", "other targets", False, {"n_neighbors": 5, "n_wide_neighbors": 0})
    X, _, of, _ = table()
    rows = np.arange(0, len(fit.X), 7)
    left = fit.model._left_out(fit.X, fit.y[:, 0], fit.given, rows)
    found = zip(rows, *fit.model.predict(fit.X[rows], return_std=True), strict=True)
    for (i, *predicted), *alone in zip(found, left.mean, left.std, strict=True):
        near = np.argsort(np.linalg.norm((X - fit.X[i]) / [0.8, 1.2], axis=1))
        # Left out, a row has as many others as neighbours, and its copies.
        for answer, noise, part, keep in (
            (predicted, WHITE, near[:5], np.arange(len(of)) >= 0),
            (alone, fit.oracle.noise[i], near[:6], np.arange(len(of)) != i),
        ):
            (mean,), (latent,) = by_parts(fit, [part], fit.X[i], keep)
            want = float(mean) * fit.std + fit.mean, np.sqrt(float(latent) + noise) * fit.std
            assert_allclose(answer, [part[0] for part in want], rtol=1e-6)


def test_local_errors_multiply_the_variance_whatever_rows_stand_for():
    fit = Fit("neighbours", "other targets", False, {"n_neighbors": 5, "n_wide_neighbors": 0})
    posterior, problem = fit.model._posterior(), fit.model._trained_problem()
    posterior._scaled = posterior._scaled._replace(power=0.5)
    rows, counts = torch.arange(len(problem.X)), problem.rows.weight
    copies, known = Copies(counts, counts - 1, rows, problem.Y), torch.zeros_like(counts)
    found = posterior.leave_copies_out(rows, problem.X, problem.Y, known, copies)[1]
    left = posterior.left_out(rows)
    latent, noise = left.factor * left.variance, left.factor * WHITE
    precision = 1 / latent + (counts - 1) / noise
    assert_allclose(found, 1 / precision + noise, rtol=1e-7)
    assert float(left.factor.std()) > 0.01


# ---------------------------------------------------------------- before training


def test_default_kernels_have_the_variance_of_all_targets():
    """The means of a thousand copies each have hardly any variance left."""
    X = np.repeat(np.arange(8.0), 1000)[:, None]
    labels = np.random.default_rng(0).integers(0, 2, 8000)
    for estimator in (RFFRegressor(), SGPRRegressor()):
        model = estimator.set_params(optimizer=None, normalize_y=True).fit(X, labels)
        assert_allclose(np.exp(model.kernel_.theta[[0, -1]]), 1.0, rtol=1e-9)


@pytest.mark.exact_input
@pytest.mark.parametrize(
    "name", ["deep", "deep-rows", "sampled", "sampled-features", "variational"]
)
def test_columns_have_the_units_of_all_rows(name):
    fit = Fit(name, "weights", True)
    units = fit.model._scaling
    assert_allclose(units.x_mean, fit.X.mean(0), rtol=1e-12)
    if name != "variational":
        assert_allclose(units.x_scale, fit.X.std(0), rtol=1e-12)


def test_default_length_scales_have_the_units_of_all_rows():
    X, counts, of, _ = table()
    model = RFFRegressor(optimizer=None, random_state=0)
    model.fit(X, targets(X), sample_weight=counts)
    assert_allclose(model.kernel_.k1.k2.length_scale, X[of].std(0), rtol=1e-12)
    model = QSRVMRegressor(standardize=True, max_iter=1, random_state=0)
    model.fit(X, targets(X), sample_weight=counts)
    assert_allclose(model._scaling.x_scale, X[of].std(0), rtol=1e-12)


# ---------------------------------------------------------------- rows that join


JOIN = "exact", "one-expert", "points", "features", "neighbours", "grid", "variational", "sampled"
JOIN += "deep", "deep-minimax", "deep-batches", "deep-rows"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "exact" else pytest.mark.slow) for name in JOIN]
)
def test_copies_of_rows_that_join_are_further_rows(name):
    """In the units of the rows before, whose copies differ from them and from each other."""
    model, (X, _, of, noise) = clone(CASES[name][0]), table()
    y, n = targets(X[of], 1)[:, 0], len(of) // 2
    first, more = np.arange(len(of)) < n, np.arange(len(of)) >= n
    model.fit(X[of[first]], y[first], noise_variance=noise[of[first]])
    model = model._with_rows(X[of[more]], y[more], noise[of[more]])
    mean, std = y[first].mean(), y[first].std()
    covariance, diag = CASES[name][1](model)
    white = getattr(model, "noise_variance_", WHITE)
    known = white + noise[of] / std**2
    oracle = Dense(covariance, diag, X[of], (y[:, None] - mean) / std, known, white)
    at = np.random.default_rng(1).normal(size=(9, 2))
    expected = oracle.predict(at)
    found = model.predict(at, return_std=True)
    assert_allclose(found[0], expected[0][:, 0] * std + mean, rtol=1e-5, atol=1e-6)
    assert_allclose(found[1], expected[1] * std, rtol=1e-5)
    if hasattr(model, "log_marginal_likelihood_value_"):
        assert_allclose(model.log_marginal_likelihood_value_, oracle.value(), rtol=1e-6)
    if name == "points":
        assert_allclose(model.lower_bound_, oracle.bound(), rtol=1e-6)


# ---------------------------------------------------------------- classes


def test_labels_of_equal_rows_are_terms_of_their_own():
    """The best normal approximation of Opper and Archambeau (2009), by its fixed point."""
    X, counts, of, _ = table()
    labels = np.random.default_rng(2).random(len(of)) < 0.5 + 0.4 * np.sin(2 * X[of, 0])
    model = SVGPClassifier(SIGNAL, optimizer=None, random_state=0, max_iter=200)
    model.set_params(likelihood=Bernoulli("probit")).fit(X[of], labels)
    signs, K = 2.0 * labels - 1, SIGNAL(X[of])
    constant = ndtri((labels.sum() + 0.5) / (len(of) + 1))
    nodes, weights = roots_hermitenorm(60)
    weights = weights / weights.sum()
    g, lam = np.zeros(len(of)), np.ones(len(of))
    for _ in range(500):
        V = K - K @ np.linalg.solve(K + np.diag(1 / lam), K)
        m = constant + K @ g
        f = m[:, None] + np.sqrt(np.diag(V))[:, None] * nodes
        z = signs[:, None] * f
        ratio = np.exp(-0.5 * z**2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
        slope, curve = signs * (ratio @ weights), (ratio * (z + ratio)) @ weights
        new = g + np.linalg.solve(np.eye(len(of)) + lam[:, None] * K, slope - g)
        g, lam = new, curve
    at = np.random.default_rng(1).normal(size=(9, 2))
    cross = SIGNAL(at, X[of])
    mean = constant + cross @ g
    variance = SIGNAL.diag(at) - np.einsum(
        "ij,ji->i", cross, np.linalg.solve(K + np.diag(1 / lam), cross.T)
    )
    posterior = model._posterior()
    rows = model._scaling.inputs(at, posterior.dtype, posterior.device)
    found = posterior.latent_moments(rows)
    assert_allclose(found[0].ravel(), mean, atol=1e-3)
    assert_allclose(found[1].ravel(), variance, atol=1e-3)


# ---------------------------------------------------------------- trained models

N = 3500
BELOW = {
    "HeteroscedasticRegressor": IterativeGPRegressor(),
    "MeanFunctionRegressor": IterativeGPRegressor(),
    "LOVEPredictor": IterativeGPRegressor(),
    "StackedGPRegressor": [("experts", PoERegressor()), ("points", SVGPRegressor())],
}
# Few steps: copies matter to where these begin.
FEW = {"max_iter": 60, "max_epochs": 30}
NAMES = [
    name
    for name in skscalablegp.__all__
    if isinstance(getattr(skscalablegp, name), type)
    and hasattr(getattr(skscalablegp, name), "fit")
    and name.endswith(("Regressor", "Classifier", "Predictor"))
]


def categories():
    """Rows of few different entries, a probability for each, and labels drawn from it."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, (N, 3)), rng.integers(0, 12, (N, 2))]).astype(float)
    p = 1 / (1 + np.exp(0.6 - 0.5 * X[:, 0] - 0.15 * (X[:, 3] - 5.5)))
    return X, p, (rng.random(N) < p).astype(int)


@pytest.mark.slow
@pytest.mark.seldom(
    "AutoGPClassifier",
    "StackedGPRegressor",
    "HeteroscedasticRegressor",
    "MeanFunctionRegressor",
    "BSGDDKLRegressor",
    "MinimaxDKLRegressor",
)
@pytest.mark.parametrize("name", NAMES)
def test_copies_with_different_targets(name):
    kind, given = getattr(skscalablegp, name), {}
    if name in BELOW:
        given["estimators" if name == "StackedGPRegressor" else "estimator"] = BELOW[name]
    model = kind(**given)
    known = model.get_params(deep=False)
    settings = {k: v for k, v in FEW.items() if k in known} | {"random_state": 0}
    if "inference" in known:
        settings |= {"inference": "stochastic", "n_components": 256}
    model.set_params(**{k: v for k, v in settings.items() if k in known})
    X, p, y = categories()
    model.fit(X[:3000], y[:3000])
    found = (
        model.predict_proba(X[3000:])[:, 1]
        if name.endswith("Classifier")
        else model.predict(X[3000:])
    )
    # The same probability for all rows has an error of 0.13.
    assert np.sqrt(np.mean((found - p[3000:]) ** 2)) < 0.07
