"""Predictions with their intervals, and observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from .._predicted import predict_interval
from .._validation import check_coverage
from ._shared import (
    axes_for,
    check_count,
    chosen_target,
    numbers,
    refuse_classifier,
    styled,
    target_number,
)


@dataclass(kw_only=True, eq=False, repr=False)
class PredictionIntervalDisplay:
    """Rows in order of their predictions, each with its interval and its observation.

    Make one by `from_estimator` or `from_predictions`.

    Parameters
    ----------
    y_true : ndarray of shape (n,)
        Observed targets.

    y_pred : ndarray of shape (n,)
        Predictions, in increasing order.

    lower, upper : ndarray of shape (n,)
        Ends of the intervals.

    label : str, default="interval"
        Name of the intervals in the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    line_ : matplotlib Line2D
        The predictions.

    interval_ : matplotlib PolyCollection
        The intervals.

    inside_, outside_ : matplotlib Line2D
        Observations inside and outside their intervals, marked differently.

    See Also
    --------
    sklearn.metrics.PredictionErrorDisplay : Predictions without intervals.
    """

    y_true: np.ndarray
    y_pred: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    label: str = "interval"

    @classmethod
    def from_estimator(  # noqa: PLR0913 (one for each setting)
        cls,
        estimator,
        X,
        y: ArrayLike,
        *,
        coverage: float = 0.95,
        subsample: int | None = 100,
        random_state=None,
        target: int | None = None,
        noise_variance=None,
        ax=None,
        line_kwargs: dict | None = None,
        interval_kwargs: dict | None = None,
        scatter_kwargs: dict | None = None,
    ) -> PredictionIntervalDisplay:
        """Predict rows and draw them.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor, as for `skscalablegp.metrics.predict_interval`.

        X : array-like of shape (n, d)
            Rows, preferably held-out ones.

        y : array-like of shape (n,) or (n, t)
            Their observed targets.

        coverage : float, default=0.95
            Nominal level of the intervals.

        subsample : int or None, default=100
            Maximum number of rows to show, drawn at random; None shows all.

        random_state : int, RandomState instance or None, default=None
            Seed of the random choice of rows.

        target : int, default=None
            Number of the target; required if there are several.

        noise_variance : float, array-like of shape (n,) or (n, t), default=None
            Known noise variances of the observations, as in ``predict``.

        ax, line_kwargs, interval_kwargs, scatter_kwargs
            See `plot`.

        Returns
        -------
        display : PredictionIntervalDisplay

        Raises
        ------
        TypeError
            For a classifier, and for a regressor that predicts no standard deviations.
        ValueError
            For wrong values.
        """
        refuse_classifier(cls, estimator, "sklearn.calibration.CalibrationDisplay")
        check_coverage(coverage)
        interval = predict_interval(estimator, X, coverage, noise_variance=noise_variance)
        return cls.from_predictions(
            y,
            estimator.predict(X),
            interval,
            subsample=subsample,
            random_state=random_state,
            target=target,
            label=f"{100 * coverage:g} % interval",
            ax=ax,
            line_kwargs=line_kwargs,
            interval_kwargs=interval_kwargs,
            scatter_kwargs=scatter_kwargs,
        )

    @classmethod
    def from_predictions(  # noqa: PLR0913 (one for each setting)
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        interval: ArrayLike,
        *,
        subsample: int | None = 100,
        random_state=None,
        target: int | None = None,
        label: str = "interval",
        ax=None,
        line_kwargs: dict | None = None,
        interval_kwargs: dict | None = None,
        scatter_kwargs: dict | None = None,
    ) -> PredictionIntervalDisplay:
        """Draw predictions, which may come from any model.

        Parameters
        ----------
        y_true : array-like of shape (n,) or (n, t)
            Observed targets.

        y_pred : array-like of shape (n,) or (n, t)
            Predictions; rows are sorted by them.

        interval : array-like of shape (n, 2) or (n, t, 2)
            Lower and upper ends, as from ``predict_interval``.

        subsample, random_state, target
            See `from_estimator`.

        label : str, default="interval"
            Name of the intervals in the legend.

        ax, line_kwargs, interval_kwargs, scatter_kwargs
            See `plot`.

        Returns
        -------
        display : PredictionIntervalDisplay

        Raises
        ------
        ValueError
            For shapes that do not match, and for wrong values.
        """
        y_true, y_pred = numbers("y_true", y_true), numbers("y_pred", y_pred)
        interval = numbers("interval", interval)
        if y_true.shape != y_pred.shape or interval.shape != (*y_true.shape, 2):
            raise ValueError(
                "y_true and y_pred must have one shape, and interval two values for each of them; "
                f"their shapes are {y_true.shape}, {y_pred.shape} and {interval.shape}."
            )
        if y_true.ndim > 1:
            interval = interval[:, target_number(y_true.shape[1], target)]
        y_true, y_pred = chosen_target(y_true, target), chosen_target(y_pred, target)
        rows = np.arange(len(y_true))
        if subsample is not None:
            check_count("subsample", subsample, 1)
            if subsample < len(rows):
                rows = check_random_state(random_state).choice(rows, subsample, replace=False)
        rows = rows[np.argsort(y_pred[rows], kind="stable")]
        lower, upper = interval[rows].T
        display = cls(
            y_true=y_true[rows], y_pred=y_pred[rows], lower=lower, upper=upper, label=label
        )
        return display.plot(
            ax=ax,
            line_kwargs=line_kwargs,
            interval_kwargs=interval_kwargs,
            scatter_kwargs=scatter_kwargs,
        )

    def plot(
        self,
        *,
        ax=None,
        line_kwargs: dict | None = None,
        interval_kwargs: dict | None = None,
        scatter_kwargs: dict | None = None,
    ) -> PredictionIntervalDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.

        line_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the predictions.

        interval_kwargs : dict, default=None
            Keywords of ``Axes.fill_between`` for the intervals.

        scatter_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the observations.

        Returns
        -------
        display : PredictionIntervalDisplay
            This one.
        """
        line = styled({"label": "predicted"}, "line_kwargs", line_kwargs)
        band = {"alpha": 0.25, "linewidth": 0, "step": "mid", "label": self.label}
        band = styled(band, "interval_kwargs", interval_kwargs)
        points = styled({"linestyle": "none", "markersize": 4}, "scatter_kwargs", scatter_kwargs)
        (panel,) = axes_for(self, ax)
        place = np.arange(len(self.y_true))
        inside = (self.y_true >= self.lower) & (self.y_true <= self.upper)
        self.interval_ = panel.fill_between(place, self.lower, self.upper, **band)
        (self.line_,) = panel.plot(place, self.y_pred, **line)
        (self.inside_,) = panel.plot(
            place[inside],
            self.y_true[inside],
            **{"marker": "o", "color": "black", "label": "observed", **points},
        )
        (self.outside_,) = panel.plot(
            place[~inside],
            self.y_true[~inside],
            **{"marker": "x", "color": "tab:red", "label": "observed, outside", **points},
        )
        panel.set(xlabel=f"{len(place)} rows, by prediction", ylabel="target", xticks=[])
        panel.legend()
        return self
