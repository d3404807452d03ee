"""Full-scale Vecchia: inducing points for what all rows share, neighbours for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree
from torch import Tensor

from ...core import candidates, select_inducing
from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import GPProblem
from ...linalg.operators import kernel_of_sets, slope
from ...linalg.solvers import cholesky_with_jitter
from ...workers import map_in_order, workers
from ._local import Shared, condition, gather, starts

# Rows whose features are computed at a time.
_FEATURE_ROWS = 4096
# Jitter of the inducing points' own covariance, relative to its mean diagonal entry. The residual
# process has what it takes away.
_JITTER = 1e-10
# The neighbours of rows i to (1 + _GROWTH) i in the order are searched among the first i.
_GROWTH = 0.5
# Noise that leaves a neighbour out, relative to the prior variance.
_LEFT_OUT = 1e12
# Smallest conditional variance, relative to the prior variance.
_LEAST = 1e-15


class Earlier(NamedTuple):
    """An order of all rows, and for each row neighbours among those before it.

    Attributes
    ----------
    rows : Tensor of shape (n,)
        The numbers of the rows in the order.
    near : Tensor of shape (n, k)
        The numbers of their neighbours.
    counts : Tensor of bool of shape (n, k)
        Which of the neighbours count; the first k rows have fewer.
    """

    rows: Int[Tensor, " n"]
    near: Int[Tensor, "n k"]
    counts: Bool[Tensor, "n k"]

    @classmethod
    def of(cls, near: Int[np.ndarray, "n k"], seed: int) -> Earlier:
        """The same neighbours again, in the order of this seed."""
        n, k = near.shape
        counts = np.arange(k) < np.arange(n)[:, None]
        return cls(*map(torch.as_tensor, (_order(n, seed), near, counts)))


def _order(n: int, seed: int) -> Int[np.ndarray, " n"]:
    return np.random.RandomState(seed).permutation(n)


def earlier_rows(points: Float[np.ndarray, "n q"], k: int, seed: int) -> Earlier:
    """Up to k neighbours of each row among those before it, in a random order.

    The first k + 1 rows are given all rows before them. The others are searched for in k-d trees
    of a growing number of first rows, at least two thirds of the rows before them.
    """
    n = len(points)
    order, k = _order(n, seed), min(k, n - 1)
    place = np.arange(n)[:, None]
    near = np.broadcast_to(np.arange(k), (n, k)).copy()
    counts = near < place
    done = k + 1
    while done < n:
        look_up()
        some = slice(done, min(n, done + max(1, int(_GROWTH * done))))
        tree = cKDTree(points[order[:done]])
        wanted, workers = points[order[some]], torch.get_num_threads()
        near[some] = tree.query(wanted, np.arange(1, k + 1), workers=workers)[1]
        done = some.stop
    # A row that does not count must not be the row itself.
    near[:k][~counts[:k]] = k
    return Earlier.of(order[near], seed)


def inducing_rows(
    problem: GPProblem, theta: Float[Tensor, " p"], q: int, seed: int
) -> Int[np.ndarray, " q"]:
    """Numbers of rows that become inducing points, drawn by their distances (k-means++)."""
    generator = torch.Generator().manual_seed(seed)
    rows = candidates(len(problem.X), np.zeros(0, dtype=int), q, generator)
    X = problem.X[rows.to(problem.X.device)]
    chosen = select_inducing(problem.kernel, theta, X, q, "kmeans++", generator)
    return rows[chosen].numpy()


def factor_of(
    kernel: TorchKernel, theta: Float[Tensor, " p"], Z: Float[Tensor, "q d"]
) -> Float[Tensor, "q q"]:
    """L, the Cholesky factor of k(Z, Z); u(x) = L^-1 k(Z, x). Differentiable in theta."""
    K = kernel.cross(theta, Z, Z)
    added = _JITTER * K.detach().diagonal().mean()
    K = K + added * torch.eye(len(Z), dtype=K.dtype, device=K.device)
    if K.requires_grad:
        return torch.linalg.cholesky(K)
    return cholesky_with_jitter(K)[0]


class Belief(NamedTuple):
    """The posterior of v: its mean (q, t), and the Cholesky factor of its precision (q, q)."""

    mean: Float[Tensor, "q t"]
    factor: Float[Tensor, "q q"]


class Sums(NamedTuple):
    """Sums over rows from which the likelihood and the posterior of v follow.

    Attributes
    ----------
    precision : Tensor of shape (q, q)
        sum h h' / d.
    linear : Tensor of shape (q, t)
        sum h e' / d.
    log_det, square : float
        sum log d and sum |e|^2 / d.
    """

    precision: Float[Tensor, "q q"]
    linear: Float[Tensor, "q t"]
    log_det: float
    square: float

    def belief(self) -> Belief:
        """The posterior of v, whose prior precision is I."""
        precision = self.precision.clone()
        precision.diagonal().add_(1)
        factor = torch.linalg.cholesky(precision)
        return Belief(torch.cholesky_solve(self.linear, factor), factor)


class FullScale:
    r"""The full-scale Vecchia approximation of one regression at some hyperparameters.

    f(x) = u(x)' v + r(x), with v ~ N(0, I) and u(x) = L^-1 k(Z, x) for inducing points Z, where
    L L' = k(Z, Z). The residual process r and the noise have covariance
    k(x, x') - u(x)' u(x') + noise, which Vecchia's approximation factorises: row i is a regression
    on k rows N(i) before it, with weights w_i and variance d_i. With e_i = y_i - w_i' y_N and
    h_i = u_i - U_N' w_i, given the targets v has the precision P = I + sum h_i h_i' / d_i and the
    mean P^-1 sum h_i e_i / d_i. Gyger, Furrer and Sigrist (2025), sections 2 and 3.

    Parameters
    ----------
    problem : GPProblem
        All training rows.
    theta : Tensor of shape (p,)
    inducing : Tensor of shape (q,)
        Numbers of the rows that are inducing points.

    Attributes
    ----------
    theta : Tensor of shape (p,)
    rows : Tensor of shape (n, q)
        u at all training rows.
    """

    def __init__(self, problem: GPProblem, theta: Float[Tensor, " p"], inducing: Int[Tensor, " q"]):
        self._problem, self.theta = problem, theta.detach()
        self._Z = problem.X[inducing.to(problem.X.device)]
        with torch.no_grad():
            self._factor = factor_of(problem.kernel, self.theta, self._Z)
        self.rows = self.features(problem.X)

    def features(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b q"]:
        """u at some rows; O(b q^2)."""
        with torch.no_grad():
            return torch.cat(list(map_in_order(self._features, X.split(_FEATURE_ROWS), X.device)))

    def _features(self, X: Tensor) -> Tensor:
        look_up()
        return _solved(self._factor, self._problem.kernel.cross(self.theta, self._Z, X))

    def shared(self, belief: Belief) -> Shared:
        """The process u(x)' v with this posterior of v."""
        rest = self._problem.Y - self.rows @ belief.mean
        return Shared(self.features, self.rows, rest, *belief)

    def _step(
        self, theta: Tensor, earlier: Earlier, some: slice
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Some rows given those before them: y = w' y_near + h' v + e, var(e) = d.

        Returns
        -------
        steps : tuple of Tensor
            e (b, t), h (b, q), d (b,), w (b, k), the factor (b, k, k), u (b, k + 1, q) and Y
            (b, k, t) of the sets.
        K : Tensor of shape (b, k + 1, k + 1)
            The kernel's matrices.
        noise : Tensor of shape (b, k + 1)
            What is added to their diagonals.
        """
        problem, rows = self._problem, earlier.rows[some].to(self.rows.device)
        near = earlier.near[some].to(rows)
        Z, noise, Y = gather(problem, theta, problem.X[rows], near)
        own = problem.noise(theta, rows)
        K = kernel_of_sets(problem.kernel, theta, Z, Z.dtype)
        prior = K.detach()[:, -1, -1]
        noise = torch.where(earlier.counts[some].to(rows.device), noise, _LEFT_OUT * prior[:, None])
        with torch.no_grad():
            V = torch.cat([self.rows[near], self.rows[rows][:, None]], 1)
            found = condition(K - V @ V.mT, noise, Y)
            w = found.weights()
            e = problem.Y[rows] - (w[:, None] @ Y)[:, 0]
            h = V[:, -1] - (w[:, None] @ V[:, :-1])[:, 0]
            d = torch.maximum(found.variance + own, _LEAST * prior)
        return (e, h, d, w, found.factor, V, Y), K, torch.cat([noise, own[:, None]], 1)

    def _parts(self, earlier: Earlier) -> list[slice]:
        n = len(earlier.rows)
        begin, size = starts(n, earlier.near.shape[1], self.rows.device)
        return [slice(start, min(start + size, n)) for start in begin]

    def sums(self, earlier: Earlier) -> Sums:
        """O(n (k^3 + k^2 q + q^2))."""

        def part(some: slice) -> tuple[Tensor, Tensor, float, float]:
            look_up()
            with torch.no_grad():
                e, h, d = self._step(self.theta, earlier, some)[0][:3]
            scaled = h / d[:, None]
            square = float((e.square() / d[:, None]).sum())
            return scaled.mT @ h, scaled.mT @ e, float(d.log().sum()), square

        parts = map_in_order(part, self._parts(earlier), self.rows.device)
        return Sums(*reduce(lambda one, two: list(map(add, one, two)), parts))

    def gradient(self, earlier: Earlier, belief: Belief) -> Float[Tensor, " p"]:
        """What some rows add to the gradient of the likelihood, given the posterior of v."""

        def part(some: slice) -> tuple[Tensor, Tensor, Tensor]:
            look_up()
            with torch.enable_grad():
                at = self.theta.clone().requires_grad_()
                steps, K, noise = self._step(at, earlier, some)
                left, right, slopes = _adjoints(steps, belief)
                value = (left[:, None] @ K @ right[:, :, None]).sum() + (left * right * noise).sum()
                everything = torch.cat([earlier.near[some], earlier.rows[some, None]], 1)
                return slope(value, at), everything.flatten(), slopes.flatten(0, 1)

        total, by_rows = torch.zeros_like(self.theta), torch.zeros_like(self.rows)
        for one, rows, slopes in map_in_order(part, self._parts(earlier), self.rows.device):
            total += one
            by_rows.index_add_(0, rows.to(by_rows.device), slopes)
        if not self.rows.shape[1]:
            return total

        def of_features(start: int) -> Tensor:
            look_up()
            some = slice(start, start + _FEATURE_ROWS)
            with torch.enable_grad():
                at, kernel = self.theta.clone().requires_grad_(), self._problem.kernel
                factor = factor_of(kernel, at, self._Z)
                U = _solved(factor, kernel.cross(at, self._Z, self._problem.X[some]))
                return slope((by_rows[some] * U).sum(), at)

        begin = range(0, len(self.rows), _FEATURE_ROWS)
        return total + sum(map_in_order(of_features, begin, self.rows.device))


@dataclass(eq=False)
class WholeLikelihood:
    r"""The likelihood of all rows, as sums over them that several processes may share.

    Attributes
    ----------
    problem : GPProblem
        All training rows.
    inducing : Tensor of shape (q,)
        Numbers of the rows that are inducing points.
    earlier : Earlier
    """

    problem: GPProblem
    inducing: Int[Tensor, " q"]
    earlier: Earlier
    _last: FullScale | None = None

    def __getstate__(self) -> dict:
        return dict(vars(self), _last=None)

    def _process(self, theta: Float[Tensor, " p"]) -> FullScale:
        if self._last is None or not torch.equal(self._last.theta, theta):
            self._last = FullScale(self.problem, theta, self.inducing)
        return self._last

    def _rows(self, some: Int[Tensor, " b"]) -> Earlier:
        return Earlier(*(part[some] for part in self.earlier))

    def sums(self, some: Int[Tensor, " b"], theta: Float[Tensor, " p"]) -> Sums:
        """Sums over some places in the order."""
        return self._process(theta).sums(self._rows(some))

    def gradient(
        self, some: Int[Tensor, " b"], theta: Float[Tensor, " p"], belief: Belief
    ) -> Float[Tensor, " p"]:
        """What these places add to the gradient."""
        return self._process(theta).gradient(self._rows(some), belief).cpu()

    def at(
        self, theta: Float[Tensor, " p"], eval_gradient: bool = True, n_jobs: int | None = 1
    ) -> tuple[float, Float[Tensor, " p"] | None]:
        r"""log p(Y), summed over targets, and its gradient.

        -1/2 [t sum log d + t log|P| + sum |e|^2 / d - tr(b' P b)] - n t / 2 log 2 pi, with b the
        mean of v. The gradient has the same cost.
        """
        theta, (n, t) = theta.detach(), self.problem.Y.shape
        places = torch.arange(n)
        by = workers(self, n, n_jobs, device=self.problem.X.device)
        parts = by.call(WholeLikelihood.sums, theta, along=[places])
        sums = Sums(*map(sum, zip(*parts, strict=True)))
        belief = sums.belief()
        log_det = sums.log_det + 2 * float(belief.factor.diagonal().log().sum())
        value = t * log_det + sums.square - float((sums.linear * belief.mean).sum())
        value = -0.5 * (value + n * t * math.log(2 * math.pi))
        more, grad = self.problem.repeated(theta, eval_gradient)
        if eval_gradient:
            more_grad = by.call(WholeLikelihood.gradient, theta, belief, along=[places])
            grad = grad + sum(more_grad)
        return value + more, grad if eval_gradient else None


def _solved(factor: Float[Tensor, "q q"], B: Float[Tensor, "q b"]) -> Float[Tensor, "b q"]:
    """(L^-1 B)'."""
    return torch.linalg.solve_triangular(factor, B, upper=False).mT


def _adjoints(steps: tuple[Tensor, ...], belief: Belief) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the log likelihood by each row's step, as in `FullScale`.

    Returns
    -------
    left, right : Tensor of shape (b, k + 1)
        The derivative by the set's covariance matrix, noise included, is left right'.
    slopes : Tensor of shape (b, k + 1, q)
        The derivative by u at the rows of the set, which the residual's covariance contains, too.
    """
    e, h, d, w, factor, V, Y = steps
    with torch.no_grad():
        r = (e - h @ belief.mean) / d[:, None]
        spread = torch.cholesky_solve(h.mT, belief.factor).mT
        t = e.shape[1]
        by_d = -0.5 * (t / d - r.square().sum(1) - t * (spread * h).sum(1) / d.square())
        by_h = r @ belief.mean.mT - t * spread / d[:, None]
        by_weights = Y @ -r[:, :, None] + V[:, :-1] @ by_h[:, :, None]
        z = torch.cholesky_solve(by_weights, factor)[:, :, 0]
        left = torch.cat([w, -torch.ones_like(d)[:, None]], 1)
        right = by_d[:, None] * left
        right[:, :-1] += z
        inner = (right[:, None] @ V)[:, 0] + by_h
        slopes = right[:, :, None] * h[:, None] - left[:, :, None] * inner[:, None]
    return left, right, slopes
