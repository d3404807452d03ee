"""A contract of all estimators: they learn from a table whose rows are copies of each other."""

import numpy as np
import pytest

import skscalablegp
from skscalablegp import IterativeGPRegressor, PoERegressor, SVGPRegressor

N = 3500
BELOW = {
    "HeteroscedasticRegressor": IterativeGPRegressor(),
    "MeanFunctionRegressor": IterativeGPRegressor(),
    "LOVEPredictor": IterativeGPRegressor(),
    "StackedGPRegressor": [("experts", PoERegressor()), ("points", SVGPRegressor())],
}
# Few steps: copies matter to where these begin.
FEW = {"max_iter": 60, "max_epochs": 30}
NAMES = [
    name
    for name in skscalablegp.__all__
    if isinstance(getattr(skscalablegp, name), type)
    and hasattr(getattr(skscalablegp, name), "fit")
    and name.endswith(("Regressor", "Classifier", "Predictor"))
]


def table():
    """Rows of few different entries, a probability for each, and labels drawn from it."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, (N, 3)), rng.integers(0, 12, (N, 2))]).astype(float)
    p = 1 / (1 + np.exp(0.6 - 0.5 * X[:, 0] - 0.15 * (X[:, 3] - 5.5)))
    return X, p, (rng.random(N) < p).astype(int)


@pytest.mark.slow
@pytest.mark.seldom(
    "AutoGPClassifier",
    "StackedGPRegressor",
    "HeteroscedasticRegressor",
    "MeanFunctionRegressor",
    "BSGDDKLRegressor",
    "MinimaxDKLRegressor",
)
@pytest.mark.parametrize("name", NAMES)
def test_copies_with_different_targets(name):
    kind, given = getattr(skscalablegp, name), {}
    if name in BELOW:
        given["estimators" if name == "StackedGPRegressor" else "estimator"] = BELOW[name]
    model = kind(**given)
    known = model.get_params(deep=False)
    settings = {k: v for k, v in FEW.items() if k in known} | {"random_state": 0}
    if "inference" in known:
        settings |= {"inference": "stochastic", "n_components": 256}
    model.set_params(**{k: v for k, v in settings.items() if k in known})
    X, p, y = table()
    model.fit(X[:3000], y[:3000])
    found = (
        model.predict_proba(X[3000:])[:, 1]
        if name.endswith("Classifier")
        else model.predict(X[3000:])
    )
    # The same probability for all rows has an error of 0.13.
    assert np.sqrt(np.mean((found - p[3000:]) ** 2)) < 0.07
