"""Work on the rows of one object that ranks or joblib's processes share."""

import pickle
import warnings
from functools import lru_cache

import joblib
import numpy as np
import pytest
import torch
from inside import shareable
from ranks.launched import launch
from sklearn.base import BaseEstimator, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import NNGPRegressor, PoERegressor, distribute
from skscalablegp.core import fitted_process
from skscalablegp.workers import leading, shares, workers

COMMON = {"random_state": 0, "small_table": "method", "max_iter": 4}
NEAR = COMMON | {"n_neighbors": 16, "subset_size": 100}
ESTIMATORS = {
    "neighbours": NNGPRegressor(**NEAR),
    "blocks": NNGPRegressor(objective="blocks", **NEAR),
    "all rows": NNGPRegressor(objective="vecchia", n_inducing=12, **NEAR),
    "weights": NNGPRegressor(n_inducing=12, **NEAR),
    "experts": PoERegressor(expert_size=120, **COMMON),
    "own kernels": PoERegressor(expert_size=200, share_hyperparameters=False, **COMMON),
}


def table(n=701):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n, 3))
    scale = np.where(X[:, 0] > 0, 0.3, 0.1)
    return X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + scale * rng.normal(size=n)


def answers_of(model):
    """Hyperparameters, and predictions of new rows and of training rows left out."""
    X, y = table()
    new = X[:200] + 0.05
    left = fitted_process(model).left_out(X, y, None, np.arange(0, 701, 5))
    return [model.kernel_.theta, *model.predict(new, return_std=True), left.mean, left.std]


def fitted(name):
    warnings.simplefilter("ignore")
    return clone(ESTIMATORS[name]).fit(*table())


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- one object, many tasks


class Table:
    """An object with arrays, of which each process adds up some rows."""

    def __init__(self, rows, more=()):
        self.rows, self.array, self.more = torch.as_tensor(rows), np.asarray(rows), more
        self.again = self.rows

    def total(self, some, power):
        assert len(self.rows) < 1000 or self.again is self.rows
        assert type(self.array) is np.ndarray
        np.testing.assert_array_equal(self.array, self.rows)
        if power < 0:
            raise ZeroDivisionError("a negative power")
        return self.rows[some].pow(power).sum(0), len(some)


def expected_totals(rows, count):
    return [rows[some].sum(0) for some in shares(len(rows), count)]


def test_parts_are_consecutive_and_even():
    parts = shares(11, 4)
    sizes = [part.stop - part.start for part in parts]
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert sum(sizes) == 11 and max(sizes) - min(sizes) <= 1
    assert len(shares(3, 8)) == 3


class Jobs:
    """A stand-in for joblib's processes: two with stores of their own; tasks are pickled."""

    def __init__(self, stand_in, monkeypatch):
        self.sizes, self.turn = [], 0
        monkeypatch.setattr(joblib, "Parallel", lambda **_: self.run)
        opened = stand_in("_received", None)
        most = opened.cache_parameters()["maxsize"]
        self.stores = [lru_cache(most)(opened.__wrapped__) for _ in range(2)]
        self._store = lambda store: stand_in("_received", store)

    def run(self, tasks):
        return [self._one(task) for task in tasks]

    def _one(self, task):
        data = pickle.dumps(task)
        self.sizes.append(len(data))
        self._store(self.stores[self.turn % len(self.stores)])
        self.turn += 1
        work, args, kwargs = pickle.loads(data)
        return pickle.loads(pickle.dumps(work(*args, **kwargs)))


def test_processes_receive_an_object_once(stand_in, monkeypatch, tmp_path):
    """In a file, which is there for as long as the object."""
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    jobs = Jobs(stand_in, monkeypatch)
    rows = np.random.default_rng(0).normal(size=(1000, 50))
    thing, places = Table(rows), torch.arange(1000)

    def asked(thing):
        jobs.sizes.clear()
        found = workers(thing, 1000, 2).call(Table.total, 1, along=[places])
        totals, counts = zip(*found, strict=True)
        assert sum(counts) == 1000
        np.testing.assert_allclose(torch.stack(totals), expected_totals(rows, 4))
        return sum(jobs.sizes)

    # Two workers, each of which gets two tasks: these have places, and the name of the file.
    assert max(asked(thing), asked(thing)) < 20_000
    (file,) = tmp_path.iterdir()
    # The object has the rows as a tensor and as an array.
    assert rows.nbytes < file.stat().st_size < 2.1 * rows.nbytes
    # One worker is new.
    jobs.stores[1].cache_clear()
    assert asked(thing) < 20_000
    # A worker keeps the last objects only.
    for _ in range(5):
        asked(Table(rows))
    assert jobs.stores[0].cache_info().currsize == 3
    assert list(tmp_path.iterdir()) == [file]


def test_few_rows_and_tasks_of_jobs_stay_in_this_process(stand_in, monkeypatch):
    jobs, thing = Jobs(stand_in, monkeypatch), Table(np.ones((100, 2)))

    def asked(n, *n_jobs, **settings):
        by = workers(thing, n, *n_jobs, **settings)
        return len(by.call(Table.total, 1, along=[torch.arange(n)]))

    assert asked(20, 2) == asked(100) == asked(100, 2, device=torch.device("meta")) == 1
    assert not jobs.sizes
    assert asked(20, 2, least=10) == 4 == len(jobs.sizes)


class Asked(BaseEstimator):
    """An estimator with one method, which all ranks run together."""

    @shareable
    def ask(self, question):
        return question()


def totals_of_ranks():
    rows, places = np.random.default_rng(0).normal(size=(1000, 50)), torch.arange(1000)
    ranks, thing = leading(), Table(rows)
    sent, counts = [ranks.bytes_sent], []

    def asked(thing):
        found = workers(thing, 1000).call(Table.total, 1, along=[places])
        assert [len(shares(1000, ranks.size)), ranks.size] == [len(found)] * 2
        counts.append([count for _, count in found])
        sent.append(ranks.bytes_sent)
        return torch.stack([total for total, _ in found])

    found = asked(thing), asked(thing), asked(Table(rows))
    try:
        workers(thing, 1000).call(Table.total, -1, along=[places])
    except ZeroDivisionError as error:
        said = str(error)
    after = asked(thing)
    return [*map(np.asarray, found), np.asarray(after)], np.diff(sent), said, counts


def asked_of_ranks():
    with distribute():
        return Asked().ask(totals_of_ranks)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_receive_an_object_once(size):
    answers = launch(size, asked_of_ranks)
    assert [code for code, _ in answers] == [0] * size, answers
    found, sent, said, counts = answers[0][1]
    rows = np.random.default_rng(0).normal(size=(1000, 50))
    for totals in found:
        np.testing.assert_allclose(totals, expected_totals(rows, size))
    # All ranks keep the rows for the second object, which has the same.
    table = (size - 1) * rows.nbytes
    assert table < sent[0] < table + (size - 1) * 40_000
    # The places of the rows, and a description.
    assert max(sent[1:]) < (size - 1) * 40_000
    assert "a negative power" in said and counts[0] == counts[-1]


# ---------------------------------------------------------------- estimators


def fitted_by_ranks(name):
    with distribute() as ranks:
        model = fitted(name)
        before = ranks.bytes_sent
        found = answers_of(model)
        new = ranks.bytes_sent - before
        return found, model.fit_report_.ranks, new


@pytest.mark.exact_input
@pytest.mark.parametrize(
    "size, name",
    [
        (2, "neighbours"),
        (2, "experts"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(2, name) for name in ("blocks", "all rows", "weights")]
            + [(3, "neighbours"), (3, "all rows"), (2, "own kernels")]
        ),
    ],
)
def test_ranks_fit_as_one_process(size, name):
    answers = launch(size, fitted_by_ranks, name)
    assert [code for code, _ in answers] == [0] * size, answers
    expected = answers_of(fitted(name))
    for _, (found, shared, _) in answers:
        assert_same(found, expected)
        assert shared == size
    assert len({b"".join(a.tobytes() for a in found) for _, (found, *_) in answers}) == 1
    # The queries were answered by all ranks, each of which sends the moments of its share.
    if name != "own kernels":
        assert answers[0][1][2] > 200 * 3 * 8 * (size - 1)
        assert all(sent > 200 // size * 2 * 8 for _, (*_, sent) in answers[1:])


@pytest.mark.seldom("all rows")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["neighbours", "all rows", "weights", "experts"])
def test_jobs_fit_as_one_process(name):
    expected = answers_of(fitted(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(ESTIMATORS[name]).set_params(n_jobs=2).fit(*table())
        assert_same(answers_of(model), expected)
    assert_same(answers_of(pickle.loads(pickle.dumps(model))), expected)


def test_threads_fit_as_one_process():
    expected = answers_of(fitted("all rows"))
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert_same(answers_of(fitted("all rows")), expected)


def test_rows_that_were_added_are_found_by_other_processes(stand_in, monkeypatch):
    X, y = table()
    kernel = ConstantKernel(1.0) * RBF([0.8, 1.0, 1.0]) + WhiteKernel(0.05)
    settings = NEAR | {"optimizer": None, "calibrate": False}
    model = NNGPRegressor(kernel, **settings).fit(X[:650], y[:650])
    model.partial_fit(X[650:], y[650:])
    expected = model.predict(X[600:] + 0.01, return_std=True)
    jobs, posterior = Jobs(stand_in, monkeypatch), model._posterior()
    posterior._n_jobs = 2
    found = model.predict(X[600:] + 0.01, return_std=True)
    assert jobs.sizes and posterior._index.n_in_tree == 650
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
