"""Unbiased gradients from conjugate gradients that are truncated at random."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..._end import End
from ..._named import keep_settings
from ..operators import KernelOperator
from ..preconditioners import Preconditioner
from ..solvers import Solution
from ..truncation import (
    Truncation,
    WeightedColumns,
    resolve_truncation,
    roulette_cg,
    roulette_weights,
)
from ._base import GradientEstimate, GradientEstimator, GradientState
from ._iterative import REFRESH, draw_probes, kept_preconditioner, rebuilt, refreshed
from ._problem import GPProblem

PROBES = ("rademacher", "normal", "preconditioned")

# If the relative distance of two estimates of H^-1 y exceeds FAR_APART, the smallest truncation
# point of the next steps is multiplied by LATER.
FAR_APART, LATER = 0.1, 1.5

# A series that ends with a smaller relative residual counts as solved, not as truncated.
SOLVED = 1e-3


class TruncatedGradient(GradientEstimator):
    """Russian-roulette conjugate gradients, with unbiased gradients from a few steps of CG.

    The gradient 1/2 y' H^-1 dH H^-1 y - 1/2 tr(H^-1 dH) needs two independent estimates of H^-1 y,
    for the two factors of the quadratic form, and one of H^-1 z for probes with E[z z'] = I. One CG
    run on [y, z_1..z_s] gives all three. Its increments are summed with three sets of weights,
    which belong to three independent truncation points.

    Parameters
    ----------
    truncation : {"exponential", "geometric", "reciprocal", "fixed"} or TruncationDistribution, \
            default="exponential"
        Distribution of the number of CG steps. "fixed" gives plain truncated CG with its bias.
    preconditioner : str, object or None, default=None
        Preconditioner of the CG run. With it increments fall faster, which lowers the variance.
    refresh : float, default=0.2
        The preconditioner is built anew when a log hyperparameter has moved this far. An older one
        raises the variance, but causes no bias.
    n_probes : int, default=10
        Number of probes s of the trace estimate.
    probes : {"rademacher", "normal", "preconditioned"}, default="rademacher"
        Random signs have a smaller variance than standard normal numbers. Normal numbers with the
        covariance P of the preconditioner, and the diagonal of H, have a smaller variance still if
        P is close to H.
    n_draws : int, default=1
        Number of truncation points over which each factor of the quadratic form is averaged, one
        from each of `n_draws` equally probable parts of the distribution. The cost is that of the
        latest one.
    reorthogonalize : bool, default=False
        Whether to keep CG's residuals orthogonal, which ill-conditioned problems need in float32.
        It takes the memory of all residuals, and O(n s j) further operations in step j.

    Notes
    -----
    Potapczynski et al. (2021), section 4.1. max(J) epochs; the probes take part up to their own J.
    ``state.extra["orthogonality_loss"]`` is the largest inner product so far of CG residuals that
    are orthogonal in exact arithmetic (see `WeightedSolve`). If it is not small, rounding has
    changed the series, and the gradient is biased. ``state.extra["cut_steps"]`` counts the
    estimates that left a column with a relative residual above 1e-3, and so did truncate a series.
    """

    def __init__(
        self,
        truncation="exponential",
        *,
        preconditioner=None,
        refresh: float = REFRESH,
        n_probes: int = 10,
        probes: str = "rademacher",
        n_draws: int = 1,
        reorthogonalize: bool = False,
    ):
        keep_settings(self, locals())

    def bound(self, n: int, start: int = 1) -> Truncation:
        """The distribution of the number of steps for n rows; checks the settings.

        If the settings leave the smallest number of steps open, it is at least `start`.
        """
        if self.probes not in PROBES:
            raise ValueError(f"probes must be one of {PROBES}; got {self.probes!r}.")
        settings = resolve_truncation(self.truncation)
        return settings.on(n, min(start, n) if settings.adapts else 1)

    def draw(
        self,
        problem: GPProblem,
        generator: Generator,
        preconditioner: Preconditioner | None = None,
        operator: KernelOperator | None = None,
    ) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n s"]]:
        """Probes and their duals, as `draw_probes` gives them."""
        return draw_probes(self.probes, problem, self.n_probes, generator, preconditioner, operator)

    def kept(self, state: GradientState) -> dict:
        return {
            "preconditioner": kept_preconditioner(state.preconditioner),
            "extra": dict(state.extra),
        }

    def resumed(self, problem: GPProblem, state: GradientState, kept: dict) -> GradientState:
        built = rebuilt(kept["preconditioner"], self.preconditioner, problem)
        return replace(state, preconditioner=built, extra=dict(kept["extra"]))

    def estimate(
        self, problem: GPProblem, theta: Tensor, state: GradientState
    ) -> tuple[GradientEstimate, GradientState]:
        n, t = problem.Y.shape
        start = state.extra.get("first_cut", 1)
        truncation = self.bound(n, start)
        operator = problem.operator(theta)
        built = refreshed(
            state.preconditioner, self.preconditioner, operator, state.generator, self.refresh
        )
        probes, duals = self.draw(problem, state.generator, built.value, operator)
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
            preconditioner=built.value,
            reorthogonalize=self.reorthogonalize,
        )
        left, right, solved = result.values
        grad = 0.5 * operator.bilinear_grad(
            torch.cat([left, solved * (-t / s)], 1), torch.cat([right, duals], 1)
        )
        grad = grad + problem.repeated(theta)[1]
        apart = float((left - right).norm() / (left + right).norm().clamp_min(1e-300)) * 2
        if apart > FAR_APART:
            start = min(truncation.high, math.ceil(LATER * truncation.low))
        loss = max(result.orthogonality_loss, state.extra.get("orthogonality_loss", 0.0))
        # There is no tolerance to be reached: the run ends early by design.
        status = End.BREAKDOWN if result.broken else End.CONVERGED
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
