"""Sparse regression with the collapsed bound.

Longer than most files here: half of it documents the parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..._compat import FitEvents, fit_context
from ..._validation import check_inducing, check_memory, resolve_device
from ...core import (
    GPRegressorBase,
    budget_of,
    make_monitor,
    seeded,
    shared_parameters,
    stop_after,
    unfinished,
    warn_once,
)
from ...core.training import Monitor, TrainingResult, resolve_optimizer, restart_points, train
from ...kernels import TorchKernel, compile_kernel
from ...linalg.gradients import GPProblem
from ._base import PARAMETERS as SPARSE
from ._bound import NaturalBelief
from ._collapsed import check_noise, collapsed_bound, problem_blocks
from ._gradient import InducingGradient
from ._posterior import InducingPosterior, InducingSpace
from ._selection import INDUCING_METHODS, select_inducing
from ._training import CANDIDATES, START_ROWS, exact_start, point_units

_LARGEST_DEFAULT = 512
_MAX_ITER = 100


class SGPRRegressor(GPRegressorBase):
    """Gaussian-process regression through inducing points, the bound maximised as a whole.

    The distribution of the function's values at m inducing points is integrated out of the
    variational bound, which leaves a function of the hyperparameters with an exact gradient
    (Titsias 2009): a likelihood of the rows under a low-rank kernel, less a penalty for what the
    points miss. It is never above the marginal likelihood, and equals it when all rows are points.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel; bounds, "fixed" included, are honoured. None means
        ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length scale a column; for
        more than 1,000 rows it starts where the exact likelihood of 500 has its maximum.
    n_inducing : int or "auto", default="auto"
        Inducing points m; "auto" is 512, or all rows where there are fewer.
    inducing : {"kmeans++", "conditional_variance", "random"} or array-like of shape (m, d), \
            default="conditional_variance"
        How the points are chosen among the rows, at the starting hyperparameters; or the points
        themselves.
    optimize_inducing : bool, default=False
        Whether the points move along with the hyperparameters.
    alpha : float or array-like of shape (n,), default=1e-10
        Known noise variance, added to that of the kernel, in the units of the (normalised) target
        squared.
    optimizer : "lbfgs", "fmin_l_bfgs_b", "bfgs", "adam", callable, object or None, default="lbfgs"
        Values and gradients are exact. None keeps the kernel's hyperparameters. A callable has
        scikit-learn's signature.
    n_restarts_optimizer : int, default=0
        Further starts, uniform within the bounds.
    learning_rate : float or "auto", default="auto"
        Of Adam; "auto" is 0.1.
    max_iter : int or "auto", default="auto"
        Optimiser steps; "auto" is 100.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    copy_X_train : bool, default=True
        Keep a copy of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of the choice of points and of restarts. None draws a new one at each fit.
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    callbacks : callable, list of callable or None, default=None
        Called after each evaluation with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget of the training; the best state so far is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel.
    inducing_points_ : ndarray of shape (m, d)
        In the units of X.
    X_train_, y_train_ : ndarray
        The training table, for `log_marginal_likelihood`; the target normalised.
    precision_ : ndarray of shape (m, m)
        Posterior precision of the whitened inducing values.
    shift_ : ndarray of shape (m, t)
        Precision times posterior mean.
    log_marginal_likelihood_value_ : float
        The bound, in normalised units.
    n_iter_ : int
        Gradient evaluations, those of the start included.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_info_ : dict
        status, jitter, why training stopped, and the plan in words.
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    SVGPRegressor : The same model by random batches, for more rows and other noise.

    Notes
    -----
    A step costs O(n m^2) time in blocks of rows and O(m^2) memory, a prediction O(m) for a mean and
    O(m^2) for a deviation; float64 throughout.

    References
    ----------
    M. Titsias (2009), Variational learning of inducing variables in sparse Gaussian processes.
    D. Burt, C. E. Rasmussen, M. van der Wilk (2020), Convergence of sparse variational inference in
    Gaussian processes regression.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import SGPRRegressor
    >>> X, y = make_friedman2(n_samples=400, noise=1.0, random_state=0)
    >>> gp = SGPRRegressor(n_inducing=60, normalize_y=True, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.98)
    True
    """

    _parameter_constraints = shared_parameters(
        "kernel",
        "alpha",
        "optimizer",
        "n_restarts_optimizer",
        "learning_rate",
        "max_iter",
        "normalize_y",
        "copy_X_train",
        "n_targets",
        "random_state",
        "memory_budget",
        "device",
        "callbacks",
        "max_seconds",
        "verbose",
    ) | {name: SPARSE[name] for name in ("n_inducing", "inducing", "optimize_inducing")}

    def __init__(
        self,
        kernel: Any = None,
        *,
        n_inducing: Any = "auto",
        inducing: Any = "conditional_variance",
        optimize_inducing: Any = False,
        alpha: Any = 1e-10,
        optimizer: Any = "lbfgs",
        n_restarts_optimizer: Any = 0,
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
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
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.optimize_inducing = optimize_inducing
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.memory_budget = memory_budget
        self.device = device
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> SGPRRegressor:
        """Choose inducing points, train the hyperparameters and compute what predictions need.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. Split by
            cross-validation when metadata routing is on.

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
        monitor = make_monitor(self)
        table = self._read_table(X, y, noise_variance)
        kernel = self._compile_kernel(table)
        table.check_separable(kernel)
        device = resolve_device(self.device)
        problem = table.problem(kernel, torch.float64, device, keep=False)
        with torch.no_grad():
            check_noise(kernel.noise(kernel.theta0, problem.X) + problem.extra_noise)
        m = self._n_inducing(table.X)
        check_memory(
            8 * (8 * m * m + 6 * m * 2048),
            f"{m} inducing points with matrices of {m} x {m}",
            f"use fewer, for example n_inducing={max(1, m // 4)}",
            budget_of(self.memory_budget),
            device=device,
        )
        random_state, generator = seeded(self.random_state)
        events = FitEvents(self, table.X, table.y)
        monitor.callbacks = [*monitor.callbacks, lambda step: events.step()]
        try:
            theta, n_start, stopped = self._start(problem, monitor, generator)
            Z = self._points(problem, theta, m, generator)
            gradient, result = InducingGradient(Z), None
            if stopped is None:
                gradient.scale = self._point_scale(problem, theta)
                result = self._train(problem, gradient, theta, monitor, generator, random_state)
        finally:
            monitor.close()
        self._remember(None)
        self._keep_table(table)
        self._finish(problem, gradient, theta, result, n_start, monitor, stopped)
        events.end()
        return self

    # ------------------------------------------------------------------ steps of a fit

    def _n_inducing(self, X: np.ndarray) -> int:
        n, d = X.shape
        if not isinstance(self.inducing, str):
            return len(check_inducing(self.inducing, d))
        if self.inducing not in INDUCING_METHODS:
            raise ValueError(
                f"Unknown inducing={self.inducing!r}: use one of {INDUCING_METHODS} or an array of "
                "shape (m, d)."
            )
        if isinstance(self.n_inducing, str):
            if self.n_inducing != "auto":
                raise ValueError(f"n_inducing must be a number or 'auto', got {self.n_inducing!r}.")
            return min(n, _LARGEST_DEFAULT)
        return min(n, int(self.n_inducing))

    def _start(
        self, problem: GPProblem, monitor: Monitor, generator: torch.Generator
    ) -> tuple[torch.Tensor, int, str | None]:
        """Where training starts: for the default kernel the exact optimum of some rows.

        Also the evaluations that this took, and why training ended there, if so.
        """
        kernel, n = problem.kernel, len(problem.X)
        if self.kernel is not None or self.optimizer is None or n <= 2 * START_ROWS:
            return kernel.theta0, 0, None
        rows = torch.randperm(n, generator=generator)[:START_ROWS].sort().values
        some = problem.subset(rows.to(problem.X.device))
        result = exact_start(kernel, some.X, some.Y, some.extra_noise, monitor, generator)
        return torch.as_tensor(result.theta), result.n_iter, stop_after(result.stop_reason)

    def _points(
        self, problem: GPProblem, theta: torch.Tensor, m: int, generator: torch.Generator
    ) -> torch.Tensor:
        X = problem.X
        if not isinstance(self.inducing, str):
            return torch.as_tensor(np.asarray(self.inducing, dtype=np.float64)).to(X)
        if m < len(X):
            n = min(len(X), max(CANDIDATES, 2 * m))
            X = X[torch.randperm(len(X), generator=generator)[:n].sort().values.to(X.device)]
        chosen = select_inducing(problem.kernel, theta, X, m, self.inducing, generator)
        return X[chosen.to(X.device)]

    def _point_scale(self, problem: GPProblem, theta: torch.Tensor) -> torch.Tensor | None:
        if not self.optimize_inducing or self.optimizer is None:
            return None
        spread = problem.X.std(0, correction=0)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        return point_units(problem.kernel, theta, spread)

    def _train(
        self,
        problem: GPProblem,
        gradient: InducingGradient,
        theta: torch.Tensor,
        monitor: Monitor,
        generator: torch.Generator,
        random_state: np.random.RandomState,
    ) -> TrainingResult | None:
        kernel = problem.kernel
        moving = np.zeros(0)
        if gradient.scale is not None:
            moving = (gradient.Z / gradient.scale).cpu().numpy().ravel()
        if self.optimizer is None or kernel.n_params + len(moving) == 0:
            return None
        free = np.full((len(moving), 2), [-np.inf, np.inf])
        bounds = kernel.bounds.numpy()
        starts = [theta.numpy(), *restart_points(bounds, self.n_restarts_optimizer, random_state)]
        rate = 0.1 if self.learning_rate == "auto" else float(self.learning_rate)
        steps = _MAX_ITER if self.max_iter == "auto" else int(self.max_iter)
        optimizer = resolve_optimizer(self.optimizer, rate)
        results = []
        for start in starts:
            monitor.begin("full", 2 * steps)
            results.append(
                train(
                    problem,
                    gradient,
                    optimizer,
                    np.concatenate([start, moving]),
                    np.concatenate([bounds, free]),
                    max_iter=steps,
                    monitor=monitor,
                    generator=generator,
                )
            )
            if stop_after(results[-1].stop_reason):
                break
        best = max(results, key=lambda result: np.nan_to_num(result.value, nan=-np.inf))
        stopped = stop_after(results[-1].stop_reason)
        return replace(
            best,
            n_iter=sum(result.n_iter for result in results),
            stop_reason=stopped or best.stop_reason,
        )

    def _finish(
        self,
        problem: GPProblem,
        gradient: InducingGradient,
        theta: torch.Tensor,
        result: TrainingResult | None,
        n_start: int,
        monitor: Monitor,
        stopped: str | None,
    ) -> None:
        kernel = problem.kernel
        theta = theta if result is None else torch.as_tensor(result.theta)
        Z = gradient.points(theta, kernel.n_params)
        theta = theta[: kernel.n_params]
        bound = collapsed_bound(kernel, theta, Z, problem_blocks(problem))
        self.kernel_ = kernel.to_sklearn(theta)
        self.inducing_points_ = Z.cpu().numpy()
        self.precision_ = bound.belief.precision[0].cpu().numpy()
        self.shift_ = bound.belief.shift.cpu().numpy()
        self.log_marginal_likelihood_value_ = bound.value
        self.n_iter_ = n_start + (0 if result is None else result.n_iter)
        self.history_ = monitor.history()
        reason = stopped or ("nothing to train" if result is None else result.stop_reason)
        self.device_, self.dtype_ = str(problem.X.device), "float64"
        self.solver_info_ = {
            "status": "converged",
            "epochs": 0.0,
            "jitter": bound.white.jitter,
            "stop_reason": reason,
            "plan": f"{len(Z)} inducing points in float64 on {problem.X.device}",
        }
        warn_once(unfinished(reason, self, f"{self.n_iter_} gradient evaluations"))

    # ------------------------------------------------------------------ after training

    def _build_posterior(self) -> InducingPosterior:
        kernel: TorchKernel = compile_kernel(self.kernel_, self.n_features_in_)
        space = InducingSpace(
            kernel, kernel.theta0, torch.tensor(self.inducing_points_), torch.device("cpu")
        )
        belief = NaturalBelief(torch.tensor(self.precision_)[None], torch.tensor(self.shift_))
        return InducingPosterior(space, belief.whitened())

    def _likelihood_at(
        self, theta: torch.Tensor, eval_gradient: bool
    ) -> tuple[float, torch.Tensor | None]:
        """The collapsed bound; the inducing points stay."""
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        device = self._fit_device()
        problem = self._table().problem(kernel, torch.float64, device, False)
        Z = torch.tensor(self.inducing_points_, device=device)
        bound = collapsed_bound(kernel, theta, Z, problem_blocks(problem), eval_gradient)
        return bound.value, bound.grad
