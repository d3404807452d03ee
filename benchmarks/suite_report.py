"""What suite.py has measured, as tables in Markdown and as a picture of mean ranks.

At each budget there are mean ranks with standard errors over the tables that all estimators have:
the mean over splits ranks, and a failure is last. Beside them stand the share of tables below
CatBoost and the largest excess over it; the largest excess over the best of this package's single
estimators on each table, and the share of tables where it is at most .03; and the range of
coverage over cells of at least 300 judged rows, or of the calibration error over those of 1,000.
After the last budget comes the largest rise of a score from the smallest budget to the largest.
"""

import math

import numpy as np
from scipy.stats import rankdata

SCORES = {False: ("nll", "crps"), True: ("log_loss", "brier")}
CATBOOST = {False: "CatBoostUncertainty", True: "CatBoostClassifier"}
CALIBRATION = {False: "coverage95", True: "ece"}
# Fewer judged rows say too little about calibration.
JUDGED = {False: 300, True: 1000}
KINDS = {False: "Regression", True: "Classification"}
# An excess that counts as none.
ALIKE = 0.03
SHOWN = {"nll": "NLL", "crps": "CRPS", "log_loss": "log loss", "brier": "Brier score"}


def report(lines, budgets, clock, members, each=False):
    """Markdown: regression, then classification, at each budget."""
    found = []
    for classes, kind in KINDS.items():
        for seconds in budgets:
            if chosen := at_budget(lines, classes, seconds):
                title = f"### {kind}, {seconds:g} {unit(clock)}"
                found += [title, "", *ranking(chosen, classes, members), ""]
                if each:
                    found += [*by_table(chosen, classes), ""]
        if rises := rising(lines, classes, budgets):
            found += [rises, ""]
    return "\n".join(found) or "There are no lines."


def unit(clock):
    return "processor seconds" if clock == "cpu" else "s"


def at_budget(lines, classes, seconds):
    """Lines of this budget, and of rivals without any."""
    fits = (seconds, None)
    return [x for x in lines if x["classes"] == classes and x["max_seconds"] in fits]


def scored(lines, classes):
    """Tables that all estimators have, all tables, estimators, and scores (tables, estimators)."""
    estimators = sorted({line["estimator"] for line in lines})
    cells = {}
    for line in lines:
        cells.setdefault((line["dataset"], line["estimator"]), []).append(line)
    names = sorted({line["dataset"] for line in lines})
    tables = [t for t in names if all((t, e) in cells for e in estimators)]
    scores = {
        name: np.array([[mean_of(cells[t, e], name) for e in estimators] for t in tables])
        for name in SCORES[classes]
    }
    return tables, names, estimators, scores


def ranking(lines, classes, members):
    """One row for each estimator, best mean rank first."""
    tables, names, estimators, scores = scored(lines, classes)
    said = f"{len(tables)} of {len(names)} tables have all {len(estimators)} estimators"
    if left := [t for t in names if t not in tables]:
        said += f"; without: {', '.join(left)}"
    if not tables:
        return [said + "."]
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
                *over_members(scores[first], estimators, e, members),
                calibration(mine, classes),
                *(average(mine, name) for name in ("fit_seconds", "fit_cpu_seconds")),
                str(sum(line["status"] != "ok" for line in mine)),
            ]
        )
    return [said + ".", "", *markdown(header, rows)]


def by_table(lines, classes):
    """The first score of every estimator on each table, the lowest one marked."""
    _, names, estimators, _ = scored(lines, classes)
    first = SCORES[classes][0]
    rows = []
    for name in names:
        values = []
        for estimator in estimators:
            cell = [x for x in lines if (x["dataset"], x["estimator"]) == (name, estimator)]
            values.append(mean_of(cell, first) if cell else math.nan)
        known = [value for value in values if math.isfinite(value)]
        best = min(known, default=math.nan)
        rows.append([name, *(shown(value, value == best) for value in values)])
    return markdown([SHOWN[first], *estimators], rows)


def shown(value, best):
    """A score; "failed" where it is infinite, nothing where there was no run."""
    if math.isnan(value):
        return ""
    text = "failed" if math.isinf(value) else f"{value:.3f}"
    return f"**{text}**" if best else text


def rising(lines, classes, budgets):
    """How far the first score of each estimator rises from the smallest budget to the largest."""
    first, low, high = SCORES[classes][0], min(budgets), max(budgets)
    said = []
    for estimator in sorted({x["estimator"] for x in lines if x["max_seconds"] is not None}):
        mine = [x for x in lines if x["estimator"] == estimator and x["classes"] == classes]
        gaps = {}
        for name in {x["dataset"] for x in mine}:
            at = [
                [x for x in mine if x["dataset"] == name and x["max_seconds"] == seconds]
                for seconds in (low, high)
            ]
            if low < high and all(at):
                before, after = (mean_of(some, first) for some in at)
                gaps[name] = after - before if math.isfinite(after) else after
        if gaps:
            worst = max(gaps, key=gaps.__getitem__)
            said.append(f"{estimator} {gaps[worst]:+.3f} ({worst})")
    words = f"Largest rise of the {SHOWN[first]} from {low:g} to {high:g} s: "
    return words + ", ".join(said) + "." if said else ""


def mean_of(lines, name):
    """Mean over splits; infinite if one has no score."""
    values = [line.get(name) for line in lines]
    return math.inf if None in values else float(np.mean(values))


def average(lines, name):
    values = [line[name] for line in lines if line.get(name) is not None]
    return f"{np.mean(values):.1f}" if values else ""


def calibration(lines, classes):
    """The range of coverage or of the calibration error where enough rows are judged."""
    name, enough = CALIBRATION[classes], JUDGED[classes]
    known = [x[name] for x in lines if x.get(name) is not None and x.get("n_test", 0) >= enough]
    return f"{min(known):.3f} to {max(known):.3f}" if known else ""


def mean_error(ranks):
    """The mean, and its standard error over tables."""
    error = ranks.std(ddof=1) / math.sqrt(len(ranks)) if len(ranks) > 1 else math.nan
    return ranks.mean(), error


def against(scores, estimators, e, other):
    """The share of tables below another estimator, and the largest excess over it."""
    if other not in estimators or estimators[e] == other:
        return ["", ""]
    mine, theirs = scores[:, e], scores[:, estimators.index(other)]
    return [f"{np.mean(mine < theirs):.2f}", largest(mine, theirs)]


def over_members(scores, estimators, e, members):
    """The largest excess over the best of the single estimators, and the share without any."""
    places = [k for k, name in enumerate(estimators) if name in members]
    if not places:
        return ["", ""]
    best = scores[:, places].min(axis=1)
    return [largest(scores[:, e], best), f"{np.mean(scores[:, e] <= best + ALIKE):.2f}"]


def largest(mine, theirs):
    both = np.isfinite(theirs)
    return f"{(mine[both] - theirs[both]).max():+.3f}" if both.any() else ""


def markdown(header, rows):
    table = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(row) + " |" for row in table]


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
    tables, _, estimators, scores = scored(lines, classes)
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
    ax.legend(fontsize=8, loc="lower right")
