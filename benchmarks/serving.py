#!/usr/bin/env python3
"""Time predictions as a service asks for them, and rows that join: one JSON line a case.

    python benchmarks/serving.py --rows 2000 --models SVGPRegressor KISSGPRegressor
    python benchmarks/serving.py --part updates --rows 100000 --models NNGPRegressor
    python benchmarks/serving.py --part files --rows 300000 --models NNGPRegressor
    python benchmarks/serving.py --part precision --rows 800

The first part times one row and 1,000 rows, the mean alone and with its standard deviation, by
`predict` of a model from a compact file, by the torch module and by ONNX Runtime (where it is
installed), in microseconds a row.
The second adds 100 rows by `partial_fit` and compares with the fit. Processor seconds of one
thread; the median of repeated calls.
The third saves the model, whole and compact, and compares the bytes of the files with those of the
table of float64 numbers, rows and targets.
The fourth computes the means of exact processes in single precision in several ways, and prints the
largest error in standard deviations of the target.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

MODELS = ["SVGPRegressor", "SGPRRegressor", "KISSGPRegressor", "RFFRegressor", "QSGPRegressor"]
MODELS += ["SCGDDKLRegressor", "NNGPRegressor", "IterativeGPRegressor", "PoERegressor"]
MODELS += ["LOVEPredictor", "QSRVMRegressor", "SSRFFRegressor", "MeanFunctionRegressor"]
MODELS += ["HeteroscedasticRegressor", "StackedGPRegressor", "AutoGPRegressor"]
COLUMNS = {"KISSGPRegressor": 2}
# Estimators over one other than their default.
OVER = {"LOVEPredictor": "IterativeGPRegressor", "MeanFunctionRegressor": "SVGPRegressor"}
OVER["HeteroscedasticRegressor"] = "SVGPRegressor"
NEW = 100


def table(n, d):
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n, d))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def made(name):
    import inspect

    import skscalablegp

    cls = getattr(skscalablegp, name)
    if name in OVER:
        return cls(made(OVER[name]), random_state=0)
    small = "small_table" in inspect.signature(cls).parameters
    return cls(random_state=0, **({"small_table": "method"} if small else {}))


def microseconds(call, m):
    """Median time a row of repeated calls, for about a quarter of a second."""
    call()
    took, begun = [], time.process_time()
    while len(took) < 5 or (time.process_time() - begun < 0.25 and len(took) < 500):
        start = time.process_time_ns()
        call()
        took.append((time.process_time_ns() - start) / 1000)
    return round(statistics.median(took) / m, 2)


def predictions(name, n):
    import torch

    import skscalablegp as sk

    X, y = table(n, COLUMNS.get(name, 6))
    model = compact(made(name).fit(X, y))
    line = {"part": "predictions", "model": name, "rows": n, "columns": X.shape[1]}
    for what, return_std in (("mean", False), ("std", True)):
        try:
            module = sk.to_torch(model, return_std)
        except TypeError:  # a model with trees has a file alone
            module = None
        session = onnx_session(model, return_std)
        for m in (1, 1000):
            rows, tensor = X[:m].copy(), torch.tensor(X[:m])
            ways = {"predict": lambda: model.predict(rows, return_std=return_std)}  # noqa: B023
            if module is not None:
                ways["torch"] = lambda: module(tensor)  # noqa: B023
            if session is not None:
                ways["onnx"] = lambda: session.run(None, {"X": rows})  # noqa: B023
            for way, call in ways.items():
                with torch.inference_mode():
                    line[f"{way}_{what}_{m}"] = microseconds(call, m)
    return line


def compact(model):
    """The model as its compact file has it."""
    import skscalablegp as sk

    with tempfile.TemporaryDirectory() as folder:
        sk.save(model, Path(folder) / "model", compact=True)
        return sk.load(Path(folder) / "model")


def onnx_session(model, return_std):
    import skscalablegp as sk

    try:
        import onnxruntime
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        sk.export_onnx(model, path, return_std)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(path.read_bytes(), options)


def updates(name, n):
    X, y = table(n + NEW, COLUMNS.get(name, 6))
    model, begun = made(name), time.process_time()
    model.fit(X[:n], y[:n])
    fit = time.process_time() - begun
    begun = time.process_time()
    model.partial_fit(X[n:], y[n:])
    update = time.process_time() - begun
    line = {"part": "updates", "model": name, "rows": n, "new": NEW, "fit_seconds": round(fit, 3)}
    return line | {"update_seconds": round(update, 4), "times_faster": round(fit / update, 1)}


def files(name, n):
    import skscalablegp as sk

    X, y = table(n, COLUMNS.get(name, 6))
    model, line = made(name).fit(X, y), {"part": "files", "model": name, "rows": n}
    line |= {"columns": X.shape[1], "table_bytes": X.nbytes + y.nbytes}
    for what, compact in (("whole", False), ("compact", True)):
        with tempfile.TemporaryDirectory() as folder:
            path, begun = Path(folder) / "model.gp", time.process_time()
            sk.save(model, path, compact=compact)
            line |= {f"{what}_bytes": path.stat().st_size}
            line |= {f"{what}_of_table": round(path.stat().st_size / line["table_bytes"], 4)}
            line |= {f"{what}_seconds": round(time.process_time() - begun, 2)}
            begun = time.process_time()
            sk.load(path)
            line |= {f"{what}_load_seconds": round(time.process_time() - begun, 2)}
    return line


def precision(noise, n):
    import numpy as np

    from skscalablegp import IterativeGPRegressor

    rng = np.random.default_rng(0)
    X, new = rng.uniform(0, 10, size=(n, 3)), rng.uniform(0, 10, size=(500, 3))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + noise * rng.standard_normal(n)
    model = IterativeGPRegressor(random_state=0).fit(X, y)
    variance, matern = model.kernel_.k1.k1.constant_value, model.kernel_.k1.k2
    weights = np.linalg.solve(model.kernel_(X), model.y_train_)
    right = matern(new, X) @ weights * variance

    def error(rows, new, dtype, squares, product):
        rows, new = rows.astype(dtype), new.astype(dtype)
        r = np.sqrt(3 * np.maximum(squares(new, rows), 0)).astype(dtype)
        K = np.asarray(variance, dtype) * ((1 + r) * np.exp(-r))
        found = K.astype(product) @ weights.astype(product)
        return float(f"{np.abs(found - right).max():.1e}")

    def expanded(a, b):
        return (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T

    def differences(a, b):
        return np.square(a[:, None] - b).sum(2)

    scaled, at = X / matern.length_scale, new / matern.length_scale
    centre, single, double = scaled.mean(0), np.float32, np.float64
    centred = scaled - centre, at - centre
    rounded = scaled - centre, new.astype(single) / matern.length_scale - centre
    return {
        "part": "precision",
        "noise": noise,
        "rows": n,
        "sum_of_weights": round(float(np.abs(weights).sum())),
        "single": error(scaled, at, single, expanded, single),
        "centred": error(*centred, single, expanded, single),
        "differences": error(*centred, single, differences, single),
        "double_product": error(*centred, single, differences, double),
        "double_inside": error(*rounded, double, differences, double),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"predictions": predictions, "updates": updates, "files": files}
    parts |= {"precision": precision}
    parser.add_argument("--part", choices=[*parts], default="predictions")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--output", help="file to which lines are appended")
    args = parser.parse_args()

    import torch

    import skscalablegp

    torch.set_num_threads(1)
    for name in (0.3, 0.05, 0.01) if args.part == "precision" else args.models:
        line = parts[args.part](name, args.rows)
        line |= {"version": skscalablegp.__version__, "date": date.today().isoformat()}
        print(json.dumps(line), flush=True)
        if args.output:
            with open(args.output, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
