"""A posterior plus constants."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ._base import Draws, Inputs, Posterior
from ._modules import PosteriorModule
from ._moments import Moments


def shifted(posterior: Posterior, constant: Float[np.ndarray, " t"] | None) -> Posterior:
    """The posterior of functions plus constants, of which None is zero."""
    return posterior if constant is None else ShiftedPosterior(posterior, constant)


class ShiftedPosterior(Posterior):
    """A posterior of functions without additive noise, plus constants.

    Parameters
    ----------
    below : Posterior
    constant : ndarray of shape (t,)
    """

    def __init__(self, below: Posterior, constant: Float[np.ndarray, " t"]):
        self.below, self.likelihood, self.width = below, below.likelihood, below.width
        self.dtype, self.device = below.dtype, below.device
        self.constant = torch.as_tensor(constant).to(below.device, below.dtype)

    def mean(self, X: Inputs) -> Float[Tensor, "m t"]:
        return self.below.mean(X) + self.constant

    def moments(self, X: Inputs) -> Moments:
        mean, *others = self.below.moments(X)
        return Moments(self.constant + mean, *others)

    def variance(self, X: Inputs) -> Float[Tensor, " m"]:
        return self.below.variance(X)

    def learned_variance(self, X: Inputs) -> Float[Tensor, " m"]:
        return self.below.learned_variance(X)

    def noise(self, X: Inputs) -> Float[Tensor, " m"]:
        return self.below.noise(X)

    def covariance(self, X: Inputs) -> Float[Tensor, "m m"]:
        return self.below.covariance(X)

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        draws = self.below.sample(X, n_samples, random_state)
        return draws + self.constant.to(draws)[:, None]

    def module(self, with_variance: bool = True) -> ShiftedModule:
        return ShiftedModule(self.below.module(with_variance), self.constant)


class ShiftedModule(PosteriorModule):
    """`ShiftedPosterior` as a torch module."""

    constant: Tensor

    def __init__(self, below: PosteriorModule, constant: Float[Tensor, " t"]):
        super().__init__()
        self.below = below
        self.register_buffer("constant", constant.detach().double().cpu().clone())

    def mean(self, X: Inputs) -> Float[Tensor, "m t"]:
        return self.below.mean(X) + self.constant

    def moments(self, X: Inputs) -> Moments:
        mean, *others = self.below.moments(X)
        return Moments(mean + self.constant, *others)
