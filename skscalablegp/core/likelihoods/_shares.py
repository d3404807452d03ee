"""The shares of classes, and probabilities between these and those of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor

# Largest logarithm of a power of probability ratios, and of its inverse.
_LARGEST_POWER = 2.0
# The shares alone predict unless the log loss, summed over rows, is lower by so many nats
# and by so many standard errors.
_CLEARLY, _ERRORS = 2.0, 1.0
# Least probability of a held-out row.
_LEAST = 1e-12


def class_shares(
    codes: Any, n_classes: int, counts: Any = None, before: tuple[Any, float] | None = None
) -> Float[np.ndarray, " c"]:
    """The shares of classes, with one more row divided among them, so that none is zero.

    Parameters
    ----------
    codes : array-like of shape (n,)
        Numbers of the classes.
    n_classes : int
    counts : array-like of shape (n,), optional
        Weights of the rows.
    before : tuple of ndarray of shape (c,) and float, optional
        The shares among earlier rows, and the number of these, which are counted too.
    """
    codes = np.asarray(codes, dtype=np.int64)
    known = np.full(n_classes, 1 / n_classes) if before is None else before[0] * (before[1] + 1)
    total = np.bincount(codes, counts, n_classes) + known
    return total / total.sum()


def towards_shares(
    p: Float[Tensor, "m c"], shares: Float[Tensor, " c"], power: float
) -> Float[Tensor, "m c"]:
    """Probabilities proportional to shares (p / shares)^power.

    A power of one leaves them, and zero gives the shares of the classes.
    """
    prior = shares.to(p).log()
    log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    return torch.softmax(prior + power * (log_p - prior), 1)


def best_power(
    p: Float[Tensor, "m c"],
    codes: Tensor,
    shares: Float[Tensor, " c"],
    counts: Tensor | None = None,
    at_one: float = 1.0,
    n_trained: float = 0.0,
) -> float:
    """The power of `towards_shares` with the smallest log loss of held-out rows.

    Its logarithm has a normal prior, for tables with few rows. The power is zero if the
    probabilities are not clearly better than the shares alone.

    Parameters
    ----------
    p : Tensor of shape (m, c)
        Probabilities of rows by a model that has not seen their labels.
    codes : Tensor of shape (m,)
        Their classes.
    shares : Tensor of shape (c,)
    counts : Tensor of shape (m,), optional
        Weights of the rows.
    at_one : float, default=1.0
        Precision of the normal prior of the logarithm.
    n_trained : float, default=0.0
        Number of hyperparameters that were trained with the labels of these rows. Each makes the
        log likelihood of these rows larger than that of new ones, by one nat (Akaike, 1974).
    """
    p, codes = p.clamp_min(_LEAST), codes[:, None]
    weight = torch.ones(len(p), dtype=p.dtype) if counts is None else counts.to(p)

    def row_losses(power: float) -> Tensor:
        return -towards_shares(p, shares, power).gather(1, codes)[:, 0].log()

    def penalised(log_power: float) -> float:
        return float(weight @ row_losses(math.exp(log_power))) + 0.5 * at_one * log_power**2

    bounds = (-_LARGEST_POWER, _LARGEST_POWER)
    found = minimize_scalar(penalised, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    power = math.exp(found.x)
    gain = row_losses(0.0) - row_losses(power)
    spread = float((weight * (gain - gain.mean()).square()).sum().sqrt())
    return power if float(weight @ gain) - n_trained > max(_CLEARLY, _ERRORS * spread) else 0.0


def power_after(old: float, n_old: float, new: float, n_new: float) -> float:
    """The power of `towards_shares` after further rows, from that of the earlier rows and theirs.

    A new power of zero says that the new rows are too few, or know too little, and leaves the old
    one. Otherwise logarithms are averaged over rows, where an old power of zero counts as one, the
    mean of its prior. The largest power of many calls would be much too large: with the true
    probabilities of 40 calls with 20 rows each, whose power is one, it is 3, and the mean 1.2.
    """
    if not new:
        return old
    share = n_new / (n_old + n_new)
    return (old or 1.0) ** (1 - share) * new**share
