#!/usr/bin/env python3
"""Tables and the picture "test NLPD against seconds" from what compare.py, rivals.py and
cross_val.py measured.

    python benchmarks/compare_report.py          # doc/comparison_tables.inc, doc/cost_table.inc,
                                                 # doc/rival_table.inc, doc/cross_val_table.inc,
                                                 # doc/comparison.png

Fits that took more than a tenth over the limit are marked, and stand below the others. Where a cell
was measured more than once, its last line counts; several splits are averaged. Lines measured under
settings other than the last line's (rows, budget, clock, threads) are left out and counted. A cell
that failed on any split is shown as failed.
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, variance

from compare import known_estimators

HERE = Path(__file__).resolve().parent
# When a cell is cut does not change what it has measured by then: that may differ.
SETTINGS = ("n_train_asked", "max_seconds", "clock", "threads", "machine")
COLUMNS = (
    ("RMSE", "rmse", "{:.3f}"),
    ("NLPD", "nll", "{:.2f}"),
    ("CRPS", "crps", "{:.3f}"),
    ("95% cov.", "coverage95", "{:.3f}"),
    ("fit s", "fit", "{:.1f}"),
    ("predict s", "predict", "{:.2f}"),
    ("peak MB", "peak_rss_mb", "{:.0f}"),
)
# Beyond the range of the others, a bad score would flatten a panel: it is drawn at the edge.
WORST_NLPD = 1.5
# The mark of a fit that took more than the limit, and by how much it may exceed it without.
OVER = " †"
TOLERATED = 1.1
# Larger tables are in the second column of the table of costs.
MANY_ROWS = 20_000


def main(argv=None):
    args = parse_args(argv)
    lines = [json.loads(text) for text in Path(args.lines).read_text("utf-8").splitlines() if text]
    settings = {name: lines[-1][name] for name in SETTINGS}
    alike = [line for line in lines if all(line[k] == v for k, v in settings.items())]
    used = last(alike)
    cells = combine(used)
    out = Path(args.out)
    text = "\n".join([*preamble(used, settings, len(lines) - len(alike)), "", *tables(cells)])
    (out / "comparison_tables.inc").write_text(text + "\n", encoding="utf-8")
    (out / "cost_table.inc").write_text("\n".join(cost_table(cells)) + "\n", encoding="utf-8")
    draw(cells, settings, out / "comparison.png")
    raced = [json.loads(text) for text in Path(args.rivals).read_text("utf-8").splitlines() if text]
    text = "\n".join(rival_table(last(raced), dict.fromkeys(cells, settings["max_seconds"])))
    (out / "rival_table.inc").write_text(text + "\n", encoding="utf-8")
    folds = [json.loads(text) for text in Path(args.folds).read_text("utf-8").splitlines() if text]
    text = "\n".join(fold_table(folds))
    (out / "cross_val_table.inc").write_text(text + "\n", encoding="utf-8")


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", default=str(HERE / "results" / "compare.jsonl"))
    parser.add_argument("--rivals", default=str(HERE / "results" / "rivals.jsonl"))
    parser.add_argument("--folds", default=str(HERE / "results" / "cross_val.jsonl"))
    parser.add_argument("--out", default=str(HERE.parent / "doc"), help="folder")
    return parser.parse_args(argv)


def last(lines):
    """The last line of each cell."""
    return list({(x["dataset"], x["estimator"], x["split"]): x for x in lines}.values())


def combine(lines):
    """{data set: {estimator: averages, or the first failure}}."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["dataset"], line["estimator"]].append(line)
    cells = defaultdict(dict)
    for (dataset, estimator), found in groups.items():
        failed = [line for line in found if line["status"] != "ok"]
        cells[dataset][estimator] = failed[0] if failed else averages(found)
    return dict(cells)


def averages(lines):
    which = "cpu_seconds" if lines[0]["clock"] == "cpu" else "seconds"
    cell = {"status": "ok", "n_train": lines[0]["n_train"], "n_features": lines[0]["n_features"]}
    names = {key: key for _, key, _ in COLUMNS} | {
        step: f"{step}_{which}" for step in ("fit", "predict")
    }
    for key, name in names.items():
        values = [line.get(name) for line in lines]
        cell[key] = None if None in values else sum(values) / len(values)
    cell["n_test"] = lines[0]["n_test"]
    cell["over"] = is_over(cell, max(line["max_seconds"] for line in lines))
    cell["ended"] = any(line.get("stop_reason") in ("max_seconds", "callback") for line in lines)
    return cell


def is_over(cell, limit):
    """Whether a fit took clearly more than the limit."""
    return cell["fit"] is not None and cell["fit"] > TOLERATED * limit


# ------------------------------------------------------------------ text


def preamble(lines, settings, left_out):
    """What was measured, where, when and within what limits."""
    dates = sorted({line["date"] for line in lines})
    versions = lines[-1]["versions"]
    listed = ", ".join(f"{name} {v}" for name, v in versions.items() if name != "skscalablegp")
    clock = {"cpu": "processor seconds", "wall": "seconds on the wall"}[settings["clock"]]
    rows = settings["n_train_asked"]
    splits = sorted({line["split"] for line in lines})
    text = [
        f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on a {settings['machine']}, "
        f"{settings['threads']} thread(s), split(s) {', '.join(map(str, splits))}, "
        f"{f'{rows:,} training rows' if rows else 'all training rows'}; {listed}.",
        f"Seconds are {clock}. Training ends after {settings['max_seconds']:g} of them with the "
        "best model so far (marked \\*), if the estimator supports a limit; a cell, predictions "
        f"included, is cut at {cut_seconds(lines)} and then has no figures. A fit that took "
        f"more than a tenth over the limit is marked{OVER} and stands below the others, because "
        "it had more time.",
    ]
    if left_out:
        text.append(f"{left_out} lines of the file were measured under other settings.")
    return text


def cut_seconds(lines):
    """The limits of these cells in words, and whose differ from the others'."""
    limits = Counter(line["cut_seconds"] for line in lines)
    usual = limits.most_common(1)[0][0]
    others = {
        f"{line['estimator']} on {line['dataset']} at {line['cut_seconds']:g}"
        for line in lines
        if line["cut_seconds"] != usual
    }
    return f"{usual:g}" + (f" ({', '.join(sorted(others))})" if others else "")


def tables(cells):
    everywhere = {name for found in cells.values() for name in found} | set(known_estimators())
    for dataset, found in cells.items():
        sizes = [c for c in found.values() if "n_train" in c and "n_features" in c]
        size = f" ({sizes[0]['n_train']:,} rows, {sizes[0]['n_features']} columns)" if sizes else ""
        title = f"{dataset}{size}"
        yield from ("", title, "~" * len(title), "")
        header = ["estimator", *(label for label, _, _ in COLUMNS)]
        rows, notes = [], []
        for name in sorted(found, key=lambda n: order(found[n])):
            cell = found[name]
            if cell["status"] == "ok":
                shown = [
                    "" if cell[key] is None else form.format(cell[key]) for _, key, form in COLUMNS
                ]
                marks = (" \\*" if cell["ended"] else "") + (OVER if cell["over"] else "")
                rows.append([name + marks, *shown])
            else:
                rows.append([name, f"*{cell['status']}*", *[""] * (len(COLUMNS) - 1)])
                notes.append(f"- {name}: {plain(cell.get('error', ''))}")
        yield from simple_table(header, rows)
        if notes:
            yield from ("", *notes)
        missing = sorted(everywhere - set(found))
        if missing:
            yield from ("", f"Not measured: {', '.join(missing)}.")


def cost_table(cells):
    """Seconds of fits on smaller and larger tables, and microseconds of a prediction with std."""
    fits, rows = defaultdict(lambda: ([], [])), defaultdict(list)
    sizes = ([], [])
    for found in cells.values():
        for name, cell in found.items():
            if cell["status"] == "ok":
                many = cell["n_train"] > MANY_ROWS
                sizes[many].append(cell["n_train"])
                fits[name][many].append(cell["fit"])
                rows[name].append(1e6 * cell["predict"] / cell["n_test"])
    heads = [f"fit s, {min(n):,} to {max(n):,} rows" for n in sizes if n]
    header = ["estimator", *heads, "µs per row"]
    texts = {
        name: [*(extent(part) for part, n in zip(fits[name], sizes, strict=True) if n), extent(us)]
        for name, us in rows.items()
    }
    return simple_table(header, [[name, *texts[name]] for name in sorted(texts)])


def extent(values):
    """The lowest and the highest of some values."""
    shown = [f"{value:,.0f}" for value in (min(values), max(values))] if values else [""]
    return " to ".join(dict.fromkeys(shown))


def rival_table(lines, limits):
    """One table: rivals and the models that race with them, by NLPD within each data set.

    `limits` are seconds for data sets that other estimators had under a tighter limit.
    """
    columns = [(label, key, form) for label, key, form in COLUMNS if key in ("nll", "coverage95")]
    form = "{:.3g}"
    columns = [("RMSE", "rmse", form), columns[0], ("CRPS", "crps", form), columns[1]]
    header = ["data set", "model", *(label for label, _, _ in columns), "seconds"]
    rows, notes = [], []
    for dataset, cells in combine(lines).items():
        limit = limits.get(dataset, float("inf"))
        for cell in cells.values():
            cell["over"] = cell["status"] == "ok" and is_over(cell, limit)
        for name in sorted(cells, key=lambda n: order(cells[n])):
            cell = cells[name]
            if cell["status"] != "ok":
                notes.append(f"- {name} on {dataset}: {plain(cell.get('error', ''))}")
                continue
            shown = [form.format(cell[key]) for _, key, form in columns]
            mark = OVER if cell["over"] else ""
            rows.append([dataset, name + mark, *shown, f"{cell['fit'] + cell['predict']:.0f}"])
    return [*simple_table(header, rows), *(["", *notes] if notes else [])]


def fold_table(lines, baseline="SVGPRegressor"):
    """Mean NLPD, and its difference from the baseline's with the corrected standard error."""
    settings = ("n_asked", "folds", "seed", "max_seconds", "clock")
    cells = defaultdict(dict)
    for line in lines:
        if line["status"] == "ok" and all(line[k] == lines[-1][k] for k in settings):
            cells[line["dataset"]][line["estimator"]] = [-value for value in line["nlpd"]]
    rows = []
    for name in sorted({name for found in cells.values() for name in found}):
        row = [name]
        for found in cells.values():
            if name not in found:
                row.append("")
                continue
            text = f"{mean(found[name]):.2f}"
            if name != baseline:
                apart = [a - b for a, b in zip(found[name], found[baseline], strict=True)]
                k = len(apart)
                error = ((1 / k + 1 / (k - 1)) * variance(apart)) ** 0.5
                text += f" ({mean(apart):+.2f} ± {error:.2f})"
            row.append(text)
        rows.append(row)
    return simple_table(["estimator", *cells], rows)


def order(cell):
    """By NLPD; then fits over the limit, and failures last."""
    return (cell["over"], cell["nll"]) if cell["status"] == "ok" else (True, float("inf"))


def plain(text):
    """One line that reStructuredText takes as it is."""
    return "".join("\\" + c if c in "*`|_\\" else c for c in " ".join(text.split()))


def simple_table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = "  ".join("=" * width for width in widths)

    def line(row):
        first = row[0].ljust(widths[0])
        # An empty first text would continue the row above; numbers align on the right.
        rest = (
            c.rjust(w) if c else "..".rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)
        )
        return "  ".join([first, *rest])

    return [rule, line(header), rule, *map(line, rows), rule]


# ------------------------------------------------------------------ picture


def draw(cells, settings, path):
    """One panel a data set: NLPD over the seconds of fit and predictions."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted({name for found in cells.values() for name in found})
    colours = plt.get_cmap("tab20")
    markers = "os^vD<>Phd"
    columns = min(3, len(cells))
    lines = -(-len(cells) // columns)
    fig, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3.2 * lines + 1), squeeze=False)
    handles = {}
    # One range for all panels.
    measured = [c for found in cells.values() for c in found.values() if c["status"] == "ok"]
    times = [cell["fit"] + cell["predict"] for cell in measured] or [1.0]
    for ax, (dataset, found) in zip(axes.flat, cells.items(), strict=False):
        for k, name in enumerate(names):
            cell = found.get(name)
            if cell is None or cell["status"] != "ok" or cell["nll"] is None:
                continue
            seconds = cell["fit"] + cell["predict"]
            handles[name] = ax.scatter(
                seconds,
                min(cell["nll"], WORST_NLPD),
                color=colours(k % 20),
                marker=markers[k % len(markers)],
                edgecolor="black",
                linewidth=0.4,
                s=45,
            )
        ax.set(title=dataset, xscale="log", xlim=(0.8 * min(times), 1.25 * max(times)))
        ticks = [t for t in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if t < 1.25 * max(times)]
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    for ax in axes.flat[len(cells) :]:
        ax.set_visible(False)
    kind = "processor seconds" if settings["clock"] == "cpu" else "seconds"
    fig.supxlabel(f"{kind} of fit and predictions", y=0.12, fontsize=10)
    fig.supylabel(f"test NLPD (at most {WORST_NLPD:g} shown)", fontsize=10)
    fig.legend(handles.values(), handles.keys(), loc="lower center", ncols=5, fontsize=8)
    fig.tight_layout(rect=(0.01, 0.13, 1, 1))
    fig.savefig(path, dpi=110)
    plt.close(fig)


if __name__ == "__main__":
    main()
