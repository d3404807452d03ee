"""The likelihood of a table whose parts are independent, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.blocks import look_up
from ...linalg.gradients import (
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    exact_marginal_likelihood,
)
from ...workers import run, workers

# Rows of an expert whose factorisation takes about a second on one core.
_LARGE = 3000


class ExpertsGradient(GradientEstimator):
    """Value and gradient of the sum of the experts' log marginal likelihoods.

    Parameters
    ----------
    parts : sequence of ndarray of int
        Rows of each expert.
    n_jobs : int or None, default=None
        As in `Experts`.

    Notes
    -----
    It costs sum_k n_k^3 operations, and max_k n_k^2 memory per job. Deisenroth and Ng (2015),
    equation 3.
    """

    exact = True

    def __init__(self, parts: Sequence[np.ndarray], n_jobs: int | None = None):
        self.parts = parts
        self.n_jobs = n_jobs

    def estimate(self, problem, theta, state):
        if "experts" not in state.extra:
            experts = Experts(problem, self.parts, self.n_jobs)
            state = replace(state, extra=state.extra | {"experts": experts})
        values, grads, jitters = state.extra["experts"].each(theta, "value", "grad", "jitter")
        grad = torch.as_tensor(np.sum(np.stack(grads), axis=0))
        return GradientEstimate(grad, float(np.sum(values)), None, max(jitters)), state


def one_expert(problem: GPProblem, rows: np.ndarray) -> GPProblem:
    """The regression on the rows of one expert."""
    return problem.subset(torch.as_tensor(rows, device=problem.X.device))


@dataclass(frozen=True, eq=False)
class Experts:
    """A table and the rows of each expert, which each process that works on some receives once.

    Attributes
    ----------
    problem : GPProblem
        The whole table.
    parts : sequence of ndarray of int
        Rows of each expert.
    n_jobs : int or None
        Number of joblib's jobs. If it is one, the cores of this process take an expert each. Inside
        a shared call of `distribute` the ranks take its place.
    """

    problem: GPProblem
    parts: Sequence[np.ndarray]
    n_jobs: int | None

    def each(self, theta: Float[Tensor, "*k p"], *fields: str) -> list[tuple[Any, ...]]:
        """Fields of `exact_marginal_likelihood` for all experts; a theta for all or one for each.

        Each costs O(b^3) for b rows. The gradient is computed if it is one of the fields.
        """
        numbers = torch.arange(len(self.parts))
        every = theta.detach().cpu().expand(len(numbers), -1)
        by = workers(self, len(numbers), self.n_jobs, least=2, device=self.problem.X.device)
        parts = by.call(Experts._some, fields, along=[numbers, every])
        return list(zip(*(answer for part in parts for answer in part), strict=True))

    def _some(
        self, numbers: Int[Tensor, " k"], thetas: Float[Tensor, "k p"], fields: tuple[str, ...]
    ) -> list[tuple[Any, ...]]:
        parts = [self.parts[k] for k in numbers.tolist()]
        tasks = [partial(self._one, *pair, fields) for pair in zip(parts, thetas, strict=True)]
        # A large expert gets all cores, and its factorisation can be interrupted.
        if max(map(len, parts), default=0) > _LARGE:
            return [task() for task in tasks]
        return run(tasks, self.problem.X.device)

    def _one(self, rows: np.ndarray, theta: Tensor, fields: tuple[str, ...]) -> tuple[Any, ...]:
        look_up()
        part = one_expert(self.problem, rows)
        found = exact_marginal_likelihood(part, theta, "grad" in fields)
        return tuple(getattr(found, field) for field in fields)
