"""Everything that a model says of 20 rows describes one distribution."""

import warnings

import named
import numpy as np
import pytest
import torch
from contracts.one_distribution import disagreements
from contracts.test_sample_weight import MODELS as WITH_WEIGHTS
from export.exported import MODELS, NEW, ONE, OVER, SMOOTH, UNITS, X, Y, exact, fitted
from scipy import stats
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LinearRegression

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.core.posteriors import JOINT_ROWS
from skscalablegp.meta import NoiseModel, Scaled, Tails

ROWS = np.vstack([X[:8] + 0.1 * UNITS, NEW[:12]])
# Beyond a grid drawn functions are what the grid determines, with less variance.
INSIDE = np.clip(ROWS, X.min(0), X.max(0))
# One estimator of each family; the others are slow.
QUICK = {"features", "student", "experts", "deep", "grid", "nearest", "love-features", "stack"}
QUICK |= {"neighbours", "pathwise"}


def marked(names):
    """The parameters of a test, slow but for QUICK."""
    return [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in names]


def inside(name):
    return INSIDE if "grid" in name else ROWS


@pytest.mark.parametrize("name", marked(sorted({*MODELS, *OVER})))
def test_every_model(name):
    draws = 1600 if name in QUICK else 8000
    assert disagreements(fitted(name), inside(name), n_draws=draws) == []


def low_rank(name):
    return sk.LOVEPredictor(clone(MODELS[name]), **LOW_RANK)


LOW_RANK = {"variance_rank": 4, "max_variance_rank": 8, "random_state": 0}
DEEP = {"feature_extractor": (8,), "n_components": 20, "max_epochs": 2} | ONE
SERIES = sk.SSRFFRegressor(SMOOTH, min_components=16, max_iter=3, **ONE)
# The other estimators, and low-rank variances over the other kinds of bases.
OTHERS = {
    "truncated": sk.RRCGRegressor(SMOOTH, posterior="solve", optimizer=None, random_state=0),
    "truncated-samples": sk.RRCGRegressor(
        SMOOTH, posterior="pathwise", optimizer=None, dtype="float64", random_state=0
    ),
    "series": SERIES,
    "minimax": sk.MinimaxDKLRegressor(**DEEP),
    "batches": sk.BSGDDKLRegressor(**DEEP),
    "love-series": sk.LOVEPredictor(SERIES, **LOW_RANK),
    **{f"love-{name}": low_rank(name) for name in (
        "exact-normalised", "pathwise", "nearest", "student", "inducing-network", "deep",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_models(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(OTHERS[name]).fit(X, Y)
    assert disagreements(model, ROWS, n_draws=1600) == []


# One setting of each regressor that takes weights, and of each kind of posterior.
WEIGHTED = [
    "exact", "solves", "nearest", "truncated", "neighbours", "points", "experts", "features",
    "series", "variational", "student", "grid", "grid-solves", "low-rank", "low-rank-rows", "deep",
    "deep-minimax", "deep-batches", "sampled", "sampled-steps", "sampled-laplace", "relevance",
    "some-relevance",
]  # fmt: skip
QUICK_WEIGHTED = {"features", "deep-minimax", "deep-batches", "solves", "sampled-steps", "experts"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK_WEIGHTED else pytest.mark.slow) for n in WEIGHTED],
)
def test_weighted_rows(name):
    weights = np.random.RandomState(3).randint(1, 4, len(X)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(WITH_WEIGHTS[name]).fit(X, Y, sample_weight=weights)
    rows = INSIDE if "grid" in name or name == "low-rank" else ROWS
    assert disagreements(model, rows, n_draws=1600) == []


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_repeated_rows(spread):
    """Copies with equal targets, whose errors have peaks, and with different ones."""
    rng = np.random.RandomState(0)
    some = rng.randint(0, len(X), 200)
    y = Y[some] + spread * Y.std() * rng.randn(200)
    model = sk.AutoGPRegressor(["linear", "exact"], random_state=0).fit(X[some], y)
    assert disagreements(model, ROWS, n_draws=8000) == []


SEVERAL = {
    "exact": exact(SMOOTH, normalize_y=True),
    "features": MODELS["features"],
    "neighbours": MODELS["neighbours"],
    "nearest": MODELS["nearest"],
    "inducing": MODELS["inducing"],
    "experts": MODELS["experts"],
    "grid": MODELS["grid"],
    "deep": MODELS["deep"],
    "process": MODELS["process"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_several_targets(name):
    targets = np.column_stack([Y, 1e3 - 3 * Y])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(SEVERAL[name]).fit(X, targets)
    assert disagreements(model, inside(name), n_draws=8000) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_known_noise(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(SEVERAL[name]).fit(X, Y + 1e3, noise_variance=np.linspace(1, 40, len(X)))
    assert disagreements(model, inside(name), n_draws=8000, noise_variance=30.0) == []


# ------------------------------------------------------------------ corrections


def rough(n, seed=0):
    """A function of two columns with noise that depends on the place, and some outliers."""
    rng = np.random.RandomState(seed)
    rows = rng.uniform(-2, 2, (n, 2))
    y = np.sin(3 * rows[:, 0]) * rows[:, 1] + 0.1 * rng.standard_t(3, n) * (1 + rows[:, 0] ** 2)
    return rows, y


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
    "automatic": sk.AutoGPRegressor(["linear", "exact"], random_state=0),
    "laplace": sk.QSGPRegressor(likelihood="laplace", n_components=64, random_state=0),
}  # fmt: skip


@pytest.mark.seldom("automatic", "empirical")
@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTED)
def test_corrected_models(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(CORRECTED[name]).fit(*rough(600))
    assert disagreements(model, rough(20, 1)[0], n_draws=8000) == []


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
