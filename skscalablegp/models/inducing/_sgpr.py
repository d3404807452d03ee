"""Sparse regression with the collapsed bound.

Half of this file documents the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core import (
    Choice,
    FitRun,
    StageSettings,
    StartRows,
    TableRegressorBase,
    affordable_size,
    below_the_noise_bound,
    best_of,
    candidates,
    compared_start,
    exact_start,
    random_rows,
    rows_for,
    rows_to_check,
    select_inducing,
    tells_nothing,
    warn_if_rough,
)
from ...core.data import Table
from ...core.training import (
    TrainingResult,
    TrainingStep,
    restart_points,
    train,
)
from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem
from ._bound import NaturalBelief
from ._collapsed import BLOCK_ROWS, InducingGradient, check_noise, collapsed_bound
from ._plan import CollapsedPlan, plan_collapsed
from ._posterior import InducingPosterior
from ._training import START_ROWS, START_STEPS, point_units

# The inducing points for some hyperparameters.
Points = Callable[[torch.Tensor], torch.Tensor]


class SGPRRegressor(TableRegressorBase):
    """Gaussian processes with collapsed inducing points; exact up to 2,000 rows (``small_table``).

    The optimal distribution of the function values at m inducing points is inserted into the
    variational bound. This gives a function of the hyperparameters with an exact gradient (Titsias
    2009): the log likelihood of the rows under a low-rank kernel, minus a penalty for the variance
    that the points do not explain. It is never above the log marginal likelihood, and equals it if
    all rows are inducing points. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None means ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length
        scale per column. For more than 1,000 rows, training then starts at the maximum of the exact
        likelihood of 500 rows.
    n_inducing : int or "auto", default="auto"
        Number of inducing points. "auto" is 512, or all rows on fewer. The exact process takes
        their place on 513 to 2,000 rows: see `small_table`.
    inducing : {"kmeans++", "conditional_variance", "random"} or array-like of shape (m, d), \
            default="conditional_variance"
        Method that chooses the inducing points, or an array of points. The named methods choose
        among the training rows, at the initial hyperparameters.
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
        2,000 rows, unless `n_inducing`, `inducing`, `optimize_inducing` or `optimizer` is given.
        "method" never does; few rows are then all inducing points.
    optimizer : {"lbfgs", "fmin_l_bfgs_b", "bfgs", "adam"}, callable, object or None, \
            default="lbfgs"
        Method that trains the hyperparameters; None keeps them at their initial values. Values and
        gradients are exact. A callable has the signature that scikit-learn documents.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 100. The limit applies to each start.
    optimize_inducing : bool, default=False
        Whether training moves the inducing points. They are then trained together with the
        hyperparameters.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        choice of inducing points and the restarts.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It is always float64. The bound is a
        difference of large numbers, which single precision cannot resolve if inducing points are
        close to each other. `SVGPRegressor` does use float32.
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
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. Only "adam" has one. "auto" is
        0.1.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only "adam" uses this rule; a step without progress moves no log hyperparameter by
        more than 1e-3.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel.
    inducing_points_ : ndarray of shape (m, d) or None
        The inducing points, in the units of X; None if the exact process takes their place.
    X_train_, y_train_ : ndarray or None
        The training rows and their normalised targets, for `lower_bound`; None if
        each rank of `distribute` had rows of its own.
    precision_ : ndarray of shape (m, m)
        Posterior precision of the whitened function values at the inducing points.
    shift_ : ndarray of shape (m, t)
        That precision times the posterior mean of these values.
    lower_bound_ : float
        Lower bound of the log marginal likelihood, in units of the normalised target, summed over
        rows and targets.
    n_iter_ : int
        The number of gradient evaluations, including those of the start and of restarts.
    n_samples_seen_ : int
        The number of training rows.
    history_ : dict of lists
        stage, iteration, theta, objective, objective_name, residual, probe_residual, epochs and
        seconds of each evaluation.
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
    SVGPRegressor : The same model trained on batches, for more rows and other likelihoods.

    Notes
    -----
    A training step costs O(n m^2) time and, since rows are read in blocks, O(m^2) memory. A
    predicted mean costs O(m), and a standard deviation O(m^2). All computations are in float64.

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

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_inducing="auto",
        inducing="conditional_variance",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="lbfgs",
        max_iter="auto",
        optimize_inducing=False,
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

    _sums_rows = True
    _of_method = ("inducing_points_", "precision_", "shift_")

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> CollapsedPlan:
        problem = table.problem(kernel, torch.float64, run.device, keep=False)
        check_noise(torch.tensor(problem.each(_least_noise)))
        return plan_collapsed(self, *table.X.shape)

    def _fit_method(
        self, table: Table, kernel: TorchKernel, plan: CollapsedPlan, run: FitRun
    ) -> None:
        self.dtype_ = plan.dtype.value
        problem = table.problem(kernel, torch.float64, run.device, keep=False)
        plan = self._within_time(problem, plan, run)
        far, spread = np.empty(0, dtype=np.int64), None
        if isinstance(self.inducing, str) and plan.n_inducing.value < len(problem.X):
            far = table.far_rows()
        if self.optimize_inducing and self.optimizer is not None:
            spread = table.robust_moments()[1]
        points = partial(self._points, problem, far, int(plan.n_inducing.value), run.generator)
        start = self._start(problem, points, run)
        theta = torch.as_tensor(start.theta)
        gradient = run.finish("points", lambda: self._gradient(problem, theta, points, spread, run))
        run.preview = lambda model, step: model._finish(problem, gradient, step.theta)
        result = self._train(problem, gradient, plan, start, run)
        if plan.all_rows:
            # The bound is then the exact likelihood.
            kernel, result = below_the_noise_bound(problem, kernel, result, plan.stages, run)
            problem = replace(problem, kernel=kernel)
        jitter = run.finish("belief", lambda: self._finish(problem, gradient, result.theta))
        run.ended(
            start.stop_reason if run.stopped and not result.n_iter else result.stop_reason,
            n_iter=start.n_iter + result.n_iter,
            planned=result.planned,
        )
        summary = f"{plan.n_inducing.value} inducing points in float64 on {run.device}"
        run.reports(jitter=jitter, summary=summary)

    _objective = "lower_bound_"

    # ------------------------------------------------------------------ steps of a fit

    def _within_time(self, problem: GPProblem, plan: CollapsedPlan, run: FitRun) -> CollapsedPlan:
        """The plan with as many points as there is time for."""
        kernel, points = problem.kernel, int(plan.n_inducing.value)

        def evaluate(m: int, rows: int) -> None:
            Z, some = (problem.subset(torch.arange(k)) for k in (m, rows))
            collapsed_bound(kernel, kernel.theta0, Z.X, some.total)

        m = affordable_size("n_inducing", points, len(problem.X), evaluate, run)
        if m == points:
            return plan
        return replace(plan, n_inducing=Choice(m, "there is no time for more"), all_rows=False)

    def _start(self, problem: GPProblem, points: Points, run: FitRun) -> TrainingResult:
        """The starting point: the optimum of an exact fit on some rows."""
        kernel, n = problem.kernel, len(problem.X)
        if self.optimizer is None or kernel.n_params == 0:
            return TrainingResult.untrained(kernel.theta0.numpy())
        start = rows_for(problem.X.shape[1], START_ROWS)
        of_start = StartRows.of(problem)
        rows = of_start.chosen(random_rows(n, start, run.generator).numpy())
        run.fast = of_start.fast
        some = problem.random_part(torch.as_tensor(rows, device=problem.X.device))
        if self.kernel is not None or n <= 2 * start:
            return compared_start(some, StageSettings(self.optimizer, self.max_iter), run)

        def preview(model: Any, step: TrainingStep) -> None:
            Z = points(torch.as_tensor(step.theta))
            model._finish(problem, InducingGradient(Z), step.theta)

        run.preview = preview
        result = exact_start(some, run, max_iter=START_STEPS)
        check = problem.subset(rows_to_check(n, run).to(problem.X.device))
        warn_if_rough(check, result.theta, n, run)
        return result

    def _points(
        self,
        problem: GPProblem,
        far: np.ndarray,
        m: int,
        generator: torch.Generator,
        theta: torch.Tensor,
    ) -> torch.Tensor:
        """m of the user's points or of the rows; `far` are the rows far from all others."""
        n, device = len(problem.X), problem.X.device
        if not isinstance(self.inducing, str):
            given = torch.as_tensor(np.asarray(self.inducing, dtype=np.float64)).to(device)
            return given if m == len(given) else given[random_rows(len(given), m, generator)]
        if m < n:
            X = problem.subset(candidates(n, far, m, generator).to(device)).X
        else:
            X = problem.whole().X
        chosen = select_inducing(problem.kernel, theta, X, m, self.inducing, generator)
        return X[chosen.to(X.device)]

    def _gradient(
        self,
        problem: GPProblem,
        theta: torch.Tensor,
        points: Points,
        spread: np.ndarray | None,
        run: FitRun,
    ) -> InducingGradient:
        """The gradient estimator, with units for inducing points that are trained.

        `spread` is that of the columns if points are trained. Also reserves time for the last
        evaluation of the bound.
        """
        Z = points(theta)
        some = problem.subset(torch.arange(min(len(problem.X), 2 * BLOCK_ROWS)).to(Z.device))
        run.budget.reserve_for(
            lambda: collapsed_bound(problem.kernel, theta, Z, some.total),
            len(problem.X) / len(some.X),
        )
        if spread is None:
            return InducingGradient(Z)
        units = point_units(problem.kernel, theta, torch.as_tensor(spread).to(Z))
        return InducingGradient(Z, scale=units)

    def _train(
        self,
        problem: GPProblem,
        gradient: InducingGradient,
        plan: CollapsedPlan,
        initial: TrainingResult,
        run: FitRun,
    ) -> TrainingResult:
        """Train from all starts; the best result, with the evaluations of all.

        An interrupt before the first evaluation leaves the initial hyperparameters if these have
        been trained on some rows, and no model otherwise.
        """
        steps, optimizer = int(plan.max_iter.value), plan.new_optimizer
        bounds, moving = problem.kernel.bounds.numpy(), gradient.moving()
        problem = replace(problem, tied=initial.tied)
        first = np.concatenate([initial.theta, moving])
        untrained = TrainingResult.untrained(first)
        if optimizer is None or not len(first) or tells_nothing(problem):
            return untrained
        patient = optimizer.patient
        free = np.full((len(moving), 2), [-np.inf, np.inf])
        starts = restart_points(bounds, self.n_restarts_optimizer, run.restarts)

        def attempt(start: np.ndarray) -> TrainingResult:
            run.monitor.begin("full", 2 * steps, "lower bound")
            return train(
                problem,
                gradient,
                optimizer,
                start,
                np.concatenate([bounds, free]),
                max_iter=steps,
                monitor=run.monitor,
                generator=run.generator,
                n_iter_no_change=self.n_iter_no_change if patient else None,
            )

        points = [first, *(np.concatenate([start, moving]) for start in starts)]
        kept = untrained if initial.n_iter else None
        best = best_of((partial(attempt, point) for point in points), kept, run)
        return replace(best, planned=patient and self.max_iter == "auto")

    def _finish(self, problem: GPProblem, gradient: InducingGradient, theta: np.ndarray) -> float:
        """Set the fitted attributes at theta, which may include inducing points; the jitter."""
        kernel, at = problem.kernel, torch.as_tensor(theta)
        Z = gradient.points(at, kernel.n_params)
        at = at[: kernel.n_params]
        bound = collapsed_bound(kernel, at, Z, problem.total)
        self.kernel_ = kernel.to_sklearn(at)
        self.inducing_points_ = Z.cpu().numpy()
        self.precision_ = bound.belief.precision[0].cpu().numpy()
        self.shift_ = bound.belief.shift.cpu().numpy()
        self.lower_bound_ = bound.value
        return bound.white.jitter

    # ------------------------------------------------------------------ after training

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), *self._ROWS)

    def _build_posterior(self) -> InducingPosterior:
        kernel = self._trained_kernel()
        Z, P, shift = (
            torch.tensor(array, device=self._fit_device())
            for array in (self.inducing_points_, self.precision_, self.shift_)
        )
        theta, belief = kernel.theta0.to(Z.device), NaturalBelief(P[None], shift)
        return InducingPosterior(kernel, theta, Z, belief.whitened())

    def lower_bound(self, theta=None, eval_gradient: bool = False):
        """The lower bound of the log marginal likelihood, for the fitted inducing points.

        Parameters
        ----------
        theta : array-like of shape (p,), optional
            Log hyperparameters; the trained ones by default.
        eval_gradient : bool, default=False
            Also return the gradient in theta.

        Returns
        -------
        bound : float
            Summed over rows and targets, in nats, in normalised units.
        gradient : ndarray of shape (p,)
            Only with `eval_gradient`.

        Raises
        ------
        ValueError
            If a gradient is requested without theta, or theta has the wrong shape.
        NotFittedError
            Before `fit`.
        """
        return self._value_at(theta, eval_gradient, "lower_bound_")

    def _likelihood_at(self, theta, eval_gradient):
        """The collapsed bound and its gradient, for the fitted inducing points."""
        problem = self._trained_problem()
        Z = torch.tensor(self.inducing_points_, device=problem.X.device)
        bound = collapsed_bound(problem.kernel, theta, Z, problem.total, eval_gradient)
        return bound.value, bound.grad


@torch.no_grad()
def _least_noise(problem: GPProblem) -> float:
    # A rank may have no rows.
    return min(problem.noise(problem.kernel.theta0).tolist(), default=math.inf)
