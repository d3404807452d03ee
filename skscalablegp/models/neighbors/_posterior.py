"""Predictions from the nearest training rows, one row at a time or jointly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...core.posteriors import (
    Draws,
    Inputs,
    MeanAndVariance,
    MeanDraws,
    Moments,
    Moved,
    Posterior,
    PosteriorModule,
    normal,
    prior_draws,
    reported_variance,
)
from ...kernels import NotExportable
from ...linalg.gradients import GPProblem
from ...workers import workers
from ._local import (
    Predicted,
    Shared,
    chain,
    coarse_to_fine,
    dual_weights,
    left_out_moments,
    predict,
)
from ._metric import Index, Metric, others_near
from ._module import Calibrated, NeighborModule
from ._objectives import Scaled, local_factor
from ._wide import (
    Correction,
    LeftOutRows,
    OwnRow,
    WideNeighborhoods,
    corrected_moments,
    n_combined,
    nearest_centres,
)

# By how much single precision may move a row, in the metric of the kernel.
_MOST_MOVED = 1e-4
# Training rows at which draws of the prior are evaluated at a time.
_DRAWN_ROWS = 4096


class NeighborPosterior(Posterior):
    """Each row given its nearest training rows; for joint predictions also given other new rows.

    Parameters
    ----------
    problem : GPProblem
        All training rows, in double precision.
    scaled : Scaled
        Log hyperparameters; the power of `local_factor`, by which variances and noise are
        multiplied; and the factor by which the kernel was multiplied after it had been chosen.
    n_neighbors : int
        Training rows from which a row is predicted.
    precision : torch.dtype
        Of the small systems. Variances that single precision cannot resolve are computed in double
        precision in any case.
    shared : Shared or None, default=None
        A process that all rows share; neighbours then predict what it leaves.
    n_jobs : int or None, default=None
        Number of processes that share the predictions, as in joblib. Each one has an index of its
        own.

    Attributes
    ----------
    correction : Correction or None
        The correction of predictions by wide neighbourhoods; None without one.
    """

    def __init__(
        self,
        problem: GPProblem,
        scaled: Scaled,
        n_neighbors: int,
        precision: torch.dtype,
        shared: Shared | None = None,
        n_jobs: int | None = None,
    ):
        self.problem, self._scaled, self.n_neighbors = problem, scaled, n_neighbors
        self._theta, self._precision = scaled.theta, precision
        self._n_jobs, self._shared, self.correction = n_jobs, shared, None
        self._centres: Index | None = None
        self._wide_rows: Tensor | None = None
        self._metric = Metric(problem.kernel, self._theta, problem.X)
        self._index = Index(self._metric.points)
        # New rows are taken in double precision, so that differences between close rows keep their
        # digits.
        self.dtype, self.device = torch.float64, problem.X.device
        self.width = 4 * n_neighbors + (0 if shared is None else 2 * len(shared.mean))

    def plus(self, problem: GPProblem, n_new: int) -> NeighborPosterior:
        """The posterior after `n_new` rows were added, which are the last rows of `problem`."""
        new = problem.X[-n_new:]
        if self._metric.covers(new):
            more = copy(self)
            more.problem, more._index = problem, self._index.plus(self._metric(new))
        else:
            settings = self._scaled, self.n_neighbors, self._precision
            more = NeighborPosterior(problem, *settings, n_jobs=self._n_jobs)
        return more.corrected(self.correction)

    def corrected(self, correction: Correction | None) -> NeighborPosterior:
        """The same with a correction, which other processes receive with it."""
        if correction is None:
            return self
        other = copy(self)
        other.correction = correction
        other._prepare_wide()
        return other

    def _prepare_wide(self) -> None:
        """What predictions with a correction need beside it."""
        if self.correction is None:
            return
        groups = self.correction.wide.groups
        points = self.points(self.problem.X[groups.flatten().long()])
        self._centres = Index(points.reshape(*groups.shape, -1).mean(1))
        self._wide_rows = self._rows_for(self.correction.wide)

    def _rows_for(self, wide: WideNeighborhoods) -> Float[Tensor, "n d"]:
        """The training rows in the precision of the weights, if it resolves their coordinates."""
        X, precision = self.problem.X, wide.weights.dtype
        moved = self._metric(X * (1 + torch.finfo(precision).eps)) - self._metric(X)
        return X.to(precision) if np.abs(moved).max() < _MOST_MOVED else X

    def rescaled(self, scaled: Scaled, n_neighbors: int) -> NeighborPosterior:
        """The same with a multiple of the kernel, and another number of neighbours."""
        other = copy(self)
        other._scaled, other._theta, other.n_neighbors = scaled, scaled.theta, n_neighbors
        other.width = self.width + 4 * (n_neighbors - self.n_neighbors)
        return other

    def solved(self, near: Int[Tensor, "b m"]) -> Float[Tensor, "b m t"]:
        """Dual weights of the rows of neighbourhoods, whose first row is the nearest one."""
        return next(self._shared_out(NeighborPosterior._own_solved, near))

    def _own_solved(self, near: Int[Tensor, "b m"]) -> tuple[Float[Tensor, "b m t"]]:
        near, X = near.to(self.device), self.problem.X
        # Coordinates are relative to the nearest row.
        given = self.problem, self._theta, X[near[:, 0]], near, self._precision
        return (dual_weights(*given),)

    def points(self, X: Float[Tensor, "b d"]) -> Float[np.ndarray, "b q"]:
        """Rows in the metric of the kernel."""
        return self._metric(X)

    def __getstate__(self) -> dict[str, Any]:
        """Without the index, which another process makes from the rows."""
        state = dict(vars(self))
        del state["_metric"], state["_index"], state["_centres"], state["_wide_rows"]
        return state | {"in metric": len(self._metric.points), "in tree": self._index.n_in_tree}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known, in_tree = state.pop("in metric"), state.pop("in tree")
        vars(self).update(state)
        X = self.problem.X
        self._metric = Metric(self.problem.kernel, self._theta, X[:known])
        points = np.concatenate([self._metric.points, self._metric(X[known:])])
        self._index = Index(points[:in_tree]).plus(points[in_tree:])
        self._centres = self._wide_rows = None
        self._prepare_wide()

    def _near(self, X: Float[Tensor, "b d"]) -> Int[Tensor, "b m"]:
        _, near = self._index.nearest(self._metric(X), self.n_neighbors)
        return torch.as_tensor(near).to(X.device)

    def mean(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
        return self.moments(X).mean

    def moments(self, X: Float[Tensor, "b d"]) -> Moments:
        return Moments(*self._shared_out(NeighborPosterior._moments, X))

    def _shared_out(self, work: Callable[..., Sequence[Tensor]], *rows: Tensor) -> Iterator[Tensor]:
        """The answers of all processes, each for its part of the rows."""
        by = workers(self, len(rows[0]), self._n_jobs, device=self.device)
        found = by.call(work, along=rows)
        return map(torch.cat, zip(*found, strict=True))

    def _moments(self, X: Float[Tensor, "b d"]) -> Moments:
        found, factor = self._alone(X, self._near(X))
        mean, variance = self._corrected(found, X)
        return Moments(mean, factor * variance, factor * self._white(X))

    def _corrected(
        self, found: Predicted, X: Float[Tensor, "b d"], rows: Int[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
        """Means and latent variances, corrected if there is a correction.

        Training rows have numbers, so that their own targets do not count.
        """
        if self.correction is None or self._centres is None:
            return found.mean, found.variance
        own, (*numbers, wide, _) = None, self.correction
        if rows is not None:
            variance = self.correction.shrink * found.variance
            variance = variance + self.problem.noise(self._theta, rows)
            own = OwnRow(rows, self.problem.Y[rows], variance)
        mean = self.wide_mean(wide, self._centres, X, own)
        return corrected_moments(tuple(numbers), found.mean, found.variance, self._prior(X), mean)

    def wide_mean(
        self,
        wide: WideNeighborhoods,
        centres: Index,
        X: Float[Tensor, "b d"],
        own: OwnRow | None = None,
    ) -> Float[Tensor, "b t"]:
        """The mean from wide neighbourhoods, with an index of their centres."""
        near, shares = nearest_centres(centres, self.points(X), n_combined(wide))
        table = self._rows_for(wide) if self._wide_rows is None else self._wide_rows
        given = self.problem.kernel, self._theta, table, X
        return wide.mean(*given, near.to(X.device), shares.to(X), own)

    def _alone(
        self, X: Float[Tensor, "b d"], near: Int[Tensor, "b k"]
    ) -> tuple[Predicted, Float[Tensor, " b"] | float]:
        """Predictions, and the factors by which variances and noise are multiplied."""
        local = self._scaled.power > 0
        settings = self._precision, local, self._shared
        found = predict(self.problem, self._theta, X, near, *settings)
        # Errors are measured in the units of the kernel with which the power was chosen.
        surprise = self._scaled.scale * found.surprise
        factor = local_factor(surprise, self._scaled.power) if local else 1.0
        return found._replace(variance=reported_variance(found.variance, self._prior(X))), factor

    def _prior(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.problem.kernel.diag(self._theta, X)

    # ------------------------------------------------------------------ left-out rows

    def noises(self, rows: Int[Tensor, " b"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """The variances of the kernel's noise and of known noise at training rows."""
        some = self.problem.rows.take(rows)
        return some.noise_of_means(self._white(some.X)), some.noise_of_means(some.noise)

    def left_out(self, rows: Int[Tensor, " b"]) -> LeftOutRows:
        """Training rows predicted from their nearest others, without correction."""
        return LeftOutRows(*self._shared_out(NeighborPosterior._own_rows, rows))

    def _own_rows(self, rows: Int[Tensor, " b"]) -> LeftOutRows:
        X = self.problem.X[rows]
        near = others_near(self._index, self._metric(X), rows, self.n_neighbors)
        found, factor = self._alone(X, near)
        prior = self._prior(X)
        factor = torch.as_tensor(factor).to(prior).expand_as(prior)
        return LeftOutRows(self.problem.Y[rows] - found.mean, found.variance, prior, factor)

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance:
        """Each row given its nearest others, at the cost of a prediction."""
        return tuple(self._shared_out(NeighborPosterior._own_left_out, rows, X, Y, known))

    def _noise_left_out(self, rows, X):
        # Without themselves, rows have other local errors.
        white = self._white(X)
        return self.left_out(rows).factor * white if self._scaled.power else white

    def _own_left_out(self, rows: Tensor, X: Tensor, Y: Tensor, known: Tensor) -> MeanAndVariance:
        near = others_near(self._index, self._metric(X), rows, self.n_neighbors)
        found, factor = self._alone(X, near)
        white = self._white(X)
        mean, variance = self._corrected(found, X, rows)
        if self._shared is not None:
            mean, variance = left_out_moments(found, Y, white + known)
        # Known noise is not multiplied.
        return mean, factor * (variance + white) + known

    def _white(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """The variance of the kernel's white noise in training."""
        return self.problem.kernel.noise(self._theta, X)

    def noise(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.moments(X).noise if self._scaled.power else self._white(X)

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With all training rows, among which it searches one by one."""
        return self._module(self.correction)

    def _module(self, correction: Correction | None) -> NeighborModule:
        if self._shared is not None:
            raise NotExportable(
                "Neighbours with inducing points have no form as a torch module: fit "
                "NNGPRegressor with n_inducing='auto', which takes none."
            )
        given = self._scaled, self._metric, self.n_neighbors, correction
        return NeighborModule(self.problem, *given)

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """g(x) plus the prediction from y - g(rows) - noise of the nearest rows, for prior draws g.

        Deviations are multiplied by the factors of local errors and of the correction.
        """
        t, module = self.problem.Y.shape[1], self._module(None)
        prior = prior_draws(self.problem.kernel, self._theta, (t, n_samples), generator)
        rows = torch.arange(len(module.rows)).split(_DRAWN_ROWS)
        with torch.no_grad():
            g = torch.cat([prior(module.rows[part]) for part in rows])
        g += module.known.sqrt()[:, None, None] * normal(*g.shape, generator=generator)
        module.targets = (module.targets[:, :, None] - g).flatten(1)
        draws = Moved(prior, MeanDraws(module, (t, n_samples)))
        if self.correction is None and self._scaled.power == 0:
            return draws
        return Calibrated(draws, self._module(self.correction))

    def covariance(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        """Correlations from Vecchia's approximation; the variances are those of single rows."""
        half = self._mean_and_half(X)[1]
        return half @ half.T

    def _mean_and_half(
        self, X: Float[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b s"]]:
        """The mean, and a matrix B with covariance B B'; O(b^3 / 3)."""
        mean, variance, _ = self._moments(X)
        given = self.problem, self._theta, X, self._near(X)
        half = chain(*given, *self._earlier(X), self._shared)
        length = half.norm(dim=1)
        scale = torch.where(length > 0, variance.sqrt() / length.clamp_min(1e-300), 0.0)
        return mean, half * scale[:, None]

    def _earlier(
        self, X: Float[Tensor, "b d"]
    ) -> tuple[Int[Tensor, " b"], Int[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """An order of the rows, and the nearest earlier rows of each, as `chain` takes them."""
        points = torch.as_tensor(self._metric(X))
        order, away = coarse_to_fine(points[None])[0], torch.cdist(points, points)
        place = order.argsort()
        away[place[:, None] <= place] = torch.inf
        found = away.topk(min(self.n_neighbors, len(X)), largest=False)
        return tuple(a.to(X.device) for a in (order, found.indices, found.values.isfinite()))

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        mean, half = self._mean_and_half(X)
        t = mean.shape[1]
        n, m = half.shape
        white = torch.as_tensor(random_state.standard_normal((n + m, t * n_samples)))
        noisy = self.noise(X).sqrt()[:, None] * white[m:].to(X)
        return mean[:, :, None] + (half @ white[:m].to(X) + noisy).reshape(n, t, n_samples)
