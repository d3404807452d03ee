"""Draws of whole functions: their distribution, and their gradients."""

import numpy as np
import pytest
import torch
from export.exported import KERNELS, MODELS, NEW, OVER, UNITS, X, Y, exact, fitted, marked_slow
from oracles import slope_by_differences
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skscalablegp as sk
from skscalablegp.export import NotExportable

DRAWN = [
    "exact-normalised", "pathwise", "features", "collapsed", "inducing", "inducing-network", "deep",
    "process", "relevance", "neighbours", "grid", "additive-grid", "love-rows", *OVER,
]  # fmt: skip
QUICK = {"exact-normalised", "features", "inducing", "process", "neighbours", "additive-grid"}
QUICK |= {"mean-function", "stack-of-noise"}
# Inside the table, where grids draw whole functions, and away from it.
AT = np.vstack([X[:4] + 0.1 * UNITS, NEW[:3]])


@pytest.mark.parametrize("name", [marked_slow(name, QUICK) for name in DRAWN])
def test_gradients_of_draws(name):
    draws = sk.draw_functions(fitted(name), 2)
    slopes = draws.gradients(NEW)
    assert slopes.shape == (len(NEW), 2, 3)
    # Draws of stationary kernels have high frequencies, and those at few rows large terms.
    for j, h in enumerate((1e-5 if name == "relevance" else 2e-6) * UNITS):
        change = slope_by_differences(lambda t, j=j: draws.values(NEW + t * np.eye(3)[j]), h)
        error = np.abs(slopes[:, :, j] - change) * UNITS[j] / Y.std()
        assert np.median(error) < 1e-6 and error.max() < 1e-3


def test_draws_are_functions():
    """Values do not depend on the other rows, and equal seeds give equal draws."""
    model = fitted("inducing")
    draws = sk.draw_functions(model, 3, random_state=1)
    together = draws.values(NEW)
    np.testing.assert_allclose(np.vstack([draws.values(x[None]) for x in NEW]), together)
    np.testing.assert_array_equal(sk.draw_functions(model, 3, random_state=1).values(NEW), together)
    other = sk.draw_functions(model, 3, random_state=2).values(NEW)
    assert np.abs(other - together).max() > 1e-3


def test_several_targets_and_pipelines():
    several = exact(KERNELS["rbf"], normalize_y=True).fit(X, np.column_stack([Y, 100 - 3 * Y]))
    draws = sk.draw_functions(several, 500)
    assert sk.draw_functions(several, 4).gradients(AT).shape == (len(AT), 2, 4, 3)
    found, expected = draws.values(AT).mean(2), several.predict(AT)
    std = several.predict_std(AT, include_noise=False)
    assert (np.abs(found - expected) < 5 / 500**0.5 * std).all()
    model = exact(KERNELS["rbf"]).set_params(kernel__k1__k2__length_scale=1.0)
    model = make_pipeline(StandardScaler(), model).fit(X, Y)
    found = sk.draw_functions(model, 500).values(AT).mean(1)
    std = model[-1].predict_std(model[:-1].transform(AT), include_noise=False)
    assert (np.abs(found - model.predict(AT)) < 5 / 500**0.5 * std).all()


def test_modules_of_rows():
    draws = sk.draw_functions(fitted("features"), 2)
    rows = torch.tensor(NEW, requires_grad=True)
    draws(rows)[0, 1].backward()
    np.testing.assert_allclose(rows.grad[0].numpy(), draws.gradients(NEW[:1])[0, 1])
    assert not rows.grad[1:].any()


@pytest.mark.parametrize(
    "model, message",
    [(MODELS["experts"], "sample_y"), (exact(KERNELS["periodic"]), "ExpSineSquared.*sample_y")],
)
def test_models_without_functions(model, message):
    with pytest.raises(NotExportable, match=message):
        sk.draw_functions(clone(model).fit(X, Y))


@pytest.mark.parametrize("n_samples", [0, 2.5, "three"])
def test_wrong_numbers_of_draws(n_samples):
    with pytest.raises((TypeError, ValueError), match="n_samples"):
        sk.draw_functions(fitted("features"), n_samples)
