"""Models that have learned nothing say so, where there is something to learn."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPClassifier,
    QSGPRegressor,
    RFFRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.core import FitRun, LeftOut
from skscalablegp.core._learned import nothing_learned

# All rows are far apart, so that the covariance matrix is diagonal whatever training does.
BLIND = ConstantKernel() * Matern(0.01, "fixed", nu=1.5) + WhiteKernel()
REGRESSORS = [
    IterativeGPRegressor(BLIND),
    IterativeGPRegressor(BLIND, solver="cg", max_iter=3, random_state=0),
    NNGPRegressor(BLIND, n_neighbors=20, random_state=0),
    PoERegressor(BLIND, expert_size=80, random_state=0),
    SVGPRegressor(BLIND, n_inducing=30, max_iter=10, random_state=0),
    SGPRRegressor(BLIND, n_inducing=30, random_state=0),
    RFFRegressor(BLIND, n_components=50, random_state=0),
    SSRFFRegressor(BLIND, random_state=0),
    QSGPRegressor(BLIND, n_components=8, random_state=0),
]


def table(seed=0, n=300, d=8):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X[:, 0] + 0.3 * rng.standard_normal(n), rng.standard_normal(n)


def fitted(model, X, y):
    """The model, and its warnings of training."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    ours = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
    # scikit-learn's sentences about bounds are warnings of their own.
    return model, [message for message in ours if "bound" not in message]


@pytest.mark.parametrize("model", REGRESSORS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("targets", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_null_model_is_named(model, targets):
    X, y, _ = table()
    Y = y if targets == 1 else np.column_stack([y, 3 * y])
    model, warned = fitted(model, X, Y)
    report = model.fit_report_
    assert report.status not in ("converged", "completed")
    assert len(warned) == 1 and "learned nothing" in warned[0]
    assert "linear model" in warned[0] or "boosted trees" in warned[0]
    if report.status == "no_signal":
        assert "learned nothing" in report.stop_reason
        assert report.stop_reason in str(report)


@pytest.mark.parametrize("model", REGRESSORS, ids=lambda model: type(model).__name__)
def test_noise_is_nothing_to_learn(model):
    X, _, noise = table()
    _, warned = fitted(model, X, noise)
    assert not any("learned nothing" in message for message in warned)


def test_a_model_that_has_learned_is_not_compared(stand_in):
    """Its predictions correlate with the targets, so that simple models are not even fitted."""
    X, y, _ = table()
    asked = []
    stand_in("simple_signals", lambda *args: asked.append(1) or [], at="_learned")
    assert fitted(IterativeGPRegressor(), X, y)[0].fit_report_.status == "converged"
    assert not asked


def test_own_targets_do_not_count():
    """An exact process without noise reproduces its targets, and still has learned nothing."""
    X, y, _ = table()
    kernel = Matern(0.01, "fixed", nu=1.5) * ConstantKernel()
    model, warned = fitted(IterativeGPRegressor(kernel, alpha=1e-3), X, y)
    assert model.score(X, y) > 0.99
    assert model.fit_report_.status == "no_signal" and len(warned) == 1


def test_hyperparameters_that_are_kept_are_no_failure_of_training():
    X, y, _ = table()
    model, warned = fitted(IterativeGPRegressor(BLIND, optimizer=None), X, y)
    assert model.fit_report_.status == "converged"
    assert len(warned) == 1 and "correlated" in warned[0] and "learned nothing" not in warned[0]


@pytest.mark.parametrize(
    "model",
    [
        SVGPClassifier(BLIND.k1, n_inducing=30, max_iter=20, random_state=0),
        QSGPClassifier(BLIND.k1, n_components=16, max_iter=5, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_classifiers(model, classes):
    X, y, noise = table(n=400)
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model, warned = fitted(model, X, labels)
    assert model.fit_report_.status not in ("converged", "completed")
    assert len(warned) == 1 and "learned nothing" in warned[0]
    labels = np.digitize(noise, np.quantile(noise, np.arange(1, classes) / classes))
    assert not any("learned nothing" in message for message in fitted(model, X, labels)[1])


def test_simple_models_draw_no_numbers_of_the_global_generator():
    X, y, _ = table()
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.RandomState(5).rand()
    IterativeGPRegressor(random_state=0).fit(X, y)
    assert np.random.rand() == expected  # noqa: NPY002


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_targets_count_alike_whatever_their_units(scale):
    """A model that has learned one of two targets has learned something."""
    X, y, noise = table()

    class Half:
        def _left_out(self, X, y, noise_variance, rows):
            return LeftOut(rows, np.column_stack([0 * rows, X[rows, 0]]), None, "leave_one_out")

    assert nothing_learned(Half(), X, np.column_stack([scale * noise, y])) == ""


def test_whichever_targets_have_a_signal():
    X, y, _ = table()

    class Blank:
        def _left_out(self, X, y, noise_variance, rows):
            return LeftOut(rows, np.zeros((len(rows), 4)), None, "leave_one_out")

    targets = np.column_stack([np.zeros((len(X), 3)), y])
    assert "learned nothing" in nothing_learned(Blank(), X, targets)


def test_tables_of_whole_numbers_are_checked():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 50, (300, 4)).astype(float)
    model = SVGPClassifier(BLIND.k1, max_iter=10, random_state=0)
    _, warned = fitted(model, X, (X[:, 0] + X[:, 1] > 50).astype(int))
    assert any("learned nothing" in message for message in warned)


def test_an_interrupted_check_leaves_a_complete_model(stand_in):
    X, y, _ = table()

    def interrupted(*args):
        raise KeyboardInterrupt

    stand_in("nothing_learned", interrupted)
    model, warned = fitted(IterativeGPRegressor(), X, y)
    assert model.fit_report_.status == "converged" and not warned


UNITS = 1e4


@pytest.mark.parametrize(
    "model",
    [
        IterativeGPRegressor(ConstantKernel() * RBF(1.0, (1e-2, 1e2)) + WhiteKernel()),
        IterativeGPRegressor(ConstantKernel() * RBF() + WhiteKernel(), optimizer=None),
        NNGPRegressor(RBF(1.0, "fixed") + WhiteKernel(), random_state=0),
        KISSGPRegressor(
            ConstantKernel() * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(),
            small_table="method",
            max_iter=2,
            grid_size=8,
        ),
        KISSGPRegressor(RBF() + WhiteKernel(), optimizer=None, structure="additive"),
    ],
    ids=["bounds", "no optimizer", "fixed", "grid", "sum of grids"],
)
def test_columns_in_other_units_than_the_kernel_end_in_a_warning(model):
    """Fifty rows are too few for a comparison with simple models."""
    X, y, _ = table(n=50, d=3)
    fine = [said for said in fitted(clone(model), X, y)[1] if "correlated" in said]
    assert not fine
    (told,) = [said for said in fitted(model, UNITS * X, y)[1] if "correlated" in said]
    assert "StandardScaler" in told and type(model).__name__ in told


def test_a_sum_of_grids_that_misses_a_product_has_not_converged():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 2))
    model = KISSGPRegressor(structure="additive", grid_size=8, random_state=0)
    _, warned = fitted(model, X, np.sign(X[:, 0] * X[:, 1]))
    assert model.fit_report_.status == "no_signal" and hasattr(model, "grid_")
    assert sum(said.count("learned nothing") for said in warned) == 1


@pytest.mark.parametrize("d", [1, 2])
def test_points_of_a_grid_that_are_not_correlated_are_named(d):
    """The kernel correlates a few rows, but a step of the grid is many length scales."""
    X, y, _ = table(n=300, d=2)
    model = KISSGPRegressor(
        RBF(1.0, (0.1, 10.0)) + WhiteKernel(), small_table="method", max_iter=1, grid_size=20
    )
    X = UNITS * X[:, :d]
    X[1] = X[0] + 0.1
    (told,) = [said for said in fitted(model, X, y)[1] if "correlated" in said]
    (axis, *_), *_ = model.grid_.components
    assert axis.step > 100 and "no two neighbouring points of the grid" in told
    # With a length scale of a step the correlation of neighbours is exp(-1 / 2).
    model.set_params(kernel=RBF(axis.step, "fixed") + WhiteKernel())
    assert not [said for said in fitted(model, X, y)[1] if "correlated" in said]


def test_a_kernel_that_fits_the_columns_is_not_warned_of():
    X, y, _ = table(n=50, d=3)
    model = IterativeGPRegressor(ConstantKernel() * RBF() + WhiteKernel(), random_state=0)
    assert not [said for said in fitted(model, UNITS * X, y)[1] if "correlated" in said]
    assert model.score(UNITS * X, y) > 0.5


def test_fits_to_few_rows_are_compared_even_if_they_took_all_of_their_time(thresholds, monkeypatch):
    check = FitRun._check_learned

    def late(run):
        run.budget.limit = 0.0
        check(run)

    monkeypatch.setattr(FitRun, "_check_learned", late)
    X, y, _ = table()
    model = IterativeGPRegressor(BLIND)
    assert fitted(model, X, y)[0].fit_report_.status == "no_signal"
    thresholds(_COMPARED_ROWS=299)
    assert fitted(model, X, y)[0].fit_report_.status == "converged"
