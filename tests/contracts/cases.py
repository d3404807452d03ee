"""Which cases of a contract are collected for which rows of its table.

A case is collected for every row that can do what it `needs`, because the settings of a row choose
the path through the code that the case meets. What no setting reaches, such as validation, names
and the conversion of tables, all rows of a class share: such a case runs `once_a_class`, on the row
that stands for the class. What does not concern a row is never collected for it, so that each skip
says something about the machine.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


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


def rows_of(case: Any, rows: Iterable[Any]) -> list[Any]:
    """The rows of a table for which a case is collected."""
    able = [row for row in rows if all(row.has(name) for name in getattr(case, "needs", ()))]
    if not getattr(case, "once_a_class", False):
        return able
    chosen: dict[type, Any] = {}
    for row in sorted(able, key=lambda row: not row.stands_for_its_class):
        chosen.setdefault(type(row.estimator), row)
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
        rows = rows_of(metafunc.function, self.rows)
        metafunc.parametrize("row", rows, ids=[row.name for row in rows])
