"""The fits whose results are recorded: every row of the contract, and others that reach real paths.

All settings are chosen such that rounding does not grow: few steps, double precision unless single
precision is what is recorded, and solves to a small residual. ``write.py --measure`` shows how far
each fit moves with rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from contracts.test_contract import ROWS
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel
from sklearn.linear_model import Ridge

import skscalablegp as s
from skscalablegp.training import QuasiNewton
from skscalablegp.truncation import ExponentialTruncation

# The memory of a machine must choose nothing.
MEMORY = 4_000_000_000


@dataclass(frozen=True)
class Fit:
    """One fit that is recorded.

    Parameters
    ----------
    name : str
    estimator : estimator
    n, d : int
        Numbers of rows and columns.
    target : {"one", "two", "classes", "three classes"}
    given : mapping
        Further arguments of ``fit``, made of the rows: a function of X for each.
    repeats : int
        How often each row is written, with targets of its own.
    single : bool
        Whether products are in single precision, and numbers hold to 1e-5.
    keyed : bool
        Whether the division of rows follows from the bits of the table, so that numbers which are
        off in their last digits are another table.
    slow : bool
        Whether `make test` leaves it out.
    """

    name: str
    estimator: Any
    n: int = 24
    d: int = 2
    target: str = "one"
    given: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    repeats: int = 1
    single: bool = False
    keyed: bool = False
    slow: bool = False

    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, the targets and ten new rows, the same to the last digit on every machine."""
        rng = np.random.default_rng(self.n)
        X = rng.uniform(-2, 2, (self.n // self.repeats, self.d)).repeat(self.repeats, 0)
        new = rng.uniform(-2.2, 2.2, (10, self.d))
        f = np.sin(2 * X[:, 0]) + 0.5 * X.sum(1) + 0.3 * X[:, 0] * X[:, -1]
        f += 0.1 * rng.standard_normal(len(f))
        # Machines compute a sine and a power in their own ways: its last digits are replaced.
        # Rounded numbers alone would do, but models look for them.
        f = f.round(6) + 1e-6 * rng.uniform(size=len(f))
        if self.target == "two":
            return X, np.column_stack([f, 0.5 * f * f - X[:, 0]]), new
        if "classes" in self.target:
            cuts = np.quantile(f, [0.5] if self.target == "classes" else [0.3, 0.7])
            return X, np.searchsorted(cuts, f), new
        return X, f, new

    def fitted(self, change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> tuple[Any, Any]:
        """The fitted model, and the new rows; `change` is applied to all numbers it is given."""
        X, y, new = self.table()
        model = clone(self.estimator)
        shared = {"random_state": 0, "device": "cpu", "memory_budget": MEMORY}
        model.set_params(**{k: v for k, v in shared.items() if k in model.get_params(deep=False)})
        y = y if "classes" in self.target else change(y)
        given = {name: change(make(X)) for name, make in self.given.items()}
        return model.fit(change(X), y, **given), change(new)


def _contract(row: Any) -> Fit:
    kind = "classes" if row.classifier else "one"
    flags = {"single": "32" in row.name, "keyed": row.name.startswith("auto")}
    return Fit(f"contract-{row.name}", row.estimator, target=kind, **flags)


def _weights(X: np.ndarray) -> np.ndarray:
    return np.arange(len(X)) % 3 + 1.0


def _noise(X: np.ndarray) -> np.ndarray:
    return 0.01 * (1 + np.arange(len(X)) % 4)


KERNEL = ConstantKernel(1.5) * RBF([0.9, 1.4]) + DotProduct(0.4) + WhiteKernel(0.02)
# Solves to a small residual, whose products sum in other orders, and steps that solves determine.
SOLVED: dict[str, Any] = {"optimizer": "adam", "max_iter": 2, "solver_tol": 1e-8}
ROUGH = ConstantKernel(1.5) * Matern([0.9, 1.4, 1.1], nu=1.5) + WhiteKernel(0.02)
# The same for all columns: single directions in which the likelihood is flat would move.
SMOOTH = ConstantKernel(1.5) * Matern(1.1, nu=1.5) + WhiteKernel(0.05)
# The Fisher information, with which the default begins, comes from differences of kernels, and has
# eight digits only. Other fits use it, and are held to fewer digits.
STEADY = QuasiNewton(information_rows=0, compare_starts=False)
METHOD: dict[str, Any] = {"small_table": "method"}
LARGE: dict[str, Any] = {"slow": True, "d": 3}

FITS = [
    # ---------------------------------------------------------------- linear solves
    Fit("iterative-60", s.IterativeGPRegressor(optimizer=STEADY, max_iter=4), 60),
    Fit("iterative-60-fixed", s.IterativeGPRegressor(KERNEL, optimizer=None), 60, target="two"),
    Fit(
        "iterative-150-weights",
        s.IterativeGPRegressor(optimizer=STEADY, max_iter=4),
        150,
        given={"sample_weight": _weights, "noise_variance": _noise},
    ),
    Fit(
        "iterative-300-repeats",
        s.IterativeGPRegressor(SMOOTH, optimizer=STEADY, max_iter=3),
        300,
        repeats=3,
    ),
    Fit(
        "iterative-300-cg",
        s.IterativeGPRegressor(
            SMOOTH, solver="cg", solver_tol=1e-8, optimizer="adam", max_iter=2, n_probes=4
        ),
        300,
    ),
    Fit(
        "iterative-300-ap",
        s.IterativeGPRegressor(
            SMOOTH, solver="ap", solver_tol=1e-8, optimizer="adam", max_iter=2, n_probes=4
        ),
        300,
    ),
    Fit(
        "iterative-300-sdd",
        s.IterativeGPRegressor(KERNEL, solver="sdd", optimizer=None, solver_tol=1e-3),
        300,
    ),
    Fit(
        "iterative-600-pathwise",
        s.IterativeGPRegressor(
            SMOOTH,
            solver="cg",
            posterior="pathwise",
            solver_tol=1e-8,
            optimizer="adam",
            max_iter=2,
            n_probes=8,
        ),
        600,
    ),
    Fit(
        "iterative-2500-subset",
        s.IterativeGPRegressor(SMOOTH, optimizer=STEADY, subset_size=300, max_iter=2),
        2_500,
        **LARGE,
    ),
    Fit(
        "iterative-4000-float32",
        s.IterativeGPRegressor(ROUGH, optimizer=None, dtype="float32"),
        4_000,
        single=True,
        **LARGE,
    ),
    Fit(
        "iterative-6000-cg",
        s.IterativeGPRegressor(ROUGH, optimizer=None, solver="cg", posterior="neighbors"),
        6_000,
        single=True,
        **LARGE,
    ),
    Fit(
        "rrcg-150",
        s.RRCGRegressor(
            SMOOTH,
            truncation=ExponentialTruncation(0.3, min_iter=5),
            optimizer="adam",
            max_iter=2,
            **METHOD,
        ),
        150,
    ),
    Fit(
        "rrcg-3000",
        s.RRCGRegressor(SMOOTH, optimizer="adam", subset_size=None, max_iter=2, n_draws=2),
        3_000,
        **LARGE,
    ),
    # ---------------------------------------------------------------- experts and neighbours
    Fit("poe-150", s.PoERegressor(expert_size=30, max_iter=2, **METHOD), 150),
    Fit(
        "poe-600-grbcm",
        s.PoERegressor(
            SMOOTH, combination="grbcm", partition="random", expert_size=100, optimizer=None
        ),
        600,
    ),
    Fit(
        "poe-3000",
        s.PoERegressor(SMOOTH, optimizer=STEADY, expert_size=200, max_iter=2),
        3_000,
        **LARGE,
    ),
    Fit(
        "nngp-300",
        s.NNGPRegressor(n_neighbors=12, max_iter=2, subset_size=60, **METHOD),
        300,
    ),
    Fit(
        "nngp-300-repeats",
        s.NNGPRegressor(KERNEL, n_neighbors=12, max_iter=2, **METHOD),
        300,
        repeats=2,
    ),
    Fit(
        "nngp-600-vecchia",
        s.NNGPRegressor(
            SMOOTH,
            n_inducing=15,
            objective="vecchia",
            n_neighbors=10,
            optimizer=None,
            subset_size=100,
            **METHOD,
        ),
        600,
    ),
    Fit(
        "nngp-3000",
        s.NNGPRegressor(SMOOTH, optimizer=STEADY, n_neighbors=20, max_iter=2, subset_size=200),
        3_000,
        **LARGE,
    ),
    Fit("nngp-12000", s.NNGPRegressor(ROUGH, optimizer=None), 12_000, **LARGE),
    # ---------------------------------------------------------------- random features
    Fit("rff-150", s.RFFRegressor(n_components=40, optimizer=STEADY, max_iter=4, **METHOD), 150),
    Fit(
        "rff-600-weights",
        s.RFFRegressor(n_components=60, optimizer=STEADY, max_iter=4, **METHOD),
        600,
        given={"sample_weight": _weights},
    ),
    Fit(
        "rff-12000", s.RFFRegressor(optimizer=STEADY, n_components=100, max_iter=2), 12_000, **LARGE
    ),
    Fit(
        "ssrff-150",
        s.SSRFFRegressor(min_components=20, component_step=10, max_iter=2, **METHOD),
        150,
    ),
    Fit(
        "ssrff-3000",
        s.SSRFFRegressor(min_components=60, component_step=30, max_iter=2),
        3_000,
        **LARGE,
    ),
    # ---------------------------------------------------------------- sampled functions
    Fit("qsgp-300", s.QSGPRegressor(n_components=64, max_iter=2, dtype="float64"), 300),
    Fit(
        "qsgp-600-stochastic",
        s.QSGPRegressor(
            inference="stochastic",
            n_components=128,
            component_batch_size=32,
            n_dense=4,
            max_iter=3,
            dtype="float64",
        ),
        600,
    ),
    Fit(
        "qsgp-600-laplace",
        s.QSGPRegressor(likelihood="laplace", n_components=64, max_iter=2, dtype="float64"),
        600,
    ),
    Fit(
        "qsgp-300-classes",
        s.QSGPClassifier(n_components=64, max_iter=2, dtype="float64"),
        300,
        target="three classes",
    ),
    Fit(
        "qsgp-12000",
        s.QSGPRegressor(
            dtype="float64",
            inference="stochastic",
            n_components=128,
            component_batch_size=32,
            max_iter=3,
        ),
        12_000,
        **LARGE,
    ),
    Fit("qsrvm-300", s.QSRVMRegressor(n_components=64, max_iter=3, dtype="float64"), 300),
    # ---------------------------------------------------------------- inducing points
    Fit("svgp-150", s.SVGPRegressor(n_inducing=20, max_iter=3, **METHOD), 150),
    Fit(
        "svgp-600-student",
        s.SVGPRegressor(SMOOTH, n_inducing=20, likelihood="student_t", batch_size=200, max_iter=4),
        600,
    ),
    Fit(
        "svgp-600-network",
        s.SVGPRegressor(feature_extractor=[8, 4], n_inducing=20, batch_size=200, max_iter=4),
        600,
    ),
    Fit(
        "svgp-600-classes",
        s.SVGPClassifier(n_inducing=20, batch_size=200, max_iter=4),
        600,
        target="three classes",
    ),
    Fit("svgp-12000", s.SVGPRegressor(SMOOTH, n_inducing=60, max_iter=4), 12_000, **LARGE),
    Fit("sgpr-600", s.SGPRRegressor(n_inducing=30, max_iter=3), 600),
    Fit(
        "sgpr-3000-weights",
        s.SGPRRegressor(
            SMOOTH, n_inducing=60, max_iter=2, inducing="kmeans++", optimize_inducing=True
        ),
        3_000,
        given={"sample_weight": _weights},
        **LARGE,
    ),
    # ---------------------------------------------------------------- grids
    Fit(
        "kissgp-150-additive",
        s.KISSGPRegressor(grid_size=12, structure="additive", max_iter=2),
        150,
    ),
    Fit(
        "kissgp-300-network",
        s.KISSGPRegressor(feature_extractor=[8, 1], grid_size=20, max_epochs=2, max_iter=2),
        300,
    ),
    Fit(
        "kissgp-600-cg",
        s.KISSGPRegressor(grid_size=12, solver="cg", structure="product", max_iter=2),
        600,
    ),
    Fit("kissgp-3000", s.KISSGPRegressor(grid_size=16, max_iter=2), 3_000, 2, slow=True),
    Fit(
        "love-600",
        s.LOVEPredictor(s.KISSGPRegressor(grid_size=12, solver="cg", max_iter=2), variance_rank=20),
        600,
    ),
    # ---------------------------------------------------------------- deep kernels
    Fit("scgd-150", s.SCGDDKLRegressor(feature_extractor=(8,), n_components=50, max_epochs=2), 150),
    Fit(
        "minimax-150",
        s.MinimaxDKLRegressor(feature_extractor=(8,), n_components=50, max_epochs=2),
        150,
    ),
    Fit(
        "bsgd-150-neighbours",
        s.BSGDDKLRegressor(
            feature_extractor=(8,), n_components=50, max_epochs=2, batches="neighbours"
        ),
        150,
    ),
    Fit(
        "scgd-6000",
        s.SCGDDKLRegressor(feature_extractor=(16,), n_components=100, max_epochs=1),
        6_000,
        **LARGE,
    ),
    # ---------------------------------------------------------------- models of models
    Fit(
        "heteroscedastic-300",
        s.HeteroscedasticRegressor(s.PoERegressor(expert_size=100, max_iter=2)),
        300,
    ),
    Fit(
        "mean-function-300",
        s.MeanFunctionRegressor(s.SGPRRegressor(n_inducing=20, max_iter=2), Ridge(), n_folds=2),
        300,
    ),
    Fit(
        "stacked-300",
        s.StackedGPRegressor(
            [("features", s.RFFRegressor(n_components=30, max_iter=2)), ("line", Ridge())]
        ),
        300,
    ),
    Fit("auto-320", s.AutoGPRegressor(), 320, slow=True),
    Fit(
        "auto-3000",
        s.AutoGPRegressor(
            [
                "linear",
                ("points", s.SVGPRegressor(n_inducing=30, max_iter=3)),
                ("features", s.RFFRegressor(n_components=40, max_iter=2)),
            ]
        ),
        3_000,
        **LARGE,
    ),
    Fit(
        "auto-300-classes",
        s.AutoGPClassifier(["linear", ("points", s.SVGPClassifier(n_inducing=12, max_iter=3))]),
        300,
        target="three classes",
    ),
]

ALL = [*map(_contract, ROWS), *FITS]
