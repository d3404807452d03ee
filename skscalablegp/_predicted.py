"""Standard deviations, quantiles and intervals of fitted estimators and their wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.base import MetaEstimatorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import _num_samples, check_is_fitted

from ._frames import INTERVAL, as_data_frame
from ._validation import check_coverage, check_noise_variance, check_share

# Probabilities at which the inverse transform of a target is checked to be monotone.
_GRID = np.array([0.001, 0.01, 0.05, *np.linspace(0.1, 0.9, 9), 0.95, 0.99, 0.999])
# Number of quadrature nodes for the moments of a transformed target.
_NODES = 64


def predict_quantiles(
    estimator,
    X,
    q,
    *,
    include_noise: bool = True,
    noise_variance=None,
    as_frame: bool = False,
):
    """Quantiles of the predictions of a fitted estimator, pipeline, search or transformed target.

    For a `TransformedTargetRegressor` the quantiles of its regressor are transformed back. Unlike
    standard deviations, quantiles can be transformed by any monotone function.

    Parameters
    ----------
    estimator : estimator
        A fitted regressor of this package, or another one whose ``predict`` takes ``return_std``;
        its predictive distributions are then taken as normal. It may be the last step of a
        `Pipeline`, the best estimator of a search, and the regressor of a
        `TransformedTargetRegressor` or of a `MultiOutputRegressor`, also in combination.

    X : array-like of shape (m, d)
        Rows for the outermost estimator.

    q : float or array-like of shape (k,)
        Probabilities, strictly between 0 and 1.

    include_noise : bool, default=True
        Whether the quantiles are those of new observations, or those of the latent function. Only
        regressors of this package can leave out the noise.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        Known noise variances of the new observations, in squared units of the target of the
        innermost regressor.

    as_frame : bool, default=False
        Whether to return a pandas data frame with the index of X. It has a column for each
        probability, also if q is one number; with several targets, the numbers of the targets are a
        level of columns above.

    Returns
    -------
    quantiles : ndarray of shape (m,) or (m, t), or (m, k) or (m, t, k), or DataFrame
        In the units of y; the last axis is there only if q is an array. NaN if the inverse of a
        transform has no value.

    Raises
    ------
    ImportError
        If ``as_frame=True`` and pandas is not installed.
    TypeError
        For an estimator that predicts no standard deviations, such as averages and chains of
        regressors.
    ValueError
        For probabilities outside (0, 1), and for a transform of the target that is not monotone or
        mixes targets.
    """
    q = check_share(q, "q")
    out = _quantiles(estimator, X, np.atleast_1d(q), include_noise, noise_variance)
    if as_frame:
        return as_data_frame(out, X, np.atleast_1d(q))
    return out if q.ndim else out[..., 0]


def predict_interval(
    estimator,
    X,
    coverage=0.95,
    *,
    include_noise: bool = True,
    noise_variance=None,
    as_frame: bool = False,
):
    """Central intervals of the predictions of a fitted estimator, see `predict_quantiles`.

    Parameters
    ----------
    estimator : estimator
        See `predict_quantiles`.

    X : array-like of shape (m, d)
        Rows as the outermost estimator takes them.

    coverage : float, default=0.95
        Probability of the interval. The remaining probability is divided equally between the two
        sides.

    include_noise : bool, default=True
        Whether to include noise, as in `predict_quantiles`.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        See `predict_quantiles`.

    as_frame : bool, default=False
        Whether to return a pandas data frame with the index of X and the columns "lower" and
        "upper"; with several targets, the numbers of the targets are a level of columns above.

    Returns
    -------
    interval : ndarray of shape (m, 2) or (m, t, 2), or DataFrame
        Lower and upper ends, in the units of y.

    Raises
    ------
    ImportError, TypeError, ValueError
        See `predict_quantiles`.
    """
    out = _quantiles(estimator, X, check_coverage(coverage), include_noise, noise_variance)
    return as_data_frame(out, X, INTERVAL) if as_frame else out


def predict_std(estimator, X, *, include_noise: bool = True, noise_variance=None) -> np.ndarray:
    """Standard deviations of the predictions of a fitted estimator, see `predict_quantiles`.

    Parameters
    ----------
    estimator : estimator
        See `predict_quantiles`.

    X : array-like of shape (m, d)
        Rows as the outermost estimator takes them.

    include_noise : bool, default=True
        Whether to include noise, as in `predict_quantiles`.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        See `predict_quantiles`.

    Returns
    -------
    std : ndarray of shape (m,) or (m, t)
        In the units of y. For a `TransformedTargetRegressor` they are computed by Gauss-Hermite
        quadrature over the transformed quantiles. If the transform is far from linear, intervals
        describe the distribution better.

    Raises
    ------
    TypeError, ValueError
        See `predict_quantiles`.
    """
    core, X = unwrapped(estimator, X)
    if isinstance(core, MultiOutputRegressor):
        return np.stack(
            [
                predict_std(one, X, include_noise=include_noise, noise_variance=known)
                for one, known in _of_targets(core, X, noise_variance)
            ],
            axis=1,
        )
    if not isinstance(core, TransformedTargetRegressor):
        return mean_and_std(core, X, include_noise, noise_variance)[1]
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    kept = np.abs(nodes) < 7  # beyond, probabilities are 0 and 1 in double precision
    nodes, weights = nodes[kept], weights[kept] / weights[kept].sum()
    values = _quantiles(core, X, ndtr(nodes), include_noise, noise_variance)
    centre = values @ weights
    return np.sqrt(np.square(values - centre[..., None]) @ weights)


def mean_and_std(
    estimator: Any, X: Any, include_noise: bool = True, noise_variance: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of estimators in pipelines, searches and multiple outputs."""
    core, X = unwrapped(estimator, X)
    if isinstance(core, TransformedTargetRegressor):
        raise TypeError(
            "A TransformedTargetRegressor inside MultiOutputRegressor has no mean and standard "
            "deviation: put MultiOutputRegressor inside TransformedTargetRegressor instead."
        )
    if isinstance(core, BaggingRegressor | VotingRegressor | RegressorChain):
        raise TypeError(
            f"{type(core).__name__} cannot combine the uncertainty of its regressors: use one "
            "regressor, or MultiOutputRegressor for several targets."
        )
    if isinstance(core, MultiOutputRegressor):
        moments = [
            mean_and_std(one, X, include_noise, known)
            for one, known in _of_targets(core, X, noise_variance)
        ]
        return np.stack([m for m, _ in moments], 1), np.stack([s for _, s in moments], 1)
    if hasattr(core, "predict_quantiles"):
        if include_noise:
            return core.predict(X, return_std=True, noise_variance=noise_variance)
        return core.predict(X), core.predict_std(X, False, noise_variance)
    if not hasattr(core, "predict"):
        raise TypeError(f"estimator must be a fitted regressor, got {core!r}.")
    mean, std = _of_another_package(core, X)
    if not include_noise:
        raise ValueError(
            f"{type(core).__name__} cannot leave out the noise: include_noise=False is only for "
            "regressors of skscalablegp."
        )
    wide = mean.reshape(len(mean), -1).shape
    known = check_noise_variance(noise_variance, *wide)
    return mean, std if known is None else np.sqrt(std**2 + known.reshape(mean.shape))


def _of_another_package(core: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations by ``return_std``; raises a TypeError without it."""
    found, cause = None, None
    try:
        found = core.predict(X, return_std=True)
    except TypeError as error:
        if "return_std" not in str(error):
            raise
        cause = error
    if not isinstance(found, tuple):
        # Some regressors take any keyword, and ignore it.
        raise TypeError(
            f"{type(core).__name__}.predict has no return_std: use an estimator that predicts "
            "standard deviations."
        ) from cause
    return found


def normal_crps(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The CRPS of N(mean, std^2), elementwise (eq. 5 of Gneiting et al., 2005)."""
    z = (y - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def behind_transforms(estimator: Any, X: Any) -> tuple[Any, Any, list[Any]]:
    """The regressor below transforms of the target, its rows, and the transforms from outside."""
    core, X = unwrapped(estimator, X)
    transforms = []
    while isinstance(core, TransformedTargetRegressor):
        transforms.append(core.transformer_)
        core, X = unwrapped(core.regressor_, X)
    return core, X, transforms


def _of_targets(
    core: MultiOutputRegressor, X: Any, noise_variance: Any
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """The regressor of each target, with its known noise variances."""
    known = check_noise_variance(noise_variance, _num_samples(X), len(core.estimators_))
    for j, one in enumerate(core.estimators_):
        yield one, None if known is None else known[:, j]


def unwrapped(estimator: Any, X: Any) -> tuple[Any, Any]:
    """The innermost estimator of pipelines and searches, and its rows."""
    while True:
        if isinstance(estimator, MetaEstimatorMixin | TransformedTargetRegressor):
            check_is_fitted(estimator)
        if isinstance(estimator, Pipeline) and len(estimator) > 1:
            # pipeline.predict(X, return_std=True) would fail if metadata routing is enabled.
            X = estimator[:-1].transform(X)
        inner = inner_of(estimator)
        if inner is None:
            return estimator, X
        estimator = inner


def core_of(estimator: Any) -> Any:
    """The innermost estimator of pipelines, fitted searches and transformed targets."""
    inner = inner_of(estimator)
    if inner is None and isinstance(estimator, TransformedTargetRegressor):
        inner = getattr(estimator, "regressor_", None)
    return estimator if inner is None else core_of(inner)


def inner_of(estimator: Any) -> Any:
    """The estimator whose targets are those of a pipeline or fitted search; None for others."""
    if isinstance(estimator, Pipeline):
        return estimator[-1]
    if isinstance(estimator, FrozenEstimator):
        return estimator.estimator
    return getattr(estimator, "best_estimator_", None)


def _quantiles(
    estimator: Any, X: Any, q: np.ndarray, include_noise: bool, noise_variance: Any
) -> np.ndarray:
    """(m, k) or (m, t, k)."""
    core, X = unwrapped(estimator, X)
    if isinstance(core, TransformedTargetRegressor):
        # A decreasing transform swaps q and 1 - q.
        wanted = np.concatenate([_GRID, q, 1 - q])
        order = np.argsort(wanted)
        inner = _quantiles(core.regressor_, X, wanted[order], include_noise, noise_variance)
        values = transformed_back(core.transformer_, inner)
        steps = np.diff(values, axis=-1)
        with np.errstate(invalid="ignore"):
            rises, falls = ~(steps < 0).any(-1), ~(steps > 0).any(-1)
        if not (rises | falls).all():
            raise ValueError(
                f"The inverse of {core.transformer_!r} is not monotone for "
                f"{int((~(rises | falls)).sum())} predictions, so that quantiles cannot be "
                "transformed: use a monotone transformer."
            )
        places = np.argsort(order)[len(_GRID) :]
        up, down = values[..., places[: len(q)]], values[..., places[len(q) :]]
        return np.where(rises[..., None], up, down)
    if isinstance(core, MultiOutputRegressor):
        separate = [
            _quantiles(one, X, q, include_noise, known)
            for one, known in _of_targets(core, X, noise_variance)
        ]
        return np.stack(separate, axis=1)
    if hasattr(core, "predict_quantiles"):
        return core.predict_quantiles(X, q, include_noise, noise_variance)
    mean, std = mean_and_std(core, X, include_noise, noise_variance)
    return mean[..., None] + std[..., None] * ndtri(q)


def transformed_back(transformer: Any, values: np.ndarray) -> np.ndarray:
    """Quantiles (m, k) or (m, t, k) in the units of y, transformed for each target separately."""
    m, k = len(values), values.shape[-1]
    if values.ndim == 2:
        return np.asarray(transformer.inverse_transform(values.reshape(-1, 1))).reshape(m, k)
    t = values.shape[1]
    middle = np.repeat(values[:, None, :, k // 2], k, axis=1)
    others = np.asarray(transformer.inverse_transform(middle.reshape(-1, t)))
    out = np.empty_like(values)
    for j in range(t):
        moved = middle.copy()
        moved[:, :, j] = values[:, j]
        back = np.asarray(transformer.inverse_transform(moved.reshape(-1, t)))
        if back.shape != others.shape or not np.allclose(
            np.delete(back, j, 1), np.delete(others, j, 1), rtol=1e-9, equal_nan=True
        ):
            raise ValueError(
                f"{transformer!r} mixes the targets, so that quantiles cannot be transformed: use "
                "a transformer that works column by column."
            )
        out[:, j] = back[:, j].reshape(m, k)
    return out
