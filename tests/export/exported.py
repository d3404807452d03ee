"""Fitted models on a small table for the tests of exports."""

import warnings
from functools import cache

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skscalablegp as sk
from skscalablegp.kernels import Categorical, Columns, LowRankCategorical, SpectralMixture

RNG = np.random.RandomState(0)
UNITS, CENTRE = np.array([1.0, 10.0, 0.1]), np.array([0.0, 100.0, 5.0])
X = RNG.randn(90, 3) * UNITS + CENTRE
Y = 20 * (np.sin(X[:, 0]) + 0.1 * (X[:, 1] - 100) - 3 * (X[:, 2] - 5) + 0.2 * RNG.randn(90))
# Some of them lie far outside the table.
NEW = RNG.randn(23, 3) * 1.5 * UNITS + CENTRE

ARD = [1.0, 12.0, 0.2]
NOISE = WhiteKernel(0.05)
KERNELS = {
    "rbf": 2.0 * RBF(ARD) + NOISE,
    "matern12": Matern(ARD, nu=0.5) + NOISE,
    "matern32": 0.5 * Matern(ARD, nu=1.5) + NOISE,
    "matern52": Matern(ARD, nu=2.5) + NOISE,
    "matern-infinite": Matern(ARD, nu=np.inf) + NOISE,
    "rational": Columns(RationalQuadratic(1.5, 0.7), [0, 2]) + RBF(ARD) + NOISE,
    "sum": RBF(ARD) + 0.3 * Matern(ARD, nu=1.5) + ConstantKernel(0.5) + NOISE,
    "product": RBF(ARD) * Matern(ARD, nu=2.5) * 3.0 + NOISE,
    "noisy-product": (RBF(ARD) + NOISE) * (Matern(ARD, nu=1.5) + WhiteKernel(0.1)),
    "power": (RBF(ARD) + Matern(ARD, nu=1.5)) ** 1.5 + NOISE,
    "linear": Columns(DotProduct(0.5), [0]) + RBF(ARD) + NOISE,
    "periodic": Columns(ExpSineSquared(1.0, 3.0), 0) * RBF(ARD) + NOISE,
    "mixture": Columns(SpectralMixture(2), 0) * RBF(ARD) + NOISE,
}
SMOOTH = 1.5 * Matern(ARD, nu=1.5) + WhiteKernel(0.05)
SEPARABLE = 1.5 * RBF(ARD) + WhiteKernel(0.05)
ONE = {"small_table": "method", "random_state": 0}
FIXED = ONE | {"optimizer": None}


def exact(kernel, **settings):
    return sk.IterativeGPRegressor(kernel, optimizer=None, random_state=0, **settings)


def low_rank(first, most):
    return {"variance_rank": first, "max_variance_rank": most, "random_state": 0}


# One for each posterior that can be exported, and for each of its forms.
MODELS = {
    "exact": exact(SMOOTH),
    "exact-normalised": exact(SMOOTH, normalize_y=True),
    "pathwise": exact(SMOOTH, posterior="pathwise", dtype="float64", n_probes=8),
    "nearest": exact(SMOOTH, posterior="neighbors", solver="cg", solver_tol=1e-10, dtype="float64"),
    "features": sk.RFFRegressor(SMOOTH, n_components=40, **FIXED),
    "collapsed": sk.SGPRRegressor(SMOOTH, n_inducing=20, **FIXED),
    "inducing": sk.SVGPRegressor(SMOOTH, n_inducing=20, max_iter=20, **ONE),
    "student": sk.SVGPRegressor(SMOOTH, n_inducing=20, max_iter=20, likelihood="student_t", **ONE),
    "inducing-network": sk.SVGPRegressor(
        n_inducing=15, feature_extractor=(6, 2), max_iter=20, **ONE
    ),
    "deep": sk.SCGDDKLRegressor(feature_extractor=(8,), n_components=30, max_epochs=2, **ONE),
    "deep-linear": sk.SCGDDKLRegressor(
        1.0 * DotProduct(1.0), feature_extractor=(8,), max_epochs=2, **ONE
    ),
    "process": sk.QSGPRegressor(SMOOTH, basis="rows", optimizer=None, random_state=0),
    "chevron": sk.QSGPRegressor(
        SMOOTH, n_components=60, inference="stochastic", dtype="float64", max_iter=5, random_state=0
    ),
    "relevance": sk.QSRVMRegressor(SMOOTH, random_state=0),
    "experts": sk.PoERegressor(SMOOTH, expert_size=30, **FIXED),
    "nearest-experts": sk.PoERegressor(
        SMOOTH, expert_size=20, n_experts=2, combination="gpoe", **FIXED
    ),
    "committee": sk.PoERegressor(SMOOTH, expert_size=20, n_experts=3, combination="grbcm", **FIXED),
    "neighbours": sk.NNGPRegressor(SMOOTH, n_neighbors=8, dtype="float64", **FIXED),
    "grid": sk.KISSGPRegressor(SEPARABLE, grid_size=8, structure="product", **FIXED),
    "additive-grid": sk.KISSGPRegressor(SMOOTH, grid_size=12, structure="additive", **FIXED),
    "grid-network": sk.KISSGPRegressor(feature_extractor=[6, 2], max_epochs=5, grid_size=10, **ONE),
    "stand-in": sk.NNGPRegressor(SMOOTH, optimizer=None, random_state=0),
    "love-rows": sk.LOVEPredictor(exact(SMOOTH), **low_rank(5, 10)),
    "love-inducing": sk.LOVEPredictor(
        sk.SGPRRegressor(SMOOTH, n_inducing=30, **FIXED),
        **low_rank(4, 8),
    ),
    "love-features": sk.LOVEPredictor(
        sk.RFFRegressor(SMOOTH, n_components=40, **FIXED),
        **low_rank(4, 8),
    ),
    "love-grid": sk.LOVEPredictor(
        sk.KISSGPRegressor(SMOOTH, grid_size=12, structure="additive", solver="cg", **FIXED),
        **low_rank(4, 8),
    ),
}
POINTS = sk.SGPRRegressor(SMOOTH, n_inducing=20, **FIXED)
FEATURES = sk.RFFRegressor(SMOOTH, n_components=30, **FIXED)
NOISY_POINTS = sk.HeteroscedasticRegressor(POINTS, LinearRegression(), random_state=0)
# Estimators over others.
OVER = {
    "mean-function": sk.MeanFunctionRegressor(POINTS, LinearRegression(), random_state=0),
    "noise-model": NOISY_POINTS,
    "noise-of-a-pipeline": sk.HeteroscedasticRegressor(
        make_pipeline(
            StandardScaler(),
            sk.SGPRRegressor(Matern(nu=1.5) + NOISE, n_inducing=20, **FIXED),
        ),
        random_state=0,
    ),
    "stack": sk.StackedGPRegressor(
        [("points", POINTS), ("features", FEATURES), ("line", BayesianRidge())], random_state=0
    ),
    "stack-of-noise": sk.StackedGPRegressor(
        [("noise", NOISY_POINTS), ("features", FEATURES)], random_state=0
    ),
    "automatic": sk.AutoGPRegressor(
        ["linear", ("points", POINTS), ("features", FEATURES)], random_state=0
    ),
}
CATEGORIES = {
    "exact": exact(Columns(RBF(1.0), 0) * Columns(Categorical(0.4), 1) + NOISE),
    "low-rank": exact(Columns(RBF(1.0), 0) * Columns(LowRankCategorical(3), 1) + NOISE),
    "neighbours": sk.NNGPRegressor(
        Columns(RBF(1.0), 0) * Columns(LowRankCategorical(3), 1) + NOISE, n_neighbors=8, **FIXED
    ),
}


@cache
def fitted(name):
    """The model of this name, fitted once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(MODELS.get(name, OVER.get(name))).fit(X, Y)


def marked_slow(name, few):
    """A parameter of a test that is slow but for a few."""
    return pytest.param(name, marks=[] if name in few else pytest.mark.slow)
