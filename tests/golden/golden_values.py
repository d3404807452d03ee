"""What is recorded of a fit, how it is written, and how two records are compared."""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from golden_fits import ALL, Fit
from sklearn.gaussian_process.kernels import Kernel

FOLDER = Path(__file__).resolve().parent
# The numbers of double and single precision hold to these, relative to the largest of each field.
TOLERANCES = {False: 1e-10, True: 1e-5}
# Numbers below are compared as if the largest of their field were this one: they are what is left
# of a difference.
SMALLEST = 1e-8
Record = dict[str, Any]
# Of each field of numbers that needs its own, and "all" for the others.
Tolerance = dict[str, float]


def record(fit: Fit, change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Record:
    """Fits a model and writes down what it says about ten rows, and how it was trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, X = fit.fitted(change)
        numbers = {name: np.asarray(v, np.float64) for name, v in _numbers(model, X)}
    report = model.fit_report_
    return {
        "status": report.status,
        "summary": _without_numbers(report.get("summary", "").partition("\n")[0]),
        "n_iter": report.n_iter,
        "choices": {name: str(choice.value) for name, choice in sorted(report.choices.items())},
        "ignored": sorted(report.ignored),
        "jitter": float(f"{report.jitter:.3g}"),
        **{name: values for name, values in numbers.items() if values.size},
    }


def _without_numbers(text: str) -> str:
    """A text whose fractions are left out: a digit that is shown may be a rounded one."""
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?", "#", text)


def _numbers(model: Any, X: np.ndarray) -> Iterator[tuple[str, Any]]:
    if hasattr(model, "predict_proba"):
        yield "proba", model.predict_proba(X)
    else:
        mean, std = model.predict(X, return_std=True)
        yield "mean", mean
        yield "std", std
        try:
            cov = model.predict(X, return_cov=True)[1]
        except (TypeError, ValueError):  # it has only densities of single rows
            cov = np.empty((0, 0))
        # Of a symmetric matrix, what the standard deviations do not say.
        yield "cov", cov[np.tril_indices(len(cov), -1)]
    yield from _learned(model)


def _learned(model: Any, below: str = "") -> Iterator[tuple[str, Any]]:
    """Hyperparameters, on logarithmic scales as far as they are those of a kernel."""
    for name in ("kernel_", "kernels_"):
        found = getattr(model, name, None)
        for k, kernel in enumerate(found if isinstance(found, list | tuple) else [found]):
            if isinstance(kernel, Kernel):
                yield f"{below}{name} {k}", kernel.theta
    if getattr(model, "noise_variance_", None) is not None:
        yield f"{below}noise_variance_", model.noise_variance_
    for name in ("estimator_", "noise_estimator_"):
        if hasattr(model, name):
            yield from _learned(getattr(model, name), f"{below}{name}.")
    if hasattr(model, "weights_"):
        yield f"{below}weights_", np.asarray(model.weights_, np.float64)


def to_line(name: str, values: Record, tolerance: Tolerance) -> str:
    """A record as one line, with three digits more than are compared."""
    plain: Record = {"name": name, "tolerance": tolerance}
    for key, value in values.items():
        if isinstance(value, np.ndarray):
            value = [float(f"{x:.13g}") for x in value.ravel().tolist()]
        plain[key] = value
    return json.dumps(plain)


def read(path: Path) -> dict[str, Record]:
    """The records of a file by name."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for line in lines:
        values = json.loads(line)
        values |= {k: np.array(v) for k, v in values.items() if k in _number_fields(values)}
        found[values["name"]] = values
    return found


def _number_fields(values: Record) -> list[str]:
    return [
        name for name, v in values.items() if isinstance(v, np.ndarray | list) and name != "ignored"
    ]


def movement(new: Record, old: Record) -> dict[str, float]:
    """How far each field of numbers is from what it was, relative to its largest number.

    Infinite where shapes or anything else differ.
    """
    moved = {}
    for name in sorted({*new, *old} - {"name", "tolerance"}):
        a, b = new.get(name), old.get(name)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            a, b = a.ravel(), b.ravel()
            if a.shape == b.shape:
                scale = max(SMALLEST, np.abs(b).max())
                moved[name] = float(np.abs(a - b).max() / scale)
                continue
        if a is None or b is None or isinstance(a, np.ndarray) or a != b:
            moved[name] = np.inf
    return {name: size for name, size in moved.items() if size}


def changes(new: Record, old: Record, tolerance: Tolerance | None = None) -> dict[str, float]:
    """The fields that moved by more than their tolerances, by default those of the line."""
    most = old["tolerance"] if tolerance is None else tolerance
    return {
        name: size
        for name, size in movement(new, old).items()
        if size > most.get(name, most["all"])
    }


BY_NAME = {fit.name: fit for fit in ALL}
FILES = {
    FOLDER / "contract.jsonl": [name for name in BY_NAME if name.startswith("contract-")],
    FOLDER / "fits.jsonl": [name for name in BY_NAME if not name.startswith("contract-")],
}
VERSIONS = FOLDER / "versions.json"
