"""Times and errors of interpolated models and low-rank variances, one JSON line a measurement.

    python benchmarks/love.py fit --n-train 20000 1000000
    python benchmarks/love.py columns --columns 3 --n-train 2000 100000
    python benchmarks/love.py variance --rank 10 25 50 100
    python benchmarks/love.py predict --n-train 20000 1000000 --n-test 1000 10000
    python benchmarks/love.py sample --n-train 2000 --n-test 10000
    python benchmarks/love.py deep --data airfoil pol protein --rank 50

``deep`` reads the UCI sets in $SKSCALABLEGP_DATA. Elsewhere the surface is that of the peer
comparison: two columns, ``sin(8 a) cos(6 b) + a`` and a tenth of noise, standardised. Seconds are
wall times, of the processor where they say cpu; the shortest of some runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
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


def seconds(work, repeats: int = 1) -> tuple[float, float, Any]:
    """The shortest wall and processor times of some runs, and the last result."""
    best, cpu, result = np.inf, np.inf, None
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        result = work()
        best = min(best, time.perf_counter() - start)
        cpu = min(cpu, time.process_time() - used)
    return best, cpu, result


def density(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Mean negative log density."""
    return float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y - mean) / std) ** 2))


def fit(args):
    """From rows to a trained model, and its first predictions with variances."""
    for n in args.n_train:
        X, y, X_new, y_new = surface(n)
        model = KISSGPRegressor(grid_size=args.grid_size, variance_rank=args.rank[0])
        fitting, fit_cpu, _ = seconds(lambda m=model, a=X, b=y: m.fit(a, b))
        first, first_cpu, (mean, std) = seconds(
            lambda m=model, a=X_new: m.predict(a, return_std=True)
        )
        yield dict(
            n_train=n,
            fit_seconds=fitting,
            fit_cpu_seconds=fit_cpu,
            first_predict_seconds=first,
            first_predict_cpu_seconds=first_cpu,
            rmse=float(np.sqrt(np.mean((mean - y_new) ** 2))),
            nll=density(y_new, mean, std),
            n_iter=model.n_iter_,
            grid_rank=model.fit_report_.grid_rank,
        )


def columns(args):
    """Fits on product grids of the default size, and their first deviations, by columns."""
    for d in args.columns:
        for n in args.n_train:
            rng = np.random.default_rng(0)
            X = rng.random((n, d))
            y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, -1] + 0.1 * rng.standard_normal(n)
            model = KISSGPRegressor(max_iter=args.max_iter, random_state=0)
            fitting, fit_cpu, _ = seconds(lambda m=model, a=X, b=y: m.fit(a, b))
            first, first_cpu, _ = seconds(lambda m=model, a=X: m.predict_std(a[:5]))
            yield dict(
                n_train=n,
                columns=d,
                grid=list(model.grid_.shapes[0]),
                fit_seconds=fitting,
                fit_cpu_seconds=fit_cpu,
                five_deviations_cpu_seconds=first_cpu,
                n_iter=model.n_iter_,
                grid_rank=model.fit_report_.grid_rank,
            )


def variance(args):
    """SMAE of low-rank variances against exact ones on the same grid, and the cache's time."""
    for n in args.n_train:
        X, y, X_new, y_new = surface(n)
        model = KISSGPRegressor(grid_size=args.grid_size, variance_rank=None).fit(X, y)
        exact = model.predict_std(X_new, include_noise=False) ** 2
        for rank in args.rank:
            love = LOVEPredictor(
                FrozenEstimator(model), variance_rank=rank, max_variance_rank=rank, variance_tol=1.0
            )
            cache, _, _ = seconds(lambda m=love, a=X, b=y, c=X_new: m.fit(a, b).predict_std(c[:1]))
            first, _, found = seconds(
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
            mean, mean_cpu, _ = seconds(partial(model.predict, X_new[:m]), 15)
            std, std_cpu, _ = seconds(partial(model.predict_std, X_new[:m]), 15)
            yield dict(
                n_train=n,
                n_test=m,
                mean_seconds=mean,
                std_seconds=std,
                ratio=std / mean,
                cpu_ratio=std_cpu / mean_cpu,
                std_nanoseconds_a_row=1e9 * std / m,
            )


def sample(args):
    """1,000 samples: from the grid, by Cholesky from the exact model, and from Fourier features."""
    for n in args.n_train:
        for m in args.n_test:
            X, y, X_new, _ = surface(n, m)
            model = KISSGPRegressor(grid_size=args.grid_size, variance_rank=args.rank[0]).fit(X, y)
            model.sample_y(X_new[:2], 2)
            ours, ours_cpu, draws = seconds(partial(model.sample_y, X_new, 1000), 7)
            cov = model.predict(X_new[:1000], return_cov=True)[1]
            exact = GaussianProcessRegressor(model.kernel_, alpha=1e-10, optimizer=None).fit(X, y)
            theirs, theirs_cpu, reference = seconds(partial(_by_cholesky, exact, X_new))
            fourier = _fourier_covariance(model.kernel_, X, y, X_new[:1000])
            yield dict(
                n_train=n,
                n_test=m,
                seconds=ours,
                cpu_seconds=ours_cpu,
                cholesky_seconds=theirs,
                cholesky_cpu_seconds=theirs_cpu,
                speedup=theirs / ours,
                cpu_speedup=theirs_cpu / ours_cpu,
                covariance_error=float(np.abs(cov - reference).mean()),
                empirical_covariance_error=float(np.abs(np.cov(draws[:1000]) - reference).mean()),
                fourier_covariance_error=float(np.abs(fourier - reference).mean()),
            )


def _by_cholesky(exact: GaussianProcessRegressor, X_new) -> np.ndarray:
    """The exact posterior's covariance at the first rows; 1,000 samples are drawn on the way."""
    mean, covariance = exact.predict(X_new, return_cov=True)
    kept = covariance[:1000, :1000].copy()
    root = scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
    mean[:, None] + root @ np.random.default_rng(0).standard_normal((len(root), 1000))
    return kept


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


def deep(args):
    """Low-rank variances on learned features of UCI sets, beside exact ones on the same."""
    for name in args.data:
        folder = Path(os.environ["SKSCALABLEGP_DATA"]) / "uci" / name
        table, masks = (
            np.loadtxt(folder / f"{part}.csv.gz", delimiter=",") for part in ("data", "test_mask")
        )
        test = masks[:, args.split] > 0
        spread = table[~test].std(0)
        table = (table - table[~test].mean(0)) / np.where(spread > 0, spread, 1)
        X, y, X_new, y_new = table[~test, :-1], table[~test, -1], table[test, :-1], table[test, -1]
        model = KISSGPRegressor(
            feature_extractor=args.layers,
            grid_size=args.grid_size,
            variance_rank=None,
            random_state=0,
        )
        fitting, cpu, _ = seconds(lambda m=model, a=X, b=y: m.fit(a, b))
        mean, std = model.predict(X_new, return_std=True)
        without = model.predict_std(X_new, include_noise=False) ** 2
        exact = _exact_variance(
            model.kernel_, model.extract_features(X), model.extract_features(X_new)
        )
        for rank in args.rank:
            low = LOVEPredictor(
                FrozenEstimator(model), variance_rank=rank, max_variance_rank=rank, variance_tol=1.0
            )
            found = low.fit(X, y).predict_std(X_new, include_noise=False) ** 2
            yield dict(
                data=name,
                split=args.split,
                n_train=len(X),
                layers=args.layers,
                rank=rank,
                fit_seconds=fitting,
                fit_cpu_seconds=cpu,
                rmse=float(np.sqrt(np.mean((mean - y_new) ** 2))),
                nll=density(y_new, mean, std),
                smae=float(np.abs(found - without).mean() / y_new.var()),
                smae_exact=float(np.abs(found - exact).mean() / y_new.var()),
                mean_variance=float(without.mean()),
                smallest_variance=float(found.min()),
                kernel=str(model.kernel_),
            )


def _exact_variance(kernel, Z: np.ndarray, Z_new: np.ndarray) -> np.ndarray:
    """Latent variances of the exact model, no grid in sight.

    K is factorised by pivots until what is left of its trace is rounding; a smooth kernel of two
    features needs a few hundred of tens of thousands, which makes the exact model affordable.
    """
    smooth, noise = kernel.k1, kernel.k2.noise_level
    left, rows, chosen = smooth.diag(Z), np.empty((0, len(Z))), []
    prior = float(left[0])
    while left.max() > 1e-12 * prior and len(chosen) < min(1000, len(Z)):
        pivot = int(left.argmax())
        row = (smooth(Z[[pivot]], Z)[0] - rows[:, pivot] @ rows) / np.sqrt(left[pivot])
        rows, left = np.vstack([rows, row]), left - row**2
        chosen.append(pivot)
    L = rows[:, chosen].T
    phi = scipy.linalg.solve_triangular(L, smooth(Z[chosen], Z_new), lower=True)
    inner = np.linalg.cholesky(np.eye(len(L)) + rows @ rows.T / noise)
    rest = np.maximum(prior - (phi**2).sum(0), 0)
    return rest + (scipy.linalg.solve_triangular(inner, phi, lower=True) ** 2).sum(0)


def main() -> int:
    tasks = (fit, columns, variance, predict, sample, deep)
    work = {task.__name__: task for task in tasks}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(work))
    parser.add_argument("--n-train", type=int, nargs="+", default=[20_000])
    parser.add_argument("--n-test", type=int, nargs="+", default=[10_000])
    parser.add_argument("--rank", type=int, nargs="+", default=[100])
    parser.add_argument("--grid-size", type=int, default=100)
    parser.add_argument("--columns", type=int, nargs="+", default=[3])
    parser.add_argument("--max-iter", type=int, default=100)
    parser.add_argument("--data", nargs="+", default=["airfoil"])
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[64, 32, 2])
    args = parser.parse_args()
    for found in work[args.what](args):
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
