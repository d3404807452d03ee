"""The goals of the automatic estimators on the suite's tables, beside what was measured.

They were written down before the measurement, for the part "kept": `ASKED` has the limits at the
smallest and at the largest budget, or one for both. A figure that misses its limit says so.
"""

import math

import numpy as np
import suite_scores
from scipy.stats import rankdata

# (at the smallest budget, at the largest); None: nothing is asked.
BELOW_CATBOOST = (0.75, 0.9)
OVER_CATBOOST = (None, 0.05)
WITHIN_MEMBERS, OVER_MEMBERS = (0.9, 0.9), (0.1, 0.1)
COVERED = (0.91, 0.985)
CALIBRATION_ERROR = 0.03
RISE = 0.03
# Of the budget, and seconds above that.
OVERRUN, SPARE = 1.1, 2.0


def goals(lines, classes, budgets, members):
    """Header and rows; None where the automatic estimator has no lines."""
    auto = suite_scores.AUTO[classes]
    ends = [min(budgets), max(budgets)]
    at = [suite_scores.at_budget(lines, classes, seconds) for seconds in ends]
    if not all(any(x["estimator"] == auto for x in some) for some in at):
        return None
    rows = []
    for name in suite_scores.SCORES[classes][: 1 if classes else 2]:
        cells = [place(some, classes, name, auto) for some in at]
        rows.append([f"mean rank in {suite_scores.SHOWN[name]}", "best", *cells])
    if not classes:
        rows += against_catboost(at, auto) + against_members(at, auto, members)
    rows += calibrated(at, classes, auto)
    if not classes and ends[0] < ends[1]:
        rows.append(rise(lines, budgets, auto))
    rows.append(overrun(at, auto, ends))
    return ["goal", "asked", *(f"at {seconds:g} s" for seconds in ends)], rows


def marked(value, met, form="{:.2f}"):
    text = form.format(value)
    return text if met else f"{text}, missed"


def place(lines, classes, name, auto):
    """The mean rank, and which place that is."""
    _, estimators, scores, *_ = suite_scores.scored(lines, classes)
    means = rankdata(scores[name], axis=1).mean(axis=0)
    mine = means[estimators.index(auto)]
    rank = 1 + int((means < mine).sum())
    return marked(mine, rank == 1, "{:.2f}" + f" (place {rank} of {len(means)})")


def apart(lines, auto, other):
    """By table: the NLL of the automatic estimator minus another one's."""
    cells = suite_scores.by_cell(lines)
    both = [t for t, name in cells if name == auto and (t, other) in cells]
    return {
        t: np.subtract(*(suite_scores.mean_of(cells[t, e], "nll") for e in (auto, other)))
        for t in both
    }


def against_catboost(at, auto):
    gaps = [np.array([*apart(some, auto, suite_scores.CATBOOST[False]).values()]) for some in at]
    if not all(map(len, gaps)):
        return []
    shares = [
        marked(np.mean(gap < 0), np.mean(gap < 0) >= asked, "{:.2f}" + f" of {len(gap)}")
        for gap, asked in zip(gaps, BELOW_CATBOOST, strict=True)
    ]
    excess = [
        marked(gap.max(), asked is None or gap.max() <= asked, "{:+.3f}")
        for gap, asked in zip(gaps, OVER_CATBOOST, strict=True)
    ]
    return [
        ["tables below CatBoost in NLL", "at least {:g}, {:g}".format(*BELOW_CATBOOST), *shares],
        ["largest excess over CatBoost", f"at most {OVER_CATBOOST[1]:g} at the end", *excess],
    ]


def against_members(at, auto, members):
    found = [np.array([*suite_scores.excesses(some, False, auto, members).values()]) for some in at]
    if not all(map(len, found)):
        return []
    within = [
        marked(
            np.mean(gap <= suite_scores.ALIKE),
            np.mean(gap <= suite_scores.ALIKE) >= asked,
            "{:.2f}" + f" of {len(gap)}",
        )
        for gap, asked in zip(found, WITHIN_MEMBERS, strict=True)
    ]
    excess = [
        marked(gap.max(), gap.max() <= asked, "{:+.3f}")
        for gap, asked in zip(found, OVER_MEMBERS, strict=True)
    ]
    return [
        [
            f"tables within {suite_scores.ALIKE:g} of the best single estimator",
            f"at least {WITHIN_MEMBERS[0]:g}",
            *within,
        ],
        ["largest excess over the best single estimator", f"at most {OVER_MEMBERS[0]:g}", *excess],
    ]


def calibrated(at, classes, auto):
    """Coverage or calibration error, where there are enough test rows."""
    name, enough = suite_scores.CALIBRATION[classes], suite_scores.FEWEST_TEST_ROWS[classes]
    cells = []
    for some in at:
        known = [
            x.get(name) for x in some if x["estimator"] == auto and x.get("n_test", 0) >= enough
        ]
        known = [value for value in known if value is not None]
        if not known:
            return []
        low, high = min(known), max(known)
        if classes:
            cells.append(marked(high, high <= CALIBRATION_ERROR, "{:.3f}"))
        else:
            met = COVERED[0] <= low and high <= COVERED[1]
            cells.append(marked(low, met, "{:.3f} to " + f"{high:.3f}"))
    if classes:
        return [["largest calibration error", f"at most {CALIBRATION_ERROR:g}", *cells]]
    return [["coverage of 95 % intervals", "{:g} to {:g}".format(*COVERED), *cells]]


def rise(lines, budgets, auto):
    gaps = suite_scores.rises(lines, False, budgets, auto)
    largest = max(gaps.values(), default=math.nan)
    text = marked(largest, largest <= RISE, "{:+.3f}")
    return ["largest rise between the budgets", f"at most {RISE:g}", "", text]


def overrun(at, auto, ends):
    """The longest fit, in seconds of the clock that the budget counts."""
    cells = []
    for some, seconds in zip(at, ends, strict=True):
        mine = [x for x in some if x["estimator"] == auto]
        took = [x.get("fit_cpu_seconds" if x["clock"] == "cpu" else "fit_seconds") for x in mine]
        longest = max((value for value in took if value is not None), default=math.nan)
        cells.append(marked(longest, longest <= OVERRUN * seconds + SPARE, "{:.1f} s"))
    return ["longest fit", f"at most a tenth and {SPARE:g} s over", *cells]
