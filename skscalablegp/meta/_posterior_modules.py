"""Posteriors of estimators over estimators as torch modules."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..core.likelihoods import towards_shares
from ..core.posteriors import JointMoments, Moments, PosteriorModule
from ._modules import PredictorModule, predictor_module, probability_module
from ._noise import NoiseModel, NoisePart


def _number(value: Any) -> Tensor:
    """A buffer: ONNX files have Python's numbers in single precision."""
    return torch.as_tensor(value, dtype=torch.float64)


class NoisePartModule(nn.Module):
    """The logarithms that a part of a noise model adds: features (m, q) to (m,)."""

    power: Tensor

    def __init__(self, part: NoisePart):
        super().__init__()
        self.below = predictor_module(part.regressor, with_variance=False)
        self._log_link, self._ends = part.log_link, part.ends
        self.register_buffer("power", _number(part.power))

    def forward(self, F: Float[Tensor, "m q"]) -> Float[Tensor, " m"]:
        predicted = self.below.mean(F)
        logs = torch.log(predicted) if self._log_link else predicted
        return self.power * logs.clamp(*self._ends)


class ScaledModule(PosteriorModule):
    """A regressor whose standard deviations are multiplied by a noise model.

    Parameters
    ----------
    inner : regressor
        Fitted.
    noise : NoiseModel
    extra, floor : float
        What is added to the regressor's own variances, and the smallest sum.
    sees_mean : bool
        Whether the mean is a feature of the noise model.
    powers : ndarray of shape (k,)
        The shape of the tails: see `with_tails`.
    with_variance : bool
    """

    powers: Tensor
    level: Tensor
    extra: Tensor
    floor: Tensor

    def __init__(
        self,
        inner: Any,
        noise: NoiseModel,
        extra: float,
        floor: float,
        sees_mean: bool,
        powers: Any,
        with_variance: bool,
    ):
        super().__init__()
        self.inner = predictor_module(inner, with_variance)
        self._sees_mean, self._least = sees_mean, noise.least
        for name, value in (("level", noise.level), ("extra", extra), ("floor", floor)):
            self.register_buffer(name, _number(value))
        self.register_buffer("powers", _number(powers), persistent=False)
        parts = noise.parts if with_variance else ()
        self.parts = nn.ModuleList([NoisePartModule(part) for part in parts])

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return self.inner.mean(X)[:, None]

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, variance, latent, square = self._factored(X)
        return Moments(mean[:, None], square * latent, square * (variance - latent).clamp_min(0))

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        sets = X.shape[:2]
        mean, variance, latent, square = (
            part.unflatten(0, sets) for part in self._factored(X.flatten(0, 1))
        )
        factor, noise = square.sqrt(), square * (variance - latent).clamp_min(0)
        total = factor[:, :, None] * self.inner.covariance(X) * factor[:, None]
        total = with_tails(total, square * latent, square * latent + noise, self.powers)
        return JointMoments(mean[:, :, None], total, noise)

    def around_mean(
        self, X: Float[Tensor, "m d"], draws: Float[Tensor, "m 1 s"]
    ) -> Float[Tensor, "m 1 s"]:
        """Draws of the regressor, with the noise model's factor of their distance from the mean."""
        mean, _, _, square = self._factored(X)
        mean = mean[:, None, None]
        return mean + square.sqrt()[:, None, None] * (draws - mean)

    def _factored(self, X: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means, variances and latent variances before the factor, and its square."""
        mean, own, latent = self.inner.moments(X)
        own = torch.zeros_like(mean) if own is None else own
        variance = own + self.extra + (self.floor - self.extra - own).clamp_min(0)
        logs = torch.zeros_like(mean) + self.level
        if len(self.parts):
            seen = [mean[:, None]] if self._sees_mean else []
            F = torch.cat([X, *seen, 0.5 * variance.log()[:, None]], 1)
            for part in self.parts:
                logs = logs + part(F)
            if math.isfinite(self._least):
                logs = torch.maximum(logs, self._least - variance.log())
        return mean, variance, latent, logs.exp()


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


class ScaledDraws(nn.Module):
    """Draws of functions of a regressor with a noise model, (m, d) to (m, 1, s).

    Parameters
    ----------
    module : ScaledModule
    draws : nn.Module or None
        Draws of the regressor; those of a regressor without any are its predictions.
    n_samples : int
    """

    def __init__(self, module: ScaledModule, draws: nn.Module | None, n_samples: int):
        super().__init__()
        self.module, self.draws, self._n_samples = module, draws, n_samples

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        if self.draws is None:
            return self.module.mean(X)[:, :, None].expand(-1, -1, self._n_samples)
        return self.module.around_mean(X, self.draws(X))


class StackedDraws(nn.Module):
    """Draws of functions of a mixture, (m, d) to (m, 1, s): each is one of a member.

    Parameters
    ----------
    parts : list of nn.Module
        Draws of the members that were chosen.
    chosen : Tensor of shape (s,)
        The place of each draw among those of all parts, one part after the other.
    """

    chosen: Tensor

    def __init__(self, parts: list[nn.Module], chosen: Int64[Tensor, " s"]):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("chosen", chosen)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        return torch.cat([part(X) for part in self.parts], 2)[:, :, self.chosen]


class StackedModule(PosteriorModule):
    """The normal distribution with the moments of a mixture.

    Parameters
    ----------
    parts : list of tuple of float and PosteriorModule
        Weights and members.
    """

    weights: Tensor

    def __init__(self, parts: list[tuple[float, PosteriorModule]]):
        super().__init__()
        self.register_buffer("weights", _number([weight for weight, _ in parts]))
        self.parts = nn.ModuleList([part for _, part in parts])

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        means = [part.mean(X) for part in self.parts]
        return sum(weight * mean for weight, mean in zip(self.weights, means, strict=True))

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        each = [part.moments(X) for part in self.parts]
        weighted = list(zip(self.weights, each, strict=True))
        mean = sum(weight * one.mean for weight, one in weighted)
        variance = sum(
            weight * (one.variance + (one.mean - mean)[:, 0].square()) for weight, one in weighted
        )
        return Moments(mean, variance, sum(weight * one.noise for weight, one in weighted))

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        each = [part.joint(X) for part in self.parts]
        weighted = list(zip(self.weights, each, strict=True))
        mean = sum(weight * one.mean for weight, one in weighted)
        total = sum(
            weight * (one.covariance + (one.mean - mean) @ (one.mean - mean).mT)
            for weight, one in weighted
        )
        return JointMoments(mean, total, sum(weight * one.noise for weight, one in weighted))


class ShiftedModule(PosteriorModule):
    """A posterior with the predictions of a regressor added to its mean.

    Parameters
    ----------
    inputs : nn.Module
        Maps rows to those of the posterior.
    below : PosteriorModule
    mean_function : PredictorModule or None
    factor : float
        Of its predictions, in the units of the posterior.
    """

    factor: Tensor

    def __init__(
        self,
        inputs: nn.Module,
        below: PosteriorModule,
        mean_function: PredictorModule | None,
        factor: float,
    ):
        super().__init__()
        self.inputs, self.below, self.mean_function = inputs, below, mean_function
        self.register_buffer("factor", _number(factor))

    def shifted(self, mean: Float[Tensor, "m t"], X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        """Values of the posterior at rows, with the mean function added."""
        if self.mean_function is None:
            return mean
        return mean + self.factor * self.mean_function.mean(X)[:, None]

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return self.shifted(self.below.mean(self.inputs(X)), X)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        moments = self.below.moments(self.inputs(X))
        return moments._replace(mean=self.shifted(moments.mean, X))

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        sets, rows = X.shape[:2], X.flatten(0, 1)
        moments = self.below.joint(self.inputs(rows).unflatten(0, sets))
        mean = self.shifted(moments.mean.flatten(0, 1), rows).unflatten(0, sets)
        return moments._replace(mean=mean)


class ShiftedDraws(nn.Module):
    """Draws of functions of a posterior with a mean function, (m, d) to (m, 1, s).

    Parameters
    ----------
    module : ShiftedModule
    draws : nn.Module
        Draws of the posterior, from its own rows.
    """

    def __init__(self, module: ShiftedModule, draws: nn.Module):
        super().__init__()
        self.module, self.draws = module, draws

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        draws = self.draws(self.module.inputs(X))
        return self.module.shifted(draws.flatten(1), X)[:, None]


class PooledClasses(nn.Module):
    """Weighted probabilities of classifiers, towards the classes' shares: rows (m, d) to (m, c).

    Parameters
    ----------
    members : list of classifier
        Fitted; their classes are numbers below c.
    weights : sequence of float
    shares : ndarray of shape (c,)
    temperature : float
        One over the power of `towards_shares`.
    least : float
        Smaller probabilities count as this one.
    """

    shares: Tensor

    def __init__(
        self, members: list[Any], weights: Any, shares: Any, temperature: float, least: float
    ):
        super().__init__()
        self.parts = nn.ModuleList([probability_module(member) for member in members])
        self._least, self._power = float(least), 1 / float(temperature)
        self.register_buffer("shares", torch.tensor(shares, dtype=torch.float64))
        for k, (member, weight) in enumerate(zip(members, weights, strict=True)):
            # A fit may have lacked rows of some classes.
            places = torch.eye(len(shares), dtype=torch.float64)[torch.as_tensor(member.classes_)]
            self.register_buffer(f"places{k}", float(weight) * places)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        pooled = sum(part(X) @ getattr(self, f"places{k}") for k, part in enumerate(self.parts))
        return towards_shares(pooled.clamp_min(self._least), self.shares, self._power)
