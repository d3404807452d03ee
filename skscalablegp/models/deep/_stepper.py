"""Training a deep feature map by random batches, with exact passes in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
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
    row_scale,
    weight_space_likelihood,
)

# Number of rows that an exact pass evaluates at a time. Their features take some dozen megabytes.
_PASS_ROWS = 4096
# Smallest factor of the weights' steps. It falls with the learning rate, so that noise averages
# out, but not to 0.
_SLOWEST_WEIGHTS = 0.1
# Largest norm of the gradient of the mean objective per row. Rare batches have far larger ones.
_LONGEST = 100.0
# Number of steps between two changes of the learning rate.
_SCHEDULE_STEPS = 10
# Number of rows of a search for the noise in addition to known noise, and the range of later
# searches, in logarithms.
_SEARCH_ROWS = 8192
_SEARCH_WIDTH = 2.0


def cosine(total: int, spent: Callable[[], float] | None = None) -> Callable[[int], float]:
    """A factor of the learning rate that falls from 1 to 0 in `total` steps.

    If a time budget ends sooner, the factor falls with the `spent` share of the budget.
    """

    def factor(t: int) -> float:
        share = max(t / max(total, 1), 0.0 if spent is None else spent())
        return 0.5 * (1 + math.cos(math.pi * min(share, 1)))

    return factor


def neighbour_batches(source: RowSource, size: int, generator: Generator) -> Iterator[Tensor]:
    """Endless batches of a random row and its nearest neighbours (sgGP, Chen et al. 2020).

    O(n log n) once and O(n d) memory for the tree, O(size log n) a batch.
    """
    rows = torch.cat([X for X, _ in source.blocks()]).cpu().double().numpy()
    tree, k = cKDTree(rows), min(size, len(rows))
    while True:
        chosen = int(torch.randint(len(rows), (), generator=generator))
        yield torch.from_numpy(np.atleast_1d(tree.query(rows[chosen], k)[1]))


@dataclass(frozen=True, eq=False)
class Settled:
    """The result of an exact pass: the best scales and weights for given features.

    Attributes
    ----------
    tensors : list of Tensor
        The features' parameters.
    noise : float
        s2.
    moments : FeatureMoments
        Moments of these features.
    evaluation : WeightSpaceEvaluation
        Evaluation at this noise variance.
    """

    tensors: list[Tensor]
    noise: float
    moments: FeatureMoments
    evaluation: WeightSpaceEvaluation


class WeightSpaceStepper(Stepper):
    """Steps of (w, alpha, s2) in f(x) = phi_alpha(x)'w + noise, one random batch each.

    A score is an exact pass over the rows. It also moves the weights, the noise and the amplitude
    to their optimum for the current features, and gives the gradient rule the exact moments.

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
        With None nothing is trained, and a score changes only the weights.
    learning_rate : float
    batches : callable
        Makes an iterator over row numbers. It is called twice if the rule needs independent
        batches.
    batch_size : int
    schedule : callable, optional
        The learning rate's factor at a step.
    scored_rows : RowSource, optional
        Rows of the exact passes; `source` by default.
    n : int, optional
        Number of rows of the whole table, of which `scored_rows` may be a random part. The default
        is that of `source`.
    held_out : RowSource, optional
        Rows whose mean negative log density is the score. Without them the score is the negative
        log marginal likelihood per row and target.
    settles : bool, default=True
        Whether a score also moves the weights, the noise, the amplitude and the rule's state.
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
        settles: bool = True,
    ):
        self.settles = settles
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
        # Log marginal likelihoods of the training rows at each exact pass, per row and target.
        self.likelihoods: list[float] = []
        # Relative error of the trace of the approximate F^-1, before the last exact pass.
        self.slope_bias: float | None = None

    # ------------------------------------------------------------------ steps

    @property
    def noise(self) -> float:
        return float(self.log_noise.detach().exp())

    def step(self) -> None:
        if self._failed:
            return
        chosen, other, gained = next(self._batches), None, 0.0
        X, Y = self.source.rows(chosen)
        if self.rule.needs_independent_batch:
            with torch.no_grad():
                others = next(self._others)
                other = self.features(self.tensors, self.source.rows(others)[0])
        phi = self.features(self.tensors, X)
        if self.source.noise is not None:
            s2 = torch.exp(self.log_noise)
            scale = row_scale(s2, self.source.known(chosen))
            phi, Y = phi * scale[:, None], Y * scale[:, None]
            gained = 2 * Y.shape[1] * scale.log().mean()
            if other is not None:
                other = other * row_scale(s2.detach(), self.source.known(others))[:, None]
        batch = FeatureBatch(phi, Y, self.weights, self.log_noise, self.n, other)
        before, factor = self._state, 1.0 if self._schedule is None else self._schedule(self._t)
        try:
            loss, self._state = self.rule.estimate(batch, before)
            loss = loss - gained
        except torch.linalg.LinAlgError:
            # Features overflow or cancel. The next score is infinite.
            self._failed = True
            return
        self._optimizer.zero_grad()
        loss.backward()
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

    def _project(self) -> None:
        """Move the noise and the kernel's hyperparameters back into their bounds."""
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
            rows, dtype = self.scored_rows, self.source.dtype
            moments = self._moments(self.tensors, rows, self.n, dtype, self.noise)
            if not bool(moments.gram.isfinite().all()):
                return math.inf
            if self._state is not None:
                bias = self.rule.bias(self._state, moments, self.noise)
                self.slope_bias = self.slope_bias if bias is None else bias
            settled = self._settle(self.tensors, moments, rows, self.n, dtype)
            own = self.snapshot()
            self._adopt(settled.tensors, settled.noise, settled.evaluation)
            moments, density = settled.moments, None
            if self.held_out is not None:
                noise, density, moments = self._unseen(moments)
                self._adopt(self.tensors, noise, weight_space_likelihood(moments, noise))
            if self.settles or self._state is None:
                start = self.rule.start(moments, self.noise, self.batch_size, dtype)
                self._state = start
            else:
                self.restore(own)
        except torch.linalg.LinAlgError:
            return math.inf
        rows = moments.n * moments.cross.shape[1]
        self.likelihoods.append(settled.evaluation.value / rows)
        return -settled.evaluation.value / rows if density is None else density

    def _finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in [*self._trained, self.weights])

    def _moments(
        self, tensors: list[Tensor], rows: RowSource, n: int, dtype: torch.dtype, noise: float
    ) -> FeatureMoments:
        """The exact moments of the rows at a noise variance, scaled to n rows, in float64."""
        blocks = rows.blocks(_PASS_ROWS)
        if rows.noise is not None:
            scales = row_scale(noise, rows.known(slice(None)).double()).split(_PASS_ROWS)
            blocks = ((*block, scale) for block, scale in zip(blocks, scales, strict=True))
        moments = feature_moments(blocks, lambda X: self.features(tensors, X.to(dtype)))
        return moments if moments.n == n else moments.extended(n)

    def _settle(
        self,
        tensors: list[Tensor],
        moments: FeatureMoments,
        rows: RowSource,
        n: int,
        dtype: torch.dtype,
    ) -> Settled:
        """The best noise, amplitude and weights for these features and their moments."""
        noise, amplitude, bounds = self.noise, 1.0, self.noise_bounds
        if not self._frozen:
            if rows.noise is not None:
                # If rows are held out, they choose the noise later.
                if self.held_out is None:
                    noise = self._searched(
                        rows, lambda s, few: -self._value(tensors, few, dtype, s)
                    )
                    moments = self._moments(tensors, rows, n, dtype, noise)
                bounds = (noise, noise)
            noise, amplitude = best_scales(moments, noise, bounds, self._amplitude_bounds())
        moments = moments.scaled(amplitude)
        k, at = self.features.theta_at, self.features.amplitude_at
        tensors = list(tensors)
        if at is not None:
            tensors[k] = tensors[k].detach().clone()
            tensors[k][at] += math.log(amplitude)
        return Settled(tensors, noise, moments, weight_space_likelihood(moments, noise))

    def _value(
        self, tensors: list[Tensor], rows: RowSource, dtype: torch.dtype, noise: float
    ) -> float:
        """The rows' log marginal likelihood at a noise variance and the best amplitude for it."""
        moments = self._moments(tensors, rows, self.n, dtype, noise)
        _, amplitude = best_scales(moments, noise, (noise, noise), self._amplitude_bounds())
        return weight_space_likelihood(moments.scaled(amplitude), noise).value

    def _searched(self, rows: RowSource, loss: Callable[[float, RowSource], float]) -> float:
        """The noise variance, in addition to the known one, with the smallest loss on some rows.

        Every evaluation is a pass over at most `_SEARCH_ROWS` rows, because moments do not simply
        scale with the noise if the known noise differs between rows.
        """
        if len(rows) > _SEARCH_ROWS:
            rows = rows.subset(np.linspace(0, len(rows) - 1, _SEARCH_ROWS).astype(int))
        low, high = (math.log(bound) for bound in self.noise_bounds)
        later = bool(self.likelihoods)
        if later:
            # After the first score, searches start at the current noise of the steps.
            now = math.log(self.noise)
            low, high = max(low, now - _SEARCH_WIDTH), min(high, now + _SEARCH_WIDTH)
        found = minimize_scalar(
            lambda g: loss(math.exp(g), rows),
            bounds=(low, high),
            method="bounded",
            options={"xatol": 0.02, "maxiter": 12 if later else 25},
        )
        return math.exp(found.x)

    def _amplitude_bounds(self) -> tuple[float, float]:
        """The smallest and the largest factor that the kernel's own constant may still take."""
        at = self.features.amplitude_at
        if at is None:
            return 1.0, 1.0
        now = float(self.tensors[self.features.theta_at].detach()[at])
        low, high = self.features.bounds[at]
        # A change by several orders of magnitude would only undo the balance found by training, but
        # a constant outside its bounds must reach them at any distance.
        nearest = min(max(0.0, low - now), high - now)
        return math.exp(max(low - now, nearest - 5.0)), math.exp(min(high - now, nearest + 5.0))

    def _unseen(self, moments: FeatureMoments | None) -> tuple[float, float, FeatureMoments]:
        """The noise that maximises the likelihood of held-out rows, and their mean NLPD.

        Also returns the moments of the training rows at this noise. `moments` are those at the
        noise of the steps; with known noise they are needed only if the noise is not trained.
        """
        with torch.no_grad():
            blocks = [
                (self.features(self.tensors, X).double(), Y.double())
                for X, Y in self.held_out.blocks(_PASS_ROWS)
            ]
        Z, Y = (torch.cat(part) for part in zip(*blocks, strict=True))
        bounds = (self.noise, self.noise) if self._frozen else self.noise_bounds
        if self.held_out.noise is None:
            noise, density = held_out_noise(moments, Z, Y, bounds)
        else:
            known, noise = self.held_out.known(slice(None)).double(), self.noise

            def there(s2: float, rows: RowSource) -> FeatureMoments:
                return self._moments(self.tensors, rows, self.n, self.source.dtype, s2)

            if not self._frozen:
                noise = self._searched(
                    self.scored_rows,
                    lambda s2, few: held_out_noise(there(s2, few), Z, Y, (s2, s2), known)[1],
                )
                moments = there(noise, self.scored_rows)
            density = held_out_noise(moments, Z, Y, (noise, noise), known)[1]
        return noise, density, moments

    def unexplained(self) -> float:
        """Share of the held-out targets' variance that the current weights do not explain."""
        errors, targets = [], []
        with torch.no_grad():
            for X, Y in self.held_out.blocks(_PASS_ROWS):
                errors.append(Y - self.features(self.tensors, X) @ self.weights)
                targets.append(Y)
        variance = torch.cat(targets).var(0, correction=0).mean()
        return float(torch.cat(errors).square().mean() / variance)

    def _adopt(
        self, tensors: list[Tensor], noise: float, evaluation: WeightSpaceEvaluation
    ) -> None:
        """Take over the kernel's hyperparameters, the noise and the weights' posterior mean."""
        k = self.features.theta_at
        with torch.no_grad():
            self.tensors[k].copy_(tensors[k])
            self.log_noise.fill_(math.log(noise))
            self.weights.copy_(evaluation.weights)

    def finish(self, rows: RowSource, n: int) -> Settled:
        """An exact pass over other rows, all in float64; it does not change the training.

        The noise is the one that maximises the likelihood of held-out rows, if there are any.
        """
        tensors = [
            t.detach().double() if t.is_floating_point() else t.clone() for t in self.tensors
        ]
        noise, dtype = self.noise, self.source.dtype
        if self.held_out is None:
            moments = self._moments(tensors, rows, n, torch.float64, noise)
            return self._settle(tensors, moments, rows, n, torch.float64)
        if not (self.settles or self._frozen):
            seen = None
            if self.held_out.noise is None:
                seen = self._moments(self.tensors, self.scored_rows, self.n, dtype, noise)
            noise = self._unseen(seen)[0]
        moments = self._moments(tensors, rows, n, torch.float64, noise)
        return Settled(tensors, noise, moments, weight_space_likelihood(moments, noise))

    # ------------------------------------------------------------------ called by the driver

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
