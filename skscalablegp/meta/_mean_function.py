"""A Gaussian process on what another regressor leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from .._compat import fit_context
from .._validation import check_noise_variance, validated
from ..core import FitRun, GPPredictionBase
from ..core.posteriors import MeanAndVariance, Posterior
from ..models.experts import PoERegressor
from ._below import fit_below, opened

# Fitted attributes that are the process's.
_TAKEN = ("kernel_", "log_marginal_likelihood_value_", "lower_bound_")
# What is added to noise before it becomes a weight, as a share of its mean.
_EVEN = 0.1


class MeanFunctionRegressor(MetaEstimatorMixin, GPPredictionBase):
    """A Gaussian process whose mean function is any regressor.

    The mean function is cross-fitted: the process is fitted to what is left of targets that the
    mean function has not seen, so that it meets in training what it will meet in predictions.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It is one of this package; None is a
        `PoERegressor`. Its settings of budget, device and precision are this one's where it leaves
        them open.
    mean_function : regressor, default=None
        Regressor that predicts the mean, which the Gaussian process then corrects. It is any
        regressor of scikit-learn's kind; None is a `HistGradientBoostingRegressor`. Where its
        ``fit`` takes `sample_weight`, rows of known noise are weighted by it.
    n_folds : int, default=5
        Number of folds for cross-fitting. The mean function is fitted once more on all rows.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds both
        regressors, where they have no seed of their own.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. It is passed
        on to a process that has no budget of its own.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It is the process's,
        too, where that has "auto"; another one of its own is an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It is the process's, too, where that has
        "auto"; another one of its own is an error.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. They see the steps of the process.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
        The mean function takes what it takes, the process has the rest.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimator_ : regressor
        The process, fitted to what the mean function leaves.
    mean_function_ : regressor
        The mean function, fitted on all rows.
    kernel_ : kernel instance
        The process's.
    log_marginal_likelihood_value_, lower_bound_ : float
        The process's, whichever it has.
    n_iter_ : int
        Its training steps.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each of its
        steps.
    fit_report_ : FitReport
        How the fit ended, and seconds by stage.
    device_, dtype_ : str
        Where the fit ran, and in what precision predictions are given.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    HeteroscedasticRegressor : Noise that depends on the row, over this or any regressor.

    Notes
    -----
    Standard deviations are those of the process: of what the mean function leaves, given the mean
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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> MeanFunctionRegressor:
        """Fit the mean function, and the process to what it leaves.

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
                f"estimator must be a regressor of skscalablegp, got {type(process).__name__}: the "
                "mean function may be any."
            )
        with FitRun(self) as run:
            X, y = validated(self, X, y, y_numeric=True, dtype=np.float64, ensure_min_samples=2)
            known = check_noise_variance(noise_variance, len(X), 1)
            told = {} if known is None else {"noise_variance": known[:, 0]}
            self._noise_given = known is not None
            run.begin(X, y)
            inner = opened(process, self, run, getattr(self, "feature_names_in_", None))
            mean = self._mean_function(X, y, told, run)
            self.dtype_ = run.chose("dtype", "float64", "predictions; the process has its own")

            def preview(model: MeanFunctionRegressor, below: GPPredictionBase) -> None:
                model._finish(below, mean)

            status, because = fit_below(inner, run, X, y - self._unseen, preview, **told)
            self._finish(inner, mean)
            run.reports(
                summary=f"{type(inner).__name__} on what {type(mean).__name__} leaves of rows that "
                "it has not seen"
            )
            run.ended(status, n_iter=inner.n_iter_, because=because)
        return self

    def _mean_function(self, X: np.ndarray, y: np.ndarray, told: Any, run: FitRun) -> Any:
        """Fitted on all rows; keeps what it predicts of rows that it has not seen."""
        given = self.mean_function
        fresh = opened(HistGradientBoostingRegressor() if given is None else given, self, run)
        weights = np.ones(len(X))
        if told and has_fit_parameter(fresh, "sample_weight"):
            noise = told["noise_variance"]
            weights = 1 / (noise + _EVEN * noise.mean() + np.finfo(float).tiny)

        def fitted(rows: np.ndarray) -> Any:
            weighted = {"sample_weight": weights[rows]} if np.ptp(weights) else {}
            return clone(fresh).fit(X[rows], y[rows], **weighted)

        self._unseen = np.empty(len(X))
        seed = int(run.random_state.randint(2**31 - 1))
        folds = KFold(min(self.n_folds, len(X)), shuffle=True, random_state=seed)
        with run.stage("mean function"):
            for seen, new in folds.split(X):
                self._unseen[new] = fitted(seen).predict(X[new])
            return fitted(np.arange(len(X)))

    def _finish(self, inner: GPPredictionBase, mean: Any) -> None:
        """The fitted model."""
        self.estimator_, self.mean_function_ = inner, mean
        for name in _TAKEN:
            if name in vars(inner):
                setattr(self, name, getattr(inner, name))
        self._y_train_mean, self._y_train_std = inner._y_train_mean, inner._y_train_std
        self._remember(self._build_posterior())

    # ------------------------------------------------------------------ what predictions need

    def _build_posterior(self) -> Posterior:
        return ShiftedPosterior(self.estimator_, self.mean_function_)

    def _left_out(self, X, y, noise_variance, rows):
        found = self.estimator_._left_out(X, y - self._unseen, noise_variance, rows)
        return found and (found[0], found[1] + self._unseen[found[0]], found[2])

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        self.estimator_._check_joint_memory(X, what)


class ShiftedPosterior(Posterior):
    """A process's posterior, its mean moved by what a regressor predicts.

    Parameters
    ----------
    process : GPPredictionBase
        Fitted.
    mean_function : regressor
        Fitted; predicts in the units of y.
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

    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m 1 s"]:
        drawn = self._below.sample(self._rows(X), n_samples, random_state)
        return drawn.cpu().double() + self._shift(X)[:, None, None]

    def take_unfinished(self):
        return self._below.take_unfinished()
