"""Every estimator on a CUDA device: the same answers, one move of the table, pickles for all."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from contracts.estimator_contract import table
from contracts.test_fit_contract import FIT_ROWS
from sklearn.base import is_classifier

pytestmark = pytest.mark.gpu

# Training by random batches sums in another order on another device, and steps part from there.
CLOSE = 0.05


@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_says_on_a_gpu_what_it_says_on_a_cpu(row, gpu):
    X, y, X_new = table()
    target = row.target(y)
    here, there = (row.new(device=name).fit(X, target) for name in ("cpu", "cuda"))
    assert there.device_.startswith("cuda") and here.device_ == "cpu"
    if is_classifier(here):
        assert np.abs(here.predict_proba(X_new) - there.predict_proba(X_new)).max() < CLOSE
        return
    for ours, theirs in zip(
        here.predict(X_new, return_std=True), there.predict(X_new, return_std=True), strict=True
    ):
        assert np.abs(ours - theirs).max() < CLOSE * y.std()


@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_all_that_it_says_is_finite(row, gpu):
    X, y, X_new = table()
    model = row.new(device="cuda")
    for answer in row.everything(model.fit(X, row.target(y)), X_new):
        assert np.isfinite(answer).all() or answer.dtype.kind in "iOU"


@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_pickles_are_read_without_a_gpu(row, gpu, tmp_path):
    """In a process that sees no device; a fit and predictions in between change nothing."""
    X, y, X_new = table()
    model = row.new(device="cuda").fit(X, row.target(y))
    expected = model.predict(X_new)
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps((model, X_new)))
    code = (
        "import pickle, sys, numpy, torch; assert not torch.cuda.is_available();"
        "model, X = pickle.load(open(sys.argv[1], 'rb')); numpy.save(sys.argv[2], model.predict(X))"
    )
    answers = tmp_path / "answers.npy"
    subprocess.run(
        [sys.executable, "-c", code, path, answers],
        check=True,
        env={"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(sys.path)},
    )
    again = np.load(answers, allow_pickle=True)
    if is_classifier(model):
        assert (again == expected).mean() > 1 - CLOSE
    else:
        np.testing.assert_allclose(again, expected, atol=1e-3 * np.std(y))


def test_the_table_moves_once(gpu, monkeypatch):
    """A training step of an iterative model sends no table to the device."""
    from skscalablegp import IterativeGPRegressor

    X, y, _ = table(n=400)
    moved, original = [], torch.Tensor.to

    def to(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if result.is_cuda and not self.is_cuda and self.numel() >= len(X):
            moved.append(tuple(self.shape))
        return result

    monkeypatch.setattr(torch.Tensor, "to", to)
    counts = []
    for steps in (2, 8):
        moved.clear()
        IterativeGPRegressor(
            device="cuda", solver="cg", subset_size=None, max_iter=steps, random_state=0
        ).fit(X, y)
        counts.append(moved.count(X.shape))
    assert counts[0] == counts[1]
