"""Training of sparse variational models on random batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ...core import Machine
from ...core.data import RowSource, random_rows, rows_before_merging
from ...core.likelihoods import Likelihood
from ...core.training import Stepper, TensorAdam
from ...features import Network
from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ...workers import Workers
from ._beliefs import AdamSteps, MovingBelief, NaturalSteps
from ._bound import (
    BoundEvaluation,
    KernelValues,
    NaturalBelief,
    RowStatistics,
    WhitenedBelief,
    Whitening,
    variational_bound,
)
from ._collapsed import collapsed_bound, left_out_scales

# Rows of a score, and rows that a pass over the data holds in memory at a time.
_SCORE_ROWS = 2048
PASS_ROWS = 4096
# Rows that are left out to choose the scale of the noise.
_SCALED_ROWS = 4096
# Steps until the learning rate reaches its full value.
_WARM_UP = 10


@dataclass(frozen=True, eq=False)
class SparseModel:
    """The model that is trained, without the values of its parameters.

    Attributes
    ----------
    kernel : TorchKernel
    likelihood : Likelihood
    n_outputs : int
        Targets, or classes.
    network : Network or None
        Applied to rows before the kernel.
    machine : Machine
        Where batches are evaluated.
    """

    kernel: TorchKernel
    likelihood: Likelihood
    n_outputs: int
    network: Network | None = None
    machine: Machine = Machine()

    @property
    def n_factors(self) -> int:
        """The number of covariances; the targets of a conjugate likelihood share one."""
        return 1 if self.likelihood.conjugate else self.likelihood.n_latent(self.n_outputs)

    def features(self, weights: list[Tensor], X: Tensor) -> Tensor:
        """The kernel's input for these rows."""
        return X if self.network is None else self.network(weights, X)

    def seen(self, weights: list[Tensor], source: RowSource) -> Workers:
        """The rows as the kernel sees them, in blocks."""
        return source.work if self.network is None else source.work.put(SeenRows, self, *weights)

    def values(self, theta: Tensor, Z: Tensor, X: Tensor, extra: Tensor) -> KernelValues:
        """The kernel at inducing points and rows, differentiable in all arguments."""
        kernel = self.kernel
        diag, noise = kernel.diag(theta, X), kernel.noise(theta, X)
        if not self.likelihood.additive:
            # White noise then belongs to the latent function.
            diag, noise = diag + noise, torch.zeros_like(noise)
        return KernelValues(
            kernel.cross(theta, Z, Z),
            kernel.cross(theta, Z.to(X.device, non_blocking=True), X),
            diag,
            noise + extra,
        )


class SeenRows:
    """Rows to which the network of a model has been applied."""

    def __init__(self, source: RowSource, model: SparseModel, *weights: Tensor):
        self.source, self.model, self.weights = source, model, list(weights)

    def blocks(self, size: int) -> Iterator[Rows]:
        for rows in self.source.blocks(size):
            yield replace(rows, X=self.model.features(self.weights, rows.X))


def drawn_rows(source: RowSource, size: int, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of the table before equal rows were merged, as `rows_before_merging`."""

    def draw(n: int, size: int) -> np.ndarray:
        return random_rows(n, size, generator).cpu().numpy()

    return rows_before_merging(source.weight, size, draw)


@dataclass(frozen=True, eq=False)
class SparseFit:
    """A model's trained values.

    Attributes
    ----------
    theta, Z : Tensor
    weights : list of Tensor
        Of the network.
    belief : WhitenedBelief
    value : float
        The bound on all rows.
    jitter : float
        On the diagonal of k(Z, Z).
    """

    theta: Tensor
    Z: Tensor
    weights: list[Tensor]
    belief: WhitenedBelief
    value: float = math.nan
    jitter: float = 0.0

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> SparseFit:
        """Return the fit whose tensors are theta, Z, those of the belief, and the weights."""
        theta, Z, *rest = tensors
        return cls(theta, Z, list(rest[4:]), WhitenedBelief(*rest[:4]))

    def bound(
        self, model: SparseModel, rows: Rows, generator: Generator, *settings: Any
    ) -> tuple[KernelValues, BoundEvaluation]:
        """`variational_bound` of some rows, and the values of the kernel that it depends on."""
        weights, there = self.weights, model.machine.products_on
        if there is not None:
            rows = rows.to(rows.Y.dtype, there)
            weights = [part.to(there, non_blocking=True) for part in weights]
        K = model.values(self.theta, self.Z, model.features(weights, rows.X), rows.noise)
        return K, variational_bound(model.likelihood, self.belief, K, rows, generator, *settings)


@dataclass(frozen=True, eq=False)
class SparseTraining:
    """The beginning of one training by batches.

    Attributes
    ----------
    model : SparseModel
    source : RowSource
        In the model's units.
    plan : SparsePlan
    weights : list of Tensor
        Initial weights of the network, which training changes.
    unit : float
        The target's mean square.
    constant : Tensor of shape (q,) or None
        The prior means of the latent functions at the start, which are trained; None for zero.
    """

    model: SparseModel
    source: RowSource
    plan: Any
    weights: list[Tensor]
    unit: float
    constant: Tensor | None = None


class SparseStepper(Stepper):
    """Each step updates the belief from one batch, and everything else by Adam."""

    objective_name = "lower bound per row"
    moving = ("_theta", "_points", "weights", "belief", "_adam", "n_steps", "generator", "_batches")

    def __init__(
        self, training: SparseTraining, theta: Tensor, Z: Tensor, unit: Tensor, generator: Generator
    ):
        self.model, self.source, self.weights = training.model, training.source, training.weights
        plan, constant = training.plan, training.constant
        self.plan, self.generator, self.unit = plan, generator, unit
        self._theta, self._points = theta.clone(), (Z / unit).clone()
        model, likelihood = self.model, self.model.likelihood
        self._bounds = model.kernel.bounds.to(theta.device)
        self.n_steps, self.flops = 0, 2.0 * len(Z) ** 2 * max(len(Z), plan.batch_size)
        if model.kernel.log_prior:
            self.objective_name = "lower bound + log prior per row"
        q = likelihood.n_latent(model.n_outputs)
        prior = NaturalBelief.prior(len(Z), q, model.n_factors, Z.device, constant)
        rate = float(plan.variational_learning_rate.value)
        learns = constant is not None and plan.optimizer is not None
        whole = plan.batch_size >= len(self.source)
        self.belief: MovingBelief = (
            AdamSteps(prior, rate, learns)
            if plan.variational_optimizer == "adam"
            else NaturalSteps(prior, rate, likelihood.conjugate, whole, learns)
        )
        self._adam = self._optimizer()
        self._batches = self.source.batches(plan.batch_size, generator)
        self._work = self.source.work.put(SparseRows, model, generator)
        self._scored = self.source.counted(*drawn_rows(self.source, _SCORE_ROWS, generator))

    def _optimizer(self) -> TensorAdam | None:
        rate, groups = self.plan.learning_rate, []
        if self.plan.optimizer is not None:
            if len(self._theta):
                groups.append(([self._theta], rate))
            if self.plan.optimize_inducing:
                groups.append(([self._points], rate))
            if self.model.network is not None:
                groups.append((self.weights[: self.model.network.n_trainable], 0.1 * rate))
        for tensors, _ in groups:
            for tensor in tensors:
                tensor.requires_grad_(True)
        return TensorAdam(groups, betas=(0.9, 0.99)) if groups else None

    @property
    def Z(self) -> Tensor:
        return self._points * self.unit

    @property
    def settled(self) -> bool:
        """Whether there is nothing to train, since the optimal belief has a closed form."""
        return self.belief.closed and self._adam is None

    @property
    def _values(self) -> list[Tensor]:
        """The tensors from which the rows are evaluated."""
        belief = vars(self.belief.whitened()).values()
        return [tensor.detach() for tensor in (self._theta, self.Z, *belief, *self.weights)]

    def step(self) -> None:
        try:
            self._step(*next(self._batches))
        except torch.linalg.LinAlgError:
            # A score of NaN makes the driver return to the best state.
            with torch.no_grad():
                self._points.fill_(math.nan)

    def _step(self, batch: Tensor, weights: Tensor) -> None:
        n, trains = len(self.source), self._adam is not None
        if trains and len(batch) >= n and self.belief.closed:
            # With the optimal belief for these hyperparameters, the gradient is that of the
            # collapsed bound. With the last step's belief, they would hardly move.
            self.belief.step(self._batch_sums(batch, weights, False), n, self.n_steps)
        self.belief.step(self._batch_sums(batch, weights, trains), n, self.n_steps)
        self.n_steps += 1
        if trains:
            self._move_hyperparameters(n)

    def _batch_sums(self, batch: Tensor, weights: Tensor, eval_gradient: bool) -> RowStatistics:
        """The statistics of some rows; the gradient per row, if asked for, becomes the leaves'."""
        n, leaves = len(self.source), self.parameters
        needed = tuple(eval_gradient and leaf.requires_grad for leaf in leaves)
        # At ranks, whose rows are not merged, one number travels.
        same = bool((weights == weights[0]).all())
        sent = [weights[:1] if same else weights, *self._values]
        found = self._work.sum(SparseRows.sums, n, needed, *sent, rows=batch)
        *sums, of_theta, of_Z = found[:7]
        if not bool(torch.isfinite(sums[0]).all()):
            raise torch.linalg.LinAlgError("k(Z, Z) has no factor")
        if eval_gradient:
            self._adam.zero_grad()
            grads = of_theta, of_Z.to(self.unit) * self.unit, *found[7:]
            for leaf, need, grad in zip(leaves, needed, grads, strict=True):
                if need:
                    leaf.grad = grad.to(leaf)
        return RowStatistics(*sums)

    def rescale(self) -> None:
        """Set the default kernel's variance and its noise by held-out rows.

        A few dozen steps cannot move the noise far from where it started.
        """
        theta, Z, source = self._theta.detach(), self.Z.detach(), self.source
        some = source.take(random_rows(len(source), _SCALED_ROWS, self.generator))
        scales = left_out_scales(self.model.kernel, theta, Z, source.work.sum, some, PASS_ROWS)
        with torch.no_grad():
            # The first hyperparameter is the prior variance, the last one the noise.
            self._theta[[0, -1]] += torch.tensor(scales, dtype=torch.float64).log().to(self._theta)
            self._theta.clamp_(self._bounds[:, 0], self._bounds[:, 1])

    def first_step(self) -> int:
        """One step, if training was stopped before its first, so that the belief is no prior."""
        before = self.snapshot()
        self.step()
        if math.isfinite(self.score()):
            return 1
        self.restore(before)
        return 0

    @torch.no_grad()
    def fitted(self) -> SparseFit:
        """The current model with its bound on all rows; changes nothing.

        For a Gaussian likelihood the belief is the optimal one.
        """
        model, theta, Z = self.model, self._theta.detach().clone(), self.Z.detach()
        weights = [w.detach().clone() for w in self.weights]
        if self.belief.closed:
            seen = model.seen(weights, self.source)
            best = collapsed_bound(model.kernel, theta, Z, seen.sum, block_rows=PASS_ROWS)
            belief = best.belief.whitened()
            return SparseFit(theta, Z, weights, belief, best.value, best.white.jitter)
        belief, white = self.belief.whitened(), Whitening.at(model.kernel, theta, Z)
        (expected,) = self._work.sum(SparseRows.expected, *self._values)
        value = float(expected) - belief.divergence()
        return SparseFit(theta, Z, weights, belief, value, white.jitter)

    def _move_hyperparameters(self, n: int) -> None:
        done = self.n_steps / max(self.plan.max_iter.value, 1)
        factor = max(0.5 * (1 + math.cos(math.pi * min(done, 1.0))), 0.02)
        factor *= min(1.0, self.n_steps / _WARM_UP)
        if self.model.kernel.log_prior:
            slope = self.model.kernel.log_prior(self.theta())[1]
            self._theta.grad.sub_(torch.as_tensor(slope / n).to(self._theta))
        self._adam.step(factor)
        with torch.no_grad():
            self._theta.clamp_(self._bounds[:, 0], self._bounds[:, 1])

    def score(self) -> float:
        """The negative bound per row, on the same rows each time."""
        weight = self.source.n_rows / self._scored.n_rows
        at = SparseFit.of(self._values)
        try:
            with torch.no_grad():
                bound = at.bound(self.model, self._scored, self.generator, False, None, True)[1]
        except torch.linalg.LinAlgError:
            return math.inf
        value = weight * bound.expected - at.belief.divergence()
        return -(value + self.model.kernel.log_prior(self.theta())[0]) / len(self.source)

    def theta(self) -> np.ndarray:
        return self._theta.detach().cpu().numpy().copy()

    @property
    def parameters(self) -> list[Tensor]:
        return [self._theta, self._points, *self.weights]

    def snapshot(self) -> Any:
        return super().snapshot(), self.belief.snapshot()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self.belief.restore(snapshot[1])


# ---------------------------------------------------------------- of the rows at hand


@dataclass(frozen=True, eq=False)
class SparseRows:
    """The rows of a training, with what they are evaluated by.

    Attributes
    ----------
    source : RowSource
    model : SparseModel
    generator : Generator
        For likelihoods that use random draws.
    """

    source: RowSource
    model: SparseModel
    generator: Generator

    def sums(
        self,
        index: Tensor | np.ndarray,
        n: int,
        needed: tuple[bool, ...],
        weights: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """The statistics of some rows, and gradients in theta, Z and the weights of the network.

        The gradients are those of the negative bound of a row, of n; zeros where they are not
        needed. The entries are NaN if k(Z, Z) has no factor.
        """
        at = SparseFit.of(tensors)
        leaves = [
            leaf.detach().requires_grad_(need)
            for leaf, need in zip((at.theta, at.Z, *at.weights), needed, strict=True)
        ]
        at = SparseFit(leaves[0], leaves[1], leaves[2:], at.belief)
        mean, S, constant = at.belief.mean, at.belief.covariance, at.belief.constant
        found = tuple(map(torch.zeros_like, (S, mean, mean, constant, constant)))
        if len(index):
            rows = self.source.take(index)
            rows = replace(rows, weight=weights.to(rows.noise).expand(len(rows)))
            try:
                with torch.set_grad_enabled(any(needed)):
                    K, bound = at.bound(self.model, rows, self.generator, any(needed))
            except torch.linalg.LinAlgError:
                found = tuple(part + torch.nan for part in found)
            else:
                found = tuple(vars(bound.rows).values())
                if bound.grad is not None:
                    of_row = {name: part / n for name, part in vars(bound.grad).items()}
                    K.backward(KernelValues(**of_row))
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
        return tuple(part.detach().double() for part in (*found, *grads))

    @torch.no_grad()
    def expected(self, *tensors: Tensor) -> tuple[Tensor]:
        """The expected log likelihood of all rows."""
        at, total = SparseFit.of(tensors), 0.0
        white = Whitening.at(self.model.kernel, at.theta, at.Z)
        for rows in self.source.blocks(PASS_ROWS):
            total += at.bound(self.model, rows, self.generator, False, white, True)[1].expected
        return (at.belief.mean.new_tensor([total]),)
