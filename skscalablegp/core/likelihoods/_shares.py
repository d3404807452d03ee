"""The shares of classes, and probabilities between these and those of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

# Logarithms of the powers of probability ratios that are compared.
_LOG_POWERS = np.linspace(-2, 2, 41)
# Nats of gain over the shares that are put down to chance, besides those of what was trained. On 80
# drawn tables of 50 to 200 rows without signal, 3 give a largest excess log loss over the shares of
# .014 for SVGPClassifier, 0 for QSGPClassifier and .014 for AutoGPClassifier. A further table of 50
# rows and 8 columns without signal has a gain of 7 by chance, and an excess of .12 with 3. On 32
# further tables with weak signals the mean gain over the shares is .030 with 3 and .021 with 5. A
# full power wherever the gain is above a threshold has an excess of up to .155.
_BY_CHANCE = 5.0
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


def losses_of_powers(
    p: Float[Tensor, "m c"],
    codes: Tensor,
    shares: Float[Tensor, " c"],
    counts: Tensor | float = 1.0,
    n_trained: float = 0.0,
) -> Float[np.ndarray, " k"]:
    """Log losses, summed over held-out rows, for the powers that `best_power` compares.

    Losses of several sets of rows, such as those of the calls of `partial_fit`, are added.

    Parameters
    ----------
    p : Tensor of shape (m, c)
        Probabilities of rows by a model that has not seen their labels.
    codes : Tensor of shape (m,)
        Their classes.
    shares : Tensor of shape (c,)
    counts : Tensor of shape (m,), default=1
        Weights of the rows.
    n_trained : float, default=0.0
        Number of hyperparameters that were trained with the labels of these rows. Each raises the
        log likelihood of these rows by half a nat above that of the true ones (Akaike, 1974).

    Returns
    -------
    losses : ndarray of shape (k,)
        The first is that of the shares alone.
    """
    p, codes = p.clamp_min(_LEAST), codes[:, None]
    weight = p.new_ones(len(p)) * torch.as_tensor(counts).to(p)

    def loss(power: float) -> float:
        return -float(weight @ towards_shares(p, shares, power).gather(1, codes)[:, 0].log())

    return np.array([loss(0.0), *(loss(each) + 0.5 * n_trained for each in np.exp(_LOG_POWERS))])


def best_power(losses: Float[np.ndarray, " k"], at_one: float = 1.0, least: float = 0.0) -> float:
    """The power of `towards_shares` with the smallest of `losses_of_powers`, shrunk towards zero.

    The logarithm of the power has a normal prior with the precision `at_one`. With a gain of g nats
    over the shares alone, the power is multiplied by max(0, 1 - 5 / g), like an estimate by James
    and Stein: a gain of few nats, which chance gives, too, counts little, and a clear one fully.
    The power before that is at least `least`.
    """
    gains = losses[0] - losses[1:] - 0.5 * at_one * _LOG_POWERS**2
    # The top of the parabola through the largest gain and its neighbours.
    k = int(np.clip(np.argmax(gains), 1, len(gains) - 2))
    rise, bend = (gains[k + 1] - gains[k - 1]) / 2, 2 * gains[k] - gains[k - 1] - gains[k + 1]
    step = float(np.clip(rise / max(bend, _LEAST), -1, 1))
    gain = gains[k] + rise * step - 0.5 * bend * step**2
    power = math.exp(_LOG_POWERS[k] + step * (_LOG_POWERS[1] - _LOG_POWERS[0]))
    return max(power, least) * max(0.0, 1 - _BY_CHANCE / gain) if gain > 0 else 0.0
