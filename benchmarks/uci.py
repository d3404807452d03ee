#!/usr/bin/env python3
"""Fit one estimator on one split of a UCI regression set and print one line of JSON.

    python benchmarks/uci.py --estimator IterativeGPRegressor --dataset pol
    python benchmarks/uci.py --estimator IterativeGPRegressor --dataset pol --n-train 4000 \\
        --set solver=cg --set n_probes=32
    python benchmarks/uci.py --estimator HistGradientBoostingRegressor --dataset bike

Any estimator of skscalablegp runs, and any of scikit-learn. Inputs and target are standardised by
the training rows' mean and standard deviation; rmse, nll and crps are in those units. nll is the
mean negative log density of the noisy test targets; it is null, as are crps and coverage95, for an
estimator that predicts no standard deviations. A classifier predicts whether the target lies above
the training rows' median; its nll is the log loss.
"""

import argparse
import ast
import inspect
import json
import math
import os
import platform
import shlex
import sys
import time
import warnings


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    from sklearn.base import is_classifier

    model = make_estimator(args.estimator, args.set, args.seed)
    X_train, X_test, y_train, y_test = load(args.dataset, args.split, args.n_train, args.seed)
    if is_classifier(model):
        # Targets are standardised, so the median is that of the training rows in these units.
        middle = float(sorted(y_train)[len(y_train) // 2])
        y_train, y_test = (y_train > middle).astype(int), (y_test > middle).astype(int)

    rss_before = resident_mb()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        model.fit(X_train, y_train)
        fit_seconds = time.perf_counter() - start
        start = time.perf_counter()
        prediction = predict(model, X_test)
        predict_seconds = time.perf_counter() - start

    report = dict(
        estimator=args.estimator,
        dataset=args.dataset,
        split=args.split,
        seed=args.seed,
        n_train=len(X_train),
        n_test=len(X_test),
        n_features=X_train.shape[1],
        fit_seconds=round(fit_seconds, 3),
        predict_seconds=round(predict_seconds, 4),
        **scores(y_test, prediction),
        peak_rss_mb=peak_resident_mb(),
        rss_before_fit_mb=rss_before,
        **fitted_facts(model),
        params=args.set,
        threads=args.threads,
        warnings=sorted({f"{w.category.__name__}: {w.message}" for w in caught}),
        versions=versions(),
        command=shlex.join(
            ["python", "benchmarks/uci.py", *(sys.argv[1:] if argv is None else argv)]
        ),
    )
    print(json.dumps(plain(report), allow_nan=False))


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimator", required=True, metavar="NAME", help="class name")
    parser.add_argument(
        "--dataset", required=True, metavar="NAME", help="a name of fetch_uci, or flights"
    )
    parser.add_argument("--split", type=int, default=0, help="published split, 0 to 9")
    parser.add_argument(
        "--n-train",
        type=int,
        default=0,
        metavar="N",
        help="keep N training rows, drawn with --seed (default: all)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="draws the rows, and is the estimator's random_state if it has one",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="PARAM=VALUE",
        help="set a parameter, nested ones as a__b; a Python literal or a string",
    )
    args = parser.parse_args(argv)
    args.set = dict(args.set)
    return args


def setting(text):
    """("a__b", 3) from "a__b=3"; what is no Python literal is a string."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected PARAM=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def make_estimator(name, params, seed):
    """An instance of the class of that name, of skscalablegp or else of scikit-learn."""
    from sklearn.utils.discovery import all_estimators

    import skscalablegp

    if name in skscalablegp.__all__ and name[0].isupper():
        cls = getattr(skscalablegp, name)
    else:
        known = dict(all_estimators(type_filter=["regressor", "classifier"]))
        if name not in known:
            own = ", ".join(n for n in skscalablegp.__all__ if n[0].isupper())
            raise SystemExit(
                f"Unknown estimator {name!r}: skscalablegp has {own}; the regressors and "
                "classifiers of scikit-learn are known too."
            )
        cls = known[name]
    model = cls()
    # An object before what is nested in it: set_params applies them in this order.
    model.set_params(**params)
    if "random_state" in model.get_params(deep=False) and "random_state" not in params:
        model.set_params(random_state=seed)
    return model


# Columns that hold the target: exp(y) of bike is a linear function of its last two, the casual and
# the registered users, with an R2 of 0.9999999985.
LEAKS = {"bike": (15, 16)}


def load(dataset, split, n_train, seed, leaks=True):
    """The split's rows, standardised by its training rows, and cut to ``n_train`` of them.

    The splits of "flights" are 300,000 training rows and 10,000 test rows, drawn anew. Papers have
    scores of the published columns; ``leaks=False`` leaves out those that hold the target.
    """
    import numpy as np

    from skscalablegp.datasets import fetch_uci

    if dataset == "flights":
        X, Xt, y, yt = flights(300_000, 10_000, split)
    else:
        X, Xt, y, yt = fetch_uci(dataset, split=split, return_X_y=True)
    if not leaks:
        X, Xt = (np.delete(table, LEAKS.get(dataset, ()), axis=1) for table in (X, Xt))
    if n_train and n_train < len(X):
        keep = np.random.RandomState(seed).permutation(len(X))[:n_train]
        X, y = X[keep], y[keep]
    mean, std = X.mean(0), X.std(0)
    std[std == 0] = 1.0
    return (X - mean) / std, (Xt - mean) / std, (y - y.mean()) / y.std(), (yt - y.mean()) / y.std()


def flights(n_train, n_test, seed):
    """Numbers standardised, frequent categories as indicators; delays in minutes."""
    import numpy as np
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from skscalablegp.datasets import fetch_flights

    data = fetch_flights(n_rows=n_train + n_test, random_state=seed)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    kinds = OneHotEncoder(
        sparse_output=False, min_frequency=5000, handle_unknown="infrequent_if_exist"
    )
    columns = make_column_transformer(
        (numbers, data.numeric_features), (kinds, data.categorical_features)
    )
    X, X_test = data.data[:n_train], data.data[n_train:]
    y = np.asarray(data.target, dtype=float)
    return columns.fit_transform(X), columns.transform(X_test), y[:n_train], y[n_train:]


def predict(model, X):
    """What the estimator can say: probabilities, means and standard deviations, or means."""
    if hasattr(model, "predict_proba"):
        return {"proba": model.predict_proba(X)}
    if "return_std" in inspect.signature(model.predict).parameters:
        mean, std = model.predict(X, return_std=True)
        return {"mean": mean, "std": std}
    return {"mean": model.predict(X)}


def scores(y, prediction):
    from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error

    from skscalablegp.metrics import crps, interval_coverage, nlpd

    result = dict(rmse=None, nll=None, crps=None, coverage95=None)
    if "proba" in prediction:
        proba = prediction["proba"]
        return result | dict(
            nll=round(log_loss(y, proba, labels=[0, 1]), 5),
            accuracy=round(accuracy_score(y, proba.argmax(axis=1)), 5),
        )
    mean = prediction["mean"]
    result["rmse"] = round(root_mean_squared_error(y, mean), 5)
    if "std" in prediction:
        std = prediction["std"]
        result["nll"] = round(nlpd(y, mean, std), 5)
        result["crps"] = round(crps(y, mean, std), 5)
        result["coverage95"] = round(interval_coverage(y, mean, std), 5)
    return result


def fitted_facts(model):
    """What a fitted estimator says of itself; null for what it does not say."""
    report = getattr(model, "fit_report_", {})
    return dict(
        epochs=report.get("epochs"),
        n_iter=getattr(model, "n_iter_", None),
        device=getattr(model, "device_", None),
        dtype=getattr(model, "dtype_", None),
        solver=getattr(model, "solver_", None),
        status=report.get("status"),
        kernel=getattr(model, "kernel_", None),
    )


def peak_resident_mb():
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 2 ** (20 if sys.platform == "darwin" else 10), 1)


def resident_mb():
    """What was held before the fit, so that its own need can be told; null without psutil."""
    try:
        import psutil
    except ImportError:
        return None
    return round(psutil.Process().memory_info().rss / 2**20, 1)


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("skscalablegp", "scikit-learn", "torch", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def plain(value):
    """The same with types that JSON has; what is not a finite number becomes null."""
    import numpy as np

    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


if __name__ == "__main__":
    main()
