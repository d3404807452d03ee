"""Every public estimator against scikit-learn's checks and the suite of this project.

A new estimator is one row below.
"""

import os
from unittest import SkipTest

# scikit-learn skips its array API checks where this is missing; the Makefile exports it too.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

import pytest
from contracts.estimator_contract import EstimatorContract, Row
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import estimator_checks_generator

from skscalablegp import (
    AutoGPClassifier,
    AutoGPRegressor,
    BSGDDKLRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    MeanFunctionRegressor,
    MinimaxDKLRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.truncation import ExponentialTruncation

ROWS = [
    Row(
        "kissgp",
        KISSGPRegressor(grid_size=12, structure="additive", max_iter=8),
        search={"grid_size": [9, 15]},
        columns="none",
        stands_for_its_class=True,
    ),
    Row(
        "kissgp-product",
        KISSGPRegressor(structure="product", max_iter=5),
        limit={"max_iter": 1},
        columns="numbers",
    ),
    Row(
        "kissgp-rows",
        KISSGPRegressor(),
        limit={"max_iter": 1},
        columns="numbers",
    ),
    Row(
        "kissgp-network",
        KISSGPRegressor(feature_extractor=[8, 1], max_epochs=10, max_iter=5, grid_size=15),
        limit={"max_iter": 1},
        # The network's features serve all targets.
        independent_targets=False,
        batch_rtol=1e-5,
        columns="none",
    ),
    Row(
        "love",
        LOVEPredictor(KISSGPRegressor(grid_size=8, structure="additive", solver="cg", max_iter=2)),
        search={"variance_rank": [5, 20]},
        repeat_rtol=1e-7,
        columns="none",
        stands_for_its_class=True,
    ),
    Row("love-features", LOVEPredictor(RFFRegressor(max_iter=5))),
    Row(
        "love-grows",
        LOVEPredictor(
            KISSGPRegressor(grid_size=8, solver="cg", max_iter=2),
            variance_rank=2,
            variance_tol=1e-6,
        ),
        limit={"max_variance_rank": 2},
        columns="numbers",
    ),
    Row(
        "heteroscedastic",
        HeteroscedasticRegressor(PoERegressor(max_iter=5)),
        multi_output=False,
        no_limit="training is that of the regressor below",
        search={"residuals": ["leave_one_out", 2]},
        columns="",
        stands_for_its_class=True,
    ),
    Row(
        "heteroscedastic-folds",
        HeteroscedasticRegressor(
            SCGDDKLRegressor(feature_extractor=(16,), max_epochs=4), residuals=2, tails="auto"
        ),
        multi_output=False,
        no_limit="training is that of the regressor below",
        columns="none",
    ),
    Row(
        "mean-function",
        MeanFunctionRegressor(PoERegressor(max_iter=5), Ridge(), n_folds=2),
        multi_output=False,
        no_limit="training is that of the regressor below",
        search={"n_folds": [2, 3]},
        columns="",
        stands_for_its_class=True,
    ),
    Row(
        "stacked",
        StackedGPRegressor([("features", RFFRegressor(n_components=30)), ("line", Ridge())]),
        multi_output=False,
        no_limit="training is that of the regressors below",
        search={"validation_fraction": [0.2, 0.3]},
        columns="",
        stands_for_its_class=True,
    ),
    Row(
        "auto",
        AutoGPRegressor(),
        multi_output=False,
        no_limit="training is that of the members",
        search={"members": [["linear"], ["exact", "linear"]]},
        columns="",
        missing=True,
        stands_for_its_class=True,
    ),
    Row(
        "auto-classes",
        AutoGPClassifier(["linear", ("inducing", SVGPClassifier(n_inducing=8, max_iter=4))]),
        classifier=True,
        no_limit="training is that of the members",
        search={"members": [["linear"], ["randomized_trees"]]},
        columns="",
        missing=True,
        stands_for_its_class=True,
    ),
    Row("love-iterative", LOVEPredictor(IterativeGPRegressor())),
    Row(
        "iterative",
        IterativeGPRegressor(),
        search={"alpha": [1e-6, 1e-2]},
        limit={"max_iter": 1},
        prior=True,
        any_kernel=True,
    ),
    Row(
        "iterative-cg",
        IterativeGPRegressor(solver="cg", max_iter=3, n_probes=4),
        search={"n_probes": [2, 4]},
        prior=True,
        any_kernel=True,
        stands_for_its_class=True,
        stands_for_its_base=True,
    ),
    Row(
        "iterative-pathwise",
        IterativeGPRegressor(solver="cg", posterior="pathwise", max_iter=3, n_probes=8),
        std_rtol=1.0,
        prior=True,
        any_kernel=True,
    ),
    # A subset, then conjugate gradients on all rows and pathwise samples.
    Row(
        "iterative-stages",
        IterativeGPRegressor(
            solver="cg", subset_size=20, posterior="pathwise", max_iter=4, n_probes=16
        ),
        std_rtol=1.0,
        limit={"max_iter": 1},
        prior=True,
        any_kernel=True,
    ),
    # scikit-learn compares to 1e-7, below what single precision resolves.
    Row(
        "iterative-float32",
        IterativeGPRegressor(dtype="float32", max_iter=3),
        # Training has not ended after three steps, along which single precision adds up.
        unit_atol=5e-4,
        batch_rtol=1e-4,
        prior=True,
        any_kernel=True,
    ),
    Row("rrcg", RRCGRegressor(), any_kernel=True, search={"alpha": [1e-6, 1e-2]}),
    Row(
        "rrcg-truncated",
        RRCGRegressor(
            truncation=ExponentialTruncation(0.3, min_iter=1), preconditioner=None, max_iter=3
        ),
        search={"truncation__rate": [0.1, 0.3]},
        limit={"max_iter": 2},
        any_kernel=True,
        stands_for_its_class=True,
    ),
    Row("poe", PoERegressor(), search={"alpha": [1e-6, 1e-2]}),
    Row(
        "poe-experts",
        PoERegressor(expert_size=10, max_iter=10),
        search={"expert_size": [5, 10]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
    ),
    # Rules that divide by a prior are densities of single rows: no joint covariance, no samples.
    Row(
        "poe-grbcm",
        PoERegressor(combination="grbcm", partition="random", expert_size=8, max_iter=5),
        covariances=False,
        samples=False,
        search={"combination": ["bcm", "rbcm"]},
    ),
    Row(
        "poe-separate",
        PoERegressor(share_hyperparameters=False, expert_size=12, max_iter=5),
        limit={"max_iter": 1},
    ),
    Row("nngp", NNGPRegressor(), search={"n_neighbors": [5, 40]}, limit={"max_iter": 1}),
    Row(
        "nngp-neighbours",
        NNGPRegressor(n_neighbors=8, subset_size=15, n_centers=20),
        search={"objective": ["leave_one_out", "blocks"]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
    ),
    Row(
        "nngp-inducing",
        NNGPRegressor(n_neighbors=8, n_inducing=6, objective="vecchia", subset_size=15),
        search={"n_inducing": [4, 6]},
        limit={"max_iter": 1},
    ),
    Row(
        "nngp-subset",
        NNGPRegressor(n_neighbors=10, objective="subset", subset_size=20),
        limit={"max_iter": 1},
    ),
    Row(
        "rff",
        RFFRegressor(n_components=100, max_iter=10),
        # After ten steps training has not ended, along which rounding adds up.
        unit_atol=1e-4,
        search={"n_components": [10, 20]},
        stands_for_its_class=True,
    ),
    Row("rff-rows", RFFRegressor(max_iter=10)),
    Row(
        "rff-few",
        RFFRegressor(n_components=10, max_iter=5),
        # After five steps training has not ended, along which rounding adds up.
        unit_atol=1e-4,
        limit={"max_iter": 1},
    ),
    Row(
        "qsgp",
        QSGPRegressor(),
        search={"n_components": [32, 64]},
    ),
    Row(
        "qsgp-stochastic",
        QSGPRegressor(
            inference="stochastic",
            n_components=128,
            component_batch_size=32,
            n_dense=4,
            max_iter=6,
            dtype="float64",
            normalize_y=True,
        ),
        search={"control_variate_rank": [5, 10]},
        limit={"max_iter": 2},
        columns="numbers",
        stands_for_its_class=True,
    ),
    Row(
        "qsgp-laplace",
        QSGPRegressor(likelihood="laplace", n_components=64),
        columns="numbers",
    ),
    Row(
        "qsgp-rows",
        QSGPRegressor(basis="rows", inference="stochastic", max_iter=6, dtype="float64"),
        limit={"max_iter": 2},
    ),
    Row(
        "qsgp-classifier",
        QSGPClassifier(),
        classifier=True,
        search={"n_components": [32, 64]},
        limit={"max_iter": 1},
    ),
    Row(
        "qsgp-classifier-stochastic",
        QSGPClassifier(
            inference="stochastic",
            n_components=128,
            component_batch_size=64,
            n_dense=4,
            max_iter=6,
            dtype="float64",
        ),
        classifier=True,
        search={"control_variate_rank": [5, 10]},
        limit={"max_iter": 2},
        columns="numbers",
        stands_for_its_class=True,
    ),
    Row(
        "qsrvm",
        QSRVMRegressor(),
        independent_targets=False,
        noise_variance=False,
        search={"max_precision": [1e3, 1e4]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
    ),
    Row("ssrff", SSRFFRegressor()),
    Row(
        "ssrff-truncated",
        SSRFFRegressor(min_components=8, component_step=4, max_iter=5),
        search={"component_step": [4, 8]},
        limit={"max_iter": 2},
        stands_for_its_class=True,
    ),
    Row(
        "scgd",
        SCGDDKLRegressor(feature_extractor=(16,), max_epochs=12),
        no_limit="max_epochs is a schedule whose rate falls to zero at its end",
        search={"averaging": [0.1, 0.9]},
        columns="none",
        stands_for_its_class=True,
        stands_for_its_base=True,
    ),
    # Without a network, which "auto" leaves out.
    Row(
        "scgd-rows",
        SCGDDKLRegressor(),
        no_limit="no parameter counts the steps",
        columns="none",
    ),
    Row(
        "minimax",
        MinimaxDKLRegressor(feature_extractor=(16,), max_epochs=12),
        no_limit="max_epochs is a schedule whose rate falls to zero at its end",
        search={"penalty": [1.0, 2.0]},
        columns="none",
        stands_for_its_class=True,
    ),
    Row(
        "bsgd",
        BSGDDKLRegressor(feature_extractor=(16,), max_epochs=12),
        no_limit="max_epochs is a schedule whose rate falls to zero at its end",
        search={"batches": ["random", "neighbours"]},
        columns="none",
        stands_for_its_class=True,
    ),
    Row("svgp", SVGPRegressor(), search={"n_inducing": [5, 10]}, limit={"max_iter": 1}),
    Row(
        "svgp-batches",
        SVGPRegressor(n_inducing=8, batch_size=8, max_iter=10),
        search={"variational_learning_rate": [0.1, 0.5]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
    ),
    Row(
        "svgp-network",
        SVGPRegressor(feature_extractor=[8, 4], max_iter=10),
        # Steps of Adam follow the sign of a gradient, also of one that is zero but for rounding.
        unit_atol=1e-2,
        limit={"max_iter": 1},
        columns="none",
    ),
    Row(
        "svgp-classes",
        SVGPClassifier(n_inducing=15, max_iter=10),
        classifier=True,
        search={"n_inducing": [5, 10]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
        stands_for_its_base=True,
    ),
    Row(
        "sgpr",
        SGPRRegressor(max_iter=10),
        search={"n_inducing": [5, 10]},
        limit={"max_iter": 1},
        stands_for_its_class=True,
    ),
]


def test_array_api_is_on():
    assert os.environ["SCIPY_ARRAY_API"] == "1"


REPRESENTATIVES = [row.estimator for row in ROWS if row.stands_for_its_class]


def test_one_row_stands_for_each_class():
    classes = [type(estimator) for estimator in REPRESENTATIVES]
    assert len(set(classes)) == len(classes)
    assert set(classes) == {type(row.estimator) for row in ROWS}


def run_check(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:  # a check that does not run shows nothing
        pytest.fail(f"skipped: {skipped}")


# One class of each base class and kind of target: one that keeps its table, one that does not, and
# one of classes.
OF_BASES = tuple(type(row.estimator) for row in ROWS if row.stands_for_its_base)


def test_one_row_stands_for_each_base():
    assert OF_BASES == (IterativeGPRegressor, SCGDDKLRegressor, SVGPClassifier)


def checks(estimators, mark_of):
    """scikit-learn's checks of estimators for pytest, with a mark on each that is slow or None."""
    for estimator in estimators:
        for one, check in estimator_checks_generator(estimator):
            settings = [f"{name}={value}" for name, value in check.keywords.items()]
            label = ",".join([type(one).__name__, check.func.__name__, *settings])
            mark = mark_of(one, check)
            yield pytest.param(one, check, id=label, marks=() if mark is None else mark)


def repeats(check):
    """Whether it is another one with a memory map, which no class treats in a way of its own."""
    return bool(check.keywords.get("readonly_memmap"))


# Each of their fits is that of several members, five times over.
OF_MEMBERS = AutoGPRegressor, AutoGPClassifier, StackedGPRegressor


def mark_of(estimator, check):
    if isinstance(estimator, OF_BASES):
        return pytest.mark.slow if repeats(check) else None
    night = repeats(check) or isinstance(estimator, OF_MEMBERS)
    return pytest.mark.night if night else pytest.mark.slow


@pytest.mark.usefixtures("remembered_starts")
@pytest.mark.parametrize(("estimator", "check"), checks(REPRESENTATIVES, mark_of))
def test_scikit_learn_checks(estimator, check):
    run_check(estimator, check)


def mark_of_defaults(estimator, check):
    """Most of these fits train the same exact process of few rows, on which three classes do."""
    return pytest.mark.slow if isinstance(estimator, OF_BASES) else pytest.mark.night


DEFAULTS = [
    one
    for one in checks([type(model)() for model in REPRESENTATIVES], mark_of_defaults)
    if not repeats(one.values[1])
]


# To try several starts takes most of the time of these fits, and changes nothing that is checked.
@pytest.mark.usefixtures("given_start")
@pytest.mark.parametrize(("estimator", "check"), DEFAULTS)
def test_scikit_learn_checks_of_the_defaults(estimator, check, thresholds):
    thresholds(MOST_STEPS=10)
    run_check(estimator, check)


class TestEstimators(EstimatorContract, rows=ROWS):
    pass
