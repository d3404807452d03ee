"""IterativeGPRegressor against scikit-learn's GaussianProcessRegressor, and its own features."""

import inspect
import re
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from inside import HAS_CALLBACKS
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_friedman2
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
from sklearn.model_selection import GridSearchCV
from watching import Watch

from skscalablegp import IterativeGPRegressor, NNGPRegressor, PoERegressor, RRCGRegressor
from skscalablegp.kernels import Columns
from skscalablegp.linalg.solvers import Column
from skscalablegp.solvers import CG

EXACT = {"solver": "cholesky", "dtype": "float64"}
ITERATED = {"solver": "cg", "dtype": "float64", "solver_tol": 1e-8, "solver_max_epochs": 10_000}

KERNELS = {
    "rbf ard + white": 1.5 * RBF([0.8, 1.4]) + WhiteKernel(0.1),
    "matern": ConstantKernel(2.0) * Matern([1.1, 0.7], nu=1.5),
    "white in a product": ConstantKernel(0.7) * (Matern(1.3, nu=2.5) + WhiteKernel(0.2)),
    "linear trend": 0.3 * DotProduct(0.5) + Matern(0.9, nu=0.5) + WhiteKernel(0.05),
    "periodic": Columns(ExpSineSquared(1.2, 3.0), 0) * RationalQuadratic(1.5, 0.8)
    + WhiteKernel(0.1),
    "power": RBF(1.3) ** 2 + WhiteKernel(0.1),
    "partly fixed": ConstantKernel(1.2, "fixed") * RBF(0.9, "fixed") + WhiteKernel(0.1),
}
HISTORY = ("objective", "theta", "residual", "epochs", "seconds")
ALPHAS = {"scalar": 1e-2, "vector": np.linspace(1e-3, 0.1, 30)}


def problem(t=None, n=30, d=2, seed=0):
    """Targets far from zero mean and unit scale, and new rows of which three are training rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    Y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, -1], X.sum(1) ** 2, np.cos(X[:, -1])])
    Y = Y * [3.0, 1.0, 0.2] + [10.0, 0.0, -1.0] + 0.1 * rng.standard_normal(Y.shape)
    X_new = np.vstack([rng.uniform(-2.5, 2.5, (5, d)), X[:3]])
    return X, Y[:, 0] if t is None else Y[:, :t], X_new


def pair(kernel, X, y, *, ours=EXACT, **shared):
    """The same model in scikit-learn and here, at the kernel's own parameters."""
    shared = {"optimizer": None, "random_state": 0, **shared}
    theirs = GaussianProcessRegressor(kernel, **shared).fit(X, y)
    return theirs, IterativeGPRegressor(kernel, **shared, **ours).fit(X, y)


def value(info, name):
    """A field of a mapping or of a namespace."""
    return info[name] if hasattr(info, "__getitem__") else getattr(info, name)


def fit_recording(model, *data, **metadata):
    """Fit, and the ConvergenceWarnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data, **metadata)
    return [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


# ---------------------------------------------------------------- agreement at fixed parameters


def assert_agrees(theirs, ours, X_new, tol):
    def close(a, b):
        assert np.shape(a) == np.shape(b)
        assert_allclose(a, b, rtol=tol, atol=tol * max(1.0, np.abs(b).max()))

    close(ours.predict(X_new), theirs.predict(X_new))
    for flag in ("return_std", "return_cov"):
        for a, b in zip(
            ours.predict(X_new, **{flag: True}), theirs.predict(X_new, **{flag: True}), strict=True
        ):
            close(a, b)
    close(ours.predict_std(X_new), theirs.predict(X_new, return_std=True)[1])
    # What an iterative fit stores is an estimate that says how sure it is; given theta it is exact.
    error = np.abs(ours.log_marginal_likelihood() - theirs.log_marginal_likelihood())
    slack = tol * max(1.0, np.abs(theirs.log_marginal_likelihood()))
    assert error <= 4 * ours.log_marginal_likelihood_std_error_ + slack
    assert ours.solver_ == "cg" or ours.log_marginal_likelihood_std_error_ == 0
    assert ours.log_marginal_likelihood() == ours.log_marginal_likelihood_value_
    for shift in (0.0, 0.2):
        theta = theirs.kernel_.theta + shift
        close(ours.log_marginal_likelihood(theta), theirs.log_marginal_likelihood(theta))
        for a, b in zip(
            ours.log_marginal_likelihood(theta, eval_gradient=True),
            theirs.log_marginal_likelihood(theta, eval_gradient=True),
            strict=True,
        ):
            close(a, b)


@pytest.mark.parametrize("t", [None, pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("normalize_y", [False, True])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_exact_agreement(kernel, alpha, normalize_y, t):
    X, y, X_new = problem(t)
    theirs, ours = pair(KERNELS[kernel], X, y, alpha=ALPHAS[alpha], normalize_y=normalize_y)
    assert_agrees(theirs, ours, X_new, 1e-6)


@pytest.mark.parametrize("t", [None, 3])
@pytest.mark.parametrize(
    "kernel, alpha, normalize_y",
    [(k, [*ALPHAS][i % 2], i % 3 == 0) for i, k in enumerate(KERNELS)],
)
def test_iterated_agreement(kernel, alpha, normalize_y, t):
    X, y, X_new = problem(t)
    theirs, ours = pair(
        KERNELS[kernel], X, y, alpha=ALPHAS[alpha], normalize_y=normalize_y, ours=ITERATED
    )
    assert_agrees(theirs, ours, X_new, 1e-5)


@pytest.mark.parametrize("t", [None, 2])
@pytest.mark.parametrize("ours", [EXACT, ITERATED], ids=["cholesky", "cg"])
def test_sample_moments(ours, t):
    X, y, X_new = problem(t)
    theirs, ours = pair(KERNELS["rbf ard + white"], X, y, normalize_y=True, ours=ours)
    s = 4000
    draws = ours.sample_y(X_new, n_samples=s, random_state=0)
    mean, cov = theirs.predict(X_new, return_cov=True)
    for target in range(t or 1):
        pick = () if t is None else (target,)
        D, mu, C = draws[:, *pick], mean[:, *pick], cov[:, :, *pick]
        spread = np.sqrt(np.diag(C))
        assert np.abs((D.mean(1) - mu) / (spread / np.sqrt(s))).max() < 4.5
        # Var of a sample covariance of Gaussians: (C_ii C_jj + C_ij^2) / s
        error = np.cov(D) - C
        assert np.abs(error / np.sqrt((np.outer(spread, spread) ** 2 + C**2) / s)).max() < 4.5


def test_latent_std_leaves_the_white_noise_out():
    X, y, X_new = problem()
    theirs, ours = pair(KERNELS["rbf ard + white"], X, y, normalize_y=True, alpha=0.05)
    with_noise = theirs.predict(X_new, return_std=True)[1]
    latent = np.sqrt(with_noise**2 - 0.1 * np.var(y))
    assert_allclose(ours.predict_std(X_new, include_noise=False), latent, rtol=1e-6)
    assert_allclose(ours.predict_std(X_new, include_noise=True), with_noise, rtol=1e-6)


def test_noise_variance_adds_to_alpha():
    X, y, X_new = problem()
    noise = np.linspace(0.01, 0.5, len(X))
    model = IterativeGPRegressor(KERNELS["matern"], optimizer=None, alpha=0.1, **EXACT)
    theirs, _ = pair(KERNELS["matern"], X, y, alpha=0.1 + noise)
    ours = model.fit(X, y, noise_variance=noise)
    for a, b in zip(
        ours.predict(X_new, return_std=True), theirs.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_float32_is_close():
    X, y, X_new = problem()
    theirs, ours = pair(
        KERNELS["rbf ard + white"], X, y, normalize_y=True, ours={**EXACT, "dtype": "float32"}
    )
    assert str(ours.dtype_) == "float32"
    for a, b in zip(
        ours.predict(X_new, return_std=True), theirs.predict(X_new, return_std=True), strict=True
    ):
        assert a.dtype == np.float64
        assert_allclose(a, b, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------- drop-in


@pytest.mark.parametrize(
    "method", ["__init__", "fit", "predict", "sample_y", "log_marginal_likelihood", "score"]
)
def test_signatures_contain_scikit_learns(method):
    theirs = inspect.signature(getattr(GaussianProcessRegressor, method)).parameters
    ours = inspect.signature(getattr(IterativeGPRegressor, method)).parameters
    for name, parameter in theirs.items():
        assert name in ours
        assert ours[name].kind == parameter.kind
        if name not in ("optimizer", "normalize_y"):  # "auto" here
            assert ours[name].default == parameter.default, name
    extra = [ours[name].kind for name in ours if name not in theirs]
    if method == "__init__":
        assert set(extra) == {inspect.Parameter.KEYWORD_ONLY}


def test_documented_example():
    X, y = make_friedman2(n_samples=500, noise=0, random_state=0)
    kernel = DotProduct() + WhiteKernel()
    model = IterativeGPRegressor(kernel=kernel, random_state=0).fit(X, y)
    assert model.score(X, y) == pytest.approx(0.3680, abs=2e-3)
    mean, std = model.predict(X[:2, :], return_std=True)
    assert_allclose(mean, [653.0, 592.1], rtol=5e-3)
    assert_allclose(std, [316.6, 316.6], rtol=5e-3)


def test_noisy_targets_example():
    X = np.linspace(0, 10, 1_000).reshape(-1, 1)
    y = np.squeeze(X * np.sin(X))
    rng = np.random.RandomState(1)
    rows = rng.choice(np.arange(y.size), size=6, replace=False)
    noisy = y[rows] + rng.normal(0, 0.75, size=6)
    shared = {
        "kernel": 1 * RBF(length_scale=1.0, length_scale_bounds=(1e-2, 1e2)),
        "alpha": 0.75**2,
        "n_restarts_optimizer": 9,
    }
    theirs = GaussianProcessRegressor(random_state=0, **shared).fit(X[rows], noisy)
    ours = IterativeGPRegressor(random_state=0, **shared).fit(X[rows], noisy)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=1e-2)
    for a, b in zip(
        ours.predict(X, return_std=True), theirs.predict(X, return_std=True), strict=True
    ):
        assert_allclose(a, b, atol=0.05)


@pytest.mark.parametrize("optimizer", ["auto", "lbfgs", "fmin_l_bfgs_b"])
@pytest.mark.parametrize("t", [None, 2])
def test_same_optimum(optimizer, t):
    X, y, X_new = problem(t, n=60)
    kernel = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    ours = IterativeGPRegressor(kernel, normalize_y=True, optimizer=optimizer, **EXACT).fit(X, y)
    assert_allclose(ours.kernel_.theta, theirs.kernel_.theta, atol=5e-3)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        theirs.log_marginal_likelihood_value_, abs=1e-3
    )
    assert ours.log_marginal_likelihood() == ours.log_marginal_likelihood_value_
    assert type(ours.kernel_) is type(kernel)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_adam_climbs():
    X, y, _ = problem()
    kernel = ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.5)
    start = IterativeGPRegressor(kernel, normalize_y=True, optimizer=None, **EXACT).fit(X, y)
    ours = IterativeGPRegressor(kernel, normalize_y=True, optimizer="adam", **EXACT).fit(X, y)
    gain = ours.log_marginal_likelihood_value_ - start.log_marginal_likelihood_value_
    assert gain > 1.0


def test_default_kernel():
    X, y, _ = problem()
    fitted = IterativeGPRegressor(optimizer=None).fit(X, y).kernel_
    kinds = [type(leaf).__name__ for leaf in (fitted.k1.k1, fitted.k1.k2, fitted.k2)]
    assert kinds == ["ConstantKernel", "Matern", "WhiteKernel"]
    assert fitted.k1.k2.nu == 1.5 and len(np.atleast_1d(fitted.k1.k2.length_scale)) == 2


def test_no_optimizer_keeps_the_kernel():
    X, y, _ = problem()
    kernel = KERNELS["rbf ard + white"]
    before = clone(kernel)
    model = IterativeGPRegressor(kernel, optimizer=None).fit(X, y)
    assert model.kernel_ is not kernel
    assert_allclose(model.kernel_.theta, before.theta, rtol=1e-12)
    IterativeGPRegressor(kernel).fit(X, y)
    assert kernel == before


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bounds_are_kept():
    X, y, _ = problem()
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.0, (0.9, 1.1)) + WhiteKernel(0.1, (0.09, 0.11))
    for optimizer in ("auto", "adam"):
        fitted = IterativeGPRegressor(kernel, optimizer=optimizer).fit(X, y).kernel_
        assert fitted.k1.k1.constant_value == 2.0
        assert 0.9 <= fitted.k1.k2.length_scale <= 1.1 + 1e-12
        assert 0.09 <= fitted.k2.noise_level <= 0.11 + 1e-12
        assert_array_equal(fitted.bounds, kernel.bounds)


def test_all_parameters_fixed():
    X, y, X_new = problem()
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed")
    model = IterativeGPRegressor(kernel).fit(X, y)
    assert model.kernel_ == kernel
    theirs = GaussianProcessRegressor(kernel).fit(X, y)
    assert_allclose(model.predict(X_new), theirs.predict(X_new), rtol=1e-3, atol=1e-3)


def test_callable_optimizer():
    X, y, _ = problem()
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    seen = {}

    def optimizer(obj_func, initial_theta, bounds):
        seen["value"], seen["gradient"] = obj_func(initial_theta)
        seen["alone"] = obj_func(initial_theta, eval_gradient=False)
        seen["bounds"] = bounds
        return initial_theta + 0.1, obj_func(initial_theta + 0.1, eval_gradient=False)

    theirs = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    model = IterativeGPRegressor(kernel, optimizer=optimizer, **EXACT).fit(X, y)
    assert_allclose(model.kernel_.theta, kernel.theta + 0.1)
    lml, gradient = theirs.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    assert seen["value"] == pytest.approx(-lml) and seen["alone"] == pytest.approx(-lml)
    assert_allclose(seen["gradient"], -gradient, rtol=1e-6)
    assert_array_equal(seen["bounds"], kernel.bounds)
    assert model.log_marginal_likelihood_value_ == pytest.approx(
        theirs.log_marginal_likelihood(kernel.theta + 0.1)
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_restarts_never_lose():
    X = np.linspace(0, 6, 25)[:, None]
    y = np.sin(3 * X[:, 0])
    kernel = RBF(50.0, (1e-2, 1e3)) + WhiteKernel(1.0, (1e-6, 1e1))
    shared = {"kernel": kernel, "random_state": 0, **EXACT}
    once = IterativeGPRegressor(**shared).fit(X, y)
    often = IterativeGPRegressor(n_restarts_optimizer=4, **shared).fit(X, y)
    assert often.log_marginal_likelihood_value_ >= once.log_marginal_likelihood_value_ - 1e-6
    assert often.kernel_.k1.length_scale < 5


def test_restarts_need_finite_bounds():
    X, y, _ = problem()
    kernel = RBF(1.0, (1e-5, np.inf))
    with pytest.raises(ValueError, match="n_restarts_optimizer.*bounds.*finite"):
        IterativeGPRegressor(kernel, n_restarts_optimizer=1, alpha=0.1).fit(X, y)


def test_n_targets():
    X, y, _ = problem(2)
    IterativeGPRegressor(n_targets=2, optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match="n_targets.*Got 2 != 1"):
        IterativeGPRegressor(n_targets=1).fit(X, y)


def test_copy_X_train():
    X, y, X_new = problem()
    model = IterativeGPRegressor(optimizer=None, copy_X_train=True).fit(X, y)
    before = model.predict(X_new)
    X += 1.0
    y += 1.0
    assert_array_equal(model.predict(X_new), before)
    IterativeGPRegressor(optimizer=None, copy_X_train=False).fit(X, y).predict(X_new)


def test_gradient_needs_theta():
    X, y, _ = problem()
    with pytest.raises(ValueError, match="theta"):
        IterativeGPRegressor(optimizer=None).fit(X, y).log_marginal_likelihood(eval_gradient=True)


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 1), ()])
def test_theta_has_one_entry_a_hyperparameter(shape):
    X, y, _ = problem()
    model = IterativeGPRegressor(RBF([1.0, 1.0]) + WhiteKernel(0.1), optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match=rf"theta.*\(3,\).*got {re.escape(str(shape))}"):
        model.log_marginal_likelihood(np.zeros(shape))


# ---------------------------------------------------------------- fitted attributes, callbacks


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_fitted_attributes(solver):
    X, y, _ = problem()
    model = IterativeGPRegressor(solver=solver, max_iter=4, n_probes=4, random_state=0).fit(X, y)
    assert model.n_features_in_ == 2 and not hasattr(model, "feature_names_in_")
    assert np.isfinite(model.log_marginal_likelihood_value_)
    assert isinstance(model.n_iter_, int) and 1 <= model.n_iter_
    assert model.device_.startswith(("cpu", "cuda")) and model.dtype_ in ("float32", "float64")
    report = model.fit_report_
    assert report.status == "max_iter" and "max_iter=4" in report.stop_reason
    assert (report.epochs > 0) == (solver == "cg") == (report.residuals is not None)
    assert model.n_samples_seen_ == len(X)
    steps = {name: len(model.history_[name]) for name in HISTORY}
    assert set(steps.values()) == {model.n_iter_}, steps
    assert np.all(np.diff(model.history_["seconds"]) >= 0)


@pytest.mark.exact_input  # the far rows would be perturbed by milliseconds
@pytest.mark.parametrize("posterior", ["exact", "solve", "pathwise"])
def test_columns_far_from_zero_keep_their_digits(posterior):
    """Times in seconds: float32 holds them to two minutes, the waves are four minutes long."""
    rng = np.random.default_rng(0)
    X = 600 * rng.random((300, 1))
    y = np.sin(X[:, 0] / 40) + 0.05 * rng.standard_normal(300)
    kernel = RBF(40.0) + WhiteKernel(0.0025)
    settings = {"optimizer": None, "dtype": "float32", "posterior": posterior, "random_state": 0}
    if posterior != "exact":
        settings |= {"solver": "cg", "solver_tol": 1e-4, "n_probes": 64}
    near = IterativeGPRegressor(kernel, **settings).fit(X, y)
    far = IterativeGPRegressor(kernel, **settings).fit(X + 1.7e9, y)
    assert_allclose(far.predict(X + 1.7e9), near.predict(X), atol=2e-3)
    assert_allclose(far.predict_std(X + 1.7e9), near.predict_std(X), rtol=0.02)
    assert_array_equal(far.X_train_, X + 1.7e9)


@pytest.mark.parametrize("solver", ["cg", "block_cg"])
def test_the_final_solve_chooses_its_own_precision(thresholds, solver):
    """Rows times amplitude over noise is 1e9: hopeless in float32, whatever training used."""
    thresholds(FLOAT64_ROWS=100)
    X, y, _ = problem(n=800)
    kernel = 100.0 * RBF(2.0) + WhiteKernel(1e-4)
    settings = {"optimizer": None, "solver": solver, "posterior": "pathwise", "random_state": 0}
    ours = IterativeGPRegressor(kernel, **settings).fit(X[:-50], y[:-50])
    assert ours.dtype_ == "float64" and ours.fit_report_.status == "converged"
    exact = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True)
    exact.fit(X[:-50], y[:-50])
    assert_allclose(ours.predict(X[-50:]), exact.predict(X[-50:]), atol=0.05 * y.std())
    easy = IterativeGPRegressor(Matern(0.3) + WhiteKernel(0.1), **settings).fit(X[:-50], y[:-50])
    assert easy.dtype_ == "float32"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_callbacks_see_each_iteration(solver):
    X, y, _ = problem()
    seen = []

    def callback(info):
        seen.append((value(info, "iteration"), np.array(value(info, "theta"))))
        assert np.isfinite(value(info, "objective")) or solver == "cg"  # not known there

    shared = {"solver": solver, "max_iter": 4, "n_probes": 4, "random_state": 0}
    model = IterativeGPRegressor(callbacks=[callback], **shared).fit(X, y)
    assert len(seen) >= 1
    assert [i for i, _ in seen] == sorted(i for i, _ in seen)
    assert all(theta.shape == model.kernel_.theta.shape for _, theta in seen)
    silent = IterativeGPRegressor(**shared).fit(X, y)
    assert_array_equal(silent.kernel_.theta, model.kernel_.theta)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "optimizer, solver", [("lbfgs", "cholesky"), ("adam", "cholesky"), ("adam", "cg")]
)
def test_an_interrupt_leaves_a_model(optimizer, solver):
    X, y, X_new = problem()
    calls = []

    def callback(info):
        calls.append(info)
        if len(calls) == 2:
            raise KeyboardInterrupt

    model = IterativeGPRegressor(
        optimizer=optimizer, solver=solver, callbacks=[callback], normalize_y=True, random_state=0
    )
    with suppress(KeyboardInterrupt):
        model.fit(X, y)
    assert len(calls) == 2
    mean, std = model.predict(X_new, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    assert model.n_iter_ >= 1
    start = IterativeGPRegressor(optimizer=None, normalize_y=True, **EXACT).fit(X, y)
    best = start.log_marginal_likelihood(model.kernel_.theta)
    assert best >= start.log_marginal_likelihood_value_ - 1e-6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_callbacks():
    pytest.importorskip("sklearn.callback", reason="scikit-learn < 1.9")
    X, y, _ = problem()

    class Recorder:
        events, predictions = [], []

        def setup(self, estimator, context):
            self.events.append("setup")

        def teardown(self, estimator, context):
            self.events.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            self.events.append("begin")

        def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
            self.events.append("end")
            if fitted_estimator is not None:
                self.predictions.append(fitted_estimator.predict(X))

    recorder = Recorder()
    model = IterativeGPRegressor(max_iter=3).set_callbacks(recorder).fit(X, y)
    assert recorder.events[:2] == ["setup", "begin"]
    assert recorder.events[-2:] == ["end", "teardown"]
    assert recorder.events.count("end") == recorder.events.count("begin") >= 2
    assert_allclose(recorder.predictions[-1], model.predict(X))
    assert_array_equal(clone(model).fit(X, y).kernel_.theta, model.kernel_.theta)


def test_a_breakdown_is_not_put_down_to_the_learning_rate():
    X, y, _ = problem()

    class Breaking(CG):
        def step(self, operator, state):
            state.columns = torch.full_like(state.columns, Column.BROKEN)
            return state

    model = IterativeGPRegressor(
        RBF([1.0, 1.0]) + WhiteKernel(0.1), solver=Breaking(), learning_rate=0.5, optimizer="adam"
    )
    (message,) = fit_recording(model, X, y)
    assert "broke down" in message and "learning_rate" not in message
    assert "positive definite" in message


# ---------------------------------------------------------------- settings that cannot be honoured


def test_no_convergence_is_one_warning():
    X, y, X_new = problem(n=60)
    kernel = 1.0 * RBF(3.0) + WhiteKernel(1e-6)
    model = IterativeGPRegressor(
        kernel,
        solver="cg",
        optimizer=None,
        solver_tol=1e-10,
        solver_max_epochs=1,
        preconditioner=None,
    )
    messages = fit_recording(model, X, y)
    assert len(messages) == 1
    assert re.search(r"residual\D*\d", messages[0])
    assert "solver_max_epochs" in messages[0] and model.fit_report_.status == "max_iter"
    assert np.isfinite(model.predict(X_new)).all()


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_convergence_is_silent(solver):
    X, y, _ = problem()
    kernel = 1.0 * RBF(1.0) + WhiteKernel(0.1)
    model = IterativeGPRegressor(kernel, solver=solver, optimizer=None, normalize_y=True)
    assert fit_recording(model, X, y) == []


def test_memory_budget_is_checked_before_work():
    X, y, _ = problem(n=300)
    model = IterativeGPRegressor(solver="cholesky", memory_budget=100_000)
    with pytest.raises(MemoryError, match=r"needs .*(KiB|MiB).*(budget|available).*: .*"):
        model.fit(X, y)


def test_memory_for_a_wide_covariance_is_checked(stand_in):
    X, y, _ = problem()
    model = IterativeGPRegressor(optimizer=None).fit(X, y)
    wide = np.zeros((2_000, 2))
    stand_in("available_memory", lambda device="cpu": 2**20)
    for ask in (lambda: model.predict(wide, return_cov=True), lambda: model.sample_y(wide)):
        with pytest.raises(MemoryError, match="2,?000 rows.* needs .*MiB"):
            ask()
    assert model.predict(wide).shape == (2_000,)


@pytest.mark.parametrize(
    "name, known",
    [
        ("solver", ["cholesky", "cg"]),
        ("gradient", ["exact", "standard", "pathwise"]),
        ("optimizer", ["adam", "lbfgs", "fmin_l_bfgs_b"]),
        ("preconditioner", ["pivoted_cholesky", "nystrom"]),
        ("posterior", ["exact", "pathwise"]),
    ],
)
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_unknown_names_list_the_known(name, known, solver):
    X, y, _ = problem()
    with pytest.raises(ValueError, match=name) as caught:
        IterativeGPRegressor(**{"solver": solver, name: "magic"}).fit(X, y)
    assert "'magic'" in str(caught.value)
    assert all(f"'{choice}'" in str(caught.value) for choice in known)


def test_mean_only_prediction_is_chunked():
    X, y, _ = problem()
    model = IterativeGPRegressor(optimizer=None).fit(X, y)
    mean = model.predict(np.zeros((200_000, 2)))
    assert mean.shape == (200_000,) and np.ptp(mean) < 1e-9


# ---------------------------------------------------------------- objects in place of strings


def solver_objects():
    from skscalablegp.preconditioners import PivotedCholesky
    from skscalablegp.solvers import CG

    return CG, PivotedCholesky


def test_a_solver_object_is_accepted():
    CG, PivotedCholesky = solver_objects()
    X, y, X_new = problem()
    theirs, ours = pair(
        KERNELS["rbf ard + white"],
        X,
        y,
        ours={**ITERATED, "solver": CG(preconditioner=PivotedCholesky(rank=10))},
    )
    assert_allclose(ours.predict(X_new), theirs.predict(X_new), rtol=1e-5, atol=1e-5)
    assert ours.get_params()["solver__preconditioner__rank"] == 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_grid_search_over_nested_parameters():
    CG, PivotedCholesky = solver_objects()
    X, y, _ = problem()
    model = IterativeGPRegressor(
        solver=CG(preconditioner=PivotedCholesky(rank=5)), max_iter=2, n_probes=2, random_state=0
    )
    grid = {"solver__preconditioner__rank": [3, 6], "normalize_y": [True]}
    search = GridSearchCV(model, grid, cv=2, n_jobs=2, error_score="raise").fit(X, y)
    assert search.best_params_["solver__preconditioner__rank"] in (3, 6)
    assert model.solver.preconditioner.rank == 5


@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn < 1.9")
@pytest.mark.parametrize("settings", [EXACT, {"solver": "cg", "posterior": "pathwise"}])
def test_callbacks_of_scikit_learn_see_a_working_model(settings):
    X, y, X_new = problem(n=30)
    kernels = set()

    def look(between):
        mean, std = between.predict(X_new, return_std=True)
        assert np.isfinite(mean).all() and np.isfinite(std).all()
        kernels.add(str(between.kernel_))

    settings = settings | {"max_iter": 4, "random_state": 0, "normalize_y": True}
    watched = IterativeGPRegressor(**settings).set_callbacks(Watch(look)).fit(X, y)
    alone = IterativeGPRegressor(**settings).fit(X, y)
    assert len(kernels) > 2
    assert_allclose(watched.predict(X_new), alone.predict(X_new))


# ---------------------------------------------------------------- hardly any noise


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        IterativeGPRegressor(),
        IterativeGPRegressor(solver="cg", posterior="solve"),
        IterativeGPRegressor(solver="block_cg", posterior="solve"),
        IterativeGPRegressor(solver="adasap", posterior="solve"),
        IterativeGPRegressor(solver="ap", posterior="neighbors"),
        RRCGRegressor(posterior="solve"),
        PoERegressor(),
        NNGPRegressor(n_neighbors=12),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["white", "alpha", "noise_variance"])
def test_a_tiny_fixed_noise_interpolates(model, how):
    """An Ornstein-Uhlenbeck process is Markov: rows between two others depend on these two only."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.permutation(np.arange(400.0))[:90]) / 100
    y = np.cumsum(rng.standard_normal(90)) / 5
    kernel = Matern(0.7, nu=0.5)
    fit = {}
    if how == "white":
        kernel = kernel + WhiteKernel(1e-10, "fixed")
    elif how == "noise_variance":
        fit["noise_variance"] = np.full(90, 1e-10)
    model = clone(model).set_params(kernel=kernel, optimizer=None, random_state=0, dtype="float64")
    model.set_params(alpha=1e-10 if how == "alpha" else 1e-12)
    new = x[:-1] + np.diff(x) * rng.uniform(0.1, 0.9, 89)
    mean, std = model.fit(x[:, None], y, **fit).predict(new[:, None], return_std=True)
    left, right = np.exp(-(new - x[:-1]) / 0.7), np.exp(-(x[1:] - new) / 0.7)
    whole = 1 - (left * right) ** 2
    expected = left * (1 - right**2) * y[:-1] + right * (1 - left**2) * y[1:]
    assert_allclose(mean, expected / whole, atol=1e-5)
    assert_allclose(std**2, (1 - left**2) * (1 - right**2) / whole, rtol=1e-4)
