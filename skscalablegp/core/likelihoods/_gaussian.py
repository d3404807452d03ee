"""Gaussian noise."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ._base import Likelihood, LikelihoodTerms


class Gaussian(Likelihood, name="gaussian"):
    """Gaussian noise: y = f + e with e ~ N(0, noise).

    All targets have the same noise, and therefore the same posterior covariance of f.
    """

    log_concave = additive = conjugate = True

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return -0.5 * (torch.log(2 * math.pi * noise) + (y - f).square() / noise)

    def moments(self, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return f, noise

    def draw(self, f, noise, random_state):
        return f + np.sqrt(noise) * random_state.standard_normal(f.shape)

    def noise_scales(self) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(1), np.ones(1)

    def expected(self, Y, mean, variance, noise, generator=None):
        t, noise = Y.shape[1], noise.to(mean)
        residual = Y - mean
        second = residual.square().sum(1) + t * variance[:, 0]
        value = -0.5 * (t * torch.log(2 * math.pi * noise) + second / noise)
        return LikelihoodTerms(
            value,
            residual / noise[:, None],
            (-0.5 * t / noise)[:, None],
            0.5 * (second / noise - t) / noise,
        )
