"""sigma_0^2 + x'z."""

from __future__ import annotations

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._nodes import Node
from ._registry import register_kernel
from ._slots import Slot


class Linear(Node):
    """A linear function with a random offset. It is not stationary, so rows are not centred."""

    label = "DotProduct"
    stationary = False

    def __init__(self, sigma_0: Slot):
        self.sigma_0 = sigma_0

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return X @ Z.mT + self.sigma_0.value_like(theta, X) ** 2

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.square().sum(-1) + self.sigma_0.value_like(theta, X) ** 2

    def n_exact_features(self, n_columns: int) -> int:
        return 1 + n_columns

    def exact_features(self, theta: Tensor, X: Tensor) -> Tensor:
        """(sigma_0, x)."""
        return torch.cat([self.sigma_0.value_like(theta, X).expand_as(X[..., :1]), X], dim=-1)


register_kernel(sk.DotProduct, lambda k, layout: Linear(**layout.slots(k)))
