"""benchmarks/starts.py: its problems are what it says, its references good, its verdicts right."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("starts", "starts_problems", "starts_reference", "compare", "uci")

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def starts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import starts
    import starts_reference

    starts.reference = starts_reference
    yield starts
    for name in NAMES:
        sys.modules.pop(name, None)


def kinds(problems):
    return Counter(p.kind for p in problems)


def test_halves(starts):
    problems = starts.PROBLEMS
    assert len(problems) == len({p.name for p in problems}) == 62
    choosing, kept = ([p for p in problems if p.part == part] for part in ("choosing", "kept"))
    assert len(choosing) == len(kept) == 31 and kinds(choosing) == kinds(kept)
    # What issues name has been seen, and is not kept.
    named = {"sine40", "steep25", "arm32", "friedman-outlier", "friedman-onehot", "friedman-far"}
    assert named <= {p.name for p in choosing}
    for p in starts.CLASSES:
        assert p.part == starts.BY_NAME[p.name.removesuffix("-sign")].part


def test_the_family_is_as_wide_as_promised(starts):
    problems = starts.PROBLEMS
    assert min(p.d for p in problems) == 1 and max(p.d for p in problems) == 200
    assert min(p.n for p in problems) == 100 and max(p.n for p in problems) == 20_000
    assert sum(p.n < 5000 for p in problems) > 50
    assert {0.0, 10.0} <= {p.noise for p in problems}
    lengths = [length for p in problems if p.kind == "drawn" for length in p.length]
    assert min(lengths) == 0.05 and max(lengths) == 50
    columns = {"normal", "uniform", "correlated", "duplicated", "beside", "levels", "units"}
    columns |= {"outlier", "log-normal", "cauchy", "far"}
    assert columns <= {p.columns for p in problems}


@pytest.mark.slow
def test_tables(starts):
    for p in starts.PROBLEMS + starts.CLASSES:
        found = starts.table(p.name)
        assert found.X.shape == (p.n, p.d) and found.X_test.shape[1] == p.d, p.name
        assert len(found.y) == p.n and len(found.y_test) == len(found.X_test) == 1000
        assert len(found.relevant) == len(found.lengths) == p.relevant
        assert all(np.isfinite(a).all() for a in found[:4])
        if p in starts.CLASSES:
            assert set(found.y) == set(found.y_test) == {0, 1}
            continue
        y = found.y[found.clean]
        assert y.mean() == pytest.approx(0, abs=0.01) and y.std() == pytest.approx(1, abs=0.01)
        assert 0.8 < found.y_test.std() < 1.25


@pytest.mark.parametrize("name", ["sine40", "friedman-far", "heavy-3of12-2000", "sine40-sign"])
def test_a_name_always_gives_the_same_table(starts, name):
    for first, again in zip(starts.table(name), starts.table(name), strict=True):
        assert (first == again).all()
    assert all(
        (first == again).all()
        for first, again in zip(starts.problem(name), starts.table(name)[:4], strict=True)
    )


def test_named_functions(starts):
    found = starts.table("sine40")
    X = found.X
    f = np.sin(2 * X[:, 3]) * X[:, 7]
    slope = np.polyfit(f, found.y, 1)[0]
    # In the function's units the noise has a standard deviation of 0.1.
    assert (found.y / slope - f).std() == pytest.approx(0.1, rel=0.05)
    found = starts.table("steep25")
    f = np.sin(4 * found.X[:, 0]) + found.X[:, 1] * found.X[:, 2]
    slope = np.polyfit(f, found.y, 1)[0]
    assert (found.y / slope - f).std() == pytest.approx(0.1, rel=0.05)
    far = starts.table("friedman-far")
    assert len(far.clean) == 2095 and np.sort(far.y)[-5:].min() > 1000 > far.y_test.max()
    outlier = starts.table("friedman-outlier").X
    assert (outlier == 1e6).sum() == 1 and np.sort(outlier.ravel())[-2] < 2
    assert starts.BY_NAME["friedman-onehot"].d == 70
    onehot = starts.table("friedman-onehot").X[:, 10:]
    assert set(onehot.ravel()) == {0, 1} and (onehot.sum(1) == 3).all()


def test_noise_relative_to_the_function(starts):
    p = starts.BY_NAME["drawn-1of2-1500"]
    found = starts.table(p.name)
    y = found.y[np.argsort(found.X[:, found.relevant[0]])]
    # Of neighbours in the relevant column, which are close in the middle, the function is the same.
    noise = np.diff(y)[400:1100].std() / np.sqrt(2)
    assert noise / np.sqrt(1 - noise**2) == pytest.approx(p.noise, rel=0.2)


def test_the_reference_likelihood_and_its_gradient(starts):
    reference, rng = starts.reference, np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    theta = np.array([0.3, -0.2, 0.4, 1.0, -1.5])
    kernel = ConstantKernel(np.exp(theta[0])) * Matern(np.exp(theta[1:4]), nu=1.5)
    process = GaussianProcessRegressor(kernel + WhiteKernel(np.exp(theta[-1])), optimizer=None)
    value, gradient = reference.minus_likelihood(theta, X, y)
    expected, slope = process.fit(X, y).log_marginal_likelihood(theta, eval_gradient=True)
    assert -40 * value == pytest.approx(expected) and -40 * gradient == pytest.approx(slope)
    # A far entry costs no digits of the other rows.
    X[0, 0] = 1e6
    functions = (lambda t, i=i: reference.minus_likelihood(t, X, y)[i] for i in (0, 1))
    assert check_grad(*functions, theta) < 1e-6
    mean, std = reference.predicted(theta, X, y, X + 0.1)
    expected = process.fit(X, y).predict(X + 0.1, return_std=True)
    assert mean[1:] == pytest.approx(expected[0][1:])
    assert std[1:] == pytest.approx(expected[1][1:])


def test_the_reference_finds_the_signal_without_being_told(starts):
    reference, rng = starts.reference, np.random.default_rng(1)
    X = rng.standard_normal((700, 12))
    y = np.sin(2 * X[:, 3]) * X[:, 7] + 0.1 * rng.standard_normal(700)
    # The informed start is told of two columns that do not matter.
    table = starts.table("sine40")._replace(
        X=X[:400],
        y=y[:400],
        X_test=X[400:],
        y_test=y[400:],
        relevant=np.array([0, 1]),
        lengths=np.ones(2),
        clean=np.arange(400),
    )
    stages = (200, 25, 11), (400, 40, 3), (400, 40, 2)
    found = reference.exact_reference(table, 0.1, seed=0, stages=stages)
    assert found["r2"] > 0.8 and found["nll"] < 0.6


def fit(problem="sine40", **change):
    line = dict(
        problem=problem, estimator="Some", max_seconds=15.0, own_start=False, r2=0.9, nll=0.1
    )
    return line | dict(warned=False, status="converged", commit="abc", cpu_seconds=1.0) | change


SEEN = dict(r2=0.95, nll=0.05)
SILENT = ["null", "silent"]


@pytest.mark.parametrize(
    "change, verdict",
    [
        (dict(), ["near"]),
        (dict(nll=0.2), []),
        (dict(nll=None), []),
        (dict(nll=1.4, r2=0.0), SILENT),
        (dict(nll=1.4, r2=None), SILENT),
        (dict(nll=1.4, r2=0.0, status="completed"), SILENT),
        (dict(nll=1.4, r2=0.0, status="max_seconds"), ["null"]),
        (dict(nll=1.4, r2=0.0, warned=True), ["warned", "null"]),
        (dict(warned=True), ["warned", "near"]),
        (dict(error="MemoryError"), ["failed"]),
        (dict(problem="friedman-far"), []),
    ],
)
def test_verdicts(starts, change, verdict):
    assert starts.verdicts(fit(**change), SEEN) == verdict


def test_no_null_where_the_reference_sees_nothing(starts):
    line = fit(problem="null-0of10-500", r2=-0.01, nll=1.42)
    assert starts.verdicts(line, dict(r2=0.0, nll=1.42)) == ["near"]


def test_the_own_best_start_moves_the_goal_only_if_it_is_worse(starts):
    line = fit(nll=0.5)
    assert starts.verdicts(line, SEEN, fit(nll=0.45)) == ["near"]
    assert starts.verdicts(line, SEEN, fit(nll=-0.45)) == []
    assert starts.verdicts(fit(), SEEN, fit(nll=-0.45)) == ["near"]
    assert starts.verdicts(line, SEEN, dict(error="no kernel")) == []


def test_verdicts_of_classes(starts):
    reference = dict(trees_log_loss=0.48, mean_log_loss=0.69)
    line = fit("sine40-sign", log_loss=0.5)
    assert starts.verdicts(line, reference) == ["near"]
    assert starts.verdicts(line | dict(log_loss=0.69), reference) == SILENT


def test_the_report_counts_a_silent_null(starts, tmp_path):
    lines = [
        fit(nll=3.0, r2=0.0, commit="old"),
        fit(),
        fit("steep25", r2=0.0, nll=1.4),
        fit("arm32", error="cut"),
        fit("friedman-far", r2=-30.0, nll=9.0, warned=True),
        fit("steep25", r2=0.0, nll=1.4, max_seconds=2.0),
    ]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    references = [dict(problem=line["problem"]) | SEEN for line in lines]
    (tmp_path / "references").write_text("\n".join(map(json.dumps, references)))

    def reported(*more):
        files = ["--out", str(tmp_path / "lines"), "--reference-file", str(tmp_path / "references")]
        args = starts.parse_args([*files, "--report", *more])
        return starts.report(starts.PROBLEMS, args).splitlines()

    said = reported()
    # Problems, near, null, silent, warned, failed, share of near ones, seconds.
    assert said[1].split() == ["Some", "4", "1", "2", "1", "1", "1", "33", "4"]
    assert "Some, silent: steep25" in said and "Some, failed: arm32" in said
    assert any(line.startswith("Some, worst: steep25 (+1.35)") for line in said)
    assert reported("--commit", "old")[1].split()[:5] == ["Some", "1", "0", "1", "1"]


@pytest.mark.night
def test_one_fit_after_another(starts, tmp_path, capsys):
    """A fit in a process of its own leaves a line, and is not made again; so does one cut."""
    words = ["--out", str(tmp_path / "lines"), "--reference-file", str(tmp_path / "none")]
    words += ["--problems", "drawn-2of2-100", "--estimators", "IterativeGPRegressor", "--resume"]
    starts.main(words)
    starts.main(words)
    (line,) = starts.read(tmp_path / "lines")
    assert line["r2"] > 0.9 and line["status"] == "converged" and not line["warned"]
    assert line["cpu_seconds"] > 0 and line["commit"] and line["versions"]
    assert "Without a reference: drawn-2of2-100" in capsys.readouterr().out
    starts.main([*words, "--max-seconds", "14", "--clock", "wall", "--cut-seconds", "0.1"])
    assert "cut after 0.1 s" in starts.read(tmp_path / "lines")[-1]["error"]


def test_references_are_kept(starts, tmp_path):
    words = ["--references", "--problems", "drawn-2of2-100", "xor-2of10-1200-sign"]
    words += ["--reference-file", str(tmp_path / "references")]
    starts.main(words)
    starts.main(words)
    first, second = starts.read(tmp_path / "references")
    assert first["r2"] > 0.9 > first["mean_r2"] and first["nll"] < first["trees_nll"]
    assert len(first["theta"]) == 4 and first["commit"]
    assert second["trees_log_loss"] < second["mean_log_loss"] == pytest.approx(0.69, abs=0.01)


def test_own_start(starts):
    from skscalablegp import IterativeGPRegressor

    found = starts.table("units-5of10-1000")
    theta = np.r_[0.2, np.full(10, 0.7), -2.0]
    model, moved = starts.own_model(IterativeGPRegressor(), found, theta)
    assert moved.X.std(axis=0) == pytest.approx(1)
    # The kernel of standardised columns is the reference's of its scaled columns.
    scaled = starts.reference.scaled(found.X, found.X)[0][:20]
    R = starts.reference.distances(scaled, scaled) / np.exp(0.7)
    K = np.exp(0.2) * starts.reference.covariance(R) + np.exp(-2.0) * np.eye(20)
    assert model.kernel(moved.X[:20]) == pytest.approx(K, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*time budget")
def test_own_starts_of_deep_kernels(starts, monkeypatch):
    """First weights follow the reference's length scales, and the best of several fits counts."""
    from skscalablegp import SCGDDKLRegressor

    found = starts.table("drawn-2of2-100")
    theta = np.array([0.0, np.log(0.5), np.log(2.0), -2.0])
    drawn = dict(starts.deep_models(SCGDDKLRegressor(), found, theta))
    assert len(drawn) == 6
    layers = {
        name: starts.network(factors, 1)[0].weight.detach().numpy()
        for name, factors in (("reference", np.exp(-theta[1:-1])), ("equal", np.ones(2)))
    }
    ratio = layers["reference"] / layers["equal"]
    assert ratio == pytest.approx(np.broadcast_to(ratio[0], ratio.shape), rel=1e-5)
    assert ratio[0, 0] / ratio[0, 1] == pytest.approx(4, rel=1e-5)
    assert np.mean(ratio[0] ** 2) == pytest.approx(1, rel=1e-5)

    monkeypatch.setattr(starts, "DEEP_LAYERS", (4,))
    monkeypatch.setattr(starts, "DEEP_SEEDS", (0, 1))
    values = iter([None, 0.5, 0.2, 0.3])

    def looks(model, drawn):
        return dict(nll=next(values), width=model.extract_features(drawn.X).shape)

    cell = dict(package=str(ROOT), estimator="SCGDDKLRegressor", problem="drawn-2of2-100")
    cell |= dict(own_start=True, theta=theta, max_seconds=0.2, looks=looks)
    line = {}
    starts.run_fit(cell, lambda **facts: line.update(facts))
    assert line["nll"] == 0.2 and line["start"] == "reference 1" and line["width"] == (100, 4)
    assert next(values, None) is None
