"""Steps of quadruply stochastic variational inference: sampled rows, sampled basis functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import RowSource
from ...core.likelihoods import LikelihoodTerms
from ...core.training import Stepper
from ._basis import BasisPart, SampledBasis
from ._bounds import BasisDraw, Projection, optimal_diagonal
from ._fit import OBJECTIVE
from ._gradient import sampled_gradient
from ._hyperparameters import SampledHyperparameters
from ._optimizers import SparseOptimizer
from ._site import Site
from ._support import Flattening, SupportRows, by_unit
from ._weights import RunningMean, SampledWeights

# What is left of the learning rate when steps have made the score worse, and how often.
_SLOWER = 0.3
_MOST_RETREATS = 8


@dataclass(frozen=True)
class StepSizes:
    """How much a step draws.

    Attributes
    ----------
    rows : int
        b.
    blocks : int
        Blocks of basis functions in each of the two draws.
    dense_every : int
        Steps from one change of the dense columns of C to the next.
    """

    rows: int
    blocks: int
    dense_every: int = 10


class Draw(NamedTuple):
    """One draw of basis functions at the rows of a step, and where it came from."""

    part: BasisPart
    data: BasisDraw
    everywhere: Tensor


class QSGPStepper(Stepper):
    """Trains q(w) = N(mu, C C') for a basis with identity prior precision.

    A step costs O(b u (d + k) + s u k + b s^2) for u drawn functions, whatever n and m are.

    Parameters
    ----------
    source : RowSource
    basis : SampledBasis
    site : Site
        The likelihood.
    support : SupportRows
    flattening : Flattening or None
        Preconditioner; None for the optimisers that have none.
    optimizer : SparseOptimizer
        Of the means and dense columns; with a preconditioner its rate is relative to 1 / level.
    weights : SampledWeights
    squares : Tensor of shape (q, m / q)
        |phi_r|^2 over all rows.
    sizes : StepSizes
    rng : numpy.random.Generator
        Of all draws.
    hyperparameters : SampledHyperparameters or None
        What moves theta; None keeps it.
    n_total : int, optional
        Rows that the batches stand for.
    held : ndarray of int, optional
        Sorted numbers of rows that no batch may have.
    """

    objective_name = OBJECTIVE

    def __init__(
        self,
        source: RowSource,
        basis: SampledBasis,
        site: Site,
        support: SupportRows,
        flattening: Flattening | None,
        optimizer: SparseOptimizer,
        weights: SampledWeights,
        squares: Float[Tensor, "q units"],
        sizes: StepSizes,
        rng: np.random.Generator,
        hyperparameters: SampledHyperparameters | None = None,
        n_total: int | None = None,
        held: np.ndarray | None = None,
    ):
        self.held = np.empty(0, dtype=np.int64) if held is None else held
        self.source, self.basis, self.site, self.support = source, basis, site, support
        self.flattening, self.optimizer, self.weights = flattening, optimizer, weights
        self.squares, self.sizes, self.rng = squares, sizes, rng
        self.hyperparameters = hyperparameters
        self.n = len(source) if n_total is None else n_total
        self.t = support.Y.shape[1]
        self.curvature = site.curvature
        self._theta = support.theta
        self._rows = support.all_rows
        self._steps = self._slower = 0
        self._mean = RunningMean(weights, self.t)
        self._better = weights
        self.refresh()

    @property
    def n_dense(self) -> int:
        return self.weights.coef.shape[2] - self.t

    # ------------------------------------------------------------------ a step

    def step(self) -> None:
        with torch.no_grad():
            rows = self._batch()
            (X, Y), site = self.source.rows(rows), self.site.at(self.source.known(rows))
            dense = self.n_dense > 0 and self._steps % self.sizes.dense_every == 0
            k = self.weights.coef.shape[2] if dense else self.t
            control = Projection(
                self.support.regression(self.support.cross(X)),
                # A copy: theta moves after the weights have, from what their draws had.
                self.weights.a[: len(self.support), :k].to(X, copy=True),
            )
            left, right = self._draw(X, k), self._draw(X, k)
            variance = self._variance(left, right, control)
            gradient = sampled_gradient(site, Y, left.data, right.data, control, self.n, variance)
            self._change(left, gradient.left, k)
            self._change(right, gradient.right, k)
            self.optimizer.advance()
            self._mean.after()
        if self.hyperparameters is not None and self.hyperparameters.due(self._steps):
            self._move_theta(site, Y, X, left, right, control)
        self._steps += 1

    def _batch(self) -> np.ndarray:
        """Numbers of a step's rows."""
        count = len(self.source) - len(self.held)
        rows = self.rng.choice(count, min(self.sizes.rows, count), replace=False, shuffle=False)
        rows.sort()
        if len(self.held):
            # Numbers among the rows that are not held out, as numbers among all.
            before = self.held - np.arange(len(self.held))
            rows += np.searchsorted(before, rows, side="right")
        return rows

    def _draw(self, X: Float[Tensor, "b d"], k: int) -> Draw:
        part, scale = self.basis.draw(self.sizes.blocks, self.rng)
        phi = part.evaluate(self._theta, X)
        everywhere = part.evaluate(self.support.theta, self._rows)
        at_support = everywhere[: len(self.support)]
        tail = (part.index >= self.weights.head).to(at_support).repeat(self.basis.per_unit)
        weights = self.weights.coef[:, part.index, :k].reshape(-1, k)
        if self.flattening is not None:
            shared = self.weights.shared[:, :k].to(at_support)
            weights = weights + (at_support * tail).T @ shared
        return Draw(part, BasisDraw(phi, weights, scale, at_support), everywhere)

    def _variance(self, left: Draw, right: Draw, control: Projection) -> Float[Tensor, "b 1"]:
        """Of f under q: unbiased, and it varies little over draws of thousands."""
        if self.site.gaussian:
            return torch.zeros(len(left.data.phi), 1).to(left.data.phi)
        variance = 0.0
        for draw in (left, right):
            diagonal = self.diagonal(draw.part.index).flatten()
            square = draw.data.phi.square() @ diagonal.square()
            variance = variance + 0.5 * draw.data.scale * square[:, None]
        if left.data.weights.shape[1] > self.t:
            f, g = control.function(left.data), control.function(right.data)
            variance = variance + (f[:, self.t :] * g[:, self.t :]).sum(1, keepdim=True)
        return variance.clamp_min(0)

    def _change(self, draw: Draw, gradient: Float[Tensor, "u k"], k: int) -> None:
        """The drawn weights, b and a, after one draw's gradient."""
        data, index, q = draw.data, draw.part.index, self.basis.per_unit
        gradient = gradient + 0.5 * data.scale * data.weights
        gradient = gradient.reshape(q, -1, k)
        if k > self.t:
            gradient[:, :, self.t :] += 0.5 * data.scale * self._log_diagonal(data, index, k)
        if self.flattening is not None:
            gradient = gradient / self.flattening.level
        change = self.optimizer.change(index, gradient, self.basis.n_units)
        change[:, :, self.t :] *= self._triangle(index, change.shape[2] - self.t)
        self._mean.before(index, self._steps)
        self.weights.coef[:, index, :k] += change
        moved = (draw.everywhere @ change.reshape(-1, k)).double()
        if self.flattening is not None:
            shared = -self.flattening.Q @ moved[: len(self.support)]
            self.weights.shared[:, :k] += shared
            moved = moved + self.flattening.gram @ shared
        self.weights.a[:, :k] += moved

    def _log_diagonal(self, data: BasisDraw, index: Tensor, k: int) -> Tensor:
        """-1 / c_rr where column r meets coordinate r: the gradient of -log c_rr."""
        out = data.weights.new_zeros(self.basis.per_unit, len(index), k - self.t)
        weights = data.weights.reshape(self.basis.per_unit, -1, k)[:, :, self.t :]
        function, unit, column = torch.nonzero(
            self._coordinates(index) == _columns(out), as_tuple=True
        )
        values = weights[function, unit, column]
        out[function, unit, column] = -1 / torch.where(values.abs() < 1e-3, 1e-3, values)
        return out

    def _coordinates(self, index: Tensor) -> Tensor:
        """Numbers of the coordinates in the order that the triangle follows: unit, function."""
        functions = torch.arange(self.basis.per_unit, device=index.device)[:, None]
        return (index[None, :] * self.basis.per_unit + functions)[:, :, None]

    def _triangle(self, index: Tensor, c: int) -> Tensor:
        columns = torch.arange(c, device=index.device)
        return (self._coordinates(index) >= columns).to(self.weights.coef)

    def diagonal(self, index: Tensor | slice = slice(None)) -> Float[Tensor, "q u"]:
        """c_rr of the columns that are not dense (proposition 1), 0 for those that are."""
        c = optimal_diagonal(self.squares[:, index], self.curvature, 1.0)
        if self.n_dense:
            units = torch.arange(self.basis.n_units, device=c.device)[index]
            c = c * (self._coordinates(units)[:, :, 0] >= self.n_dense).to(c)
        return c

    # ------------------------------------------------------------------ hyperparameters

    def _move_theta(
        self, site: Site, Y: Tensor, X: Tensor, left: Draw, right: Draw, control: Projection
    ) -> None:
        third, scale = self.basis.draw(self.sizes.blocks, self.rng)
        self._theta, site = self.hyperparameters.step(
            self._theta,
            site,
            X,
            Y,
            (left.part, left.data),
            (right.part, right.data),
            (third, self.diagonal(third.index).flatten(), scale),
            control,
            self.n,
        )
        self.site = site.at(0.0)

    # ------------------------------------------------------------------ what the driver asks

    def refresh(self) -> None:
        """The variance of f at the scores' rows and what depends on it; O(s m), not every step."""
        X = self._rows[len(self.support) :]
        w = self.weights.a[len(self.support) :]
        for k in range(3):
            variance = torch.zeros(len(X), 1, dtype=torch.float64, device=X.device)
            step = max(1, 2**24 // (self.basis.per_unit * len(X)))
            for part in self.basis.parts(step):
                phi = part.evaluate(self._theta, X)
                c = self.diagonal(part.index).flatten()
                variance += (phi.square() @ c.square())[:, None].double()
            self._sparse_variance = variance
            # The variance has to be that of the curvature it ends with.
            if self.site.gaussian or k == 2:
                return
            curvature = self._curvature(w)
            if abs(curvature - self.curvature) < 0.05 * self.curvature:
                return
            self.curvature = curvature

    def score(self) -> float:
        """Minus the ELBO a row and target, the likelihood from some fixed rows; O(s^2 + m).

        Of the weights or of the last steps' mean, whichever is better: that is also what a
        snapshot has.
        """
        mean, self._better = self._mean.mean(self._steps), self.weights
        current = self.weights.a[len(self.support) :, : self.t]
        if not self.site.gaussian and bool(torch.isfinite(current).all()):
            # The closed form of the diagonal again, when the likelihood's curvature has moved.
            now = self._curvature(self.weights.a[len(self.support) :])
            if abs(now - self.curvature) > 0.1 * self.curvature:
                self.refresh()
        score = self._score(self.weights)
        if mean is not None:
            of_mean = self._score(mean)
            if not score <= of_mean:
                self._better, score = mean, of_mean
        return score

    def _score(self, w: SampledWeights) -> float:
        t, s = self.t, len(self.support)
        if not bool(torch.isfinite(w.a[s:, :t]).all()):
            return float("nan")
        likelihood = self._terms(w.a[s:]).value.mean() / t * self.n
        norm = torch.linalg.vector_norm(w.coef, dim=(0, 1)).double().square()
        if self.flattening is not None:
            b, gram = w.shared, self.flattening.gram[:s]
            norm = norm + (b * (2 * self._tail_values(w) - gram @ b)).sum(0)
        c2 = self.diagonal().double().square()
        kept = c2[c2 > 0]
        r = torch.arange(self.n_dense, device=c2.device)
        q = self.basis.per_unit
        # No part of the head is in b.
        own = w.coef[r % q, r // q, t + r].double().square()
        divergence = norm[:t].mean() + (kept - 1 - kept.log()).sum()
        divergence = 0.5 * (divergence + norm[t:].sum() - (1 + own.log()).sum())
        return float((divergence - likelihood) / self.n)

    def _terms(self, values: Float[Tensor, "c k"]) -> LikelihoodTerms:
        """The likelihood at the scores' rows, where f and the dense columns have these values."""
        variance = self._sparse_variance + values[:, self.t :].square().sum(1, keepdim=True)
        site = self.site.at(self.support.known_check)
        return site.terms(self.support.Y_check.double(), values[:, : self.t], variance)

    def _curvature(self, values: Float[Tensor, "c k"]) -> float:
        return -2 * float(self._terms(values).d_variance.mean()) / self.t

    def _tail_values(self, weights: SampledWeights) -> Tensor:
        """Phi_p w without the head's part."""
        values = weights.a[: len(self.support)]
        return values - self._head_part(weights) if weights.head else values

    def _head_part(self, weights: SampledWeights) -> Tensor:
        blocks = -(-weights.head // self.basis.block_units)
        part = self.basis.part(np.arange(blocks))
        phi = by_unit(part.evaluate(self.support.theta, self.support.X), self.basis.per_unit)
        inside = part.index < weights.head
        w = weights.coef[:, part.index[inside]]
        return (phi[:, :, inside].flatten(1) @ w.reshape(-1, w.shape[2])).double()

    def theta(self) -> np.ndarray:
        return self._theta.detach().cpu().numpy().copy()

    def snapshot(self) -> tuple:
        return self._better.copy(), self._theta, self.site, self.curvature

    def restore(self, snapshot: tuple) -> None:
        weights, self._theta, self.site, self.curvature = snapshot
        self.weights.assign(weights)
        self._better = self.weights
        self._mean.begin(self._steps)

    def slow_down(self) -> bool:
        self.optimizer.learning_rate *= _SLOWER
        self._slower += 1
        return self._slower <= _MOST_RETREATS

    def folded(self) -> Float[Tensor, "q units k"]:
        """The better weights with Phi_p' b, a copy; O(s m)."""
        w = self._better
        coef = w.coef.clone()
        if self.flattening is None:
            return coef
        shared = w.shared.to(coef)
        for part in self.basis.parts(max(1, 2**24 // (self.basis.per_unit * len(self.support)))):
            phi = part.evaluate(self.support.theta, self.support.X)
            change = by_unit((phi.T @ shared).T.contiguous(), self.basis.per_unit).permute(1, 2, 0)
            coef[:, part.index] += change * (part.index >= w.head).to(change)[None, :, None]
        return coef


def _columns(out: Tensor) -> Tensor:
    return torch.arange(out.shape[2], device=out.device)
