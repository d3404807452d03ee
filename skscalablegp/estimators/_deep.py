"""A small network in front of a grid: deep kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# Rows of one exact marginal likelihood, and steps of Adam.
_BATCH_ROWS = 400
_STEPS = 400
_RATE = 5e-3

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


def train_network(
    X: np.ndarray, Y: np.ndarray, layers: list[int], random_state: np.random.RandomState
) -> Network:
    """A network that maximises the exact marginal likelihood of random batches of rows.

    The kernel is RBF on the features plus white noise, trained along with the network by Adam
    (Wilson et al. 2016). Rows are standardised first, in the first layer.

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
    Xt = torch.from_numpy((X - mean) / std).float()
    unit = max(float(np.square(Y).mean()) ** 0.5, 1e-300)
    Yt = torch.from_numpy(Y / unit).float()
    generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
    params, fan_in = [], X.shape[1]
    for width in layers:
        weight = torch.randn(fan_in, width, generator=generator) * (2 / fan_in) ** 0.5
        params += [weight, torch.zeros(width)]
        fan_in = width
    hyper = torch.tensor([0.0, -0.7, -2.0])
    for p in [*params, hyper]:
        p.requires_grad_(True)
    optimizer = torch.optim.Adam([{"params": params}, {"params": [hyper], "lr": 0.02}], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    for _ in range(_STEPS):
        chosen = torch.randint(len(Xt), (min(_BATCH_ROWS, len(Xt)),), generator=generator)
        loss = _negative_likelihood(_forward(params, Xt[chosen]), Yt[chosen], hyper)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    arrays = [p.detach().double().numpy() for p in params]
    network = [(w, b) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]
    first_weight, first_bias = network[0]
    folded = first_weight / std[:, None]
    network[0] = (folded, first_bias - mean @ folded)
    return network


def _forward(params: list[Tensor], X: Tensor) -> Tensor:
    for k in range(0, len(params), 2):
        X = X @ params[k] + params[k + 1]
        X = torch.tanh(X) if k == len(params) - 2 else torch.relu(X)
    return X


def _negative_likelihood(Z: Tensor, Y: Tensor, hyper: Tensor) -> Tensor:
    signal, scale, noise = hyper.exp()
    squared = (Z[:, None, :] - Z[None, :, :]).square().sum(2)
    H = signal * torch.exp(-0.5 * squared / scale.square())
    H = H + (noise + 1e-3) * torch.eye(len(Z))
    L = torch.linalg.cholesky(H)
    white = torch.linalg.solve_triangular(L, Y, upper=False)
    return (0.5 * white.square().sum() + Y.shape[1] * L.diagonal().log().sum()) / len(Z)
