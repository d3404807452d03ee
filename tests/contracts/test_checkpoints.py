"""The contract of checkpoints: a fit that was ended by force goes on and ends the same."""

import warnings

import pytest
from contracts.fit_contract import Injected, answers, data, shared
from contracts.test_fit_contract import FIT_ROWS
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

# Rows of different mechanisms, one of each; the others are slow.
QUICK = ("iterative-stages", "rrcg-truncated", "svgp-batches", "scgd")
QUICK += ("qsgp-stochastic", "love-grows")
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


@pytest.mark.parametrize("row", ROWS)
def test_a_fit_goes_on_after_a_fault(row, tmp_path):
    whole, _, _ = shared(row)
    n_steps = len(whole.history_["stage"])
    for share in (0.5, 1.0):
        model = row.new().set_params(checkpoint=tmp_path, callbacks=FaultAt(round(share * n_steps)))
        with pytest.raises(Injected):
            fitted(row, model)
        (file,) = tmp_path.iterdir()
        assert file.name.startswith(type(model).__name__)
        again = fitted(row, row.new().set_params(checkpoint=str(tmp_path)))
        assert again.fit_report_.resumed > 0
        assert_same(row, again, whole)
        assert not [*tmp_path.iterdir()]
