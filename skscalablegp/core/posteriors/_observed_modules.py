"""Latent functions behind a likelihood, as torch modules."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..likelihoods import Likelihood
from ._modules import PosteriorModule
from ._moments import Moments


class ObservedModule(PosteriorModule):
    """Moments of a target under a likelihood that is not additive.

    Parameters
    ----------
    latent : PosteriorModule
    likelihood : Likelihood
    """

    def __init__(self, latent: PosteriorModule, likelihood: Likelihood):
        super().__init__()
        self.latent, self._likelihood = latent, likelihood

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, variance, noise = self.latent.moments(X)
        total = (variance + noise)[:, None]
        at = self._likelihood.predictive(mean, total, torch.zeros_like(noise))
        return Moments(at.mean, at.variance[:, 0], at.noise[:, 0])
