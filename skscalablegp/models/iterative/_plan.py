"""The plans of models that are trained by linear solves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._validation import format_bytes, resolve_dtype
from ...core import GAIN_PER_ROW as SMALL_GAIN
from ...core import (
    Choice,
    Machine,
    MemoryNeed,
    Plan,
    StageSettings,
    Subsets,
    ignore,
    is_auto,
    plan_stages,
    resolve,
    rows_for,
)
from ...core.training import resolve_optimizer
from ...kernels import TorchKernel
from ...linalg.gradients import ExactGradient, GradientEstimator, resolve_gradient
from ...linalg.operators import FUSED, check_products, choose_products, tile_size
from ...linalg.solvers import resolve_solver
from ._solves import (
    Solves,
    for_variances,
    max_jitter,
    parameters_of_solves,
    preconditioned,
    solver_name,
)

# Rows up to which a factorisation with its inverse is faster than the solves of a stochastic step,
# as measured by benchmarks/crossover.py on CPUs; the numbers of GPUs are unmeasured here and below.
EXACT_TRAINING_ROWS = {"cpu": 8_000, "cuda": 30_000, "xpu": 30_000}
# Rows up to which a badly conditioned problem is trained by float64 factorisations.
EXACT_FALLBACK_ROWS = {"cpu": 16_000, "cuda": 40_000, "xpu": 40_000}
# Rows up to which predictions use a factorisation, at n^3 / 3 operations.
EXACT_POSTERIOR_ROWS = {"cpu": 20_000, "cuda": 40_000, "xpu": 40_000}
# Rows up to which steps are so cheap that double precision does not matter.
FLOAT64_ROWS = 3_000
# Rows of the exact fit from which training on a larger table starts.
SUBSET_ROWS = 2_000
# The same where larger subsets follow in any case: most steps are then taken on few rows.
FIRST_SUBSET_ROWS = 667
# Rows of the largest nested subset, at one or two seconds a step on two cores.
EXACT_SUBSET_ROWS = 6_000
# Rows up to which subsets alone give the hyperparameters, and neighbours the variances. Above, the
# start averages over neighbourhoods (Lin et al. 2024), and all rows are trained. On CPUs the last
# solve for 100,000 rows takes minutes (python benchmarks/last_solve.py --part fit).
CENTROID_ROWS = {"cpu": 100_000, "cuda": 50_000, "xpu": 50_000}
# Rows up to which "auto" computes variances of an iterative model by solves.
SOLVED_VARIANCE_ROWS = 3_000
# Training rows by which "neighbors" computes a variance.
NEAREST = 256
# Predicted gain, in nats per row, that is worth another step on tables too large for exact
# training; an error of the hyperparameters then costs as little in each prediction.
GAIN_PER_ROW = 1e-3
# Number of pathwise samples; the standard deviations then have a relative error of 9%.
ENOUGH_SAMPLES = 64

# Vectors of n numbers that solves, probes and a preconditioner hold.
_VECTORS = 400

# The reason for choices that training had to change, and for what they leave without effect.
_ILL_CONDITIONED = "the kernel matrix is too badly conditioned for float32"
FACTORISED = "training and predictions factorise the matrix"
_OF_SOLVES = ("preconditioner", "n_probes", "solver_tol", "solver_max_epochs", "solver_warm_start")


@dataclass(frozen=True, kw_only=True)
class IterativePlan(Plan):
    """How one fit is carried out.

    Attributes
    ----------
    dtype, posterior, solver, preconditioner, gradient, n_probes : Choice
        Of the parameters. The precision is that of the products while training; None stands for
        parameters that this fit does not use.
    products : Choice or None
        Of the parameter; None for estimators without it.
    train_on : Choice
        "all", or "subsets", which then give the hyperparameters, and errors of left-out rows the
        scale of the kernel.
    n : int
        Number of rows.
    stages : StageSettings
        Settings of training, with its subsets.
    training : Plan
        The plan of training on all rows, or of a fit that trains nothing.
    estimator : GradientEstimator
        Of training on all rows.
    solves : Solves
        Of the final solve, and of predictions.
    n_samples : int
        Number of samples of a pathwise posterior.
    keep : bool
        Whether H is kept between the products of one step.
    room : float
        Bytes that all matrices together may take.
    """

    dtype: Choice
    posterior: Choice
    solver: Choice
    preconditioner: Choice | None = None
    gradient: Choice | None = None
    n_probes: Choice | None = None
    products: Choice | None = None
    train_on: Choice = Choice("all", "the model is trained on all rows")
    n: int
    stages: StageSettings
    solves: Solves
    keep: bool
    room: float
    training: Plan = Plan()
    estimator: GradientEstimator = ExactGradient()
    n_samples: int = ENOUGH_SAMPLES

    @property
    def all_rows(self) -> bool:
        """Whether all rows are trained."""
        return self.train_on.value == "all"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return getattr(torch, self.dtype.value)

    def in_precision(self, dtype: str) -> IterativePlan:
        """The plan after training or the final solve have needed this precision."""
        if dtype == self.dtype.value:
            return self
        return replace(self, dtype=Choice(dtype, _ILL_CONDITIONED))

    def factorised(self, dtype: torch.dtype) -> IterativePlan:
        """The plan after subsets have shown that the systems need a factorisation."""
        plan = self.in_precision(str(dtype).removeprefix("torch."))
        if self.estimator.exact:
            return replace(plan, solves=self.solves.factorised())
        if self.posterior.value == "exact":
            plan = plan.ignoring(*_OF_SOLVES, because=FACTORISED)
        return replace(
            plan,
            solver=Choice("cholesky", _ILL_CONDITIONED),
            gradient=Choice("exact", _ILL_CONDITIONED),
            training=self.training.factorised(),
            estimator=ExactGradient(self.solves.max_jitter),
            solves=self.solves.factorised(),
        )

    def describe(self, dtype: str, machine: Machine) -> str:
        """A summary in one sentence."""
        device = machine.device if dtype == "float64" else machine.multiplies
        name = solver_name(self.solves.solver)
        way = "Cholesky" if name == "cholesky" else f"{name} solves"
        way_of = {"compiled": "compiled", "keops": "KeOps"}
        fused = None if self.products is None else way_of.get(self.products.value)
        kept = "stored" if self.keep else f"evaluated by {fused or 'tiled'} products, not stored"
        size = format_bytes(self.n**2 * getattr(torch, dtype).itemsize)
        return (
            f"{way} in {dtype} on {device} (kernel matrix of {size}, {kept}), "
            f"{self.posterior.value} posterior"
        )


def plan(
    params: Any, n: int, d: int, machine: Machine, *, n_params: int = 1, spectral: bool = True
) -> IterativePlan:
    """The plan of an `IterativeGPRegressor` for n rows of d columns.

    Parameters
    ----------
    params : IterativeGPRegressor
        Only its parameters are read.
    n, d : int
    machine : Machine
    n_params : int, default=1
        Number of free hyperparameters.
    spectral : bool, default=True
        Whether the kernel has a spectral density.

    Raises
    ------
    ValueError
        For settings that are unknown or contradict each other.
    """
    if not is_auto(params.gradient):
        resolve_gradient(params.gradient)
    given, ignored = parameters_of_solves(params)
    factorises, auto = _factorises(params), is_auto(params.solver)
    exact, subsets, choices = plan_both(params, n, d, machine, factorises, auto, spectral)
    posterior = choices["posterior"]
    train_on = _plan_train_on(params, exact, subsets, posterior)
    alone = train_on.value == "subsets"
    # Without steps on all rows, a factorisation for predictions leaves nothing to solve.
    direct = exact or (alone and posterior.value == "exact")
    # "block_cg" takes half the epochs of "cg", and 0.67 (pol) and 0.76 (elevators) of its time.
    why = "a factorisation does not fit, or costs more than solves"
    if direct:
        why = "a factorisation is cheaper than solves"
    if factorises:
        why = "the gradient or the optimizer needs a factorisation"
    name = "cholesky" if direct else "block_cg"
    solver = resolve(given["solver"], name, f"{n:,} rows: {why}")
    solves = Solves(
        preconditioned(solver.value, given["preconditioner"]),
        for_variances(given["solver"], given["preconditioner"]),
        given["solver_tol"],
        given["solver_max_epochs"],
        given["solver_warm_start"],
        max_jitter(params.solver, params.gradient),
        ends_early=is_auto(given["solver"]),
    )
    if solves.solver.takes_preconditioner:
        choices["preconditioner"] = Choice(solves.solver.preconditioner, "that of the solver")
    choices["keep"] &= exact or params.products not in FUSED
    if choices["keep"]:
        ignored |= ignore("products", because="the kernel matrix is stored")
    else:
        check_products(params.products, machine.multiplies)
        way = choose_products(machine.multiplies, machine.compiler)
        choices["products"] = resolve(params.products, *way)
    subsets = replace(subsets, only=alone) if subsets else None
    start = IterativePlan(
        **choices,
        solver=solver,
        train_on=train_on,
        stages=_plan_stages(params, n, machine, exact, subsets),
        solves=solves,
        ignored=ignored,
    )
    start = _with_gradient(start, params, given["n_probes"], exact, spectral)
    return with_training(start, n_params)


def with_training(plan: IterativePlan, n_params: int) -> IterativePlan:
    """The plan with that of training on all rows, or of a fit that trains nothing."""
    unused = ("training_max_epochs", "subset_size", "gradient", "train_on")
    training = plan_stages(plan.stages, plan.estimator.exact, plan.n, n_params, unused)
    return replace(plan, training=training)


# ---------------------------------------------------------------------- parts of both models


def plan_both(
    params: Any,
    n: int,
    d: int,
    machine: Machine,
    factorises: bool | None,
    auto: bool,
    spectral: bool,
) -> tuple[bool, Subsets | None, dict[str, Any]]:
    """Plan what both gradients share.

    Returns whether training steps factorise, the first subsets, and the fields that follow from
    both. `factorises` is None if that depends on the rows; `auto` is whether the solver is.
    """
    dtype = str(resolve_dtype(params.dtype, n, threshold=FLOAT64_ROWS)).removeprefix("torch.")
    why = f"up to {FLOAT64_ROWS:,} rows double precision costs little"
    if n > FLOAT64_ROWS:
        why = "float64 only if float32 could not factorise the kernel matrix"
    matrix = n * n * getattr(torch, dtype).itemsize
    exact = factorises
    if exact is None:
        exact = 3 * matrix <= 0.8 * machine.room and n <= EXACT_TRAINING_ROWS[machine.device.type]
    precision = Choice(dtype, f"{n:,} rows: {why}")
    precision = machine.precision(params, precision, exact, "products ")
    matrix = n * n * getattr(torch, precision.value).itemsize
    posterior = plan_posterior(params, n, machine, exact, auto, spectral)
    subsets = _plan_subsets(params, n, d, machine)
    needs = _memory_needs(n, machine, matrix if exact else 0, posterior, subsets)
    fields = {"dtype": precision, "posterior": posterior, "n": n, "needs": needs}
    fields |= {"keep": exact or matrix <= 0.5 * machine.room, "room": machine.room}
    return exact, subsets, fields


def plan_posterior(
    params: Any, n: int, machine: Machine, exact: bool, auto: bool, spectral: bool
) -> Choice:
    """How variances are computed; `auto` is whether the solver is."""
    sampled = ("pathwise", "samples need memory that is linear in the rows")
    near = ("neighbors", "a row's nearest neighbours nearly determine its variance")
    solved = ("solve", "few enough for a solve per prediction")
    fits = 16 * n * n <= 0.8 * machine.room
    if not spectral:
        sampled = solved = ("solve", "the kernel has no spectral density to sample from")
    if not exact and not auto:
        value, why = sampled if n > SOLVED_VARIANCE_ROWS else solved
    elif exact or (fits and n <= EXACT_POSTERIOR_ROWS[machine.device.type]):
        value, why = "exact", "one factorisation fits into memory and serves all predictions"
    elif spectral and n <= CENTROID_ROWS["cpu"] and machine.device.type == "cpu":
        value, why = near
    else:
        value, why = sampled
    return resolve(params.posterior, value, f"{n:,} rows: {why}")


def _plan_subsets(params: Any, n: int, d: int, machine: Machine) -> Subsets | None:
    """The exact fits with which training begins."""
    size, count = params.subset_size, 1 if n <= CENTROID_ROWS[machine.device.type] else 10
    if size is None or params.optimizer is None:
        return None
    if not is_auto(size):
        return None if size >= n else Subsets(int(size), int(size), count)
    # On smaller tables the start would cost as much as it saves.
    if n <= 1.5 * SUBSET_ROWS:
        return None
    largest = min(EXACT_SUBSET_ROWS, int(min(n, (machine.room / 48) ** 0.5)))
    if EXACT_TRAINING_ROWS["cpu"] < n <= EXACT_POSTERIOR_ROWS["cpu"]:
        return Subsets(rows_for(d, FIRST_SUBSET_ROWS), largest)
    return Subsets(SUBSET_ROWS, largest, count)


def _memory_needs(
    n: int, machine: Machine, matrix: int, posterior: Choice, subsets: Subsets | None
) -> tuple[MemoryNeed, ...]:
    """The memory of each part of a fit, with a setting that needs less.

    `matrix` are the bytes of the kernel matrix that training factorises; 0 if it does not.
    """
    tile, needs = min(n, tile_size(machine.device)), list[MemoryNeed]()
    if matrix:
        what = f"Exact training on {n} rows (three {n} x {n} matrices)"
        less = "use solver='cg', which multiplies without storing the matrix, or fewer rows"
        needs.append(MemoryNeed(3 * matrix, what, less))
    if posterior.value == "exact":
        what = f"An exact posterior for {n} rows (a float64 factor and its matrix)"
        less = "use posterior='pathwise', whose memory is linear in the rows"
        needs.append(MemoryNeed(16 * n * n, what, less))
    what = f"Training on {n} rows in tiles ({_VECTORS} vectors and three {tile} x {tile} tiles)"
    less = "use fewer rows, or SVGPRegressor, which reads them in batches"
    needs.append(MemoryNeed(8 * (_VECTORS * n + 3 * tile * tile), what, less))
    if subsets is not None:
        size = subsets.size
        what = f"The exact start on subset_size={size} rows (three {size} x {size} matrices)"
        needs.append(MemoryNeed(24 * size * size, what, "use a smaller subset_size"))
    return tuple(needs)


# ---------------------------------------------------------------------- IterativeGPRegressor


def _factorises(params: Any) -> bool | None:
    """Whether training steps factorise H; None if that depends on the number of rows."""
    gradient, auto = params.gradient, is_auto(params.solver)
    direct = not auto and resolve_solver(params.solver).direct
    exact = gradient == "exact" if isinstance(gradient, str) else gradient.exact
    if not (exact or isinstance(gradient, str)):
        return False
    if exact and not (auto or direct):
        raise ValueError(
            f"gradient={gradient!r} needs a factorisation, which solver={params.solver!r} "
            "does not give: use solver='cholesky', or gradient='pathwise'."
        )
    chosen = params.optimizer is not None and not is_auto(params.optimizer)
    if chosen and resolve_optimizer(params.optimizer, informed=True).exact_only:
        exact = exact or auto
    return exact or (None if auto else direct)


def _asks_for_all_rows(params: Any) -> bool:
    """Whether a setting other than a limit is about training on all rows."""
    settings = (params.optimizer, params.subset_size, params.gradient, params.solver)
    return params.train_on == "all" or not all(map(is_auto, settings))


def _plan_train_on(params: Any, exact: bool, subsets: Subsets | None, posterior: Choice) -> Choice:
    """Whether all rows are trained, or subsets alone give the hyperparameters."""
    if params.train_on == "subsets" and subsets is None and params.subset_size is None:
        raise ValueError("train_on='subsets' contradicts subset_size=None: give a number of rows.")
    if subsets is None:
        return Choice("all", "there are no subsets")
    if not is_auto(params.train_on):
        return Choice(params.train_on, "as given")
    if exact or _asks_for_all_rows(params):
        why = "every step factorises" if exact else "the settings are those of steps on all rows"
        return Choice("all", why)
    if subsets.count > 1 or posterior.value not in ("exact", "neighbors"):
        return Choice("all", "neither subsets nor leave-one-out errors would give the scale")
    return Choice("subsets", "a step on all rows takes seconds to minutes")


def _plan_stages(
    params: Any, n: int, machine: Machine, exact: bool, subsets: Subsets | None
) -> StageSettings:
    factorised = (
        not exact
        and is_auto(params.solver)
        and isinstance(params.gradient, str)
        and n <= EXACT_FALLBACK_ROWS[machine.device.type]
        and 24 * n * n <= 0.8 * machine.room
    )
    alone = subsets is not None and subsets.only
    rough = not exact and (alone or not _asks_for_all_rows(params))
    return StageSettings.of(
        params,
        params.n_restarts_optimizer,
        max_epochs=params.training_max_epochs,
        subsets=subsets,
        precision="given" if params.dtype != "auto" else "factorised" if factorised else "adapted",
        as_scikit_learn=params.kernel is not None,
        gain_per_row=GAIN_PER_ROW if rough else SMALL_GAIN,
        natural=True,
    )


def _with_gradient(
    plan: IterativePlan, params: Any, n_probes: Any, exact: bool, spectral: bool
) -> IterativePlan:
    """The plan with the gradient's estimator, its probes, and what they leave without effect."""
    sampled, by_name = plan.posterior.value == "pathwise", isinstance(params.gradient, str)
    if is_auto(n_probes):
        n_probes = ENOUGH_SAMPLES if sampled else 32
    gradient, estimator = None, ExactGradient(plan.solves.max_jitter)
    if plan.all_rows:
        gradient, estimator = _plan_gradient(plan, params, n_probes, exact, spectral)
    probes = None
    if sampled:
        probes = Choice(n_probes, "variances are computed from them")
    elif not estimator.exact:
        probes = Choice(n_probes, "only gradients are computed from them")
    return replace(
        plan,
        gradient=gradient,
        estimator=estimator,
        n_probes=probes,
        n_samples=n_probes if by_name else max(n_probes, ENOUGH_SAMPLES),
        ignored={**plan.ignored, **_without_effect(plan, params, estimator)},
    )


def _plan_gradient(
    plan: IterativePlan, params: Any, n_probes: int, exact: bool, spectral: bool
) -> tuple[Choice, GradientEstimator]:
    choice, solves, n = params.gradient, plan.solves, plan.n
    if not isinstance(choice, str):
        return Choice(choice, "as given"), choice
    if choice == "exact" or (choice == "auto" and exact):
        return Choice("exact", "every step factorises"), ExactGradient(solves.max_jitter)
    settings = {
        "solver": solves.solver,
        "n_probes": n_probes,
        "solver_tol": solves.tol,
        "solver_max_epochs": solves.max_epochs,
        "solver_warm_start": solves.warm_start,
    }
    if choice == "standard":
        return Choice(choice, "as given"), resolve_gradient(choice, **settings)
    prior = "fourier" if spectral else "exact"
    if choice == "auto" and plan.posterior.value != "pathwise":
        if solves.solver.takes_preconditioner or n > FLOAT64_ROWS:
            why = "the preconditioner gives good probes, and predictions need no samples"
            made = resolve_gradient("standard", **settings, probes="preconditioned")
            return Choice("standard", why), made
        prior = "exact"
    if not spectral and 3 * 8 * n**2 > plan.room:
        raise ValueError(
            f"gradient='pathwise' needs prior samples, and {params.kernel} has no spectral density "
            f"to draw them from; exact ones for {n} rows do not fit in memory. Use "
            "gradient='standard'."
        )
    why = "its linear systems are easier to solve"
    return Choice("pathwise", why), resolve_gradient("pathwise", **settings, prior=prior)


def _without_effect(
    plan: IterativePlan, params: Any, estimator: GradientEstimator
) -> dict[str, str]:
    ignored, rows, posterior = {}, f"{plan.n:,} rows", plan.posterior.value
    if not plan.all_rows:
        names = ["gradient", "solver_warm_start"]
        names += ["n_probes"] if posterior != "pathwise" else []
        names += ["n_restarts_optimizer"] if params.n_restarts_optimizer else []
        ignored |= ignore(*names, because=f"{rows}: subsets give the hyperparameters")
    elif params.train_on == "subsets":
        ignored |= ignore("train_on", because=f"{rows}: too few for subsets")
    if estimator.exact and posterior == "exact":
        ignored |= ignore(*_OF_SOLVES, because=FACTORISED)
    elif posterior == "exact" and not plan.solves.solver.takes_preconditioner:
        name = solver_name(plan.solves.solver)
        ignored |= ignore("preconditioner", because=f"{name!r} takes none")
    elif estimator.exact and posterior == "solve":
        ignored |= ignore("n_probes", "solver_warm_start", because="training factorises the matrix")
    return ignored


def numpy_cost(kernel: TorchKernel, n: int) -> str:
    """A clause on the cost of kernels without a compiled form; empty if there are none."""
    if not kernel.numpy_code:
        return ""
    return (
        f"; {' and '.join(kernel.numpy_code)} by its own NumPy code, which computes about "
        f"{n * n:,} entries for each evaluation of H and up to twice as many for each gradient"
    )
