"""Predictions from the nearest rows, and what joins them for several rows at once."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.posteriors import MeanAndVariance, Posterior, reported_variance
from ...linalg.gradients import GPProblem
from ._local import chain, predict
from ._metric import Index, Metric


class NeighborPosterior(Posterior):
    """Each row given its nearest training rows; several rows also given each other.

    Parameters
    ----------
    problem : GPProblem
        All training rows, in double precision.
    theta : Tensor of shape (p,)
        Hyperparameters.
    n_neighbors : int
    dtype : torch.dtype
        Of the small systems; variances that single precision does not resolve are double in any
        case.
    """

    def __init__(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        n_neighbors: int,
        dtype: torch.dtype,
    ):
        self._problem, self._theta, self._m = problem, theta, n_neighbors
        self._precision = dtype
        self._metric = Metric(problem.kernel, theta, problem.X)
        self._index = Index(self._metric.points)
        # Rows come in double precision: their differences are what single precision can hold.
        self.dtype, self.device = torch.float64, problem.X.device
        self.width = 4 * n_neighbors

    def plus(self, problem: GPProblem, n_new: int) -> NeighborPosterior:
        """The same with further rows, the last `n_new` of a problem."""
        more = copy(self)
        more._problem = problem
        more._index = self._index.plus(self._metric(problem.X[-n_new:]))
        return more

    def _near(self, X: Float[Tensor, "b d"]) -> Int[Tensor, "b m"]:
        return torch.as_tensor(self._index.nearest(self._metric(X), self._m)[1]).to(X.device)

    def mean(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
        return self.mean_and_variance(X)[0]

    def mean_and_variance(self, X: Float[Tensor, "b d"]) -> MeanAndVariance:
        mean, variance = predict(self._problem, self._theta, X, self._near(X), self._precision)
        return mean, reported_variance(variance, self._problem.kernel.diag(self._theta, X))

    def noise(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self._problem.kernel.noise(self._theta, X)

    def covariance(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        """Correlations from Vecchia's factorisation, variances as they are one by one."""
        half = self._half(X)
        return half @ half.T

    def _half(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        """A matrix whose product with its transpose is the covariance; O(b^3 / 3)."""
        variance = self.variance(X)
        half = chain(self._problem, self._theta, X, self._near(X), *self._earlier(X))
        length = half.norm(dim=1)
        scale = torch.where(length > 0, variance.sqrt() / length.clamp_min(1e-300), 0.0)
        return half * scale[:, None]

    def _earlier(
        self, X: Float[Tensor, "b d"]
    ) -> tuple[Int[Tensor, " b"], Int[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """An order of new rows, coarse to fine, and of each row the nearest of those before it."""
        points = torch.as_tensor(self._metric(X))
        away = torch.cdist(points, points)
        order, apart = (
            [int(points.sub(points.mean(0)).square().sum(1).argmin())],
            away.new_full((len(X),), torch.inf),
        )
        for _ in range(len(X) - 1):
            apart = torch.minimum(apart, away[order[-1]])
            apart[order[-1]] = -1.0
            order.append(int(apart.argmax()))
        order = torch.as_tensor(order)
        place = order.argsort()
        away[place[:, None] <= place] = torch.inf
        found = away.topk(min(self._m, len(X)), largest=False)
        return tuple(a.to(X.device) for a in (order, found.indices, found.values.isfinite()))

    def sample(
        self, X: Float[Tensor, "b d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "b t s"]:
        mean, half = self.mean(X), self._half(X)
        t = mean.shape[1]
        white = torch.as_tensor(random_state.standard_normal((2, len(X), t * n_samples)))
        noisy = self.noise(X).sqrt()[:, None] * white[1].to(X)
        return mean[:, :, None] + (half @ white[0].to(X) + noisy).reshape(len(X), t, n_samples)
