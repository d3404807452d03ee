"""A Gaussian process on the errors of another regressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from .._compat import fit_context
from ..core import FitRun, FittedProcess, GPPredictionBase, LeftOut, fitted_process
from ..core.posteriors import Draws, Moments, Posterior, Rows
from ..core.training import StopTraining
from ..models.experts import PoERegressor
from ._below import MetaRegressorBase, fit_below, left_out_in_time, split, told_noise
from ._scaled import Scaled

# Number of rows that are left out to compare fits with the mean function and without it.
_JUDGED = 2000


class Weighted(NamedTuple):
    """A fit of the process to the targets less a weighted mean function, and how it ended.

    Attributes
    ----------
    density : float
        Mean log density of rows left out; minus infinity where it is unknown.
    """

    density: float
    weight: float
    process: Any
    status: str
    because: str


class MeanFunctionRegressor(MetaRegressorBase):
    """A Gaussian process whose mean function is any regressor.

    A prediction is the sum of the mean function and a Gaussian process, which is fitted to the
    errors of the mean function. These errors come from cross-fitting: each row is predicted by a
    mean function that was fitted without it, so that the process is trained on errors as large as
    those at new rows.

    Boosted trees, the default mean function, leave errors on small or smooth tables that are
    rougher than the target itself. They are therefore left out unless they help.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It is the Gaussian process, a regressor of this
        package; None is a `PoERegressor`. Where its memory budget, device or precision is "auto",
        the setting of this estimator holds.
    mean_function : regressor, default=None
        Regressor that predicts the mean, which the Gaussian process then corrects. It may be any
        regressor with scikit-learn's interface; None is a `HistGradientBoostingRegressor`. Its
        ``fit`` receives known noise as `noise_variance`, or, if it takes `sample_weight`, as
        weights: the inverse of each variance plus a tenth of the mean variance.
    weight : float or "auto", default="auto"
        Factor of the mean function's predictions, between 0 and 1. "auto" is 1 for a given
        `mean_function`. For the default one it is 0 or 1: the process is fitted to the targets and
        to the errors, and the fit that gives training rows the higher density counts, where each
        row is left out. 1 is kept where the process leaves out rows in no closed form.
    n_folds : int, default=5
        Number of folds for cross-fitting. The mean function is fitted once more on all rows.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds both
        regressors if they have no seed of their own.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. It also
        holds for the process if that has "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also holds for the
        process if that has "auto"; two different devices are an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also holds for the process if that has
        "auto"; two different precisions are an error.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the process.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept. A
        fit of the mean function is never stopped; the process has the remaining time.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimator_ : regressor
        The process, fitted to the errors of the mean function.
    mean_function_ : regressor
        The mean function, fitted on all rows.
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
        estimator: Any = None,
        mean_function: Any = None,
        *,
        weight: Any = "auto",
        n_folds: Any = 5,
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
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> MeanFunctionRegressor:
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
            For a regressor below that is not of this package.
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
            told = {} if known is None else {"noise_variance": known}
            fresh = self._opened(process, run)
            mean = self._mean_function(X, y, known, run)
            best = self._best(fresh, mean, X, y, told, run)
            self._finish(best.process, mean, best.weight)
            names = type(best.process).__name__, type(mean).__name__
            summary = "{} on the errors of {} on rows that it has not seen"
            if best.weight == 0 and self.weight == "auto":
                summary = "{} alone, because {} does not help"
            run.reports(summary=summary.format(*names))
            run.ended(best.status, n_iter=best.process.n_iter_, because=best.because)
        return self

    def _best(  # noqa: C901 (one branch for each case)
        self, fresh: Any, mean: Any, X: np.ndarray, y: np.ndarray, told: dict, run: FitRun
    ) -> Weighted:
        """The process on the errors, or on the targets if that predicts rows left out better."""
        weights = (1.0, 0.0) if self.mean_function is None else (1.0,)
        if self.weight != "auto":
            weights = (float(self.weight),)
        order = run.random_state.permutation(len(X))[:_JUDGED]
        fits: list[Weighted] = []
        for weight in weights:
            inner, errors = clone(fresh), y - weight * self._cross_fitted

            def preview(
                model: MeanFunctionRegressor, below: GPPredictionBase, weight: float = weight
            ) -> None:
                model._finish(below, mean, weight)

            share, begun = 1.0, run.budget.seconds
            if len(weights) > 1:
                share = "process alone" if fits else "process on errors"
            try:
                # A finished fit stands.
                with run.budget.may_end(bool(fits), inner=True):
                    ending = fit_below(inner, run, X, errors, preview, share, **told)
            except (MemoryError, StopTraining, TimeoutError) as error:
                if not fits:
                    raise
                why = str(error) or type(error).__name__
                run.warn(f"The targets without the mean function were not tried: {why}")
                break
            finally:
                run.preview = None
            if fits and run.stopped:
                break
            found = None
            if len(weights) > 1 and not run.stopped:
                found = left_out_in_time(Scaled(inner), run, X, errors, order, "comparison", told)
            density = -np.inf if found is None else _density(errors, found)
            fits.append(Weighted(density, weight, inner, *ending))
            # Without time for another fit of that kind, the first one stands.
            if found is None or not run.budget.allows(run.budget.seconds - begun):
                break
        best = max(fits, key=lambda fit: fit.density)
        why = "the given mean function" if len(weights) == 1 else "there was no other fit"
        if len(fits) > 1:
            shown = " and ".join(f"{fit.density:.2f} for {fit.weight:g}" for fit in fits)
            why = f"mean log density of rows left out: {shown}"
        run.chose("weight", best.weight, why)
        return best

    def _mean_function(self, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun) -> Any:
        """Fit the mean function on all rows, and store its cross-fitted predictions."""
        given = self.mean_function
        fresh = self._opened(HistGradientBoostingRegressor() if given is None else given, run)
        told = told_noise(fresh, known)

        def fitted(rows: np.ndarray) -> Any:
            weighted = {name: values[rows] for name, values in told.items()}
            return clone(fresh).fit(X[rows], y[rows], **weighted)

        self._cross_fitted = np.empty(len(X))
        with run.stage("mean function"):
            begun = run.budget.seconds
            mean = fitted(np.arange(len(X)))
            took, budget = run.budget.seconds - begun, run.budget.share("cross-fitting")
            n_folds = budget.affordable(lambda k: k * took, range(2, self.n_folds + 1))
            if n_folds < self.n_folds:
                run.ignores("n_folds", f"there is time for {n_folds} folds")
            for seen, new in split(len(X), n_folds, 0, run):
                self._cross_fitted[new] = fitted(seen).predict(X[new])
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

    def _left_out(self, X, y, noise_variance, rows):
        shift = self.weight_ * self._cross_fitted
        process = fitted_process(self.estimator_)
        left = process.left_out(X, y - shift, noise_variance, rows)
        return left and replace(left, mean=left.mean + shift[left.rows])

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        fitted_process(self.estimator_).check_joint_memory(X, what)


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
        self._process, self._mean_function, self._weight = process, mean_function, weight
        below = self._below = process.posterior
        self.dtype, self.device, self.width = torch.float64, torch.device("cpu"), below.width
        if below.likelihood.additive:
            self.likelihood = below.likelihood

    def _rows(self, X: Float[Tensor, "m d"]) -> Tensor:
        return self._process.inputs(X.numpy())

    def _shift(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        if self._weight == 0:
            return X.new_zeros(len(X), 1, dtype=torch.float64)
        scale = np.ravel(self._process.y_std)[0] / self._weight
        predicted = np.asarray(self._mean_function.predict(X.numpy()), float)
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

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        drawn = self._below.sample(self._rows(X), n_samples, random_state)
        return drawn.cpu().double() + self._shift(X)[:, None]
