"""Student's t noise, which is robust to outliers."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from ._base import Likelihood, gamma_rule


class StudentT(Likelihood, name="student_t"):
    """Student's t noise, robust to outliers: y = f + sqrt(noise) e with e from Student's t.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom, above 2 so that the noise has a variance. Large values give nearly
        Gaussian noise.
    n_nodes : int, default=32
        Number of nodes of the Gauss-Hermite quadrature.
    """

    additive = True

    def __init__(self, df: float = 4.0, *, n_nodes: int = 32):
        self.df = df
        self.n_nodes = n_nodes

    def n_latent(self, n_outputs: int) -> int:
        if not (isinstance(self.df, Real) and self.df > 2):
            raise ValueError(
                f"StudentT needs df > 2, or its noise has no variance; got {self.df!r}."
            )
        return n_outputs

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        df = self.df
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        tail = torch.log1p((y - f).square() / (df * noise))
        return constant - 0.5 * torch.log(noise) - 0.5 * (df + 1) * tail

    def moments(self, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return f, noise * (self.df / (self.df - 2))

    def draw(self, f, noise, random_state):
        return f + np.sqrt(noise) * random_state.standard_t(self.df, f.shape)

    def noise_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Student's t noise is normal noise with a gamma distributed precision."""
        precision, weights = gamma_rule(self.df / 2)
        return (self.df / 2 - 1) / precision, weights
