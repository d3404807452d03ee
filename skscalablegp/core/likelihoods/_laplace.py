"""Laplace noise, which is robust to outliers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ._base import Likelihood, LikelihoodTerms, gamma_rule, shared_sum


class Laplace(Likelihood, name="laplace"):
    """Laplace noise, robust to outliers: y = f + e with density ``exp(-|e| / scale) / (2 scale)``.

    The noise variance is twice the squared scale. Expectations have closed forms.
    """

    log_concave = additive = True

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        scale = (noise / 2).sqrt()
        return -torch.log(2 * scale) - (y - f).abs() / scale

    def moments(self, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return f, noise

    def draw(self, f, noise, random_state):
        return f + np.sqrt(noise / 2) * random_state.laplace(size=f.shape)

    def noise_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Laplace noise is normal noise with an exponentially distributed variance."""
        return gamma_rule(1.0)

    def expected(self, Y, mean, variance, noise, generator=None):
        scale = (noise / 2).sqrt().to(mean)[:, None]
        std = torch.maximum(variance.clamp_min(0).sqrt(), 1e-6 * scale)
        u = (mean - Y) / std
        density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        tilt = torch.erf(u / math.sqrt(2))
        # The mean of |f - y|, a folded normal variable.
        folded = std * (2 * density + u * tilt)
        value = -torch.log(2 * scale) - folded / scale
        d_noise = (folded / scale - 1).sum(1) / (2 * noise).to(mean)
        d_variance = shared_sum(-density / (std * scale), variance)
        return LikelihoodTerms(value.sum(1), -tilt / scale, d_variance, d_noise)
