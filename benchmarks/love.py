"""Times and errors of interpolated models and low-rank variances, one JSON line a measurement.

    python benchmarks/love.py fit --n-train 20000 1000000
    python benchmarks/love.py variance --rank 10 25 50 100
    python benchmarks/love.py predict --n-train 20000 1000000 --n-test 1000 10000
    python benchmarks/love.py sample --n-train 2000 --n-test 2000

The surface is the one of the peer comparison: two columns, ``sin(8 a) cos(6 b) + a`` and a tenth of
noise, standardised.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor

from skscalablegp import KISSGPRegressor, LOVEPredictor, __version__
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel


def surface(n: int, n_test: int = 2000) -> tuple[np.ndarray, ...]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n + n_test, 2, generator=g)
    y = torch.sin(8 * X[:, 0]) * torch.cos(6 * X[:, 1]) + X[:, 0]
    y = y + 0.1 * torch.randn(n + n_test, generator=g)
    y = (y - y.mean()) / y.std()
    return tuple(a.double().numpy() for a in (X[:n], y[:n], X[n:], y[n:]))


def seconds(work, repeats: int = 1) -> tuple[float, Any]:
    """The shortest of some runs, and the last result."""
    best, result = np.inf, None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def fit(args):
    """From rows to a trained model, and its first predictions with variances."""
    for n in args.n_train:
        X, y, X_new, y_new = surface(n)
        model = KISSGPRegressor(grid_size=args.grid_size, n_lanczos=args.rank[0])
        fitting, _ = seconds(lambda m=model, a=X, b=y: m.fit(a, b))
        first, (mean, std) = seconds(lambda m=model, a=X_new: m.predict(a, return_std=True))
        nll = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y_new - mean) / std) ** 2)
        yield dict(
            n_train=n,
            fit_seconds=fitting,
            first_predict_seconds=first,
            rmse=float(np.sqrt(np.mean((mean - y_new) ** 2))),
            nll=float(nll),
            n_iter=model.n_iter_,
            grid_rank=model.solver_info_["rank"],
        )


def variance(args):
    """SMAE of low-rank variances against exact ones on the same grid, and the cache's time."""
    for n in args.n_train:
        X, y, X_new, y_new = surface(n)
        model = KISSGPRegressor(grid_size=args.grid_size, n_lanczos=None).fit(X, y)
        exact = model.predict_std(X_new, include_noise=False) ** 2
        for rank in args.rank:
            love = LOVEPredictor(FrozenEstimator(model), rank=rank, max_rank=rank, tol=1.0)
            cache, _ = seconds(lambda m=love, a=X, b=y, c=X_new: m.fit(a, b).predict_std(c[:1]))
            first, found = seconds(
                lambda m=love, c=X_new: m.predict_std(c, include_noise=False) ** 2
            )
            yield dict(
                n_train=n,
                rank=rank,
                cache_seconds=cache,
                predict_seconds=first,
                smae=float(np.abs(found - exact).mean() / y_new.var()),
                measured_error=love.variance_error_,
                smallest_variance=float(found.min()),
            )


def predict(args):
    """Times of mean and standard deviation once the cache is there."""
    for n in args.n_train:
        X, y, X_new, _ = surface(n, max(args.n_test))
        model = KISSGPRegressor(grid_size=args.grid_size).fit(X, y)
        model.predict(X_new[:1], return_std=True)
        for m in args.n_test:
            mean, _ = seconds(partial(model.predict, X_new[:m]), 7)
            std, _ = seconds(partial(model.predict_std, X_new[:m]), 7)
            yield dict(n_train=n, n_test=m, mean_seconds=mean, std_seconds=std, ratio=std / mean)


def sample(args):
    """1,000 samples: from the grid, by Cholesky from the exact model, and from Fourier features."""
    for n in args.n_train:
        for m in args.n_test:
            X, y, X_new, _ = surface(n, m)
            model = KISSGPRegressor(grid_size=args.grid_size, n_lanczos=args.rank[0]).fit(X, y)
            model.sample_y(X_new[:2], 2)
            ours, _ = seconds(partial(model.sample_y, X_new, 1000), 3)
            cov = model.predict(X_new[:1000], return_cov=True)[1]
            exact = GaussianProcessRegressor(model.kernel_, alpha=1e-10, optimizer=None)
            theirs, reference = seconds(partial(_by_cholesky, exact, X, y, X_new))
            fourier = _fourier_covariance(model.kernel_, X, y, X_new[:1000])
            yield dict(
                n_train=n,
                n_test=m,
                seconds=ours,
                cholesky_seconds=theirs,
                speedup=theirs / ours,
                covariance_error=float(np.abs(cov - reference).mean()),
                fourier_covariance_error=float(np.abs(fourier - reference).mean()),
            )


def _by_cholesky(exact: GaussianProcessRegressor, X, y, X_new) -> np.ndarray:
    """The exact posterior's covariance at the first rows; samples at all are drawn on the way."""
    _, covariance = exact.fit(X, y).predict(X_new, return_cov=True)
    root = np.linalg.cholesky(covariance)
    root @ np.random.default_rng(0).normal(size=(len(root), 1000))
    return covariance[:1000, :1000]


def _fourier_covariance(kernel, X, y, X_new) -> np.ndarray:
    """The posterior covariance of a linear model in 1,000 random Fourier pairs."""
    compiled = compile_kernel(kernel, X.shape[1])
    features = sample_prior_features(compiled, 2, 1000, torch.Generator().manual_seed(0))
    theta = compiled.theta0
    phi, new = (features.evaluate(theta, torch.from_numpy(A)) for A in (X, X_new))
    noise = float(compiled.noise(theta, torch.zeros(1, 2, dtype=torch.float64))[0])
    H = phi.T @ phi / noise + torch.eye(phi.shape[1], dtype=phi.dtype)
    covariance = new @ torch.linalg.solve(H, new.T)
    return (covariance + noise * torch.eye(len(new), dtype=phi.dtype)).numpy()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["fit", "variance", "predict", "sample"])
    parser.add_argument("--n-train", type=int, nargs="+", default=[20_000])
    parser.add_argument("--n-test", type=int, nargs="+", default=[10_000])
    parser.add_argument("--rank", type=int, nargs="+", default=[100])
    parser.add_argument("--grid-size", type=int, default=100)
    args = parser.parse_args()
    work = {"fit": fit, "variance": variance, "predict": predict, "sample": sample}[args.what]
    for found in work(args):
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}
        about = dict(
            date=date.today().isoformat(),
            command=" ".join(["python benchmarks/love.py", *sys.argv[1:]]),
            machine=f"{torch.get_num_threads()} thread(s) of a 2-core x86-64 CPU, shared",
            versions=dict(
                skscalablegp=__version__,
                torch=torch.__version__,
                sklearn=sklearn.__version__,
                python=platform.python_version(),
            ),
        )
        print(json.dumps({"what": args.what, **rounded, **about}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
