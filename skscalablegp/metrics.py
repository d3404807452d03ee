"""Scores for predictions that come with a standard deviation.

The functions take the true targets, the predicted means and the predicted standard deviations; the
scorers call ``predict(X, return_std=True)`` themselves and go wherever scikit-learn takes a
``scoring``: `cross_val_score`, `cross_validate`, `GridSearchCV`. Longer than most files here
because each function documents its parameters in full.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest

__all__ = [
    "coverage_scorer",
    "crps",
    "interval_coverage",
    "msll",
    "neg_crps_scorer",
    "neg_nlpd_scorer",
    "nlpd",
]


def nlpd(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Negative log predictive density of a Gaussian, in nats per row; lower is better.

    The mean over rows of ``0.5 log(2 pi std^2) + 0.5 ((y_true - mean) / std)^2``.

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

    The integral over v of ``(F(v) - 1[v >= y_true])^2`` for the predicted distribution function F.
    For a certain prediction (std -> 0) it is the absolute error. The closed form is eq. 5 of
    Gneiting et al. (2005), "Calibrated probabilistic forecasting using ensemble model output
    statistics and minimum CRPS estimation".

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
    z = (y_true - mean) / std
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    values = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return _reduce(values, sample_weight, multioutput)


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
    """Mean standardised log loss, in nats per row; below zero beats the trivial model.

    `nlpd` less that of the model that predicts the training targets' mean and standard deviation
    everywhere (Rasmussen and Williams, 2006, section 2.5, eq. 2.34).

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
    trivial_mean = np.broadcast_to(np.asarray(train_mean, dtype=float), y_true.shape)
    trivial_std = np.broadcast_to(np.asarray(train_std, dtype=float), y_true.shape)
    _check_positive(trivial_std, "train_std")
    gain = _gaussian_nlpd(y_true, mean, std) - _gaussian_nlpd(y_true, trivial_mean, trivial_std)
    return _reduce(gain, sample_weight, multioutput)


def interval_coverage(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    level: float = 0.95,
    sample_weight: ArrayLike | None = None,
    multioutput: str | ArrayLike = "uniform_average",
) -> float | Float[np.ndarray, " t"]:
    """Share of targets inside the central Gaussian interval; best when it equals ``level``.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, t)
        Observed targets.

    mean : array-like of shape (n,) or (n, t)
        Predicted means.

    std : array-like of shape (n,) or (n, t)
        Predicted standard deviations of the observed targets, noise included; positive.

    level : float, default=0.95
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
    _check_level(level)
    y_true, mean, std = _check_predictions(y_true, mean, std)
    inside = np.abs(y_true - mean) <= ndtri(0.5 + 0.5 * level) * std
    return _reduce(inside.astype(float), sample_weight, multioutput)


class _DistributionScorer:
    """``scorer(estimator, X, y)`` for a metric of means and standard deviations."""

    def __init__(self, name: str, metric: Callable[..., Any], sign: int, **options: float):
        self._name = name
        self._metric = metric
        self._sign = sign
        self._options = options
        self._request = MetadataRequest(owner=name)

    def __call__(self, estimator, X, y, sample_weight=None) -> float:
        mean, std = _predict_with_std(estimator, X)
        score = self._metric(y, mean, std, sample_weight=sample_weight, **self._options)
        return self._sign * float(score)

    def __repr__(self) -> str:
        if not self._options:
            return self._name
        return f"{self._name}({', '.join(f'{k}={v!r}' for k, v in self._options.items())})"

    def set_score_request(self, *, sample_weight: bool | str | None = True):
        """Return a scorer that asks for ``sample_weight`` under metadata routing.

        Parameters
        ----------
        sample_weight : bool, str or None, default=True
            Whether it is asked for, or the name that it is passed under.

        Returns
        -------
        scorer : callable
            A copy: the scorers of this module are shared and stay as they are.
        """
        scorer = copy.deepcopy(self)
        scorer._request.score.add_request(param="sample_weight", alias=sample_weight)
        return scorer

    def get_metadata_routing(self) -> MetadataRequest:
        """Return what this scorer asks for, as scikit-learn's metadata routing reads it."""
        return copy.deepcopy(self._request)


neg_nlpd_scorer = _DistributionScorer("neg_nlpd_scorer", nlpd, sign=-1)
neg_crps_scorer = _DistributionScorer("neg_crps_scorer", crps, sign=-1)


def coverage_scorer(level: float = 0.95) -> _DistributionScorer:
    """Make a scorer that reports `interval_coverage` at a level.

    Parameters
    ----------
    level : float, default=0.95
        Probability that the interval is meant to hold, between 0 and 1.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y, sample_weight=None)``. To read beside another score, not to
        choose by: the largest coverage is not the best.
    """
    _check_level(level)
    return _DistributionScorer("coverage_scorer", interval_coverage, sign=1, level=level)


def _predict_with_std(estimator, X):
    """Means and standard deviations, through pipelines and finished searches."""
    if isinstance(estimator, Pipeline):
        # Not pipeline.predict(X, return_std=True): routing would ask for a request of return_std.
        if len(estimator) > 1:
            X = estimator[:-1].transform(X)
        return _predict_with_std(estimator[-1], X)
    if hasattr(estimator, "best_estimator_"):
        return _predict_with_std(estimator.best_estimator_, X)
    if isinstance(estimator, TransformedTargetRegressor):
        raise TypeError(
            "TransformedTargetRegressor gives no standard deviations: undoing the transform of "
            "the target does not keep a Gaussian one. Score the regressor on the transformed "
            "target, or use a model with normalize_y=True in its place."
        )
    try:
        prediction = estimator.predict(X, return_std=True)
    except TypeError as error:
        if "return_std" not in str(error):
            raise
        raise TypeError(
            f"{type(estimator).__name__}.predict has no return_std: this scorer needs an "
            "estimator that predicts standard deviations."
        ) from error
    mean, std = prediction
    return mean, std


def _gaussian_nlpd(y, mean, std):
    return 0.5 * np.log(2 * np.pi) + np.log(std) + 0.5 * ((y - mean) / std) ** 2


def _check_predictions(y_true, mean, std):
    """Three float64 arrays of one shape (n, t)."""
    arrays = []
    for name, values in (("y_true", y_true), ("mean", mean), ("std", std)):
        array = check_array(values, ensure_2d=False, dtype=np.float64, input_name=name)
        arrays.append(array.reshape(-1, 1) if array.ndim == 1 else array)
    check_consistent_length(*arrays)
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"y_true, mean and std must have one shape; they have {', '.join(map(str, shapes))} "
            "as (rows, targets)."
        )
    _check_positive(arrays[2], "std")
    return arrays


def _check_positive(std, name):
    wrong = ~((std > 0) & np.isfinite(std))
    if wrong.any():
        raise ValueError(
            f"{name} must be positive and finite; {wrong.sum()} of {std.size} values are not, "
            f"the first of them {std[wrong][0]:g}."
        )


def _check_level(level):
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1 (0.95 for 95%), got {level!r}.")


def _reduce(values, sample_weight, multioutput):
    """Average over rows, then over targets."""
    if sample_weight is not None:
        sample_weight = check_array(
            sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
        )
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
        multioutput = None
    return float(np.average(per_target, weights=multioutput))
