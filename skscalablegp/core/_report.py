"""The report of a fit, for people and programs."""

from __future__ import annotations

from html import escape

import numpy as np
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils import Bunch


class FitReport(Bunch):
    """The report of a fit; ``print(model.fit_report_)`` shows it as text.

    Entries can be read as items and as attributes.

    Parameters
    ----------
    status : str
        How the fit ended: "converged"; "completed" (a planned number of steps was made);
        "max_iter" (a limit stopped an unfinished optimisation); "max_seconds"; "callback";
        "interrupted"; "stagnated" (the optimiser found no better point although the gradient is
        not small, or a linear solve stopped making progress above its tolerance); "no_signal" (the
        model predicts little more than the mean, although a linear model or boosted trees predict
        held-out rows clearly better); "diverged".
    stop_reason : str
        The status as a sentence.
    choices : dict of str to Choice
        The value of each parameter that was "auto", with the reason. Parameters in `ignored` are
        left out.
    ignored : dict of str to str
        Parameters that had no effect in this fit, with the reason. The text lists those that are in
        `changed`.
    changed : tuple of str
        Parameters that differ from their defaults.
    n_iter : int
        Number of training steps in all stages together.
    epochs : float
        Total number of solver epochs, of n^2 kernel entries each; for random batches, number of
        passes over the rows.
    seconds : dict of str to float
        Wall time of each stage, and "total".
    residuals : ndarray or None
        Relative residuals of the last linear solve, if there was one.
    n_unconverged : int
        Number of linear solves that did not reach their tolerance.
    jitter : float
        Number that was added to a diagonal to make a matrix positive definite.
    at_bounds : dict of str to str
        A sentence for each trained hyperparameter that ended at a bound. The keys are the name and
        the number of the element, such as "k1__length_scale 0".
    summary : str
        The method in words.
    warnings : tuple of str
        The warnings of the fit, without the `remark`.
    remark : str
        Why another model suits the table better, and which; empty unless a check found that.
    far_targets : str
        Which targets are so far from all others that they dominate a fit under normal noise; empty
        if there are none.
    unseen : str
        Only of automatic estimators: which categories and missing entries a later table may have
        that the fitted one does not; empty for numbers alone.
    columns : dict of str to float
        The columns that matter most, at most five: those with the smallest length scales, in units
        of the column's spread, a robust standard deviation. Their ratios compare the columns; all
        are large if the amplitude of the kernel is. Empty if the kernel does not have a length
        scale for each column. Columns are left out whose length scale is beyond ten spreads (or ten
        times the smallest number, if that is above one) times the root of the number of columns.
    start : str
        Where the starting hyperparameters come from, and their log likelihood; empty if there was
        nothing to compare.
    ranks : int
        Number of ranks that shared the work of this fit (`distribute`); 1 if one process did all.
    gradient_norm : float
        Norm of the objective's gradient in the logarithms of the hyperparameters at the last step.
        Only where training computes or estimates it.
    failures : tuple of str
        Restarts or experts whose training failed while others succeeded.
    resumed : float
        Only if the fit continued from a checkpoint: the seconds of the earlier fit, which are part
        of those in `seconds`.
    log_prior, log_posterior : float
        Only with `priors`: their log density at the trained hyperparameters, and the sum of that
        and the log marginal likelihood (or its bound), which training has maximised.
    """

    def __repr__(self) -> str:
        """Short, for the table of fitted attributes in scikit-learn's diagrams."""
        return f"{type(self).__name__}({self.status}, {self.seconds.get('total', 0.0):.2g} s)"

    def _repr_html_(self) -> str:
        """One line, below which the text unfolds; its colours are those of the page."""
        line = "white-space: nowrap; overflow: hidden; text-overflow: ellipsis; cursor: pointer"
        look = "color: inherit; background: none; margin: 0.3em 1em"
        # Sentences are wrapped on narrow screens. A table below the summary scrolls instead.
        table = self.get("summary", "").partition("\n")[2]
        before, _, after = str(self).partition(table) if table else (str(self), "", "")
        parts = [(before, "pre-wrap"), (table, "pre; overflow-x: auto"), (after, "pre-wrap")]
        shown = "".join(
            f'<pre style="{look}; white-space: {way}">{escape(part.strip())}</pre>'
            for part, way in parts
            if part.strip()
        )
        return (
            f'<details style="max-width: 100%"><summary style="{line}">'
            f"Fit report: {escape(self._line())}</summary>{shown}</details>"
        )

    def _line(self) -> str:
        """How the fit ended, its seconds, the method, and the chosen values."""
        ended = f"{self.status}, {self.seconds.get('total', 0.0):.2g} s"
        chosen = [f"{name}={choice.value}" for name, choice in self.choices.items()]
        method = self.get("summary", "").partition("\n")[0].rstrip(".")
        return " ".join(
            "; ".join(part for part in (ended, method, ", ".join(chosen)) if part).split()
        )

    def __str__(self) -> str:  # noqa: C901 (one branch for each case)
        lines = [f"{self.status}: {self.stop_reason}"]
        summary = self.get("summary", "")
        if summary.startswith("the exact process"):
            lines[0] += f"; {summary}"
        elif summary:
            lines.append(summary)
        if self.get("remark"):
            lines.append(self.remark)
        if self.get("far_targets"):
            lines.append(self.far_targets)
        if self.get("unseen"):
            lines.append(self.unseen)
        if self.get("columns"):
            lines.append(_listed(self.columns))
        if self.get("start"):
            lines.append(self.start)
        if "resumed" in self:
            lines.append(f"continued from a checkpoint after {self.resumed:.2g} s")
        total = self.seconds.get("total", 0.0)
        stages = ", ".join(
            f"{name} {seconds:.2g} s" for name, seconds in self.seconds.items() if name != "total"
        )
        lines.append(f"{total:.2g} s in all" + (f": {stages}" if stages else ""))
        for name, choice in self.choices.items():
            lines.append(f"{name} = {choice}")
        changed = self.get("changed", ())
        lines += [
            f"{name} had no effect: {reason}"
            for name, reason in self.ignored.items()
            if name in changed
        ]
        if self.get("ranks", 1) > 1:
            lines.append(f"the work was shared among {self.ranks} ranks")
        if self.n_unconverged:
            lines.append(f"{self.n_unconverged} linear solves did not reach their tolerance")
        lines += self.get("failures", ())
        if "log_prior" in self:
            lines.append(f"log prior {self.log_prior:.5g}, log posterior {self.log_posterior:.5g}")
        if self.jitter:
            lines.append(f"jitter {self.jitter:.1e}")
        return "\n".join([*lines, *self.at_bounds.values()])


def _listed(columns: dict[str, float]) -> str:
    """The columns with their relevance: inverse length scales, relative to the first column's."""
    first, *others = columns
    shortest = columns[first]
    shown = [f"{first} 1", *(f"{name} {shortest / columns[name]:.2g}" for name in others)]
    if not others:
        return f"columns that matter most: {first} alone"
    return (
        f"columns that matter most: {', '.join(shown)} (relevance relative to the first: the "
        "spread of a column over its length scale)"
    )


# What it means that hyperparameters of the default kernel end at a bound.
_MEANINGS = {
    ("noise_level", "lower"): "the targets show no noise above it.",
    ("length_scale", "upper"): "the model hardly varies along it.",
}


def at_bounds(kernel: Kernel, default: bool = False) -> dict[str, str]:
    """A sentence for each hyperparameter at a bound: scikit-learn's warning, by its rule.

    Keys are the name and the number of the element, such as "k1__length_scale 0". Bounds of the
    `default` kernel are nobody's to change. The sentences then say what they mean.
    """
    near = np.isclose(kernel.bounds, np.atleast_2d(kernel.theta).T)
    free = [h for h in kernel.hyperparameters if not h.fixed]
    places = [(h.name, k, bounds) for h in free for k, bounds in enumerate(h.bounds)]
    sentences = {}
    for (name, k, bounds), (lower, upper) in zip(places, near, strict=True):
        if lower or upper:
            side, verb = ("lower", "Decreasing") if lower else ("upper", "Increasing")
            bound = bounds[0 if lower else 1]
            meaning = _MEANINGS.get((name.rpartition("__")[2], side)) if default else None
            sentences[f"{name} {k}"] = (
                f"{name} {k} is at its {side} bound {bound:.3g}: {meaning}"
                if meaning
                else f"The optimal value found for dimension {k} of parameter {name} is close to "
                f"the specified {side} bound {bound}. {verb} the bound and calling fit again may "
                "find a better value."
            )
    return sentences
