"""The estimators that choose, compare and weight models by themselves, within a time budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, check_consistent_length

from .._compat import fit_context
from .._validation import check_magnitude, check_noise_variance, validated
from ..core import SMALL_TABLE, FitRun, GPPredictionBase
from ._below import fit_below, told_noise
from ._encoding import TableEncoder
from ._leaderboard import Leaderboard, LeaderboardRow
from ._members import Candidate, candidates
from ._noise import FEWEST_ROWS, best_noise
from ._noisy import NoisyRegressorBase
from ._pool import (
    Validated,
    calibrated,
    clearly_smaller,
    mean_crps,
    mixed,
    negative_log_density,
    occur_once,
    pool_weights,
)
from ._scaled import Scaled, noise_features
from ._stacked import StackedGPRegressor
from ._target_codes import TargetCodes

# With fewer rows no row can be spared, and the exact process predicts alone.
_FEWEST = 5
# Folds up to 2,000 rows. Larger tables have one held-out part, with at most this number of rows:
# more would cost predictions and hardly change the weights.
_FOLDS, _MOST_HELD_OUT = 5, 10_000
# Shares of the time: for the members without the held-out rows, of the whole; for the noise model,
# of what is left then.
_FOR_MEMBERS, _FOR_NOISE = 0.6, 0.5
# Copies of the encoded table that fits of members make.
_COPIES = 4
# A fit on all rows begins only if the measured time of the fit without the held-out rows, in
# proportion to the rows, times this factor, is left.
_MARGIN = 1.3
# A member begins only if this share of the whole time is left for members.
_LEAST_SHARE = 0.02
# How a fit ends that time, a callback or an interrupt has cut.
_CUT = ("max_seconds", "interrupted", "callback")
# What a member may raise without ending the fit of the others.
_FAILURES = (ArithmeticError, ValueError, TypeError, RuntimeError, MemoryError, TimeoutError)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A table, and its rows that members are fitted to and judged by.

    `folds` has pairs of the rows to fit and the rows to predict: one pair, or a pair for each fold.
    `held` are all predicted rows, in rising order, and `scored` says which of them occur once.
    """

    X: np.ndarray
    y: np.ndarray
    known: np.ndarray | None
    codes: list[int]
    folds: list[tuple[np.ndarray, np.ndarray]]
    held: np.ndarray
    scored: np.ndarray

    @property
    def cross_fitted(self) -> bool:
        return len(self.folds) > 1


class AutoGPRegressor(NoisyRegressorBase):
    """A calibrated regression without settings: members are compared on rows they have not seen.

    Linear, tree and Gaussian-process models are fitted one after the other, the cheapest first,
    without a part of the rows. After each one, weights are computed from the density of these
    held-out rows; a single member keeps all the weight unless a mixture is clearly better. A noise
    model and the shape of the tails are learned from the errors of this mixture on held-out rows.
    What is left of the time refits the members that have weight on all rows. Whenever the time
    ends, the model that predicts has been judged by rows that it had not seen.

    Tables may have numbers, categories, booleans, dates and missing values.

    Parameters
    ----------
    members : list or "auto", default="auto"
        Names of members, and pairs of a name and a regressor, in the order of their fits. The names
        are "linear" (ridge regression), "trees" (boosted), "exact" (the exact process; above 2,000
        rows on 1,500 of them), "neighbors" (`NNGPRegressor` with the kernel of the exact process),
        "iterative" (`IterativeGPRegressor` on all rows, with that kernel), "randomized_trees",
        "deep" (`SCGDDKLRegressor`) and "trained_neighbors" (`NNGPRegressor`, whose training goes on
        from that kernel). "auto" compares
        those that suit the number of rows. Regressors of other packages, such as CatBoost's, join
        as pairs, with or without ``return_std``.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. At most 10,000 rows are held out; up to 2,000 rows
        five folds, and leave-one-out predictions of the exact process in closed form, replace them.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        regressors if they have no seed of their own.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. A member
        that needs more is dropped.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" leaves it to each member.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the regressors of this package.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
        None fits all members, and repeats identically. Sixty seconds suit most tables.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    leaderboard_ : Leaderboard
        The members with their NLL and CRPS on held-out rows in units of the target, their weights,
        seconds and, where they were dropped, the reason; it prints as a table.
    explain_ : str
        What predicts, and how it was chosen.
    members_ : list of str
        Names of the members that predict.
    estimators_ : list of regressor
        These members, fitted.
    weights_ : ndarray of shape (k,)
        Their weights.
    noise_gain_ : float
        The rise of the log density of held-out rows by the noise model, in nats per row.
    held_out_ : ndarray of shape (m,)
        Numbers of the held-out rows; all rows where folds or leave-one-out predictions are used.
    held_out_mean_, held_out_std_ : ndarray of shape (m,)
        Predictions of these rows by the weighted members that had not seen them, before the noise
        model.
    encoding_ : list of str
        How the columns that are no plain numbers were encoded.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the fits below.
    fit_report_ : FitReport
        How the fit ended, and seconds by stage.
    device_, dtype_ : str
        Device of the fit, and precision of the predictions.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    StackedGPRegressor : Weights for a given list of regressors, by squared errors.
    HeteroscedasticRegressor : A noise model over one regressor.

    Notes
    -----
    The density of a mixture is that of the normal distribution with its mean and variance, which
    also predicts. Standard deviations of each member are multiplied by a factor that its errors on
    held-out rows determine; a member without any receives the size of these errors. Rows that occur
    more than once are not used for this, because a copy among the fitted rows would tell the
    target. Length scales of the exact process on 1,500 rows tell which columns matter; "neighbors"
    and "iterative" share them.

    The cost is O(n log n) in the number n of rows, for trees and for the search of neighbours;
    "iterative", which is O(n^2), is compared up to 10,000 rows.

    References
    ----------
    D. H. Wolpert (1992), Stacked generalization.
    Y. Yao, A. Vehtari, D. Simpson, A. Gelman (2018), Using stacking to average Bayesian predictive
    distributions.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import AutoGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(100, 2))
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(100)
    >>> gp = AutoGPRegressor(random_state=0).fit(X, y)
    >>> gp.members_
    ['exact']
    >>> mean, std = gp.predict(X[:3], return_std=True)
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        members: Any = "auto",
        *,
        validation_fraction: Any = 0.2,
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self._set(locals())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> AutoGPRegressor:
        """Compare the members, weight them, learn the noise, and refit them on all rows.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d)
            Training rows: numbers, categories, booleans, dates and missing values.
        y : array-like of shape (n,)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. Regressors of other
            packages receive it as weights, if they take `sample_weight`.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input or settings the model cannot honour.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            X, y, known = self._read_mixed(X, y, noise_variance, run)
            tried = candidates(self.members, len(X))
            if isinstance(self.members, str):
                run.chose("members", [each.name for each in tried], f"{len(X):,} rows")
            self._members: list[Validated] = []
            self._notes: dict[str, tuple[float, str]] = {}
            if len(X) < _FEWEST or not np.ptp(y) > 0:
                self._alone(X, y, known, run)
                return self
            rows = self._divided(X, y, known, run)
            cut = self._compare(tried, rows, run)
            if not run.stopped:
                self._learn_noise(rows, run)
            refitted = [] if run.stopped else self._refit(rows, run)
            self._conclude(rows, refitted, cut, run)
        return self

    def _read_mixed(
        self, X: Any, y: Any, noise_variance: Any, run: FitRun
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The encoded table, the targets and the known noise variances or None."""
        if y is None or _is_numeric(X):
            rules = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            X, y = validated(self, X, y, y_numeric=True, **rules)
            if np.isnan(X).all():
                raise ValueError(
                    f"All {X.size} entries of X are NaN: there is nothing to learn from."
                )
            self._encoder = TableEncoder().fit(X)
        else:
            self._encoder = TableEncoder().fit(X)
            y = validated(self, y=y, y_numeric=True)
            validated(self, X, skip_check_array=True)
            check_consistent_length(X, y)
        encoded = self._encoder.transform(X)
        run.check_memory(
            _COPIES * encoded.nbytes,
            f"The encoded table of {len(encoded):,} rows and {encoded.shape[1]:,} columns",
            "fit fewer rows or columns",
        )
        check_magnitude("X", encoded)
        self.encoding_ = self._encoder.describe()
        known = check_noise_variance(noise_variance, len(encoded), 1)
        self._noise_given = known is not None
        run.begin(encoded, y)
        self.dtype_ = run.chose("dtype", "float64", "predictions; each member has its own")
        return encoded, np.asarray(y, np.float64), None if known is None else known[:, 0]

    def _rows(self, X: Any) -> np.ndarray:
        if not hasattr(self, "_encoder") or _is_numeric(X):
            rules = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            # A model that is not fitted says so.
            X = super()._rows(X) if not hasattr(self, "_encoder") else X
            X = validated(self, X, reset=False, **rules)
            return self._encoder.transform(X)
        encoded = self._encoder.transform(X)
        validated(self, X, reset=False, skip_check_array=True)
        return encoded

    def _alone(self, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun) -> None:
        """The exact process, where the rows or the targets leave nothing to compare."""
        few = len(X) < _FEWEST
        why = f"{len(X)} rows are too few to hold any out" if few else "all targets are equal"
        run.ignores(("members", "validation_fraction"), why)
        fresh = self._opened(candidates(["exact"], len(X))[0].make(None), run)
        inner = clone(fresh)
        begun = run.budget.seconds
        preview = lambda model, below: model._keep(Scaled(below))  # noqa: E731
        status, because = fit_below(inner, run, X, y, preview, **told_noise(fresh, known))
        self._keep(Scaled(inner))
        self.members_, self.estimators_, self.weights_ = ["exact"], [inner], np.ones(1)
        self.noise_gain_, self.held_out_ = 0.0, np.empty(0, int)
        self.held_out_mean_ = self.held_out_std_ = np.empty(0)
        took = run.budget.seconds - begun
        self.leaderboard_ = Leaderboard(
            [LeaderboardRow("exact", np.nan, np.nan, 1.0, took, f"alone: {why}")]
        )
        self.explain_ = f"The exact process predicts alone: {why}."
        run.reports(summary=self.explain_)
        run.ended(status, n_iter=len(run.monitor.steps), because=because)

    def _divided(self, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun) -> _Rows:
        """The rows that members are fitted to and judged by."""
        n, seed = len(X), int(run.random_state.randint(2**31 - 1))
        if n <= SMALL_TABLE:
            run.ignores("validation_fraction", f"{_FOLDS} folds are better on {n:,} rows")
            parts = KFold(min(_FOLDS, n), shuffle=True, random_state=seed)
        else:
            held = max(1, min(int(self.validation_fraction * n), _MOST_HELD_OUT))
            parts = ShuffleSplit(1, test_size=held, random_state=seed)
        folds = [(np.sort(a), np.sort(b)) for a, b in parts.split(X)]
        held = np.sort(np.concatenate([new for _, new in folds]))
        codes = self._encoder.codes_
        return _Rows(X, y, known, codes, folds, held, occur_once(X, held))

    # ------------------------------------------------------------------ members

    def _compare(self, tried: list[Candidate], rows: _Rows, run: FitRun) -> list[str]:
        """Fit and judge the members one after the other; returns those that time has cut."""
        phase, cut = run.budget.share(_FOR_MEMBERS), []
        seeds = [int(run.random_state.randint(2**31 - 1)) for _ in tried]
        kernel, failure = None, None
        for k, candidate in enumerate(tried):
            late = phase.limit is not None and phase.left < _LEAST_SHARE * phase.limit
            if run.stopped or (self._members and late):
                self._notes[candidate.name] = 0.0, "not begun: no time was left for it"
                cut.append(candidate.name)
                continue
            if candidate.shared and kernel is None:
                self._notes[candidate.name] = 0.0, "not begun: there is no kernel to share"
                continue
            part = 1.0
            if phase.limit is not None:
                # Each member may take twice an equal share, since the first ones need less.
                own = phase.left * min(1.0, 2 / (len(tried) - k + 1))
                part = min(own / max(run.budget.left, 1e-9), 0.999)
            begun = run.budget.seconds
            try:
                fresh = self._opened(_seeded(candidate.make(kernel), seeds[k]), run)
                with run.budget.may_end(keep=lambda _: bool(self._members), inner=True) as end:
                    member, ended = self._judged(candidate, fresh, rows, part, run)
            except _FAILURES as error:
                took = run.budget.seconds - begun
                failure = failure or error
                self._notes[candidate.name] = took, f"dropped: {_first_line(error)}"
                continue
            if end.reason is not None:
                took = run.budget.seconds - begun
                self._notes[candidate.name] = took, "dropped: it was cut before its predictions"
                cut.append(candidate.name)
                continue
            took = run.budget.seconds - begun
            note = "cut short" if ended in _CUT else ""
            cut += [candidate.name] if note else []
            self._notes[candidate.name] = took, note
            if candidate.name == "exact":
                kernel = getattr(_last(member.scaled.inner), "kernel_", None)
            self._members.append(replace(member, seconds=took))
            self._weigh(rows)
        if not self._members:
            raise failure or TimeoutError("no member was fitted")
        return cut

    def _judged(  # noqa: PLR0913 (a fit and its judge)
        self, candidate: Candidate, fresh: Any, rows: _Rows, part: float, run: FitRun
    ) -> tuple[Validated, str]:
        """A fitted member with its predictions of held-out rows, and how its fit ended."""
        y = rows.y[rows.held]
        known = None if rows.known is None else rows.known[rows.held]
        exact = candidate.name == "exact" and rows.cross_fitted and not rows.codes
        mean, variance = np.empty(len(y)), np.empty(len(y))
        with run.stage(candidate.name):
            if rows.cross_fitted:
                every = np.arange(len(rows.y))
                shares = [part] if exact else [part / 6] * 6
                inner, status = self._fitted(fresh, rows, every, shares[0], run)
                found = self._left_out_of(inner, rows) if exact else None
                if found is None:
                    for fitted, new in rows.folds:
                        below, ended = self._fitted(fresh, rows, fitted, part / 6, run)
                        status = ended if ended in _CUT else status
                        mean[new], variance[new] = _predicted(below, rows.X[new])
                else:
                    mean, variance = found
            else:
                some = rows.folds[0][0]
                if candidate.rows is not None and len(some) > candidate.rows:
                    some = np.sort(run.random_state.choice(some, candidate.rows, replace=False))
                inner, status = self._fitted(fresh, rows, some, part, run)
                mean, variance = _predicted(inner, rows.X[rows.held])
        own = None if np.isnan(variance).any() else variance
        if not (np.isfinite(mean).all() and (own is None or np.isfinite(own).all())):
            raise ArithmeticError("its predictions of held-out rows are not finite")
        scaled, variance = calibrated(Scaled(inner), y, mean, own, rows.scored, known)
        refits = not rows.cross_fitted and candidate.rows is None
        return Validated(candidate.name, fresh, scaled, mean, variance, 0.0, refits), status

    def _fitted(
        self, fresh: Any, rows: _Rows, some: np.ndarray, part: float, run: FitRun
    ) -> tuple[Any, str]:
        """A regressor fitted to some rows, behind its own codes of categories, and its status."""
        inner, X, y = clone(fresh), rows.X[some], rows.y[some]
        told = told_noise(fresh, None if rows.known is None else rows.known[some])
        codes = TargetCodes(rows.codes) if rows.codes else None
        if codes is not None:
            X = codes.fit_transform(X, y)

        def preview(model: AutoGPRegressor, below: GPPredictionBase) -> None:
            if self._members:
                model._keep(self._learned)
            else:
                behind = below if codes is None else Pipeline([("codes", codes), ("model", below)])
                model._keep(Scaled(behind))

        status, _ = fit_below(inner, run, X, y, preview, part, False, True, **told)
        run.preview = None
        if codes is not None:
            inner = Pipeline([("codes", codes), ("model", inner)])
        return inner, status

    def _left_out_of(self, inner: Any, rows: _Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """Leave-one-out means and variances without known noise; None without a closed form."""
        found = Scaled(inner).left_out(rows.X, rows.y, rows.known, rows.held)
        if found is None or found.how != "leave_one_out" or found.variance is None:
            return None
        known = 0.0 if rows.known is None else rows.known[rows.held]
        return found.mean, np.maximum(found.variance - known, 0.0)

    def _weigh(self, rows: _Rows) -> None:
        """Weights of the members so far; the model predicts by them."""
        scored = rows.held[rows.scored]
        known = 0.0 if rows.known is None else rows.known[scored]
        means = np.stack([each.mean[rows.scored] for each in self._members])
        variances = np.stack([each.variance[rows.scored] for each in self._members]) + known
        self._weightings = pool_weights(rows.y[scored], means, variances)
        self._pool(self._weightings[0], Scaled(None), rows)

    def _mixed(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the held-out rows under some weights."""
        means = np.stack([each.mean for each in self._members])
        return mixed(weights, means, np.stack([each.variance for each in self._members]))

    def _pool(self, weights: np.ndarray, like: Scaled, rows: _Rows) -> None:
        """Make the weighted members the model, with the noise model and tails of `like`."""
        self._weights = weights
        mean, variance = self._mixed(weights)
        self.held_out_, self.held_out_mean_ = rows.held, mean
        self.held_out_std_ = np.sqrt(variance)
        chosen = [(w, m) for w, m in zip(self._weights, self._members, strict=True) if w > 0]
        weights = np.array([w for w, _ in chosen])
        self.members_, self.weights_ = [m.name for _, m in chosen], weights
        self.estimators_ = [m.scaled.inner for _, m in chosen]
        width = len(self._encoder.names_)
        pool = StackedGPRegressor.weighted([m.scaled for _, m in chosen], weights, width)
        self.noise_gain_ = like.noise.gain
        self._keep(replace(like, inner=pool))

    # ------------------------------------------------------------------ noise and refits

    def _learn_noise(self, rows: _Rows, run: FitRun) -> None:
        """A noise model and tails from the weighted members' errors on held-out rows.

        A noise model suits some weights better than others: it is learned for each candidate, the
        first one first, and the weights change where their density is then clearly higher.
        """
        scored = rows.scored
        if scored.sum() < FEWEST_ROWS:
            return
        X, y = rows.X[rows.held[scored]], rows.y[rows.held[scored]]
        known = 0.0 if rows.known is None else rows.known[rows.held[scored]]
        seed = int(run.random_state.randint(2**31 - 1))
        share, best, chosen = run.budget.share(_FOR_NOISE), None, None
        with run.stage("noise"), share.may_end():
            for weights in self._weightings:
                mean, variance = (part[scored] for part in self._mixed(weights))
                squares = np.square(y - mean) / (variance + known)
                noise, logs = best_noise(
                    noise_features(X, mean, variance),
                    squares,
                    None,
                    np.random.RandomState(seed),
                    share.check,
                )
                total = (variance + known) * np.exp(logs)
                loss = negative_log_density(y, mean, total)
                if best is None or clearly_smaller(loss, best):
                    best, chosen = loss, (weights, noise, (y - mean) / np.sqrt(total))
        if chosen is None:
            return
        weights, noise, errors = chosen
        self._pool(weights, Scaled(None, noise, 0.0, self._best_tails(errors, run)), rows)

    def _refit(self, rows: _Rows, run: FitRun) -> list[str]:
        """Refit the members that have weight on all rows, as far as time allows; their names."""
        every, refitted = np.arange(len(rows.y)), []
        order = np.argsort(-self._weights, kind="stable")
        for k in [k for k in order if self._weights[k] > 0 and self._members[k].refits]:
            member = self._members[k]
            took, note = self._notes[member.name]
            needs = _MARGIN * took * len(every) / len(rows.folds[0][0])
            if note:  # It was cut short, so that a whole fit takes longer.
                needs *= 2
            if run.stopped or not run.budget.allows(needs):
                self._notes[member.name] = took, note or "fitted without the held-out rows"
                continue
            begun, ended = run.budget.seconds, _CUT[0]
            try:
                with run.stage(f"{member.name} on all rows"), run.budget.may_end(inner=True):
                    inner, ended = self._fitted(member.fresh, rows, every, 0.999, run)
            except _FAILURES:
                # The validated fit predicts.
                ended = _CUT[0]
            took += run.budget.seconds - begun
            if run.stopped or ended in _CUT:
                self._notes[member.name] = took, "fitted without the held-out rows"
                continue
            self._members[k] = member.fitted_again(inner)
            self._notes[member.name] = took, "fitted on all rows"
            refitted.append(member.name)
            self._pool(self._weights, self._learned, rows)
        return refitted

    def _conclude(self, rows: _Rows, refitted: list[str], cut: list[str], run: FitRun) -> None:
        """The leaderboard, the explanation and the report."""
        board, scored = [], rows.scored
        y = rows.y[rows.held[scored]]
        known = 0.0 if rows.known is None else rows.known[rows.held[scored]]
        validated_ = {each.name: each for each in self._members}
        weights = dict(zip(self.members_, self.weights_.tolist(), strict=True))
        for name, (took, note) in self._notes.items():
            nll = score = np.nan
            if name in validated_:
                mean = validated_[name].mean[scored]
                variance = validated_[name].variance[scored] + known
                nll = float(negative_log_density(y, mean, variance).mean())
                score = float(mean_crps(y, mean, variance))
            board.append(LeaderboardRow(name, nll, score, weights.get(name, 0.0), took, note))
        self.leaderboard_ = Leaderboard(board)
        self.explain_ = self._explained(rows, refitted, cut)
        run.reports(summary=f"{self.explain_}\n{self.leaderboard_}")
        status, because = "completed", ""
        if cut and run.budget.limit is not None:
            status = "max_seconds"
            because = f"max_seconds={run.budget.limit:g} has cut or left out {', '.join(cut)}"
        del self._members, self._notes, self._weights, self._weightings
        run.ended(status, n_iter=len(run.monitor.steps), because=because)

    def _explained(self, rows: _Rows, refitted: list[str], cut: list[str]) -> str:
        pairs = zip(self.weights_, self.members_, strict=True)
        shown = ", ".join(f"{weight:.2g} {name}" for weight, name in pairs)
        n, m = len(rows.y), int(rows.scored.sum())
        how = "folds" if rows.cross_fitted else "held-out rows"
        noise, tails = self._learned.noise, self._learned.tails.name
        said = [f"{shown} predict, weighted by the density of {m:,} of {n:,} rows ({how})"]
        if noise.parts:
            said.append(
                f"standard deviations are multiplied by {noise.name}, which gains "
                f"{noise.gain:.2g} nats a row"
            )
        if tails != "normal":
            said.append(f"the errors have {tails} tails")
        if not rows.cross_fitted:
            fitted = ", ".join(refitted) if refitted else "no member"
            said.append(f"{fitted} was fitted again to all rows")
        if cut:
            said.append(f"the time budget has cut or left out {', '.join(cut)}")
        said += self.encoding_
        return "; ".join(said) + "."

    def permutation_relevance(
        self, X: Any, y: Any, n_repeats: int = 5, random_state: Any = 0
    ) -> Bunch:
        """The rise of the NLL of some rows when a column is shuffled.

        Parameters
        ----------
        X : array-like or data frame of shape (m, d)
            Rows that the fit has not seen.
        y : array-like of shape (m,)
            Their targets.
        n_repeats : int, default=5
            Number of times that each column is shuffled.
        random_state : int, RandomState instance or None, default=0
            Seed of the shuffles.

        Returns
        -------
        relevance : Bunch
            "importances_mean" and "importances_std" of shape (d,), in nats per row, and the raw
            "importances" of shape (d, n_repeats).
        """

        def scorer(model: AutoGPRegressor, X: Any, y: Any) -> float:
            mean, std = model.predict(X, return_std=True)
            return -float(negative_log_density(np.asarray(y), mean, std**2).mean())

        return permutation_importance(
            self, X, y, scoring=scorer, n_repeats=n_repeats, random_state=random_state
        )


def _is_numeric(X: Any) -> bool:
    """Whether a table has nothing but numbers, so that scikit-learn can read it."""
    if hasattr(X, "columns"):
        return all(getattr(X[name].dtype, "kind", "O") in "iuf" for name in X.columns)
    if not hasattr(X, "dtype"):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of different lengths, which scikit-learn names
            return True
    return X.dtype.kind in "biufc" if hasattr(X.dtype, "kind") else True


def _seeded(fresh: Any, seed: int) -> Any:
    """A copy with a seed, where it takes one and has none."""
    fresh = clone(fresh)
    if fresh.get_params(deep=False).get("random_state", seed) is None:
        fresh.set_params(random_state=seed)
    return fresh


def _last(regressor: Any) -> Any:
    return regressor[-1] if isinstance(regressor, Pipeline) else regressor


def _predicted(inner: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
    """Means and variances of rows; the variance is NaN for a regressor without any."""
    mean, variance, _ = Scaled(inner).unscaled(X)
    return mean, np.full(len(X), np.nan) if variance is None else variance


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
