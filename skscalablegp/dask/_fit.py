"""Fits on the workers that hold the rows."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed import CancelledError, Client, Future, MultiLock, wait
from distributed.comm import get_address_host
from sklearn.base import clone

from .._clock import now
from ..core import GPModel
from ..workers import RankError, check_settings, differing, versions
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
    workers, names = [*held], [f"rank {k} on the worker {on}" for k, on in enumerate(held)]
    if rows == "replicated":
        # Dask sends all partitions to the worker of rank 0.
        held = dict.fromkeys(workers, list[Future]()) | {workers[0]: parts}
    with MultiLock(sorted(workers), client=client), _meeting(client, workers) as address:
        session = Session(names, *address, timeout, patience, rows)
        model, said = _run(client, session, held, clone(estimator), settings)
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
    try:
        sizes = client.gather(client.map(described, parts, pure=False))
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


@contextmanager
def _meeting(client: Client, workers: list[str]) -> Iterator[tuple[str, int]]:
    """Where the first worker keeps a key-value store, if all of them can have ranks."""
    try:
        found = client.run(opened, workers[0], workers=workers)
    except (OSError, KeyError, ValueError) as error:
        raise RankError(
            f"one of the workers {', '.join(workers)} has ended, or does not respond"
        ) from error
    port = max(port for port, _, _ in found.values())
    try:
        parts = {f"at {worker}": parts for worker, (_, _, parts) in found.items()}
        if said := differing({"here": versions()} | parts):
            raise RankError(f"{said}: install the same versions on all machines.")
        if len({process for _, process, _ in found.values()}) < len(found):
            raise ValueError(
                f"Some of the workers {', '.join(workers)} share a process, but every rank needs "
                "its own: use LocalCluster(processes=True), or one worker."
            )
        yield get_address_host(workers[0]), port
    finally:
        # Ranks notice its end. A call of a worker that has ended would wait for half a minute.
        if workers[0] in client.nthreads():
            client.run(closed, port, workers=workers[:1], on_error="ignore")


def _run(client: Client, session: Session, held: dict, estimator: Any, settings: dict) -> Any:
    """Start all ranks, and return the model and the warnings of rank 0."""
    futures = [
        client.submit(fitted_at, session, rank, own, estimator, settings, workers=[on], pure=False)
        for rank, (on, own) in enumerate(held.items())
    ]
    try:
        _watch(client, dict(zip(held, futures, strict=True)), session.names)
        return futures[0].result()
    finally:
        # Those that have not begun are withdrawn.
        client.cancel([future for future in futures if not future.done()], force=True)


def _watch(client: Client, ranks: dict[str, Future], names: list[str]) -> None:
    """Wait for all ranks, and raise the error that explains the others if one fails."""
    futures, until = [*ranks.values()], math.inf
    while now() < until and (pending := [future for future in futures if not future.done()]):
        with suppress(TimeoutError, CancelledError):
            wait(pending, timeout=_LOOK, return_when="FIRST_COMPLETED")
        alive = client.nthreads()
        for name, (worker, future) in zip(names, ranks.items(), strict=True):
            if worker not in alive and future.status != "finished":
                raise RankError(f"{name} has ended during the fit")
        if any(future.status not in ("pending", "finished") for future in futures):
            # The other ranks fail soon after the rank that caused the failure, whose end the
            # scheduler may notice later than they do.
            until = min(until, now() + _GRACE)
    errors = [future.exception() for future in futures if future.status == "error"]
    own = [error for error in errors if not isinstance(error, RankError)]
    if errors:
        raise (own or errors)[0]
