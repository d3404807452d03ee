"""The context inside which fits and predictions are shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore

from .._calls import called
from .._validation import check_number
from ._life import Life
from ._ranks import Ranks


@contextmanager
def distribute(
    timeout: float = 30.0, rows: str = "replicated", patience: float = 1800.0
) -> Iterator[Ranks]:
    """Share the fits and predictions of estimators among all ranks of a torch process group.

    Every rank runs the same program on the same table. Inside the context, a fit or a prediction of
    any estimator of this package is one call of all ranks: rank 0 runs it, and all ranks compute
    shares of the products with the kernel matrix. In the end every rank has exactly the same fitted
    estimator. Without this context, a process group has no effect.

    Parameters
    ----------
    timeout : float, default=30.0
        Seconds without a heartbeat after which a rank is considered lost. A rank whose process has
        ended is noticed within a few seconds.
    rows : {"replicated", "own"}, default="replicated"
        Which rows each rank passes to a fit. "replicated": all rows of the table, hashes of which
        are compared. "own": different rows at each rank; the table consists of the rows of all
        ranks, in the order of the ranks. Only estimators that need rows through sums accept this:
        `RFFRegressor`, `SGPRRegressor`, `SVGPRegressor`, `KISSGPRegressor`, `QSGPRegressor`,
        `QSGPClassifier`, `QSRVMRegressor` and the deep kernels. A prediction inside the context is
        that of one rank. The model of the first four has no training rows. The gradients of
        `SSRFFRegressor` are such sums, too; its predictions are those of the exact process, for
        which rank 0 gathers all rows.
    patience : float, default=1800.0
        Seconds that ranks wait for one that is alive but busy with something else, for example with
        reading its rows before a fit.

    Yields
    ------
    ranks : Ranks
        With ``rank``, ``size`` and ``bytes_sent``.

    Raises
    ------
    RuntimeError
        If the process was not started by torchrun or another launcher, and no process group is
        initialised. Inside the context also if the ranks differ in data, columns, parameters,
        versions or calls: the message names the difference and the rank. Also if a rank has ended:
        the others name it, and the context cannot be used any more. Also for an initialised process
        group of several ranks that have met in a file instead of a `torch.distributed.TCPStore`.
    ValueError
        For a `timeout` or `patience` that is not positive, or another value of `rows`. Inside the
        context also for estimators that need all rows in one process, and if one rank refuses its
        rows: the message names it.

    Notes
    -----
    If no process group is initialised, the context initialises one with gloo from the variables of
    torchrun, and ends it. A product with s columns sends 2 (p - 1) n s numbers in all between p
    ranks. Each rank evaluates 1 / p of the tiles on and above the diagonal, and keeps them where
    matrices are stored. Products of the iterative estimators are shared from 1,024 rows on, also
    inside meta-estimators. The ranks also share the neighbourhoods of `NNGPRegressor`, its
    predictions and the experts of `PoERegressor`, for which each rank receives the table once. Rank
    0 does all other work, including factorisations, callbacks, time
    budgets, warnings and Ctrl-C. A call costs a few milliseconds for the comparison, and a hash of
    the data.

    With ``rows="own"``, each pass over the rows sends a few m x m matrices, for m features or
    inducing points, between rank 0 and each other rank; for a grid, its sums are sent once. Rows
    are sent only if a method needs a few thousand of them, for example to choose the starting
    hyperparameters. Equal rows are not merged, which does not change the likelihood, but changes
    which rows are drawn at random.

    Examples
    --------
    A program that torchrun starts needs neither the second line nor the last.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import IterativeGPRegressor, distribute
    >>> X, y = make_friedman2(n_samples=200, noise=1.0, random_state=0)
    >>> with distribute() as ranks:
    ...     model = IterativeGPRegressor(normalize_y=True, random_state=0).fit(X, y)
    >>> ranks.size, bool(model.score(X, y) > 0.99)
    (1, True)
    >>> dist.destroy_process_group()
    """
    check_settings(timeout, rows, patience)
    if started := not dist.is_initialized():
        _initialise()
    try:
        names = [f"rank {rank}" for rank in range(dist.get_world_size())]
        with met_at(Life(_store(), dist.get_rank(), names, timeout, patience), rows) as ranks:
            yield ranks
    finally:
        if started:
            dist.destroy_process_group()


def check_settings(timeout: float, rows: str, patience: float) -> None:
    """Refuse other settings than those of `distribute`."""
    check_number("timeout", timeout, positive=True, example=30.0)
    check_number("patience", patience, positive=True, example=1800.0)
    if rows not in ("replicated", "own"):
        raise ValueError(
            f'rows must be "replicated", all rows at each rank, or "own", other rows at each; got '
            f"{rows!r}."
        )


@contextmanager
def met_at(life: Life, rows: str, host: str = "") -> Iterator[Ranks]:
    """Let all ranks with the same key-value store share the calls inside; `host` as in `Group`."""
    why, ranks = "", None
    try:
        life.begin()
        ranks = Ranks(life, rows, host)
        with called(ranks.call):
            yield ranks
    except BaseException as error:
        why = f"it has ended with {type(error).__name__}"
        raise
    finally:
        life.end(why)
        if ranks is not None:
            ranks.close(broken=bool(why))


def _store() -> Any:
    """A part of the process group's store that is new for this context."""
    if dist.get_world_size() == 1:
        return HashStore()
    shared: Any = dist.distributed_c10d._get_default_store()
    if not shared.has_extended_api():
        raise RuntimeError(
            "distribute() needs a key-value store that tells which keys it has: start the program "
            "by torchrun, or initialise the process group with a torch.distributed.TCPStore."
        )
    # All ranks enter their contexts in the same order.
    number = PrefixStore("skscalablegp", shared).add(f"contexts of {dist.get_rank()}", 1)
    return PrefixStore(f"skscalablegp/{number}", shared)


def _initialise() -> None:
    """Initialise torch's process group from the variables of a launcher."""
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        raise RuntimeError(
            f"distribute() found no process group, and cannot initialise one: {error}. Start the "
            "program on all machines by torchrun, for example torchrun --nproc-per-node 2 fit.py, "
            "or call torch.distributed.init_process_group first."
        ) from error
