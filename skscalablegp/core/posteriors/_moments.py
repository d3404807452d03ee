"""The moments with which posteriors and their modules answer."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Moments(NamedTuple):
    """Moments of the posterior at some rows.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    variance : Tensor of shape (m,)
        Variance of the noise-free functions, the same for every target.
    noise : Tensor of shape (m,)
        Variance that the kernel's white noise adds to a new observation.
    """

    mean: Float[Tensor, "m t"]
    variance: Float[Tensor, " m"]
    noise: Float[Tensor, " m"]
