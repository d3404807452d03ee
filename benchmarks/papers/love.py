#!/usr/bin/env python3
"""Tables and figures of Pleiss, Gardner, Weinberger and Wilson (2018), Constant-time predictive
distributions for Gaussian processes.

    python benchmarks/papers/love.py                    # every cell that the results lack
    python benchmarks/papers/love.py table2 figure2     # the cells of some tables and figures
    python benchmarks/papers/love.py table3 --only egg  # cells whose names hold a word
    python benchmarks/papers/love.py --report           # what there is, beside the paper's
    python benchmarks/papers/love.py --plot             # doc/papers_love.png

    figure1   airline passengers: test months inside the grid, ten spectral components
    table1    seconds a variance by rows and grid points, with and without LOVE
    table2    errors of variances on deep features of UCI sets, and speed-ups
    figure2   errors by Lanczos vectors
    table3    1,000 samples at 10,000 rows (deep features: 4,000): covariance errors and speed-ups
              over Cholesky
    bayesopt  30 queries (100 on request) by Thompson samples of Eggholder and Styblinski-Tang
    columns   fits of product grids by columns
    ablation  a product grid factorised (the default) and worked on by products

Errors are SMAE: the mean absolute error of the variance over the target's variance. Both sides of a
speed-up run in the same process, in processor seconds; exact variances of an exact process cost a
triangular solve a row, those of KISS-GP without LOVE a solve by products a row (``solver="cg"``).
"""

import functools
import time

import numpy as np
import scipy.linalg
from cells import ROOT, run
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import KISSGPRegressor, LOVEPredictor
from skscalablegp.kernels import SpectralMixture

RESULTS = ROOT / "benchmarks" / "results" / "love.jsonl"
# Table 2: SMAE against KISS-GP without LOVE and against an exact process; speed-ups over the former
# from scratch and after the cache is there.
TABLE2 = {
    "airfoil": (1.3e-5, 7.01e-5, 4, 84),
    "pol": (2.9e-5, 1.08e-3, 78, 1178),
    "elevators": (1.2e-6, None, 64, 1017),
    "kin40k": (3.9e-7, None, 31, 2065),
    "protein": (5.3e-5, None, 44, 1151),
}
# Table 3: the covariance error of LOVE's samples, and its speed-ups over Cholesky.
TABLE3 = {
    "pol": (7.5e-4, 21, 881),
    "elevators": (5.5e-7, 25, 1062),
    "eggholder": (8e-5, 19, 775),
    "styblinski-tang": (5.2e-4, 42, 18_100),
}
RANKS = (5, 10, 20, 30, 50, 75, 100)
# Rows of the exact side of a comparison; its time a row does not depend on their number.
SOME = 256


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def low_rank(model, X, y, rank):
    """LOVE of one rank over a fitted model, and the seconds of its cache."""
    love = LOVEPredictor(
        FrozenEstimator(model), variance_rank=rank, max_variance_rank=rank, variance_tol=1.0
    )
    return seconds(lambda: love.fit(X, y).predict_std(X[:1]) is None or love)


def surface(n, n_test=2000):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n + n_test, 2))
    y = np.sin(8 * X[:, 0]) * np.cos(6 * X[:, 1]) + X[:, 0]
    y = y + 0.1 * rng.standard_normal(n + n_test)
    y = (y - y.mean()) / y.std()
    # New rows inside the grid of any table of some size.
    return X[:n], y[:n], 0.01 + 0.98 * X[n:]


def by_products(model, X, y, **params):
    """The same trained kernel, worked on by products."""
    return KISSGPRegressor(
        model.kernel_, optimizer=None, solver="cg", normalize_y=False, random_state=0, **params
    ).fit(X, y)


def table1(n, size, rank=100):
    """Variances at rows inside the grid, all by LOVE and some by products and exactly."""
    X, y, new = surface(n)
    kernel = ConstantKernel(0.5) * RBF([0.25, 0.3]) + WhiteKernel(0.02)
    model = KISSGPRegressor(kernel, optimizer=None, solver="cg", grid_size=size).fit(X, y)
    scratch, love = low_rank(model, X, y, rank)
    fast, std = seconds(lambda: love.predict_std(new, include_noise=False))
    slow, without = seconds(lambda: model.predict_std(new[:SOME], include_noise=False))
    slow, fast = slow / SOME, fast / len(new)
    found = dict(
        rows=n,
        grid_points=size**2,
        seconds_a_row_without=slow,
        seconds_a_row_with=fast,
        cache_seconds=scratch,
        speedup_after_cache=slow / fast,
        largest_error=np.abs(std[:SOME] ** 2 - without**2).max(),
    )
    if n > 12_000:
        return found
    exact = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-10)
    factor, _ = seconds(lambda: exact.fit(X, y))
    cost, (_, reference) = seconds(lambda: exact.predict(new[:SOME], return_std=True))
    reference = reference**2 - kernel.k2.noise_level
    cost /= SOME
    return found | dict(
        exact_factor_seconds=factor,
        exact_seconds_a_row=cost,
        speedup_over_exact=cost / fast,
        largest_error_to_exact=np.abs(std[:SOME] ** 2 - reference).max(),
        smallest_exact_variance=reference.min(),
    )


@functools.cache
def deep_features(name):
    """A deep kernel of a UCI set, its features, targets, and a model of them by products."""
    from uci import load

    X, X_new, y, _ = load(name, 0, 0, 0)
    model = KISSGPRegressor(feature_extractor=(64, 32, 2), grid_size=100, random_state=0).fit(X, y)
    Z, Z_new = model.extract_features(X), model.extract_features(X_new)
    inside = np.clip(Z_new, Z.min(0), Z.max(0))
    t = (y - y.mean()) / y.std()
    return by_products(model, Z, t, grid_size=100), Z, t, inside


def table2(name, rank=50):
    model, Z, y, new = deep_features(name)
    some = new[:SOME]
    slow, without = seconds(lambda: model.predict_std(some, include_noise=False))
    scratch, love = low_rank(model, Z, y, rank)
    fast, std = seconds(lambda: love.predict_std(new, include_noise=False))
    slow *= len(new) / len(some)
    grown = LOVEPredictor(FrozenEstimator(model)).fit(Z, y)
    found = dict(
        smae=np.abs(std[: len(some)] ** 2 - without**2).mean() / y.var(),
        mean_variance=(without**2).mean(),
        speedup_from_scratch=slow / (scratch + fast),
        speedup_after_cache=slow / fast,
        rank_by_default=grown.variance_rank_,
        largest_error_by_default=grown.variance_error_,
    )
    if len(Z) <= 14_000:
        exact = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(Z, y)
        cost, (_, reference) = seconds(lambda: exact.predict(some, return_std=True))
        reference = reference**2 - model.kernel_.k2.noise_level
        smae = np.abs(std[: len(some)] ** 2 - reference).mean() / y.var()
        found |= dict(smae_exact=smae, speedup_over_exact=cost / len(some) * len(new) / fast)
    return found


def figure2(name):
    model, Z, y, new = deep_features(name)
    without = model.predict_std(new[:SOME], include_noise=False) ** 2
    errors = {}
    for rank in RANKS:
        std = low_rank(model, Z, y, rank)[1].predict_std(new[:SOME], include_noise=False)
        errors[rank] = float(f"{np.abs(std**2 - without).mean() / y.var():.3g}")
    return dict(smae_by_rank=errors)


def figure1():
    """Grid points reach over the months to come: those rows have no weight in the model."""
    passengers = """112 118 132 129 121 135 148 148 136 119 104 118 115 126 141 135 125 149 170 170
    158 133 114 140 145 150 178 163 172 178 199 199 184 162 146 166 171 180 193 181 183 218 230 242
    209 191 172 194 196 196 236 235 229 243 264 272 237 211 180 201 204 188 235 227 234 264 302 293
    259 229 203 229 242 233 267 269 270 315 364 347 312 274 237 278 284 277 317 313 318 374 413 405
    355 306 271 306 315 301 356 348 355 422 465 467 404 347 305 336 340 318 362 348 363 435 491 505
    404 359 310 337 360 342 406 396 420 472 548 559 463 407 362 405 417 391 419 461 472 535 622 606
    508 461 390 432"""
    y = np.log(np.array(passengers.split(), dtype=float))
    months = np.arange(144.0)[:, None]
    y = (y - y[:96].mean()) / y[:96].std()
    X, X_new = months[:96], months[96:]
    start = SpectralMixture.from_data(X, y[:96], n_components=10)
    kernel = start + WhiteKernel(0.03, (1e-2, 1.0))
    trained = KISSGPRegressor(kernel, alpha=0, grid_size=400, max_iter=60).fit(X, y[:96]).kernel_
    kiss = KISSGPRegressor(trained, alpha=0, grid_size=400, optimizer=None, solver="cg")
    kiss.fit(X, y[:96]).partial_fit(X_new, np.zeros(48), noise_variance=1e8)
    exact = GaussianProcessRegressor(trained, alpha=0, optimizer=None).fit(X, y[:96])
    love = LOVEPredictor(FrozenEstimator(kiss), variance_rank=50).fit(X, y[:96])
    mean, reference = exact.predict(X_new, return_std=True)
    found = dict(months_inside=int(kiss.grid_.covers(X_new).sum()))
    for name, model in (("exact", exact), ("kissgp", kiss), ("love", love)):
        white = {} if model is exact else {"noise_variance": 0.0}
        mean, std = model.predict(X_new, return_std=True, **white)
        density = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((y[96:] - mean) / std) ** 2
        found[f"log_likelihood_{name}"] = density.sum()
        found[f"smae_{name}"] = np.abs(std**2 - reference**2).mean() / y.var()
    return found | dict(rank=love.variance_rank_)


# ------------------------------------------------------------------ Bayesian optimisation


def eggholder(U):
    a, b = 1024 * U[:, 0] - 512, 1024 * U[:, 1] - 512
    first = (b + 47) * np.sin(np.sqrt(np.abs(a / 2 + b + 47)))
    return first + a * np.sin(np.sqrt(np.abs(a - b - 47)))


def styblinski_tang(U):
    x = 10 * U - 5
    return -(x**4 - 16 * x**2 + 5 * x).sum(1) / 2


FUNCTIONS = {  # to be maximised on the unit cube: columns, structure, points a column, maximum
    "eggholder": (eggholder, 2, "product", 100, 959.64),
    "styblinski-tang": (styblinski_tang, 10, "additive", 100, 391.66),
}


def fitted(name, X, y):
    """A grid over the whole cube, by products; a product's kernel is that of an exact process."""
    _, d, structure, size, _ = FUNCTIONS[name]
    kernel = ConstantKernel(1.0 if d == 2 else 1.0 / d, (1e-3, 1e3))
    kernel = kernel * RBF([0.1] * d, (0.03, 2.0)) + WhiteKernel(1e-2, (1e-4, 1.0))
    settings = dict(structure=structure, grid_size=size, random_state=0)
    corners = np.vstack([np.zeros(d), np.ones(d)])
    t = (y - y.mean()) / y.std()
    if structure == "product":
        trained = GaussianProcessRegressor(kernel).fit(X, t).kernel_
    else:
        trained = KISSGPRegressor(kernel, max_iter=30, **settings).fit(X, t).kernel_
    # Two rows without weight make the grid reach over the cube.
    known = np.append(np.zeros(len(X)), [1e8, 1e8])
    X, t = np.vstack([X, corners]), np.append(t, [0.0, 0.0])
    model = KISSGPRegressor(trained, optimizer=None, solver="cg", **settings).fit(X, t, known)
    return model, X, t, known


def bayesopt(name, queries=100, candidates=10_000):
    """Thompson samples: one draw at random rows, whose best row is asked next."""
    f, d, *_, best = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(20, d))
    y, spent, start = f(X), 0.0, time.process_time()
    while len(X) < 20 + queries:
        model, *_ = fitted(name, X, y)
        love = LOVEPredictor(FrozenEstimator(model)).fit(*_[:2])
        new = rng.uniform(size=(candidates, d))
        near = X[y.argmax()] + 0.05 * rng.standard_normal((candidates // 2, d))
        new[: len(near)] = near.clip(0, 1)
        cost, draws = seconds(lambda love=love, new=new: love.sample_y(new, 5, random_state=0))
        spent += cost
        chosen = new[np.unique(draws.argmax(0))]
        X, y = np.vstack([X, chosen]), np.append(y, f(chosen))
    random = f(rng.uniform(size=(len(X), d))).max()
    return dict(
        best=y.max(),
        maximum=best,
        best_at_random=random,
        queries=len(X) - 20,
        cpu_seconds=time.process_time() - start,
        sampling_seconds=spent,
    )


def table3(name, n_test=10_000):
    """Samples after 120 random rows of a function."""
    f, d, *_ = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    X, new = rng.uniform(size=(120, d)), rng.uniform(size=(n_test, d))
    model, Z, t, known = fitted(name, X, f(X))
    smooth = model.kernel_.k1
    # The exact process of the same kernel; an additive one is a sum over columns.
    parts = [smooth.k1 * RBF(length) for length in smooth.k2.length_scale]

    def additive(A, B):
        return sum(part(A[:, [j]], B[:, [j]]) for j, part in enumerate(parts))

    return samples(model, Z, t, known, new, additive if d > 2 else smooth)


def table3_features(name, n=4000):
    """Samples at as many rows as the model has, of deep features."""
    _, Z, t, _ = deep_features(name)
    chosen = np.random.default_rng(0).permutation(len(Z))
    Z, t, new = Z[chosen[:n]], t[chosen[:n]], Z[chosen[n : 2 * n]]
    model = by_products(deep_features(name)[0], Z, t, grid_size=100)
    new = np.clip(new, Z.min(0), Z.max(0))
    return samples(model, Z, t, np.zeros(n), new, model.kernel_.k1)


def samples(model, Z, t, known, new, covariance, count=1000):
    """Samples by LOVE and by Cholesky; the covariance of 1,000 of the rows is compared."""
    love, rng = LOVEPredictor(FrozenEstimator(model)), np.random.default_rng(0)
    scratch, _ = seconds(lambda: love.fit(Z, t).sample_y(new[:2], 2))
    fast, draws = seconds(lambda: love.sample_y(new, count, random_state=0))
    few, _ = seconds(lambda: love.sample_y(new, 1, random_state=0))
    white = model.kernel_.k2.noise_level

    def by_cholesky():
        H = covariance(Z, Z.copy()) + np.diag(white + known)
        half = scipy.linalg.solve_triangular(np.linalg.cholesky(H), covariance(Z, new), lower=True)
        C = covariance(new, new.copy()) - half.T @ half + white * np.eye(len(new))
        kept = C[:1000, :1000].copy()
        root = scipy.linalg.cholesky(C, lower=True, overwrite_a=True, check_finite=False)
        return kept, root @ rng.standard_normal((len(new), count))

    slow, (reference, theirs) = seconds(by_cholesky)
    found = [np.abs(np.cov(part[:1000]) - reference).mean() for part in (draws, theirs)]
    return dict(
        covariance_error=found[0],
        covariance_error_of_cholesky=found[1],
        mean_variance=np.diag(reference).mean(),
        kernel=str(model.kernel_),
        seconds_by_cholesky=slow,
        cache_seconds=scratch,
        seconds_after_cache=fast,
        seconds_of_one_sample=few,
        speedup_from_scratch=slow / (scratch + fast),
        speedup_after_cache=slow / fast,
        rank=love.variance_rank_,
    )


def columns(d, n):
    rng = np.random.default_rng(0)
    X = rng.random((n, d))
    y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, -1] + 0.1 * rng.standard_normal(n)
    model = KISSGPRegressor(random_state=0, structure="product")
    fit, _ = seconds(lambda: model.fit(X, y))
    first, _ = seconds(lambda: model.predict_std(X[:5]))
    rank = model.fit_report_.grid_rank
    return dict(
        grid=model.grid_.shapes[0], rank=rank, fit_seconds=fit, five_deviations_seconds=first
    )


def ablation(solver, n=300):
    """Training and predictions on a product grid: factorised, or by products with the grid."""
    rng = np.random.default_rng(0)
    X = rng.random((n + 1000, 2))
    y = np.sin(8 * X[:, 0]) * np.cos(6 * X[:, 1]) + X[:, 0] + 0.1 * rng.standard_normal(len(X))
    model = KISSGPRegressor(solver=solver, structure="product", max_iter=100, random_state=0)
    fit, _ = seconds(lambda: model.fit(X[:n], y[:n]))
    predict, (mean, std) = seconds(lambda: model.predict(X[n:], return_std=True))
    z = (y[n:] - mean) / std
    return dict(
        fit_seconds=fit,
        predict_seconds=predict,
        n_iter=model.n_iter_,
        log_likelihood=model.log_marginal_likelihood_value_,
        nll=float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi))),
    )


def cells():
    paper = "SMAE 1.29e-4, equal log likelihoods"
    yield "figure1", paper, figure1
    for n, size in ((10_000, 100), (100_000, 100), (1_000_000, 100), (10_000, 50), (10_000, 200)):
        paper = "without O(k (n + m log m)) a row, with O(k)"
        yield f"table1 n={n} m={size**2}", paper, lambda n=n, size=size: table1(n, size)
    for name, (smae, exact, scratch, after) in TABLE2.items():
        note = f"SMAE {smae:g}, to exact {exact}, speed-ups {scratch} and {after}"
        yield f"table2 {name}", note, lambda name=name: table2(name)
    for name in ("pol", "elevators", "kin40k", "protein"):
        note = "falls exponentially to about 50 vectors"
        yield f"figure2 {name}", note, lambda name=name: figure2(name)
    for name, (error, scratch, after) in TABLE3.items():
        note = f"error {error:g}, speed-ups {scratch} and {after}"
        measure = table3 if name in FUNCTIONS else table3_features
        yield f"table3 {name}", note, lambda name=name, measure=measure: measure(name)
    for name in FUNCTIONS:
        yield f"bayesopt {name} 30 queries", None, lambda name=name: bayesopt(name, 30)
        yield f"bayesopt100 {name}", None, lambda name=name: bayesopt(name)
    for d, n in ((2, 20_000), (2, 1_000_000), (3, 2000), (3, 100_000), (4, 200)):
        yield f"columns d={d} n={n}", None, lambda d=d, n=n: columns(d, n)
    for solver in ("auto", "cg"):
        yield f"ablation solver={solver}", None, lambda solver=solver: ablation(solver)


def plot(done):
    import matplotlib.pyplot as plt

    for name in ("pol", "elevators", "kin40k", "protein"):
        if line := done.get(f"figure2 {name}"):
            errors = line["smae_by_rank"]
            plt.semilogy([int(k) for k in errors], errors.values(), "o-", label=name)
    plt.xlabel("Lanczos vectors")
    plt.ylabel("SMAE of the variances")
    plt.legend()
    plt.savefig(ROOT / "doc" / "papers_love.png", dpi=120)


if __name__ == "__main__":
    run(__doc__, cells(), RESULTS, plot, on_request=("bayesopt100",))
