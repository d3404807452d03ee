"""A search over truncations, solvers and gradient estimators decides between different models."""

import numpy as np
import pytest
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import IterativeGPRegressor, RRCGRegressor
from skscalablegp.gradients import TruncatedGradient
from skscalablegp.preconditioners import PivotedCholesky

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LAWS = ["exponential", "geometric", "reciprocal", "fixed"]


def table(n):
    X, y = make_friedman1(n, n_features=6, noise=0.1, random_state=0)
    return X, (y - y.mean()) / y.std()


@pytest.mark.slow
def test_laws_of_truncation_lead_to_different_models():
    X, y = table(300)
    # Little noise makes systems that twenty iterations do not solve.
    kernel = ConstantKernel() * RBF(np.ones(6)) + WhiteKernel(1e-4)
    settings = dict(max_iter=6, n_iter_no_change=None, random_state=0)
    models = [RRCGRegressor(kernel, truncation=law, **settings).fit(X, y) for law in LAWS]
    thetas = np.array([model.kernel_.theta for model in models])
    apart = np.abs(thetas[:, None] - thetas[None]).max(2)
    assert (apart + np.eye(4) > 1e-4).all()
    # Most steps leave a series that has terms of size left, by default.
    assert all(model.fit_report_.cut_steps >= model.n_iter_ / 2 for model in models)
    assert all(model.fit_report_.cut_steps <= model.n_iter_ for model in models)


def test_solved_series_do_not_count_as_cut():
    X, y = table(60)
    model = RRCGRegressor(truncation="fixed", max_iter=2, random_state=0, n_iter_no_change=None)
    model.set_params(truncation__n_iter=60, preconditioner=PivotedCholesky(rank=60)).fit(X, y)
    assert model.fit_report_.cut_steps == 0
    model.set_params(truncation__n_iter=1, preconditioner=None).fit(X, y)
    assert model.fit_report_.cut_steps == 2


@pytest.mark.parametrize(
    "n, rank", [(39, 1), (400, 10), (7_999, 199), (8_000, 200), (100_000, 200)]
)
def test_training_takes_a_preconditioner_that_leaves_something_to_cut(n, rank):
    from skscalablegp.models.iterative._rrcg import preconditioner_of_training

    chosen = PivotedCholesky(rank=200, randomized=True)
    assert preconditioner_of_training(chosen, n).rank == rank
    assert chosen.rank == 200


@pytest.mark.slow
def test_one_search_in_a_pipeline_over_truncation_solver_and_gradient():
    X, y = table(150)
    kernel = ConstantKernel() * RBF(np.ones(6)) + WhiteKernel(1e-4)
    few = dict(max_iter=3, random_state=0, n_probes=4)
    pipeline = make_pipeline(StandardScaler(), IterativeGPRegressor(kernel, **few))
    step = "iterativegpregressor"
    grid = [
        {
            step: [IterativeGPRegressor(kernel, **few, preconditioner=None)],
            f"{step}__solver": ["cg", "ap"],
            f"{step}__gradient": ["standard", "pathwise"],
        },
        {
            step: [IterativeGPRegressor(kernel, **few)],
            f"{step}__gradient": [TruncatedGradient(n_probes=4)],
            f"{step}__gradient__truncation": ["geometric", "fixed"],
        },
        {
            step: [RRCGRegressor(kernel, **few)],
            f"{step}__truncation": LAWS[:3],
            f"{step}__truncation__min_iter": [2],
        },
    ]

    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == 4 + 2 + 3
    assert np.isfinite(scores).all()
    assert len(np.unique(scores.round(8))) == len(scores)
    assert 0 < search.score(X, y) <= 1
