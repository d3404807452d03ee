"""Boosted trees of CatBoost and LightGBM, where these packages are installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

BOOSTERS = ("catboost", "lightgbm")
# What a fit must not write to the screen or the disk.
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


class CatBoost(RegressorMixin, BaseEstimator):
    """CatBoost's regressor with standard deviations: a normal distribution in each leaf.

    Parameters
    ----------
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    trees_ : catboost.CatBoostRegressor

    References
    ----------
    A. Malinin, L. Prokhorenkova, A. Ustimenko (2021), Uncertainty in gradient boosting via
    ensembles.
    """

    def __init__(self, random_state: Any = None):
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CatBoost:
        """Fit the trees."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = {"loss_function": "RMSEWithUncertainty", "random_seed": seed}
        self.trees_ = booster("catboost", "CatBoostRegressor", **own)
        self.trees_.fit(X, y, sample_weight=sample_weight)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with `return_std` standard deviations."""
        check_is_fitted(self)
        mean, variance = np.asarray(self.trees_.predict(X)).T
        return (mean, np.sqrt(variance)) if return_std else mean
