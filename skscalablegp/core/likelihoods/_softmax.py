"""The likelihood of several classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..._validation import check_integer
from ._base import Likelihood, LikelihoodTerms
from ._shares import class_shares


class Softmax(Likelihood, name="softmax"):
    """The likelihood of c classes with c latent functions.

    The probability p(y = k | f) is exp(f_k) / sum_j exp(f_j).

    The expectation of the logarithm of the sum has no closed form. It is estimated by a mean over
    draws of f, in pairs of opposite sign.

    Parameters
    ----------
    n_samples : int, default=16
        Number of draws of f for each row of a batch.
    """

    log_concave = classes = True

    def __init__(self, n_samples: int = 16):
        self.n_samples = n_samples

    def n_latent(self, n_outputs: int) -> int:
        return n_outputs

    def constant(self, Y, n_outputs, counts=None):
        """The logarithms of the classes' shares, with one more row divided among them."""
        return torch.as_tensor(np.log(class_shares(Y[:, 0], n_outputs, counts)))

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """log p(y | f); the latent functions are along the second axis."""
        return torch.log_softmax(f, 1).gather(1, y.long())

    def expected(self, Y, mean, variance, noise, generator=None):
        half = max(check_integer("n_samples", self.n_samples) // 2, 1)
        eps = torch.randn(half, *mean.shape, generator=generator, dtype=torch.float64)
        eps = torch.cat([eps, -eps]).to(mean)
        f = mean + variance.clamp_min(0).sqrt() * eps
        log_sum = torch.logsumexp(f, 2)
        p = torch.exp(f - log_sum[:, :, None])
        chosen = Y.long()
        observed = torch.zeros_like(mean).scatter_(1, chosen, 1.0)
        return LikelihoodTerms(
            mean.gather(1, chosen)[:, 0] - log_sum.mean(0),
            observed - p.mean(0),
            -0.5 * (p * (1 - p)).mean(0),
            torch.zeros_like(noise),
        )

    def probabilities(self, mean, variance, n_classes, draws=None):
        """Mean of the softmax over the given standard normal draws."""
        f = mean[:, None] + variance.clamp_min(0).sqrt()[:, None] * draws
        return torch.softmax(f, 2).mean(1)
