"""Exact passes over the rows: the best noise, amplitude and weights for given features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...core.data import RowSource
from ...linalg.gradients import Rows
from ...workers import Workers
from ._features import DeepFeatures
from ._objective import (
    FeatureMoments,
    WeightSpaceEvaluation,
    best_scales,
    feature_moments,
    held_out_noise,
    weight_space_likelihood,
)
from ._rows import DeepRows

# Number of rows that an exact pass evaluates at a time. Their features take some dozen megabytes.
_PASS_ROWS = 4096
# Number of rows of a search for the noise in addition to known noise, and the range of later
# searches, in logarithms.
_SEARCH_ROWS = 8192
_SEARCH_WIDTH = 2.0


@dataclass(frozen=True, eq=False)
class NoiseSearch:
    """The range in which exact passes look for the noise variance.

    Attributes
    ----------
    noise : float
        The current noise variance.
    bounds : tuple of float
    near : bool
        Whether searches over several passes stay near the current one.
    """

    noise: float
    bounds: tuple[float, float]
    near: bool

    def best(self, loss: Callable[[float], float]) -> float:
        """The noise variance, in addition to the known one, with the smallest loss.

        Every evaluation is a pass over some rows, because moments do not simply scale with the
        noise if the known noise differs between rows.
        """
        low, high = (math.log(bound) for bound in self.bounds)
        if self.near:
            now = math.log(self.noise)
            low, high = max(low, now - _SEARCH_WIDTH), min(high, now + _SEARCH_WIDTH)
        if low >= high:
            return math.exp(high)
        best = minimize_scalar(
            lambda log_noise: loss(math.exp(log_noise)),
            bounds=(low, high),
            method="bounded",
            options={"xatol": 0.02, "maxiter": 12 if self.near else 25},
        )
        return math.exp(best.x)


@dataclass(frozen=True, eq=False)
class Settled:
    """The result of an exact pass.

    Attributes
    ----------
    tensors : list of Tensor
        The features' parameters.
    noise : float
        s2.
    moments : FeatureMoments
        Moments of these features.
    evaluation : WeightSpaceEvaluation
        Evaluation at this noise variance.
    """

    tensors: list[Tensor]
    noise: float
    moments: FeatureMoments
    evaluation: WeightSpaceEvaluation

    @classmethod
    def at(cls, tensors: list[Tensor], noise: float, moments: FeatureMoments) -> Settled:
        return cls(tensors, noise, moments, weight_space_likelihood(moments, noise))


@dataclass(frozen=True, eq=False)
class ExactPass:
    """Passes over the rows, in which nothing changes.

    Attributes
    ----------
    features : DeepFeatures
    rows : RowSource
    n : int or float
        Number of rows of the whole table, of which `rows` may be a random part.
    dtype : torch.dtype
        Precision of the features; their products are in float64.
    """

    features: DeepFeatures
    rows: RowSource
    n: int | float
    dtype: torch.dtype

    @cached_property
    def _work(self) -> Workers:
        return self.rows.work.put(DeepRows, self.features)

    def moments(self, tensors: list[Tensor], noise: float) -> FeatureMoments:
        """The exact moments at a noise variance, scaled to n rows."""
        sent = [tensor.detach() for tensor in tensors]
        found = self._work.sum(_moments_of, noise, self.dtype, *sent)
        square, n, log_scale = found[2].tolist()
        moments = FeatureMoments(found[0], found[1], square, n, log_scale)
        return moments if moments.n == self.n else moments.extended(self.n)

    def settle(
        self, tensors: list[Tensor], moments: FeatureMoments, search: NoiseSearch, held_out: bool
    ) -> Settled:
        """The best noise, amplitude and weights for these features and their moments.

        Beside known noise, held-out rows choose the noise later if there are any.
        """
        theta, white = tensors[self.features.theta_at].detach(), self.features.white
        noise, bounds = search.noise, search.bounds
        amplitudes = self.features.amplitude_bounds(theta)
        if self.rows.noisy:
            if not held_out:
                some = self._some()
                noise = search.best(lambda s2: -some._likelihood(tensors, s2, amplitudes))
                moments = self.moments(tensors, noise)
            bounds = (noise, noise)
        noise, amplitude = best_scales(moments, noise, bounds, amplitudes)
        tensors = list(tensors)
        if self.features.amplitude_at is not None:
            theta = theta.clone()
            theta[self.features.amplitude_at] += math.log(amplitude)
            # A constant that multiplies white noise, too, moves its bounds.
            low, high = white.bounds(theta)
            noise = min(max(noise, low), high)
        tensors[self.features.theta_at] = white.moved(theta, noise)
        return Settled.at(tensors, noise, moments.scaled(amplitude))

    def _some(self) -> ExactPass:
        """Passes over at most `_SEARCH_ROWS` rows."""
        if len(self.rows) <= _SEARCH_ROWS:
            return self
        some = np.linspace(0, len(self.rows) - 1, _SEARCH_ROWS).astype(int)
        return replace(self, rows=self.rows.subset(some))

    def _likelihood(
        self, tensors: list[Tensor], noise: float, amplitudes: tuple[float, float]
    ) -> float:
        """Log marginal likelihood at a noise variance and the best amplitude for it."""
        moments = self.moments(tensors, noise)
        _, amplitude = best_scales(moments, noise, (noise, noise), amplitudes)
        return weight_space_likelihood(moments.scaled(amplitude), noise).value

    def held_out_noise(
        self,
        tensors: list[Tensor],
        moments: FeatureMoments | None,
        search: NoiseSearch,
        held_out: RowSource,
    ) -> tuple[float, float, FeatureMoments]:
        """The noise that maximises the likelihood of held-out rows, their mean negative log density
        and the moments of the training rows at this noise.

        `moments` are those at the noise of the search. With known noise they are needed only if the
        bounds leave no choice.
        """
        sent = [tensor.detach() for tensor in tensors]
        rows = held_out.work.put(_held_out_rows, self.features, *sent)
        if not held_out.noisy:
            return *held_out_noise(moments, rows, search.bounds), moments
        noise, some = search.noise, self._some()
        if search.bounds[0] < search.bounds[1]:
            noise = search.best(
                lambda s2: held_out_noise(some.moments(tensors, s2), rows, (s2, s2))[1]
            )
            moments = self.moments(tensors, noise)
        return noise, held_out_noise(moments, rows, (noise, noise))[1], moments


# ---------------------------------------------------------------- of the rows at hand


def _moments_of(
    rows: DeepRows, noise: float, dtype: torch.dtype, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """The fields of `FeatureMoments`: the matrices, and a tensor of the numbers."""
    blocks = rows.source.blocks(_PASS_ROWS)
    found = feature_moments(blocks, lambda X: rows.features(tensors, X.to(dtype)), noise)
    numbers = found.gram.new_tensor([found.square, found.n, found.log_scale])
    return found.gram, found.cross, numbers


@torch.no_grad()
def _held_out_rows(source: RowSource, features: DeepFeatures, *tensors: Tensor) -> Rows:
    """Held-out rows with their features in place of the inputs."""
    blocks = source.blocks(_PASS_ROWS)
    parts = [replace(rows, X=features(tensors, rows.X)).to(torch.float64) for rows in blocks]
    joined = (torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0]))
    return Rows(*joined)
