"""Quadruply stochastic estimators: equivalences, streams, wrong input."""

import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from skscalablegp import QSGPClassifier, QSGPRegressor, QSRVMRegressor, SVGPClassifier

KERNEL = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)
FIXED = dict(kernel=KERNEL, optimizer=None, random_state=0, standardize=False)


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(n)


def test_exact_kernel_functions_at_all_rows_are_the_exact_process():
    X, y = table(60)
    mean = QSGPRegressor(basis="rows", **FIXED).fit(X, y).predict(X[:7] + 0.1)
    K = ConstantKernel(1.0) * RBF([1.0, 1.0])
    exact = K(X[:7] + 0.1, X) @ np.linalg.solve(K(X) + 0.1 * np.eye(60), y)
    assert_allclose(mean, exact, atol=1e-5)


def test_exact_fourier_features_are_bayesian_linear_regression():
    X, y = table()
    model = QSGPRegressor(n_components=40, **FIXED).fit(X, y)
    assert model.inference_ == "exact" and model.coef_.shape == (40, 1)
    draws = model._build_posterior().psi(model._inputs(X)).numpy()
    H = draws.T @ draws / 0.1 + np.eye(40)
    assert_allclose(model.coef_[:, 0], np.linalg.solve(H, draws.T @ y / 0.1), atol=1e-4)
    latent = np.sqrt(np.einsum("ij,ji->i", draws, np.linalg.solve(H, draws.T)))
    assert_allclose(model.predict_std(X, include_noise=False), latent, rtol=1e-4)


@pytest.mark.parametrize("basis", ["fourier", "rows", np.linspace(-2, 2, 24).reshape(12, 2)])
def test_a_warm_start_does_not_count_the_same_rows_twice(basis):
    X, y = table(60)
    cold = QSGPRegressor(basis=basis, **FIXED).fit(X, y)
    warm = QSGPRegressor(basis=basis, warm_start=True, **FIXED).fit(X, y).fit(X, y)
    assert_allclose(warm.predict(X), cold.predict(X), atol=1e-8)
    stds = [model.predict_std(X, include_noise=False) for model in (warm, cold)]
    assert_allclose(*stds, rtol=1e-6)


@pytest.mark.parametrize("basis", ["fourier", "rows"])
def test_a_warm_start_begins_anew_on_a_table_that_does_not_fit(basis):
    X, y = table(60)
    model = QSGPRegressor(basis=basis, warm_start=True, optimizer=None, random_state=0).fit(X, y)
    for rows, targets in ((X[:, :1], y), (X[:40], np.column_stack([y, -y])[:40]), (X + 1, y)):
        plain = QSGPRegressor(basis=basis, optimizer=None, random_state=0).fit(rows, targets)
        assert_allclose(model.fit(rows, targets).predict(rows), plain.predict(rows), atol=1e-8)


@pytest.mark.parametrize("inference", ["auto", "exact"])
def test_functions_at_given_points_are_subset_of_regressors_regression(inference, thresholds):
    thresholds(EXACT_FEATURES=20)
    X, y = table(100)
    Z = np.random.default_rng(1).uniform(-2, 2, (30, 2))
    model = QSGPRegressor(basis=Z, inference=inference, **FIXED).fit(X, y)
    K = ConstantKernel(1.0) * RBF([1.0, 1.0])
    phi = K(X, Z)
    expected = np.linalg.solve(phi.T @ phi / 0.1 + K(Z) + 1e-8 * np.eye(30), phi.T @ y / 0.1)
    assert model.inference_ == "exact" and model.n_basis_ == 30
    assert_allclose(model.predict(X), phi @ expected, atol=1e-4)


@pytest.mark.exact_input
def test_some_of_the_rows_are_as_many_points_as_were_asked_for():
    X, y = table(100)
    model = QSGPRegressor(basis="rows", n_components=10, **FIXED).fit(X, y)
    assert model.n_basis_ == 10 and "10 basis functions" in model.fit_report_.summary
    points = model._state.functions.points
    assert len(np.unique(points, axis=0)) == 10
    assert all((X == point).all(1).any() for point in points)


def test_memory_of_full_batches_counts_the_basis_at_all_rows():
    X, y = table(1000)
    need = 8 * (3 * 1000 * 64 + 4 * 64 * 64)
    settings = dict(n_components=64, inference="exact", **FIXED)
    with pytest.raises(MemoryError, match="64 basis functions at 1000 rows"):
        QSGPRegressor(memory_budget=0.99 * need, **settings).fit(X, y)
    QSGPRegressor(memory_budget=1.01 * need, **settings).fit(X, y)


def test_an_exact_stream_is_the_fit_of_all_rows():
    X, y = table()
    whole = QSGPRegressor(n_components=40, **FIXED).fit(X, y)
    stream = QSGPRegressor(n_components=40, **FIXED)
    for rows in np.split(np.arange(120), 3):
        stream.partial_fit(X[rows], y[rows])
    assert_allclose(stream.predict(X), whole.predict(X), atol=1e-8)
    assert_allclose(stream.predict_std(X), whole.predict_std(X), rtol=1e-6)


def test_steps_from_a_memory_map_and_a_warm_start(tmp_path):
    X, y = table(300)
    np.save(tmp_path / "X.npy", X)
    settings = dict(inference="stochastic", n_components=128, component_batch_size=32, max_iter=20)
    model = QSGPRegressor(warm_start=True, dtype="float64", **settings, **FIXED)
    model.fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    plain = QSGPRegressor(dtype="float64", **settings, **FIXED).fit(X, y)
    assert_array_equal(model.predict(X), plain.predict(X))
    assert model.fit(X, y).n_iter_ == plain.n_iter_ == 20 and model.n_samples_seen_ == 300
    assert model.score(X, y) > 0.8


def calibrated(thresholds, **settings):
    """A model whose scale of variances some of 500 rows have chosen."""
    thresholds(_HELD_FROM=300)
    X, y = table(500)
    # The kernel's noise is far too small.
    kernel = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.005)
    settings = dict(inference="stochastic", n_components=512, max_iter=20) | settings
    model = QSGPRegressor(kernel, optimizer=None, random_state=0, **settings)
    return model.fit(X[:400], y[:400]), X, y


def test_support_rows_leave_rows_that_choose_the_scale_of_variances(thresholds):
    model, X, y = calibrated(thresholds, control_variate_rank=400)
    assert len(model._state.support_X) == 200
    z = (y[400:] - model.predict(X[400:])) / model.predict_std(X[400:])
    assert 0.7 < z.std() < 1.4


def test_going_on_keeps_the_scale_of_variances(thresholds):
    model, X, y = calibrated(thresholds, warm_start=True)
    scale, noise = model._state.variance_scale, model._state.noise
    assert scale != 1 and noise > 3 * 0.005
    model.partial_fit(X[400:440], y[400:440])
    assert (model._state.variance_scale, model._state.noise) == (scale, pytest.approx(noise))
    model.fit(X[:400], y[:400])
    assert (model._state.variance_scale, model._state.noise) == (scale, pytest.approx(noise))


@pytest.mark.parametrize(
    "settings",
    [
        dict(n_components=60),
        dict(n_components=60, likelihood="laplace"),
        dict(basis="rows"),
        pytest.param(
            dict(n_components=256, inference="stochastic", max_iter=20, dtype="float64"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_units_of_the_target_do_not_matter(settings, thresholds):
    thresholds(_HELD_FROM=300)
    X, y = table(400)
    found = []
    for unit in (1.0, 1e-6, 1e6):
        model = QSGPRegressor(random_state=0, subset_size=50, **settings).fit(X, unit * y)
        found.append(np.array(model.predict(X[:50], return_std=True)) / unit)
    for scaled in found[1:]:
        assert_allclose(scaled, found[0], rtol=1e-3, atol=1e-4)


def test_laplace_is_robust():
    X, y = table()
    wild = y.copy()
    wild[::15] += 30
    clean = QSGPRegressor(n_components=60, **FIXED).fit(X, y).predict(X)
    robust = QSGPRegressor(n_components=60, likelihood="laplace", **FIXED).fit(X, wild).predict(X)
    fooled = QSGPRegressor(n_components=60, **FIXED).fit(X, wild).predict(X)
    assert np.abs(robust - clean).mean() < 0.2 * np.abs(fooled - clean).mean()


def test_classes_come_in_streams_and_latent_functions_can_be_asked():
    X, y = table()
    labels = np.array(["a", "b"])[(y > 0).astype(int)]
    model = QSGPClassifier(n_components=200, **FIXED)
    model.partial_fit(X[:60], labels[:60], classes=["a", "b"])
    model.partial_fit(X[60:], labels[60:])
    whole = QSGPClassifier(n_components=200, **FIXED).fit(X, labels)
    assert model.score(X, labels) > whole.score(X, labels) - 0.05 > 0.7
    mean, variance = model.latent_mean_and_variance(X)
    assert mean.shape == variance.shape == (120,) and (variance > 0).all()
    z, w = np.polynomial.hermite_e.hermegauss(101)
    p = expit(mean[:, None] + np.sqrt(variance)[:, None] * z) @ w / w.sum()
    ratio = np.stack([1 - p, p], 1) / model.class_prior_
    expected = model.class_prior_ * ratio**model.probability_power_
    expected /= expected.sum(1, keepdims=True)
    assert_allclose(model.predict_proba(X), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="but the classes of the model are"):
        model.partial_fit(X[:2], ["c", "a"])


@pytest.mark.parametrize("Model", [QSGPClassifier, SVGPClassifier])
def test_a_failed_refit_leaves_the_old_model_whole(Model):
    X, y = table(40)
    labels = np.array(["a", "b"])[(y > 0).astype(int)]
    model = Model(optimizer=None, random_state=0).fit(X, labels)
    before = model.predict_proba(X)
    model.set_params(memory_budget=1.0)
    with pytest.raises(MemoryError):
        model.fit(X[:, :1], np.where(y > 0.5, "c", labels))
    assert_array_equal(model.predict_proba(X), before)
    assert set(model.predict(X)) <= {"a", "b"}


@pytest.mark.parametrize(
    "model",
    [
        QSGPRegressor(n_components=60),
        QSGPRegressor(n_components=60, inference="stochastic"),
        QSGPRegressor(n_components=60, likelihood="laplace"),
        QSGPRegressor(basis="rows", inference="stochastic"),
        QSGPClassifier(n_components=60),
        QSRVMRegressor(),
    ],
)
def test_an_interrupt_of_the_exact_start_ends_the_fit(model, given_start):
    def press(step):
        if step.stage == "start":
            raise KeyboardInterrupt

    X, y = table()
    y = (y > 0).astype(int) if isinstance(model, QSGPClassifier) else y
    with pytest.warns(ConvergenceWarning, match="interrupted") as caught:
        model.set_params(random_state=0, callbacks=press).fit(X, y)
    assert len(caught) == 1 and model.fit_report_.status == "interrupted"
    assert model.history_["stage"][0] == "start" and model.score(X, y) > 0.5


@pytest.mark.parametrize("reason", ["callback", "max_seconds", "interrupted"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_newton_steps_can_be_stopped(reason):
    X, y = table()

    def watch(step):
        if step.iteration == 3 and reason == "interrupted":
            raise KeyboardInterrupt
        if step.iteration == 3 and reason == "max_seconds":
            time.sleep(max(0, 2.01 - step.seconds))
        return step.iteration == 3 and reason == "callback"

    settings = dict(n_components=60, callbacks=watch, **FIXED)
    model = QSGPClassifier(max_seconds=2, **settings).fit(X, y > 0)
    assert model.fit_report_.status == reason
    assert model.n_iter_ == len(model.history_["objective"]) == 3
    assert model.score(X, y > 0) > 0.8


FREE = ConstantKernel(1.0, (0.1, 3.0))


@pytest.mark.parametrize(
    "kernel, signal",
    [
        (ConstantKernel(1.0, "fixed") * RBF(0.5, "fixed"), 1.0),
        (ConstantKernel(1.0, "fixed") * RBF(0.5), 1.0),
        (RBF(0.5, "fixed"), 1.0),
        (RBF(0.5, "fixed") * FREE, 3.0),
        (FREE * RBF(0.5, "fixed") + ConstantKernel(2.0, "fixed") * RBF(2.0, "fixed"), 5.0),
    ],
)
def test_labels_respect_fixed_constants_and_bounds(kernel, signal):
    X, y = table()
    trained = QSGPClassifier(kernel, n_components=40, random_state=0).fit(X, y > 0).kernel_
    latent = trained.k1 if isinstance(trained.k2, WhiteKernel) else trained
    assert_allclose(latent.diag(X[:1]), signal, rtol=1e-6)
    assert_array_equal(latent.bounds, kernel.bounds)


def test_labels_want_a_larger_signal_than_the_default():
    X, y = table()
    trained = QSGPClassifier(n_components=40, random_state=0).fit(X, y > 0).kernel_
    assert trained.k1.diag(X[:1]) >= 4


def test_a_sinc_needs_few_functions():
    rng = np.random.default_rng(0)
    X = rng.uniform(-10, 10, (200, 1))
    y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(200)
    model = QSRVMRegressor(random_state=0).fit(X, y)
    assert len(model.relevance_) <= 25
    assert_allclose(model.relevance_vectors_, X[model.relevance_])
    error = model.predict(X) - np.sinc(X[:, 0] / np.pi)
    assert np.sqrt(np.mean(error**2)) < 0.05


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(likelihood="poisson"), "likelihood"),
        (dict(kernel=DotProduct() + WhiteKernel(), basis="fourier"), 'use basis="rows"'),
        (dict(basis="rows", n_components=500), "more than the 120 points"),
        (dict(basis="rows", n_components=50, inference="stochastic"), "with all rows"),
        (dict(optimizer="lbfgs"), "Unknown optimizer='lbfgs': use 'bfgs', 'adam' or None"),
        (dict(variational_optimizer="natural"), "Unknown variational_optimizer"),
        (dict(basis=np.zeros((3, 2)), n_components=2), "fewer than the 3 points"),
        (dict(basis=np.zeros((3, 2)), inference="stochastic"), "at given points is solved by"),
        (dict(basis=np.zeros((3, 5))), r"basis must have shape .* got \(3, 5\)"),
    ],
)
def test_wrong_settings(settings, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        QSGPRegressor(random_state=0, **settings).fit(X, y)


def test_no_more_is_drawn_than_there_is():
    X, y = table()
    settings = dict(n_components=20, inference="stochastic", max_iter=100, **FIXED)
    model = QSGPRegressor(n_dense=30, component_batch_size=30, **settings).fit(X, y)
    assert "2 x 20 of 20 functions, 20 dense columns" in model.fit_report_.summary
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("basis", ["fourier", "rows"])
@pytest.mark.parametrize("unit", [1e20, 1e29])
def test_targets_beyond_single_precision(basis, unit):
    X, y = table(60)
    settings = dict(basis=basis, inference="stochastic", max_iter=5, random_state=0)
    model = QSGPRegressor(normalize_y=False, **settings)
    with pytest.raises(ValueError, match="normalize_y=True"):
        model.fit(X, unit * y)
    model = QSGPRegressor(**settings).fit(X, unit * y)
    assert model.score(X, unit * y) > 0.5


def test_wrong_tables():
    X, y = table()
    with pytest.raises(ValueError, match="at least two classes"):
        QSGPClassifier().fit(X, np.zeros(120, dtype=int))
    with pytest.raises(ValueError, match="more than the 120 rows"):
        QSRVMRegressor(n_components=500).fit(X, y)


@pytest.mark.filterwarnings("error")
def test_divergence_is_named_and_the_best_state_kept():
    X, y = table()
    model = QSGPRegressor(
        inference="stochastic",
        variational_learning_rate=1e12,
        n_components=64,
        dtype="float64",
        max_iter=50,
        **FIXED,
    )
    with pytest.warns(
        ConvergenceWarning, match="diverged.* a variational_learning_rate below 1000"
    ):
        model.fit(X, y)
    assert np.isfinite(model.predict(X)).all() and model.score(X, y) > 0.5


@pytest.mark.slow
def test_chevrons_of_dense_columns_alone_predict_with_the_whole_covariance():
    X, y = table()
    settings = dict(n_components=40, control_variate_rank=60, **FIXED)
    exact = QSGPRegressor(inference="exact", **settings).fit(X, y)
    steps = dict(inference="stochastic", covariance="chevron", dtype="float64", **settings)
    model = QSGPRegressor(n_dense=40, batch_size=120, max_iter=500, **steps).fit(X, y)
    expected = exact.predict_std(X, include_noise=False)
    assert_allclose(model.predict_std(X, include_noise=False), expected, rtol=0.05)
    # Of fewer columns it is another one.
    few = QSGPRegressor(n_dense=10, max_iter=100, **steps).fit(X, y)
    assert np.abs(few.predict_std(X, include_noise=False) / expected - 1).max() > 0.2
