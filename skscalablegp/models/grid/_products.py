"""Interpolated models by fast products, without a factor of the grid's covariance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.posteriors import LowRank, LowRankForm
from ...linalg.gradients import GradientEstimate, GradientEstimator
from ...linalg.operators import slope
from ...linalg.solvers import Lanczos, SolveSummary, Status, cholesky_with_jitter, lanczos, radau
from ._grid import Grid
from ._grid_kernel import GridKernel, apply_columns
from ._moments import misfit
from ._objective import GridProblem, raised_noise
from ._posterior import _CUT_SHARE, GridPosterior

# Relative residual of a solve, in the norm of the prior, and the largest number of its products.
_TOL, _MOST_PRODUCTS = 1e-8, 1000
# Largest residual of the solves that predict. Its square bounds the error of a variance.
_PREDICTED = 1e-5
_REMEDY = "Use solver='cholesky', or bound the noise variance from below."
# Lanczos vectors for the log determinant, and the numbers of these that are kept at a time.
_QUADRATURE, _NUMBERS = 150, 2**23
# Number of right-hand sides in one solve for exact variances.
_COLUMNS = 64
# Number of random vectors that estimate a trace.
_PROBES = 16
# The smallest explained share of a direction's prior variance that low-rank variances keep.
_LEAST_SHARE = 1e-9
# Number of rows that are interpolated at a time, and of the worst rows for further Lanczos starts.
_ROWS, _NEW_STARTS = 2**17, 8
# Points of the longest axis whose covariance is decomposed for samples, and the smallest trace of
# the posterior, as a share of the prior's, that samples resolve.
_LONGEST_AXIS, _SMALLEST_SHARE = 2000, 1e-6
# Columns of the first sampling root, and the share of the trace below which a doubling is the last.
_SAMPLE_RANK, _SAMPLE_SHARE = 256, 1e-4


class GridProducts:
    """Products with K, the grid's covariance, and G = W' D^-1 W, the rows seen from the grid.

    K is a Kronecker product of Toeplitz matrices (Wilson and Nickisch 2015; Pleiss et al. 2018,
    equations 5 and 6), G is sparse. Solves with H = D + W K W' become solves with I + G K, which is
    self-adjoint in the inner product of K. Conjugate gradients and Lanczos take O(m log m) per step
    for any n.

    Parameters
    ----------
    kernel : GridKernel
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    gram : csr_array of shape (m, m)
        G.
    """

    def __init__(self, kernel: GridKernel, theta: Float[Tensor, " p"], gram):
        self._grid, self._gram = kernel.grid, gram
        self.shape = gram.shape
        with torch.no_grad():
            self._columns = kernel.columns(theta)

    @property
    def sum_of_inverse_noise(self) -> float:
        """The sum of all entries of G, which is that of D^-1."""
        return float(self._gram.sum())

    def prior(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """K V."""
        return apply_columns(self._columns, self._grid, V)

    solve = prior  # in Lanczos K^-1 is the preconditioner, so that solving with it multiplies by K

    def matmul(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """G V."""
        return torch.from_numpy(self._gram @ V.numpy())

    def inverse(
        self, B: Float[Tensor, "m s"], largest: float = float("inf")
    ) -> tuple[Float[Tensor, "m s"], SolveSummary]:
        """(I + G K)^-1 B by conjugate gradients in the inner product of K.

        W' H^-1 y is the solution for B = W' D^-1 y. A step takes one product with K and one with G.

        Parameters
        ----------
        B : Tensor of shape (m, s)
        largest : float
            Largest residual, in the norm of K, besides the relative one. With little noise B is
            large, and a small share of it is a large error of a prediction. It may take twice as
            many further steps as the relative one; rounding can put it out of reach.

        Returns
        -------
        solution : Tensor of shape (m, s)
        summary : SolveSummary
            Its residual is relative and in the norm of K, its epochs are the steps.
        """
        U, R = torch.zeros_like(B), B.clone()
        P, Q = R, self.prior(R)
        squares = (R * Q).sum(0)
        first = squares.clamp_min(torch.finfo(squares.dtype).tiny)
        enough, last = _TOL**2 * first, None
        for step in range(_MOST_PRODUCTS):
            if last is None and bool((squares <= enough).all()):
                last = 3 * step
            if last is not None and (step >= last or bool((squares <= largest**2).all())):
                return U, _summary(Status.CONVERGED, squares / first, step)
            image = P + self.matmul(Q)
            size = (Q * image).sum(0)
            length = torch.where(size > 0, squares / size, 0.0)
            U, R = U + length * P, R - length * image
            Z = self.prior(R)
            new = (R * Z).sum(0)
            turn = torch.where(squares > 0, new / squares, 0.0)
            P, Q, squares = R + turn * P, Z + turn * Q, new
        status = Status.MAX_ITER if last is None else Status.CONVERGED
        return U, _summary(status, squares / first, _MOST_PRODUCTS)

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
            made = lanczos(self, part, _QUADRATURE, preconditioner=self)
            made = replace(made, diagonal=made.diagonal + 1)
            size = (part * self.prior(part)).sum(0)
            low.append(size * _averaged(made))
            high.append(size * _averaged(radau(made, 1.0)))
        below, above = torch.cat(low), torch.cat(high)
        terms, bias = (below + above) / 2, float((above - below).mean().abs()) / 2
        return float(terms.mean()), float(terms.std()) / len(terms) ** 0.5 + bias


def _summary(status: Status, squares: Float[Tensor, " s"], n_steps: int) -> SolveSummary:
    residual = float(squares.max().clamp_min(0).sqrt())
    return SolveSummary(status, residual, n_steps, "" if status is Status.CONVERGED else _REMEDY)


def _averaged(made: Lanczos) -> Float[Tensor, " s"]:
    """e1' g(T) e1 for g(x) = log(x) / (x - 1) and every start vector."""
    values, vectors = torch.linalg.eigh(made.matrix())
    beyond = (values - 1).clamp_min(torch.finfo(values.dtype).tiny)
    return (vectors[:, 0].square() * torch.log1p(beyond) / beyond).sum(1)


class RowProbes:
    """Random vectors z over the rows, interpolated onto the grid, for estimates of traces.

    Parameters
    ----------
    grid : Grid
    X, known : ndarray of shape (n, d), (n,)
        Rows inside the grid, and their known noise variances.
    generator : Generator
    """

    def __init__(self, grid: Grid, X: np.ndarray, known: np.ndarray, generator: torch.Generator):
        self._grid, self._seed = grid, int(torch.randint(2**31, (), generator=generator))
        self._known, self._X = known, X
        self._equal = None
        if known.min() == known.max():
            self._equal, self._known, self._X = self._sums((np.ones(len(X)),))[0], known[0], None

    def at(self, noise: float) -> list[Float[Tensor, "m s"]]:
        """W' D^-1/2 z and W' D^-3/2 z, where D is `noise` plus the known noise."""
        D = noise + self._known
        if self._equal is None:
            return self._sums((D**-0.5, D**-1.5))
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
        the largest possible bias of the quadrature; NaN without probes.
    products : GridProducts
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
    products: GridProducts
    weights: Float[Tensor, "m t"]
    mean: Float[Tensor, "m t"]
    jitter: float
    misfit: float
    solve: SolveSummary
    rank = None


def evaluate_products(problem: GridProblem, theta: Float[Tensor, " p"]) -> ProductEvaluation:
    """The weights of the posterior, and an estimate of the likelihood if there are probes."""
    kernel, theta = problem.grid_kernel, theta.detach().double()
    noise, jitter, moments = raised_noise(problem, theta)
    first, n = moments.first, moments.first.n
    products = GridProducts(kernel, theta, first.gram)
    b = torch.from_numpy(first.rhs)
    weights, solve = products.inverse(b, _PREDICTED)
    mean, t = products.prior(weights), b.shape[1]
    value = error = float("nan")
    if problem.probes is not None:
        quadratic = float(first.total.sum() - (b * mean).sum())
        log_det, error = products.log_det(problem.probes.at(noise)[0])
        log_det += moments.log_det
        value = -0.5 * (quadratic + t * log_det + n * t * math.log(2 * math.pi))
    missed = misfit(first, mean.numpy(), n / moments.inverse, jitter)
    return ProductEvaluation(value, 0.5 * t * error, products, weights, mean, jitter, missed, solve)


class ProductGradient(GradientEstimator):
    """Gradients by conjugate gradients on the grid, with traces from frozen probes; no values."""

    def estimate(self, problem, theta, state):
        kernel, theta = problem.grid_kernel, theta.detach().double()
        noise, jitter, moments = raised_noise(problem, theta)
        first, second = moments.first, moments.second
        products = GridProducts(kernel, theta, first.gram)
        b, (p, beside) = torch.from_numpy(first.rhs), problem.probes.at(noise)
        t, s = b.shape[1], p.shape[1]
        solved, _ = products.inverse(torch.cat([b, p], 1))
        u, q = solved[:, :t], solved[:, t:]
        mean = products.prior(u)
        # dL/dnoise = (v'v - t tr H^-1) / 2 with v = H^-1 y = D^-1 (y - W mean).
        gram = first.gram * (moments.inverse / first.n) if second.gram is None else second.gram
        image = torch.from_numpy(gram @ mean.numpy() - 2 * second.rhs)
        squares = second.total.sum() + (mean * image).sum()
        trace = moments.inverse - (beside * products.prior(q)).sum() / s
        with torch.enable_grad():
            theta = theta.clone().requires_grad_(True)
            white = kernel.raised(theta) if jitter > 0 else kernel.noise(theta)
            value = 0.5 * kernel.quadratic(theta, u) + 0.5 * (squares - t * trace) * white
            value = value - 0.5 * t / s * (q * kernel.matmul(theta, p)).sum()
            return GradientEstimate(slope(value, theta), None, None, jitter), state


class ProductPosterior(GridPosterior):
    """The posterior of an interpolated model by products: exact, or of low rank (LOVE).

    ``variance(x) = k(x, x) - k_x' (I + G K)^-1 G k_x`` with k_x = K w(x), by conjugate gradients
    for every row. With a root E = K D of the explained covariance (Pleiss et al. 2018, section 3.2)
    it is ``k(x, x) - |w(x)' E|^2`` and never below the exact one; E E' is a polynomial in each cell
    of a product grid, as in `GridPosterior`.

    Parameters
    ----------
    grid_kernel : GridKernel
    theta : Tensor of shape (p,)
    evaluation : ProductEvaluation
    dual : Tensor of shape (m, k) or None
        D; None for exact variances.
    """

    def __init__(self, grid_kernel, theta, evaluation: ProductEvaluation, dual=None):
        super().__init__(grid_kernel, theta, evaluation)
        self.dual = dual
        self._unfinished: list[SolveSummary] = []

    def take_unfinished(self) -> list[SolveSummary]:
        taken, self._unfinished = self._unfinished, []
        return taken

    def low_rank_form(self) -> LowRankForm:
        return GridCaches(self)

    @property
    def mean_on_grid(self) -> Float[Tensor, "m t"]:
        return self.evaluation.mean

    @cached_property
    def _rounding(self) -> float:
        """Solves multiply rounding by the condition of I + G K, at most the sum of k / noise."""
        condition = self.evaluation.products.sum_of_inverse_noise * float(self._prior())
        return max(1.0, torch.finfo(torch.float64).eps ** 0.5 * condition)

    @cached_property
    def root(self) -> Float[Tensor, "m k"]:
        """E, a root of the explained covariance; in the base class, of the posterior's."""
        return self.evaluation.products.prior(self.dual)

    def root_variance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.interpolate(X.numpy(), self.root).square().sum(1)

    def mean_and_variance(self, X):
        return self.mean(X), self.variance(X)

    def variance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        rows, inside = self._split(X)
        with torch.no_grad():
            variance = self.grid_kernel.cross(self.theta, rows).numpy()
        if self.dual is None:
            for k in range(0, len(rows), _COLUMNS):
                left, right = self._explained(rows[k : k + _COLUMNS])
                variance[k : k + _COLUMNS] -= (left * right).sum(1).numpy()
            return self._reported(variance)
        variance[inside] -= self._variance_inside(rows, inside)[inside]
        for part, row in self._outside(rows, inside):
            variance[part] -= (row @ self.dual).square().sum(1).numpy()
        return self._reported(variance)

    def _explained(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Two matrices (n, 2 m), whose product is the explained covariance C' G (I + K G)^-1 C.

        C' U for an approximate solution U of (I + G K) U = G C has an error that is linear in the
        residual R = G C - (I + G K) U. Adding (C - K U)' R makes it quadratic, |R|^2 in the norm
        of K at most, which is a gain after a solve that ended.
        """
        products = self.evaluation.products
        with torch.no_grad():
            C = self.grid_kernel.rows(self.theta, rows).T.contiguous()
        B = products.matmul(C)
        unfinished = len(self._unfinished)
        U = self._solved(B)
        KU = products.prior(U)
        R = B - U - products.matmul(KU)
        if len(self._unfinished) > unfinished:
            R = torch.zeros_like(R)
        return torch.cat([C, -KU]).T, torch.cat([U + R, R]).T

    def _solved(self, B: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """(I + G K)^-1 B; records a solve that did not reach its tolerance."""
        solution, summary = self.evaluation.products.inverse(B, _PREDICTED)
        if summary.status is not Status.CONVERGED:
            self._unfinished.append(summary)
        return solution

    def covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        rows, _ = self._split(X)
        with torch.no_grad():
            prior = self.grid_kernel.cross(self.theta, rows, rows)
            if self.dual is None:
                left, right = self._explained(rows)
                explained = left @ right.T
            else:
                Y = self.grid_kernel.rows(self.theta, rows) @ self.dual
                explained = Y @ Y.T
        missed = self.evaluation.misfit * torch.eye(len(rows), dtype=torch.float64)
        return prior - (explained + explained.T) / 2 + missed

    @cached_property
    def _sampling_root(self) -> tuple[Float[Tensor, "m k"], float]:
        """S with S S' close to the posterior covariance C of the grid's points (equation 13).

        From a factor K = F F' of the prior, whose axes have small eigenvalue problems. The trace
        that F leaves out is a share of the posterior's trace. O(m r k) for r columns of F.
        """
        if max(size for shape in self.grid_kernel.grid.shapes for size in shape) > _LONGEST_AXIS:
            return self._range_root(), 1.0
        with torch.no_grad():
            left = float(self.grid_kernel.prior(self.theta)) * self.grid_kernel.n_points
        smallest = _SMALLEST_SHARE * left
        while True:
            try:
                with torch.no_grad():
                    F = self.grid_kernel.factor(self.theta, _CUT_SHARE * left).F
            except MemoryError:  # Rough kernels have factors of nearly full rank.
                return self._range_root(), 1.0
            S = self._conditioned(F)
            trace = max(float(S.square().sum()), smallest)
            if left <= trace:
                return S.float(), 1.0
            left = trace

    def _conditioned(self, F: Float[Tensor, "m r"]) -> Float[Tensor, "m r"]:
        """S with S S' = F (I - A) F', the posterior covariance for a prior K = F F'."""
        if self.dual is None:
            inner = F.T @ self.evaluation.products.matmul(F)
            inner.diagonal().add_(1)
            L, _ = cholesky_with_jitter((inner + inner.T) / 2)
            return torch.linalg.solve_triangular(L, F.T, upper=False).T
        B = F.T @ self.dual
        squares, turn = torch.linalg.eigh(B.T @ B)
        BV = B @ turn
        # The root of I - B B' is I - B V (1 + (1 - s^2)^1/2)^-1 V' B' for singular values s of B.
        return F - (F @ BV) / (1 + (1 - squares).clamp_min(0).sqrt()) @ BV.T

    def _range_root(self) -> Float[Tensor, "m k"]:
        """S S' = C Q (Q' C Q)^-1 Q' C for an orthonormal Q in the range of C^2.

        Its rank doubles until the trace no longer changes.
        """
        m, before, rank = self.grid_kernel.n_points, 0.0, _SAMPLE_RANK
        generator = torch.Generator().manual_seed(0)
        while True:
            rank = min(rank, m)
            Q = torch.randn(m, rank, generator=generator, dtype=torch.float64)
            Q = torch.linalg.qr(self._times(self._times(Q))).Q
            image = self._times(Q)
            inner = Q.T @ image
            L, _ = cholesky_with_jitter((inner + inner.T) / 2)
            S = torch.linalg.solve_triangular(L, image.T, upper=False).T
            trace = float(S.square().sum())
            if rank == m or trace - before <= _SAMPLE_SHARE * trace:
                return S.float()
            before, rank = trace, 2 * rank

    def _times(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """C V."""
        products = self.evaluation.products
        if self.dual is None:
            return products.prior(self._solved(V))
        return products.prior(V) - self.root @ (self.root.T @ V)

    @property
    def _columns(self) -> int:
        return self.dual.shape[1]

    def _covariances(self, rows: np.ndarray) -> Float[Tensor, "n m"]:
        return self.grid_kernel.rows(self.theta, rows)


class GridCaches(LowRankForm):
    """Low-rank variances of a posterior by products: Lanczos in grid space."""

    def __init__(self, below: ProductPosterior):
        super().__init__(below, below.grid_kernel.n_points)

    def need(self, rank: int) -> float:
        return 8.0 * 6 * self.full * rank

    def _caches(self, held, probes, rank, most) -> Iterator[LowRank]:
        below, products = self.below, self.below.evaluation.products
        exact = below.variance(held)
        start = torch.ones(self.full, 1, dtype=torch.float64)
        U = P = torch.empty(self.full, 0, dtype=torch.float64)
        while True:
            before = U.shape[1]
            U, P = _extended(products, U, P, start, rank - before)
            dual = _dual_root(products, P)
            made = self._measured(dual, held, exact)
            yield made
            if made.rank >= most or U.shape[1] == before:
                return
            errors = (made.posterior.variance(held) - exact).abs()
            worst = held[errors.topk(min(_NEW_STARTS, len(held))).indices].numpy()
            # The basis holds the first Krylov vectors of these rows: their residuals lead on.
            with torch.no_grad():
                C = below.grid_kernel.rows(below.theta, worst).T.contiguous()
            solved = dual @ (dual.T @ C)
            start = products.matmul(C - products.prior(solved)) - solved
            rank = min(2 * U.shape[1], most)

    def _low(self, basis):
        below = self.below
        return ProductPosterior(below.grid_kernel, below.theta, below.evaluation, basis)


def _extended(products: GridProducts, U, P, start, more: int) -> tuple[Tensor, Tensor]:
    """U and P = K U with U' P = I, extended by the Krylov spaces of further start vectors."""
    start = start[:, :more]
    made = lanczos(products, start, -(-more // start.shape[1]), preconditioner=products)
    V = made.basis.transpose(0, 1).flatten(0, 1).T[:, :more]
    Q = products.prior(V)
    for _ in range(2):
        c = P.T @ V
        V, Q = V - U @ c, Q - P @ c
        values, vectors = torch.linalg.eigh((V.T @ Q + Q.T @ V) / 2)
        kept = values > 1e-10 * values[-1].clamp_min(1e-300)
        turn = vectors[:, kept] / values[kept].sqrt()
        V, Q = V @ turn, Q @ turn
    return torch.cat([U, V], 1), torch.cat([P, Q], 1)


def _dual_root(products: GridProducts, P: Float[Tensor, "m k"]) -> Float[Tensor, "m r"]:
    """D such that K D D' K is the Galerkin approximation of the explained covariance, from below.

    Q = D^-1/2 W P spans the Krylov space over rows: Q' Q = P' G P, Q' (H - I) Q = (G P)' K G P.
    Made orthonormal, Q keeps the condition number of Q' H Q at that of H. The data explain at most
    a share of P's direction v of v' P' G P v, so that very small ones are left out.
    """
    R = products.matmul(P)
    squares, turn = torch.linalg.eigh((P.T @ R + R.T @ P) / 2)
    kept = squares > max(_LEAST_SHARE, 1e-14 * float(squares[-1]))
    R = R @ (turn[:, kept] / squares[kept].sqrt())
    inner = R.T @ products.prior(R)
    inner = (inner + inner.T) / 2
    inner.diagonal().add_(1)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(inner), R.T, upper=False).T
