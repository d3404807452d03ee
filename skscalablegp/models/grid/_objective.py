"""The marginal likelihood of an interpolated kernel from sums on the grid, for any n."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import Table
from ...core.training import Budget
from ...linalg.blocks import look_up
from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, Rows
from ...linalg.solvers import cholesky_with_jitter
from ._grid import Grid
from ._grid_kernel import SMALLEST_NOISE, GridFactor, GridKernel, quadratic_form
from ._moments import GridMoments, NoisyMoments, grid_moments, misfit, missed_sum
from ._polynomials import offset_sums
from ._sparse import CPU

# Allowed error from leaving out the smallest eigenvalues of the grid's covariance: in nats, by a
# bound that in practice is about a hundred times too large, and as a share of the prior variance.
_CUT_NATS = 1e-3
_CUT_VARIANCE = 1e-9
# Columns that are timed for a budget, the products of m r^2 operations in an evaluation without its
# gradient (r^3 ones included), and a rank that no budget is too short for.
_TIMED, _SQUARES, _LEAST_RANK = 32, 2.0, 100
# The same products for the eigenvectors of long axes.
_LONG_SQUARES = 8.0
# Numbers in one block of columns on the grid.
_BLOCK_NUMBERS = 2**21


def noise_jitter(smallest: float, prior: float) -> float:
    """The jitter that raises the `smallest` noise variance to a minimal share of the prior's.

    Parameters
    ----------
    smallest : float
        The smallest noise variance of any row, white noise included.
    prior : float
        The prior variance.
    """
    if prior == 0 and smallest == 0:
        return 1.0
    return max(0.0, SMALLEST_NOISE * prior - smallest)


class SummedRows(ABC):
    """The moments of a table at any variance of the kernel's white noise."""

    smallest: float

    def jitter(self, noise: float, prior: float) -> float:
        """The jitter for a variance `noise` of the white noise."""
        return noise_jitter(noise + self.smallest, prior)

    @abstractmethod
    def at(self, noise: float, device: torch.device, kept: dict[str, NoisyMoments]) -> NoisyMoments:
        """The moments when the white noise `noise` is added to the known noise of every row.

        What does not depend on the noise is sent to the device once, and stays in `kept`.
        """

    @abstractmethod
    def settled(self, white: float, prior: float) -> KeptRows:
        """The sums that a fitted model stores, given the white noise and the prior variance."""


class KeptRows(SummedRows):
    """The sums on a grid that a fitted model stores, and to which further rows can be added.

    Subclasses have ``moved(numbers, grid)``, the sums on a grid in which point i has the number
    ``numbers[i]``, and ``plus(table, white, prior)``, the sums with further rows, exactly, at
    trained variances of the white noise and the prior.

    Attributes
    ----------
    moments : GridMoments
    reweighs : bool
        Whether the moments are available at every variance of the white noise.
    """

    moments: GridMoments
    reweighs: bool

    def settled(self, white: float, prior: float) -> KeptRows:
        return self


class CommonNoise(KeptRows):
    """Rows with the same known noise variance, whose moments scale with the noise.

    Parameters
    ----------
    moments : GridMoments
        Moments with weights 1.
    grid : Grid
    known : float
        The known noise variance.
    """

    reweighs = True

    def __init__(self, moments: GridMoments, grid: Grid, known: float):
        self.moments, self.grid, self.smallest = moments, grid, known
        self._sums = _component_sums(moments, grid)

    def at(self, noise, device, kept):
        if "rows" not in kept:
            alone = self.moments, self.moments, self._sums, 0.0, 1.0
            kept["rows"] = NoisyMoments.of(*alone, device)
        D = noise + self.smallest
        return kept["rows"].divided(D, self.moments.n * math.log(D))

    def moved(self, numbers: np.ndarray, grid: Grid) -> KeptRows:
        return CommonNoise(self.moments.moved(numbers, grid.n_points), grid, self.smallest)

    def plus(self, table: Table, white: float, prior: float) -> KeptRows:
        if (table.noise == self.smallest).all():
            moments = self.moments + grid_moments(table, self.grid)
            return CommonNoise(moments, self.grid, self.smallest)
        jitter = self.jitter(white, prior)
        D = white + jitter + self.smallest
        given = self.moments.scaled(1 / D), self.grid, self.moments.n * math.log(D), jitter
        return FixedNoise(*given).plus(table, white, prior)


class NoiseByRow(SummedRows):
    """Rows with different noise, which are read again for every variance of the white noise.

    Parameters
    ----------
    grid : Grid
    table : Table
        The rows.
    """

    def __init__(self, grid: Grid, table: Table):
        self._grid, self._table = grid, table
        self.smallest = table.noise_range()[0]

    def at(self, noise, device, kept):
        first, second, log_det, inverse = self._sums(noise)
        sums = _component_sums(first, self._grid)
        return NoisyMoments.of(first, second, sums, log_det, inverse, device)

    def settled(self, white: float, prior: float) -> KeptRows:
        jitter = self.jitter(white, prior)
        first, _, log_det, _ = self._sums(white + jitter)
        return FixedNoise(first, self._grid, log_det, jitter)

    def _sums(self, noise: float) -> Iterator[Any]:
        """Moments with weights 1 / D and 1 / D^2, and the sums of log D and 1 / D."""
        parts = self._table.each(_noisy_parts, self._grid, noise)
        return (reduce(add, part) for part in zip(*parts, strict=True))


class FixedNoise(KeptRows):
    """Rows with fixed noise variances D, of which only weighted moments are stored.

    Parameters
    ----------
    moments : GridMoments
        Moments with weights 1 / D.
    grid : Grid
    log_det : float
        Sum of log D.
    added : float
        The largest jitter in any D.
    """

    reweighs = False

    def __init__(self, moments: GridMoments, grid: Grid, log_det: float, added: float = 0.0):
        self.moments, self.grid, self.log_det, self.added = moments, grid, log_det, added

    def jitter(self, noise: float, prior: float) -> float:
        return self.added

    def at(self, noise, device, kept):
        given = self.moments, self.moments, [], self.log_det, float("nan")
        return NoisyMoments.of(*given, device)

    def moved(self, numbers: np.ndarray, grid: Grid) -> KeptRows:
        moments = self.moments.moved(numbers, grid.n_points)
        return FixedNoise(moments, grid, self.log_det, self.added)

    def plus(self, table: Table, white: float, prior: float) -> KeptRows:
        new = noise_jitter(white + float(table.noise.min()), prior)
        D = white + table.noise + new
        moments = self.moments + grid_moments(table, self.grid, 1 / D)
        log_det = self.log_det + float((table.counts * np.log(D)).sum())
        return FixedNoise(moments, self.grid, log_det, max(self.added, new))


def summed(kernel: GridKernel, table: Table, chosen: np.ndarray | None = None) -> SummedRows:
    """The moments of all or of chosen rows. Rows with different noise are kept during training."""
    some = table if chosen is None else table.rows(chosen)
    low, high = table.noise_range()
    if low < high:
        return NoiseByRow(kernel.grid, some)
    return CommonNoise(reduce(add, some.each(grid_moments, kernel.grid)), kernel.grid, low)


def _noisy_parts(table: Table, grid: Grid, noise: float) -> tuple[Any, ...]:
    """Moments with weights 1 / D and 1 / D^2, and the sums of log D and 1 / D."""
    D = noise + table.noise
    first, second = (grid_moments(table, grid, D**-k) for k in (1.0, 2.0))
    log_det, inverse = (float((table.counts * part).sum()) for part in (np.log(D), 1 / D))
    return first, second, log_det, inverse


def _component_sums(moments: GridMoments, grid: Grid) -> list[np.ndarray]:
    """The entries of each component's Gram matrix, summed by their offset."""
    sums = []
    for start, shape in zip(grid.starts, grid.shapes, strict=True):
        part = slice(start, start + math.prod(shape))
        sums.append(offset_sums(moments.gram[part, part], shape))
    return sums


def rows_on_grid(grid: Grid, table: Table, device: torch.device = CPU) -> Rows:
    """Return the rows of a table with their interpolation weights W (n, m) as inputs."""
    # The columns of W' are read more often than its rows.
    weights = torch.from_numpy(grid.interpolate(table.X).toarray()).T.contiguous()
    known = torch.from_numpy(table.targets).double(), table.noise, table.counts, table.within
    return Rows.of(weights.T, *known).to(torch.float64, device)


@dataclass(frozen=True, kw_only=True)
class GridProblem(GPProblem):
    """A regression that consists of moments on a grid; its rows have no columns.

    Attributes
    ----------
    grid_kernel : GridKernel
        The prior.
    summed : SummedRows
        The moments.
    probes : RowProbes or None
        Random vectors over the rows, for ``solver="cg"``.
    few : Rows or None
        The rows themselves (`rows_on_grid`), if training with them costs less than with the grid's
        covariance.
    sent : dict
        What `SummedRows.at` keeps.
    """

    has_rows = False

    grid_kernel: GridKernel
    summed: SummedRows = field(repr=False)
    probes: Any = field(default=None, repr=False)
    few: Rows | None = field(default=None, repr=False)
    sent: dict[str, NoisyMoments] = field(default_factory=dict, repr=False)

    @classmethod
    def make(
        cls,
        grid_kernel: GridKernel,
        summed: SummedRows,
        n: int,
        probes: Any = None,
        few: Rows | None = None,
    ) -> GridProblem:
        nothing, kernel = torch.empty(n, 0, dtype=torch.float64), grid_kernel.kernel
        own = dict(grid_kernel=grid_kernel, summed=summed, probes=probes, few=few)
        return cls(kernel, Rows.of(nothing, nothing), **own)


def raised_noise(
    problem: GridProblem, theta: Float[Tensor, " p"]
) -> tuple[float, float, NoisyMoments]:
    """The white noise plus jitter, the jitter, and the moments at this noise."""
    kernel = problem.grid_kernel
    with torch.no_grad():
        noise = float(kernel.noise(theta))
        jitter = problem.summed.jitter(noise, float(kernel.prior(theta)))
    moments = problem.summed.at(noise + jitter, kernel.device, problem.sent)
    return noise + jitter, jitter, moments


@dataclass(frozen=True, eq=False)
class GridEvaluation:
    """The result of one evaluation; r is the numerical rank of the grid's covariance.

    Attributes
    ----------
    value : float
        Log marginal likelihood, summed over targets.
    grad : Tensor of shape (p,) or None
        The gradient in theta.
    factor : GridFactor
        F of shape (m, r) with Kuu = F F'.
    inner : Tensor of shape (r, r)
        A = F' W' D^-1 W F.
    cholesky : Tensor of shape (r, r)
        L with I + A = L L'.
    weights : Tensor of shape (r, t)
        The posterior mean of z where f = F z on the grid.
    jitter : float
        Jitter added to the noise variance.
    misfit : float
        Mean squared residual of the rows beyond the noise. Without noise it is the interpolation
        error.
    std_error : float
        Standard error of the value, which is exact here.
    solve : SolveSummary or None
        The linear solve behind the weights; None, because they come from a factorisation.
    """

    value: float
    grad: Tensor | None
    factor: GridFactor
    inner: Tensor
    cholesky: Tensor
    weights: Tensor
    jitter: float
    misfit: float = 0.0
    std_error: float = 0.0
    solve: None = None

    @property
    def rank(self) -> int:
        return len(self.inner)


def grid_marginal_likelihood(
    problem: GridProblem, theta: Float[Tensor, " p"], eval_gradient: bool = True
) -> GridEvaluation:
    r"""log p(Y) of the interpolated model from moments alone, exact up to rounding.

    With Kuu = F F', H = D + (W F)(W F)' and A = F' (W' D^-1 W) F: log|H| = log|D| + log|I + A|, and
    H^-1 by Woodbury's formula. O(m r^2 + r^3) time and O(m r) memory for any n; the numerical rank
    r of a smooth kernel is far below m.

    Parameters
    ----------
    problem : GridProblem
        Moments and kernel.
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    eval_gradient : bool, default=True
        Also compute the gradient.
    """
    kernel = problem.grid_kernel
    theta = theta.detach().double()
    with torch.no_grad():
        _, jitter, moments = raised_noise(problem, theta)
        prior = float(kernel.prior(theta))
        G, n = moments.gram, moments.n
        # Leaving out a part R changes log|H| by at most tr(G R) <= norm tr(R).
        tol = min(_CUT_NATS / G.norm(), _CUT_VARIANCE * prior * kernel.n_points)
        factor = kernel.factor(theta, tol)
        F = factor.F
        P, A = torch.empty_like(F), F.new_empty(F.shape[1], F.shape[1])
        for some in _blocks(F):
            look_up()
            P[:, some] = G @ F[:, some].contiguous()
            A[:, some] = F.T @ P[:, some]
        A = (A + A.T) / 2
        M = A.clone()
        M.diagonal().add_(1)
        L, _ = cholesky_with_jitter(M)
        b = moments.rhs
        t = b.shape[1]
        a = F.T @ b
        alpha = torch.cholesky_solve(a, L)
        left = missed_sum(moments, F @ alpha)
        # One copy from a device for all numbers.
        explained, half_log_det, left = torch.stack(
            [(a * alpha).sum(), L.diagonal().log().sum(), left]
        ).tolist()
        quadratic = moments.total - explained
        log_det = moments.log_det + 2 * half_log_det
    value = -0.5 * (quadratic + t * log_det + n * t * math.log(2 * math.pi))
    grad = None
    if eval_gradient:
        grad = _gradient(kernel, theta, moments, F, P, L, alpha, jitter)
    missed = misfit(moments, left, t, jitter)
    return GridEvaluation(value, grad, factor, A, L, alpha, jitter, missed)


def _blocks(F: Float[Tensor, "m r"]) -> list[slice]:
    """Blocks of columns, between which a budget may end an evaluation."""
    m, r = F.shape
    size = max(1, _BLOCK_NUMBERS // m)
    return [slice(start, start + size) for start in range(0, r, size)]


def affordable_rank(problem: GridProblem, budget: Budget) -> int | None:
    """The largest rank whose evaluation takes its share of the time; None without a limit.

    A few columns are timed. The products with G grow with the rank, the others with its square.
    """
    if budget.limit is None:
        return None
    gram = raised_noise(problem, problem.kernel.theta0)[2].gram
    m, device = problem.grid_kernel.n_points, problem.grid_kernel.device
    V = torch.ones(m, _TIMED, dtype=torch.float64, device=device)
    product = budget.timed(lambda: gram @ V) / _TIMED
    squares = _SQUARES + _LONG_SQUARES * problem.grid_kernel.long_axes
    square = squares * budget.timed(lambda: V.T @ V) / _TIMED**2
    part = budget.share("evaluation")
    ranks = range(_LEAST_RANK, max(_LEAST_RANK + 1, m + 1))
    most = part.affordable(lambda r: product * r + square * r * r, ranks)
    budget.reserve(product * most + square * most**2)
    return most


class GridGradient(GradientEstimator):
    """Exact value and gradient of an interpolated model."""

    exact = True

    def estimate(self, problem, theta, state):
        if problem.few is not None:
            return few_rows_gradient(problem, theta), state
        result = grid_marginal_likelihood(problem, theta)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state


def few_rows_gradient(problem: GridProblem, theta: Float[Tensor, " p"]) -> GradientEstimate:
    """The same likelihood and gradient by dense algebra over the rows; O(n^2 m + n m log m)."""
    kernel, theta = problem.grid_kernel, theta.detach().double()
    rows = problem.few
    W = rows.X.T
    n, t = rows.Y.shape
    with torch.no_grad():
        noise = float(kernel.noise(theta))
        jitter = problem.summed.jitter(noise, float(kernel.prior(theta)))
        H = W.T @ kernel.matmul(theta, W)
        H = (H + H.T) / 2
        v = rows.noise + (noise + jitter)
        H.diagonal().add_(rows.noise_of_means(v))
        L, _ = cholesky_with_jitter(H)
        alpha = torch.cholesky_solve(rows.Y, L)
        eye = torch.eye(n, dtype=L.dtype, device=L.device)
        root = torch.linalg.solve_triangular(L, eye, upper=False)
        # The slopes of the means' noise in that of single rows.
        share = rows.noise_of_means(torch.ones_like(v))
        quadratic, half_log_det, squares, traced = torch.stack(
            [
                (rows.Y * alpha).sum(),
                L.diagonal().log().sum(),
                (share[:, None] * alpha.square()).sum(),
                (share * root.square()).sum(),
            ]
        ).tolist()
        # What means leave out of the likelihood of all rows.
        missing = float(rows.log_density(v).sum())
        slope = float((0.5 * (rows.scatter / v - t * (rows.weight - 1)) / v).sum())
        value = -0.5 * (quadratic + t * (2 * half_log_det + n * math.log(2 * math.pi))) + missing
        d_noise = 0.5 * (squares - t * traced) + slope

    def surrogate(columns: list) -> Tensor:
        fit = quadratic_form(columns, kernel.grid, W @ alpha)
        return 0.5 * (fit - t * quadratic_form(columns, kernel.grid, W @ root.T))

    grad = kernel.slope(theta, [surrogate], d_noise, raised=jitter > 0)
    return GradientEstimate(grad, value, None, jitter)


def check_rank(kernel: GridKernel, theta: Float[Tensor, " p"], limited: bool = False) -> int:
    """The rank of the prior; refuse one that does not fit into memory, before any row is read.

    Rows with little noise need a higher rank than the one that is checked here. Where time is
    `limited`, long axes are not decomposed for it: the rank is that of all points at most, and
    `affordable_rank` will bound it.

    Raises
    ------
    MemoryError
        The message names the rank and how to reduce it.
    """
    if limited and kernel.long_axes:
        return kernel.n_points
    with torch.no_grad():
        tol = _CUT_VARIANCE * float(kernel.prior(theta)) * kernel.n_points
        cuts = kernel.cuts(theta, tol, vectors=False)
    return sum(cut.rank for terms in cuts for cut in terms)


def _gradient(kernel, theta, moments, F, P, L, alpha, jitter) -> Float[Tensor, " p"]:
    """dL/dKuu = (u u' - t (G - P M^-1 P')) / 2; dL/dnoise = (v'v - t tr H^-1) / 2, v = H^-1 y."""
    t = alpha.shape[1]
    with torch.no_grad():
        u = moments.rhs - P @ alpha
        if moments.second_gram is None:
            # With equal noise the second moments are multiples of the first.
            inner = L @ L.T
            inner.diagonal().sub_(1)
            inner *= moments.inverse / moments.n
        else:
            inner = F.T @ (moments.second_gram @ F)
        b2 = F.T @ moments.second_rhs
        squares = moments.second_total - 2 * (alpha * b2).sum() + (alpha * (inner @ alpha)).sum()
        trace = moments.inverse - torch.cholesky_solve(inner, L).trace()
        d_noise = 0.5 * (squares - t * trace)
        explained = torch.linalg.solve_triangular(L, P.T, upper=False).T
    # Block by block, because autograd keeps several copies.
    parts = [partial(_of_block, kernel, explained[:, some], 0.5 * t) for some in _blocks(explained)]
    parts += [partial(_of_block, kernel, u, 0.5)]
    parts += [lambda columns: -0.5 * t * kernel.trace(columns, moments.sums)]
    return kernel.slope(theta, parts, d_noise, raised=jitter > 0)


def _of_block(
    kernel: GridKernel, V: Float[Tensor, "m s"], weight: float, columns: list
) -> Float[Tensor, ""]:
    """A multiple of tr(V' Kuu V)."""
    look_up()
    return weight * quadratic_form(columns, kernel.grid, V)
