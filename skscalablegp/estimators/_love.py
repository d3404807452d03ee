"""Constant-time variances over any regressor with fast products."""

from __future__ import annotations

import warnings
import weakref
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    MetaEstimatorMixin,
    MultiOutputMixin,
    RegressorMixin,
    clone,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from .._compat import HasMethods, Interval, fit_context
from ..posteriors import GridPosterior, LOVEPosterior, Posterior, love
from ._kissgp import KISSGPRegressor
from ._prediction import GPPredictionBase, squeeze

_CACHES: weakref.WeakKeyDictionary[Any, Posterior] = weakref.WeakKeyDictionary()

# Rows at which the variance is compared with exact solves.
_HELD_ROWS = 20
# Bytes of k(X_new, X_train) at a time.
_CHUNK_BYTES = 2**27


class LOVEPredictor(MetaEstimatorMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Low-rank variances, covariances and samples for a Gaussian-process regressor.

    Lanczos builds, once, a basis of rank k in which the inverse of the covariance matrix is small;
    after that a variance costs O(k) on a grid and O(n k) elsewhere. The error is measured against
    exact solves at a few rows, and the rank grows until it is small enough.

    Parameters
    ----------
    estimator : regressor, default=None
        A regressor of this package with fast products: KISSGPRegressor (the default),
        IterativeGPRegressor, ... A fitted one wrapped in ``sklearn.frozen.FrozenEstimator`` is used
        as it is.
    rank : int, default=100
        Lanczos vectors to begin with.
    tol : float, default=1e-4
        Largest mean absolute error of the variance at the measured rows, in units of the target's
        mean square.
    max_rank : int, default=1600
        Where growth ends; a ConvergenceWarning says if the error is still above `tol`.
    random_state : int, RandomState instance or None, default=0
        Which rows are measured, and the seed of a regressor that has none of its own.

    Attributes
    ----------
    estimator_ : regressor
        The fitted regressor.
    rank_ : int
        Lanczos vectors in use.
    variance_error_ : float
        Mean absolute error of the variance at the measured rows, in units of the target's mean
        square.
    kernel_ : kernel instance
        The regressor's.
    n_iter_ : int
        The regressor's.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    Notes
    -----
    The approximation is a Galerkin projection: variances err upwards, never below zero.

    References
    ----------
    G. Pleiss, J. R. Gardner, K. Q. Weinberger, A. G. Wilson (2018), Constant-time predictive
    distributions for Gaussian processes.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import KISSGPRegressor, LOVEPredictor
    >>> X = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> y = np.sin(5 * X[:, 0]) + X[:, 1]
    >>> gp = LOVEPredictor(KISSGPRegressor(grid_size=20), rank=50).fit(X, y)
    >>> mean, std = gp.predict(X[:3], return_std=True)
    >>> bool(gp.variance_error_ < 1e-4)
    True
    """

    _parameter_constraints = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "rank": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_rank": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        rank: Any = 100,
        tol: Any = 1e-4,
        max_rank: Any = 1600,
        random_state: Any = 0,
    ):
        self.estimator = estimator
        self.rank = rank
        self.tol = tol
        self.max_rank = max_rank
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = self.estimator if self.estimator is not None else KISSGPRegressor()
        tags.target_tags.multi_output = get_tags(inner).target_tags.multi_output
        return tags

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> LOVEPredictor:
        """Fit the regressor unless it is frozen, then build the caches.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows; the rows at which the error is measured come from among and between them.
        y : array-like of shape (n,) or (n, t)
            Targets; a frozen regressor does not look at them.
        noise_variance : float or array-like of shape (n,), optional
            Handed to the regressor.

        Returns
        -------
        self : object
            The fitted predictor.
        """
        checked, _ = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=1
        )
        random_state = check_random_state(self.random_state)
        held = _between(checked, random_state)
        inner = self._inner(X, y, noise_variance, random_state)
        posterior = inner._posterior()
        rows = torch.tensor(
            _as_seen(inner, held), dtype=posterior.operator.dtype, device=posterior.operator.device
        )
        result = love(
            posterior,
            rows,
            rank=self.rank,
            max_rank=max(self.rank, self.max_rank),
            tol=self.tol,
            scale=_mean_square(inner),
        )
        self.estimator_ = inner
        self.kernel_ = inner.kernel_
        self.n_iter_ = inner.n_iter_
        self.rank_, self.variance_error_, self._basis = result.rank, result.error, result.basis
        _CACHES[self] = result.posterior
        if result.error > self.tol:
            warnings.warn(
                f"The variance's error {result.error:.1e} is above tol={self.tol:g} at rank "
                f"{result.rank}: raise max_rank={self.max_rank}, or the noise.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _inner(
        self, X: Any, y: Any, noise_variance: Any, random_state: np.random.RandomState
    ) -> GPPredictionBase:
        """The fitted regressor below."""
        if isinstance(self.estimator, FrozenEstimator):
            inner = self.estimator.estimator
            _check_supported(inner)
            check_is_fitted(inner)
            return inner
        inner = KISSGPRegressor() if self.estimator is None else clone(self.estimator)
        _check_supported(inner)
        if inner.random_state is None:
            inner.set_params(random_state=int(random_state.randint(2**31 - 1)))
        if noise_variance is not None:
            return inner.fit(X, y, noise_variance=noise_variance)
        return inner.fit(X, y)

    # ------------------------------------------------------------------ predict

    def _posterior(self) -> Posterior:
        if self not in _CACHES:
            below = self.estimator_._posterior()
            if isinstance(below, GridPosterior):
                made = GridPosterior(below.grid_kernel, below.theta, below.evaluation, self.rank_)
            else:
                basis = torch.tensor(
                    self._basis, dtype=below.operator.dtype, device=below.operator.device
                )
                made = LOVEPosterior(below, basis)
            _CACHES[self] = made
        return _CACHES[self]

    def _rows(self, X: Any) -> tuple[np.ndarray, torch.Tensor, Posterior]:
        check_is_fitted(self, "rank_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        posterior = self._posterior()
        seen = _as_seen(self.estimator_, X)
        op = posterior.operator
        return X, torch.tensor(seen, dtype=op.dtype, device=op.device), posterior

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False):
        """Predict the mean of y, and on request its standard deviation or covariance.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        return_std : bool, default=False
            Also return standard deviations, the kernel's white noise included.
        return_cov : bool, default=False
            Also return the joint covariance of all m rows.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, t)
            In the target's own units.
        std : ndarray of shape (m,) or (m, t)
            Only with `return_std`.
        cov : ndarray of shape (m, m) or (m, m, t)
            Only with `return_cov`.
        """
        if return_std and return_cov:
            raise RuntimeError(
                "At most one of return_std or return_cov can be requested: the diagonal of the "
                "covariance is the squared standard deviation."
            )
        X, rows, posterior = self._rows(X)
        inner = self.estimator_
        mean = inner._mean(rows.cpu().double().numpy())
        if return_std:
            return mean, self._std(rows, posterior, True)
        if return_cov:
            covariance = posterior.covariance(rows).clone()
            covariance.diagonal().add_(posterior.noise(rows))
            covariance = covariance.cpu().double().numpy()
            return mean, squeeze(covariance[:, :, None] * np.square(inner._y_train_std))
        return mean

    def predict_std(self, X: Any, include_noise: bool = True) -> np.ndarray:
        """Predict standard deviations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        include_noise : bool, default=True
            Whether the kernel's white noise counts.

        Returns
        -------
        std : ndarray of shape (m,) or (m, t)
            In the target's own units.
        """
        _, rows, posterior = self._rows(X)
        return self._std(rows, posterior, include_noise)

    def _std(self, rows: torch.Tensor, posterior: Posterior, include_noise: bool) -> np.ndarray:
        step = max(1, _CHUNK_BYTES // (8 * max(posterior.operator.shape[0], 1)))
        parts = []
        for part in rows.split(step):
            v = posterior.variance(part)
            parts.append(v + posterior.noise(part) if include_noise else v)
        variance = torch.cat(parts).cpu().double().numpy()
        t = self.estimator_._n_outputs()
        return self.estimator_._scaled(np.repeat(np.sqrt(variance)[:, None], t, axis=1))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draw joint samples of y from the posterior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows at which to sample.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed of the draws.

        Returns
        -------
        samples : ndarray of shape (m, n_samples) or (m, t, n_samples)
            In the target's own units.
        """
        _, rows, posterior = self._rows(X)
        draws = posterior.sample(rows, n_samples, check_random_state(random_state))
        inner = self.estimator_
        std, mean = np.atleast_1d(inner._y_train_std), np.atleast_1d(inner._y_train_mean)
        draws = draws.cpu().double().numpy() * std[:, None] + mean[:, None]
        return draws[:, 0] if draws.shape[1] == 1 else draws


def _check_supported(inner: Any) -> None:
    if not isinstance(inner, GPPredictionBase):
        raise TypeError(
            f"{type(inner).__name__} has no fast products with its covariance matrix, which "
            "LOVEPredictor needs: wrap KISSGPRegressor, IterativeGPRegressor or another "
            "Gaussian-process regressor of this package."
        )


def _as_seen(inner: GPPredictionBase, X: np.ndarray) -> np.ndarray:
    """Rows as the posterior sees them, behind a network where there is one."""
    return inner._seen(X) if hasattr(inner, "_seen") else X


def _mean_square(inner: GPPredictionBase) -> float:
    """Of the target as the posterior sees it."""
    if isinstance(inner, KISSGPRegressor):
        return inner._target_square
    return max(float(np.mean(np.square(inner.y_train_))), 1e-300)


def _between(X: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Rows of X and midpoints of pairs of rows."""
    first, second = random_state.randint(len(X), size=(2, _HELD_ROWS))
    second[: _HELD_ROWS // 2] = first[: _HELD_ROWS // 2]
    return (X[first] + X[second]) / 2
