"""The choice of a deep kernel's settings that are left at "auto"."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..._validation import resolve_dtype
from ...core import Choice, Machine, Plan, ignore, instead, is_auto, resolve, small_table_rows
from ...core.training import AdamOfGroups

# Number of steps of 64 rows for max_epochs="auto", and the range of the number of epochs.
_STEPS, _MORE_STEPS, _ENOUGH_EPOCHS, _MOST_EPOCHS = 12_000, 18_000, 28, 100
_BATCH, _LARGE_BATCH = 64, 256
# Above this number of rows batches are large, and a copy without held-out rows would cost too much.
_LARGE_TABLE = 100_000
# From this number of rows on "auto" holds some out.
_FEWEST_SPLIT = 200
# Learning rates that suit the default network and batches of 64 rows.
_RATES = {"adam": 0.01, "adamw": 0.01, "adadelta": 1.0, "adagrad": 0.05, "rmsprop": 3e-3}
_OTHER_RATE = 0.01
# Largest table on which "auto" trains in double precision.
_SMALL_TABLE = 1000
# Layers of feature_extractor="auto" on tables that are not small.
_LAYERS = (128, 128)
# Up to this number of rows "auto" is the exact process: networks that were trained on 2,200 rows of
# pol for ten seconds had a negative log density of 1.6 to 4.1 on a fold where the exact process has
# -0.88.
EXACT_ROWS = 3000
# Largest number of scores in one training, and per epoch. Each score is an exact pass over the
# rows, and all scores together must not cost more than the steps.
MOST_SCORES, _SCORES_PER_EPOCH = 20, 4

# The others import compilers when a process first uses them, for several seconds.
BATCH_OPTIMIZERS: dict[str, Callable[[list[dict]], Any]] = {
    "adam": AdamOfGroups,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

# Parameters that have no effect if nothing is trained.
_OF_TRAINING = (
    "learning_rate", "max_epochs", "batch_size", "early_stopping", "validation_fraction", "tol",
    "n_iter_no_change", "averaging", "averaging_decay", "penalty", "dual_rate", "batches",
    "exact_passes", "penalty_scale",
)  # fmt: skip
_NOT_IN_STREAMS = (
    "max_epochs", "early_stopping", "validation_fraction", "tol", "n_iter_no_change"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DeepPlan(Plan):
    """The plan of one fit.

    Attributes
    ----------
    new_optimizer : callable or None
        Makes a torch optimiser of groups of parameters; None trains nothing.
    settles : bool
        Whether each score moves the parameters that have a closed-form optimum.
    batch_size, max_epochs, learning_rate, dtype, feature_extractor : Choice
    early_stopping : Choice
    """

    new_optimizer: Callable[[list[dict]], Any] | None
    settles: bool
    batch_size: Choice
    max_epochs: Choice
    learning_rate: Choice
    dtype: Choice
    feature_extractor: Choice
    early_stopping: Choice

    @property
    def n_scores(self) -> int:
        return min(MOST_SCORES, _SCORES_PER_EPOCH * self.max_epochs.value)

    def steps_per_epoch(self, n: int) -> int:
        return max(1, n // self.batch_size.value)


def plan(params: Any, n: int, machine: Machine, *, stream: bool = False) -> DeepPlan:
    """The plan of a fit on n rows, or of one chunk of a stream; reads the estimator's parameters.

    A stream always has a network.
    """
    optimizer = batch_optimizer(params.optimizer)
    exact = not stream and is_default(params) and n <= small_table_rows(params, EXACT_ROWS)
    size = _batch_size(params.batch_size, n)
    precision = str(resolve_dtype(params.dtype, n, threshold=_SMALL_TABLE)).removeprefix("torch.")
    dtype = Choice(precision, f"{n} rows; float32 above {_SMALL_TABLE:,}")
    dtype = machine.precision(params, dtype, exact)
    layers = Choice(_LAYERS, f"{n} rows")
    if exact:
        dtype = Choice("float64", "the exact process is cheap for few rows")
        layers = Choice(None, f"{n} rows: the exact process on the columns")
    split = resolve(
        params.early_stopping,
        _FEWEST_SPLIT <= n <= _LARGE_TABLE,
        f"{n} rows; tables of {_FEWEST_SPLIT} to {_LARGE_TABLE:,} have held-out rows",
    )
    return DeepPlan(
        new_optimizer=optimizer,
        settles=params.exact_passes,
        batch_size=size,
        max_epochs=_max_epochs(params.max_epochs, n),
        learning_rate=_learning_rate(params, size.value),
        dtype=dtype,
        feature_extractor=resolve(params.feature_extractor, *layers),
        early_stopping=split,
        ignored=_ignored(params, n, exact, stream, split.value),
        **(instead(n, layers.reason) if exact else {}),
    )


def is_default(params: Any) -> bool:
    """Whether the user left the model to "auto"."""
    return (
        is_auto(params.feature_extractor) and params.kernel is None and params.optimizer is not None
    )


def _batch_size(given: Any, n: int) -> Choice:
    size = _BATCH if n <= _LARGE_TABLE else _LARGE_BATCH
    choice = resolve(given, size, f"{n} rows; {_LARGE_BATCH} above {_LARGE_TABLE:,} rows")
    return choice._replace(value=min(n, int(choice.value)))


def _max_epochs(given: Any, n: int) -> Choice:
    # Large tables need more steps, but not in proportion: protein improves, kin40k hardly does.
    few, many = (math.ceil(steps * _BATCH / max(n, 1)) for steps in (_STEPS, _MORE_STEPS))
    epochs = min(_MOST_EPOCHS, max(few, min(many, _ENOUGH_EPOCHS)))
    choice = resolve(given, epochs, f"about {_STEPS:,} steps of {_BATCH} rows")
    return choice._replace(value=int(choice.value))


def _learning_rate(params: Any, size: int) -> Choice:
    name = params.optimizer if isinstance(params.optimizer, str) else ""
    rate = _RATES.get(name, _OTHER_RATE)
    # The noise of small batches averages out over more and smaller steps.
    rate *= 1.0 if name == "adadelta" else min(1.0, (size / _BATCH) ** 0.5)
    why = f"{name or 'your optimiser'} on batches of {size} rows"
    choice = resolve(params.learning_rate, rate, why)
    return choice._replace(value=float(choice.value))


def _ignored(params: Any, n: int, exact: bool, stream: bool, split: bool) -> dict[str, str]:
    """Parameters that have no effect, with the reasons."""
    ignored = {}
    if not is_auto(params.batch_size) and params.batch_size > n:
        ignored |= ignore("batch_size", because=f"there are {n} rows, which make one batch")
    if not (split or stream):
        ignored |= ignore("validation_fraction", because="no rows are held out")
    if params.optimizer is None:
        ignored |= ignore(*_OF_TRAINING, because="optimizer=None trains nothing")
    elif params.n_iter_no_change is None:
        ignored |= ignore("tol", because="n_iter_no_change=None never ends training early")
    if stream:
        ignored |= ignore(*_NOT_IN_STREAMS, because="partial_fit takes one pass over its rows")
    if exact:
        names = (*_OF_TRAINING, "optimizer", "activation", "n_components")
        ignored |= ignore(*names, because="there is no network")
        if params.dtype == "float32":
            ignored |= ignore("dtype", because="the exact process is cheap for few rows")
    return ignored


def batch_optimizer(given: Any) -> Callable[[list[dict]], Any] | None:
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
