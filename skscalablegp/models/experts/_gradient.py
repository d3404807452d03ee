"""The likelihood of a table whose parts are independent, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
    sets_marginal_likelihood,
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
        value, grad, jitter = state.extra["experts"].likelihood(theta)
        return GradientEstimate(grad, value, None, jitter), state


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

    @cached_property
    def sets(self) -> list[tuple[list[int], Int[Tensor, "k b"]]]:
        """The numbers of the experts of each size, and their rows as one tensor."""
        sizes = np.array([len(part) for part in self.parts])
        groups = [np.flatnonzero(sizes == size).tolist() for size in np.unique(sizes)]
        rows = (torch.as_tensor(np.stack([self.parts[k] for k in group])) for group in groups)
        device = self.problem.X.device
        return [(g, r.to(device, non_blocking=True)) for g, r in zip(groups, rows, strict=True)]

    def likelihood(
        self, theta: Float[Tensor, " p"], eval_gradient: bool = True
    ) -> tuple[float, Float[Tensor, " p"] | None, float]:
        """The sum of the experts' log likelihoods, its gradient, and the largest jitter.

        On a device experts of equal size are factorised together, on the CPU one by a core.
        """
        if self.problem.X.is_cpu:
            fields = ("value", "jitter", "grad") if eval_gradient else ("value", "jitter")
            values, jitters, *grads = self.each(theta, *fields)
            total = [torch.as_tensor(np.sum(np.stack(found), axis=0)) for found in grads]
            return float(np.sum(values)), total[0] if total else None, max(jitters)
        found = [
            sets_marginal_likelihood(self.problem, theta, rows, eval_gradient)
            for _, rows in self.sets
        ]
        grad = torch.stack([one.grad for one in found]).sum(0) if eval_gradient else None
        value = float(sum(one.values.sum() for one in found))
        return value, grad, max(one.jitter for one in found)

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
