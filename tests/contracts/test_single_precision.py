"""Devices without double precision: what is refused says why, and the rest gives the CPU's numbers.

On such a device estimators compute products in single precision, and everything else on the CPU.
The CPU in single precision does the same operations in the same order.
"""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.cases import marked, once_a_base
from contracts.estimator_contract import table
from contracts.test_contract import ROWS
from contracts.test_simulated_gpu import METHODS, method
from numpy.testing import assert_allclose
from simulated import simulated
from sklearn.base import clone
from sklearn.linear_model import Ridge

from skscalablegp import (
    AutoGPRegressor,
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    PoERegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# What is in double precision only.
REFUSED = {
    "KISSGPRegressor": "sums over the rows",
    "PoERegressor": "factorisations of covariances",
    "NNGPRegressor": "small differences",
    "RFFRegressor": "sums of features",
    "SSRFFRegressor": "sums of features",
    "SGPRRegressor": "sums over all rows",
    "QSGPRegressor": "values at the support rows",
    "QSGPClassifier": "values at the support rows",
    "QSRVMRegressor": "relevance weights",
}
# Which refuse by the estimator inside.
OVER_REFUSED = {"LOVEPredictor", "HeteroscedasticRegressor", "MeanFunctionRegressor"}
NO_DOUBLE = (torch.float64, torch.complex128)
XPU = dict(name="xpu:0", lacks=NO_DOUBLE)


def name(row):
    return type(row.estimator).__name__


def single(row, device):
    model = method(row, device)
    outer = name(row).startswith(("Auto", "Stacked"))
    return model if outer else model.set_params(dtype="float32")


def refusal(row, model):
    """The message with which a fit refuses the device before it begins."""
    X, y, _ = table()
    with simulated("mps:0") as gpu:
        with pytest.raises(ValueError, match="device='mps:0' has no double precision") as caught:
            model.fit(X, row.target(y))
        assert not gpu.launches
    return str(caught.value)


@pytest.mark.parametrize(
    "row", [r for r in METHODS if name(r) in REFUSED or name(r) in OVER_REFUSED]
)
def test_refused_with_the_reason(row):
    said = refusal(row, method(row, "mps"))
    assert "use device='cpu'" in said
    if name(row) in REFUSED:
        assert REFUSED[name(row)] in said and name(row) in said


def table_of_the_page():
    """Each class and what the page on GPUs says of it, in a table with three stars a row."""
    page = Path(__file__).parents[2] / "doc" / "how_to" / "gpu.rst"
    section = page.read_text(encoding="utf-8").partition("Devices without double precision")[2]
    rows = section.partition("Sums over n rows")[0].split("   * - ")[2:]
    said = {}
    for row in rows:
        names, _, what = row.partition("\n     - ")
        said |= dict.fromkeys(re.findall(r"``(\w+)``", names), " ".join(what.split()))
    return said


@pytest.mark.skipif(
    not (Path(__file__).parents[2] / "doc").exists(), reason="not a checkout of the repository"
)
def test_the_page_says_the_same():
    said = table_of_the_page()
    assert set(said) == {name(row) for row in ROWS}
    for row in METHODS:
        assert said[name(row)].startswith("refused: ") == (name(row) in REFUSED)
        if name(row) in REFUSED:
            reason = refusal(row, method(row, "mps")).partition(" needs for ")[2]
            assert f"{said[name(row)].removeprefix('refused: ')}: use device='cpu'." == reason


def test_a_subclass_is_refused_by_its_name():
    class Mine(RFFRegressor):
        pass

    row = next(r for r in METHODS if name(r) == "RFFRegressor")
    assert "which Mine needs for the factor of sums" in refusal(row, Mine(device="mps"))


ALLOWED = [r for r in METHODS if name(r) not in REFUSED and name(r) not in OVER_REFUSED]


def test_every_class_is_allowed_or_refused():
    assert {name(r) for r in ALLOWED} == {
        "IterativeGPRegressor", "RRCGRegressor", "SVGPRegressor", "SVGPClassifier",
        "SCGDDKLRegressor", "MinimaxDKLRegressor", "BSGDDKLRegressor",
        "StackedGPRegressor", "AutoGPRegressor", "AutoGPClassifier",
    }  # fmt: skip


@once_a_base
def case(row): ...


def check(row, place):
    X, y, X_new = table()
    y = row.target(y)
    kind = place["name"].partition(":")[0]
    with simulated(**place) as gpu:
        there = single(row, kind).fit(X, y)
        found, kept = row.everything(there, X_new), pickle.dumps(there)
        launches = dict(gpu.launches)
    assert there.device_ == place["name"]
    here = single(row, "cpu").fit(X, y)
    away = pickle.loads(kept)
    for ours, theirs, later in zip(
        found, row.everything(here, X_new), row.everything(away, X_new), strict=True
    ):
        # Distances are rounded in another way, so that a solve ends a step earlier or later.
        solved = hasattr(here, "solver_")
        tol = 0.03 if solved else 1e-4
        # The root of a covariance is not unique, so that draws of solves that differ do, too.
        if not (solved and ours.shape == (len(X_new), 3)):
            assert_allclose(ours, theirs, rtol=tol, atol=tol * np.abs(theirs).max())
        assert_allclose(later, ours, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())
    return launches


@pytest.mark.parametrize("row", marked(case, ALLOWED))
def test_the_numbers_of_the_cpu(row):
    """Parts of estimators over several run on the device where they can, else on the CPU."""
    launches = check(row, dict(name="mps:0"))
    only_cpu = name(row) in ("StackedGPRegressor", "AutoGPRegressor")
    assert bool(launches) != only_cpu


PATHS = [row for row in ROWS if name(row) in map(name, ALLOWED) and row not in ALLOWED]


@pytest.mark.slow
@pytest.mark.parametrize("row", PATHS, ids=lambda row: row.name)
def test_other_paths(row):
    check(row, dict(name="mps:0"))


def test_xpu_without_double_precision():
    assert check(ALLOWED[-1], XPU)


# Real sizes, by their own choice of method.
LARGE = {
    "svgp-classes": SVGPClassifier(n_inducing=60, max_iter=4),
    "svgp-network": SVGPRegressor(n_inducing=30, feature_extractor=[8, 2], max_iter=4),
    "scgd": SCGDDKLRegressor(max_epochs=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
def test_larger_tables(kind):
    """3,100 rows: the choices of "auto" on the device, and those of the CPU in single precision."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (3_130, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.standard_normal(len(X))
    classes = kind == "svgp-classes"
    y = (y > 0).astype(int) if classes else y
    found = []
    for device in ("mps", "cpu"):
        model = clone(LARGE[kind]).set_params(device=device, random_state=0)
        if device == "cpu":
            model.set_params(dtype="float32")
        with simulated("mps:0") as gpu:
            model.fit(X[:3_100], y[:3_100])
            assert bool(gpu.launches) == (device == "mps")
            new = X[3_100:]
            answer = model.predict_proba(new) if classes else model.predict(new, return_std=True)
        found.append(answer if isinstance(answer, tuple) else (answer,))
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2 * np.abs(theirs).max())


def test_double_precision_contradicts_the_device():
    X, y, _ = table(n=60)
    for model in (IterativeGPRegressor(), SVGPRegressor(), SCGDDKLRegressor()):
        with simulated("mps:0"), pytest.raises(ValueError, match="dtype='float64' contradicts"):
            model.set_params(device="mps", dtype="float64").fit(X, y)


def test_fused_products_are_refused():
    X, y, _ = table(n=60)
    model = IterativeGPRegressor(solver="cg", products="compiled", device="mps")
    with simulated("mps:0"), pytest.raises(ValueError, match="'compiled' is not available on dev"):
        model.fit(X, y)


def test_small_tables_are_computed_on_the_cpu():
    X, y, _ = table()
    with simulated("mps:0") as gpu:
        for model in (IterativeGPRegressor(), SVGPRegressor(), SCGDDKLRegressor()):
            model.set_params(device="mps", random_state=0).fit(X, y)
            assert model.device_ == "mps:0" and "float64 on cpu" in model.fit_report_.summary
            assert model.dtype_ == "float64" and not gpu.launches


@pytest.mark.slow
def test_inside_other_estimators():
    """One regressor inside is refused; of several, those that need double precision stay here."""
    X, y, X_new = table(n=60)
    with simulated("mps:0"):
        with pytest.raises(ValueError, match="PoERegressor needs"):
            HeteroscedasticRegressor(PoERegressor(), device="mps").fit(X, y)
        stack = StackedGPRegressor([("experts", PoERegressor()), ("line", Ridge())], device="mps")
        assert np.isfinite(stack.fit(X, y).predict(X_new)).all()
        auto = AutoGPRegressor(["linear", ("experts", PoERegressor())], device="mps")
        assert np.isfinite(auto.fit(X, y).predict(X_new)).all()
        assert "no double precision" not in str(auto.leaderboard_)
