"""Fitted models as ONNX files, evaluated by ONNX Runtime."""

import subprocess
import sys
from functools import reduce
from operator import add

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export.exported import FIXED, KERNELS, MODELS, NEW, SMOOTH, X, Y, exact, fitted, marked_slow
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skscalablegp as sk
from skscalablegp.core.posteriors import half_solved
from skscalablegp.core.posteriors._elimination import _eliminated, _eliminated_in_blocks
from skscalablegp.export import NotExportable

pytestmark = pytest.mark.skipif(
    not hasattr(torch.onnx, "ONNXProgram") or torch.__version__ < "2.6", reason="needs torch 2.6"
)

# Conversions take seconds.
FEW = {"inducing-network"}


def answers(path, rows):
    """The outputs by name."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": rows}), strict=True))


def check(model, path, dtype="float64", tol=1e-6, rows=NEW):
    rows = rows.astype(dtype)
    expected = dict(zip(("mean", "std"), model.predict(rows, return_std=True), strict=True))
    for some in (slice(None), slice(0, 1)):
        found = answers(path, rows[some])
        assert set(found) == set(expected)
        for name, values in found.items():
            assert values.dtype == dtype
            assert np.abs(values - expected[name][some]).max() < tol * Y.std(), name


# Loops over many neighbours have a test of their own.
@pytest.mark.seldom(
    "additive-grid",
    "committee",
    "love-grid",
    "nearest-experts",
    "grid-network",
    "experts",
    "love-rows",
    "chevron",
    "grid",
    "neighbours",
)
@pytest.mark.parametrize("name", [marked_slow(name, FEW) for name in MODELS if name != "nearest"])
def test_files_predict_what_their_models_predict(name, tmp_path):
    model = fitted(name)
    sk.export_onnx(model, tmp_path / "model.onnx")
    check(model, tmp_path / "model.onnx")
    # The file stands alone, and needs nothing beyond the standard's operators.
    written = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(written)
    assert {entry.domain for entry in written.opset_import} <= {"", "ai.onnx"}


@pytest.mark.night
def test_all_kernels_at_once(tmp_path):
    """A sum has the operators of its parts."""
    kernel = reduce(add, [0.3 * kernel for kernel in KERNELS.values()])
    model = exact(kernel).fit(X, Y)
    sk.export_onnx(model, tmp_path / "double.onnx")
    check(model, tmp_path / "double.onnx")
    sk.export_onnx(model, tmp_path / "single.onnx", dtype="float32", rows=X)
    check(model, tmp_path / "single.onnx", "float32", 1e-4)


@pytest.mark.seldom("matern12", "matern52", "matern-infinite", "power", "product")
@pytest.mark.slow
@pytest.mark.parametrize("name", [marked_slow(name, {"rational"}) for name in KERNELS])
def test_kernels(name, tmp_path):
    model = exact(KERNELS[name]).fit(X, Y)
    sk.export_onnx(model, tmp_path / "model.onnx")
    check(model, tmp_path / "model.onnx")


def test_the_mean_of_an_exact_model_needs_no_matrix(tmp_path):
    path = tmp_path / "mean.onnx"
    model = make_pipeline(StandardScaler(), exact(RBF() + WhiteKernel(0.1))).fit(X, Y)
    sk.export_onnx(model, path, return_std=False)
    found = answers(path, NEW)
    assert list(found) == ["mean"]
    np.testing.assert_allclose(found["mean"], model.predict(NEW), atol=1e-6 * Y.std())
    sizes = [np.prod(tensor.dims) for tensor in onnx.load(path).graph.initializer]
    assert max(sizes) <= X.size


@pytest.mark.parametrize(
    "length, noise, computed_in",
    [
        pytest.param(1.0, 1e-10, "float64", id="smooth"),
        pytest.param(0.02, 0.1, "float32", id="rough", marks=pytest.mark.slow),
    ],
)
def test_computations_are_in_double_precision_where_single_is_too_little(
    length, noise, computed_in, tmp_path
):
    """Equal rows with hardly any noise have weights of a million."""
    path, rows = tmp_path / "model.onnx", np.linspace(0, 1, 60, dtype=np.float32)[:, None]
    model = exact(RBF(length) + WhiteKernel(noise)).fit(rows, np.sin(40 * rows[:, 0]))
    sk.export_onnx(model, path, dtype="float32", rows=rows)
    (told,) = [p.value for p in onnx.load(path).metadata_props if p.key == "computed_in"]
    assert told == computed_in
    between = (rows[1:] + rows[:-1]) / 2
    expected = model.predict(between, return_std=True)
    unit = np.std(model.predict(rows))
    for found, want in zip(answers(path, between).values(), expected, strict=True):
        assert found.dtype == np.float32
        assert np.abs(found - want).max() < 1e-4 * unit


def test_rows_whose_single_precision_is_too_little_are_refused(tmp_path):
    """A function that changes within the rounding of its input."""
    rows = 1e6 + np.linspace(0, 1, 60)[:, None]
    model = exact(RBF(0.1) + WhiteKernel(1e-4)).fit(rows, np.sin(40 * rows[:, 0]))
    with pytest.raises(ValueError, match="dtype='float64'"):
        sk.export_onnx(model, tmp_path / "model.onnx", dtype="float32", rows=rows)
    assert not list(tmp_path.iterdir())


class OwnKernel(RBF):
    """A class without a compiled form."""


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "rows="),
        ({"rows": np.zeros((3, 7))}, r"\(m, 3\), got \(3, 7\)"),
    ],
)
def test_wrong_settings(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sk.export_onnx(fitted("features"), tmp_path / "model.onnx", **settings)


def test_refusals_come_before_anything_is_written(tmp_path):
    model = exact(OwnKernel(1.0) + WhiteKernel(0.1)).fit(X, Y)
    with pytest.raises(NotExportable, match="OwnKernel"):
        sk.export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (X[:, :2], r"rows must have shape \(m, 3\), got \(\d+, 2\): give one or more"),
        (X[:0], r"got \(0, 3\): give one or more typical rows"),
        ([["a", "b", "c"]], "rows must hold numbers .*'a'.*: give typical rows"),
        (X * np.nan, "rows= are not all numbers: leave out rows with missing"),
    ],
)
def test_rows_to_compare_at_that_are_none(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        sk.export_onnx(fitted("exact"), tmp_path / "model.onnx", dtype="float32", rows=rows)
    with pytest.raises(FileNotFoundError, match="nowhere.*create the folder first"):
        sk.export_onnx(fitted("exact"), tmp_path / "nowhere" / "model.onnx")


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"skscalablegp\[onnx\]"):
        sk.export_onnx(fitted("features"), tmp_path / "model.onnx")


def test_elimination_solves_what_a_factor_solves():
    A = torch.randn(4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H, B = A @ A.mT + 0.1 * torch.eye(6, dtype=torch.float64), A[:, :, :2]
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(_eliminated(H, B, ones), half_solved(H, B, ones))


@pytest.mark.parametrize("m", [5, 8, 19])
def test_elimination_in_blocks_solves_the_same(m):
    def loop(step, state, counter):
        rows = []
        for each in counter:
            state, row = step(state, each)
            rows.append(row)
        return state, torch.stack(rows)

    A = torch.randn(4, m, m, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    H, B = A @ A.mT + 0.1 * torch.eye(m, dtype=torch.float64), A[:, :, :3]
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(_eliminated_in_blocks(H, B, ones, loop), half_solved(H, B, ones))


@pytest.mark.night
@pytest.mark.skipif(torch.__version__ < "2.13", reason="earlier versions write no loops")
@pytest.mark.parametrize("kind", ["neighbours", "nearest"])
def test_a_loop_over_many_neighbours(kind, tmp_path):
    rng = np.random.RandomState(0)
    X = rng.randn(400, 3)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.randn(400)
    if kind == "neighbours":
        model = sk.NNGPRegressor(SMOOTH, n_neighbors=75, dtype="float64", **FIXED)
    else:
        model = MODELS["nearest"]
    model = clone(model).fit(X, y)
    # In a process of its own: the exporter reads code, which the checks of shapes change in tests.
    sk.save(model, tmp_path / "model.gp")
    code = "import sys, skscalablegp as sk; sk.export_onnx(sk.load(sys.argv[1]), sys.argv[2])"
    paths = [tmp_path / "model.gp", tmp_path / "model.onnx"]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    # A single loop, however many neighbours there are.
    written = onnx.load(tmp_path / "model.onnx")
    assert [node.op_type for node in written.graph.node].count("Scan") == 1
    assert len(written.graph.node) < 300
    check(model, tmp_path / "model.onnx", rows=X[:7] + 0.1)
