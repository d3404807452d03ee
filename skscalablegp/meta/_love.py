"""Constant-time variances over any regressor with fast products."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from .._compat import HasMethods, Interval, fit_context
from ..core import GPPredictionBase, warn_once
from ..core.posteriors import Posterior
from ..models.grid import KISSGPRegressor
from ._posterior import love, with_basis

# Rows at which the variance is compared with exact solves, and most rows that Lanczos starts from.
_HELD_ROWS = 20
_PROBE_ROWS = 1000


class LOVEPredictor(MetaEstimatorMixin, GPPredictionBase):
    """Low-rank variances, covariances and samples for a Gaussian-process regressor.

    Lanczos builds, once, a basis of rank k in which the inverse of the covariance matrix is small;
    after that a variance costs O(k) or less on a grid, O(m k) with m random features or inducing
    points and O(n k) over n rows. The error is measured against exact variances at a few rows, and
    the rank grows until it is small enough.

    Parameters
    ----------
    estimator : regressor, default=None
        A regressor of this package with fast products: KISSGPRegressor (the default),
        IterativeGPRegressor, RFFRegressor, SGPRRegressor, ... A fitted one wrapped in
        ``sklearn.frozen.FrozenEstimator`` is used as it is, and not copied: fit again once it has
        changed.
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

    _fast_products = False

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
            Targets; a frozen regressor does not look at them, only the unit of the error comes from
            them.
        noise_variance : float or array-like of shape (n,), optional
            Handed to the regressor; not for a frozen one.

        Returns
        -------
        self : object
            The fitted predictor.

        Raises
        ------
        TypeError
            For a regressor whose posterior has no fast products.
        ValueError
            For input or settings the model cannot honour, and for columns that are not those of a
            frozen regressor.
        MemoryError
            When the work would not fit, before it starts.
        """
        checked, targets = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=1
        )
        random_state = check_random_state(self.random_state)
        held = _between(checked, random_state)
        inner = self._inner(X, y, noise_variance, random_state)
        below = inner._posterior()
        rows, probes = (
            inner._inputs(_as_seen(inner, part))
            for part in (held, checked[:: max(1, len(checked) // _PROBE_ROWS)])
        )
        result = love(
            below,
            rows,
            probes,
            rank=self.rank,
            max_rank=max(self.rank, self.max_rank),
            tol=self.tol,
            scale=_mean_square(inner, targets),
        )
        self.estimator_ = inner
        self.kernel_ = inner.kernel_
        self.n_iter_ = inner.n_iter_
        self._y_train_mean, self._y_train_std = inner._y_train_mean, inner._y_train_std
        self.rank_, self.variance_error_, self._basis = result.rank, result.error, result.basis
        self._remember(result.posterior)
        if result.error > self.tol:
            warn_once(
                [
                    f"The variance's error {result.error:.1e} is above tol={self.tol:g} at rank "
                    f"{result.rank}: raise max_rank={self.max_rank}, or the noise."
                ]
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
            validate_data(inner, X, skip_check_array=True, reset=False)
            if noise_variance is not None:
                raise ValueError(
                    "A frozen regressor has seen its noise: pass noise_variance where it is "
                    "fitted, not to LOVEPredictor.fit."
                )
            return inner
        inner = KISSGPRegressor() if self.estimator is None else clone(self.estimator)
        _check_supported(inner)
        if inner.random_state is None:
            inner.set_params(random_state=int(random_state.randint(2**31 - 1)))
        if noise_variance is not None:
            return inner.fit(X, y, noise_variance=noise_variance)
        return inner.fit(X, y)

    # ------------------------------------------------------------------ what predictions need

    def _build_posterior(self) -> Posterior:
        return with_basis(self.estimator_._posterior(), self.rank_, self._basis)

    def _rows(self, X: Any) -> np.ndarray:
        X = super()._rows(X)  # raises before a fit
        return _as_seen(self.estimator_, X)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        return self.estimator_._inputs(X)

    def _n_outputs(self) -> int:
        return self.estimator_._n_outputs()

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        self.estimator_._check_joint_memory(X, what)


def _check_supported(inner: Any) -> None:
    if not isinstance(inner, GPPredictionBase) or not inner._fast_products:
        raise TypeError(
            f"{type(inner).__name__} has no fast products with its covariance matrix, which "
            "LOVEPredictor needs: wrap a KISSGPRegressor, an IterativeGPRegressor, or another "
            "regressor of this package with rows, random features or inducing points."
        )


def _as_seen(inner: GPPredictionBase, X: np.ndarray) -> np.ndarray:
    """Rows as the posterior sees them, behind a network where there is one."""
    return inner._seen(X) if hasattr(inner, "_seen") else X


def _mean_square(inner: GPPredictionBase, y: np.ndarray) -> float:
    """Of the target as the posterior sees it."""
    seen = (y - inner._y_train_mean) / inner._y_train_std
    return max(float(np.mean(np.square(seen))), 1e-300)


def _between(X: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Rows of X and midpoints of pairs of rows."""
    first, second = random_state.randint(len(X), size=(2, _HELD_ROWS))
    second[: _HELD_ROWS // 2] = first[: _HELD_ROWS // 2]
    return (X[first] + X[second]) / 2
