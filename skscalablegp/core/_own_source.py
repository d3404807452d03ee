"""Rows for training by batches of which each rank passes rows of its own to a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from .._calls import Call
from .._validation import check_noise, check_noise_variance
from ..linalg.blocks import watched
from ..ranks import Parts, Ranks
from ._own_rows import RawRows, given_rows, read_parts
from .data import Moments, RowSource, Scaling, column_limits, limit_rows, target_scales
from .likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class SharedSource:
    """The rows of one fit, of which each rank has some, those of rank 0 first.

    Attributes
    ----------
    parts : Parts
        The arguments of each rank.
    X, Y : ndarray of shape (s, d) and (s, t)
        The rows that stand for all in checks and limits: all, or evenly spaced ones.
    scaling : Scaling
    likelihood : Likelihood
    device : torch.device
    dtype : torch.dtype
        Precision of the tensors.
    most_noise : float
        The largest known noise variance in the model's units.
    """

    parts: Parts
    X: np.ndarray
    Y: np.ndarray
    scaling: Scaling
    likelihood: Likelihood
    device: torch.device
    dtype: torch.dtype = torch.float32
    most_noise: float = 0.0

    def __len__(self) -> int:
        return sum(self.parts.sizes)

    def resident(self) -> SharedSource:
        """The ranks hold small parts as tensors."""
        return self

    def sources(self, make: Callable[[RowSource], Any]) -> Parts:
        """``make(source)`` at each rank, for the source of its rows."""
        units = self.scaling, self.dtype, self.device, self.likelihood
        return self.parts.derived(_source, make, *units)


def read_own_source(
    model: Any,
    ranks: Ranks,
    run: Any,
    resolve: Callable[[int], Likelihood],
    device: torch.device,
) -> SharedSource:
    """The validated rows of all ranks; equal rows are not merged.

    Parameters
    ----------
    model : MinibatchGPRegressorBase
        The estimator at rank 0, which gets the attributes of `validate_data`, and `_noise_given`.
    ranks : Ranks
    run : FitRun
    resolve : callable
        The likelihood for a number of targets.
    device : torch.device

    Raises
    ------
    ValueError
        At all ranks, for arguments that one of them refuses, with its number, and for weights.
    """
    with watched(None):
        raw = read_parts(ranks, _read)
        own, n = raw.own, sum(raw.sizes)
        likelihood = resolve(own.y.shape[1])
        _, some = raw.picked(_rows, np.arange(n)[limit_rows(n)])
        X, Y = (np.concatenate(arrays) for arrays in zip(*some, strict=True))
        normalize = run.normalizes(Y, likelihood.additive)
        known = own.noise_variance
        x_mean, x_scale = reduce(add, raw.each(_moments, "X", column_limits(X))).scales()
        ends = column_limits(Y) if likelihood.heavy_tails else None
        of_targets = reduce(add, raw.each(_moments, "y", ends)) if normalize else None
        y_mean, y_scale = target_scales(of_targets, Y.shape[1], model._shares_scale(known))
        scaling = Scaling(x_mean, x_scale, y_mean, y_scale)
        # Refuses noise that the likelihood does not have, before other ranks are asked.
        model._known_noise(known, len(own.X), scaling, likelihood, reset=True)
        most = max(raw.each(_most_noise, scaling, likelihood))
    return SharedSource(raw, X, Y, scaling, likelihood, device, most_noise=most)


def _read(call: Call) -> RawRows:
    given, model = given_rows(call), call.estimator
    X, Y = model._read_rows(given["X"], given["y"])
    check_noise(model.alpha, len(X))
    known = check_noise_variance(given.get("noise_variance"), len(X), Y.shape[1])
    raw = RawRows(model, X, Y, known)
    # Categories that are not whole numbers are refused.
    model._own_kernel(X)
    return raw


def _rows(raw: RawRows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return raw.X[rows], raw.y[rows]


def _moments(raw: RawRows, name: str, ends: tuple[np.ndarray, np.ndarray] | None) -> Moments:
    return Moments.of(getattr(raw, name), ends)


def _noise(raw: RawRows, scaling: Scaling, likelihood: Likelihood) -> np.ndarray:
    model, n = raw.model, len(raw.X)
    known = model._known_noise(raw.noise_variance, n, scaling, likelihood, reset=True)
    return check_noise(model.alpha, n) / model._own_unit(scaling.y_scale) + known


def _most_noise(raw: RawRows, scaling: Scaling, likelihood: Likelihood) -> float:
    return float(_noise(raw, scaling, likelihood).max())


def _source(
    raw: RawRows,
    make: Callable[[RowSource], Any],
    scaling: Scaling,
    dtype: torch.dtype,
    device: torch.device,
    likelihood: Likelihood,
) -> Any:
    noise = _noise(raw, scaling, likelihood)
    return make(RowSource(raw.X, raw.y, scaling, dtype, device, noise).resident())
