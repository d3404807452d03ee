"""Known noise of rows in sampled models: against a dense process, and against white noise."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import QSGPRegressor

FULL = dict(optimizer=None, standardize=False, normalize_y=False, random_state=0)
STEPS = dict(
    inference="stochastic", n_components=128, component_batch_size=64, n_dense=4, max_iter=25,
    control_variate_rank=20, dtype="float64",
)  # fmt: skip
ROWS = dict(basis="rows", inference="stochastic", max_iter=25, dtype="float64")


def table(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    known = 10 ** rng.uniform(-3, 0.5, n)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + np.sqrt(known) * rng.standard_normal(n), known


def test_full_batches_are_the_dense_process():
    X, y, known = table()
    kernel = RBF(1.0) + WhiteKernel(0.05)
    dense = GaussianProcessRegressor(RBF(1.0), alpha=0.05 + known, optimizer=None).fit(X, y)
    model = QSGPRegressor(kernel, basis="rows", **FULL).fit(X, y, noise_variance=known)
    X_new = table(9, 1)[0]
    mean, std = dense.predict(X_new, return_std=True)
    assert_allclose(model.predict(X_new), mean, atol=1e-6)
    found = model.predict_std(X_new, noise_variance=0.2)
    assert_allclose(found, np.sqrt(std**2 + 0.05 + 0.2), atol=1e-6)
    assert_allclose(model.lower_bound_, dense.log_marginal_likelihood_value_, rtol=1e-6)
    # Rows that come later bring noise of their own.
    stream = QSGPRegressor(kernel, basis=X, **FULL)
    for part in (slice(0, 50), slice(50, None)):
        stream.partial_fit(X[part], y[part], noise_variance=known[part])
    assert_allclose(stream.predict(X_new), mean, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"likelihood": "laplace"}, STEPS, {**STEPS, "likelihood": "laplace"}, ROWS],
    ids=["exact", "exact-laplace", "steps", "steps-laplace", "rows"],
)
def test_equal_known_noise_is_white_noise(settings):
    X, y, _ = table()
    white = QSGPRegressor(RBF() + WhiteKernel(0.3), **FULL, **settings).fit(X, y)
    known = QSGPRegressor(RBF() + WhiteKernel(0.1), **FULL, **settings)
    known.fit(X, y, noise_variance=0.2)
    if settings.get("basis") != "rows":
        assert_allclose(known.lower_bound_, white.lower_bound_, rtol=1e-6)
    assert_allclose(known.predict(X), white.predict(X), atol=1e-5)
    if not settings.get("inference"):
        assert_allclose(known.predict_std(X, noise_variance=0.2), white.predict_std(X), rtol=1e-5)


@pytest.mark.parametrize("settings", [STEPS, ROWS], ids=["steps", "rows"])
def test_steps_approach_full_batches(settings):
    """The same functions, solved exactly; noise that is ignored ends elsewhere."""
    X, y, known = table(200)
    kernel = RBF(1.0) + WhiteKernel(0.05)
    basis = {name: settings[name] for name in ("basis", "n_components") if name in settings}
    full = {**FULL, **basis, "inference": "exact"}
    X_new = table(200, 1)[0]
    exact = QSGPRegressor(kernel, **full).fit(X, y, noise_variance=known).predict(X_new)
    blind = QSGPRegressor(kernel, **full).fit(X, y).predict(X_new)
    model = QSGPRegressor(kernel, **FULL, **{**settings, "max_iter": 300})
    error = model.fit(X, y, noise_variance=known).predict(X_new) - exact
    assert np.sqrt(np.mean(error**2)) < 0.3 * np.sqrt(np.mean((blind - exact) ** 2))


def test_the_start_learns_noise_beside_the_known():
    X, y, known = table(300)
    plain = QSGPRegressor(RBF() + WhiteKernel(1.0), normalize_y=False, random_state=0)
    told = QSGPRegressor(RBF() + WhiteKernel(1.0), normalize_y=False, random_state=0)
    plain.fit(X, y)
    told.fit(X, y, noise_variance=known)
    assert plain.kernel_.k2.noise_level > 0.2
    assert told.kernel_.k2.noise_level < 0.02


def test_hyperparameters_move_with_known_noise():
    X, y, known = table(100)
    model = QSGPRegressor(
        RBF() + WhiteKernel(0.5), **{**FULL, "optimizer": "adam"}, subset_size=None, freeze=0.0,
        learning_rate=0.05, **{**STEPS, "max_iter": 60},
    )  # fmt: skip
    noise = model.fit(X, y).kernel_.k2.noise_level
    assert model.fit(X, y, noise_variance=known).kernel_.k2.noise_level < noise
