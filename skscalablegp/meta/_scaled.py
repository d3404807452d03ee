"""Predictions of a regressor whose standard deviations are multiplied by a noise model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from scipy.stats import t as student
from torch import Tensor

from .._predicted import predict_std, unwrapped
from ..core import FittedProcess, LeftOut, fitted_process
from ..core.posteriors import Draws, Inputs, Moments, Posterior
from ._noise import NoiseModel

# Normal quantiles at which a fitted shape of tails is tabulated.
_NODES = np.linspace(-8, 8, 321)
# Fewer degrees of freedom have no standard deviation: at two it is infinite. Of 2.1, 2.5, 3 and 4,
# fitted to 60 to 1,000 draws of t distributions with 2 to 5 degrees of freedom, 2.5 loses at most
# 0.003 nats a row against any number, 3 loses 0.01 and 4 loses 0.029. With 2.1 the standard
# deviations of 90 % and 10 % of the fits to 60 rows differ by a factor of 3, with 2.5 by 1.7. True
# tails of 1.5 degrees lose 0.009 nats with 2.1 and 0.025 with 2.5.
_LEAST_DF = 2.5
# Divisions by the standard deviation until it is one to all digits.
_DIVISIONS = 30
# Powers of a correlation by which that of transformed errors is computed.
_POWERS = 30
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

    def standardised(self) -> tuple[Tails, float]:
        """The same shape with mean 0 and standard deviation 1, and its own standard deviation.

        A noise model that is multiplied by the second leaves quantiles and densities between the
        nodes as they were, and its standard deviations are then those of what is drawn.
        """
        tails, total = self, 1.0
        if self.name == "normal":
            return tails, total
        z = np.linspace(-38, 38, 76_001)
        weight = np.exp(-0.5 * z**2)
        weight /= weight.sum()
        # The slope beyond the nodes remains one, so that one division is not the last.
        for _ in range(_DIVISIONS):
            at = tails(z)
            mean = float(weight @ at)
            std = float(weight @ np.square(at - mean)) ** 0.5
            tails = replace(tails, values=(tails.values - mean) / std)
            total *= std
        return tails, total

    def powers(self) -> Float[np.ndarray, " k"]:
        """The coefficients c of the correlation sum_k c_k rho^k of two errors of this shape.

        Their normal quantiles have the correlation rho. By Mehler's formula c_k is the square of
        the k-th coefficient of the shape in normalised Hermite polynomials; the last one has what
        is left of 1.
        """
        if self.name == "normal":
            return np.ones(1)
        z = np.linspace(-38, 38, 76_001)
        weight = np.exp(-0.5 * z**2)
        weight *= self(z) / weight.sum()
        found, before, now = [], np.ones_like(z), z
        for k in range(1, _POWERS):
            found.append(float(weight @ now) ** 2)
            before, now = now, (z * now - k**0.5 * before) / (k + 1) ** 0.5
        return np.array([*found, max(0.0, 1 - sum(found))])

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """The log density of standardised errors whose quantiles these are."""
        rise = np.maximum(np.diff(self.values), 1e-12 * np.ptp(self.values))
        values = self.values[0] + np.append(0, np.cumsum(rise))
        slope = np.concatenate([[1.0], rise / np.diff(self.nodes), [1.0]])
        inside = np.clip(x, values[0], values[-1])
        z = np.interp(inside, values, self.nodes) + x - inside
        density = -0.5 * (np.log(2 * np.pi) + np.square(z))
        return density - np.log(slope[np.searchsorted(values, x, side="right")])

    @classmethod
    def of(cls, name: str, z: Float[np.ndarray, " n"]) -> Tails:
        """The shape fitted to standardised errors of held-out rows; normal if there are too few."""
        if name == "normal" or len(z) < 4 * _BEYOND or not np.ptp(z) > 0:
            return cls()
        if name == "student":
            df, _, scale = student.fit(z, floc=0)
            if df < _LEAST_DF:
                df, _, scale = student.fit(z, floc=0, fdf=_LEAST_DF)
            values = -np.sign(_NODES) * scale * student.ppf(ndtr(-np.abs(_NODES)), df)
            return cls(name, _NODES, values)
        end = -ndtri(_BEYOND / len(z))
        nodes = np.linspace(-end, end, 101)
        return cls(name, nodes, np.quantile(z, ndtr(nodes)))


def noise_features(
    X: Float[np.ndarray, "m d"],
    mean: Float[np.ndarray, " m"] | None,
    variance: Float[np.ndarray, " m"],
) -> Float[np.ndarray, "m q"]:
    """Features of the noise model; without a mean, the columns and the standard deviation."""
    return np.column_stack([X, *([] if mean is None else [mean]), 0.5 * np.log(variance)])


@dataclass(frozen=True)
class Scaled:
    """A fitted regressor, the noise model of its errors, and the shape of their tails.

    `extra` is added to the regressor's own variance, which is raised to `floor` if it is smaller.
    `sees_mean` says whether the mean is a feature of the noise model.
    """

    inner: Any
    noise: NoiseModel = field(default_factory=lambda: NoiseModel(0.0))
    extra: float = 0.0
    tails: Tails = field(default_factory=Tails)
    floor: float = 0.0
    sees_mean: bool = True

    def with_tails(self, tails: Tails) -> Scaled:
        """The same with a shape of tails, of whose draws its standard deviations then are."""
        tails, std = tails.standardised()
        return replace(self, noise=self.noise.times(std), tails=tails)

    def process(self, X: np.ndarray) -> tuple[FittedProcess | None, Any]:
        """The process inside any pipelines, or None, and the transformed rows."""
        core, rows = unwrapped(self.inner, X)
        return fitted_process(core), rows

    def unscaled(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Means, variances, and latent variances (the part without noise), before the factor.

        The variances are None for a regressor without any. Those of a regressor of another package
        count as noise.
        """
        process, rows = self.process(X)
        if process is not None:
            mean, latent, noise = (part[:, 0] for part in process.moments(process.validated(rows)))
            return mean, latent + noise, np.maximum(latent, 0)
        try:
            variance = predict_std(self.inner, X) ** 2
        except TypeError:  # the regressor predicts no standard deviations
            variance = None
        return np.asarray(self.inner.predict(X), np.float64), variance, np.zeros(len(X))

    def added(self, own: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """What is added to the regressor's own variances, before the factor."""
        return self.extra + np.maximum(self.floor - self.extra - own, 0)

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Means, latent variances, noise variances, and the factor of standard deviations."""
        mean, variance, latent = self.unscaled(X)
        own = np.zeros(len(X)) if variance is None else variance
        variance = own + self.added(own)
        seen = mean if self.sees_mean else None
        factor = self.noise.factor(noise_features(X, seen, variance))
        square = factor**2
        return mean, square * latent, square * np.maximum(variance - latent, 0), factor

    def left_out(self, X, y, noise_variance, rows) -> LeftOut | None:
        """Predictions of training rows without their own targets; None without a closed form."""
        process, at = self.process(X)
        return (
            None if process is None else process.left_out(np.asarray(at), y, noise_variance, rows)
        )


class ScaledPosterior(Posterior):
    """The predictions of a `Scaled` regressor, in the units of y.

    Parameters
    ----------
    scaled : Scaled
    """

    def __init__(self, scaled: Scaled):
        self.scaled = scaled
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.width = 1000

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        process, rows = self.scaled.process(X.numpy())
        if process is not None:
            return torch.as_tensor(process.mean(process.validated(rows)))
        mean = np.asarray(self.scaled.inner.predict(X.numpy()), np.float64)
        return torch.as_tensor(mean)[:, None]

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, latent, noise, _ = map(torch.as_tensor, self.scaled.moments(X.numpy()))
        return Moments(mean[:, None], latent, noise)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        """With the correlations of draws, which have the shape of the tails."""
        _, latent, noise, factor = map(torch.as_tensor, self.scaled.moments(X.numpy()))
        core, rows = unwrapped(self.scaled.inner, X.numpy())
        if fitted_process(core) is None:
            return torch.diag(latent)
        total = torch.as_tensor(core.predict(rows, return_cov=True, noise_variance=0)[1])
        total = factor[:, None] * total * factor
        powers = torch.as_tensor(self.scaled.tails.powers())
        return with_tails(total, latent, latent + noise, powers)

    @property
    def is_normal(self) -> bool:
        return self.scaled.tails.name == "normal"

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Draws of the regressor, scaled row by row, with the fitted shape of tails.

        A regressor with tails of its own counts as normal, as it does in quantiles and densities.
        """
        moments = map(torch.as_tensor, self.scaled.moments(X.numpy()))
        mean, latent, noise, factor = (part[:, None] for part in moments)
        core, rows = unwrapped(self.scaled.inner, X.numpy())
        extra = noise + latent
        draws = torch.zeros(len(X), n_samples, dtype=torch.float64)
        if (process := fitted_process(core)) is not None:
            if process.posterior.is_normal:
                drawn = core.sample_y(rows, n_samples, random_state, noise_variance=0)
            else:
                joint = core.predict(rows, return_cov=True, noise_variance=0)
                drawn = random_state.multivariate_normal(*joint, n_samples).T
            draws, own = factor * (torch.as_tensor(drawn) - mean), np.zeros(len(X))
            if self.scaled.floor > 0:
                own = self.scaled.unscaled(X.numpy())[1]
            extra = factor**2 * torch.as_tensor(self.scaled.added(own))[:, None]
        white = torch.as_tensor(random_state.standard_normal(draws.shape))
        draws = draws + extra.sqrt() * white
        if self.scaled.tails.name != "normal":
            std = (latent + noise).sqrt()
            draws = std * torch.as_tensor(self.scaled.tails((draws / std).numpy()))
        return (mean + draws)[:, None]


def with_tails(
    covariance: Float[Tensor, "*b q q"],
    latent: Float[Tensor, "*b q"],
    total: Float[Tensor, "*b q"],
    powers: Float[Tensor, " k"],
) -> Float[Tensor, "*b q q"]:
    """Covariances of observations whose normal quantiles were given the shape of tails.

    The variances remain `latent`. The correlation of two observations becomes sum_k c_k rho^k,
    which is smaller than rho unless the tails are normal.

    Parameters
    ----------
    covariance : Tensor of shape (..., q, q)
        Under normal tails.
    latent, total : Tensor of shape (..., q)
        Variances without and with noise.
    powers : Tensor of shape (k,)
        c, from the first power on.
    """
    scale = (total[..., :, None] * total[..., None, :]).sqrt()
    scale = scale.clamp_min(torch.finfo(total.dtype).tiny)
    rho, found = covariance / scale, torch.zeros_like(covariance)
    for c in powers.flip(0):
        found = (found + c) * rho
    found = scale * found
    return found + torch.diag_embed(latent - found.diagonal(dim1=-2, dim2=-1))
