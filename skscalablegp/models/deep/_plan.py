"""The choice of a deep kernel's settings that are left at "auto"."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..._validation import resolve_dtype
from ...core import FitRun

# Number of steps of 64 rows for max_epochs="auto", and the range of the number of epochs.
_STEPS, _MORE_STEPS, _ENOUGH_EPOCHS, _MOST_EPOCHS = 12_000, 18_000, 28, 100
_BATCH, _LARGE_BATCH = 64, 256
# Above this number of rows batches are large, and a copy without held-out rows would cost too much.
LARGE_TABLE = 100_000
# From this number of rows on "auto" holds some out.
FEWEST_SPLIT = 200
# Learning rates that suit the default network and batches of 64 rows.
_RATES = {"adam": 0.01, "adamw": 0.01, "adadelta": 1.0, "adagrad": 0.05, "rmsprop": 3e-3}
_OTHER_RATE = 0.01
_SMALL_TABLE = 1000

BATCH_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

# Parameters that have no effect if nothing is trained.
OF_TRAINING = (
    "learning_rate", "max_epochs", "batch_size", "early_stopping", "validation_fraction", "tol",
    "n_iter_no_change", "averaging", "averaging_decay", "penalty", "dual_rate", "batches",
    "exact_passes", "penalty_scale",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The settings of one fit.

    Attributes
    ----------
    optimizer : callable or None
        Makes a torch optimiser of groups of parameters; None trains nothing.
    batch_size : int
    max_epochs : int
    learning_rate : float
    dtype : torch.dtype
    """

    optimizer: Callable[[list[dict]], torch.optim.Optimizer] | None
    batch_size: int
    max_epochs: int
    learning_rate: float
    dtype: torch.dtype

    def steps_per_epoch(self, n: int) -> int:
        return max(1, n // self.batch_size)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def make_plan(est: Any, n: int, run: FitRun) -> Plan:
    """Settings for n rows; reports the choices for "auto" and the parameters without effect.

    Parameters
    ----------
    est : DeepKernelRegressorBase
    n : int
    run : FitRun
    """
    optimizer = batch_optimizer(est.optimizer)
    size = est.batch_size
    if size == "auto":
        size = min(n, _BATCH if n <= LARGE_TABLE else _LARGE_BATCH)
        run.chose("batch_size", size, f"{n} rows; {_LARGE_BATCH} above {LARGE_TABLE:,} rows")
    elif size > n:
        size = n
        run.ignores("batch_size", f"there are {n} rows, which make one batch")
    epochs = est.max_epochs
    if epochs == "auto":
        # Large tables need more steps, but not in proportion: protein improves, kin40k hardly does.
        few, many = (math.ceil(steps * _BATCH / max(n, 1)) for steps in (_STEPS, _MORE_STEPS))
        epochs = min(_MOST_EPOCHS, max(few, min(many, _ENOUGH_EPOCHS)))
        run.chose("max_epochs", epochs, f"about {_STEPS:,} steps of {_BATCH} rows")
    rate = est.learning_rate
    if rate == "auto":
        named = est.optimizer if isinstance(est.optimizer, str) else ""
        rate = _RATES.get(named, _OTHER_RATE)
        # The noise of small batches averages out over more and smaller steps.
        rate *= 1.0 if named == "adadelta" else min(1.0, (size / _BATCH) ** 0.5)
        run.chose("learning_rate", rate, f"{named or 'your optimiser'} on batches of {size} rows")
    dtype = resolve_dtype(est.dtype, n, threshold=_SMALL_TABLE)
    plan = Plan(optimizer, int(size), int(epochs), float(rate), dtype)
    run.chose("dtype", plan.dtype_name, f"{n} rows; float32 above {_SMALL_TABLE:,}")
    if optimizer is None:
        run.ignores(OF_TRAINING, "optimizer=None trains nothing")
    elif est.n_iter_no_change is None:
        run.ignores("tol", "n_iter_no_change=None never ends training early")
    return plan


def batch_optimizer(given: Any) -> Callable[[list[dict]], torch.optim.Optimizer] | None:
    """A function that makes the optimiser of batches; a ValueError lists the known names."""
    if isinstance(given, str) and given in BATCH_OPTIMIZERS:
        return BATCH_OPTIMIZERS[given]
    if given is None or callable(given):
        return given
    known = ", ".join(repr(name) for name in BATCH_OPTIMIZERS)
    raise ValueError(
        f"optimizer={given!r} is unknown: use one of {known}, a function that makes a "
        "torch.optim.Optimizer of parameter groups, or None."
    )
