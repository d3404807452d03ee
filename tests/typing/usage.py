"""Typical uses, for a type checker to read: ``make typecheck``. Nothing runs this file."""

from typing import Any, assert_type

import numpy as np

import skscalablegp
from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    LOVEPredictor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.datasets import fetch_uci
from skscalablegp.gradients import PathwiseGradient
from skscalablegp.inspection import IntervalCalibrationDisplay, TrainingDisplay
from skscalablegp.kernels import Columns
from skscalablegp.likelihoods import StudentT
from skscalablegp.metrics import coverage_scorer, nlpd, predict_interval, predict_std
from skscalablegp.preconditioners import Nystrom
from skscalablegp.priors import LogNormal
from skscalablegp.solvers import CG
from skscalablegp.training import Adam, FitReport, TrainingStep
from skscalablegp.truncation import ExponentialTruncation


def regression(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    gp = IterativeGPRegressor(
        solver=CG(preconditioner=Nystrom(50)),
        gradient=PathwiseGradient(),
        optimizer=Adam(),
        priors={"k2__noise_level": LogNormal(-3.0, 1.0)},
        max_seconds=10.0,
    )
    assert_type(gp.fit(X, y), IterativeGPRegressor)
    report = gp.fit_report_
    text: str = str(report)
    samples: np.ndarray = gp.sample_y(X, n_samples=3, random_state=0)
    interval: np.ndarray = gp.predict_interval(X, 0.9)
    std: np.ndarray = gp.predict_std(X, include_noise=False)
    return np.concatenate([samples, interval, std[:, None]], axis=1) if text else std


def classification(X: np.ndarray, labels: np.ndarray) -> np.ndarray:
    assert_type(SVGPClassifier().fit(X, labels), SVGPClassifier)
    return SVGPClassifier().fit(X, labels).predict_proba(X)


def around(X: np.ndarray, y: np.ndarray) -> None:
    LOVEPredictor(IterativeGPRegressor()).fit(X, y)
    HeteroscedasticRegressor(SVGPRegressor(likelihood=StudentT(4.0))).fit(X, y).predict(X)
    skscalablegp.RRCGRegressor(truncation=ExponentialTruncation(0.1)).fit(X, y)


def stop_early(step: TrainingStep) -> bool:
    return step.seconds > 5 and bool(np.isfinite(step.objective))


def with_callback(X: Any, y: Any) -> FitReport:
    report: FitReport = IterativeGPRegressor(callbacks=stop_early).fit(X, y).fit_report_
    return report


def scores(model: IterativeGPRegressor, X: np.ndarray, y: np.ndarray) -> list[Any]:
    mean, std = model.predict(X, return_std=True)
    assert_type(predict_std(model, X), np.ndarray)
    width: np.ndarray = np.diff(predict_interval(model, X, 0.9), axis=-1)
    return [nlpd(y, mean, std), coverage_scorer(0.9)(model, X, y), width]


def pictures(model: IterativeGPRegressor, X: np.ndarray, y: np.ndarray) -> None:
    assert_type(TrainingDisplay.from_estimator(model), TrainingDisplay)
    display = IntervalCalibrationDisplay.from_estimator(model, X, y, n_bins=10)
    display.plot(kind="pit")


def data() -> Any:
    return fetch_uci("yacht"), Columns
