"""The exact fit on a few rows from which several models start."""

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

    O(n^3) a step, in float64; a stage named "start" of the run.

    Parameters
    ----------
    kernel : TorchKernel
        With the starting point and the bounds.
    X, Y : Tensor of shape (n, d), (n, t)
        The rows, as the kernel sees them, and normalised targets.
    noise : Tensor of shape (n,)
        Known noise variances.
    run : FitRun
        For its monitor and its seeds.
    max_iter : int
        Most steps.
    n_restarts : int, default=0
        Further starts within the bounds.
    subset_size : int or None, default=None
        Rows that training begins with.
    """
    problem = GPProblem(kernel, X.double(), Y.double(), noise.double())
    settings = StageSettings(QuasiNewton(), max_iter, n_restarts=n_restarts, name="start")
    return fit_hyperparameters(problem, ExactGradient(), kernel.theta0.numpy(), settings, run)
