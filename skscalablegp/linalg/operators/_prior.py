"""Samples of a prior at many rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...features import PriorFeatures
from ...workers import map_in_order

# Values of features that a task computes: a few milliseconds of sines and cosines. A GPU takes as
# many as fit into half a gigabyte of single precision.
_CPU_VALUES, _GPU_VALUES = 2**19, 2**27


@torch.no_grad()
def prior_values(
    features: PriorFeatures,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "n d"],
    weights: Float[Tensor, "q s"],
) -> Float[Tensor, "n s"]:
    """phi(theta, X) w by blocks of rows on the workers, without the n x q matrix of features.

    Parameters
    ----------
    features : PriorFeatures
    theta : Tensor of shape (p,)
    X : Tensor of shape (n, d)
        The result has its dtype and device.
    weights : Tensor of shape (q, s)
        One column for each sample.
    """
    weights = weights.to(X)
    values = _CPU_VALUES if X.device.type == "cpu" else _GPU_VALUES
    parts = X.split(max(1, values // max(1, features.n_features)))
    found = map_in_order(lambda rows: features.evaluate(theta, rows) @ weights, parts, X.device)
    return torch.cat(list(found))
