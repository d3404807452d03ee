"""What tests replace by name is found wherever it is, or the name is in the error."""

import named
import pytest

from skscalablegp import core
from skscalablegp.core import training
from skscalablegp.linalg.solvers import CG


def test_a_function_is_replaced_wherever_it_was_imported():
    whole, new = training.train, object()
    with pytest.MonkeyPatch.context() as patch:
        assert named.stand_in(patch, "train", new) is whole
        assert training.train is new is named.module("choose_start").train
    assert training.train is whole is named.module("choose_start").train
    with pytest.MonkeyPatch.context() as patch:
        named.stand_in(patch, "train", new, at="_starts")
        assert named.module("choose_start").train is new is not training.train


def test_a_number_and_one_by_device():
    steps, exact = core.MOST_STEPS, named.module("EXACT_TRAINING_ROWS")
    before = dict(exact.EXACT_TRAINING_ROWS)
    with pytest.MonkeyPatch.context() as patch:
        named.thresholds(patch, MOST_STEPS=steps + 1, EXACT_TRAINING_ROWS=7)
        assert core.MOST_STEPS == steps + 1
        assert exact.EXACT_TRAINING_ROWS == before | {"cpu": 7}
    assert (core.MOST_STEPS, exact.EXACT_TRAINING_ROWS) == (steps, before)


def test_a_method():
    step = CG.step
    with pytest.MonkeyPatch.context() as patch:
        assert named.stand_in(patch, "CG.step", None) is step
        assert CG.step is None
    assert CG.step is step


@pytest.mark.parametrize(
    "name, message",
    [
        ("nowhere", "0 modules define nowhere"),
        ("neighbors._WORTH", "2 modules define .*: .*_nngp, .*_wide"),
        ("sampled.CG", "0 modules"),
    ],
)
def test_names_that_do_not_say_what_is_meant(name, message):
    with pytest.raises(LookupError, match=message):
        named.home(name)
