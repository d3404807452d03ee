"""Rows for training by batches of which each rank passes rows of its own to a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._calls import Call
from .._validation import check_noise
from ..linalg.gradients import Rows
from ..linalg.parallel import RankWorkers
from ..ranks import Ranks
from ._minibatch import GPClassifierBase
from ._own_rows import RawRows, raw_rows, read_parts
from .data import (
    MOVED,
    Moments,
    RowSource,
    Scaling,
    column_limits,
    limit_rows,
    ranges_within,
    rows_beyond,
    target_scales,
)
from .likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class OwnRows:
    """What the ranks have passed to a fit, before it has units; those of rank 0 come first.

    Attributes
    ----------
    raw : RankWorkers
        The arguments of each rank. Equal rows are not merged.
    X, Y : ndarray of shape (s, d) and (s, t)
        The rows that stand for all in checks and limits: all, or evenly spaced ones.
    """

    raw: RankWorkers
    X: np.ndarray
    Y: np.ndarray

    @classmethod
    def read(cls, ranks: Ranks, columns: Callable[[Any, np.ndarray], np.ndarray] | None = None):
        """The validated arguments of all ranks.

        Parameters
        ----------
        ranks : Ranks
        columns : callable, optional
            Targets (n, t) of a classifier, from the model and the numbers of classes; the model at
            rank 0 gets the classes of all ranks.

        Raises
        ------
        ValueError
            At all ranks, for arguments that one of them refuses, with its number, and for weights.
        """
        raw = read_parts(ranks, _read)
        if columns is not None:
            model = raw.own.model
            some = [found for found in raw.call(_classes) if len(found)]
            classes = np.unique(np.concatenate(some))
            model._numbered(classes)
            raw = raw.put(_numbered, classes, columns)
        n = sum(raw.sizes)
        return cls(raw, *raw.gather(_rows, np.arange(n)[limit_rows(n)]))

    def __len__(self) -> int:
        return sum(self.raw.sizes)

    @property
    def known(self) -> np.ndarray | None:
        """The known noise of rank 0; None at all ranks or at none."""
        return self.raw.own.noise_variance

    def moments(self, name: str, robust: bool) -> Moments:
        """Those of the columns of "X" or "Y" over all ranks."""
        ends = column_limits(getattr(self, name)) if robust else None
        return reduce(add, self.raw.call(_moments, name, ends))

    def scaling(self, run: Any, likelihood: Likelihood, shared: bool) -> Scaling:
        """Units of standardised columns and, if asked for, targets, which may be `shared`."""
        normalize = run.normalizes(self.Y, likelihood.additive)
        of_targets = self.moments("Y", likelihood.heavy_tails) if normalize else None
        units = target_scales(of_targets, self.Y.shape[1], shared)
        return Scaling(*self.moments("X", True).scales(), *units)

    def source(
        self,
        scaling: Scaling,
        likelihood: Likelihood,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> ShardedSource:
        """The rows in a model's units.

        Raises
        ------
        ValueError
            For known noise that the likelihood does not have.
        """
        # Rank 0 refuses it before others are asked, and notes whether there is any.
        _noise(self.raw.own, scaling, likelihood)
        most = max(self.raw.call(_most_noise, scaling, likelihood))
        noise, weight = np.broadcast_to([[np.nan], [1.0]], (2, len(self)))
        rows = self.X, self.Y, scaling, dtype, device, noise, weight
        return ShardedSource(*rows, raw=self.raw, likelihood=likelihood, largest_noise=most)


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedSource(RowSource):
    """The rows of one fit, of which each rank has some; equal ones are not merged.

    `X` and `Y` are those of `OwnRows`, and `noise` has a shape only. Rows are fetched by number,
    and `held` makes objects at the ranks which compute of their rows.

    Attributes
    ----------
    raw : RankWorkers
        As in `OwnRows`.
    likelihood : Likelihood
    largest_noise : float
        The largest known noise variance in the model's units.
    stays : bool
        Whether the ranks hold small parts as tensors.
    """

    raw: RankWorkers
    likelihood: Likelihood
    largest_noise: float
    stays: bool = False

    def __len__(self) -> int:
        return sum(self.raw.sizes)

    @property
    def noisy(self) -> bool:
        return self.largest_noise > 0

    @property
    def most_noise(self) -> float:
        return self.largest_noise

    @cached_property
    def work(self) -> RankWorkers:
        """The `RowSource` of each rank."""
        units = self.scaling, self.likelihood, self.device, self.dtype
        return self.raw.put(_source, *units, self.noisy, self.stays)

    def resident(self) -> ShardedSource:
        return replace(self, stays=True)

    def converted(self, dtype: torch.dtype, device: torch.device | None = None) -> ShardedSource:
        device = self.device if device is None else device
        return replace(self, dtype=dtype, device=device, stays=False)

    def held(self, make, *args, tensors=()) -> RankWorkers:
        return self.work.put(make, *args, tensors=tensors)

    def here(self) -> RowSource:
        noise = np.concatenate(self.work.call(_own_noise)) if self.noisy else 0.0
        X, Y = self.originals(np.arange(len(self)))
        return RowSource.of(X, Y, self.scaling, self.dtype, self.device, noise)

    def subset(self, index: np.ndarray) -> ShardedSource:
        """Some of the rows, by ascending number, which stay where they are."""
        raw = self.raw.put(RawRows.some, rows=np.asarray(index))
        return replace(
            self, raw=raw, noise=self.noise[: len(index)], weight=self.weight[: len(index)]
        )

    def labels(self) -> tuple[Float[np.ndarray, "c t"], Float[np.ndarray, " c"]]:
        """Each target of a classifier once, and how many rows of all ranks have it."""
        values, counts = zip(*self.raw.call(_labels), strict=True)
        values, where = np.unique(np.concatenate(values), axis=0, return_inverse=True)
        return values, np.bincount(where.ravel(), np.concatenate(counts))

    def take(self, index: np.ndarray | Tensor | slice) -> Rows:
        numbers = np.arange(len(self))[index] if isinstance(index, slice) else index
        parts = self.work.gather(_scaled, numbers, self.noisy)
        return Rows.of(*(torch.from_numpy(part).to(self.device) for part in parts))

    def originals(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        X, Y = self.raw.gather(_rows, index)
        return X, Y

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = zip(*self.raw.call(_ranges, column_limits(self.X, MOVED)), strict=True)
        return np.min(low, axis=0), np.max(high, axis=0)

    def far(self) -> np.ndarray:
        first = np.cumsum([0, *self.raw.sizes[:-1]])
        found = self.raw.call(_far, column_limits(self.X))
        return np.concatenate([rows + start for rows, start in zip(found, first, strict=True)])


# ---------------------------------------------------------------- on all ranks


def _read(call: Call) -> RawRows:
    return raw_rows(call, _validated)


def _validated(model: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    X, Y = model._read_own_rows(X, y)
    check_noise(getattr(model, "alpha", 0.0), len(X))
    # Categories that are not whole numbers are refused.
    model._own_kernel(X)
    return X, Y


def _classes(raw: RawRows) -> np.ndarray:
    return np.unique(raw.y)


def _numbered(
    raw: RawRows, classes: np.ndarray, columns: Callable[[Any, np.ndarray], np.ndarray]
) -> RawRows:
    model = raw.model
    model.classes_ = classes
    return replace(raw, y=columns(model, model._numbered(raw.y, reset=False)))


def _rows(raw: RawRows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return raw.X[rows], raw.y[rows]


def _moments(raw: RawRows, name: str, ends: tuple[np.ndarray, np.ndarray] | None) -> Moments:
    return Moments.of(raw.X if name == "X" else raw.y, ends)


def _labels(raw: RawRows) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(raw.y, axis=0, return_counts=True)


def _ranges(raw: RawRows, limits: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return ranges_within(raw.X, limits)


def _far(raw: RawRows, limits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return rows_beyond(raw.X, limits)


def _noise(raw: RawRows, scaling: Scaling, likelihood: Likelihood) -> np.ndarray:
    model, n = raw.model, len(raw.X)
    if isinstance(model, GPClassifierBase):
        return np.zeros(n)
    known = model._known_noise(raw.noise_variance, n, scaling, likelihood, reset=True)
    if not hasattr(model, "alpha"):
        return known
    return check_noise(model.alpha, n) / model._own_unit(scaling.y_scale) + known


def _most_noise(raw: RawRows, scaling: Scaling, likelihood: Likelihood) -> float:
    return float(_noise(raw, scaling, likelihood).max(initial=0.0))


def _source(
    raw: RawRows,
    scaling: Scaling,
    likelihood: Likelihood,
    device: torch.device,
    dtype: torch.dtype,
    noisy: bool,
    resident: bool,
) -> RowSource:
    noise = _noise(raw, scaling, likelihood) if noisy else 0.0
    source = RowSource.of(raw.X, raw.y, scaling, dtype, device, noise)
    return source.resident() if resident else source


def _scaled(source: RowSource, rows: np.ndarray, noisy: bool) -> tuple[np.ndarray, ...]:
    """Inputs and targets of some rows, and their known noise if there is any."""
    some = source.take(rows)
    return tuple(part.cpu().numpy() for part in (some.X, some.Y, some.noise)[: 2 + noisy])


def _own_noise(source: RowSource) -> np.ndarray:
    return np.array(source.noise)
