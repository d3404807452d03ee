"""A Gaussian process of the residuals of another regressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold
from torch import Tensor

from .._compat import fit_context
from ..core import FitRun, FittedProcess, GPPredictionBase, LeftOut, fitted_process
from ..core.posteriors import Draws, Inputs, Moments, Posterior
from ..models.experts import PoERegressor
from ._below import MetaRegressorBase, told_noise
from ._comparison import first_line
from ._jobs import FoldFits, by_jobs
from ._unseen import Trial, Unseen, conclude

# Number of rows that are left out to compare fits with the mean function and without it; the share
# of them where they have to be held out.
_CLOSED_FORM, _HELD = 2000, 0.2


class Weighted(NamedTuple):
    """A fit of the process to the targets less a weighted mean function.

    Attributes
    ----------
    density : float
        Mean log density of rows that it has not seen.
    weight : float
    mean_function : regressor or None
        None if there was no time for it.
    trial : Trial
    """

    density: float
    weight: float
    mean_function: Any
    trial: Trial


class MeanFunctionRegressor(MetaRegressorBase):
    """A Gaussian process whose mean function is any regressor.

    A prediction is the sum of the mean function and a Gaussian process, which is fitted to the
    residuals of the mean function. These residuals come from cross-fitting: each row is predicted
    by a mean function that was fitted without it, so that the residuals are as large as those of
    new rows. See :ref:`default_sizes`.

    On small or smooth tables, the residuals of boosted trees, the default mean function, are
    rougher than the target itself. The trees are therefore used only if they increase the density
    of held-out rows.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It is the Gaussian process, a regressor of this
        package; None is a `PoERegressor`. Where its memory budget, device or precision is "auto",
        the setting of this estimator applies.
    mean_function : regressor, default=None
        Regressor that predicts the mean, which the Gaussian process then corrects. It may be any
        regressor with scikit-learn's interface; None is a `HistGradientBoostingRegressor`. Its
        ``fit`` receives known noise as `noise_variance`, or, if it takes `sample_weight`, as
        weights: the inverse of each variance plus a tenth of the mean variance.
    weight : float or "auto", default="auto"
        Factor of the mean function's predictions, between 0 and 1. "auto" is 1 for a given
        `mean_function`. For the default one it is 0 or 1: the process is fitted to the targets and
        to the errors, and the fit with the higher density of held-out rows (or of leave-one-out
        predictions) is kept. It is 0 if they were not compared.
    n_folds : int, default=5
        Number of folds for cross-fitting. The mean function is fitted once more on all rows.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds both
        regressors if they have no seed of their own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. A fit of the mean
        function is never stopped. If there is no time to compare the default one, the process is
        used alone.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. It also
        applies to the process if that has "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also applies to the
        process if that has "auto"; two different devices are an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also applies to the process if that has
        "auto"; two different precisions are an error.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. Fits of members and of folds are
        divided among them; each process receives the table once, and the results are those of one
        process. None means this process, unless a :class:`joblib.parallel_config` context says
        otherwise. This process makes all fits if `max_seconds`, `callbacks` or `checkpoint` is set,
        because these look at every step.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the process.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimator_ : regressor
        The process, fitted to the errors of the mean function.
    mean_function_ : regressor
        The mean function, fitted on all rows; None if there was no time for the default one.
    weight_ : float
        The factor of the mean function's predictions.
    kernel_ : kernel instance
        The kernel of the process.
    log_marginal_likelihood_value_, log_marginal_likelihood_std_error_, lower_bound_ : float
        Those of the process, as far as it has them.
    n_iter_ : int
        Training steps of the process.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each of its
        steps.
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
    HeteroscedasticRegressor : Noise that depends on the row, over this or any regressor.

    Notes
    -----
    Standard deviations are those of the process. They do not include the uncertainty of the mean
    function.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from skscalablegp import MeanFunctionRegressor
    >>> X = np.linspace(0, 1, 100)[:, None]
    >>> y = 5 * X[:, 0] + 0.1 * np.sin(20 * X[:, 0])
    >>> gp = MeanFunctionRegressor(mean_function=LinearRegression(), random_state=0).fit(X, y)
    >>> bool(abs(gp.predict([[2.0]])[0] - 10) < 0.5)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        estimator=None,
        mean_function=None,
        *,
        weight="auto",
        n_folds=5,
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
    def fit(self, X, y, noise_variance=None) -> MeanFunctionRegressor:
        """Fit the mean function, and the process to its errors.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        TypeError
            If `estimator` is not a regressor of this package.
        ValueError
            For input or settings the model cannot honour.
        MemoryError
            When the work would not fit, before it starts.
        """
        process = PoERegressor() if self.estimator is None else self.estimator
        if not isinstance(process, GPPredictionBase):
            raise TypeError(
                f"estimator must be a regressor of skscalablegp, got {type(process).__name__}: "
                "pass other regressors as mean_function."
            )
        with FitRun(self) as run:
            X, y, known = self._read_rows(X, y, noise_variance, run, ensure_min_samples=2)
            fresh = self._opened(process, run)
            unseen = Unseen(run, X, y, known, "auto", int(_HELD * len(X)), _CLOSED_FORM, False)
            self._cross_fitted = np.zeros(len(X))
            if self.mean_function is None and self.weight == "auto":
                best = self._best(fresh, unseen, run)
            else:
                weight = 1.0 if self.weight == "auto" else float(self.weight)
                mean = self._mean_function(X, y, known, run)
                show = self._preview(mean, weight)
                trial = unseen.but(y=y - weight * self._cross_fitted).whole(fresh, None, show, True)
                best = Weighted(0.0, weight, mean, trial)
                run.chose("weight", weight, "the given mean function")
            self._finish(best.trial.inner, best.mean_function, best.weight)
            names = type(self.estimator_).__name__, type(best.mean_function).__name__
            summary = "{} of the residuals of {} on held-out rows".format(*names)
            if best.weight == 0 and self.weight == "auto":
                why = "there was no time for boosted trees"
                if best.mean_function is not None:
                    why = "boosted trees do not help"
                summary = f"{names[0]} alone, because {why}"
            run.reports(summary=summary)
            conclude(run, [best.trial], [] if best.trial.whole else [f"{names[0]} on all rows"])
        return self

    def _best(self, fresh: Any, unseen: Unseen, run: FitRun) -> Weighted:
        """The process on the targets, or on the errors of the trees if that has a higher density.

        Both are evaluated on rows that they have not seen. The process alone comes first, and is
        kept unless the other one has been evaluated and is better.
        """
        alone = unseen.tried(fresh, run.budget.share("process alone"), self._preview(None, 0.0))
        fits, why = [Weighted(_density(unseen.y, alone.left), 0.0, None, alone)], ""
        # Without time for another fit of that kind, the first one stands.
        if not run.stopped and run.budget.allows(alone.seconds):
            try:
                with run.budget.may_end(inner=True):
                    mean = self._mean_function(unseen.X, unseen.y, unseen.known, run)
                    fits[0] = fits[0]._replace(mean_function=mean)
                    errors = unseen.but(y=unseen.y - self._cross_fitted)
                    show = self._preview(mean, 1.0)
                    share = run.budget.share("process on errors")
                    trial = errors.tried(fresh, share, show)
                    if not trial.cut or alone.cut:
                        fits.append(Weighted(_density(errors.y, trial.left), 1.0, mean, trial))
            except (MemoryError, TimeoutError) as error:
                why = first_line(error)
                run.warn(f"The process was not fitted to the residuals of boosted trees: {why}")
        run.preview = None
        best = max(fits, key=lambda fit: fit.density)
        why = "no other fit was made"
        if len(fits) > 1:
            shown = " and ".join(f"{fit.density:.2f} for {fit.weight:g}" for fit in fits)
            why = f"mean log density of held-out rows: {shown}"
        run.chose("weight", best.weight, why)
        show = self._preview(best.mean_function, best.weight)
        rows = unseen.but(y=unseen.y - best.weight * self._cross_fitted)
        return best._replace(trial=rows.refitted(best.trial, show))

    def _preview(self, mean: Any, weight: float) -> Any:
        def show(model: MeanFunctionRegressor, below: GPPredictionBase) -> None:
            model._finish(below, mean, weight)

        return show

    def _mean_function(self, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun) -> Any:
        """Fit the mean function on all rows, and store its cross-fitted predictions."""
        given = self.mean_function
        fresh = self._opened(HistGradientBoostingRegressor() if given is None else given, run)
        told = told_noise(fresh, known)

        def fitted(rows: np.ndarray) -> Any:
            weighted = {name: values[rows] for name, values in told.items()}
            return clone(fresh).fit(X[rows], y[rows], **weighted)

        with run.stage("mean function"):
            begun = run.budget.seconds
            mean = fitted(np.arange(len(X)))
            took, budget = run.budget.seconds - begun, run.budget.share("cross-fitting")
            n_folds = budget.affordable(lambda k: k * took, range(2, self.n_folds + 1))
            if n_folds < self.n_folds:
                run.ignores("n_folds", f"there is time for {n_folds} folds")
            seed = int(run.random_state.randint(2**31 - 1))
            folds = KFold(min(n_folds, len(X)), shuffle=True, random_state=seed)
            parts = list(folds.split(X))
            found = by_jobs(FoldFits(fresh, X, y, told, parts, _predicted), run)
            if found is None:
                found = [(fitted(seen).predict(X[new]),) for seen, new in parts]
            for (predicted, *_), (_, new) in zip(found, parts, strict=True):
                self._cross_fitted[new] = predicted
        return mean

    def _finish(self, inner: GPPredictionBase, mean: Any, weight: float) -> None:
        """The fitted model."""
        self.estimator_, self.mean_function_, self.weight_ = inner, mean, weight
        self._share(inner)
        process = fitted_process(inner)
        self._y_train_mean, self._y_train_std = process.y_mean, process.y_std
        self._remember(self._build_posterior())

    # ------------------------------------------------------------------ predictions

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), "_cross_fitted")

    def _build_posterior(self) -> Posterior:
        process = fitted_process(self.estimator_)
        return ShiftedPosterior(process, self.mean_function_, self.weight_)

    def _leaves_out(self) -> str:
        return "leave_one_out" if self.estimator is None else self.estimator._leaves_out()

    def _left_out(self, X, y, noise_variance, rows):
        shift = self.weight_ * self._cross_fitted
        process = fitted_process(self.estimator_)
        left = process.left_out(X, y - shift, noise_variance, rows)
        return left and replace(left, mean=left.mean + shift[left.rows])

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        fitted_process(self.estimator_).check_joint_memory(X, what)


def _predicted(inner: Any, fits: FoldFits, number: int) -> np.ndarray:
    return inner.predict(fits.X[fits.folds[number][1]])


def _density(y: np.ndarray, left: LeftOut) -> float:
    """Mean log density of targets that were left out."""
    squares = np.square(y[left.rows] - left.mean) / left.variance
    return -0.5 * float(np.mean(np.log(2 * np.pi * left.variance) + squares))


class ShiftedPosterior(Posterior):
    """The posterior of a process, with the predictions of a regressor added to its mean.

    Parameters
    ----------
    process : FittedProcess
    mean_function : regressor
        Fitted; its predictions are in the units of y.
    weight : float
        Factor of its predictions.
    """

    def __init__(self, process: FittedProcess, mean_function: Any, weight: float):
        self.process, self.mean_function, self.weight = process, mean_function, weight
        below = self._below = process.posterior
        self.dtype, self.device, self.width = torch.float64, torch.device("cpu"), below.width
        if below.likelihood.additive:
            self.likelihood = below.likelihood

    def _rows(self, X: Float[Tensor, "m d"]) -> Tensor:
        return self.process.inputs(X.numpy())

    def _shift(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        if self.weight == 0:
            return X.new_zeros(len(X), 1, dtype=torch.float64)
        scale = np.ravel(self.process.y_std)[0] / self.weight
        predicted = np.asarray(self.mean_function.predict(X.numpy()), float)
        return torch.as_tensor(predicted / scale)[:, None]

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return self._below.mean(self._rows(X)).cpu().double() + self._shift(X)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        moments = self._below.moments(self._rows(X))
        return moments._replace(mean=moments.mean.cpu().double() + self._shift(X))

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.variance(self._rows(X))

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.noise(self._rows(X))

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        return self._below.covariance(self._rows(X))

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        if not self._below.is_normal:  # tails of a regressor do not reach its quantiles here
            return super().sample(X, n_samples, random_state)
        drawn = self._below.sample(self._rows(X), n_samples, random_state)
        return drawn.cpu().double() + self._shift(X)[:, None]
