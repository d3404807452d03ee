"""Gaussian-process regression by iterative linear solves.

Longer than most files here: a third of it documents the parameters.
"""

from __future__ import annotations

import math
import warnings
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from ..._compat import FitEvents, HasMethods, fit_context
from ..._validation import available_memory, check_memory, resolve_device, resolve_dtype
from ...core import (
    PARAMETERS,
    GPRegressorBase,
    Run,
    StageSettings,
    budget_of,
    fit_hyperparameters,
    make_monitor,
    seeded,
    to_numpy,
    to_torch,
    unfinished,
    warn_once,
    well_conditioned,
)
from ...core.data import Table
from ...core.posteriors import ExactPosterior, Posterior
from ...core.training import Monitor, TrainingResult, TrainingStep, resolve_optimizer
from ...features import sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel
from ...linalg.gradients import (
    ExactGradient,
    GPProblem,
    GradientEstimator,
    GradientState,
    PathwiseGradient,
    StandardGradient,
    exact_marginal_likelihood,
)
from ...linalg.solvers import (
    Cholesky,
    MaxEpochs,
    RelativeResidual,
    Solution,
    SolveSummary,
    Status,
    preconditioner_for,
    resolve_solver,
)
from ._final_solve import final_solve
from ._plan import ENOUGH_SAMPLES, FLOAT64_ROWS, Plan, describe, make_plan
from ._posterior import IterativePosterior
from ._variance_solve import unfinished_solves, variance_solver, variance_tolerance


class IterativeGPRegressor(GPRegressorBase):
    """Gaussian-process regression for tables beyond scikit-learn's, by iterative solvers.

    A drop-in replacement of :class:`sklearn.gaussian_process.GaussianProcessRegressor`. Small
    tables are trained exactly; larger ones are initialised on a subset and refined on all rows,
    above some 8,000 of them with gradients from preconditioned conjugate gradients, without ever
    inverting a matrix.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel; bounds, "fixed" included, are honoured. None means
        ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length scale a column, all
        starting at the scale of the data.
    alpha : float or array-like of shape (n,), default=1e-10
        Added to the diagonal, in the units of the (normalised) target squared.
    optimizer : "auto", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or None, default="auto"
        "auto" is quasi-Newton where values and gradients are exact or a subset gave the curvature,
        and Adam elsewhere (above 50,000 rows, or with ``subset_size=None``); None keeps the
        kernel's hyperparameters. A callable has scikit-learn's signature.
    n_restarts_optimizer : int, default=0
        Further starts, uniform within the bounds; only where values are exact.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    copy_X_train : bool, default=True
        Keep a copy of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of subsets, probes and restarts. None draws a new one at each fit.
    solver : {"auto", "cholesky", "cg", "block_cg", "ap", "sgd", "sdd", "adasap"} or solver \
            object, default="auto"
        What solves the systems of a training step. "auto" decides by the number of rows from
        measured times and says what it took in `solver_`. "block_cg" shares directions among the
        right-hand sides and needs the fewest epochs; "ap" and "adasap" read blocks of rows and
        stand small budgets best.
    gradient : {"auto", "exact", "standard", "pathwise"} or object, default="auto"
        How the gradient is estimated. "auto": exact with Cholesky, else pathwise where the kernel
        has a spectral density, else standard.
    preconditioner : {"auto", "pivoted_cholesky", "rpcholesky", "nystrom"}, object or None, \
            default="auto"
        "auto" is randomly pivoted Cholesky for "cg" and "block_cg" by name and what a solver
        object's own settings say otherwise; None is no other than those settings'. Solvers
        without a preconditioner ignore it.
    n_probes : int or "auto", default="auto"
        Probe vectors of the trace estimate, and posterior samples of the pathwise posterior. "auto"
        is 32 where only gradients come from them and 64 where variances do.
    tol : float, default=0.01
        Relative residual at which a solve ends. Solves for variances go on to 1e-4, and further
        where the noise is below 1 % of the signal.
    max_epochs : float, default=1000
        Budget of one solve in epochs; one epoch evaluates n^2 kernel entries.
    warm_start_solver : bool, default=True
        Start each solve from the last step's solution, with frozen probes.
    learning_rate : float or "auto", default="auto"
        Of Adam. "auto" is 0.1 up to 50,000 rows and 0.03 above.
    max_iter : int or "auto", default="auto"
        Optimiser steps on all rows; "auto" is 100, after a subset 25 (Adam: 30).
    n_iter_no_change : int or None, default=5
        Stop Adam when no log hyperparameter moved by more than 1e-3 in so many steps.
    subset_size : int, "auto" or None, default="auto"
        Rows of the exact fit that initialises the hyperparameters. "auto" is 2,000 for tables of
        more than 3,000 rows (ten neighbourhoods of so many above 50,000 rows), else None.
    posterior : {"auto", "exact", "pathwise", "solve"}, default="auto"
        What answers variances: one Cholesky factorisation, `n_probes` pathwise samples, or a solve
        for each prediction. "auto" is "exact" up to 20,000 rows (40,000 on a GPU) and "pathwise"
        above; with an iterative solver by name "solve" up to 3,000 rows and "pathwise" above.
        Solvers that read a few rows at a time leave solves for variances to "block_cg".
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Of the training products: "auto" is float64 up to 3,000 rows, and where float32 would not
        hold a factor of the kernel matrix. Predictions are computed in float64 unless "float32" is
        asked for.
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
        What predictions are made from; the target normalised.
    alpha_ : ndarray of shape (n,) or (n, t)
        Dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        At `kernel_`, in normalised units; with iterative posteriors of more than 3,000
        rows a stochastic Lanczos estimate.
    log_marginal_likelihood_std_error_ : float
        Its standard error; 0 where it is exact.
    n_iter_ : int
        Gradient evaluations.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_ : str
        What "auto" became: "cholesky" or "block_cg", or the given solver's name, a gradient
        object's own included.
    solver_info_ : dict
        status, epochs, residuals, jitter, steps not converged, why training stopped, the plan.
    posterior_ : str
        "exact", "pathwise" or "solve".
    device_, dtype_ : str
        Where and in what precision training ran.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact regression up to a few thousand rows.

    Notes
    -----
    Training costs O(n^3) in all for few rows, and O(k n^2) a step beyond, k the solver's epochs
    (tens); memory is O(n^2) while it fits and O(n) otherwise.

    References
    ----------
    J. A. Lin, S. Padhy, B. Mlodozeniec, J. Antoran, J. M. Hernandez-Lobato (2024), Improving
    linear system solvers for hyperparameter optimisation in iterative Gaussian processes.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import IterativeGPRegressor
    >>> X, y = make_friedman2(n_samples=300, noise=1.0, random_state=0)
    >>> gp = IterativeGPRegressor(normalize_y=True, random_state=0).fit(X, y)
    >>> mean, std = gp.predict(X[:2], return_std=True)
    >>> bool(gp.score(X, y) > 0.99)
    True
    """

    _parameter_constraints = {
        name: rule for name, rule in PARAMETERS.items() if name != "batch_size"
    } | {
        "solver": [str, HasMethods(["init", "step"])],
        "gradient": [str, HasMethods(["estimate"])],
        "warm_start_solver": ["boolean"],
    }

    def __init__(
        self,
        kernel: Any = None,
        *,
        alpha: Any = 1e-10,
        optimizer: Any = "auto",
        n_restarts_optimizer: Any = 0,
        normalize_y: Any = False,
        copy_X_train: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        solver: Any = "auto",
        gradient: Any = "auto",
        preconditioner: Any = "auto",
        n_probes: Any = "auto",
        tol: Any = 0.01,
        max_epochs: Any = 1000,
        warm_start_solver: Any = True,
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
        n_iter_no_change: Any = 5,
        subset_size: Any = "auto",
        posterior: Any = "auto",
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.solver = solver
        self.gradient = gradient
        self.preconditioner = preconditioner
        self.n_probes = n_probes
        self.tol = tol
        self.max_epochs = max_epochs
        self.warm_start_solver = warm_start_solver
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.subset_size = subset_size
        self.posterior = posterior
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> IterativeGPRegressor:
        """Train the hyperparameters and compute what predictions need.

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
        table = table.centred(kernel)
        plan = self._plan(kernel, len(table.X))
        estimator = self._gradient_estimator(kernel, plan, len(table.X))
        self._preconditioner(plan.solver)
        random_state, generator = seeded(self.random_state)
        events = FitEvents(self, table.X, table.y)
        problem = table.problem(kernel, plan.dtype, plan.device, plan.keep)

        def on_step(step: TrainingStep) -> bool:
            return events.step(lambda: self._attributes_at(step, table, problem, plan, generator))

        monitor.callbacks = [*monitor.callbacks, on_step]
        try:
            result = self._train(problem, estimator, plan, monitor, generator, random_state)
        finally:
            monitor.close()
        self._remember(None)
        # Without it the model counts as not fitted: an interrupt must not leave half a posterior.
        self.__dict__.pop("n_iter_", None)
        self._keep_table(table)
        try:
            self._finish(problem, plan, result, monitor, generator)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                "Training was done: kernel_ has the hyperparameters. Fit again with them as "
                "kernel= and optimizer=None to get the predictions that are missing."
            )
            raise
        events.end()
        return self

    def _attributes_at(
        self,
        step: TrainingStep,
        table: Table,
        problem: GPProblem,
        plan: Plan,
        generator: torch.Generator,
    ) -> dict[str, Any]:
        """Those of a model with the hyperparameters of one step, for scikit-learn's callbacks.

        It costs as much as the end of a fit, and draws nothing from the fit's own randomness.
        """
        model = copy(self)
        model._keep_table(table)
        result = TrainingResult(step.theta, step.objective, GradientState(), 0, "callback")
        own = torch.Generator().set_state(generator.get_state())
        monitor = Monitor(steps=[step])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model._finish(problem, plan, result, monitor, own)
        model.n_iter_ = step.iteration
        parameters = self.get_params(deep=False)
        return {name: value for name, value in vars(model).items() if name not in parameters}

    def _plan(self, kernel: TorchKernel, n: int) -> Plan:
        if not (isinstance(self.solver, str) and self.solver == "auto"):
            resolve_solver(self.solver)
        device = resolve_device(self.device)
        budget = budget_of(self.memory_budget)
        # Strings by their table, so that an unknown one is refused before anything is read.
        exact_needed = self.gradient == "exact" or (
            self.optimizer not in (None, "auto") and resolve_optimizer(self.optimizer).exact_only
        )
        if self.posterior == "pathwise":
            try:
                sample_prior_features(kernel, kernel.n_features, 1, torch.Generator())
            except NoSpectralDensity as error:
                raise NoSpectralDensity(
                    f"{error.cause}, so posterior='pathwise' has nothing to draw prior samples "
                    "from: use posterior='exact' or 'solve'."
                ) from None
        return make_plan(
            n,
            solver=self.solver,
            posterior=self.posterior,
            subset_size=self.subset_size if self.optimizer is not None else None,
            exact_objective_needed=exact_needed,
            has_spectral_density=self._has_spectral_density(kernel),
            dtype=resolve_dtype(self.dtype, n, threshold=FLOAT64_ROWS),
            device=device,
            memory_budget=budget,
        )

    def _has_spectral_density(self, kernel: TorchKernel) -> bool:
        try:
            sample_prior_features(kernel, kernel.n_features, 1, torch.Generator())
        except NoSpectralDensity:
            return False
        return True

    def _gradient_estimator(self, kernel: TorchKernel, plan: Plan, n: int) -> GradientEstimator:
        """What "auto" and the strings mean here."""
        choice = self.gradient
        if not isinstance(choice, str):
            return choice
        if choice not in ("auto", "exact", "standard", "pathwise"):
            raise ValueError(
                f"Unknown gradient {choice!r}: use 'auto', 'exact', 'standard', 'pathwise' or an "
                "object such as PathwiseGradient(n_probes=32)."
            )
        if choice == "exact" and not plan.exact:
            raise ValueError(
                f"gradient='exact' needs a factorisation, which solver={self.solver!r} does not "
                "give: use solver='cholesky', or gradient='pathwise'."
            )
        if choice == "exact" or (choice == "auto" and plan.exact):
            return ExactGradient(self._max_jitter())
        settings = {
            "solver": plan.solver,
            "preconditioner": self._preconditioner(plan.solver),
            "n_probes": self._n_probes(plan),
            "tol": self.tol,
            "max_epochs": self.max_epochs,
            "warm_start": self.warm_start_solver,
        }
        spectral = self._has_spectral_density(kernel)
        if choice == "standard" or (choice == "auto" and not spectral):
            return StandardGradient(**settings)
        if not spectral and 3 * 8 * n**2 > self._memory_room(plan):
            raise ValueError(
                f"gradient='pathwise' needs prior samples, and {kernel.kernel} has no spectral "
                f"density to draw them from; exact ones for {n} rows do not fit "
                "in memory. Use gradient='standard'."
            )
        return PathwiseGradient(**settings, prior="fourier" if spectral else "exact")

    def _memory_room(self, plan: Plan) -> float:
        if self.memory_budget != "auto":
            return float(self.memory_budget)
        free = available_memory(plan.device)
        return math.inf if free is None else float(free)

    def _preconditioner(self, solver: Any) -> Any:
        return preconditioner_for(solver, self.preconditioner)

    def _max_jitter(self) -> float:
        own = isinstance(self.solver, Cholesky)
        return self.solver.max_jitter if own else super()._max_jitter()

    def _n_probes(self, plan: Plan) -> int:
        if self.n_probes != "auto":
            return int(self.n_probes)
        return ENOUGH_SAMPLES if plan.posterior == "pathwise" else 32

    def _n_samples(self, plan: Plan) -> int:
        """Of a pathwise posterior: the probes of training, which are already solved for."""
        return self._n_probes(plan)

    def _train(
        self,
        problem: GPProblem,
        estimator: GradientEstimator,
        plan: Plan,
        monitor: Monitor,
        generator: torch.Generator,
        random_state: np.random.RandomState,
    ) -> TrainingResult | None:
        """The trained hyperparameters, None where there is nothing to train."""
        kernel = problem.kernel
        if self.optimizer is None or kernel.n_params == 0:
            return None
        settings = StageSettings(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            max_iter=self.max_iter,
            n_restarts=self.n_restarts_optimizer,
            n_iter_no_change=self.n_iter_no_change,
            tol=1e-3,
            subset_size=plan.subset_size,
            n_subsets=plan.n_subsets,
            exact_rows=plan.exact_subset_rows,
            adapt_dtype=self.dtype == "auto",
            factor_if_ill_conditioned=plan.factor_if_ill_conditioned,
        )
        run = Run(monitor, generator, random_state)
        return fit_hyperparameters(problem, estimator, kernel.theta0.numpy(), settings, run)

    # ------------------------------------------------------------------ after training

    def _finish(
        self,
        problem: GPProblem,
        plan: Plan,
        result: TrainingResult | None,
        monitor: Monitor,
        generator: torch.Generator,
    ) -> None:
        """Set every fitted attribute, the posterior included."""
        kernel = problem.kernel
        theta = kernel.theta0 if result is None else torch.as_tensor(result.theta)
        self.kernel_ = kernel.to_sklearn(theta)
        self.history_ = monitor.history()
        self.device_ = str(plan.device)
        if result is not None and result.exact:
            # Also where the subsets showed that only a factorisation would do.
            plan = replace(plan, solver="cholesky", exact=True, dtype=result.dtype)
        self.dtype_ = str(plan.dtype).removeprefix("torch.")
        trained = plan if result is None or result.exact else self._trained_with(plan)
        self.solver_ = (
            trained.solver
            if isinstance(trained.solver, str)
            else type(trained.solver).__name__.lower()
        )
        self.posterior_ = plan.posterior
        self._pathwise = None
        problem.workspace.release()
        if plan.posterior == "exact":
            solution, jitter = self._finish_exact(theta)
        else:
            state = None if result is None else result.state
            solution, jitter = self._finish_iterative(theta, plan, generator, state)
        solves = list(monitor.solutions)
        if solution is not None:
            solves.append(solution.summary())
        failed = [s for s in solves if s.status is not Status.CONVERGED]
        reason = "nothing to train" if result is None else result.stop_reason
        self.solver_info_ = {
            "status": failed[-1].status.value if failed else "converged",
            "epochs": float(sum(s.epochs for s in solves)),
            "residuals": None if solution is None else solution.residuals.cpu().numpy(),
            "jitter": jitter,
            "n_unconverged": len(failed),
            "stop_reason": reason,
            "plan": describe(trained, len(self.X_train_)),
        }
        self.n_iter_ = 0 if result is None else result.n_iter
        self._warn(failed, reason)

    def _trained_with(self, plan: Plan) -> Plan:
        """The plan to report: where "auto" left it open, a gradient object says what solved."""
        open_to_it = isinstance(self.solver, str) and self.solver == "auto"
        if open_to_it and hasattr(self.gradient, "solver"):
            return replace(plan, solver=self.gradient.solver, exact=False)
        return plan

    def _finish_exact(self, theta: torch.Tensor) -> tuple[None, float]:
        problem = self._prediction_problem()
        evaluation = exact_marginal_likelihood(problem, theta, False, self._max_jitter())
        self.alpha_ = self._like_y(evaluation.weights)
        self.log_marginal_likelihood_value_ = evaluation.value
        self.log_marginal_likelihood_std_error_ = 0.0
        operator = problem.operator(theta)
        self._remember(ExactPosterior(operator, evaluation.weights, evaluation.factor))
        return None, evaluation.jitter

    def _finish_iterative(
        self,
        theta: torch.Tensor,
        plan: Plan,
        generator: torch.Generator,
        state: GradientState | None,
    ) -> tuple[Solution, float]:
        """The posterior's samples: those of a pathwise training, moved to the final theta."""
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        table = self._table()
        problem = table.problem(kernel, plan.dtype, plan.device, plan.keep)
        if self.dtype == "auto":
            # Training may have ended on a subset, before it could see what all rows need.
            problem = well_conditioned(problem, theta.numpy())
            if problem.X.dtype != plan.dtype and 8 * len(problem.X) ** 2 > self._memory_room(plan):
                problem = table.problem(kernel, problem.X.dtype, plan.device, keep=False)
        self.dtype_ = str(problem.X.dtype).removeprefix("torch.")
        estimator = PathwiseGradient(
            plan.solver,
            preconditioner=self._preconditioner(plan.solver),
            n_probes=self._n_samples(plan) if plan.posterior == "pathwise" else 0,
            tol=self.tol,
            max_epochs=self.max_epochs,
            warm_start=self.warm_start_solver,
        )
        final = final_solve(problem, theta, estimator, state, generator)
        self.alpha_ = self._like_y(final.weights)
        if final.samples is not None:
            self._pathwise = to_numpy(final.samples)
        self.log_marginal_likelihood_value_ = final.value
        self.log_marginal_likelihood_std_error_ = final.std_error
        return final.solution, 0.0

    def _like_y(self, weights: torch.Tensor) -> np.ndarray:
        return weights.cpu().double().numpy().reshape(self.y_train_.shape)

    def _warn(self, failed: list[SolveSummary], reason: str) -> None:
        """One ConvergenceWarning a fit, whatever went wrong."""
        broken = any(solve.status is Status.BREAKDOWN for solve in failed)
        messages = unfinished(reason, self, f"{self.n_iter_} gradient evaluations", broken)
        if failed:
            last = failed[-1]
            messages.append(
                f"{len(failed)} linear solves did not reach tol={self.tol:g}: the last ended at a "
                f"relative residual of {last.residual:.2g} after {last.epochs:.1f} epochs. "
                f"{last.status.remedy}"
            )
        warn_once(messages)

    # ------------------------------------------------------------------ posterior

    def _prediction_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64

    def _prediction_problem(self) -> GPProblem:
        kernel = compile_kernel(self.kernel_, self.n_features_in_)
        keep = self.posterior_ == "exact"
        return self._table().problem(kernel, self._prediction_dtype(), self._fit_device(), keep)

    def _check_dense_memory(self, what: str, copies: int) -> None:
        n = len(self.X_train_)
        check_memory(
            copies * 8 * n * n,
            f"{what} with {n} rows ({copies} float64 {n} x {n} matrices)",
            "evaluate it on fewer rows, or read log_marginal_likelihood_value_, an estimate "
            "that needs no matrix",
            budget_of(self.memory_budget),
            device=self._fit_device(),
        )

    def _build_posterior(self) -> Posterior:
        problem = self._prediction_problem()
        theta = problem.kernel.theta0
        if self.posterior_ == "exact":
            evaluation = exact_marginal_likelihood(problem, theta, False, self._max_jitter())
            return ExactPosterior(problem.operator(theta), evaluation.weights, evaluation.factor)
        operator = problem.operator(theta)
        weights = torch.tensor(
            self.alpha_.reshape(len(self.X_train_), -1),
            dtype=operator.dtype,
            device=operator.device,
        )
        samples = None
        if self._pathwise is not None:
            samples = to_torch(self._pathwise)
        tol, solver = variance_tolerance(self.tol, operator), variance_solver(self.solver)
        return IterativePosterior(
            operator,
            weights,
            samples,
            solver=resolve_solver(solver),
            stopping=RelativeResidual(tol) | MaxEpochs(self.max_epochs),
            preconditioner=self._preconditioner(solver),
        )

    # ------------------------------------------------------------------ predictions

    def _std(self, X: np.ndarray, include_noise: bool) -> np.ndarray:
        std = super()._std(X, include_noise)
        self._warn_of_solves()
        return std

    def _covariance(self, X: np.ndarray) -> np.ndarray:
        covariance = super()._covariance(X)
        self._warn_of_solves()
        return covariance

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        samples = super().sample_y(X, n_samples, random_state)
        self._warn_of_solves()
        return samples

    def _warn_of_solves(self) -> None:
        """One ConvergenceWarning a prediction whose solves ended above their tolerance."""
        posterior = self._posterior()
        if isinstance(posterior, IterativePosterior):
            warn_once(unfinished_solves(posterior.take_unfinished()))
