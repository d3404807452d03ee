"""The one table from scikit-learn kernel classes to compiled nodes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ._leaves import Constant, Linear, Periodic, Stationary, White
from ._nodes import Node, PowerNode, ProductNode, SumNode
from ._slots import Slot

MATERN_FAMILIES = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52", math.inf: "rbf"}


class Layout:
    """Hands out theta's entries in scikit-learn's order while a kernel is compiled.

    Attributes
    ----------
    n_features : int
        Number of columns the kernel is compiled for.
    n_params : int
        Entries of theta handed out so far.
    """

    def __init__(self, n_features: int):
        self.n_features = n_features
        self.n_params = 0

    def build(self, kernel: sk.Kernel) -> Node:
        """The node of a kernel, by its exact class: Matern is a subclass of RBF."""
        try:
            builder, _ = _BUILDERS[type(kernel)]
        except KeyError:
            raise TypeError(unsupported(type(kernel).__name__)) from None
        return builder(kernel, self)

    def slots(self, kernel: sk.Kernel) -> dict[str, Slot]:
        """The hyperparameters of a leaf by name; the free ones take the next entries of theta."""
        slots = {}
        for hyperparameter in kernel.hyperparameters:
            name = hyperparameter.name
            values = np.atleast_1d(np.asarray(getattr(kernel, name), dtype=float))
            if values.ndim != 1:
                raise ValueError(
                    f"{type(kernel).__name__}: {name} must be a number or one number per column, "
                    f"got an array of shape {values.shape}."
                )
            if hyperparameter.fixed:
                slots[name] = Slot(None, tuple(values.tolist()))
            else:
                slots[name] = Slot(slice(self.n_params, self.n_params + len(values)))
                self.n_params += len(values)
        return slots


def register_kernel(
    kernel_class: type[sk.Kernel],
    builder: Callable[[sk.Kernel, Layout], Node],
    summary: str | None = None,
) -> None:
    """Teach `compile_kernel` one more kernel class.

    Parameters
    ----------
    kernel_class : type
        A subclass of scikit-learn's Kernel; only this exact class is meant.
    builder : callable
        ``builder(kernel, layout) -> Node``; it takes its hyperparameters' slots from
        ``layout.slots(kernel)`` and the nodes of its parts, in theta's order, from
        ``layout.build(part)``.
    summary : str, optional
        How messages name the class and what of it is supported; its name by default.
    """
    _BUILDERS[kernel_class] = (builder, summary or kernel_class.__name__)


def unsupported(what: str) -> str:
    """The message for a kernel that cannot be compiled, with the ones that can."""
    known = ", ".join(summary for _, summary in _BUILDERS.values())
    return f"The kernel {what} is not supported. Supported are: {known}."


def _stationary(family: str, kernel: sk.Kernel, layout: Layout) -> Stationary:
    slots, name = layout.slots(kernel), type(kernel).__name__
    size = slots["length_scale"].size
    if size not in (1, layout.n_features):
        raise ValueError(
            f"{name} has {size} length scales, but the data have {layout.n_features} columns; "
            "give one length scale, or one per column."
        )
    return Stationary(family, slots["length_scale"], slots.get("alpha"), name)


def _matern(kernel: sk.Matern, layout: Layout) -> Stationary:
    if kernel.nu not in MATERN_FAMILIES:
        raise TypeError(unsupported(f"Matern with nu={kernel.nu}"))
    return _stationary(MATERN_FAMILIES[kernel.nu], kernel, layout)


def _rational_quadratic(kernel: sk.RationalQuadratic, layout: Layout) -> Stationary:
    if np.size(kernel.length_scale) != 1:
        raise ValueError("RationalQuadratic takes one length scale, not one per column.")
    return _stationary("rq", kernel, layout)


def _power(kernel: sk.Exponentiation, layout: Layout) -> PowerNode:
    if not 0 < kernel.exponent < math.inf:
        raise ValueError(f"Exponentiation needs a finite exponent > 0, got {kernel.exponent}.")
    return PowerNode(layout.build(kernel.kernel), kernel.exponent)


_BUILDERS: dict[type, tuple[Callable[[sk.Kernel, Layout], Node], str]] = {}

for _class, _builder, _summary in [
    (sk.ConstantKernel, lambda k, t: Constant(t.slots(k)["constant_value"]), None),
    (sk.WhiteKernel, lambda k, t: White(t.slots(k)["noise_level"]), None),
    (sk.RBF, lambda k, t: _stationary("rbf", k, t), None),
    (sk.Matern, _matern, "Matern (nu = 0.5, 1.5, 2.5 or inf)"),
    (sk.RationalQuadratic, _rational_quadratic, None),
    (sk.ExpSineSquared, lambda k, t: Periodic(**t.slots(k)), None),
    (sk.DotProduct, lambda k, t: Linear(**t.slots(k)), None),
    (sk.Sum, lambda k, t: SumNode(t.build(k.k1), t.build(k.k2)), None),
    (sk.Product, lambda k, t: ProductNode(t.build(k.k1), t.build(k.k2)), None),
    (sk.Exponentiation, _power, None),
]:
    register_kernel(_class, _builder, _summary)
