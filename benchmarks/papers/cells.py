"""Cells of a paper's tables: one JSON line each, skipped where the results have one already.

Options of every bench that uses them::

    WHAT ...     only cells whose first word is one of these
    --only TEXT  only cells whose names hold this
    --again      measure what the results have, too
    --report     measure nothing
    --plot       draw the figures from the results
    --threads N  of torch; 1 by default
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


def read(results):
    """The last line of each cell."""
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line]
    return {line["cell"]: line for line in lines if "cell" in line}


def measured(model, X, y, X_test, y_test, predict=True):
    """A line of what fitting a model took and gave."""
    from uci import scores

    start = time.process_time()
    model.fit(X, y)
    line = dict(
        cpu_seconds=round(time.process_time() - start, 1),
        n_iter=model.n_iter_,
        status=model.fit_report_.status,
        epochs=round(float(sum(model.history_["epochs"])), 1),
        log_likelihood=round(float(model.log_marginal_likelihood_value_), 2),
    )
    if predict:
        mean, std = model.predict(X_test, return_std=True)
        found = scores(y_test, {"mean": mean, "std": std})
        line |= {"rmse": round(found["rmse"], 4), "nll": round(found["nll"], 4)}
    return line


def run(about, cells, results, plot=None, on_request=()):
    """Measure what is missing and print it beside the paper's figures.

    Parameters
    ----------
    about : str
        The bench's docstring.
    cells : iterable of (name, paper, callable)
        `paper` is what the paper has, or None; the callable returns the measured facts.
    results : Path
        Where lines are appended.
    plot : callable or None
        Draws from the lines by name.
    on_request : tuple of str
        First words of cells that are measured only where they are named: the long ones.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    import torch
    from sklearn.exceptions import ConvergenceWarning
    from uci import plain, versions

    torch.set_num_threads(args.threads)
    done = read(results)
    if args.plot:
        return plot(done)
    for name, paper, measure in cells:
        kind = name.split()[0]
        wanted = kind in args.what if args.what else kind not in on_request
        if not wanted or args.only not in name:
            continue
        if not args.report and (args.again or name not in done):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                found = measure()
            call = ["git", "rev-parse", "--short", "HEAD"]
            commit = subprocess.run(call, cwd=ROOT, capture_output=True, text=True).stdout.strip()
            facts = dict(date=datetime.date.today().isoformat(), threads=args.threads)
            line = dict(cell=name, paper=paper, **found, **facts, commit=commit)
            done[name] = plain(dict(line, versions=versions()))
            with results.open("a", encoding="utf-8") as out:
                out.write(json.dumps(done[name]) + "\n")
        if name in done:
            skipped = ("cell", "paper", "date", "threads", "commit", "versions")
            said = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                    for k, v in done[name].items() if k not in skipped and k != "path"]  # fmt: skip
            print(f"{name:34s} {', '.join(said)}   [paper: {paper or '-'}]", flush=True)
