"""Predictions of all regressors: the answers of a posterior as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._validation import (
    check_coverage,
    check_noise,
    check_noise_variance,
    check_return_flags,
    check_share,
    validated,
)
from ._edge import answers, with_name
from ._model import GPModel
from ._run import warn_once
from .data import column_spread
from .posteriors import Posterior

# Predictions evaluate blocks of k(X_new, X_train) of at most this many bytes.
_CHUNK_BYTES = 2**27
# The default of `alpha` is a jitter relative to the target's variance, in any units.
_DEFAULT_ALPHA = 1e-10
# Posteriors whose users have been warned that predictions leave out known noise.
_TOLD: WeakSet[Posterior] = WeakSet()

# How far beside training rows models that have seen their targets are judged, as a share of the way
# to the nearest row.
_BESIDE = 0.1
# Columns with at most so many different whole numbers may hold codes.
_CODES = 20


class GPPredictionBase(MultiOutputMixin, RegressorMixin, GPModel):
    """Prediction and sampling over a posterior, in the target's own units.

    A subclass defines ``fit``, which sets ``_y_train_mean`` and ``_y_train_std`` of shape () or
    (t,), and ``_build_posterior``, which makes the posterior from fitted NumPy arrays.
    """

    # Whether `fit` was given noise_variance.
    _noise_given: bool = False

    def _n_outputs(self) -> int:
        """The number t of targets."""
        return np.size(self._y_train_mean)

    def _alpha_in_y_units(self) -> bool:
        """Whether `alpha` is in squared units of y although the fit may normalise y.

        With ``normalize_y="auto"`` users do not ask for normalisation, which therefore must not
        change the meaning of an alpha that they set.
        """
        return self.normalize_y == "auto" and not np.array_equal(self.alpha, _DEFAULT_ALPHA)

    def _shares_scale(self, noise_variance: Any) -> bool:
        """Whether all targets are divided by the same number, which known noise requires."""
        known = noise_variance is not None or self._alpha_in_y_units()
        return self.normalize_y == "auto" and known

    def _own_noise(self, n: int, y_std: np.ndarray) -> np.ndarray:
        """`alpha` for n rows in normalised units, (n,)."""
        unit = np.ravel(y_std)[0] if self._alpha_in_y_units() else 1.0
        return check_noise(self.alpha, n) / np.square(unit)

    def _has_low_rank_form(self) -> bool:
        """Whether the posterior of a fit will have a ``low_rank_form``."""
        return False

    def _left_out(
        self, X: np.ndarray, y: np.ndarray, noise_variance: Any, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Leave-one-out predictions of training targets, in closed form.

        Parameters
        ----------
        X, y, noise_variance
            The arguments of `fit`, with a single target.
        rows : ndarray of shape (k,)
            Row numbers in increasing order.

        Returns
        -------
        rows, mean, std : ndarray of shape (k,), or None
            Means and standard deviations in the target's own units, noise included. The rows are
            others than those requested if the fit has held out some. None if there is no closed
            form.
        """
        if len(getattr(self, "X_train_", X)) < len(X):
            # A spent time budget has left a random part of the rows, whose numbers are unknown.
            return None
        posterior, (scale,) = self._posterior(), np.atleast_1d(self._y_train_std)
        known = check_noise_variance(noise_variance, len(X), 1)
        noise = np.zeros(len(X)) if known is None else known[:, 0] / scale**2
        if "alpha" in self.get_params(deep=False):
            noise = noise + self._own_noise(len(X), self._y_train_std)
        at = self._inputs(X[rows])
        Y, noise = (
            torch.tensor(part[rows]).to(at) for part in ((y - self._y_train_mean) / scale, noise)
        )
        places = torch.as_tensor(rows, device=at.device)
        noise = noise + posterior.training_noise(at)
        found = posterior.leave_one_out(places, at, Y[:, None], noise)
        if found is None:
            return None
        mean, variance = (part.cpu().double().numpy() for part in found)
        return rows, self._own_units(mean), np.sqrt(variance) * scale

    def _predict_own_rows(self, X: np.ndarray, Y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predictions of training rows, without their own targets if there is a closed form.

        Parameters
        ----------
        X, Y : ndarray of shape (n, d) and (n, t)
            The training table.
        rows : ndarray of shape (k,)
            Row numbers in increasing order.

        Returns
        -------
        mean : ndarray of shape (k, t)
        """
        if Y.shape[1] == 1 and not self._noise_given:
            found = self._left_out(X, Y[:, 0], None, rows)
            if found is not None and np.array_equal(found[0], rows):
                return found[1].reshape(len(rows), 1)
        return self._beside_rows(X, rows)

    def _beside_rows(self, X: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predictions of training rows (k, t) by a model without a closed form."""
        return beside_rows(lambda X: self._mean(X).reshape(len(rows), -1), X[rows], len(X))

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return validated(self, X, dtype=np.float64, reset=False)

    def _answering(self, X: Any) -> tuple[GPPredictionBase, np.ndarray]:
        """The model that makes the predictions, and the validated rows.

        The model is this one, or the prior if a subclass predicts before a fit.
        """
        return self, self._rows(X)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        """Validated rows as a tensor for the posterior."""
        posterior = self._posterior()
        # A reordered data frame arrives with negative strides, which torch refuses.
        X = np.ascontiguousarray(X)
        return torch.tensor(X, dtype=posterior.dtype, device=posterior.device)

    def _chunks(self, X: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        step = max(1, _CHUNK_BYTES // (8 * max(self._posterior().width, 1)))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            yield part, self._inputs(X[part])

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """Convert (m, t) normalised differences to the target's units; (m,) for one target."""
        return squeeze(values * self._y_train_std)

    def _mean(self, X: np.ndarray) -> np.ndarray:
        posterior = self._posterior()
        out = np.empty((len(X), self._n_outputs()))
        for part, rows in self._chunks(X):
            out[part] = posterior.mean(rows).cpu().numpy()
        return self._own_units(out)

    def _own_units(self, means: np.ndarray) -> np.ndarray:
        """Convert (m, t) normalised means to the target's units."""
        return self._scaled(means) + squeeze(np.atleast_1d(self._y_train_mean))

    def _new_noise(
        self, noise_variance: Any, X: np.ndarray, include_noise: Any = True
    ) -> np.ndarray | None:
        """Known noise variances of new rows, (m, t) in squared target units; None without any."""
        posterior = self._posterior()
        known = check_noise_variance(noise_variance, len(X), self._n_outputs())
        if known is None:
            if include_noise and self._noise_given and posterior not in _TOLD:
                _TOLD.add(posterior)
                warn_once(
                    f"{type(self).__name__} was fitted with noise_variance. Predictions without "
                    "it are for noise-free values. Pass the noise_variance of the new rows to get "
                    "intervals, standard deviations and samples of observations, or "
                    "noise_variance=0 to leave it out.",
                    UserWarning,
                )
            return None
        if not include_noise:
            raise ValueError(
                "noise_variance is a part of the noise, which include_noise=False leaves out. Give "
                "only one of the two."
            )
        if not posterior.likelihood.additive:
            raise ValueError(
                f"noise_variance is the variance of additive noise, which likelihood="
                f"{posterior.likelihood!r} does not have. Leave it out."
            )
        return known

    def _mean_and_std(
        self, X: np.ndarray, known: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of observations, from one evaluation of the kernel."""
        posterior, t = self._posterior(), self._n_outputs()
        means, variance = np.empty((len(X), t)), np.empty(len(X))
        for part, rows in self._chunks(X):
            mean, v = posterior.mean_and_observed_variance(rows)
            means[part], variance[part] = mean.cpu().numpy(), v.cpu().numpy()
        return self._own_units(means), self._deviations(variance, known)

    def _std(self, X: np.ndarray, include_noise: bool, known: np.ndarray | None) -> np.ndarray:
        posterior = self._posterior()
        variance = np.empty(len(X))
        for part, rows in self._chunks(X):
            v = posterior.observed_variance(rows) if include_noise else posterior.variance(rows)
            variance[part] = v.cpu().numpy()
        return self._deviations(variance, known)

    def _deviations(self, variance: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        """Standard deviations in the units of each target; warns of unfinished solves."""
        self._warn_of_solves()
        std = np.repeat(np.sqrt(variance)[:, None], self._n_outputs(), axis=1) * self._y_train_std
        return squeeze(std if known is None else np.sqrt(np.square(std) + known))

    def _quantiles(
        self, X: np.ndarray, q: np.ndarray, include_noise: bool, noise_variance: Any
    ) -> np.ndarray:
        """(m, t, k) quantiles in the target's own units."""
        known = self._new_noise(noise_variance, X, include_noise)
        posterior = self._posterior()
        scale, mean = (np.atleast_1d(a)[:, None] for a in (self._y_train_std, self._y_train_mean))
        out = np.empty((len(X), self._n_outputs(), len(q)))
        for part, rows in self._chunks(X):
            noise = None if known is None else known[part] / np.square(self._y_train_std)
            out[part] = posterior.quantiles(rows, q, bool(include_noise), noise)
        self._warn_of_solves()
        return out * scale + mean

    def _warn_of_solves(self) -> None:
        """Give one ConvergenceWarning if linear solves of a prediction were unfinished."""
        failed = self._posterior().take_unfinished()
        if failed:
            last = failed[-1]
            message = (
                f"{len(failed)} linear solves for these variances did not reach their tolerance; "
                f"the last ended at a relative residual of {last.residual:.1e}. The standard "
                f"deviations may be too large. {last.remedy}"
            )
            warn_once(with_name(self, message))

    @answers
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, noise_variance: Any = None
    ):
        """Predict the mean of y, and on request its standard deviation or covariance.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        return_std : bool, default=False
            Whether to also return standard deviations. They include the white noise of the kernel
            and exclude `alpha`, as in scikit-learn.
        return_cov : bool, default=False
            Whether to also return the joint covariance of all m rows.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, in squared units of the target. They are
            added to the variances and to the diagonal of the covariance. A model whose `fit` was
            given noise_variance warns once if uncertainty is predicted without it; pass 0 for
            observations without such noise.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, t)
            Posterior mean in the target's own units.
        std : ndarray of shape (m,) or (m, t)
            Standard deviations; only with `return_std`.
        cov : ndarray of shape (m, m) or (m, m, t)
            Covariance; only with `return_cov`.

        Raises
        ------
        RuntimeError
            If both `return_std` and `return_cov` are set.
        MemoryError
            If the covariance of all rows does not fit into memory; raised before any work is done.
        ValueError
            If a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`, unless the estimator then answers from its prior.
        """
        check_return_flags(return_std, return_cov)
        model, X = self._answering(X)
        known = model._new_noise(
            noise_variance, X, return_std or return_cov or noise_variance is not None
        )
        if return_cov:
            model._check_joint_memory(X, "return_cov=True")
        if return_std:
            return model._mean_and_std(X, known)
        mean = model._mean(X)
        if return_cov:
            return mean, model._covariance(X, known)
        return mean

    @answers
    def predict_std(
        self, X: Any, include_noise: bool = True, noise_variance: Any = None
    ) -> np.ndarray:
        """Predict standard deviations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        include_noise : bool, default=True
            Whether the standard deviations are those of new observations, with the white noise of
            the kernel and `noise_variance`, or those of the latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        std : ndarray of shape (m,) or (m, t)
            In the target's own units.

        Raises
        ------
        ValueError
            If `noise_variance` is given although ``include_noise=False``.
        NotFittedError
            Before `fit`, unless the estimator then answers from its prior.
        """
        model, X = self._answering(X)
        return model._std(X, include_noise, model._new_noise(noise_variance, X, include_noise))

    @answers
    def predict_quantiles(
        self, X: Any, q: Any, include_noise: bool = True, noise_variance: Any = None
    ) -> np.ndarray:
        """Predict quantiles of new observations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        q : float or array-like of shape (k,)
            Probabilities, strictly between 0 and 1.
        include_noise : bool, default=True
            Whether to include noise, as in `predict_std`. Without it the quantiles are those of
            the latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        quantiles : ndarray of shape (m,) or (m, t), or (m, k) or (m, t, k)
            In the target's own units; the last axis is there only if q is an array.

        Raises
        ------
        ValueError
            For probabilities outside (0, 1), or if `noise_variance` is given although
            ``include_noise=False``.
        NotImplementedError
            For a user-defined likelihood without a ``cdf``.
        NotFittedError
            Before `fit`, unless the estimator then answers from its prior.

        Notes
        -----
        The predictive distribution is normal, or it is that of a normal latent function plus the
        noise of `likelihood`, such as Student's t. In the second case quantiles are found by root
        finding, to double precision.
        """
        q = check_share(q, "q")
        model, X = self._answering(X)
        out = model._quantiles(X, np.atleast_1d(q), include_noise, noise_variance)
        out = out[:, 0] if out.shape[1] == 1 else out
        return out if q.ndim else out[..., 0]

    @answers
    def predict_interval(
        self, X: Any, coverage: Any = 0.95, include_noise: bool = True, noise_variance: Any = None
    ) -> np.ndarray:
        """Predict central intervals for new observations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        coverage : float, default=0.95
            Probability of the interval. The remaining probability is divided equally between
            the two sides.
        include_noise : bool, default=True
            Whether to include noise, as in `predict_std`. Without it the intervals are for the
            latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        interval : ndarray of shape (m, 2) or (m, t, 2)
            Lower and upper ends in the target's own units.

        Raises
        ------
        ValueError
            For a coverage that is not one number in (0, 1), or if `noise_variance` is given
            although ``include_noise=False``.
        NotImplementedError
            For a user-defined likelihood without a ``cdf``.
        NotFittedError
            Before `fit`, unless the estimator then answers from its prior.
        """
        ends = check_coverage(coverage)
        model, X = self._answering(X)
        out = model._quantiles(X, ends, include_noise, noise_variance)
        return out[:, 0] if out.shape[1] == 1 else out

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        """Raise a MemoryError if m x m and m x n blocks do not fit, before any work."""
        m, n = len(X), self._posterior().width
        self._check_memory(
            8 * m * (3 * m + 2 * n),
            f"{what} for {m} rows (an {m} x {m} covariance beside {m} x {n} cross-covariances)",
            "ask for fewer rows at a time, or for return_std, which works in chunks",
        )

    def _covariance(self, X: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        posterior = self._posterior()
        rows = self._inputs(X)
        covariance = posterior.covariance(rows)
        covariance.diagonal().add_(posterior.noise(rows))
        covariance = covariance.cpu().double().numpy()
        self._warn_of_solves()
        covariance = covariance[:, :, None] * np.square(self._y_train_std)
        if known is not None:
            np.einsum("iit->it", covariance)[...] += known
        return squeeze(covariance)

    @answers
    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, noise_variance: Any = None
    ) -> np.ndarray:
        """Draw joint samples of y from the posterior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows at which to sample.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed of the random draws.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        samples : ndarray of shape (m, n_samples) or (m, t, n_samples)
            In the target's own units.

        Raises
        ------
        MemoryError
            If the covariance of all rows does not fit into memory; raised before any work is done.
        ValueError
            If a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`, unless the estimator then answers from its prior.
        """
        model, X = self._answering(X)
        known = model._new_noise(noise_variance, X)
        model._check_joint_memory(X, "sample_y")
        posterior = model._posterior()
        rows = model._inputs(X)
        if known is not None:
            known = known / np.square(model._y_train_std)
        draws = posterior.sample_noisy(rows, known, n_samples, check_random_state(random_state))
        # Further passes over many draws cost more than drawing them: work in place, if at all.
        draws = draws.cpu().double().numpy()
        model._warn_of_solves()
        if np.any(model._y_train_std != 1):
            draws *= np.atleast_1d(model._y_train_std)[:, None]
        if np.any(model._y_train_mean != 0):
            draws += np.atleast_1d(model._y_train_mean)[:, None]
        return draws[:, 0] if draws.shape[1] == 1 else draws


def squeeze(values: np.ndarray) -> np.ndarray:
    """Drop the last axis of a single target, as scikit-learn does."""
    return values[..., 0] if values.shape[-1] == 1 else values


def beside_rows(predict: Callable[[np.ndarray], np.ndarray], X: np.ndarray, n: int) -> np.ndarray:
    """Predictions beside training rows X, by a model that has seen their targets.

    A model under whose kernel all rows are far apart predicts each row from its own target, and
    something else a little beside it. What a model has learned changes little over a tenth of the
    way to the nearest row. Columns of a few whole numbers, such as codes of categories, stay.

    Parameters
    ----------
    predict : callable
    X : ndarray of shape (k, d)
        Some of the training rows.
    n : int
        Number of all of them, among which the nearest one is nearer.
    """
    if len(X) < 2:
        return predict(X)
    k, d = X.shape
    Z = X / column_spread(X)
    apart = cdist(Z, Z)
    apart[apart == 0] = np.inf
    towards = X[apart.argmin(1)] - X
    codes = [len(np.unique(x)) <= _CODES and (x == np.round(x)).all() for x in X.T]
    step = _BESIDE * (k / max(n, k)) ** (1 / d)
    return predict(X + np.where(codes, 0.0, step * towards))
