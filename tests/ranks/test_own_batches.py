"""Sampled models and deep kernels on rows of which each rank has its own: labels and refusals."""

import os
import warnings

import named
import numpy as np
import pytest
from ranks.launched import launch
from ranks.test_own_rows import DEEP, ESTIMATORS, STEPS, Noted, bytes_of_all, own, table
from sklearn.base import clone

from skscalablegp import (
    BSGDDKLRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    distribute,
)
from skscalablegp.workers import leading

LABELS = {
    "steps": QSGPClassifier(
        n_components=600, n_dense=4, component_batch_size=100, max_iter=8, **STEPS
    ),
    "full batches": QSGPClassifier(n_components=60, random_state=0),
    "functions at chosen rows": QSGPClassifier(random_state=0),
}


def assert_same(size, work, *args):
    """All ranks answer what this process does alone."""
    answers = launch(size, work, *args)
    assert [code for code, _ in answers] == [0] * size, answers
    expected = work(*args)
    for _, found in answers:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert len({np.asarray(found).tobytes() for _, found in answers}) == 1


def fitted(model, X, y, cut=own):
    """Of the rows of this rank, or of all rows in a process that is no rank."""
    warnings.simplefilter("ignore")
    if "RANK" not in os.environ:
        return model.fit(X, y)
    with distribute(rows="own"):
        return model.fit(*cut(X, y))


# ---------------------------------------------------------------- labels


def labelled(name, n_classes):
    X, y, _ = table()
    codes = np.digitize(y, [0.0, 0.8][: n_classes - 1])
    # Rank 0 alone has rows of the first class.
    order = np.argsort(codes > 0, kind="stable")
    X, codes = X[order], codes[order]
    assert not codes[0] and codes[1000:].all()
    with pytest.MonkeyPatch.context() as patched:
        # A part of the rows stands for all in checks and limits.
        named.thresholds(patched, _LIMIT_ROWS=300)
        model = fitted(clone(LABELS[name]), X, np.array(["few", "many", "most"])[codes])
    assert len(model.classes_) == n_classes
    shares = (np.bincount(codes) + 1 / n_classes) / (len(codes) + 1)
    np.testing.assert_allclose(model.class_prior_, shares, rtol=1e-12)
    found = model.kernel_.theta, model.latent_constant_, model.predict_proba(X[1:200]).ravel()
    return np.concatenate(found)


@pytest.mark.seldom("3-steps-3", "3-full batches-3")
@pytest.mark.parametrize(
    "size, name, n_classes",
    [
        (2, "full batches", 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (2, "steps", 2),
                (3, "steps", 3),
                (3, "full batches", 3),
                (2, "functions at chosen rows", 2),
            ]
        ),
    ],
)
def test_labels_of_all_ranks_are_classes_of_one_model(size, name, n_classes):
    assert_same(size, labelled, name, n_classes)


# ---------------------------------------------------------------- relevance vectors


def relevant(rounds, limits):
    """With `limits`, the sums of large tables; with `rounds`, their rounds of steps."""
    X, y, _ = table()
    model = QSRVMRegressor(
        n_components=150 if rounds else 50,
        component_batch_size=40,
        control_variate_rank=50,
        dtype="float64" if rounds else "auto",
        max_iter=5,
        random_state=0,
    )
    with pytest.MonkeyPatch.context() as patched:
        if limits:
            named.thresholds(patched, MOMENT_ROWS=400)
        if rounds:
            named.thresholds(patched, EXACT_DICTIONARY=60, _ROUND_STEPS=10)
        model = fitted(model, X, y)
    np.testing.assert_array_equal(model.relevance_vectors_, X[model.relevance_])
    predicted = model.predict(X[1:200], return_std=True)
    return np.concatenate([model.kernel_.theta, model.relevance_, *predicted])


@pytest.mark.seldom("2-False-False")
@pytest.mark.exact_input
@pytest.mark.slow
@pytest.mark.parametrize(
    "size, rounds, limits", [(2, False, False), (2, False, True), (3, True, True)]
)
def test_relevance_vectors_of_all_ranks_are_those_of_one_process(size, rounds, limits):
    assert_same(size, relevant, rounds, limits)


# ---------------------------------------------------------------- ranks with few rows and without

# The first row of each rank and the end of its rows: rank 1 has three, or one of both has none.
FEW = {"few": [0, 1498, 1501], "none": [0, 1501, 1501], "all but the first": [0, 0, 1501]}


def with_few_rows(name, kind):
    def hardly(*arrays):
        rank = int(os.environ["RANK"])
        return [a[FEW[kind][rank] : FEW[kind][rank + 1]] for a in arrays]

    X, y, _ = table()
    model = fitted(clone(ESTIMATORS[name]), X, y, hardly)
    predicted = model.predict(X[1:200], return_std=True)
    return np.concatenate([model.kernel_.theta, *predicted])


@pytest.mark.seldom(
    "robust sampled functions-few",
    "all robust functions-none",
    "deep-none",
    "minimax-few",
    "sampled functions-all but the first",
    "grid-none",
    "points-none",
    "features-all but the first",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, kind",
    [
        *(
            (name, kind)
            for name in ("batches", "sampled functions", "deep")
            for kind in ("none", "all but the first")
        ),
        *((name, "few") for name in ("batches", "robust sampled functions", "deep", "minimax")),
        *((name, "none") for name in ("features", "points", "grid", "all robust functions")),
        *((name, "all but the first") for name in ("features", "points", "grids of columns")),
    ],
)
def test_a_rank_may_have_no_row_of_a_batch_and_no_row_at_all(name, kind):
    assert_same(2, with_few_rows, name, kind)


# ---------------------------------------------------------------- what travels


class NotedSteps(Noted):
    def __call__(self, step):
        if step.stage == "batches":
            self.seen.append(leading().together(bytes_of_all))


def sampled_bytes(**settings):
    noted, model = NotedSteps(), clone(ESTIMATORS["sampled functions"])
    fitted(model.set_params(callbacks=noted, **settings), *table()[:2])
    return np.diff(noted.seen, axis=0).tolist(), len(model.kernel_.theta)


def bytes_of_draws():
    return sampled_bytes(variational_learning_rate=0.5)


@pytest.mark.slow
def test_block_steps_send_the_rows_of_a_batch_to_rank_0():
    answers = launch(2, sampled_bytes)
    assert [code for code, _ in answers] == [0, 0], answers
    # About half of the rows: three columns, the target and at most one further number each.
    sent, b = answers[0][1][0], 500
    assert all(8 * 4 * b / 3 < rank_1 < 8 * 5 * 2 * b / 3 for _, rank_1 in sent)


@pytest.mark.slow
def test_steps_send_drawn_weights_and_their_gradients_and_no_rows():
    # Another rate than the default keeps sampled steps, where block steps would be as cheap.
    answers = launch(2, bytes_of_draws)
    assert [code for code, _ in answers] == [0, 0], answers
    sent, p = answers[0][1]
    # Functions in each of two draws, columns of weights, support rows and rows of a batch.
    u, k, s, b = 100, 5, 60, 500
    assert {rank_1 for _, rank_1 in sent} == {8 * (2 * u * k + p)}
    to_others = 8 * (2 * u * k + 3 * s * k + p + b)
    assert all(0 < rank_0 - to_others < 20_000 for rank_0, _ in sent)


# ---------------------------------------------------------------- refusals

REFUSED = {
    "neighbours": BSGDDKLRegressor(batches="neighbours", **DEEP),
    "warm start": QSGPRegressor(warm_start=True),
    "noise": QSRVMRegressor(),
    "one class": QSGPClassifier(),
}


def refused(kind):
    X, y, noise = own(*table(1200))
    y = np.zeros(len(y), dtype=int) if kind == "one class" else y
    settings = {"noise_variance": noise} if kind == "noise" else {}
    model = clone(REFUSED[kind])
    with distribute(rows="own"):
        try:
            model.fit(X, y, **settings)
        except ValueError as error:
            return str(error), [k for k in vars(model) if k.endswith("_") and k[0] != "_"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, text",
    [
        ("neighbours", 'batches="neighbours" needs all rows in one process: use batches="random"'),
        ("warm start", "warm_start needs all rows in one process: leave it out"),
        ("noise", "has one noise variance for all rows"),
        ("one class", "needs at least two classes"),
    ],
)
def test_what_needs_all_rows_is_refused_with_a_remedy(kind, text):
    answers = launch(2, refused, kind)
    assert [code for code, _ in answers] == [0, 0], answers
    for _, (said, kept) in answers:
        assert text in said and not kept
