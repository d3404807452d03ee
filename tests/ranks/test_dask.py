"""Fits and predictions on Dask workers: a real cluster of processes on the loopback interface."""

import os
import signal
import threading
import time
import warnings
from itertools import pairwise
from uuid import uuid4

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import skscalablegp.dask as gp
from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    PoERegressor,
    QSGPClassifier,
    QSGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.workers import RankError, versions

QUIET = {"threads_per_worker": 1, "dashboard_address": ":0"}
# Uneven partitions, one of them empty and one of a single row.
CHUNKS = (900, 1, 0, 600)


@pytest.fixture(scope="module")
def single():
    """One worker in this process: a group of one rank."""
    with Client(processes=False, n_workers=1, **QUIET) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    with LocalCluster(n_workers=2, **QUIET) as cluster, Client(cluster) as client:
        yield client


def table(n=1501, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)


def iterative(**settings):
    """A model whose products are shared."""
    given = {"solver": "cg", "gradient": "pathwise", "posterior": "pathwise", "solver_tol": 1e-9}
    given |= {"dtype": "float64", "random_state": 0, "n_probes": 8, "optimizer": None}
    return IterativeGPRegressor(**given | settings)


def features(**settings):
    return RFFRegressor(**{"n_components": 16, "random_state": 0, "optimizer": None} | settings)


def spread(client, array, chunks=CHUNKS):
    """An array whose partitions are in turn on the workers."""
    workers, ends = sorted(client.nthreads()), np.cumsum([0, *chunks])
    name, rest = f"spread-{uuid4().hex}", array.shape[1:]
    parts = [
        delayed(client.scatter(array[a:b], workers=[workers[k % len(workers)]], hash=False))
        for k, (a, b) in enumerate(pairwise(ends))
    ]
    blocks = {(name, k, *(0 for _ in rest)): part.key for k, part in enumerate(parts)}
    graph = HighLevelGraph.from_collections(name, blocks, dependencies=parts)
    return da.Array(graph, name, (chunks, *((size,) for size in rest)), meta=array[:0])


def computed(client, collection):
    """By this client, which may not be the last one that was made."""
    return client.compute(collection).result()


def test_fit_and_predictions_of_one_worker(single):
    assert_same_fits(single, table(300), (200, 0, 1, 99), 1)


@pytest.mark.slow
def test_fit_and_predictions_of_two_workers(client):
    assert_same_fits(client, table(), CHUNKS, 2)


def assert_same_fits(client, data, chunks, size):
    """Of Dask and of one process."""
    X, y = data
    noise = np.linspace(0.0, 0.5, len(X))
    model = iterative()
    before = client.run(transfers)
    fitted = gp.fit(
        client,
        model,
        spread(client, X, chunks),
        spread(client, y, chunks),
        noise_variance=spread(client, noise, chunks),
    )
    after = client.run(transfers)
    assert sum(after[worker] > before[worker] for worker in after) == size - 1
    assert not hasattr(model, "kernel_") and type(fitted) is type(model)
    assert fitted.fit_report_.ranks == size
    assert ("among 2 ranks" in str(fitted.fit_report_)) == (size == 2)
    alone = iterative().fit(X, y, noise_variance=noise)
    assert alone.fit_report_.ranks == 1
    np.testing.assert_allclose(fitted.predict(X), alone.predict(X), rtol=0, atol=1e-6)
    rows = da.from_array(X[:100], chunks=((40, 0, 60), 3))
    std = gp.predict(client, fitted, rows, method="predict_std", include_noise=False)
    assert std.chunks == ((40, 0, 60),) and std.dtype == np.float64
    np.testing.assert_allclose(
        computed(client, std), alone.predict_std(X[:100], include_noise=False), rtol=0, atol=1e-6
    )


# ---------------------------------------------------------------- rows that stay

SUMS = {"small_table": "method", "random_state": 0}
STAYING = {
    "features": RFFRegressor(n_components=40, optimizer="adam", max_iter=3, **SUMS),
    "points": SGPRRegressor(n_inducing=20, max_iter=2, **SUMS),
    "batches": SVGPRegressor(n_inducing=20, max_iter=4, batch_size=400, **SUMS),
    "grids": KISSGPRegressor(grid_size=20, structure="additive", max_iter=2, **SUMS),
    "sampled functions": QSGPRegressor(
        n_components=300, inference="stochastic", dtype="float64", max_iter=5, random_state=0
    ),
    "deep": SCGDDKLRegressor(
        feature_extractor=(8, 4), dtype="float64", max_epochs=1, batch_size=200, **SUMS
    ),
}


def assert_rows_stay(client, name, chunks):
    """The fit equals that of one process with the rows in the order of the ranks."""
    X, y = table()
    noise = np.linspace(0.01, 0.5, len(X))
    before = client.run(transfers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = gp.fit(
            client,
            STAYING[name],
            spread(client, X, chunks),
            spread(client, y, chunks),
            rows="own",
            noise_variance=spread(client, noise, chunks),
        )
        assert client.run(transfers) == before
        alone = clone(STAYING[name]).fit(X, y, noise_variance=noise)
    assert fitted.n_samples_seen_ == len(X) and getattr(fitted, "X_train_", None) is None
    np.testing.assert_allclose(fitted.kernel_.theta, alone.kernel_.theta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(fitted.predict(X), alone.predict(X), rtol=0, atol=1e-6)
    assert not hasattr(STAYING[name], "kernel_")


def transfers(dask_worker):
    """How often a worker has fetched data from others."""
    return dask_worker.state.transfer_incoming_count_total


def test_rows_stay_on_one_worker(single):
    assert_rows_stay(single, "features", CHUNKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, chunks",
    [
        *((name, CHUNKS) for name in STAYING),
        # One worker has a single row, or none.
        *((name, (1500, 1)) for name in ("batches", "sampled functions", "deep")),
        ("points", (1501, 0)),
    ],
)
def test_rows_stay_on_two_workers(client, name, chunks):
    assert_rows_stay(client, name, chunks)


def test_estimators_that_need_all_rows_are_refused(single):
    X = spread(single, table(20)[0], (20,))
    for model in (iterative(), make_pipeline(features())):
        with pytest.raises(ValueError, match="needs all rows in one process"):
            gp.fit(single, model, X, X[:, 0], rows="own")


# ---------------------------------------------------------------- joblib on Dask


@pytest.mark.seldom("model0")
@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        NNGPRegressor(n_neighbors=16, subset_size=100, max_iter=3, **SUMS),
        PoERegressor(expert_size=300, max_iter=3, **SUMS),
    ],
)
def test_neighbours_and_experts_of_joblib_jobs(client, model, monkeypatch):
    """The fits agree, workers do parts of the work, and the table is sent once."""
    X, y = table(d=40)
    # The workers may still have the table of another test.
    X[:, 3:] *= 0.01 if isinstance(model, NNGPRegressor) else 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = clone(model).fit(X, y)
        expected = alone.predict(X[:200], return_std=True)
        sent, scatter = [], Client.scatter

        def counted(self, data, **settings):
            sent.append(sizeof(data))
            return scatter(self, data, **settings)

        monkeypatch.setattr(Client, "scatter", counted)
        before = client.run(executed)
        with joblib.parallel_backend("dask", client=client):
            fitted = clone(model).fit(X, y)
            found = fitted.predict(X[:200], return_std=True)
    np.testing.assert_allclose(fitted.kernel_.theta, alone.kernel_.theta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    after = client.run(executed)
    assert all(after[worker] > before[worker] for worker in before)
    # The fit, its calibration, wide neighbourhoods and the predictions have the rows in common;
    # neighbours are sent with the rows around which they are, and predictions with the wide ones.
    near, large = 0, [X.nbytes]
    if isinstance(model, NNGPRegressor):
        near, large = 3 * len(X) * 16 * 8, [X.nbytes, *(part.nbytes for part in fitted._wide[4:6])]
    assert sorted(size for size in sent if size > 0.5 * X.nbytes) == sorted(large)
    assert X.nbytes < sum(sent) < 1.3 * (X.nbytes + y.nbytes) + near + sum(large[1:])


def executed(dask_worker):
    return dask_worker.state.executed_count


# ---------------------------------------------------------------- data frames


def frame(n=400):
    """A table with categories that not every partition has."""
    rng = np.random.default_rng(0)
    kind = np.where(np.arange(n) < 150, "a", np.where(np.arange(n) % 2, "b", "c"))
    X = pd.DataFrame({"x": rng.normal(size=n), "kind": pd.Categorical(kind)})
    X.index = pd.Index(2 * np.arange(n), name="row")
    y = np.sin(2 * X["x"]) + (X["kind"] == "b") + 0.1 * rng.normal(size=n)
    return X, y.rename("target")


def own_categories(part):
    return part.assign(kind=part["kind"].cat.remove_unused_categories())


def pipeline():
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind"]), remainder="passthrough"
    )
    return make_pipeline(columns, features())


@pytest.mark.slow
def test_data_frames_keep_their_index_and_categories(client):
    X, y = frame()
    rows = dd.from_pandas(X, npartitions=4)
    known = client.persist(rows.map_partitions(own_categories, meta=rows._meta))
    model = gp.fit(client, pipeline(), known, dd.from_pandas(y, npartitions=4))
    alone = pipeline().fit(X, y)
    assert list(model[0].feature_names_in_) == ["x", "kind"]
    expected = pd.Series(alone.predict(X), index=X.index)
    mean = gp.predict(client, model, rows)
    assert isinstance(mean, dd.Series) and mean.known_divisions
    pd.testing.assert_series_equal(computed(client, mean), expected, atol=1e-9)
    mean, std = gp.predict(client, model, rows, return_std=True)
    pd.testing.assert_series_equal(computed(client, mean), expected, atol=1e-9)
    np.testing.assert_allclose(computed(client, std), alone.predict(X, return_std=True)[1])


@pytest.mark.slow
def test_intervals_quantiles_and_several_targets(single):
    client = single
    X, y = frame()
    X, Y = X[["x"]], pd.DataFrame({"a": y, "b": -y})
    rows = dd.from_pandas(X, npartitions=3)
    one = gp.fit(client, features(), rows, dd.from_pandas(y, npartitions=3))
    interval = gp.predict(client, one, rows, method="predict_interval", coverage=0.8)
    expected = one.predict_interval(X, coverage=0.8, as_frame=True)
    assert list(interval.columns) == ["lower", "upper"] == list(interval.dtypes.index)
    pd.testing.assert_frame_equal(computed(client, interval), expected)
    two = gp.fit(client, features(), rows, dd.from_pandas(Y, npartitions=3))
    pd.testing.assert_frame_equal(
        computed(client, gp.predict(client, two, rows)), pd.DataFrame(two.predict(X), index=X.index)
    )
    array = gp.predict(client, two, rows.to_dask_array(), method="predict_quantiles", q=[0.1, 0.5])
    np.testing.assert_allclose(computed(client, array), two.predict_quantiles(X, [0.1, 0.5]))


@pytest.mark.slow
def test_classes(single):
    client = single
    X, y = frame(200)
    X, labels = X[["x"]], pd.Series(np.where(y > 0.5, "high", "low"), index=y.index)
    rows = dd.from_pandas(X, npartitions=2)
    model = SVGPClassifier(n_inducing=8, max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = gp.fit(client, model, rows, dd.from_pandas(labels, npartitions=2))
    shares = computed(client, gp.predict(client, model, rows, method="predict_proba"))
    assert list(shares.columns) == ["high", "low"] and shares.index.equals(X.index)
    np.testing.assert_allclose(shares, model.predict_proba(X))
    assert list(computed(client, gp.predict(client, model, rows))) == list(model.predict(X))


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.slow
def test_warnings_and_errors_of_a_fit_are_those_of_the_caller(client):
    X, y = table(300)
    rows, target = (spread(client, a, (100, 200)) for a in (X, y))
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        gp.fit(client, features(optimizer="auto", max_iter=1), rows, target)
    y[3] = np.nan
    with pytest.raises(ValueError, match="y contains NaN"):
        gp.fit(client, features(), rows, spread(client, y, (100, 200)))
    with pytest.raises(ZeroDivisionError):
        gp.fit(client, features(), rows.map_blocks(lambda block: 1 // 0, dtype=float), target)
    # Fits after a failed one work.
    assert gp.fit(client, features(), rows, target).n_features_in_ == 3


@pytest.mark.slow
def test_collections_that_do_not_belong_together(single, monkeypatch):
    client = single
    X, y = table(300)
    rows = da.from_array(X, chunks=(100, 2))
    assert gp.fit(client, features(), rows, da.from_array(y, chunks=150)).n_features_in_ == 3
    with pytest.raises(ValueError, match="X has 3 partitions and y 2"):
        gp.fit(client, features(), rows, da.from_array(y[:-1], chunks=150))
    shifted = da.from_array(y, chunks=((99, 101, 100),))
    shifted._chunks = ((np.nan,) * 3,)
    with pytest.raises(ValueError, match="partition . has .* 100 of X, (99|101) of y"):
        gp.fit(client, features(), rows, shifted)
    with pytest.raises(ValueError, match="no rows"):
        gp.fit(client, features(), rows[:0], da.from_array(y[:0], chunks=10))
    with pytest.raises(TypeError, match="X must be a Dask array"):
        gp.fit(client, features(), X, y)
    with pytest.raises(ValueError, match="return_cov"):
        gp.predict(client, features().fit(X, y), rows, return_cov=True)
    with monkeypatch.context() as patched, pytest.raises(TypeError, match="client must be"):
        patched.setattr(Client, "asynchronous", True)
        gp.fit(client, features(), rows, y)


@pytest.mark.slow
def test_two_fits_at_once_take_turns(client):
    """From threads that begin with different workers."""
    X, y = table(600)
    rows, target = (spread(client, a, (300, 300)) for a in (X, y))
    back = spread(client, X, (200, 400)), spread(client, y, (200, 400))
    models, alone = {}, iterative().fit(X, y)

    def work(number):
        models[number] = gp.fit(client, iterative(), *((rows, target), back)[number % 2])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(models) == [0, 1, 2, 3]
    for model in models.values():
        np.testing.assert_allclose(model.predict(X), alone.predict(X), atol=1e-6)


class Kill:
    """A callback of rank 0 that ends the process of another rank, or its own."""

    def __init__(self, process):
        self.process = process

    def __call__(self, step):
        os.kill(self.process, signal.SIGKILL)


@pytest.mark.seldom("True")
@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_worker_that_ends_is_named_and_later_fits_work(client, first):
    client.wait_for_workers(2)
    X, y = table()
    rows, target = spread(client, X, (900, 601)), spread(client, y, (900, 601))
    processes = client.run(os.getpid)
    # The worker with more rows is rank 0, and `spread` begins with this one.
    process = processes[sorted(processes)[0 if first else 1]]
    model = iterative(optimizer="auto", max_iter=3, subset_size=None, callbacks=Kill(process))
    with pytest.raises(RankError, match=f"rank {1 - first} .*has ended"):
        gp.fit(client, model, rows, target, timeout=10)
    while process in client.run(os.getpid, on_error="ignore").values():
        time.sleep(0.1)
    client.wait_for_workers(2)
    again = gp.fit(client, iterative(), spread(client, X), spread(client, y))
    assert again.fit_report_.ranks == 2


def test_workers_need_the_versions_of_the_client(single, monkeypatch):
    X, y = table(20)
    rows, target = (spread(single, a, (20,)) for a in (X, y))
    other = versions() | {"version of torch": "0.1"}
    monkeypatch.setattr("skscalablegp.dask._fit.versions", lambda: other)
    with pytest.raises(RankError, match="version of torch is 0.1 here and 2.* at .*: install"):
        gp.fit(single, features(), rows, target)


@pytest.mark.slow
def test_ranks_need_processes_of_their_own():
    X, y = table(100)
    with Client(processes=False, n_workers=2, **QUIET) as client:
        rows, target = (spread(client, a, (50, 50)) for a in (X, y))
        with pytest.raises(ValueError, match="share a process"):
            gp.fit(client, features(), rows, target)


@pytest.mark.slow
def test_members_of_a_stack_are_jobs_of_the_cluster(client):
    """The result equals that of one process, and the workers fit the members."""
    X, y = table(300)
    members = [("features", features()), ("near", NNGPRegressor(n_neighbors=8, n_centers=20))]
    stack = StackedGPRegressor(members, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = clone(stack).fit(X, y)
        before = client.run(executed)
        with client.as_current(), joblib.parallel_config(backend="dask"):
            fitted = clone(stack).set_params(n_jobs=2).fit(X, y)
    after = client.run(executed)
    assert sum(after.values()) >= sum(before.values()) + 2
    np.testing.assert_allclose(fitted.weights_, alone.weights_, rtol=0, atol=1e-6)
    found, expected = (model.predict(X[:50], return_std=True) for model in (fitted, alone))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_labels_stay_on_two_workers(client):
    X, y = table()
    labels = np.where(y > np.median(y), "high", "low")
    model = QSGPClassifier(n_components=40, random_state=0)
    rows, targets = (spread(client, a) for a in (X, labels))
    fitted = gp.fit(client, model, rows, targets, rows="own")
    alone = clone(model).fit(X, labels)
    assert list(fitted.classes_) == ["high", "low"] and fitted.fit_report_.ranks == 2
    found, expected = fitted.predict_proba(X), alone.predict_proba(X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.night
def test_searches_use_the_cluster_through_joblib(client):
    X, y = table(200)
    search = GridSearchCV(features(), {"n_components": [8, 16]}, cv=2)
    alone = search.fit(X, y).cv_results_["mean_test_score"]
    with client.as_current(), joblib.parallel_config(backend="dask"):
        found = search.fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_allclose(found, alone)
