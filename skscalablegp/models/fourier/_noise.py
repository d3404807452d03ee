"""The noise that suits random features at given values of the other hyperparameters.

Noise has to account for all that the features leave unexplained. The exact process of a few rows,
which chooses the start of training, leaves much less unexplained than features do on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from scipy.optimize import minimize_scalar
from torch import Generator, Tensor

from ...core import random_rows
from ...features import PriorFeatures
from ...linalg.gradients import GPProblem
from ._collapsed import FeatureSums, all_rows, collapsed_marginal_likelihood, has_few_rows

# The noise of the first step suits so many random rows, or this multiple of the features if these
# are more.
_START_ROWS, _ROWS_PER_FEATURE = 5000, 4
# Largest change of the logarithm of the noise, and the distance of the values that are tried first.
_FARTHEST, _APART = 40.0, 0.5
# Tolerances of that logarithm: if eigenvalues give the likelihood, and if a pass over rows does.
_TOL, _ROUGH_TOL = 1e-7, 0.02
# Most trials in the latter case.
_TRIALS = 15
# Known noise variances of rows count as equal up to this relative difference.
_EQUAL = 1e-12


def suited_noise(
    problem: GPProblem, theta: Float[Tensor, " p"], features: PriorFeatures
) -> tuple[Float64[Tensor, " p"], FeatureSums | None]:
    """theta with the noise at which the likelihood plus the log prior is highest.

    All free noise levels change by a common factor, within their bounds. Other hyperparameters keep
    their values. Nothing changes if no noise level is free, or if rows have different known noise,
    for which no eigendecomposition gives the likelihood.

    Parameters
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        Log hyperparameters.
    features : PriorFeatures
        The map; m columns.

    Returns
    -------
    theta : Tensor of shape (p,)
    sums : FeatureSums or None
        Those at the result, if they have been computed.

    Notes
    -----
    O(n m^2 + m^3), or O(n^2 m) if n <= m. A trial then costs O(m).
    """
    theta = theta.detach().double().cpu()
    line = NoiseLine.of(problem, theta)
    if line is None or not line.equal:
        return theta, None
    level, sums = line.level(0.0), None
    if has_few_rows(problem, features):
        spectrum = NoiseSpectrum.of_rows(*all_rows(problem.whole(), theta, features), level)
    else:
        sums = FeatureSums.of(problem, theta, features)
        spectrum = NoiseSpectrum.of_sums(sums, level)

    def value(shift: float) -> float:
        more = problem.repeated(line.at(shift), eval_gradient=False)[0]
        return spectrum.log_likelihood(line.level(shift)) + more

    shift = line.best(value)
    if sums is not None:
        sums = sums.with_noise(line.level(shift) / level)
    return line.at(shift), sums


def starting_noise(
    problem: GPProblem, theta: Float[Tensor, " p"], features: PriorFeatures
) -> Float64[Tensor, " p"]:
    """theta with the noise that suits the features on some random rows, before the first step.

    If rows have different known noise, each of a few trials is a pass over these rows.
    """
    n, theta = len(problem.X), theta.detach().double().cpu()
    if not problem.kernel.noise_levels.any():
        return theta
    most = max(_START_ROWS, _ROWS_PER_FEATURE * features.n_features)
    # The rows do not depend on the seed, so that a fit that continues begins at the same point.
    rows = random_rows(n, min(n, most), Generator().manual_seed(0))
    part = problem.random_part(rows.to(problem.X.device)).to(torch.float64)
    line = NoiseLine.of(part, theta)
    if line is None or line.equal:
        return suited_noise(part, theta, features)[0]

    def value(shift: float) -> float:
        return collapsed_marginal_likelihood(part, line.at(shift), features, False).value

    return line.at(line.nearby(value))


@dataclass(frozen=True, eq=False)
class NoiseSpectrum:
    """The likelihood for phi phi' + v C and any v > 0, from one eigendecomposition.

    Attributes
    ----------
    values : Tensor of shape (r,)
        Eigenvalues of C^-1/2 phi phi' C^-1/2. The other n - r are zero.
    energies : Tensor of shape (r,)
        Squares of C^-1/2 Y along their eigenvectors, summed over targets.
    rest : float
        The sum of the other squares.
    log_diagonal : float
        log|C| of the diagonal matrix C.
    n, t : int
        Numbers of rows and targets.
    """

    values: Float64[Tensor, " r"]
    energies: Float64[Tensor, " r"]
    rest: float
    log_diagonal: float
    n: int
    t: int

    @classmethod
    def of_sums(cls, sums: FeatureSums, level: float) -> NoiseSpectrum:
        """From sums over rows whose noise is D = level C; O(m^3)."""
        values, vectors = torch.linalg.eigh(sums.gram)
        squares = (vectors.T @ sums.projected).square().sum(1)
        # Where the eigenvalue is zero, projections are rounding errors.
        seen = values > torch.finfo(values.dtype).eps * values.abs().sum()
        energies = torch.where(seen, squares / torch.where(seen, values, 1.0), 0.0)
        rest = max(float(sums.squares - energies.sum()), 0.0)
        n, t = sums.n, sums.projected.shape[1]
        log_diagonal = float(sums.log_noise) - n * math.log(level)
        return cls(level * values.clamp_min(0), level * energies, level * rest, log_diagonal, n, t)

    @classmethod
    def of_rows(
        cls,
        phi: Float64[Tensor, "n m"],
        Y: Float64[Tensor, "n t"],
        noise: Float64[Tensor, " n"],
        level: float,
    ) -> NoiseSpectrum:
        """From rows with the noise variances D = level C; O(n^2 m)."""
        C = noise / level
        phi, Y = (part / C.sqrt()[:, None] for part in (phi, Y))
        values, vectors = torch.linalg.eigh(phi @ phi.T)
        energies = (vectors.T @ Y).square().sum(1)
        return cls(values.clamp_min(0), energies, 0.0, float(C.log().sum()), *Y.shape)

    def log_likelihood(self, level: float) -> float:
        """log N(Y; 0, phi phi' + level C), summed over targets; O(r)."""
        total, others = self.values + level, self.n - len(self.values)
        quadratic = float((self.energies / total).sum()) + self.rest / level
        log_det = float(total.log().sum()) + others * math.log(level) + self.log_diagonal
        return -0.5 * (quadratic + self.t * (log_det + self.n * math.log(2 * math.pi)))


@dataclass(frozen=True, eq=False)
class NoiseLine:
    """Hyperparameters that differ in the free noise levels, by a common factor within the bounds.

    Attributes
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        The hyperparameters at a shift of zero.
    free : ndarray of shape (p,)
        Marks the noise levels.
    known : tuple of float
        The least and the largest known noise variance of a row.
    """

    problem: GPProblem
    theta: Float64[Tensor, " p"]
    free: Bool[np.ndarray, " p"]
    known: tuple[float, float]

    @classmethod
    def of(cls, problem: GPProblem, theta: Float64[Tensor, " p"]) -> NoiseLine | None:
        """The line through theta; None if no noise level is free."""
        free = problem.kernel.noise_levels
        if not free.any():
            return None
        found = [known for known in problem.each(_known_noise) if known is not None]
        return cls(problem, theta, free, (min(low for low, _ in found), max(h for _, h in found)))

    @property
    def equal(self) -> bool:
        """Whether all rows have the same known noise."""
        low, high = self.known
        return high - low <= _EQUAL * high

    @property
    def ends(self) -> tuple[float, float]:
        """The shifts beyond which no noise level changes."""
        theta, bounds = self.theta.numpy()[:, None], self.problem.kernel.bounds.numpy()
        low, high = (bounds - theta)[self.free].T
        return max(float(low.min()), -_FARTHEST), min(float(high.max()), _FARTHEST)

    def at(self, shift: float) -> Float64[Tensor, " p"]:
        """The hyperparameters with a multiple of the noise, whose logarithm is given."""
        if shift == 0:
            return self.theta
        low, high = self.problem.kernel.bounds.T
        moved = (self.theta + shift).clamp(low, high)
        return torch.where(torch.as_tensor(self.free), moved, self.theta)

    def level(self, shift: float) -> float:
        """The noise variance of a row, if all are equal."""
        kernel = self.problem.kernel
        row = torch.zeros(1, kernel.n_features, dtype=torch.float64)
        return float(kernel.noise(self.at(shift), row)) + self.known[0]

    def best(self, log_likelihood: Callable[[float], float]) -> float:
        """The shift at which the log likelihood plus the log prior is highest; zero of equals."""
        low, high = self.ends
        value = self._objective(log_likelihood)
        shifts = [0.0, *np.linspace(low, high, 2 + int((high - low) / _APART))]
        near = max(shifts, key=value)
        around = np.clip([near - _APART, near + _APART], low, high)
        found = minimize_scalar(
            lambda at: -value(at), bounds=around, method="bounded", options={"xatol": _TOL}
        )
        return max([0.0, near, float(found.x)], key=value)

    def nearby(self, log_likelihood: Callable[[float], float]) -> float:
        """The same by few trials, for a likelihood with one maximum."""
        value = self._objective(log_likelihood)
        found = minimize_scalar(
            lambda at: -value(at),
            bounds=self.ends,
            method="bounded",
            options={"xatol": _ROUGH_TOL, "maxiter": _TRIALS},
        )
        return max([0.0, float(found.x)], key=value)

    def _objective(self, log_likelihood: Callable[[float], float]) -> Callable[[float], float]:
        """The log likelihood plus the log prior."""

        def value(shift: float) -> float:
            at = self.at(shift)
            return log_likelihood(shift) + self.problem.log_prior(at.numpy())[0]

        return value


def _known_noise(problem: GPProblem) -> tuple[float, float] | None:
    """The least and the largest known noise variance of some rows; None without rows."""
    if not len(problem.X):
        return None
    return float(problem.rows.noise.min()), float(problem.rows.noise.max())
