"""What "auto" means for quadruply stochastic models: decisions from the table's size alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._validation import check_memory
from ._fitting import budget_of

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
    est: Any, n: int, d: int, t: int, m_max: int | None, device: torch.device
) -> QSGPPlan:
    """Resolve every "auto".

    Parameters
    ----------
    est : estimator
        For its parameters.
    n, d, t : int
        Rows, columns, latent functions.
    m_max : int or None
        Points of a kernel basis, which are as many functions.

    Raises
    ------
    ValueError
        For numbers that contradict each other.
    MemoryError
        If weights and their state do not fit.
    """
    small = n <= _SMALL_ROWS
    m = _or(est.n_features, m_max or (256 if n <= 200 else 1024 if small else 100_000))
    if m_max is not None:
        if m > m_max:
            raise ValueError(
                f"n_features={m} is more than the {m_max} points of the kernel basis: use at most "
                f'{m_max}, or basis="fourier", which can have any number.'
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
    exact = est.inference == "exact" or (
        est.inference == "auto"
        and m <= EXACT_FEATURES
        and n * m**2 <= _EXACT_WORK
        and est.n_dense in ("auto", m)
    )
    plan = QSGPPlan(
        exact=exact,
        n_features=m,
        n_dense=m if exact else min(_or(est.n_dense, 0 if m_max else 20), m),
        rows=min(_or(est.batch_size, 500), n),
        features=min(_or(est.feature_batch_size, m if m_max else _drawn(m)), m),
        support=min(_or(est.control_variate_rank, 500 if n <= 20_000 else 1000), n),
        steps=_or(est.max_iter, 100 if small else 200 if n <= 20_000 else 500),
        dtype=_dtype(est.dtype, exact),
    )
    _check_room(plan, est, d, t, device)
    return plan


def _drawn(m: int) -> int:
    """Fourier features of a draw."""
    return min(10_000, max(m // 10, min(m, 1024)))


def _dtype(dtype: str, exact: bool) -> torch.dtype:
    if exact:
        return torch.float64
    return torch.float32 if dtype == "auto" else getattr(torch, dtype)


def _check_room(plan: QSGPPlan, est: Any, d: int, t: int, device: torch.device) -> None:
    size = 8 if plan.dtype == torch.float64 else 4
    columns = plan.n_features if plan.exact else 3 * (t + plan.n_dense) + t + 2
    held = (plan.rows + plan.support) * plan.features * 4
    need = size * (plan.n_features * columns + held)
    check_memory(
        need,
        f"A model of {plan.n_features} basis functions with {plan.n_dense} dense columns",
        f"use fewer, for example n_features={max(2, plan.n_features // 10)}, or n_dense=0",
        budget_of(est.memory_budget),
        device=device,
    )
