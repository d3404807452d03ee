"""How the linear solves behind predicted variances are done."""

from __future__ import annotations

from typing import Any

import torch

from ...linalg.operators import KernelOperator
from ...linalg.solvers import SolveSummary, resolve_solver

# Largest relative residual, and largest in units of noise over signal: deviations within 1 %.
_TOL, _TOL_OF_NOISE = 1e-4, 0.03


def variance_tolerance(tol: float, operator: KernelOperator) -> float:
    """Relative residual of solves for variances, which cancel: they take more than gradients do.

    With R the residual, variances err by R' H^-1 R, which is up to |R|^2 / noise, and near training
    rows they are as small as the noise.

    Parameters
    ----------
    tol : float
        Tolerance of training; a smaller one is kept.
    operator : KernelOperator
        H at the trained hyperparameters.
    """
    ratio = float(operator.noise.min()) / max(float(operator.diag().double().mean()), 1e-300)
    # Nearer to rounding no solve gets reliably.
    reachable = torch.finfo(operator.dtype).eps ** 0.5
    return min(tol, _TOL, max(_TOL_OF_NOISE * ratio, reachable))


def variance_solver(solver: Any) -> Any:
    """The solver of training, by name or object, where it reaches small residuals, else "block_cg".

    Methods that read a few rows at a time are made for loose tolerances; block conjugate gradients
    reach small residuals in far fewer epochs.
    """
    if isinstance(solver, str) and solver == "auto":
        return "block_cg"
    return "block_cg" if resolve_solver(solver).reads_rows else solver


def unfinished_solves(solves: list[SolveSummary]) -> list[str]:
    """What to tell users about solves that ended above their tolerance; empty if there are none."""
    if not solves:
        return []
    worst = max(solves, key=lambda solve: solve.residual)
    return [
        "Linear solves behind this prediction's variances or samples did not reach their "
        f"tolerance: the worst ended at a relative residual of {worst.residual:.2g} after "
        f"{worst.epochs:.1f} epochs, and variances are too large. {worst.status.remedy} Or fit "
        "with a larger max_epochs, or with posterior='exact' or 'pathwise', whose variances need "
        "no solves."
    ]
