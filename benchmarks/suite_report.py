"""What suite.py has measured, as tables in Markdown or reStructuredText and as a picture of ranks.

At each budget there are mean ranks with standard errors over the tables that the automatic
estimator has (without it, those that all estimators have): the mean over splits ranks, a failure is
last, and estimators that lack one of these tables are named and have no rank. Beside the ranks
stand the share of tables below CatBoost and the largest excess over it; the largest excess over the
best of this package's single estimators, and the share of tables where it is at most 0.03, on
tables that all of these have; and the range of coverage over cells of at least 300 test rows, or of
the calibration error over those of 1,000. After the last budget comes the largest rise of a score
from the smallest budget to the largest. suite_goals.py compares these figures with the goals.
"""

import math
from typing import NamedTuple

import numpy as np
from compare_report import simple_table
from scipy.stats import rankdata
from suite_goals import goals
from suite_scores import (
    ALIKE,
    AUTO,
    CALIBRATION,
    CATBOOST,
    FEWEST_TEST_ROWS,
    SCORES,
    SHOWN,
    at_budget,
    by_cell,
    excesses,
    mean_error,
    mean_of,
    rises,
    scored,
)

KINDS = {False: "Regression", True: "Classification"}


class Section(NamedTuple):
    """A title, a sentence, and a table with its header if there is one."""

    title: str
    said: str
    header: list
    rows: list


def sections(lines, budgets, clock, members, each=False):
    """Regression, then classification, at each budget."""
    found = []
    for classes, kind in KINDS.items():
        for seconds in budgets:
            if chosen := at_budget(lines, classes, seconds):
                title = f"{kind}, {seconds:g} {unit(clock)}"
                found.append(Section(title, *ranking(chosen, classes, members)))
                if each:
                    found.append(Section("", "", *by_table(chosen, classes)))
        if rises := rising(lines, classes, budgets):
            found.append(Section("", rises, [], []))
        if compared := goals(lines, classes, budgets, members):
            found.append(Section(f"{kind}, goals of {AUTO[classes]}", "", *compared))
    return found


def report(lines, budgets, clock, members, each=False):
    """The sections in Markdown."""
    found = []
    for one in sections(lines, budgets, clock, members, each):
        if one.title:
            found += [f"### {one.title}", ""]
        if one.said:
            found += [one.said, ""]
        if one.rows:
            found += [*markdown(one.header, one.rows), ""]
    return "\n".join(found) or "There are no lines."


def unit(clock):
    return "processor seconds" if clock == "cpu" else "s"


def ranking(lines, classes, members):
    """A sentence, a header, and one row for each estimator, best mean rank first."""
    tables, estimators, scores, without, incomplete = scored(lines, classes)
    said = f"Ranks of {len(estimators)} estimators on {len(tables)} tables"
    said += f"; without: {', '.join(without)}" if without else ""
    said += f"; not on all of them: {', '.join(incomplete)}" if incomplete else ""
    if not tables:
        return said + ".", [], []
    first, second = SCORES[classes]
    ranks = {name: rankdata(values, axis=1) for name, values in scores.items()}
    header = ["estimator", f"rank, {SHOWN[first]}", f"rank, {SHOWN[second]}", "below CatBoost"]
    header += ["largest excess", "over best member", f"within {ALIKE:g}", CALIBRATION[classes]]
    header += ["wall s", "processor s", "failed"]
    rows = []
    for e in np.argsort(ranks[first].mean(axis=0), kind="stable"):
        mine = [x for x in lines if x["dataset"] in tables and x["estimator"] == estimators[e]]
        rows.append(
            [
                estimators[e],
                *("{:.2f} ± {:.2f}".format(*mean_error(ranks[name][:, e])) for name in ranks),
                *against(scores[first], estimators, e, CATBOOST[classes]),
                *over_members(lines, classes, estimators[e], members),
                calibration(mine, classes),
                *(average(mine, name) for name in ("fit_seconds", "fit_cpu_seconds")),
                str(sum(line["status"] != "ok" for line in mine)),
            ]
        )
    return said + ".", header, rows


def by_table(lines, classes):
    """The first score of every estimator on each table, the lowest one marked."""
    cells, first = by_cell(lines), SCORES[classes][0]
    names, estimators = (sorted(set(found)) for found in zip(*cells, strict=True))
    rows = []
    for name in names:
        values = [
            mean_of(cells[name, e], first) if (name, e) in cells else math.nan for e in estimators
        ]
        best = min((value for value in values if math.isfinite(value)), default=math.nan)
        rows.append([name, *(shown(value, value == best) for value in values)])
    return [SHOWN[first], *estimators], rows


def shown(value, best):
    """A score; "failed" where it is infinite, nothing where there was no run."""
    if math.isnan(value):
        return ""
    text = "failed" if math.isinf(value) else f"{value:.3f}"
    return f"**{text}**" if best else text


def rising(lines, classes, budgets):
    """How far the first score of each estimator rises from the smallest budget to the largest."""
    said = []
    for estimator in sorted({x["estimator"] for x in lines if x["max_seconds"] is not None}):
        if gaps := rises(lines, classes, budgets, estimator):
            worst = max(gaps, key=gaps.__getitem__)
            said.append(f"{estimator} {gaps[worst]:+.3f} ({worst})")
    low, high = min(budgets), max(budgets)
    words = f"Largest rise of the {SHOWN[SCORES[classes][0]]} from {low:g} to {high:g} s: "
    return words + ", ".join(said) + "." if said else ""


def average(lines, name):
    values = [line[name] for line in lines if line.get(name) is not None]
    return f"{np.mean(values):.1f}" if values else ""


def calibration(lines, classes):
    """The range of coverage or of the calibration error where there are enough test rows."""
    name, enough = CALIBRATION[classes], FEWEST_TEST_ROWS[classes]
    known = [x[name] for x in lines if x.get(name) is not None and x.get("n_test", 0) >= enough]
    return f"{min(known):.3f} to {max(known):.3f}" if known else ""


def against(scores, estimators, e, other):
    """The share of tables below another estimator, and the largest excess over it."""
    if other not in estimators or estimators[e] == other:
        return ["", ""]
    mine, theirs = scores[:, e], scores[:, estimators.index(other)]
    return [f"{np.mean(mine < theirs):.2f}", largest(mine, theirs)]


def over_members(lines, classes, estimator, members):
    """The largest excess over the best of the single estimators, and the share without any."""
    excess = excesses(lines, classes, estimator, members)
    if not excess:
        return ["", ""]
    values = np.array([*excess.values()])
    return [f"{values.max():+.3f}", f"{np.mean(values <= ALIKE):.2f}"]


def largest(mine, theirs):
    both = np.isfinite(theirs)
    return f"{(mine[both] - theirs[both]).max():+.3f}" if both.any() else ""


def markdown(header, rows):
    table = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(row) + " |" for row in table]


# ------------------------------------------------------------------ documentation


def document(lines, budgets, clock, members, folder):
    """suite_table.inc and suite_ranks.png, for the page that compares."""
    text = [*preamble(lines, clock)]
    for one in sections(lines, budgets, clock, members):
        text += [one.title, "~" * len(one.title), ""] if one.title else []
        text += [one.said, ""] if one.said else []
        text += [*simple_table(one.header, one.rows), ""] if one.rows else []
    for classes, kind in KINDS.items():
        if not (chosen := at_budget(lines, classes, max(budgets))):
            continue
        header, rows = by_table(chosen, classes)
        # The other way round: tables are fewer than estimators and have shorter names.
        columns = [list(column) for column in zip(header, *rows, strict=True)]
        title = f"{kind}, {max(budgets):g} {unit(clock)}, each table"
        text += [title, "~" * len(title), "", *simple_table(columns[0], columns[1:]), ""]
    (folder / "suite_table.inc").write_text("\n".join(text), encoding="utf-8")
    draw(lines, budgets, clock, folder / "suite_ranks.png")


def preamble(lines, clock):
    """When and where, in one sentence."""
    days = sorted({line["date"] for line in lines})
    machines = ", ".join(sorted({line["machine"] for line in lines}))
    loads = [line["load"] for line in lines if line.get("load") is not None]
    splits = ", ".join(sorted({str(line["split"]) for line in lines}))
    versions = lines[-1]["versions"]
    listed = ", ".join(f"{name} {v}" for name, v in versions.items() if name != "skscalablegp")
    days = " to ".join(dict.fromkeys((days[0], days[-1])))
    said = f"Measured {days} on a {machines}, one thread, "
    # Split 0 was measured first.
    said += (
        f"split {splits}" if len(splits) == 1 else f"splits {splits} of a table where all have them"
    )
    said += f", beside other work (mean load {np.mean(loads):.1f})" if loads else ""
    return [said + f"; budgets are {unit(clock)}; {listed}.", ""]


# ------------------------------------------------------------------ picture


def draw(lines, budgets, clock, path):
    """Mean ranks with standard errors: a row of panels for each kind, a panel for each budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [classes for classes in KINDS if any(x["classes"] == classes for x in lines)]
    if not kinds:
        raise SystemExit("There are no lines to draw.")
    sizes = [len({x["estimator"] for x in lines if x["classes"] == classes}) for classes in kinds]
    fig, axes = plt.subplots(
        len(kinds),
        len(budgets),
        figsize=(5.2 * len(budgets), 0.9 * len(kinds) + 0.34 * sum(sizes)),
        height_ratios=sizes,
        squeeze=False,
    )
    for row, classes in zip(axes, kinds, strict=True):
        for ax, seconds in zip(row, budgets, strict=True):
            panel(ax, at_budget(lines, classes, seconds), classes)
            title = f"{KINDS[classes]}, {seconds:g} {unit(clock)}"
            ax.set_title(f"{title}, {ax.get_title()}", fontsize=10)
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)


def panel(ax, lines, classes):
    """The mean ranks in both scores, best in the first one at the top."""
    tables, estimators, scores, *_ = scored(lines, classes)
    ax.set_title(f"{len(tables)} tables")
    if not tables:
        return
    ranks = {name: rankdata(values, axis=1) for name, values in scores.items()}
    order = np.argsort(ranks[SCORES[classes][0]].mean(axis=0), kind="stable")[::-1]
    height = np.arange(len(order))
    for name, shift, marker in zip(SCORES[classes], (0.13, -0.13), "os", strict=True):
        found = np.array([mean_error(ranks[name][:, e]) for e in order])
        means, errors = found.T
        ax.errorbar(
            means,
            height + shift,
            xerr=np.nan_to_num(errors),
            fmt=marker,
            markersize=5,
            capsize=2,
            linewidth=1,
            label=SHOWN[name],
        )
    ax.set_yticks(height, [estimators[e] for e in order], fontsize=8)
    ax.set_xlabel("mean rank, with its standard error (1 is best)", fontsize=8)
    ax.grid(axis="x", alpha=0.3)
    ax.set_ylim(-0.6, len(order) - 0.4)
    ax.legend(fontsize=8, loc="upper right")
