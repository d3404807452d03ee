"""The members that an automatic estimator has compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.base import is_classifier

from .._predicted import core_of
from ._shared import axes_for, chosen_kinds, styled

_KINDS = ("nll", "weight", "seconds")


@dataclass(kw_only=True, eq=False, repr=False)
class LeaderboardDisplay:
    """The members of an automatic estimator: score on held-out rows, weight and seconds of each.

    Members are in the order of ``leaderboard_``, the one with the lowest score at the top. A member
    has no point if it has no score, because it was dropped or the time ended before. Make one by
    `from_estimator`.

    Parameters
    ----------
    members : list of str
        Names of the members.

    nll : ndarray of shape (k,)
        Mean negative log density of held-out rows, for classes the log loss; NaN for members that
        were not validated.

    weight : ndarray of shape (k,)
        Share of each member in the predictions.

    seconds : ndarray of shape (k,)
        Wall time of the fits of each member.

    score_name : str, default="held-out NLL"
        Name of the score.

    Attributes
    ----------
    ax_ : matplotlib Axes, or ndarray of them
        The axes; an array of them for several kinds.

    figure_ : matplotlib Figure

    line_ : matplotlib Line2D or None
        The points of the scores.

    bars_ : dict of str to matplotlib BarContainer
        The bars of the weights and of the seconds, by kind.

    See Also
    --------
    skscalablegp.AutoGPRegressor : Its ``leaderboard_`` has the same numbers, CRPS and notes.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import AutoGPRegressor
    >>> from skscalablegp.inspection import LeaderboardDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(60, 2))
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    >>> gp = AutoGPRegressor(["linear", "exact"], random_state=0).fit(X, y)
    >>> display = LeaderboardDisplay.from_estimator(gp)
    >>> display.members
    ['exact', 'linear']
    """

    members: list[str]
    nll: np.ndarray
    weight: np.ndarray
    seconds: np.ndarray
    score_name: str = "held-out NLL"

    @classmethod
    def from_estimator(
        cls,
        estimator,
        *,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> LeaderboardDisplay:
        """Draw ``leaderboard_``.

        Parameters
        ----------
        estimator : estimator
            A fitted `AutoGPRegressor` or `AutoGPClassifier`; also the last step of a pipeline, the
            best estimator of a search, or the regressor of a `TransformedTargetRegressor`.

        kind, ax, line_kwargs, bar_kwargs
            See `plot`.

        Returns
        -------
        display : LeaderboardDisplay

        Raises
        ------
        TypeError
            For an estimator without ``leaderboard_``: one that compares no members, or one that is
            not fitted.
        ValueError
            For wrong values.
        """
        core = core_of(estimator)
        board = getattr(core, "leaderboard_", None)
        if board is None:
            raise TypeError(
                f"estimator must be a fitted AutoGPRegressor or AutoGPClassifier, or a pipeline or "
                f"search around one: {type(core).__name__} has no leaderboard_."
            )
        columns = board.to_dict()
        display = cls(
            members=columns["member"],
            nll=np.array(columns["nll"], dtype=float),
            weight=np.array(columns["weight"], dtype=float),
            seconds=np.array(columns["seconds"], dtype=float),
            score_name="held-out log loss" if is_classifier(core) else "held-out NLL",
        )
        return display.plot(kind=kind, ax=ax, line_kwargs=line_kwargs, bar_kwargs=bar_kwargs)

    def plot(
        self,
        *,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> LeaderboardDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        kind : {"nll", "weight", "seconds"}, sequence of them or None, default=None
            Panels to draw. None draws all; the scores only if a member has one.

        ax : matplotlib Axes, or array-like of them, default=None
            One axes for each kind; None makes a new figure with the panels in one row.

        line_kwargs : dict, default=None
            Keywords of ``Axes.plot`` for the scores.

        bar_kwargs : dict, default=None
            Keywords of ``Axes.barh`` for the weights and the seconds.

        Returns
        -------
        display : LeaderboardDisplay
            This one.

        Raises
        ------
        ValueError
            For scores where no member has one, and for wrong values.
        """
        known = np.isfinite(self.nll)
        shown = _KINDS if known.any() else _KINDS[1:]
        kinds = shown if kind is None else chosen_kinds(kind, _KINDS)
        if "nll" in kinds and not known.any():
            raise ValueError("kind='nll' has nothing to show: no member has a held-out score.")
        line = styled({}, "line_kwargs", line_kwargs)
        bar = styled({}, "bar_kwargs", bar_kwargs)
        axes = axes_for(self, ax, len(kinds), not isinstance(kind, str), one_row=True)
        at = np.arange(len(self.members))
        self.line_, self.bars_ = None, {}
        for one, panel in zip(kinds, axes, strict=True):
            if one == "nll":
                style = {"marker": "o", "linestyle": "", **line}
                (self.line_,) = panel.plot(self.nll[known], at[known], **style)
                label = f"{self.score_name} (lower is better)"
            else:
                self.bars_[one] = panel.barh(at, getattr(self, one), **bar)
                label = "wall time (seconds)" if one == "seconds" else "share of the predictions"
            panel.set(xlabel=label, ylim=(len(at) - 0.5, -0.5))
            panel.set_yticks(at, self.members)
            panel.grid(axis="y", alpha=0.3)
            panel.set_axisbelow(True)
        return self
