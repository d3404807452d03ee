"""Rows that are added to a fitted deep kernel."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from torch.distributions import LowRankMultivariateNormal

from ...core import ExactProcess, MinibatchGPRegressorBase
from ...core.data import Table
from ...core.likelihoods import Gaussian
from ...core.posteriors import FeatureWeights, inverse_root


class FurtherRows(MinibatchGPRegressorBase):
    """A deep kernel to which rows are added, with or without training."""

    # A uniform sample of the rows so far, in their own units, with known noise in the model's.
    _kept: Any

    def _joined(self, X: np.ndarray, Y: np.ndarray, noise_variance: Any) -> tuple:
        """The rows of a fit without a network and further rows, in their own units."""
        rows, targets, noise = self._kept
        if noise_variance is not None or noise.any():
            given = np.broadcast_to(0.0 if noise_variance is None else noise_variance, len(X))
            noise_variance = np.append(noise * self._scaling.y_scale[0] ** 2, given)
        return np.concatenate([rows, X]), np.concatenate([targets, Y]), noise_variance

    def _with_rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> Any:
        """As in the base class: no feature and no unit changes, as ``partial_fit`` would."""
        other, scaling = copy(self), self._scaling
        known = other._known_noise(noise_variance, len(X), scaling, Gaussian(), reset=False)
        targets = (y.reshape(len(X), -1) - scaling.y_mean) / scaling.y_scale
        rows, posterior = self._inputs(X), self._posterior()
        other.n_samples_seen_ += len(X)
        if self._exact is not None:
            more = Table(rows.cpu().numpy(), targets, scaling.y_mean, scaling.y_scale, known)
            joined = ExactProcess(self._exact.table.joined(more), self._exact.kernel)
            other._kept = tuple(
                map(np.append, self._kept, (X, y.reshape(len(X), -1), known), (0, 0, 0))
            )
            other._keep_exactly(joined)
            return other
        noise = posterior.noise(rows) + torch.as_tensor(known, device=rows.device)
        phi, Y = posterior._phi(rows), torch.as_tensor(targets, device=rows.device)
        before = FeatureWeights.of(self, rows.device)
        weights = before.given(phi, Y, noise)
        predicted = (phi @ before.mean).T, phi @ inverse_root(before.factor), noise
        density = LowRankMultivariateNormal(*predicted).log_prob(Y.T)
        other.log_marginal_likelihood_value_ += float(density.sum())
        other.coef_ = weights.mean.cpu().numpy()
        other.coef_precision_cholesky_ = weights.factor.cpu().numpy()
        other._remember(None)
        return other
