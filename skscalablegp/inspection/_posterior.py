"""The posterior along one or two columns."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.multioutput import MultiOutputRegressor
from sklearn.utils import check_random_state

from .._predicted import behind_transforms, predict_interval, predict_std, transformed_back
from .._validation import check_coverage
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

_SURFACES = ("mean", "std", "sample")


@dataclass(kw_only=True, eq=False, repr=False)
class PosteriorDisplay:
    """The posterior along one or two columns, with all others at their medians.

    Along one column: the prediction, intervals and a few joint samples. Along two: maps of the
    prediction, its standard deviation and one sample. Make one by `from_estimator`.

    Parameters
    ----------
    grid : tuple of one or two ndarrays
        Values of each chosen column.

    mean, std : ndarray of shape (g,) or (g0, g1)
        Predictions and their standard deviations on the grid.

    lower, upper : ndarray of the same shape
        Ends of the intervals.

    samples : ndarray of shape (g, s) or (g0, g1, s)
        Joint samples.

    names : tuple of one or two str
        Names of the columns.

    label : str, default="interval"
        Name of the intervals in the legend.

    observed : tuple of (ndarray, ndarray) or None, default=None
        Values of the column, and observed targets, to draw with one column.

    Attributes
    ----------
    ax_ : matplotlib Axes, or ndarray of them
        The axes; an array of them for several maps.

    figure_ : matplotlib Figure

    line_ : matplotlib Line2D
        The prediction. It and the next three attributes exist for one column only.

    interval_ : matplotlib PolyCollection
        The intervals.

    sample_lines_ : list of matplotlib Line2D
        The samples.

    observed_ : matplotlib Line2D or None
        The observations.

    maps_ : dict of str to matplotlib QuadContourSet
        By kind, for two columns only.

    See Also
    --------
    sklearn.inspection.PartialDependenceDisplay : Predictions averaged over the other columns.
    """

    grid: tuple[np.ndarray, ...]
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    samples: np.ndarray
    names: tuple[str, ...]
    label: str = "interval"
    observed: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def from_estimator(  # noqa: PLR0913 (one for each setting)
        cls,
        estimator,
        X,
        features,
        *,
        y: ArrayLike | None = None,
        grid_resolution: int | None = None,
        n_samples: int = 3,
        coverage: float = 0.95,
        include_noise: bool = False,
        target: int | None = None,
        random_state=0,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        interval_kwargs: dict | None = None,
        sample_kwargs: dict | None = None,
        contour_kwargs: dict | None = None,
    ) -> PosteriorDisplay:
        """Predict along columns and draw.

        Samples cost O(g^3) in the number g of points of the grid.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor of this package, through pipelines, searches and transformed targets;
            others with ``include_noise=True`` and, for samples, ``sample_y``.

        X : array-like of shape (n, d)
            Rows that determine the range of the chosen columns and the values of the others: the
            lower median, or the most frequent value of a column that is not numeric.

        features : int, str, or a pair of them
            One or two columns, by number or by name.

        y : array-like of shape (n,) or (n, t), default=None
            Observed targets of these rows, drawn with the posterior along one column. They are
            close to it only if the other columns matter little.

        grid_resolution : int, default=None
            Number of points along each column. None takes 200 for one column and 30 for two.

        n_samples : int, default=3
            Number of joint samples; use 0 for models without joint samples.

        coverage : float, default=0.95
            Nominal level of the intervals.

        include_noise : bool, default=False
            Whether to draw the posterior of new observations or of the latent function.

        target : int, default=None
            Number of the target; required if there are several.

        random_state : int, RandomState instance or None, default=0
            Seed of the samples.

        kind, ax, line_kwargs, interval_kwargs, sample_kwargs, contour_kwargs
            See `plot`.

        Returns
        -------
        display : PosteriorDisplay

        Raises
        ------
        TypeError
            For a classifier, and for a regressor that predicts no standard deviations or draws no
            samples.
        ValueError
            For columns that X does not have, models without joint samples, and wrong values.
        """
        refuse_classifier(cls, estimator, "sklearn.inspection.DecisionBoundaryDisplay")
        check_coverage(coverage)
        check_count("n_samples", n_samples, 0)
        places, names = _places(X, features)
        most = {1: 200, 2: 30}[len(places)] if grid_resolution is None else grid_resolution
        check_count("grid_resolution", most, 2)
        grid = tuple(_range(X, place, most) for place in places)
        shape = tuple(map(len, grid))
        mesh = [part.ravel() for part in np.meshgrid(*grid, indexing="ij")]
        table = _held(X, dict(zip(places, mesh, strict=True)))
        mean = np.asarray(estimator.predict(table))
        t = mean.shape[1] if mean.ndim > 1 else 1
        j = target_number(t, target)
        interval = predict_interval(estimator, table, coverage, include_noise=include_noise)
        std = predict_std(estimator, table, include_noise=include_noise)
        samples = np.empty((len(table), t, 0))
        if n_samples:
            seed = check_random_state(random_state)
            samples = _samples(estimator, table, n_samples, include_noise, seed)
        interval, samples = (part.reshape(len(mean), t, -1)[:, j] for part in (interval, samples))
        observed = None
        if y is not None and len(places) == 1:
            observed = _numbers(X, places[0]), chosen_target(numbers("y", y), target)
            if len(observed[0]) != len(observed[1]):
                raise ValueError(
                    f"y must have a value for each of {len(observed[0])} rows of X, got "
                    f"{len(observed[1])}."
                )
        display = cls(
            grid=grid,
            mean=chosen_target(mean, target).reshape(shape),
            std=chosen_target(std, target).reshape(shape),
            lower=interval[:, 0].reshape(shape),
            upper=interval[:, 1].reshape(shape),
            samples=samples.reshape(*shape, n_samples),
            names=names,
            label=f"{100 * coverage:g} % interval",
            observed=observed,
        )
        return display.plot(
            kind=kind,
            ax=ax,
            line_kwargs=line_kwargs,
            interval_kwargs=interval_kwargs,
            sample_kwargs=sample_kwargs,
            contour_kwargs=contour_kwargs,
        )

    def plot(
        self,
        *,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        interval_kwargs: dict | None = None,
        sample_kwargs: dict | None = None,
        contour_kwargs: dict | None = None,
    ) -> PosteriorDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        kind : {"mean", "std", "sample"}, sequence of them or None, default=None
            Maps to draw for two columns; None draws the prediction and its standard deviation. One
            column has no maps.

        ax : matplotlib Axes, or array-like of them, default=None
            One axes for each map; None makes a new figure.

        line_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the prediction.

        interval_kwargs : dict, default=None
            Keywords of ``Axes.fill_between`` for the intervals.

        sample_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the samples.

        contour_kwargs : dict, default=None
            Keywords of ``Axes.contourf`` for the maps.

        Returns
        -------
        display : PosteriorDisplay
            This one.

        Raises
        ------
        ValueError
            For a kind with a single column, or for a sample if the display has none.
        """
        line = styled({"label": "prediction"}, "line_kwargs", line_kwargs)
        band = {"alpha": 0.25, "linewidth": 0, "label": self.label}
        band = styled(band, "interval_kwargs", interval_kwargs)
        drawn = styled({"linewidth": 0.8, "color": "grey"}, "sample_kwargs", sample_kwargs)
        contour = styled({"levels": 20}, "contour_kwargs", contour_kwargs)
        if len(self.grid) == 1:
            if kind is not None:
                raise ValueError(f"kind is for the maps of two columns, got {kind!r} with one.")
            (panel,) = axes_for(self, ax)
            self._plot_line(panel, line, band, drawn)
            return self
        kinds = ("mean", "std") if kind is None else chosen_kinds(kind, _SURFACES)
        if "sample" in kinds and not self.samples.shape[-1]:
            raise ValueError("kind='sample' needs a sample: make the display with n_samples=1.")
        axes = axes_for(self, ax, len(kinds), not isinstance(kind, str))
        self.maps_ = {}
        for one, panel in zip(kinds, axes, strict=True):
            values = self.samples[..., 0] if one == "sample" else getattr(self, one)
            self.maps_[one] = panel.contourf(*self.grid, values.T, **contour)
            panel.figure.colorbar(self.maps_[one], ax=panel)
            title = {"mean": "prediction", "std": "standard deviation", "sample": "sample"}[one]
            panel.set(xlabel=self.names[0], ylabel=self.names[1], title=title)
        return self

    def _plot_line(
        self, ax: Any, line: dict[str, Any], band: dict[str, Any], drawn: dict[str, Any]
    ) -> None:
        (x,) = self.grid
        self.interval_ = ax.fill_between(x, self.lower, self.upper, **band)
        labels = ["samples", *[None] * self.samples.shape[-1]]
        self.sample_lines_ = [
            ax.plot(x, values, **{"label": label, **drawn})[0]
            for values, label in zip(self.samples.T, labels, strict=False)
        ]
        (self.line_,) = ax.plot(x, self.mean, **line)
        self.observed_ = None
        if self.observed is not None:
            (self.observed_,) = ax.plot(*self.observed, "k.", markersize=4, label="observed")
        ax.set(xlabel=self.names[0], ylabel="target")
        ax.legend()


def _places(X: Any, features: Any) -> tuple[list[int], tuple[str, ...]]:
    """Numbers and names of the one or two chosen columns."""
    if len(getattr(X, "shape", np.shape(X))) != 2:
        raise ValueError("X must be a table of rows and columns, as an array or a data frame.")
    d = X.shape[1] if hasattr(X, "shape") else np.shape(X)[1]
    known = [str(c) for c in X.columns] if hasattr(X, "columns") else []
    chosen: list[Any] = [features] if isinstance(features, str | Integral) else features
    chosen = list(chosen) if isinstance(chosen, list | tuple | np.ndarray) else []
    places = [known.index(c) if isinstance(c, str) and c in known else c for c in chosen]
    whole = [
        isinstance(c, int | np.integer) and not isinstance(c, bool) and 0 <= c < d for c in places
    ]
    if not all(whole) or len(places) not in (1, 2) or len(set(places)) < len(places):
        named = f", or its names {known}" if known else ""
        raise ValueError(
            f"features must be one column of X or two different ones, by number from 0 to {d - 1}"
            f"{named}; got {features!r}."
        )
    places = [int(c) for c in places]
    return places, tuple(known[c] if known else f"column {c}" for c in places)


def _column(X: Any, place: int) -> Any:
    """A column of a table, in the table's own type."""
    return X[X.columns[place]] if hasattr(X, "columns") else np.asarray(X)[:, place]


def _numbers(X: Any, place: int) -> np.ndarray:
    try:
        return np.asarray(_column(X, place), dtype=float)
    except (TypeError, ValueError):
        raise ValueError(
            f"features must be columns of numbers, and column {place} of X is not."
        ) from None


def _range(X: Any, place: int, points: int) -> np.ndarray:
    values = _numbers(X, place)
    values = values[np.isfinite(values)]
    if not len(values):
        raise ValueError(f"features must be columns of numbers, and column {place} of X has none.")
    return np.linspace(values.min(), values.max(), points)


def _typical_row(column: Any) -> int:
    """A row with the lower median of a column of numbers, or the most frequent other value."""
    values = np.asarray(column)
    if values.dtype != bool:
        try:
            floats = values.astype(float)
            order = np.argsort(floats, kind="stable")  # NaN last
            return int(order[max(int(np.isfinite(floats).sum()) - 1, 0) // 2])
        except (TypeError, ValueError):
            pass
    _, first, count = np.unique(values.astype(str), return_index=True, return_counts=True)
    return int(first[np.argmax(count)])


def _held(X: Any, moving: dict[int, np.ndarray]) -> Any:
    """A table like X whose other columns stay at one value each."""
    m = len(next(iter(moving.values())))
    if not hasattr(X, "columns"):
        X = np.asarray(X)
        held = np.array([X[_typical_row(column), k] for k, column in enumerate(X.T)], dtype=X.dtype)
        kind = float if X.dtype.kind in "iufb" else object
        table = np.tile(held.astype(kind), (m, 1))
        for place, values in moving.items():
            table[:, place] = values
        return table
    columns = {}
    for place, name in enumerate(X.columns):
        if place in moving:
            columns[name] = moving[place]
            continue
        rows = np.full(m, _typical_row(_column(X, place)))
        column = _column(X, place)
        # pandas counts rows by iloc; a polars column is indexed as an array is.
        taken = (
            column.iloc[rows].reset_index(drop=True) if hasattr(column, "iloc") else column[rows]
        )
        columns[name] = taken
    return type(X)(columns)


def _samples(
    estimator: Any, table: Any, n_samples: int, noisy: bool, random_state: np.random.RandomState
) -> np.ndarray:
    """Joint samples through pipelines and transforms, (m, s) or (m, t, s)."""
    core, rows, transforms = behind_transforms(estimator, table)
    if isinstance(core, MultiOutputRegressor):
        each = [_samples(one, rows, n_samples, noisy, random_state) for one in core.estimators_]
        draws = np.stack(each, axis=1)
    elif not hasattr(core, "sample_y"):
        raise TypeError(f"{type(core).__name__} draws no samples: use n_samples=0.")
    else:
        try:
            if noisy:
                draws = core.sample_y(rows, n_samples, random_state=random_state)
            else:
                draws = _latent(core, rows, n_samples, random_state)
        except ValueError as error:
            raise ValueError(f"{error} n_samples=0 draws the posterior without samples.") from error
    for transform in reversed(transforms):
        draws = transformed_back(transform, draws)
    return draws


def _latent(core: Any, rows: Any, n_samples: int, random_state: Any) -> np.ndarray:
    """Samples of the latent function.

    Covariances of predictions have the noise on their diagonal, which is replaced.
    """
    mean, covariance = core.predict(rows, return_cov=True)
    std = core.predict_std(rows, include_noise=False)
    if mean.ndim == 1:
        return _joint(mean, covariance, std, n_samples, random_state)
    each = [
        _joint(mean[:, j], covariance[..., j], std[:, j], n_samples, random_state)
        for j in range(mean.shape[1])
    ]
    return np.stack(each, axis=1)


def _joint(
    mean: np.ndarray, covariance: np.ndarray, std: np.ndarray, n_samples: int, random_state: Any
) -> np.ndarray:
    np.fill_diagonal(covariance, np.square(std))
    # Rounding can make eigenvalues slightly negative, which needs no warning.
    draws = random_state.multivariate_normal(mean, covariance, n_samples, check_valid="ignore")
    return draws.T
