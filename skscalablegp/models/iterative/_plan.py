"""Values of "auto", which depend only on the table's size, so that refits are identical."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._validation import available_memory, format_bytes, resolve_dtype
from ...core import GAIN_PER_ROW as SMALL_GAIN
from ...core import FitRun, rows_for
from ...kernels import TorchKernel
from ...linalg.gradients import ExactGradient, GradientEstimator
from ...linalg.operators import tile_size
from ...linalg.solvers import Cholesky
from ._solves import Solves, solver_name

# Rows up to which a factorisation with its inverse is faster than the solves of a stochastic step,
# as measured by benchmarks/crossover.py.
EXACT_TRAINING_ROWS = {"cpu": 8_000, "cuda": 30_000}
# Rows up to which a badly conditioned problem is trained by float64 factorisations.
EXACT_FALLBACK_ROWS = {"cpu": 16_000, "cuda": 40_000}
# Rows up to which predictions use a factorisation, at n^3 / 3 operations.
EXACT_POSTERIOR_ROWS = {"cpu": 20_000, "cuda": 40_000}
# Rows up to which steps are so cheap that double precision does not matter.
FLOAT64_ROWS = 3_000
# Rows of the exact fit from which training on a larger table starts.
SUBSET_ROWS = 2_000
# The same where larger subsets follow in any case: most steps are then taken on few rows.
FIRST_SUBSET_ROWS = 667
# Rows of the largest nested subset, at one or two seconds a step on two cores.
EXACT_SUBSET_ROWS = 6_000
# Rows above which the start averages over neighbourhoods (Lin et al. 2024).
CENTROID_ROWS = 50_000
# Rows up to which "auto" computes variances of an iterative model by solves.
SOLVED_VARIANCE_ROWS = 3_000
# Training rows by which "neighbors" computes a variance.
NEAREST = 256
# Predicted gain, in nats per row, that is worth another step on tables too large for exact
# training; an error of the hyperparameters then costs as little in each prediction.
GAIN_PER_ROW = 1e-3
# Number of pathwise samples; the standard deviations then have a relative error of 9%.
ENOUGH_SAMPLES = 64


@dataclass(frozen=True)
class Sizes:
    """Settings that depend on the number of rows and on memory.

    Attributes
    ----------
    exact : bool
        Whether training steps factorise H.
    dtype : torch.dtype
        Of the products while training.
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
    posterior : {"exact", "neighbors", "pathwise", "solve"}
        How variances are computed.
    room : float
        Bytes that all matrices together may take.
    """

    exact: bool
    dtype: torch.dtype
    keep: bool
    subset_size: int | None
    n_subsets: int
    exact_subset_rows: int
    factor_if_ill_conditioned: bool
    posterior: str
    room: float


@dataclass(frozen=True)
class Plan:
    """How one fit is carried out.

    Attributes
    ----------
    sizes : Sizes
    gradient : GradientEstimator
        Of training on all rows.
    solves : Solves
        Of the final solve, and of predictions.
    n_samples : int
        Of a pathwise posterior.
    n_restarts : int
        Further starts of the optimiser.
    all_rows : bool
        Whether all rows are trained. Otherwise the subsets give the hyperparameters, and rows left
        out the scale of the kernel.
    gain_per_row : float
        Predicted gain, in nats per row, that is worth another training step.
    """

    sizes: Sizes
    gradient: GradientEstimator
    solves: Solves
    n_samples: int
    n_restarts: int = 0
    all_rows: bool = True
    gain_per_row: float = SMALL_GAIN

    def factorised(self, dtype: torch.dtype) -> Plan:
        """The plan after subsets have shown that the systems need a factorisation."""
        return replace(
            self,
            sizes=replace(self.sizes, exact=True, dtype=dtype),
            gradient=ExactGradient(self.solves.max_jitter),
            solves=replace(self.solves, solver=Cholesky(self.solves.max_jitter)),
        )

    @property
    def solver(self) -> str:
        """The name of the method that solves the systems of all rows."""
        return solver_name(self.solves.solver)

    def describe(self, n: int, dtype: str, device: torch.device) -> str:
        """A summary in one sentence."""
        sizes = self.sizes
        way = "Cholesky" if self.solver == "cholesky" else f"{self.solver} solves"
        kept = "kept" if sizes.keep else "tiled"
        return (
            f"{way} in {dtype} on {device} "
            f"({kept} products, H is {format_bytes(n * n * getattr(torch, dtype).itemsize)}), "
            f"{sizes.posterior} posterior"
        )


# Vectors of n numbers that solves, probes and a preconditioner hold.
_VECTORS = 400


def numpy_cost(kernel: TorchKernel, n: int) -> str:
    """A clause on the cost of kernels without a compiled form; empty if there are none."""
    if not kernel.numpy_code:
        return ""
    return (
        f"; {' and '.join(kernel.numpy_code)} by its own NumPy code, which computes about "
        f"{n * n:,} entries for each evaluation of H and up to twice as many for each gradient"
    )


def decide_sizes(
    n: int,
    d: int,
    run: FitRun,
    *,
    solver: Any,
    posterior: str,
    subset_size: Any,
    exact: bool | None,
    has_spectral_density: bool,
    dtype: str,
) -> Sizes:
    """Resolve the settings that depend on the number of rows; refuse work that does not fit.

    Parameters
    ----------
    n, d : int
        Rows and columns.
    run : FitRun
        Gives device and memory, and records every choice.
    solver, posterior, subset_size, dtype
        Of the estimator.
    exact : bool or None
        Whether training factorises the matrix; None if that is to be decided.
    has_spectral_density : bool
        Of the kernel.

    Raises
    ------
    MemoryError
        If the chosen method needs more memory than there is; names the need, the limit and a
        setting that fits.
    """
    device, room, rows = run.device, _memory_room(run), f"{n:,} rows"
    small = f"up to {FLOAT64_ROWS:,} rows double precision costs little"
    if n > FLOAT64_ROWS:
        small = "float64 only if float32 could not factorise the kernel matrix"
    in_dtype = resolve_dtype(dtype, n, threshold=FLOAT64_ROWS)
    run.chose("dtype", str(in_dtype).removeprefix("torch."), f"{rows}: {small}")
    bytes_train = n * n * in_dtype.itemsize
    if exact is None:
        exact = 3 * bytes_train <= 0.8 * room and n <= EXACT_TRAINING_ROWS[device.type]
    if exact:
        run.check_memory(
            3 * bytes_train,
            f"Exact training on {n} rows (three {n} x {n} matrices)",
            "use solver='cg', which multiplies without storing the matrix, or fewer rows",
        )
    auto = isinstance(solver, str) and solver == "auto"
    if posterior == "auto":
        posterior, why = _auto_posterior(
            n, auto, exact, has_spectral_density, device, fits=16 * n * n <= 0.8 * room
        )
        run.chose("posterior", posterior, f"{rows}: {why}")
    if posterior == "exact":
        run.check_memory(
            16 * n * n,
            f"An exact posterior for {n} rows (a float64 factor and its matrix)",
            "use posterior='pathwise', whose memory is linear in the rows",
        )
    size, n_subsets = _subset(n, d, subset_size)
    tile, largest = min(n, tile_size(device)), int(min(n, (room / 48) ** 0.5))
    run.check_memory(
        8 * (_VECTORS * n + 3 * tile * tile),
        f"Training on {n} rows in tiles ({_VECTORS} vectors and three {tile} x {tile} tiles)",
        "use fewer rows, or SVGPRegressor, which reads them in batches",
    )
    if size is not None:
        run.check_memory(
            24 * size * size,
            f"The exact start on subset_size={size} rows (three {size} x {size} matrices)",
            "use a smaller subset_size",
        )
    return Sizes(
        exact=exact,
        dtype=in_dtype,
        keep=exact or bytes_train <= 0.5 * room,
        subset_size=size,
        n_subsets=n_subsets,
        factor_if_ill_conditioned=(
            not exact
            and auto
            and n <= EXACT_FALLBACK_ROWS[device.type]
            and 24 * n * n <= 0.8 * room
        ),
        exact_subset_rows=min(EXACT_SUBSET_ROWS, largest) if subset_size == "auto" else size or 0,
        posterior=posterior,
        room=room,
    )


def _memory_room(run: FitRun) -> float:
    """Bytes for all matrices together."""
    free = run.memory_budget
    if free is None:
        free = available_memory(run.device)
    return float("inf") if free is None else float(free)


def _auto_posterior(
    n: int, auto: bool, exact: bool, spectral: bool, device: torch.device, fits: bool
) -> tuple[str, str]:
    sampled = ("pathwise", "samples need memory that is linear in the rows")
    near = ("neighbors", "a row's nearest neighbours nearly determine its variance")
    solved = ("solve", "few enough for a solve per prediction")
    if not spectral:
        sampled = solved = ("solve", "the kernel has no spectral density to sample from")
    if not exact and not auto:
        return sampled if n > SOLVED_VARIANCE_ROWS else solved
    if exact or (fits and n <= EXACT_POSTERIOR_ROWS[device.type]):
        return "exact", "one factorisation fits into memory and serves all predictions"
    return near if spectral and n <= CENTROID_ROWS and device.type == "cpu" else sampled


def _subset(n: int, d: int, subset_size: Any) -> tuple[int | None, int]:
    if subset_size is None:
        return None, 0
    if subset_size == "auto":
        # On smaller tables the start would cost as much as it saves.
        if n <= 1.5 * SUBSET_ROWS:
            return None, 0
        if EXACT_TRAINING_ROWS["cpu"] < n <= EXACT_POSTERIOR_ROWS["cpu"]:
            return rows_for(d, FIRST_SUBSET_ROWS), 1
        return SUBSET_ROWS, 1 if n <= CENTROID_ROWS else 10
    size = int(subset_size)
    return (None, 0) if size >= n else (size, 1 if n <= CENTROID_ROWS else 10)
