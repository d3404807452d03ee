"""The contract of checkpoints: a fit that was ended by force goes on and ends the same."""

import os
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from contracts.fit_contract import Injected, answers, data, shared
from contracts.test_fit_contract import FIT_ROWS
from numpy.testing import assert_allclose
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning

from skscalablegp import IterativeGPRegressor, RFFRegressor, SVGPRegressor
from skscalablegp.core.training._moving import restored
from skscalablegp.files import ModelFileError
from skscalablegp.gradients import ExactGradient

# Rows of different mechanisms; the others are slow.
QUICK = ("iterative-stages", "svgp-batches", "scgd")
ROWS = [
    pytest.param(row, marks=() if row.name in QUICK else pytest.mark.slow, id=row.name)
    for row in FIT_ROWS
]


class FaultAt:
    """A callback that raises at one of its calls."""

    def __init__(self, number):
        self.number, self.seen = number, 0

    def __call__(self, step):
        self.seen += 1
        if self.seen == self.number:
            raise Injected


def fitted(row, model, seed=0):
    X, y, _ = data(row, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def assert_same(row, model, whole):
    for found, expected in zip(
        answers(row, model, data(row)[2]), answers(row, whole, data(row)[2]), strict=True
    ):
        assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    for name in ("stage", "iteration", "objective_name"):
        assert model.history_[name] == whole.history_[name]
    for name in ("theta", "objective"):
        for found, expected in zip(model.history_[name], whole.history_[name], strict=True):
            assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.seldom(
    "qsgp-rows",
    "poe-separate",
    "heteroscedastic-folds",
    "kissgp-product",
    "kissgp-rows",
    "scgd-rows",
    "nngp-subset",
    "qsgp-classifier",
    "svgp",
    "svgp-network",
)
@pytest.mark.parametrize("row", ROWS)
def test_a_fit_goes_on_after_a_fault(row, tmp_path):
    whole, _, _ = shared(row)
    n_steps = len(whole.history_["stage"])
    for share in (0.5, 0.8, 1.0):
        model = row.new().set_params(checkpoint=tmp_path, callbacks=FaultAt(round(share * n_steps)))
        with pytest.raises(Injected):
            fitted(row, model)
        (file,) = tmp_path.iterdir()
        assert file.name.startswith(type(model).__name__)
        again = fitted(row, row.new().set_params(checkpoint=str(tmp_path)))
        assert again.fit_report_.resumed > 0
        assert_same(row, again, whole)
        assert not [*tmp_path.iterdir()]


class Counted(ExactGradient):
    calls = 0

    def estimate(self, problem, theta, state):
        type(self).calls += 1
        return super().estimate(problem, theta, state)


X, Y = make_friedman1(60, noise=0.5, random_state=0)


def faulty(folder, number=3, **params):
    """The file of a fit that was ended at one of its steps."""
    model = IterativeGPRegressor(checkpoint=folder, callbacks=FaultAt(number), **params)
    with pytest.raises(Injected):
        model.fit(X, Y)
    (file,) = folder.iterdir()
    return file


def test_recorded_evaluations_are_not_made_again(tmp_path):
    settings = {"gradient": Counted(), "optimizer": "lbfgs", "max_iter": 50}
    Counted.calls = 0
    whole = IterativeGPRegressor(**settings).fit(X, Y)
    needed, Counted.calls = Counted.calls, 0
    faulty(tmp_path, len(whole.history_["stage"]), **settings)
    made, Counted.calls = Counted.calls, 0
    IterativeGPRegressor(checkpoint=tmp_path, **settings).fit(X, Y)
    assert needed > 5 and made + Counted.calls == needed


def test_other_data_and_parameters_are_other_fits(tmp_path):
    file = faulty(tmp_path)
    for settings, y in (({"alpha": 1e-3}, Y), ({}, Y + 1)):
        model = IterativeGPRegressor(checkpoint=tmp_path, **settings).fit(X, y)
        assert "resumed" not in model.fit_report_
    assert [*tmp_path.iterdir()] == [file]
    seen = []
    model = IterativeGPRegressor(checkpoint=tmp_path, callbacks=seen.append).fit(X, Y)
    assert "resumed" in model.fit_report_ and len(seen) == len(model.history_["stage"])
    assert "continued from a checkpoint" in str(model.fit_report_)


def test_a_file_of_other_software_is_refused_and_kept(tmp_path, monkeypatch):
    file = faulty(tmp_path)
    before = file.read_bytes()
    monkeypatch.setattr(
        "skscalablegp.core._checkpoint.versions", lambda: {"version of torch": "1.0"}
    )
    with pytest.raises(ModelFileError, match=r"version of torch is 1.0 here and 2.* in the file"):
        IterativeGPRegressor(checkpoint=tmp_path).fit(X, Y)
    assert file.read_bytes() == before


def test_a_renamed_file_names_what_differs(tmp_path):
    file = faulty(tmp_path)
    other = faulty(tmp_path / "other", alpha=0.5)
    file.unlink()
    other.rename(file)
    with pytest.raises(ModelFileError, match=r"parameter alpha is 1e-10 here and 0.5 in the file"):
        IterativeGPRegressor(checkpoint=tmp_path).fit(X, Y)


def test_damaged_files_are_refused(tmp_path):
    file = faulty(tmp_path)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(10):
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(whole)))] ^= 0xFF
        file.write_bytes(bytes(damaged)[: int(rng.integers(len(whole) // 2, len(whole) + 1))])
        with pytest.raises(ModelFileError, match=re.escape(file.name)):
            IterativeGPRegressor(checkpoint=tmp_path).fit(X, Y)


def test_a_state_whose_axes_are_exchanged_is_refused():
    value = torch.zeros(2, 3)
    with pytest.raises(ModelFileError, match="another form"):
        restored(value, np.ones((3, 2), np.float32))
    assert (restored(value, np.ones((2, 3), np.float32)) == 1).all()
    # Where tables grow, so do states.
    assert len(restored(value, np.ones((4, 3), np.float32))) == 4


def test_without_a_seed_the_file_has_one(tmp_path):
    settings = {"small_table": "method", "n_components": 20, "max_iter": 6, "checkpoint": tmp_path}
    at = np.random.default_rng(1).uniform(size=(5, 10))
    seen = []

    def fault(step):
        if step.stage == "full":
            seen.append(step.theta)
        if len(seen) == 3:
            raise Injected

    with pytest.raises(Injected):
        RFFRegressor(callbacks=fault, **settings).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RFFRegressor(**settings).fit(X, Y)
        other = RFFRegressor(**settings).fit(X, Y)
    steps = zip(model.history_["stage"], model.history_["theta"], strict=True)
    thetas = [theta for stage, theta in steps if stage == "full"]
    assert_allclose(thetas[:3], seen, rtol=1e-12)
    assert np.abs(model.predict(at) - other.predict(at)).max() > 0


def test_the_file_stays_after_an_interrupt(tmp_path):
    def interrupt(step):
        if step.iteration == 3:
            raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        IterativeGPRegressor(checkpoint=tmp_path, callbacks=interrupt).fit(X, Y)
    assert len([*tmp_path.iterdir()]) == 1
    model = IterativeGPRegressor(checkpoint=tmp_path).fit(X, Y)
    assert_allclose(model.kernel_.theta, IterativeGPRegressor().fit(X, Y).kernel_.theta, rtol=1e-6)


def test_a_folder_that_cannot_be_made_is_an_error_before_the_fit(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="checkpoint='.*folder' is not a folder .* give another one"):
        IterativeGPRegressor(checkpoint=tmp_path / "file" / "folder").fit(X, Y)


KILLED = {
    "iterative": IterativeGPRegressor(
        solver="cg", gradient="pathwise", optimizer="adam", max_iter=30, random_state=0
    ),
    "svgp": SVGPRegressor(small_table="method", max_iter=60, random_state=0),
}
PROGRAM = """
import os, signal, sys, time, warnings
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
from contracts.test_checkpoints import KILLED, X, Y
calls = []
def slow(step):
    calls.append(step)
    time.sleep(1.5)
    if len(calls) == 12:
        os.kill(os.getpid(), signal.SIGKILL)
KILLED[sys.argv[1]].set_params(checkpoint=sys.argv[2], callbacks=slow).fit(X, Y)
"""


# The other process has no perturbed tables.
@pytest.mark.exact_input
@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_fit_goes_on_in_another_process(name, tmp_path):
    """The file is written while the fit runs, since nothing runs after signal 9."""
    command = [sys.executable, "-c", PROGRAM, name, str(tmp_path)]
    ended = subprocess.run(command, env=dict(os.environ), check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len([*tmp_path.glob("*.safetensors")]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = KILLED[name].fit(X, Y)
        found = whole.kernel_.theta.copy(), whole.predict(X)
        again = KILLED[name].set_params(checkpoint=tmp_path).fit(X, Y)
        KILLED[name].set_params(checkpoint=None)
    assert again.fit_report_.resumed > 5
    assert_allclose(again.kernel_.theta, found[0], rtol=1e-6)
    assert_allclose(again.predict(X), found[1], rtol=1e-6)
