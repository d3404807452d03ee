"""Fits on the workers that hold the rows."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

from distributed import CancelledError, Client, Future, MultiLock, wait
from sklearn.base import clone

from .._clock import now
from .._validation import check_number
from ..core import GPModel
from ..workers import RankError, versions
from ._partitions import partitions, split
from ._rank import NO_ROWS, fitted_at, n_rows
from ._session import Session, closed, described, opened

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

    One rank runs on each worker that holds partitions, as inside
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
    check_number("timeout", timeout, positive=True, example=30.0)
    check_number("patience", patience, positive=True, example=1800.0)
    if rows not in ("replicated", "own"):
        raise ValueError(f'rows must be "replicated" or "own", got {rows!r}.')
    if rows == "own" and not (isinstance(estimator, GPModel) and estimator._sums_rows):
        raise ValueError(
            f"{type(estimator).__name__} needs all rows in one process: use rows='replicated'."
        )
    collections, settings = split(fit_params)
    parts = client.compute(partitions({"X": X, "y": y, **collections}))
    held = _held(client, parts)
    if rows == "own":
        held = _with_rows(client, held)
    with MultiLock(sorted(held), client=client):
        session = replace(_opened(client, held, timeout), rows=rows, patience=patience)
        try:
            model, said = _run(client, session, held, clone(estimator), settings)
        finally:
            _close(client, session)
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


def _held(client: Client, parts: list[Future]) -> dict[str, list[tuple[int, Future]]]:
    """The computed partitions by worker, that of rank 0 first."""
    try:
        wait(parts)
    except CancelledError as error:
        raise RankError(
            "a worker has ended before the fit, and the data that only this worker held are lost"
        ) from error
    for part in parts:
        if part.status == "error":
            raise part.exception()
    where = client.who_has(parts)
    held: dict[str, list[tuple[int, Future]]] = {}
    for k, part in enumerate(parts):
        places = sorted(where.get(part.key, ()))
        if not places:
            raise RankError(f"the worker of partition {k} has ended: fit again")
        # A partition with copies goes to a worker that takes part anyway.
        place = next((p for p in places if p in held), places[0])
        held.setdefault(place, []).append((k, part))
    bytes_of = client.nbytes(summary=False)
    size = {w: sum(bytes_of.get(p.key, 0) for _, p in own) for w, own in held.items()}
    return dict(sorted(held.items(), key=lambda item: (-size[item[0]], item[0])))


def _with_rows(client: Client, held: dict) -> dict[str, list[tuple[int, Future]]]:
    """The partitions that have rows, and their workers."""
    parts = [part for own in held.values() for _, part in own]
    sizes = client.gather(client.map(n_rows, parts, pure=False))
    size = dict(zip((part.key for part in parts), sizes, strict=True))
    kept = {w: [(k, part) for k, part in own if size[part.key]] for w, own in held.items()}
    kept = {worker: own for worker, own in kept.items() if own}
    if not kept:
        raise ValueError(NO_ROWS)
    return kept


def _opened(client: Client, held: dict, timeout: float) -> Session:
    """A session of workers that answer, with the client's versions, in processes of their own."""
    session, own = Session(tuple(held), timeout), versions()
    found = client.sync(_asked, client, described, held, timeout)
    seen: dict[str, str] = {}
    for worker, answer in found.items():
        other = answer["versions"]
        for name, version in own.items():
            if other[name] != version:
                raise RankError(
                    f"{name} is {version} here and {other[name]} at the worker {worker}: "
                    "install the same versions on all machines."
                )
        if answer["process"] in seen:
            raise ValueError(
                f"the workers {seen[answer['process']]} and {worker} share a process, but every "
                "rank needs its own: use LocalCluster(processes=True), or one worker."
            )
        seen[answer["process"]] = worker
    first = session.workers[0]
    port = client.run(opened, session.key, first, workers=[first])[first]
    return replace(session, port=port)


async def _asked(client: Client, ask: Callable, workers: Any, timeout: float) -> dict[str, Any]:
    """The answers of workers, all of which are alive."""

    async def answer(worker: str) -> Any:
        try:
            return (await asyncio.wait_for(client.run(ask, workers=[worker]), timeout))[worker]
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            raise RankError(
                f"the worker {worker} did not respond within {timeout:g} s: it has ended, or its "
                "machine cannot be reached"
            ) from error

    return dict(zip(workers, await asyncio.gather(*map(answer, workers)), strict=True))


def _run(client: Client, session: Session, held: dict, estimator: Any, settings: dict) -> Any:
    """Start all ranks, and return the model and the warnings of rank 0."""
    futures = []
    for rank, (worker, own) in enumerate(held.items()):
        given: tuple = (own, estimator, settings)
        if session.rows == "replicated":
            # Rank 0 alone needs the estimator, and all rows, which Dask sends to its worker.
            given = ([], None, {}) if rank else (sum(held.values(), []), estimator, settings)
        parts = [part for _, part in sorted(given[0], key=itemgetter(0))]
        task = (session, rank, parts, *given[1:])
        futures.append(client.submit(fitted_at, *task, workers=[worker], pure=False, retries=0))
    with _cancelled(client, session, futures):
        _watch(client, session, futures)
        return futures[0].result()


@contextmanager
def _cancelled(client: Client, session: Session, futures: list[Future]) -> Iterator[None]:
    """If the block fails, tell ranks that still wait, and withdraw those that have not begun."""
    try:
        yield
    except BaseException as error:
        why = f"the fit has ended with {type(error).__name__}: {error}"
        _close(client, session, why)
        with_others = [f for f in futures if f.status == "pending"]
        if not isinstance(error, KeyboardInterrupt):
            _settled(with_others, 2 * session.timeout)
        client.cancel([f for f in futures if f.status == "pending"], force=True)
        raise


def _watch(client: Client, session: Session, futures: list[Future]) -> None:
    """Wait for all ranks, and raise the error that explains the others if one fails."""
    pending = futures
    while pending:
        pending = _settled(pending, _LOOK)
        failed = [f for f in futures if f.status in ("error", "lost", "cancelled")]
        if not pending and not failed:
            return
        gone = _gone(client, session)
        if failed and not gone:
            # The other ranks fail soon after the rank that caused the failure, whose end the
            # scheduler may notice later than they do.
            until = now() + _GRACE
            while pending and now() < until:
                pending = _settled(pending, _LOOK)
            gone = _gone(client, session)
        if gone:
            raise RankError(f"{session.named(gone[0])} has ended during the fit")
        if failed:
            errors = [f.exception() for f in futures if f.status == "error"]
            own = [error for error in errors if not isinstance(error, RankError)]
            raise (own or errors or [RankError("a task of the fit was cancelled")])[0]


def _close(client: Client, session: Session, *why: str) -> None:
    """Close the store of a session, or say in it why ranks that wait should not."""
    # A call of a worker that has ended would wait for it for half a minute.
    if 0 not in _gone(client, session):
        client.run(closed, session.key, *why, workers=[session.workers[0]], on_error="ignore")


def _gone(client: Client, session: Session) -> list[int]:
    """Ranks whose workers the scheduler has lost."""
    alive = client.nthreads()
    return [rank for rank, worker in enumerate(session.workers) if worker not in alive]


def _settled(futures: list[Future], seconds: float) -> list[Future]:
    """Wait until all are done or one has failed, for so many seconds; returns those not done."""
    try:
        wait(futures, timeout=seconds, return_when="FIRST_COMPLETED")
    except (TimeoutError, CancelledError):
        pass
    return [f for f in futures if f.status == "pending"]
