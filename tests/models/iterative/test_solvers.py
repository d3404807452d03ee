"""Every solver trains IterativeGPRegressor, by name and as an object that a search can vary."""

import warnings
from itertools import count

import numpy as np
import pytest
import torch
from inside import clock
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV

from skscalablegp import IterativeGPRegressor
from skscalablegp.core.training import Budget, Monitor, train
from skscalablegp.gradients import ExactGradient, PathwiseGradient, StandardGradient
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, resolve_gradient
from skscalablegp.solvers import ADASAP, AP, CG, SDD, SGD, BlockCG, Cholesky, End
from skscalablegp.training import Adam

NAMES = ["ap", "sgd", "sdd", "adasap"]
OBJECTS = [AP(10), SGD(10), SDD(10), ADASAP(10, rank=5)]


def problem(n=40):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def fit(X, y, **settings):
    """A fitted model and its ConvergenceWarnings."""
    kernel = RBF([1.0, 1.0]) + WhiteKernel(0.1)
    settings = {"n_probes": 4, "max_iter": 3, "random_state": 0, **settings}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = IterativeGPRegressor(kernel, **settings).fit(X, y)
    return model, [w for w in caught if issubclass(w.category, ConvergenceWarning)]


@pytest.mark.parametrize(
    "gradient, warm",
    [
        ("standard", False),
        ("pathwise", True),
        pytest.param("standard", True, marks=pytest.mark.slow),
        pytest.param("pathwise", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("solver", NAMES)
def test_solvers_train_alike(solver, gradient, warm, given_start):
    X, y = problem()
    settings = {"gradient": gradient, "solver_warm_start": warm, "solver_tol": 1e-5}
    reference, _ = fit(X, y, solver=CG(), **settings)
    model, caught = fit(X, y, solver=solver, **settings)
    assert len(caught) == 1 and "max_iter=3 ended" in str(caught[0].message)
    assert model.fit_report_.n_unconverged == 0
    assert model.solver_ == solver
    assert_allclose(model.kernel_.theta, reference.kernel_.theta, atol=1e-3)
    assert_allclose(model.predict(X), reference.predict(X), atol=1e-3)


@pytest.mark.parametrize(("kind", "gradient"), [(CG, "standard"), (BlockCG, "pathwise")])
def test_float64_residuals_in_a_float32_model(kind, gradient):
    X, y = problem()
    settings = {"gradient": gradient, "dtype": "float32", "solver_tol": 1e-5}
    plain, precise = (
        fit(X, y, solver=kind(residual_dtype=dtype), **settings)[0] for dtype in ("same", "float64")
    )
    for ours, expected in zip(
        precise.predict(X, return_std=True), plain.predict(X, return_std=True), strict=True
    ):
        assert_allclose(ours, expected, atol=1e-3)
    assert precise.sample_y(X[:3], 2).shape == (3, 2)


@pytest.mark.parametrize("solver", OBJECTS, ids=lambda solver: type(solver).__name__)
def test_a_budget_is_one_warning_and_a_trace(solver):
    X, y = problem()
    model, caught = fit(
        X, y, solver=solver, solver_tol=1e-7, solver_max_epochs=3, posterior="pathwise"
    )
    assert len(caught) == 1
    assert "solver_max_epochs" in str(caught[0].message)
    assert model.fit_report_.n_unconverged == model.n_iter_ + 1
    assert min(model.history_["residual"]) > 1e-7
    assert max(model.history_["epochs"]) < 6
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()


@pytest.mark.slow
def test_a_search_varies_solvers_and_their_settings():
    X, y = problem()
    model = IterativeGPRegressor(max_iter=2, n_probes=2, random_state=0)
    grid = [
        {"solver": [CG("rpcholesky"), SDD(10)], "gradient": ["standard", "pathwise"]},
        {"solver": [AP()], "solver__block_size": [5, 20]},
        {"solver": [ADASAP(10)], "solver__rank": [3, None], "solver_warm_start": [False]},
    ]
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("posterior", ["pathwise", "solve"])
@pytest.mark.parametrize("solver", ["cg", "block_cg"])
def test_no_preconditioner_by_name_is_none(solver, posterior, stand_in):
    X, y = problem()

    def refuse(*args):
        raise AssertionError("built a preconditioner")

    stand_in("PivotedCholesky.build", refuse)
    model, _ = fit(X, y, solver=solver, preconditioner=None, posterior=posterior)
    model.predict(X, return_std=True)
    assert model.solver_ == solver


def test_the_cholesky_objects_own_jitter_is_the_limit():
    X = np.linspace(0, 1, 100)[:, None]
    y = np.sin(6 * X[:, 0])
    kernel = ConstantKernel(1.0) * RBF(1.0)
    settings = {"alpha": 1e-300, "optimizer": None}
    model = IterativeGPRegressor(kernel, solver=Cholesky(1e-6), **settings).fit(X, y)
    assert 0 < model.fit_report_.jitter <= 1e-6 and model.solver_ == "cholesky"
    for optimizer in (None, "auto"):
        strict = IterativeGPRegressor(kernel, solver=Cholesky(0.0), alpha=1e-300)
        with pytest.raises(ValueError, match="jitter of 0.*Raise alpha"):
            strict.set_params(optimizer=optimizer).fit(X, y)
    with pytest.raises(ValueError, match="max_jitter must be"):
        strict.set_params(solver__max_jitter=-1).fit(X, y)


def test_a_gradient_objects_solver_is_the_one_reported():
    X, y = problem()
    model, _ = fit(X, y, n_probes="auto", gradient=StandardGradient("ap"))
    report = model.fit_report_
    assert model.solver_ == "ap" and "ap solves" in report.summary
    assert "solver='ap'" in report.ignored["solver"] and "n_probes=64" in report.ignored["n_probes"]
    assert "warm_start=True" in report.ignored["solver_warm_start"]
    given, _ = fit(X, y, n_probes="auto", gradient=StandardGradient(AP(10), n_probes=2))
    assert given.solver_ == "ap"
    exact, _ = fit(X, y, gradient=ExactGradient())
    assert exact.solver_ == "cholesky"
    same, _ = fit(X, y, solver="ap", n_probes=2, gradient=StandardGradient(AP(), n_probes=2))
    assert same.solver_ == "ap"


@pytest.mark.parametrize(
    "settings, gradient, named",
    [
        ({"solver": "ap"}, PathwiseGradient(n_probes=5), "solver='ap' contradicts .*has 'cg'"),
        ({"solver": AP(20)}, StandardGradient(AP(10)), "solver=AP.* contradicts .*AP"),
        ({"solver_tol": 1e-6}, StandardGradient(), "solver_tol=1e-06 contradicts .*has 0.01"),
        ({"n_probes": 3}, PathwiseGradient(n_probes=5), "n_probes=3 contradicts .*has 5"),
        ({"solver_max_epochs": 5}, StandardGradient(), "solver_max_epochs=5 contradicts"),
        ({"solver_warm_start": False}, StandardGradient(), "solver_warm_start=False contradicts"),
        ({"preconditioner": "nystrom"}, StandardGradient(), "preconditioner='nystrom' contra"),
        ({"preconditioner": None}, StandardGradient(), "preconditioner=None contradicts"),
        ({"solver": "cg"}, ExactGradient(), "ExactGradient.* needs .* solver='cg'"),
        ({"solver": CG("nystrom"), "preconditioner": None}, "auto", "preconditioner=None contra"),
    ],
    ids=str,
)
def test_objects_that_contradict_a_parameter_are_errors(settings, gradient, named):
    X, y = problem()
    with pytest.raises(ValueError, match=named):
        IterativeGPRegressor(gradient=gradient, **settings).fit(X, y)


def test_a_learning_rate_beside_an_optimizer_object_is_an_error():
    X, y = problem()
    with pytest.raises(ValueError, match="learning_rate=0.5 contradicts optimizer=Adam"):
        IterativeGPRegressor(optimizer=Adam(0.1), learning_rate=0.5).fit(X, y)


def test_softplus_moves_standard_deviations(given_start):
    """Adam's first step changes every u, with log(1 + exp(u)) = s, by its rate."""
    X, y = problem()
    kernel = ConstantKernel(2.0) * RBF(0.7) + WhiteKernel(0.04)
    model = IterativeGPRegressor(
        kernel, optimizer=Adam(0.1, transform="softplus"), max_iter=2, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first, second = model.fit(X, y).history_["theta"][:2]
    # The variance of the signal, the length scale, the variance of the noise.
    u = [np.log(np.expm1(np.exp(theta * [0.5, 1.0, 0.5]))) for theta in (first, second)]
    assert_allclose(first, kernel.theta)
    assert_allclose(np.abs(u[1] - u[0]), 0.1, rtol=1e-6)


@pytest.mark.parametrize(
    "solver, posterior, gradient",
    [
        ("cg", "solve", "standard"),
        ("cg", "pathwise", "pathwise"),
        # Solvers without a preconditioner, on few rows: pathwise, from exact prior samples.
        ("ap", "solve", "pathwise"),
    ],
)
def test_gradients_are_pathwise_where_samples_serve_predictions(
    solver, posterior, gradient, stand_in
):
    made = []

    def seeing(*args, **settings):
        made.append(settings.get("prior"))
        return resolve_gradient(*args, **settings)

    stand_in("resolve_gradient", seeing)
    X, y = problem()
    model, _ = fit(X, y, solver=solver, posterior=posterior)
    assert model.fit_report_.choices["gradient"].value == gradient
    prior = {"solve": "exact", "pathwise": "fourier"}[posterior]
    assert made[-1] == (prior if gradient == "pathwise" else None)


@pytest.mark.parametrize("seconds", [1e-9, 60.0])
@pytest.mark.parametrize("gradient", ["standard", "pathwise"])
def test_a_time_budget_ends_the_solve_under_way(gradient, seconds):
    """Each look at the clock takes a second; a solve looks between its steps."""
    X, y = problem(300)
    settings = {"solver": SGD(20), "solver_tol": 1e-9, "solver_max_epochs": 10_000}
    kernel = RBF([1.0, 1.0]) + WhiteKernel(0.1)
    gp = GPProblem(compile_kernel(kernel, 2), Rows.of(torch.tensor(X), torch.tensor(y[:, None])))
    estimator = {"standard": StandardGradient, "pathwise": PathwiseGradient}[gradient]
    looks = count()
    with clock(lambda: float(next(looks))):
        monitor = Monitor(budget=Budget(seconds))
        result = train(
            gp,
            estimator(**settings, n_probes=4),
            Adam(),
            gp.kernel.theta0.numpy(),
            gp.kernel.bounds.numpy(),
            max_iter=5,
            monitor=monitor,
            generator=torch.Generator().manual_seed(0),
        )
    # The clock is read at both ends of the solve and of the step, too.
    assert next(looks) < seconds + 20
    assert result.stop_reason == "max_seconds" and result.n_iter == 1
    assert monitor.solutions[-1].status is End.MAX_SECONDS
    assert_allclose(result.theta, kernel.theta)


def test_a_training_cut_in_its_first_solve_leaves_a_model():
    X, y = problem(100)
    settings = {"solver": "sgd", "solver_tol": 1e-3, "max_seconds": 1e-9}
    model, caught = fit(X, y, **settings)
    assert len(caught) == 1 and "max_seconds" in str(caught[0].message)
    assert model.fit_report_.status == "max_seconds"
    assert model.fit_report_.n_unconverged == 2, "that of training, and the final one"
    assert np.isfinite(model.predict(X)).all()
