"""What is passed to a fit, in this process or at ranks with rows of their own, and its source."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
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
from .._validation import check_noise, check_noise_variance, check_sample_weight
from ..linalg.gradients import Rows
from ..workers import Ranks, RankWorkers, leading
from .data import (
    AbsentArray,
    Columns,
    Ends,
    Merged,
    Moments,
    RowSource,
    Scaling,
    ShardedTable,
    Table,
    alone,
    column_limits,
    known_noise,
    limit_rows,
    merged,
    target_scales,
)
from .likelihoods import Likelihood


def own_rows() -> Ranks | None:
    """The ranks of the fit under way if each has rows of its own; otherwise None."""
    ranks = leading()
    return None if ranks is None or ranks.rows != "own" else ranks


def check_own_rows(model: Any) -> None:
    """Refuse a fit to rows of several ranks, unless the estimator needs them through sums only.

    Raises
    ------
    ValueError
        With the remedy.
    """
    ranks = own_rows()
    if ranks is None:
        return
    name, remedy = type(model).__name__, 'use distribute(rows="replicated")'
    if not model._sums_rows:
        raise ValueError(f"{name} needs all rows in one process: {remedy}.")
    if ranks.arguments is not None and ranks.arguments.method.__name__ != "fit":
        raise ValueError(f"partial_fit needs all rows in one process: {remedy}.")
    if model.get_params(deep=False).get("checkpoint") is not None:
        raise ValueError(f"checkpoint needs all rows in one process: leave it out, or {remedy}.")


class Given(Columns, ABC):
    """What is passed to a fit, before it has units: rows of this process, or of all ranks.

    Attributes
    ----------
    Y : ndarray of shape (s, t)
        Targets of the rows that stand for all in checks and limits.
    model : object
        The estimator.
    known : array-like or None
        noise_variance; of ranks that of rank 0.
    numbers : ndarray of shape (n,)
        The numbers of the rows in the given table.
    """

    model: Any
    Y: np.ndarray
    known: Any
    numbers: np.ndarray

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows, after equal ones were merged."""

    @abstractmethod
    def source(
        self,
        scaling: Scaling,
        likelihood: Likelihood,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        reset: bool = True,
    ) -> RowSource:
        """The rows in a model's units; `reset` says that they are its first ones.

        Raises
        ------
        ValueError
            For known noise that the likelihood does not have.
        """

    @abstractmethod
    def in_units(self, y_mean: np.ndarray, y_std: np.ndarray) -> Table:
        """The rows as a table whose targets have these means and scales (t,)."""

    def table(self, run: Any) -> Table:
        """The rows as a table in the units of a fit; the model gets `_noise_given`."""
        self.model._noise_given = self.known is not None
        shared = self.model._shares_scale(self.known)
        return self.in_units(*self.target_scales(run.normalizes(self.Y), shared))

    def target_units(
        self, run: Any, likelihood: Likelihood, shared: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and scales of the targets if `run` normalises them; classes have none."""
        normalize = not likelihood.classes and run.normalizes(self.Y, likelihood.additive)
        return self.target_scales(normalize, shared, likelihood.heavy_tails)

    def target_scales(
        self, normalize: bool = True, shared: bool = False, robust: bool = False
    ) -> Ends:
        """Means and scales (t,) of the targets, 0 and 1 if they are not normalised.

        With `shared` all targets have the same scale (`core.data.target_scales`). With `robust` far
        targets count as limits, as likelihoods with heavy tails require; weights then do not count.
        """
        moments = self.target_moments(robust) if normalize else None
        return target_scales(moments, self.Y.shape[1], shared)

    def target_moments(self, robust: bool = False) -> Moments:
        """Moments of the targets."""
        return reduce(add, self.each(_target_moments, column_limits(self.Y) if robust else None))

    def scaling(self, run: Any, likelihood: Likelihood, shared: bool = False) -> Scaling:
        """Units of standardised columns and, if asked for, targets, which may be `shared`."""
        return Scaling(*self.robust_moments(), *self.target_units(run, likelihood, shared))


@dataclass(frozen=True, eq=False)
class GivenRows(Given):
    """The validated arguments of this process, or of one rank.

    Attributes
    ----------
    model : object
        The estimator.
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,) or (n, t)
    noise_variance : float, array-like or None
    alpha : ndarray of shape (n,) or float
    merging : Merged, optional
        Which rows of the table these are, and what they stand for; by default each for itself.
    """

    model: Any
    X: np.ndarray
    y: np.ndarray
    noise_variance: Any = None
    alpha: np.ndarray | float = 0.0
    merging: Merged = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.merging is None:
            object.__setattr__(self, "merging", alone(self.y))

    @classmethod
    def read(
        cls,
        model: Any,
        X: np.ndarray,
        y: np.ndarray,
        noise_variance: Any = None,
        sample_weight: Any = None,
    ) -> GivenRows:
        """Validated rows and targets, with equal rows merged.

        Equal rows have equal entries and known noise. Most likelihoods take their targets one by
        one, so that rows of such models (`_sums_targets` is False) have equal targets, too: they
        are one term, times their count. A memory map of theirs is read for this only if there are
        weights.
        """
        n, t = len(X), _targets_of(y)
        alpha = check_noise(getattr(model, "alpha", 0.0), n)
        known = check_noise_variance(noise_variance, n, t)
        weights = check_sample_weight(sample_weight, n)
        columns = [c for c in (alpha, *(() if known is None else known.T)) if np.ptp(c) > 0]
        if not model._sums_targets:
            columns += [*y.T]
        if isinstance(X, np.memmap) and weights is None and not model._sums_targets:
            found = alone(y)
        else:
            found = merged(X, y, columns, weights)
        rows = found.rows
        given = noise_variance if known is None else known[rows]
        return cls(model, X[rows], found.y, given, alpha[rows], found)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def Y(self) -> np.ndarray:
        """The targets as (n, t)."""
        return self.y.reshape(len(self), _targets_of(self.y))

    @property
    def known(self) -> Any:
        """noise_variance."""
        return self.noise_variance

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the rows in the given table."""
        rows = self.merging.rows
        return np.arange(len(self)) if isinstance(rows, slice) else rows

    @property
    def n_rows(self) -> float:
        """The number of rows before they were merged: the sum of their weights."""
        return float(self.weight.sum())

    @property
    def weight(self) -> np.ndarray:
        """How many equal rows each row stands for."""
        return self.merging.counts

    def some(self, rows: np.ndarray) -> GivenRows:
        """Some of a rank's rows, by number."""
        known = None if self.noise_variance is None else self.noise_variance[rows]
        alpha = np.broadcast_to(self.alpha, len(self))[rows]
        return GivenRows(self.model, self.X[rows], self.y[rows], known, alpha)

    def in_units(self, y_mean, y_std) -> Table:
        mean, std = (np.reshape(moment, self.y.shape[1:]) for moment in (y_mean, y_std))
        known = known_noise(self.noise_variance, len(self), std)
        noise = known + self._alpha_in(std)
        Y, within = (self.y - mean) / std, (self.merging.within / np.square(y_std)).sum(1)
        return Table(self.X, Y, mean, std, noise, counts=self.weight, within=within)

    def source(self, scaling, likelihood, device, dtype=torch.float32, reset=True) -> RowSource:
        noise = self.noise(scaling, likelihood, reset)
        return RowSource.of(self.X, self.Y, scaling, dtype, device, noise, self.weight)

    def noise(
        self, scaling: Scaling, likelihood: Likelihood, reset: bool = True
    ) -> np.ndarray | float:
        """Known noise variances and alpha in the model's units; a classifier has none."""
        if likelihood.classes:
            return 0.0
        known = self.model._known_noise(
            self.noise_variance, len(self), scaling, likelihood, reset=reset
        )
        return known + self._alpha_in(scaling.y_scale)

    def _alpha_in(self, y_std: np.ndarray) -> np.ndarray | float:
        """alpha in units of targets with these scales."""
        unit = self.model._own_unit(y_std) if hasattr(self.model, "alpha") else 1.0
        return self.alpha / unit


@dataclass(frozen=True, eq=False)
class GivenShards(Given):
    """What the ranks have passed to a fit; the rows of rank 0 come first.

    Attributes
    ----------
    raw : RankWorkers
        The `GivenRows` of each rank. Equal rows are not merged.
    """

    raw: RankWorkers

    @property
    def model(self) -> Any:
        """The estimator at rank 0."""
        return self.raw.own.model

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
            At all ranks, for arguments that one of them refuses or that are of another kind, with
            its number, and for weights.
        """
        raw = RankWorkers.read(ranks, _read)
        for rank, kind in enumerate(raw.call(_kind)):
            if kind != (first := _kind(raw.own)):
                raise ValueError(
                    f"The rows of rank {rank} have {kind}, and those of rank 0 {first}."
                )
        if not any(raw.sizes):
            raise ValueError("No rank has rows: pass each rank its part of the table.")
        if columns is not None:
            model = raw.own.model
            some = [found for found in raw.call(_classes) if len(found)]
            classes = np.unique(np.concatenate(some))
            model._numbered(classes)
            raw = raw.put(_numbered, classes, columns)
        return cls(raw)

    def __len__(self) -> int:
        return sum(self.raw.sizes)

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        return self.raw.call(work, *args)

    @cached_property
    def X(self) -> np.ndarray:
        """Some rows (s, d)."""
        return self._sample("X")

    @cached_property
    def Y(self) -> np.ndarray:
        """Their targets (s, t)."""
        return self._sample("Y")

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the rows."""
        return np.arange(len(self))

    def _sample(self, name: str) -> np.ndarray:
        (found,) = self.raw.gather(_part, np.arange(len(self))[limit_rows(len(self))], name)
        return found

    @property
    def known(self) -> np.ndarray | None:
        """The known noise of rank 0; None at all ranks or at none."""
        return self.raw.own.noise_variance

    def in_units(self, y_mean, y_std) -> ShardedTable:
        return ShardedTable.of(self.raw.put(GivenRows.in_units, y_mean, y_std))

    def source(self, scaling, likelihood, device, dtype=torch.float32, reset=True) -> RowSource:
        # Rank 0 refuses it before others are asked, and notes whether there is any.
        self.raw.own.noise(scaling, likelihood)
        of_rows = AbsentArray.of(len(self)), np.ones(len(self))
        rows = self.X, self.Y, scaling, dtype, device, *of_rows
        return ShardedSource(*rows, raw=self.raw, likelihood=likelihood)


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedSource(RowSource):
    """The rows of one fit, of which each rank has some; equal ones are not merged.

    `X` and `Y` are those of `GivenShards`; `noise` has a shape only. Rows are fetched by number,
    and `work` puts objects at the ranks, each of which computes with its own rows.

    Attributes
    ----------
    raw : RankWorkers
        As in `GivenShards`.
    likelihood : Likelihood
    stays : bool
        Whether the ranks hold small parts as tensors.
    """

    raw: RankWorkers
    likelihood: Likelihood
    stays: bool = False

    def __len__(self) -> int:
        return sum(self.raw.sizes)

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        return self.work.call(work, *args)

    @cached_property
    def work(self) -> RankWorkers:
        """The `RowSource` of each rank."""
        units = self.scaling, self.likelihood, self.device, self.dtype
        return self.raw.put(_source, *units, self.stays)

    def resident(self) -> ShardedSource:
        return replace(self, stays=True)

    def converted(self, dtype: torch.dtype, device: torch.device | None = None) -> ShardedSource:
        device = self.device if device is None else device
        return replace(self, dtype=dtype, device=device, stays=False)

    def here(self) -> RowSource:
        noise = np.concatenate(self.work.call(_own_noise)) if self.noisy else 0.0
        X, Y = self.originals(np.arange(len(self)))
        return RowSource.of(X, Y, self.scaling, self.dtype, self.device, noise)

    def subset(self, index: np.ndarray) -> ShardedSource:
        """Some of the rows, by ascending number, which stay where they are."""
        raw = self.raw.put(GivenRows.some, rows=np.asarray(index))
        n = len(index)
        return replace(self, raw=raw, noise=AbsentArray.of(n), weight=self.weight[:n])

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


# ---------------------------------------------------------------- on all ranks


def _read(call: Call) -> GivenRows:
    """The validated rows of one rank; there may be none."""
    given = inspect.signature(call.method).bind(call.estimator, *call.args, **call.kwargs).arguments
    if given.get("sample_weight") is not None:
        raise ValueError("sample_weight needs all rows in one process: use rows='replicated'.")
    model, X, y, known = call.estimator, given["X"], given["y"], given.get("noise_variance")
    n = getattr(X, "shape", [len(X)])[0]
    if n:
        X, y = model._read_own_rows(X, y)
        known = check_noise_variance(known, n, _targets_of(y))
        return GivenRows(model, X, y, known, alpha=check_noise(getattr(model, "alpha", 0.0), n))
    # A row of zeros stands for the columns.
    zeros = np.zeros((1, *np.shape(X)[1:]))
    if hasattr(X, "columns"):
        zeros = type(X)(zeros, columns=X.columns)
    X, y = model._read_own_rows(zeros, np.zeros((1, *np.shape(y)[1:])))
    return GivenRows(model, X[:0], y[:0], None if known is None else np.zeros((0, _targets_of(y))))


def _targets_of(y: np.ndarray) -> int:
    """The number of targets of a row."""
    return int(np.prod(y.shape[1:]))


def _kind(raw: GivenRows) -> str:
    known = "no noise_variance" if raw.noise_variance is None else "a noise_variance"
    return f"{raw.X.shape[1]} columns, targets of shape (n, {_targets_of(raw.y)}) and {known}"


def _part(raw: GivenRows, rows: np.ndarray, name: str) -> tuple[np.ndarray]:
    return (getattr(raw, name)[rows],)


def _classes(raw: GivenRows) -> np.ndarray:
    return np.unique(raw.y)


def _numbered(
    raw: GivenRows, classes: np.ndarray, columns: Callable[[Any, np.ndarray], np.ndarray]
) -> GivenRows:
    model = raw.model
    model.classes_ = classes
    return replace(raw, y=columns(model, model._numbered(raw.y, reset=False)))


def _rows(raw: GivenRows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return raw.X[rows], raw.y[rows]


def _target_moments(raw: GivenRows, limits: Ends | None) -> Moments:
    """Those of one part; weights do not count with limits."""
    if limits is not None:
        return Moments.of(raw.Y, limits)
    moments = Moments.of(raw.Y, counts=raw.weight)
    return replace(moments, squares=moments.squares + raw.merging.within.sum(0))


def _labels(raw: GivenRows) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(raw.y, axis=0, return_counts=True)


def _source(
    raw: GivenRows,
    scaling: Scaling,
    likelihood: Likelihood,
    device: torch.device,
    dtype: torch.dtype,
    resident: bool,
) -> RowSource:
    source = raw.source(scaling, likelihood, device, dtype)
    return source.resident() if resident else source


def _scaled(source: RowSource, rows: np.ndarray, noisy: bool) -> tuple[np.ndarray, ...]:
    """Inputs and targets of some rows, and their known noise if there is any."""
    some = source.take(rows)
    return tuple(part.cpu().numpy() for part in (some.X, some.Y, some.noise)[: 2 + noisy])


def _own_noise(source: RowSource) -> np.ndarray:
    return np.array(source.noise)
