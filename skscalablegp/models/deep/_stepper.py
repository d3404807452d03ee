"""Training a deep feature map by random batches, with exact passes in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Generator, Tensor

from ...core.data import RowSource
from ...core.training import Stepper
from ._batch import BatchGradient, FeatureBatch, automatic_rate
from ._features import DeepFeatures
from ._objective import (
    FeatureMoments,
    WeightSpaceEvaluation,
    best_scales,
    feature_moments,
    held_out_noise,
    weight_space_likelihood,
)

# Rows of a pass at a time: their features take a few dozen megabytes.
_PASS_ROWS = 4096
# The weights' steps shrink with the learning rate, so that their noise averages out, but not to 0.
_SLOWEST_WEIGHTS = 0.1
# Longest gradient of the mean objective per row, against rare batches that throw everything out.
_LONGEST = 100.0
# Steps from one change of the learning rate to the next.
_SCHEDULE_STEPS = 10


def cosine(total: int, spent: Callable[[], float] | None = None) -> Callable[[int], float]:
    """A learning rate's factor that falls from 1 to 0 in `total` steps.

    Where a time budget ends sooner, it falls with the share of the budget that is `spent`.
    """

    def factor(t: int) -> float:
        share = max(t / max(total, 1), 0.0 if spent is None else spent())
        return 0.5 * (1 + math.cos(math.pi * min(share, 1)))

    return factor


def neighbour_batches(source: RowSource, size: int, generator: Generator) -> Iterator[Tensor]:
    """A random row and its nearest neighbours, without end (sgGP, Chen et al. 2020).

    O(n log n) once and O(n d) memory for the tree, O(size log n) a batch.
    """
    rows = torch.cat([X for X, _ in source.blocks()]).cpu().double().numpy()
    tree, k = cKDTree(rows), min(size, len(rows))
    while True:
        chosen = int(torch.randint(len(rows), (), generator=generator))
        yield torch.from_numpy(np.atleast_1d(tree.query(rows[chosen], k)[1]))


@dataclass(frozen=True, eq=False)
class Settled:
    """An exact pass: scales and weights at their optimum for some features.

    Attributes
    ----------
    tensors : list of Tensor
        The features' parameters.
    noise : float
        s2.
    moments : FeatureMoments
        Of these features.
    evaluation : WeightSpaceEvaluation
        At this noise.
    """

    tensors: list[Tensor]
    noise: float
    moments: FeatureMoments
    evaluation: WeightSpaceEvaluation


class WeightSpaceStepper(Stepper):
    """(w, alpha, s2) of f(x) = phi_alpha(x)'w + noise, changed a random batch at a time.

    A score is an exact pass over the rows: it also puts the weights, the noise and the amplitude on
    their optimum for the current features and tells the gradient rule the exact moments.

    Parameters
    ----------
    features : DeepFeatures
    tensors : list of Tensor
        Its parameters; copied.
    noise : float
        s2 at the start.
    noise_bounds : tuple of float
    source : RowSource
        Rows that batches are drawn from.
    rule : BatchGradient
    optimizer : callable or None
        ``optimizer(groups)`` returns a torch optimiser for groups of parameters with their "lr".
        None trains nothing: a score then puts the weights alone on their optimum.
    learning_rate : float
    batches : callable
        Makes an iterator over row numbers; called twice where the rule wants independent batches.
    batch_size : int
    schedule : callable, optional
        The learning rate's factor at a step.
    scored_rows : RowSource, optional
        Rows of the exact passes; `source` by default.
    n : int, optional
        Rows of the whole table, of which `scored_rows` may be a random part; `source`'s by default.
    held_out : RowSource, optional
        Rows whose mean negative log density is the score; without them it is the negative log
        marginal likelihood per row and target.
    """

    def __init__(
        self,
        features: DeepFeatures,
        tensors: list[Tensor],
        noise: float,
        noise_bounds: tuple[float, float],
        source: RowSource,
        rule: BatchGradient,
        optimizer: Callable[[list[dict]], torch.optim.Optimizer] | None,
        learning_rate: float,
        batches: Callable[[], Iterator[Tensor]],
        batch_size: int,
        schedule: Callable[[int], float] | None = None,
        scored_rows: RowSource | None = None,
        n: int | None = None,
        held_out: RowSource | None = None,
    ):
        self.features, self.rule, self.source = features, rule, source
        self.scored_rows = source if scored_rows is None else scored_rows
        self.n = len(source) if n is None else n
        self.held_out, self.noise_bounds, self.batch_size = held_out, noise_bounds, batch_size
        device, k = source.device, features.n_trainable
        self.tensors = [t.to(device).clone() for t in tensors]
        t = source.Y.shape[1]
        self.weights = torch.zeros(features.n_features, t, dtype=source.dtype, device=device)
        self.log_noise = torch.tensor(math.log(noise), dtype=source.dtype, device=device)
        self._bounds = torch.tensor(features.bounds, dtype=torch.float64).reshape(-1, 2).to(device)
        trained = [t for t in [*self.tensors[:k], self.log_noise] if t.numel()]
        for tensor in trained:
            tensor.requires_grad_(True)
        self._trained = trained
        self._frozen = optimizer is None
        made = torch.optim.SGD if optimizer is None else optimizer
        self._optimizer = made([{"params": trained, "lr": learning_rate}])
        self._weight_rate = automatic_rate(batch_size, features.n_features)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._schedule, self._t = schedule, 0
        self._batches, self._others = batches(), batches()
        self._state: Any = None
        self._failed = False
        self.objective_name = (
            "log marginal likelihood a row" if held_out is None else "held-out log density a row"
        )
        # Of the training rows at each exact pass, a row and target.
        self.likelihoods: list[float] = []

    # ------------------------------------------------------------------ steps

    @property
    def noise(self) -> float:
        return float(self.log_noise.detach().exp())

    def step(self) -> None:
        if self._failed:
            return
        X, Y = self.source.rows(next(self._batches))
        other = None
        if self.rule.needs_independent_batch:
            with torch.no_grad():
                other = self.features(self.tensors, self.source.rows(next(self._others))[0])
        phi = self.features(self.tensors, X)
        batch = FeatureBatch(phi, Y, self.weights, self.log_noise, self.n, other)
        before, factor = self._state, 1.0 if self._schedule is None else self._schedule(self._t)
        try:
            loss, self._state = self.rule.estimate(batch, before)
        except torch.linalg.LinAlgError:
            # Features that overflow or cancel: the next score says so.
            self._failed = True
            return
        self._optimizer.zero_grad()
        loss.backward()
        # After the backward pass, which reads the weights.
        self.rule.descend_weights(batch, before, self._weight_rate * max(factor, _SLOWEST_WEIGHTS))
        if isinstance(self._optimizer, torch.optim.SGD):
            # The others take steps of a length that does not depend on the gradient's.
            torch.nn.utils.clip_grad_norm_(self._trained, _LONGEST)
        self._optimizer.step()
        self._project()
        self._t += 1
        if self._schedule is not None and self._t % _SCHEDULE_STEPS == 0:
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = factor * rate

    def _project(self) -> None:
        """Noise and kernel hyperparameters go back into their bounds."""
        low, high = self.noise_bounds
        with torch.no_grad():
            self.log_noise.clamp_(math.log(low), math.log(high))
            theta = self.tensors[self.features.theta_at]
            if theta.numel():
                theta.copy_(torch.minimum(torch.maximum(theta, self._bounds[:, 0]),
                                          self._bounds[:, 1]))  # fmt: skip

    # ------------------------------------------------------------------ exact passes

    def score(self) -> float:
        if self._failed or not self._finite():
            return math.inf
        try:
            moments = self._moments(self.tensors, self.scored_rows, self.n, self.source.dtype)
            if not bool(moments.gram.isfinite().all()):
                return math.inf
            settled = self._settle(self.tensors, moments)
            self._adopt(settled.tensors, settled.noise, settled.evaluation)
            density = None if self.held_out is None else self._unseen(settled.moments)
            self._state = self.rule.start(
                settled.moments, self.noise, self.batch_size, self.source.dtype
            )
        except torch.linalg.LinAlgError:
            return math.inf
        rows = moments.n * moments.cross.shape[1]
        self.likelihoods.append(settled.evaluation.value / rows)
        return -settled.evaluation.value / rows if density is None else density

    def _finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in [*self._trained, self.weights])

    def _moments(
        self, tensors: list[Tensor], rows: RowSource, n: int, dtype: torch.dtype
    ) -> FeatureMoments:
        """The exact moments of the rows, as of n; products in float64."""
        moments = feature_moments(
            rows.blocks(_PASS_ROWS), lambda X: self.features(tensors, X.to(dtype))
        )
        return moments if moments.n == n else moments.extended(n)

    def _settle(self, tensors: list[Tensor], moments: FeatureMoments) -> Settled:
        """Noise, amplitude and weights at their optimum for these features."""
        noise, amplitude = self.noise, 1.0
        if not self._frozen:
            noise, amplitude = best_scales(
                moments, noise, self.noise_bounds, self._amplitude_bounds()
            )
        moments = moments.scaled(amplitude)
        k, at = self.features.theta_at, self.features.amplitude_at
        tensors = list(tensors)
        if at is not None:
            tensors[k] = tensors[k].detach().clone()
            tensors[k][at] += math.log(amplitude)
        return Settled(tensors, noise, moments, weight_space_likelihood(moments, noise))

    def _amplitude_bounds(self) -> tuple[float, float]:
        """How far the kernel's own constant may still go."""
        at = self.features.amplitude_at
        if at is None:
            return 1.0, 1.0
        now = float(self.tensors[self.features.theta_at].detach()[at])
        low, high = self.features.bounds[at]
        # A single step of several orders of magnitude would only undo what training balanced; a
        # constant outside its bounds has to get there, however far it is.
        nearest = min(max(0.0, low - now), high - now)
        return math.exp(max(low - now, nearest - 5.0)), math.exp(min(high - now, nearest + 5.0))

    def _unseen(self, moments: FeatureMoments) -> float:
        """The held-out rows' mean negative log density, at the noise that they ask for."""
        with torch.no_grad():
            blocks = [
                (self.features(self.tensors, X).double(), Y.double())
                for X, Y in self.held_out.blocks(_PASS_ROWS)
            ]
        Z, Y = (torch.cat(part) for part in zip(*blocks, strict=True))
        bounds = (self.noise, self.noise) if self._frozen else self.noise_bounds
        noise, density = held_out_noise(moments, Z, Y, bounds)
        self._adopt(self.tensors, noise, weight_space_likelihood(moments, noise))
        return density

    def _adopt(
        self, tensors: list[Tensor], noise: float, evaluation: WeightSpaceEvaluation
    ) -> None:
        """Put the kernel's hyperparameters, the noise and the weights' posterior mean in place."""
        k = self.features.theta_at
        with torch.no_grad():
            self.tensors[k].copy_(tensors[k])
            self.log_noise.fill_(math.log(noise))
            self.weights.copy_(evaluation.weights)

    def finish(self, rows: RowSource, n: int) -> Settled:
        """An exact pass over other rows, features too in float64; leaves the training as it is.

        The noise is the one that held-out rows asked for, where there are any.
        """
        tensors = [
            t.detach().double() if t.is_floating_point() else t.clone() for t in self.tensors
        ]
        moments = self._moments(tensors, rows, n, torch.float64)
        if self.held_out is None:
            return self._settle(tensors, moments)
        return Settled(tensors, self.noise, moments, weight_space_likelihood(moments, self.noise))

    # ------------------------------------------------------------------ for the driver

    def theta(self) -> np.ndarray:
        """The kernel's log hyperparameters and log s2."""
        theta = self.tensors[self.features.theta_at].detach().cpu().numpy()
        return np.append(theta, float(self.log_noise.detach()))

    def snapshot(self) -> list[Tensor]:
        return [t.detach().clone() for t in [*self.tensors, self.weights, self.log_noise]]

    def restore(self, snapshot: list[Tensor]) -> None:
        with torch.no_grad():
            for tensor, kept in zip(
                [*self.tensors, self.weights, self.log_noise], snapshot, strict=True
            ):
                tensor.copy_(kept)
        self._failed = False
