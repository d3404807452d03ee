"""Training of sparse variational models by random batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ...core.data import RowSource
from ...core.likelihoods import Likelihood
from ...core.training import Stepper
from ...features import Network
from ...kernels import TorchKernel
from ._bound import KernelValues, NaturalBelief, RowStatistics, WhitenedBelief, variational_bound

# Rows of a score, and rows that a pass over the data holds at a time.
_SCORE_ROWS = 2048
_BLOCK_ROWS = 4096
# Least length of a natural step that sees all rows, where one is not enough.
_WHOLE_RATE = 0.3
# Steps until the learning rate is whole.
_WARM_UP = 10


@dataclass(frozen=True, eq=False)
class SparseModel:
    """What is trained, without any values.

    Attributes
    ----------
    kernel : TorchKernel
    likelihood : Likelihood
    n_outputs : int
        Targets, or classes.
    network : Network or None
        What rows pass through before the kernel.
    """

    kernel: TorchKernel
    likelihood: Likelihood
    n_outputs: int
    network: Network | None = None

    @property
    def n_factors(self) -> int:
        """Different covariances among the latent functions: conjugate targets share one."""
        return 1 if self.likelihood.conjugate else self.likelihood.n_latent(self.n_outputs)

    def features(self, weights: list[Tensor], X: Tensor) -> Tensor:
        """Rows as the kernel takes them."""
        return X if self.network is None else self.network(weights, X)

    def values(self, theta: Tensor, Z: Tensor, X: Tensor, extra: Tensor) -> KernelValues:
        """The kernel at points and rows, differentiable in all of them."""
        kernel = self.kernel
        diag, noise = kernel.diag(theta, X), kernel.noise(theta, X)
        if not self.likelihood.additive:
            # White noise is then part of the latent function.
            diag, noise = diag + noise, torch.zeros_like(noise)
        return KernelValues(
            kernel.cross(theta, Z, Z), kernel.cross(theta, Z, X), diag, noise + extra
        )


@dataclass(frozen=True)
class SparseSettings:
    """How it is trained; everything resolved but the strings that name methods."""

    n_inducing: int
    inducing: Any
    optimize_inducing: bool
    optimizer: str | None
    batch_size: int
    max_iter: int
    learning_rate: float
    natural_rate: float


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows, and the known noise of each."""

    source: RowSource
    noise: Tensor

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        X, Y = self.source.rows(index)
        return X, Y, self.noise[index.to(self.noise.device) if isinstance(index, Tensor) else index]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(self), _BLOCK_ROWS):
            yield self.take(slice(start, start + _BLOCK_ROWS))


class FactorBelief:
    """q(v) as a mean and a Cholesky factor that Adam follows."""

    def __init__(self, m: int, q: int, s: int, device: torch.device, rate: float):
        self.mean = torch.zeros(m, q, dtype=torch.float64, device=device)
        self.factor = torch.eye(m, dtype=torch.float64, device=device).repeat(s, 1, 1)
        self.adam = torch.optim.Adam([self.mean, self.factor], lr=rate)

    def whitened(self) -> WhitenedBelief:
        C = self.factor
        log_det = 2 * C.diagonal(dim1=1, dim2=2).abs().log().sum(1)
        return WhitenedBelief(self.mean.clone(), C @ C.mT, log_det)

    def step(self, rows: RowStatistics, n: int) -> None:
        """Ascend the bound; its gradient in S is (S^-1 - I - P) / 2 for each latent function."""
        C, shared = self.factor, self.mean.shape[1] // len(self.factor)
        inverse = torch.diag_embed(1 / C.diagonal(dim1=1, dim2=2))
        self.mean.grad = (self.mean - rows.d_mean) / n
        self.factor.grad = shared * (C + rows.precision @ C - inverse).tril() / n
        self.adam.step()


class SparseStepper(Stepper):
    """One batch at a time: a natural step of the belief, and Adam for everything else."""

    def __init__(
        self,
        model: SparseModel,
        rows: SparseRows,
        theta: Tensor,
        Z: Tensor,
        weights: list[Tensor],
        unit: Tensor,
        settings: SparseSettings,
        generator: Generator,
    ):
        self.model, self.rows, self.settings, self.generator = model, rows, settings, generator
        self.unit, self.weights = unit, weights
        self._theta, self._points = theta.clone(), (Z / unit).clone()
        self._bounds = model.kernel.bounds.to(theta.device)
        self.n_steps = 0
        q = model.likelihood.n_latent(model.n_outputs)
        s = model.n_factors
        prior = NaturalBelief.prior(len(Z), q, s, Z.device)
        self._prior = self.belief = prior
        if settings.optimizer == "adam":
            self.belief = FactorBelief(len(Z), q, s, Z.device, settings.learning_rate)
        self._adam, self._rates = self._optimizer()
        self._batches = rows.source.shuffled(settings.batch_size, generator)
        order = torch.randperm(len(rows), generator=generator)[:_SCORE_ROWS]
        self._scored = rows.take(order.sort().values)

    def _optimizer(self) -> tuple[torch.optim.Adam | None, list[float]]:
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
        if not groups:
            return None, []
        listed = [{"params": tensors, "lr": lr} for tensors, lr in groups]
        return torch.optim.Adam(listed, betas=(0.9, 0.99)), [lr for _, lr in groups]

    @property
    def Z(self) -> Tensor:
        return self._points * self.unit

    def _evaluate(self, batch, weight: float, eval_gradient: bool):
        X, Y, extra = batch
        X = self.model.features(self.weights, X)
        K = self.model.values(self._theta, self.Z, X, extra)
        ours = self.belief.whitened()
        return K, variational_bound(
            self.model.likelihood, ours, K, Y, weight, self.generator, eval_gradient
        )

    def step(self) -> None:
        try:
            self._step(self.rows.take(next(self._batches)))
        except torch.linalg.LinAlgError:
            # No factor: whatever was learned is lost, and the driver goes back to the best.
            with torch.no_grad():
                self._points.fill_(math.nan)

    def _step(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        n, b = len(self.rows), len(batch[0])
        trains = self._adam is not None
        if trains and b >= n and self._closed:
            # At its optimum for these hyperparameters the belief drops out of their gradient, which
            # is then that of the collapsed bound; with the last one it would resist every change.
            with torch.no_grad():
                self._move_belief(self._evaluate(batch, 1.0, False)[1].rows, n)
        with torch.set_grad_enabled(trains):
            K, bound = self._evaluate(batch, n / b, trains)
        self._move_belief(bound.rows, n)
        self.n_steps += 1
        if trains:
            self._move_hyperparameters(K, bound.grad, n)

    @property
    def _closed(self) -> bool:
        """Whether one step on all rows is the best belief."""
        return self.model.likelihood.conjugate and not isinstance(self.belief, FactorBelief)

    def _move_belief(self, rows: RowStatistics, n: int) -> None:
        if isinstance(self.belief, FactorBelief):
            self.belief.step(rows, n)
            return
        # The first steps forget the prior; on all rows a Gaussian likelihood needs one.
        exact = self.model.likelihood.conjugate
        rate = max(self.settings.natural_rate, 1 / (self.n_steps + (1 if exact else 2)))
        if self.settings.batch_size >= n:
            rate = 1.0 if exact else max(rate, _WHOLE_RATE)
        self.belief = self.belief.towards(self._prior.plus(rows), rate)

    def _move_hyperparameters(self, K: KernelValues, grad: Any, n: int) -> None:
        done = self.n_steps / max(self.settings.max_iter, 1)
        factor = max(0.5 * (1 + math.cos(math.pi * min(done, 1.0))), 0.02)
        factor *= min(1.0, self.n_steps / _WARM_UP)
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._adam.zero_grad()
        K.backward(replace(grad, **{k: v / n for k, v in vars(grad).items()}))
        self._adam.step()
        with torch.no_grad():
            self._theta.clamp_(self._bounds[:, 0], self._bounds[:, 1])

    def score(self) -> float:
        """The negative bound per row, on rows that stay the same."""
        n = len(self.rows)
        try:
            with torch.no_grad():
                bound = self._evaluate(self._scored, n / len(self._scored[0]), False)[1]
        except torch.linalg.LinAlgError:
            return math.inf
        return -bound.value / n

    def theta(self) -> np.ndarray:
        return self._theta.detach().cpu().numpy().copy()

    def snapshot(self) -> Any:
        belief = self.belief
        if isinstance(belief, FactorBelief):
            belief = belief.mean.clone(), belief.factor.clone()
        tensors = [self._theta, self._points, *self.weights]
        return [t.detach().clone() for t in tensors], belief

    def restore(self, snapshot: Any) -> None:
        tensors, belief = snapshot
        with torch.no_grad():
            for tensor, kept in zip(
                [self._theta, self._points, *self.weights], tensors, strict=True
            ):
                tensor.copy_(kept)
        if isinstance(self.belief, FactorBelief):
            self.belief.mean.copy_(belief[0])
            self.belief.factor.copy_(belief[1])
        else:
            self.belief = belief
