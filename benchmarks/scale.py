#!/usr/bin/env python3
"""Seconds and NLPD from 100 to a million rows, for every estimator that gets there: JSON lines.

    python benchmarks/scale.py                                  # goes on where its lines end
    python benchmarks/scale.py --rows 100 300 --estimators NNGPRegressor SVGPRegressor
    python benchmarks/scale.py --doc doc                        # table and picture of the page

A cell is one estimator and one number of rows of the drawn table of scale_cells.py, in a process of
its own, as compare.py does it: what the output file has is skipped, a cell that fails, is cut or
outgrows --max-gigabytes is a line that says so. Row counts follow one another, small ones first. An
estimator that has ended at one size is not asked for larger ones, unless --again is given. Peers
of another environment join by a call there. All sizes share the function, the test rows and their
first rows.

Besides this package's regressors with default settings there are, where they are installed,

SklearnGaussianProcess  scikit-learn's, on all rows, with this package's default kernel
GPyTorchSVGP            512 inducing points, 30 epochs of Adam
GPBoostVecchia          20 neighbours
GPBoostVIF              30 neighbours beside 200 inducing points
Reference               2,000 neighbours with the hyperparameters of the drawn function

--max-seconds limits training, as each of them knows it (GPBoost does not), in processor seconds of
all threads; a whole cell is cut at --cut-seconds, or twice that and a minute. nll is the mean
negative log density of the noisy test targets. A function without error would have -0.884. --tables
names a folder in which the drawn rows are kept, so that each cell reads them.
"""

import argparse
import json
import os
import platform
import resource
import shlex
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compare
from compare_report import simple_table
from starts import read, write

ROWS = [100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
PEERS = ["SklearnGaussianProcess", "GPyTorchSVGP", "GPBoostVecchia", "GPBoostVIF"]
REFERENCE = "Reference"
# Of this package, in the left half of the picture; the others are in the right one.
GENERAL = ["AutoGPRegressor", "IterativeGPRegressor", "NNGPRegressor", "SVGPRegressor"]
GENERAL += ["KISSGPRegressor"]
KEY = ("estimator", "n_train_asked", "n_test", "seed", "max_seconds", "clock", "threads")
# The marks of cells without scores.
ENDS = {"cut": "time", "failed": "failed"}

compare.SCRIPT, compare.MODULE, compare.KEY = __file__, "scale_cells", KEY
compare.BASELINES = [REFERENCE, *PEERS]


def main(argv=None):
    args = parse_args(argv)
    if args.cell:
        return run_cell(json.loads(args.cell))
    known = compare.known_estimators()
    known.sort(key=lambda name: name not in [REFERENCE, *GENERAL, *PEERS])
    if unknown := sorted(set(args.estimators or []) - set(known)):
        raise SystemExit(f"Unknown: {unknown}; there are {', '.join(known)}.")
    if args.doc:
        return document(last_lines(args), Path(args.doc))
    measure(args, args.estimators or known)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, metavar="N", help="default: nine sizes")
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--max-seconds", type=float, default=120.0, help="of training")
    parser.add_argument("--cut-seconds", type=float, help="of a whole cell")
    parser.add_argument("--max-gigabytes", type=float, default=8.0, help="of a cell's own data")
    parser.add_argument("--n-test", type=int, default=1000)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu", help="of the limits")
    parser.add_argument("--seed", type=int, default=0, help="of the table and of random_state")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    parser.add_argument("--tables", metavar="FOLDER", help="keep the drawn rows there")
    parser.add_argument("--doc", metavar="FOLDER", help="write table and picture; measures nothing")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(compare.HERE / "results" / "scale.jsonl"))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    cut = args.cut_seconds or 2 * args.max_seconds + 60
    args.cut_seconds = cut / args.threads  # of each, as compare.py has it
    return args


# ------------------------------------------------------------------ the parent's side of a cell


def measure(args, estimators):
    for n in args.rows or ROWS:
        for estimator in estimators:
            cell = dict(
                estimator=estimator,
                n_train_asked=n,
                n_test=args.n_test,
                seed=args.seed,
                max_seconds=args.max_seconds,
                clock=args.clock,
                threads=args.threads,
            )
            lines = last_lines(args)
            if not args.again and (is_done(lines, cell) or is_over(lines, cell)):
                continue
            facts = dict(dataset="drawn", split=0, max_gigabytes=args.max_gigabytes)
            line = compare.measure(cell | facts | dict(tables=args.tables), args)
            del line["tables"]
            line["command"] = command(cell)
            write(args.out, line)
            print(said(line), flush=True)


def last_lines(args):
    """The last line of each cell that was measured with these settings."""
    ways = {name: getattr(args, name) for name in KEY[2:]}
    lines = [x for x in read(args.out) if all(x[name] == value for name, value in ways.items())]
    return {(line["estimator"], line["n_train_asked"]): line for line in lines}


def is_done(lines, cell):
    """What was not installed is asked for again."""
    line = lines.get((cell["estimator"], cell["n_train_asked"]))
    return line is not None and line["status"] != "not installed"


def is_over(lines, cell):
    """Whether the estimator has ended below this size."""
    return any(
        name == cell["estimator"] and n < cell["n_train_asked"] and line["status"] in ENDS
        for (name, n), line in lines.items()
    )


def command(cell):
    words = ["python", "benchmarks/scale.py", "--rows", cell["n_train_asked"]]
    words += ["--estimators", cell["estimator"], "--max-seconds", f"{cell['max_seconds']:g}"]
    words += ["--clock", cell["clock"], "--threads", cell["threads"], "--seed", cell["seed"]]
    return shlex.join(map(str, words))


def said(line):
    numbers = ("rmse", "nll", "coverage95", "fit_seconds", "fit_cpu_seconds", "predict_cpu_seconds")
    shown = "  ".join(f"{n} {line[n]:.4g}" for n in numbers if line.get(n) is not None)
    words = f"{line['estimator']}, {line['n_train_asked']:,} rows: {line['status']}"
    return f"{words} {shown}{line.get('error', '')}"


# ------------------------------------------------------------------ the cell's own process


def run_cell(cell):
    import uci
    from scale_cells import kept

    from skscalablegp._clock import clock

    # What a process has allocated: addresses that it only reserves are not counted.
    limit = int(cell["max_gigabytes"] * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    uci.load = lambda name, split, n, seed, leaks: kept(cell["tables"], n, cell["n_test"], seed)
    own_make = compare.make
    # The package's budgets count on either clock.
    compare.make = lambda cell, budget: own_make(cell | {"clock": "wall"}, budget)
    with clock(time.process_time if cell["clock"] == "cpu" else time.perf_counter):
        compare.run_cell(cell)


# ------------------------------------------------------------------ documentation


def document(lines, folder):
    """scale_table.inc and scale.png, for the page about scale."""
    if not lines:
        raise SystemExit("There are no lines with these settings.")
    text = "\n".join([*preamble(lines), *table(lines), ""])
    (folder / "explanation" / "scale_table.inc").write_text(text, encoding="utf-8")
    draw(lines, folder / "explanation" / "scale.png")


def preamble(lines):
    """When and where, in one sentence."""
    lines = [*lines.values()]
    days = sorted({line["date"] for line in lines})
    days = " to ".join(dict.fromkeys((days[0], days[-1])))
    load = np.mean([line["load"] for line in lines])
    one = lines[-1]
    versions = ", ".join(f"{k} {v}" for k, v in one["versions"].items() if k != "skscalablegp")
    return [
        f"Measured {days} on a {one['machine']} beside other work (mean load {load:.1f}), "
        f"{one['threads']} threads, training limited to {one['max_seconds']:g} processor seconds; "
        f"{versions}.",
        "",
    ]


def table(lines):
    """NLPD and processor seconds of a fit; a star if the limit has ended training."""
    sizes = sorted({n for _, n in lines})
    names = in_order(lines)
    header = ["estimator", *(f"{n:,}" for n in sizes)]
    rows = [[name, *(text_of(lines.get((name, n))) for n in sizes)] for name in names]
    return simple_table(header, rows)


def text_of(line):
    if line is None or line["status"] == "not installed":
        return ""
    if line["status"] != "ok":
        return "memory" if is_memory(line.get("error", "")) else ENDS[line["status"]]
    seconds = line["fit_cpu_seconds"]
    seconds = f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
    star = "*" if line["stop_reason"] == "max_seconds" else ""
    return f"{line['nll']:.3f}, {seconds} s{star}"


def is_memory(error):
    return any(word in error.lower() for word in ("memory", "allocate", "bad_alloc"))


def in_order(lines):
    """The reference, what is general, peers, and the others by name."""
    first = [REFERENCE, *GENERAL, *PEERS]
    names = {name for (name, _), line in lines.items() if line["status"] != "not installed"}
    return [n for n in first if n in names] + sorted(names - set(first))


def draw(lines, path):
    """NLPD above processor seconds: general estimators with peers, then the others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = in_order(lines)
    left = [name for name in names if name in [REFERENCE, *GENERAL, *PEERS]]
    right = [name for name in names if name not in left]
    fig, axes = plt.subplots(2, 2, figsize=(11, 9), sharex=True, sharey="row")
    halves = {"for general use, and peers": left, "methods from papers, and compositions": right}
    for column, (title, shown) in enumerate(halves.items()):
        top, bottom = axes[:, column]
        for k, name in enumerate(shown):
            n, nll, seconds = series(lines, name)
            style = dict(color="black", linestyle="--") if name == REFERENCE else {}
            style = style or dict(color=plt.get_cmap("tab20")(k), marker="os^vD<>Phd"[k % 10])
            top.plot(n, nll, label=name, markersize=4, linewidth=1.2, **style)
            bottom.plot(n, seconds, markersize=4, linewidth=1.2, **style)
        top.set(title=title, xscale="log")
        bottom.set(xlabel="rows", xscale="log", yscale="log")
        if shown:
            top.legend(fontsize=7, ncols=2)
        for ax in (top, bottom):
            ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("test NLPD")
    axes[1, 0].set_ylabel("processor seconds of a fit")
    fig.tight_layout()
    fig.savefig(path, dpi=100)
    plt.close(fig)


def series(lines, name):
    found = sorted((n, x) for (own, n), x in lines.items() if own == name and x["status"] == "ok")
    sizes, cells = [n for n, _ in found], [x for _, x in found]
    return sizes, [x["nll"] for x in cells], [x["fit_cpu_seconds"] for x in cells]


if __name__ == "__main__":
    main()
