"""Relevance vector machines from a large dictionary of kernel functions."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import WhiteKernel
from torch import Tensor

from ..._compat import FitEvents, Interval, StrOptions, fit_context
from ..._validation import check_memory
from ...core import (
    MinibatchGPRegressorBase,
    budget_of,
    input_scaling,
    make_monitor,
    seeded,
    shared_parameters,
    stop_after,
    training_device,
    unfinished,
    warn_once,
)
from ...core.data import RowSource, Scaling
from ...core.likelihoods import Gaussian
from ...core.training import train_steps
from ...kernels import TorchKernel, compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions, ScaledFunctions
from ._fit import Fit
from ._posterior import ChevronPosterior, ChevronWeights
from ._relevance import RelevanceStepper
from ._site import Site
from ._start import noise_of
from ._steps import stochastic_fit

# Functions whose precisions are trained by full batches; larger dictionaries shrink by steps first.
_EXACT = 2048
# Most rounds of steps, and steps of each.
_ROUNDS, _ROUND_STEPS = 12, 40


class QSRVMRegressor(MinibatchGPRegressorBase):
    """Relevance vector machine: a sparse sum of kernel functions at some of the rows.

    Every basis function has its own prior precision s_i. Maximising the evidence drives most of
    them to infinity; the functions with s_i below `max_precision` remain, and predictions cost as
    much as they are many. Dictionaries of up to 2,048 functions are trained by full batches; larger
    ones first by rounds of quadruply stochastic steps, in which s_i = 1 / (mu_i^2 + c_ii^2), until
    few enough are left; after twelve rounds the 2,048 with the smallest s_i go on.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel, in units of the standardised columns. None is
        Constant * Matern(nu=1.5) + White, one length scale a column up to 30 columns.
    n_features : int or "auto", default="auto"
        Size of the dictionary, random rows; "auto" is all rows up to 10,000.
    max_precision : float, default=1e4
        Functions with a larger s_i are dropped, in units of the target's mean square.
    batch_size : int or "auto", default="auto"
        Rows of a step; "auto" is 500. Full batches read all rows.
    feature_batch_size : int or "auto", default="auto"
        Functions of each draw; "auto" is a tenth of the dictionary, at least 1,024.
    control_variate_rank : int or "auto", default="auto"
        Support rows of the steps; "auto" is 500 up to 20,000 rows and 1,000 above.
    optimizer : {"auto"} or None, default="auto"
        "auto" takes length scales and noise from an exact Gaussian process on `subset_size` rows;
        None keeps the kernel's.
    subset_size : int, default=1000
        Rows of the exact start.
    n_restarts_optimizer : int, default=0
        Its further starts.
    max_iter : int, default=100
        Most updates of all precisions with full batches.
    tol : float, default=1e-6
        Stop after three scores in a row that gain less, in log evidence a row.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    standardize : bool, default=True
        Centre and scale the columns of X.
    n_targets : int, default=None
        Number of target columns, checked against y; they share their relevance vectors.
    random_state : int, RandomState instance or None, default=None
        Seed of dictionary, draws and subset. None draws a new one at each fit.
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    callbacks : callable, list of callable or None, default=None
        Called after each score with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget; the best state so far is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The kernel of the functions, with the trained noise.
    relevance_ : ndarray of shape (r,)
        Numbers of the rows whose functions remain, ascending.
    relevance_vectors_ : ndarray of shape (r, d)
        These rows, in X's units.
    precision_ : ndarray of shape (r,)
        Their s_i, for functions that are 1 at their own row, in units of the target's mean square.
    coef_ : ndarray of shape (r, t)
        Means of their weights.
    coef_cholesky_ : ndarray of shape (r, r)
        Lower Cholesky factor of the weights' covariance.
    noise_variance_ : float
        In normalised units.
    lower_bound_ : float
        Log evidence a row and target.
    n_iter_ : int
        Updates of all precisions.
    history_ : dict of lists
        stage, theta (log noise, functions left), objective, residual, epochs, seconds a score.
    solver_info_ : dict
        Why training stopped, and the plan in words.
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    QSGPRegressor : A Gaussian process, without sparsity.

    Notes
    -----
    O(n m^2) once and O(m^3) an update for m functions, shrinking quickly. Far from all relevance
    vectors the model alone would be certain; predictive variances are augmented by a function at
    the point itself (appendix G).

    References
    ----------
    M. E. Tipping (2001), Sparse Bayesian learning and the relevance vector machine.

    T. W. Evans, P. B. Nair (2020), Quadruply stochastic Gaussian processes, appendix I.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import QSRVMRegressor
    >>> X = np.linspace(-10, 10, 200)[:, None]
    >>> y = np.sinc(X[:, 0] / np.pi)
    >>> model = QSRVMRegressor(random_state=0).fit(X, y)
    >>> len(model.relevance_) < 50
    True
    """

    _fast_products = False

    _parameter_constraints = shared_parameters(
        "kernel",
        "n_restarts_optimizer",
        "normalize_y",
        "n_targets",
        "random_state",
        "batch_size",
        "tol",
        "memory_budget",
        "device",
        "callbacks",
        "max_seconds",
        "verbose",
    ) | {
        "n_features": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "max_precision": [Interval(Real, 0, None, closed="neither")],
        "feature_batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "control_variate_rank": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "optimizer": [StrOptions({"auto"}), None],
        "subset_size": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "standardize": ["boolean"],
    }

    # What the stochastic rounds ask of an estimator.
    n_dense = 0
    covariance = "chevron"
    inference = "stochastic"
    variational_optimizer = "preconditioned"
    learning_rate = "auto"
    decay = 0.3
    hyperparameter_learning_rate = 0.0
    freeze = 1.0
    dtype = "auto"
    n_iter_no_change = None

    def __init__(
        self,
        kernel: Any = None,
        *,
        n_features: Any = "auto",
        max_precision: Any = 1e4,
        batch_size: Any = "auto",
        feature_batch_size: Any = "auto",
        control_variate_rank: Any = "auto",
        optimizer: Any = "auto",
        subset_size: Any = 1000,
        n_restarts_optimizer: Any = 0,
        max_iter: Any = 100,
        tol: Any = 1e-6,
        normalize_y: Any = False,
        standardize: Any = True,
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
        self.max_precision = max_precision
        self.batch_size = batch_size
        self.feature_batch_size = feature_batch_size
        self.control_variate_rank = control_variate_rank
        self.optimizer = optimizer
        self.subset_size = subset_size
        self.n_restarts_optimizer = n_restarts_optimizer
        self.max_iter = max_iter
        self.tol = tol
        self.normalize_y = normalize_y
        self.standardize = standardize
        self.n_targets = n_targets
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any) -> QSRVMRegressor:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows.
        y : array-like of shape (n,) or (n, t)
            Targets.

        Returns
        -------
        self : QSRVMRegressor

        Raises
        ------
        ValueError
            For a dictionary larger than the table.
        MemoryError
            If the dictionary's matrix does not fit.
        """
        X, Y = self._read_rows(X, y)
        n = len(X)
        m = min(n, 10_000) if self.n_features == "auto" else self.n_features
        if m > n:
            raise ValueError(
                f"n_features={m} is more than the {n} rows, whose functions make the dictionary."
            )
        device = training_device(self.device)
        check_memory(
            8 * 4 * min(m, _EXACT) ** 2,
            f"A dictionary of {m} functions",
            f"use fewer, for example n_features={max(1, m // 4)}",
            budget_of(self.memory_budget),
            device=device,
        )
        monitor = make_monitor(self)
        random_state, _ = seeded(self.random_state)
        events = FitEvents(self, X, Y)
        monitor.callbacks = [*monitor.callbacks, lambda step: events.step()]
        scaling = input_scaling(X, Y, self.normalize_y)
        if not self.standardize:
            d = X.shape[1]
            scaling = replace(scaling, x_mean=np.zeros(d), x_scale=np.ones(d))
        source = RowSource(X, Y, scaling, torch.float64, device)
        try:
            fit = _DictionaryFit(self, source, m, monitor, random_state)
            stepper, result = fit.run()
        finally:
            monitor.close()
        self._keep(fit, stepper, scaling, X)
        self.n_iter_ = result.n_steps
        self.history_ = monitor.history()
        self.device_, self.dtype_ = str(device), "float64"
        self.solver_info_ = {
            "status": result.stop_reason,
            "stop_reason": result.stop_reason,
            "plan": f"{m} functions, {fit.rounds} rounds of steps, then full batches",
        }
        warn_once(unfinished(result.stop_reason, self, f"{result.n_steps} updates"))
        events.end()
        return self

    def _keep(
        self, fit: _DictionaryFit, stepper: RelevanceStepper, scaling: Scaling, X: np.ndarray
    ) -> None:
        active = fit.left[stepper.active.cpu().numpy()]
        order = np.argsort(fit.rows[active])
        self.relevance_ = fit.rows[active][order]
        self.relevance_vectors_ = np.asarray(X[self.relevance_], dtype=np.float64)
        self.precision_ = stepper.precision[stepper.active].cpu().numpy()[order] * fit.unit
        self.coef_ = stepper.mean.cpu().numpy()[order]
        covariance = stepper.covariance.cpu()[order][:, order]
        self.coef_cholesky_ = cholesky_with_jitter(covariance)[0].numpy()
        self.noise_variance_ = float(stepper.noise)
        self.kernel_ = _with_noise(fit.kernel, self.noise_variance_)
        self.lower_bound_ = -stepper.score()
        self._n_rows = len(X)
        self._keep_scaling(scaling)
        self._remember(None)

    def _build_posterior(self) -> ChevronPosterior:
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        points = self._scaling.inputs(self.relevance_vectors_, torch.float64, torch.device("cpu"))
        amplitude = _own_values(kernel, points)[:, None].numpy()
        r, t = self.coef_.shape
        weights = ChevronWeights(
            torch.tensor(self.coef_ / amplitude).reshape(1, r, t),
            torch.tensor(self.coef_cholesky_ / amplitude).reshape(1, r, r),
            torch.zeros(1, r, dtype=torch.float64),
        )
        share = r / self._n_rows
        return ChevronPosterior(
            KernelFunctions(kernel, points),
            kernel.theta0,
            weights,
            self.noise_variance_,
            (kernel, self.noise_variance_ * share),
        )


class _DictionaryFit:
    """The dictionary of one fit, shrunk by steps until full batches can finish."""

    def __init__(self, est, source: RowSource, m: int, monitor, random_state):
        self.est, self.source, self.monitor, self.random_state = est, source, monitor, random_state
        n = len(source)
        self.rows = np.sort(random_state.permutation(n)[:m]) if m < n else np.arange(n)
        self.left = np.arange(m)
        self.points = source.rows(self.rows)[0]
        self.unit = float(np.mean([float(Y.square().mean()) for _, Y in source.blocks()])) or 1.0
        shape = _Shape(est, source, monitor, random_state)
        self.fit = shape
        self.kernel = shape.hyperparameters()
        self.rounds = 0

    def run(self):
        compiled = compile_kernel(self.kernel, self.fit.d)
        amplitude = _own_values(compiled, self.points)
        precision = np.full(len(self.left), 1.0 / self.unit)
        noise = noise_of(compiled, compiled.theta0)
        stopped = self.fit.stopped
        while len(self.left) > _EXACT and self.rounds < _ROUNDS and not stopped:
            precision, stopped = self._round(compiled, amplitude, precision, noise)
            self.rounds += 1
        precision = self._most_relevant(precision)
        gram, projection, square = self._moments(compiled, amplitude)
        stepper = RelevanceStepper(
            gram,
            projection,
            square,
            len(self.source),
            torch.as_tensor(precision).to(gram),
            noise,
            self.est.max_precision / self.unit,
        )
        self.monitor.begin("full", self.est.max_iter)
        result = train_steps(
            stepper,
            max_steps=0 if stopped else self.est.max_iter,
            check_every=1,
            monitor=self.monitor,
            n_iter_no_change=3,
            tol=self.est.tol,
            epochs_per_step=0.0,
        )
        return stepper, replace(result, stop_reason=stopped or result.stop_reason)

    def _round(
        self, compiled: TorchKernel, amplitude: Tensor, precision: np.ndarray, noise: float
    ) -> tuple[np.ndarray, str | None]:
        """Steps at these precisions, then the ELBO's optimum in each of them.

        Also why no round is to follow, if so.
        """
        scale = 1 / (amplitude[self.left].cpu().numpy() * np.sqrt(precision))
        basis = ScaledFunctions(
            KernelFunctions(compiled, self.points[self.left].float()),
            torch.as_tensor(scale).float(),
        )
        self.fit.resize(len(self.left))
        rng = np.random.default_rng(self.random_state.randint(2**31 - 1))
        site = Site(Gaussian(), noise, 1 / noise)
        state = stochastic_fit(self.fit, self.kernel, compiled, basis, site, 0, rng, None, 0)
        second = (np.square(state.mean[0]).mean(1) + np.square(state.diagonal[0])) / precision
        new = 1 / np.maximum(second, 1e-300)
        keep = new < self.est.max_precision / self.unit
        if keep.sum() < 1:
            keep[np.argmin(new)] = True
        self.left = self.left[keep]
        return new[keep], stop_after(state.stop_reason)

    def _most_relevant(self, precision: np.ndarray) -> np.ndarray:
        """No more functions than full batches have room for; those of the smallest s_i."""
        if len(self.left) > _EXACT:
            keep = np.sort(np.argsort(precision, kind="stable")[:_EXACT])
            self.left, precision = self.left[keep], precision[keep]
        return precision

    def _moments(self, compiled: TorchKernel, amplitude: Tensor):
        """Phi'Phi, Phi'Y and the sum of squares of Y, a block of rows at a time."""
        points = self.points[self.left]
        m, t = len(points), self.source.Y.shape[1]
        gram = torch.zeros(m, m, dtype=torch.float64, device=points.device)
        projection = torch.zeros(m, t, dtype=torch.float64, device=points.device)
        square = 0.0
        with torch.no_grad():
            for X, Y in self.source.blocks(4096):
                phi = compiled.cross(compiled.theta0, X, points) / amplitude[self.left]
                gram += phi.T @ phi
                projection += phi.T @ Y
                square += float(Y.square().sum())
        return gram, projection, max(square, 1e-300)


class _Shape(Fit):
    """The stochastic rounds' settings: those of a Fourier model of the dictionary's size."""

    def __init__(self, est, source: RowSource, monitor, random_state):
        super().__init__(_Settings(est), source, Gaussian(), None, monitor, random_state)
        self.source = replace(self.source, dtype=torch.float32, _resident=None).resident()
        self.plan = replace(self.plan, dtype=torch.float32, steps=_ROUND_STEPS, n_dense=0)

    def resize(self, m: int) -> None:
        features = self.est.feature_batch_size
        features = max(min(m, 1024), m // 10) if features == "auto" else features
        self.plan = replace(self.plan, n_features=m, features=min(features, m))


class _Settings:
    """An estimator's parameters without those that a Fourier basis would check."""

    n_features = 2
    feature_batch_size = "auto"
    max_iter = _ROUND_STEPS

    def __init__(self, est: Any):
        self._est = est

    def __getattr__(self, name: str) -> Any:
        return getattr(self._est, name)


def _own_values(kernel: TorchKernel, points: Tensor) -> Tensor:
    """k(x_i, x_i), by which functions become 1 at their own row; 1 for a function that is 0."""
    with torch.no_grad():
        values = kernel.diag(kernel.theta0, points).double()
    return torch.where(values > 0, values, torch.ones_like(values))


def _with_noise(kernel: Any, noise: float) -> Any:
    """The kernel with another white noise; the sum's last WhiteKernel holds it."""
    params = kernel.get_params()
    names = [name for name, value in params.items() if isinstance(value, WhiteKernel)]
    kernel = kernel.clone_with_theta(kernel.theta)
    if len(names) != 1 or len(names[0].split("__")) != 1:
        return kernel
    bounds = params[names[0]].noise_level_bounds
    if not isinstance(bounds, str):
        bounds = (min(bounds[0], noise), max(bounds[1], noise))
    return kernel.set_params(**{names[0]: WhiteKernel(noise, bounds)})
