"""Scores of suite.py's lines by table and estimator, at one budget or between two."""

import math
from typing import NamedTuple

import numpy as np

SCORES = {False: ("nll", "crps"), True: ("log_loss", "brier")}
AUTO = {False: "AutoGPRegressor", True: "AutoGPClassifier"}
CATBOOST = {False: "CatBoostUncertainty", True: "CatBoostClassifier"}
CALIBRATION = {False: "coverage95", True: "ece"}
# Fewer test rows contain too little information about calibration.
FEWEST_TEST_ROWS = {False: 300, True: 1000}
# An excess that counts as none.
ALIKE = 0.03
SHOWN = {"nll": "NLL", "crps": "CRPS", "log_loss": "log loss", "brier": "Brier score"}


def at_budget(lines, classes, seconds):
    """Lines of this budget, and of rivals without any."""
    fits = (seconds, None)
    return alike([x for x in lines if x["classes"] == classes and x["max_seconds"] in fits])


def alike(lines):
    """Lines of the splits of each table that all estimators have which were run on every table.

    Where these have no split in common, all lines are kept.
    """
    cells = by_cell(lines)
    tables, estimators = (set(found) for found in zip(*cells, strict=True)) if cells else ((), ())
    whole = [e for e in estimators if all((t, e) in cells for t in tables)] or [*estimators]
    common = {}
    for t in tables:
        found = [{x["split"] for x in cells[t, e]} for e in whole if (t, e) in cells]
        common[t] = set.intersection(*found) if found else set()
    return [x for x in lines if x["split"] in (common[x["dataset"]] or {x["split"]})]


class Scored(NamedTuple):
    """Scores of estimators on tables, arrays of shape (tables, estimators) by their names."""

    tables: list
    estimators: list
    scores: dict
    # Tables that do not count, and estimators that lack some that do.
    without: list
    incomplete: list


def scored(lines, classes):
    cells = by_cell(lines)
    names, estimators = (sorted(set(found)) for found in zip(*cells, strict=True))
    needed = [AUTO[classes]] if AUTO[classes] in estimators else estimators
    tables = [t for t in names if all((t, e) in cells for e in needed)]
    whole = [e for e in estimators if all((t, e) in cells for t in tables)]
    scores = {
        name: np.array([[mean_of(cells[t, e], name) for e in whole] for t in tables])
        for name in SCORES[classes]
    }
    without = [t for t in names if t not in tables]
    return Scored(tables, whole, scores, without, [e for e in estimators if e not in whole])


def by_cell(lines):
    """Lines of each table and estimator: one for each split."""
    cells = {}
    for line in lines:
        cells.setdefault((line["dataset"], line["estimator"]), []).append(line)
    return cells


def mean_of(lines, name):
    """Mean over splits; infinite if one has no score."""
    values = [line.get(name) for line in lines]
    return math.inf if None in values else float(np.mean(values))


def mean_error(ranks):
    """The mean, and its standard error over tables."""
    error = ranks.std(ddof=1) / math.sqrt(len(ranks)) if len(ranks) > 1 else math.nan
    return ranks.mean(), error


def rises(lines, classes, budgets, estimator):
    """By table: the first score at the largest budget minus that at the smallest."""
    first, ends = SCORES[classes][0], (min(budgets), max(budgets))
    mine = [x for x in lines if x["estimator"] == estimator and x["classes"] == classes]
    gaps = {}
    for name in sorted({x["dataset"] for x in mine}):
        at = [[x for x in mine if (x["dataset"], x["max_seconds"]) == (name, s)] for s in ends]
        both = set.intersection(*({x["split"] for x in some} for some in at))
        at = [[x for x in some if x["split"] in both] for some in at]
        if ends[0] < ends[1] and all(at):
            before, after = (mean_of(some, first) for some in at)
            gaps[name] = after - before if math.isfinite(after) else after
    return gaps


def excesses(lines, classes, estimator, members):
    """By table: the first score minus the best of the single ones, where all of these have one."""
    cells, first = by_cell(lines), SCORES[classes][0]
    present = {name for _, name in cells} & set(members)
    found = {}
    for table in sorted({table for table, _ in cells}):
        if present and all((table, name) in cells for name in {*present, estimator}):
            best = min(mean_of(cells[table, name], first) for name in present)
            mine = mean_of(cells[table, estimator], first)
            # Where all single ones fail there is none to be behind.
            found[table] = mine - best if math.isfinite(best) else -math.inf
    return found
