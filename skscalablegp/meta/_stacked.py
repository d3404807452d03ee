"""Several regressors, weighted by their errors on held-out rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._compat import NamedEstimators, fit_context
from .._devices import device_or_cpu_for
from ..core import SMALL_TABLE, FitRun, GPPredictionBase, LeftOut
from ..core.posteriors import Draws, Inputs, Moments, Posterior
from ..models.deep import SCGDDKLRegressor
from ..models.neighbors import NNGPRegressor
from ._below import MetaRegressorBase, mean_square, noise_weights
from ._comparison import Comparison
from ._jobs import PartFits, parts_by_jobs
from ._pool import LEAST_WEIGHT, mean_crps, mixed, negative_log_density, stacking_weights
from ._scaled import Scaled, ScaledPosterior
from ._trees import BoostedTrees, RandomizedTrees
from ._unseen import Trial, Unseen, conclude

# Name of the default regressor that held-out rows may leave out.
_OPTIONAL = "randomized_trees"
# Largest number of held-out rows: more would cost predictions and hardly change the weights.
_MOST_HELD_OUT = 20_000
# Smallest variance in comparisons, relative to that of the targets.
_LEAST_VARIANCE = 1e-10
# Above this number of rows, held-out rows choose the size of trees.
_CHOSEN_TREES = 10_000
# Up to this number of rows, randomised trees take less time than the other regressors.
_MOST_RANDOMIZED = 50_000


class StackedGPRegressor(NamedEstimators, MetaRegressorBase):
    """A weighted average of the predictive distributions of several regressors.

    Each regressor predicts held-out rows. The weights minimise the squared error on these rows;
    they are not negative and add up to one. Regressors that have weight are then fitted to all
    rows. The predictive variance is that of the mixture: the average of the regressors' variances
    plus the variance of their means. See :ref:`default_sizes`.

    Parameters
    ----------
    estimators : list of (str, regressor) or None, default=None
        Names and regressors that are stacked. They come from this package or have scikit-learn's
        interface, with or without ``return_std``. They are evaluated in this order. None stacks
        boosted trees with the settings of a `HistGradientBoostingRegressor`, an `NNGPRegressor`
        with ``local_scale=False`` and ``n_wide_neighbors=0`` and, above 2,000 rows, an
        `SCGDDKLRegressor`. These models make different kinds of errors. Above 10,000 rows, the size
        of the trees is chosen on held-out rows: 31 or 127 leaves, or 127 on the residuals of a
        linear model. From there to 50,000 rows, randomised trees are added, whose spread measures
        how much nearby rows differ. Their weight is zero if held-out rows have a higher density
        without them.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. At most 20,000 rows are held out; if fewer than 2,000
        would be, five folds replace them. Regressors with closed-form leave-one-out
        predictions, such as `NNGPRegressor`, are fitted on all rows only.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        regressors if they have no seed of their own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. The regressors are
        fitted without held-out rows and evaluated one after the other; each may take up to twice an
        equal share of the remaining time. Those that are not evaluated in time are left out. A fit
        to all rows begins only if the measured time of the fit before shows that it will end in
        time. Regressors of other packages are stopped only between two fits; the default trees
        above 10,000 rows keep to their share.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. It also
        applies to the regressors if they have "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also applies to the
        regressors if they have "auto"; two different devices are an error. Regressors that need
        double precision stay on the CPU if the device has none.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also applies to the regressors if they have
        "auto"; two different precisions are an error.
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
    estimators_ : list of regressor
        The regressors that have been evaluated. Those with weight are fitted to all rows, as far as
        time allowed.
    weights_ : ndarray of shape (k,)
        The weights of these regressors. Weights below 0.02 are zero.
    leaderboard_ : Leaderboard
        All regressors with their NLL and CRPS on held-out rows, their weights, seconds and, where
        they were dropped, the reason; it prints as a table.
    n_held_out_ : int
        Number of held-out rows from which the weights were computed.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the regressors' fits.
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
    HeteroscedasticRegressor : Noise that depends on the row. For a stack, it learns from the
        stack's held-out rows, and needs no further fit.

    Notes
    -----
    A regressor without standard deviations receives the standard deviation of its errors on
    held-out rows. The uncertainty of regressors of other packages counts as noise, which
    ``include_noise=False`` leaves out. Predictions replace the mixture by the normal distribution
    with the same mean and variance.

    References
    ----------
    L. Breiman (1996), Stacked regressions.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from skscalablegp import PoERegressor, StackedGPRegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(9 * X[:, 0])
    >>> regressors = [("experts", PoERegressor()), ("line", LinearRegression())]
    >>> gp = StackedGPRegressor(regressors, random_state=0).fit(X, y)
    >>> gp.weights_.round(2)
    array([1., 0.])
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        estimators=None,
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

    def _device_of(self, inner):
        return device_or_cpu_for(inner, self.device)

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, noise_variance=None) -> StackedGPRegressor:
        """Evaluate the regressors on held-out rows, weight them, and fit them to all rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
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

        Notes
        -----
        A regressor that fails is left out, and the leaderboard says why. Its error is raised if no
        other one succeeds.
        """
        with FitRun(self) as run:
            X, y, known = self._read_rows(X, y, noise_variance, run, ensure_min_samples=2)
            given = self._given(len(X), run)
            fresh = {name: self._opened(regressor, run) for name, regressor in given}
            n_held = min(int(self.validation_fraction * len(X)), _MOST_HELD_OUT)
            unseen = Unseen(run, X, y, known, "auto", n_held, len(X))
            if unseen.way != "held_out":
                why = f"{unseen.way} folds are better on {len(X):,} rows"
                run.ignores("validation_fraction", why)
            compared = Comparison(run, "stacked members")
            trials = self._compare(fresh, unseen, compared)
            self._refit(trials, unseen, compared)
            self._conclude(trials, compared, run)
        return self

    def _compare(
        self, fresh: dict[str, Any], unseen: Unseen, compared: Comparison
    ) -> dict[str, Trial]:
        """Fit and evaluate the regressors one by one, and weight those that were evaluated.

        Returns
        -------
        trials : dict of Trial
            Those that were evaluated.
        """
        trials: dict[str, Trial] = {}

        def preview(model: StackedGPRegressor, below: GPPredictionBase) -> None:
            if trials:
                model._finish(self._members, self.weights_, self._held)
            else:
                model._finish([Scaled(below)], np.ones(1))

        parts = PartFits(self, _tried, unseen.but(run=None), list(fresh.values()))
        done = parts_by_jobs(parts, compared.run, parts.parts)
        for k, (name, regressor) in enumerate(fresh.items()):
            if not compared.begins(name):
                continue
            if done is not None:
                trial = compared.tried(name, partial(done[k].taken, compared.run), done[k].seconds)
            else:
                share = compared.share(1.0, [1.0] * (len(fresh) - k - 1))
                # Weights from held-out rows make advice to use another model unnecessary.
                work = partial(unseen.tried, regressor, share, preview, len(fresh) == 1)
                trial = compared.tried(name, work)
            if trial is not None:
                trials[name] = trial
                self._weigh(trials, unseen, self.estimators is None and name == _OPTIONAL)
        compared.check()
        return trials

    def _refit(self, trials: dict[str, Trial], unseen: Unseen, compared: Comparison) -> None:
        """Fit the regressors that have weight to all rows, as far as time allows."""
        seen = lambda model, _: model._finish(self._members, self.weights_, self._held)  # noqa: E731
        names, run = list(trials), unseen.run
        used = [name for name, weight in zip(names, self.weights_, strict=True) if weight > 0]
        parts = PartFits(self, _refitted, unseen.but(run=None), [trials[name] for name in used])
        done = parts_by_jobs(parts, run, [trial.fresh for trial in parts.parts])
        for k in np.argsort(-self.weights_, kind="stable"):
            name, begun = names[k], run.budget.seconds
            notes = ["cut short"] if trials[name].cut else []
            if self.weights_[k] > 0:
                if done is not None:
                    again = done[used.index(name)]
                    begun -= again.seconds
                    trials[name] = again.taken(run)
                else:
                    trials[name] = unseen.refitted(trials[name], seen, len(compared.notes) == 1)
                members = list(self._members)
                members[k] = replace(members[k], inner=trials[name].inner)
                self._finish(members, self.weights_, self._held)
            which = "fitted to all rows" if trials[name].whole else "fitted without held-out rows"
            compared.adds(name, begun, ", ".join([*notes, which]))

    def _conclude(self, trials: dict[str, Trial], compared: Comparison, run: FitRun) -> None:
        """Report the weights, and how the fits that predict have ended."""
        every = dict(zip(trials, self.weights_.tolist(), strict=True))
        self.leaderboard_ = compared.leaderboard(self._scores, every)
        used = {name: trial for name, trial in trials.items() if every[name] > 0}
        shown = ", ".join(
            f"{every[name]:.2g} {type(trial.inner).__name__} ({trial.status})"
            for name, trial in used.items()
        )
        head = f"{shown}, from {self.n_held_out_:,} rows held out"
        run.reports(summary=f"{head}\n{self.leaderboard_}")
        late = compared.cut + [name for name, trial in used.items() if not trial.whole]
        del self._scores
        conclude(run, list(used.values()), late)

    def _given(self, n: int, run: FitRun) -> list[tuple[str, Any]]:
        """Names and regressors: the given ones, or the defaults for n rows.

        Raises
        ------
        ValueError
            For an empty list, for names that scikit-learn refuses, and for objects that are no
            regressors.
        """
        if self.estimators is None:
            # A noise model over a stack learns more if local scales are left to it.
            given = [("trees", BoostedTrees(compared=n > _CHOSEN_TREES))]
            given.append(("neighbors", NNGPRegressor(local_scale=False, n_wide_neighbors=0)))
            if n > SMALL_TABLE:
                given.append(("deep", SCGDDKLRegressor()))
            if _CHOSEN_TREES < n <= _MOST_RANDOMIZED:
                given.append((_OPTIONAL, RandomizedTrees()))
            run.chose("estimators", [name for name, _ in given], f"{n:,} rows")
            return given
        pairs = [pair for pair in self.estimators if isinstance(pair, tuple) and len(pair) == 2]
        if not pairs or len(pairs) < len(self.estimators):
            raise ValueError(
                "estimators must be a list of pairs of a name and a regressor, at least one, got "
                f"{self.estimators!r}."
            )
        self._validate_names([name for name, _ in pairs])
        for name, regressor in pairs:
            if not (hasattr(regressor, "fit") and hasattr(regressor, "predict")):
                raise ValueError(f"estimators: {name!r} must be a regressor, got {regressor!r}.")
        return pairs

    def _weigh(self, trials: dict[str, Trial], unseen: Unseen, optional: bool) -> None:
        """Set the weights, from predictions of the same rows by all regressors.

        The last regressor is left out if it is `optional` and held-out rows have a higher density
        without it.
        """
        y, known = unseen.y, unseen.known
        # If time was short, some have predicted only the first rows of the common order.
        rows = min((trial.left.rows for trial in trials.values()), key=len)
        members, found = [], []
        for trial in trials.values():
            at = np.searchsorted(trial.left.rows, rows)
            left, member = trial.left, Scaled(trial.inner)
            mean, noise = left.mean[at], np.zeros(len(rows)) if known is None else known[rows]
            if left.std is None:
                member = replace(member, extra=mean_square(y[rows] - mean, noise))
                variance = member.extra + noise
            else:
                contained = "noise_variance" in unseen.told(trial.fresh)
                variance = left.variance[at] + (0 if contained else noise)
            members.append(member)
            found.append((mean, variance, left.feature_mean[at]))
        means, variances, features = map(np.stack, zip(*found, strict=True))
        # Some regressors predict standard deviations that are almost zero.
        least = max(_LEAST_VARIANCE * float(np.var(y)), np.finfo(float).tiny)
        variances = np.maximum(variances, least)
        self._scores = {
            name: (float(negative_log_density(y[rows], *each).mean()), mean_crps(y[rows], *each))
            for name, *each in zip(trials, means, variances, strict=True)
        }
        counts = np.ones(len(rows)) if known is None else noise_weights(known)[rows]
        errors = y[rows] - means
        sizes, best = [len(members)], -np.inf
        if optional:
            # Their standard deviations may blur those of regressors with smaller errors.
            sizes.append(len(members) - 1)
        for size in sizes:
            own = np.zeros(len(members))
            own[:size] = stacking_weights(errors[:size], counts)
            own[own < LEAST_WEIGHT] = 0
            own /= own.sum()
            mean, variance = mixed(own, means, variances)
            squares = np.square(y[rows] - mean) / variance
            # Predictions of a constant target are exact.
            square = max(float(squares.mean()), np.finfo(float).tiny)
            density = -np.log(variance).mean() - np.log(square)
            if density > best or size == len(members):
                best, chosen = density, (own, mean, np.sqrt(variance))
        weights, *predicted = chosen
        feature = weights[weights > 0] @ features[weights > 0]
        self._finish(members, weights, LeftOut(rows, *predicted, "held_out", feature))

    def _finish(self, members: list[Scaled], weights: np.ndarray, held: Any = None) -> None:
        """Set the fitted attributes."""
        self._members, self._held, self.weights_ = members, held, weights
        self.estimators_ = [member.inner for member in members]
        self.n_held_out_ = 0 if held is None else len(held.rows)
        self._y_train_mean, self._y_train_std = np.float64(0), np.float64(1)
        self._remember(self._build_posterior())

    @classmethod
    def _weighted(cls, members: list[Scaled], weights: np.ndarray, d: int) -> StackedGPRegressor:
        """A stack of fitted regressors on d columns, with weights from elsewhere."""
        stack = cls()
        stack.n_features_in_, stack.n_iter_ = d, 0
        stack._finish(members, weights)
        return stack

    # ------------------------------------------------------------------ predictions

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), "_held")

    def _build_posterior(self) -> Posterior:
        return StackedPosterior(self._members, self.weights_)

    def _leaves_out(self) -> str:
        return "held_out"

    def _left_out(self, X, y, noise_variance, rows):
        return self._held


def _tried(stack: StackedGPRegressor, run: FitRun, unseen: Unseen, regressor: Any) -> Trial:
    return unseen.but(run=run).tried(regressor, run.budget, None, False)


def _refitted(stack: StackedGPRegressor, run: FitRun, unseen: Unseen, trial: Trial) -> Trial:
    return unseen.but(run=run).refitted(trial, None, False)


class StackedPosterior(Posterior):
    """The normal distribution with the moments of a mixture, in the units of y.

    Parameters
    ----------
    members : list of Scaled
    weights : ndarray of shape (k,)
        Members of weight zero are never evaluated.
    """

    def __init__(self, members: list[Scaled], weights: Float[np.ndarray, " k"]):
        self.parts = [
            (weight, ScaledPosterior(member))
            for weight, member in zip(weights.tolist(), members, strict=True)
            if weight > 0
        ]
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.width = sum(part.width for _, part in self.parts)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return sum(weight * part.mean(X) for weight, part in self.parts)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        moments = [(weight, part.moments(X)) for weight, part in self.parts]
        mean = sum(weight * each.mean for weight, each in moments)
        variance = sum(
            weight * (each.variance + (each.mean - mean)[:, 0] ** 2) for weight, each in moments
        )
        return Moments(mean, variance, sum(weight * each.noise for weight, each in moments))

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        mean, total = self.mean(X), 0.0
        for weight, part in self.parts:
            away = part.mean(X) - mean
            total = total + weight * (part.covariance(X) + away @ away.T)
        return total

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        zero = np.zeros(len(X))
        f = random_state.multivariate_normal(zero, self.covariance(X).numpy(), n_samples).T
        white = random_state.standard_normal(f.shape)
        noisy = self.noise(X).sqrt()[:, None] * torch.as_tensor(white)
        return (self.mean(X) + torch.as_tensor(f) + noisy)[:, None]
