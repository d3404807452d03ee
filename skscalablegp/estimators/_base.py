"""What every Gaussian-process regressor of the package shares: tables in, predictions out."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from .._compat import CallbackMixin
from .._validation import (
    check_memory,
    check_n_targets,
    check_noise,
    check_noise_variance,
    check_return_flags,
)
from ..kernels import TorchKernel, compile_kernel
from ..objectives import exact_marginal_likelihood
from ..posteriors import Posterior
from ._defaults import data_scaled_kernel
from ._table import Table

# Posteriors hold torch tensors, which must neither be pickled nor appear in __dict__.
_POSTERIORS: weakref.WeakKeyDictionary[Any, Posterior] = weakref.WeakKeyDictionary()

# Bytes of k(X_new, X_train) evaluated at a time.
_CHUNK_BYTES = 2**27


class GPRegressorBase(CallbackMixin, MultiOutputMixin, RegressorMixin, BaseEstimator, ABC):
    """Validation, target scaling, prediction and sampling over a posterior.

    A subclass trains (``fit``) and says how its posterior is rebuilt from fitted NumPy arrays
    (``_build_posterior``).
    """

    # ------------------------------------------------------------------ fit

    def _read_table(self, X: Any, y: Any, noise_variance: Any) -> Table:
        """The validated table; sets nothing but what scikit-learn's own validation sets."""
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=1
        )
        check_n_targets(self.n_targets, y)
        return Table.read(
            X.copy() if self.copy_X_train else X,
            y,
            check_noise(self.alpha, len(X)),
            check_noise_variance(noise_variance, len(X)),
            self.normalize_y,
        )

    def _compile_kernel(self, table: Table) -> TorchKernel:
        """The kernel as torch functions, with starting values from the data if none was given."""
        kernel = data_scaled_kernel(table.X, table.y) if self.kernel is None else clone(self.kernel)
        return compile_kernel(kernel, table.X.shape[1])

    def _keep_table(self, table: Table) -> None:
        """Make the table part of the fitted model."""
        self.X_train_, self.y_train_ = table.X, table.y
        self._y_train_mean, self._y_train_std = table.y_mean, table.y_std
        self._noise_train = table.noise

    def _table(self) -> Table:
        """The table that the fitted model keeps."""
        return Table(
            self.X_train_, self.y_train_, self._y_train_mean, self._y_train_std, self._noise_train
        )

    # ------------------------------------------------------------------ predict

    def _n_outputs(self) -> int:
        """t, the number of targets."""
        return self._table().targets.shape[1]

    @abstractmethod
    def _build_posterior(self) -> Posterior:
        """The posterior from fitted attributes alone."""

    def _posterior(self) -> Posterior:
        check_is_fitted(self, "kernel_")
        if self not in _POSTERIORS:
            _POSTERIORS[self] = self._build_posterior()
        return _POSTERIORS[self]

    def _remember(self, posterior: Posterior | None) -> None:
        """Keep what fit already computed; None forgets it."""
        if posterior is None:
            _POSTERIORS.pop(self, None)
        else:
            _POSTERIORS[self] = posterior

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "kernel_")
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _chunks(self, X: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
        posterior = self._posterior()
        op = posterior.operator
        step = max(1, _CHUNK_BYTES // (8 * max(op.shape[0], 1)))
        for start in range(0, len(X), step):
            part = slice(start, start + step)
            yield part, torch.tensor(X[part], dtype=op.dtype, device=op.device)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """(m, t) in normalised units to (m,) or, for several targets, (m, t) in their own."""
        return _squeeze(values * self._y_train_std)

    def _mean(self, X: np.ndarray) -> np.ndarray:
        posterior = self._posterior()
        out = np.empty((len(X), self._n_outputs()))
        for part, rows in self._chunks(X):
            out[part] = posterior.mean(rows).cpu().numpy()
        return self._scaled(out) + _squeeze(np.atleast_1d(self._y_train_mean))

    def _std(self, X: np.ndarray, include_noise: bool) -> np.ndarray:
        posterior = self._posterior()
        variance = np.empty(len(X))
        for part, rows in self._chunks(X):
            v = posterior.variance(rows)
            if include_noise:
                v = v + posterior.noise(rows)
            variance[part] = v.cpu().numpy()
        t = self._n_outputs()
        return self._scaled(np.repeat(np.sqrt(variance)[:, None], t, axis=1))

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
        NotFittedError
            Before `fit`.
        """
        check_return_flags(return_std, return_cov)
        X = self._rows(X)
        if return_cov:
            self._check_joint_memory(len(X), "return_cov=True")
        mean = self._mean(X)
        if return_std:
            return mean, self._std(X, include_noise=True)
        if return_cov:
            return mean, self._covariance(X)
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
        return self._std(self._rows(X), include_noise)

    def _check_joint_memory(self, m: int, what: str) -> None:
        """Refuse m x m and m x n blocks that do not fit, before any work."""
        n = len(self.X_train_)
        check_memory(
            8 * m * (3 * m + 2 * n),
            f"{what} for {m} rows (an {m} x {m} covariance beside {m} x {n} cross-covariances)",
            "ask for fewer rows at a time, or for return_std, which works in chunks",
            None if self.memory_budget == "auto" else float(self.memory_budget),
            device=self._fit_device(),
        )

    def _covariance(self, X: np.ndarray) -> np.ndarray:
        posterior = self._posterior()
        op = posterior.operator
        rows = torch.tensor(X, dtype=op.dtype, device=op.device)
        covariance = posterior.covariance(rows)
        covariance.diagonal().add_(posterior.noise(rows))
        covariance = covariance.cpu().double().numpy()
        return _squeeze(covariance[:, :, None] * np.square(self._y_train_std))

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
        X = self._rows(X)
        self._check_joint_memory(len(X), "sample_y")
        posterior = self._posterior()
        op = posterior.operator
        rows = torch.tensor(X, dtype=op.dtype, device=op.device)
        draws = posterior.sample(rows, n_samples, check_random_state(random_state))
        draws = draws.cpu().double().numpy()
        std, mean = np.atleast_1d(self._y_train_std), np.atleast_1d(self._y_train_mean)
        draws = draws * std[:, None] + mean[:, None]
        return draws[:, 0] if draws.shape[1] == 1 else draws

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ):
        """The log marginal likelihood of the training data, in normalised target units.

        Parameters
        ----------
        theta : array-like of shape (p,), optional
            Log hyperparameters; the trained ones by default.
        eval_gradient : bool, default=False
            Also return the gradient in theta.
        clone_kernel : bool, default=True
            Accepted as in scikit-learn; `kernel_` is never changed.

        Returns
        -------
        value : float
            Summed over targets.
        gradient : ndarray of shape (p,)
            Only with `eval_gradient`.

        Notes
        -----
        Exact by Cholesky in float64, O(n^3), but for the stored value at the trained theta.
        """
        check_is_fitted(self, "kernel_")
        if theta is None:
            if eval_gradient:
                raise ValueError("Gradient can only be evaluated for theta!=None")
            return self.log_marginal_likelihood_value_
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        self._check_dense_memory("log_marginal_likelihood", copies=3 if eval_gradient else 1)
        problem = self._table().problem(kernel, torch.float64, self._fit_device(), keep=True)
        theta = torch.as_tensor(np.asarray(theta, dtype=np.float64))
        result = exact_marginal_likelihood(problem, theta, eval_gradient)
        if eval_gradient:
            return result.value, result.grad.cpu().numpy()
        return result.value


def _squeeze(values: np.ndarray) -> np.ndarray:
    """A single target loses its axis, as in scikit-learn."""
    return values[..., 0] if values.shape[-1] == 1 else values
