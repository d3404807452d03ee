"""The course of training: objective, hyperparameters, residuals and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._predicted import core_of
from ._shared import axes_for, chosen_kinds, hyperparameter_names, styled

_KINDS = ("objective", "hyperparameters", "residuals", "seconds")


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingDisplay:
    """The training of a fitted estimator, step by step, and the seconds of its stages.

    It has four panels: the objective of training, the hyperparameters on a logarithmic axis, the
    relative residuals of the linear solves (if there were any), and the wall time of each stage.
    Make one by `from_estimator`.

    Parameters
    ----------
    stage : ndarray of str of shape (s,)
        Stage of each step, as in ``history_``.

    objective : ndarray of shape (s,)
        Value of the objective; NaN for steps that do not compute it.

    objective_name : ndarray of str of shape (s,)
        Name of the objective.

    hyperparameters : ndarray of shape (s, p)
        Values of the hyperparameters, not their logarithms; NaN in stages with other ones.

    hyperparameter_names : list of str
        A name for each of them.

    residual, probe_residual : ndarray of shape (s,)
        Largest relative residual of the targets, and mean relative residual of the probes.

    seconds : dict of str to float
        Wall time of each stage.

    Attributes
    ----------
    ax_ : matplotlib Axes, or ndarray of them
        The axes; an array of them for several kinds.

    figure_ : matplotlib Figure

    lines_ : dict of str to list of matplotlib Line2D
        By kind: one line for each stage (objective), hyperparameter or residual.

    bars_ : matplotlib BarContainer or None
        The seconds.

    See Also
    --------
    skscalablegp.training.FitReport : The same fit in words.
    """

    stage: np.ndarray
    objective: np.ndarray
    objective_name: np.ndarray
    hyperparameters: np.ndarray
    hyperparameter_names: list[str]
    residual: np.ndarray
    probe_residual: np.ndarray
    seconds: dict[str, float]

    @classmethod
    def from_estimator(
        cls,
        estimator,
        *,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> TrainingDisplay:
        """Draw ``history_`` and ``fit_report_``.

        Parameters
        ----------
        estimator : estimator
            A fitted regressor or classifier of this package; also the last step of a pipeline, the
            best estimator of a search, or the regressor of a `TransformedTargetRegressor`.

        kind, ax, line_kwargs, bar_kwargs
            See `plot`.

        Returns
        -------
        display : TrainingDisplay

        Raises
        ------
        TypeError
            For an estimator without ``history_``: one of another package, or one that is not
            fitted.
        ValueError
            For wrong values.
        """
        core = core_of(estimator)
        history, report = (getattr(core, name, None) for name in ("history_", "fit_report_"))
        if history is None or report is None:
            raise TypeError(
                f"estimator must be a fitted estimator of skscalablegp, or a pipeline or search "
                f"around one: {type(core).__name__} has no history_."
            )
        thetas = [np.asarray(theta, dtype=float) for theta in history["theta"]]
        names = _names(core, {len(theta) for theta in thetas})
        p = len(names)
        values = [np.exp(t) if len(t) == p else np.full(p, np.nan) for t in thetas]
        display = cls(
            stage=np.array(history["stage"], dtype=str),
            objective=np.array(history["objective"], dtype=float),
            objective_name=np.array(history["objective_name"], dtype=str),
            hyperparameters=np.reshape(values, (len(thetas), p)),
            hyperparameter_names=names,
            residual=np.array(history["residual"], dtype=float),
            probe_residual=np.array(history["probe_residual"], dtype=float),
            seconds={k: v for k, v in report.seconds.items() if k != "total"},
        )
        return display.plot(kind=kind, ax=ax, line_kwargs=line_kwargs, bar_kwargs=bar_kwargs)

    def plot(
        self,
        *,
        kind=None,
        ax=None,
        line_kwargs: dict | None = None,
        bar_kwargs: dict | None = None,
    ) -> TrainingDisplay:
        """Draw the numbers of this display.

        Parameters
        ----------
        kind : {"objective", "hyperparameters", "residuals", "seconds"}, sequence of them or None, \
                default=None
            Panels to draw. None draws all that are not empty: a factorisation has no residuals, and
            some stochastic gradients come without values of the objective.

        ax : matplotlib Axes, or array-like of them, default=None
            One axes for each kind; None makes a new figure.

        line_kwargs : dict, default=None
            Keywords of ``Axes.plot``.

        bar_kwargs : dict, default=None
            Keywords of ``Axes.barh`` for the seconds.

        Returns
        -------
        display : TrainingDisplay
            This one.

        Raises
        ------
        ValueError
            For a kind whose panel would be empty.
        """
        shown = self._shown()
        kinds = shown if kind is None else chosen_kinds(kind, _KINDS)
        for one in kinds:
            if one not in shown:
                raise ValueError(
                    f"kind={one!r} has nothing to show in this training, which has "
                    f"{', '.join(map(repr, shown))}."
                )
        line = styled({}, "line_kwargs", line_kwargs)
        bar = styled({}, "bar_kwargs", bar_kwargs)
        axes = axes_for(self, ax, len(kinds), not isinstance(kind, str))
        self.lines_, self.bars_ = {}, None
        panels = {
            "objective": self._plot_objective,
            "hyperparameters": self._plot_hyperparameters,
            "residuals": self._plot_residuals,
        }
        for one, panel in zip(kinds, axes, strict=True):
            if one == "seconds":
                names = list(self.seconds)
                self.bars_ = panel.barh(names, list(self.seconds.values()), **bar)
                panel.invert_yaxis()
                panel.set(xlabel="seconds")
                continue
            self.lines_[one] = panels[one](panel, line)
            panel.set(xlabel="step")
            # Many names would cover the lines. Axes of the user have no room beside them.
            beside = ax is None and len(self.lines_[one]) > 6
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if beside else {}
            panel.legend(fontsize="x-small", **place)
        return self

    def _shown(self) -> tuple[str, ...]:
        has = {
            "objective": np.isfinite(self.objective).any(),
            "hyperparameters": self.hyperparameters.size > 0,
            "residuals": (self.residual > 0).any() or (self.probe_residual > 0).any(),
            "seconds": bool(self.seconds),
        }
        return tuple(kind for kind in _KINDS if has[kind])

    def _plot_objective(self, ax: Any, style: dict[str, Any]) -> list[Any]:
        # Stages with another objective have another scale, on which this one would look flat.
        known = np.flatnonzero(np.isfinite(self.objective))
        name = self.objective_name[known[-1]]
        lines = []
        for stage in dict.fromkeys(self.stage[known]):
            at = known[(self.stage[known] == stage) & (self.objective_name[known] == name)]
            if len(at):
                lines += ax.plot(at + 1, self.objective[at], **{"label": stage, **style})
        ax.set(ylabel=name)
        return lines

    def _plot_hyperparameters(self, ax: Any, style: dict[str, Any]) -> list[Any]:
        step = np.arange(1, len(self.stage) + 1)
        lines = []
        for values, name in zip(self.hyperparameters.T, self.hyperparameter_names, strict=True):
            lines += ax.plot(step, values, **{"label": name, **style})
        ax.set(ylabel="hyperparameter", yscale="log")
        return lines

    def _plot_residuals(self, ax: Any, style: dict[str, Any]) -> list[Any]:
        step = np.arange(1, len(self.stage) + 1)
        lines = []
        for values, name in ((self.residual, "targets"), (self.probe_residual, "probes")):
            at = values > 0
            if at.any():
                lines += ax.plot(step[at], values[at], **{"label": name, **style})
        ax.set(ylabel="relative residual", yscale="log")
        return lines


def _names(core: Any, lengths: set[int]) -> list[str]:
    """A name for each hyperparameter of the training steps, given their number.

    Some stages have more than the kernel's, of which the last is a separate noise, or other ones.
    """
    names = hyperparameter_names(core.kernel_) if hasattr(core, "kernel_") else []
    for known in (names, [*names, "noise"]):
        if len(known) in lengths:
            return known
    return [f"hyperparameter {k}" for k in range(max(lengths, default=0))]
