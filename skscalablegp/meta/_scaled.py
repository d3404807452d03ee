"""Predictions of a regressor whose standard deviations are multiplied by a noise model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from scipy.stats import t as student
from torch import Tensor

from .._predicted import predict_std, unwrapped
from ..core import GPPredictionBase
from ..core.posteriors import Draws, MeanAndVariance, Posterior, Rows
from ._noise import NoiseModel

# Normal quantiles at which a fitted shape of tails is tabulated.
_NODES = np.linspace(-8, 8, 321)
# At least this many errors lie beyond the outermost empirical quantile.
_BEYOND = 5


@dataclass(frozen=True)
class Tails:
    """Quantiles of standardised errors, as a function of normal ones.

    Attributes
    ----------
    name : str
    nodes, values : ndarray of shape (k,)
        In rising order. Beyond the ends the function continues with slope one.
    """

    name: str = "normal"
    nodes: np.ndarray = field(default_factory=lambda: np.zeros(1))
    values: np.ndarray = field(default_factory=lambda: np.zeros(1))

    def __call__(self, z: np.ndarray) -> np.ndarray:
        inside = np.clip(z, self.nodes[0], self.nodes[-1])
        return np.interp(inside, self.nodes, self.values) + z - inside

    @classmethod
    def of(cls, name: str, z: Float[np.ndarray, " n"]) -> Tails:
        """The shape fitted to standardised errors of left-out rows; normal if there are too few."""
        if name == "normal" or len(z) < 4 * _BEYOND or not np.ptp(z) > 0:
            return cls()
        if name == "student":
            df, _, scale = student.fit(z, floc=0)
            values = -np.sign(_NODES) * scale * student.ppf(ndtr(-np.abs(_NODES)), df)
            return cls(name, _NODES, values)
        end = -ndtri(_BEYOND / len(z))
        nodes = np.linspace(-end, end, 101)
        return cls(name, nodes, np.quantile(z, ndtr(nodes)))


def noise_features(
    X: Float[np.ndarray, "m d"], mean: Float[np.ndarray, " m"], variance: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "m q"]:
    """Features of the noise model."""
    return np.column_stack([X, mean, 0.5 * np.log(variance)])


@dataclass(frozen=True)
class Scaled:
    """A fitted regressor, the noise model of its errors, and the shape of their tails.

    `extra` is added to the regressor's own variance.
    """

    inner: Any
    noise: NoiseModel = field(default_factory=lambda: NoiseModel(0.0))
    extra: float = 0.0
    tails: Tails = field(default_factory=Tails)

    def core(self, X: np.ndarray) -> tuple[GPPredictionBase | None, np.ndarray]:
        """The regressor of this package inside any pipelines, or None, and the transformed rows."""
        core, X = unwrapped(self.inner, X)
        return core if isinstance(core, GPPredictionBase) else None, X

    def below(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Means, variances, and latent variances (the part without noise), before the factor.

        The variances are None for a regressor without any. Those of a regressor of another package
        count as noise.
        """
        core, rows = self.core(X)
        if core is not None:
            posterior, square = core._posterior(), np.square(core._y_train_std)
            parts = []
            for _, part in core._chunks(core._rows(rows)):
                # One object for all three calls, because posteriors may cache results for the last
                # rows.
                mean, latent = posterior.mean_and_variance(part)
                parts.append(
                    [a.cpu().double().numpy() for a in (mean, latent, posterior.noise(part))]
                )
            core._warn_of_solves()
            mean, latent, noise = map(np.concatenate, zip(*parts, strict=True))
            return core._own_units(mean), square * (latent + noise), square * np.maximum(latent, 0)
        try:
            variance = predict_std(self.inner, X) ** 2
        except TypeError:  # the regressor predicts no standard deviations
            variance = None
        return np.asarray(self.inner.predict(X), np.float64), variance, np.zeros(len(X))

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Means, latent variances, noise variances, and the factor of standard deviations."""
        mean, variance, latent = self.below(X)
        variance = (0 if variance is None else variance) + np.full(len(X), self.extra)
        factor = self.noise.factor(noise_features(X, mean, variance))
        square = factor**2
        return mean, square * latent, square * np.maximum(variance - latent, 0), factor

    def left_out(self, X, y, noise_variance, rows):
        """Closed-form predictions of left-out training rows; None if there is no closed form."""
        core, at = self.core(X)
        return None if core is None else core._left_out(np.asarray(at), y, noise_variance, rows)


class ScaledPosterior(Posterior):
    """The predictions of a `Scaled` regressor, in the units of y.

    Parameters
    ----------
    scaled : Scaled
    """

    def __init__(self, scaled: Scaled):
        self._scaled = scaled
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.width = 1000
        # The last rows and their moments, because mean, variance and noise are requested in turn.
        self._last: tuple[Any, Any] = (None, None)

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        rows, moments = self._last
        if rows is not X:
            moments = tuple(map(torch.as_tensor, self._scaled.moments(X.numpy())))
            self._last = (X, moments)
        return moments

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        mean = np.asarray(self._scaled.inner.predict(X.numpy()), np.float64)
        return torch.as_tensor(mean)[:, None]

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        mean, latent, _, _ = self._moments(X)
        return mean[:, None], latent

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._moments(X)[2]

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        _, latent, _, factor = self._moments(X)
        core, rows = self._scaled.core(X.numpy())
        if core is None:
            return torch.diag(latent)
        total = torch.as_tensor(core.predict(rows, return_cov=True, noise_variance=0)[1])
        total = factor[:, None] * total * factor
        total.diagonal().copy_(latent)
        return total

    def quantiles(self, X, q, include_noise, known):
        if self._scaled.tails.name == "normal" or not include_noise:
            return super().quantiles(X, q, include_noise, known)
        mean, latent, noise, _ = (part.numpy()[:, None] for part in self._moments(X))
        std = np.sqrt(latent + noise + (0 if known is None else known))
        return mean[..., None] + std[..., None] * self._scaled.tails(ndtri(q))

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Draws of the regressor, scaled row by row, with the fitted shape of tails."""
        mean, latent, noise, factor = (part[:, None] for part in self._moments(X))
        core, rows = self._scaled.core(X.numpy())
        extra = noise + latent
        draws = torch.zeros(len(X), n_samples, dtype=torch.float64)
        if core is not None:
            drawn = core.sample_y(rows, n_samples, random_state, noise_variance=0)
            draws, extra = factor * (torch.as_tensor(drawn) - mean), factor**2 * self._scaled.extra
        white = torch.as_tensor(random_state.standard_normal(draws.shape))
        draws = draws + extra.sqrt() * white
        if self._scaled.tails.name != "normal":
            std = (latent + noise).sqrt()
            draws = std * torch.as_tensor(self._scaled.tails((draws / std).numpy()))
        return (mean + draws)[:, None]
