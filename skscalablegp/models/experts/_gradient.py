"""The likelihood of a table whose parts are independent, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import joblib
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import (
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    Repeats,
    exact_marginal_likelihood,
)
from ...linalg.parallel import run

# Rows of an expert whose factorisation takes about a second on one core.
_LARGE = 3000


@dataclass(frozen=True)
class ExpertTable:
    """One expert's rows as arrays, which can be sent to worker processes.

    Attributes
    ----------
    kernel : TorchKernel
    X : ndarray of shape (b, d)
    Y : ndarray of shape (b, t)
    noise : ndarray of shape (b,) or None
        Known noise variances.
    repeats : ndarray of shape (2, b) or None
        What merged rows stand for: `counts` and `within` of `Repeats`.
    device : str
    """

    kernel: TorchKernel
    X: np.ndarray
    Y: np.ndarray
    noise: np.ndarray | None
    repeats: np.ndarray | None
    device: str

    @classmethod
    def of(cls, problem: GPProblem, rows: np.ndarray) -> ExpertTable:
        """Some rows of a problem."""
        part = problem.subset(torch.as_tensor(rows, device=problem.X.device))
        noise = None if part.extra_noise is None else part.extra_noise.cpu().numpy()
        X, Y, repeats = part.X.cpu().numpy(), part.Y.cpu().numpy(), None
        if part.repeats is not None:
            repeats = torch.stack([part.repeats.counts, part.repeats.within]).cpu().numpy()
        return cls(problem.kernel, X, Y, noise, repeats, str(problem.X.device))

    def problem(self) -> GPProblem:
        """The part as tensors."""

        def tensor(a: np.ndarray) -> Tensor:
            return torch.tensor(a, device=self.device)

        noise = None if self.noise is None else tensor(self.noise)
        repeats = None if self.repeats is None else Repeats(*map(tensor, self.repeats))
        return GPProblem(self.kernel, tensor(self.X), tensor(self.Y), noise, repeats=repeats)


class ExpertsGradient(GradientEstimator):
    """Value and gradient of the sum of the experts' log marginal likelihoods.

    Parameters
    ----------
    parts : sequence of ndarray of int
        Rows of each expert.
    n_jobs : int or None, default=None
        As in `each_expert`.

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
        if "tables" not in state.extra:
            tables = [ExpertTable.of(problem, rows) for rows in self.parts]
            state = replace(state, extra=state.extra | {"tables": tables})
        found = each_expert(_evaluate, state.extra["tables"], self.n_jobs, theta)
        values, grads, jitters = zip(*found, strict=True)
        grad = torch.as_tensor(np.sum(grads, axis=0))
        return GradientEstimate(grad, float(np.sum(values)), None, max(jitters)), state


def each_expert(
    function: Callable[..., Any],
    tables: Sequence[ExpertTable],
    n_jobs: int | None,
    thetas: Float[Tensor, " p"] | Sequence[np.ndarray],
) -> list[Any]:
    """``function(table, theta)`` for every expert, with one theta for all or one for each.

    Parameters
    ----------
    n_jobs : int or None
        Number of joblib's jobs. If it is one, the cores of this process take an expert each.
    """
    if isinstance(thetas, Tensor):
        thetas = [thetas.detach().cpu().numpy()] * len(tables)
    pairs = zip(tables, thetas, strict=True)
    if joblib.effective_n_jobs(n_jobs) > 1:
        return joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(function)(*pair) for pair in pairs)
    # A large expert gets all cores, and its factorisation can be interrupted.
    if max(len(table.X) for table in tables) > _LARGE:
        return [function(*pair) for pair in pairs]
    return run([partial(function, *pair) for pair in pairs], torch.device(tables[0].device))


def _evaluate(table: ExpertTable, theta: np.ndarray) -> tuple[float, np.ndarray, float]:
    """One expert's value, gradient and jitter."""
    look_up()
    result = exact_marginal_likelihood(table.problem(), torch.as_tensor(theta))
    grad: Any = result.grad
    return result.value, grad.cpu().numpy(), result.jitter
