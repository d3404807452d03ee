"""The exact fit on a few rows, from which several models start."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..kernels import TorchKernel
from ..linalg.gradients import ExactGradient, GPProblem
from ._run import Run
from ._stages import StageSettings, fit_hyperparameters
from .training import QuasiNewton, TrainingResult


def exact_start(
    kernel: TorchKernel,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n t"],
    noise: Float[Tensor, " n"],
    run: Run,
    *,
    max_iter: int,
    n_restarts: int = 0,
    subset_size: int | None = None,
) -> TrainingResult:
    """Hyperparameters that maximise the exact marginal likelihood of a few rows.

    A stage of the run, named "start", in float64; O(n^3) for each step.

    Parameters
    ----------
    kernel : TorchKernel
        The kernel at the starting point, with its bounds.
    X, Y : Tensor of shape (n, d), (n, t)
        The rows as inputs of the kernel, and the normalised targets.
    noise : Tensor of shape (n,)
        Known noise variances.
    run : FitRun
        The run whose monitor and seeds are used.
    max_iter : int
        Maximum number of steps.
    n_restarts : int, default=0
        Number of additional starting points within the bounds.
    subset_size : int or None, default=None
        Number of random rows with which training begins; None begins with all rows.
    """
    problem = GPProblem(kernel, X.double(), Y.double(), noise.double())
    settings = StageSettings(
        QuasiNewton(), max_iter, n_restarts=n_restarts, subset_size=subset_size, name="start"
    )
    return fit_hyperparameters(problem, ExactGradient(), kernel.theta0.numpy(), settings, run)
