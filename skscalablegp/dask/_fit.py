"""Fits on the workers that hold the rows."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any

from distributed import CancelledError, Client, Future, MultiLock, wait
from sklearn.base import clone

from .._clock import now
from ..core import GPModel
from ..workers import RankError, check_settings, versions
from ._partitions import partitions, split
from ._session import Session, closed, described, fitted_at, opened

# Seconds between two checks of the workers during a fit.
_LOOK = 1.0
# Seconds to wait for further ranks to fail after the first one.
_GRACE = 10.0


def fit(
    client: Client,
    estimator: Any,
    X: Any,
    y: Any,
    *,
    rows: str = "replicated",
    timeout: float = 30.0,
    patience: float = 1800.0,
    **fit_params: Any,
) -> Any:
    """Fit an estimator on the workers of a Dask cluster.

    One rank runs on each worker that holds rows, as inside
    :func:`skscalablegp.distribute`: rank 0 fits the model, and products with the kernel matrix are
    computed by all ranks.

    Parameters
    ----------
    client : distributed.Client
        Workers must be processes of their own, not threads of one.
    estimator : estimator
        An estimator of this package, or one of scikit-learn around it, such as a pipeline. It is
        cloned and not changed.
    X : dask.array.Array of shape (n, d) or dask.dataframe.DataFrame
        Rows. Partitions may be of any sizes, also empty.
    y : dask.array.Array of shape (n,) or (n, t), or dask.dataframe.Series or DataFrame
        Targets, with the partitions of X.
    rows : {"replicated", "own"}, default="replicated"
        Where the rows are during the fit. "replicated": the worker with the most bytes gets all
        rows once; other ranks get those that products need, in the precision of the products.
        "own": partitions stay on their workers, for the estimators that
        :func:`skscalablegp.distribute` accepts with ``rows="own"``. The rows of the table are then
        in the order of the ranks, which decides which rows are drawn at random.
    timeout : float, default=30.0
        Seconds without a heartbeat after which a rank is considered lost.
    patience : float, default=1800.0
        Seconds that the ranks wait for a worker whose threads are busy with other tasks.
    **fit_params : object
        Arguments of the estimator's `fit`, such as `noise_variance` or `sample_weight`.
        Collections need the partitions of X.

    Returns
    -------
    model : estimator
        A fitted clone, in this process. It is an ordinary estimator, which predicts without Dask.

    Raises
    ------
    TypeError
        If X or y is no collection, or the client is asynchronous.
    ValueError
        If partitions differ, or hold no rows; if workers share a process. With ``rows="own"`` also
        for estimators that need all rows in one process.
    MemoryError
        If the rows do not fit into the memory of the worker that collects them.
    RuntimeError
        If a worker has ended or does not respond, or runs other versions.

    Notes
    -----
    Fits that share workers run one after the other. A fit that runs on other workers is not
    disturbed. Interrupting the caller ends the fit at its next product.

    Examples
    --------
    See :func:`predict`.
    """
    check_client(client)
    check_settings(timeout, rows, patience)
    if rows == "own" and not (isinstance(estimator, GPModel) and estimator._sums_rows):
        raise ValueError(
            f"{type(estimator).__name__} needs all rows in one process: use rows='replicated'."
        )
    collections, settings = split(fit_params)
    parts = client.compute(partitions({"X": X, "y": y, **collections}))
    held = _held(client, parts)
    with MultiLock(sorted(held), client=client):
        first, *_ = held
        session = Session(tuple(held), _opened(client, first), versions(), timeout, patience, rows)
        table = parts if rows == "replicated" else []
        model, said = _run(client, session, held, table, clone(estimator), settings)
    for warning in said:
        warnings.warn(warning, stacklevel=2)
    return model


def check_client(client: Any) -> None:
    """Raise a TypeError for something else than a synchronous client."""
    if not isinstance(client, Client) or client.asynchronous:
        raise TypeError(
            "client must be a distributed.Client that is not asynchronous, got "
            f"{type(client).__name__}."
        )


def _held(client: Client, parts: list[Future]) -> dict[str, list[Future]]:
    """The computed partitions that have rows, by worker, that of rank 0 first."""
    asked = client.map(described, parts, pure=False)
    try:
        wait(asked)
        for future in asked:
            if future.status == "error":
                future.result()
        sizes = client.gather(asked)
    except CancelledError as error:
        raise RankError(
            "a worker has ended before the fit, and the data that only this worker held are lost"
        ) from error
    where, size = client.who_has(parts), Counter[str]()
    held: dict[str, list[Future]] = {}
    for k, (part, (rows, n_bytes)) in enumerate(zip(parts, sizes, strict=True)):
        places = sorted(where.get(part.key, ()))
        if not places:
            raise RankError(f"the worker of partition {k} has ended: fit again")
        if rows:
            # A partition with copies goes to a worker that takes part anyway.
            place = next((p for p in places if p in held), places[0])
            held.setdefault(place, []).append(part)
            size[place] += n_bytes
    if not held:
        raise ValueError("X has no rows: all of its partitions are empty.")
    return dict(sorted(held.items(), key=lambda item: (-size[item[0]], item[0])))


def _opened(client: Client, worker: str) -> int:
    """The port of a key-value store that a worker keeps."""
    try:
        return int(client.run(opened, worker, workers=[worker])[worker])
    except (OSError, KeyError, ValueError) as error:
        raise RankError(f"the worker {worker} has ended, or does not respond") from error


def _run(
    client: Client, session: Session, held: dict, table: list, estimator: Any, settings: dict
) -> Any:
    """Start all ranks, and return the model and the warnings of rank 0.

    Dask sends the partitions of `table` to the worker of rank 0; if there are none, each rank has
    its own.
    """
    futures = []
    for rank, (worker, own) in enumerate(held.items()):
        parts = own if not table else [] if rank else table
        task = (session, rank, parts, estimator, settings)
        futures.append(client.submit(fitted_at, *task, workers=[worker], pure=False, retries=0))
    seconds = 2 * session.timeout
    try:
        _watch(client, session, futures)
        return futures[0].result()
    except BaseException as error:
        seconds *= not isinstance(error, KeyboardInterrupt)
        raise
    finally:
        # Ranks notice the end of the store; those that have not begun are withdrawn. A call of a
        # worker that has ended would wait for it for half a minute.
        if 0 not in _gone(client, session):
            first = session.workers[:1]
            client.run(closed, session.port, workers=list(first), on_error="ignore")
        pending = [f for f in futures if f.status == "pending"]
        if pending:
            client.cancel(_settled(pending, seconds), force=True)


def _watch(client: Client, session: Session, futures: list[Future]) -> None:
    """Wait for all ranks, and raise the error that explains the others if one fails."""
    pending, failed, until = futures, [], math.inf
    while pending and now() < until:
        pending = _settled(pending, _LOOK)
        failed = [f for f in futures if f.status in ("error", "lost", "cancelled")]
        gone = _gone(client, session) if pending or failed else []
        if gone:
            raise RankError(f"{session.named(gone[0])} has ended during the fit")
        if failed:
            # The other ranks fail soon after the rank that caused the failure, whose end the
            # scheduler may notice later than they do.
            until = min(until, now() + _GRACE)
    if failed:
        errors = [f.exception() for f in futures if f.status == "error"]
        own = [error for error in errors if not isinstance(error, RankError)]
        raise (own or errors or [RankError("a task of the fit was cancelled")])[0]


def _gone(client: Client, session: Session) -> list[int]:
    """Ranks whose workers the scheduler has lost."""
    alive = client.nthreads()
    return [rank for rank, worker in enumerate(session.workers) if worker not in alive]


def _settled(futures: list[Future], seconds: float) -> list[Future]:
    """Wait until one is done, for so many seconds; returns those that are not."""
    with suppress(TimeoutError, CancelledError):
        wait(futures, timeout=seconds, return_when="FIRST_COMPLETED")
    return [f for f in futures if f.status == "pending"]
