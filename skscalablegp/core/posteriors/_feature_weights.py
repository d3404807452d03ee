"""The posterior of the weights of a finite feature map."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class FeatureWeights:
    """The posterior N(mean, (L L')^-1) of the weights of a feature map.

    Attributes
    ----------
    factor : Tensor of shape (m, m)
        L, the lower Cholesky factor of I + phi' D^-1 phi.
    mean : Tensor of shape (m, t)
    jitter : float
        What had to be added to D.
    """

    factor: Float64[Tensor, "m m"]
    mean: Float64[Tensor, "m t"]
    jitter: float = 0.0
