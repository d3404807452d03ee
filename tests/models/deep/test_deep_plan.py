"""Plans of deep kernels, as tables and without fits."""

import pytest
from sklearn.gaussian_process.kernels import RBF

from skscalablegp import SCGDDKLRegressor
from skscalablegp.core import Machine
from skscalablegp.models.deep._plan import plan


@pytest.mark.parametrize(
    "n, batch, epochs, dtype, layers, split, exact",
    [
        (100, 64, 100, "float64", None, False, True),
        (3_000, 64, 100, "float64", None, True, True),
        (3_001, 64, 100, "float32", (128, 128), True, False),
        (20_000, 64, 39, "float32", (128, 128), True, False),
        (100_000, 64, 12, "float32", (128, 128), True, False),
        (200_000, 256, 6, "float32", (128, 128), False, False),
    ],
)
def test_automatic_choices(n, batch, epochs, dtype, layers, split, exact):
    chosen = plan(SCGDDKLRegressor(), n, Machine())
    assert bool(chosen.exact_instead) == exact
    assert {name: choice.value for name, choice in chosen.choices.items()} == {
        "batch_size": batch,
        "max_epochs": epochs,
        "learning_rate": 0.01,
        "dtype": dtype,
        "feature_extractor": layers,
        "early_stopping": split,
    }
    assert ("activation" in chosen.ignored) == exact
    assert ("validation_fraction" in chosen.ignored) == (exact or not split)


@pytest.mark.parametrize(
    "params, n, stream, ignored",
    [
        ({}, 5_000, False, {"tol"}),
        ({"n_iter_no_change": 3}, 5_000, False, set()),
        ({"kernel": RBF(), "batch_size": 500}, 100, False, {"batch_size", "tol"}),
        ({"n_iter_no_change": 3}, 100, True, {"max_epochs", "early_stopping", "tol"}),
        ({"optimizer": None}, 100, False, {"learning_rate", "penalty"}),
    ],
)
def test_parameters_without_effect(params, n, stream, ignored):
    chosen = plan(SCGDDKLRegressor(**params), n, Machine(), stream=stream)
    assert ignored <= set(chosen.ignored) and not chosen.exact_instead
    assert ignored or not chosen.ignored
    assert all(chosen.ignored.values())


@pytest.mark.parametrize(
    "optimizer, size, rate",
    [("adam", 64, 0.01), ("adam", 16, 0.005), ("adam", 256, 0.01), ("adadelta", 16, 1.0)],
)
def test_rates_suit_the_optimiser_and_the_batch(optimizer, size, rate):
    model = SCGDDKLRegressor(optimizer=optimizer, batch_size=size)
    assert plan(model, 5_000, Machine()).learning_rate.value == rate
    given = model.set_params(learning_rate=0.3)
    assert plan(given, 5_000, Machine()).learning_rate == (0.3, "as given")
