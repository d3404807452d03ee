"""Cases of the fuzz suite: an estimator, a kernel, a table in some container, and the assertions.

Every case ends in finite predictions with positive standard deviations, or in an error of this
package or of scikit-learn's validation that says what to do. Afterwards the same estimator fits a
good table.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse
import sklearn
import torch
from hypothesis import strategies as st
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Kernel,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

import skscalablegp as sk
from skscalablegp.core import PARAMETERS
from skscalablegp.likelihoods import StudentT

# Settings that keep a fit of some rows to tenths of a second.
NETWORK = {"feature_extractor": (4,), "n_components": 8, "max_epochs": 2}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "iterative": lambda: sk.IterativeGPRegressor(max_iter=8),
    "iterative-cg": lambda: sk.IterativeGPRegressor(solver="cg", max_iter=3, n_probes=4),
    "iterative-pathwise": lambda: sk.IterativeGPRegressor(
        solver="block_cg", posterior="pathwise", max_iter=2, n_probes=8
    ),
    "rrcg": lambda: sk.RRCGRegressor(truncation="exponential", max_iter=3, n_probes=2),
    "rff": lambda: sk.RFFRegressor(n_components=12, max_iter=4),
    "ssrff": lambda: sk.SSRFFRegressor(min_components=8, component_step=4, max_iter=3),
    "kissgp": lambda: sk.KISSGPRegressor(grid_size=10, max_iter=4),
    "love": lambda: sk.LOVEPredictor(sk.KISSGPRegressor(grid_size=10, max_iter=4)),
    "love-rff": lambda: sk.LOVEPredictor(sk.RFFRegressor(n_components=12, max_iter=3)),
    "sgpr": lambda: sk.SGPRRegressor(n_inducing=5, max_iter=4),
    "svgp": lambda: sk.SVGPRegressor(n_inducing=5, max_iter=4),
    "svgp-student": lambda: sk.SVGPRegressor(likelihood=StudentT(4), n_inducing=5, max_iter=4),
    "svgp-classes": lambda: sk.SVGPClassifier(n_inducing=5, max_iter=4),
    "qsgp": lambda: sk.QSGPRegressor(n_components=16, max_iter=5),
    "qsgp-stochastic": lambda: sk.QSGPRegressor(
        inference="stochastic", n_components=16, component_batch_size=8, max_iter=4
    ),
    "qsgp-classes": lambda: sk.QSGPClassifier(n_components=16, max_iter=5),
    "qsrvm": lambda: sk.QSRVMRegressor(max_iter=6),
    "scgd": lambda: sk.SCGDDKLRegressor(**NETWORK),
    "minimax": lambda: sk.MinimaxDKLRegressor(**NETWORK),
    "bsgd": lambda: sk.BSGDDKLRegressor(**NETWORK),
    "nngp": lambda: sk.NNGPRegressor(n_neighbors=5, subset_size=8, n_centers=8, max_iter=4),
    "poe": lambda: sk.PoERegressor(expert_size=6, max_iter=4),
    "poe-grbcm": lambda: sk.PoERegressor(combination="grbcm", expert_size=6, max_iter=3),
}

SCALES = [1e-30, 1e-8, 1e-3, 1e3, 1e8, 1e30] * 3 + [1e-300, 1e-160, 1e100, 1e155, 1e200, 1e300]
CONTAINERS = (
    "array",
    "fortran",
    "float32",
    "float16",
    "int64",
    "object",
    "list",
    "view",
    "read only",
    "pandas",
    "polars",
    "sparse",
    "torch",
    "strict",
)


@dataclass(frozen=True)
class Case:
    """One fit, and what it is given."""

    name: str
    settings: dict[str, Any]
    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    noise_variance: Any
    container: str
    dispatch: bool

    def __repr__(self) -> str:
        np.set_printoptions(threshold=200, linewidth=120)
        return (
            f"Case({self.name!r}, {self.settings!r},\nX={self.X!r},\ny={self.y!r},\n"
            f"X_new={self.X_new!r},\nnoise_variance={self.noise_variance!r}, "
            f"container={self.container!r}, dispatch={self.dispatch})"
        )


# ---------------------------------------------------------------- strategies


def positive() -> st.SearchStrategy[float]:
    """A hyperparameter: usually sensible, now and then extreme, zero or negative."""
    usual = st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0])
    return st.one_of(usual, usual, usual, st.sampled_from([1e-5, 1e5, 1e-100, 1e100, 0.0, -1.0]))


@st.composite
def leaves(draw: Any) -> Kernel:
    value = draw(positive())
    bounds = draw(st.sampled_from(["fixed", (1e-5, 1e5), (1e-5, 1e5)]))
    nu = draw(st.sampled_from([0.5, 1.5, 2.5, np.inf, 0.7]))
    make = draw(
        st.sampled_from(
            [
                lambda: RBF(value, bounds),
                lambda: Matern(value, bounds, nu=nu),
                lambda: RationalQuadratic(value, 1.0, bounds, bounds),
                lambda: ConstantKernel(value, bounds),
                lambda: WhiteKernel(value, bounds),
                lambda: DotProduct(value, bounds),
                lambda: ExpSineSquared(1.0, value, bounds, bounds),
                lambda: PairwiseKernel(metric="laplacian"),
            ]
        )
    )
    return make()


def kernels() -> st.SearchStrategy[Kernel | None]:
    def grown(inner: st.SearchStrategy[Kernel]) -> st.SearchStrategy[Kernel]:
        return st.one_of(
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda a, b: a * b, inner, inner),
            st.builds(lambda a: Exponentiation(a, 2), inner),
        )

    return st.one_of(st.none(), st.none(), st.recursive(leaves(), grown, max_leaves=4))


@st.composite
def tables(draw: Any) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    X = rng.uniform(-2, 2, (n, d))
    kind = draw(
        st.sampled_from(
            ["plain"] * 4 + ["constant", "ties", "scale", "column", "offset", "outlier", "bad"]
        )
    )
    if kind == "constant":
        X[:, 0] = draw(st.sampled_from([0.0, 1.0, -1e10]))
    elif kind == "ties":
        X = np.round(X)
    elif kind == "scale":
        X = X * draw(st.sampled_from(SCALES))
    elif kind == "column":
        X[:, 0] *= draw(st.sampled_from(SCALES))
    elif kind == "offset":
        X = X + draw(st.sampled_from([1e6, -1e9, 1e15]))
    elif kind == "outlier":
        X[0, 0] = draw(st.sampled_from([1e6, -1e20, 1e155]))
    elif kind == "bad":
        X[-1, -1] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return X, rng


@st.composite
def real_targets(draw: Any, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(X)
    with np.errstate(all="ignore"):
        f = np.sin(np.nan_to_num(X[:, 0] / (np.abs(X[:, 0]).max() or 1.0)) * 4)
    y = f + 0.1 * rng.standard_normal(n)
    kind = draw(
        st.sampled_from(
            ["plain"] * 4
            + ["constant", "scale", "offset", "several", "counts", "outlier", "bad", "text"]
        )
    )
    if kind == "constant":
        y = np.full(n, draw(st.sampled_from([0.0, 5.0, -1e12])))
    elif kind == "scale":
        y = y * draw(st.sampled_from(SCALES))
    elif kind == "offset":
        y = y + draw(st.sampled_from([300.0, 1e6, -1e12]))
    elif kind == "several":
        y = np.column_stack([y, 1e3 * y[::-1]])
    elif kind == "counts":
        y = rng.poisson(3, n)
    elif kind == "outlier":
        y[0] = draw(st.sampled_from([1e6, -1e20, 1e155]))
    elif kind == "bad":
        y[-1] = draw(st.sampled_from([np.nan, np.inf]))
    elif kind == "text":
        y = np.array([f"{v:.1f} m" for v in y])
    return y


@st.composite
def labels(draw: Any, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = len(X)
    codes = rng.integers(0, draw(st.sampled_from([1, 2, 2, 2, 3, 5])), n)
    kind = draw(st.sampled_from(["int", "int", "text", "bool", "float", "gap", "real", "nan"]))
    if kind == "text":
        return np.array(["a", "bb", "c", "d", "e"])[codes]
    if kind == "bool":
        return codes > 0
    if kind == "float":
        return codes.astype(float)
    if kind == "gap":
        return codes * 10_000_000_000 - 7
    if kind == "real":
        return codes + 0.5 * rng.standard_normal(n)
    if kind == "nan":
        return np.where(codes == 0, np.nan, codes)
    return codes


@st.composite
def cases(draw: Any) -> Case:
    """A case whose parts are drawn one by one; most of them are sensible at a time."""
    name = draw(st.sampled_from(sorted(ESTIMATORS)))
    X, rng = draw(tables())
    y = draw(labels(X, rng) if name.endswith("classes") else real_targets(X, rng))
    model, settings = ESTIMATORS[name](), {}
    params = model.get_params(deep=False)
    if "kernel" in params:
        settings["kernel"] = draw(kernels())
    if "alpha" in params and draw(st.booleans()):
        settings["alpha"] = draw(
            st.sampled_from([0.0, 1e-300, 1e-6, 0.1, 1e30, 1e200, rng.uniform(0.01, 1, len(X))])
        )
    if "normalize_y" in params:
        settings["normalize_y"] = draw(st.sampled_from(["auto", "auto", True, False]))
    if draw(st.integers(0, 4)) == 0:
        settings["dtype"] = "float32"
    noise_variance = None
    if not name.endswith("classes") and draw(st.integers(0, 4)) == 0:
        noise_variance = draw(
            st.sampled_from([0.0, 0.1, 1e-300, 1e200, rng.uniform(0.01, 1, len(X))])
        )
    X_new = rng.uniform(-3, 3, (3, X.shape[1]))
    far = draw(st.sampled_from(["near"] * 4 + ["rows", "far", "extreme"]))
    if far == "rows":
        X_new = X[:3].copy()
    elif far == "far":
        X_new *= 1e6
    elif far == "extreme":
        X_new *= draw(st.sampled_from(SCALES))
    container = draw(st.sampled_from(("array",) * 8 + CONTAINERS))
    dispatch = container in ("torch", "strict") and draw(st.booleans())
    return Case(name, settings, X, y, X_new, noise_variance, container, dispatch)


def contained(X: np.ndarray, container: str) -> Any:
    """A float64 table in a container of some kind."""
    if container in ("float32", "float16", "int64", "object"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return X.astype(container)
    if container == "fortran":
        return np.asfortranarray(X)
    if container == "list":
        return X.tolist()
    if container == "view":
        return np.repeat(X, 2, axis=0)[::2, ::-1][:, ::-1]
    if container == "read only":
        X = X.copy()
        X.flags.writeable = False
        return X
    if container == "pandas":
        return pd.DataFrame(X, columns=[f"c{k}" for k in range(X.shape[1])])
    if container == "polars":
        return pl.DataFrame(X, schema=[f"c{k}" for k in range(X.shape[1])])
    if container == "sparse":
        return scipy.sparse.csr_array(np.nan_to_num(X))
    if container == "torch":
        return torch.tensor(X)
    if container == "strict":
        import array_api_strict

        return array_api_strict.asarray(X)
    return X


# ---------------------------------------------------------------- what must hold


def check_answers(model: Any, X_new: Any, m: int, positive: bool) -> None:
    """All predictions of a fitted model are finite."""
    if hasattr(model, "predict_proba"):
        P = model.predict_proba(X_new)
        assert np.isfinite(P).all() and (P >= 0).all(), P
        np.testing.assert_allclose(P.sum(1), 1, rtol=1e-6)
        model.predict(X_new)
        return
    mean, std = model.predict(X_new, return_std=True)
    assert len(mean) == m and np.isfinite(mean).all(), f"means {mean}"
    assert np.isfinite(std).all() and (std >= 0).all(), f"standard deviations {std}"
    assert not positive or (std > 0).all(), f"standard deviations {std}"
    latent = model.predict_std(X_new, include_noise=False)
    assert np.isfinite(latent).all() and (latent >= 0).all(), f"latent deviations {latent}"
    ends = model.predict_interval(X_new)
    assert np.isfinite(ends).all() and (ends[..., 0] <= ends[..., 1]).all(), f"intervals {ends}"
    if getattr(model, "combination", "poe") not in ("bcm", "rbcm", "grbcm"):
        covariance = model.predict(X_new, return_cov=True)[1]
        assert np.isfinite(covariance).all(), f"covariance {covariance}"
        samples = model.sample_y(X_new, n_samples=2)
        assert np.isfinite(samples).all(), f"samples {samples}"


def good_table(classes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (12, 2))
    f = np.sin(X).sum(1)
    return X, (f > np.median(f)).astype(int) if classes else f, rng.uniform(-2, 2, (2, 2))


# Words of a library below, never of ours.
_FOREIGN = (
    "linalg.",
    "lapack",
    "DefaultCPUAllocator",
    "shape mismatch",
    "Expected all tensors",
    "must be broadcast",
    "size of tensor",
    "cannot convert float",
    "max_jitter",
    "object has no attribute",
    "division by zero",
    "math domain",
    "probabilities contain NaN",
)
_OURS = (os.path.join("skscalablegp", ""), os.path.join("sklearn", "utils", ""))


def absent_settings(text: str, model: Any) -> set[str]:
    """Parameters of some estimator that a message names, but this one does not have.

    Those of objects that the message shows, such as a kernel's, are not meant, nor are those
    of another estimator that it recommends.
    """
    while text != (text := re.sub(r"\w+\([^()]*\)", "", text)):
        pass
    text = re.split(r"\bor use \w+(?:Regressor|Classifier)", text)[0]
    own = {name.rpartition("__")[2] for name in model.get_params()}
    named = set(re.findall(r"\b([a-z]\w*)=", text)) | set(re.findall(r"\b[a-z]+_[a-z_]+\b", text))
    return (named & set(PARAMETERS)) - own


def is_ours(error: BaseException, model: Any) -> bool:
    """Whether an error was made for people who call an estimator."""
    if not isinstance(error, ValueError | TypeError | MemoryError):
        return False
    if isinstance(error, np.linalg.LinAlgError):
        return False
    text = str(error)
    if len(text) < 20 or any(word.lower() in text.lower() for word in _FOREIGN):
        return False
    if absent_settings(text, model):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return any(part in last for part in _OURS) or "sklearn" in last


def outcome(case: Case) -> str:
    """The result of a case: "predicts", or an error of this package; else an AssertionError."""
    model = ESTIMATORS[case.name]()
    classes = hasattr(model, "predict_proba")
    plain = model.get_params(deep=False)
    model.set_params(random_state=0, **case.settings)
    end = "predicts"
    with warnings.catch_warnings(), sklearn.config_context(array_api_dispatch=case.dispatch):
        warnings.simplefilter("ignore")
        try:
            known = {}
            if (
                case.noise_variance is not None
                and "noise_variance" in inspect.signature(model.fit).parameters
            ):
                known = {"noise_variance": case.noise_variance}
            X_new = contained(case.X_new, case.container)
            y = case.y
            if case.dispatch and y.dtype.kind in "fi":
                y = contained(y, case.container)
            model.fit(contained(case.X, case.container), y, **known)
            noisy = case.settings.get("kernel") is None and "likelihood" not in str(model)
            check_answers(model, X_new, len(case.X_new), noisy)
        except AssertionError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if not is_ours(error, model):
                raise AssertionError(f"foreign: {type(error).__name__}: {error}") from error
            end = f"{type(error).__name__}: {str(error)[:60]}"
        model.set_params(**plain, **{"random_state": 0} if "random_state" not in plain else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X, y, X_new = good_table(classes)
        check_answers(model.set_params(random_state=0).fit(X, y), X_new, 2, not classes)
    return end
