"""A Gaussian process on the errors of another regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from .._compat import fit_context
from ..core import FitRun, GPPredictionBase
from ..core.posteriors import Draws, MeanAndVariance, Posterior, Rows
from ..models.experts import PoERegressor
from ._below import MetaRegressorBase, fit_below, split, told_noise


class MeanFunctionRegressor(MetaRegressorBase):
    """A Gaussian process whose mean function is any regressor.

    A prediction is the sum of the mean function and a Gaussian process, which is fitted to the
    errors of the mean function. These errors come from cross-fitting: each row is predicted by a
    mean function that was fitted without it, so that the process is trained on errors as large as
    those at new rows.

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

    def __init__(
        self,
        estimator: Any = None,
        mean_function: Any = None,
        *,
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
            inner = self._opened(process, run)
            mean = self._mean_function(X, y, known, run)

            def preview(model: MeanFunctionRegressor, below: GPPredictionBase) -> None:
                model._finish(below, mean)

            status, because = fit_below(inner, run, X, y - self._unseen, preview, **told)
            self._finish(inner, mean)
            run.reports(
                summary=f"{type(inner).__name__} on the errors of {type(mean).__name__} on rows "
                "that it has not seen"
            )
            run.ended(status, n_iter=inner.n_iter_, because=because)
        return self

    def _mean_function(self, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun) -> Any:
        """Fit the mean function on all rows, and store its cross-fitted predictions."""
        given = self.mean_function
        fresh = self._opened(HistGradientBoostingRegressor() if given is None else given, run)
        told = told_noise(fresh, known)

        def fitted(rows: np.ndarray) -> Any:
            weighted = {name: values[rows] for name, values in told.items()}
            return clone(fresh).fit(X[rows], y[rows], **weighted)

        self._unseen = np.empty(len(X))
        with run.stage("mean function"):
            begun = run.monitor.seconds
            mean = fitted(np.arange(len(X)))
            n_folds, left = self.n_folds, run.monitor.seconds_left
            if left is not None:
                # Half of the remaining time is reserved for the process.
                enough = int(0.5 * left / max(run.monitor.seconds - begun, 1e-9))
                if (enough := max(2, enough)) < n_folds:
                    run.ignores("n_folds", f"there is time for {enough} folds")
                    n_folds = enough
            for seen, new in split(len(X), n_folds, 0, run):
                self._unseen[new] = fitted(seen).predict(X[new])
        return mean

    def _finish(self, inner: GPPredictionBase, mean: Any) -> None:
        """The fitted model."""
        self.estimator_, self.mean_function_ = inner, mean
        self._share(inner)
        self._y_train_mean, self._y_train_std = inner._y_train_mean, inner._y_train_std
        self._remember(self._build_posterior())

    # ------------------------------------------------------------------ predictions

    def _build_posterior(self) -> Posterior:
        return ShiftedPosterior(self.estimator_, self.mean_function_)

    def _left_out(self, X, y, noise_variance, rows):
        found = self.estimator_._left_out(X, y - self._unseen, noise_variance, rows)
        return found and (found[0], found[1] + self._unseen[found[0]], found[2])

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        self.estimator_._check_joint_memory(X, what)


class ShiftedPosterior(Posterior):
    """The posterior of a process, with the predictions of a regressor added to its mean.

    Parameters
    ----------
    process : GPPredictionBase
        Fitted.
    mean_function : regressor
        Fitted; its predictions are in the units of y.
    """

    def __init__(self, process: GPPredictionBase, mean_function: Any):
        self._process, self._mean_function = process, mean_function
        self._below = process._posterior()
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.width, self.likelihood = self._below.width, self._below.likelihood

    def _rows(self, X: Float[Tensor, "m d"]) -> Tensor:
        return self._process._inputs(X.numpy())

    def _shift(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        scale = np.ravel(self._process._y_train_std)[0]
        return torch.as_tensor(np.asarray(self._mean_function.predict(X.numpy()), float) / scale)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        return self._below.mean(self._rows(X)).cpu().double() + self._shift(X)[:, None]

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        mean, variance = self._below.mean_and_variance(self._rows(X))
        return mean.cpu().double() + self._shift(X)[:, None], variance

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.variance(self._rows(X))

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.noise(self._rows(X))

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        return self._below.covariance(self._rows(X))

    def quantiles(self, X, q, include_noise, known):
        below = self._below.quantiles(self._rows(X), q, include_noise, known)
        return below + self._shift(X).numpy()[:, None, None]

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        drawn = self._below.sample(self._rows(X), n_samples, random_state)
        return drawn.cpu().double() + self._shift(X)[:, None, None]

    def take_unfinished(self):
        return self._below.take_unfinished()
