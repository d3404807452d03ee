"""Predictions of collections, each partition on the worker that holds it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

from .._frames import INTERVAL, as_data_frame
from ._fit import check_client
from ._partitions import partitions, split


def predict(client: Client, model: Any, X: Any, *, method: str = "predict", **options: Any) -> Any:
    """Predict the rows of a Dask collection, partition by partition.

    Parameters
    ----------
    client : distributed.Client
    model : estimator
        A fitted estimator. It is sent once, and from there to workers that predict with it.
    X : dask.array.Array of shape (m, d) or dask.dataframe.DataFrame
        Rows to predict.
    method : str, default="predict"
        The method of the model: "predict", "predict_std", "predict_interval",
        "predict_quantiles", "predict_proba", or another one that has a result for each row.
    **options : object
        Arguments of the method, such as ``coverage=0.9``. Collections, such as `noise_variance`,
        need the partitions of X.

    Returns
    -------
    prediction : dask.array.Array, dask.dataframe.Series or dask.dataframe.DataFrame
        Lazy: nothing has been computed yet. An array for an array. For a data frame, a series or,
        where the method has several columns, a data frame, with the index of X. With
        ``return_std=True`` a tuple of two.

    Raises
    ------
    TypeError
        If X is not a collection, or the client is asynchronous.
    ValueError
        If partitions differ in number. When partitions are computed, also if they differ in rows.
    AttributeError
        If the model has no such method.
    NotFittedError
        If the model is not fitted.

    Notes
    -----
    The type of a result is found by a prediction of one or two rows of zeros, or of rows that Dask
    makes up from the types of the columns. Joint results, such as ``return_cov=True``, are refused:
    partitions are predicted one by one.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from distributed import Client
    >>> import skscalablegp.dask as gp
    >>> client = Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None)
    >>> X = da.random.default_rng(0).uniform(size=(100, 2), chunks=(25, 2))
    >>> from skscalablegp import IterativeGPRegressor
    >>> model = gp.fit(client, IterativeGPRegressor(), X, X.sum(axis=1))
    >>> std = gp.predict(client, model, X, method="predict_std")
    >>> std.chunks, bool(std.max().compute() < 0.1)
    (((25, 25, 25, 25),), True)
    >>> client.close()
    """
    check_client(client)
    if options.get("return_cov"):
        raise ValueError("return_cov=True has no result for each row: use model.predict.")
    rows, settings = split(options)
    parts = partitions({"X": X, **rows})
    # A row or two like those of X, whose prediction has the type of all predictions.
    like = np.zeros((1, *X.shape[1:]), X.dtype) if isinstance(X, da.Array) else X._meta_nonempty
    example = {"X": like} | {name: np.ones(len(like)) for name in rows}
    empty = [one[:0] for one in _predicted(model, method, example, settings, [])]
    there = client.scatter(model, hash=False)
    results = [delayed(_predicted, pure=False)(there, method, p, settings, empty) for p in parts]
    made = tuple(_collected([r[k] for r in results], X, one) for k, one in enumerate(empty))
    return made if len(made) > 1 else made[0]


def _predicted(model: Any, method: str, part: dict, settings: dict, empty: list) -> list:
    """The results for a partition, on a worker."""
    rows = dict(part)
    X = rows.pop("X")
    if not len(X):
        return empty
    out = getattr(model, method)(X, **rows, **settings)
    several = out if isinstance(out, tuple) else (out,)
    return [_as_rows(one, X, method, model) for one in several]


def _as_rows(values: Any, X: Any, method: str, model: Any) -> Any:
    """A prediction in the type of the rows: an array, or a frame or series with their index."""
    if hasattr(values, "index") or not hasattr(X, "index"):
        return values
    if values.ndim == 1:
        return type(X.index.to_series())(values, index=X.index)
    known = {"predict_interval": INTERVAL, "predict_proba": getattr(model, "classes_", ())}
    return as_data_frame(values, X, known.get(method, range(values.shape[-1])))


def _collected(parts: list, X: Any, empty: Any) -> Any:
    """The collection of the partitions' results."""
    if not isinstance(X, da.Array):
        import dask.dataframe as dd

        return dd.from_delayed(parts, meta=empty, divisions=X.divisions, verify_meta=False)
    name, rest = f"predicted-{uuid4().hex}", empty.shape[1:]
    blocks: Any = {(name, k, *[0] * len(rest)): part.key for k, part in enumerate(parts)}
    graph = HighLevelGraph.from_collections(name, blocks, dependencies=parts)
    return da.Array(graph, name, (X.chunks[0], *((size,) for size in rest)), meta=empty)
