"""The log marginal likelihood of a finite feature map, with the weights integrated out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...core.posteriors import FeatureWeights
from ...features import PriorFeatures
from ...linalg.blocks import add_gram_, cholesky_inverse, look_up, matmul, task_rows
from ...linalg.gradients import GPProblem
from ...linalg.operators import slope
from ...linalg.solvers import cholesky_with_jitter
from ...workers import map_in_order, one_thread

# Rows whose features are held in memory at a time.
BATCH_ROWS = 2048
# Values of features that a task computes: a few milliseconds of sines and cosines.
_VALUES = 2**19


@dataclass(frozen=True)
class CollapsedEvaluation:
    """Value and gradient for H = phi phi' + D.

    Attributes
    ----------
    quadratic, log_det : float
        tr(Y' H^-1 Y) and log|H|.
    value : float
        Log marginal likelihood, summed over targets.
    grad : Tensor of shape (p,) or None
        Its gradient in theta for fixed frequencies, in float64.
    jitter : float
        The amount added to the diagonal of the matrix that was factorised.
    weights : FeatureWeights or None
        The posterior of the weights, if the matrix was its precision.
    """

    quadratic: float
    log_det: float
    value: float
    grad: Tensor | None
    jitter: float
    weights: FeatureWeights | None = None


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums over all rows that determine the likelihood and the weights.

    Attributes
    ----------
    gram : Tensor of shape (m, m)
        phi' D^-1 phi.
    projected : Tensor of shape (m, t)
        phi' D^-1 Y.
    squares, log_noise : Tensor of shape ()
        tr(Y' D^-1 Y) and log|D|.
    n : int
        Number of rows.
    """

    gram: Float64[Tensor, "m m"]
    projected: Float64[Tensor, "m t"]
    squares: Float64[Tensor, ""]
    log_noise: Float64[Tensor, ""]
    n: int

    @classmethod
    def of(
        cls,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        features: PriorFeatures,
        batch_rows: int = BATCH_ROWS,
    ) -> FeatureSums:
        """The sums of one pass over the rows; O(n m^2)."""
        with one_thread():
            return cls(*problem.total(_sums, features, batch_rows, theta), len(problem.X))

    def with_noise(self, ratio: float) -> FeatureSums:
        """The sums if all noise variances are `ratio` times as large."""
        return FeatureSums(
            self.gram / ratio,
            self.projected / ratio,
            self.squares / ratio,
            self.log_noise + self.n * math.log(ratio),
            self.n,
        )


def collapsed_marginal_likelihood(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    features: PriorFeatures,
    eval_gradient: bool = True,
    batch_rows: int = BATCH_ROWS,
    sums: FeatureSums | None = None,
) -> CollapsedEvaluation:
    r"""log N(Y; 0, phi phi' + D) by the matrix inversion lemma, with features computed in batches.

    With A = I + phi' D^-1 phi, log|H| = log|A| + log|D| and
    y' H^-1 y = y' D^-1 y - b' A^-1 b, b = phi' D^-1 y. Everything is float64. Merged rows add what
    `Rows` says to the value and its gradient.

    Parameters
    ----------
    problem : GPProblem
        Rows, targets and noise; its kernel matrix is never formed.
    theta : Tensor of shape (p,)
        Log hyperparameters.
    features : PriorFeatures
        The map; m columns.
    eval_gradient : bool, default=True
    batch_rows : int
        Rows in a batch, which do not change the result.
    sums : FeatureSums, optional
        Those at theta, if they are known. They are of use if there are fewer features than rows.

    Notes
    -----
    It costs O(n m^2) time and O(m^2 + batch m) memory if n > m, else O(n^2 m) and O(n^2 + n m).
    Rahimi and Recht (2007); Rasmussen and Williams (2006), equations A.9 and A.10.
    """
    theta = theta.detach().double().cpu()
    few = has_few_rows(problem, features)
    problem = problem.whole() if few else problem
    # All large operations are shared among the workers; torch's own threads would get in their way.
    with one_thread():
        if few:
            found = _by_rows(problem, features, theta, batch_rows, eval_gradient)
        else:
            sums = sums or FeatureSums.of(problem, theta, features, batch_rows)
            found = _by_columns(problem, features, theta, batch_rows, eval_gradient, sums)
    more, slopes = problem.repeated(theta, eval_gradient)
    grad = None if found.grad is None else found.grad + slopes.to(found.grad)
    return replace(found, value=found.value + more, grad=grad)


def has_few_rows(problem: GPProblem, features: PriorFeatures) -> bool:
    """Whether an n x n matrix takes the place of an m x m matrix."""
    return features.n_features >= len(problem.X)


def feature_weights(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    features: PriorFeatures,
    batch_rows: int = BATCH_ROWS,
    sums: FeatureSums | None = None,
) -> tuple[FeatureWeights, CollapsedEvaluation]:
    """The posterior of the weights, and the likelihood without its gradient; O(n m^2 + m^3).

    With little noise, I + phi' D^-1 phi is too badly conditioned for a Cholesky factorisation.
    Jitter would add to the prior precision I, and variances far from the data would be too small.
    The factor is then computed by a QR decomposition of [D^-1/2 phi; I], whose condition number is
    the square root of that of the matrix. `sums` are as in `collapsed_marginal_likelihood`.
    """
    m, theta = features.n_features, theta.detach().double().cpu()
    if has_few_rows(problem, features):
        problem = problem.whole()
        evaluation = collapsed_marginal_likelihood(problem, theta, features, False, batch_rows)
        phi, Y, noise = all_rows(problem, theta, features, batch_rows)
        noise, jitter = _resolvable_noise(phi, noise)
        return _orthogonal_weights([_triangle([(phi, Y, noise)])], m, jitter), evaluation
    evaluation = collapsed_marginal_likelihood(problem, theta, features, False, batch_rows, sums)
    if evaluation.jitter == 0:
        return evaluation.weights, evaluation
    return _orthogonal_weights(problem.each(_part_triangle, features, batch_rows, theta), m), (
        evaluation
    )


@torch.no_grad()
def all_rows(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    features: PriorFeatures,
    batch_rows: int = BATCH_ROWS,
) -> tuple[Float64[Tensor, "n m"], Float64[Tensor, "n t"], Float64[Tensor, " n"]]:
    """phi, Y and the noise variances of all rows, which are few."""
    (found,) = _Rows(problem, features, batch_rows).batches(theta, len(problem.X))
    return found


def _resolvable_noise(
    phi: Float64[Tensor, "n m"], noise: Float64[Tensor, " n"]
) -> tuple[Float64[Tensor, " n"], float]:
    """D plus the jitter that phi phi' + D needs for a factor and D for an inverse; the jitter."""
    H = phi @ phi.T
    H.diagonal().add_(noise)
    jitter = cholesky_with_jitter(H)[1]
    rounding = torch.finfo(H.dtype).eps * float(H.diagonal().mean())
    jitter = max(jitter, rounding - float(noise.min()), 0.0)
    return noise + jitter, jitter


def _triangle(batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Float64[Tensor, "k c"]:
    """R of the QR decomposition of D^-1/2 [phi, Y], in batches of rows."""
    R = None
    for phi, Y, noise in batches:
        scaled = torch.cat([phi, Y], 1) / noise.sqrt()[:, None]
        R = torch.linalg.qr(scaled if R is None else torch.cat([R, scaled]), mode="r")[1]
    return R


@torch.no_grad()
def _part_triangle(
    problem: GPProblem, features: PriorFeatures, batch_rows: int, theta: Tensor
) -> Float64[Tensor, "k c"]:
    rows = _Rows(problem, features, batch_rows)
    return _triangle(rows.batches(theta, max(batch_rows, features.n_features)))


def _orthogonal_weights(triangles: list[Tensor], m: int, jitter: float = 0.0) -> FeatureWeights:
    """min_w |D^-1/2 (phi w - Y)|^2 + |w|^2 by QR, of triangles for parts of the rows.

    The rows of the prior come last.
    """
    R = triangles[0]
    for more in triangles[1:]:
        R = torch.linalg.qr(torch.cat([R, more.to(R)]), mode="r")[1]
    prior = torch.eye(m, R.shape[1], dtype=R.dtype, device=R.device)
    R = torch.linalg.qr(torch.cat([R, prior]), mode="r")[1][:m]
    R = R * torch.where(R.diagonal() < 0, -1.0, 1.0)[:, None]
    factor, rest = R[:, :m], R[:, m:]
    return FeatureWeights(
        factor.T.contiguous(), torch.linalg.solve_triangular(factor, rest, upper=True), jitter
    )


class _Rows:
    """phi, Y and the noise variances of a few rows at a time."""

    def __init__(self, problem: GPProblem, features: PriorFeatures, batch_rows: int):
        self.problem = problem.to(torch.float64)
        self.features, self.batch_rows = features, batch_rows

    def at(self, theta: Tensor, some: slice) -> tuple[Tensor, Tensor, Tensor]:
        """phi, Y and the noise variances of some rows, differentiable in theta."""
        X, noise = self.problem.X[some], self.problem.noise(theta, some)
        return self.features.evaluate(theta, X), self.problem.Y[some], noise

    def batches(self, theta: Tensor, size: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """The same for all rows, `size` rows at a time, which the workers compute."""
        for batch in self._cut(0, len(self.problem.X), size or self.batch_rows):
            look_up()
            tasks = self._cut(batch.start, batch.stop, self._few(_VALUES / self._columns))
            parts = map_in_order(lambda some: self.at(theta, some), tasks, self.problem.X.device)
            yield tuple(map(torch.cat, zip(*parts, strict=True)))

    def sums(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """phi' D^-1 phi, phi' D^-1 Y, tr(Y' D^-1 Y) and log|D|."""
        m, t = self.features.n_features, self.problem.Y.shape[1]
        S = torch.zeros(m, m, dtype=torch.float64, device=self.problem.X.device)
        b, c, d = S.new_zeros(m, t), S.new_zeros(()), S.new_zeros(())
        with torch.no_grad():
            for phi, Y, noise in self.batches(theta):
                self._check(noise)
                phi.mul_(noise.rsqrt()[:, None])
                Y = Y * noise.rsqrt()[:, None]
                add_gram_(S, phi)
                b.addmm_(phi.T, Y)
                c += Y.square().sum()
                d += noise.log().sum()
        return S.tril() + S.tril(-1).T, b, c, d

    def gradient(self, part: Callable[..., Tensor], theta: Tensor) -> Float64[Tensor, " p"]:
        """The gradient of a sum over rows, each task of which has a graph of its own.

        ``part(some, phi, Y, noise)`` is the share of the rows `some`, which costs as much as a
        product of phi with a square matrix.
        """
        n = len(self.problem.X)

        def slope_of(some: slice) -> Tensor:
            with torch.enable_grad():
                own = theta.clone().requires_grad_(True)
                return slope(part(some, *self.at(own, some)), own)

        square = self._columns * min(self._columns, n)
        grad = torch.zeros_like(theta)
        tasks = self._cut(0, n, self._few(task_rows(square)))
        for one in map_in_order(slope_of, tasks, self.problem.X.device):
            look_up()
            grad += one
        return grad

    @property
    def _columns(self) -> int:
        return max(1, self.features.n_features)

    def _few(self, rows: float) -> int:
        """Rows of a task; a GPU takes a whole batch."""
        on_cpu = self.problem.X.device.type == "cpu"
        return min(self.batch_rows, max(1, int(rows))) if on_cpu else self.batch_rows

    @staticmethod
    def _cut(start: int, stop: int, size: int) -> list[slice]:
        return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]

    def _check(self, noise: Tensor) -> None:
        if bool((noise <= 0).any()):
            raise ValueError(
                "If there are fewer features than rows, every row needs noise: set alpha to a "
                "positive value (alpha=1e-6), or add a WhiteKernel() to the kernel."
            )


def _sums(
    problem: GPProblem, features: PriorFeatures, batch_rows: int, theta: Tensor
) -> tuple[Tensor, ...]:
    return _Rows(problem, features, batch_rows).sums(theta)


def _slopes(
    problem: GPProblem,
    features: PriorFeatures,
    batch_rows: int,
    theta: Tensor,
    G: Tensor,
    W: Tensor,
) -> tuple[Tensor]:
    """The gradient of `_by_columns` from some rows."""
    t = W.shape[1]

    def part(some: slice, phi: Tensor, Y: Tensor, noise: Tensor) -> Tensor:
        # One product gives the value of diag(phi G phi') and its slope 2 phi G.
        half = ((phi.detach() @ G) * phi).sum(1)
        inner = 2 * half - half.detach()
        fitted = inner + ((phi @ W) * Y).sum(1) - 0.5 * Y.square().sum(1)
        return (fitted / noise).sum() - 0.5 * t * noise.log().sum()

    return (_Rows(problem, features, batch_rows).gradient(part, theta),)


def _by_columns(
    problem: GPProblem,
    features: PriorFeatures,
    theta: Tensor,
    batch: int,
    eval_gradient: bool,
    sums: FeatureSums,
) -> CollapsedEvaluation:
    n, t = problem.Y.shape
    S, b, c, d = sums.gram, sums.projected, sums.squares, sums.log_noise
    L, jitter = cholesky_with_jitter(S + torch.eye(len(S), dtype=S.dtype, device=S.device))
    W = torch.cholesky_solve(b, L)
    quadratic = float(c - (b * W).sum())
    log_det = float(2 * L.diagonal().log().sum() + d)
    grad = None
    if eval_gradient:
        G = cholesky_inverse(L).mul_(-0.5 * t).addmm_(W, W.T, alpha=-0.5)
        (grad,) = problem.total(_slopes, features, batch, theta, G, W)
    weights = FeatureWeights(L, W)
    value = _value(quadratic, log_det, n, t)
    return CollapsedEvaluation(quadratic, log_det, value, grad, jitter, weights)


def _by_rows(
    problem: GPProblem, features: PriorFeatures, theta: Tensor, batch: int, eval_gradient: bool
) -> CollapsedEvaluation:
    rows, (n, t) = _Rows(problem, features, batch), problem.Y.shape
    phi, Y, noise = all_rows(problem, theta, features, batch)
    H = matmul(phi, phi.T)
    H.diagonal().add_(noise)
    L, jitter = cholesky_with_jitter(H)
    V = torch.cholesky_solve(Y, L)
    quadratic = float((Y * V).sum())
    log_det = float(2 * L.diagonal().log().sum())
    grad = None
    if eval_gradient:
        G = cholesky_inverse(L).mul_(-0.5 * t).addmm_(V, V.T, alpha=0.5)

        def part(some: slice, own: Tensor, Y: Tensor, noise: Tensor) -> Tensor:
            # Only the slope of tr(phi' G phi) is needed, which is 2 G phi.
            return 2 * ((G[some] @ phi) * own).sum() + (G.diagonal()[some] * noise).sum()

        grad = rows.gradient(part, theta)
    return CollapsedEvaluation(quadratic, log_det, _value(quadratic, log_det, n, t), grad, jitter)


def _value(quadratic: float, log_det: float, n: int, t: int) -> float:
    return -0.5 * (quadratic + t * log_det + n * t * math.log(2 * math.pi))
