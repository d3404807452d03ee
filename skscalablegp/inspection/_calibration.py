"""Calibration of predictive distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from .._predicted import core_of, predict_quantiles
from .._validation import check_share
from ._shared import (
    axes_for,
    check_count,
    chosen_kinds,
    chosen_target,
    numbers,
    refuse_classifier,
    styled,
    target_number,
)

_KINDS = ("coverage", "pit")
# Levels of the coverage curve in addition to those of the histogram's bins.
_LEVELS = np.array([0.95, 0.99])


@dataclass(kw_only=True, eq=False, repr=False)
class IntervalCalibrationDisplay:
    """Calibration of predictive distributions: a coverage curve and a PIT histogram.

    The coverage curve shows the share of held-out rows inside central intervals of each nominal
    level; a calibrated model stays on the diagonal, an overconfident one below it. The histogram
    shows where rows lie in their own predictive distributions (the probability integral transform
    of Dawid, 1984). It is flat for a calibrated model, a hill for intervals that are too wide, a
    valley for ones that are too narrow, and a slope for biased predictions. Each grey band contains
    the share of a calibrated model with a probability of 95 %.

    Make one by `from_estimator` or `from_predictions`.

    Parameters
    ----------
    levels : ndarray of shape (l,)
        Nominal levels of central intervals, in increasing order.

    coverage : ndarray of shape (l,)
        Share of rows inside them.

    edges : ndarray of shape (b + 1,)
        Edges of the histogram's bins, from 0 to 1.

    density : ndarray of shape (b,)
        Share of rows in each bin, divided by the bin's width: 1 for a calibrated model.

    n_rows : int
        Number of rows from which the shares were computed.

    name : str, default=None
        Name in the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes, or ndarray of them
        The axes; an array of them for several kinds.

    figure_ : matplotlib Figure
        The figure of the axes.

    line_ : matplotlib Line2D or None
        The coverage curve.

    bars_ : matplotlib BarContainer or None
        The histogram.

    See Also
    --------
    sklearn.calibration.CalibrationDisplay : The same question about a classifier's probabilities.
    skscalablegp.metrics.coverage_scorer : The coverage of one interval, under cross-validation.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import IterativeGPRegressor
    >>> from skscalablegp.inspection import IntervalCalibrationDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(200, 1))
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    >>> gp = IterativeGPRegressor(random_state=0).fit(X[:100], y[:100])
    >>> display = IntervalCalibrationDisplay.from_estimator(gp, X[100:], y[100:])
    """

    levels: np.ndarray
    coverage: np.ndarray
    edges: np.ndarray
    density: np.ndarray
    n_rows: int
    name: str | None = None

    @classmethod
    def from_estimator(  # noqa: PLR0913 (one for each setting)
        cls,
        estimator,
        X,
        y: ArrayLike,
        *,
        n_bins: int = 20,
        target: int | None = None,
        noise_variance=None,
        kind=_KINDS,
        name: str | None = None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> IntervalCalibrationDisplay:
        """Predict quantiles of held-out rows, and draw the shares of observations below them.

        The quantiles are those of the model's predictive distribution, which need not be normal.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor, as for `skscalablegp.metrics.predict_quantiles`.

        X : array-like of shape (n, d)
            Held-out rows, which the model was not fitted to.

        y : array-like of shape (n,) or (n, t)
            Their observed targets.

        n_bins : int, default=20
            Number of bins of the histogram. The curve has the levels whose two ends are edges of
            bins, and 95 and 99 %.

        target : int, default=None
            Number of the target; required if there are several.

        noise_variance : float, array-like of shape (n,) or (n, t), default=None
            Known noise variances of the observations, as in ``predict``.

        kind, name, ax, line_kwargs, bar_kwargs
            See `plot`.

        Returns
        -------
        display : IntervalCalibrationDisplay

        Raises
        ------
        TypeError
            For a classifier, and for a regressor that predicts no standard deviations.
        ValueError
            For wrong values.
        """
        refuse_classifier(cls, estimator, "sklearn.calibration.CalibrationDisplay")
        inner = np.arange(1, check_count("n_bins", n_bins, 2)) / n_bins
        q = np.concatenate([inner, 0.5 - 0.5 * _LEVELS, 0.5 + 0.5 * _LEVELS])
        quantiles = predict_quantiles(estimator, X, np.sort(q), noise_variance=noise_variance)
        y, quantiles = _one_target(y, quantiles, target)
        below = (y[:, None] <= quantiles).mean(0)
        bins = np.isin(np.sort(q), inner)
        display = cls(
            **_coverage(y, quantiles, np.sort(q)),
            **_histogram(below[bins], inner),
            n_rows=len(y),
            name=type(core_of(estimator)).__name__ if name is None else name,
        )
        return display.plot(kind=kind, ax=ax, line_kwargs=line_kwargs, bar_kwargs=bar_kwargs)

    @classmethod
    def from_predictions(  # noqa: PLR0913 (one for each setting)
        cls,
        y_true: ArrayLike,
        quantiles: ArrayLike,
        *,
        q: ArrayLike,
        target: int | None = None,
        kind=_KINDS,
        name: str | None = None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> IntervalCalibrationDisplay:
        """Draw the shares of observations below given quantiles, which may come from any model.

        Parameters
        ----------
        y_true : array-like of shape (n,) or (n, t)
            Observed targets.

        quantiles : array-like of shape (n, k) or (n, t, k)
            Predicted quantiles, as from ``predict_quantiles``; increasing along the last axis.

        q : array-like of shape (k,)
            Their probabilities, increasing and strictly between 0 and 1. They are the edges of the
            histogram's bins. The curve has the levels whose two ends are among them.

        target : int, default=None
            Number of the target; required if there are several.

        kind, name, ax, line_kwargs, bar_kwargs
            See `plot`.

        Returns
        -------
        display : IntervalCalibrationDisplay

        Raises
        ------
        ValueError
            For quantiles that cross, and for wrong values.
        """
        q = np.atleast_1d(check_share(q, "q"))
        if (np.diff(q) <= 0).any():
            raise ValueError(f"q must increase, got {q.tolist()}.")
        quantiles = numbers("quantiles", quantiles)
        if quantiles.ndim not in (2, 3) or quantiles.shape[-1] != len(q):
            raise ValueError(
                f"quantiles must have shape (n, {len(q)}) or (n, t, {len(q)}), a value for each q; "
                f"their shape is {quantiles.shape}."
            )
        y, quantiles = _one_target(y_true, quantiles, target, "y_true")
        crossing = (np.diff(quantiles, axis=1) < 0).any(1)
        if crossing.any():
            raise ValueError(
                f"quantiles cross in {crossing.sum()} of {len(y)} rows: np.sort(quantiles, "
                "axis=-1) puts them in order."
            )
        display = cls(
            **_coverage(y, quantiles, q),
            **_histogram((y[:, None] <= quantiles).mean(0), q),
            n_rows=len(y),
            name=name,
        )
        return display.plot(kind=kind, ax=ax, line_kwargs=line_kwargs, bar_kwargs=bar_kwargs)

    def plot(
        self,
        *,
        kind=_KINDS,
        ax=None,
        name: str | None = None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> IntervalCalibrationDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        kind : {"coverage", "pit"} or sequence of them, default=("coverage", "pit")
            The coverage curve, the histogram, or both.

        ax : matplotlib Axes, or array-like of them, default=None
            One axes for each kind; None makes a new figure.

        name : str, default=None
            Name in the legend; None takes that of the display.

        line_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the curve.

        bar_kwargs : dict, default=None
            Keywords of ``Axes.bar`` for the histogram.

        Returns
        -------
        display : IntervalCalibrationDisplay
            This one.
        """
        kinds = chosen_kinds(kind, _KINDS)
        name = self.name if name is None else name
        line = styled({"marker": ".", "label": name}, "line_kwargs", line_kwargs)
        bar = styled({"alpha": 0.6, "label": name}, "bar_kwargs", bar_kwargs)
        axes = axes_for(self, ax, len(kinds), not isinstance(kind, str))
        self.line_ = self.bars_ = None
        for one, panel in zip(kinds, axes, strict=True):
            if one == "coverage":
                self._plot_coverage(panel, line)
            else:
                self._plot_histogram(panel, bar)
            if name is not None:
                panel.legend(loc="upper left" if one == "coverage" else "lower center")
        return self

    def _plot_coverage(self, ax: Any, style: dict[str, Any]) -> None:
        fine = np.linspace(0.01, 0.99, 99)
        ax.plot([0, 1], [0, 1], ":", color="grey")
        ax.fill_between(fine, *self._band(fine), color="grey", alpha=0.2, linewidth=0)
        (self.line_,) = ax.plot(self.levels, self.coverage, **style)
        ax.set(xlabel="nominal level of the interval", ylabel="share of rows inside")

    def _plot_histogram(self, ax: Any, style: dict[str, Any]) -> None:
        width = np.diff(self.edges)
        low, high = self._band(width) / width
        low, high = (np.append(end, end[-1]) for end in (low, high))
        ax.fill_between(self.edges, low, high, step="post", color="grey", alpha=0.2, linewidth=0)
        ax.axhline(1.0, linestyle=":", color="grey")
        self.bars_ = ax.bar(self.edges[:-1], self.density, width=width, align="edge", **style)
        ax.set(xlabel="probability below the observation", ylabel="density of rows")

    def _band(self, share: np.ndarray) -> np.ndarray:
        """Bounds of the share of rows, with a probability of 95 %, given its expected value."""
        return np.array(binom.interval(0.95, self.n_rows, share)) / self.n_rows


def _one_target(
    y: ArrayLike, quantiles: np.ndarray, target: int | None, name: str = "y"
) -> tuple[np.ndarray, np.ndarray]:
    """(n,) observations and (n, k) quantiles."""
    y = numbers(name, y)
    t = quantiles.shape[1] if quantiles.ndim == 3 else 1
    if y.shape not in {(len(quantiles), t), (len(quantiles),) if t == 1 else None}:
        raise ValueError(
            f"{name} must have a value for each of {len(quantiles)} predicted rows and {t} "
            f"target{'s' if t > 1 else ''}; its shape is {y.shape}."
        )
    if quantiles.ndim == 3:
        quantiles = quantiles[:, target_number(t, target)]
    y = chosen_target(y, target)
    for label, values in ((name, y), ("quantiles", quantiles)):
        if np.isnan(values).any():
            raise ValueError(f"{label} must not contain NaN.")
    return y, quantiles


def _coverage(y: np.ndarray, quantiles: np.ndarray, q: np.ndarray) -> dict[str, np.ndarray]:
    """Shares inside the intervals whose two ends are among the quantiles."""
    levels, shares = [], []
    for low in np.flatnonzero(q < 0.5)[::-1]:
        for high in np.flatnonzero(np.isclose(q, 1 - q[low], rtol=0, atol=1e-9)):
            inside = (y >= quantiles[:, low]) & (y <= quantiles[:, high])
            levels.append(1 - 2 * q[low])
            shares.append(inside.mean())
    return {"levels": np.array(levels), "coverage": np.array(shares)}


def _histogram(below: np.ndarray, q: np.ndarray) -> dict[str, np.ndarray]:
    """The share of rows between quantiles over the probability that is between them."""
    edges = np.array([0.0, *q, 1.0])
    return {"edges": edges, "density": np.diff([0.0, *below, 1.0]) / np.diff(edges)}
