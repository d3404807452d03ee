"""Kernels of categories without an order, as scikit-learn kernels and as compiled nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel, StationaryKernelMixin
from torch import Tensor

from .._validation import check_bounds, check_integer, check_numbers
from ._frequencies import Draws, Frequencies
from ._nodes import Node, ProductNode
from ._registry import Layout, register_kernel
from ._slots import Slot
from ._stationary import Profile, Stationary


class Categorical(StationaryKernelMixin, Kernel):
    """A kernel of categories: 1 for equal categories, and `correlation` for different ones.

    Categories are whole numbers, such as the codes of scikit-learn's OrdinalEncoder or of a pandas
    Categorical. Their order and size have no meaning. With several columns, the kernel is the
    product over them. A category without training rows has the same correlation with all others.
    Give it a number that no other category has, as ``OrdinalEncoder(
    handle_unknown="use_encoded_value", unknown_value=-1)`` does. Use `Columns` to apply the kernel
    to some columns only. The kernel also works in scikit-learn's GaussianProcessRegressor.

    Parameters
    ----------
    correlation : float or array-like of shape (d,), default=0.5
        Correlation of two different categories, between 0 and 1; one number for all columns, or
        one for each.
    correlation_bounds : pair of floats in (0, 1] or "fixed", default=(1e-3, 0.999)
        Bounds of the correlation, as in scikit-learn.

    Raises
    ------
    ValueError
        When the kernel is used: for correlations or bounds above 1, and in fits of this package for
        training rows that are not whole numbers.

    See Also
    --------
    LowRankCategorical : A kernel in which some categories are more alike than others.

    Examples
    --------
    >>> Categorical(0.3)([[0], [1], [0]])
    array([[1. , 0.3, 1. ],
           [0.3, 1. , 0.3],
           [1. , 0.3, 1. ]])
    """

    def __init__(self, correlation=0.5, correlation_bounds=(1e-3, 0.999)):
        self.correlation = correlation
        self.correlation_bounds = correlation_bounds

    @property
    def hyperparameter_correlation(self) -> Hyperparameter:
        size = check_numbers("correlation", self.correlation).size
        bounds = check_bounds("correlation_bounds", self.correlation_bounds)
        if bounds != "fixed" and np.max(bounds) > 1:
            raise ValueError(
                f"correlation_bounds of Categorical must not exceed 1, got {bounds!r}: the kernel "
                "is not positive definite for larger correlations."
            )
        return Hyperparameter("correlation", "numeric", bounds, size)

    def _correlations(self, n_columns: int) -> np.ndarray:
        correlation = np.atleast_1d(check_numbers("correlation", self.correlation))
        _check_correlations(correlation, n_columns)
        return correlation

    def __call__(self, X, Y=None, eval_gradient: bool = False):
        X = np.atleast_2d(X)
        Z = X if Y is None else np.atleast_2d(Y)
        if Y is not None and eval_gradient:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        correlation = self._correlations(X.shape[1])
        apart = np.rint(X)[:, None, :] != np.rint(Z)[None, :, :]
        K = np.where(apart, correlation, 1.0).prod(-1)
        if not eval_gradient:
            return K
        # d log K / d log(correlation) counts the columns that differ.
        slopes = K[..., None] * (apart if len(correlation) > 1 else apart.sum(-1, keepdims=True))
        return K, slopes[..., : 0 if self.hyperparameter_correlation.fixed else None]

    def diag(self, X) -> np.ndarray:
        return np.ones(len(X))

    def __repr__(self) -> str:
        return f"Categorical(correlation={_shown(self.correlation)})"


def _check_correlations(correlation: np.ndarray, n_columns: int) -> None:
    if correlation.size not in (1, n_columns):
        raise ValueError(
            f"Categorical has {correlation.size} correlations, but the data have {n_columns} "
            "columns; give one correlation, or one per column."
        )
    if not ((correlation >= 0) & (correlation <= 1)).all():
        raise ValueError(
            f"Categorical needs correlations from 0 to 1, got {_shown(correlation)}: for others "
            "the kernel of many categories is not positive definite."
        )


def _shown(values: Any) -> str:
    values = np.asarray(values, dtype=float)
    return f"{values:.3g}" if values.ndim == 0 else np.array2string(values, precision=3)


class Equality(Profile):
    """1 at zero distance, else the correlation. Codes are whole numbers: u is 0 or at least 1."""

    shape = ("correlation",)
    separable = True
    codes = True

    def value_and_slope(self, u: Tensor, correlation: float) -> tuple[Tensor, ...]:
        differ = u > 0.25
        k = torch.ones_like(u).masked_fill_(differ, correlation)
        return k, torch.zeros_like(u), differ * k

    def formula(self, u: Any, correlation: Any) -> Any:
        return torch.where(u > 0.25, correlation, 1.0)

    def frequencies(self, leaf: Stationary, draws: Draws) -> CodeFrequencies:
        return CodeFrequencies(draws.stored(draws.uniform()), *leaf.shape)


@dataclass(frozen=True, eq=False)
class CodeFrequencies(Frequencies):
    """Frequencies of `Categorical`: 0 with a probability of `correlation`, else uniform to 2 pi.

    For whole numbers a and b the mean of cos(2 pi w (a - b)) over uniform w is 1 if they are equal,
    and 0 otherwise. The quantile function is continuous in the correlation, so that gradients at
    fixed uniforms are gradients of the mean.

    Attributes
    ----------
    uniforms : Tensor of shape (pairs,)
        Random numbers at which the quantile function is evaluated.
    correlation : Slot
    """

    uniforms: Float[Tensor, " pairs"]
    correlation: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs 1"]:
        correlation = self.correlation.value_like(theta, self.uniforms)
        rest = (1 - correlation).clamp_min(torch.finfo(self.uniforms.dtype).eps)
        return 2 * math.pi * ((self.uniforms - correlation) / rest).clamp_min(0)[:, None]


def _build(kernel: Categorical, layout: Layout) -> Node:
    (slot,), d = layout.slots(kernel).values(), layout.n_features
    kernel._correlations(d)
    unit, leaves = Slot(None, (1.0,)), list[Node]()
    for j in range(d):
        own = slot if slot.size == 1 else slot.part(j, j + 1)
        columns = None if d == 1 else (j,)
        leaves.append(Stationary(Equality(), unit, (own,), "Categorical", columns))
    return reduce(ProductNode, leaves)


class LowRankCategorical(Kernel):
    """A kernel of categories with a learned covariance matrix W W' + diag(v), W of few columns.

    It takes one column of codes from 0 to C - 1, such as those of scikit-learn's OrdinalEncoder or
    of a pandas Categorical. Any other number stands for a category without training rows. Its row
    of W is the mean of the other rows, and its variance is their mean variance. Correlations may be
    negative, so that theta has the entries of W themselves instead of their logarithms. The kernel
    has variances of its own and needs no ConstantKernel. It also works in scikit-learn's
    GaussianProcessRegressor.

    Parameters
    ----------
    n_categories : int
        Number C of categories.
    rank : int, default=1
        Number of columns of W.
    loadings : array-like of shape (C * rank,), default=None
        The entries of W, row by row. None starts with equal correlations of 0.5 in the first
        column, and with smaller cosines in the others.
    variances : array-like of shape (C,), default=None
        The entries of v; None means 0.5 each.
    loadings_bounds : pair of floats or "fixed", default=(-100, 100)
        Bounds of the entries of W.
    variances_bounds : pair of floats > 0 or "fixed", default=(1e-5, 1e5)
        Bounds of the variances, as in scikit-learn.

    Raises
    ------
    ValueError
        When the kernel is used: for several columns, or for wrong numbers of loadings or variances.

    See Also
    --------
    Categorical : One correlation for all pairs of categories.

    Examples
    --------
    >>> LowRankCategorical(3)([[0], [1], [2]])
    array([[1. , 0.5, 0.5],
           [0.5, 1. , 0.5],
           [0.5, 0.5, 1. ]])
    """

    def __init__(
        self,
        n_categories: int,
        rank: int = 1,
        loadings=None,
        variances=None,
        loadings_bounds=(-100.0, 100.0),
        variances_bounds=(1e-5, 1e5),
    ):
        self.n_categories = n_categories
        self.rank = rank
        self.loadings = loadings
        self.variances = variances
        self.loadings_bounds = loadings_bounds
        self.variances_bounds = variances_bounds

    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        C = int(check_integer("n_categories", self.n_categories))
        r = int(check_integer("rank", self.rank))
        loadings, variances = self.loadings, self.variances
        if loadings is None:
            waves = np.cos(np.pi * np.outer(np.arange(C) + 0.5, np.arange(r)) / C)
            loadings = (waves * np.where(np.arange(r) > 0, 0.1, 0.5**0.5)).ravel()
        if variances is None:
            variances = np.full(C, 0.5)
        loadings = np.atleast_1d(check_numbers("loadings", loadings))
        return loadings, np.atleast_1d(check_numbers("variances", variances))

    @property
    def hyperparameter_loadings(self) -> Hyperparameter:
        size = len(self._values()[0])
        bounds = check_bounds("loadings_bounds", self.loadings_bounds)
        return Hyperparameter("loadings", "numeric", bounds, size)

    @property
    def hyperparameter_variances(self) -> Hyperparameter:
        size = len(self._values()[1])
        bounds = check_bounds("variances_bounds", self.variances_bounds)
        return Hyperparameter("variances", "numeric", bounds, size)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; None is replaced by the values, so that theta has a fixed length."""
        params = super().get_params(deep)
        loadings, variances = self._values()
        return params | {"loadings": loadings, "variances": variances}

    def _free(self) -> tuple[bool, bool]:
        return not self.hyperparameter_loadings.fixed, not self.hyperparameter_variances.fixed

    @property
    def theta(self) -> np.ndarray:
        """The free loadings, and the logarithms of the free variances."""
        loadings, variances = self._values()
        parts = zip((loadings, np.log(variances)), self._free(), strict=True)
        return np.concatenate([np.empty(0), *(values for values, free in parts if free)])

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        theta, (W, v) = np.asarray(theta, dtype=float), self._free()
        size = len(self._values()[0]) if W else 0
        if W:
            self.loadings = theta[:size].copy()
        if v:
            self.variances = np.exp(theta[size:])

    @property
    def bounds(self) -> np.ndarray:
        """Bounds of theta."""
        W, v = self.hyperparameter_loadings, self.hyperparameter_variances
        parts = [np.empty((0, 2))]
        if not W.fixed:
            parts.append(np.asarray(W.bounds, dtype=float))
        if not v.fixed:
            parts.append(np.log(v.bounds))
        return np.vstack(parts)

    def _spread(self) -> tuple[np.ndarray, np.ndarray]:
        """W (C + 1, r) and v (C + 1,); the last row is for categories without training rows."""
        loadings, variances = self._values()
        _check_sizes(loadings.size, variances.size, int(self.n_categories), int(self.rank))
        W = loadings.reshape(int(self.n_categories), -1)
        mean = W.mean(0)
        left = np.mean(variances + np.square(W).sum(1)) - mean @ mean
        return np.vstack([W, mean]), np.append(variances, left)

    def _indicator(self, X: Any) -> np.ndarray:
        X = np.atleast_2d(X)
        _check_one_column(X.shape[1])
        codes, C = np.rint(X[:, 0]), int(self.n_categories)
        codes = np.where((codes >= 0) & (codes < C), codes, C).astype(int)
        return np.eye(C + 1)[codes]

    def __call__(self, X, Y=None, eval_gradient: bool = False):
        if Y is not None and eval_gradient:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        W, v = self._spread()
        A = self._indicator(X)
        B = A if Y is None else self._indicator(Y)
        K = (A @ W) @ (B @ W).T + (A * v) @ B.T
        if not eval_gradient:
            return K
        C, r = len(W) - 1, W.shape[1]
        same, slopes = A @ A.T, []
        new = same * A[:, C]
        if self._free()[0]:
            for c in range(C):
                # The row of a category without training rows is the mean of all rows.
                member = A[:, c] + A[:, C] / C
                for q in range(r):
                    outer = np.outer(member, A @ W[:, q])
                    left = 2 * (W[c, q] - W[C, q]) / C
                    slopes.append(outer + outer.T + left * new)
        if self._free()[1]:
            slopes += [v[c] * (np.outer(A[:, c], A[:, c]) + new / C) for c in range(C)]
        return K, np.stack(slopes, -1) if slopes else np.empty((*K.shape, 0))

    def diag(self, X) -> np.ndarray:
        W, v = self._spread()
        return self._indicator(X) @ (np.square(W).sum(1) + v)

    def is_stationary(self) -> bool:
        return False

    def __repr__(self) -> str:
        loadings, variances = self._values()
        return (
            f"LowRankCategorical(n_categories={self.n_categories}, rank={self.rank}, "
            f"loadings={_shown(loadings)}, variances={_shown(variances)})"
        )


def _check_sizes(loadings: int, variances: int, C: int, rank: int) -> None:
    if C < 1 or rank < 1 or loadings != C * rank or variances != C:
        raise ValueError(
            f"LowRankCategorical with n_categories={C} and rank={rank} has {loadings} loadings and "
            f"{variances} variances: give n_categories * rank loadings and n_categories variances."
        )


def _check_one_column(n_columns: int) -> None:
    if n_columns != 1:
        raise ValueError(
            f"LowRankCategorical takes one column of codes, not {n_columns}: use "
            "Columns(LowRankCategorical(...), column)."
        )


class CategoryCovariance(Node):
    """The kernel W W' + diag(v) of one column of codes."""

    label = "LowRankCategorical"
    stationary = False
    codes = True

    def __init__(self, loadings: Slot, variances: Slot, rank: int):
        self.loadings, self.variances, self.rank = loadings, variances, rank

    def _spread(self, theta: Tensor, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (n,), W (C + 1, r) and v (C + 1,) as in `LowRankCategorical`."""
        C = self.variances.size
        codes = X[..., 0].detach().round().long()
        codes = torch.where((codes >= 0) & (codes < C), codes, C)
        W, v = self.loadings.signed(theta).reshape(C, self.rank), self.variances.value(theta)
        mean = W.mean(0)
        left = (v + W.square().sum(1)).mean() - mean @ mean
        return codes, torch.cat([W, mean[None]]).to(X), torch.cat([v, left[None]]).to(X)

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        left, W, v = self._spread(theta, X)
        right = self._spread(theta, Z)[0]
        return (W @ W.T + torch.diag(v))[left[..., :, None], right[..., None, :]]

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        codes, W, v = self._spread(theta, X)
        return (W.square().sum(1) + v)[codes]

    def n_exact_features(self, n_columns: int) -> int:
        return self.rank + self.variances.size + 1

    def exact_features(self, theta: Tensor, X: Tensor) -> Tensor:
        """Rows of (W, diag(v)^1/2)."""
        codes, W, v = self._spread(theta, X)
        return torch.cat([W, torch.diag(v.sqrt())], 1)[codes]


def _build_low_rank(kernel: LowRankCategorical, layout: Layout) -> Node:
    _check_one_column(layout.n_features)
    explicit = LowRankCategorical(**kernel.get_params())
    explicit._spread()
    return CategoryCovariance(**layout.slots(explicit), rank=int(kernel.rank))


register_kernel(Categorical, _build)
register_kernel(LowRankCategorical, _build_low_rank)
