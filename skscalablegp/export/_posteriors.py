"""Posteriors of estimators over estimators as torch modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.posteriors import JointMoments, Moments, PosteriorModule
from ..meta import NoisePart, ScaledPosterior, ShiftedPosterior, StackedPosterior, with_tails
from ._members import (
    drawn_functions,
    posterior_functions,
    posterior_module,
    predictor_module,
)


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
    posterior : ScaledPosterior
    with_variance : bool
    """

    powers: Tensor
    level: Tensor
    extra: Tensor
    floor: Tensor

    def __init__(self, posterior: ScaledPosterior, with_variance: bool = True):
        super().__init__()
        of = posterior.scaled
        noise = of.noise
        self.inner = predictor_module(of.inner, with_variance)
        self._sees_mean, self._least = of.sees_mean, noise.least
        for name, value in (("level", noise.level), ("extra", of.extra), ("floor", of.floor)):
            self.register_buffer(name, _number(value))
        self.register_buffer("powers", _number(of.tails.powers()), persistent=False)
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


class ScaledDraws(nn.Module):
    """Draws of functions of a regressor with a noise model, (m, d) to (m, 1, s).

    Those of a regressor without any are its predictions.
    """

    def __init__(self, posterior: ScaledPosterior, n_samples: int, generator: torch.Generator):
        super().__init__()
        self.module, self._n_samples = ScaledModule(posterior), n_samples
        self.draws = drawn_functions(posterior.scaled.inner, n_samples, generator)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        if self.draws is None:
            return self.module.mean(X)[:, :, None].expand(-1, -1, self._n_samples)
        return self.module.around_mean(X, self.draws(X))


class StackedDraws(nn.Module):
    """Draws of functions of a mixture, (m, d) to (m, 1, s): each is one of a member.

    Members are chosen with their weights.
    """

    chosen: Tensor

    def __init__(self, posterior: StackedPosterior, n_samples: int, generator: torch.Generator):
        super().__init__()
        weights = torch.tensor([weight for weight, _ in posterior.parts])
        member = torch.multinomial(weights, n_samples, replacement=True, generator=generator)
        counts = torch.bincount(member, minlength=len(weights)).tolist()
        self.parts = nn.ModuleList(
            posterior_functions(part, count, generator)
            for (_, part), count in zip(posterior.parts, counts, strict=True)
            if count
        )
        # Draws are grouped by members; those of a member are exchangeable.
        self.register_buffer("chosen", torch.argsort(torch.argsort(member, stable=True)))

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        return torch.cat([part(X) for part in self.parts], 2)[:, :, self.chosen]


class StackedModule(PosteriorModule):
    """The normal distribution with the moments of a mixture.

    Parameters
    ----------
    posterior : StackedPosterior
    with_variance : bool
    """

    weights: Tensor

    def __init__(self, posterior: StackedPosterior, with_variance: bool = True):
        super().__init__()
        self.register_buffer("weights", _number([weight for weight, _ in posterior.parts]))
        parts = [posterior_module(part, with_variance) for _, part in posterior.parts]
        self.parts = nn.ModuleList(parts)

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
    posterior : ShiftedPosterior
    with_variance : bool
    """

    factor: Tensor

    def __init__(self, posterior: ShiftedPosterior, with_variance: bool = True):
        super().__init__()
        process, weight = posterior.process, posterior.weight
        self.inputs = process.input_module()
        self.below = posterior_module(process.posterior, with_variance)
        used = posterior.mean_function if weight else None
        self.mean_function = None if used is None else predictor_module(used, with_variance=False)
        # In the units of the posterior.
        self.register_buffer("factor", _number(weight / np.ravel(process.y_std)[0]))

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
    """Draws of functions of a posterior with a mean function, (m, d) to (m, 1, s)."""

    def __init__(self, posterior: ShiftedPosterior, n_samples: int, generator: torch.Generator):
        super().__init__()
        self.module = ShiftedModule(posterior, with_variance=False)
        self.draws = posterior_functions(posterior.process.posterior, n_samples, generator)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1 s"]:
        draws = self.draws(self.module.inputs(X))
        return self.module.shifted(draws.flatten(1), X)[:, None]


posterior_module.register(ScaledPosterior, ScaledModule)
posterior_module.register(StackedPosterior, StackedModule)
posterior_module.register(ShiftedPosterior, ShiftedModule)
posterior_functions.register(ScaledPosterior, ScaledDraws)
posterior_functions.register(StackedPosterior, StackedDraws)
posterior_functions.register(ShiftedPosterior, ShiftedDraws)
