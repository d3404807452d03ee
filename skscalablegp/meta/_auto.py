"""The estimators that choose, compare and weight models by themselves, within a time budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from .._compat import fit_context
from .._validation import check_noise_variance
from ..core import FitRun
from ..core.training import Budget, StopTraining
from ._auto_base import AutoBase, Trial
from ._below import fit_below, told_noise
from ._comparison import Comparison
from ._division import DividedTable, divided
from ._encoding import listed
from ._leaderboard import Leaderboard, LeaderboardRow, in_words
from ._member_noise import MOST_VARYING, Errors, varying_members
from ._members import Candidate, candidates
from ._noise import FEWEST_ROWS, NoiseModel
from ._noisy import NoisyRegressorBase
from ._normal_scores import NormalScores, useful_scores
from ._pool import (
    Validated,
    calibrated,
    clearly_smaller,
    log_factor,
    mean_crps,
    mixed,
    moment_weights,
    negative_log_density,
    pool_weights,
    scaled_mixture,
)
from ._scaled import Scaled
from ._stacked import StackedGPRegressor
from ._trials import grown

# With fewer rows no row can be spared, and the exact process predicts alone.
_FEWEST = 5
# With fewer scored rows only the mixture has a noise model: errors of few rows cannot tell members
# apart.
_SEVERAL = 200
# The name of the noise model of a mixture whose members have one each.
_OWN_NOISE = "noise models of the members"
# Errors of the first trial of a noise model under a time budget.
_FIRST_ERRORS = 1000


class _Pooled(NamedTuple):
    """Weights of members and the noise model of their mixture.

    `at` are the numbers of the scored held-out rows; `errors` are in standard deviations, and
    `loss` is the negative log density.
    """

    weights: np.ndarray
    noise: NoiseModel
    at: np.ndarray
    errors: np.ndarray
    loss: np.ndarray

    @classmethod
    def of(
        cls,
        weights: np.ndarray,
        noise: NoiseModel,
        errors: Errors,
        mean: np.ndarray,
        variance: np.ndarray,
    ) -> _Pooled:
        """From the moments of all rows of `errors`."""
        y, mean, variance = (a[errors.scored] for a in (errors.y, mean, variance))
        standardised, loss = (y - mean) / np.sqrt(variance), negative_log_density(y, mean, variance)
        return cls(weights, noise, errors.at[errors.scored], standardised, loss)


class AutoGPRegressor(AutoBase, NoisyRegressorBase):
    """Calibrated regression without settings: models are compared on held-out rows.

    The models, called members, are linear models, trees and Gaussian processes. They are fitted one
    after another, the cheapest first, to all rows but the held-out ones. After each fit, weights
    are computed from the density of the held-out rows; a single member keeps all the weight unless
    a mixture is better. A noise model and the shape of the tails are learned from the
    errors of this mixture on held-out rows. In the remaining time, the members that have weight are
    fitted again to all rows. Whenever the time ends, the model that predicts has been evaluated on
    held-out rows. See :ref:`default_sizes`.

    Tables may have numbers, categories, booleans, dates and missing values. Processes take columns
    with heavy tails as normal scores (normal quantiles of their ranks) if the exact process of 300
    rows then has a clearly higher likelihood.

    Parameters
    ----------
    members : list or "auto", default="auto"
        Names of members, and pairs of a name and a regressor, in the order of their fits. The names
        are "linear" (ridge regression), "trees" (boosted), "exact" (the exact process; above 2,000
        rows on 1,500 of them), "neighbors" (`NNGPRegressor` with the kernel of the exact process),
        "iterative" (`IterativeGPRegressor` on all rows, with that kernel), "randomized_trees",
        "deep" (`SCGDDKLRegressor`) and "trained_neighbors" (`NNGPRegressor`, whose training starts
        from that kernel), "catboost" and "lightgbm" (boosted trees of these packages, if they are
        installed). "auto" compares those of this package and of scikit-learn that suit the number
        of rows. Other regressors are given as pairs, with or without ``return_std``.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. At most 10,000 rows are held out; up to 2,000 rows
        five folds replace them, in which the exact process keeps the hyperparameters of all rows.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        regressors if they have no seed of their own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. None fits all
        members, and repeats identically. Sixty seconds suit most tables.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. A
        member that needs more is dropped.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" leaves it to each member.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. Fits of members and of folds are
        divided among them; each process receives the table once, and the results are those of one
        process. None means this process, unless a :class:`joblib.parallel_config` context says
        otherwise. This process makes all fits if `max_seconds`, `callbacks` or `checkpoint` is set,
        because these look at every step.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the regressors of this package.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
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
        Increase of the mean log density of held-out rows by the noise model.
    held_out_ : ndarray of shape (m,)
        Indices of the held-out rows; all rows where folds are used.
    held_out_mean_, held_out_std_ : ndarray of shape (m,)
        Predictions of these rows by the weighted members that had not seen them, before the noise
        model.
    encoding_ : list of str
        How columns were encoded that are not plain numbers, or have heavy tails.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the members' fits.
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
    more than once are not used for this, because a copy among the fitted rows would reveal the
    target. Length scales of the exact process on 1,500 rows show which columns matter; "neighbors"
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
        members="auto",
        *,
        validation_fraction=0.2,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        n_jobs=None,
        callbacks=None,
        checkpoint=None,
        verbose=0,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, noise_variance=None) -> AutoGPRegressor:
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
            X, y = self._read_mixed(X, y, run, y_numeric=True)
            known = check_noise_variance(noise_variance, len(X), 1)
            self._noise_given, known = known is not None, None if known is None else known[:, 0]
            y = np.asarray(y, np.float64)
            run.begin(X, y)
            tried = candidates(self.members, len(X), self.max_seconds)
            if isinstance(self.members, str):
                run.chose("members", [each.name for each in tried], f"{len(X):,} rows")
            if len(X) < _FEWEST or not np.ptp(y) > 0:
                self._alone(X, y, known, run)
                return self
            self._members = []
            codes, fraction = self._encoder.codes_, self.validation_fraction
            rows = divided(X, y, known, run, codes=codes, fraction=fraction)
            compared = Comparison(run, "members")
            self._compare(tried, rows, compared)
            if not run.stopped:
                compared.cut += self._learn_noise(rows, run)
            refitted = [] if run.stopped else self._refit(rows, compared)
            self._conclude(rows, refitted, compared)
        return self

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return self._encoded(X)

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

    def _useful_scores(self, rows: DividedTable, run: FitRun) -> dict[int, NormalScores]:
        found = useful_scores(rows, self._encoder.codes_, self, run)
        if found:
            names = listed([self._encoder.names_[j] for j in found])
            self.encoding_.append(f"heavy tails, as normal scores for processes: {names}")
        return found

    def _width(self) -> int:
        return 2

    def _answer(self, inner: Any, X: np.ndarray) -> np.ndarray:
        """Means and variances; these are NaN for a regressor without any."""
        mean, variance, _ = Scaled(inner).unscaled(X)
        return np.column_stack([mean, np.full(len(X), np.nan) if variance is None else variance])

    def _member(
        self, candidate: Candidate, fresh: Any, trial: Trial, rows: DividedTable
    ) -> Validated:
        seen = np.sort(rows.order[: trial.n_predicted])
        held = rows.held[seen]
        mean, variance = trial.found[seen].T
        own = None if np.isnan(variance).any() else variance
        known = None if rows.known is None else rows.known[held]
        scored = rows.common([trial.n_predicted])[seen]
        scaled, variance = calibrated(Scaled(trial.inner), rows.y[held], mean, own, scored, known)
        means, variances = trial.found[:, 0], np.full(len(rows.held), np.nan)
        variances[seen] = variance
        name, done = candidate.name, trial.n_predicted
        return Validated(name, fresh, scaled, means, variances, done, trial.refits, trial.seconds)

    def _weigh(self, rows: DividedTable) -> None:
        """Weights of the members so far; the model predicts by them."""

        def weigh(members: np.ndarray, common: np.ndarray) -> np.ndarray:
            scored, some = rows.held[common], [self._members[k] for k in members]
            known = 0.0 if rows.known is None else rows.known[scored]
            means = np.stack([each.mean[common] for each in some])
            variances = np.stack([each.variance[common] for each in some]) + known
            return pool_weights(rows.y[scored], means, variances)

        weights, common = self._weights_by(rows, weigh)
        scored = rows.held[common]
        known = 0.0 if rows.known is None else rows.known[scored]
        # Until there is a noise model, the errors of the mixture calibrate it: where errors of
        # members cancel, its standard deviations would be too large.
        mean, variance = self._mixed(weights, np.flatnonzero(common))
        log = log_factor(np.square(rows.y[scored] - mean) / (variance + known))
        self._pool(weights, Scaled(None, NoiseModel(log)), rows)

    def _previewed(self, model: AutoGPRegressor, below: Any) -> None:
        model._keep(self._learned if self._members else Scaled(below))

    def _pool_again(self, rows: DividedTable) -> None:
        self._pool(self._weights, self._learned, rows)

    def _mixed(self, weights: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of some held-out rows under some weights."""
        used = [(w, m) for w, m in zip(weights, self._members, strict=True) if w > 0]
        means = np.stack([each.mean[at] for _, each in used])
        variances = np.stack([each.variance[at] for _, each in used])
        return mixed(np.array([w for w, _ in used]), means, variances)

    def _pool(self, weights: np.ndarray, like: Scaled, rows: DividedTable) -> None:
        """Make the weighted members the model, with the noise model and tails of `like`."""
        self._weights = weights
        done = min(m.n_predicted for w, m in zip(weights, self._members, strict=True) if w > 0)
        seen = np.sort(rows.order[:done])
        mean, variance = self._mixed(weights, seen)
        self.held_out_, self.held_out_mean_ = rows.held[seen], mean
        self.held_out_std_ = np.sqrt(variance)
        chosen = [(w, m) for w, m in zip(self._weights, self._members, strict=True) if w > 0]
        weights = np.array([w for w, _ in chosen])
        self.members_, self.weights_ = [m.name for _, m in chosen], weights
        self.estimators_ = [m.scaled.inner for _, m in chosen]
        width = len(self._encoder.names_)
        pool = StackedGPRegressor._weighted([m.scaled for _, m in chosen], weights, width)
        self.noise_gain_ = like.noise.gain
        self._keep(replace(like, inner=pool))

    # ------------------------------------------------------------------ noise and refits

    def _learn_noise(self, rows: DividedTable, run: FitRun) -> list[str]:
        """A noise model and tails from the weighted members' errors on held-out rows.

        Then the best members have noise models of their own, and other weights, if the density is
        clearly higher. Returns what time has cut.
        """
        used = [m.n_predicted for w, m in zip(self._weights, self._members, strict=True) if w > 0]
        seen, scored = np.flatnonzero(rows.predicted(used)), rows.common(used)
        if scored.sum() < FEWEST_ROWS:
            return []
        seed, share = int(run.random_state.randint(2**31 - 1)), self._noise_share(rows, run)
        seen = seen[np.argsort(rows.first[rows.held[seen]], kind="stable")]
        found, size, cut = None, 0, False
        with run.stage("noise"), share.may_end() as end:
            done: list[_Pooled] = []

            def learn(size: int) -> tuple[_Pooled, bool, float]:
                errors = Errors.of(rows, seen[:size], scored)
                try:
                    done.append(self._pooled_noise(errors, seed, share))
                except StopTraining:
                    if not done:
                        raise
                    return done[-1], True, 0.0
                return done[-1], False, 0.0

            found, size, _, took = grown(learn, len(seen), share, _FIRST_ERRORS)
            fewer = size
            if share.limit is not None:
                affordable = (share.left or 0.0) / (MOST_VARYING * max(took, 1e-9))
                fewer = min(size, int(size * affordable))
            errors = Errors.of(rows, seen[:fewer], scored)
            found, cut = self._noise_of_members(found, rows, errors, seed, share)
            cut = cut or fewer < size
        if found is None:
            # Learning the tails takes almost no time, and they matter without a noise model, too.
            few = Errors.of(rows, seen[scored[seen]][:_FIRST_ERRORS], scored)
            found = self._constant_noise(few)
        tails = self._best_tails(found.errors, run)
        self._pool(found.weights, Scaled(None, found.noise).with_tails(tails), rows)
        ended = cut or end.reason is not None
        return [] if size == len(seen) and not ended else ["the noise model"]

    def _noise_share(self, rows: DividedTable, run: FitRun) -> Budget:
        """The time of the noise models: what refits are expected to leave, and at least half."""
        share, left = run.budget.share("noise"), run.budget.left
        if not left or not share.limit:
            return share
        used = [m for w, m in zip(self._weights, self._members, strict=True) if w > 0 and m.refits]
        needed = sum(rows.on_all(each.seconds) for each in used)
        most = run.budget.share("most noise").limit or 0.0
        return run.budget.share(max(share.limit, most - needed) / left)

    def _constant_noise(self, errors: Errors) -> _Pooled:
        """The mixture as it is."""
        mean, variance = self._mixed(self._weights, errors.at)
        total = (variance + errors.known) * np.exp(self._learned.noise.level)
        return _Pooled.of(self._weights, self._learned.noise, errors, mean, total)

    def _pooled_noise(self, errors: Errors, seed: int, share: Budget) -> _Pooled:
        """The mixture with the weights so far and a noise model."""
        mean, variance = self._mixed(self._weights, errors.at)
        noise, logs = errors.model(mean, variance, self._learned.noise.level, seed, share)
        total = (variance + errors.known) * np.exp(logs)
        return _Pooled.of(self._weights, noise, errors, mean, total)

    def _noise_of_members(
        self, pooled: _Pooled, rows: DividedTable, errors: Errors, seed: int, share: Budget
    ) -> tuple[_Pooled, bool]:
        """Members with noise models of their own, if the density of their mixture is higher.

        A member whose errors vary much between rows seems worse than it is while its noise is
        constant. Also whether time has left out members.
        """
        if errors.scored.sum() < _SEVERAL or len(self._members) < 2:
            return pooled, False
        own, cut = varying_members(self._members, rows, errors, seed, share)
        if len(own) < 2:
            return pooled, cut
        some, y = errors.at[errors.scored], errors.y[errors.scored]
        means = np.stack([each.mean[some] for each in own.values()])
        variances = np.stack([each.variance[some] for each in own.values()])
        variances += errors.known[errors.scored]
        weights = moment_weights(y, means, variances)
        mean, variance, log = scaled_mixture(weights, y, means, variances)
        loss = negative_log_density(y, mean, variance)
        before = pooled.loss[np.searchsorted(pooled.at, some)]
        if not clearly_smaller(loss, before):
            return pooled, cut
        for k, each in own.items():
            self._members[k] = each
        every = np.zeros(len(self._members))
        every[list(own)] = weights
        noise = NoiseModel(log, (), _OWN_NOISE, pooled.noise.gain + float(np.mean(before - loss)))
        return _Pooled(every, noise, some, (y - mean) / np.sqrt(variance), loss), cut

    def _conclude(self, rows: DividedTable, refitted: list[str], compared: Comparison) -> None:
        """The leaderboard, the explanation and the report."""
        scored = rows.common([each.n_predicted for each in self._members])
        y = rows.y[rows.held[scored]]
        known = 0.0 if rows.known is None else rows.known[rows.held[scored]]
        scores = {}
        for each in self._members:
            own = y, each.mean[scored], each.variance[scored] + known
            scores[each.name] = float(negative_log_density(*own).mean()), mean_crps(*own)
        how = "folds" if rows.cross_fitted else "held-out rows"
        shown = in_words(self.members_, self.weights_.tolist())
        noise, tails = self._learned.noise, self._learned.tails.name
        said = [f"{shown} by the density of {self._n_scored:,} of {len(rows.y):,} rows ({how})"]
        if noise.gain > 0:
            said.append(
                f"standard deviations are multiplied by {noise.name}, which raises the mean log "
                f"density by {noise.gain:.2g}"
            )
        if tails != "normal":
            said.append(f"the errors have {tails} tails")
        if not (refitted or rows.cross_fitted):
            said.append("no member was fitted again to all rows")
        self._end(said, scores, refitted, compared)

    def permutation_relevance(self, X, y, n_repeats: int = 5, random_state=0) -> Bunch:
        """The increase of the mean NLL of some rows when a column is shuffled.

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
            "importances_mean" and "importances_std" of shape (d,), and the raw "importances" of
            shape (d, n_repeats).
        """

        def scorer(model: AutoGPRegressor, X: Any, y: Any) -> float:
            mean, std = model.predict(X, return_std=True)
            return -float(negative_log_density(np.asarray(y), mean, std**2).mean())

        return permutation_importance(
            self, X, y, scoring=scorer, n_repeats=n_repeats, random_state=random_state
        )
