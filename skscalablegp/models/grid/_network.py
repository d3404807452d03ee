"""Deep kernels on a grid: a small network between the rows and the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._end import End
from ...core import FitRun, data_scaled_kernel, first_layer_factors, first_layer_rows
from ...core.data import Table, standardised_limits
from ...core.posteriors import Affine
from ...core.training import Stepper, StopTraining, train_steps
from ...features import (
    LimitedNetwork,
    Network,
    check_features,
    has_first_layer,
    make_network,
    network_from_numpy,
    network_to_numpy,
    weigh_inputs,
)
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem, Rows

# Steps of Adam on squared errors, then on the marginal likelihood of batches.
_STEPS = (2000, 600)
_RATES = (3e-3, 1e-3)
_OTHER_RATES = (3e-3, 0.02)
_STAGES = ("network", "network and kernel")
# Number of scores in each stage.
_SCORES = 20
_BATCH_ROWS = 256
# Weight decay of a step, in units of the rate. Without it features overfit the training rows.
_DECAY = 1.0
# Factor of standardised features before tanh maps them into (-1, 1).
_SQUASH = 0.5
# Shortest length scale on these features. The network can represent rough functions itself, and
# low-rank variances are accurate for smooth kernels only.
SHORTEST_FEATURE_LENGTH = 0.7
# Share and smallest number of rows that the network does not see. They train the hyperparameters.
_HELD_SHARE = 0.15
_LEAST_HELD_ROWS = 60
_MOST_FEATURES = 2


@dataclass(frozen=True, eq=False)
class GridFeatures:
    """The outputs of a network, standardised and mapped into (-1, 1).

    Attributes
    ----------
    network : Network
    weights : list of ndarray
        Trained tensors of the network.
    x_mean, x_scale : ndarray of shape (d,)
        Robust mean and standard deviation of the rows, by which its inputs are standardised.
    centre, spread : ndarray of shape (q,)
        Mean and standard deviation by which its outputs are standardised.
    """

    network: Network
    weights: list[np.ndarray]
    x_mean: np.ndarray
    x_scale: np.ndarray
    centre: np.ndarray
    spread: np.ndarray

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """The features of rows, (n, q)."""
        with torch.no_grad():
            rows = torch.from_numpy((X - self.x_mean) / self.x_scale)
            raw = self.network(network_from_numpy(self.weights), rows)
        check_features(raw)
        return np.tanh(_SQUASH * (raw.numpy() - self.centre) / self.spread)

    def module(self) -> nn.Module:
        """The features as a torch module."""
        weights = network_from_numpy(self.weights)
        return nn.Sequential(
            Affine(self.x_mean, self.x_scale),
            self.network.module(weights),
            Affine(self.centre, self.spread / _SQUASH),
            nn.Tanh(),
        )


def grid_network(n_columns: int, feature_extractor: Any, activation: str) -> Network:
    """The network that an estimator's parameters describe; layer sizes end in a linear layer.

    Raises
    ------
    ValueError
        For a network that does not end in 1 or 2 features.
    """
    network = make_network(n_columns, feature_extractor, activation, linear_end=True)
    if network.n_features > _MOST_FEATURES or network.n_trainable == 0:
        raise ValueError(
            "feature_extractor must end in 1 or 2 trained features, which a grid can cover; got "
            f"{feature_extractor!r}, which ends in {network.n_features}."
        )
    return network


def held_rows(n: int, random_state: np.random.RandomState) -> np.ndarray:
    """The rows that are held out from the network, as booleans; none of a small table.

    Residuals on the network's own training rows are too small, and so would be a noise variance
    trained on these rows.
    """
    held = np.zeros(n, dtype=bool)
    count = int(_HELD_SHARE * n)
    if count >= _LEAST_HELD_ROWS:
        held[random_state.choice(n, count, replace=False)] = True
    return held


def network_steps(n: int, max_epochs: Any) -> tuple[int, int]:
    """Steps of the two stages on n rows; "auto" is 2,600 together."""
    if max_epochs == "auto":
        return _STEPS
    steps = max(2, math.ceil(max_epochs * n / min(n, _BATCH_ROWS)))
    second = max(1, steps * _STEPS[1] // sum(_STEPS))
    return steps - second, second


class NetworkTraining(Stepper):
    """Trains a network in two stages, both with decoupled weight decay.

    First the features and a linear map of them are trained by squared error, then the features and
    an RBF kernel by the exact marginal likelihood of random batches (Wilson et al. 2016).

    Parameters
    ----------
    table : Table
        A squared error counts as often as its row, and likelihoods are those of all rows for which
        merged ones stand.
    network : Network
        With 1 or 2 features.
    run : FitRun
        Its time budget, and its random numbers: initial weights and batches.
    """

    moving = ("_moving", "_optimizer", "_schedule", "_generator")

    def __init__(self, table: Table, network: Network, run: FitRun):
        X, Y = table.X, table.targets
        self._x_mean, self._x_scale = table.robust_moments()
        limits = standardised_limits(X, self._x_mean, self._x_scale)
        self.network = LimitedNetwork(network, *limits)
        unit = max(table.mean_square() ** 0.5, 1e-300)
        self._generator = torch.Generator().manual_seed(int(run.random_state.randint(2**31 - 1)))
        scaled = torch.from_numpy((X - self._x_mean) / self._x_scale), torch.from_numpy(Y / unit)
        rest = 0.0, table.counts, table.within / unit**2
        self._rows = Rows.of(*scaled, *rest).to(torch.float32)
        self.params = network.initial(self._generator)
        rows = None
        if has_first_layer(network):
            rows = first_layer_rows(np.ones(len(X)), X.shape[1], run)
        if rows is not None:
            # The exact process of some rows, with the default kernel.
            some = self._rows.take(torch.as_tensor(rows[0])).to(torch.float64)
            kernel = data_scaled_kernel(some.X.numpy(), some.Y.numpy())
            problem = GPProblem(compile_kernel(kernel, some.X.shape[1]), some)
            factors = first_layer_factors(problem, len(X), run)
            self.params = weigh_inputs(network, self.params, factors)
        for p in self.trained:
            p.requires_grad_(True)
        head = torch.randn(network.n_features + 1, Y.shape[1], generator=self._generator)
        self._others = [head, torch.tensor([0.0, -1.0, -2.0])]

    @property
    def trained(self) -> list[Tensor]:
        """The trained tensors of the network."""
        return self.params[: self.network.n_trainable]

    def train(self, run: FitRun, steps: tuple[int, int]) -> int:
        """Both stages, unless something ends the fit; returns the steps taken."""
        done = 0
        for phase, n_steps in enumerate(steps):
            if run.stopped:
                break
            self._begin(phase, n_steps)
            run.monitor.begin(_STAGES[phase], n_steps, self.objective_name)
            result = train_steps(
                self,
                max_steps=n_steps,
                check_every=max(1, n_steps // _SCORES),
                monitor=run.monitor,
                epochs_per_step=min(1.0, _BATCH_ROWS / len(self._rows)),
                keep_best=False,
            )
            done += result.n_steps
            if result.stop_reason is End.DIVERGED:
                run.warn(
                    "training of the network diverged, and its best weights are kept: scale "
                    "the columns, or use a smaller network."
                )
        return done

    def features(self) -> GridFeatures:
        """The features of the current network, standardised over the rows."""
        with torch.no_grad():
            raw = self.network(self.params, self._rows.X)
            centre, spread = (part.double().numpy() for part in (raw.mean(0), _spread(raw)))
        weights = network_to_numpy(self.params)
        return GridFeatures(self.network, weights, self._x_mean, self._x_scale, centre, spread)

    def _loss(self, rows: Tensor | slice) -> Tensor:
        some = self._rows.take(rows)
        raw = self.network(self.params, some.X)
        Z = torch.tanh(_SQUASH * (raw - raw.mean(0)) / _spread(raw))
        objective = (_squared_error, _negative_likelihood)[self._phase]
        return objective(Z, self._others[self._phase], some)

    def _draw(self) -> Tensor | slice:
        """The rows of a step."""
        if len(self._rows) <= _BATCH_ROWS:
            return slice(None)
        return torch.randint(len(self._rows), (_BATCH_ROWS,), generator=self._generator)

    # ------------------------------------------------------------------ a stage

    def _begin(self, phase: int, n_steps: int) -> None:
        """AdamW with a cosine schedule over the network's and some other parameters."""
        self._phase = phase
        self.objective_name = ("minus squared error", "log likelihood per row of a batch")[phase]
        other = self._others[phase].requires_grad_(True)
        groups = [
            {"params": self.trained, "weight_decay": _DECAY},
            {"params": [other], "weight_decay": 0.0, "lr": _OTHER_RATES[phase]},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=_RATES[phase])
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, n_steps)
        self._moving = [*self.trained, other]

    def step(self) -> None:
        value = self._loss(self._draw())
        if not torch.isfinite(value):
            raise StopTraining(End.DIVERGED)
        self._optimizer.zero_grad()
        value.backward()
        self._optimizer.step()
        self._schedule.step()

    def score(self) -> float:
        # All scores are of the same rows.
        step = max(1, len(self._rows) // _BATCH_ROWS)
        with torch.no_grad():
            return float(self._loss(slice(0, step * _BATCH_ROWS, step)))

    def theta(self) -> np.ndarray:
        return np.empty(0)

    def snapshot(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._moving]

    def restore(self, snapshot: list[Tensor]) -> None:
        with torch.no_grad():
            for p, kept in zip(self._moving, snapshot, strict=True):
                p.copy_(kept)


def _spread(raw: Tensor) -> Tensor:
    return raw.std(0, correction=0) + 1e-6


def _squared_error(Z: Tensor, head: Tensor, rows: Rows) -> Tensor:
    # Features have a standard deviation of about a half, and targets of about one.
    squares = (3 * Z @ head[:-1] + head[-1] - rows.Y).square()
    return (rows.weight[:, None] * squares).mean() / rows.weight.mean()


def _negative_likelihood(Z: Tensor, hyper: Tensor, rows: Rows) -> Tensor:
    signal, scale, noise = hyper.exp()
    D = (noise + 1e-3).expand(len(Z))
    squared = (Z[:, None, :] - Z[None, :, :]).square().sum(2)
    H = signal * torch.exp(-0.5 * squared / (SHORTEST_FEATURE_LENGTH + scale).square())
    H = H + torch.diag(rows.noise_of_means(D))
    L, failed = torch.linalg.cholesky_ex(H)
    white = torch.linalg.solve_triangular(L, rows.Y, upper=False)
    value = (0.5 * white.square().sum() + rows.Y.shape[1] * L.diagonal().log().sum()) / len(Z)
    value = value - rows.log_density(D).sum() / len(Z)
    return value * float("nan") if failed else value
