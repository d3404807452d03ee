"""The one table from scikit-learn kernel classes to compiled nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process import kernels as sk

from ._nodes import Node
from ._slots import Slot

_BUILDERS: dict[type, tuple[Callable[[sk.Kernel, Layout], Node], str]] = {}


class Layout:
    """Hands out theta's entries in scikit-learn's order while a kernel is compiled.

    Attributes
    ----------
    n_features : int
        Number of columns the kernel is compiled for.
    any_kernel : bool
        Whether kernels without a compiled form are evaluated by their NumPy code.
    n_params : int
        Number of entries of theta that have been handed out.
    """

    def __init__(self, n_features: int, any_kernel: bool = False, n_params: int = 0):
        self.n_features = n_features
        self.any_kernel = any_kernel
        self.n_params = n_params

    def build(self, kernel: sk.Kernel) -> Node:
        """The node of a kernel, by its exact class: Matern is a subclass of RBF."""
        if type(kernel) not in _BUILDERS:
            return self.without_compiled_form(kernel, type(kernel).__name__)
        return _BUILDERS[type(kernel)][0](kernel, self)

    def without_compiled_form(self, kernel: sk.Kernel, what: str) -> Node:
        """The node of a kernel that only has NumPy code.

        Raises
        ------
        TypeError
            If `any_kernel` is false, since a compiled form is then required.
        """
        if not self.any_kernel:
            raise TypeError(unsupported(what))
        return _BUILDERS[sk.Kernel][0](kernel, self)

    def entries(self, n: int) -> slice:
        """The next n entries of theta."""
        self.n_params += n
        return slice(self.n_params - n, self.n_params)

    def build_on(self, kernel: sk.Kernel, n_features: int) -> Node:
        """The node of an inner kernel that takes `n_features` columns."""
        inner = Layout(n_features, self.any_kernel, self.n_params)
        node = inner.build(kernel)
        self.n_params = inner.n_params
        return node

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
                slots[name] = Slot(self.entries(len(values)))
        return slots


def register_kernel(
    kernel_class: type[sk.Kernel],
    builder: Callable[[sk.Kernel, Layout], Node],
    summary: str | None = None,
) -> None:
    """Register the compiled form of a kernel class.

    Parameters
    ----------
    kernel_class : type
        A subclass of scikit-learn's Kernel. Its own subclasses are not included. Kernel itself
        stands for all classes without a compiled form.
    builder : callable
        ``builder(kernel, layout) -> Node``. For a stationary kernel, the `build` of its `Profile`.
        Any other function takes the slots of the hyperparameters from ``layout.slots(kernel)``, and
        the nodes of inner kernels, in theta's order, from ``layout.build(part)``.
    summary : str, optional
        Name of the class in messages, with its supported variants; the class name by default.
    """
    _BUILDERS[kernel_class] = (builder, summary or kernel_class.__name__)


def unsupported(what: str) -> str:
    """The error message for a kernel without a compiled form; it lists those that have one."""
    known = ", ".join(summary for kind, (_, summary) in _BUILDERS.items() if kind is not sk.Kernel)
    return (
        f"The kernel {what} has no compiled form, which is needed here: use IterativeGPRegressor, "
        f"which takes any kernel, or one of {known}."
    )
