"""The contracts of parameters and of one fit, over all public estimators."""

import pytest
from contracts.fit_contract import FitContract
from contracts.parameter_contract import MEANINGS, ParameterContract
from contracts.test_contract import ROWS

import skscalablegp
from skscalablegp.core import PARAMETERS

# The rows whose settings reach an estimator's real path; every public class has one.
REAL_PATHS = (
    "iterative",
    "iterative-stages",
    "rrcg-truncated",
    "poe-experts",
    "poe-separate",
    "nngp-neighbours",
    "nngp-inducing",
    "nngp-subset",
    "rff-few",
    "ssrff-truncated",
    "scgd",
    "scgd-rows",
    "minimax",
    "bsgd",
    "kissgp-product",
    "kissgp-rows",
    "kissgp-network",
    "love-grows",
    "heteroscedastic",
    "heteroscedastic-folds",
    "mean-function",
    "stacked",
    "auto",
    "auto-classes",
    "qsgp-stochastic",
    "qsgp-rows",
    "qsgp-classifier",
    "qsgp-classifier-stochastic",
    "qsrvm",
    "svgp",
    "svgp-batches",
    "svgp-network",
    "svgp-classes",
    "sgpr",
)
FIT_ROWS = [row for row in ROWS if row.name in REAL_PATHS]
CLASSES = sorted({type(row.estimator) for row in FIT_ROWS}, key=lambda cls: cls.__name__)


def test_every_public_class_has_a_row():
    public = [getattr(skscalablegp, name) for name in skscalablegp.__all__]
    assert set(CLASSES) == {cls for cls in public if isinstance(cls, type)}
    assert len(FIT_ROWS) == len(REAL_PATHS)


def test_every_row_names_a_limit_or_says_why_there_is_none():
    assert not [row.name for row in FIT_ROWS if bool(row.limit) == bool(row.no_limit)]


def test_the_table_has_no_parameter_that_nobody_has():
    used = {name for cls in CLASSES for name in cls().get_params(deep=False)}
    assert set(PARAMETERS) == used == set(MEANINGS)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
class TestParameters(ParameterContract):
    pass


class TestFits(FitContract, rows=FIT_ROWS):
    pass
