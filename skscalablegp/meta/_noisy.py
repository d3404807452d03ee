"""Predictions of a regressor whose errors on held-out rows have given a noise model and tails."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from ..core import FitRun
from ..core.posteriors import Posterior
from ._below import MetaRegressorBase
from ._scaled import Scaled, ScaledPosterior, Tails

# Probabilities of the quantiles at which shapes of tails are compared, and weights of their losses.
# Outer quantiles tell shapes apart, which inner ones hardly do. On 25 tables of 300 uniform errors
# equal weights, and a single half to judge by, left 9 with normal or Student's tails, whose 95 %
# intervals hold every row; with these weights and both halves 3 were left, and of 600 errors none.
_LEVELS = np.arange(0.5, 100) / 100
_LEVEL_WEIGHTS = np.square(2 * _LEVELS - 1)
# Factors of the losses, so that a shape with more freedom must gain more: normal errors then keep
# normal tails, and uniform ones are still recognised (tests/meta/test_heteroscedastic.py).
_HANDICAPS = {"normal": 1.0, "student": 1.0025, "empirical": 1.005}


class NoisyRegressorBase(MetaRegressorBase):
    """A regressor that predicts by a `Scaled` one, which ``fit`` stores in ``_learned``."""

    _learned: Scaled

    def _keep(self, scaled: Scaled) -> None:
        """Make a scaled regressor, which predicts in the units of y, the fitted model."""
        self._learned = scaled
        self._y_train_mean, self._y_train_std = np.float64(0), np.float64(1)
        self._remember(self._build_posterior())

    def _best_tails(self, z: np.ndarray, run: FitRun, given: str = "auto") -> Tails:
        """The shape of the standardised errors `z`: the `given` one, or the one that suits best.

        "auto" fits each shape to each half of the errors, and compares their quantiles on the other
        half by a CRPS in which outer quantiles have more weight.
        """
        if given != "auto":
            tails = Tails.of(given, z)
            if tails.name != given:
                run.ignores("tails", f"{len(z)} errors are too few, or too similar, for this")
            return tails
        order = run.random_state.permutation(len(z))
        halves = z[order[::2]], z[order[1::2]]
        losses = dict.fromkeys(_HANDICAPS, 0.0)
        for fitted, new in (halves, halves[::-1]):
            for name in losses:
                beyond = new[:, None] - Tails.of(name, fitted)(ndtri(_LEVELS))
                each = np.maximum(_LEVELS * beyond, (_LEVELS - 1) * beyond)
                losses[name] += np.mean(_LEVEL_WEIGHTS * each)
        best = min(losses, key=lambda name: _HANDICAPS[name] * losses[name])
        why = "the lowest tail-weighted CRPS of held-out rows"
        return Tails.of(run.chose("tails", best, why), z)

    def _leaves_out(self) -> str:
        return ""

    def _build_posterior(self) -> Posterior:
        return ScaledPosterior(self._learned)

    def _std(self, X: np.ndarray, include_noise: bool, known: Any) -> np.ndarray:
        self._check_latent(X, include_noise)
        return super()._std(X, include_noise, known)

    def _quantiles(
        self, X: np.ndarray, q: np.ndarray, include_noise: bool, noise_variance: Any
    ) -> np.ndarray:
        self._check_latent(X, include_noise)
        tails = self._learned.tails
        if tails.name == "normal" or not include_noise:
            return super()._quantiles(X, q, include_noise, noise_variance)
        known = self._new_noise(noise_variance, X)
        mean, std = self._mean_and_std(X, known)
        return (mean[:, None] + std[:, None] * tails(ndtri(q)))[:, None]

    def _log_density(self, X: np.ndarray, Y: np.ndarray, noise_variance: Any) -> np.ndarray:
        tails = self._learned.tails
        if tails.name == "normal":
            return super()._log_density(X, Y, noise_variance)
        known = self._new_noise(noise_variance, X)
        mean, std = self._mean_and_std(X, known)
        std = np.maximum(std, np.finfo(np.float64).tiny)
        return (tails.log_density((Y[:, 0] - mean) / std) - np.log(std))[:, None]

    def _check_latent(self, X: np.ndarray, include_noise: bool) -> None:
        """Refuse uncertainty without noise where the regressor does not separate the two."""
        if not include_noise and self._learned.process(X[:1])[0] is None:
            raise ValueError(
                f"{type(self._learned.inner).__name__} cannot leave the noise out: use "
                "include_noise=True, or a regressor of skscalablegp."
            )
