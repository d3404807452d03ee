"""Draws of whole functions from posteriors, as torch modules of rows."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...features import sample_prior_features
from ...kernels import NoSpectralDensity, NotExportable, TorchKernel

# Pairs of random sines and cosines for each product of a prior draw.
PAIRS = 2000
# Rows whose covariances with training rows are in memory at a time.
_ROWS = 512


class WeightDraws(nn.Module):
    """Functions f_j(x) = phi(x)' w_j + c.

    Parameters
    ----------
    features : nn.Module
        Maps rows (m, d) to (m, q).
    weights : Tensor of shape (q, t, s)
    constant : Tensor of shape (t,), optional
        c for each target, by default zero.
    """

    weights: Tensor
    constant: Tensor

    def __init__(
        self,
        features: nn.Module,
        weights: Float[Tensor, "q t s"],
        constant: Float[Tensor, " t"] | None = None,
    ):
        super().__init__()
        self.features = features
        constant = weights.new_zeros(weights.shape[1]) if constant is None else constant
        self.register_buffer("weights", weights.detach().double().cpu())
        self.register_buffer("constant", constant.detach().double().cpu()[:, None])

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t s"]:
        drawn = (self.features(X) @ self.weights.flatten(1)).unflatten(1, self.weights.shape[1:])
        return drawn + self.constant


class MeanDraws(nn.Module):
    """Means of a module whose targets are (t, s) draws."""

    module: Any

    def __init__(self, module: nn.Module, shape: tuple[int, int]):
        super().__init__()
        self.module, self._shape = module, shape

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t s"]:
        return self.module.mean(X).unflatten(1, self._shape)


class Moved(nn.Module):
    """Draws of the prior, moved to the data by functions of a posterior (Matheron's rule).

    Parameters
    ----------
    prior : WeightDraws
    correction : nn.Module
        Maps rows (m, d) to (m, t, s).

    Notes
    -----
    Wilson et al. (2020), Efficiently sampling functions from Gaussian process posteriors.
    """

    def __init__(self, prior: WeightDraws, correction: nn.Module):
        super().__init__()
        self.prior, self.correction = prior, correction

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t s"]:
        return torch.cat([self.prior(rows) + self.correction(rows) for rows in X.split(_ROWS)])


def normal(*shape: int, generator: torch.Generator) -> Float[Tensor, "*shape"]:
    """Standard normal numbers in double precision, on the CPU."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def prior_draws(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    shape: tuple[int, int],
    generator: torch.Generator,
) -> WeightDraws:
    """Draws of the prior from random features, (t, s) functions.

    Raises
    ------
    NotExportable
        For a kernel without a spectral density.
    """
    try:
        features = sample_prior_features(kernel, kernel.n_features, PAIRS, generator, tails=True)
    except NoSpectralDensity as error:
        raise NotExportable(
            f"{error.cause}, so that its prior has no functions to draw: use sample_y at "
            "fixed rows."
        ) from None
    weights = normal(features.n_features, *shape, generator=generator)
    return WeightDraws(features.module(theta), weights)
