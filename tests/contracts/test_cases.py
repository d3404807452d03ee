"""Cases are collected for the rows that they concern, and for no other."""

from contracts.cases import (
    Contract,
    needs,
    on_all_rows,
    once_a_base,
    once_a_class,
    quick_rows,
    rows_of,
)
from contracts.estimator_contract import CAPABILITIES, EstimatorContract, Row
from contracts.fit_contract import FitContract
from contracts.test_contract import ROWS
from contracts.test_fit_contract import FIT_ROWS

from skscalablegp import PoERegressor, RFFRegressor, SSRFFRegressor, SVGPClassifier

PLAIN = Row("plain", RFFRegressor(), multi_output=False)
OTHER = Row("other", RFFRegressor(n_components=3), stands_for_its_class=True, limit={"max_iter": 1})
EXPERTS = Row("experts", PoERegressor())
CLASSES = Row("classes", SVGPClassifier(), classifier=True)
FEW = [PLAIN, OTHER, EXPERTS, CLASSES]


class Suite(Contract):
    def test_all(self, row): ...

    @needs("multi_output", "n_components")
    def test_some(self, row): ...

    @once_a_class
    def test_classes(self, row): ...

    @once_a_base
    def test_bases(self, row): ...

    @on_all_rows
    def test_essential(self, row): ...

    @once_a_class
    @needs("regressor", "limit")
    def test_some_classes(self, row): ...


def names(case, rows=FEW):
    return [row.name for row in rows_of(case, rows)]


def test_rows_that_have_what_a_case_needs():
    assert names(Suite.test_all) == ["plain", "other", "experts", "classes"]
    assert names(Suite.test_some) == ["other"]


def test_the_row_that_stands_for_its_class():
    assert sorted(names(Suite.test_classes)) == ["classes", "experts", "other"]
    assert names(Suite.test_some_classes) == ["other"]
    # Where that row lacks something another one of the class has the case.
    assert names(Suite.test_classes, [PLAIN, EXPERTS]) == ["plain", "experts"]


def test_rows_that_a_quick_run_has():
    table = [*FEW, Row("family", SSRFFRegressor())]
    assert [row.name for row in quick_rows(Suite.test_essential, table)] == names(
        Suite.test_all, table
    )
    for case in (Suite.test_all, Suite.test_classes):
        quick = [row.name for row in quick_rows(case, table)]
        assert sorted(quick) == ["classes", "experts", "other"]
    assert sorted(names(Suite.test_bases, table)) == ["classes", "experts", "family", "other"]
    assert sorted(row.name for row in quick_rows(Suite.test_bases, table)) == ["classes", "other"]
    first = Row("first", PoERegressor(), stands_for_its_base=True)
    quick = quick_rows(Suite.test_bases, [*table, first])
    assert sorted(row.name for row in quick) == ["classes", "first"]


def test_a_case_without_rows_is_not_collected():
    class Empty(Suite, rows=[CLASSES]):
        pass

    assert Empty.test_all and Empty.test_classes
    assert Empty.test_some is None and Empty.test_some_classes is None
    assert Suite.test_some


def test_what_rows_have():
    assert PLAIN.has("regressor") and not PLAIN.has("classifier")
    assert CLASSES.has("classifier") and not CLASSES.has("regressor")
    assert [name for name in sorted(CAPABILITIES) if CLASSES.has(name)] == ["multi_class"]
    assert {name for name in CAPABILITIES if EXPERTS.has(name)} == CAPABILITIES - {"multi_class"}
    assert RFFRegressor().get_params().keys() >= {"n_components", "alpha"}
    assert PLAIN.has("alpha") and PLAIN.has("n_components") and not EXPERTS.has("n_components")


def test_every_case_of_the_suites_has_a_row():
    """A name that is written wrongly would leave a case out of all rows."""
    for suite, rows in ((EstimatorContract, ROWS), (FitContract, FIT_ROWS)):
        cases = [name for name in dir(suite) if name.startswith("test_")]
        assert cases and not [name for name in cases if not rows_of(getattr(suite, name), rows)]
