"""Priors of hyperparameters, whose log density training adds to its objective."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike
from scipy.special import gammaln
from sklearn.gaussian_process.kernels import Kernel

from .._validation import check_numbers


@dataclass(frozen=True)
class Prior(ABC):
    """A distribution of a positive hyperparameter, as a density of its logarithm.

    The parameters of a prior are positive: one number for all elements of the hyperparameter, or
    one for each.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = check_numbers(f"{type(self).__name__}: {field.name}", getattr(self, field.name))
            if not (value > 0).all():
                raise ValueError(
                    f"{type(self).__name__} needs {field.name} > 0, got {value.tolist()}."
                )

    @abstractmethod
    def log_density(self, log_value: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The log density of the logarithm, and its derivative.

        Parameters
        ----------
        log_value : array-like
            Logarithms of values of the hyperparameter.

        Returns
        -------
        log_density, slope : ndarray
            Arrays of the same shape.
        """


@dataclass(frozen=True)
class LogNormal(Prior):
    """A log-normal distribution: the logarithm is normal.

    Parameters
    ----------
    median : float or array-like, default=1.0
        The median, which is also where the density of the logarithm is highest, in the unit of the
        hyperparameter.
    sigma : float or array-like, default=1.0
        Standard deviation of the natural logarithm; 1 is a factor of 2.7 in both directions.
    """

    median: ArrayLike = 1.0
    sigma: ArrayLike = 1.0

    def log_density(self, log_value: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        sigma = np.asarray(self.sigma, dtype=float)
        z = (np.asarray(log_value, dtype=float) - np.log(self.median)) / sigma
        return -0.5 * z**2 - np.log(sigma) - 0.5 * math.log(2 * math.pi), -z / sigma


@dataclass(frozen=True)
class Gamma(Prior):
    """A gamma distribution, under which large values are rarer than small ones.

    Parameters
    ----------
    shape : float or array-like, default=2.0
        The shape, which is 1 over the square of the relative standard deviation.
    rate : float or array-like, default=1.0
        The rate. The mean is shape / rate, where the density of the logarithm is highest.
    """

    shape: ArrayLike = 2.0
    rate: ArrayLike = 1.0

    def log_density(self, log_value: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        t = np.asarray(log_value, dtype=float)
        shape, rate = (np.asarray(a, dtype=float) for a in (self.shape, self.rate))
        scaled = rate * np.exp(t)
        return shape * (np.log(rate) + t) - scaled - gammaln(shape), shape - scaled


@dataclass(frozen=True)
class HalfCauchy(Prior):
    """A half-Cauchy distribution, whose heavy tails allow values of any size.

    Parameters
    ----------
    scale : float or array-like, default=1.0
        The median, which is also where the density of the logarithm is highest.
    """

    scale: ArrayLike = 1.0

    def log_density(self, log_value: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        u = np.asarray(log_value, dtype=float) - np.log(self.scale)
        return math.log(2 / math.pi) - np.logaddexp(u, -u), -np.tanh(u)


class ThetaPrior:
    """The log density of theta, summed over the hyperparameters that have a prior.

    Parameters
    ----------
    kernel : Kernel
        The kernel to which theta belongs.
    priors : mapping of str to Prior, or None
        Priors by the names in ``kernel.hyperparameters``.

    Raises
    ------
    TypeError
        For a value that is not a `Prior`.
    ValueError
        For a hyperparameter that the kernel does not have, that is fixed, or that is not in theta
        as a logarithm. The message lists the possible names.
    """

    def __init__(self, kernel: Kernel, priors: Mapping[str, Any] | None):
        self.parts: list[tuple[slice, Prior]] = []
        if not priors:
            return
        start, places, fixed, params = 0, {}, [], kernel.get_params()
        theta = np.asarray(kernel.theta, dtype=float)
        for h in kernel.hyperparameters:
            if h.fixed:
                fixed.append(h.name)
                continue
            place = slice(start, start + h.n_elements)
            start = place.stop
            if np.allclose(np.exp(theta[place]), np.ravel(params[h.name])):
                places[h.name] = place
        for name, prior in priors.items():
            if not isinstance(prior, Prior):
                raise TypeError(
                    f"priors[{name!r}] must be an object from skscalablegp.priors, got {prior!r}."
                )
            if name not in places:
                why = "is fixed" if name in fixed else "the kernel does not have"
                raise ValueError(
                    f"priors has {name!r}, which {why}: the hyperparameters that can have a prior "
                    f"are {list(places)}."
                )
            size = places[name].stop - places[name].start
            if any(np.size(getattr(prior, f.name)) not in (1, size) for f in fields(prior)):
                raise ValueError(
                    f"priors[{name!r}] needs one number, or one for each of the {size} elements."
                )
            self.parts.append((places[name], prior))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, theta: Float64[np.ndarray, " q"]) -> tuple[float, Float64[np.ndarray, " q"]]:
        """The log density and its gradient; entries of theta beyond the kernel's have no prior."""
        value, grad = 0.0, np.zeros(len(theta))
        for place, prior in self.parts:
            density, slope = prior.log_density(theta[place])
            value += float(np.sum(density))
            grad[place] = slope
        return value, grad
