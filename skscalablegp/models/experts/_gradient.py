"""The likelihood of a table whose parts are independent, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import (
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    Rows,
    exact_marginal_likelihood,
)
from ...workers import run, workers

# Rows of an expert whose factorisation takes about a second on one core.
_LARGE = 3000


@dataclass(frozen=True)
class ExpertTable:
    """One expert's rows as arrays, which can be sent to worker processes.

    Attributes
    ----------
    kernel : TorchKernel
    rows : tuple of ndarray
        The arrays of `Rows`.
    device : str
    """

    kernel: TorchKernel
    rows: tuple[np.ndarray, ...]
    device: str

    @classmethod
    def of(cls, problem: GPProblem, rows: np.ndarray) -> ExpertTable:
        """Some rows of a problem."""
        part = problem.rows.take(torch.as_tensor(rows, device=problem.X.device))
        arrays = tuple(tensor.cpu().numpy() for tensor in vars(part).values())
        return cls(problem.kernel, arrays, str(problem.X.device))

    def problem(self) -> GPProblem:
        """The part as tensors."""
        tensors = (torch.tensor(array, device=self.device) for array in self.rows)
        return GPProblem(self.kernel, Rows(*tensors))


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
            experts = Experts([ExpertTable.of(problem, rows) for rows in self.parts], self.n_jobs)
            state = replace(state, extra=state.extra | {"experts": experts})
        found = state.extra["experts"].each(_evaluate, theta)
        values, grads, jitters = zip(*found, strict=True)
        grad = torch.as_tensor(np.sum(grads, axis=0))
        return GradientEstimate(grad, float(np.sum(values)), None, max(jitters)), state


class Experts:
    """The tables of all experts, which each process that works on some of them receives once.

    Parameters
    ----------
    tables : sequence of ExpertTable
    n_jobs : int or None
        Number of joblib's jobs. If it is one, the cores of this process take an expert each. Inside
        a shared call of `distribute` the ranks take its place.
    """

    def __init__(self, tables: Sequence[ExpertTable], n_jobs: int | None):
        self.tables, self.device = list(tables), torch.device(tables[0].device)
        self._n_jobs = n_jobs

    def each(
        self, function: Callable[..., Any], thetas: Float[Tensor, " p"] | Sequence[np.ndarray]
    ) -> list[Any]:
        """``function(table, theta)`` for every expert, with one theta for all or one for each."""
        numbers = torch.arange(len(self.tables))
        if isinstance(thetas, Tensor):
            every = thetas.detach().cpu().expand(len(numbers), -1)
        else:
            every = torch.as_tensor(np.stack(thetas))
        by = workers(self, len(numbers), self._n_jobs, least=2, device=self.device)
        parts = by.call(Experts._some, function, along=[numbers, every])
        return [answer for part in parts for answer in part]

    def _some(
        self, numbers: Int[Tensor, " k"], thetas: Float[Tensor, "k p"], function: Callable[..., Any]
    ) -> list[Any]:
        tables = [self.tables[k] for k in numbers.tolist()]
        pairs = list(zip(tables, thetas.numpy(), strict=True))
        # A large expert gets all cores, and its factorisation can be interrupted.
        if max((len(table.rows[0]) for table in tables), default=0) > _LARGE:
            return [function(*pair) for pair in pairs]
        return run([partial(function, *pair) for pair in pairs], self.device)


def _evaluate(table: ExpertTable, theta: np.ndarray) -> tuple[float, np.ndarray, float]:
    """One expert's value, gradient and jitter."""
    look_up()
    result = exact_marginal_likelihood(table.problem(), torch.as_tensor(theta))
    grad: Any = result.grad
    return result.value, grad.cpu().numpy(), result.jitter
