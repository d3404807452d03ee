"""What "auto" means for quadruply stochastic models: decisions from the table's size alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..._validation import check_memory
from ...core import budget_of

# Functions up to which full-batch linear algebra is cheaper than steps.
EXACT_FEATURES = 2048
# Multiplications of its products with all rows that "auto" accepts; some seconds.
_EXACT_WORK = 5e10
# Rows above which the default basis is as large as the paper's.
_SMALL_ROWS = 2_000


@dataclass(frozen=True)
class QSGPPlan:
    """How one fit is carried out.

    Attributes
    ----------
    exact : bool
        Full batches and linear algebra instead of steps.
    n_features, n_dense : int
        m and c.
    rows : int
        Of a step.
    features : int
        Of each of a step's draws.
    support : int
        Rows of the control variate.
    steps : int
        Most of them.
    dtype : torch.dtype
    """

    exact: bool
    n_features: int
    n_dense: int
    rows: int
    features: int
    support: int
    steps: int
    dtype: torch.dtype

    def __str__(self) -> str:
        if self.exact:
            return f"full batches, {self.n_features} functions, all entries of C"
        return (
            f"at most {self.steps} steps of {self.rows} rows and 2 x {self.features} of "
            f"{self.n_features} functions, {self.n_dense} dense columns"
        )


def _or(value: Any, default: int) -> int:
    return default if value == "auto" else int(value)


def make_plan(
    est: Any, n: int, d: int, t: int, points: int | None, device: torch.device
) -> QSGPPlan:
    """Resolve every "auto".

    Parameters
    ----------
    est : estimator
        For its parameters.
    n, d, t : int
        Rows, columns, latent functions.
    points : int or None
        Points of a kernel basis, which are as many functions.

    Raises
    ------
    ValueError
        For numbers that contradict each other.
    MemoryError
        If weights and their state do not fit.
    """
    small = n <= _SMALL_ROWS
    m = _or(est.n_features, points or (256 if n <= 200 else 1024 if small else 100_000))
    if points is not None and m != points:
        more = "more" if m > points else "fewer"
        raise ValueError(
            f"n_features={m} is {more} than the {points} points of the kernel basis: use "
            f'n_features="auto", or basis="fourier", which can have any number.'
        )
    if est.n_dense != "auto" and est.n_dense > m:
        raise ValueError(
            f"n_dense={est.n_dense} is more than n_features={m}: C has as many columns as there "
            f"are basis functions. Use at most {m}."
        )
    if est.feature_batch_size != "auto" and est.feature_batch_size > m:
        raise ValueError(
            f"feature_batch_size={est.feature_batch_size} is more than n_features={m}: a draw is "
            f"without replacement. Use at most {m}."
        )
    # Steps for kernel functions have a weight a row, and keep a diagonal only.
    stepwise = points is None or (isinstance(est.basis, str) and points == n)
    if not stepwise and est.n_dense not in ("auto", m):
        raise ValueError(
            f"n_dense={est.n_dense} is for steps, but {m} kernel functions at {n} rows are solved "
            'by full batches, with all columns of C: use n_dense="auto".'
        )
    if not stepwise and est.inference == "stochastic":
        raise ValueError(
            'inference="stochastic" needs basis="fourier", or basis="rows" with all rows; a model '
            'of kernel functions at given points is solved by full batches (inference="auto").'
        )
    exact = (
        not stepwise
        or est.inference == "exact"
        or (
            est.inference == "auto"
            and m <= EXACT_FEATURES
            and n * m**2 <= _EXACT_WORK
            and est.n_dense in ("auto", m)
        )
    )
    plan = QSGPPlan(
        exact=exact,
        n_features=m,
        n_dense=m if exact else min(_or(est.n_dense, 0 if points else 20), m),
        rows=min(_or(est.batch_size, 500), n),
        features=min(_or(est.feature_batch_size, m if points else _drawn(m)), m),
        support=min(_or(est.control_variate_rank, 500 if n <= 20_000 else 1000), n),
        steps=_or(est.max_iter, 100 if small else 200 if n <= 20_000 else 500),
        dtype=_dtype(est.dtype, exact),
    )
    check_room(plan, est, n, t, device)
    return plan


def _drawn(m: int) -> int:
    """Fourier features of a draw."""
    return min(10_000, max(m // 10, min(m, 1024)))


def _dtype(dtype: str, exact: bool) -> torch.dtype:
    if exact:
        return torch.float64
    return torch.float32 if dtype == "auto" else getattr(torch, dtype)


def check_room(plan: QSGPPlan, est: Any, n: int, t: int, device: torch.device) -> None:
    """Refuse a plan that does not fit; of an exact one the basis at all rows is the largest part.

    Raises
    ------
    MemoryError
    """
    m = plan.n_features
    if plan.exact:
        # The basis, weighted and times C; precision, its two factors and their inverse.
        need = 8 * (3 * n * m + 4 * m * m)
        what = f"A full-batch model of {m} basis functions at {n} rows"
        remedy = f"use fewer functions, for example {max(2, m // 10)}"
        if isinstance(est.basis, str):
            remedy += ', or inference="stochastic"'
    else:
        size = 8 if plan.dtype == torch.float64 else 4
        held = (plan.rows + plan.support) * plan.features * 4
        need = size * (m * (3 * (t + plan.n_dense) + t + 2) + held)
        what = f"A model of {m} basis functions with {plan.n_dense} dense columns"
        remedy = f"use fewer, for example n_features={max(2, m // 10)}, or n_dense=0"
    check_memory(need, what, remedy, budget_of(est.memory_budget), device=device)
