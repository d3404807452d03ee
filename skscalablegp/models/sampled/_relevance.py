"""Empirical Bayes: a prior precision for each function of a dictionary. Most become infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..._end import End
from ...core import FitRun, ShardedSource
from ...core.data import RowSource
from ...core.likelihoods import Gaussian
from ...core.posteriors import FeatureWeights
from ...core.training import Budget, Stepper
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions
from ._moments import Moments, Weights
from ._noise import NoiseAtRows, noise_of
from ._plan import RelevancePlan, functions_drawn
from ._process import ProcessMap
from ._stepper import QSGPStepper
from ._steps import Fit, make_stepper

# Number of rows in a block of the moments.
MOMENT_ROWS = 4096
# Log evidence per target, in nats, that a function has to add. MacKay's updates keep clusters of
# functions that add less. A function that comes back has to add this margin, too.
_WORTH, _MARGIN = 0.5, 1.0
# Functions are dropped once an update leaves this share of the noise. Noise that still falls hides
# what small functions are worth (0, 0.5, 0.8 and 0.95 were compared on sincs of 60 to 140 rows).
_SETTLED = 0.8
# Largest number of rounds, and of functions in the models that callbacks receive during rounds.
_ROUNDS, _GLIMPSE = 12, 512


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The functions k(x, x_i) / k(x_i, x_i) at some rows x_i, and the precisions of their weights.

    Attributes
    ----------
    kernel : TorchKernel
    source : RowSource
        The table.
    rows : ndarray of shape (m,)
        The numbers of these rows.
    points : Tensor of shape (m, d)
        The rows, in the model's units.
    precision : ndarray of shape (m,)
        s_i.
    unit : float
        Mean square of the targets.
    largest : float
        Functions with a larger s_i are dropped.
    given : ndarray of shape (n,)
        The numbers of the table's rows in the table that was given, before equal rows were merged.
    """

    kernel: TorchKernel
    source: RowSource
    rows: np.ndarray
    points: Float64[Tensor, "m d"]
    precision: np.ndarray
    unit: float
    largest: float
    given: np.ndarray

    @classmethod
    def of(
        cls,
        kernel: TorchKernel,
        source: RowSource,
        rows: np.ndarray,
        max_precision: float,
        given: np.ndarray | None = None,
    ) -> Dictionary:
        """Functions at given rows of a table; `max_precision` is in units of `unit`."""
        unit, points = _mean_square(source), source.take(rows).X
        given = np.arange(len(source)) if given is None else given
        ones = np.full(len(rows), 1.0 / unit)
        return cls(kernel, source, rows, points, ones, unit, max_precision / unit, given)

    @cached_property
    def amplitude(self) -> Float64[Tensor, " m"]:
        """k(x_i, x_i)."""
        return own_values(self.kernel, self.points)

    @cached_property
    def noise(self) -> float:
        """The initial noise variance."""
        return noise_of(self.kernel, self.kernel.theta0)

    def __len__(self) -> int:
        return len(self.rows)

    def _kept(self, keep: np.ndarray, precision: np.ndarray) -> Dictionary:
        points = self.points[torch.as_tensor(keep).to(self.points.device)]
        return replace(self, rows=self.rows[keep], points=points, precision=precision[keep])

    def scaled(self, dtype: torch.dtype) -> KernelFunctions:
        """The functions, scaled so that their prior precisions are 1."""
        scale = 1 / (self.amplitude.cpu().numpy() * np.sqrt(self.precision))
        points = self.points.to(dtype)
        return KernelFunctions(self.kernel, points, torch.as_tensor(scale).to(points))

    def after(self, stepper: QSGPStepper) -> Dictionary:
        """The dictionary with the best precisions for the weights of a stepper (appendix I.3)."""
        mean, diagonal = stepper.folded()[0].cpu().numpy(), stepper.diagonal()[0].cpu().numpy()
        second = (np.square(mean).mean(1) + np.square(diagonal)) / self.precision
        new = 1 / np.maximum(second, 1e-300)
        keep = new < self.largest
        if not keep.any():
            keep[np.argmin(new)] = True
        return self._kept(keep, new)

    def most_relevant(self, most: int) -> Dictionary:
        """The functions of the smallest s_i, at most `most` of them."""
        if len(self) <= most:
            return self
        keep = np.sort(np.argsort(self.precision, kind="stable")[:most])
        return self._kept(keep, self.precision)

    def without(self, rows: np.ndarray, rest: RowSource) -> Dictionary:
        """The functions at all but some rows, in the unit of the `rest` of the table."""
        kept = self._kept(np.flatnonzero(~np.isin(self.rows, rows)), self.precision)
        unit = _mean_square(rest)
        growth = unit / self.unit
        precision, largest = kept.precision / growth, self.largest / growth
        return replace(kept, precision=precision, unit=unit, largest=largest)

    def moments(self, source: RowSource, budget: Budget) -> Moments:
        """The moments of the functions at the rows of a table; O(n m^2).

        When the time is up or an interrupt comes, the rows end with the current block.
        """
        # So few rows have square roots of their own.
        source = source.here() if len(source) <= MOMENT_ROWS else source
        if isinstance(source, ShardedSource):
            given = self.kernel, self.points, self.amplitude
            *sums, numbers = source.work.sum(_moments_of, *given)
            return Moments.of_sums(*sums, *numbers.tolist(), self.unit)

        def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            n = 0
            for phi, Y, counts in _functions_at(source, self.kernel, self.points, self.amplitude):
                yield phi, Y, counts
                n += len(Y)
                if n < len(source) and budget.left == 0:
                    budget.end(End.MAX_SECONDS)
                    return
                if budget.ended is End.INTERRUPTED:
                    return

        return Moments.of(blocks(), self.unit)


# ---------------------------------------------------------------- of the rows at hand


def _mean_square(source: RowSource) -> float:
    """The mean square of the targets, or 1 where all are zero."""
    total, count = source.work.sum(_squares_of)[0].tolist()
    return total / count or 1.0


def _squares_of(source: RowSource) -> tuple[Tensor]:
    """The sum of the targets' squares, and their number, of all rows before merging."""
    blocks = (rows.to(torch.float64) for rows in source.blocks())
    total = sum(float(rows.squares_of(rows.Y)) for rows in blocks)
    return (torch.tensor([total, source.n_rows * source.Y.shape[1]], dtype=torch.float64),)


@torch.no_grad()
def _functions_at(
    source: RowSource, kernel: TorchKernel, points: Tensor, amplitude: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The functions at blocks of rows, the targets and the counts."""
    for rows in source.blocks(MOMENT_ROWS):
        yield kernel.cross(kernel.theta0, rows.X, points) / amplitude, rows.Y, rows.weight


def _moments_of(
    source: RowSource, kernel: TorchKernel, points: Tensor, amplitude: Tensor
) -> tuple[Tensor, ...]:
    """Phi'Phi, Phi'Y, and |Y|^2 with the number of rows."""
    m, t = len(points), source.Y.shape[1]
    gram, projection = points.new_zeros(m, m), points.new_zeros(m, t)
    square = 0.0
    for phi, Y, _ in _functions_at(source, kernel, points, amplitude):
        gram += phi.T @ phi
        projection += phi.T @ Y
        square += float(Y.square().sum())
    return gram, projection, gram.new_tensor([square, len(source)])


def own_values(kernel: TorchKernel, points: Tensor) -> Tensor:
    """k(x_i, x_i), the values of the functions at their own rows; 1 in place of 0."""
    with torch.no_grad():
        values = kernel.diag(kernel.theta0.to(points.device), points).double()
    return torch.where(values > 0, values, torch.ones_like(values))


@dataclass(frozen=True, eq=False)
class RelevanceModel:
    """r functions of a dictionary with the posterior of their weights.

    Attributes
    ----------
    dictionary : Dictionary
    active : Tensor of shape (r,)
        The numbers of the functions, ascending.
    gram : Tensor of shape (r, r)
        Their products, summed over the rows.
    weights : Weights
    """

    dictionary: Dictionary
    active: Int64[Tensor, " r"]
    gram: Float64[Tensor, "r r"]
    weights: Weights

    def process(self) -> tuple[ProcessMap, FeatureWeights]:
        """The process behind predictions, and the distribution of its weights.

        The mean is that of the relevance vector machine. The variance is that of a Gaussian process
        with the same kernel and the relevance vectors as inducing points, because the machine has
        no uncertainty about the functions that it has dropped.
        """
        dictionary, noise = self.dictionary, self.weights.noise
        points, unit = dictionary.points[self.active], dictionary.amplitude[self.active]
        process = ProcessMap(KernelFunctions(dictionary.kernel, points), noise)
        K = process.factor @ process.factor.T
        seen, _ = cholesky_with_jitter(K + unit[:, None] * self.gram * unit / noise)
        # The factor of I + L^-1 G L^-T, without products that would lose digits.
        factor = torch.linalg.solve_triangular(process.factor, seen, upper=False)
        mean = process.factor.T @ (self.weights.mean / unit[:, None])
        return process, FeatureWeights(factor, mean)


def whole_model(dictionary: Dictionary) -> RelevanceModel:
    """The exact process, in the form of a machine that has dropped no function; O(n^3) for n rows.

    With A = diag(k(x_i, x_i)), the weights of the functions k(x, x_i) / k(x_i, x_i) have the prior
    precision A^-1 k(X, X) A^-1, of which the model has the diagonal, and the posterior mean
    A (k(X, X) + noise I)^-1 Y.

    Parameters
    ----------
    dictionary : Dictionary
        Of all rows.
    """
    kernel, unit, n = dictionary.kernel, dictionary.amplitude, len(dictionary)
    noise = max(dictionary.noise, 1e-6 * dictionary.unit)
    rows = dictionary.source.take(dictionary.rows).to(torch.float64)
    X, Y = rows.X, rows.Y
    with torch.no_grad():
        K = kernel.cross(kernel.theta0.to(X.device), X, X)
    own = rows.noise_of_means(Y.new_full((n,), noise))
    L, _ = cholesky_with_jitter(K + torch.diag(own))
    solved = torch.cholesky_solve(Y, L)
    log_det = 2 * float(L.diagonal().log().sum())
    evidence = float((Y * solved).sum()) + Y.shape[1] * (log_det + n * np.log(2 * np.pi))
    # What the means of equal rows leave out of the likelihood.
    evidence -= 2 * float(rows.log_density(torch.full_like(own, noise)).sum())
    phi, precision = K / unit, K / unit / unit[:, None]
    gram = phi.T @ (rows.weight[:, None] * phi)
    H, _ = cholesky_with_jitter(gram / noise + precision)
    weights = Weights(
        mean=unit[:, None] * solved,
        covariance=torch.cholesky_inverse(H),
        precision=precision.diagonal(),
        noise=noise,
        residual=float((rows.weight[:, None] * (own[:, None] * solved).square()).sum()),
        evidence=-0.5 * evidence,
    )
    return RelevanceModel(dictionary, torch.arange(n, device=K.device), gram, weights)


class RelevanceStepper(Stepper):
    """Maximises the ELBO over q(w), the precisions S = diag(s) and the noise, and drops functions.

    With q(w) at its optimum for the current s, the update is s_i = (1 - s_i Sigma_ii) / mu_i^2.
    This is MacKay's form of the stationary point of the ELBO in s_i, which converges faster than
    s_i = 1 / (mu_i^2 + Sigma_ii). Single functions are dropped and added where this raises the
    evidence. The rows enter through moments only, so that a step costs O(m^3) for m functions.

    Parameters
    ----------
    dictionary : Dictionary
        The functions, with their initial precisions and noise.
    source : RowSource
        The rows of the fit.
    budget : Budget
        Its time budget limits the rows.
    singly : int, default=512
        Up to this number of functions, single ones are dropped and added.
    """

    objective_name = "log evidence minus one half for each function, per row and target"
    moving = ("active", "precision", "noise")

    def __init__(
        self,
        dictionary: Dictionary,
        source: RowSource,
        budget: Budget,
        singly: int = 512,
    ):
        self.dictionary, self._singly = dictionary, singly
        self.moments = moments = dictionary.moments(source, budget)
        self.gram, self.n, self.t = moments.gram, moments.n, moments.target.shape[1]
        self.noise = max(dictionary.noise, moments.floor)
        self.precision = torch.as_tensor(dictionary.precision).to(self.gram, copy=True)
        self.flops = 2.0 * len(dictionary) ** 3
        self.active: Int64[Tensor, " r"] = torch.arange(len(dictionary), device=self.gram.device)
        self._solve()

    def _solve(self) -> None:
        """q(w) of the remaining functions, and the log evidence."""
        s = self.precision[self.active]
        self.weights = self.moments.weights(self.active, s, self.noise)

    @property
    def evidence(self) -> float:
        return self.weights.evidence

    def model(self) -> RelevanceModel:
        """The functions that are left."""
        a = self.active
        return RelevanceModel(self.dictionary, a, self.gram[a][:, a], self.weights)

    def step(self) -> None:
        a = self.active
        s, q = self.precision[a], self.weights
        determined = (1 - s * q.covariance.diagonal()).clamp_min(1e-12)
        self.precision[a] = self.t * determined / q.mean.square().sum(1).clamp_min(1e-300)
        free = self.t * max(self.n - float(determined.sum()), 1e-3 * self.n)
        before, self.noise = self.noise, max(q.residual / free, self.moments.floor)
        keep = self.precision[a] < self.dictionary.largest
        if bool(keep.any()):
            self.active = a[keep]
        self._solve()
        settled = self.noise > _SETTLED * before
        if settled and len(self.active) <= self._singly and not self.drop():
            self.add()

    def drop(self, most: int = 16) -> bool:
        """Drop up to `most` functions that add less than `_WORTH` to the log evidence.

        The one that adds least comes first.
        MacKay's updates only approach an infinite s_i. The evidence there has a closed form: it is
        smaller by the factor N(0; mu_i, Sigma_ii) / N(0; 0, 1 / s_i), the ratio of Savage and
        Dickey. The functions that are left have the posterior given w_i = 0.
        """
        left = torch.arange(len(self.active), device=self.gram.device)
        mean, covariance = self.weights.mean, self.weights.covariance
        s = self.precision[self.active]
        for _ in range(min(most, len(left) - 1)):
            variance = covariance.diagonal()
            added = mean.square().sum(1) / variance + self.t * torch.log(variance * s[left])
            least = int(added.argmin())
            if float(added[least]) >= 2 * self.t * _WORTH:
                break
            others = (torch.arange(len(left), device=left.device) != least).nonzero()[:, 0]
            share = covariance[others, least] / variance[least]
            mean = mean[others] - share[:, None] * mean[least]
            covariance = covariance[others][:, others] - share[:, None] * covariance[least, others]
            left = left[others]
        if len(left) == len(self.active):
            return False
        self.active = self.active[left]
        self._solve()
        return True

    def add(self, most: int = 4) -> None:
        """Add up to `most` functions that would add more than `_WORTH` and `_MARGIN`.

        Functions that were worth little under a larger noise may be worth much under a smaller one.
        The best s_i and the evidence have closed forms (Tipping and Faul 2003, Fast marginal
        likelihood maximisation).
        """
        for _ in range(most):
            out = torch.ones(len(self.precision), dtype=torch.bool, device=self.gram.device)
            out[self.active] = False
            others = out.nonzero()[:, 0]
            if len(others) == 0:
                return
            S, Q = self.moments.alone(others, self.active, self.weights)
            ratio = (Q.square().mean(1) / S).clamp_min(1.0)
            s = S / (ratio - 1)
            useful = s < self.dictionary.largest
            gain = torch.where(useful, ratio - 1 - ratio.log(), torch.zeros_like(s))
            best = int(gain.argmax())
            if not float(gain[best]) > 2 * (_WORTH + _MARGIN):
                return
            self.precision[others[best]] = s[best]
            self.active = torch.cat([self.active, others[best : best + 1]]).sort().values
            self._solve()

    def resumed(self) -> None:
        self._solve()

    def score(self) -> float:
        worth = self.t * _WORTH * len(self.active)
        return (worth - self.evidence) / (self.n * self.t)

    def theta(self) -> np.ndarray:
        return np.array([np.log(self.noise), float(len(self.active))])

    def snapshot(self) -> tuple:
        return self.active.clone(), self.precision.clone(), self.noise

    def restore(self, snapshot: tuple) -> None:
        self.active, self.precision, self.noise = snapshot[0], snapshot[1].clone(), snapshot[2]
        self._solve()


def reduced(
    dictionary: Dictionary, plan: RelevancePlan, params: Any, run: FitRun
) -> tuple[Dictionary, int, int]:
    """Reduce a dictionary by stochastic steps until full batches can train it.

    It comes with the numbers of rounds and of steps. A round that is stopped counts with the steps
    taken so far. If it is stopped before its first step, the dictionary does not change.
    """
    n_rounds = n_iter = 0
    if plan.rounds is None:
        return dictionary, n_rounds, n_iter
    fit = Fit(dictionary.source, run, plan.rounds)
    noise = NoiseAtRows(Gaussian(), dictionary.noise, 1 / dictionary.noise)
    while len(dictionary) > plan.most and n_rounds < _ROUNDS and not run.stopped:
        before, stepper = dictionary, None
        rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
        n_drawn = functions_drawn(params, len(before), "").value
        with run.stage("support", optional=True):
            stepper = make_stepper(fit, before.scaled(fit.source.dtype), noise, rng, n_drawn)
        if stepper is None:
            break
        support = before.source.subset(fit.split[0])

        def show(model: Any, score: float, now: Any = (before, stepper, support)) -> None:
            left = now[0].after(now[1]).most_relevant(_GLIMPSE)
            model._keep(RelevanceStepper(left, now[2], run.budget).model())

        n_iter += fit.drive(stepper, show).n_steps
        dictionary, n_rounds = before.after(stepper), n_rounds + 1
    return dictionary, n_rounds, n_iter
