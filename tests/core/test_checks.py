"""Checks by an exact process of a few rows: the table is rough, or columns interact."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import (
    KISSGPRegressor,
    PoERegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SVGPRegressor,
)
from skscalablegp.core import FitRun, GivenRows, left_out, rows_to_check, warn_if_rough
from skscalablegp.core.data import merged, problem_square
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.models.grid._interactions import check_interactions

N = 2100
MODELS = [
    SGPRRegressor(n_inducing=20, max_iter=2, random_state=0),
    SVGPRegressor(n_inducing=20, max_iter=25, random_state=0),
    PoERegressor(expert_size=300, max_iter=2, random_state=0),
    RFFRegressor(n_components=30, max_iter=2, random_state=0),
]


def table(d, waves, noise, n=N):
    """Rows of d columns, and a sum of random waves with so many radians from end to end."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, d))
    f = np.cos(X @ (rng.standard_normal((d, 300)) * waves / 2) + rng.uniform(0, 7, 300)).sum(1)
    return X, f / f.std() + noise * rng.standard_normal(n)


ROUGH = table(8, 2.4, 0.05)
SMOOTH = table(2, 3.0, 0.1)


def problem(X, y, length, noise, extra=0.0):
    kernel = compile_kernel(ConstantKernel() * RBF(length) + WhiteKernel(noise), X.shape[1])
    return GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y)[:, None], extra))


def messages(model, X, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [str(w.message) for w in caught if w.category is ConvergenceWarning]


def test_leverage_and_errors_left_out_by_dense_algebra():
    X, y = (a[:40] for a in SMOOTH)
    extra = np.random.default_rng(1).uniform(0.01, 0.1, 40)
    p = problem(X, y, 0.7, 0.02, extra)
    found = left_out(p, p.kernel.theta0)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(2) / 0.7**2)
    S = np.diag(0.02 + extra)
    assert found.leverage == pytest.approx(np.trace(np.linalg.solve(K + S, K)) / 40)
    errors = []
    for i in range(40):
        others = np.arange(40) != i
        weights = np.linalg.solve((K + S)[np.ix_(others, others)], y[others])
        errors.append(y[i] - K[i, others] @ weights)
    assert found.unexplained == pytest.approx(np.mean(np.square(errors)) / y.var())


def test_of_equal_rows_one_is_left_out_at_a_time():
    rng = np.random.default_rng(0)
    of = np.sort(rng.integers(0, 12, 40))
    X, y = rng.normal(size=(12, 2))[of], rng.normal(size=40) + of / 4
    found = merged(X, y, [])
    kernel = compile_kernel(ConstantKernel() * RBF(0.7) + WhiteKernel(0.2), 2)
    rows = torch.tensor(X[found.rows]), torch.tensor(found.y)[:, None]
    problem = GPProblem(kernel, Rows.of(*rows, 0.0, found.counts, found.within[:, 0]))
    assert problem_square(problem) == pytest.approx(np.mean(y**2))
    ours = left_out(problem, kernel.theta0)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(2) / 0.7**2)
    H = K + 0.2 * np.eye(40)
    assert ours.leverage == pytest.approx(np.trace(np.linalg.solve(H, K)) / 40)
    errors = np.linalg.solve(H, y) / np.diag(np.linalg.inv(H))
    assert ours.unexplained == pytest.approx(np.mean(np.square(errors)) / y.var())


def test_errors_of_a_sum_over_columns_are_those_of_single_rows(stand_in):
    """A sum that predicts nothing leaves all of the targets' mean square, that of copies too."""
    rng = np.random.default_rng(0)
    of = np.sort(rng.integers(0, 30, 300))
    X, y = rng.normal(size=(30, 2))[of], 1 + rng.normal(size=30)[of] + 0.5 * rng.normal(size=300)
    model = KISSGPRegressor()
    table = GivenRows.read(model, X, y).in_units(np.zeros(1), np.ones(1))
    kernel = compile_kernel(ConstantKernel() * RBF(0.1) + WhiteKernel(0.25), 2)
    few = table.problem(kernel, torch.float64, torch.device("cpu"), keep=True)
    stand_in("exact_check", lambda *given: (few, kernel.theta0))
    with FitRun(KISSGPRegressor()) as run:
        run.begin(table.X, table.y)
        check_interactions(table, lambda rows: torch.zeros(len(rows), 1), True, run)
        said = run.part().advice
    assert f"leaves {np.mean(y**2) / y.var():.2g} of" in said[0]


@pytest.mark.parametrize(
    ("rows", "length", "noise", "rough"),
    [
        (ROUGH, 0.9, 1e-3, True),
        # Nearly every row is a parameter of its own, but rows left out are predicted well.
        (table(8, 1.8, 0.05), 0.9, 1e-3, False),
        # Noise is taken for a function: more rows do not predict it better.
        (table(8, 0.5, 1.0), 0.9, 1e-3, False),
        (SMOOTH, 0.7, 0.01, False),
    ],
)
def test_only_a_target_that_more_rows_explain_better_is_rough(rows, length, noise, rough):
    model = SGPRRegressor(random_state=0)
    with FitRun(model) as run:
        before = run.generator.get_state()
        p = problem(*rows, length, noise)
        theta = p.kernel.theta0
        warn_if_rough(p.subset(rows_to_check(2000, run)), theta, 2000, run)
        assert run._advice == []
        warn_if_rough(p.subset(rows_to_check(N, run)), theta, N, run)
        assert torch.equal(run.generator.get_state(), before)
        found, run._advice = run._advice, []
        # A model that explains more than these rows needs no other one.
        warn_if_rough(p.subset(rows_to_check(N, run)), theta, N, run, unexplained=0.1)
        assert run._advice == []
    assert [m.partition(".")[0] for m in found] == rough * [
        "the target is too rough for an approximation"
    ]


@pytest.mark.parametrize(
    "model",
    [MODELS[0], *(pytest.param(model, marks=pytest.mark.slow) for model in MODELS[1:])],
    ids=lambda m: type(m).__name__,
)
def test_a_rough_target_is_reported_by_models_that_approximate(model):
    (message,) = messages(model, *ROUGH)
    assert type(model).__name__ in message and "Use IterativeGPRegressor" in message
    assert model.fit_report_.remark in message and "too rough" in model.fit_report_.remark


@pytest.mark.slow
def test_a_rough_target_is_reported_by_networks():
    X, y = table(8, 3.0, 0.05, 3100)
    (message,) = messages(SCGDDKLRegressor(max_epochs=2, random_state=0), X, y)
    assert "SCGDDKLRegressor" in message and "Use IterativeGPRegressor" in message
    given = SCGDDKLRegressor(feature_extractor=(8,), max_epochs=2, random_state=0)
    assert messages(given, X, y) == []


@pytest.mark.slow
def test_a_network_that_explains_the_rows_is_not_compared():
    """A target of one direction: ridges are what networks find."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3100, 8))
    model = SCGDDKLRegressor(max_epochs=2, random_state=0)
    assert messages(model, X, np.tanh(X.sum(1))) == []
    assert "check" not in model.fit_report_.seconds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:RFFRegressor.*raise max_iter")
def test_a_check_without_a_warning_changes_nothing(monkeypatch):
    model = MODELS[-1]
    expected = model.fit(*SMOOTH).predict(SMOOTH[0][:9])
    assert model.fit_report_.remark == "" and "check" in model.fit_report_.seconds
    monkeypatch.setattr(RFFRegressor, "_check_roughness", lambda *_: None)
    np.testing.assert_array_equal(model.fit(*SMOOTH).predict(SMOOTH[0][:9]), expected)


@pytest.mark.slow
def test_a_sum_over_columns_says_that_columns_interact():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (N, 5))
    noise = 0.1 * rng.standard_normal(N)
    model = KISSGPRegressor(random_state=0)
    (message,) = messages(model, X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise)
    assert "KISSGPRegressor" in message and "columns interact" in message
    assert model.fit_report_.remark in message
    assert messages(model, X, np.sin(2 * X[:, 0]) + X[:, 1] + noise) == []
