"""The gradient from conjugate gradients that are cut short at random, without a bias."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..._named import keep_settings
from ..preconditioners import Preconditioner
from ..solvers import Solution, Status
from ..truncation import (
    Truncation,
    WeightedColumns,
    resolve_truncation,
    roulette_cg,
    roulette_weights,
)
from ._base import GradientEstimate, GradientEstimator, GradientState
from ._iterative import REFRESH, refreshed
from ._problem import GPProblem

PROBES = ("rademacher", "normal", "preconditioned")

# Where estimates of H^-1 y are further apart, later steps begin to cut later: by so much.
FAR_APART, LATER = 0.1, 1.5

# A series that is left with a smaller relative residual was solved rather than cut.
SOLVED = 1e-3


class TruncatedGradient(GradientEstimator):
    """Russian-roulette conjugate gradients: unbiased at the price of a few CG steps.

    The gradient 1/2 y' H^-1 dH H^-1 y - 1/2 tr(H^-1 dH) needs two independent estimates of H^-1 y,
    for the two factors of the quadratic form, and one of H^-1 z for probes with E[z z'] = I.
    One CG run on [y, z_1..z_s] serves all three: its increments are summed with three sets of
    weights, from three independent truncation points.

    Parameters
    ----------
    truncation : {"exponential", "geometric", "reciprocal", "fixed"} or TruncationDistribution, \
            default="exponential"
        Of the number of CG steps. "fixed" gives plain truncated CG, whose bias is the one that is
        avoided here.
    preconditioner : str, object or None, default=None
        Of the CG run; it makes increments fall faster, which lowers the variance.
    refresh : float, default=0.2
        Movement of a log hyperparameter at which the preconditioner is built anew. An older one
        costs variance, never a bias.
    n_probes : int, default=10
        Right-hand sides of the trace estimate.
    probes : {"rademacher", "normal", "preconditioned"}, default="rademacher"
        Random signs have a smaller variance than standard normals, and normals of the covariance P
        of a preconditioner a smaller one still, the more so the better P is.
    n_draws : int, default=1
        Truncation points that each factor of the quadratic form is averaged over, one from each of
        so many equal parts of the distribution. More cost iterations only where they are later.
    reorthogonalize : bool, default=False
        Keep CG's residuals orthogonal, for ill-conditioned problems in single precision. It takes
        O(n s) memory and O(n s j) operations more in step j.

    Notes
    -----
    Potapczynski et al. (2021), section 4.1. max(J) epochs; the probes leave the run at their own J.
    ``state.extra["orthogonality_loss"]`` is the largest inner product so far of CG residuals that
    theory has orthogonal (see `WeightedSolve`); where it is not small, rounding has spoiled the
    series, and with it the unbiasedness. ``state.extra["cut_steps"]`` counts the estimates that
    left a column with a relative residual above 1e-3, and so did cut a series.
    """

    def __init__(
        self,
        truncation: Any = "exponential",
        *,
        preconditioner: Any = None,
        refresh: float = REFRESH,
        n_probes: int = 10,
        probes: str = "rademacher",
        n_draws: int = 1,
        reorthogonalize: bool = False,
    ):
        keep_settings(self, locals())

    def bound(self, n: int, start: int = 1) -> Truncation:
        """The distribution of the number of steps for n rows; wrong settings fail here.

        Where it leaves open what the first one is, that is `start` at the earliest.
        """
        if self.probes not in PROBES:
            raise ValueError(f"probes must be one of {PROBES}; got {self.probes!r}.")
        settings = resolve_truncation(self.truncation)
        return settings.on(n, min(start, n) if settings.adapts else 1)

    def draw(
        self, problem: GPProblem, generator: Generator, preconditioner: Preconditioner | None = None
    ) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n s"]]:
        """Probes z, and u with E[z u'] = I: z itself, or P^-1 z where z has the covariance P."""
        if self.probes == "preconditioned":
            z = preconditioner.sample(self.n_probes, generator)
            return z, preconditioner.solve(z)
        shape = (len(problem.X), self.n_probes)
        if self.probes == "normal":
            z = torch.randn(shape, generator=generator, dtype=torch.float64)
        else:
            z = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
        z = z.to(problem.X)
        return z, z

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        n, t = problem.Y.shape
        start = state.extra.get("first_cut", 1)
        truncation = self.bound(n, start)
        operator = problem.operator(theta)
        built = refreshed(
            state.preconditioner, self.preconditioner, operator, state.generator, self.refresh
        )
        probes, duals = self.draw(problem, state.generator, built[0])
        sizes = (self.n_draws, self.n_draws, 1)
        draws = [truncation.sample(size, state.generator, True) for size in sizes]
        left, right, trace = (
            roulette_weights(truncation, draw).mean(0, keepdim=True) for draw in draws
        )
        s = self.n_probes
        result = roulette_cg(
            operator,
            torch.cat([problem.Y, probes], 1),
            [
                WeightedColumns(slice(0, t), left),
                WeightedColumns(slice(0, t), right),
                WeightedColumns(slice(t, t + s), trace),
            ],
            preconditioner=built[0],
            reorthogonalize=self.reorthogonalize,
        )
        left, right, solved = result.values
        grad = 0.5 * operator.bilinear_grad(
            torch.cat([left, solved * (-t / s)], 1), torch.cat([right, duals], 1)
        )
        apart = float((left - right).norm() / (left + right).norm().clamp_min(1e-300)) * 2
        if apart > FAR_APART:
            start = min(n, math.ceil(LATER * truncation.low))
        loss = max(result.orthogonality_loss, state.extra.get("orthogonality_loss", 0.0))
        # Ending early is the plan here, not a failure to reach a tolerance.
        status = Status.BREAKDOWN if result.broken else Status.CONVERGED
        solution = Solution(
            torch.cat([left, solved], 1),
            status,
            result.residuals,
            operator.epochs,
            result.n_iter,
            {
                "draws": torch.cat(draws).tolist(),
                "orthogonality_loss": result.orthogonality_loss,
                "n_targets": t,
            },
        )
        cut = bool((result.residuals > SOLVED).any())
        extra = {
            **state.extra,
            "orthogonality_loss": loss,
            "first_cut": start,
            "cut_steps": state.extra.get("cut_steps", 0) + cut,
        }
        state = replace(state, preconditioner=built, extra=extra)
        return GradientEstimate(grad, None, solution), state
