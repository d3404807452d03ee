"""Kernels that only have NumPy code, and rows that are not numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._nodes import Node, NotExportable
from ._registry import Layout, register_kernel

# The gradient of a diagonal is taken from those of square blocks with this number of rows.
_BLOCK = 32


class ObjectRows(Tensor):
    """Rows that are sequences, strings or other objects; as a tensor, a column of row numbers.

    Compiled kernels use the row numbers, which is correct for constants and white noise, since they
    depend on the number of rows only. Kernels with NumPy code get the objects. Results of
    computations are ordinary tensors; only indexing returns `ObjectRows`.

    Attributes
    ----------
    objects : ndarray of shape (n,) or (n, d)
    """

    objects: np.ndarray
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, objects: np.ndarray, numbers: Tensor | None = None) -> ObjectRows:
        """Rows from an array of objects; `numbers`, if given, determine dtype and device."""
        if numbers is None:
            numbers = torch.arange(len(objects), dtype=torch.float64)[:, None]
        rows = numbers.as_subclass(cls)
        rows.objects = objects
        return rows

    def __getitem__(self, chosen: Any) -> ObjectRows:
        where = chosen.cpu().numpy() if isinstance(chosen, Tensor) else chosen
        return ObjectRows.of(self.objects[where], super().__getitem__(chosen))

    def to(self, *args: Any, **kwargs: Any) -> ObjectRows:
        """The same objects, with row numbers of another dtype or on another device."""
        return ObjectRows.of(self.objects, super().to(*args, **kwargs))


def _array(rows: Tensor) -> np.ndarray:
    """The rows as an array for NumPy code."""
    if isinstance(rows, ObjectRows):
        return rows.objects
    return rows.detach().cpu().double().numpy()


class NumpyKernel(Node):
    """A kernel whose values and gradients come from calls ``kernel(X, Y, eval_gradient)``.

    It is evaluated in float64 on the CPU. No structure is assumed: it counts as not stationary, and
    where its ``diag`` exceeds ``kernel(x, x)``, the difference belongs to the function, not to the
    noise.

    Parameters
    ----------
    kernel : Kernel
    entries : slice
        Its entries of theta.
    """

    stationary = False
    compiled = False

    def __init__(self, kernel: sk.Kernel, entries: slice):
        self.kernel, self.entries, self.label = kernel, entries, type(kernel).__name__

    @property
    def free(self) -> bool:
        """Whether it has free hyperparameters."""
        return self.entries.stop > self.entries.start

    def plain(self) -> Node:
        raise NotExportable(
            f"The kernel {self.label} runs its own NumPy code, which cannot become part of a torch "
            "module: give it a compiled form with skscalablegp.kernels.register_kernel."
        )

    def at(self, theta: Tensor) -> sk.Kernel:
        """The kernel at theta."""
        own = theta.detach().double().cpu().numpy()[self.entries]
        return self.kernel.clone_with_theta(own) if self.free else self.kernel

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return _Values.apply(theta, self, X, Z)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return _Diagonal.apply(theta, self, X)


class _Values(torch.autograd.Function):
    """k(X, Z), differentiable with respect to theta."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, node: NumpyKernel, X: Tensor, Z: Tensor) -> Tensor:
        ctx.inputs = theta.detach(), node, X, Z
        if not len(X) or not len(Z):
            return X.new_zeros(len(X), len(Z))
        values = np.asarray(node.at(theta)(_array(X), _array(Z)), dtype=np.float64)
        return torch.tensor(values).to(X)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, node, X, Z = ctx.inputs
        if not node.free:
            return None, None, None, None
        left, right = _array(X), _array(Z)
        # scikit-learn's kernels only have gradients of k(X, X), of which k(X, Z) is a block.
        rows, start = (left, 0) if X is Z else (np.concatenate([left, right]), len(left))
        _, gradient = node.at(theta)(rows, eval_gradient=True)
        block = gradient[: len(left), start : start + len(right)]
        return _in_theta(theta, node, grad, block), None, None, None


class _Diagonal(torch.autograd.Function):
    """The diagonal of k(X, X), differentiable with respect to theta."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, node: NumpyKernel, X: Tensor) -> Tensor:
        ctx.inputs = theta.detach(), node, X
        if not len(X):
            return X.new_zeros(0)
        return torch.tensor(np.asarray(node.at(theta).diag(_array(X)), dtype=np.float64)).to(X)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, node, X = ctx.inputs
        if not node.free:
            return None, None, None
        rows, kernel, blocks = _array(X), node.at(theta), []
        for start in range(0, len(rows), _BLOCK):
            _, gradient = kernel(rows[start : start + _BLOCK], eval_gradient=True)
            blocks.append(np.einsum("iip->ip", gradient))
        return _in_theta(theta, node, grad, np.concatenate(blocks)), None, None


def _in_theta(theta: Tensor, node: NumpyKernel, weights: Tensor, gradient: np.ndarray) -> Tensor:
    """The weighted sum of the gradients, at the kernel's entries of theta."""
    weights = weights.detach().cpu().double().numpy()
    total = torch.zeros_like(theta)
    total[node.entries] = torch.as_tensor(
        np.tensordot(weights, gradient, axes=weights.ndim), dtype=theta.dtype
    ).to(theta.device)
    return total


def numpy_kernel(kernel: sk.Kernel, layout: Layout) -> NumpyKernel:
    """Any kernel as a leaf of an expression.

    Raises
    ------
    TypeError
        For a CompoundKernel, which holds several kernels.
    """
    if isinstance(kernel, sk.CompoundKernel):
        raise TypeError(
            "kernel is a CompoundKernel, which holds one kernel for each class of a classifier; "
            "regressors, scikit-learn's included, do not take it. Fit one regressor with each of "
            "its kernels."
        )
    return NumpyKernel(kernel, layout.entries(kernel.n_dims))


register_kernel(sk.Kernel, numpy_kernel)
