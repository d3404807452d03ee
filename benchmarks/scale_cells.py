"""The drawn table of scale.py, and the estimators that it compares with this package's.

As in compare_baselines.py, `budget` is a callable: true when the time is up. GPBoost ends by
itself, so that only the limit of a whole cell ends it.
"""

from pathlib import Path

import compare_baselines
import numpy as np
import rival_models
from compare_baselines import GPyTorchSVGP  # noqa: F401

COLUMNS, FREQUENCIES, NOISE = 10, 2**13, 0.1


def length_scales():
    return np.geomspace(1.0, 8.0, COLUMNS)


def drawn(n, n_test, seed):
    """Training and test rows and targets: a function of ten columns with noise of a tenth.

    The function is a sum of 2^14 random Fourier functions whose covariance is that of a Matern
    process (nu = 3/2) with length scales from 1 to 8 and variance 1. Test rows, and the first rows
    of a larger table, are the same for all n.
    """
    import torch

    function, test, rows = np.random.default_rng(seed).spawn(3)
    chi2 = function.chisquare(3, (FREQUENCIES, 1))
    frequencies = function.standard_normal((FREQUENCIES, COLUMNS)) * np.sqrt(3 / chi2)
    frequencies = torch.tensor(frequencies / length_scales(), dtype=torch.float32)
    weights = function.standard_normal((2, FREQUENCIES)) / np.sqrt(FREQUENCIES)
    weights = torch.tensor(weights, dtype=torch.float32)

    def part(rng, n):
        noise, rng = rng.spawn(2)
        X = rng.uniform(-2, 2, (n, COLUMNS))
        y = np.empty(n)
        for start in range(0, n, 512):
            # In place and in small parts: large temporaries would stay in the process's memory.
            block = torch.tensor(X[start : start + 512], dtype=torch.float32)
            angles = block @ frequencies.T
            y[start : start + 512] = (angles.cos() @ weights[0]).add_(angles.sin_() @ weights[1])
        return X, y + NOISE * noise.standard_normal(n)

    (X, y), (X_test, y_test) = part(rows, n), part(test, n_test)
    return X, X_test, y, y_test


def kept(folder, n, n_test, seed):
    """`drawn`, from a file of the folder if it has as many rows."""
    if folder is None:
        return drawn(n, n_test, seed)
    path = Path(folder) / f"drawn-{n_test}-{seed}.npz"
    if path.exists():
        with np.load(path) as found:
            X, X_test, y, y_test = (found[name] for name in ("X", "X_test", "y", "y_test"))
        if len(X) >= n:
            return X[:n].copy(), X_test, y[:n].copy(), y_test
    X, X_test, y, y_test = drawn(n, n_test, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, X=X, X_test=X_test, y=y, y_test=y_test)
    return X, X_test, y, y_test


class Reference:
    """2,000 nearest neighbours with the hyperparameters that the table was drawn with."""

    NEIGHBORS = 2000

    def __init__(self, budget, seed):
        self.seed = seed

    def fit(self, X, y):
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        from skscalablegp import NNGPRegressor

        kernel = Matern(length_scales(), nu=1.5) + WhiteKernel(NOISE**2)
        self.model = NNGPRegressor(
            kernel,
            optimizer=None,
            n_neighbors=min(self.NEIGHBORS, len(X)),
            n_centers=1,
            random_state=self.seed,
        )
        self.model.fit(X, y)
        return self

    def predict(self, X, return_std=True):
        return self.model.predict(X, return_std=True)


class SklearnGaussianProcess(compare_baselines.GaussianProcessRegressor):
    """scikit-learn's exact regression on all rows."""

    ROWS = 10**9


class GPBoostVecchia(rival_models.GPBoostVecchia):
    """20 neighbours, as they are by default."""


class GPBoostVIF(rival_models.GPBoostVecchia):
    """Neighbours of the residual process beside inducing points, with the defaults of both."""

    INDUCING = 200

    def fit(self, X, y):
        # More inducing points than rows are refused.
        points = {"num_ind_points": min(self.INDUCING, len(X) // 2)}
        self.APPROXIMATION = {"gp_approx": "full_scale_vecchia", **points}
        return super().fit(X, y)
