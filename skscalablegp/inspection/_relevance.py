"""Relevance of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.inspection import permutation_importance

from .._length_scales import length_scales
from .._predicted import behind_transforms
from ..metrics import neg_nlpd_scorer
from ._shared import axes_for, check_count, check_predicts, chosen_kinds, styled

_KINDS = ("length_scale", "permutation")


@dataclass(kw_only=True, eq=False, repr=False)
class RelevanceDisplay:
    """Relevance of columns, by the kernel's length scales and by permutation.

    The first measure is the standard deviation of a column divided by its length scale; a column
    near zero hardly changes the prediction. The second is the loss of score on held-out rows after
    the column has been shuffled: the increase of the negative log predictive density for
    regressors, and of the log loss for classifiers. Correlated columns share their importance. Make
    one by `from_estimator`.

    Parameters
    ----------
    spreads : dict of str to ndarray
        Standard deviation over length scale, for each part of the kernel with one length scale per
        column; NaN for columns on which the part does not depend. Empty if there is no such part.

    kernel_columns : list of str
        Names of the kernel's columns, which are the output of the other steps of a pipeline.

    importances : ndarray of shape (d, r) or None
        Loss of score for each column of X and each shuffle.

    columns : list of str
        Names of the columns of X.

    unit : str, default="NLPD"
        Score whose loss the importances are.

    Attributes
    ----------
    ax_ : matplotlib Axes, or ndarray of them
        The axes; an array of them for several kinds.

    figure_ : matplotlib Figure

    bars_ : dict of str to list of matplotlib BarContainer
        By kind: one for each part of the kernel, or one with the mean importances.

    See Also
    --------
    sklearn.inspection.permutation_importance : The function that computes the importances.
    """

    spreads: dict[str, np.ndarray]
    kernel_columns: list[str]
    importances: np.ndarray | None
    columns: list[str]
    unit: str = "NLPD"

    @classmethod
    def from_estimator(  # noqa: PLR0913 (one for each setting)
        cls,
        estimator,
        X,
        y: ArrayLike | None = None,
        *,
        scoring=None,
        n_repeats: int = 5,
        random_state=None,
        kind=None,
        max_columns: int = 20,
        ax=None,
        bar_kwargs: dict | None = None,
    ) -> RelevanceDisplay:
        """Compute and draw the relevance of the columns.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor that `skscalablegp.metrics.predict_std` accepts, or a classifier with
            ``predict_proba``.

        X : array-like of shape (n, d)
            Rows, preferably held-out ones.

        y : array-like of shape (n,) or (n, t), default=None
            Their observed targets. Without them there is no permutation importance.

        scoring : str, callable or None, default=None
            Score of the permutation importance, as in scikit-learn. None takes
            `skscalablegp.metrics.neg_nlpd_scorer` for regressors and ``"neg_log_loss"`` for
            classifiers.

        n_repeats : int, default=5
            Number of times that each column is shuffled.

        random_state : int, RandomState instance or None, default=None
            Seed of the shuffles.

        kind, max_columns, ax, bar_kwargs
            See `plot`.

        Returns
        -------
        display : RelevanceDisplay

        Raises
        ------
        TypeError
            For an estimator that predicts no standard deviations and no probabilities.
        ValueError
            For a kind whose panel would be empty, and for wrong values.
        """
        check_predicts(estimator)
        wanted = _KINDS if kind is None else chosen_kinds(kind, _KINDS)
        check_count("n_repeats", n_repeats, 1)
        if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
            raise ValueError(f"scoring must be one score, by name or callable; got {scoring!r}.")
        importances = None
        spreads, kernel_columns = _spreads(estimator, X) if "length_scale" in wanted else ({}, [])
        if "permutation" in wanted and y is not None:
            own = "neg_log_loss" if is_classifier(estimator) else neg_nlpd_scorer
            importances = permutation_importance(
                estimator,
                X,
                y,
                scoring=own if scoring is None else scoring,
                n_repeats=n_repeats,
                random_state=random_state,
            ).importances
        display = cls(
            spreads=spreads,
            kernel_columns=kernel_columns,
            importances=importances,
            columns=_names(X, 0 if importances is None else len(importances)),
            unit=_unit(estimator, scoring),
        )
        return display.plot(kind=kind, max_columns=max_columns, ax=ax, bar_kwargs=bar_kwargs)

    def plot(
        self,
        *,
        kind=None,
        max_columns: int = 20,
        ax=None,
        bar_kwargs: dict | None = None,
    ) -> RelevanceDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        kind : {"length_scale", "permutation"}, sequence of them or None, default=None
            Panels to draw; None draws all that are not empty.

        max_columns : int, default=20
            Maximum number of columns in a panel; the most relevant ones are shown.

        ax : matplotlib Axes, or array-like of them, default=None
            One axes for each kind; None makes a new figure.

        bar_kwargs : dict, default=None
            Keywords of ``Axes.barh``.

        Returns
        -------
        display : RelevanceDisplay
            This one.

        Raises
        ------
        ValueError
            For a kind whose panel would be empty.
        """
        why = {
            "length_scale": "no part of the kernel has a length scale for each column of X",
            "permutation": "there is no y to score against",
        }
        shown = [
            one
            for one, there in zip(_KINDS, (self.spreads, self.importances is not None), strict=True)
            if there
        ]
        kinds = tuple(shown) if kind is None else chosen_kinds(kind, _KINDS)
        for one in kinds if kinds else _KINDS[:1]:
            if one not in shown:
                raise ValueError(f"kind={one!r} has nothing to show: {why[one]}.")
        check_count("max_columns", max_columns, 1)
        bar = styled({}, "bar_kwargs", bar_kwargs)
        axes = axes_for(self, ax, len(kinds), not isinstance(kind, str))
        self.bars_ = {}
        for one, panel in zip(kinds, axes, strict=True):
            draw = self._plot_spreads if one == "length_scale" else self._plot_importances
            self.bars_[one] = draw(panel, max_columns, bar)
            panel.invert_yaxis()
        return self

    def _plot_spreads(self, ax: Any, most: int, style: dict[str, Any]) -> list[Any]:
        values = np.array(list(self.spreads.values()))
        order = np.argsort(-np.nan_to_num(values).max(0), kind="stable")[:most]
        height = 0.8 / len(values)
        bars = []
        for k, (name, row) in enumerate(zip(self.spreads, values, strict=True)):
            at = np.arange(len(order)) + (k + 0.5) * height - 0.4
            bars.append(ax.barh(at, row[order], **{"height": height, "label": name, **style}))
        ax.set_yticks(np.arange(len(order)), [self.kernel_columns[j] for j in order])
        ax.set(xlabel="spread of the column / length scale")
        if len(values) > 1:
            ax.legend(fontsize="small")
        return bars

    def _plot_importances(self, ax: Any, most: int, style: dict[str, Any]) -> list[Any]:
        importances = np.asarray(self.importances)
        mean, spread = importances.mean(1), importances.std(1)
        order = np.argsort(-mean, kind="stable")[:most]
        bars = ax.barh(np.arange(len(order)), mean[order], xerr=spread[order], **style)
        ax.set_yticks(np.arange(len(order)), [self.columns[j] for j in order])
        ax.set(xlabel=f"loss when shuffled ({self.unit})")
        return [bars]


def _unit(estimator: Any, scoring: Any) -> str:
    """The score whose loss is measured."""
    if scoring is None:
        return "log loss" if is_classifier(estimator) else "NLPD"
    return scoring if isinstance(scoring, str) else "score"


def _spreads(estimator: Any, X: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Standard deviations of the kernel's columns over their length scales, and their names."""
    core, rows, _ = behind_transforms(estimator, X)
    while hasattr(core, "estimator_"):  # meta-estimators pass the rows on
        core, rows, _ = behind_transforms(core.estimator_, rows)
    names = _names(rows, 0)
    kernel = getattr(core, "kernel_", None)
    rows = np.asarray(rows)
    if kernel is None or _network(core) or rows.ndim != 2:
        return {}, names
    d = rows.shape[1]
    spreads = {}
    for name, _, columns, scales in length_scales(kernel, list(range(d))):
        if len(scales) != len(columns):
            continue
        spread = np.full(d, np.nan)
        spread[columns] = rows[:, columns].astype(float).std(0) / scales
        spreads[name] = spread
    return spreads, names or _column_names(estimator, d)


def _network(core: Any) -> Any:
    """The network between the columns and the kernel, or None."""
    chosen = core.fit_report_.choices if hasattr(core, "fit_report_") else {}
    own = core.get_params(deep=False).get("feature_extractor")
    return chosen["feature_extractor"].value if "feature_extractor" in chosen else own


def _names(X: Any, d: int) -> list[str]:
    """Names of a table's columns, or their numbers if it has none."""
    return (
        [str(c) for c in X.columns] if hasattr(X, "columns") else [f"column {k}" for k in range(d)]
    )


def _column_names(estimator: Any, d: int) -> list[str]:
    """Names of the columns that a pipeline's last step takes, if they are known."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    estimator = getattr(estimator, "regressor_", estimator)
    try:
        names = estimator[:-1].get_feature_names_out()
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        names = getattr(estimator, "feature_names_in_", ())
    return [str(c) for c in names] if len(names) == d else [f"column {k}" for k in range(d)]
