"""The spectral mixture kernel, as a scikit-learn kernel and as a compiled node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel, StationaryKernelMixin
from sklearn.utils.validation import check_X_y
from torch import Tensor

from .._validation import check_bounds, check_integer, check_numbers
from ._constant import Constant
from ._frequencies import Draws, Frequencies
from ._nodes import Node, ProductNode, SumNode
from ._registry import Layout, register_kernel
from ._slots import Slot

# Number of complex numbers in one block of phases.
_BLOCK_NUMBERS = 2**20
# Smallest starting weight, as a share of the target's variance; the lower bound of weights.
_LEAST_WEIGHT = 1e-6


class SpectralMixture(StationaryKernelMixin, Kernel):
    """The spectral mixture kernel: a sum of damped cosines.

    ``k(x, z) = sum_q w_q prod_j exp(-2 pi^2 s_qj^2 t_j^2) cos(2 pi m_qj t_j)`` with t = x - z
    (Wilson and Adams 2013). The spectral density is a mixture of normal densities, which can
    approximate that of any stationary kernel. The kernel also works in scikit-learn's
    GaussianProcessRegressor.

    Parameters
    ----------
    n_components : int, default=4
        Number Q of mixture components.
    weights : array-like of shape (Q,), default=None
        Signal variances w; None means 1 / Q each.
    means : array-like of shape (Q * d,), default=None
        Frequencies m in cycles per unit of x, component by component; None spreads them evenly
        over (0, 1 / 2].
    scales : array-like of shape (Q * d,), default=None
        Widths s of the spectrum, in the unit of the frequencies; None means 0.05.
    weights_bounds, means_bounds, scales_bounds : pair of floats > 0 or "fixed"
        Bounds of the hyperparameters, as in scikit-learn.

    See Also
    --------
    SpectralMixture.from_data : Starting values from a table's periodogram.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> x = np.arange(40.0)[:, None]
    >>> kernel = SpectralMixture.from_data(x, np.sin(x[:, 0]), n_components=2)
    >>> gp = GaussianProcessRegressor(kernel, alpha=1e-4, optimizer=None).fit(x, np.sin(x[:, 0]))
    >>> gp.predict(x[:3]).shape
    (3,)
    """

    def __init__(
        self,
        n_components: int = 4,
        weights=None,
        means=None,
        scales=None,
        weights_bounds=(1e-5, 1e5),
        means_bounds=(1e-5, 1e5),
        scales_bounds=(1e-5, 1e5),
    ):
        self.n_components = n_components
        self.weights = weights
        self.means = means
        self.scales = scales
        self.weights_bounds = weights_bounds
        self.means_bounds = means_bounds
        self.scales_bounds = scales_bounds

    @classmethod
    def from_data(cls, X, y, n_components: int = 4) -> SpectralMixture:
        """Starting values from the periodogram of y along each column of X.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,) or (n, 1)
            Target.
        n_components : int, default=4
            Number of mixture components.

        Returns
        -------
        kernel : SpectralMixture
            The last component is a trend. The others start at the highest peaks after a straight
            line has been subtracted, with weights that add up to the variance of y. Bounds reach
            from a fraction of the lowest visible frequency to the Nyquist frequency.

        Raises
        ------
        ValueError
            For tables of other shapes, or with values that are not finite.
        """
        check_integer("n_components", n_components)
        y = np.asarray(y)
        X, y = check_X_y(X, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y, dtype=np.float64)
        peaks = [_periodogram_peaks(x, y, n_components) for x in X.T]
        frequencies = np.column_stack([found[0] for found in peaks])
        # Powers relative to the highest of each column: their product cannot underflow.
        power = np.prod([found[1] / found[1].max() for found in peaks], axis=0)
        lowest = min(found[2] for found in peaks)
        highest = max(found[3] for found in peaks)
        variance = max(float(np.var(y)), 1e-12)
        weights = variance * np.maximum(power / power.sum(), _LEAST_WEIGHT)
        scales = np.full(frequencies.shape, lowest / 25)
        if n_components > 1:
            # A trend is a peak at frequency zero, narrower than the data can resolve.
            frequencies[-1], scales[-1], weights[-1] = lowest / 20, lowest / 25, variance
        return cls(
            n_components,
            weights,
            np.maximum(frequencies, lowest / 20).ravel(),
            scales.ravel(),
            weights_bounds=(_LEAST_WEIGHT * variance, 1e4 * variance),
            means_bounds=(lowest / 100, highest),
            scales_bounds=(lowest / 100, highest),
        )

    def _values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        Q = int(check_integer("n_components", self.n_components))
        if self.weights is None:
            weights = np.full(Q, 1 / Q)
        else:
            weights = check_numbers("weights", self.weights)
        if self.means is None:
            means = np.linspace(0.5 / Q, 0.5, Q)
        else:
            means = check_numbers("means", self.means)
        if self.scales is None:
            scales = np.full(means.size, 0.05)
        else:
            scales = check_numbers("scales", self.scales)
        return np.atleast_1d(weights), np.atleast_1d(means), np.atleast_1d(scales)

    def _hyperparameter(self, name: str, values: np.ndarray) -> Hyperparameter:
        bounds = check_bounds(f"{name}_bounds", getattr(self, f"{name}_bounds"))
        return Hyperparameter(name, "numeric", bounds, len(values))

    @property
    def hyperparameter_weights(self) -> Hyperparameter:
        return self._hyperparameter("weights", self._values()[0])

    @property
    def hyperparameter_means(self) -> Hyperparameter:
        return self._hyperparameter("means", self._values()[1])

    @property
    def hyperparameter_scales(self) -> Hyperparameter:
        return self._hyperparameter("scales", self._values()[2])

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; None is replaced by the values, so that theta has a fixed length."""
        params = super().get_params(deep)
        weights, means, scales = self._values()
        params.update(weights=weights, means=means, scales=scales)
        return params

    def __call__(self, X, Y=None, eval_gradient: bool = False):
        X = np.atleast_2d(X)
        Z = X if Y is None else np.atleast_2d(Y)
        if Y is not None and eval_gradient:
            raise ValueError("Gradient can only be evaluated when Y is None.")
        weights, means, scales = self._values()
        Q, d = int(self.n_components), X.shape[1]
        _check_counts(weights.size, means.size, scales.size, Q, d)
        means, scales = means.reshape(Q, d), scales.reshape(Q, d)
        lag = X[:, None, :] - Z[None, :, :]
        parts, d_means, d_scales = [], [], []
        for w, m, s in zip(weights, means, scales, strict=True):
            angle, decay = 2 * np.pi * lag * m, 2 * np.pi**2 * np.square(lag * s)
            factors = np.exp(-decay) * np.cos(angle)
            parts.append(w * factors.prod(-1))
            if eval_gradient:
                for j in range(X.shape[1]):
                    others = w * np.delete(factors, j, axis=-1).prod(-1)
                    slope = -angle[..., j] * np.sin(angle[..., j]) * np.exp(-decay[..., j])
                    d_means.append(others * slope)
                    d_scales.append(others * factors[..., j] * -2 * decay[..., j])
        K = sum(parts)
        if not eval_gradient:
            return K
        # scikit-learn's order of hyperparameters is that of their names.
        free = {"means": d_means, "scales": d_scales, "weights": parts}
        found = [g for h in self.hyperparameters if not h.fixed for g in free[h.name]]
        return K, np.stack(found, -1) if found else np.empty((*K.shape, 0))

    def diag(self, X) -> np.ndarray:
        return np.full(len(X), self._values()[0].sum())

    def __repr__(self) -> str:
        weights, means, scales = (np.array2string(v, precision=3) for v in self._values())
        return f"SpectralMixture(weights={weights}, means={means}, scales={scales})"


def _check_counts(weights: int, means: int, scales: int, n_components: int, d: int) -> None:
    for name, size in (("means", means), ("scales", scales)):
        if size != n_components * d:
            raise ValueError(
                f"SpectralMixture with {n_components} components has {size} {name}, but the data "
                f"have {d} column{'s' if d > 1 else ''}: give {n_components} x {d}, or use "
                "SpectralMixture.from_data."
            )
    if weights != n_components:
        raise ValueError(
            f"SpectralMixture with {n_components} components has {weights} weights: give one for "
            "each."
        )


def _periodogram_peaks(
    x: np.ndarray, y: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Frequencies of the highest peaks, their power, and the lowest and highest frequency."""
    span, n = np.ptp(x), len(np.unique(x))
    lowest = 1 / span if span > 0 else 1.0
    highest = lowest * max(n - 1, 2) / 2
    frequencies = np.arange(0.5, min(highest / lowest, 1000) + 0.5, 0.25) * lowest
    centred = y - np.polyval(np.polyfit(x, y, min(1, n - 1)), x)
    total = np.zeros(len(frequencies), dtype=complex)
    step = max(1, _BLOCK_NUMBERS // len(frequencies))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        total += np.exp(-2j * np.pi * np.outer(frequencies, x[part])) @ centred[part]
    power = np.abs(total) ** 2 + 1e-300
    padded = np.concatenate([[0], power, [0]])
    is_peak = (power >= padded[:-2]) & (power >= padded[2:])
    order = np.lexsort((-power, ~is_peak))[:count]
    if len(order) < count:
        order = np.resize(order, count)
    return frequencies[order], power[order], lowest, highest


class SpectralComponent(Node):
    """One component of the mixture: a damped cosine of unit variance."""

    label = "SpectralMixture"
    stationary = True
    separable = True

    def __init__(self, means: Slot, scales: Slot):
        self.means, self.scales = means, scales

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        means, scales = self.means.value_like(theta, X), self.scales.value_like(theta, X)
        value = X.new_ones(1)
        for j in range(X.shape[-1]):
            lag = X[..., :, None, j] - Z[..., None, :, j]
            value = value * torch.exp(-2 * math.pi**2 * (lag * scales[j]).square())
            value = value * torch.cos(2 * math.pi * lag * means[j])
        return value

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)

    def frequencies(self, draws: Draws) -> BumpFrequencies:
        base, signs = draws.normal(), draws.normal().sign()
        return BumpFrequencies(draws.stored(base), draws.stored(signs), self.means, self.scales)


@dataclass(frozen=True, eq=False)
class BumpFrequencies(Frequencies):
    """Frequencies of one component: normal draws around plus or minus its mean frequency.

    Attributes
    ----------
    base, signs : Tensor of shape (pairs, d)
        Standard normal draws, and random signs.
    means, scales : Slot
        Mean and width of the component, one value for each column.
    """

    base: Float[Tensor, "pairs d"]
    signs: Float[Tensor, "pairs d"]
    means: Slot
    scales: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        means = self.means.value_like(theta, self.base)
        scales = self.scales.value_like(theta, self.base)
        return 2 * np.pi * (self.signs * means + self.base * scales)


def _build(kernel: SpectralMixture, layout: Layout) -> Node:
    explicit = SpectralMixture(**kernel.get_params())
    slots, Q, d = layout.slots(explicit), int(kernel.n_components), layout.n_features
    weights, means, scales = (slots[name] for name in ("weights", "means", "scales"))
    _check_counts(weights.size, means.size, scales.size, Q, d)

    def component(q: int) -> Node:
        own = q * d, (q + 1) * d
        leaf = SpectralComponent(means.part(*own), scales.part(*own))
        return ProductNode(Constant(weights.part(q, q + 1)), leaf)

    return reduce(SumNode, map(component, range(Q)))


register_kernel(SpectralMixture, _build)
