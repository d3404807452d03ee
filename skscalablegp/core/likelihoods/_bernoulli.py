"""The likelihood of two classes."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import logit, ndtri
from torch import Tensor

from ._base import Likelihood
from ._shares import class_shares


class Bernoulli(Likelihood, name="bernoulli"):
    """The likelihood of two classes, 0 and 1, with one latent function.

    Parameters
    ----------
    link : {"logit", "probit"}, default="logit"
        p(y = 1 | f) is 1 / (1 + exp(-f)) for "logit", and the standard normal distribution function
        of f for "probit".
    n_nodes : int, default=32
        Number of nodes of the Gauss-Hermite quadrature.
    """

    log_concave = classes = True

    def __init__(self, link: str = "logit", *, n_nodes: int = 32):
        self.link = link
        self.n_nodes = n_nodes

    def n_latent(self, n_outputs: int) -> int:
        if n_outputs > 2:
            raise ValueError(
                f"A Bernoulli likelihood has two classes, but y has {n_outputs}: use "
                "likelihood='softmax'."
            )
        if self.link not in ("logit", "probit"):
            raise ValueError(f"link must be 'logit' or 'probit', got {self.link!r}.")
        return 1

    def start_targets(self, Y: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        return 2 * Y - 1

    def constant(self, Y, n_outputs, counts=None):
        """The log odds, or the probits, of the shares of class 1, with one more row in halves.

        There is one for each column of targets, such as those of a class against the others.
        """
        share = np.array([class_shares(y, 2, counts)[1] for y in Y.T])
        return torch.as_tensor(logit(share) if self.link == "logit" else ndtri(share))

    def curvature(self, Y: Float[Tensor, "n t"], noise: Float[Tensor, " n"]) -> float:
        """The largest value for a logit, and the value at zero for a probit."""
        return 0.25 if self.link == "logit" else 2 / math.pi

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return self.derivatives(y, f, noise)[0]

    def derivatives(self, y, f, noise):
        """Derivatives in closed form; the sign turns class 0 into class 1."""
        sign = 2 * y - 1
        g, none = sign * f, torch.zeros_like(f)
        if self.link == "logit":
            p = torch.sigmoid(g)
            value = torch.nn.functional.logsigmoid(g)
            return value, sign * torch.sigmoid(-g), -p * (1 - p), none
        value = torch.special.log_ndtr(g)
        slope = torch.exp(-0.5 * g.square() - 0.5 * math.log(2 * math.pi) - value)
        return value, sign * slope, -slope * (g + slope), none

    def moments(self, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(f) if self.link == "logit" else torch.special.ndtr(f)
        return p, p * (1 - p)

    def probabilities(self, mean, variance, n_classes=2, draws=None):
        """Probabilities of both classes, in closed form for probit, else by quadrature."""
        if self.link == "probit":
            p = torch.special.ndtr(mean / torch.sqrt(1 + variance))
        else:
            p = self.predictive(mean, variance, torch.zeros_like(mean[:, 0])).mean
        return torch.cat([1 - p, p], 1)
