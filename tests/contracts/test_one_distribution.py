"""Everything that a model says of 20 rows describes one distribution.

The table has every estimator, on the way that the method itself takes. A case of the table is
fitted to a small table, and once more with weights, with several targets, with noise that is known,
with `alpha` and in single precision. Rows that join a model, and files, leave one distribution.
"""

import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import named
import numpy as np
import pytest
import torch
from contracts.one_distribution import answers, conditional, disagreements
from export.exported import (
    MODELS,
    NEW,
    ONE,
    OVER,
    POINTS,
    SMOOTH,
    UNITS,
    X,
    Y,
    exact,
)
from scipy import stats
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import has_fit_parameter

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.core.posteriors import JOINT_ROWS
from skscalablegp.meta import NoiseModel, Scaled, Tails

# Beside rows of the table, and others of which some lie far outside.
ROWS = np.vstack([X[:8] + 0.1 * UNITS, NEW[:12]])
# Beyond a grid drawn functions are what the grid determines, with less variance.
INSIDE = np.clip(ROWS, X.min(0), X.max(0))
LOW_RANK = {"variance_rank": 4, "max_variance_rank": 8, "random_state": 0}
DEEP = {"feature_extractor": (8,), "n_components": 20, "max_epochs": 2} | ONE
SERIES = sk.SSRFFRegressor(SMOOTH, min_components=16, max_iter=3, **ONE)
OTHER_NOISE = sk.QSGPRegressor(SMOOTH, likelihood="laplace", n_components=60, random_state=0)
TAILS = sk.HeteroscedasticRegressor(POINTS, LinearRegression(), tails="student", random_state=0)
# For models whose errors have heavy tails.
HEAVY = Y + 30 * stats.t.rvs(4, size=len(Y), random_state=1)


def love(name):
    return sk.LOVEPredictor(clone(MODELS[name]), **LOW_RANK)


# Estimators and forms that no test of exports has.
OTHERS = {
    "truncated": sk.RRCGRegressor(SMOOTH, posterior="solve", optimizer=None, random_state=0),
    "truncated-samples": sk.RRCGRegressor(
        SMOOTH, posterior="pathwise", optimizer=None, dtype="float64", random_state=0
    ),
    "series": SERIES,
    "minimax": sk.MinimaxDKLRegressor(**DEEP),
    "batches": sk.BSGDDKLRegressor(**DEEP),
    "sampled": sk.QSGPRegressor(SMOOTH, basis="fourier", n_components=60, random_state=0),
    "laplace": OTHER_NOISE,
    "inducing-laplace": sk.SVGPRegressor(
        SMOOTH, likelihood="laplace", n_inducing=20, max_iter=20, **ONE
    ),
    "love-series": sk.LOVEPredictor(SERIES, **LOW_RANK),
    **{f"love-{name}": love(name) for name in (
        "exact-normalised", "pathwise", "nearest", "student", "inducing-network", "deep",
    )},
    "noise-of-student": sk.HeteroscedasticRegressor(
        MODELS["student"], LinearRegression(), random_state=0
    ),
    "noise-of-network": sk.HeteroscedasticRegressor(
        MODELS["inducing-network"], LinearRegression(), random_state=0
    ),
    "tails-of-student": sk.HeteroscedasticRegressor(
        MODELS["student"], LinearRegression(), tails="student", random_state=0
    ),
    "noise-of-laplace": sk.HeteroscedasticRegressor(
        OTHER_NOISE, LinearRegression(), random_state=0
    ),
    "noise-of-tails": sk.HeteroscedasticRegressor(TAILS, LinearRegression(), random_state=0),
    "mean-of-tails": sk.MeanFunctionRegressor(TAILS, LinearRegression(), random_state=0),
    "mean-of-network": sk.MeanFunctionRegressor(
        MODELS["grid-network"], LinearRegression(), random_state=0
    ),
}  # fmt: skip
CLASSES = {
    "classes": sk.SVGPClassifier(SMOOTH.k1, n_inducing=15, max_iter=4, random_state=0),
    "sampled-classes": sk.QSGPClassifier(n_components=50, max_iter=4, random_state=0),
    "automatic-classes": sk.AutoGPClassifier(
        ["linear", ("points", sk.QSGPClassifier(n_components=30, max_iter=2, optimizer=None))],
        random_state=0,
    ),
}


def rough(n, seed=0):
    """A function of two columns with noise that depends on the place, and some outliers."""
    rng = np.random.RandomState(seed)
    rows = rng.uniform(-2, 2, (n, 2))
    y = np.sin(3 * rows[:, 0]) * rows[:, 1] + 0.1 * rng.standard_t(3, n) * (1 + rows[:, 0] ** 2)
    return rows, y


# On tables that are rough.
CORRECTED = {
    "local-factors": sk.NNGPRegressor(
        RBF([0.5, 0.5]) + WhiteKernel(0.05), n_neighbors=10, local_scale=True, **ONE
    ),
    "wide": sk.NNGPRegressor(
        RBF([0.5, 0.5]) + WhiteKernel(0.05), n_neighbors=10, n_wide_neighbors=60, **ONE
    ),
    "few-neighbours": sk.IterativeGPRegressor(
        RBF([1.0, 1.0]) + WhiteKernel(0.01), posterior="neighbors", optimizer=None, random_state=0,
        solver="cg", dtype="float64",
    ),
    "qsgp": sk.QSGPRegressor(inference="stochastic", n_components=256, max_iter=20, random_state=0),
    "tails": sk.HeteroscedasticRegressor(
        sk.PoERegressor(), LinearRegression(), tails="student", random_state=0
    ),
    "empirical": sk.HeteroscedasticRegressor(sk.RFFRegressor(), tails="empirical", random_state=0),
    "mixed": sk.AutoGPRegressor(["linear", "exact"], random_state=0),
    "laplace-noise": sk.QSGPRegressor(likelihood="laplace", n_components=64, random_state=0),
}  # fmt: skip


@dataclass
class Case:
    """A model, what it is fitted to, and the rows of which it is asked."""

    model: Any
    rows: np.ndarray = field(default_factory=lambda: ROWS)
    X: np.ndarray = field(default_factory=lambda: X)
    y: np.ndarray = field(default_factory=lambda: Y)
    fit: dict = field(default_factory=dict)
    asked: dict = field(default_factory=dict)


TWO = np.column_stack([Y, 1e3 - 3 * Y])
WEIGHTS = np.random.RandomState(3).randint(1, 4, len(X)).astype(float)
KNOWN = np.linspace(1, 40, len(X))
PLAIN = {**MODELS, **OVER, **OTHERS, **CLASSES}


def settings(name):
    """Settings of the table in which a model can be fitted."""
    model = PLAIN[name]
    if name in CLASSES:
        return ["plain", "several"]
    if name in OVER or "-of-" in name:
        return ["plain"] if "tails" in name or "pipeline" in name else ["plain", "known"]
    params, found = model.get_params(), ["plain"]
    if has_fit_parameter(model, "sample_weight"):
        found.append("weights")
    one = {"student", "inducing-laplace"}
    if not any(each in name for each in one):
        found.append("several")
    if not name.startswith("relevance"):
        found += ["known"]
    if any(key.split("__")[-1] == "alpha" for key in params):
        found.append("alpha")
    return found


def made(name, setting="plain"):
    """The case of a model in a setting."""
    if name in CORRECTED:
        return Case(CORRECTED[name], rough(20, 1)[0], *rough(600))
    model = clone(PLAIN[name])
    case = Case(model, INSIDE if "grid" in name else ROWS)
    if name in CLASSES:
        parts = [0.5] if setting == "plain" else [0.3, 0.6]
        case.y = np.array(["low", "middle", "top"])[np.digitize(Y, np.quantile(Y, parts))]
    elif name.endswith(("of-tails", "of-student", "of-laplace")):
        case.y = HEAVY
    elif setting == "weights":
        case.fit["sample_weight"] = WEIGHTS
    elif setting == "several":
        case.y = TWO
    elif setting == "known":
        case.y, case.fit["noise_variance"] = Y + 1e3, KNOWN
        case.asked["noise_variance"] = 30.0
    elif setting == "alpha":
        for key in model.get_params():
            value = {"alpha": 0.3, "normalize_y": True}.get(key.split("__")[-1])
            if value is not None:
                model.set_params(**{key: value})
        case.y = Y + 1e3
    return case


@cache
def fitted(name, setting="plain"):
    """The case, and its model fitted once."""
    case = made(name, setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case, case.model.fit(case.X, case.y, **case.fit)


# One estimator of each kind of posterior; the others are slow, and most settings are for the night.
QUICK = {"features", "student", "experts", "deep", "grid", "love-features", "stack"}
QUICK |= {"neighbours", "classes", "sampled"}
SLOW = {"features", "exact-normalised", "neighbours", "nearest", "grid", "inducing", "experts"}
SLOW |= {"deep", "process", "sampled", "classes", "love-grid"}


# Their ways are those of others.
SELDOM = [
    "mixed",
    "empirical",
    "stand-in",
    "stack-of-noise",
    "noise-of-a-pipeline",
    "love-pathwise",
]
SELDOM += ["love-exact-normalised", "love-inducing-network", "exact-normalised-weights"]


def marked(name, setting="plain"):
    case = name if setting == "plain" else f"{name}-{setting}"
    marks = []
    if setting != "plain" and not (name in SLOW and setting != "alpha"):
        marks = [pytest.mark.night]
    elif setting != "plain" or name not in QUICK:
        marks = [pytest.mark.slow]
    return pytest.param(name, setting, id=case, marks=marks)


@pytest.mark.seldom(*SELDOM)
@pytest.mark.parametrize(
    ("name", "setting"),
    [marked(name, setting) for name in PLAIN for setting in settings(name)]
    + [marked(name) for name in CORRECTED],
)
def test_every_model(name, setting):
    case, model = fitted(name, setting)
    assert disagreements(model, case.rows, **case.asked) == []


def test_every_estimator_is_in_the_table():
    """Those that are at the bottom of a pipeline or another estimator count by themselves."""
    found = {type(model).__name__ for model in (*PLAIN.values(), *CORRECTED.values())}
    assert found == {n for n in sk.__all__ if n.endswith(("Regressor", "Classifier", "Predictor"))}


@pytest.mark.night
@pytest.mark.parametrize("name", sorted({*OVER, *CLASSES, "love-series", "batches", "sampled"}))
def test_onnx_files(name, tmp_path):
    """Files of the others are tested beside what they consist of."""
    case, model = fitted(name)
    draws = {"n_draws": 100, "n_functions": 16}
    assert disagreements(model, case.rows, path=tmp_path / "model.onnx", **draws) == []


# ------------------------------------------------------------------ files and further rows

IN_FILES = {"noise-of-network", "love-grid", "sampled", "classes"}


def same(found, right):
    """Whether answers are the same to the bit."""
    assert found.keys() == right.keys()
    for name, values in right.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def marked_file(name, setting):
    """A parameter of `test_files`."""
    quick = (name in IN_FILES and setting == "plain") or (name, setting) == ("inducing", "several")
    mark = pytest.mark.slow if setting == "plain" else pytest.mark.night
    case = name if setting == "plain" else f"{name}-{setting}"
    return pytest.param(name, setting, id=case, marks=[] if quick else mark)


@pytest.mark.seldom(*SELDOM)
@pytest.mark.parametrize(
    ("name", "setting"),
    [marked_file(n, s) for n in PLAIN for s in ("plain", "several") if s in settings(n)],
)
def test_files(name, setting, tmp_path):
    case, model = fitted(name, setting)
    sk.save(model, tmp_path / "model")
    same(answers(sk.load(tmp_path / "model"), case.rows), answers(model, case.rows))


MORE = slice(80, 90)
# Points among which are the further rows, so that the process of the points has seen them.
BETWEEN = np.vstack([X[MORE], X[:80:4]])
JOINED = {
    **{name: MODELS[name] for name in (
        "exact", "exact-normalised", "pathwise", "nearest", "features", "deep", "deep-linear",
        "grid-network", "stand-in",
    )},
    **{name: OTHERS[name] for name in ("truncated-samples", "series", "minimax", "sampled")},
    "alpha": exact(SMOOTH, alpha=0.3, normalize_y=True),
    "points": clone(POINTS).set_params(inducing=BETWEEN, n_inducing=len(BETWEEN)),
    "inducing": sk.SVGPRegressor(
        SMOOTH, inducing=BETWEEN, n_inducing=len(BETWEEN), optimize_inducing=False, max_iter=20,
        **ONE,
    ),
}  # fmt: skip
# Rows that join these change what is not normal, or not the same process.
CHANGED = {name: MODELS[name] for name in (
    "student", "inducing-network", "neighbours", "experts", "committee", "chevron", "collapsed",
    "grid", "additive-grid",
)}  # fmt: skip
CHANGED |= {name: OTHERS[name] for name in ("laplace", "inducing-laplace")}


def joined(model, way, y, given):
    """A fitted model with further rows."""
    if way == "partial_fit":
        return model.partial_fit(X[MORE], y[MORE], **given)
    noise = given.get("noise_variance")
    noise = noise if noise is None else torch.tensor(noise.reshape(len(noise), -1))
    rows, targets = torch.tensor(X[MORE]), torch.tensor(y[MORE].reshape(len(X[MORE]), -1))
    if noise is not None:
        noise = noise.expand(targets.shape)
    return sk.as_botorch(model).condition_on_observations(rows, targets, noise)._regressor


# Their means are exact, and their covariances come from a few draws.
ESTIMATED = {"pathwise", "truncated-samples"}
# Further rows train a network in these.
TRAINED = {"deep", "deep-linear", "minimax"}
QUICK_JOINED = {("features", "conditioned"), ("deep", "conditioned")}
QUICK_JOINED |= {("points", "conditioned"), ("sampled", "partial_fit")}


def marked_joined():
    """The models and ways of `test_further_rows`."""
    found = []
    for name, model in {**JOINED, **CHANGED}.items():
        ways = ["conditioned"] + ["partial_fit"] * hasattr(model, "partial_fit")
        for way in ways:
            for several in (False, True):
                if several and ("student" in name or "inducing-laplace" in name):
                    continue
                quick = (name, way) in QUICK_JOINED and not several
                marks = [] if quick else pytest.mark.night if several else pytest.mark.slow
                several_id = "-several" * several
                case = f"{name}-{way}{several_id}"
                found.append(pytest.param(name, way, several, id=case, marks=marks))
    return found


@pytest.mark.parametrize(("name", "way", "several"), marked_joined())
def test_further_rows(name, way, several, tmp_path):
    """Against the normal distribution given these rows, in the units of the first ones.

    A model that has received rows describes one distribution, and so does a file of it.
    """
    model = clone({**JOINED, **CHANGED}[name])
    y = np.column_stack([1e3 + Y, 50 - 3 * Y]) if several else Y
    given = {}
    if several and name not in {"alpha", *TRAINED}:  # noise needs targets of one scale
        model.set_params(normalize_y=False)
        given = {"noise_variance": KNOWN[MORE]}
    rows = INSIDE if "grid" in name else ROWS
    first = slice(0, 80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[first], y[first])
        before, exactly = answers(model, rows), name in JOINED
        exactly &= way == "conditioned" or name not in TRAINED
        if exactly:
            own = np.zeros((10, 2 if several else 1))
            if given:
                own += KNOWN[MORE, None]
            if name == "alpha":
                own += 0.3 * np.square(y[first].std(0))
            asked = model if name not in ESTIMATED else exact(SMOOTH).fit(X[first], y[first])
            mean, std = conditional(asked, rows, X[MORE], y[MORE].reshape(10, -1), own)
        after = joined(model, way, y, given)
        if exactly:
            found = (part.reshape(mean.shape) for part in after.predict(rows, return_std=True))
            np.testing.assert_allclose((next(found) - mean) / std, 0, atol=1e-5)
            tol = 0.5 if name in ESTIMATED else 1e-5
            np.testing.assert_allclose(next(found) / std, 1, atol=tol)
    if way == "conditioned":
        same(answers(model, rows), before)
    asked = {"noise_variance": 30.0} if given else {}
    assert disagreements(after, rows, **asked) == []
    sk.save(after, tmp_path / "model")
    same(answers(sk.load(tmp_path / "model"), rows), answers(after, rows))


# ------------------------------------------------------------------ corrections


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_repeated_rows(spread):
    """Copies with equal targets, whose errors have peaks, and with different ones."""
    rng = np.random.RandomState(0)
    some = rng.randint(0, len(X), 200)
    y = Y[some] + spread * Y.std() * rng.randn(200)
    model = sk.AutoGPRegressor(["linear", "exact"], random_state=0).fit(X[some], y)
    assert disagreements(model, ROWS) == []


def test_drawn_functions_have_the_factors_of_local_errors():
    """Deviations of draws against those of `predict_std`, which the factors change."""
    rows, y = rough(300)
    model = clone(CORRECTED["local-factors"]).set_params(optimizer=None).fit(rows, y)
    posterior = fitted_process(model).posterior
    posterior._scaled = posterior._scaled._replace(power=0.5)
    new = rough(12, 1)[0]
    std = model.predict_std(new, include_noise=False)
    found = [
        sk.draw_functions(model, 100, random_state=seed).values(new).std(1) for seed in range(8)
    ]
    np.testing.assert_allclose(np.mean(found, 0), std, rtol=0.2)
    posterior._scaled = posterior._scaled._replace(power=0.0)
    without = model.predict_std(new, include_noise=False)
    assert np.max(np.abs(np.log(std / without))) > 0.3


def test_neighbours_variances_are_those_of_covariances_and_samples():
    """With fewer neighbours than rows, whose variances are larger than those of all rows."""
    rows, y = rough(400)
    model = sk.IterativeGPRegressor(
        RBF([0.3, 0.3]) + WhiteKernel(0.3), posterior="neighbors", optimizer=None, solver="cg",
        dtype="float64", random_state=0,
    ).fit(rows, y)  # fmt: skip
    posterior = fitted_process(model).posterior
    posterior._n_nearest = 5
    new = rough(20, 1)[0]
    std = model.predict(new, return_std=True)[1]
    K = RBF([0.3, 0.3])
    C = K(new) - K(new, rows) @ np.linalg.solve(K(rows) + 0.3 * np.eye(400), K(rows, new))
    assert np.mean(model.predict_std(new, include_noise=False) ** 2 / C.diagonal()) > 1.1
    cov = model.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(cov.diagonal()), std)
    draws = model.sample_y(new, 8000, random_state=0)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.05)
    # So have samples of more rows than are drawn from a covariance, and functions.
    wide = np.vstack([new, rough(981, 2)[0]])
    assert len(wide) > JOINT_ROWS
    draws = model.sample_y(wide, 2000, random_state=0)[:20]
    np.testing.assert_allclose(draws.std(1), std, rtol=0.1)
    latent = model.predict_std(new, include_noise=False)
    draws = sk.draw_functions(model, 2000).values(new)
    np.testing.assert_allclose(draws.std(1), latent, rtol=0.1)


@pytest.mark.parametrize("name", ["student", "empirical"])
@pytest.mark.parametrize("df", [2.5, 4.0])
def test_standard_deviations_with_fitted_tails(name, df):
    """The standard deviation is that of the draws of this shape, which keeps its quantiles."""
    z = stats.t.rvs(df, size=2000, random_state=np.random.RandomState(0))
    raw = Tails.of(name, z)
    tails, std = raw.standardised()
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    drawn = tails(stats.norm.ppf(u))
    assert abs(drawn.mean()) < 1e-3 and drawn.std() == pytest.approx(1, abs=0.05)
    inner = np.linspace(-1.5, 1.5, 9)
    moved = std * tails(inner) - raw(inner)
    np.testing.assert_allclose(moved, moved[0], atol=0.01 * std)
    if name == "student":
        fitted_df, _, scale = stats.t.fit(z, floc=0)
        # The quantiles are tabulated to eight standard deviations.
        right = scale * (fitted_df / (fitted_df - 2)) ** 0.5
        assert std == pytest.approx(right, rel=0.02)


@pytest.mark.parametrize("name", ["student", "empirical"])
def test_correlations_under_fitted_tails(name):
    """Powers against correlations of draws; a model's standard deviations have the factor."""
    z = stats.t.rvs(2.6, size=400, random_state=np.random.RandomState(0))
    z[:150] = np.where(z[:150] > 0, 0.5, -0.5)
    raw = Tails.of(name, z)
    tails, std = raw.standardised()
    powers, rng = tails.powers(), np.random.RandomState(1)
    assert powers.sum() == pytest.approx(1) and powers[0] < 0.97
    first = rng.randn(400_000)
    for rho in (0.9, -0.5):
        second = rho * first + (1 - rho**2) ** 0.5 * rng.randn(400_000)
        product = tails(first) * tails(second)
        error = 4 * product.std() / 400_000**0.5
        assert rho ** np.arange(1, len(powers) + 1) @ powers == pytest.approx(
            product.mean(), abs=error
        )
        variances = torch.tensor([2.0, 3.0]).double()
        normal = torch.tensor([[2.0, rho * 6**0.5], [rho * 6**0.5, 3.0]]).double()
        found = (
            named.module("with_tails")
            .with_tails(normal, variances, variances, torch.as_tensor(powers))
            .numpy()
        )
        assert found[0, 1] == found[1, 0] == pytest.approx(6**0.5 * product.mean(), abs=3 * error)
        np.testing.assert_allclose(found.diagonal(), variances)
    model = Scaled(None, NoiseModel(0.3)).with_tails(raw)
    assert model.noise.factor(np.zeros((1, 2)))[0] == pytest.approx(np.exp(0.15) * std)


def test_deviations_of_models_with_heavy_tails():
    """`return_std` against the density, integrated."""
    rng = np.random.RandomState(0)
    rows = rng.uniform(size=(600, 1))
    y = stats.t.rvs(3, size=600, random_state=rng)
    model = sk.HeteroscedasticRegressor(
        sk.RFFRegressor(n_components=10), LinearRegression(), tails="student", random_state=0
    ).fit(rows, y)
    assert model._learned.tails.name == "student"
    mean, std = model.predict(rows[:1], return_std=True)
    edges = np.sinh(np.linspace(-14, 14, 8001))
    log_p = model.log_predictive_density(np.repeat(rows[:1], 8001, 0), mean + std * edges)
    second = np.trapezoid(np.exp(log_p) * std * edges**2, edges)
    assert second == pytest.approx(1, abs=0.02)
    draws = model.sample_y(rows[:1], 20000, random_state=1)[0]
    share = np.mean(draws < model.predict_quantiles(rows[:1], 0.9)[0])
    assert share == pytest.approx(0.9, abs=0.01)
