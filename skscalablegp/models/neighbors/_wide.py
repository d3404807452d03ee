"""Wide neighbourhoods, from which the fit prepares predictions that few neighbours correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...core.posteriors import half_solved
from ...core.training import Budget
from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem
from ...linalg.operators import kernel_between_sets
from ._local import run_all
from ._metric import Index

# The nearest centres, whose predictions are combined: at least, at most, and so many that their
# neighbourhoods have this number of rows in all, which determines the time of a prediction. On
# held-out training rows of kin40k and on drawn rows of ten columns, 4 to 8 were about as good, and
# 12 worse.
_FEWEST, _MOST, _COMBINED = 4, 6, 6000
# Ridge of the shares relative to the mean squared distance of the centres.
_RIDGE = 0.3
# Rows of a group, in units of the square root of the rows of its neighbourhood: 17 for 1,000, so
# that 60 neighbourhoods contain an average row.
_GROUP = 0.53
# Rows that are held out of all neighbourhoods, at most and as a share of the table, and how many of
# them come first, before the work.
_HELD_OUT, _HELD_SHARE, _TRIED = 1000, 0.1, 200
# The trial takes place if it needs at most this share of the neighbourhoods.
_TRIAL_SHARE = 0.25
# The weight in units of its standard error from which the work begins after a trial, and from which
# wide neighbourhoods are used. The weight is more certain than a gain in log density, to which
# single rows contribute much.
_PROMISE, _CERTAIN = 1.0, 3.0
# The gain in log density of a row, in nats, that is worth the time of predictions.
_WORTH = 0.005
# Largest absolute logarithm of a factor of variances.
_MOST_FACTOR = 3.0
# Neighbourhoods that are solved at first, which show how long one takes, and then at a time. Fewer
# are not shared among processes.
_FIRST, _CHUNK = 64, 256
# Share of the time left that the work is planned to take at most, and the least rows of a
# neighbourhood, in units of the neighbours of a prediction, for which it is worth doing.
_SPARED, _LEAST = 0.8, 2
# Variances below this share of the typical one are those of training rows.
_OWN = 0.05
# Numbers that are gathered at a time; on a CPU, few enough for the cache of a core.
_GATHERED, _GATHERED_ON_GPU = 2**19, 2**27


@runtime_checkable
class Neighbors(Protocol):
    """A model that predicts rows from their nearest others; see `NeighborPosterior`."""

    problem: GPProblem
    n_neighbors: int

    def solved(self, near: Int[Tensor, "b m"]) -> Float[Tensor, "b m t"]:
        """Dual weights of the rows of neighbourhoods."""

    def points(self, X: Float[Tensor, "b d"]) -> Float[np.ndarray, "b q"]:
        """Rows in the metric of the kernel."""

    def left_out(self, rows: Int[Tensor, " b"]) -> LeftOutRows:
        """Predictions of rows from the nearest others, without correction."""

    def noises(self, rows: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
        """The variances of the kernel's noise and of known noise, each divided by the counts."""

    def wide_mean(
        self, wide: WideNeighborhoods, centres: Index, X: Float[Tensor, "b d"]
    ) -> Float[Tensor, "b t"]:
        """The mean from wide neighbourhoods."""


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
    """

    residuals: Float[Tensor, "b t"]
    variance: Float[Tensor, " b"]
    prior: Float[Tensor, " b"]
    factor: Float[Tensor, " b"]


class OwnRow(NamedTuple):
    """What leaves training rows out of neighbourhoods that contain them.

    Attributes
    ----------
    row : Tensor of shape (b,)
        Their numbers.
    target : Tensor of shape (b, t)
    variance : Tensor of shape (b,)
        Of their targets given all other rows.
    """

    row: Int[Tensor, " b"]
    target: Float[Tensor, "b t"]
    variance: Float[Tensor, " b"]


class WideNeighborhoods(NamedTuple):
    """Exact Gaussian processes of the m nearest rows of c centres.

    Attributes
    ----------
    groups : Tensor of shape (c, s)
        Numbers of close training rows. Their mean, in the metric of the kernel, is a centre. Such
        means are more evenly spaced than single rows.
    rows : Tensor of shape (c, m)
        Numbers of the rows.
    weights : Tensor of shape (c, m, t)
        Their dual weights H^-1 Y.
    """

    groups: Int[Tensor, "c s"]
    rows: Int[Tensor, "c m"]
    weights: Float[Tensor, "c m t"]

    def mean(
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        table: Float[Tensor, "n d"],
        X: Float[Tensor, "b d"],
        near: Int[Tensor, "b k"],
        shares: Float[Tensor, "b k"],
        own: OwnRow | None = None,
    ) -> Float[Tensor, "b t"]:
        """The predictions of k neighbourhoods for each row, times the shares, added up.

        Correlations are computed in the precision of the table, which has the training rows.

        With `own`, the rows are training rows, whose targets do not count. If a neighbourhood
        contains a row with the weight a, its prediction without the row is y - a v, with v the
        variance of y given the others (Rasmussen and Williams, 2006, equation 5.12). The
        neighbourhood's own v would cost a matrix inverse; the one given is that of few neighbours
        and a little larger.
        """
        (k, m, t), d = (near.shape[1], *self.weights.shape[1:]), X.shape[1]
        most = _GATHERED if X.device.type == "cpu" else _GATHERED_ON_GPU
        step = max(1, most // (k * m * (d + t)))
        out = X.new_empty(len(X), t)

        def write(start: int) -> None:
            some = slice(start, start + step)
            numbers, some_X = near[some].flatten(), X[some, None].to(table)
            rows, a = (part.index_select(0, numbers) for part in (self.rows, self.weights))
            Z = table.index_select(0, rows.flatten()).unflatten(0, (len(some_X), k * m))
            K = kernel_between_sets(kernel, theta, some_X, Z)
            rows, a = rows.unflatten(0, (-1, k)), a.to(X).unflatten(0, (-1, k))
            found = (K.unflatten(2, (k, m)).movedim(1, 3) * a).sum(2)
            if own is not None:
                same = (rows == own.row[some, None, None])[:, :, :, None]
                weight = (a * same).sum(2)
                left = own.target[some, None] - weight * own.variance[some, None, None]
                found = torch.where(same.any(2), left, found)
            out[some] = (shares[some, :, None] * found).sum(1)

        run_all(write, range(0, len(X), step), X.device)
        return out


def combination(offsets: Float[Tensor, "b k q"]) -> Float[Tensor, "b k"]:
    """Shares of k neighbourhoods whose centres lie this far from a row; their sum is one.

    They minimise the squared length of the mean offset plus a ridge times the sum of their squares.
    Rows on one side of a centre are missing from predictions far on the other side; around the row,
    such errors have opposite signs.
    """
    gram = offsets @ offsets.mT
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # Rows in multiples of the mean squared distance, so that no number is near overflow.
    size = diagonal.mean(1).clamp_min(torch.finfo(gram.dtype).tiny)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    ones = torch.ones_like(gram[:, :, :1])
    half = half_solved(
        gram / size[:, None, None] + _RIDGE * eye,
        torch.cat([eye.expand_as(gram), ones], 2),
        ones[:, 0, 0],
    )
    shares = (half[:, :, :-1].mT @ half[:, :, -1:])[:, :, 0]
    return shares / shares.sum(1, keepdim=True)


class Correction(NamedTuple):
    """A multiple of how wide neighbourhoods differ from a prediction, added to it.

    Attributes
    ----------
    weight : float
        By which the difference of the means is multiplied.
    shrink : float
        Factor of the latent variance where the correction has its full size.
    typical : float
        Mean latent variance of held-out rows.
    wide : WideNeighborhoods
    n_rows : int
        Rows of the table in the fit.
    """

    weight: float
    shrink: float
    typical: float
    wide: WideNeighborhoods
    n_rows: int

    def arrays(self) -> tuple:
        """Numbers and arrays, of which `from_arrays` makes the correction again."""
        return *self[:3], *(part.cpu().numpy() for part in self.wide), self.n_rows

    @classmethod
    def from_arrays(cls, kept: tuple, device: torch.device) -> Correction:
        wide = WideNeighborhoods(*(torch.as_tensor(part).to(device) for part in kept[3:-1]))
        return cls(*kept[:3], wide, kept[-1])


def corrected_moments(
    numbers: tuple[float, float, float],
    mean: Float[Tensor, "b t"],
    variance: Float[Tensor, " b"],
    prior: Float[Tensor, " b"],
    wide: Float[Tensor, "b t"],
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
    """Means and latent variances, corrected by means from wide neighbourhoods.

    The numbers are the first three of a `Correction`.
    """
    weight, shrink, typical = numbers
    size = size_of(variance, prior, typical)
    return mean + weight * size[:, None] * (wide - mean), variance * (1 - (1 - shrink) * size)


def size_of(variance: Tensor, prior: Tensor, typical: float) -> Tensor:
    """The size of the correction, from 0 to 1.

    It is small far from all rows, where neighbours explain little of the prior variance, and at
    training rows of little noise, whose targets leave hardly any variance.
    """
    explained = (1 - variance / prior.clamp_min(torch.finfo(prior.dtype).tiny)).clamp(0, 1)
    return explained * variance / (variance + _OWN * typical)


class Judged(NamedTuple):
    """What some held-out rows say about wide neighbourhoods.

    Attributes
    ----------
    weight, shrink, typical : float
        As in `Correction`.
    evidence : float
        The weight in units of its standard error.
    before, after : float
        The mean log density without and with the correction, in the unit of the training targets.
    """

    weight: float
    shrink: float
    typical: float
    evidence: float
    before: float
    after: float

    @property
    def gain(self) -> float:
        """The rise of the mean log density."""
        return self.after - self.before

    @property
    def clear(self) -> bool:
        """Whether predictions gain enough, and the rows are enough to be certain of it."""
        return self.evidence >= _CERTAIN and self.gain >= _WORTH

    @property
    def said(self) -> str:
        """The weight for a report."""
        error = abs(self.weight) / max(abs(self.evidence), 1e-300)
        return f"their weight was {self.weight:.2f} with a standard error of {error:.2f}"


@dataclass(eq=False)
class WideFit:
    """Solves wide neighbourhoods, and judges predictions from them by rows held out of all.

    Attributes
    ----------
    base : Neighbors
        A model of all rows with the hyperparameters by which they are solved.
    models : sequence of Neighbors
        Models whose predictions are corrected, with different numbers of neighbours. Their kernels
        are multiples of that of `base`.
    best : int
        Which of them is best without correction.
    n_wide : int
        Rows of a neighbourhood; fewer if the budget does not allow so many.
    budget : Budget
        In which they have to be solved.
    generator : torch.Generator
    dtype : torch.dtype
        Of the dual weights.
    """

    base: Neighbors
    models: Sequence[Neighbors]
    best: int
    n_wide: int
    budget: Budget
    generator: torch.Generator
    dtype: torch.dtype

    def __post_init__(self) -> None:
        n, device = len(self.base.problem.Y), self.base.problem.Y.device
        order = torch.randperm(n, generator=self.generator).to(device)
        held_out = min(_HELD_OUT, max(1, int(_HELD_SHARE * n)))
        self.held_out, self._kept = order[:held_out], order[held_out:]
        self._points = self.base.points(self.base.problem.X[self._kept])
        self._index = Index(self._points)
        self._begin(self.n_wide)

    def _begin(self, n_wide: int) -> None:
        """Neighbourhoods of so many rows, none of which is solved."""
        kept, Y = self._kept, self.base.problem.Y
        m = min(n_wide, len(kept))
        points = self._points
        # All rows are one neighbourhood.
        size = len(kept) if m == len(kept) else max(1, round(_GROUP * m**0.5))
        groups = close_rows(points, size)
        self._centres = Index(points[groups].mean(1))
        rows = torch.full((len(groups), m), -1, dtype=torch.int32, device=Y.device)
        weights = torch.zeros(*rows.shape, Y.shape[1], dtype=self.dtype, device=Y.device)
        self.wide = WideNeighborhoods(kept[torch.as_tensor(groups).to(kept)].int(), rows, weights)

    def find(self) -> tuple[list[Judged], str]:
        """What all held-out rows say about the correction of each model, or nothing and why."""
        late: tuple[list[Judged], str] = [], "the time budget is too small"
        if not self._fits():
            return late
        some, c = torch.arange(min(_TRIED, len(self.held_out))), len(self.wide.rows)
        X = self.base.problem.X[self.held_out[some]]
        given = self._centres, self.base.points(X), n_combined(self.wide)
        needed = nearest_centres(*given)[0].unique()
        if len(needed) <= _TRIAL_SHARE * c:
            if not self._solve(needed):
                return late
            (trial,) = self.judge(some, self.models[self.best])
            if trial.evidence <= _PROMISE:
                return [], f"in a trial of {len(some)} rows {trial.said}"
        if not self._solve(torch.arange(c)):
            return late
        return self.judge(torch.arange(len(self.held_out)), *self.models), ""

    def correction(self, judged: Judged, scale: float) -> Correction:
        """That of a model whose kernel is this multiple of the one by which they were solved."""
        wide = self.wide
        if scale != 1.0:
            wide = wide._replace(weights=wide.weights / scale)
        n = len(self.base.problem.X)
        return Correction(judged.weight, judged.shrink, judged.typical, wide, n)

    def why(self, judged: Judged) -> str:
        """Why they are used or not, for a report."""
        rows = f"{len(self.held_out):,} held-out rows"
        why = f"they change the log density of {rows} by {judged.gain:+.4f}"
        return why if judged.evidence >= _CERTAIN else f"{why}, but {judged.said}"

    def _fits(self) -> bool:
        """Whether there is time; the rows of a neighbourhood are reduced if that gives enough.

        The time grows with their number to the power of 2.5, since larger neighbourhoods are fewer.
        """
        start, c = self.budget.seconds, len(self.wide.rows)
        first = torch.randperm(c, generator=self.generator)[:_FIRST]
        if not self._solve(first):
            return False
        each, left = (self.budget.seconds - start) / len(first), self.budget.left
        needed = each * c
        if left is None or needed < _SPARED * left:
            return True
        fewer = int(self.wide.rows.shape[1] * (_SPARED * left / needed) ** 0.4)
        if fewer < _LEAST * self.models[self.best].n_neighbors:
            return False
        self._begin(fewer)
        return True

    def _solve(self, numbers: Int[Tensor, " b"]) -> bool:
        """Whether there was time to solve these neighbourhoods, except those that are solved."""
        (rows, weights), means = self.wide[1:], self._centres.points
        numbers = numbers[(rows[numbers.to(rows.device), 0] < 0).cpu()]
        for part in numbers.sort().values.split(_CHUNK):
            if not self.budget.allows(0.0):
                return False
            _, found = self._index.nearest(means[part.numpy()], rows.shape[1])
            near, part = self._kept[torch.as_tensor(found).to(self._kept)], part.to(rows.device)
            rows[part], weights[part] = near.int(), self.base.solved(near.cpu()).to(self.dtype)
        return True

    def judge(self, some: Int[Tensor, " s"], *models: Neighbors) -> list[Judged]:
        """What these held-out rows say about the correction of each model."""
        rows = self.held_out[some]
        wide = self.base.wide_mean(self.wide, self._centres, self.base.problem.X[rows])
        return [judged(model, rows, wide) for model in models]


def judged(model: Neighbors, rows: Int[Tensor, " s"], wide: Float[Tensor, "s t"]) -> Judged:
    """The weight by least squares, then the factor by the log density of these held-out rows.

    Predictions without correction are scaled first, so that the factor only tells what the
    correction explains, and a gain is one of means.
    """
    e, v, prior, factor = model.left_out(rows)
    Y = model.problem.Y[rows]
    noise, known = model.noises(rows)
    least = torch.finfo(torch.float32).eps * prior.mean() + 1e-300
    typical = float(torch.maximum(v.mean(), least))
    size = size_of(v, prior, typical)
    A = size[:, None] * (wide - (Y - e))
    total = factor * (v + noise) + known
    # A kernel without noise predicts copies of other rows without any variance.
    floor = torch.finfo(torch.float32).eps * total.mean()
    whole = torch.maximum(total, floor)[:, None]
    norm, products = float((A.square() / whole).sum()), (A * e / whole).sum(1)
    weight = float(products.sum()) / norm if norm > 0 else 0.0
    scores = (A * (e - weight * A) / whole).sum(1)
    evidence = weight * norm / max(float(scores.norm()), 1e-300)

    def losses(log_scale: float, log_shrink: float, error: Tensor) -> Tensor:
        latent = v * (1 - (1 - math.exp(log_shrink)) * size)
        total = torch.maximum(math.exp(log_scale) * factor * (latent + noise) + known, floor)
        return 0.5 * (error.square().mean(1) / total + (2 * math.pi * total).log())

    scale, before = _best(lambda at: losses(at, 0.0, e), _MOST_FACTOR, e.numel())
    shrink, after = _best(lambda at: losses(scale, at, e - weight * A), 0.0, e.numel())
    found = weight, math.exp(shrink), typical, evidence
    return Judged(*found, -float(before.mean()), -float(after.mean()))


def close_rows(points: Float[np.ndarray, "n q"], size: int) -> Int[np.ndarray, "c s"]:
    """Numbers of points in groups of this size, which are close to each other.

    These are the leaves of a tree whose nodes are split in their widest dimension. Neighbouring
    groups tend to be close. Up to ``size - 1`` points are in no group.
    """
    groups, left = [], [np.arange(len(points) // size * size)]
    while left:
        rows = left.pop()
        if len(rows) == size:
            groups.append(rows)
            continue
        part, half = points[rows], len(rows) // size // 2 * size
        order = part[:, np.ptp(part, axis=0).argmax()].argpartition(half)
        left += [rows[order[half:]], rows[order[:half]]]
    return np.array(groups)


def n_combined(wide: WideNeighborhoods) -> int:
    """From how many neighbourhoods a row is predicted."""
    c, m = wide.rows.shape
    return min(c, max(_FEWEST, min(_MOST, _COMBINED // m)))


def nearest_centres(
    centres: Index, points: Float[np.ndarray, "b q"], count: int
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    """The numbers of the nearest centres of each point, and their shares."""
    near = centres.nearest(points, count)[1]
    offsets = torch.as_tensor(centres.points[near] - points[:, None])
    return torch.as_tensor(near), combination(offsets)


def _best(loss: Callable[[float], Tensor], most: float, n_errors: int) -> tuple[float, Tensor]:
    """The logarithm of a factor, at most this, with the smallest mean loss, and its losses.

    It has a standard normal prior beside so many errors, so that it is no factor where noise hides
    what it multiplies.
    """

    def cost(at: float) -> float:
        return float(loss(at).mean()) + 0.5 * at**2 / n_errors

    at = float(minimize_scalar(cost, bounds=(-_MOST_FACTOR, most), method="bounded").x)
    return at, loss(at)
