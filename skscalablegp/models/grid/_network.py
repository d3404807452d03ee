"""A small network in front of a grid: deep kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...features import DenseNetwork

# Steps of Adam on squared errors, then on the marginal likelihood of batches.
_STEPS = (2000, 600)
_RATES = (3e-3, 1e-3)
_BATCH_ROWS = 256
# Decay of the weights a step, in units of the rate: without it features bend more than new rows do.
_DECAY = 1.0
# Features are standardised, then squashed into (-1, 1): tanh of half a standard deviation.
_SQUASH = 0.5
# Shortest length scale on such features. Bending is the network's part, and a smooth kernel is what
# makes low-rank variances accurate.
SHORTEST_FEATURE_LENGTH = 0.7
# Rows that the network does not see; the kernel's hyperparameters are trained on them.
_HELD_SHARE = 0.15
_LEAST_HELD_ROWS = 60

Network = list[tuple[np.ndarray, np.ndarray]]


def check_layers(layers: Any) -> list[int] | None:
    """Widths of a network's layers, or None.

    Raises
    ------
    ValueError
        For anything but positive whole numbers ending in 1 or 2.
    """
    if layers is None:
        return None
    widths = np.asarray(layers)
    if widths.ndim != 1 or widths.dtype.kind not in "iu" or not widths.size or widths.min() < 1:
        raise ValueError(f"feature_extractor must list the widths of layers, got {layers!r}.")
    if widths[-1] > 2:
        raise ValueError(
            f"feature_extractor must end in 1 or 2 features, which a grid can cover; got "
            f"{layers!r}."
        )
    return widths.tolist()


def apply_network(network: Network, X: np.ndarray) -> np.ndarray:
    """The features of rows, each in (-1, 1)."""
    for k, (weight, bias) in enumerate(network):
        X = X @ weight + bias
        X = np.tanh(X) if k == len(network) - 1 else np.maximum(X, 0)
    return X


def held_rows(n: int, random_state: np.random.RandomState) -> np.ndarray:
    """Which rows to keep from the network, as booleans; none of a small table.

    On rows that shaped the features residuals are too small, and a noise variance trained on them
    would be too.
    """
    held = np.zeros(n, dtype=bool)
    count = int(_HELD_SHARE * n)
    if count >= _LEAST_HELD_ROWS:
        held[random_state.choice(n, count, replace=False)] = True
    return held


def train_network(
    X: np.ndarray, Y: np.ndarray, layers: list[int], random_state: np.random.RandomState
) -> Network:
    """A network whose features carry the targets smoothly.

    First the features and a linear map of them are trained by squared error, then features and an
    RBF kernel by the exact marginal likelihood of random batches (Wilson et al. 2016), with
    decoupled weight decay throughout. Its last layer is standardised over the rows, so that
    features fill the range without saturating.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    Y : ndarray of shape (n, t)
        Targets.
    layers : list of int
        Widths; the last is the number of features.
    random_state : RandomState
        Initial weights and batches.
    """
    mean, std = X.mean(0), X.std(0)
    std = np.where(std > 0, std, 1.0)
    unit = max(float(np.square(Y).mean()) ** 0.5, 1e-300)
    generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
    batches = _Batches(
        torch.from_numpy((X - mean) / std).float(), torch.from_numpy(Y / unit).float(), generator
    )
    features = _Features(DenseNetwork((X.shape[1], *layers[:-1])))
    params = [
        p.requires_grad_(True) for p in DenseNetwork((X.shape[1], *layers)).initial(generator)
    ]
    head = torch.randn(layers[-1] + 1, Y.shape[1], generator=generator).requires_grad_(True)
    hyper = torch.tensor([0.0, -1.0, -2.0], requires_grad=True)
    _minimise(_squared_error, features, batches, params, [head], 0)
    _minimise(_negative_likelihood, features, batches, params, [hyper], 1)
    with torch.no_grad():
        raw = features.raw(params, batches.X)
        centre, spread = raw.mean(0), _spread(raw)
        params[-2] = params[-2] * (_SQUASH / spread)[:, None]
        params[-1] = (params[-1] - centre) * (_SQUASH / spread)
    arrays = [p.detach().double().numpy() for p in params]
    network = [(w.T, b) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]
    weight, bias = network[0]
    folded = weight / std[:, None]
    network[0] = (folded, bias - mean @ folded)
    return network


@dataclass(frozen=True)
class _Batches:
    X: Tensor
    Y: Tensor
    generator: torch.Generator

    def draw(self) -> tuple[Tensor, Tensor]:
        if len(self.X) <= _BATCH_ROWS:
            return self.X, self.Y
        chosen = torch.randint(len(self.X), (_BATCH_ROWS,), generator=self.generator)
        return self.X[chosen], self.Y[chosen]


@dataclass(frozen=True)
class _Features:
    hidden: DenseNetwork

    def raw(self, params: list[Tensor], X: Tensor) -> Tensor:
        return torch.nn.functional.linear(self.hidden(params[:-2], X), params[-2], params[-1])

    def __call__(self, params: list[Tensor], X: Tensor) -> Tensor:
        raw = self.raw(params, X)
        return torch.tanh(_SQUASH * (raw - raw.mean(0)) / _spread(raw))


def _spread(raw: Tensor) -> Tensor:
    return raw.std(0, correction=0) + 1e-6


def _minimise(loss, features, batches, params, others, phase: int) -> None:
    """AdamW with a cosine schedule over the features' and some other parameters."""
    groups = [
        {"params": params, "weight_decay": _DECAY},
        {"params": others, "weight_decay": 0.0, "lr": (_RATES[0], 0.02)[phase]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=_RATES[phase])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS[phase])
    for _ in range(_STEPS[phase]):
        X, Y = batches.draw()
        value = loss(features(params, X), Y, others[0])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()


def _squared_error(Z: Tensor, Y: Tensor, head: Tensor) -> Tensor:
    # Features vary by about half a unit: three times that is the size of the targets.
    return (3 * Z @ head[:-1] + head[-1] - Y).square().mean()


def _negative_likelihood(Z: Tensor, Y: Tensor, hyper: Tensor) -> Tensor:
    signal, scale, noise = hyper.exp()
    squared = (Z[:, None, :] - Z[None, :, :]).square().sum(2)
    H = signal * torch.exp(-0.5 * squared / (SHORTEST_FEATURE_LENGTH + scale).square())
    H = H + (noise + 1e-3) * torch.eye(len(Z))
    L = torch.linalg.cholesky(H)
    white = torch.linalg.solve_triangular(L, Y, upper=False)
    return (0.5 * white.square().sum() + Y.shape[1] * L.diagonal().log().sum()) / len(Z)
