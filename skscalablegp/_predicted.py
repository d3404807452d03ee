"""Deviations, quantiles and intervals of a fitted estimator, through what is wrapped around it."""

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

from ._validation import check_coverage, check_noise_variance, check_share

# Probabilities at which the inverse of a target's transform has to go one way.
_GRID = np.array([0.001, 0.01, 0.05, *np.linspace(0.1, 0.9, 9), 0.95, 0.99, 0.999])
# Nodes of the moments of a transformed target.
_NODES = 64


def predict_quantiles(
    estimator: Any,
    X: Any,
    q: Any,
    *,
    include_noise: bool = True,
    noise_variance: Any = None,
) -> np.ndarray:
    """Quantiles of a fitted estimator's predictions, through pipelines, searches and transforms.

    A `TransformedTargetRegressor` gives the quantiles of its regressor, transformed back: unlike
    standard deviations, quantiles go through every monotone transform of a target unharmed.

    Parameters
    ----------
    estimator : estimator
        A fitted regressor of this package, or one whose ``predict`` takes ``return_std``, whose
        predictions then count as Gaussian. It may be the last step of a `Pipeline`, the best
        estimator of a search, the regressor of a `TransformedTargetRegressor` or of a
        `MultiOutputRegressor`, or all at once.

    X : array-like of shape (m, d)
        Rows as the outermost estimator takes them.

    q : float or array-like of shape (k,)
        Probabilities, strictly between 0 and 1.

    include_noise : bool, default=True
        Whether noise counts: quantiles of new observations, or of the function behind them. Only
        regressors of this package can leave it out.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        Known noise variances of the new observations, in squared units of the target that the
        regressor at the core was fitted to.

    Returns
    -------
    quantiles : ndarray of shape (m,) or (m, t), or (m, k) or (m, t, k)
        In the units of y; the last axis is there where q has one. Not a number where the inverse of
        a transform has no value.

    Raises
    ------
    TypeError
        For an estimator that predicts no standard deviations, averages and chains of regressors
        included.
    ValueError
        For probabilities outside (0, 1), and for a transform of the target that is not monotone or
        mixes targets.
    """
    q = check_share(q, "q")
    out = _quantiles(estimator, X, np.atleast_1d(q), include_noise, noise_variance)
    return out if q.ndim else out[..., 0]


def predict_interval(
    estimator: Any,
    X: Any,
    coverage: Any = 0.95,
    *,
    include_noise: bool = True,
    noise_variance: Any = None,
) -> np.ndarray:
    """Central intervals of a fitted estimator's predictions, through whatever is wrapped around it.

    Parameters
    ----------
    estimator : estimator
        See `predict_quantiles`.

    X : array-like of shape (m, d)
        Rows as the outermost estimator takes them.

    coverage : float, default=0.95
        Probability that an interval holds; the rest is shared equally by its two sides.

    include_noise : bool, default=True
        Whether noise counts.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        See `predict_quantiles`.

    Returns
    -------
    interval : ndarray of shape (m, 2) or (m, t, 2)
        Lower and upper ends, in the units of y.

    Raises
    ------
    TypeError, ValueError
        See `predict_quantiles`.
    """
    return _quantiles(estimator, X, check_coverage(coverage), include_noise, noise_variance)


def predict_std(
    estimator: Any, X: Any, *, include_noise: bool = True, noise_variance: Any = None
) -> np.ndarray:
    """Standard deviations of a fitted estimator's predictions, through what is wrapped around it.

    Parameters
    ----------
    estimator : estimator
        See `predict_quantiles`.

    X : array-like of shape (m, d)
        Rows as the outermost estimator takes them.

    include_noise : bool, default=True
        Whether noise counts.

    noise_variance : float, array-like of shape (m,) or (m, t), default=None
        See `predict_quantiles`.

    Returns
    -------
    std : ndarray of shape (m,) or (m, t)
        In the units of y. Those of a `TransformedTargetRegressor` are the standard deviations of
        the target transformed back, by Gauss-Hermite quadrature; where the transform is far from a
        line they say little, and an interval says more.

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
    """Means and standard deviations, through pipelines, finished searches and separate targets."""
    core, X = unwrapped(estimator, X)
    if isinstance(core, TransformedTargetRegressor):
        raise TypeError(
            "A TransformedTargetRegressor for each target has no standard deviations in the units "
            "of the model: put MultiOutputRegressor inside TransformedTargetRegressor instead."
        )
    if isinstance(core, BaggingRegressor | VotingRegressor | RegressorChain):
        raise TypeError(
            f"{type(core).__name__} says nothing of how uncertain what it makes of its regressors' "
            "predictions is: use one regressor, or MultiOutputRegressor for several targets."
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
    try:
        mean, std = core.predict(X, return_std=True)
    except TypeError as error:
        if "return_std" not in str(error):
            raise
        raise TypeError(
            f"{type(core).__name__}.predict has no return_std: an estimator is needed that "
            "predicts standard deviations."
        ) from error
    if not include_noise:
        raise ValueError(
            f"{type(core).__name__} cannot leave the noise out: include_noise=False is for "
            "regressors of skscalablegp."
        )
    wide = mean.reshape(len(mean), -1).shape
    known = check_noise_variance(noise_variance, *wide)
    return mean, std if known is None else np.sqrt(std**2 + known.reshape(mean.shape))


def behind_transforms(estimator: Any, X: Any) -> tuple[Any, Any, list[Any]]:
    """What predicts below transforms of the target, its rows, and they, outermost first."""
    core, X = unwrapped(estimator, X)
    transforms = []
    while isinstance(core, TransformedTargetRegressor):
        transforms.append(core.transformer_)
        core, X = unwrapped(core.regressor_, X)
    return core, X, transforms


def _of_targets(
    core: MultiOutputRegressor, X: Any, noise_variance: Any
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """The regressor of each target, and what is known of its noise."""
    known = check_noise_variance(noise_variance, _num_samples(X), len(core.estimators_))
    for j, one in enumerate(core.estimators_):
        yield one, None if known is None else known[:, j]


def unwrapped(estimator: Any, X: Any) -> tuple[Any, Any]:
    """What predicts at the core of pipelines and searches, and the rows as it takes them."""
    if isinstance(estimator, MetaEstimatorMixin | TransformedTargetRegressor):
        check_is_fitted(estimator)
    if isinstance(estimator, Pipeline):
        # Not pipeline.predict(X, return_std=True): routing would ask for a request of return_std.
        if len(estimator) > 1:
            X = estimator[:-1].transform(X)
        return unwrapped(estimator[-1], X)
    if isinstance(estimator, FrozenEstimator):
        return unwrapped(estimator.estimator, X)
    if hasattr(estimator, "best_estimator_"):
        return unwrapped(estimator.best_estimator_, X)
    return estimator, X


def _quantiles(
    estimator: Any, X: Any, q: np.ndarray, include_noise: bool, noise_variance: Any
) -> np.ndarray:
    """(m, k) or (m, t, k)."""
    core, X = unwrapped(estimator, X)
    if isinstance(core, TransformedTargetRegressor):
        # A transform that falls turns probabilities around.
        wanted = np.concatenate([_GRID, q, 1 - q])
        order = np.argsort(wanted)
        inner = _quantiles(core.regressor_, X, wanted[order], include_noise, noise_variance)
        values = transformed_back(core.transformer_, inner)
        steps = np.diff(values, axis=-1)
        with np.errstate(invalid="ignore"):
            rises, falls = ~(steps < 0).any(-1), ~(steps > 0).any(-1)
        if not (rises | falls).all():
            raise ValueError(
                f"The inverse of {core.transformer_!r} is not monotone between the quantiles of "
                f"{int((~(rises | falls)).sum())} predictions, so that they are no quantiles of y: "
                "use a transformer that is."
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
    """Quantiles (m, k) or (m, t, k) in the units of y, each target's by itself."""
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
                f"{transformer!r} mixes the targets, so that the quantiles of one are not those of "
                "any target of y: use a transformer that works column by column."
            )
        out[:, j] = back[:, j].reshape(m, k)
    return out
