"""Interpolated models by fast products, without a factor of the grid's covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..._end import End
from ...core.data import Table
from ...core.training import Budget
from ...linalg.blocks import look_up, watched
from ...linalg.gradients import GradientEstimate, GradientEstimator
from ...linalg.operators import SelfAdjointOperator
from ...linalg.solvers import (
    CG,
    Lanczos,
    MaxIterations,
    MaxSeconds,
    RelativeResidual,
    SolveSummary,
    lanczos,
    radau,
    solve,
)
from ._grid import Grid
from ._grid_kernel import GridKernel, apply_columns, quadratic_form
from ._moments import misfit, missed_sum
from ._objective import GridProblem, raised_noise
from ._sparse import CPU, SparseMatrix

# Relative residual of a solve in the norm of the prior, the smallest one that is ever asked for,
# and the largest number of steps.
_TOL, _FINEST, _MOST_PRODUCTS = 1e-8, 1e-14, 1000
# Largest residual of the solves that predict. Its square bounds the error of a variance.
PREDICTED = 1e-5
_REMEDY = "Use solver='cholesky', or bound the noise variance from below."
# Lanczos vectors for the log determinant, and the numbers of these that are kept at a time.
_QUADRATURE, _NUMBERS = 150, 2**23
# Number of random vectors that estimate a trace.
_PROBES = 16
# Number of rows that are interpolated at a time.
_ROWS = 2**17


class GridOperator(SelfAdjointOperator):
    """I + G K for K, the grid's covariance, and G = W' D^-1 W, the rows seen from the grid.

    K is a Kronecker product of Toeplitz matrices (Wilson and Nickisch 2015; Pleiss et al. 2018,
    equations 5 and 6), G is sparse. Solves with H = D + W K W' become solves with I + G K, which is
    self-adjoint in the inner product of K. Conjugate gradients and Lanczos take O(m log m) per step
    for any n.

    Parameters
    ----------
    kernel : GridKernel
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    gram : SparseMatrix of shape (m, m)
        G.
    """

    threaded = True

    def __init__(self, kernel: GridKernel, theta: Float[Tensor, " p"], gram: SparseMatrix):
        super().__init__(kernel.n_points, torch.float64, kernel.device)
        self._grid, self._gram = kernel.grid, gram
        with torch.no_grad():
            self._columns = kernel.columns(theta)

    @property
    def sum_of_inverse_noise(self) -> float:
        """The sum of all entries of G, which is that of D^-1."""
        return self._gram.sum()

    def dual(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """K V."""
        look_up()
        return apply_columns(self._columns, self._grid, V)

    def gram(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """G V."""
        return self._gram @ V

    def norms(self, V: Float[Tensor, "m s"]) -> Float[Tensor, " s"]:
        return (V * self.dual(V)).sum(0).clamp_min(0).sqrt()

    def image(self, V: Float[Tensor, "m s"], dual: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        return self.gram(dual).add_(V)

    def matmul(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        return self.image(V, self.dual(V))

    def inverse(
        self,
        B: Float[Tensor, "m s"],
        largest: float = float("inf"),
        seconds: float | None = None,
    ) -> tuple[Float[Tensor, "m s"], SolveSummary]:
        """(I + G K)^-1 B by conjugate gradients; W' H^-1 y is that of B = W' D^-1 y.

        Parameters
        ----------
        B : Tensor of shape (m, s)
        largest : float
            Largest residual, in the norm of K, besides the relative one. With little noise B is
            large, and a small share of it is a large error of a prediction. Rounding can put it
            out of reach, which is no failure.
        seconds : float, optional
            The time that the solve may take.

        Returns
        -------
        solution : Tensor of shape (m, s)
        summary : SolveSummary
            Its residual is relative and in the norm of K, its epochs are the steps.
        """
        goal = (largest / self.norms(B)).clamp(_FINEST, _TOL).cpu()
        stopping = RelativeResidual(goal) | MaxIterations(_MOST_PRODUCTS)
        if seconds is not None:
            stopping |= MaxSeconds(seconds)
        solution = solve(self, B, CG(residual_refresh=None), stopping=stopping)
        residual, status = float(solution.residuals.max()), solution.status
        if residual <= _TOL:
            status = End.CONVERGED
        remedy = "" if status in (End.CONVERGED, End.MAX_SECONDS) else _REMEDY
        return solution.value, SolveSummary(status, residual, solution.n_iter, remedy)

    def log_det(self, probes: Float[Tensor, "m s"]) -> tuple[float, float]:
        """log|I + G K| by stochastic Lanczos quadrature, and the error of this estimate.

        With p = W' D^-1/2 z and M = K^1/2 G K^1/2 the log determinant is the expectation of
        |K^1/2 p|^2 e1' g(T) e1 for g(x) = log(x) / (x - 1), where T is the matrix that Lanczos
        makes of I + M from K^1/2 p. Gauss's rule errs downwards for this g and Radau's rule errs
        upwards. The estimate is the middle of the two. The error is its standard error over the
        probes, plus half the distance between the two rules.
        """
        low, high = [], []
        for part in probes.split(max(1, _NUMBERS // (_QUADRATURE * len(probes))), 1):
            tridiagonal = lanczos(self, part, _QUADRATURE)
            size = (part * self.dual(part)).sum(0)
            low.append(size * _averaged(tridiagonal))
            high.append(size * _averaged(radau(tridiagonal, 1.0)))
        below, above = torch.cat(low), torch.cat(high)
        terms, bias = (below + above) / 2, float((above - below).mean().abs()) / 2
        return float(terms.mean()), float(terms.std()) / len(terms) ** 0.5 + bias


def _averaged(tridiagonal: Lanczos) -> Float[Tensor, " s"]:
    """e1' g(T) e1 for g(x) = log(x) / (x - 1) and every start vector."""
    values, vectors = torch.linalg.eigh(tridiagonal.matrix())
    beyond = (values - 1).clamp_min(torch.finfo(values.dtype).tiny)
    return (vectors[:, 0].square() * torch.log1p(beyond) / beyond).sum(1)


class RowProbes:
    """Random vectors z over the rows, interpolated onto the grid, for estimates of traces.

    Parameters
    ----------
    grid : Grid
    table : Table
        Rows inside the grid, and their known noise variances. The sum of k independent z, of a row
        that stands for k, is sqrt(k) z.
    generator : Generator
    """

    def __init__(self, grid: Grid, table: Table, generator: Generator):
        self._grid, self._seed = grid, int(torch.randint(2**31, (), generator=generator))
        self._X, self._known, self._root = table.X, table.noise, np.sqrt(table.counts)
        self._equal = None
        if self._known.min() == self._known.max():
            self._equal, self._known, self._X = self._sums((self._root,))[0], table.noise[0], None

    def at(self, noise: float, device: torch.device = CPU) -> list[Float[Tensor, "m s"]]:
        """W' D^-1/2 z and W' D^-3/2 z, where D is `noise` plus the known noise."""
        D = noise + self._known
        if self._equal is None:
            sums = self._sums((self._root * D**-0.5, self._root * D**-1.5))
            return [part.to(device, non_blocking=True) for part in sums]
        self._equal = self._equal.to(device, non_blocking=True)
        return [self._equal * D**-0.5, self._equal * D**-1.5]

    def _sums(self, weights: tuple[np.ndarray, ...]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self._seed)
        out = np.zeros((len(weights), self._grid.n_points, _PROBES))
        for start in range(0, len(self._X), _ROWS):
            part = slice(start, start + _ROWS)
            W = self._grid.interpolate(self._X[part]).T
            z = torch.randn(W.shape[1], _PROBES, generator=generator, dtype=torch.float64).numpy()
            for total, weight in zip(out, weights, strict=True):
                total += W @ (weight[part, None] * z)
        return list(torch.from_numpy(out))


@dataclass(frozen=True, eq=False)
class ProductEvaluation:
    """The likelihood and the weights of a model on a grid.

    Attributes
    ----------
    value, std_error : float
        An estimate of the log marginal likelihood, summed over targets, and its standard error plus
        the largest possible bias of the quadrature; NaN without probes, or without time for it.
    operator : GridOperator
    weights : Tensor of shape (m, t)
        W' H^-1 Y; K times these is the mean on the grid.
    mean : Tensor of shape (m, t)
    jitter, misfit : float
        As in `GridEvaluation`.
    solve : SolveSummary
        How the solve for the weights ended.
    """

    value: float
    std_error: float
    operator: GridOperator
    weights: Float[Tensor, "m t"]
    mean: Float[Tensor, "m t"]
    jitter: float
    misfit: float
    solve: SolveSummary
    rank = None


def evaluate_products(
    problem: GridProblem,
    theta: Float[Tensor, " p"],
    budget: Budget | None = None,
    weights: np.ndarray | None = None,
) -> ProductEvaluation:
    """The weights of the posterior, and an estimate of the likelihood if there are probes.

    Within a budget the solve for the weights may end early, and the likelihood is unknown if there
    is no time left for it. Given `weights` are those of such a solve.
    """
    budget = Budget() if budget is None else budget
    kernel, theta = problem.grid_kernel, theta.detach().double()
    noise, jitter, moments = raised_noise(problem, theta)
    operator, n, b = GridOperator(kernel, theta, moments.gram), moments.n, moments.rhs
    if weights is None:
        solution, solve = operator.inverse(b, PREDICTED, budget.for_result())
    else:
        solution = torch.from_numpy(weights).to(b)
        solve = SolveSummary(End.MAX_SECONDS, math.nan, 0.0)
    mean, t = operator.dual(solution), b.shape[1]
    value = error = float("nan")
    explained, left = torch.stack([(b * mean).sum(), missed_sum(moments, mean)]).tolist()
    if problem.probes is not None:
        with budget.may_end(), watched(budget.check):
            log_det, error = operator.log_det(problem.probes.at(noise, kernel.device)[0])
            log_det += moments.log_det
            quadratic = moments.total - explained
            value = -0.5 * (quadratic + t * log_det + n * t * math.log(2 * math.pi))
    found = operator, solution, mean, jitter, misfit(moments, left, t, jitter), solve
    return ProductEvaluation(value, 0.5 * t * error, *found)


class ProductGradient(GradientEstimator):
    """Gradients by conjugate gradients on the grid, with traces from frozen probes; no values."""

    def estimate(self, problem, theta, state):
        kernel, theta = problem.grid_kernel, theta.detach().double()
        noise, jitter, moments = raised_noise(problem, theta)
        operator = GridOperator(kernel, theta, moments.gram)
        b, (p, beside) = moments.rhs, problem.probes.at(noise, kernel.device)
        t, s = b.shape[1], p.shape[1]
        solved, _ = operator.inverse(torch.cat([b, p], 1), seconds=state.seconds_left)
        # A solve that time has ended is not good enough for a step.
        look_up()
        u, q = solved[:, :t], solved[:, t:]
        mean = operator.dual(u)
        # dL/dnoise = (v'v - t tr H^-1) / 2 with v = H^-1 y = D^-1 (y - W mean).
        gram = moments.second_gram
        if gram is None:
            gram = moments.gram.scaled(moments.inverse / moments.n)
        image = gram @ mean - 2 * moments.second_rhs
        squares = moments.second_total + (mean * image).sum()
        trace = moments.inverse - (beside * operator.dual(q)).sum() / s

        def surrogate(columns: list) -> Tensor:
            fit = quadratic_form(columns, kernel.grid, u)
            return 0.5 * fit - 0.5 * t / s * (q * apply_columns(columns, kernel.grid, p)).sum()

        d_noise = 0.5 * (squares - t * trace)
        grad = kernel.slope(theta, [surrogate], d_noise, raised=jitter > 0)
        return GradientEstimate(grad, None, None, jitter), state
