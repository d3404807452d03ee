"""Boosted trees of CatBoost and LightGBM, where these packages are installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

BOOSTERS = ("catboost", "lightgbm")
# Settings that keep a fit from writing to the screen or the disk.
_QUIET = {
    "catboost": {"verbose": False, "allow_writing_files": False},
    "lightgbm": {"verbose": -1},
}


def required(name: str) -> Any:
    """A package; raises an ImportError that says what to do if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(
            f"members: {name!r} needs the package {name}: pip install {name}, or leave the member "
            "out."
        ) from None


def booster(name: str, kind: str, **settings: Any) -> Any:
    """An estimator by the name of its package and of its class."""
    return getattr(required(name), kind)(**_QUIET[name], **settings)


class Booster(BaseEstimator):
    """An estimator of one of the packages, with categories in the form that the package expects.

    Parameters
    ----------
    package, kind : str
        The package and the class.
    random_state : int, RandomState instance or None, default=None
    categorical_features : list of int or None, default=None
        Columns that hold codes of categories; -1 is a missing one.

    Attributes
    ----------
    trees_ : estimator
    """

    def __init__(
        self, package: str, kind: str, random_state: Any = None, categorical_features: Any = None
    ):
        self.package, self.kind, self.random_state = package, kind, random_state
        self.categorical_features = categorical_features

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Booster:
        """Fit the trees."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.trees_ = booster(self.package, self.kind, random_state=seed, **self._settings())
        told = {} if sample_weight is None else {"sample_weight": sample_weight}
        if self.categorical_features:
            name = {"catboost": "cat_features", "lightgbm": "categorical_feature"}[self.package]
            told[name] = self.categorical_features
        self.trees_.fit(self._table(X), y, **told)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """What the trees predict."""
        check_is_fitted(self)
        return np.asarray(self.trees_.predict(self._table(X)))

    def _settings(self) -> dict[str, Any]:
        return {}

    def _table(self, X: np.ndarray) -> np.ndarray:
        """The columns as the package wants its categories."""
        if not self.categorical_features:
            return X
        codes = X[:, self.categorical_features]
        if self.package == "catboost":  # which takes whole numbers, and no floats
            table = X.astype(object)
            table[:, self.categorical_features] = codes.astype(np.int64)
        else:
            table = X.copy()
            table[:, self.categorical_features] = np.where(codes < 0, np.nan, codes)
        return table


class BoosterRegressor(RegressorMixin, Booster):
    """A regressor of one of the packages."""


class BoosterClassifier(ClassifierMixin, Booster):
    """A classifier of one of the packages."""

    @property
    def classes_(self) -> np.ndarray:
        """The labels."""
        return np.asarray(self.trees_.classes_)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes."""
        check_is_fitted(self)
        return np.asarray(self.trees_.predict_proba(self._table(X)))


class CatBoost(BoosterRegressor):
    """CatBoost's regressor with standard deviations: a normal distribution in each leaf.

    Parameters
    ----------
    random_state : int, RandomState instance or None, default=None
    categorical_features : list of int or None, default=None

    References
    ----------
    A. Malinin, L. Prokhorenkova, A. Ustimenko (2021), Uncertainty in gradient boosting via
    ensembles.
    """

    def __init__(self, random_state: Any = None, categorical_features: Any = None):
        super().__init__("catboost", "CatBoostRegressor", random_state, categorical_features)

    def _settings(self) -> dict[str, Any]:
        return {"loss_function": "RMSEWithUncertainty"}

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with `return_std` standard deviations."""
        mean, variance = super().predict(X).T
        return (mean, np.sqrt(variance)) if return_std else mean
