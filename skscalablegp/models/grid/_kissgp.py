"""Gaussian-process regression on a grid: kernel interpolation for scalable structured GPs.

The file is long because half of it documents the parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._compat import fit_context
from ..._end import End
from ...core import (
    ExactProcess,
    FitRun,
    GPRegressorBase,
    Plan,
    StageSettings,
    fit_exactly,
    fit_hyperparameters,
    is_auto,
)
from ...core.data import Table
from ...core.posteriors import Posterior
from ...core.training import Budget, TrainingResult
from ...kernels import TorchKernel, compile_kernel
from ...linalg.gradients import ExactEvaluation
from ._grid import Grid, make_grid
from ._grid_kernel import GridKernel
from ._interactions import check_interactions
from ._network import (
    SHORTEST_FEATURE_LENGTH,
    GridFeatures,
    NetworkTraining,
    grid_network,
    held_rows,
    network_steps,
)
from ._objective import (
    GridEvaluation,
    GridGradient,
    GridProblem,
    SummedRows,
    affordable_rank,
    check_rank,
    grid_marginal_likelihood,
    rows_on_grid,
    summed,
)
from ._plan import (
    asks_for_grid,
    columns_that_vary,
    grid_default_kernel,
    plan_grid,
    plan_method,
    points_of_fast,
)
from ._posterior import GridPosterior
from ._product_posterior import ProductPosterior
from ._products import ProductEvaluation, ProductGradient, RowProbes, evaluate_products
from ._start import start_on_grid


class GridFit(NamedTuple):
    """A table on a grid, for training and for the fitted model.

    Attributes
    ----------
    features : GridFeatures or None
        The features that replace the columns.
    problem : GridProblem
        The rows that train the hyperparameters.
    rows : SummedRows
        All rows.
    """

    features: GridFeatures | None
    problem: GridProblem
    rows: SummedRows


# Most interpolation weights, as a dense matrix, of rows that training reads themselves.
_FEW_NUMBERS = 2**22


class KISSGPRegressor(GPRegressorBase):
    """Gaussian processes on a regular grid; exact up to 2,000 rows (``small_table``).

    The kernel matrix is W Kuu W', with sparse cubic interpolation weights W and the covariance Kuu
    of a regular grid. Rows are read once. After that, the cost of the likelihood, of its gradient
    and of predictions does not depend on the number of rows. A million rows of two columns took
    three seconds of one core (``benchmarks/papers/love.py columns``). Grids of three columns take
    longer, and those of four columns longer still. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. A product grid needs a kernel that is a product over columns (RBF,
        SpectralMixture, or for a single column any stationary kernel). An additive grid applies any
        stationary kernel to each column and adds the results. None means ``ConstantKernel() * RBF()
        + WhiteKernel()`` with one length scale per column, in the units of the table.
    grid_size : "auto", int or array-like of shape (d,), default="auto"
        Number of grid points along each column. Two cells of padding at both ends are included.
        "auto" is at most 400, 100, 36 or 8 for 1 to 4 columns. For sums over columns it is 100, or
        above 40 columns 4,000 in all, but at least 20. A column over whose range the target varies
        many times has up to 1,205 if it has a grid of its own.
    structure : {"auto", "product", "additive"}, default="auto"
        How the columns share grids. "product" is one grid over all columns, and "additive" a sum of
        functions of one column each. "auto" is "product" for up to four columns that vary. For up
        to 2,000 rows, if this, `grid_size` and `kernel` are left at their defaults, there is no
        grid but the exact process of the rows with the default kernel of
        :class:`IterativeGPRegressor`. It costs no more, columns may interact, and nothing is
        interpolated.
    feature_extractor : array-like of int, callable, torch.nn.Module or None, default=None
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. It ends in 1 or 2 features, which are mapped
        into (-1, 1) and replace the columns: a deep kernel. It is trained by squared error, and
        then by the marginal likelihood of batches of rows. From 400 rows on, the kernel's
        hyperparameters are trained on 15% of the rows, which the network does not see. On learned
        features the length scales of the default kernel are at least 0.7, a third of the features'
        range.
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
        the noise level of the default kernel if the exact process replaces the grid and there are
        at least three columns, at most 120 rows, and at most 15 rows per column. None means no
        priors.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        2,000 rows, unless a kernel, a network, or another parameter of the grid or of the solver is
        given. "method" never does.
    optimizer : "auto", "bfgs", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or None, \
            default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is a
        quasi-Newton method with exact values and gradients. A network is trained in any case.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. The limit applies to the hyperparameters and to each
        start. "auto" is 100.
    max_epochs : int or "auto", default="auto"
        Maximum number of training passes over the rows. They are those of the network, whose
        learning rates fall to zero at the end. "auto" is 2,600 steps of 256 rows, or of all rows if
        there are fewer.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        restarts and the network.
    solver : {"auto", "cholesky", "cg"}, default="auto"
        Solver for the linear systems of a training step. "cholesky" factorises the grid's
        covariance at its numerical rank, so that likelihood, gradients and variances are exact.
        "cg" is the published method: conjugate gradients with fast Toeplitz and Kronecker products.
        It needs O(m) memory, estimates the traces of gradients, and solves a system for the
        variance of each row, unless :class:`LOVEPredictor` makes variances cheap. "auto" is
        "cholesky".
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. The
        largest are those of the grid.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Rows are read and
        located in the grid, and a network is trained, on the CPU; all else that is as large as the
        grid is on the device.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It has no effect here: sums on a grid are
        always in float64, and a network is trained in float32.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. Only Adam has one. "auto" is 0.1
        for up to 50,000 rows and 0.03 for more.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only Adam uses it: progress is a change of a log hyperparameter by more than 1e-3.
    extrapolation : {"extend", "error"}, default="extend"
        Treatment of rows outside the grid. "extend" continues the grid, with exact variances, at a
        cost of O(m r) per row; "error" raises a ValueError.
    activation : str, default="relu"
        Activation function after each layer of a network that is given by its layer sizes. The last
        layer is followed by tanh.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel.
    grid_ : Grid or None
        The axes of the grid; None if there is no grid.
    X_train_, y_train_ : ndarray or None
        The table with the normalised target; None if there is a grid.
    log_marginal_likelihood_value_ : float
        Log marginal likelihood of the interpolated model at `kernel_`, in normalised units. With
        ``solver="cg"`` it is a stochastic Lanczos estimate, and NaN after `partial_fit`.
    log_marginal_likelihood_std_error_ : float
        Its standard error, plus the largest possible bias of the quadrature; 0 if the value is
        exact.
    n_iter_ : int
        Number of training steps of the network plus evaluations of the likelihood; 1 after
        `partial_fit`.
    n_samples_seen_ : int
        Number of rows in the model, including those of `partial_fit`.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each
        evaluation of the likelihood and of each score of the network; empty after `partial_fit`.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto" with their reasons, seconds by stage, the jitter
        added to the noise, and ``grid_rank``, the numerical rank of Kuu.
    device_, dtype_ : str
        The device of what is as large as the grid, and "float64".
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    LOVEPredictor : Measured low-rank variances over this and other models.

    Notes
    -----
    Reading the rows costs O(n 7^d), and each evaluation O(m r^2) for m grid points and a grid
    covariance of rank r. The interpolation error falls with the third power of the grid's spacing.
    In three columns r exceeds a thousand if length scales are below a third of a column's range. If
    that is too slow, use a smaller grid_size, or a lower bound of the length scales.

    References
    ----------
    A. G. Wilson, H. Nickisch (2015), Kernel interpolation for scalable structured Gaussian
    processes. G. Pleiss, J. R. Gardner, K. Q. Weinberger, A. G. Wilson (2018), Constant-time
    predictive distributions for Gaussian processes.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import KISSGPRegressor
    >>> X = np.random.default_rng(0).uniform(size=(100_000, 1))
    >>> gp = KISSGPRegressor(grid_size=50).fit(X, np.sin(9 * X[:, 0]))
    >>> bool(abs(gp.predict([[0.5]])[0] - np.sin(4.5)) < 1e-2)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        grid_size="auto",
        structure="auto",
        feature_extractor=None,
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="auto",
        max_iter="auto",
        max_epochs="auto",
        n_restarts_optimizer=0,
        random_state=None,
        solver="auto",
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=5,
        extrapolation="extend",
        activation="relu",
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None, sample_weight=None) -> KISSGPRegressor:
        """Train the hyperparameters and compute what predictions need.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. If it differs
            between rows, every evaluation of the likelihood reads the rows again.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            are merged before the fit, so that weights and repeated rows give the same model.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input, kernels or settings the model cannot honour.
        MemoryError
            Before any work, for a grid or a covariance of its points that would not fit; or during
            training, if shorter length scales make this covariance too large.
        """
        return self._fit(X, y, noise_variance, sample_weight)

    _sums_rows = True
    _of_method = ("grid_", "_network", "_kept", "_most_rank", "_unfinished")
    # Weights of a solve with products that time has ended.
    _unfinished: np.ndarray | None = None

    def _fit(
        self, X: Any, y: Any, noise_variance: Any, sample_weight: Any, stream: bool = False
    ) -> KISSGPRegressor:
        with FitRun(self) as run:
            # A grid stores sums over the rows, not the rows.
            table = self._read_table(X, y, noise_variance, run, sample_weight, copy=False)
            plan = plan_method(self, len(table.X), stream=stream)
            run.follow(plan)
            run.priors = plan.priors.value
            run.computes_in_float64("sums over the rows need double precision")
            self._check_sums(table)
            if plan.exact_instead:
                table = table.whole()
                kernel = self._compile_kernel(table, run)
                table = replace(table.centred(kernel), X=table.X.copy())
                run.begin(table.X, table.y, n_rows=table.n_rows)
                self._keep_table(table)
                fit_exactly(table, kernel, self._settings(), run)
                return self
            some = table.sample()
            run.begin(some.X, some.y, n_rows=table.n_rows)
            self._counts_train = self._within_train = None
            self.X_train_ = self.y_train_ = self._noise_train = None
            self._y_train_mean, self._y_train_std = table.y_mean, table.y_std
            self._origin = 0.0
            features, held, n_steps = None, None, 0
            if self.feature_extractor is not None:
                held = held_rows(len(table.X), run.random_state)
                run.budget.reserve("kernel of features")
                features, n_steps = self._train_network(table, held, run)
                run.budget.reserve(0.0)
            made = self._on_grid(table, features, held, run)
            run.preview = lambda model, step: model._finish(made, step.theta)
            result = self._train(made.problem, plan.training, features is not None, run)
            budget = run.budget
            evaluation = run.finish("grid", lambda: self._finish(made, result.theta, budget))
            if len(self.grid_.components) > 1 and not asks_for_grid(self):
                mean = self._remembered().mean
                check_interactions(table, mean, self.optimizer is not None, run)
            n_iter = n_steps + result.n_iter
            run.ended(result.stop_reason, n_iter=n_iter, planned=result.planned)
            self._report_evaluation(evaluation, run)
        return self

    def _check_sums(self, table: Table) -> None:
        """Refuse settings that need the rows themselves, if these are at several ranks."""
        needs = "solver='cg'" if self.solver == "cg" else None
        needs = needs if self.feature_extractor is None else "feature_extractor"
        if needs is not None and not table.here:
            raise ValueError(
                f"{needs} needs all rows in one process: leave it out, or use "
                'distribute(rows="replicated").'
            )

    def _train_network(
        self, table: Table, held: np.ndarray, run: FitRun
    ) -> tuple[GridFeatures, int]:
        """The features of a trained network, and the number of its training steps."""
        some = table.rows(~held)
        network = grid_network(some.X.shape[1], self.feature_extractor, self.activation)
        n = len(some.X)
        steps = network_steps(n, self.max_epochs)
        run.chose("max_epochs", sum(steps) * min(256, n) / n, f"{sum(steps)} steps")
        training = NetworkTraining(some, network, run)

        def preview(model: KISSGPRegressor, step: Any) -> None:
            made = model._on_grid(table, training.features(), held, run)
            model._finish(made, made.problem.kernel.theta0.numpy())

        run.preview = preview
        n_steps = training.train(run, steps)
        return training.features(), n_steps

    def _on_grid(
        self, table: Table, features: GridFeatures | None, held: np.ndarray | None, run: FitRun
    ) -> GridFit:
        """The sums on a grid of the rows, or of their features from a network.

        Only rows that the network has not seen (`held`) choose and train the hyperparameters,
        because the network overfits the others, so that they underestimate the noise.
        """
        if features is None:
            kernel, shortest, n = self._numbered_kernel(table.X), 0.0, len(table.X)
            if kernel is not None:
                self._check_categories(table, compile_kernel(kernel, table.X.shape[1]))
            # A single far entry would squeeze all others into one cell, and is moved to their
            # range. New rows may be anywhere, because the grid continues without end.
            extent = np.stack(table.ranges())
            table = table.limited(*extent)
        else:
            kernel, shortest = self._kernel_of_features(), SHORTEST_FEATURE_LENGTH
            table = replace(table, X=features(table.X))
            # Features lie in (-1, 1), so that no new row lies outside of this grid.
            ends = np.ones((1, table.X.shape[1]))
            extent = np.vstack([table.X, -ends, ends])
            n = len(extent)
        columns = columns_that_vary(extent, n)
        wanted = {}
        if features is None and is_auto(self.grid_size):
            some = table.sample()
            wanted = points_of_fast(some.X, some.targets)
        plan = plan_grid(self, n, extent.shape[1], columns, wanted)
        run.follow(plan)
        sizes = dict(zip(columns, plan.grid_size.value, strict=True))
        grid = make_grid(extent, sizes, plan.structure.value)
        if kernel is None:
            kernel = grid_default_kernel(table, grid, shortest)
        compiled = compile_kernel(kernel, table.X.shape[1], priors=run.priors)
        table.check_separable(compiled)
        on_grid, rank = self._with_rank(compiled, grid, run)
        seen = held is None or not held.any()
        on_grid, rank = self._from_start(on_grid, rank, table if seen else table.rows(held), run)
        return GridFit(features, *self._sums(on_grid, rank, table, held, run))

    def _with_rank(self, kernel: TorchKernel, grid: Grid, run: FitRun) -> tuple[GridKernel, int]:
        """The kernel on the grid, and the rank of its covariance if that is factorised."""
        on_grid = GridKernel(kernel, grid, self._budget(), self._fit_device())
        if self.solver == "cg":
            return on_grid, 0
        return on_grid, check_rank(on_grid, kernel.theta0, run.budget.limit is not None)

    def _from_start(
        self, on_grid: GridKernel, rank: int, table: Table, run: FitRun
    ) -> tuple[GridKernel, int]:
        """The kernel and its rank where training begins."""
        kernel = on_grid.kernel
        start = start_on_grid(kernel, on_grid.grid, table, self._settings(), run)
        best = kernel.to_sklearn(torch.as_tensor(start.theta))
        moved = compile_kernel(best, kernel.n_features, priors=run.priors)
        try:
            on_grid, rank = self._with_rank(moved, on_grid.grid, run)
            run.reports(start=start.describe())
        except MemoryError:  # Short length scales take a large rank.
            run.advise_other_model(
                "the grid cannot follow the length scales that suit some rows best "
                f"({moved.kernel}): the rank of its covariance would be too large. Training "
                "began at longer ones. Use IterativeGPRegressor or NNGPRegressor, or "
                "structure='additive' if the columns' effects add up."
            )
        return on_grid, rank

    def _sums(
        self, on_grid: GridKernel, rank: int, table: Table, held: np.ndarray | None, run: FitRun
    ) -> tuple[GridProblem, SummedRows]:
        """What trains the hyperparameters, the rows `held` or all, and the sums over all rows."""
        rows = training = summed(on_grid, table)
        if self.solver != "cg":
            on_grid, rank = self._within_time(on_grid, rank, rows, run)
        some, n, probes, few = table, len(table.X), None, None
        if held is not None and held.any():
            training, some = summed(on_grid, table, held), table.rows(held)
            n = len(some.X)
        if self.solver == "cg":
            probes = RowProbes(on_grid.grid, some, run.generator)
            run.budget.reserve("final solve")
        if n < rank and n * on_grid.n_points <= _FEW_NUMBERS:
            few = rows_on_grid(on_grid.grid, some.whole(), on_grid.device)
        return GridProblem.make(on_grid, training, n, probes, few), rows

    def _within_time(
        self, on_grid: GridKernel, rank: int, rows: SummedRows, run: FitRun
    ) -> tuple[GridKernel, int]:
        """The kernel on the grid with as large a rank as there is time for, and its rank."""
        most = affordable_rank(GridProblem.make(on_grid, rows, 0), run.budget)
        if most is None:
            return on_grid, rank
        if most < rank:
            run.shortened(
                f"The covariance of the grid has rank {rank}, and max_seconds leaves time for "
                f"{most}: the model is smoother. Raise max_seconds, or use a smaller grid_size."
            )
        return replace(on_grid, most_rank=most), min(rank, most)

    def _settings(self) -> StageSettings:
        return StageSettings.of(self, self.n_restarts_optimizer)

    def _train(
        self, problem: GridProblem, plan: Plan, on_features: bool, run: FitRun
    ) -> TrainingResult:
        """Hyperparameters that maximise the marginal likelihood."""
        kernel = problem.kernel
        theta = kernel.theta0.numpy()
        start = TrainingResult.untrained(theta)
        if self.optimizer is None or kernel.n_params == 0:
            return start
        # A trained network is worth keeping. If something has ended its training, no further stage
        # begins, and the hyperparameters are those of the start.
        with run.budget.may_end(on_features and not run.stopped) as ending:
            estimator = ProductGradient() if self.solver == "cg" else GridGradient()
            # The rows have chosen the start, which sums on a grid cannot do.
            return fit_hyperparameters(problem, estimator, theta, plan, run, compare_starts=False)
        return replace(start, stop_reason=ending.reason)

    def _finish(
        self, made: GridFit, theta: Any, budget: Budget | None = None
    ) -> GridEvaluation | ProductEvaluation:
        """The fitted model at these hyperparameters."""
        kernel = made.problem.grid_kernel
        self.kernel_ = kernel.kernel.to_sklearn(torch.as_tensor(theta))
        self.grid_, self._products_ = kernel.grid, self.solver == "cg"
        self._network = made.features
        self._most_rank = kernel.most_rank
        self._kept = made.rows.settled(*self._white_and_prior())
        return self._evaluate(made.problem.probes, budget)

    def _evaluate(
        self, probes: Any = None, budget: Budget | None = None
    ) -> GridEvaluation | ProductEvaluation:
        """Store the posterior and its likelihood."""
        self._unfinished = None
        posterior = self._build_posterior(probes, budget)
        solve = posterior.evaluation.solve
        if solve is not None and solve.status is End.MAX_SECONDS:
            # A copy of the model could not end a solve at the same step.
            self._unfinished = posterior.evaluation.weights.cpu().numpy()
        self._remember(posterior)
        self.log_marginal_likelihood_value_ = posterior.evaluation.value
        self.log_marginal_likelihood_std_error_ = posterior.evaluation.std_error
        return posterior.evaluation

    def _neighbours(self) -> np.ndarray | None:
        if self._exact is not None:
            return None
        # Rows of a cell correlate under any kernel, because the same points interpolate them.
        axes = [axis for component in self.grid_.components for axis in component]
        points = np.zeros((1 + len(axes), self.n_features_in_))
        for row, axis in enumerate(axes, 1):
            points[:, axis.column] = axis.start
            points[row, axis.column] += axis.step
        return points

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        self.log_marginal_likelihood_std_error_ = 0.0
        return super()._keep_exactly(process)

    def _report_evaluation(self, evaluation: Any, run: FitRun) -> None:
        grid, rank = self.grid_, evaluation.rank
        made = "by products" if rank is None else f"of rank {rank}"
        count = len(grid.components)
        where = "one grid" if count == 1 else f"{count} grids"
        if evaluation.solve is not None:
            run.solved(evaluation.solve)
        run.reports(
            jitter=evaluation.jitter,
            grid_rank=rank,
            summary=f"{grid.n_points} grid points in {where}, {made}",
        )

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, noise_variance=None, sample_weight=None) -> KISSGPRegressor:
        """Add rows to the model, exactly, without training its hyperparameters.

        The scale of the target and the spacing of the grid do not change. The grid grows to include
        rows outside it. The first call makes a grid for any number of rows. After a `fit` without a
        grid the exact process of all rows is factorised again, so that a stream should begin with
        this method.

        Parameters
        ----------
        X : array-like of shape (n, d)
            New rows.
        y : array-like of shape (n,) or (n, t)
            Their targets.
        noise_variance : float or array-like of shape (n,), optional
            As in `fit`.
        sample_weight : float or array-like of shape (n,), optional
            As in `fit`.

        Returns
        -------
        self : object
            The model as if all rows had been given at once.

        Raises
        ------
        ValueError
            For rows unlike those of the first call.
        MemoryError
            For a grid that would not fit after it has grown.
        """
        if not hasattr(self, "n_iter_"):
            return self._fit(X, y, noise_variance, sample_weight, stream=True)
        with FitRun(self) as run:
            more = self._read_more(X, y, noise_variance, sample_weight, run)
            run.ended(End.CONVERGED, n_iter=1, because="rows were added; the kernel is unchanged")
            if self._exact is not None:
                self._append(more)
                self._join_exactly(run, "fit all rows anew, with structure='product' or 'additive'")
                return self
            Z = self._features(more.X)
            self._check_inside(Z)
            kept, grid = self._kept, self.grid_
            if not grid.covers(Z).all():
                grid = self.grid_.extended(Z)
                widest = max(len(axes) for axes in grid.components)
                run.check_memory(
                    30.0 * grid.n_points * 7**widest,
                    f"The grid extended to the new rows ({grid.n_points:,} points)",
                    "leave out rows far away from the others, or fit again with a smaller "
                    "grid_size",
                )
                kept = kept.moved(self.grid_.numbers_in(grid), grid)
            self._kept = kept.plus(replace(more, X=Z), *self._white_and_prior())
            self.grid_ = grid
            self._report_evaluation(run.finish("grid", self._evaluate), run)
        return self

    # ------------------------------------------------------------------ predictions

    def extract_features(self, X) -> np.ndarray:
        """Inputs of the kernel: the features of a network, or the rows themselves.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.

        Returns
        -------
        features : ndarray of shape (m, q)
            Each in (-1, 1); without a `feature_extractor`, X.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        return self._features(self._rows(X))

    def _features(self, X: np.ndarray) -> np.ndarray:
        return X if self._network is None else self._network(X)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        features = self._features(X)
        self._check_inside(features)
        return super()._inputs(features)

    def _input_module(self) -> torch.nn.Module:
        network, below = self._network, super()._input_module()
        return below if network is None else torch.nn.Sequential(network.module(), below)

    def _check_inside(self, X: np.ndarray) -> None:
        if self.extrapolation == "error" and not (inside := self.grid_.covers(X)).all():
            raise ValueError(
                f"{int((~inside).sum())} of {len(X)} rows lie outside the grid, the first at "
                f"{X[~inside][0].tolist()}: use extrapolation='extend', or fit on a range that "
                "contains these rows."
            )

    def _trained_kernel(self) -> TorchKernel:
        features = self._network
        width = self.n_features_in_ if features is None else features.network.n_features
        return compile_kernel(self.kernel_, width)

    def _white_and_prior(self) -> tuple[float, float]:
        kernel = GridKernel(self._trained_kernel(), self.grid_)
        theta = kernel.kernel.theta0
        with torch.no_grad():
            return float(kernel.noise(theta)), float(kernel.prior(theta))

    def _problem(self, probes: Any = None) -> GridProblem:
        device = self._fit_device()
        settings = self._budget(), device, getattr(self, "_most_rank", None)
        kernel = GridKernel(self._trained_kernel(), self.grid_, *settings)
        return GridProblem.make(kernel, self._kept, round(self._kept.moments.n), probes)

    def _build_posterior(self, probes: Any = None, budget: Budget | None = None) -> Posterior:
        problem = self._problem(probes)
        theta = problem.kernel.theta0
        if self._products_:
            evaluation = evaluate_products(problem, theta, budget, self._unfinished)
            return ProductPosterior(problem.grid_kernel, theta, evaluation)
        evaluation = grid_marginal_likelihood(problem, theta, eval_gradient=False)
        return GridPosterior(problem.grid_kernel, theta, evaluation)

    def _likelihood_at(self, theta, eval_gradient):
        """The likelihood of the interpolated model."""
        if not self._kept.reweighs:
            raise ValueError(
                "KISSGPRegressor was fitted with noise variances that differ from row to row, and "
                "keeps only sums at the trained hyperparameters: read "
                "log_marginal_likelihood_value_, or fit again with other hyperparameters."
            )
        result = grid_marginal_likelihood(self._problem(), theta, eval_gradient)
        return result.value, result.grad
