"""Exact processes of the nearest of some training rows, which several processes share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.gradients import GPProblem
from ...workers import workers
from ._local import dual_weights
from ._metric import Index, Metric


@dataclass(eq=False)
class Among:
    """Searches some rows of a table.

    It holds the whole table, which other processes then have already, and pickles without its
    index, which they make from the rows.

    Attributes
    ----------
    problem : GPProblem
        All training rows, in double precision.
    theta : Tensor of shape (p,)
        Log hyperparameters.
    rows : Tensor of shape (s,)
        The numbers of the rows.
    precision : torch.dtype
        Of the systems.
    n_jobs : int or None
        Number of processes that share the work, as in joblib.
    """

    problem: GPProblem
    theta: Float[Tensor, " p"]
    rows: Int[Tensor, " s"]
    precision: torch.dtype
    n_jobs: int | None

    def __post_init__(self) -> None:
        points = Metric(self.problem.kernel, self.theta, self.problem.X).points
        self.points: Float[np.ndarray, "s q"] = points[self.rows.cpu().numpy()]
        self._index = Index(self.points)

    def __reduce__(self) -> tuple:
        return Among, (self.problem, self.theta, self.rows, self.precision, self.n_jobs)

    def solved(
        self, points: Float[Tensor, "b q"], m: int
    ) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m t"]]:
        """The numbers of the m nearest rows of each point, and their dual weights."""
        by = workers(self, len(points), self.n_jobs, device=self.problem.X.device)
        found = by.call(Among._own_solved, m, along=[points])
        near, weights = map(torch.cat, zip(*found, strict=True))
        return near, weights

    def _own_solved(self, points: Tensor, m: int) -> tuple[Tensor, Tensor]:
        found = torch.as_tensor(self._index.nearest(points.numpy(), m)[1])
        near, X = self.rows[found.to(self.rows.device)], self.problem.X
        # Coordinates are relative to the nearest row.
        given = self.problem, self.theta, X[near[:, 0]], near, self.precision
        return near, dual_weights(*given)
