"""What every Gaussian-process regressor answers: a posterior's predictions as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from .._validation import check_memory, check_return_flags
from ._model import GPModel
from ._run import budget_of, warn_once

# Bytes of k(X_new, X_train) evaluated at a time.
_CHUNK_BYTES = 2**27


class GPPredictionBase(MultiOutputMixin, RegressorMixin, GPModel):
    """Prediction and sampling over a posterior, in the target's own units.

    A subclass trains (``fit``), sets ``_y_train_mean`` and ``_y_train_std`` of shape () or (t,),
    and says how its posterior is rebuilt from fitted NumPy arrays (``_build_posterior``).
    """

    def _n_outputs(self) -> int:
        """t, the number of targets."""
        return np.size(self._y_train_mean)

    def _has_low_rank_form(self) -> bool:
        """Whether the posterior will have a ``low_rank_form``, known before a fit."""
        return False

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _answering(self, X: Any) -> tuple[GPPredictionBase, np.ndarray]:
        """The model that predictions come from, and validated rows.

        It is this one, except where a model without a fit answers from its prior.
        """
        return self, self._rows(X)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        """Validated rows as the posterior takes them."""
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
        """(m, t) in normalised units to (m,) or, for several targets, (m, t) in their own."""
        return squeeze(values * self._y_train_std)

    def _mean(self, X: np.ndarray) -> np.ndarray:
        posterior = self._posterior()
        out = np.empty((len(X), self._n_outputs()))
        for part, rows in self._chunks(X):
            out[part] = posterior.mean(rows).cpu().numpy()
        return self._own_units(out)

    def _own_units(self, means: np.ndarray) -> np.ndarray:
        """(m, t) normalised means as the target has them."""
        return self._scaled(means) + squeeze(np.atleast_1d(self._y_train_mean))

    def _mean_and_std(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of noisy targets, from one look at the kernel."""
        posterior, t = self._posterior(), self._n_outputs()
        means, variance = np.empty((len(X), t)), np.empty(len(X))
        for part, rows in self._chunks(X):
            mean, v = posterior.mean_and_variance(rows)
            means[part] = mean.cpu().numpy()
            variance[part] = (v + posterior.noise(rows)).cpu().numpy()
        return self._own_units(means), self._deviations(variance)

    def _std(self, X: np.ndarray, include_noise: bool) -> np.ndarray:
        posterior = self._posterior()
        variance = np.empty(len(X))
        for part, rows in self._chunks(X):
            v = posterior.variance(rows)
            if include_noise:
                v = v + posterior.noise(rows)
            variance[part] = v.cpu().numpy()
        return self._deviations(variance)

    def _deviations(self, variance: np.ndarray) -> np.ndarray:
        """Standard deviations of every target in its own units; warns of failed solves."""
        self._warn_of_solves()
        return self._scaled(np.repeat(np.sqrt(variance)[:, None], self._n_outputs(), axis=1))

    def _warn_of_solves(self) -> None:
        """One ConvergenceWarning a prediction whose linear solves ended above their tolerance."""
        failed = self._posterior().take_unfinished()
        if failed:
            last = failed[-1]
            warn_once(
                [
                    f"{len(failed)} linear solves behind these variances ended above their "
                    f"tolerance, the last at a relative residual of {last.residual:.1e}: the "
                    f"standard deviations may be too large. {last.status.remedy}"
                ]
            )

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False):
        """Predict the mean of y, and on request its standard deviation or covariance.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        return_std : bool, default=False
            Also return standard deviations. They include the kernel's white noise and exclude
            `alpha`, as in scikit-learn.
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

        Raises
        ------
        RuntimeError
            If both are requested.
        MemoryError
            When a covariance of so many rows would not fit, before any work.
        ValueError
            Where a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`.
        """
        check_return_flags(return_std, return_cov)
        model, X = self._answering(X)
        if return_cov:
            model._check_joint_memory(X, "return_cov=True")
        if return_std:
            return model._mean_and_std(X)
        mean = model._mean(X)
        if return_cov:
            return mean, model._covariance(X)
        return mean

    def predict_std(self, X: Any, include_noise: bool = True) -> np.ndarray:
        """Predict standard deviations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        include_noise : bool, default=True
            Whether the kernel's white noise counts: the deviation of a new observation, or of the
            function behind it.

        Returns
        -------
        std : ndarray of shape (m,) or (m, t)
            In the target's own units.
        """
        model, X = self._answering(X)
        return model._std(X, include_noise)

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        """Refuse m x m and m x n blocks that do not fit, before any work."""
        m, n = len(X), self._posterior().width
        check_memory(
            8 * m * (3 * m + 2 * n),
            f"{what} for {m} rows (an {m} x {m} covariance beside {m} x {n} cross-covariances)",
            "ask for fewer rows at a time, or for return_std, which works in chunks",
            budget_of(self.memory_budget),
            device=self._fit_device(),
        )

    def _covariance(self, X: np.ndarray) -> np.ndarray:
        posterior = self._posterior()
        rows = self._inputs(X)
        covariance = posterior.covariance(rows)
        covariance.diagonal().add_(posterior.noise(rows))
        covariance = covariance.cpu().double().numpy()
        self._warn_of_solves()
        return squeeze(covariance[:, :, None] * np.square(self._y_train_std))

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

        Raises
        ------
        MemoryError
            When a covariance of so many rows would not fit, before any work.
        ValueError
            Where a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`.
        """
        model, X = self._answering(X)
        model._check_joint_memory(X, "sample_y")
        posterior = model._posterior()
        rows = model._inputs(X)
        draws = posterior.sample(rows, n_samples, check_random_state(random_state))
        # Ten million numbers cost more to pass over than to draw: in place, and only if need be.
        draws = draws.cpu().double().numpy()
        model._warn_of_solves()
        if np.any(model._y_train_std != 1):
            draws *= np.atleast_1d(model._y_train_std)[:, None]
        if np.any(model._y_train_mean != 0):
            draws += np.atleast_1d(model._y_train_mean)[:, None]
        return draws[:, 0] if draws.shape[1] == 1 else draws


def squeeze(values: np.ndarray) -> np.ndarray:
    """A single target loses its axis, as in scikit-learn."""
    return values[..., 0] if values.shape[-1] == 1 else values
