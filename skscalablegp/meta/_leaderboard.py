"""The members that an automatic estimator has compared, as a table that prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

_HEAD = ("member", "held-out NLL", "CRPS", "weight", "seconds", "note")


class LeaderboardRow(NamedTuple):
    """One member of a leaderboard.

    Attributes
    ----------
    member : str
        Its name.
    nll : float
        Mean negative log density of the held-out targets in their own units; for classes the log
        loss. NaN for a member that was not validated.
    crps : float
        Mean continuous ranked probability score in units of the target; NaN for classes.
    weight : float
        Its share of the predictions.
    seconds : float
        Wall time of its fits.
    note : str
        Why it was dropped, or on which rows the predicting fit was made.
    """

    member: str
    nll: float
    crps: float
    weight: float
    seconds: float
    note: str


class Leaderboard:
    """The compared members in rising order of their NLL; ``print`` shows a table.

    Parameters
    ----------
    rows : sequence of LeaderboardRow
    """

    def __init__(self, rows: Sequence[LeaderboardRow]):
        self.rows = tuple(sorted(rows, key=lambda row: (row.nll != row.nll, row.nll)))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[LeaderboardRow]:
        return iter(self.rows)

    def __getitem__(self, member: str) -> LeaderboardRow:
        """The row of a member by its name."""
        return {row.member: row for row in self.rows}[member]

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Leaderboard) and repr(self) == repr(other)

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns by name, as ``pandas.DataFrame`` takes them."""
        return {name: [getattr(row, name) for row in self.rows] for name in LeaderboardRow._fields}

    def _cells(self) -> list[tuple[str, ...]]:
        def shown(value: float, form: str) -> str:
            return "" if value != value else format(value, form)

        return [
            (
                row.member,
                shown(row.nll, ".4g"),
                shown(row.crps, ".4g"),
                shown(row.weight, ".2f"),
                shown(row.seconds, ".2g"),
                row.note,
            )
            for row in self.rows
        ]

    def __repr__(self) -> str:
        table = [_HEAD, *self._cells()]
        widths = [max(len(line[j]) for line in table) for j in range(len(_HEAD))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if j in (0, 5) else cell.rjust(width)
                for j, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        )

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            # Names and notes are on the left of their cells, numbers on the right.
            sides = ["left", *["right"] * (len(cells) - 2), "left"]
            return (
                "<tr>"
                + "".join(
                    f'<{tag} style="text-align: {side}; padding: 0 0.5em">{escape(cell)}</{tag}>'
                    for cell, side in zip(cells, sides, strict=True)
                )
                + "</tr>"
            )

        body = "".join(line(cells, "td") for cells in self._cells())
        return f"<table><thead>{line(_HEAD, 'th')}</thead><tbody>{body}</tbody></table>"


def in_words(names: Sequence[str], weights: Sequence[float]) -> str:
    """Which members predict, and how they were weighted."""
    if len(names) == 1:
        return f"{names[0]} predicts alone, chosen"
    parts = [f"{weight:.0%} {name}" for name, weight in zip(names, weights, strict=True)]
    return f"{', '.join(parts[:-1])} and {parts[-1]} predict, weighted"
