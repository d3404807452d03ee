"""Scores of predictive distributions, and predictions through pipelines and other wrappers.

The functions take true targets, and predicted means and standard deviations, intervals or
quantiles. The scorers make the predictions themselves, and can be used wherever scikit-learn takes
a ``scoring``: `cross_val_score`, `cross_validate`, `GridSearchCV`. `predict_std`,
`predict_interval` and `predict_quantiles` work through pipelines, searches, transformed targets and
a separate regressor for each target, and so do the scorers.
"""

# This file is longer than most, because each function documents its parameters in full.

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.metadata_routing import UNCHANGED, MetadataRequest

from ._predicted import (
    behind_transforms,
    mean_and_std,
    normal_crps,
    predict_interval,
    predict_quantiles,
    predict_std,
    transformed_back,
)
from ._validation import check_coverage, check_share

__all__ = [
    "coverage_scorer",
    "crps",
    "interval_coverage",
    "interval_score",
    "msll",
    "neg_crps_scorer",
    "neg_interval_score_scorer",
    "neg_nlpd_scorer",
    "neg_pinball_scorer",
    "nlpd",
    "pinball_loss",
    "predict_interval",
    "predict_quantiles",
    "predict_std",
]


def nlpd(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Negative log predictive density of a Gaussian, averaged over rows; lower is better.

    The mean over rows of ``0.5 log(2 pi std^2) + 0.5 ((y_true - mean) / std)^2``. The logarithm is
    natural: a model whose value is 0.1 lower gives the targets a density that is 11% higher in the
    geometric mean. In other units of the target all values change by the same constant.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    mean : array-like of shape (n,) or (n, t)
        Predicted means.

    std : array-like of shape (n,) or (n, t)
        Predicted standard deviations of the *observed* targets, noise included; positive.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        The score; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import nlpd
    >>> round(nlpd([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), 4)
    0.9189
    """
    y_true, mean, std = _check_predictions(y_true, mean, std)
    return _reduce(_gaussian_nlpd(y_true, mean, std), sample_weight, multioutput)


def crps(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Continuous ranked probability score of a Gaussian, in units of y; lower is better.

    It is the integral over v of ``(F(v) - 1[v >= y_true])^2`` for the predicted distribution
    function F. As std goes to 0 it becomes the absolute error. The closed form is eq. 5 of Gneiting
    et al. (2005), "Calibrated probabilistic forecasting using ensemble model output statistics and
    minimum CRPS estimation".

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    mean : array-like of shape (n,) or (n, t)
        Predicted means.

    std : array-like of shape (n,) or (n, t)
        Predicted standard deviations of the observed targets, noise included; positive.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        The score; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import crps
    >>> round(crps([0.0, 1.0], [0.0, 1.0], [1.0, 1.0]), 4)
    0.2337
    """
    y_true, mean, std = _check_predictions(y_true, mean, std)
    return _reduce(normal_crps(y_true, mean, std), sample_weight, multioutput)


def msll(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    train_mean: ArrayLike,
    train_std: ArrayLike,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Mean standardised log loss; negative for models that are better than the trivial one.

    It is `nlpd` minus that of the trivial model, which predicts the mean and the standard deviation
    of the training targets everywhere (Rasmussen and Williams, 2006, section 2.5, eq. 2.34).

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    mean : array-like of shape (n,) or (n, t)
        Predicted means.

    std : array-like of shape (n,) or (n, t)
        Predicted standard deviations of the observed targets, noise included; positive.

    train_mean : float or array-like of shape (t,)
        Mean of the training targets.

    train_std : float or array-like of shape (t,)
        Standard deviation of the training targets; positive.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        The score; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import msll
    >>> msll([0.0, 2.0], [1.0, 1.0], [1.0, 1.0], train_mean=1.0, train_std=1.0)
    0.0
    """
    y_true, mean, std = _check_predictions(y_true, mean, std)
    trivial_mean = _of_targets("train_mean", train_mean, y_true.shape)
    trivial_std = _of_targets("train_std", train_std, y_true.shape)
    _check_positive(trivial_std, "train_std")
    gain = _gaussian_nlpd(y_true, mean, std) - _gaussian_nlpd(y_true, trivial_mean, trivial_std)
    return _reduce(gain, sample_weight, multioutput)


def interval_coverage(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    coverage=0.95,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Share of targets inside the central Gaussian interval; best when it equals ``coverage``.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    mean : array-like of shape (n,) or (n, t)
        Predicted means.

    std : array-like of shape (n,) or (n, t)
        Predicted standard deviations of the observed targets, noise included; positive.

    coverage : float, default=0.95
        Probability that the interval is meant to hold, between 0 and 1.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        A share between 0 and 1; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import interval_coverage
    >>> interval_coverage([0.0, 1.9, 2.1, 0.0], [0.0] * 4, [1.0] * 4)
    0.75
    """
    upper_end = check_coverage(coverage)[1]
    y_true, mean, std = _check_predictions(y_true, mean, std)
    inside = np.abs(y_true - mean) <= ndtri(upper_end) * std
    return _reduce(inside.astype(float), sample_weight, multioutput)


def interval_score(
    y_true: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    coverage=0.95,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Interval score, in units of y; lower is better, and the true quantiles are best.

    It is the mean width of the intervals, plus 2 / (1 - coverage) times the mean distance of
    targets from their intervals (Gneiting and Raftery, 2007, "Strictly proper scoring rules,
    prediction, and estimation", eq. 43).

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    lower, upper : array-like of shape (n,) or (n, t)
        Ends of central intervals.

    coverage : float, default=0.95
        Probability that the intervals are meant to hold, between 0 and 1.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        The score; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import interval_score
    >>> round(interval_score([0.0, 3.0], [-2.0, -2.0], [2.0, 2.0], coverage=0.9), 4)
    14.0
    """
    check_coverage(coverage)
    y_true, lower, upper = _check_same(y_true=y_true, lower=lower, upper=upper)
    if (lower > upper).any():
        raise ValueError("lower must not exceed upper.")
    outside = np.maximum(lower - y_true, 0) + np.maximum(y_true - upper, 0)
    return _reduce(upper - lower + 2 / (1 - coverage) * outside, sample_weight, multioutput)


def pinball_loss(
    y_true: ArrayLike,
    quantiles: ArrayLike,
    *,
    q,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Mean pinball loss of several quantiles, in units of y; lower is better.

    It is scikit-learn's `mean_pinball_loss`, averaged over the quantiles. For many evenly spaced
    probabilities it is half the CRPS.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    quantiles : array-like of shape (n, k) or (n, t, k)
        Predicted quantiles, as from ``predict_quantiles``.

    q : array-like of shape (k,)
        Their probabilities, strictly between 0 and 1.

    sample_weight : array-like of shape (n,), default=None
        Weight of each row; equal weights when None.

    multioutput : {"raw_values", "uniform_average"} or array-like of shape (t,), \
            default="uniform_average"
        One value for each target, their mean, or their mean under the given weights.

    Returns
    -------
    float or ndarray of shape (t,)
        The score; an array for ``multioutput="raw_values"``.

    Examples
    --------
    >>> from skscalablegp.metrics import pinball_loss
    >>> pinball_loss([0.0, 1.0], [[-1.0, 1.0], [0.0, 2.0]], q=[0.25, 0.75])
    0.25
    """
    q, quantiles = np.atleast_1d(check_share(q, "q")), np.asarray(quantiles)
    if quantiles.ndim < 2 or quantiles.shape[-1] != len(q):
        raise ValueError(
            f"quantiles must have a last axis of {len(q)}, one value for each q, but their shape "
            f"is {quantiles.shape}."
        )
    losses = []
    for k, share in enumerate(q):
        y, value = _check_same(y_true=y_true, quantiles=quantiles[..., k])
        losses.append(np.maximum(share * (y - value), (share - 1) * (y - value)))
    return _reduce(np.mean(losses, axis=0), sample_weight, multioutput)


class _PredictiveScorer:
    """A scorer, ``scorer(estimator, X, y)``, of a predictive distribution.

    Parameters
    ----------
    name : str
    score : callable
        ``score(y, prediction, sample_weight, *settings)``.
    predict : callable
        ``predict(estimator, X, *settings, noise_variance=)`` returns the prediction.
    sign : int
        1 if larger scores are better, else -1.
    settings : dict
        Settings of the user, in the order of both callables.
    """

    def __init__(
        self,
        name: str,
        score: Callable[..., Any],
        predict: Callable[..., Any],
        sign: int,
        **settings: Any,
    ):
        self._name, self._score, self._predict, self._sign = name, score, predict, sign
        self._settings = settings
        self._request = MetadataRequest(owner=name)
        for param in ("sample_weight", "noise_variance"):
            self._request.score.add_request(param=param, alias=None)

    def __call__(self, estimator, X, y, sample_weight=None, noise_variance=None) -> float:
        settings = self._settings.values()
        prediction = self._predict(estimator, X, *settings, noise_variance=noise_variance)
        return self._sign * float(self._score(y, prediction, sample_weight, *settings))

    def __repr__(self) -> str:
        if not self._settings:
            return self._name
        return f"{self._name}({', '.join(f'{k}={v!r}' for k, v in self._settings.items())})"

    def set_score_request(
        self,
        *,
        sample_weight: bool | str | None = UNCHANGED,
        noise_variance: bool | str | None = UNCHANGED,
    ):
        """Return a scorer that requests metadata under metadata routing.

        Parameters
        ----------
        sample_weight : bool, str or None, default=sklearn.utils.metadata_routing.UNCHANGED
            Whether weights of the rows are requested, or the name under which they are passed.

        noise_variance : bool, str or None, default=sklearn.utils.metadata_routing.UNCHANGED
            Whether known noise variances of the scored rows are requested, or the name under which
            they are passed. Predictions include them.

        Returns
        -------
        scorer : callable
            A copy, because the scorers of this module are shared.
        """
        scorer = copy.deepcopy(self)
        for param, alias in (("sample_weight", sample_weight), ("noise_variance", noise_variance)):
            if alias != UNCHANGED:
                scorer._request.score.add_request(param=param, alias=alias)
        return scorer

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the requests of this scorer for scikit-learn's metadata routing."""
        return copy.deepcopy(self._request)


def _moments(estimator, X, noise_variance):
    """Means and standard deviations of the transformed target, and the transforms."""
    core, X, transforms = behind_transforms(estimator, X)
    return *mean_and_std(core, X, noise_variance=noise_variance), transforms


def _nlpd_of(y, found, sample_weight):
    mean, std, transforms = found
    log_slope, unit = 0.0, np.asarray(std, dtype=float).reshape(len(std), -1)
    for transform in transforms:
        (y,) = _check_same(y_true=y)
        z = np.asarray(transform.transform(y), dtype=float)
        _check_transform(transform, z)
        # dy / dz by central differences, over a small part of the spread of z.
        h = 1e-5 * np.maximum(z.std(0), unit)
        around = transformed_back(transform, np.stack([z - h, z, z + h], axis=-1))
        slope = np.abs(around[..., 2] - around[..., 0]) / (2 * h)
        _check_transform(transform, np.where(slope > 0, slope, np.nan))
        log_slope, y = log_slope + np.log(slope), z
    y, mean, std = _check_predictions(y, mean, std)
    return _reduce(log_slope + _gaussian_nlpd(y, mean, std), sample_weight, "uniform_average")


def _crps_of(y, found, sample_weight):
    mean, std, transforms = found
    if not transforms:
        return crps(y, mean, std, sample_weight=sample_weight)
    y, mean, std = _check_predictions(y, mean, std)
    values = mean[..., None] + std[..., None] * _NODES
    for transform in reversed(transforms):
        values = transformed_back(transform, values)
        _check_transform(transform, values)
    # E|Y - y| - E|Y - Y'| / 2 of the nodes' distribution, whether the transform rises or falls.
    order = np.argsort(values, axis=-1)
    values, weights = np.take_along_axis(values, order, -1), _WEIGHTS[order]
    below = np.cumsum(weights, -1) - 0.5 * weights
    found = weights * (np.abs(values - y[..., None]) - values * (2 * below - 1))
    return _reduce(found.sum(-1), sample_weight, "uniform_average")


# Points and weights of a standard normal distribution. The error of a CRPS is below a thousandth.
_NODES = np.linspace(-6.5, 6.5, 261)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def _check_transform(transform, values):
    if not np.isfinite(values).all():
        raise ValueError(
            f"{transform!r} is not finite, invertible and smooth at all targets and predictions, "
            "so that there is no density: use another transformer, or score intervals or quantiles."
        )


def _share_inside(y, interval, sample_weight, coverage):
    y, lower, upper = _check_same(y_true=y, lower=interval[..., 0], upper=interval[..., 1])
    inside = ((y >= lower) & (y <= upper)).astype(float)
    return _reduce(inside, sample_weight, "uniform_average")


def _interval_score_of(y, interval, sample_weight, coverage):
    ends = interval[..., 0], interval[..., 1]
    return interval_score(y, *ends, coverage=coverage, sample_weight=sample_weight)


def _pinball_of(y, quantiles, sample_weight, q):
    return pinball_loss(y, quantiles, q=q, sample_weight=sample_weight)


neg_nlpd_scorer = _PredictiveScorer("neg_nlpd_scorer", _nlpd_of, _moments, sign=-1)
neg_crps_scorer = _PredictiveScorer("neg_crps_scorer", _crps_of, _moments, sign=-1)


def coverage_scorer(coverage=0.95) -> _PredictiveScorer:
    """Make a scorer that reports the share of targets inside central intervals.

    Parameters
    ----------
    coverage : float, default=0.95
        Probability that the interval is meant to hold, between 0 and 1.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y, sample_weight=None, noise_variance=None)``, with the intervals of
        `predict_interval`. It complements another score. Do not select models by it, because the
        largest coverage is not the best.
    """
    check_coverage(coverage)
    return _PredictiveScorer(
        "coverage_scorer", _share_inside, predict_interval, sign=1, coverage=coverage
    )


def neg_interval_score_scorer(coverage=0.95) -> _PredictiveScorer:
    """Make a scorer of intervals: minus their `interval_score`.

    Parameters
    ----------
    coverage : float, default=0.95
        Probability that the intervals are meant to hold, between 0 and 1.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y, sample_weight=None, noise_variance=None)``.
    """
    check_coverage(coverage)
    return _PredictiveScorer(
        "neg_interval_score_scorer",
        _interval_score_of,
        predict_interval,
        sign=-1,
        coverage=coverage,
    )


def neg_pinball_scorer(
    q=(0.05, 0.25, 0.5, 0.75, 0.95),
) -> _PredictiveScorer:
    """Make a scorer of quantiles: minus their mean `pinball_loss`.

    Parameters
    ----------
    q : array-like of shape (k,), default=(0.05, 0.25, 0.5, 0.75, 0.95)
        Probabilities, strictly between 0 and 1.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y, sample_weight=None, noise_variance=None)``.
    """
    q = tuple(float(share) for share in np.atleast_1d(check_share(q, "q")))
    return _PredictiveScorer("neg_pinball_scorer", _pinball_of, predict_quantiles, sign=-1, q=q)


def _gaussian_nlpd(y, mean, std):
    return 0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * ((y - mean) / std) ** 2


def _check_predictions(y_true, mean, std):
    """Three float64 arrays of one shape (n, t)."""
    arrays = _check_same(y_true=y_true, mean=mean, std=std)
    _check_positive(arrays[2], "std")
    return arrays


def _check_same(**named):
    """Finite float64 arrays of one shape (n, t)."""
    arrays = []
    for name, values in named.items():
        array = _numbers(name, values)
        arrays.append(array.reshape(-1, 1) if array.ndim == 1 else array)
    check_consistent_length(*arrays)
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1:
        *names, last = named
        raise ValueError(
            f"{', '.join(names)} and {last} must have one shape; they have "
            f"{', '.join(map(str, shapes))} as (rows, targets)."
        )
    return arrays


def _numbers(name, values):
    """A finite float64 array of rows."""
    try:
        return check_array(values, ensure_2d=False, dtype=np.float64, input_name=name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of finite numbers: {error}") from None


def _of_targets(name, value, shape):
    """One number, or one for each target, over all rows."""
    try:
        return np.broadcast_to(np.asarray(value, dtype=float), shape)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be a number, or one for each of {shape[1]} targets; got {value!r}."
        ) from None


def _check_positive(std, name):
    wrong = ~((std > 0) & np.isfinite(std))
    if wrong.any():
        raise ValueError(
            f"{name} must be positive and finite; {wrong.sum()} of {std.size} values are not, "
            f"the first of them {std[wrong][0]:g}."
        )


def _reduce(values, sample_weight, multioutput):
    """Average over rows, then over targets."""
    if sample_weight is not None:
        sample_weight = _numbers("sample_weight", sample_weight)
        if sample_weight.shape != values.shape[:1]:
            raise ValueError(
                f"sample_weight must have shape {values.shape[:1]}, got {sample_weight.shape}."
            )
        if (sample_weight < 0).any() or not sample_weight.any():
            raise ValueError("sample_weight must have no negative value and one above zero.")
    per_target = np.average(values, axis=0, weights=sample_weight)
    if isinstance(multioutput, str):
        if multioutput == "raw_values":
            return per_target
        if multioutput != "uniform_average":
            raise ValueError(
                "multioutput must be 'raw_values', 'uniform_average' or one weight for each "
                f"target, got {multioutput!r}."
            )
        return float(np.mean(per_target))
    weights = _numbers("multioutput", multioutput)
    if weights.shape != per_target.shape or (weights < 0).any() or not weights.any():
        raise ValueError(
            f"multioutput must have one weight for each of {len(per_target)} targets, none of them "
            f"negative and one above zero; got {multioutput!r}."
        )
    return float(np.average(per_target, weights=weights))
