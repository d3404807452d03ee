"""The moments with which posteriors and their modules answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
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


def reported_variance(variance: Tensor, scale: Tensor) -> Float[Tensor, " m"]:
    """Replace variances that are negative by rounding by zero; raise for more negative ones.

    Parameters
    ----------
    variance : Tensor of shape (m,)
        Computed variances.
    scale : Tensor of shape (m,)
        Prior variances, the scale of the rounding error.

    Raises
    ------
    FloatingPointError
        If a variance is more negative than rounding explains. The factor is then wrong, and
        clipping would hide the error.
    """
    limit = -(torch.finfo(variance.dtype).eps ** 0.5) * scale.clamp_min(
        torch.finfo(scale.dtype).tiny
    )
    if bool((variance < limit).any()):
        worst = float((variance / scale).min())
        raise FloatingPointError(
            f"A posterior variance is {worst:.1e} times the prior variance, which rounding does "
            "not explain. Raise the noise (alpha or a WhiteKernel) or use dtype='float64'."
        )
    return variance.clamp_min(0)
