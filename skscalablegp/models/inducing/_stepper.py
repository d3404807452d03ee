"""Training of sparse variational models on random batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ..._validation import check_duplicates
from ...core import Machine, Run, StartRows
from ...core.data import (
    RowSource,
    Scaling,
    random_rows,
    rows_before_merging,
)
from ...core.likelihoods import Likelihood
from ...core.training import Stepper, TensorAdam
from ...features import Network
from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem, Rows
from ...workers import Workers
from ._beliefs import AdamSteps, MovingBelief, NaturalSteps
from ._bound import (
    KernelValues,
    NaturalBelief,
    RowStatistics,
    WhitenedBelief,
    Whitening,
    variational_bound,
)
from ._collapsed import BlocksHere, collapsed_bound, left_out_scales

# Rows of a score, and rows that a pass over the data holds in memory at a time.
_SCORE_ROWS = 2048
_BLOCK_ROWS = 4096
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


@dataclass(frozen=True)
class SparseSettings:
    """The settings of training, in which "auto" is resolved."""

    n_inducing: int
    inducing: Any
    optimize_inducing: bool
    optimizer: str | None
    learning_rate: float
    variational_optimizer: str
    variational_learning_rate: float
    batch_size: int
    max_iter: int


@dataclass(frozen=True, eq=False)
class SparseRows:
    """The rows of a training."""

    source: RowSource

    @property
    def scaling(self) -> Scaling:
        return self.source.scaling

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Tensor | slice) -> Rows:
        """Some of the rows, which are merged with those of the same target only."""
        return self.source.take(index)

    @property
    def n_rows(self) -> float:
        """The number of rows before equal ones were merged."""
        return self.source.n_rows

    def drawn(self, size: int, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random rows of the table before equal rows were merged, as `rows_before_merging`."""

        def draw(n: int, size: int) -> np.ndarray:
            return random_rows(n, size, generator).cpu().numpy()

        return rows_before_merging(self.source.weight, size, draw)

    def random_part(self, size: int, generator: Generator) -> Rows:
        """Rows that are `drawn`."""
        return self._counted(*self.drawn(size, generator))

    def _counted(self, index: np.ndarray, drawn: np.ndarray) -> Rows:
        some = self.take(torch.as_tensor(index))
        return replace(some, weight=torch.as_tensor(drawn).to(some.weight))

    def start_part(self, size: int, run: Run) -> Rows:
        """As `random_part`, with neighbours among the rows where random ones hold none."""

        def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            some = self.take(torch.as_tensor(rows))
            return some.X.double().cpu().numpy(), some.Y.double().cpu().numpy()

        rows = StartRows(len(self), self.source.X.shape[1], read)
        run.fast = rows.fast
        return self._counted(*rows.counted(*self.drawn(size, run.generator)))

    def share(self, some: Rows) -> float:
        """The share of all rows that some are."""
        return some.n_rows / self.n_rows

    def problem(self, kernel: TorchKernel, some: Rows) -> GPProblem:
        """The exact regression on some rows."""
        return GPProblem(kernel, some, prior_weight=self.share(some))

    @cached_property
    def work(self) -> Workers:
        """Who has the rows: this process, or ranks, each with `SparseRows` of its own."""
        return self.source.held(SparseRows)

    def noise_range(self) -> tuple[float, float]:
        """The smallest and the largest known noise variance."""
        return self.source.noise_range()

    def check_separable(self, white: Tensor) -> None:
        """Raise a ValueError for equal rows whose noise, with this white noise, is zero.

        At ranks, equal rows of different ranks are not found.
        """
        self.work.call(_check_separable, tensors=[white])

    def far(self) -> np.ndarray:
        """Numbers of the rows with an entry far from those of other rows."""
        return self.source.far_rows()

    def batches(self, size: int, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers of rows, and for how many rows of the table each stands, without end."""
        return self.source.batches(size, generator)

    def total(
        self, work: Callable[..., tuple[Tensor, ...]], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """The sums over all rows of ``work(blocks, *args, *tensors)`` for the blocks of a part."""
        return self.work.sum(_of_part, work, *args, tensors=tensors)

    def blocks(self) -> Iterator[Rows]:
        # A rank without rows has one empty block.
        for start in range(0, max(len(self), 1), _BLOCK_ROWS):
            yield self.take(slice(start, start + _BLOCK_ROWS))


def _check_separable(rows: SparseRows, white: Tensor) -> None:
    total = rows.source.noise + white.cpu().numpy()
    check_duplicates(rows.source.X, total, rows.source.weight)


def _of_part(
    rows: SparseRows, work: Callable[..., tuple[Tensor, ...]], *args: Any
) -> tuple[Tensor, ...]:
    return work(rows.blocks, *args)


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


class SparseStepper(Stepper):
    """Each step updates the belief from one batch, and everything else by Adam."""

    objective_name = "lower bound per row"
    moving = ("_theta", "_points", "weights", "belief", "_adam", "n_steps", "generator", "_batches")

    def __init__(  # noqa: PLR0913 (the values that steps move)
        self,
        model: SparseModel,
        rows: SparseRows,
        theta: Tensor,
        Z: Tensor,
        weights: list[Tensor],
        unit: Tensor,
        settings: SparseSettings,
        generator: Generator,
        constant: Tensor | None = None,
    ):
        self.model, self.rows, self.settings, self.generator = model, rows, settings, generator
        self.unit, self.weights = unit, weights
        self._theta, self._points = theta.clone(), (Z / unit).clone()
        self._bounds = model.kernel.bounds.to(theta.device)
        self.n_steps, self.flops = 0, 2.0 * len(Z) ** 2 * max(len(Z), settings.batch_size)
        if model.kernel.log_prior:
            self.objective_name = "lower bound + log prior per row"
        q = model.likelihood.n_latent(model.n_outputs)
        prior = NaturalBelief.prior(len(Z), q, model.n_factors, Z.device, constant)
        rate, likelihood = settings.variational_learning_rate, model.likelihood
        learns = constant is not None and settings.optimizer is not None
        whole = settings.batch_size >= len(rows)
        self.belief: MovingBelief = (
            AdamSteps(prior, rate, learns)
            if settings.variational_optimizer == "adam"
            else NaturalSteps(prior, rate, likelihood.conjugate, whole, learns)
        )
        self._adam = self._optimizer()
        self._batches = rows.batches(settings.batch_size, generator)
        self._scored = rows.random_part(_SCORE_ROWS, generator)

    def _optimizer(self) -> TensorAdam | None:
        rate, groups = self.settings.learning_rate, []
        if self.settings.optimizer is not None:
            if len(self._theta):
                groups.append(([self._theta], rate))
            if self.settings.optimize_inducing:
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

    def _evaluate(
        self,
        batch: Rows,
        weight: float,
        eval_gradient: bool,
        white: Whitening | None = None,
        value_only: bool = False,
    ):
        weights, there = self.weights, self.model.machine.products_on
        if there is not None:
            batch = batch.to(batch.Y.dtype, there)
            weights = [part.to(there, non_blocking=True) for part in weights]
        X = self.model.features(weights, batch.X)
        K = self.model.values(self._theta, self.Z, X, batch.noise)
        return K, variational_bound(
            self.model.likelihood,
            self.belief.whitened(),
            K,
            batch.Y,
            weight,
            self.generator,
            eval_gradient,
            white,
            value_only,
            batch.weight,
        )

    def step(self) -> None:
        try:
            self._step(*next(self._batches))
        except torch.linalg.LinAlgError:
            # A score of NaN makes the driver return to the best state.
            with torch.no_grad():
                self._points.fill_(math.nan)

    def _step(self, batch: Tensor, weights: Tensor) -> None:
        n, trains = len(self.rows), self._adam is not None
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
        rows = self.rows.take(batch)
        rows = replace(rows, weight=weights.to(rows.noise))
        with torch.set_grad_enabled(eval_gradient):
            K, bound = self._evaluate(rows, 1.0, eval_gradient)
        if eval_gradient:
            self._adam.zero_grad()
            n = len(self.rows)
            K.backward(replace(bound.grad, **{k: v / n for k, v in vars(bound.grad).items()}))
        return bound.rows

    def rescale(self) -> None:
        """Set the default kernel's variance and its noise by held-out rows.

        A few dozen steps cannot move the noise far from where it started.
        """
        theta, Z, rows = self._theta.detach(), self.Z.detach(), self.rows
        chosen = random_rows(len(rows), _SCALED_ROWS, self.generator)
        scales = left_out_scales(self.model.kernel, theta, Z, rows, rows.take(chosen))
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

            def blocks():
                for rows in self.rows.blocks():
                    yield replace(rows, X=model.features(weights, rows.X))

            rows = self.rows if model.network is None else BlocksHere(blocks)
            best = collapsed_bound(model.kernel, theta, Z, rows)
            belief = best.belief.whitened()
            return SparseFit(theta, Z, weights, belief, best.value, best.white.jitter)
        belief, white = self.belief.whitened(), Whitening.at(model.kernel, theta, Z)
        value = self._expected(white) - belief.divergence()
        return SparseFit(theta, Z, weights, belief, value, white.jitter)

    def _expected(self, white: Whitening) -> float:
        """The expected log likelihood of all rows."""
        total, divergence = 0.0, self.belief.whitened().divergence()
        for batch in self.rows.blocks():
            total += self._evaluate(batch, 1.0, False, white, True)[1].value + divergence
        return total

    def _move_hyperparameters(self, n: int) -> None:
        done = self.n_steps / max(self.settings.max_iter, 1)
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
        n = len(self.rows)
        try:
            with torch.no_grad():
                weight = self.rows.n_rows / self._scored.n_rows
                bound = self._evaluate(self._scored, weight, False, value_only=True)[1]
        except torch.linalg.LinAlgError:
            return math.inf
        return -(bound.value + self.model.kernel.log_prior(self.theta())[0]) / n

    def theta(self) -> np.ndarray:
        return self._theta.detach().cpu().numpy().copy()

    def snapshot(self) -> Any:
        tensors = [self._theta, self._points, *self.weights]
        return [t.detach().clone() for t in tensors], self.belief.snapshot()

    def restore(self, snapshot: Any) -> None:
        tensors, belief = snapshot
        with torch.no_grad():
            for tensor, kept in zip(
                [self._theta, self._points, *self.weights], tensors, strict=True
            ):
                tensor.copy_(kept)
        self.belief.restore(belief)
