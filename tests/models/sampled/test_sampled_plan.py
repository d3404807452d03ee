"""Plans of sampled models, without fits."""

import pytest

from skscalablegp import QSGPClassifier, QSGPRegressor, QSRVMRegressor
from skscalablegp.likelihoods import Bernoulli, Gaussian
from skscalablegp.models.sampled._plan import TableSize, plan, plan_relevance

STEPS = {"inference": "stochastic"}
ROWS = {"basis": "rows"}


@pytest.mark.parametrize(
    ("settings", "n", "points", "basis", "inference", "m"),
    [
        ({}, 500, None, "rows", "exact", 500),
        ({}, 3_400, None, "rows", "exact", 3_400),
        ({}, 3_600, None, "rows", "exact", 2635),
        ({}, 12_000, None, "rows", "exact", 1443),
        ({}, 12_001, None, "fourier", "stochastic", 100_000),
        ({"n_components": 64}, 500, None, "fourier", "exact", 64),
        ({"n_components": 4096}, 500, None, "fourier", "stochastic", 4096),
        (STEPS, 100, None, "fourier", "stochastic", 400),
        (ROWS, 500, 500, "rows", "exact", 500),
        (ROWS, 20_000, 20_000, "rows", "stochastic", 20_000),
        (ROWS, 20_000, 300, "rows", "exact", 300),
    ],
)
def test_functions_and_inference_follow_from_the_size(settings, n, points, basis, inference, m):
    chosen = plan(QSGPRegressor(**settings), None, TableSize(n, 1, points), Gaussian())
    values = {name: choice.value for name, choice in chosen.choices.items()}
    assert (values["basis"], values["inference"], values["n_components"]) == (basis, inference, m)
    assert (chosen.steps is None) == (inference == "exact")
    # Full batches have no steps, and one solve is enough.
    assert ("batch_size" in chosen.without_effect) == (inference == "exact")
    assert values["max_iter"] == 1 or inference == "stochastic"


@pytest.mark.parametrize(
    ("n", "support", "steps"), [(1000, 500, 100), (2100, 500, 200), (30_000, 1000, 500)]
)
def test_steps_grow_with_the_table(n, support, steps):
    chosen = plan(QSGPRegressor(**STEPS), None, TableSize(n, 1), Gaussian())
    assert chosen.steps.control_variate_rank.value == support
    assert chosen.steps.n_steps == chosen.max_iter.value == steps
    assert chosen.steps.calibrates == (n >= 2000)
    assert plan(QSGPRegressor(**STEPS, max_iter=steps), None, TableSize(n, 1), Gaussian()).planned
    limited = QSGPRegressor(**STEPS, max_iter=steps - 1)
    assert not plan(limited, None, TableSize(n, 1), Gaussian()).planned


def test_labels_have_newton_steps_and_no_calibration():
    exact = plan(QSGPClassifier(), None, TableSize(5000, 1), Bernoulli())
    assert exact.max_iter.value == 100 and exact.n_components.value == 1024
    assert "max_iter" not in exact.without_effect
    steps = plan(QSGPClassifier(), None, TableSize(5001, 1), Bernoulli()).steps
    assert not steps.calibrates and steps.n_dense.value == 20


@pytest.mark.parametrize(("n", "rounds"), [(2048, False), (2049, True)])
def test_large_dictionaries_have_rounds(n, rounds):
    chosen = plan_relevance(QSRVMRegressor(), None, n)
    assert (chosen.rounds is not None) == rounds
    assert ("batch_size" in chosen.without_effect) != rounds
    assert chosen.needs[0].bytes == 64 * 2048**2
