"""The gradient of the likelihood of a table in parts that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
import torch
from jaxtyping import Float
from sklearn.gaussian_process.kernels import Kernel
from torch import Tensor

from ...kernels import compile_kernel
from ...linalg.gradients import (
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    GradientState,
    exact_marginal_likelihood,
)


@dataclass(frozen=True)
class ExpertTable:
    """One expert's part as arrays, which travel to any worker.

    Attributes
    ----------
    kernel : Kernel
        scikit-learn's object.
    X : ndarray of shape (b, d)
    Y : ndarray of shape (b, t)
    noise : ndarray of shape (b,) or None
        Known noise variances.
    device : str
    priors : mapping or None
        Of hyperparameters.
    """

    kernel: Kernel
    X: np.ndarray
    Y: np.ndarray
    noise: np.ndarray | None
    device: str
    priors: dict[str, Any] | None = None

    @classmethod
    def of(cls, problem: GPProblem, rows: np.ndarray) -> ExpertTable:
        """Some rows of a problem."""
        part = problem.subset(torch.as_tensor(rows, device=problem.X.device))
        noise = None if part.extra_noise is None else part.extra_noise.cpu().numpy()
        X, Y = part.X.cpu().numpy(), part.Y.cpu().numpy()
        kernel = problem.kernel
        return cls(kernel.kernel, X, Y, noise, str(problem.X.device), kernel.priors)

    def problem(self) -> GPProblem:
        """The same part as tensors."""

        def tensor(a: np.ndarray) -> Tensor:
            return torch.tensor(a, device=self.device)

        kernel = compile_kernel(self.kernel, self.X.shape[1], priors=self.priors)
        noise = None if self.noise is None else tensor(self.noise)
        return GPProblem(kernel, tensor(self.X), tensor(self.Y), noise)


class ExpertsGradient(GradientEstimator):
    """Value and gradient of the sum of the experts' log marginal likelihoods.

    Parameters
    ----------
    parts : sequence of ndarray of int
        Rows of each expert.
    n_jobs : int or None, default=None
        Experts evaluated at once, by whatever backend joblib is set to.

    Notes
    -----
    sum_k n_k^3 flops, and max_k n_k^2 memory for each job; Deisenroth and Ng (2015), equation 3.
    """

    exact = True

    def __init__(self, parts: Sequence[np.ndarray], n_jobs: int | None = None):
        self.parts = parts
        self.n_jobs = n_jobs

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        if "tables" not in state.extra:
            tables = [ExpertTable.of(problem, rows) for rows in self.parts]
            state = replace(state, extra=state.extra | {"tables": tables})
        job = joblib.delayed(_evaluate)
        point = theta.detach().cpu().numpy()
        found = joblib.Parallel(n_jobs=self.n_jobs)(
            job(table, point) for table in state.extra["tables"]
        )
        values, grads, jitters = zip(*found, strict=True)
        grad = torch.as_tensor(np.sum(grads, axis=0))
        return GradientEstimate(grad, float(np.sum(values)), None, max(jitters)), state


def _evaluate(table: ExpertTable, theta: np.ndarray) -> tuple[float, np.ndarray, float]:
    """One expert's value, gradient and jitter."""
    result = exact_marginal_likelihood(table.problem(), torch.as_tensor(theta))
    grad: Any = result.grad
    return result.value, grad.cpu().numpy(), result.jitter
