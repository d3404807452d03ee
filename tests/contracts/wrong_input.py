"""Wrong values for every parameter of every public function and settings class, one at a time.

Run by itself, since the checks of annotations under pytest would speak first. Prints a line for
each error that is not a sentence of this package, or of scikit-learn's validation, about the
parameter.
"""

import inspect
import os
import tempfile
import traceback
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import skscalablegp as sk
from skscalablegp import (
    AutoGPRegressor,
    datasets,
    gradients,
    inspection,
    kernels,
    likelihoods,
    metrics,
    preconditioners,
    priors,
    solvers,
    training,
    truncation,
)

WRONG = ("nonsense", -1, 0.5, np.nan, np.inf, None, [1, 2, 3], {}, object())

rng = np.random.default_rng(0)
X = rng.normal(size=(20, 2))
y = X[:, 0] + 0.1 * rng.normal(size=20)
CODES = np.column_stack([X, np.arange(20) % 3])
MEAN, STD = np.zeros(20), np.ones(20)
FITTED = sk.IterativeGPRegressor(optimizer=None).fit(X, y)


def iterative(X=X, **settings):
    sk.IterativeGPRegressor(max_iter=2, random_state=0, **settings).fit(X, y)


def sparse(likelihood):
    model = sk.SVGPRegressor(likelihood=likelihood, n_inducing=5, max_iter=2).fit(X, y)
    model.predict(X, return_std=True)


def categories(kernel):
    iterative(CODES, kernel=kernels.Columns(kernel, [2]) + WhiteKernel())


def of_columns(kernel):
    iterative(CODES, kernel=kernel + WhiteKernel())


def mixture(kernel):
    iterative(X[:, :1], kernel=kernel + WhiteKernel())


# How the objects of a module are used, and by name where they differ; None where they are not.
USES = {
    solvers: (
        lambda solver: iterative(solver=solver),
        dict.fromkeys(["MaxEpochs", "MaxIterations", "MaxSeconds", "RelativeResidual"]),
    ),
    preconditioners: (lambda made: iterative(solver=solvers.CG(preconditioner=made)), {}),
    gradients: (lambda gradient: iterative(solver="cg", gradient=gradient), {}),
    truncation: (
        lambda law: sk.RRCGRegressor(truncation=law, max_iter=2, n_probes=2).fit(X, y),
        {},
    ),
    training: (lambda optimizer: iterative(optimizer=optimizer), {}),
    likelihoods: (sparse, {}),
    priors: (lambda prior: iterative(priors={"k2__noise_level": prior}), {}),
    kernels: (categories, {"Columns": of_columns, "SpectralMixture": mixture}),
    metrics: (None, {}),
    datasets: (None, {}),
}
# What a call needs beside the parameter that is wrong.
GOOD = {
    "Columns": dict(kernel=RBF(), columns=[0]),
    "LowRankCategorical": dict(n_categories=3),
    "RelativeResidual": dict(tol=0.1),
    "TruncatedGradient": dict(n_probes=10),
    **dict.fromkeys(["nlpd", "crps", "interval_coverage"], dict(y_true=y, mean=MEAN, std=STD)),
    "msll": dict(y_true=y, mean=MEAN, std=STD, train_mean=0.0, train_std=1.0),
    "interval_score": dict(y_true=y, lower=-STD, upper=STD),
    "pinball_loss": dict(y_true=y, quantiles=X, q=[0.2, 0.8]),
    "predict_quantiles": dict(estimator=FITTED, X=X, q=0.5),
    "predict_interval": dict(estimator=FITTED, X=X),
    "predict_std": dict(estimator=FITTED, X=X),
    "fetch_uci": dict(name="drawn", download_if_missing=False),
    "fetch_flights": dict(n_rows=5),
}
COMPARED = AutoGPRegressor(["linear"], random_state=0).fit(X, y)
# The same for the displays, each of which takes some of these.
DRAWN = dict(estimator=FITTED, X=X, y=y, features=0, grid_resolution=5, n_repeats=1, n_bins=4)
DRAWN |= dict(y_true=y, y_pred=y, quantiles=y[:, None] + [-1, 1], interval=y[:, None] + [-1, 1])
DRAWN |= dict(q=[0.2, 0.8])
# Protocols and results, which users derive from or read, parts of the kernels' machinery, and the
# scorers that are ready made.
NOT_CALLED = {
    *("Solution", "Solver", "SolverState", "End", "solve"),
    *("GradientEstimate", "GradientEstimator", "GradientState", "Preconditioner"),
    *("TruncationDistribution", "Truncation", "FitReport", "Optimizer", "TrainingStep", "Prior"),
    *("Likelihood", "LikelihoodTerms", "Predictive"),
    *("neg_nlpd_scorer", "neg_crps_scorer", "fetch_flights"),
}
KERNELS = ("Categorical", "Columns", "LowRankCategorical", "SpectralMixture")
# What else a sentence may name: the prior that a number belongs to; rows that are not as many; and
# scikit-learn's words for tables.
ALSO = ("priors[", "inconsistent numbers of samples", "Expected 2D array", "features")
# What is said of a seed is scikit-learn's and NumPy's own sentence; whatever is true or false will
# do; and a table of text is refused in scikit-learn's words.
FREE = ("X", "random_state", "args", "kwargs", "data_home", "return_X_y", "download_if_missing")


def foreign(call, name):
    """The error of a call, unless it is a sentence of ours about a parameter."""
    try:
        call()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        known = isinstance(error, (ValueError, TypeError, OSError))
        ours = "skscalablegp" in place or "sklearn" in place
        named = any(text in str(error) for text in (name, *ALSO))
        if not (known and ours and named):
            return f"{type(error).__name__}: {error} ({place})"
    return None


def main():
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        # A set of our own, so that the calls are the same where the real ones are not at hand.
        (drawn := Path(folder) / "uci" / "drawn").mkdir(parents=True)
        np.savetxt(drawn / "data.csv.gz", np.column_stack([X, y]), delimiter=",")
        np.savetxt(drawn / "test_mask.csv.gz", np.eye(20, 2), fmt="%d", delimiter=",")
        os.environ["SKSCALABLEGP_DATA"] = folder
        print(f"{try_all()} calls")


def try_displays():
    """What displays compute from, and how they draw; returns how many calls there were."""
    calls = 0
    for name in inspection.__all__:
        display = getattr(inspection, name)
        for make in ("from_estimator", "from_predictions"):
            if not hasattr(display, make):
                continue
            made = getattr(display, make)
            usual = DRAWN | {"estimator": COMPARED} if name == "LeaderboardDisplay" else DRAWN
            known = {p: v for p, v in usual.items() if p in inspect.signature(made).parameters}
            for parameter in inspect.signature(made).parameters:
                if parameter in (*FREE, "name", "label"):
                    continue
                for wrong in WRONG:
                    calls += 1

                    def call(made=made, known=known, parameter=parameter, wrong=wrong):
                        made(**known | {parameter: wrong})
                        plt.close("all")

                    if error := foreign(call, parameter):
                        print(f"{name}.{make}({parameter}={wrong!r}): {error}"[:300])
    return calls


def try_all():
    """Prints what should not be; returns how many calls there were."""
    calls = try_displays()
    for module, (usual, uses) in USES.items():
        names = KERNELS if module is kernels else set(module.__all__) - NOT_CALLED
        for name in sorted(names):
            made, use = getattr(module, name), uses.get(name, usual)
            for parameter in inspect.signature(made).parameters:
                if parameter in FREE:
                    continue
                for wrong in WRONG:
                    calls += 1

                    def call(made=made, name=name, parameter=parameter, wrong=wrong, use=use):
                        thing = made(**GOOD.get(name, {}) | {parameter: wrong})
                        if use is not None:
                            use(thing)

                    if error := foreign(call, parameter):
                        print(f"{module.__name__}.{name}({parameter}={wrong!r}): {error}"[:300])
    return calls


if __name__ == "__main__":
    main()
