"""benchmarks/gpu.py: each part ends, on a CPU and on a simulated GPU, and none repeats lines."""

import json
import sys
from pathlib import Path

import pytest
import torch
from simulated import simulated

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.skipif(
        not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
    ),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """The script at a two-hundredth of its sizes; a call returns the lines it has added."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu as script

    monkeypatch.setattr(script, "rows", lambda args, n: max(200, n // 2000))
    file = tmp_path / "lines.jsonl"

    def run(*words):
        before = file.read_text().splitlines() if file.exists() else []
        script.main([*words, "--lines", str(file)])
        after = file.read_text().splitlines() if file.exists() else []
        assert after[: len(before)] == before
        return [json.loads(line) for line in after[len(before) :]]

    yield run
    for name in ("gpu", "compare", "compare_report", "uci"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("part, count", [("entries", 6), ("million", 1)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parts_end_and_are_not_repeated(part, count, device, gpu, capsys):
    with simulated() as there:
        first = gpu("--part", part, "--device", device, "--seconds", "0")
        assert first == [] and "time is over" in capsys.readouterr().err
        lines = gpu("--part", part, "--device", device)
        assert len(lines) == count and bool(there.launches) == (device == "cuda")
        assert gpu("--part", part, "--device", device) == []
    for line in lines:
        assert line["part"] == part and line["revision"] and line["n"] >= 200
        found = [line[name] for name in line if name.endswith("seconds") or "per_second" in name]
        assert found and all(value > 0 for value in found)
    assert ("simulated" if device == "cuda" else "CPU") in lines[0]["device"]


@pytest.mark.parametrize("part, count", [("entries", 3), ("million", 1)])
def test_a_device_without_double_precision(part, count, gpu):
    with simulated("mps:0") as there:
        lines = gpu("--part", part, "--device", "mps")
        assert len(lines) == count and there.launches
    assert all(line["device"].startswith("mps") for line in lines)


@pytest.mark.slow
@pytest.mark.seldom("sets-6", "products-6")
@pytest.mark.parametrize("part, count", [("exact", 2), ("sets", 6), ("products", 6)])
def test_other_parts_end(part, count, gpu, data_folder, monkeypatch):
    monkeypatch.setenv("SKSCALABLEGP_DATA", str(data_folder))
    lines = gpu("--part", part, "--device", "cpu", "--small")
    assert len(lines) == count
    for line in lines:
        assert "status" in line or line["relative_error"] < 1e-5 or line["rmse"] < 10


@pytest.mark.night
def test_waits_of_every_class(gpu):
    """Predictions of more rows wait no more often, but where experts or trees choose among rows."""
    lines = gpu("--part", "waits", "--device", "cpu", "--seconds", "1e9")
    assert len(lines) == 22
    more = {a["estimator"] for a in lines if a["predict_200"]["waits"] > a["predict_20"]["waits"]}
    assert not more, more
    assert torch.cuda.device_count() == 0 or torch.cuda.is_available()
