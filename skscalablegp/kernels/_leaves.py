"""The kernels without parts: constants, white noise, stationary, periodic and linear ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._distances import centre, distance, squared_distance
from ._nodes import Leaf
from ._slots import Slot


class Constant(Leaf):
    """c, the same for every pair of rows."""

    label = "ConstantKernel"

    def __init__(self, constant: Slot):
        self.constant = constant

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return self.constant.value_like(theta, X)[None]

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return self.constant.value_like(theta, X)


class White(Leaf):
    """Independent noise: nothing between rows, a variance on the diagonal of k(X, X)."""

    label = "WhiteKernel"

    def __init__(self, noise_level: Slot):
        self.noise_level = noise_level

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> None:
        return None

    def diag(self, theta: Tensor, X: Tensor) -> None:
        return None

    def noise(self, theta: Tensor, X: Tensor) -> Tensor:
        return self.noise_level.value_like(theta, X)

    def products(self) -> list:
        return []


class Stationary(Leaf):
    """A function of ``|(x - z) / length_scale|`` that is 1 at zero.

    Parameters
    ----------
    family : {"rbf", "matern12", "matern32", "matern52", "rq"}
        Which function.
    length_scale : Slot
        One value, or one per column.
    shape : Slot or None
        The alpha of "rq".
    label : str
        The scikit-learn class.
    """

    def __init__(self, family: str, length_scale: Slot, shape: Slot | None, label: str):
        self.family, self.length_scale, self.shape, self.label = family, length_scale, shape, label

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        length_scale = self.length_scale.value_like(theta, X)
        X, Z = centre(X, Z)
        X, Z = X / length_scale, Z / length_scale
        if self.family == "matern12":
            return torch.exp(-distance(X, Z))
        squared = squared_distance(X, Z)
        if self.family == "rq":
            alpha = self.shape.value_like(theta, X)
            return torch.exp(-alpha * torch.log1p(squared / (2 * alpha)))
        return _Profile.apply(squared, self.family)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)


class Periodic(Leaf):
    """exp(-2 sin^2(pi |x - z| / periodicity) / length_scale^2)."""

    label = "ExpSineSquared"

    def __init__(self, length_scale: Slot, periodicity: Slot):
        self.length_scale, self.periodicity = length_scale, periodicity

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        length_scale = self.length_scale.value_like(theta, X)
        angle = math.pi * distance(X, Z) / self.periodicity.value_like(theta, X)
        return torch.exp(-2 * (torch.sin(angle) / length_scale) ** 2)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)


class Linear(Leaf):
    """sigma_0^2 + x'z; not stationary, so the rows are not centred."""

    label = "DotProduct"

    def __init__(self, sigma_0: Slot):
        self.sigma_0 = sigma_0

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return X @ Z.T + self.sigma_0.value_like(theta, X) ** 2

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.square().sum(1) + self.sigma_0.value_like(theta, X) ** 2


class _Profile(torch.autograd.Function):
    """A function of the squared distance; its closed-form derivative is finite at zero.

    Autograd through the square root inside a Matern function would give 0 * inf there.
    """

    @staticmethod
    def forward(ctx, squared: Tensor, family: str) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.family = family
        return SMOOTH_PROFILES[family][0](squared)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        return grad * SMOOTH_PROFILES[ctx.family][1](ctx.saved_tensors[0]), None


def _rbf(squared: Tensor) -> Tensor:
    return torch.exp(squared / -2)


def _rbf_derivative(squared: Tensor) -> Tensor:
    return torch.exp(squared / -2) / -2


def _matern32(squared: Tensor) -> Tensor:
    r = torch.sqrt(3 * squared)
    return (1 + r) * torch.exp(-r)


def _matern32_derivative(squared: Tensor) -> Tensor:
    return -1.5 * torch.exp(-torch.sqrt(3 * squared))


def _matern52(squared: Tensor) -> Tensor:
    r = torch.sqrt(5 * squared)
    return (1 + r + r.square() / 3) * torch.exp(-r)


def _matern52_derivative(squared: Tensor) -> Tensor:
    r = torch.sqrt(5 * squared)
    return (-5 / 6) * (1 + r) * torch.exp(-r)


SMOOTH_PROFILES = {
    "rbf": (_rbf, _rbf_derivative),
    "matern32": (_matern32, _matern32_derivative),
    "matern52": (_matern52, _matern52_derivative),
}
