"""Gaussian-process regression with random Fourier features: a Bayesian linear regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from ..._end import End
from ...core import (
    FEW_ROWS,
    LARGEST_FEATURE_SIGNAL,
    FitRun,
    GPRegressorBase,
    affordable_size,
    exact_check,
    rows_to_check,
    table_kernel,
    to_numpy,
    to_torch,
    train_planned,
    warn_if_rough,
)
from ...core.data import Table
from ...core.posteriors import (
    FeatureWeights,
    LinearPosterior,
    Posterior,
    Solved,
    WeightFeatures,
    WhiteNoise,
)
from ...features import PriorFeatures, frequencies_per_product, sample_prior_features
from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem
from ._collapsed import BATCH_ROWS, collapsed_marginal_likelihood, feature_weights
from ._gradients import FeatureGradient
from ._noise import suited_noise
from ._plan import FeaturePlan, plan_features, takes_features
from ._training import check_features


class RFFRegressor(GPRegressorBase):
    """Gaussian processes by random Fourier features; exact up to 2,000 rows (``small_table``).

    The kernel is replaced by the inner product of random sines and cosines, which makes the model a
    Bayesian linear regression. It is fast but biased: with few features the likelihood favours
    length scales that are too short, and variances far from the data differ from the prior's. See
    :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. It must be made of stationary kernels, constants, DotProduct and WhiteKernel.
        None means the default kernel of :class:`IterativeGPRegressor`, with a signal variance of at
        most ten times the target's, since the error of the features grows with it.
    n_components : int or "auto", default="auto"
        Number of basis functions; each random frequency contributes two, a sine and a cosine. They
        are divided equally among the products of the kernel that have a stationary factor; each of
        these has at least one frequency. The exact columns of DotProduct and of constants are added
        to them. "auto" is 700. Up to 2,000 rows, "auto" uses no features but the exact process,
        which is as fast and has no approximation error.
    alpha : float or array-like of shape (n,), default=1e-10
        Known noise variance, added to the diagonal of the kernel matrix, in squared units of y, or
        of the normalised target if normalize_y=True. The default is relative to the variance of y.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    priors : dict of str to Prior, "auto" or None, default="auto"
        Prior distributions of hyperparameters, by name; training adds their log density to its
        objective. The values are objects from `skscalablegp.priors`. The keys are names from
        ``kernel.hyperparameters``; those of the default kernel are ``"k1__k1__constant_value"``,
        ``"k1__k2__length_scale"`` and ``"k2__noise_level"``. Hyperparameters are in the units of
        the kernel, in which variances are those of the normalised target. "auto" puts a prior on
        the noise level of the default kernel if there are at least three columns, at most 120 rows,
        and at most 15 rows per column. None means no priors.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        2,000 rows, unless `n_components` is given. "method" never does.
    optimizer : {"auto", "bfgs", "lbfgs", "adam"}, callable, object or None, default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is
        BFGS, since values and gradients are exact once the frequencies are drawn. "fmin_l_bfgs_b"
        is scikit-learn's name for "lbfgs".
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 100.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        frequencies and the restarts.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It is always float64; "float32" has no effect,
        which the fit report says.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    copy_X_train : bool, default=True
        Whether to store a copy of X; otherwise a reference to X is stored.
    n_targets : int or None, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. Only Adam has one. "auto" is 0.1
        up to 50,000 rows and 0.03 above.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only Adam uses it: progress is a change of a log hyperparameter by more than 1e-3.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel.
    X_train_, y_train_ : ndarray or None
        The training rows and their normalised targets, for `log_marginal_likelihood`; None if
        each rank of `distribute` had rows of its own.
    coef_ : ndarray of shape (m, t) or None
        Posterior mean of the weights of the m features; None if the exact process is used.
    coef_precision_cholesky_ : ndarray of shape (m, m) or None
        Lower Cholesky factor of the posterior precision of the weights; None if the exact process
        is used.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood of the model with these features, in units of the normalised
        target.
    n_iter_ : int
        The number of training steps, including restarts.
    n_samples_seen_ : int
        The number of training rows.
    history_ : dict of lists
        stage, iteration, theta, objective, objective_name, residual, probe_residual, epochs and
        seconds of each step.
    fit_report_ : FitReport
        How the fit ended, what "auto" chose and why, parameters without effect, seconds by stage,
        and jitter. `print` shows it as text.
    device_, dtype_ : str
        The device and the precision of training.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        The names of the columns, if X has any.

    See Also
    --------
    SSRFFRegressor : The same features, with gradients made unbiased.

    Notes
    -----
    A training step costs O(n m^2) time and O(m^2) memory in addition to the table. A predicted mean
    costs O(m) per row, and a variance O(m^2).

    Noise stands for all that the features leave unexplained. Training begins with the noise level
    that suits the features on some thousand rows. If it ends before it has converged, the noise
    level is the one with the highest likelihood of all rows, given the other hyperparameters, so
    that standard deviations fit the errors. Noise known for single rows (an array `alpha`, or
    `noise_variance`) excludes the latter.

    References
    ----------
    A. Rahimi, B. Recht (2007), Random features for large-scale kernel machines.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import RFFRegressor
    >>> X, y = make_friedman2(n_samples=300, noise=1.0, random_state=0)
    >>> gp = RFFRegressor(n_components=200, normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components="auto",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="auto",
        max_iter="auto",
        n_restarts_optimizer=0,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        copy_X_train=True,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=5,
    ):
        self._set(locals())

    _centres = True
    _sums_rows = True
    _of_method = ("_features", "coef_", "coef_precision_cholesky_")

    # ------------------------------------------------------------------ fit

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> FeaturePlan:
        (n, d), params = table.X.shape, {"n_params": kernel.n_params}
        plan = plan_features(self, n, d, run.machine, **params)
        check_features(run, "n_components", kernel, plan.n_components.value or 2, n)
        return plan

    def _fit_method(
        self, table: Table, kernel: TorchKernel, plan: FeaturePlan, run: FitRun
    ) -> None:
        self.dtype_ = plan.dtype.value
        problem = table.problem(kernel, torch.float64, run.device, keep=False)

        def drawn(m: int, generator: torch.Generator) -> PriorFeatures:
            pairs = frequencies_per_product(kernel, m)
            return sample_prior_features(
                kernel, kernel.n_features, pairs, generator, device=run.device
            )

        def evaluate(m: int, rows: int) -> None:
            few, some = problem.subset(torch.arange(rows)), drawn(m, torch.Generator())
            theta, sums = suited_noise(few, kernel.theta0, some)
            feature_weights(few, theta, some, sums=sums)

        m = affordable_size("n_components", plan.n_components.value, len(problem.X), evaluate, run)
        features = drawn(m, run.generator)
        # Frequencies refer to slots of the compiled kernel, which the trained kernel shares.
        self._features = to_numpy(features)
        run.preview = lambda model, step: model._finish(problem, features, step.theta, True)
        few = problem.subset(torch.arange(min(len(problem.X), BATCH_ROWS)))
        run.budget.reserve_for(
            lambda: feature_weights(few, kernel.theta0, features), len(problem.X) / len(few.X)
        )
        gradient = FeatureGradient(features)
        result = train_planned(problem, gradient, plan.training, run)
        if self.kernel is None and self.optimizer is not None:
            self._check_roughness(problem, run)
        early = result.stop_reason is not End.CONVERGED
        jitter = run.finish("weights", lambda: self._finish(problem, features, result.theta, early))
        run.ended(result.stop_reason, n_iter=result.n_iter, planned=result.planned)
        run.reports(
            jitter=jitter, summary=f"{features.n_features} features in float64 on {run.device}"
        )

    def _check_roughness(self, problem: GPProblem, run: FitRun) -> None:
        """Features hide how rough the target is: the check needs an exact fit on some rows."""
        n = len(problem.X)

        def some(m: int) -> GPProblem:
            return problem.subset(rows_to_check(n, run, m).to(problem.X.device))

        found = exact_check(lambda: some(FEW_ROWS), n, run)
        if found is not None:
            warn_if_rough(some(3 * FEW_ROWS), found[1], n, run)

    def _finish(
        self, problem: GPProblem, features: PriorFeatures, theta: Any, early: bool
    ) -> float:
        """Set the attributes of the model with these hyperparameters; returns the jitter.

        If training has ended `early`, the noise is first chosen to suit the others.
        """
        theta, sums = torch.as_tensor(theta), None
        if early:
            theta, sums = suited_noise(problem, theta, features)
        weights, evaluation = feature_weights(problem, theta, features, sums=sums)
        self.kernel_ = problem.kernel.to_sklearn(theta)
        self.coef_ = weights.mean.cpu().numpy()
        self.coef_precision_cholesky_ = weights.factor.cpu().numpy()
        self.log_marginal_likelihood_value_ = evaluation.value
        return max(evaluation.jitter, weights.jitter)

    def _default_kernel(self, table: Table) -> Kernel:
        limit = LARGEST_FEATURE_SIGNAL if takes_features(self, len(table.X)) else None
        return table_kernel(table, limit)

    # ------------------------------------------------------------------ after training

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), *self._ROWS)

    def _with_rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> Any:
        """As in the base class, with the same features."""
        if self._exact is not None:
            return super()._with_rows(X, y, noise_variance)
        other = self._grown(X, y, noise_variance)
        problem = other._trained_problem()
        other._finish(problem, to_torch(self._features), problem.kernel.theta0, False)
        return other

    def _build_posterior(self) -> Posterior:
        kernel, features = self._trained_kernel(), to_torch(self._features)
        theta, device = kernel.theta0, self._fit_device()
        noise, weights = WhiteNoise(kernel, theta, plain=False), FeatureWeights.of(self, device)
        features = WeightFeatures(features.module(theta), noise)
        return LinearPosterior(features, weights.mean, Solved(weights.factor))

    def _likelihood_at(self, theta, eval_gradient):
        """The likelihood of the model with these features."""
        features = to_torch(self._features)
        result = collapsed_marginal_likelihood(
            self._trained_problem(), theta, features, eval_gradient
        )
        return result.value, result.grad
