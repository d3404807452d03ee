"""Solver, preconditioner and tolerances, resolved from several parameters."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.base import BaseEstimator, clone

from ...core import ignore, is_auto
from ...core.training import Budget
from ...linalg.gradients import PathwiseGradient
from ...linalg.operators import KernelOperator
from ...linalg.preconditioners import PIC, PreconditionerConfig, resolve_preconditioner
from ...linalg.solvers import (
    Cholesky,
    MaxEpochs,
    RelativeResidual,
    Solver,
    preconditioner_for,
    resolve_solver,
)
from ._early_end import HeldOutErrors

# Largest relative residual of solves for variances, absolute and as a multiple of noise / signal;
# standard deviations are then accurate to 1%.
_TOL, _TOL_OF_NOISE = 1e-4, 0.03
# Largest rank of the preconditioner of a solve for the targets alone, with a stored matrix and
# without, where a product takes longer because it evaluates the matrix.
_MEAN_RANK = {True: 700, False: 1500}
# Rows of its blocks for each unit of its rank.
_BLOCK_OF_RANK = 2
# Largest relative residual of such a solve. On 12,000 drawn rows the RMSE is then 0.3% above that
# of a residual of 2e-4 (python benchmarks/sketch.py --n 12000 --solvers "block_cg, PIC").
_MEAN_TOL = 5e-3
# Bytes that building such a preconditioner takes for each row and each unit of its rank: factor,
# whitened factor, blocks and copies in double precision. They get half of the room for matrices.
_BYTES_OF_RANK, _SHARE_OF_ROOM = 40, 0.5

# Parameters that a gradient object and the estimator both have.
_OF_GRADIENTS = (
    "solver",
    "preconditioner",
    "n_probes",
    "solver_tol",
    "solver_max_epochs",
    "solver_warm_start",
)


@dataclass(frozen=True)
class Solves:
    """How the systems of a fit, and those of its predictions, are solved.

    Attributes
    ----------
    solver : Solver
        Of training and of the final solve, with its preconditioner.
    variances : Solver
        Of variances in predictions, which need small residuals.
    tol, max_epochs : float
        Relative residual at which a solve ends, and its budget.
    warm_start : bool
        Whether solves begin with earlier solutions.
    max_jitter : float
        Of factorisations, as a multiple of the mean diagonal entry.
    ends_early : bool
        Whether the last solve may end above its tolerance where neighbours correct the mean.
    early : HeldOutErrors or None
        The rule by which it then ends.
    """

    solver: Solver
    variances: Solver
    tol: float
    max_epochs: float
    warm_start: bool = False
    max_jitter: float = 1e-3
    ends_early: bool = False
    early: HeldOutErrors | None = None

    def pathwise(self, n_probes: int) -> PathwiseGradient:
        """Posterior samples by these solves."""
        return PathwiseGradient(
            self.solver,
            n_probes=n_probes,
            solver_tol=self.tol,
            solver_max_epochs=self.max_epochs,
            solver_warm_start=self.warm_start,
        )

    def factorised(self) -> Solves:
        """These solves by a factorisation."""
        return replace(self, solver=Cholesky(self.max_jitter))

    def of_the_mean(
        self, operator: KernelOperator, room: float, budget: Budget, kept: bool = True
    ) -> Solves:
        """These solves for the targets alone; `kept` says whether H is stored.

        A product with few columns waits for memory, so that a larger preconditioner costs little
        time. It is as large as `room`, the bytes that all matrices together may take, allows. With
        a time budget, building it takes at most half of what is left, extrapolated from the time of
        a smaller one: it grows with the square of the rank.
        """
        solver, n = clone(self.solver), operator.shape[0]
        if solver.takes_preconditioner:
            given = solver.preconditioner
            if _same("preconditioner", given, default_preconditioner()):
                fits = _SHARE_OF_ROOM * room / (_BYTES_OF_RANK * n)
                rank = min(_MEAN_RANK[kept], n // 10, fits)
                if budget.limit is not None and rank > given.rank:
                    seed = torch.Generator().manual_seed(0)
                    took = budget.timed(lambda: given.build(operator, seed))
                    left = budget.share("preconditioner").left
                    rank = min(rank, given.rank * math.sqrt(left / took))
                rank = max(given.rank, int(rank))
                solver.set_params(preconditioner=PIC(rank, _BLOCK_OF_RANK * rank))
        return replace(self, solver=solver, tol=min(self.tol, _MEAN_TOL))

    def stopping(self, operator: KernelOperator) -> Any:
        """The stopping rule of solves for variances, which need smaller residuals than gradients.

        A residual R changes a variance by R' H^-1 R, which is at most |R|^2 / noise, and near
        training rows variances are as small as the noise.
        """
        ratio = float(operator.noise.min()) / max(float(operator.diag().double().mean()), 1e-300)
        # Solves do not reliably reach residuals closer to the rounding error.
        reachable = torch.finfo(operator.dtype).eps ** 0.5
        tol = min(self.tol, _TOL, max(_TOL_OF_NOISE * ratio, reachable))
        return RelativeResidual(tol) | MaxEpochs(self.max_epochs)


def default_preconditioner() -> PreconditionerConfig:
    """The preconditioner of "auto" for a solver given by name."""
    return preconditioner_for("block_cg")


def named_solver(name: str) -> Solver:
    """The object for ``solver="cg"`` and other names, with the preconditioner of "auto"."""
    return preconditioned(name, "auto")


def named_preconditioner(name: str) -> Any:
    """The object for a preconditioner given by name."""
    return default_preconditioner() if name == "auto" else resolve_preconditioner(name)


def preconditioned(solver: Any, preconditioner: Any) -> Solver:
    """A copy of the solver with the preconditioner that the two parameters specify.

    Parameters
    ----------
    solver : str or Solver
    preconditioner : "auto", str, object or None
        As `preconditioner_for` takes it.

    Raises
    ------
    ValueError
        If a solver object has a preconditioner, and `preconditioner` is another one.
    """
    made, chosen = resolve_solver(solver), preconditioner_for(solver, preconditioner)
    # Copies, so that changes of the user's objects do not reach a fitted model.
    if not made.takes_preconditioner or _same("preconditioner", made.preconditioner, chosen):
        return clone(made)
    if made.preconditioner is not None:
        raise ValueError(
            f"preconditioner={preconditioner!r} contradicts solver={solver!r}, which has another "
            "one: leave preconditioner='auto', or use a solver without a preconditioner."
        )
    return clone(made).set_params(preconditioner=chosen)


def for_variances(solver: Any, preconditioner: Any) -> Solver:
    """The solver of training if it reaches small residuals, else "block_cg".

    Methods that read a few rows at a time suit loose tolerances. Block conjugate gradients reach
    small residuals in far fewer epochs.
    """
    if is_auto(solver) or resolve_solver(solver).reads_rows:
        return preconditioned("block_cg", preconditioner)
    return preconditioned(solver, preconditioner)


def max_jitter(solver: Any, gradient: Any) -> float:
    """The `max_jitter` of a solver or gradient object that factorises, or the default."""
    for settings in (solver, gradient):
        if not isinstance(settings, str):
            return settings.get_params(deep=False).get("max_jitter", 1e-3)
    return 1e-3


def solver_name(solver: Solver) -> str:
    """The name of a solver, such as "block_cg"."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(solver).__name__).lower()


def parameters_of_solves(params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The estimator's parameters of linear solves, overridden by those of a gradient object.

    Parameters
    ----------
    params : IterativeGPRegressor

    Returns
    -------
    given : dict
    ignored : dict
        The parameters that the object overrides, with the reason.

    Raises
    ------
    ValueError
        If a parameter is set to another value than the object's.
    """
    given, ignored = {name: getattr(params, name) for name in _OF_GRADIENTS}, {}
    if isinstance(params.gradient, str):
        return given, ignored
    own = params.gradient.get_params(deep=False)
    if "solver" in own:
        own["preconditioner"] = preconditioner_for(own["solver"], own["preconditioner"])
    if "solver" not in own or not resolve_solver(own["solver"]).takes_preconditioner:
        # The solves behind predictions have the estimator's.
        own.pop("preconditioner", None)
    defaults = type(params)().get_params(deep=False)
    for name in (name for name in _OF_GRADIENTS if name in own):
        asked, default, theirs = given[name], defaults[name], own[name]
        unset = type(asked) is type(default) and asked == default
        if not (unset or _same(name, asked, theirs)):
            raise ValueError(
                f"{name}={asked!r} contradicts gradient={params.gradient!r}, which has {theirs!r}: "
                f"leave {name} at its default, or change the gradient object."
            )
        ignored |= ignore(name, because=f"the gradient object has its own {name}={theirs!r}")
        given[name] = theirs
    return given, ignored


def _same(name: str, a: Any, b: Any) -> bool:
    """Whether two values of a parameter have the same meaning."""
    resolve = {"solver": resolve_solver, "preconditioner": resolve_preconditioner}.get(name)
    if resolve is not None:
        a, b = resolve(a), resolve(b)
    if isinstance(a, BaseEstimator):
        return type(a) is type(b) and repr(a) == repr(b)
    return a is b or a == b
