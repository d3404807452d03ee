"""Training a deep feature map by random batches, with exact passes in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Generator, Tensor

from ...core.data import RowSource
from ...core.training import AdamOfGroups, Stepper
from ...workers import Workers
from ._batch import BatchGradient, FeatureBatch, automatic_rate
from ._exact_pass import ExactPass, NoiseSearch, Settled
from ._features import DeepFeatures
from ._objective import row_scale
from ._plan import DeepPlan
from ._rows import DeepRows, drawn_rows

# Smallest factor of the weights' steps. It falls with the learning rate, so that noise averages
# out, but not to 0.
_SLOWEST_WEIGHTS = 0.1
# Largest norm of the gradient of the mean objective per row. Rare batches have far larger ones.
_LONGEST = 100.0
# Number of steps between two changes of the learning rate.
_SCHEDULE_STEPS = 10


def cosine(total: int, spent: Callable[[], float] | None = None) -> Callable[[int], float]:
    """A factor of the learning rate that falls from 1 to 0 in `total` steps.

    If a time budget ends sooner, the factor falls with the `spent` share of the budget.
    """

    def factor(t: int) -> float:
        share = max(t / max(total, 1), 0.0 if spent is None else spent())
        return 0.5 * (1 + math.cos(math.pi * min(share, 1)))

    return factor


class NeighbourBatches(Iterator[tuple[Tensor, Tensor]]):
    """Endless batches of a random row and its nearest neighbours (sgGP, Chen et al. 2020).

    O(n log n) once and O(n d) memory for the tree, O(size log n) a batch.
    """

    moving = ("_generator",)

    def __init__(self, source: RowSource, size: int, generator: Generator):
        self._rows = torch.cat([rows.X for rows in source.blocks()]).cpu().double().numpy()
        self._tree, self._k = cKDTree(self._rows), min(size, len(self._rows))
        self._generator, self._counts = generator, torch.as_tensor(source.weight)

    def __next__(self) -> tuple[Tensor, Tensor]:
        chosen = int(torch.randint(len(self._rows), (), generator=self._generator))
        near = self._tree.query(self._rows[chosen], self._k)[1]
        index = torch.from_numpy(np.atleast_1d(near))
        return index, self._counts[index] * (len(self._rows) / len(index))


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows of one training.

    Attributes
    ----------
    source : RowSource
        Rows that batches are drawn from.
    scored : RowSource
        Rows of the exact passes.
    n : int or float
        Number of rows of the whole table, of which `scored` may be a random part.
    held_out : RowSource or None
        Rows whose mean negative log density is the score. Without them the score is the negative
        log marginal likelihood per row and target.
    """

    source: RowSource
    scored: RowSource
    n: int | float
    held_out: RowSource | None = None


class WeightSpaceStepper(Stepper):
    """Steps of (w, alpha, s2) in f(x) = phi_alpha(x)'w + noise, one random batch each.

    A score is an exact pass over the rows. It also moves the weights, the noise and the amplitude
    to their optimum for the current features, and gives the gradient rule the exact moments.

    Parameters
    ----------
    features : DeepFeatures
    tensors : list of Tensor
        Its parameters; copied. The noise at the start is that of the kernel's hyperparameters.
    rows : TrainingRows
    plan : DeepPlan
    rule : BatchGradient
    batches : callable
        Makes an iterator over row numbers. It is called twice if the rule needs independent
        batches.
    schedule : callable, optional
        The learning rate's factor at a step.
    """

    moving = ("tensors", "weights", "log_noise", "_optimizer", "_t", "_batches", "_others")
    moving += ("_state", "_failed", "_noise_bounds", "likelihoods", "slope_bias")

    def __init__(
        self,
        features: DeepFeatures,
        tensors: list[Tensor],
        rows: TrainingRows,
        plan: DeepPlan,
        rule: BatchGradient,
        batches: Callable[[], Iterator[Tensor]],
        schedule: Callable[[int], float] | None = None,
    ):
        self.features, self.rule, self.rows, self.plan = features, rule, rows, plan
        source, k = rows.source, features.theta_at
        self.passes = ExactPass(features, rows.scored, rows.n, source.dtype)
        self.tensors = [t.to(source.device).clone() for t in tensors]
        m, t = features.n_features, source.Y.shape[1]
        self.weights = torch.zeros(m, t, dtype=source.dtype, device=source.device)
        self.log_noise = features.white.log(tensors[k]).to(source.device, source.dtype)
        self._bounds = features.kernel.bounds.to(source.device)
        self._noise_bounds = features.white.bounds(tensors[k])
        self._trained = self._require_gradients()
        self._frozen = plan.new_optimizer is None
        new_optimizer = AdamOfGroups if plan.new_optimizer is None else plan.new_optimizer
        self._optimizer = new_optimizer([{"params": self._trained, "lr": plan.learning_rate.value}])
        self._weight_rate = automatic_rate(plan.batch_size.value, m)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._schedule, self._t = schedule, 0
        self._batches, self._others = batches(), batches()
        self._state: Any = None
        self._failed = False
        self.objective_name = (
            "log marginal likelihood per row"
            if rows.held_out is None
            else "held-out log density per row"
        )
        # Log marginal likelihoods of the training rows at each exact pass, per row and target.
        self.likelihoods: list[float] = []
        # Relative error of the trace of the approximate F^-1, before the last exact pass.
        self.slope_bias: float | None = None

    def _require_gradients(self) -> list[Tensor]:
        """The tensors that the optimiser moves."""
        white, k = self.features.white, self.features.theta_at
        trained = [*self.tensors[:k], *([] if white.free.all() else [self.tensors[k]])]
        trained = [t for t in [*trained, *([] if white.tied else [self.log_noise])] if t.numel()]
        for tensor in trained:
            tensor.requires_grad_(True)
        return trained

    # ------------------------------------------------------------------ steps

    @property
    def noise(self) -> float:
        return float(self.log_noise.detach().exp())

    def step(self) -> None:
        if self._failed:
            return
        before, factor = self._state, 1.0 if self._schedule is None else self._schedule(self._t)
        batch, log_scales = self._next_batch()
        try:
            loss, self._state = self.rule.estimate(batch, before)
        except torch.linalg.LinAlgError:
            # Features overflow or cancel. The next score is infinite.
            self._failed = True
            return
        self._optimizer.zero_grad()
        (loss - log_scales).backward()
        # This changes the weights that the backward pass reads, and must therefore follow it.
        self.rule.descend_weights(batch, before, self._weight_rate * max(factor, _SLOWEST_WEIGHTS))
        if isinstance(self._optimizer, torch.optim.SGD):
            # Steps of the other optimisers do not depend on the norm of the gradient.
            torch.nn.utils.clip_grad_norm_(self._trained, _LONGEST)
        self._optimizer.step()
        self._project()
        self._t += 1
        if self._schedule is not None and self._t % _SCHEDULE_STEPS == 0:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = factor * rate

    def _next_batch(self) -> tuple[FeatureBatch, Tensor | float]:
        """A batch, and what the factors of rows with known noise add to its log likelihood.

        Rows are multiplied by square roots of weights relative to their mean, so that sums over a
        batch stand for the same multiple of the table as without counts.
        """
        drawn, source = [next(self._batches)], self.rows.source
        if self.rule.needs_independent_batch:
            drawn.append(next(self._others))
        log_noise, log_scales, scaled = self.log_noise, 0.0, []
        found = drawn_rows(self._work, self.tensors, *(index for index, _ in drawn))
        if self.features.white.tied:
            theta = self.tensors[self.features.theta_at]
            log_noise = self.features.white.log(theta).to(found[0].X)
        for rows, (index, weights) in reversed([*zip(found, drawn, strict=True)]):
            mean = source.n_rows / len(index)
            root = (weights / mean).to(source.device, source.dtype).sqrt()
            phi, Y = rows.X, rows.Y
            if source.noisy:
                scale = row_scale(torch.exp(log_noise), rows.noise)
                phi, Y = phi * scale[:, None], Y * scale[:, None]
                log_scales = 2 * Y.shape[1] * (root.square() * scale.log()).mean()
            scaled.append((phi * root[:, None], Y * root[:, None]))
        *others, (phi, Y) = scaled
        other = others[0][0].detach() if others else None
        return FeatureBatch(phi, Y, self.weights, log_noise, self.rows.n, other), log_scales

    @cached_property
    def _work(self) -> Workers:
        return self.rows.source.work.put(DeepRows, self.features)

    def _project(self) -> None:
        """Move the noise and the kernel's hyperparameters back into their bounds."""
        theta = self.tensors[self.features.theta_at]
        with torch.no_grad():
            theta.copy_(torch.minimum(torch.maximum(theta, self._bounds[:, 0]), self._bounds[:, 1]))
            if self.features.white.tied:
                self.log_noise.copy_(self.features.white.log(theta))
            else:
                self.log_noise.clamp_(*map(math.log, self._noise_bounds))

    # ------------------------------------------------------------------ exact passes

    def _search(self) -> NoiseSearch:
        noise = self.noise
        bounds = (noise, noise) if self._frozen else self._noise_bounds
        # After the first score, searches start at the current noise of the steps.
        return NoiseSearch(noise, bounds, near=bool(self.likelihoods))

    def score(self) -> float:
        if self._failed or not self._finite():
            return math.inf
        try:
            return self._exact_pass()
        except torch.linalg.LinAlgError:
            return math.inf

    def _exact_pass(self) -> float:
        """Settle the parameters, start the rule anew and return the score."""
        moments = self.passes.moments(self.tensors, self.noise)
        if not bool(moments.gram.isfinite().all()):
            return math.inf
        if self._state is not None:
            bias = self.rule.bias(self._state, moments, self.noise)
            self.slope_bias = self.slope_bias if bias is None else bias
        settled, before = self._settled(self.passes, self.tensors, moments), self.snapshot()
        self._adopt(settled)
        moments, density = settled.moments, None
        if self.rows.held_out is not None:
            noise, density, moments = self.passes.held_out_noise(
                self.tensors, moments, self._search(), self.rows.held_out
            )
            self._adopt(Settled.at(self.tensors, noise, moments))
        if self.plan.settles or self._state is None:
            dtype, size = self.rows.source.dtype, self.plan.batch_size.value
            self._state = self.rule.start(moments, self.noise, size, dtype)
        else:
            self.restore(before)
        n = moments.n * moments.cross.shape[1]
        self.likelihoods.append(settled.evaluation.value / n)
        return -settled.evaluation.value / n if density is None else density

    def _finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in [*self._trained, self.weights])

    def _settled(self, passes: ExactPass, tensors: list[Tensor], moments: Any) -> Settled:
        if self._frozen:
            return Settled.at(tensors, self.noise, moments)
        return passes.settle(tensors, moments, self._search(), self.rows.held_out is not None)

    def _adopt(self, settled: Settled) -> None:
        """Take over the kernel's hyperparameters, the noise and the weights' posterior mean."""
        k = self.features.theta_at
        with torch.no_grad():
            self.tensors[k].copy_(settled.tensors[k])
            self.log_noise.fill_(math.log(settled.noise))
            self.weights.copy_(settled.evaluation.weights)
        self._noise_bounds = self.features.white.bounds(self.tensors[k])

    def unexplained(self) -> float:
        """Share of the held-out targets' variance that the current weights do not explain."""
        work = self.rows.held_out.work.put(DeepRows, self.features)
        sent = [tensor.detach() for tensor in (self.weights, *self.tensors)]
        numbers, of_Y, of_squares = work.sum(_unexplained, *sent)
        error, n = numbers.tolist()
        variance = (of_squares / n - (of_Y / n).square()).mean()
        return error / (n * len(of_Y)) / float(variance)

    def finish(self, rows: RowSource, n: int | float) -> Settled:
        """An exact pass over other rows, all in float64; it does not change the training.

        The noise is the one that maximises the likelihood of held-out rows, if there are any.
        """
        tensors = [
            t.detach().double() if t.is_floating_point() else t.clone() for t in self.tensors
        ]
        noise, last = self.noise, ExactPass(self.features, rows, n, torch.float64)
        if self.rows.held_out is None:
            return self._settled(last, tensors, last.moments(tensors, noise))
        if not (self.plan.settles or self._frozen):
            moments = None
            if not self.rows.held_out.noisy:
                moments = self.passes.moments(self.tensors, noise)
            noise = self.passes.held_out_noise(
                self.tensors, moments, self._search(), self.rows.held_out
            )[0]
        k = self.features.theta_at
        tensors[k] = self.features.white.moved(tensors[k], noise)
        return Settled.at(tensors, noise, last.moments(tensors, noise))

    # ------------------------------------------------------------------ called by the driver

    def resumed(self) -> None:
        if self._state is not None:
            self._state = self.rule.restored(self._state, self.weights.device)

    def theta(self) -> np.ndarray:
        """The log hyperparameters of the kernel with its white noise."""
        theta = self.tensors[self.features.theta_at]
        return self.features.white.moved(theta, self.noise).cpu().numpy()

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.tensors, self.weights, self.log_noise]

    def restore(self, snapshot: list[Tensor]) -> None:
        super().restore(snapshot)
        self._failed = False


@torch.no_grad()
def _unexplained(rows: DeepRows, weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The sum of squared errors and the number of rows, and sums of the targets and squares."""
    zeros = torch.zeros(weights.shape[1], dtype=torch.float64, device=weights.device)
    numbers, of_Y, of_squares = zeros.new_zeros(2), zeros, zeros
    for some in rows.source.blocks():
        Y = some.Y
        error = (Y - rows.features(tensors, some.X) @ weights).double().square().sum()
        numbers = numbers + torch.stack([error, error.new_tensor(len(Y))])
        of_Y, of_squares = of_Y + Y.double().sum(0), of_squares + Y.double().square().sum(0)
    return numbers, of_Y, of_squares
