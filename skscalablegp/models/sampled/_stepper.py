"""Steps of quadruply stochastic variational inference: sampled rows, sampled basis functions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.likelihoods import LikelihoodTerms
from ...core.training import Stepper
from ._basis import BasisPart, SampledBasis
from ._estimates import BasisDraw, StepRows, batch_sums, optimal_diagonal, pull_of_squares
from ._noise import NoiseAtRows, noise_of
from ._support import Flattening, SupportRows, by_unit
from ._weights import RunningMean, SampledAdam, SampledWeights, SparseSGD

# Name of the objective, which is minus the score.
OBJECTIVE = "lower bound per row and target"
# Factor of the learning rate when steps have made the score worse, and the largest number of such
# reductions.
_SLOWER = 0.3
_MOST_RETREATS = 8


@dataclass(eq=False)
class Sampler:
    """What the steps draw.

    Attributes
    ----------
    source : RowSource
    basis : SampledBasis
    n_rows, n_blocks : int
        Numbers of rows in a step, and of blocks of basis functions in each of its draws.
    rng : numpy.random.Generator
        Generator of all draws.
    n_total : float
        Number of rows that the batches represent, where rows of the table are counted once.
    held : ndarray of int
        Sorted numbers of rows that are held out of batches.
    n_counted : float, optional
        As `n_total`, with the counts of rows that stand for several.
    """

    source: RowSource
    basis: SampledBasis
    n_rows: int
    n_blocks: int
    rng: np.random.Generator
    n_total: float
    held: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    n_counted: float | None = None

    moving = ("rng",)

    def rows(self) -> np.ndarray:
        """The numbers of a step's rows."""
        count = len(self.source) - len(self.held)
        rows = self.rng.choice(count, min(self.n_rows, count), replace=False, shuffle=False)
        rows.sort()
        if len(self.held):
            # From numbers among the other rows to numbers among all rows.
            before = self.held - np.arange(len(self.held))
            rows += np.searchsorted(before, rows, side="right")
        return rows

    def functions(self) -> BasisPart:
        """Some functions."""
        return self.basis.draw(self.n_blocks, self.rng)


@dataclass(eq=False)
class SampledStepper(Stepper):
    """Common parts of all steps: changes of the weights, their running mean and snapshots.

    Parameters
    ----------
    sampler : Sampler
    noise : NoiseAtRows
        The likelihood.
    support : SupportRows
    flattening : Flattening
        Preconditioner.
    weights : SampledWeights
        The first weights, which the steps change in place.
    squares : Tensor of shape (q, m / q)
        |phi_r|^2 over all rows.
    optimizer : SparseSGD
        The optimiser of the means and dense columns, whose rate is relative to 1 / level.
    control_variate : {"regression", "squares"} or None, default="regression"
    """

    sampler: Sampler
    noise: NoiseAtRows
    support: SupportRows
    flattening: Flattening
    weights: SampledWeights
    squares: Float[Tensor, "q units"]
    optimizer: SparseSGD
    control_variate: str | None = "regression"

    objective_name = OBJECTIVE
    moving = ("weights", "optimizer", "_steps", "_slower", "_mean", "_theta")
    moving += ("noise", "curvature", "sampler")
    # Whether every step raises the bound, so that the last weights are the best.
    ascends = False
    # Scale of the variances and noise of predictions, if steps have chosen them.
    scales: tuple[float, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.basis, self.n = self.sampler.basis, self.sampler.n_total
        self.n_counted = self.sampler.n_counted or self.n
        self.curvature, self.t = self.noise.curvature, self.support.rows.Y.shape[1]
        self.n_dense = self.weights.coef.shape[2] - self.t
        self._theta, self._rows = self.support.theta.clone(), self.support.all_rows
        self._steps = self._slower = 0
        self._mean, self._better = RunningMean(self.weights, self.t), self.weights

    def step(self) -> None:
        rows = self.sampler.rows()
        with torch.no_grad():
            self._step(rows)
            self.optimizer.advance()
            self._mean.after()
        self._steps += 1

    @abstractmethod
    def _step(self, rows: np.ndarray) -> None:
        """Move the weights by one batch."""

    def _move(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], everywhere: Float[Tensor, "sv qu"]
    ) -> None:
        """Change the drawn weights, and b and a accordingly.

        `everywhere` holds the drawn functions at the support rows and at the scores' rows.
        """
        change = self.optimizer.change(index, gradient / self.flattening.level, self.basis.n_units)
        if self.n_dense:
            columns = torch.arange(self.n_dense, device=index.device)
            change[:, :, self.t :] *= self._coordinates(index) >= columns
        self._mean.before(index, self._steps)
        self.weights.coef[:, index] += change
        moved = (everywhere @ change.flatten(0, 1)).double()
        shared = -self.flattening.Q @ moved[: len(self.support)]
        self.weights.shared += shared
        self.weights.a += moved + self.flattening.gram @ shared

    def _coordinates(self, index: Tensor) -> Tensor:
        """Numbers of the coordinates, unit by unit, in the order of the triangle of C."""
        functions = torch.arange(self.basis.per_unit, device=index.device)[:, None]
        return (index[None, :] * self.basis.per_unit + functions)[:, :, None]

    # ------------------------------------------------------------------ called by the driver

    def score(self) -> float:
        """The better score of the weights and of their mean, which then goes into snapshots."""
        mean, self._better = self._mean.mean(self._steps), self.weights
        score = self._score(self.weights)
        if mean is not None:
            of_mean = self._score(mean)
            if not score <= of_mean:
                self._better, score = mean, of_mean
        return score

    @abstractmethod
    def _score(self, w: SampledWeights) -> float:
        """Minus the objective per row and target, from fixed rows; NaN if not finite."""

    def _check_terms(
        self, f: Float[Tensor, "c t"], variance: Float[Tensor, "c 1"]
    ) -> tuple[LikelihoodTerms, float]:
        """The expected log likelihood at the scores' rows, and the mean count of these."""
        check = self.support.check
        terms = self.noise.at(check).terms(check.Y.double(), f, variance)
        return terms, float(check.weight.double().mean())

    def resumed(self) -> None:
        self._better = self.weights

    def theta(self) -> np.ndarray:
        return self._theta.detach().cpu().numpy().copy()

    def snapshot(self) -> tuple:
        return self._better.copy(), self._theta, self.noise, self.curvature

    def restore(self, snapshot: tuple) -> None:
        weights, self._theta, self.noise, self.curvature = snapshot
        self.weights.assign(weights)
        self._better = self.weights
        self._mean.begin(self._steps)

    def slow_down(self) -> bool:
        self.optimizer.learning_rate *= _SLOWER
        self._slower += 1
        return self._slower <= _MOST_RETREATS

    @abstractmethod
    def diagonal(self) -> Float[Tensor, "q units"]:
        """c_rr of the columns that are not dense (proposition 1), 0 for those that are."""

    @abstractmethod
    def folded(self) -> Float[Tensor, "q units k"]:
        """A copy of the better weights, with their shared part."""


@dataclass(eq=False)
class DualStepper(SampledStepper):
    """Trains the mean of q(w) for phi_i = k(., x_i) at all n rows, with S = K.

    The gradient of minus the ELBO is K (r + mu), with r the derivative of minus the log likelihood
    in f = K mu. The natural gradient is r + mu, which has an entry for each row; a step changes
    only the entries of its own rows. The estimate of f at these rows comes from other,
    independently drawn functions and from the support rows. A step costs O(b u d + b s^2) for u
    drawn functions. Weights are residuals over the noise variance, so that sums of few of them are
    noisy. Draws of all functions cost O(b n d), but are often cheaper in total, because they need
    far fewer steps.

    Parameters are those of `SampledStepper`, and `support_index`, the numbers of the support rows.
    The shared weights belong to the support rows.
    """

    objective_name = "expected log likelihood per row and target"

    support_index: Int64[Tensor, " s"] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        s, gram = len(self.support), self.flattening.gram
        share = self.n / s
        square = self.support.rows.weight.to(gram)[:, None] * gram[:s].square()
        c = optimal_diagonal(share * square.sum(0), self.curvature, gram[:s].diagonal())
        self._variance = share * (gram[s:].square() @ c.square())[:, None]

    def _step(self, rows: np.ndarray) -> None:
        source = self.sampler.source
        some = source.take(rows)
        X, Y, noise = some.X, some.Y, self.noise.at(some)
        index = torch.as_tensor(rows).to(X.device, non_blocking=True)
        everywhere = self.support.kernel.cross(self.support.theta, X, self._rows)
        f = self._function(X, everywhere[:, : len(self.support)])
        variance = self._variance.mean().to(f).expand(len(f), 1)
        slope = noise.terms(Y, f, variance).d_mean
        gradient = self.n / len(rows) * (self._own(index) - slope)
        self._move(index, gradient[None], everywhere.T)

    def _own(self, index: Tensor) -> Float[Tensor, "u t"]:
        """The weights of some rows, including the shared ones of support rows."""
        out = self.weights.coef[0, index]
        at = torch.searchsorted(self.support_index, index).clamp_max(len(self.support_index) - 1)
        known = self.support_index[at] == index
        out[known] += self.weights.shared[at[known]].to(out)
        return out

    def _function(self, X: Float[Tensor, "b d"], cross: Float[Tensor, "b s"]) -> Tensor:
        """f at the rows, exact from all functions or estimated from drawn ones."""
        theta, support = self.support.theta, self.support
        if self.sampler.n_blocks >= self.basis.n_units:
            return sum(phi @ self._own(i) for i, phi in self.basis.evaluations(theta, X))
        part = self.sampler.functions()
        own = self._own(part.index)
        f = part.scale * (part.evaluate(theta, X) @ own)
        if self.control_variate == "regression":
            a = self.weights.a[: len(support)].to(cross)
            drawn = part.scale * (part.evaluate(theta, support.X) @ own)
            f = f + support.regression(cross) @ (a - drawn)
        return f

    def _score(self, w: SampledWeights) -> float:
        """Minus the expected log likelihood, without the ELBO's log|K|, which would cost O(n^3)."""
        f = w.a[len(self.support) :]
        if not bool(torch.isfinite(f).all()):
            return float("nan")
        terms, count = self._check_terms(f, self._variance)
        return -float(terms.value.mean()) / self.t / count

    def diagonal(self) -> Float[Tensor, "q units"]:
        prior = self.support.kernel.diag(self.support.theta, self.basis.points)
        return optimal_diagonal(self.squares, self.curvature, prior)

    def folded(self) -> Float[Tensor, "q units k"]:
        coef = self._better.coef.clone()
        coef[0, self.support_index] += self._better.shared.to(coef)
        return coef


class Drawn(NamedTuple):
    """A draw of basis functions: its part of the basis, and its values at the support rows."""

    part: BasisPart
    data: BasisDraw
    everywhere: Tensor


@dataclass(eq=False)
class QSGPStepper(SampledStepper):
    """Trains q(w) = N(mu, C C') for a basis with identity prior precision.

    A step costs O(b u (d + k) + s u k + b s^2) for u drawn functions, independent of n and m.
    Parameters are those of `SampledStepper`, and `hyperparameters`, the optimiser of theta or None.
    From step `exact_from` on f at the rows comes from all functions, in O((b + s) m k): for a
    likelihood that is not Gaussian, estimates from draws leave a bias.
    """

    hyperparameters: SampledAdam | None = None
    exact_from: float = float("inf")

    moving = (*SampledStepper.moving, "hyperparameters", "_sparse_variance")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._work = self.sampler.source.work.put(StepRows, self.basis, self.support)
        self.refresh()

    def _step(self, rows: np.ndarray) -> None:
        left, right = self._draw(), self._draw()
        drawn = [left.part.blocks, right.part.blocks]
        adam = self.hyperparameters
        moves = adam is not None and self._steps >= adam.freeze
        diagonals: list[Tensor] = []
        if not self.noise.gaussian:
            diagonals = [self.diagonal(draw.part.index) for draw in (left, right)]
        if moves:
            part = self.sampler.functions()
            drawn.append(part.blocks)
            diagonals.append(self.diagonal(part.index))
        task = self.noise, drawn, self.n, len(rows), self.control_variate == "regression"
        a = self.weights.a[: len(self.support)].to(left.data.phi)
        known = left.data.function(), right.data.function()
        tensors = [self._theta, left.data.weights, right.data.weights, *known, a, *diagonals]
        if self._steps >= self.exact_from:
            tensors += [self._folded(self.weights), self.diagonal()]
        *gradients, of_theta = self._work.sum(batch_sums, *task, *tensors, rows=rows)
        pulls: tuple[Tensor | float, ...] = (0.0, 0.0)
        if self.control_variate == "squares" and self.noise.gaussian:
            weight = self.noise.curvature / len(self.support)
            pulls = tuple(
                0.5 * self.n * pull_of_squares(draw.data.phi, a - other, weight)
                for draw, other in zip((left, right), reversed(known), strict=True)
            )
        for draw, gradient, pull in zip((left, right), gradients, pulls, strict=True):
            gradient = gradient.to(a) + draw.data.scale * (pull + 0.5 * draw.data.weights)
            gradient = gradient.reshape(self.basis.per_unit, -1, gradient.shape[1])
            self._add_log_diagonal(draw, gradient)
            self._move(draw.part.index, gradient, draw.everywhere)
        if moves:
            # A step of theta along the gradient of the sampled loss (empirical Bayes).
            kernel = self.support.kernel
            self._theta = adam.moved(self._theta.detach(), of_theta, kernel)
            if self.noise.likelihood.additive:
                self.noise = replace(self.noise, variance=noise_of(kernel, self._theta))

    def _draw(self) -> Drawn:
        part = self.sampler.functions()
        everywhere = part.evaluate(self.support.theta, self._rows)
        at_support = everywhere[: len(self.support)]
        draw = BasisDraw(at_support, self._weights(part, at_support), part.scale)
        return Drawn(part, draw, everywhere)

    def _weights(self, part: BasisPart, at_support: Float[Tensor, "s qu"]) -> Float[Tensor, "qu k"]:
        """The weights of some functions, with their shared part."""
        tail = (part.index >= self.weights.head).to(at_support).repeat(self.basis.per_unit)
        own = self.weights.coef[:, part.index].flatten(0, 1)
        return own + (at_support * tail).T @ self.weights.shared.to(at_support)

    def _add_log_diagonal(self, draw: Drawn, gradient: Float[Tensor, "q u k"]) -> None:
        """Add the gradient of -log c_rr, which is -1 / c_rr where column r meets coordinate r."""
        columns = torch.arange(self.n_dense, device=gradient.device)
        at = torch.nonzero(self._coordinates(draw.part.index) == columns, as_tuple=True)
        weights = draw.data.weights.reshape(gradient.shape)[:, :, self.t :][at]
        weights = torch.where(weights.abs() < 1e-3, 1e-3, weights)
        gradient[:, :, self.t :][at] -= 0.5 * draw.data.scale / weights

    def diagonal(self, index: Tensor | slice = slice(None)) -> Float[Tensor, "q u"]:
        c = optimal_diagonal(self.squares[:, index], self.curvature, 1.0)
        units = torch.arange(self.basis.n_units, device=c.device)[index]
        return c * (self._coordinates(units)[:, :, 0] >= self.n_dense)

    # ------------------------------------------------------------------ called by the driver

    def refresh(self) -> None:
        """Update the variance of f at the scores' rows and the curvature; O(s m)."""
        w = self.weights.a[len(self.support) :]
        X = self._rows[len(self.support) :]
        for k in range(3):
            self._sparse_variance = sum(
                self._of_diagonal(phi, index)
                for index, phi in self.basis.evaluations(self._theta, X)
            )
            # The variance depends on the curvature, so that both are updated until they agree.
            if self.noise.gaussian or k == 2:
                return
            curvature = self._curvature(w)
            if abs(curvature - self.curvature) < 0.05 * self.curvature:
                return
            self.curvature = curvature

    def _of_diagonal(self, phi: Tensor, index: Tensor) -> Tensor:
        """The part of the variance at some rows that is due to the diagonal of C at some units."""
        return (phi.square() @ self.diagonal(index).flatten().square())[:, None].double()

    def score(self) -> float:
        w = self.weights.a[len(self.support) :]
        if not self.noise.gaussian and bool(torch.isfinite(w).all()):
            # The closed form of the diagonal depends on the curvature of the likelihood.
            now = self._curvature(w)
            if abs(now - self.curvature) > 0.1 * self.curvature:
                self.refresh()
        return super().score()

    def _score(self, w: SampledWeights) -> float:
        """Minus the ELBO, the likelihood from the scores' rows; O(s^2 + m)."""
        t, s = self.t, len(self.support)
        if not bool(torch.isfinite(w.a[s:, :t]).all()):
            return float("nan")
        likelihood = self._terms(w.a[s:])[0].value.mean() / t * self.n
        b, gram = w.shared, self.flattening.gram[:s]
        tail = w.a[:s]
        if w.head:
            # The head is not part of b.
            index, phi = head_functions(self.basis, self.support, w.head)
            tail = tail - (phi[:s] @ w.coef[:, index].flatten(0, 1)).double()
        norm = torch.linalg.vector_norm(w.coef, dim=(0, 1)).double().square()
        norm = norm + (b * (2 * tail - gram @ b)).sum(0)
        c2 = self.diagonal().double().square()
        kept = c2[c2 > 0]
        r, q = torch.arange(self.n_dense, device=c2.device), self.basis.per_unit
        own = w.coef[r % q, r // q, t + r].double().square()
        divergence = norm[:t].mean() + (kept - 1 - kept.log()).sum()
        divergence = 0.5 * (divergence + norm[t:].sum() - (1 + own.log()).sum())
        return float((divergence - likelihood) / self.n_counted)

    def _terms(self, values: Float[Tensor, "c k"]) -> tuple[LikelihoodTerms, float]:
        """As `_check_terms`, given all columns' values at these rows."""
        variance = self._sparse_variance + values[:, self.t :].square().sum(1, keepdim=True)
        return self._check_terms(values[:, : self.t], variance)

    def _curvature(self, values: Float[Tensor, "c k"]) -> float:
        terms, count = self._terms(values)
        return -2 * float(terms.d_variance.mean()) / self.t / count

    def folded(self) -> Float[Tensor, "q units k"]:
        return self._folded(self._better)

    def _folded(self, w: SampledWeights) -> Float[Tensor, "q units k"]:
        coef, shared = w.coef.clone(), w.shared.to(w.coef)
        for index, phi in self.basis.evaluations(self.support.theta, self.support.X):
            change = (phi.T @ shared).reshape(len(coef), -1, coef.shape[2])
            coef[:, index] += change * (index >= w.head).to(change)[None, :, None]
        return coef


def head_functions(
    basis: SampledBasis, support: SupportRows, head: int
) -> tuple[Tensor, Float[Tensor, "sv qh"]]:
    """The numbers of the head's units, and their functions at the support and scores' rows."""
    part = basis.part(np.arange(-(-head // basis.block_units)))
    inside = part.index < head
    phi = by_unit(part.evaluate(support.theta, support.all_rows), basis.per_unit)
    return part.index[inside], phi[:, :, inside].flatten(1)
