"""Compiling a scikit-learn kernel object into differentiable torch functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    ConstantKernel,
    Kernel,
    KernelOperator,
    Matern,
    WhiteKernel,
)
from torch import Tensor

from ._nodes import Term
from ._priors import ThetaPrior
from ._registry import Layout


class TorchKernel:
    """A scikit-learn kernel as functions of theta and rows, differentiable by autograd.

    ``theta`` is scikit-learn's: the logarithms of the hyperparameters that are not fixed, in its
    order. It may stay float64 on the CPU while the rows are float32 or on a GPU; results have the
    rows' dtype and device. First derivatives only.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The kernel; it is cloned.
    n_features : int
        Number of columns.
    any_kernel : bool, default=False
        As in `compile_kernel`.
    priors : mapping of str to Prior, optional
        Priors of hyperparameters, by name.

    Attributes
    ----------
    kernel : Kernel
        The clone.
    n_features, n_params : int
        Number of columns; length of theta.
    priors : mapping
        As given.
    log_prior : ThetaPrior
        Log density of theta and its gradient; false if no hyperparameter has a prior.
    node : Node
        The compiled expression, for code that depends on the kernel's structure.
    """

    def __init__(
        self,
        kernel: object,
        n_features: int,
        any_kernel: bool = False,
        priors: Mapping[str, Any] | None = None,
    ):
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel must be an object of scikit-learn's Kernel, got {kernel!r}.")
        _check_values(kernel)
        layout = Layout(int(n_features), any_kernel)
        self.kernel = clone(kernel)
        self.n_features = layout.n_features
        self.node = layout.build(self.kernel)
        self.n_params, self._any_kernel = layout.n_params, any_kernel
        self.priors = dict(priors or {})
        self.log_prior = ThetaPrior(self.kernel, self.priors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.n_features, self._any_kernel, self.priors)

    def __repr__(self) -> str:
        return f"TorchKernel({self.kernel!r}, n_features={self.n_features})"

    @property
    def theta0(self) -> Float64[Tensor, " p"]:
        """theta of the given kernel."""
        return torch.tensor(np.asarray(self.kernel.theta), dtype=torch.float64)

    @property
    def bounds(self) -> Float64[Tensor, "p 2"]:
        """Lower and upper bounds of theta, logarithms as in scikit-learn."""
        return torch.tensor(_log_bounds(self.kernel), dtype=torch.float64)

    @property
    def variances(self) -> Bool[np.ndarray, " p"]:
        """Marks the entries of theta that are variances: amplitudes and noise levels."""
        return self._named("constant_value", "noise_level")

    @property
    def noise_levels(self) -> Bool[np.ndarray, " p"]:
        """Marks the entries of theta that are noise levels."""
        return self._named("noise_level")

    def _named(self, *endings: str) -> Bool[np.ndarray, " p"]:
        """Marks the entries of theta by the endings of their names."""
        free = [part for part in self.kernel.hyperparameters if not part.fixed]
        marks = [part.name.endswith(endings) for part in free]
        return np.repeat(np.array(marks, dtype=bool), [part.n_elements for part in free])

    def has_scale(self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> bool:
        """Whether variances in theta multiply the whole kernel, noise included, at these rows."""
        twice = theta + torch.as_tensor(self.variances).to(theta) * math.log(2)
        return all(
            torch.allclose(2 * part(theta), part(twice), atol=0)
            for part in (lambda at: self.cross(at, X, X), lambda at: self.noise(at, X))
        )

    def to_sklearn(self, theta: Float[Tensor, " p"]) -> Kernel:
        """The scikit-learn kernel at theta."""
        return self.kernel.clone_with_theta(theta.detach().double().cpu().numpy())

    def cross(
        self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]
    ) -> Float[Tensor, "n m"]:
        """k(X, Z) without noise, even for equal rows of X and Z. O(n m d)."""
        return _filled(self.node.smooth(theta, X, Z), (len(X), len(Z)), theta, X)

    def diag(self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The diagonal of k(X, X) without noise. O(n d)."""
        return _filled(self.node.diag(theta, X), (len(X),), theta, X)

    def noise(self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The contribution of every WhiteKernel to the diagonal of k(X, X). O(n d)."""
        return _filled(self.node.noise(theta, X), (len(X),), theta, X)

    @property
    def stationary(self) -> bool:
        """Whether the kernel, noise included, depends on differences of rows only."""
        return self.node.stationary

    @property
    def coded(self) -> list[int]:
        """The columns that hold codes of categories, which must keep their values."""
        return sorted(self.node.coded(self.n_features))

    @property
    def numpy_code(self) -> list[str]:
        """Labels of the parts that are evaluated by their own NumPy code."""
        return [leaf.label for leaf in self.node.leaves() if not leaf.compiled]

    @property
    def vectors(self) -> bool:
        """Whether rows must be vectors of numbers; else they may be any objects (`ObjectRows`)."""
        return self.kernel.requires_vector_input

    def origin(self, mean: Float64[np.ndarray, " d"]) -> Float64[np.ndarray, " d"]:
        """The mean of the rows; zero in columns that may not be shifted."""
        anchored = list(self.node.anchored(self.n_features))
        return np.where(np.isin(np.arange(self.n_features), anchored), 0.0, mean)

    def stationary_terms(self) -> list[Term] | None:
        """The noise-free kernel as a sum of products of profiles of scaled distances, or None.

        Products are distributed over sums first. The list is empty for a kernel of noise alone.
        """
        terms = self.node.products()
        closed = all(leaf.profile is not None for term in terms for leaf in term.leaves)
        return terms if closed else None


def compile_kernel(
    kernel: object,
    n_features: int,
    any_kernel: bool = False,
    priors: Mapping[str, Any] | None = None,
) -> TorchKernel:
    """A scikit-learn kernel object as differentiable torch functions.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        ConstantKernel, WhiteKernel, RBF, Matern (nu = 0.5, 1.5, 2.5, inf), RationalQuadratic,
        ExpSineSquared, DotProduct, those of this package, a class given to `register_kernel`, or
        sums, products and positive powers of these. A subclass does not count as its parent.
    n_features : int
        Number of columns.
    any_kernel : bool, default=False
        Whether other kernels are accepted and evaluated by their own NumPy code. Their values and
        gradients are exact, but they have none of the properties that a `Node` can declare.
    priors : mapping of str to Prior, optional
        Priors of hyperparameters, by their names in ``kernel.hyperparameters``.

    Returns
    -------
    TorchKernel

    Raises
    ------
    TypeError
        For a kernel without a compiled form, unless `any_kernel` is true. The message lists the
        kernels that have one.
    ValueError
        If the number of length scales is neither 1 nor the number of columns.
    """
    return TorchKernel(kernel, n_features, any_kernel, priors)


def default_kernel(
    n_features: int, length_scale: np.ndarray | float = 1.0, variance: float = 1.0
) -> Kernel:
    """Constant * Matern-3/2 (one length scale per column) + White.

    Bounds are relative to the starting values, so that a change of units has no effect. They are
    scikit-learn's factors of 1e-5 and 1e5, with two exceptions. The factor of length scales is at
    least 1e-3: below it, all rows are uncorrelated, every gradient is zero and the optimiser cannot
    return. That of the noise variance is at least 1e-4, a standard deviation of a hundredth of the
    target's: with less, the matrix is singular in single precision, and the likelihood of a small
    subset can be highest where the model interpolates. Where all rows are factorised in double
    precision, training continues below this bound if this improves leave-one-out predictions.

    Parameters
    ----------
    n_features : int
        Number of columns; for a single one the length scale is a scalar.
    length_scale : float or ndarray of shape (d,), default=1.0
        Starting length scales.
    variance : float, default=1.0
        Starting value of the signal variance and of the noise variance.

    Returns
    -------
    sklearn.gaussian_process.kernels.Kernel
    """
    scale = np.broadcast_to(np.asarray(length_scale, dtype=float), (n_features,)).copy()
    bounds = np.outer(scale, [1e-3, 1e5])
    if n_features == 1:
        scale, bounds = float(scale[0]), tuple(bounds[0])
    matern = Matern(length_scale=scale, length_scale_bounds=bounds, nu=1.5)
    signal = ConstantKernel(variance, (1e-5 * variance, 1e5 * variance))
    return signal * matern + WhiteKernel(variance, (1e-4 * variance, 1e5 * variance))


# Ranges of hyperparameters. Length scales have to be divisors in single precision as well.
_VARIANCES, _LENGTHS = (1e-100, 1e100), (1e-36, 1e36)
_CHECKED = ("constant_value", "noise_level", "sigma_0", "length_scale", "periodicity")


def _check_values(kernel: Kernel) -> None:
    """Refuse hyperparameters and bounds out of range; fixed variances may be zero."""
    values = kernel.get_params()
    for parameter in kernel.hyperparameters:
        leaf = parameter.name.rpartition("__")[2]
        if leaf not in _CHECKED:
            continue
        value = np.asarray(values[parameter.name], dtype=float)
        variance = leaf in ("constant_value", "noise_level")
        zero = parameter.fixed and (variance or leaf == "sigma_0")
        low, high = _VARIANCES if variance else _LENGTHS
        if not np.all(((value >= low) & (value <= high)) | (zero & (value == 0))):
            raise ValueError(
                f"kernel has {parameter.name}={values[parameter.name]!r}, but it must be "
                f"{'zero or ' if zero else ''}between {low:g} and {high:g}."
            )
    with np.errstate(divide="ignore", invalid="ignore"):
        theta = np.ravel(kernel.theta)
    free = [h for h in kernel.hyperparameters if not h.fixed]
    names = [h.name for h in free for _ in range(h.n_elements)]
    for name, log_value, (low, high) in zip(names, theta, _log_bounds(kernel), strict=False):
        if not np.isfinite(log_value):
            raise ValueError(
                f"kernel has {name}={values[name]!r}, but a hyperparameter that is not fixed must "
                "be positive and finite."
            )
        if not low <= high:
            raise ValueError(
                f"kernel has bounds of {name} that leave no positive number between them: give the "
                "lower bound first."
            )


def _log_bounds(kernel: Kernel) -> np.ndarray:
    """The bounds of theta. A negative lower bound, which has no logarithm, becomes -inf."""
    # scikit-learn evaluates the bounds of both parts of a sum twice, hence 2^k times for k terms.
    if isinstance(kernel, KernelOperator):
        return np.vstack([_log_bounds(kernel.k1), _log_bounds(kernel.k2)])
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.array(kernel.bounds, dtype=float).reshape(-1, 2)
    bounds[np.isnan(bounds[:, 0]), 0] = -np.inf
    return bounds


def _filled(part: Tensor | None, shape: tuple[int, ...], theta: Tensor, X: Tensor) -> Tensor:
    out = X.new_zeros(shape) if part is None else part.expand(shape).contiguous()
    if theta.requires_grad and not out.requires_grad:
        # Makes autograd.grad(..., theta) return zeros instead of raising an error.
        out = out + theta[:0].sum().to(out, non_blocking=True)
    return out
