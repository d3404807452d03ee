"""Steps of quadruply stochastic variational inference: sampled rows, sampled basis functions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.likelihoods import LikelihoodTerms
from ...core.training import Stepper
from ._basis import BasisPart, SampledBasis
from ._estimates import (
    BasisDraw,
    Control,
    Projection,
    Squares,
    optimal_diagonal,
    sampled_gradient,
    sampled_loss,
)
from ._optimizers import SampledAdam, SparseOptimizer
from ._site import Site, noise_of
from ._support import Flattening, SupportRows, by_unit
from ._weights import RunningMean, SampledWeights

# Name of the objective, which is minus the score.
OBJECTIVE = "lower bound a row and target"
# Factor of the learning rate when steps have made the score worse, and the largest number of such
# reductions.
_SLOWER = 0.3
_MOST_RETREATS = 8
# Numbers in one evaluation of the basis.
_NUMBERS = 2**24


class SampledStepper(Stepper):
    """Common parts of all steps: batches, changes of the weights, their running mean and snapshots.

    Parameters
    ----------
    source : RowSource
    basis : SampledBasis
    site : Site
        The likelihood.
    support : SupportRows
    flattening : Flattening
        Preconditioner.
    optimizer : SparseOptimizer
        The optimiser of the means and dense columns, whose rate is relative to 1 / level.
    weights : SampledWeights
    squares : Tensor of shape (q, m / q)
        |phi_r|^2 over all rows.
    n_rows, n_blocks : int
        Numbers of rows in a step, and of blocks of basis functions in each of its draws.
    rng : numpy.random.Generator
        Generator of all draws.
    n_total : int, optional
        Number of rows that the batches represent.
    held : ndarray of int, optional
        Sorted numbers of rows that are held out of batches.
    control_variate : {"regression", "squares"} or None, default="regression"
    """

    objective_name = OBJECTIVE

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        source: RowSource,
        basis: SampledBasis,
        site: Site,
        support: SupportRows,
        flattening: Flattening,
        optimizer: SparseOptimizer,
        weights: SampledWeights,
        squares: Float[Tensor, "q units"],
        n_rows: int,
        n_blocks: int,
        rng: np.random.Generator,
        n_total: int | None = None,
        held: np.ndarray | None = None,
        control_variate: str | None = "regression",
    ):
        self.held = np.empty(0, dtype=np.int64) if held is None else held
        self.source, self.basis, self.site, self.support = source, basis, site, support
        self.flattening, self.optimizer, self.weights = flattening, optimizer, weights
        self.squares, self.n_rows, self.n_blocks, self.rng = squares, n_rows, n_blocks, rng
        self.control_variate = control_variate
        self.n = len(source) if n_total is None else n_total
        self.t = support.Y.shape[1]
        self.curvature = site.curvature
        self._theta, self._rows = support.theta, support.all_rows
        self._steps = self._slower = 0
        self._mean, self._better = RunningMean(weights, self.t), weights

    @property
    def n_dense(self) -> int:
        return self.weights.coef.shape[2] - self.t

    def step(self) -> None:
        rows = self._batch()
        with torch.no_grad():
            self._step(rows, *self.source.rows(rows), self.site.at(self.source.known(rows)))
            self.optimizer.advance()
            self._mean.after()
        self._steps += 1

    @abstractmethod
    def _step(self, rows: np.ndarray, X: Tensor, Y: Tensor, site: Site) -> None:
        """Move the weights by one batch."""

    def _batch(self) -> np.ndarray:
        """The numbers of a step's rows."""
        count = len(self.source) - len(self.held)
        rows = self.rng.choice(count, min(self.n_rows, count), replace=False, shuffle=False)
        rows.sort()
        if len(self.held):
            # From numbers among the other rows to numbers among all rows.
            before = self.held - np.arange(len(self.held))
            rows += np.searchsorted(before, rows, side="right")
        return rows

    def _control(self, cross: Float[Tensor, "b s"]) -> Control:
        """The control variate, given k(X, support rows)."""
        # A copy, because the step of theta uses the values from before the weights' step.
        a = self.weights.a[: len(self.support)].to(cross, copy=True)
        if self.control_variate == "regression":
            return Projection(self.support.regression(cross), a)
        if self.control_variate == "squares" and self.site.gaussian:
            return Squares(a, self.site.curvature / len(self.support))
        return Control()

    def _move(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], everywhere: Float[Tensor, "sv qu"]
    ) -> None:
        """Change the drawn weights, and b and a accordingly.

        `everywhere` holds the drawn functions at the support rows and at the scores' rows.
        """
        change = self.optimizer.change(index, gradient / self.flattening.level, self.basis.n_units)
        if self.n_dense:
            change[:, :, self.t :] *= self._coordinates(index) >= torch.arange(self.n_dense)
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

    def _check_terms(self, f: Float[Tensor, "c t"], variance: Float[Tensor, "c 1"]):
        """The expected log likelihood at the scores' rows."""
        site = self.site.at(self.support.known_check)
        return site.terms(self.support.Y_check.double(), f, variance)

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

    @abstractmethod
    def diagonal(self) -> Float[Tensor, "q units"]:
        """c_rr of the columns that are not dense (proposition 1), 0 for those that are."""

    @abstractmethod
    def folded(self) -> Float[Tensor, "q units k"]:
        """A copy of the better weights, with their shared part."""


class Drawn(NamedTuple):
    """A draw of basis functions: the part of the basis, and its values in two places."""

    part: BasisPart
    data: BasisDraw
    everywhere: Tensor


class QSGPStepper(SampledStepper):
    """Trains q(w) = N(mu, C C') for a basis with identity prior precision.

    A step costs O(b u (d + k) + s u k + b s^2) for u drawn functions, independent of n and m.
    Parameters are those of `SampledStepper`, and `hyperparameters`, the optimiser of theta or None.
    From step `exact_from` on f at the rows comes from all functions, in O((b + s) m k): for a
    likelihood that is not Gaussian, estimates from draws leave a bias.
    """

    def __init__(
        self,
        *args,
        hyperparameters: SampledAdam | None = None,
        exact_from: float = float("inf"),
        **settings,
    ):
        super().__init__(*args, **settings)
        self.exact_from = exact_from
        self.hyperparameters = hyperparameters
        self.refresh()

    def _step(self, rows: np.ndarray, X: Tensor, Y: Tensor, site: Site) -> None:
        control = self._control(self.support.cross(X))
        left, right = self._draw(X), self._draw(X)
        square, known = self._square(left, right), None
        if self._steps >= self.exact_from:
            known, square = self._function(X)
        gradients = sampled_gradient(site, Y, left.data, right.data, control, square, self.n, known)
        for draw, gradient in zip((left, right), gradients, strict=True):
            gradient = gradient + 0.5 * draw.data.scale * draw.data.weights
            gradient = gradient.reshape(self.basis.per_unit, -1, gradient.shape[1])
            self._add_log_diagonal(draw, gradient)
            self._move(draw.part.index, gradient, draw.everywhere)
        if self.hyperparameters is not None and self.hyperparameters.due(self._steps):
            self._move_theta(site, Y, X, left, right, control)

    def _draw(self, X: Float[Tensor, "b d"]) -> Drawn:
        part, scale = self.basis.draw(self.n_blocks, self.rng)
        phi = part.evaluate(self._theta, X)
        everywhere = part.evaluate(self.support.theta, self._rows)
        at_support = everywhere[: len(self.support)]
        weights = self._weights(part, at_support)
        return Drawn(part, BasisDraw(phi, weights, scale, at_support), everywhere)

    def _weights(self, part: BasisPart, at_support: Float[Tensor, "s qu"]) -> Float[Tensor, "qu k"]:
        """The weights of some functions, with their shared part."""
        tail = (part.index >= self.weights.head).to(at_support).repeat(self.basis.per_unit)
        own = self.weights.coef[:, part.index].flatten(0, 1)
        return own + (at_support * tail).T @ self.weights.shared.to(at_support)

    def _function(self, X: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor]:
        """All columns' values at the rows, and the diagonal's variance, from all functions."""
        f, square = 0.0, 0.0
        for part in self.basis.parts(max(1, _NUMBERS // (self.basis.per_unit * len(self._rows)))):
            phi = part.evaluate(self._theta, X)
            at_support = part.evaluate(self.support.theta, self.support.X)
            f = f + phi @ self._weights(part, at_support)
            square = square + phi.square() @ self.diagonal(part.index).flatten().square()
        return f, square[:, None]

    def _square(self, *draws: Drawn) -> Float[Tensor, "b 1"]:
        """An unbiased estimate of the variance of f from the diagonal of C."""
        if self.site.gaussian:
            return torch.zeros(len(draws[0].data.phi), 1).to(draws[0].data.phi)
        parts = [
            d.data.scale * (d.data.phi.square() @ self.diagonal(d.part.index).flatten().square())
            for d in draws
        ]
        return (sum(parts) / len(parts))[:, None]

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

    def _move_theta(
        self, site: Site, Y: Tensor, X: Tensor, left: Drawn, right: Drawn, control: Control
    ) -> None:
        """A step of theta along the gradient of the sampled loss (empirical Bayes).

        The control variate keeps the basis of the start (appendix F.3), so that f at the support
        rows remains known.
        """
        kernel, (third, scale) = self.support.kernel, self.basis.draw(self.n_blocks, self.rng)
        c = self.diagonal(third.index).flatten()
        with torch.enable_grad():
            theta = self._theta.detach().requires_grad_(True)
            draws = [replace(d.data, phi=d.part.evaluate(theta, X)) for d in (left, right)]
            square = scale * (third.evaluate(theta, X).square() @ c.square())[:, None]
            noise = None
            if site.gaussian:
                noise = (kernel.noise(theta, X[:1].double())[0] + site.known).expand(len(X)).to(X)
            loss = sampled_loss(site, Y, *draws, control, square, self.n, noise)
            (gradient,) = torch.autograd.grad(loss, theta, allow_unused=True)
        if gradient is not None:
            self._theta = self.hyperparameters.moved(theta.detach(), gradient.double(), kernel)
        if site.likelihood.additive:
            self.site = replace(self.site, noise=noise_of(kernel, self._theta))

    # ------------------------------------------------------------------ called by the driver

    def refresh(self) -> None:
        """Update the variance of f at the scores' rows and the curvature; O(s m)."""
        X, w = self._rows[len(self.support) :], self.weights.a[len(self.support) :]
        for k in range(3):
            variance = torch.zeros(len(X), 1, dtype=torch.float64, device=X.device)
            for part in self.basis.parts(max(1, _NUMBERS // (self.basis.per_unit * len(X)))):
                phi, c = part.evaluate(self._theta, X), self.diagonal(part.index).flatten()
                variance += (phi.square() @ c.square())[:, None].double()
            self._sparse_variance = variance
            # The variance depends on the curvature, so that both are updated until they agree.
            if self.site.gaussian or k == 2:
                return
            curvature = self._curvature(w)
            if abs(curvature - self.curvature) < 0.05 * self.curvature:
                return
            self.curvature = curvature

    def score(self) -> float:
        w = self.weights.a[len(self.support) :]
        if not self.site.gaussian and bool(torch.isfinite(w).all()):
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
        likelihood = self._terms(w.a[s:]).value.mean() / t * self.n
        b, gram = w.shared, self.flattening.gram[:s]
        # The head is not part of b.
        tail = w.a[:s] - self._head_part(w)
        norm = torch.linalg.vector_norm(w.coef, dim=(0, 1)).double().square()
        norm = norm + (b * (2 * tail - gram @ b)).sum(0)
        c2 = self.diagonal().double().square()
        kept = c2[c2 > 0]
        r, q = torch.arange(self.n_dense, device=c2.device), self.basis.per_unit
        own = w.coef[r % q, r // q, t + r].double().square()
        divergence = norm[:t].mean() + (kept - 1 - kept.log()).sum()
        divergence = 0.5 * (divergence + norm[t:].sum() - (1 + own.log()).sum())
        return float((divergence - likelihood) / self.n)

    def _terms(self, values: Float[Tensor, "c k"]) -> LikelihoodTerms:
        """The expected log likelihood at the scores' rows, given all columns' values there."""
        variance = self._sparse_variance + values[:, self.t :].square().sum(1, keepdim=True)
        return self._check_terms(values[:, : self.t], variance)

    def _curvature(self, values: Float[Tensor, "c k"]) -> float:
        return -2 * float(self._terms(values).d_variance.mean()) / self.t

    def _head_part(self, w: SampledWeights) -> Tensor | float:
        """Phi_p w of the head, on which b does not act."""
        if w.head == 0:
            return 0.0
        index, phi = head_functions(self.basis, self.support, w.head)
        return (phi[: len(self.support)] @ w.coef[:, index].flatten(0, 1)).double()

    def folded(self) -> Float[Tensor, "q units k"]:
        w, q = self._better, self.basis.per_unit
        coef, shared = w.coef.clone(), w.shared.to(w.coef)
        for part in self.basis.parts(max(1, _NUMBERS // (q * len(self.support)))):
            phi = part.evaluate(self.support.theta, self.support.X)
            change = by_unit((phi.T @ shared).T.contiguous(), q).permute(1, 2, 0)
            coef[:, part.index] += change * (part.index >= w.head).to(change)[None, :, None]
        return coef


def head_functions(
    basis: SampledBasis, support: SupportRows, head: int
) -> tuple[Tensor, Float[Tensor, "sv qh"]]:
    """The numbers of the head's units, and their functions at the support and scores' rows."""
    part = basis.part(np.arange(-(-head // basis.block_units)))
    inside = part.index < head
    phi = by_unit(part.evaluate(support.theta, support.all_rows), basis.per_unit)
    return part.index[inside], phi[:, :, inside].flatten(1)


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

    objective_name = "expected log likelihood a row and target"

    def __init__(self, *args, support_index: Int64[Tensor, " s"], **settings):
        super().__init__(*args, **settings)
        self.support_index, s = support_index, len(self.support)
        gram, share = self.flattening.gram, self.n / s
        c = optimal_diagonal(share * gram[:s].square().sum(0), self.curvature, gram[:s].diagonal())
        self._variance = share * (gram[s:].square() @ c.square())[:, None]

    def _step(self, rows: np.ndarray, X: Tensor, Y: Tensor, site: Site) -> None:
        index = torch.as_tensor(rows)
        everywhere = self.support.kernel.cross(self.support.theta, X, self._rows)
        f = self._function(X, everywhere[:, : len(self.support)])
        variance = self._variance.mean().to(f).expand(len(f), 1)
        slope = site.terms(Y, f, variance).d_mean
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
        theta = self.support.theta
        if self.n_blocks >= self.basis.n_units:
            parts = self.basis.parts(max(1, _NUMBERS // len(X)))
            return sum(p.evaluate(theta, X) @ self._own(p.index) for p in parts)
        part, scale = self.basis.draw(self.n_blocks, self.rng)
        at_support = part.evaluate(theta, self.support.X)
        draw = BasisDraw(part.evaluate(theta, X), self._own(part.index), scale, at_support)
        return self._control(cross).function(draw)

    def _score(self, w: SampledWeights) -> float:
        """Minus the expected log likelihood, without the ELBO's log|K|, which would cost O(n^3)."""
        f = w.a[len(self.support) :]
        if not bool(torch.isfinite(f).all()):
            return float("nan")
        return -float(self._check_terms(f, self._variance).value.mean()) / self.t

    def diagonal(self) -> Float[Tensor, "q units"]:
        prior = self.support.kernel.diag(self.support.theta, self.basis.points)
        return optimal_diagonal(self.squares, self.curvature, prior)

    def folded(self) -> Float[Tensor, "q units k"]:
        coef = self._better.coef.clone()
        coef[0, self.support_index] += self._better.shared.to(coef)
        return coef
