"""Stationary kernels: functions of the scaled distance between two rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from .._devices import sum_dtype
from ._distances import EXACT_COLUMNS, centre, distance, squared_distance
from ._frequencies import Draws, Frequencies, SpreadFrequencies, no_spectral_density
from ._nodes import Node, NotExportable
from ._registry import Layout
from ._slots import Slot

# Coordinates are clipped at this distance from the rows' mean, in length scales, by precision.
_FAR = {torch.float32: 1e15, torch.float64: 1e70}


class Profile(ABC):
    """A stationary family: k = f(u), ``u = factor * |(x - z) / length_scale|^2``, f(0) = 1.

    A subclass implements `value_and_slope`, from which tiles and gradients follow in closed form,
    and optionally `frequencies`, for random features.

    Attributes
    ----------
    factor : float
        Chosen so that f needs no further multiplication, such as 1/2 for k = exp(-r^2 / 2).
    shape : tuple of str
        Names of the positive hyperparameters besides ``length_scale``, in the order of the
        functions' arguments.
    kink : bool
        Whether f has a kink at zero distance, as exp(-r) has. The functions then take a, the square
        root of u, in place of u, and the slope is -df/da.
    separable : bool
        Whether k is a product over columns of functions of one column's difference each.
    codes : bool
        Whether rows hold codes of categories, which are rounded to whole numbers.
    """

    factor: float = 1.0
    shape: tuple[str, ...] = ()
    kink: bool = False
    separable: bool = False
    codes: bool = False

    @abstractmethod
    def value_and_slope(self, u: Float[Tensor, "a b"], *shape: float) -> tuple[Tensor, ...]:
        """f(u), -2 df/du and, for each shape, df/dlog(shape), all of u's shape.

        ``slope * u`` (with a kink ``slope * a``) is the derivative with respect to the logarithm of
        the length scale. The results are distinct tensors; one of them may overwrite u.
        """

    def value(self, u: Float[Tensor, "a b"], *shape: float) -> Float[Tensor, "a b"]:
        """f(u). Override it where f alone is cheaper than with its slope; it may overwrite u."""
        return self.value_and_slope(u, *shape)[0]

    def formula(self, u: Float[Tensor, "*s"], *shape: Tensor) -> Float[Tensor, "*s"]:
        """f(u) in torch operations that can be traced and differentiated, for exported models.

        The derivative has to be finite at zero distance, for which `root` helps.
        """
        raise NotExportable(
            f"{type(self).__name__} has no formula(u, *shape), its value in torch operations "
            "without changes in place, which exported models need: define it."
        )

    def frequencies(self, leaf: Stationary, draws: Draws) -> Frequencies:
        """Frequencies from the spectral density, as functions of the leaf's hyperparameters."""
        raise no_spectral_density(leaf.label, "has no spectral density to draw from")

    def build(self, kernel: sk.Kernel, layout: Layout) -> Stationary:
        """The compiled kernel; this method is the builder for `register_kernel`."""
        slots, name = layout.slots(kernel), type(kernel).__name__
        length_scale = slots.pop("length_scale")
        if length_scale.size not in (1, layout.n_features):
            raise ValueError(
                f"{name} has {length_scale.size} length scales, but the data have "
                f"{layout.n_features} columns; give one length scale, or one per column."
            )
        if set(slots) != set(self.shape) or any(slot.size != 1 for slot in slots.values()):
            raise ValueError(
                f"{name} has the hyperparameters {sorted(slots)} besides length_scale; its profile "
                f"takes {sorted(self.shape)}, one number each."
            )
        return Stationary(self, length_scale, tuple(slots[s] for s in self.shape), name)


class Stationary(Node):
    """A leaf whose value is a profile of the scaled distance.

    Parameters
    ----------
    profile : Profile
        The function.
    length_scale : Slot
        One value, or one per column.
    shape : tuple of Slot
        The profile's other hyperparameters.
    label : str
        Name of the scikit-learn class.
    columns : tuple of int, optional
        The columns on which it depends; by default all.
    """

    stationary = True
    profile: Profile

    def __init__(
        self,
        profile: Profile,
        length_scale: Slot,
        shape: tuple[Slot, ...],
        label: str,
        columns: tuple[int, ...] | None = None,
    ):
        self.profile, self.length_scale, self.shape = profile, length_scale, shape
        self.label, self.columns, self.codes = label, columns, profile.codes
        # Any function of one difference is a product over its only column.
        self.separable = profile.separable or (columns is not None and len(columns) == 1)

    def on(self, columns: tuple[int, ...]) -> Stationary:
        """The same kernel, closed form included, of these columns."""
        if self.columns is not None:
            columns = tuple(columns[j] for j in self.columns)
        return Stationary(self.profile, self.length_scale, self.shape, self.label, columns)

    def alone(self, column: int) -> Node:
        if self.columns is not None:
            return super().alone(column)
        scale = self.length_scale
        if scale.size > 1:
            scale = scale.part(column, column + 1)
        return Stationary(self.profile, scale, self.shape, self.label, (column,))

    def anchored(self, n_columns: int) -> frozenset[int]:
        return self.coded(n_columns)

    def coded(self, n_columns: int) -> frozenset[int]:
        return frozenset(self.seen_columns(n_columns)) if self.codes else frozenset()

    def seen_columns(self, n_columns: int) -> tuple[int, ...]:
        """Numbers of the columns on which the kernel depends, out of `n_columns`."""
        return tuple(range(n_columns)) if self.columns is None else self.columns

    def seen(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n c"]:
        """The columns on which the kernel depends, with codes of categories rounded."""
        if self.columns is not None:
            X = X[..., list(self.columns)]
        return X.round() if self.codes else X

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        X, Z = self.seen(X), self.seen(Z)
        scale = self.profile.factor**0.5 / self.length_scale.value_like(theta, X)
        X, Z = centre(X, Z)
        # At this distance every profile is zero; squares of larger distances would be infinite.
        far = _FAR[X.dtype]
        X, Z = (X * scale).clamp(-far, far), (Z * scale).clamp(-far, far)
        # The product form of squared distances is too inaccurate for a kernel with a kink at zero.
        return self.at(theta, distance(X, Z) if self.profile.kink else squared_distance(X, Z))

    def plain(self) -> Plain:
        # Refuse profiles without a formula before any work.
        self.profile.formula(torch.zeros(1, 1), *(torch.ones(1) for _ in self.shape))
        return Plain(self.profile, self.length_scale, self.shape, self.label, self.columns)

    def at(self, theta: Tensor, apart: Float[Tensor, "a b"]) -> Float[Tensor, "a b"]:
        """The profile of squared scaled distances, with a kink of distances; may change them."""
        shape = [slot.value(theta) for slot in self.shape]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (apart, *shape)):
            return _Profiled.apply(apart, self.profile, *shape)
        return self.profile.value(apart, *map(float, shape))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)

    def frequencies(self, draws: Draws) -> Frequencies:
        if self.columns is None:
            return self.profile.frequencies(self, draws)
        inner = self.profile.frequencies(self, replace(draws, n_columns=len(self.columns)))
        return SpreadFrequencies(inner, self.columns, draws.n_columns)


class Plain(Stationary):
    """The same kernel without changes in place and without autograd functions of its own."""

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        X, Z = self.seen(X), self.seen(Z)
        scale = self.profile.factor**0.5 / self.length_scale.value_like(theta, X)
        shift, far = Z.detach().mean(-2, keepdim=True), _FAR[X.dtype]
        X, Z = (((rows - shift) * scale).clamp(-far, far) for rows in (X, Z))
        u = self._apart(X, Z)
        shape = [slot.value_like(theta, X) for slot in self.shape]
        return self.profile.formula(root(u) if self.profile.kink else u, *shape)

    def _apart(self, X: Tensor, Z: Tensor) -> Tensor:
        """Squared distances; exact as in `squared_distance`, but by products if columns are many.

        The product form has an error of 1e-16 |x|^2 in float64, which matters only for a kink.
        """
        if X.shape[-1] > EXACT_COLUMNS and not self.profile.kink:
            norms = X.square().sum(-1)[..., :, None] + Z.square().sum(-1)[..., None, :]
            return (norms - 2 * X @ Z.mT).clamp_min(0)
        columns = range(X.shape[-1])
        parts = [(X[..., :, None, j] - Z[..., None, :, j]).square() for j in columns]
        return reduce(torch.add, parts)


def root(u: Any) -> Any:
    """The square root, with a derivative of 0 at 0."""
    return u.clamp_min(torch.finfo(u.dtype).tiny).sqrt()


class _Profiled(torch.autograd.Function):
    """A profile with its closed-form derivative, which is finite at zero.

    Autograd through the square root inside a Matern function would give 0 * inf there.
    """

    @staticmethod
    def forward(ctx: Any, apart: Tensor, profile: Profile, *shape: Tensor) -> Tensor:
        k, slope, *by_shape = profile.value_and_slope(apart.clone(), *map(float, shape))
        derivative = slope.mul_(-1.0 if profile.kink else -0.5)
        ctx.save_for_backward(derivative, *shape, *by_shape)
        return k

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        derivative, *rest = ctx.saved_tensors
        shape, by_shape = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        in_shape = [
            (grad * d).sum(dtype=sum_dtype(d.device)).to(s.device).to(s.dtype) / s
            for s, d in zip(shape, by_shape, strict=True)
        ]
        return grad * derivative, None, *in_shape
