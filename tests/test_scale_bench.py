"""benchmarks/scale.py: its tables are nested, its lines are true, and the page shows them."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("scale", "scale_cells", "compare", "compare_report", "compare_baselines", "rival_models")
NAMES += ("starts", "starts_problems", "starts_reference", "uci")

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def scale(monkeypatch):
    """The script; its cells run in processes of their own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module("scale")
    for name in NAMES:
        sys.modules.pop(name, None)


def test_smaller_tables_are_the_first_rows_of_larger_ones(scale):
    drawn = import_module("scale_cells").drawn
    X, X_test, y, y_test = drawn(700, 50, 0)
    few = drawn(40, 50, 0)
    for whole, part in zip((X[:40], X_test, y[:40], y_test), few, strict=True):
        # Products in single precision depend on the size of the part.
        np.testing.assert_allclose(part, whole, atol=1e-5)
    assert not np.isin(X_test[:, 0], X[:, 0]).any()


def test_kept_tables_are_the_drawn_ones(scale, tmp_path):
    cells = import_module("scale_cells")
    first = cells.kept(tmp_path / "tables", 60, 20, 0)
    cells.drawn = None  # Fewer rows come from the file.
    again = cells.kept(tmp_path / "tables", 60, 20, 0)
    few = cells.kept(tmp_path / "tables", 25, 20, 0)
    for whole, read, part, n in zip(first, again, few, (25, 20, 25, 20), strict=True):
        np.testing.assert_array_equal(read, whole)
        np.testing.assert_array_equal(part, whole[:n])


def test_the_drawn_function_has_the_kernel_of_the_reference(scale):
    """Its length scales are the most likely ones, and the targets whitened by it are normal."""
    from sklearn.gaussian_process.kernels import Matern

    cells = import_module("scale_cells")
    kernel = Matern(cells.length_scales(), nu=1.5)
    X, _, y, _ = cells.drawn(1000, 10, 3)
    log_density = []
    for factor in (0.4, 1.0, 2.5):
        H = kernel.clone_with_theta(kernel.theta + np.log(factor))(X)
        L = np.linalg.cholesky(H + cells.NOISE**2 * np.eye(1000))
        z = np.linalg.solve(L, y)
        log_density.append(-0.5 * z @ z - np.log(np.diag(L)).sum())
        if factor == 1.0:
            assert z @ z / 1000 == pytest.approx(1, abs=5 * (2 / 1000) ** 0.5)
    assert np.argmax(log_density) == 1


def lines_of(scale, out, *arguments):
    common = ["--out", str(out), "--n-test", "20", "--threads", "1", "--max-seconds", "20"]
    scale.main([*common, *arguments])
    return [json.loads(text) for text in out.read_text().splitlines()]


@pytest.mark.night
def test_a_run_goes_on_where_its_lines_end(scale, tmp_path):
    out = tmp_path / "lines.jsonl"
    (tmp_path / "explanation").mkdir()
    estimators = ["--estimators", "NNGPRegressor", "Reference"]
    first = lines_of(scale, out, "--rows", "60", *estimators)
    assert [x["estimator"] for x in first] == ["NNGPRegressor", "Reference"]
    assert all(x["status"] == "ok" and x["n_train"] == 60 and x["n_test"] == 20 for x in first)
    assert str(ROOT) not in json.dumps(first)
    both = lines_of(scale, out, "--rows", "60", "90", *estimators)
    assert both[:2] == first and [x["n_train"] for x in both[2:]] == [90, 90]
    # Who has ended at one size is not asked for a larger one.
    both[3] |= {"status": "failed", "error": "MemoryError"}
    out.write_text("\n".join(map(json.dumps, both)) + "\n")
    more = lines_of(scale, out, "--rows", "120", *estimators)
    assert [x["estimator"] for x in more[4:]] == ["NNGPRegressor"]
    lines_of(scale, out, "--doc", str(tmp_path))
    text = (tmp_path / "explanation" / "scale_table.inc").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("Reference")]
    assert f"{first[1]['nll']:.3f}" in row and "memory" in row
    assert (tmp_path / "explanation" / "scale.png").stat().st_size > 1000


def test_unknown_estimators_are_refused(scale, tmp_path):
    with pytest.raises(SystemExit, match="NNGPRegressor"):
        lines_of(scale, tmp_path / "lines.jsonl", "--estimators", "Nothing")


def test_the_page_has_what_was_measured(scale):
    """`python benchmarks/scale.py --doc doc` has been run after the last line."""
    lines = scale.last_lines(scale.parse_args([]))
    text = "\n".join([*scale.preamble(lines), *scale.table(lines), ""])
    assert (ROOT / "doc" / "explanation" / "scale_table.inc").read_text("utf-8") == text


def test_the_page_of_solvers_has_what_was_measured():
    text = (ROOT / "benchmarks" / "results" / "sketch.jsonl").read_text("utf-8")
    pages = (ROOT / "doc" / "explanation").glob("[is]*.rst")  # of solvers, and of scale
    page = "\n".join(path.read_text("utf-8") for path in pages)
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["solver"] for line in lines} >= {"adasap", "sdd", "cg", "neighbors"}
    for line in lines:
        shown = f"{line['nll']:.3f}" if line["nll"] < 10 else f"{line['nll']:.1f}"
        assert f" {shown}" in page, line["solver"]


def test_the_page_of_solvers_has_the_counts_of_many_problems():
    text = (ROOT / "benchmarks" / "results" / "sketch_many.jsonl").read_text("utf-8")
    page = (ROOT / "doc" / "explanation" / "iterative_solvers.rst").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    shown = page.split("50 drawn processes")[1].split("Choices made here")[0]
    for solver in dict.fromkeys(line["solver"] for line in lines):
        own = [line for line in lines if line["solver"] == solver]
        assert sorted(line["problem"] for line in own) == list(range(50))
        left = np.array([line["residual"] for line in own])
        worse = np.array([line["nll"] - line["exact_nll"] for line in own])
        cells = [f"{np.median(left):.4f}", (left > 0.1).sum(), (left > 1).sum()]
        cells.append((worse > 0.1).sum())
        assert "".join(f"     - {cell}\n" for cell in cells) in shown, solver
    # Where the preconditioner fails, single precision does not resolve the matrix.
    failed = [x for x in lines if x["solver"] == "block_cg, PIC" and x["residual"] > 0.1]
    assert all(x["condition"] > 2**24 for x in failed)
