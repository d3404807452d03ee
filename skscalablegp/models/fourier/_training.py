"""Checks of the kernel and of memory, for both regressors."""

from __future__ import annotations

import torch

from ..._validation import available_memory
from ...core import FitRun
from ...features import frequencies_per_product, sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel
from ._collapsed import BATCH_ROWS


def check_features(run: FitRun, name: str, kernel: TorchKernel, m: int, n: int) -> None:
    """Refuse kernels without random features, and m of them that do not fit into memory.

    `name` is the parameter that m comes from.
    """
    try:
        one = sample_prior_features(kernel, kernel.n_features, 1, torch.Generator())
    except NoSpectralDensity as error:
        raise NoSpectralDensity(
            f"{error.cause}, so it has no random features: use a kernel made of RBF, Matern, "
            "RationalQuadratic, DotProduct and constants, or IterativeGPRegressor."
        ) from None
    pairs = frequencies_per_product(kernel, m)
    columns = sum(b.n_features * (pairs if b.frequencies else 1) for b in one.blocks)
    need = 8 * (4 * columns**2 + 4 * columns * min(n, BATCH_ROWS))
    known = (run.memory_budget, available_memory(run.device))
    room = min((bound for bound in known if bound is not None), default=need)
    fits = max(2, int(m * min(0.5, (room / need) ** 0.5 / 2)))
    run.check_memory(
        need,
        f"{name}={m} ({columns} columns, with four {columns} x {columns} matrices)",
        f"use fewer, for example {name}={fits}",
    )
