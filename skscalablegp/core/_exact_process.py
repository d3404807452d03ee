"""The fitted exact process that answers in place of a method on small tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.gaussian_process.kernels import Kernel

from ..kernels import compile_kernel
from ..linalg.gradients import ExactEvaluation, GPProblem, exact_marginal_likelihood
from .data import Table, n_columns
from .posteriors import ExactPosterior


@dataclass(frozen=True, eq=False)
class ExactProcess:
    """The exact process of a table, which answers in place of an estimator's method.

    Attributes
    ----------
    table : Table
        All rows, in the units of the kernel.
    kernel : Kernel
        The trained kernel, with all noise that is not known.
    """

    table: Table
    kernel: Kernel

    def _problem(self, device: torch.device) -> GPProblem:
        kernel = compile_kernel(self.kernel, n_columns(self.table.X))
        return self.table.problem(kernel, torch.float64, device, keep=True)

    def posterior(self, device: torch.device) -> tuple[ExactPosterior, ExactEvaluation]:
        """The posterior, and the evaluation with its factor; O(n^3)."""
        problem = self._problem(device)
        return ExactPosterior.of(problem, problem.kernel.theta0)

    def likelihood(
        self, theta: torch.Tensor, eval_gradient: bool, device: torch.device
    ) -> ExactEvaluation:
        """The log marginal likelihood at other hyperparameters; O(n^3)."""
        return exact_marginal_likelihood(self._problem(device), theta, eval_gradient)
