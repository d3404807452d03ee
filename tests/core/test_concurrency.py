"""Fits in several threads and processes at once have the same results as alone."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    NNGPRegressor,
    PoERegressor,
    QSGPRegressor,
    QSRVMRegressor,
    RFFRegressor,
    RRCGRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    SVGPRegressor,
)

MODELS = [
    IterativeGPRegressor(max_iter=4),
    IterativeGPRegressor(solver="cg", max_iter=2, n_probes=4, random_state=0),
    RFFRegressor(n_components=20, max_iter=4, random_state=0),
    KISSGPRegressor(grid_size=10, max_iter=3, random_state=0),
    SGPRRegressor(n_inducing=8, max_iter=4, random_state=0),
    SVGPRegressor(n_inducing=8, max_iter=4, random_state=0),
    QSGPRegressor(n_components=16, max_iter=4, random_state=0),
    SCGDDKLRegressor(feature_extractor=(4,), n_components=8, max_epochs=3, random_state=0),
    RRCGRegressor(max_iter=2, n_probes=2, random_state=0),
    SSRFFRegressor(min_components=8, component_step=4, max_iter=2, random_state=0),
    LOVEPredictor(KISSGPRegressor(grid_size=10, max_iter=3), random_state=0),
    QSRVMRegressor(max_iter=3, random_state=0),
    PoERegressor(expert_size=20, max_iter=3, random_state=0),
    NNGPRegressor(n_neighbors=8, max_iter=3, random_state=0),
    HeteroscedasticRegressor(SGPRRegressor(n_inducing=8, max_iter=4), random_state=0),
]
# Filters of warnings belong to the whole process, threads included.
pytestmark = pytest.mark.filterwarnings("ignore")


def table(n=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def answers(model):
    X, y = table()
    return np.stack(clone(model).fit(X, y).predict(X[:7], return_std=True))


@pytest.mark.slow
def test_fits_in_threads_are_those_of_fits_alone():
    alone = [answers(model) for model in MODELS]
    with ThreadPoolExecutor(4) as threads:
        for seen, expected in zip(threads.map(answers, MODELS), alone, strict=True):
            assert_array_equal(seen, expected)


def test_one_model_answers_several_threads():
    X, y = table()
    model = IterativeGPRegressor(max_iter=4).fit(X, y)
    expected = model.predict(X, return_std=True)[1]
    # A copy has no posterior yet, and every thread finds that out.
    model = pickle.loads(pickle.dumps(model))
    with ThreadPoolExecutor(4) as threads:
        for seen in threads.map(lambda _: model.predict(X, return_std=True)[1], range(8)):
            assert_array_equal(seen, expected)


FORK = """
import multiprocessing, sys, warnings
import numpy as np, torch
from sklearn.base import clone
from skscalablegp import IterativeGPRegressor, NNGPRegressor, PoERegressor

warnings.simplefilter("ignore")
torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(700, 3))
y = np.sin(X).sum(1)
models = [
    IterativeGPRegressor(optimizer=None).fit(X, y),
    PoERegressor(expert_size=100, optimizer=None, random_state=0).fit(X, y),
    NNGPRegressor(n_neighbors=8, optimizer=None, random_state=0).fit(X, y),
]
expected = [model.predict(X[:99], return_std=True) for model in models]

def child(queue):
    seen = [model.predict(X[:99], return_std=True) for model in models]
    again = [clone(model).fit(X, y).predict(X[:99], return_std=True) for model in models]
    queue.put((seen, again))

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,), daemon=True)
process.start()
for found in queue.get(timeout=120):
    np.testing.assert_allclose(found, expected, rtol=1e-9)
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_predicts_and_fits():
    """Though the threads of its parent, the pool's and OpenMP's, are gone."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


@pytest.mark.exact_input
@pytest.mark.slow
def test_a_spawned_process_predicts_and_fits():
    X, y = table()
    models = [model.fit(X, y) for model in map(clone, MODELS)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        seen = processes.map(predicted_and_fitted, models, timeout=120)
        for model, (predicted, fitted) in zip(models, seen, strict=True):
            expected = model.predict_std(X[:7])
            assert_array_equal(predicted, expected)
            np.testing.assert_allclose(fitted, expected, rtol=1e-9)


def predicted_and_fitted(model):
    X, y = table()
    return model.predict_std(X[:7]), clone(model).fit(X, y).predict_std(X[:7])


@pytest.mark.slow
def test_cross_validation_inside_joblib():
    X, y = table()
    model = SGPRRegressor(n_inducing=8, max_iter=4, random_state=0)
    alone = cross_val_score(model, X, y, cv=2)
    score = joblib.delayed(cross_val_score)
    for seen in joblib.Parallel(2)(score(model, X, y, cv=2, n_jobs=2) for _ in range(2)):
        np.testing.assert_allclose(seen, alone, rtol=1e-9)
