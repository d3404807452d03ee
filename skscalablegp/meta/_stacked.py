"""Several regressors, weighted by their errors on held-out rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from sklearn.base import clone
from torch import Tensor

from .._compat import NamedEstimators, fit_context
from ..core import SMALL_TABLE, FitRun, GPPredictionBase, LeftOut
from ..core.posteriors import Draws, Moments, Posterior, Rows
from ..core.training import SHARES
from ..models.deep import SCGDDKLRegressor
from ..models.neighbors import NNGPRegressor
from ._below import (
    MetaRegressorBase,
    best_way,
    fit_below,
    left_out_in_time,
    mean_square,
    noise_weights,
    predict_held_out,
    split,
    told_noise,
    with_fold_means,
    with_kernel,
)
from ._scaled import Scaled, ScaledPosterior
from ._trees import BoostedTrees, RandomizedTrees

# Name of the default regressor that held-out rows may leave out.
_OPTIONAL = "randomized_trees"
# Largest number of held-out rows: more would cost predictions and hardly change the weights.
_MOST_HELD_OUT = 20_000
# Statuses of fits that were not cut short.
_EXPECTED = ("completed", "converged")
# Above this number of rows, held-out rows choose the size of trees.
_CHOSEN_TREES = 10_000
# Up to this number of rows, randomised trees take less time than the other regressors.
_MOST_RANDOMIZED = 50_000


class StackedGPRegressor(NamedEstimators, MetaRegressorBase):
    """A weighted average of the predictive distributions of several regressors.

    Each regressor predicts rows that it was not fitted to. The weights minimise the squared error
    on these rows; they are not negative and add up to one. Predictions come from the regressors
    fitted on all rows. The predictive variance is that of the mixture: the average of the
    regressors' variances plus the variance of their means.

    Parameters
    ----------
    estimators : list of (str, regressor) or None, default=None
        Names and regressors that are stacked. They come from this package or have scikit-learn's
        interface, with or without ``return_std``. None stacks an `NNGPRegressor` with
        ``local_scale=False``, boosted trees with the settings of a
        `HistGradientBoostingRegressor` and, above 2,000 rows, an `SCGDDKLRegressor`: interpolation,
        rules on single columns, and learned features, which make their errors on different rows.
        Above 10,000 rows, held-out rows choose the size of the trees: 31 or 127 leaves, or 127 on
        the errors of a linear model. From there to 50,000 rows,
        randomised trees are added, whose spread tells whether rows nearby agree. Their weight is
        zero if held-out rows have a higher density without them.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. At most 20,000 rows are held out; if fewer than 2,000
        would be, five folds replace them. Regressors with a closed form for left-out rows, such as
        `NNGPRegressor`, are fitted on all rows only.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        regressors if they have no seed of their own.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. It also
        holds for the regressors if they have "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also holds for the
        regressors if they have "auto"; two different devices are an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also holds for the regressors if they have
        "auto"; two different precisions are an error.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the regressors of this package.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
        Each of the remaining fits may take an equal share of the remaining time. If no time is left
        to compare them, the regressors fitted so far have equal weights. Regressors of other
        packages are stopped only between two fits; the default trees above 10,000 rows keep to
        their share.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimators_ : list of regressor
        The regressors, fitted on all rows.
    weights_ : ndarray of shape (k,)
        The weights of the regressors.
    n_held_out_ : int
        Number of held-out rows from which the weights were computed.
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
    HeteroscedasticRegressor : Noise that depends on the row. Over a stack, it learns from the
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
        estimators: Any = None,
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

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> StackedGPRegressor:
        """Fit the regressors on all rows, and compute their weights from held-out rows.

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
        """
        with FitRun(self) as run:
            X, y, known = self._read_rows(X, y, noise_variance, run, ensure_min_samples=2)
            given = self._given(len(X), run)
            fresh = [self._opened(regressor, run) for _, regressor in given]
            told = [told_noise(regressor, known) for regressor in fresh]
            members: list[Scaled] = []
            endings: list[tuple[str, str]] = []
            for k, regressor in enumerate(fresh):
                inner = clone(regressor)

                def preview(model: StackedGPRegressor, below: GPPredictionBase) -> None:
                    model._finish([*members, Scaled(below)])

                # Weights from held-out rows do what advice to use another model would do.
                share, advised = 1 / (2 * len(fresh) - k), len(fresh) == 1
                endings.append(fit_below(inner, run, X, y, preview, share, advised, **told[k]))
                run.preview = None
                members.append(_with_errors(inner, X, y, known))
                if run.stopped:
                    break
            self._finish(members)
            if not run.stopped and len(members) > 1:
                optional = self.estimators is None and given[-1][0] == _OPTIONAL
                self._weigh(fresh, X, y, known, told, optional, run)
            shown = ", ".join(
                f"{weight:.2g} {type(inner).__name__} ({status})"
                for weight, inner, (status, _) in zip(
                    self.weights_, self.estimators_, endings, strict=True
                )
            )
            run.reports(summary=f"{shown}, from {self.n_held_out_:,} rows held out")
            # A fit that ended too early is the one that the user should know about.
            status = min((status for status, _ in endings), key=_EXPECTED.__contains__)
            reasons = [
                f"{type(inner).__name__}: {because}"
                for inner, (ending, because) in zip(self.estimators_, endings, strict=True)
                if ending == status
            ]
            run.ended(status, n_iter=len(run.monitor.steps), because="; ".join(reasons))
        return self

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
            given = [("neighbors", NNGPRegressor(local_scale=False))]
            given.append(("trees", BoostedTrees(compared=n > _CHOSEN_TREES)))
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
                raise ValueError(f"estimators: {name!r} is no regressor, but {regressor!r}.")
        return pairs

    def _weigh(
        self,
        fresh: Any,
        X: np.ndarray,
        y: np.ndarray,
        known: Any,
        told: Any,
        optional: bool,
        run: FitRun,
    ) -> None:
        """Set the weights, from predictions of the same rows by all regressors.

        The last regressor is left out if it is `optional` and held-out rows have a higher density
        without it.
        """
        n = len(X)
        n_held = min(int(self.validation_fraction * n), _MOST_HELD_OUT)
        way = best_way(n, n_held)
        if way != "held_out":
            run.ignores("validation_fraction", f"{way} folds are better on {n:,} rows")
        folds = split(n, way, n_held, run)
        order = run.random_state.permutation(np.concatenate([new for _, new in folds]))
        members, found = [], []
        for k, member in enumerate(self._members):
            share = (1 - SHARES["predictions"]) / (len(fresh) - k)
            left = self._without_targets(member, fresh[k], X, y, told[k], folds, order, share, run)
            if left is None:
                return
            rows, mean, variance = left.rows, left.mean, left.variance
            at = None if known is None else known[rows]
            contained = variance is not None and "noise_variance" in told[k]
            if variance is None:
                member = replace(member, extra=mean_square(y[rows] - mean, at))
                variance = np.full(len(rows), member.extra)
            if at is not None and not contained:
                variance = variance + at
            members.append(member)
            feature = left.fold_mean if left.how == "leave_one_out" else mean
            found.append((rows, mean, variance, feature))
        # If time was short, a closed form has left out only the first rows of the order.
        rows = min((part[0] for part in found), key=len)
        at = [np.searchsorted(part[0], rows) for part in found]
        means, variances, features = (
            np.stack([part[j][own] for part, own in zip(found, at, strict=True)]) for j in (1, 2, 3)
        )
        counts = np.ones(n) if known is None else noise_weights(known)
        errors = y[rows] - means
        sizes, best = [len(members)], -np.inf
        if optional:
            # Their standard deviations may blur those of regressors with smaller errors.
            sizes.append(len(members) - 1)
        for size in sizes:
            own = np.zeros(len(members))
            own[:size] = stacking_weights(errors[:size], counts[rows])
            mean = own @ means
            variance = own @ (variances + (means - mean) ** 2)
            squares = np.square(y[rows] - mean) / variance
            density = -np.log(variance).mean() - np.log(squares.mean())
            if density > best or size == len(members):
                best, chosen = density, (own, mean, np.sqrt(variance))
        weights, *predicted = chosen
        self._finish(members, weights, LeftOut(rows, *predicted, "held_out", weights @ features))

    def _without_targets(self, member, fresh, X, y, told, folds, order, share, run):  # noqa: PLR0913 (what one fit without some rows needs)
        """Rows, means and variances by a regressor fitted without them; None if there is no time.

        The variances include the known noise that the regressor received. They are None for a
        regressor without variances.
        """
        found = left_out_in_time(member, run, X, y, order, share, told)
        if run.stopped:
            return None

        def preview(model: StackedGPRegressor, below: GPPredictionBase) -> None:
            model._finish(self._members)

        # A stack inside this one has held out other rows.
        if found is not None and found.how == "leave_one_out":
            again = with_kernel(fresh, member.inner)
            found = with_fold_means(found, again, run, X, y, folds, preview, share, told)
            return None if run.stopped else found
        found = predict_held_out(fresh, run, X, y, folds, preview, share, told)
        return None if run.stopped else found

    def _finish(self, members: list[Scaled], weights: Any = None, held: Any = None) -> None:
        """Set the fitted attributes; without weights, all regressors have the same one."""
        self._members, self._held = members, held
        self.estimators_ = [member.inner for member in members]
        self.weights_ = np.full(len(members), 1 / len(members)) if weights is None else weights
        self.n_held_out_ = 0 if held is None else len(held.rows)
        self._y_train_mean, self._y_train_std = np.float64(0), np.float64(1)
        self._remember(self._build_posterior())

    @classmethod
    def weighted(cls, members: list[Scaled], weights: np.ndarray, d: int) -> StackedGPRegressor:
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

    def _left_out(self, X, y, noise_variance, rows):
        return self._held


class StackedPosterior(Posterior):
    """The normal distribution with the moments of a mixture, in the units of y.

    Parameters
    ----------
    members : list of Scaled
    weights : ndarray of shape (k,)
        Members of weight zero are never evaluated.
    """

    def __init__(self, members: list[Scaled], weights: Float[np.ndarray, " k"]):
        self._parts = [
            (weight, ScaledPosterior(member))
            for weight, member in zip(weights.tolist(), members, strict=True)
            if weight > 0
        ]
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.width = sum(part.width for _, part in self._parts)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return sum(weight * part.mean(X) for weight, part in self._parts)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        moments = [(weight, part.moments(X)) for weight, part in self._parts]
        mean = sum(weight * each.mean for weight, each in moments)
        variance = sum(
            weight * (each.variance + (each.mean - mean)[:, 0] ** 2) for weight, each in moments
        )
        return Moments(mean, variance, sum(weight * each.noise for weight, each in moments))

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        mean, total = self.mean(X), 0.0
        for weight, part in self._parts:
            away = part.mean(X) - mean
            total = total + weight * (part.covariance(X) + away @ away.T)
        return total

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        zero = np.zeros(len(X))
        f = random_state.multivariate_normal(zero, self.covariance(X).numpy(), n_samples).T
        white = random_state.standard_normal(f.shape)
        noisy = self.noise(X).sqrt()[:, None] * torch.as_tensor(white)
        return (self.mean(X) + torch.as_tensor(f) + noisy)[:, None]


def stacking_weights(
    errors: Float[np.ndarray, "k n"], counts: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " k"]:
    r"""The weights w >= 0 with sum one that minimise the squared errors of the weighted average.

    They are the solution of :math:`\min_{v \ge 0} |E' v|^2 + (1 - 1' v)^2`, scaled to a sum of one,
    because along every ray v = t w the minimum over t depends on :math:`|E' w|^2` alone and grows
    with it.

    Parameters
    ----------
    errors : ndarray of shape (k, n)
        Error of each regressor on each row.
    counts : ndarray of shape (n,)
        Weight of each row.
    """
    errors = errors * np.sqrt(counts)
    scale = np.sqrt(np.mean(errors**2, axis=1).min() * errors.shape[1])
    system = np.vstack([errors.T / (scale or 1.0), np.ones(len(errors))])
    weights = nnls(system, np.append(np.zeros(errors.shape[1]), 1.0))[0]
    return weights / weights.sum()


def _with_errors(inner: Any, X: np.ndarray, y: np.ndarray, known: np.ndarray | None) -> Scaled:
    """A fitted regressor; without variances, it receives that of its training errors for now."""
    if Scaled(inner).unscaled(X[:1])[1] is not None:
        return Scaled(inner)
    return Scaled(inner, extra=mean_square(y - inner.predict(X), known))
