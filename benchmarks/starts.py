#!/usr/bin/env python3
"""Whether default fits find the signal of sixty-two drawn problems; one line of JSON a fit.

    python benchmarks/starts.py --list
    python benchmarks/starts.py --references --part all            # once: they are kept
    python benchmarks/starts.py --estimators NNGPRegressor --problems sine40 steep25
    python benchmarks/starts.py --max-seconds 15                   # goes on where it was
    python benchmarks/starts.py --own-start --estimators SVGPRegressor
    python benchmarks/starts.py --package ../older --max-seconds 15
    python benchmarks/starts.py --report --commit f2e51f1

`starts_problems.py` draws the problems, and `starts_reference.py` fits the reference of each. Only
the half that may choose defaults runs unless --part asks for the kept half, which is for a final
judgement. Beside them, six problems have two classes.

Every estimator of the package has its default settings, random_state=0 and max_seconds. Every fit
is a process of its own with one thread; what has not ended and predicted after --cut-seconds leaves
a line that says so. With --clock cpu, the default, processor seconds are the clock of max_seconds
and of the cut, so that other work on the machine changes no result. Small tables come first. Lines
that the file has for the package's commit and the same max_seconds are skipped; a commit whose
package has been changed since is marked with "+", and its lines are measured again. --resume skips
the lines of any commit. --package is another checkout, whose commit is then the line's.

The report counts, for each estimator,

near     problems where the NLPD is at most 0.1 above the reference's, or above that of the method's
         own best start, if this is worse: what the method cannot represent is no fault of a start.
         That of two classes: where the log loss is at most 0.05 above the trees'. Problems with far
         targets are not counted, for which no normal likelihood has a good NLPD.
null     problems where R2 is below 0.05 and the reference's is above 0.2. Of two classes: where the
         log loss is above 0.95 of the prior's, and the trees' below 0.8 of that
silent   those of them with the status "converged" or "completed", and no warning
warned   problems with a warning
failed   problems without a result

The own best start is measured by --own-start: the estimator gets the reference's kernel, with the
hyperparameters that the reference has found, as its kernel, and standardised columns. A deep kernel
acts on the outputs of a network instead of the columns. Its own best start is therefore that of six
networks of the default layers after which the test rows have the lowest NLPD: three random states,
with first weights that are divided by the reference's length scales, and with equal ones. Each has
the whole of max_seconds.
"""

import argparse
import datetime
import json
import math
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from compare import wait
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from starts_problems import BY_NAME, CLASSES, PROBLEMS, table
from starts_problems import problem as problem
from starts_reference import exact_reference, mean_scores, scores, tree_scores, widths
from threadpoolctl import threadpool_limits
from uci import plain, versions

HERE = Path(__file__).resolve().parent
NEAR, NEAR_CLASSES = 0.1, 0.05
NULL, SIGNAL = 0.05, 0.2
WORST = 5
DEEP = ("SCGDDKLRegressor", "MinimaxDKLRegressor", "BSGDDKLRegressor")
DEEP_LAYERS, DEEP_SEEDS = (128, 128), (0, 1, 2)


def main(argv=None):
    args = parse_args(argv)
    unknown = sorted(set(args.problems or []) - set(BY_NAME))
    if unknown:
        raise SystemExit(f"Unknown: {unknown}; --list --part all prints the problems.")
    asked = args.problems or [p.name for p in BY_NAME.values() if args.part in (p.part, "all")]
    problems = [p for p in PROBLEMS + CLASSES if p.name in asked]
    if args.list:
        print("\n".join(map(described, problems)))
    elif args.references:
        find_references(problems, args)
    elif args.report:
        print(report(problems, args))
    else:
        measure(problems, args)
        print(report(problems, args))


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: those of --part")
    parser.add_argument("--part", choices=("choosing", "kept", "all"), default="choosing")
    parser.add_argument("--list", action="store_true", help="only print the problems")
    parser.add_argument("--references", action="store_true", help="fit missing references only")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--own-start", action="store_true", help="start at the reference's optimum")
    parser.add_argument("--max-seconds", type=float, default=15.0)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--cut-seconds", type=float, help="default: 60 and 6 times max_seconds")
    parser.add_argument("--resume", action="store_true", help="skip the lines of any commit")
    parser.add_argument("--package", default=str(HERE.parent), help="checkout to measure")
    parser.add_argument("--commit", help="report this commit; default: each fit's last line")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(HERE / "results" / "starts.jsonl"))
    parser.add_argument(
        "--reference-file", default=str(HERE / "results" / "starts_reference.jsonl")
    )
    args = parser.parse_args(argv)
    args.cut_seconds = args.cut_seconds or 60 + 6 * args.max_seconds
    return args


def described(p):
    special = " ".join(map(str, p.length))
    return (
        f"{p.name:24s} {p.part:8s} {p.kind:9s} {p.n:6d} rows {p.d:4d} columns, {p.relevant:2d} "
        f"matter, noise {p.noise:.3g}, {p.columns} {special}".rstrip()
    )


def read(path):
    path = Path(path)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line]


def write(path, line):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain(line), allow_nan=False) + "\n")


def rounded(scores):
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in scores.items()}


def stamp(args, commit, what):
    """What every line says of its origin."""
    return dict(
        machine=args.machine,
        date=datetime.date.today().isoformat(),
        commit=commit,
        versions=versions(),
        command=shlex.join(["python", "benchmarks/starts.py", *what]),
    )


def revision(checkout, folder):
    """The commit of a checkout, with "+" if that folder has been changed since."""

    def git(*words):
        said = subprocess.run(["git", "-C", checkout, *words], capture_output=True, text=True)
        return said.stdout.strip()

    changed = git("status", "--porcelain", "--", f"{folder}/*.py")
    return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)


# ------------------------------------------------------------------ references


def find_references(problems, args):
    """Append the lines that are missing, of small tables first."""
    known = {line["problem"] for line in read(args.reference_file)}
    commit = revision(str(HERE.parent), "benchmarks")
    for p in sorted(problems, key=lambda p: (min(p.n, 1500), p.d, p.n)):
        if p.name in known:
            continue
        drawn = table(p.name)
        line = dict(problem=p.name, part=p.part, n=p.n, d=p.d)
        if p not in CLASSES:
            line |= rounded(exact_reference(drawn, p.noise, [*p.name.encode()]))
        for name, found in (("trees", tree_scores(drawn)), ("mean", mean_scores(drawn))):
            line |= {f"{name}_{score}": value for score, value in rounded(found).items()}
        what = ["--references", "--problems", p.name]
        write(args.reference_file, line | stamp(args, commit, what))
        line.pop("theta", None)
        print(json.dumps(plain(line)), flush=True)


# ------------------------------------------------------------------ the parent's side of a fit


def estimators(package):
    """Names of the package's estimators, and whether they are classifiers."""
    code = (
        "import skscalablegp as s; from sklearn.base import is_classifier;"
        "[print(n, is_classifier(getattr(s, n)())) for n in s.__all__ if n[0].isupper()]"
    )
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {package!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split() for line in said.stdout.splitlines())
    return {name: is_classifier == "True" for name, is_classifier in found.items()}


def key(line):
    return line["estimator"], line["problem"], line["max_seconds"], line["own_start"]


def measure(problems, args):
    """Append the lines that are missing."""
    package = str(Path(args.package).resolve())
    known = estimators(package)
    if unknown := sorted(set(args.estimators or []) - set(known)):
        raise SystemExit(f"Unknown: {unknown}; there are {', '.join(known)}.")
    commit = revision(package, "skscalablegp")
    done = {
        key(line)
        for line in read(args.out)
        if args.resume or line["commit"] == commit and commit[-1] != "+"
    }
    thetas = {line["problem"]: line.get("theta") for line in read(args.reference_file)}
    for p in sorted(problems, key=lambda p: (p.n, p.d)):
        for name in args.estimators or known:
            cell = dict(
                estimator=name,
                problem=p.name,
                max_seconds=args.max_seconds,
                own_start=args.own_start,
            )
            if known[name] != (p in CLASSES) or key(cell) in done:
                continue
            if args.own_start and not thetas.get(p.name):
                continue
            line = cell | dict(part=p.part, n=p.n, d=p.d, clock=args.clock)
            line |= fitted(cell | dict(package=package, theta=thetas.get(p.name)), args)
            what = ["--estimators", name, "--problems", p.name]
            what += ["--max-seconds", f"{args.max_seconds:g}", "--clock", args.clock]
            what += ["--own-start"] * args.own_start
            write(args.out, line | stamp(args, commit, what))
            print(said(line), flush=True)


def fitted(cell, args):
    """The results of one fit, whatever happens in its process.

    The process is a fork of this one, which has imported what is slow to import, but the package.
    """
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            try:
                run_cell(cell | dict(clock=args.clock, cut=args.cut_seconds), output)
            finally:
                output.flush()
                os._exit(0)
        on_the_wall = args.cut_seconds if args.clock == "wall" else 60 + 10 * args.cut_seconds
        status, usage, cut = wait(child, on_the_wall)
        output.seek(0)
        lines = [json.loads(text) for text in output.read().splitlines()]
    result = {}
    for line in lines:
        result |= line
    if not {"nll", "log_loss", "error"} & {*result}:
        ended = f"cut after {args.cut_seconds:g} s ({args.clock} clock)"
        result["error"] = ended if cut else f"exit status {status}"
    return result | dict(total_cpu_seconds=round(usage.ru_utime + usage.ru_stime, 1))


def said(line):
    scores = [
        f"{name} {line[name]:.3f}"
        for name in ("r2", "rmse", "nll", "log_loss", "cpu_seconds")
        if line.get(name) is not None
    ]
    words = [line.get("status") or "", line.get("error", ""), (line.get("warning") or "")[:40]]
    return f"{line['estimator']:22s} {line['problem']:24s} " + "  ".join(
        filter(None, scores + words)
    )


# ------------------------------------------------------------------ the fit's own process


def run_cell(cell, output):
    """Fit, predict and score; what is known is written as soon as it is."""

    def say(**facts):
        print(json.dumps(plain(rounded(facts)), allow_nan=False), file=output, flush=True)

    if cell["clock"] == "cpu":
        # Before the package takes its clock.
        time.perf_counter = time.process_time
        resource.setrlimit(resource.RLIMIT_CPU, (int(cell["cut"]) + 1, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with threadpool_limits(1):
                torch.set_num_threads(1)
                run_fit(cell, say)
        except Exception as error:  # a line like the others
            say(error=f"{type(error).__name__}: {error}"[:300])
        messages = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    first = messages[0][:100] if messages else None
    say(warned=bool(messages), warning=first, n_warnings=len(messages))


def run_fit(cell, say):
    sys.path.insert(0, cell["package"])
    import skscalablegp

    if Path(skscalablegp.__file__).resolve().parents[1] != Path(cell["package"]):
        raise ImportError(f"{skscalablegp.__file__} is not in {cell['package']}")
    drawn = cell["table"] if "table" in cell else table(cell["problem"])
    model = getattr(skscalablegp, cell["estimator"])()
    for parameter in model.get_params():
        if parameter.rpartition("__")[2] == "random_state":
            model.set_params(**{parameter: 0})
    model.set_params(max_seconds=cell["max_seconds"])
    if cell["own_start"] and cell["estimator"] in DEEP:
        best = None
        for start, own in deep_models(model, drawn, cell["theta"]):
            facts = dict(start=start)
            fit_once(cell, own, drawn, lambda facts=facts, **more: facts.update(more))
            if best is None or infinite(facts["nll"]) < best:
                best = infinite(facts["nll"])
                say(**facts)
        return
    if cell["own_start"]:
        model, drawn = own_model(model, drawn, cell["theta"])
    fit_once(cell, model, drawn, say)


def fit_once(cell, model, drawn, say):
    start, started = time.process_time(), time.perf_counter()
    model.fit(drawn.X, drawn.y)
    say(
        status=getattr(getattr(model, "fit_report_", None), "status", None),
        cpu_seconds=time.process_time() - start,
        fit_seconds=time.perf_counter() - started,
    )
    say(**cell.get("looks", scored)(model, drawn))


def scored(model, drawn):
    """R2, RMSE and NLPD of noisy test targets, or the log loss and the share of right classes."""
    if drawn.y.dtype.kind == "i":
        proba = np.clip(model.predict_proba(drawn.X_test), 1e-12, 1)
        right = proba[np.arange(len(proba)), drawn.y_test]
        return dict(
            log_loss=float(-np.log(right).mean()),
            accuracy=float(np.mean(proba.argmax(axis=1) == drawn.y_test)),
        )
    mean, std = model.predict(drawn.X_test, return_std=True)
    return scores(drawn.y_test, mean, std)


def own_model(model, drawn, theta):
    """The estimator that starts at the reference's optimum, and the table with standard columns.

    Some methods standardise columns and some do not, and a kernel's length scales are in units of
    what they see: with standardised columns it is the same.
    """
    mean, std = drawn.X.mean(axis=0), drawn.X.std(axis=0)
    std = np.where(std > 0, std, 1.0)
    variance, lengths, noise = np.exp(theta[0]), np.exp(theta[1:-1]), np.exp(theta[-1])
    wide = (1e-8, 1e8)
    kernel = ConstantKernel(variance, wide) * Matern(
        lengths * widths(drawn.X) / std, nu=1.5, length_scale_bounds=wide
    ) + WhiteKernel(noise, (1e-10, 1e4))
    table = drawn._replace(X=(drawn.X - mean) / std, X_test=(drawn.X_test - mean) / std)
    return model.set_params(kernel=kernel), table


def deep_models(model, drawn, theta):
    """The same deep kernel from several first layers, each with its name."""
    inverse = 1 / np.exp(theta[1:-1])
    for seed in DEEP_SEEDS:
        for name, factors in (("reference", inverse), ("equal", np.ones_like(inverse))):
            layers = network(factors, seed)
            yield f"{name} {seed}", model.set_params(feature_extractor=layers, random_state=seed)


def network(factors, seed):
    """The layers of the package's default network, with first weights times a factor a column.

    It sees columns in units of their spread, as the reference's length scales are. The squares of
    the factors get a mean of 1.
    """
    generator, fan_in, layers = torch.Generator().manual_seed(seed), len(factors), []
    for width in DEEP_LAYERS:
        linear = torch.nn.Linear(fan_in, width)
        with torch.no_grad():
            linear.weight.normal_(0, (2 / fan_in) ** 0.5, generator=generator)
            linear.bias.uniform_(-1, 1, generator=generator).div_(fan_in**0.5)
        layers += [linear, torch.nn.SiLU()]
        fan_in = width
    with torch.no_grad():
        layers[0].weight *= torch.as_tensor(factors / np.sqrt(np.mean(factors**2))).float()
    return torch.nn.Sequential(*layers)


# ------------------------------------------------------------------ the report


def infinite(nll):
    """JSON has no infinity: None is one."""
    return math.inf if nll is None else nll


def verdicts(line, reference, own=None):
    """What a line counts as; `own` is that of the method's own best start, where there is one."""
    if "error" in line:
        return ["failed"]
    found = ["warned"] if line["warned"] else []
    if "log_loss" in line:
        near = line["log_loss"] <= reference["trees_log_loss"] + NEAR_CLASSES
        null = (
            line["log_loss"] > 0.95 * reference["mean_log_loss"]
            and reference["trees_log_loss"] < 0.8 * reference["mean_log_loss"]
        )
    else:
        goal = reference["nll"]
        if own and "error" not in own:
            goal = max(goal, infinite(own["nll"]))
        near = infinite(line["nll"]) <= goal + NEAR
        null = (
            not (-math.inf if line["r2"] is None else line["r2"]) >= NULL
            and reference["r2"] > SIGNAL
        )
    if near and BY_NAME[line["problem"]].kind != "far":
        found.append("near")
    if null:
        found.append("null")
        if not line["warned"] and line["status"] in ("converged", "completed"):
            found.append("silent")
    return found


def report(problems, args):
    names = [p.name for p in problems]
    lines = [
        line
        for line in read(args.out)
        if line["problem"] in names
        and line["max_seconds"] == args.max_seconds
        and line["commit"] == (args.commit or line["commit"])
        and (not args.estimators or line["estimator"] in args.estimators)
    ]
    references = {line["problem"]: line for line in read(args.reference_file)}
    return summary(lines, references)


def summary(lines, references):
    """A table of counts for each estimator, and the problems behind them."""
    kinds = ("near", "null", "silent", "warned", "failed")
    last = {key(line): line for line in lines if line["problem"] in references}
    missing = sorted({line["problem"] for line in lines} - set(references))
    own = {(e, p): line for (e, p, _, own_start), line in last.items() if own_start}
    fits = [line for line in last.values() if not line["own_start"]]
    out = [f"{'':22s} problems " + " ".join(f"{kind:>7s}" for kind in kinds) + "   near %   cpu s"]
    details = []
    for name in dict.fromkeys(line["estimator"] for line in fits):
        mine = [line for line in fits if line["estimator"] == name]
        found = {
            line["problem"]: verdicts(
                line, references[line["problem"]], own.get((name, line["problem"]))
            )
            for line in mine
        }
        counts = {kind: sum(kind in v for v in found.values()) for kind in kinds}
        counted = [p for p in found if BY_NAME[p].kind != "far"]
        share = 100 * counts["near"] / max(len(counted), 1)
        seconds = sum(line.get("cpu_seconds") or 0.0 for line in mine)
        numbers = " ".join(f"{counts[kind]:7d}" for kind in kinds)
        out.append(f"{name:22s} {len(found):8d} {numbers} {share:8.0f} {seconds:7.0f}")
        for kind in ("silent", "null", "failed"):
            if which := [problem for problem, v in found.items() if kind in v]:
                details.append(f"{name}, {kind}: {', '.join(which)}")
        if worst := worst_of(mine, references, found):
            details.append(f"{name}, worst: {', '.join(worst)}")
    if missing:
        details.append(f"Without a reference: {', '.join(missing)}")
    return "\n".join([*out, "", *details])


def worst_of(lines, references, found):
    """The problems that are furthest from their goals, with the nats that are missing."""
    gaps = {}
    for line in lines:
        if "error" in line or {"near"} & {*found[line["problem"]]}:
            continue
        reference = references[line["problem"]]
        if "log_loss" in line:
            gaps[line["problem"]] = line["log_loss"] - reference["trees_log_loss"]
        elif BY_NAME[line["problem"]].kind != "far":
            gaps[line["problem"]] = infinite(line["nll"]) - infinite(reference["nll"])
    worst = sorted(gaps, key=gaps.get, reverse=True)[:WORST]
    return [f"{problem} (+{gaps[problem]:.2f})" for problem in worst]


if __name__ == "__main__":
    main()
