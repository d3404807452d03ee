"""References of benchmarks/starts.py: exact processes from many starts, and boosted trees.

The process is written here once more, in float64 NumPy, and shares no code with the package:
constant * Matern-3/2 with one length scale per column + white noise. A column is centred by its
median and divided by its interquartile range over 1.349 (by its standard deviation where the range
is zero, as in one-hot columns), so that a far entry makes one row far and harms no other. Targets
are standardised; those that were moved far away are left out, since no normal likelihood survives
them.

Eleven starts race: ten random ones and an informed one. Of the random ones five have a random
length scale in every column, log-uniform between 0.3 and 10 times the root of the columns, and five
have very long ones but for at most ten random columns, whose length scales are between 0.3 and 3
times the root of their number. The informed start has the length scales and the noise that the
problem was drawn with. Each has 25 evaluations of the likelihood of 400 random rows; the best three
and the informed one go on for 40 evaluations of 800 rows, and the best two of these, or one if both
have the same likelihood, for 100 of at most 1,500 rows. The best likelihood there is the reference.
It predicts with at most 5,000 rows, drawn at random.
"""

import math
import time

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

# Rows, evaluations, and how many starts begin.
STAGES = ((400, 25, 11), (800, 40, 3), (1500, 100, 2))
PREDICT_ROWS = 5000
# Difference of log likelihoods per row below which two starts have come to one optimum.
SAME = 1e-3
# Bounds of the logarithms of the variance, the length scales and the noise variance.
BOUNDS = ((1e-4, 1e4), (1e-3, 1e5), (1e-8, 1e2))
# Length scale, in units of the root of the columns, of a column that should not matter.
LONG = 30.0
ROOT3 = math.sqrt(3.0)


def widths(X):
    """Interquartile ranges over 1.349, or standard deviations where they are zero."""
    low, high = np.percentile(X, (25, 75), axis=0)
    width = np.where(high > low, (high - low) / 1.349, X.std(axis=0))
    return np.where(width > 0, width, 1.0)


def scaled(X, X_test):
    """Columns of both less the training rows' medians, in units of their widths."""
    middle, width = np.median(X, axis=0), widths(X)
    return (X - middle) / width, (X_test - middle) / width


def distances(X, Z):
    """Euclidean distances. (Far entries cost their own rows' digits only.)"""
    squared = (X**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * X @ Z.T
    return np.sqrt(np.maximum(squared, 0.0))


def covariance(R):
    return (1 + ROOT3 * R) * np.exp(-ROOT3 * R)


def minus_likelihood(theta, X, y):
    """The negative log marginal likelihood per row, and its gradient; O(n^3 + n^2 d)."""
    n = len(y)
    variance, lengths, noise = math.exp(theta[0]), np.exp(theta[1:-1]), math.exp(theta[-1])
    Z = X / lengths
    R = distances(Z, Z)
    np.fill_diagonal(R, 0.0)
    R *= ROOT3
    E = variance * np.exp(-R)
    R += 1
    R *= E
    K = R
    # Transposed, so that LAPACK works where the matrix lies.
    H = K.copy().T
    H.flat[:: n + 1] += noise + 1e-10 * variance
    try:
        L = cholesky(H, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return 1e3, np.zeros_like(theta)
    log_determinant = 2 * np.log(L.diagonal()).sum()
    inverse, _ = dpotri(L, lower=True, overwrite_c=True)
    inverse += np.tril(inverse, -1).T
    alpha = inverse @ y
    value = 0.5 * (y @ alpha + log_determinant + n * math.log(2 * math.pi))
    # The derivative for a parameter is tr(W dH) / 2 with W = H^-1 - alpha alpha^T.
    W = inverse - np.outer(alpha, alpha)
    gradient = np.empty_like(theta)
    gradient[0] = 0.5 * np.vdot(W, K.T)
    gradient[-1] = 0.5 * noise * W.trace()
    # Of the logarithm of length j: 3 variance exp(-sqrt(3) r) (z_ij - z_kj)^2.
    M = 3 * W * E.T
    np.fill_diagonal(M, 0.0)
    gradient[1:-1] = M.sum(1) @ Z**2 - (Z * (M @ Z)).sum(0)
    return value / n, gradient / n


def climb(theta, X, y, evaluations):
    """A maximum of the likelihood, or what so many evaluations come to."""
    d = X.shape[1]
    bounds = np.log([BOUNDS[0], *[BOUNDS[1]] * d, BOUNDS[2]])
    found = minimize(
        minus_likelihood,
        np.clip(theta, *bounds.T),
        args=(X, y),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options=dict(maxfun=evaluations, maxiter=evaluations, maxcor=20),
    )
    return found.fun, found.x


def starts(rng, d, relevant, lengths, noise):
    """Ten random starts, then the informed one; `noise` is its share of the target's variance."""
    root, found = math.sqrt(d), []
    for j in range(10):
        if j % 2:
            scales = np.full(d, LONG * root)
            k = rng.integers(1, min(10, d) + 1)
            scales[rng.permutation(d)[:k]] = np.exp(rng.uniform(*np.log([0.3, 3]), k)) * k**0.5
        else:
            scales = np.exp(rng.uniform(*np.log([0.3, 10]), d)) * root
        share = math.exp(rng.uniform(*np.log([0.01, 0.9])))
        found.append(np.r_[math.log(1 - share), np.log(scales), math.log(share)])
    scales = np.full(d, LONG * root)
    scales[relevant] = lengths
    share = min(max(noise, 1e-4), 0.99)
    return [*found, np.r_[math.log(1 - share), np.log(scales), math.log(share)]]


def race(X, y, candidates, rng, stages=STAGES):
    """The parameters of the largest likelihood, its value per row, and which start led there."""
    alive = list(enumerate(candidates))
    order, informed, values = rng.permutation(len(y)), len(candidates) - 1, {}
    for rows, evaluations, most in stages:
        # The ranking of the stage before decides; the informed start always sees the second stage.
        if values:
            alive.sort(key=lambda item: values[item[0]])
            kept = alive[:most]
            if most > 2 and informed not in [j for j, _ in kept]:
                kept += [item for item in alive if item[0] == informed]
            if most == 2 and values[kept[1][0]] - values[kept[0][0]] < SAME:
                kept = kept[:1]
            alive = kept
        some = order[:rows]
        results = [(j, *climb(theta, X[some], y[some], evaluations)) for j, theta in alive]
        values = {j: value for j, value, _ in results}
        alive = [(j, theta) for j, _, theta in results]
    best = min(values, key=values.get)
    return dict(alive)[best], -values[best], best


def predicted(theta, X, y, X_test):
    """Mean and standard deviation of noisy targets."""
    variance, lengths, noise = math.exp(theta[0]), np.exp(theta[1:-1]), math.exp(theta[-1])
    Z, Z_test = X / lengths, X_test / lengths
    R = distances(Z, Z)
    np.fill_diagonal(R, 0.0)
    H = variance * covariance(R)
    H.flat[:: len(y) + 1] += noise + 1e-10 * variance
    L = cholesky(H, lower=True, overwrite_a=True, check_finite=False)
    cross = variance * covariance(distances(Z, Z_test))
    V = solve_triangular(L, cross, lower=True, check_finite=False)
    mean = V.T @ solve_triangular(L, y, lower=True, check_finite=False)
    return mean, np.sqrt(np.maximum(variance - (V**2).sum(0), 0.0) + noise)


def exact_reference(table, noise, seed, stages=STAGES):
    """Scores, and the parameters in the scaled columns' units, of the best of eleven starts.

    `noise` is the noise's standard deviation in units of the function's.
    """
    started = time.process_time()
    rng = np.random.default_rng(seed)
    X, X_test = scaled(table.X, table.X_test)
    X, y = X[table.clean], table.y[table.clean]
    share = noise**2 / (1 + noise**2) if len(table.relevant) else 0.99
    candidates = starts(rng, X.shape[1], table.relevant, table.lengths, share)
    middle, unit = y.mean(), y.std()
    theta, likelihood, best = race(X, (y - middle) / unit, candidates, rng, stages)
    some = rng.permutation(len(y))[:PREDICT_ROWS]
    mean, std = predicted(theta, X[some], (y[some] - middle) / unit, X_test)
    return scores(table.y_test, middle + unit * mean, unit * std) | dict(
        log_likelihood=float(likelihood),
        best_start="informed" if best == len(candidates) - 1 else f"random {best}",
        theta=[round(float(t), 4) for t in theta],
        predict_rows=len(some),
        cpu_seconds=time.process_time() - started,
    )


def scores(y, mean, std):
    """R2, RMSE and the mean negative log density of normal predictions."""
    error, variance = y - mean, np.square(std)
    return dict(
        r2=float(1 - np.mean(error**2) / y.var()),
        rmse=float(np.sqrt(np.mean(error**2))),
        nll=float(np.mean(0.5 * np.log(2 * math.pi * variance) + 0.5 * error**2 / variance)),
    )


def tree_scores(table):
    """Boosted trees with their defaults; the standard deviation is that of cross-validation."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.metrics import log_loss
    from sklearn.model_selection import cross_val_predict

    if table.y.dtype.kind == "i":
        model = HistGradientBoostingClassifier(random_state=0).fit(table.X, table.y)
        return dict(log_loss=float(log_loss(table.y_test, model.predict_proba(table.X_test))))
    model = HistGradientBoostingRegressor(random_state=0)
    std = np.std(table.y - cross_val_predict(model, table.X, table.y, cv=3))
    return scores(table.y_test, model.fit(table.X, table.y).predict(table.X_test), std)


def mean_scores(table):
    """Of the training targets' mean, or of their classes' shares."""
    if table.y.dtype.kind == "i":
        share = table.y.mean()
        return dict(log_loss=float(-np.log(np.where(table.y_test == 1, share, 1 - share)).mean()))
    return scores(table.y_test, np.full(len(table.y_test), table.y.mean()), table.y.std())
