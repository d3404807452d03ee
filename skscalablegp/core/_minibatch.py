"""Base classes of estimators that learn from random batches and keep no training rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from .._validation import (
    check_n_targets,
    check_noise,
    check_sample_weight,
    validated,
)
from ._edge import answers
from ._given import Given, GivenRows, GivenShards, own_rows
from ._model import GPModel
from ._prediction import GPPredictionBase
from .data import (
    BLOCK_ROWS,
    Scaling,
    have_merged,
    known_noise,
)
from .likelihoods import Likelihood
from .posteriors import Affine

# Tables in these precisions are not copied.
_KEPT = [np.float64, np.float32]


class MinibatchGPRegressorBase(GPPredictionBase):
    """Regressors whose posterior needs no training rows; they standardise the inputs.

    A subclass calls ``_keep_scaling`` after its training has succeeded.
    """

    _sums_targets = False

    def _read_rows(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Validated X and (n, t) targets; floating-point tables are not copied."""
        X, y = validated(self, X, y, multi_output=True, y_numeric=True, dtype=_KEPT, reset=reset)
        check_n_targets(self.n_targets, y)
        return X, np.asarray(y, dtype=np.float64).reshape(len(X), -1)

    def _read_own_rows(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """As `_read_rows`, for the rows of one rank."""
        X, y = self._read_rows(X, y)
        check_noise(getattr(self, "alpha", 0.0), len(X))
        self._own_kernel(X)  # Categories that are not whole numbers are refused.
        return X, y

    def _given(self, X: Any, y: Any, noise_variance: Any, sample_weight: Any) -> Given:
        """The validated arguments of this process, with equal rows merged, or of all ranks."""
        ranks = own_rows()
        if ranks is not None:
            return GivenShards.read(ranks)
        return GivenRows.read(self, *self._read_rows(X, y), noise_variance, sample_weight)

    def _left_out(self, X, y, noise_variance, rows):
        table = None if self._exact is None else self._exact.table
        if table is None or not have_merged(table.counts):
            return super()._left_out(X, y, noise_variance, rows)
        found = GivenRows.read(self, X, y.reshape(len(X), -1), noise_variance).merging
        return self._left_out_of(table, found, X, y, rows)

    def _known_noise(
        self, noise_variance: Any, n: int, scaling: Scaling, likelihood: Likelihood, reset: bool
    ) -> np.ndarray:
        """`noise_variance` in normalised units, in the form that the likelihood takes; (n,).

        Also sets ``_noise_given`` for predictions; only `reset` can set it to False.

        Raises
        ------
        ValueError
            For a likelihood without additive noise.
        """
        known = known_noise(noise_variance, n, scaling.y_scale)
        if noise_variance is not None and not likelihood.additive:
            raise ValueError(
                "noise_variance is the variance of additive noise, which "
                f"likelihood={likelihood!r} does not have. Leave it out."
            )
        self._noise_given = noise_variance is not None or (self._noise_given and not reset)
        return known / likelihood.variance_factor() if known.any() else known

    def _keep_scaling(self, scaling: Scaling) -> None:
        """Make the scaling part of the fitted model."""
        self._scaling = scaling
        self._y_train_mean, self._y_train_std = scaling.y_mean, scaling.y_scale

    def _column_units(self) -> np.ndarray:
        return self._scaling.x_scale

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return validated(self, X, dtype=_KEPT, reset=False)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        posterior = self._posterior()
        return self._scaling.inputs(X, posterior.dtype, posterior.device)

    def _input_module(self) -> torch.nn.Module:
        return Affine(self._scaling.x_mean, self._scaling.x_scale)


class GPClassifierBase(ClassifierMixin, GPModel):
    """Base class of classifiers; a subclass defines `_probabilities`."""

    _sums_targets = False

    def _expected_targets(self, X: np.ndarray) -> np.ndarray:
        """Predictions (m, c) of the indicators of classes."""
        return self._probabilities(X)

    def _read_own_rows(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Validated X and labels of one rank, which may have rows of a single class."""
        X, y = validated(self, X, y, dtype=_KEPT)
        check_classification_targets(y)
        self._own_kernel(X)  # Categories that are not whole numbers are refused.
        return X, y

    def _given(
        self, X: Any, y: Any, sample_weight: Any, classes: Any = None, reset: bool = True
    ) -> Given:
        """The validated arguments of this process, with equal rows merged, or of all ranks.

        Raises
        ------
        ValueError
            For a single class, or for labels that `classes_` does not have.
        """
        ranks = own_rows()
        if ranks is not None:
            return GivenShards.read(ranks, type(self)._columns)
        X, y = validated(self, X, y, dtype=_KEPT, reset=reset)
        weights = check_sample_weight(sample_weight, len(X))
        if weights is not None and not weights.all():
            # A class whose rows all have weight zero does not count.
            X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        codes = self._numbered(y, reset, classes)
        given = GivenRows.read(self, X, codes[:, None].astype(np.float64), None, weights)
        return replace(given, y=self._columns(given.y[:, 0].astype(int)))

    def _columns(self, codes: np.ndarray) -> np.ndarray:
        """Targets (n, t) from numbers of classes (n,)."""
        return codes[:, None].astype(np.float64)

    def _numbered(self, y: np.ndarray, reset: bool = True, classes: Any = None) -> np.ndarray:
        """Class numbers (n,) of validated labels; sets ``classes_`` if `reset`."""
        check_classification_targets(y)
        if reset:
            known = np.unique(y if classes is None else np.asarray(classes))
            if len(known) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs at least two classes, but y has one class: "
                    f"{known.tolist()[0]!r}."
                )
            self.classes_ = known
        codes = np.searchsorted(self.classes_, y)
        codes = np.minimum(codes, len(self.classes_) - 1)
        unseen = self.classes_[codes] != y
        if unseen.any():
            raise ValueError(
                f"y has labels {np.unique(np.asarray(y)[unseen])[:5]}, but the classes of the "
                f"model are {self.classes_}. Pass all classes as classes= to the first partial_fit."
            )
        return codes

    def _keep_scaling(self, scaling: Scaling) -> None:
        self._scaling = scaling

    def _column_units(self) -> np.ndarray:
        return self._scaling.x_scale

    @abstractmethod
    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        """Probabilities (m, c) for a block of validated rows in their own units."""

    def _by_blocks(self, X: Any, answer: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Validate the rows, and concatenate the answers for blocks of them."""
        check_is_fitted(self, "n_iter_")
        X = validated(self, X, dtype=_KEPT, reset=False)
        blocks = [answer(X[start : start + BLOCK_ROWS]) for start in range(0, len(X), BLOCK_ROWS)]
        return np.concatenate(blocks)

    @answers
    def predict_proba(self, X) -> np.ndarray:
        """Predict class probabilities, averaged over the uncertainty of the latent functions.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.

        Returns
        -------
        probabilities : ndarray of shape (m, c)
            In the order of `classes_`; rows sum to 1.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        return self._by_blocks(X, self._probabilities)

    def predict_log_proba(self, X) -> np.ndarray:
        """Return the logarithms of `predict_proba`; zero counts as the smallest positive number."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def log_predictive_density(self, X, y) -> np.ndarray:
        """Log predictive probabilities of observed classes, one for each row.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.
        y : array-like of shape (m,)
            Observed classes.

        Returns
        -------
        log_probability : ndarray of shape (m,)
            In nats.

        Raises
        ------
        ValueError
            For labels that the model does not know, or a wrong number of them.
        NotFittedError
            Before `fit`.
        """
        probabilities = self.predict_log_proba(X)  # raises NotFittedError before `fit`
        labels = column_or_1d(y)
        if len(labels) != len(probabilities):
            raise ValueError(
                f"y must hold one class for each row; got {len(labels)} for "
                f"{len(probabilities)} rows."
            )
        codes = self._numbered(labels, reset=False)
        return probabilities[np.arange(len(codes)), codes]

    def predict(self, X) -> np.ndarray:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.

        Returns
        -------
        labels : ndarray of shape (m,)

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        probabilities = self.predict_proba(X)  # raises NotFittedError before `fit`
        return self.classes_[np.argmax(probabilities, axis=1)]
