#!/usr/bin/env python3
"""Measure the calibration of default intervals: one line of JSON for each estimator and problem.

    python benchmarks/calibration.py --quick                       # problems of up to 500 rows
    python benchmarks/calibration.py --estimator QSGPRegressor     # all 40 problems
    python benchmarks/calibration.py --problem friedman-200 --estimator QSGPRegressor --again
    python benchmarks/calibration.py --report                      # only the summary

Problems are functions drawn from Gaussian processes in 1 to 20 columns, some of which do not
matter, Friedman's function, and scikit-learn's bundled sets; their noise is between none and three
standard deviations of the function. Small problems are drawn several times, and scores are means
over the draws: of 20 rows any model's intervals may miss by chance.

Every regressor of the package has its default settings and random_state=0. "ExactGP" is the
reference: exact training and prediction in float64. coverage95 and nll are those of the noisy test
targets, rmse is in units of the test targets' standard deviation, nll for targets in that unit.

Lines that the output file has already are skipped, so that a run goes on where it was stopped. The
summary counts, for each estimator,

narrow, wide   problems whose 95 % intervals hold less than 88 %, or more than 99.5 %, without a
               warning
behind         problems with a noise of at least 1e-2 of the target's standard deviation where the
               NLPD is more than 0.15 above the exact process's, without a warning
warned         problems with a warning
own            problems of the first three kinds where the exact process is neither narrow nor wide
"""

import argparse
import datetime
import json
import math
import os
import platform
import time
import warnings
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REFERENCE = "ExactGP"
NARROW, WIDE, BEHIND, NOISY = 0.88, 0.995, 0.15, 1e-2
QUICK_ROWS = 500
TEST_ROWS = 1000


class Problem(NamedTuple):
    """Where rows come from, how many train, and the noise in units of the function's std.

    `noise` is None where nobody knows it.
    """

    name: str
    source: str
    n: int
    d: int = 0
    noise: float | None = None

    @property
    def draws(self):
        return 10 if self.n <= 20 else 5 if self.n <= 60 else 3 if self.n <= 201 else 1


# Rows, columns and noise of the drawn functions.
DRAWN = [
    *((20, 1, 0.1), (50, 1, 0.0), (100, 1, 0.3), (200, 1, 1.0), (500, 1, 0.03), (2000, 1, 0.1)),
    *((5000, 1, 3.0), (30, 2, 0.03), (100, 2, 0.0), (200, 2, 0.1), (500, 2, 1.0), (2000, 2, 0.0)),
    *((50, 3, 0.3), (200, 3, 0.01), (1000, 3, 0.1), (60, 5, 0.1), (200, 5, 0.3), (500, 5, 0.001)),
    *((2000, 5, 0.05), (5000, 5, 0.3), (100, 8, 1.0), (500, 8, 0.1), (2000, 8, 0.03)),
    *((200, 12, 0.05), (1000, 12, 0.5), (100, 20, 0.1), (500, 20, 0.3), (2000, 20, 1.0)),
    (5000, 20, 0.1),
]
PROBLEMS = [
    *(Problem(f"drawn-{d}d-{n}-{noise:g}", "drawn", n, d, noise) for n, d, noise in DRAWN),
    *(Problem(f"friedman-{n}", "friedman", n, 5, 0.05) for n in (200, 201, 500, 2000)),
    Problem("friedman-10d-1000", "friedman", 1000, 10, 0.2),
    Problem("diabetes", "diabetes", 300),
    Problem("linnerud", "linnerud", 14),
    Problem("iris", "iris", 100),
    Problem("wine", "wine", 120),
    Problem("breast-cancer", "breast-cancer", 400),
    Problem("digits", "digits", 1200),
]


def main(argv=None):
    args = parse_args(argv)
    estimators = make_estimators()
    for asked, known in ((args.estimator, estimators), (args.problem, [p.name for p in PROBLEMS])):
        if unknown := sorted(set(asked or []) - set(known)):
            raise SystemExit(f"Unknown: {unknown}; there are {', '.join(known)}.")
    problems = [p for p in PROBLEMS if p.name in (args.problem or [p.name])]
    if args.quick:
        problems = [p for p in problems if p.n <= QUICK_ROWS]
    out = Path(args.out)
    names = [REFERENCE, *(n for n in args.estimator or estimators if n != REFERENCE)]
    if not args.report:
        measure(names, problems, estimators, out, args)
    print(summary(read(out), names, problems))


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimator", nargs="+", metavar="NAME", help="default: all regressors")
    parser.add_argument("--problem", nargs="+", metavar="NAME", help="default: all 40")
    parser.add_argument("--quick", action="store_true", help=f"problems of n <= {QUICK_ROWS}")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(HERE / "results" / "calibration.jsonl"))
    return parser.parse_args(argv)


def make_estimators():
    """Functions that make the package's regressors, whatever they are by now, and the reference."""
    from sklearn.base import is_regressor

    import skscalablegp

    classes = [getattr(skscalablegp, name) for name in skscalablegp.__all__ if name[0].isupper()]
    known = {cls.__name__: cls for cls in classes if is_regressor(cls())}
    reference = skscalablegp.IterativeGPRegressor
    made = {name: lambda cls=cls: cls(random_state=0) for name, cls in known.items()}
    return made | {REFERENCE: lambda: reference(solver="cholesky", dtype="float64", random_state=0)}


def read(out):
    """The last line of each estimator and problem."""
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line]
    return {(line["estimator"], line["problem"]): line for line in lines}


# ------------------------------------------------------------------ problems


def drawn_function(rng, d):
    """A function of (n, d) rows: a draw from a process, by 500 random features."""
    import numpy as np

    # Some columns hardly matter, and scales grow with the columns: distances do, too.
    length = rng.uniform(0.4, 1.5, d) * np.sqrt(d)
    if d > 3:
        length[rng.permutation(d)[: d // 3]] *= 10
    # Frequencies of a Matern-5/2 kernel: normal ones over the root of a chi-squared over 5.
    heavy = np.sqrt(rng.chisquare(5, 500) / 5)
    frequency = rng.standard_normal((d, 500)) / length[:, None] / heavy
    phase, weight = rng.uniform(0, 2 * np.pi, 500), rng.standard_normal(500)
    return lambda X: np.cos(X @ frequency + phase) @ weight * np.sqrt(2 / 500)


def table(problem, draw):
    """Rows and targets for training and for tests, of one draw."""
    import numpy as np
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    rng = np.random.default_rng([draw, *problem.name.encode()])
    if problem.source in ("drawn", "friedman"):
        total = problem.n + TEST_ROWS
        if problem.source == "drawn":
            X = rng.uniform(-2, 2, (total, problem.d))
            f = drawn_function(rng, problem.d)(X)
        else:
            X, f = datasets.make_friedman1(total, problem.d, random_state=draw)
        y = f + problem.noise * f.std() * rng.standard_normal(total)
        return X[: problem.n], X[problem.n :], y[: problem.n], y[problem.n :]
    X, y = bundled(problem.source, datasets)
    return train_test_split(X, y, train_size=problem.n, random_state=draw)


def bundled(name, datasets):
    """One of scikit-learn's sets; of those with classes a column is the target."""
    if name == "diabetes":
        return datasets.load_diabetes(return_X_y=True)
    if name == "linnerud":
        X, Y = datasets.load_linnerud(return_X_y=True)
        return X, Y[:, 1]
    load = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
    if name == "digits":
        X, y = datasets.load_digits(return_X_y=True)
        return X, y.astype(float)
    X, _ = getattr(datasets, load[name])(return_X_y=True)
    target = {"iris": 3, "wine": 0, "breast-cancer": 4}[name]
    return X[:, [j for j in range(X.shape[1]) if j != target]], X[:, target]


# ------------------------------------------------------------------ measurements


def measure(names, problems, estimators, out, args):
    """Append the lines that are missing."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch
    from uci import plain, versions

    torch.set_num_threads(args.threads)
    done = read(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        for problem in problems:
            again = args.again and name != REFERENCE
            if (name, problem.name) in done and not again:
                continue
            line = dict(estimator=name, problem=problem.name, n=problem.n, noise=problem.noise)
            line |= scores(estimators[name], problem)
            line |= dict(
                threads=args.threads,
                machine=args.machine,
                date=datetime.date.today().isoformat(),
                versions=versions(),
            )
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(line), allow_nan=False) + "\n")
            print(said(line), flush=True)


def scores(make, problem):
    """Means over the draws, or the error."""
    import numpy as np

    from skscalablegp.metrics import interval_coverage, nlpd

    found, messages, status = [], set(), set()
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for draw in range(problem.draws):
            X, X_test, y, y_test = table(problem, draw)
            try:
                model = make().fit(X, y)
                mean, std = model.predict(X_test, return_std=True)
            except Exception as error:  # a line like the others
                return dict(error=f"{type(error).__name__}: {error}"[:300])
            unit = y_test.std()
            report = getattr(model, "fit_report_", None)
            status.add(getattr(report, "status", ""))
            found.append(
                (
                    interval_coverage(y_test, mean, std, coverage=0.95),
                    nlpd(y_test / unit, mean / unit, std / unit),
                    float(np.sqrt(np.mean((y_test - mean) ** 2))) / unit,
                )
            )
        messages = {str(w.message)[:300] for w in caught if issubclass(w.category, UserWarning)}
    coverage, nll, rmse = np.mean(found, axis=0)
    return dict(
        d=X.shape[1],
        draws=problem.draws,
        coverage95=round(float(coverage), 4),
        nll=round(float(nll), 4),
        rmse=round(float(rmse), 5),
        status=sorted(status),
        warnings=sorted(messages),
        cpu_seconds=round(time.process_time() - start, 2),
    )


def said(line):
    if "error" in line:
        return f"{line['estimator']:22s} {line['problem']:20s} {line['error']}"
    warned = f"  {len(line['warnings'])} warnings" if line["warnings"] else ""
    return (
        f"{line['estimator']:22s} {line['problem']:20s} coverage {line['coverage95']:.3f}  "
        f"nll {line['nll']:8.3f}  rmse {line['rmse']:.4f}  {line['cpu_seconds']:6.1f} s{warned}"
    )


def verdicts(line, reference):
    """What a line counts as."""
    if "error" in line:
        return ["error"]
    if line["warnings"]:
        return ["warned"]
    found = []
    if not line["coverage95"] >= NARROW:
        found.append("narrow")
    if line["coverage95"] > WIDE:
        found.append("wide")
    noisy = line["noise"] is None or line["noise"] >= NOISY
    # JSON has no infinity: None is one.
    nll = math.inf if line["nll"] is None else line["nll"]
    if noisy and nll > reference["nll"] + BEHIND:
        found.append("behind")
    return found


def summary(lines, names, problems):
    """A table, and the problems behind its counts."""
    kinds = ("narrow", "wide", "behind", "warned", "error", "own")
    out = [f"{'':22s} problems " + " ".join(f"{kind:>7s}" for kind in kinds) + "   cpu s"]
    details, hard = [], set()
    for name in names:
        own = [lines[name, p.name] for p in problems if (name, p.name) in lines]
        found = {
            line["problem"]: verdicts(line, lines[REFERENCE, line["problem"]])
            for line in own
            if (REFERENCE, line["problem"]) in lines
        }
        if not found:
            continue
        misses = {problem for problem, v in found.items() if {"narrow", "wide", "behind"} & {*v}}
        if name == REFERENCE:
            hard = misses
        for problem in misses - hard:
            found[problem] = [*found[problem], "own"]
        counts = [sum(kind in v for v in found.values()) for kind in kinds]
        seconds = sum(line.get("cpu_seconds", 0.0) for line in own)
        numbers = " ".join(f"{count:7d}" for count in counts)
        out.append(f"{name:22s} {len(found):8d} {numbers} {seconds:7.0f}")
        for kind in kinds:
            if which := [problem for problem, v in found.items() if kind in v]:
                details.append(f"{name}, {kind}: {', '.join(which)}")
    return "\n".join([*out, "", *details])


if __name__ == "__main__":
    main()
