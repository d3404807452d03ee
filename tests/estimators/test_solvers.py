"""Every solver trains IterativeGPRegressor, by name and as an object that a search can vary."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import GridSearchCV

from skscalablegp import IterativeGPRegressor
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import ADASAP, AP, CG, SDD, SGD

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


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("gradient", ["standard", "pathwise"])
@pytest.mark.parametrize("solver", NAMES)
def test_solvers_train_alike(solver, gradient, warm):
    X, y = problem()
    settings = {"gradient": gradient, "warm_start_solver": warm, "tol": 1e-5}
    reference, _ = fit(X, y, solver=CG(), **settings)
    model, caught = fit(X, y, solver=solver, **settings)
    assert not caught
    assert model.solver_ == solver
    assert_allclose(model.kernel_.theta, reference.kernel_.theta, atol=1e-3)
    assert_allclose(model.predict(X), reference.predict(X), atol=1e-3)


@pytest.mark.parametrize("solver", OBJECTS, ids=lambda solver: type(solver).__name__)
def test_a_budget_is_one_warning_and_a_trace(solver):
    X, y = problem()
    model, caught = fit(X, y, solver=solver, tol=1e-7, max_epochs=3, posterior="pathwise")
    assert len(caught) == 1
    assert model.solver_info_["status"] == "max_epochs"
    assert min(model.history_["residual"]) > 1e-7
    assert max(model.history_["epochs"]) < 6
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()


def test_a_search_varies_solvers_and_their_settings():
    X, y = problem()
    model = IterativeGPRegressor(max_iter=2, n_probes=2, random_state=0)
    grid = [
        {"solver": [CG("rpcholesky"), SDD(10)], "gradient": ["standard", "pathwise"]},
        {"solver": [AP()], "solver__block_size": [5, 20]},
        {"solver": [ADASAP(10)], "solver__rank": [3, None], "warm_start_solver": [False]},
    ]
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("posterior", ["pathwise", "solve"])
@pytest.mark.parametrize("solver", ["cg", "block_cg"])
def test_no_preconditioner_by_name_is_none(solver, posterior, monkeypatch):
    X, y = problem()

    def refuse(*args):
        raise AssertionError("built a preconditioner")

    monkeypatch.setattr(PivotedCholesky, "build", refuse)
    model, _ = fit(X, y, solver=solver, preconditioner=None, posterior=posterior)
    model.predict(X, return_std=True)
    assert model.solver_ == solver
