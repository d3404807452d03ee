"""Models made from fitted models keep their units: dense algebra for targets of 1,000 +- 50."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skscalablegp as sk
from skscalablegp.core import fitted_process
from skscalablegp.meta import with_kernel

pytestmark = pytest.mark.usefixtures("remembered_starts")

RNG = np.random.default_rng(0)
N, MORE = 80, 5
CENTRE, UNIT = np.array([1000.0, -3000.0]), np.array([50.0, 0.2])
X = RNG.uniform(size=(N + MORE, 2))
Y = np.column_stack([np.sin(6 * X[:, 0]) + X[:, 1], X[:, 0] - X[:, 1] ** 2])
Y = CENTRE + UNIT * (Y + 0.1 * RNG.standard_normal(Y.shape))
# Some of them are beside the further rows.
NEW = np.vstack([RNG.uniform(size=(20, 2)), X[N:] + 0.01])

METHOD = {"small_table": "method"}
RAW = ConstantKernel(2500.0) * Matern([0.5, 0.7], nu=1.5) + WhiteKernel(25.0)
NORMAL = ConstantKernel(1.0) * RBF([0.5, 0.7]) + WhiteKernel(0.01)
SOLVES = {"posterior": "neighbors", "solver": "cg", "solver_tol": 1e-10, "dtype": "float64"}
DEEP = {"feature_extractor": (8,), "n_components": 20, "max_epochs": 2, **METHOD}
MODELS = {
    "iterative": sk.IterativeGPRegressor(),
    "iterative-raw-kernel": sk.IterativeGPRegressor(RAW, optimizer=None),
    "iterative-normal-kernel": sk.IterativeGPRegressor(NORMAL, normalize_y=True, optimizer=None),
    "iterative-alpha": sk.IterativeGPRegressor(alpha=4.0),
    "iterative-alpha-normal": sk.IterativeGPRegressor(alpha=0.01, normalize_y=True),
    "iterative-solves": sk.IterativeGPRegressor(subset_size=40, **SOLVES),
    "truncated": sk.RRCGRegressor(),
    "features": sk.RFFRegressor(),
    "features-method": sk.RFFRegressor(n_components=40, **METHOD),
    "series": sk.SSRFFRegressor(),
    "collapsed": sk.SGPRRegressor(),
    "experts": sk.PoERegressor(),
    "neighbours": sk.NNGPRegressor(),
    "neighbours-alpha": sk.NNGPRegressor(alpha=4.0),
    "neighbours-method": sk.NNGPRegressor(
        n_neighbors=N + MORE - 1, calibrate=False, local_scale=False, **METHOD
    ),
    "grid": sk.KISSGPRegressor(),
    "grid-alpha": sk.KISSGPRegressor(alpha=4.0),
    "grid-method": sk.KISSGPRegressor(**METHOD),
    "inducing": sk.SVGPRegressor(),
    "sampled": sk.QSGPRegressor(),
    "deep-composite": sk.SCGDDKLRegressor(),
    "deep-minimax": sk.MinimaxDKLRegressor(),
    "deep-biased": sk.BSGDDKLRegressor(),
    "deep-network": sk.SCGDDKLRegressor(**DEEP),
}
# Interpolation, and functions that have seen the first rows alone.
TOLERANCE = {"grid-method": 1e-2, "inducing": 2e-2, "sampled": 2e-2, "neighbours-method": 1e-3}


def covariances(model, name):
    """k(A, B) without noise and the white noise, in the units of normalised targets."""
    if name in ("features-method", "deep-network"):
        process = fitted_process(model)
        phi = lambda A: process.posterior.psi(process.inputs(A)).numpy()  # noqa: E731
        noise = float(process.posterior.noise(process.inputs(X[:1])))
        return lambda A, B: phi(A) @ phi(B).T, noise
    if name.startswith("deep"):
        units = model.extract_features
        return lambda A, B: model.kernel_(units(A), units(B)), model.noise_variance_
    kernel = model.kernel_
    units = getattr(model, "_scaling", None) if name == "sampled" else None
    scaled = (lambda A: A) if units is None else lambda A: (A - units.x_mean) / units.x_scale
    return lambda A, B: kernel.k1(scaled(A), scaled(B)), kernel.k2.noise_level


def dense(model, name, targets, noise, mean, std):
    """Means and deviations of observations at NEW, with noise of the rows in units of y."""
    k, white = covariances(model, name)
    rows = X[: len(targets)]
    K, cross = k(rows, rows) + np.diag(white + noise / std[0] ** 2), k(NEW, rows)
    mean = mean + std * (cross @ np.linalg.solve(K, (targets - mean) / std))
    latent = np.diag(k(NEW, NEW)) - (cross * np.linalg.solve(K, cross.T).T).sum(1)
    return mean, std * np.sqrt(latent + white)[:, None]


@pytest.mark.parametrize(("t", "noisy"), [(1, False), (2, True)], ids=["one", "two-with-noise"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:IterativeGPRegressor. The mean of y")
def test_further_rows_at_the_same_hyperparameters(name, t, noisy):
    """A conditioned model has the first rows' units, and the kernel of the fit to them."""
    targets = Y[:, :t]
    start = clone(MODELS[name]).set_params(random_state=0)
    start.fit(X[:N], targets[:N, 0] if t == 1 else targets[:N])
    before, settings = start.predict(NEW, return_std=True), start.get_params()
    std = np.atleast_1d(start._y_train_std)
    known, own = None, np.zeros(N + MORE)
    if noisy:
        own[N:] = RNG.uniform(0.01, 0.3, size=MORE) * std[0] ** 2
        known = own[N:, None] / std[0] ** 2 * std**2
        known = known[:, 0] if t == 1 else known
    if "alpha" in name:
        # In units of y, unless normalised targets were asked for.
        own += 4.0 if settings["normalize_y"] == "auto" else 0.01 * std[0] ** 2
    more = fitted_process(start).with_rows(X[N:], targets[N:, 0] if t == 1 else targets[N:], known)
    centre = 0.0 if "raw" in name else targets[:N].mean(0)
    right = dense(more, name, targets, own, centre, std)
    known = 0.0 if noisy else None
    found = more.predict(NEW, return_std=True, noise_variance=known)
    tol = TOLERANCE.get(name, 1e-4)
    np.testing.assert_allclose(found[0].reshape(-1, t) / std, right[0] / std, atol=tol, rtol=0)
    np.testing.assert_allclose(found[1].reshape(-1, t), right[1], rtol=tol)
    # The first model has not changed.
    assert str(more.kernel_) == str(start.kernel_) and str(more.get_params()) == str(settings)
    np.testing.assert_array_equal(start.predict(NEW, return_std=True), before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:IterativeGPRegressor. The mean of y")
def test_fits_of_folds_with_the_kernel_of_all_rows(name):
    """Meta-estimators fit parts of a table with a trained kernel, which has units of its own."""
    fresh, targets = clone(MODELS[name]).set_params(random_state=0), Y[:, 0]
    fixed = with_kernel(fresh, clone(fresh).fit(X, targets))
    assert name.startswith("deep") or fixed.optimizer is None
    part, raw = targets[:N], "raw" in name
    fixed.fit(X[:N], part)
    own = np.zeros(N)
    if "alpha" in name:
        # An alpha in units of y is that of normalised targets of all rows.
        own += (
            4.0 * part.var() / targets.var() if fresh.normalize_y == "auto" else 0.01 * part.var()
        )
    if name.startswith("deep"):  # They are trained anew.
        assert str(fixed) == str(fresh)
        return
    centre, std = (0.0, np.ones(1)) if raw else (part.mean(), part.std(keepdims=True))
    right = dense(fixed, name, part[:, None], own, centre, std)
    found, tol = fixed.predict(NEW, return_std=True), TOLERANCE.get(name, 1e-4)
    np.testing.assert_allclose(found[0] / std, right[0][:, 0] / std, atol=tol, rtol=0)
    np.testing.assert_allclose(found[1], right[1][:, 0], rtol=tol)


FULL = {"variance_rank": None, "random_state": 0}
OVER = {
    "low-rank": sk.LOVEPredictor(sk.IterativeGPRegressor(), **FULL),
    "low-rank-grid": sk.LOVEPredictor(sk.KISSGPRegressor(**METHOD), **FULL),
    "low-rank-features": sk.LOVEPredictor(sk.RFFRegressor(), **FULL),
    "mean-function": sk.MeanFunctionRegressor(sk.IterativeGPRegressor(), LinearRegression()),
    **{
        f"noise-{name}": sk.HeteroscedasticRegressor(MODELS[name], n_refits=0, random_state=0)
        for name in ("iterative", "iterative-alpha", "neighbours", "grid", "grid-method")
    },
}


@pytest.mark.parametrize("name", OVER)
def test_estimators_over_others(name):
    """Means, and deviations where nothing is learned from errors."""
    model, targets = clone(OVER[name]).set_params(random_state=0).fit(X, Y[:, 0]), Y[:, :1]
    inner, shift = model.estimator_, np.zeros(len(NEW))
    if name == "mean-function":
        # The process has been fitted to the errors of other rows' lines.
        line = LinearRegression().fit(X, Y[:, 0])
        shift, targets = line.predict(NEW), targets - model._cross_fitted[:, None]
    own = np.full(N + MORE, 4.0 if "alpha" in name else 0.0)
    std = targets.std(keepdims=True)[0]
    mean, deviations = dense(inner, name, targets, own, targets.mean(), std)
    tol = 1e-2 if "grid" in name else 1e-4
    np.testing.assert_allclose(model.predict(NEW) / 50, (mean[:, 0] + shift) / 50, atol=tol, rtol=0)
    if not name.startswith("noise"):
        np.testing.assert_allclose(model.predict_std(NEW), deviations[:, 0], rtol=tol)


EXPERTS = {"expert_size": 30, "n_experts": 3, "small_table": "method", "random_state": 0}


def product(experts, kernels, rule, targets, noise, mean, std):
    """The experts' own processes by dense algebra, and Liu et al. (2018), equations 4 to 13."""
    found = []
    for rows, kernel in zip(experts, kernels, strict=True):
        k, white = kernel.k1, kernel.k2.noise_level
        K, cross = k(X[rows]) + np.diag(white + noise[rows] / std**2), k(NEW, X[rows])
        latent = k.diag(NEW) - (cross * np.linalg.solve(K, cross.T).T).sum(1)
        found.append((cross @ np.linalg.solve(K, (targets[rows] - mean) / std), latent))
    means, variances = map(np.array, zip(*found, strict=True))
    prior = np.array([kernel.k1.diag(NEW) for kernel in kernels])
    if rule == "grbcm":
        power = 0.5 * np.log(variances[0] / variances)
        power[1], power[0] = 1.0, 0.0
        power[0] = 1 - power.sum(0)
    else:
        power = 0.5 * np.log(prior / variances)
        power = power / power.sum(0)
    variance = 1 / (power / variances).sum(0)
    mean = mean + std * variance * (power / variances * means).sum(0)
    return mean, std, variance


@pytest.mark.parametrize(("shared", "rule"), [(True, "gpoe"), (False, "gpoe"), (True, "grbcm")])
def test_experts_keep_their_kernels_and_rows(shared, rule):
    """Further rows join one expert each; a mean kernel would be that of no expert."""
    settings = {"share_hyperparameters": shared, "combination": rule, **EXPERTS}
    start = sk.PoERegressor(**settings).fit(X[:N], Y[:N, 0])
    assert len(start.experts_) == 3
    noise = np.zeros(N + MORE)
    noise[N:] = 30.0
    more = fitted_process(start).with_rows(X[N:], Y[N:, 0], noise[N:])
    joined = [
        np.setdiff1d(new, old) for new, old in zip(more.experts_, start.experts_, strict=True)
    ]
    np.testing.assert_array_equal(np.sort(np.concatenate(joined)), np.arange(N, N + MORE))
    assert [str(k) for k in more.kernels_] == [str(k) for k in start.kernels_]
    assert shared == (len(set(map(str, start.kernels_))) == 1)
    units = Y[:N, 0].mean(), Y[:N, 0].std()
    for model, count in ((start, N), (more, N + MORE)):
        mean, std, variance = product(
            model.experts_, model.kernels_, rule, Y[:count, 0], noise, *units
        )
        np.testing.assert_allclose(model.predict(NEW) / std, mean / std, atol=1e-4, rtol=0)
        latent = model.predict_std(NEW, include_noise=False)
        np.testing.assert_allclose(latent, std * variance**0.5, rtol=1e-4)


def test_folds_do_not_take_the_mean_kernel_of_experts():
    fresh = sk.PoERegressor(share_hyperparameters=False, **EXPERTS)
    assert str(with_kernel(fresh, clone(fresh).fit(X, Y[:, 0]))) == str(fresh)


def of_process(process, rows, targets, new, noise=0.0):
    """Means and variances of observations by dense algebra at a fitted process's kernel."""
    centre, std = targets.mean(), targets.std()
    k, white = process.kernel_.k1, process.kernel_.k2.noise_level
    K, cross = k(rows) + np.diag(white + noise / std**2 + np.zeros(len(rows))), k(new, rows)
    mean = centre + std * (cross @ np.linalg.solve(K, (targets - centre) / std))
    variance = k.diag(new) + white - (cross * np.linalg.solve(K, cross.T).T).sum(1)
    return mean, std**2 * variance


def test_members_of_stacks():
    """A mixture of a process, of another one behind a scaler, and of a line."""
    scaled = make_pipeline(StandardScaler(), sk.RFFRegressor())
    named = [
        ("process", sk.IterativeGPRegressor()),
        ("scaled", scaled),
        ("line", LinearRegression()),
    ]
    model = sk.StackedGPRegressor(named, random_state=0).fit(X, Y[:, 0])
    process, behind, line = model.estimators_
    assert (model.weights_[:2] > 0).any()
    last = line.predict(NEW)
    moments = [
        of_process(process, X, Y[:, 0], NEW),
        of_process(behind[-1], behind[0].transform(X), Y[:, 0], behind[0].transform(NEW)),
        (last, np.full(len(last), model._members[2].extra)),
    ]
    factors = [np.exp(member.noise.level) for member in model._members]
    mean = sum(w * m for w, (m, _) in zip(model.weights_, moments, strict=True))
    variance = sum(
        w * (f * v + (m - mean) ** 2)
        for w, f, (m, v) in zip(model.weights_, factors, moments, strict=True)
    )
    found = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(found[0] / 50, mean / 50, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found[1], np.sqrt(variance), rtol=1e-4)


class Told(sk.IterativeGPRegressor):
    """Keeps the known noise that its fits receive."""

    received = []

    def fit(self, X, y, noise_variance=None, sample_weight=None):
        self.received.append(noise_variance)
        return super().fit(X, y, noise_variance, sample_weight)


def test_noise_that_was_learned_reaches_the_second_fit_in_units_of_y():
    Told.received.clear()
    y = Y[:, 0] + 100 * X[:, 0] ** 2 * np.random.default_rng(1).standard_normal(len(X))
    rows, y = np.vstack([X, X + 1e-3]), np.append(y, y[::-1])
    model = sk.HeteroscedasticRegressor(Told(), n_refits=1, random_state=0).fit(rows, y)
    inner = model.estimator_
    noise = [each for each in Told.received if each is not None and len(each) == len(y)][-1]
    # Without the first round's noise the errors have a mean square of some thousands.
    assert noise.shape == y.shape and 0.1 < noise.mean() / y.var() < 2
    mean, _ = of_process(inner, rows, y, NEW, noise)
    np.testing.assert_allclose(model.predict(NEW) / y.std(), mean / y.std(), atol=1e-4, rtol=0)


def test_a_warm_start_on_more_rows():
    """A fit that continues has the units of the first one."""
    model = sk.QSGPRegressor(warm_start=True, random_state=0).fit(X[:N], Y[:N, 0]).fit(X, Y[:, 0])
    mean, std = Y[:N, 0].mean(), Y[:N, :1].std(0)
    right = dense(model, "sampled", Y[:, :1], np.zeros(N + MORE), mean, std)
    found = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(found[0] / std, right[0][:, 0] / std, atol=2e-2, rtol=0)
    np.testing.assert_allclose(found[1], right[1][:, 0], rtol=2e-2)


def test_further_rows_behind_a_scaler():
    """The scaler keeps its units, as the kernel does."""
    model = make_pipeline(StandardScaler(), sk.IterativeGPRegressor()).fit(X[:N], Y[:N, 0])
    more = sk.as_botorch(model).condition_on_observations(*map(torch.tensor, (X[N:], Y[N:, :1])))
    found = more.posterior(torch.tensor(NEW))
    scale, process = model[0].transform, model[-1]
    centre, std = Y[:N, 0].mean(), Y[:N, 0].std()
    k, white = process.kernel_.k1, process.kernel_.k2.noise_level
    cross = k(scale(NEW), scale(X))
    K = k(scale(X)) + white * np.eye(len(X))
    mean = centre + std * (cross @ np.linalg.solve(K, (Y[:, 0] - centre) / std))
    latent = k.diag(scale(NEW)) - (cross * np.linalg.solve(K, cross.T).T).sum(1)
    np.testing.assert_allclose(found.mean[:, 0].detach() / 50, mean / 50, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found.variance[:, 0].detach().sqrt(), std * latent**0.5, rtol=1e-3)


@pytest.mark.night
@pytest.mark.slow
def test_members_of_automatic_models(monkeypatch):
    """Kernels that members share, and those of fits to all rows, have the units of the targets."""
    rng, fits, own = np.random.default_rng(0), [], sk.AutoGPRegressor._fitted_to

    def recorded(self, fresh, rows, some, *more):
        fits.append((own(self, fresh, rows, some, *more), some))
        return fits[-1][0]

    monkeypatch.setattr(sk.AutoGPRegressor, "_fitted_to", recorded)
    rows = rng.uniform(size=(2100, 2))
    y = 1000 + 50 * (np.sin(6 * rows[:, 0]) + rows[:, 1] + 0.1 * rng.standard_normal(2100))
    names = ["exact", "neighbors", "iterative", "trained_neighbors"]
    sk.AutoGPRegressor(names, random_state=0).fit(rows, y)
    assert {type(fit[0]).__name__ for fit, _ in fits} == {"IterativeGPRegressor", "NNGPRegressor"}
    assert len(fits) > 4
    for (process, _), some in fits:
        mean, variance = of_process(process, rows[some], y[some], NEW)
        found = process.predict(NEW, return_std=True)
        np.testing.assert_allclose(found[0] / 50, mean / 50, atol=2e-2, rtol=0)
        np.testing.assert_allclose(found[1], np.sqrt(variance), rtol=0.05)
