"""The fit that the two models trained by linear solves share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.gaussian_process.kernels import Kernel

from ..._end import End
from ...core import (
    Choice,
    FactorBudget,
    FitRun,
    GPRegressorBase,
    Machine,
    below_the_noise_bound,
    is_auto,
    to_numpy,
    to_torch,
    train_planned,
    well_conditioned,
)
from ...core.data import Table, n_columns, random_rows
from ...core.posteriors import ExactPosterior, Posterior
from ...core.training import Budget, TrainingResult
from ...features import sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel, default_kernel
from ...linalg.gradients import GPProblem, GradientState, Rows
from ...linalg.operators import choose_products, compiler_for
from ._early_end import HeldOutErrors
from ._final_solve import FinalSolve, final_solve, solve_without
from ._neighbourhoods import with_neighbourhoods
from ._plan import EXACT_TRAINING_ROWS, NEAREST, IterativePlan, numpy_cost
from ._posterior import IterativePosterior
from ._solves import solver_name

# Above this number of rows the factor of predictions is in float32, in half the time, if the bound
# of the condition number times unit roundoff is at most the second number
# (benchmarks/crossover.py --part variances gives the errors on 8,000 rows of pol).
_PRECISE_ROWS, _ACCURATE = EXACT_TRAINING_ROWS["cpu"], 0.15
# Rows whose left-out errors give the scale of the kernel and the errors of the report. Normal
# errors give it a relative error of 6 %, or 3 % where variances come from neighbours and more rows
# cost little; heavy tails give a larger one.
_LEFT_OUT, _LEFT_OUT_NEAR = 512, 2048
# One row in so many is held out of a solve that neighbours correct. Fewer rows than the second
# number would give the scale a relative error above 7 %, so that this many are held out where they
# are at most one row in the third number; smaller tables are soon solved completely.
_HELD_SHARE, _FEWEST_HELD, _MOST_HELD_SHARE = 50, 400, 20
# The largest change of its logarithm by priors.
_MOST_SCALE = 10.0
# A matrix of so many rows is filled to know how long that of all rows takes.
_TIMED_ROWS = 1500
# Known noise below this share of the kernel's white noise counts as none.
_NEGLIGIBLE = 1e-5


# Not typing.Self, which the checks of annotations under pytest cannot resolve in a method.
Solved = TypeVar("Solved", bound="SolvedGPRegressor")


class SolvedGPRegressor(GPRegressorBase):
    """An exact process that is trained on a subset first, then on all rows.

    A subclass has the parameters; its `_plan` resolves them for a table.
    """

    # Y - H alpha_ where neighbours correct the mean of the last solve.
    _residual: np.ndarray | None = None

    _any_kernel = True

    def _default_kernel(self, table: Table) -> Kernel:
        """If nothing is trained, all hyperparameters are 1, as in scikit-learn."""
        if self.optimizer is None:
            return default_kernel(n_columns(table.X))
        return super()._default_kernel(table)

    @abstractmethod
    def _plan(self, n: int, d: int, machine: Machine, **of_kernel: Any) -> IterativePlan:
        """Resolve every parameter for n rows, and refuse settings that cannot be used."""

    _centres = True

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> IterativePlan:
        spectral = has_spectral_density(kernel, self.posterior)
        of_kernel = {"n_params": kernel.n_params, "spectral": spectral}
        return self._plan(len(table.X), kernel.n_features, run.machine, **of_kernel)

    def _fit_method(
        self, table: Table, kernel: TorchKernel, plan: IterativePlan, run: FitRun
    ) -> None:
        self._keep_plan(plan, run)
        run.preview = lambda model, step: model._finish(
            kernel,
            step.theta,
            replace(plan, train_on=Choice("all", "a step does not compute a scale")),
            GradientState(),
            run.generator,
            Budget(),
            preview=True,
        )
        problem = table.problem(kernel, plan.torch_dtype, run.device, plan.keep)
        problem = replace(problem, products=self._products(run.device))
        exact = plan.posterior.value == "exact"
        if not exact:
            # The final solve continues those of training on all rows; subsets may take their time.
            continues = plan.all_rows and plan.stages.subsets is None
            run.budget.reserve("final solve" if continues else "first solve")
        factor = FactorBudget(problem, run) if exact else None
        result, plan = self._train(problem, plan, run)
        if result.exact and plan.all_rows:
            kernel, result = below_the_noise_bound(problem, kernel, result, plan.stages, run)
        problem.workspace.release()
        if result.exact and plan.all_rows:
            plan = plan.factorised(result.dtype)
            self._keep_plan(plan, run)

        def finish() -> tuple[FinalSolve | None, float]:
            theta, state = result.theta, result.state
            return self._finish(kernel, theta, plan, state, run.generator, run.budget)

        if factor is None:
            final, jitter = run.finish("final solve", finish)
        else:
            final, jitter = factor.finish("final solve", table, self._keep_table, finish)
        if result.dtype == torch.float64:
            self.dtype_ = "float64"
        run.follow(plan.in_precision(self.dtype_))
        self._report(result, final, run)
        summary = plan.describe(self.dtype_, run.machine) + numpy_cost(kernel, len(table.X))
        if self._residual is not None:
            early = final is not None and final.ended_early
            kind = "that ended early" if early else "without held-out rows"
            summary += f"; the {NEAREST} nearest rows correct the mean of a solve {kind}"
        if final is not None and final.summary:
            summary += f"; {final.summary}"
        run.reports(jitter=jitter, summary=summary, **result.state.extra)

    def _keep_plan(self, plan: IterativePlan, run: FitRun) -> None:
        """Keep the settings that predictions need."""
        self.device_ = str(run.device)
        self.dtype_, self.posterior_ = plan.dtype.value, plan.posterior.value
        self.solver_ = solver_name(plan.solves.solver)
        self._solves = plan.solves
        self._predicts_in = "float32" if self.dtype == "float32" else "float64"

    # ------------------------------------------------------------------ training

    def _train(
        self, problem: GPProblem, plan: IterativePlan, run: FitRun
    ) -> tuple[TrainingResult, IterativePlan]:
        """Train the hyperparameters, if there are any, and revise the plan where that fails."""
        result = train_planned(problem, plan.estimator, plan.training, run)
        local = plan.posterior.value == "neighbors" and not plan.all_rows
        if not (local and result.planned and result.n_iter) or run.stopped:
            return result, plan
        result, why = with_neighbourhoods(
            problem, result, plan.stages.gain_per_row, self._max_jitter(), run
        )
        if why:
            training = replace(plan.training, max_iter=Choice(0, why))
            plan = replace(plan, training=training)
        return result, plan

    def _report(self, result: TrainingResult, final: FinalSolve | None, run: FitRun) -> None:
        """Report how training and the final solve ended."""
        if final is not None and final.interrupted:
            run.budget.end(End.INTERRUPTED)
            run.reports(residuals=final.solution.residuals.cpu().numpy())
        elif final is not None:
            run.solved(final.solution)
        if result.n_iter or result.stop_reason is not End.CONVERGED:
            limit = "training_max_epochs" if result.stop_reason is End.MAX_EPOCHS else "max_iter"
            run.ended(result.stop_reason, n_iter=result.n_iter, planned=result.planned, limit=limit)

    # ------------------------------------------------------------------ after training

    def _finish(
        self,
        kernel: TorchKernel,
        theta: np.ndarray,
        plan: IterativePlan,
        state: GradientState,
        generator: torch.Generator,
        budget: Budget,
        preview: bool = False,
    ) -> tuple[FinalSolve | None, float]:
        """Set the attributes that predictions need; returns the final solve and the jitter.

        A preview has no report, and leaves out fewer rows.
        """
        self.kernel_ = kernel.to_sklearn(torch.as_tensor(theta))
        # exp(theta) was rounded: this is the theta from which the posterior would be built again.
        theta = torch.tensor(self.kernel_.theta)
        self._pathwise = self._residual = None
        if plan.posterior.value == "exact":
            return None, self._factorise(kernel, theta, plan, generator)
        problem = self._well_conditioned(theta, plan)
        self.dtype_ = str(problem.X.dtype).removeprefix("torch.")
        near = plan.posterior.value == "neighbors"
        final, held = _solved(problem, theta, plan, state, generator, budget)
        if final.samples is not None:
            self._pathwise = to_numpy(final.samples)
        weights, scale = final.weights.cpu().double(), 1.0
        if final.left is not None:
            # Neighbours correct the mean of a solve that has ended early, or without some rows.
            self._residual = final.left.cpu().double().numpy()
        value, error, squares = final.value, final.std_error, 0.0
        # Without a complete or corrected solve, its errors would be attributed to the rows.
        if held is not None or (not plan.all_rows and (near or final.solution.converged)):
            posterior = self._iterative_posterior(weights)
            late = preview or final.interrupted or (budget.limit is not None and budget.left == 0)
            left_out = self._left_out_errors(theta, posterior, generator, late, held)
            if held is not None and left_out is not None:
                more, squares, doubt = left_out.in_turn(theta, len(held))
                value, error = value + more, error + doubt
            if not plan.all_rows:
                theta, scale = self._best_scale(kernel, theta, left_out)
            if left_out is not None:
                final = replace(final, summary=left_out.summary(scale, self._y_train_std))
        self._keep_scaled(kernel, theta, weights, (value, error), scale, squares)
        return final, 0.0

    def _left_out_errors(
        self,
        theta: torch.Tensor,
        posterior: Posterior,
        generator: torch.Generator,
        late: bool = False,
        held: torch.Tensor | None = None,
    ) -> LeftOut | None:
        """Leave-one-out errors of random rows, or of those that were held out of the solve.

        None if they would need further solves. Merged rows are left out as a whole. A row that was
        held out is predicted from those in the solve and the held-out ones before it.
        """
        problem = self._trained_problem(posterior.dtype, False)
        many = _LEFT_OUT_NEAR if self.posterior_ == "neighbors" and not late else _LEFT_OUT
        rows = random_rows(len(problem.X) if held is None else len(held), many, generator)
        rows = rows if held is None else held[rows.to(held.device)]
        X, Y = problem.X[rows], problem.Y[rows]
        noise = posterior.noise(X)
        # Posteriors add the white noise of a single row. Merged rows have less, others known noise.
        own = problem.noise(theta, rows).to(noise) - noise
        given: Any = () if held is None else (held,)
        left_out = posterior.leave_one_out(rows, X, Y, own, *given)
        if left_out is None:
            return None
        mean, variance = left_out
        how = "leave-one-out" if held is None else "held-out"
        return LeftOut(problem, rows, Y - mean, variance, how)

    def _best_scale(
        self, kernel: TorchKernel, theta: torch.Tensor, left_out: LeftOut | None
    ) -> tuple[torch.Tensor, float]:
        """The hyperparameters of the kernel times its best factor, and this factor.

        The factor is the mean squared error of rows that are left out, in units of its variance:
        the maximum of their log density. Merged rows contribute to it what they contribute to the
        likelihood of the noise. With priors it is the maximum of the density that
        as many rows as the table has would have with this error, plus the log prior. The mean does
        not depend on it. It is one where an amplitude or a noise level is fixed or known, or would
        pass the bound that a user has given.
        """
        if left_out is None:
            return theta, 1.0
        problem, rows, errors = left_out.problem, left_out.rows, left_out.errors
        scale = float((errors.square() / left_out.variance[:, None]).mean())
        some = problem.rows.take(rows)
        within = _scatter(some, problem.row_noise(theta, rows)) / errors.shape[1]
        total = float(some.weight.sum())
        scale = scale * (len(rows) / total) + within / total
        if not 0 < scale < math.inf:
            return theta, 1.0
        variances = torch.as_tensor(kernel.variances).to(theta)
        if kernel.log_prior:
            n, error, middle = self.n_samples_seen_ * errors.shape[1], scale, math.log(scale)

            def loss(at: float) -> float:
                prior, _ = kernel.log_prior((theta + variances * at).numpy())
                return 0.5 * (at + error * math.exp(-at)) - prior / n

            bounds = (middle - _MOST_SCALE, middle + _MOST_SCALE)
            scale = math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)
        moved = theta + variances * math.log(scale)
        low, high = kernel.bounds.T
        if self.kernel is not None and ((moved < low) | (moved > high)).any():
            return theta, 1.0
        return (moved, scale) if _has_scale(problem, theta) else (theta, 1.0)

    def _factorise(
        self,
        kernel: TorchKernel,
        theta: torch.Tensor,
        plan: IterativePlan,
        generator: torch.Generator,
    ) -> float:
        if self.dtype == "auto" and len(self.X_train_) > _PRECISE_ROWS:
            single = self._trained_problem(torch.float32)
            enough = well_conditioned(single, theta.numpy(), _ACCURATE).X.dtype == torch.float32
            self._predicts_in = "float32" if enough else "float64"
        problem = self._prediction_problem()
        posterior, evaluation = ExactPosterior.of(problem, theta, self._max_jitter())
        scale = 1.0
        if not plan.all_rows:
            left_out = self._left_out_errors(theta, posterior, generator)
            theta, scale = self._best_scale(kernel, theta, left_out)
        weights = evaluation.weights.cpu().double()
        self._keep_scaled(kernel, theta, weights, (evaluation.value, 0.0), scale)
        if not plan.all_rows:
            operator = problem.operator(torch.tensor(self.kernel_.theta))
            # The factor stays in its memory, which nothing else reads.
            factor = evaluation.factor.mul_(scale**0.5)
            posterior = ExactPosterior(operator, evaluation.weights / scale, factor)
        self._remember(posterior)
        return evaluation.jitter * scale

    def _well_conditioned(self, theta: torch.Tensor, plan: IterativePlan) -> GPProblem:
        """All rows in the precision they need; training may have seen a subset only."""
        problem = self._trained_problem(plan.torch_dtype, plan.keep)
        if self.dtype != "auto":
            return problem
        problem = well_conditioned(problem, theta.numpy())
        if problem.X.dtype != plan.torch_dtype and 8 * len(problem.X) ** 2 > plan.room:
            problem = self._trained_problem(problem.X.dtype)
        return problem

    def _keep_scaled(
        self,
        kernel: TorchKernel,
        theta: torch.Tensor,
        weights: torch.Tensor,
        value: tuple[float, float],
        scale: float,
        squares: float = 0.0,
    ) -> None:
        """Keep the weights and the likelihood's value and error, which are those before scaling.

        The stored samples are scaled, too. `squares` are the squared errors of rows without
        weights, in units of their variances.
        """
        self.alpha_ = weights.numpy().reshape(self.y_train_.shape) / scale
        self.log_marginal_likelihood_value_, self.log_marginal_likelihood_std_error_ = value
        if scale != 1.0:
            self.kernel_ = kernel.to_sklearn(theta)
            if self._pathwise is not None:
                self._pathwise = to_numpy(to_torch(self._pathwise).scaled(scale))
            quadratic = float(weights.numpy().ravel() @ np.ravel(self.y_train_)) + squares
            problem = self._trained_problem()
            quadratic += _scatter(problem.rows, problem.row_noise(theta) / scale)
            total = float(problem.rows.weight.sum()) * weights.shape[1]
            self.log_marginal_likelihood_value_ += 0.5 * (
                quadratic * (1 - 1 / scale) - total * math.log(scale)
            )

    # ------------------------------------------------------------------ posterior

    def _products(self, device: torch.device) -> str:
        """How products are computed on a device without a stored matrix."""
        given = self.get_params(deep=False).get("products", "auto")
        return choose_products(device, compiler_for(device))[0] if is_auto(given) else given

    def _trained_problem(self, dtype: torch.dtype = torch.float64, keep: bool = False) -> GPProblem:
        problem = super()._trained_problem(dtype, keep)
        return replace(problem, products=self._products(problem.X.device))

    def _max_jitter(self) -> float:
        return self._solves.max_jitter

    def _prediction_problem(self) -> GPProblem:
        return self._trained_problem(getattr(torch, self._predicts_in), self.posterior_ == "exact")

    def _build_posterior(self) -> Posterior:
        if self.posterior_ == "exact":
            problem = self._prediction_problem()
            return ExactPosterior.of(problem, problem.kernel.theta0, self._max_jitter())[0]
        return self._iterative_posterior(torch.tensor(self.alpha_.reshape(len(self.X_train_), -1)))

    def _iterative_posterior(self, weights: torch.Tensor) -> IterativePosterior:
        """The posterior at `kernel_`, whose mean has these weights."""
        problem = self._prediction_problem()
        operator, left = problem.operator(problem.kernel.theta0), None
        if self._residual is not None:
            left = torch.tensor(self._residual).to(operator.device, operator.dtype)
        return IterativePosterior(
            operator,
            weights.to(operator.device, operator.dtype),
            None if self._pathwise is None else to_torch(self._pathwise),
            solver=self._solves.variances,
            stopping=self._solves.stopping(operator),
            n_nearest=NEAREST if self.posterior_ == "neighbors" else None,
            residual=left,
        )


def _solved(
    problem: GPProblem,
    theta: torch.Tensor,
    plan: IterativePlan,
    state: GradientState,
    generator: torch.Generator,
    budget: Budget,
) -> tuple[FinalSolve, torch.Tensor | None]:
    """The final solve, and the rows that were held out of it."""
    n_samples = plan.n_samples if plan.posterior.value == "pathwise" else 0
    near = plan.posterior.value == "neighbors"

    def solved(part: GPProblem, early: HeldOutErrors | None = None) -> FinalSolve:
        solves = plan.solves
        if near:
            solves = solves.of_the_mean(part.operator(theta), plan.room, budget, part.keep)
        solves = replace(solves, early=early)
        return final_solve(part, theta, solves, n_samples, state, generator, budget, near)

    problem = _stored_in_time(problem, theta, budget)
    held, ends = None, plan.solves.ends_early and not plan.solves.solver.direct
    if near and (ends or (not plan.all_rows and _has_scale(problem, theta))):
        # Rows whose targets the neighbours know but the solve does not, unless they are too few.
        n = len(problem.X)
        many = min(_LEFT_OUT_NEAR, max(n // _HELD_SHARE, min(_FEWEST_HELD, n // _MOST_HELD_SHARE)))
        if many >= _FEWEST_HELD:
            held = random_rows(n, many, generator).to(problem.X.device)
    if held is None:
        return solved(problem), None
    return solve_without(held, problem, theta, solved, budget, ends), held


def _stored_in_time(problem: GPProblem, theta: torch.Tensor, budget: Budget) -> GPProblem:
    """The problem, whose matrix is not stored if that takes more than a share of the time left."""
    n = len(problem.X)
    if budget.limit is None or not problem.keep or n <= _TIMED_ROWS:
        return problem
    few = problem.subset(torch.arange(_TIMED_ROWS)).operator(theta)
    seconds = (n / _TIMED_ROWS) ** 2 * budget.timed(few.to_dense)
    return replace(problem, keep=seconds <= budget.share("matrix of a solve").limit)


def _scatter(rows: Rows, noise: torch.Tensor) -> float:
    """The scatter within merged rows in units of the noise of single ones; 0 without noise."""
    noisy = noise > 0
    return float(torch.where(noisy, rows.scatter / torch.where(noisy, noise, 1.0), 0.0).sum())


def _has_scale(problem: GPProblem, theta: torch.Tensor) -> bool:
    """Whether the kernel can be multiplied by a number, which also multiplies all of the noise."""
    kernel = problem.kernel
    noise = kernel.noise(theta, problem.X)
    if float(problem.rows.noise.max()) > _NEGLIGIBLE * float(noise.min()):
        return False
    return kernel.has_scale(theta, problem.X[:10].to(torch.float64))


@dataclass(frozen=True)
class LeftOut:
    """Errors of some rows that are left out.

    Attributes
    ----------
    problem : GPProblem
        All rows.
    rows : Tensor of shape (m,)
    errors : Tensor of shape (m, t)
        In the units of training.
    variance : Tensor of shape (m,)
        Of the left-out targets.
    how : {"leave-one-out", "held-out"}
        Whether the solve has seen these rows.
    """

    problem: GPProblem
    rows: torch.Tensor
    errors: torch.Tensor
    variance: torch.Tensor
    how: str

    def in_turn(self, theta: torch.Tensor, many: int) -> tuple[float, float, float]:
        """What so many held-out rows add to the log likelihood and to its quadratic form.

        Each row is given those in the solve and the held-out ones before it, so that the sum of
        their log densities is that of the joint density, by the chain rule. The last number is the
        standard error of what they add to the log likelihood, if these rows are some of them.
        """
        squares = self.errors.square() / self.variance[:, None]
        density = -0.5 * (squares + (2 * math.pi * self.variance).log()[:, None]).sum(1)
        density = density + self.problem.repeated_at(theta, self.rows).to(density)
        some = len(self.rows)
        doubt = many * (float(density.var(correction=0)) * (1 / some - 1 / many)) ** 0.5
        share = many / some
        return share * float(density.sum()), share * float(squares.sum()), doubt

    def summary(self, scale: float, y_std: np.ndarray) -> str:
        """Their size in the units of the targets, with the kernel multiplied by `scale`."""
        unit = torch.as_tensor(np.atleast_1d(y_std)).to(self.errors)
        errors, variance = self.errors * unit, self.variance[:, None] * unit.square() * scale
        rmse = float(errors.square().mean().sqrt())
        log_density = variance.log() + errors.square() / variance + math.log(2 * math.pi)
        return (
            f"{self.how} errors of {len(self.rows):,} rows have an RMSE of {rmse:.3g} and an "
            f"NLPD of {float(log_density.mean()) / 2:.3f}"
        )


def has_spectral_density(kernel: TorchKernel, posterior: str) -> bool:
    """Whether prior samples can be drawn; raises an error if posterior="pathwise" needs them."""
    try:
        sample_prior_features(kernel, kernel.n_features, 1, torch.Generator())
    except NoSpectralDensity as error:
        if posterior != "pathwise":
            return False
        raise NoSpectralDensity(
            f"{error.cause}, so that posterior='pathwise' cannot draw prior samples: use "
            "posterior='exact' or 'solve'."
        ) from None
    return True
