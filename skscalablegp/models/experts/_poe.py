"""Products of exact Gaussian-process experts.

Half of this file documents the parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel
from sklearn.neighbors import NearestNeighbors

from ..._end import End
from ...core import (
    ExactProcess,
    FitRun,
    GPRegressorBase,
    StageSettings,
    Subsets,
    fit_hyperparameters,
    plan_training,
    rows_to_check,
    train_or_report,
    warn_if_rough,
)
from ...core.data import Table, column_spread
from ...core.posteriors import Posterior
from ...core.training import TrainingResult, TrainingStep
from ...kernels import TorchKernel
from ...linalg.gradients import (
    ExactEvaluation,
    ExactGradient,
    GPProblem,
    exact_marginal_likelihood,
)
from ...workers import n_workers
from ...workers import run as run_tasks
from ._gradient import Experts, ExpertsGradient, one_expert
from ._grouped import GroupedExpertsPosterior, build_groups
from ._parts import global_first, kmeans_parts, random_parts, train_separately
from ._plan import MANY_ROWS, ExpertsPlan, bytes_of_factors, plan_experts
from ._posterior import ExpertPosterior, ExpertsPosterior


class PoERegressor(GPRegressorBase):
    """A product of exact experts; one exact process up to 2,000 rows (``small_table``).

    The table is divided into parts of about a thousand rows. Each part has an exact Gaussian
    process, an expert, and their predictive densities are multiplied at each row. Time is linear in
    the number of rows, the experts can be computed in parallel, and no setting has to be
    tuned. Correlations between rows of different parts are lost. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None means ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length
        scale per column. Training starts at the scale of the data.
    expert_size : int or "auto", default="auto"
        Number of training rows of an expert. If the table has no more rows, there is one expert,
        which is the exact Gaussian process under any combination. "auto" is all rows for up to
        2,000 rows, and 1,024 for more, or as many as four fifths of the memory allow, at least 200:
        the factors take 12 n bytes for each row of an expert.
    combination : {"gpoe", "poe", "bcm", "rbcm", "grbcm"}, default="gpoe"
        Rule that combines the predictions of the experts. "gpoe" tends to overestimate variances.
        "poe" is overconfident everywhere, and "bcm" and "rbcm" are overconfident near the data.
        "grbcm" adds a common random part of the table to every expert. Its standard deviations
        match the errors best; training costs the same, and factorisations and predictions cost two
        to four times as much.
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
        2,000 rows, which one expert takes, unless `expert_size` is given. "method" never does:
        there are at least two experts.
    optimizer : "auto", "bfgs", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or None, \
            default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is a
        quasi-Newton method; values and gradients are exact.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. A step evaluates all experts, or a single one with
        ``share_hyperparameters=False``. "auto" is 25 after a start on one part (30 for Adam), 500
        for a single expert, and 100 otherwise.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        parts and the restarts.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. The
        largest are the factors of the experts.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. Predictions have the same precision. "auto" is
        float64, except that variances on tables of more than 10,000 rows are computed in float32 if
        a check shows them to be accurate.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. Each one trains some of the experts
        and receives the table once. None means this process, with one expert per core, unless a
        :class:`joblib.parallel_config` context says otherwise. Predictions always use this process.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. With ``share_hyperparameters=False`` and `n_jobs` above 1, the steps
        are reported only when all experts are trained.
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
        Step size of the optimiser, for optimisers that have one. Only Adam has one. "auto" is 0.1
        up to 50,000 rows and 0.03 above.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only Adam uses it: progress is a change of a log hyperparameter by more than 1e-3.
    n_experts : int or "auto", default="auto"
        Number of experts that predict a row, those nearest to it. The distance of an expert is that
        of the nearest of 64 of its rows, by the kernel's correlation. "auto" is 4 for
        ``combination="gpoe"`` with ``partition="kmeans"``, where distant experts add little
        information and widen the intervals. Otherwise it is all experts, as in the papers. With
        "grbcm" the common part is one of them.
    partition : {"kmeans", "random"}, default="kmeans"
        Method that divides the rows among the experts. "kmeans" forms neighbourhoods of equal size,
        by bisecting k-means on standardised columns, and "random" draws rows at random. In a
        neighbourhood rows are as close to each other as in the whole table, so that its expert
        predicts as well there as an exact process. Only "poe" is better with random parts.
    share_hyperparameters : bool, default=True
        Whether all experts have the same hyperparameters. Shared hyperparameters maximise the sum
        of the experts' log marginal likelihoods. Experts with different kernels cannot be combined
        by "bcm", "rbcm" and "grbcm", which divide by a common prior.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel; with separate hyperparameters, at their geometric mean.
    kernels_ : list of kernel instance
        The kernel of each expert.
    experts_ : list of ndarray of int
        The rows of each expert. With "grbcm", those of the first expert are also in all others.
    n_experts_ : int
        The number of experts that predict a row.
    X_train_, y_train_ : ndarray
        The rows from which predictions are made, and their normalised targets.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood of independent experts, summed over the parts, in units of the
        normalised target. NaN if a fit with "grbcm" was interrupted before it was known.
    n_iter_ : int
        The number of training steps in all stages; with separate hyperparameters, of all experts.
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
    IterativeGPRegressor : The exact posterior of the whole table.

    Notes
    -----
    With b rows per expert, a training step costs O(n b^2) time, the factors take O(n b) memory, and
    the mean or standard deviation of a row costs O(n b).

    For "poe" and "gpoe", which do not divide by a prior, joint covariances and samples are those of
    a sum of independent experts. The other combinations raise a ValueError.

    References
    ----------
    M. P. Deisenroth, J. W. Ng (2015), Distributed Gaussian processes.

    H. Liu, J. Cai, Y. Wang, Y. S. Ong (2018), Generalized robust Bayesian committee machine for
    large-scale Gaussian process regression.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import PoERegressor
    >>> X, y = make_friedman2(n_samples=600, noise=1.0, random_state=0)
    >>> gp = PoERegressor(expert_size=200, normalize_y=True, random_state=0).fit(X, y)
    >>> len(gp.experts_), bool(gp.score(X, y) > 0.99)
    (3, True)
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        expert_size="auto",
        combination="gpoe",
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
        n_jobs=None,
        callbacks=None,
        checkpoint=None,
        verbose=0,
        copy_X_train=True,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=5,
        n_experts="auto",
        partition="kmeans",
        share_hyperparameters=True,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> ExpertsPlan:
        return plan_experts(self, len(table.X), run.machine)

    def _fit_method(
        self, table: Table, kernel: TorchKernel, plan: ExpertsPlan, run: FitRun
    ) -> None:
        parts = self._parts(table.X, plan.expert_size.value, run.random_state)
        self.experts_, self.n_experts_ = self._known(parts), plan.n_experts.value
        rows = [len(expert) for expert in self.experts_]
        largest = max(rows)
        run.check_memory(
            bytes_of_factors(len(table.X), sum(b * b for b in rows), largest, n_workers()),
            f"{len(rows)} experts of up to {largest} rows (a factor each)",
            f"use an expert_size below {largest}: the factors take bytes in proportion",
        )
        self._rule, self.dtype_ = self.combination, plan.dtype.value
        problem = table.problem(kernel, getattr(torch, self.dtype_), run.device, keep=True)
        run.preview = lambda model, step: model._preview(kernel, problem, parts, step)
        first = one_expert(problem, max(parts, key=len))
        run.budget.reserve_for(
            lambda: exact_marginal_likelihood(first, kernel.theta0, False), 1.5 * len(parts)
        )
        thetas, result = self._train(problem, parts, plan.stages, run)
        if self.share_hyperparameters:
            check = problem.subset(rows_to_check(len(problem.X), run).to(run.device))
            warn_if_rough(check.to(torch.float64), thetas[0], len(problem.X), run)
        self._finish(kernel, thetas, result.value)
        run.ended(result.stop_reason, n_iter=result.n_iter, planned=result.planned)
        posterior, value, jitter = run.finish("factors", self._built)
        if not np.isfinite(self.log_marginal_likelihood_value_):
            # Training ended before it was computed. With "grbcm", the experts share rows.
            if self.combination != "grbcm":
                self.log_marginal_likelihood_value_ = value
            elif run.budget.ended is not End.INTERRUPTED:
                with run.stage("likelihood", optional=True):
                    value = self._likelihood(problem, parts, thetas[0])
                    self.log_marginal_likelihood_value_ = value
        self._remember(posterior)
        largest = max(map(len, parts))
        run.reports(
            jitter=jitter,
            summary=f"{len(parts)} experts of up to {largest} rows, combined by "
            f"{self.combination!r}",
        )

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        evaluation = super()._keep_exactly(process)
        self.experts_, self.n_experts_ = [np.arange(len(process.table.X))], 1
        self.kernels_, self._rule = [self.kernel_], self.combination
        return evaluation

    def _parts(
        self, X: np.ndarray, size: int, random_state: np.random.RandomState
    ) -> list[np.ndarray]:
        """Disjoint parts; with "grbcm" the first one is always random."""
        divide = random_parts if self.partition == "random" else kmeans_parts
        if self.combination == "grbcm":
            return global_first(X, size, divide, random_state)
        return divide(X, size, random_state)

    def _known(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """The rows of each expert."""
        if self.combination != "grbcm":
            return parts
        return [parts[0], *(np.concatenate([parts[0], part]) for part in parts[1:])]

    def _train(
        self, problem: GPProblem, parts: list[np.ndarray], settings: StageSettings, run: FitRun
    ) -> tuple[list[np.ndarray], TrainingResult]:
        """One theta for each part, and the training result with the experts' likelihood."""
        trains = self.optimizer is not None and problem.kernel.n_params > 0
        if trains and not self.share_hyperparameters:
            run.follow(plan_training(settings, True, len(problem.X)))
            return self._train_separately(problem, parts, settings, run)
        if self.share_hyperparameters:
            # Training starts with as many random rows as a part has.
            size = max(map(len, parts))
            settings = replace(settings, subsets=Subsets.of(size, size))
        gradient = ExpertsGradient(parts, self.n_jobs)
        result = train_or_report(problem, gradient, settings, run)
        prior = problem.kernel.log_prior(result.theta)[0]
        return [result.theta] * len(parts), replace(result, value=result.value - prior)

    def _likelihood(self, problem: GPProblem, parts: list[np.ndarray], theta: np.ndarray) -> float:
        """The log likelihood of all parts, without its gradient."""
        return Experts(problem, parts, self.n_jobs).likelihood(torch.as_tensor(theta), False)[0]

    def _train_separately(
        self, problem: GPProblem, parts: list[np.ndarray], settings: StageSettings, run: FitRun
    ) -> tuple[list[np.ndarray], TrainingResult]:
        """Every expert starts at the optimum of the first part."""
        first = one_expert(problem, parts[0])
        theta = problem.kernel.theta0.numpy()
        plan = plan_training(settings, True, len(first.X))
        start = fit_hyperparameters(first, ExactGradient(), theta, plan, run)
        if run.stopped:
            return [start.theta] * len(parts), replace(start, value=np.nan)
        experts = train_separately(
            [replace(one_expert(problem, part), prior_weight=1.0) for part in parts],
            start.theta,
            replace(settings, n_restarts=0),
            run.monitor,
            run.random_state,
            self.n_jobs,
        )
        failed = [k for k, expert in enumerate(experts) if expert.stop_reason is End.DIVERGED]
        run.monitor.failures += [f"expert {k + 1}: training diverged" for k in failed]
        ends = {expert.stop_reason for expert in experts}
        bad = End.DIVERGED, End.STAGNATED, End.MAX_ITER
        worst = next((end for end in bad if end in ends), End.CONVERGED)
        result = replace(
            start,
            value=float(sum(expert.value for expert in experts)),
            n_iter=start.n_iter + sum(expert.n_iter for expert in experts),
            stop_reason=run.budget.ended or worst,
        )
        return [expert.theta for expert in experts], result

    def _finish(self, kernel: TorchKernel, thetas: list[np.ndarray], value: float) -> None:
        """Set the kernels for predictions."""
        self.kernel_ = kernel.to_sklearn(torch.as_tensor(np.mean(thetas, axis=0)))
        self.kernels_ = [self.kernel_] * len(thetas)
        if not self.share_hyperparameters:
            self.kernels_ = [kernel.to_sklearn(torch.as_tensor(theta)) for theta in thetas]
        self.log_marginal_likelihood_value_ = value

    def _preview(
        self, kernel: TorchKernel, problem: GPProblem, parts: list[np.ndarray], step: TrainingStep
    ) -> None:
        """The model in which all experts have the hyperparameters of one step."""
        value = step.objective - kernel.log_prior(step.theta)[0]
        if step.stage != "full" or not np.isfinite(value):
            value = self._likelihood(problem, parts, step.theta)
        self._finish(kernel, [step.theta] * len(parts), value)

    def _trained_kernels(self) -> list[Kernel]:
        return self.kernels_ if not self.share_hyperparameters else [self.kernel_]

    # ------------------------------------------------------------------ prediction

    def _with_rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> PoERegressor:
        """As in the base class: every expert keeps its kernel and its rows, and receives others.

        A new row joins the expert of the nearest training row.
        """
        if self._exact is not None:
            return super()._with_rows(X, y, noise_variance)
        # With "grbcm", all experts begin with the rows of the first one, which it keeps alone.
        first = int(self._rule == "grbcm")
        own = [part[first * len(self.experts_[0]) :] for part in self.experts_[first:]]
        units, rows = column_spread(self.X_train_), np.concatenate(own)
        nearest = NearestNeighbors(n_neighbors=1).fit(self.X_train_[rows] / units)
        at = nearest.kneighbors(X / units, return_distance=False)[:, 0]
        joins = first + np.repeat(np.arange(len(own)), list(map(len, own)))[at]
        other, n = self._grown(X, y, noise_variance), len(self.X_train_)
        other.experts_ = [
            np.append(part, n + np.flatnonzero(joins == k)) for k, part in enumerate(self.experts_)
        ]
        other._remember(None)
        return other

    def _has_low_rank_form(self) -> bool:
        return False

    def _built(self) -> tuple[ExpertsPosterior, float, float]:
        """The posterior, the sum of its experts' log likelihoods, and the largest jitter."""
        problem = self._trained_problem(getattr(torch, self.dtype_), keep=True)
        settings = self._rule, self.experts_, self.n_experts_
        if self.share_hyperparameters and not problem.X.is_cpu:
            theta = torch.as_tensor(self.kernel_.theta)
            groups, value, jitter = build_groups(problem, theta, self.experts_)
            return GroupedExpertsPosterior(problem, theta, groups, *settings), value, jitter
        thetas = torch.as_tensor(np.stack([kernel.theta for kernel in self.kernels_]))
        given = Experts(problem, self.experts_, self.n_jobs)
        weights, factors, values, jitters = given.each(
            thetas, "weights", "factor", "value", "jitter"
        )
        experts = [
            ExpertPosterior(one_expert(problem, part).operator(theta), *solved)
            for part, theta, *solved in zip(self.experts_, thetas, weights, factors, strict=True)
        ]
        # On large tables, faster predictions are worth the time to compute the inverses.
        if self.dtype != "float64" and len(self.X_train_) > MANY_ROWS:
            run_tasks([expert.invert for expert in experts], problem.X.device)
        return ExpertsPosterior(experts, *settings), sum(values), max(jitters)

    def _build_posterior(self) -> Posterior:
        return self._built()[0]

    def _likelihood_at(self, theta, eval_gradient):
        """The sum of the experts' likelihoods over disjoint parts."""
        parts = self.experts_
        if self._rule == "grbcm":
            parts = [parts[0], *(part[len(parts[0]) :] for part in parts[1:])]
        problem = self._trained_problem(keep=True)
        return Experts(problem, parts, self.n_jobs).likelihood(theta, eval_gradient)[:2]
