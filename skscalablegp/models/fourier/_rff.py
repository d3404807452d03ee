"""Gaussian-process regression with random Fourier features, with and without their bias."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch

from ..._compat import HasMethods, Interval
from ..._validation import available_memory, check_memory, resolve_device
from ...core import LARGEST_FEATURE_SIGNAL, budget_of, shared_parameters, to_numpy, to_torch
from ...core.posteriors import FeaturePosterior, FeatureWeights
from ...core.training import Monitor, TrainingResult
from ...features import sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel
from ...linalg.gradients import GPProblem, GradientEstimator
from ..iterative import IterativeGPRegressor, Plan, TruncatedGPRegressor
from ._collapsed import collapsed_marginal_likelihood, feature_weights
from ._gradients import FeatureGradient, SingleSampleGradient
from ._space import FeatureSpace

_COMMON = (
    "kernel",
    "alpha",
    "optimizer",
    "normalize_y",
    "copy_X_train",
    "n_targets",
    "random_state",
    "learning_rate",
    "max_iter",
    "n_iter_no_change",
    "memory_budget",
    "device",
    "callbacks",
    "max_seconds",
    "verbose",
)
_FEATURES = [Interval(Integral, 2, None, closed="left")]


@contextmanager
def _saying_what_has_features() -> Iterator[None]:
    """Kernels without random features: an error with what to do instead here."""
    try:
        yield
    except NoSpectralDensity as error:
        raise NoSpectralDensity(
            f"{error.cause}, so it has no random features: use a sum or product of RBF, Matern, "
            "RationalQuadratic, DotProduct and constants, or IterativeGPRegressor."
        ) from None


def _check_features(n_features: int, name: str, columns: int, n: int, budget: Any, device) -> None:
    """Refuse m x m matrices that do not fit; columns is what n_features become in this kernel."""
    limit = budget_of(budget)
    need = 8 * (4 * columns**2 + 4 * columns * min(n, 2048))
    try:
        check_memory(need, "", "", limit, device=device)
    except MemoryError as error:
        bounds = [bound for bound in (limit, available_memory(device)) if bound is not None]
        room = min(bounds)
        fits = max(2, int(n_features * min(0.5, (room / need) ** 0.5 / 2)))
        raise MemoryError(
            f"{name}={n_features} makes {columns} columns and four {columns} x {columns} matrices:"
            f"{str(error).removesuffix(': .')}. Use fewer, for example {name}={fits}."
        ) from None


class RFFRegressor(IterativeGPRegressor):
    """Gaussian-process regression with random Fourier features: linear in the number of rows.

    The kernel is replaced by the inner product of random sines and cosines, which makes the model
    a Bayesian linear regression. It is quick, and biased: with few features the likelihood favours
    too short length scales, and far from the data variances do not quite return to the prior's.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel made of stationary kernels, constants, DotProduct and WhiteKernel;
        None is that of :class:`IterativeGPRegressor`, its signal variance at most ten times the
        target's: the features err by a share of it.
    n_features : int, default=700
        Random features, half sines and half cosines, for each product of the kernel that has a
        stationary factor.
    alpha : float or array-like of shape (n,), default=1e-10
        Added to the diagonal, in the units of the (normalised) target squared.
    optimizer : "auto", "bfgs", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or None, \
            default="auto"
        "auto" is BFGS: the frequencies are drawn once, and values and gradients are exact for them.
        None keeps the kernel's hyperparameters.
    n_restarts_optimizer : int, default=0
        Further starts, uniform within the bounds.
    learning_rate : float or "auto", default="auto"
        Of Adam; "auto" is 0.1 up to 50,000 rows and 0.03 above.
    max_iter : int or "auto", default="auto"
        Optimiser steps; "auto" is 100.
    n_iter_no_change : int or None, default=5
        Stop Adam when no log hyperparameter moved by more than 1e-3 in so many steps.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    copy_X_train : bool, default=True
        Keep a copy of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of the frequencies and restarts. None draws a new one at each fit.
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    callbacks : callable, list of callable or None, default=None
        Called after each evaluation with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget of the hyperparameters' training; the best state so far is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel.
    X_train_, y_train_ : ndarray
        The training table, for `log_marginal_likelihood`; the target normalised.
    coef_ : ndarray of shape (m, t)
        Posterior mean of the weights of the m features.
    coef_cholesky_ : ndarray of shape (m, m)
        Lower Cholesky factor of the weights' posterior precision.
    log_marginal_likelihood_value_ : float
        Of the model with these features, in normalised units.
    n_iter_ : int
        Gradient evaluations.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_info_ : dict
        status, epochs, jitter, why training stopped, and the plan in words.
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    SSRFFRegressor : The same features without their bias.

    Notes
    -----
    O(n m^2) time a step, O(m^2) memory beside the table; a prediction costs O(m) a row, its
    variance O(m^2).

    References
    ----------
    A. Rahimi, B. Recht (2007), Random features for large-scale kernel machines.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import RFFRegressor
    >>> X, y = make_friedman2(n_samples=300, noise=1.0, random_state=0)
    >>> gp = RFFRegressor(n_features=200, normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    solver = "cg"
    gradient = "auto"
    preconditioner = None
    posterior = "solve"
    subset_size = None
    dtype = "float64"
    tol = 0.01
    max_epochs = 1000
    warm_start_solver = False
    n_probes = 1

    _largest_signal = LARGEST_FEATURE_SIGNAL
    _parameter_constraints = shared_parameters(*_COMMON, "n_restarts_optimizer") | {
        "n_features": _FEATURES,
    }

    def __init__(
        self,
        kernel: Any = None,
        *,
        n_features: Any = 700,
        alpha: Any = 1e-10,
        optimizer: Any = "auto",
        n_restarts_optimizer: Any = 0,
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
        n_iter_no_change: Any = 5,
        normalize_y: Any = False,
        copy_X_train: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.n_features = n_features
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    def _plan(self, kernel: TorchKernel, n: int) -> Plan:
        # No matrix over the rows is ever made: every decision but the device is settled.
        return Plan(
            solver="features",
            exact=False,
            dtype=torch.float64,
            device=self._device(),
            keep=False,
            subset_size=None,
            n_subsets=1,
            exact_subset_rows=0,
            factor_if_ill_conditioned=False,
            posterior="features",
        )

    def _device(self) -> torch.device:
        return resolve_device(self.device)

    def _gradient_estimator(self, kernel: TorchKernel, plan: Plan, n: int) -> GradientEstimator:
        with _saying_what_has_features():
            probe = self._draw(kernel, torch.Generator().manual_seed(0), n_pairs=1)
        pairs = self.n_features // 2
        columns = sum(b.n_features * (pairs if b.frequencies else 1) for b in probe.blocks)
        _check_features(self.n_features, "n_features", columns, n, self.memory_budget, plan.device)
        return FeatureGradient(probe)

    def _draw(self, kernel: TorchKernel, generator: torch.Generator, n_pairs: int | None = None):
        n_pairs = self.n_features // 2 if n_pairs is None else n_pairs
        return sample_prior_features(
            kernel, kernel.n_features, n_pairs, generator, device=self._device()
        )

    def _train(
        self,
        problem: GPProblem,
        estimator: GradientEstimator,
        plan: Plan,
        monitor: Monitor,
        generator: torch.Generator,
        random_state: Any,
    ) -> TrainingResult | None:
        features = self._draw(problem.kernel, generator)
        estimator.features = features
        self._drawn = features
        try:
            return super()._train(problem, estimator, plan, monitor, generator, random_state)
        except BaseException:
            del self._drawn
            raise

    def _finish(
        self,
        problem: GPProblem,
        plan: Plan,
        result: TrainingResult | None,
        monitor: Monitor,
        generator: torch.Generator,
    ) -> None:
        kernel, features = problem.kernel, self._drawn
        del self._drawn
        theta = kernel.theta0 if result is None else torch.as_tensor(result.theta)
        evaluation = collapsed_marginal_likelihood(problem, theta, features, eval_gradient=False)
        weights = feature_weights(problem, theta, features)
        self.kernel_ = kernel.to_sklearn(theta)
        self.n_iter_ = 0 if result is None else result.n_iter
        self.history_ = monitor.history()
        self.device_, self.dtype_ = str(plan.device), "float64"
        self.coef_ = weights.mean.cpu().numpy()
        self.coef_cholesky_ = weights.factor.cpu().numpy()
        self.log_marginal_likelihood_value_ = evaluation.value
        # Frequencies by the slots of the compiled kernel, which the trained one shares.
        self._features = to_numpy(features)
        reason = "nothing to train" if result is None else result.stop_reason
        self.solver_info_ = {
            "status": "converged",
            "epochs": 0.0,
            "jitter": max(evaluation.jitter, weights.jitter),
            "stop_reason": reason,
            "plan": f"{features.n_features} features in float64 on {plan.device}",
        }
        self._warn([], reason)

    # ------------------------------------------------------------------ after training

    def _problem_of_table(self) -> tuple[GPProblem, Any]:
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        problem = self._table().problem(kernel, torch.float64, self._fit_device(), False)
        return problem, to_torch(self._features)

    def _build_posterior(self) -> FeaturePosterior:
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        space = FeatureSpace(kernel, kernel.theta0, to_torch(self._features), torch.device("cpu"))
        weights = FeatureWeights(torch.tensor(self.coef_cholesky_), torch.tensor(self.coef_))
        return FeaturePosterior(space, weights)

    def _likelihood_at(
        self, theta: torch.Tensor, eval_gradient: bool
    ) -> tuple[float, torch.Tensor | None]:
        """Of the model with these features."""
        problem, features = self._problem_of_table()
        result = collapsed_marginal_likelihood(problem, theta, features, eval_gradient)
        return result.value, result.grad


class SSRFFRegressor(TruncatedGPRegressor):
    """Random Fourier features made unbiased by a random correction, with exact predictions.

    Each training step takes the gradient with `min_features` random features and adds one increment
    of the series that leads from there to the exact kernel matrix, weighted by the inverse of its
    probability. The gradient is right on average, and so noisy that training takes of the order of
    100 times as many steps (Potapczynski et al. 2021); :class:`RRCGRegressor` is the practical one.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel with a spectral density; None is that of
        :class:`IterativeGPRegressor`.
    min_features : int, default=500
        Features that are always there; tables of no more rows are trained exactly.
    step : int, default=100
        Features from one term of the series to the next; the last term is the exact matrix.
    truncation : TruncationDistribution or None, default=None
        Of the term that is drawn, in units of `step` features; None is ``ReciprocalTruncation()``.
    alpha : float or array-like of shape (n,), default=1e-10
        Added to the diagonal, in the units of the (normalised) target squared.
    optimizer : "adam", object or None, default="adam"
        None keeps the kernel's hyperparameters.
    learning_rate : float or "auto", default="auto"
        Of Adam. "auto" is 0.1 up to 50,000 rows and 0.03 above.
    max_iter : int or "auto", default="auto"
        Steps; "auto" is 100, few for so much noise.
    n_iter_no_change : int or None, default=5
        Stop when no log hyperparameter moved by more than 1e-3 in so many steps.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    copy_X_train : bool, default=True
        Keep a copy of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of frequencies and terms. None draws a new one at each fit.
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    callbacks : callable, list of callable or None, default=None
        Called after each evaluation with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget of the hyperparameters' training; the mean of the last iterates is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel; the mean of the last five iterates.
    X_train_, y_train_ : ndarray
        What predictions are made from; the target normalised.
    alpha_ : ndarray of shape (n,) or (n, t)
        Dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        At `kernel_`, exact, in normalised units.
    log_marginal_likelihood_std_error_ : float
        0.
    n_iter_ : int
        Gradient evaluations.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_ : str
        "features".
    solver_info_ : dict
        As of :class:`IterativeGPRegressor`.
    posterior_ : str
        "exact".
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    RFFRegressor : The same features with their bias, which train and predict in linear time.

    Notes
    -----
    The last term is an exact evaluation, so a step may cost O(n^3) time and O(n^2) memory.

    References
    ----------
    A. Potapczynski, L. Wu, D. Biderman, G. Pleiss, J. P. Cunningham (2021), Bias-free scalable
    Gaussian processes via randomized truncations.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import SSRFFRegressor
    >>> X, y = make_friedman2(n_samples=200, noise=1.0, random_state=0)
    >>> gp = SSRFFRegressor(min_features=100, step=50, max_iter=20, normalize_y=True,
    ...                     random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.9)
    True
    """

    preconditioner = None
    posterior = "exact"
    subset_size = None
    dtype = "float64"
    tol = 1e-4
    max_epochs = 1000
    n_probes = 1

    _parameter_constraints = shared_parameters(*_COMMON) | {
        "min_features": _FEATURES,
        "step": _FEATURES,
        "truncation": [HasMethods(["on"]), None],
        "optimizer": [str, HasMethods(["maximize"]), None],
    }

    def __init__(
        self,
        kernel: Any = None,
        *,
        min_features: Any = 500,
        step: Any = 100,
        truncation: Any = None,
        alpha: Any = 1e-10,
        optimizer: Any = "adam",
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
        n_iter_no_change: Any = 5,
        normalize_y: Any = False,
        copy_X_train: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.min_features = min_features
        self.step = step
        self.truncation = truncation
        self.alpha = alpha
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    def _plan(self, kernel: TorchKernel, n: int) -> Plan:
        check_memory(
            24 * n * n,
            f"The exact last term of the series for {n} rows (three {n} x {n} matrices)",
            "use RFFRegressor or RRCGRegressor, whose memory is linear in the rows, or fewer rows",
            budget_of(self.memory_budget),
            device=resolve_device(self.device),
        )
        return replace(super()._plan(kernel, n), solver="features")

    def _gradient_estimator(self, kernel: TorchKernel, plan: Plan, n: int) -> GradientEstimator:
        with _saying_what_has_features():
            sample_prior_features(kernel, kernel.n_features, 1, torch.Generator().manual_seed(0))
        _check_features(
            self.min_features,
            "min_features",
            min(self.min_features, n),
            n,
            self.memory_budget,
            plan.device,
        )
        estimator = SingleSampleGradient(
            self.truncation, min_features=self.min_features, step=self.step
        )
        estimator.levels(n)
        return estimator
