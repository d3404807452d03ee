"""Which cases of a contract are collected for which rows of its table.

A case is collected for every row that can do what it `needs`, because the settings of a row choose
the path through the code that the case meets. What no setting reaches, such as validation, names
and the conversion of tables, all rows of a class share: such a case runs `once_a_class`, on the row
that stands for the class. What does not concern a row is never collected for it, so that each skip
says something about the machine.

`make test` runs a case on one row of each family, of what a folder has for one kind of target, and
the rest is marked slow; `on_all_rows` marks the cases of which it runs all, `few_are_quick` and
`once_a_base` those that it runs on one row of each base class.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from skscalablegp.core import GPClassifierBase, MinibatchGPRegressorBase, TableRegressorBase

BASES = TableRegressorBase, MinibatchGPRegressorBase, GPClassifierBase


def needs(*wanted: str) -> Callable[[Any], Any]:
    """Marks a case for the rows that have all of these: see `Row.has`."""

    def mark(case: Any) -> Any:
        case.needs = wanted
        return case

    return mark


def once_a_class(case: Any) -> Any:
    """Marks a case that no setting of a row reaches: one row of each class has it."""
    case.once_a_class = True
    return case


def on_all_rows(case: Any) -> Any:
    """Marks an essential case, which `make test` runs on all rows that have it."""
    case.on_all_rows = True
    return case


def once_a_base(case: Any) -> Any:
    """Marks a case that no setting reaches and that costs several fits.

    It is collected for one row of each class. `make test` runs it for one class of each base class,
    which has the code that such a case meets.
    """
    case.once_a_class = case.few_are_quick = True
    return case


def few_are_quick(case: Any) -> Any:
    """Marks a case of all rows of which `make test` runs one row of each base class."""
    case.few_are_quick = True
    return case


def rows_of(case: Any, rows: Iterable[Any]) -> list[Any]:
    """The rows of a table for which a case is collected."""
    able = [row for row in rows if all(row.has(name) for name in getattr(case, "needs", ()))]
    return _first_of_each(_class, able) if getattr(case, "once_a_class", False) else able


def quick_rows(case: Any, rows: Iterable[Any]) -> list[Any]:
    """Those of them that `make test` runs."""
    collected = rows_of(case, rows)
    if getattr(case, "on_all_rows", False):
        return collected
    return _first_of_each(_base if getattr(case, "few_are_quick", False) else _family, collected)


def marked(case: Any, rows: Iterable[Any]) -> list[Any]:
    """The rows of a case for pytest, with a mark on those that `make test` leaves out."""
    quick = {row.name for row in quick_rows(case, rows)}
    marks = {row.name: () if row.name in quick else pytest.mark.slow for row in rows}
    return [pytest.param(row, marks=marks[row.name], id=row.name) for row in rows_of(case, rows)]


def _class(row: Any) -> Any:
    return type(row.estimator) if hasattr(row, "estimator") else row.name


def _family(row: Any) -> Any:
    if not hasattr(row, "estimator"):
        return row.name
    return _class(row).__module__.rpartition(".")[0], row.has("classifier")


def _base(row: Any) -> Any:
    bases = (base for base in BASES if isinstance(row.estimator, base))
    return next(bases, row.has("classifier"))


def _first_of_each(kind: Callable[[Any], Any], rows: list[Any]) -> list[Any]:
    """The row of each kind that stands for its base, or for its class, or else the first one."""
    chosen: dict[Any, Any] = {}
    stands = ("stands_for_its_base", "stands_for_its_class")
    for row in sorted(rows, key=lambda row: [not getattr(row, name, False) for name in stands]):
        chosen.setdefault(kind(row), row)
    return list(chosen.values())


class Contract:
    """Base of the suites over rows; ``class TestX(Suite, rows=ROWS)`` runs a suite over a table."""

    rows: list[Any]

    def __init_subclass__(cls, rows: Iterable[Any] | None = None) -> None:
        super().__init_subclass__()
        if rows is None:  # a suite, which has no table of its own
            return
        cls.rows = list(rows)
        for name in dir(cls):
            if name.startswith("test_") and not rows_of(getattr(cls, name), cls.rows):
                setattr(cls, name, None)  # which pytest does not collect

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for each case; other parameters come from its own decorators."""
        metafunc.parametrize("row", marked(metafunc.function, self.rows))
