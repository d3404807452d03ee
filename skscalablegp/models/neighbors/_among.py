"""Exact processes of the nearest of some training rows, which several processes share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.gradients import GPProblem
from ...workers import workers
from ._local import dual_weights
from ._metric import Index, Metric


class Among:
    """Searches some rows of a table.

    It holds the whole table, which other processes then have already.

    Parameters
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

    def __init__(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        rows: Int[Tensor, " s"],
        precision: torch.dtype,
        n_jobs: int | None,
    ):
        self._problem, self._theta, self._rows = problem, theta, rows
        self._precision, self._n_jobs = precision, n_jobs
        self._search()

    def _search(self) -> None:
        points = Metric(self._problem.kernel, self._theta, self._problem.X).points
        self.points: Float[np.ndarray, "s q"] = points[self._rows.cpu().numpy()]
        self._index = Index(self.points)

    def __getstate__(self) -> dict[str, Any]:
        """Without the index, which another process makes from the rows."""
        return {k: v for k, v in vars(self).items() if k not in ("points", "_index")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._search()

    def solved(
        self, points: Float[Tensor, "b q"], m: int
    ) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m t"]]:
        """The numbers of the m nearest rows of each point, and their dual weights."""
        by = workers(self, len(points), self._n_jobs, device=self._problem.X.device)
        found = by.call(Among._own_solved, m, along=[points])
        near, weights = map(torch.cat, zip(*found, strict=True))
        return near, weights

    def _own_solved(self, points: Tensor, m: int) -> tuple[Tensor, Tensor]:
        found = torch.as_tensor(self._index.nearest(points.numpy(), m)[1])
        near, X = self._rows[found.to(self._rows.device)], self._problem.X
        # Coordinates are relative to the nearest row.
        given = self._problem, self._theta, X[near[:, 0]], near, self._precision
        return near, dual_weights(*given)
