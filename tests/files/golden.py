"""Writes the golden files of a release: small models, and what they predict.

    python tests/files/golden.py

Run it once for each release, before its tag, and never change the files of a release afterwards:
``test_golden_files.py`` holds that later versions read them.
"""

import json
import warnings
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "golden"
ROWS = np.linspace(-1, 1, 8).reshape(4, 2)


def models():
    from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import skscalablegp as s

    kernel = 2.0 * RBF([0.8, 1.5]) + DotProduct(0.3) + WhiteKernel(0.05)
    return {
        "iterative": s.IterativeGPRegressor(kernel, optimizer=None, normalize_y=True),
        "nearest": s.NNGPRegressor(kernel, optimizer=None, n_neighbors=8, calibrate=False),
        "points": s.SVGPRegressor(n_inducing=6, max_iter=5, random_state=0),
        "features": s.RFFRegressor(n_components=16, max_iter=5, random_state=0),
        "grid": s.KISSGPRegressor(grid_size=8, structure="additive", max_iter=3),
        "deep": s.SCGDDKLRegressor(feature_extractor=(6,), max_epochs=5, random_state=0),
        "classes": s.SVGPClassifier(n_inducing=6, max_iter=5, random_state=0),
        "pipeline": make_pipeline(StandardScaler(), s.SGPRRegressor(n_inducing=6, max_iter=5)),
    }


def answers(model):
    """What a model says about some rows."""
    if hasattr(model, "predict_proba"):
        return {"predict_proba": model.predict_proba(ROWS).tolist()}
    mean, std = model.predict(ROWS, return_std=True)
    return {"mean": mean.tolist(), "std": std.tolist()}


def main():
    import skscalablegp as s

    folder = FOLDER / s.__version__.partition(".dev")[0]
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (30, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(30)
    expected = {}
    for name, model in models().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y > 0 if name == "classes" else y)
        s.save(model, folder / f"{name}.safetensors")
        expected[name] = answers(model)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
