"""What "auto" means: decisions from the size of the table alone, so that refits are identical."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..._validation import available_memory, check_memory, format_bytes
from ...linalg.solvers import resolve_solver

# Rows up to which a factorisation with its inverse is cheaper than the solves of a stochastic step;
# benchmarks/crossover.py measures both, these are the CPU's and a GPU's crossing.
EXACT_TRAINING_ROWS = {"cpu": 8_000, "cuda": 30_000}
# Rows up to which a badly conditioned problem is rather trained by float64 factorisations.
EXACT_FALLBACK_ROWS = {"cpu": 16_000, "cuda": 40_000}
# Rows up to which one factorisation for prediction is worth its n^3 / 3 flops.
EXACT_POSTERIOR_ROWS = {"cpu": 20_000, "cuda": 40_000}
# Up to here every step is so cheap that double precision costs nothing that matters.
FLOAT64_ROWS = 3_000
# Rows of the exact fit that initialises the hyperparameters of a larger one.
SUBSET_ROWS = 2_000
# Nested subsets grow up to here, a second or two a step on two cores.
EXACT_SUBSET_ROWS = 6_000
# Above so many rows the initialisation averages over neighbourhoods (Lin et al. 2024).
CENTROID_ROWS = 50_000
# Rank of the preconditioner that "auto" builds: its cost is linear in n, its gain is not.
AUTO_RANK = 200
# Rows up to which "auto" answers variances of an iterative model by solves to tolerance.
SOLVED_VARIANCE_ROWS = 3_000
# Pathwise samples whose deviations have a relative standard error of 9 %.
ENOUGH_SAMPLES = 64


@dataclass(frozen=True)
class Plan:
    """How one fit is carried out.

    Attributes
    ----------
    solver : object
        "cholesky", or whatever solves the systems of a training step.
    exact : bool
        Whether training steps factorise H.
    dtype : torch.dtype
        Of the products while training.
    device : torch.device
        Where everything runs.
    keep : bool
        Whether H is kept between the products of one step.
    subset_size : int or None
        Rows of the initialising fit.
    n_subsets : int
        Neighbourhoods to average over; 1 is nested random subsets.
    exact_subset_rows : int
        Largest of the nested subsets.
    factor_if_ill_conditioned : bool
        Whether "auto" may turn to Cholesky when the subsets show that float32 will not do.
    posterior : {"exact", "pathwise", "solve"}
        What answers variances.
    """

    solver: Any
    exact: bool
    dtype: torch.dtype
    device: torch.device
    keep: bool
    subset_size: int | None
    n_subsets: int
    exact_subset_rows: int
    factor_if_ill_conditioned: bool
    posterior: str


def make_plan(
    n: int,
    *,
    solver: Any,
    posterior: str,
    subset_size: Any,
    exact_objective_needed: bool,
    has_spectral_density: bool,
    dtype: torch.dtype,
    device: torch.device,
    memory_budget: float | None,
) -> Plan:
    """Resolve every "auto" and refuse what does not fit.

    Raises
    ------
    MemoryError
        If the chosen method needs more memory than there is; names the need, the limit and a
        setting that fits.
    """
    free = memory_budget if memory_budget is not None else available_memory(device)
    # The budget is a bound on all matrices together; a quarter leaves room for copies.
    room = float("inf") if free is None else float(free)
    bytes_train = n * n * dtype.itemsize
    exact = _trains_exactly(
        n, solver, exact_objective_needed, device, fits=3 * bytes_train <= 0.8 * room
    )
    if exact:
        check_memory(
            3 * bytes_train,
            f"Exact training on {n} rows (three {n} x {n} matrices)",
            "use solver='cg', which multiplies without storing the matrix, or fewer rows",
            memory_budget,
            device=device,
        )
    if posterior == "auto":
        posterior = _auto_posterior(
            n, solver, exact, has_spectral_density, device, fits=16 * n * n <= 0.8 * room
        )
    if posterior == "exact":
        check_memory(
            16 * n * n,
            f"An exact posterior for {n} rows (a float64 factor and its matrix)",
            "use posterior='pathwise', whose memory is linear in the rows",
            memory_budget,
            device=device,
        )
    size, n_subsets = _subset(n, subset_size)
    return Plan(
        solver="cholesky"
        if exact
        # Half the epochs of "cg" and .67 and .76 of its time to the same end (pol, elevators).
        else ("block_cg" if isinstance(solver, str) and solver == "auto" else solver),
        exact=exact,
        dtype=dtype,
        device=device,
        keep=exact or bytes_train <= 0.5 * room,
        subset_size=size,
        n_subsets=n_subsets,
        factor_if_ill_conditioned=(
            not exact
            and isinstance(solver, str)
            and solver == "auto"
            and n <= EXACT_FALLBACK_ROWS[device.type]
            and 24 * n * n <= 0.8 * room
        ),
        exact_subset_rows=EXACT_SUBSET_ROWS if subset_size == "auto" else size or 0,
        posterior=posterior,
    )


def _trains_exactly(n: int, solver: Any, needed: bool, device: torch.device, fits: bool) -> bool:
    if isinstance(solver, str) and solver == "auto":
        return needed or (fits and n <= EXACT_TRAINING_ROWS[device.type])
    return resolve_solver(solver).direct


def _auto_posterior(
    n: int, solver: Any, exact: bool, spectral: bool, device: torch.device, fits: bool
) -> str:
    asked_iterative = not exact and not (isinstance(solver, str) and solver == "auto")
    if asked_iterative:
        return "pathwise" if spectral and n > SOLVED_VARIANCE_ROWS else "solve"
    if fits and n <= EXACT_POSTERIOR_ROWS[device.type] or exact:
        return "exact"
    return "pathwise" if spectral else "solve"


def _subset(n: int, subset_size: Any) -> tuple[int | None, int]:
    if subset_size is None:
        return None, 0
    if subset_size == "auto":
        # Below half again as many rows an initialisation costs what it saves.
        if n <= 1.5 * SUBSET_ROWS:
            return None, 0
        return SUBSET_ROWS, 1 if n <= CENTROID_ROWS else 10
    size = int(subset_size)
    return (None, 0) if size >= n else (size, 1 if n <= CENTROID_ROWS else 10)


def describe(plan: Plan, n: int) -> str:
    """One sentence for people."""
    way = "Cholesky" if plan.exact else f"{plan.solver} solves"
    kept = "kept" if plan.keep else "tiled"
    return (
        f"{way} in {str(plan.dtype).removeprefix('torch.')} on {plan.device} "
        f"({kept} products, H is {format_bytes(n * n * plan.dtype.itemsize)}), "
        f"{plan.posterior} posterior"
    )
