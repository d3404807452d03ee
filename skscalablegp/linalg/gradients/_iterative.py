"""Gradients from linear solves: Hutchinson's estimator and the pathwise estimator."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..._clock import now
from ..._end import End
from ..._named import keep_settings
from ...features import PriorFeatures, sample_prior_features
from ..operators import KernelOperator, prior_values
from ..preconditioners import Preconditioner, build_preconditioner
from ..solvers import (
    MaxEpochs,
    MaxSeconds,
    RelativeResidual,
    cholesky_with_jitter,
    preconditioner_for,
    resolve_solver,
    solve,
)
from ._base import BuiltPreconditioner, GradientEstimate, GradientEstimator, GradientState
from ._problem import GPProblem

# Adam moves log hyperparameters by up to 0.1 a step, so that it builds a preconditioner at every
# second step.
REFRESH = 0.2


class _IterativeGradient(GradientEstimator):
    """The common part of both estimators: a solve for [Y, probes] and a bilinear form.

    The subclasses document the parameters.
    """

    @abstractmethod
    def draw(
        self,
        problem: GPProblem,
        generator: Generator,
        preconditioner: Preconditioner | None = None,
        operator: KernelOperator | None = None,
    ) -> Any:
        """The random numbers of one step, or of all steps if warm starts are on."""

    @abstractmethod
    def right_hand_sides(
        self, problem: GPProblem, operator: KernelOperator, probes
    ) -> Float[Tensor, "n s"]:
        """The probes b_1..b_s at the operator's hyperparameters."""

    @abstractmethod
    def trace_pairs(self, probes, solved: Float[Tensor, "n s"]) -> tuple[Tensor, Tensor]:
        """Left and right factors, whose mean bilinear form with dH estimates tr(H^-1 dH)."""

    def samples(self, probes) -> PathwiseProbes | None:
        """The probes, if predictions can use them."""
        return None

    def estimate(
        self, problem: GPProblem, theta: Tensor, state: GradientState
    ) -> tuple[GradientEstimate, GradientState]:
        operator, begin = problem.operator(theta), now()
        solver = resolve_solver(self.solver)
        before = operator.epochs
        chosen = preconditioner_for(self.solver, self.preconditioner)
        built = refreshed(state.preconditioner, chosen, operator, state.generator, self.refresh)
        frozen = self.solver_warm_start and state.probes is not None
        probes, draws = state.probes, state.draws
        if not frozen:
            draws = state.generator.get_state()
            probes = self.draw(problem, state.generator, built.value, operator)
        B = torch.cat([problem.Y, self.right_hand_sides(problem, operator, probes)], 1)
        stopping = self.stopping(problem.Y.shape[1])
        if state.seconds_left is not None:
            # The preconditioner has taken a part of them.
            stopping = stopping | MaxSeconds(max(0.0, state.seconds_left - (now() - begin)))
        solution = solve(
            operator,
            B,
            solver,
            stopping=stopping,
            x0=state.previous if self.solver_warm_start else None,
            preconditioner=built.value,
        )
        t = problem.Y.shape[1]
        stats = {**solution.stats, "n_targets": t}
        solution = replace(solution, epochs=operator.epochs - before, stats=stats)
        if solution.status is End.MAX_SECONDS:
            # No step follows, and the gradient takes longer than several steps of the solve.
            grad = torch.full_like(theta, torch.nan)
        else:
            # The sum of 1/2 v_t' dH v_t and -t/2 mean_j left_j' dH right_j, as one bilinear form.
            left, right = self.trace_pairs(probes, solution.value[:, t:])
            V = solution.value[:, :t]
            grad = 0.5 * operator.bilinear_grad(
                torch.cat([V, left * (-t / max(left.shape[1], 1))], 1), torch.cat([V, right], 1)
            )
            grad = grad + problem.repeated(theta)[1]
        state = replace(
            state,
            probes=probes,
            draws=draws,
            samples=self.samples(probes),
            previous=solution.value,
            preconditioner=built,
        )
        return GradientEstimate(grad, None, solution), state

    def kept(self, state: GradientState) -> dict:
        found = {"preconditioner": kept_preconditioner(state.preconditioner), "probes": None}
        if state.probes is None or state.previous is None or not self.solver_warm_start:
            return found
        return found | {"probes": self.kept_probes(state), "previous": state.previous.cpu()}

    def resumed(self, problem: GPProblem, state: GradientState, kept: dict) -> GradientState:
        chosen = preconditioner_for(self.solver, self.preconditioner)
        state = replace(state, preconditioner=rebuilt(kept["preconditioner"], chosen, problem))
        if kept["probes"] is None:
            return state
        probes, previous = self.resumed_probes(problem, kept["probes"]), kept["previous"]
        return replace(
            state,
            probes=probes,
            samples=self.samples(probes),
            previous=previous.to(problem.X.device),
        )

    @abstractmethod
    def kept_probes(self, state: GradientState):
        """From what frozen probes can be made once more."""

    @abstractmethod
    def resumed_probes(self, problem: GPProblem, kept):
        """The probes of `kept_probes`."""

    def stopping(self, n_targets: int, probe_tol: float | None = None):
        """Stop when targets and probes reach the tolerance, or the budget is spent.

        Probes may have a tolerance of their own.
        """
        to_tolerance = RelativeResidual(self.solver_tol, columns=slice(0, n_targets), reduce="max")
        if self.n_probes:
            tol = self.solver_tol if probe_tol is None else probe_tol
            to_tolerance = to_tolerance & RelativeResidual(
                tol, columns=slice(n_targets, None), reduce="mean"
            )
        return to_tolerance | MaxEpochs(self.solver_max_epochs)


class StandardGradient(_IterativeGradient):
    """Hutchinson's estimator: tr(H^-1 dH) = E z' H^-1 dH u with E[z u'] = I.

    Parameters
    ----------
    solver : str or solver object, default="cg"
        Solves H [V_y, V_1..V_s] = [Y, b_1..b_s].
    preconditioner : "auto", str, object or None, default="auto"
        The preconditioner of the solver, whose entries of H count towards the epochs. "auto" means
        that of a solver object, and for CG by name randomly pivoted Cholesky of rank 200. None
        means no preconditioner. Solvers that use no preconditioner ignore it.
    n_probes : int, default=64
        Number of probes s of the trace estimate. The standard deviation of the gradient falls with
        the square root of it.
    solver_tol : float, default=0.01
        A solve ends when the relative residuals of the targets, and the mean relative residual of
        the probes, are at most this large (Lin et al. 2024, section 2).
    solver_max_epochs : float, default=1000
        Budget of one solve in epochs (n^2 kernel entries).
    solver_warm_start : bool, default=True
        Whether to keep the probes for all steps and to start each solve from the last solution.
    refresh : float, default=0.2
        The preconditioner is built anew when a log hyperparameter has moved this far. An older one
        is still valid, but less effective. 0 builds it at every step.
    probes : {"normal", "preconditioned"}, default="normal"
        With "normal", z = u ~ N(0, I) as in the paper. With "preconditioned", z ~ N(0, P) and
        u = P^-1 z for the preconditioner P of the step at which z is drawn, whose diagonal is
        replaced by that of H; without a preconditioner P is the identity, and both are the same.
        The closer P is to H, the smaller is the variance, down to that of exact pathwise probes.

    Notes
    -----
    Lin et al. (2024), equation 5. The squared distance of zero, the first guess of a cold start,
    from the solution is z' H^-1 z and grows with 1 / noise. The pathwise estimator avoids this.
    """

    def __init__(
        self,
        solver="cg",
        *,
        preconditioner="auto",
        n_probes: int = 64,
        solver_tol: float = 0.01,
        solver_max_epochs: float = 1000,
        solver_warm_start: bool = True,
        refresh: float = REFRESH,
        probes: str = "normal",
    ):
        keep_settings(self, locals())

    def draw(
        self,
        problem: GPProblem,
        generator: Generator,
        preconditioner: Preconditioner | None = None,
        operator: KernelOperator | None = None,
    ) -> tuple[Tensor, Tensor]:
        if self.probes not in ("normal", "preconditioned"):
            raise ValueError(f"probes must be 'normal' or 'preconditioned'; got {self.probes!r}.")
        return draw_probes(self.probes, problem, self.n_probes, generator, preconditioner, operator)

    def kept_probes(self, state: GradientState) -> list[Tensor]:
        z, u = state.probes
        return [z.cpu()] if z is u else [z.cpu(), u.cpu()]

    def resumed_probes(self, problem: GPProblem, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
        moved = [part.to(problem.X.device) for part in kept]
        return moved[0], moved[-1]

    def right_hand_sides(self, problem: GPProblem, operator: KernelOperator, probes) -> Tensor:
        return probes[0]

    def trace_pairs(self, probes, solved: Tensor) -> tuple[Tensor, Tensor]:
        return solved, probes[1]


@dataclass(frozen=True)
class PathwiseProbes:
    """The frozen random numbers of prior samples xi = Phi_theta(X) w + sqrt(noise) eps.

    Attributes
    ----------
    features : PriorFeatures or None
        The features Phi with frozen frequencies; None for exact prior samples.
    weights : Tensor of shape (q, s)
        The weights w; they have n rows for exact prior samples.
    noise : Tensor of shape (n, s)
        The standard normal numbers eps.
    """

    features: PriorFeatures | None
    weights: Float[Tensor, "q s"]
    noise: Float[Tensor, "n s"]


class PathwiseGradient(_IterativeGradient):
    """The pathwise estimator: tr(H^-1 dH) = E zhat' dH zhat, zhat = H^-1 xi, xi ~ N(0, H).

    Posterior samples are computed from the solved probes, so that predictions need no further
    solve. The expected squared distance of a cold start from the solution is tr(I) = n for any
    noise (Lin et al. 2024, section 3).

    Parameters
    ----------
    solver, preconditioner, n_probes, solver_tol, solver_max_epochs, solver_warm_start, refresh
        As in `StandardGradient`.
    n_pairs : int, default=1000
        Number of pairs of random sines and cosines of the prior samples.
    prior : {"fourier", "exact"}, default="fourier"
        "exact" draws prior samples with a Cholesky factor of K at each step, in O(n^3). It serves
        tests, and kernels without a spectral density.
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        solver="cg",
        *,
        preconditioner="auto",
        n_probes: int = 64,
        solver_tol: float = 0.01,
        solver_max_epochs: float = 1000,
        solver_warm_start: bool = True,
        refresh: float = REFRESH,
        n_pairs: int = 1000,
        prior: str = "fourier",
    ):
        keep_settings(self, locals())

    def draw(
        self,
        problem: GPProblem,
        generator: Generator,
        preconditioner: Preconditioner | None = None,
        operator: KernelOperator | None = None,
    ) -> PathwiseProbes:
        n, d = problem.X.shape
        features, q = None, n
        if self.prior == "fourier":
            on = problem.X.dtype, problem.X.device
            features = sample_prior_features(
                problem.kernel, d, self.n_pairs, generator, *on, tails=True
            )
            q = features.n_features
        weights = _normal(problem, (q, self.n_probes), generator)
        return PathwiseProbes(features, weights, _normal(problem, (n, self.n_probes), generator))

    def kept_probes(self, state: GradientState) -> Tensor | None:
        # A large number of frequencies and weights is drawn once more.
        return state.draws

    def resumed_probes(self, problem: GPProblem, kept: Tensor) -> PathwiseProbes:
        generator = Generator()
        generator.set_state(kept)
        return self.draw(problem, generator)

    def right_hand_sides(
        self, problem: GPProblem, operator: KernelOperator, probes: PathwiseProbes
    ) -> Tensor:
        with torch.no_grad():
            if probes.features is None:
                K = operator.to_dense()
                K.diagonal().sub_(operator.noise)
                L, _ = cholesky_with_jitter(K)
                prior = L @ probes.weights
            else:
                prior = prior_values(probes.features, operator.theta, problem.X, probes.weights)
        return prior + operator.noise.sqrt()[:, None] * probes.noise

    def trace_pairs(self, probes: PathwiseProbes, solved: Tensor) -> tuple[Tensor, Tensor]:
        return solved, solved

    def samples(self, probes: PathwiseProbes) -> PathwiseProbes | None:
        # Exact prior samples are known at the training rows only.
        return None if probes.features is None else probes


def refreshed(
    kept: BuiltPreconditioner | None,
    preconditioner: Any,
    operator: KernelOperator,
    generator: Generator,
    refresh: float,
) -> BuiltPreconditioner:
    """The preconditioner of an earlier step, or a new one if theta has moved by `refresh`.

    A preconditioner of full rank solves the system by itself, and is therefore always built anew.
    """
    if kept is not None and kept.value.rank < operator.shape[0]:
        if float((operator.theta - kept.theta).abs().max()) < refresh:
            return kept
    draws = generator.get_state()
    built = build_preconditioner(preconditioner, operator, generator)
    return BuiltPreconditioner(built, operator.theta.detach().clone(), draws)


def kept_preconditioner(built: BuiltPreconditioner | None) -> dict[str, Tensor] | None:
    """From what a preconditioner was built, which is less than what it consists of."""
    return None if built is None else {"theta": built.theta, "draws": built.draws}


def rebuilt(
    kept: dict[str, Tensor] | None, preconditioner: Any, problem: GPProblem
) -> BuiltPreconditioner | None:
    """The preconditioner of `kept_preconditioner`, built once more."""
    if kept is None:
        return None
    generator = Generator()
    generator.set_state(kept["draws"])
    return refreshed(None, preconditioner, problem.operator(kept["theta"]), generator, 0.0)


def draw_probes(
    kind: str,
    problem: GPProblem,
    s: int,
    generator: Generator,
    preconditioner: Preconditioner | None,
    operator: KernelOperator | None,
) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n s"]]:
    """Probes z, and u with E[z u'] = I: z itself, or P^-1 z where z has the covariance P.

    Parameters
    ----------
    kind : {"rademacher", "normal", "preconditioned"}
        Random signs, standard normal numbers, or normal numbers with the covariance P.
    problem : GPProblem
    s : int
        Number of probes.
    generator : torch.Generator
    preconditioner : Preconditioner, optional
        P, whose diagonal is that of H in draws.
    operator : KernelOperator, optional
        H.
    """
    if kind == "preconditioned":
        assert preconditioner is not None and operator is not None
        covariance = preconditioner.with_diagonal_of(operator)
        z = covariance.sample(s, generator)
        return z, covariance.solve(z)
    shape = (len(problem.X), s)
    if kind == "normal":
        z = _normal(problem, shape, generator)
    else:
        signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        z = (2.0 * signs - 1).to(problem.X)
    return z, z


def _normal(problem: GPProblem, shape: tuple[int, int], generator: Generator) -> Tensor:
    """Standard normal numbers on the problem's device, drawn on that of the generator."""
    draw = torch.randn(shape, generator=generator, dtype=problem.X.dtype, device=generator.device)
    return draw.to(problem.X.device)
