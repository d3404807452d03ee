"""The correction of neighbours' predictions by leave-one-out residuals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...core import random_rows
from ...core.training import Budget
from ...linalg.gradients import GPProblem

# Rows around which the weight is determined, and rows of the trial that comes before the work.
_JUDGED, _TRIED = 20_000, 200
# The trial takes place if it needs at most this share of the rows.
_TRIAL_SHARE = 0.25
# The trial's weight in units of its standard error from which the work begins, and the judged rows'
# gain in log density in the same units from which the correction is used.
_PROMISE, _DOUBT = 1.0, 2.0
# Largest absolute logarithm of a factor of variances.
_MOST_FACTOR = 3.0
# Rows that are left out at first, which show how long a row takes, and then at a time.
_FIRST, _CHUNK = 256, 4096


@runtime_checkable
class Neighbors(Protocol):
    """A model that predicts training rows from the others; see `NeighborPosterior`."""

    problem: GPProblem
    n_neighbors: int

    def others(self, rows: Int[Tensor, " b"]) -> Int[Tensor, "b m"]:
        """The nearest other rows of each row."""

    def ordered(self, rows: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The rows in an order in which close rows tend to follow each other."""

    def left_out(self, rows: Int[Tensor, " b"]) -> LeftOutRows:
        """Predictions of rows from the nearest others, without correction."""

    def noises(self, rows: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """The variances of the kernel's noise and of known noise, each divided by the counts."""


class LeftOutRows(NamedTuple):
    """Leave-one-out predictions of some rows.

    Attributes
    ----------
    residuals : Tensor of shape (b, t)
        The targets less their predictions.
    variance, prior : Tensor of shape (b,)
        Posterior and prior variance of the latent function.
    factor : Tensor of shape (b,)
        By which local errors multiply variance and noise.
    near, weights : Tensor of shape (b, m)
        The neighbours, and the weights of their targets in the prediction.
    """

    residuals: Float[Tensor, "b t"]
    variance: Float[Tensor, " b"]
    prior: Float[Tensor, " b"]
    factor: Float[Tensor, " b"]
    near: Int[Tensor, "b m"]
    weights: Float[Tensor, "b m"]


class Correction(NamedTuple):
    r"""A multiple of the mean leave-one-out residual of the neighbours, added to predictions.

    Attributes
    ----------
    weight : float
        By which the mean residual is multiplied.
    shrink : float
        Factor of the latent variance where the correction has its full size.
    typical : float
        Mean latent variance of 256 leave-one-out predictions.
    residuals : Tensor of shape (n, t)
        Residuals times typical / (typical + noise), since a row's noise is part of its residual.
    spread : Tensor of shape (n,)
        The sum of a row's weights in predictions of other rows, with the same factors of theirs,
        divided by its own factor.

    Notes
    -----
    The error of a prediction from neighbours N is uncorrelated with their targets, but not with
    other targets. The residuals of the neighbours, each predicted from its own neighbours, depend
    on those, and errors of predictions near each other tend to have the same sign. With alpha =
    H^-1 y for all rows, a residual divided by its variance is an estimate of an entry of alpha; the
    correction resembles a step of a Schwarz iteration for the system of all rows.
    """

    weight: float
    shrink: float
    typical: float
    residuals: Float[Tensor, "n t"]
    spread: Float[Tensor, " n"]

    def moments(
        self,
        mean: Float[Tensor, "b t"],
        variance: Float[Tensor, " b"],
        prior: Float[Tensor, " b"],
        average: Float[Tensor, "b t"],
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
        """Corrected means and latent variances, where `average` is the mean residual."""
        return corrected_moments(self[:3], mean, variance, prior, average)

    def average(self, near: Int[Tensor, "b m"]) -> Float[Tensor, "b t"]:
        """The mean residual of neighbours."""
        return self.residuals[near].mean(1)

    def left_out(self, rows: Int[Tensor, " b"], near: Int[Tensor, "b m"]) -> Float[Tensor, "b t"]:
        """The mean residual of the neighbours of training rows, without these rows' own targets.

        Without row i, the residual of row j is about e_j + w_ji e_i, with w_ji the weight of y_i in
        the prediction of j. Two things are approximate: e_i is the residual given the neighbours of
        i, not of j, and `spread` adds up w_ji over all rows j, not over the neighbours of i alone.
        """
        own = self.spread[rows, None] / near.shape[1] * self.residuals[rows]
        return self.average(near) + own

    def with_room(self, n: int) -> Correction:
        """With rows that were added after the others, up to n in all, whose residuals are NaN."""
        more = n - len(self.spread)
        residuals = self.residuals.new_full((more, self.residuals.shape[1]), math.nan)
        return self._replace(
            residuals=torch.cat([self.residuals, residuals]),
            spread=torch.cat([self.spread, self.spread.new_zeros(more)]),
        )

    def add(self, rows: Int[Tensor, " b"], found: LeftOutRows, noise: Float[Tensor, " n"]) -> None:
        """Write the residuals of some rows, with the noise variances of all."""
        trust = _trust(self.typical, noise)
        self.residuals[rows] = trust[rows, None] * found.residuals
        near, weights = found.near.flatten(), (trust[rows, None] * found.weights).flatten()
        self.spread.index_add_(0, near, weights.to(self.spread) / trust[near])


def corrected_moments(
    numbers: tuple[float, float, float],
    mean: Float[Tensor, "b t"],
    variance: Float[Tensor, " b"],
    prior: Float[Tensor, " b"],
    average: Float[Tensor, "b t"],
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
    """`Correction.moments` by its first three numbers."""
    weight, shrink, typical = numbers
    size = size_of(variance, prior, typical)
    return mean + weight * size[:, None] * average, variance * (1 - (1 - shrink) * size)


def size_of(variance: Tensor, prior: Tensor, typical: float) -> Tensor:
    """The size of the correction, from 0 to 1.

    It is small far from all rows, where neighbours explain little of the prior variance, and at
    training rows, whose targets leave a variance below that of a leave-one-out prediction.
    """
    explained = (1 - variance / prior.clamp_min(torch.finfo(prior.dtype).tiny)).clamp(0, 1)
    return explained * (variance / typical).clamp(max=1)


def _trust(typical: float, noise: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """How much of a residual is not the row's own noise."""
    return typical / (typical + noise)


class Judged(NamedTuple):
    """What some left-out rows say about a correction.

    Attributes
    ----------
    weight, shrink : float
        As in `Correction`.
    evidence : float
        The weight in units of its standard error.
    gain, error : float
        The rise of the mean log density, and its standard error.
    share : float
        The variance of a row in units of that of one of its observations, of which it is the mean
        where rows are equal.
    """

    weight: float
    shrink: float
    evidence: float
    gain: float
    error: float
    share: float = 1.0


@dataclass(eq=False)
class LeaveOneOut:
    """Leave-one-out predictions, made for some rows after others.

    Attributes
    ----------
    model : Neighbors
    budget : Budget
        In which they have to be made.
    generator : torch.Generator
    seconds : float
        That a row takes; 0 if no row has been predicted.
    trial : Judged or None
        What 200 rows say, if there was a trial.
    known : Correction
        The residuals so far, NaN for other rows; with a weight of 1.
    variance, prior, factor : Tensor of shape (n,)
    """

    model: Neighbors
    budget: Budget
    generator: torch.Generator
    seconds: float = 0.0
    trial: Judged | None = None
    known: Correction = field(init=False)

    def __post_init__(self) -> None:
        Y = self.model.problem.Y
        self.variance, self.prior, self.factor = torch.full((3, len(Y)), math.nan).to(Y)
        self._noise, self._known_noise = self.model.noises(torch.arange(len(Y), device=Y.device))
        self.known = Correction(1.0, 1.0, 0.0, torch.full_like(Y, math.nan), Y.new_zeros(len(Y)))

    @property
    def promises(self) -> bool:
        """Whether the trial's weight is clearly positive.

        This is more certain than a gain in log density, to which single rows contribute much.
        """
        return self.trial is not None and self.trial.evidence > _PROMISE

    @property
    def gain(self) -> float:
        """The expected rise of the mean log density of an observation by the trial's weight.

        Half of the share of the squared errors that the weight explains, less what it would explain
        by chance; 0 without a trial, or if the time budget is too small to predict all rows.
        """
        missing = int(self.variance.isnan().sum())
        if not (self.promises and self.trial and self.budget.allows(missing * self.seconds)):
            return 0.0
        explained = (self.trial.evidence**2 - 1) / min(_TRIED, len(self.variance))
        return 0.5 * self.trial.share * explained

    def try_some(self) -> None:
        """Judge 200 rows, if their neighbours are few enough for this to save time."""
        rows = self._some(_TRIED)
        needed = torch.cat([rows, self.model.others(rows).flatten()]).unique()
        if len(needed) <= _TRIAL_SHARE * len(self.variance) and self.predict(needed):
            self.trial = self.judge(rows)

    def find(self) -> tuple[Correction | None, str]:
        """The correction, unless it does not raise the log density clearly, and the reason.

        Costs a prediction of every training row.
        """
        if self.trial is None:
            self.try_some()
        if self.trial is not None and not self.promises:
            errors = f"{self.trial.evidence:.1f} standard errors"
            return None, f"a trial of {_TRIED} rows gave it a weight of {errors}"
        if not self.predict(self.variance.isnan().nonzero()[:, 0]):
            return None, "the time budget is too small to predict every row"
        best = self.judge(self._some(_JUDGED))
        why = f"it changes the log density of leave-one-out predictions by {best.gain:+.4f}"
        if not best.gain > _DOUBT * best.error:
            return None, why
        return self.known._replace(weight=best.weight, shrink=best.shrink), why

    def predict(self, rows: Int[Tensor, " b"]) -> bool:
        """Whether there was time to leave out these rows.

        The first of them are random rows, which give the typical variance. Close rows follow each
        other then, since this makes the search faster.
        """
        rows, done = rows[torch.randperm(len(rows), generator=self.generator).to(rows.device)], 0
        first = 0 if self.seconds else _FIRST
        rows = torch.cat([rows[:first], self.model.ordered(rows[first:])])
        while done < len(rows):
            if not self.budget.allows((len(rows) - done) * self.seconds):
                return False
            start, size = self.budget.seconds, _CHUNK if self.seconds else _FIRST
            part = rows[done : done + size]
            self._add(part, self.model.left_out(part))
            done += len(part)
            self.seconds = (self.budget.seconds - start) / len(part)
        return True

    def _add(self, rows: Int[Tensor, " b"], found: LeftOutRows) -> None:
        self.variance[rows], self.prior[rows], self.factor[rows] = found[1:4]
        if not self.known.typical:
            least = torch.finfo(torch.float32).eps * found.prior.mean() + 1e-300
            typical = float(torch.maximum(found.variance.mean(), least))
            self.known = self.known._replace(typical=typical)
        self.known.add(rows, found, self._noise + self._known_noise)

    def judge(self, rows: Int[Tensor, " s"]) -> Judged:
        """The weight by least squares, then the factor by the log density of these left-out rows.

        Predictions without correction are scaled first, so that the factor only tells what the
        correction explains, and a gain is one of means.
        """
        v, factor, typical = self.variance[rows], self.factor[rows], self.known.typical
        noise, known = self._noise[rows], self._known_noise[rows]
        e = self.known.residuals[rows] / _trust(typical, noise + known)[:, None]
        size = size_of(v, self.prior[rows], typical)
        A = size[:, None] * self.known.left_out(rows, self.model.others(rows))
        total = factor * (v + noise) + known
        # A kernel without noise predicts copies of other rows without any variance.
        floor = torch.finfo(torch.float32).eps * total.mean()
        whole = torch.maximum(total, floor)[:, None]
        norm, products = float((A.square() / whole).sum()), (A * e / whole).sum(1)
        weight = float(products.sum()) / norm if norm > 0 else 0.0
        evidence = float(products.sum() / products.norm()) if norm > 0 else 0.0

        def losses(log_scale: float, log_shrink: float, error: Tensor) -> Tensor:
            latent = v * (1 - (1 - math.exp(log_shrink)) * size)
            total = torch.maximum(math.exp(log_scale) * factor * (latent + noise) + known, floor)
            return 0.5 * (error.square().mean(1) / total + total.log())

        scale, before = _best(lambda at: losses(at, 0.0, e), _MOST_FACTOR)
        shrink, after = _best(lambda at: losses(scale, at, e - weight * A), 0.0)
        gains = before - after
        error = float(gains.std(correction=0)) / len(gains) ** 0.5
        share, repeats = 1.0, self.model.problem.repeats
        if repeats is not None:
            single = total + (repeats.counts[rows] - 1) * (factor * noise + known)
            share = float((total / single).mean())
        return Judged(weight, math.exp(shrink), evidence, float(gains.mean()), error, share)

    def _some(self, count: int) -> Int[Tensor, " s"]:
        return random_rows(len(self.variance), count, self.generator).to(self.variance.device)


def _best(loss: Callable[[float], Tensor], most: float) -> tuple[float, Tensor]:
    """The logarithm of a factor, at most this, with the smallest mean loss, and its losses."""
    at = float(
        minimize_scalar(
            lambda at: float(loss(at).mean()), bounds=(-_MOST_FACTOR, most), method="bounded"
        ).x
    )
    return at, loss(at)
