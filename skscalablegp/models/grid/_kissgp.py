"""Gaussian-process regression on a grid: kernel interpolation for scalable structured GPs."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data

from ..._compat import FitEvents, Interval, StrOptions, fit_context
from ..._validation import check_memory, check_n_targets, check_noise, check_noise_variance
from ...core import (
    GPRegressorBase,
    budget_of,
    make_monitor,
    seeded,
    shared_parameters,
    unfinished,
    warn_once,
)
from ...core.data import Table, noise_unit
from ...core.training import Monitor, TrainingResult
from ...kernels import TorchKernel, compile_kernel
from ._grid import Grid
from ._grid_kernel import GridKernel
from ._network import apply_network, check_layers
from ._objective import GridProblem, Rows, grid_marginal_likelihood
from ._plan import plan_grid
from ._posterior import GridPosterior
from ._training import KeptRows, kernel_on_grid, learned_features, summed, train_on_grid


class KISSGPRegressor(GPRegressorBase):
    """Gaussian-process regression by interpolation from a regular grid.

    The kernel matrix is W Kuu W', with sparse cubic interpolation weights W and the covariance Kuu
    of a regular grid. Rows are read once; likelihood, gradients and predictions then cost nothing
    in their number. Millions of rows in one or two columns take seconds; in three columns
    2,000 rows took 15 seconds of one core and 100,000 a minute and a half (``benchmarks/love.py
    columns``), and four columns take longer.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel. A product grid needs a product over columns (RBF, SpectralMixture, or
        anything stationary where there is one column); an additive one takes any stationary kernel,
        applied to each column in turn and summed. None means ``ConstantKernel() * RBF() +
        WhiteKernel()`` with one length scale a column, in the units of the table.
    alpha : float or array-like of shape (n,), default=1e-10
        Added to the diagonal, in the units of the (normalised) target squared.
    grid_size : "auto", int or array-like of shape (d,), default="auto"
        Points along every column, two cells of padding at both ends included. "auto" is at most
        400, 100, 36 or 8 for 1 to 4 columns, and 100 for sums over columns.
    structure : {"auto", "product", "additive"}, default="auto"
        One grid over all columns, or a sum of functions of one column each. "auto" is product up to
        four columns that vary.
    feature_extractor : array-like of int, default=None
        Widths of the layers of a network, the last 1 or 2, whose outputs take the place of the
        columns: a deep kernel. The network is trained by squared error, then by the marginal
        likelihood of batches of rows; the kernel's hyperparameters on the 15% of the rows that the
        network does not see (from 400 rows on). On learned features the default kernel's length
        scales are at least 0.7, a third of the features' range.
    n_lanczos : int or None, default=100
        Rank of the variance cache (LOVE); None for exact variances.
    extrapolation : {"extend", "error"}, default="extend"
        Rows outside the grid: the grid goes on, with exact variances, at a cost of O(m r) a row; or
        a ValueError.
    optimizer : "auto", str, callable, object or None, default="auto"
        "auto" is a quasi-Newton method with exact values and gradients; None keeps the kernel's
        hyperparameters.
    n_restarts_optimizer : int, default=0
        Further starts, uniform within the bounds.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of restarts and of the network.
    max_iter : int, default=100
        Optimiser steps of each start.
    memory_budget : float or "auto", default="auto"
        Bytes that the grid may take; "auto" looks at the machine.
    callbacks : callable, list of callable or None, default=None
        Called after each evaluation with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget of the hyperparameters' training, looked at between evaluations; the best state
        so far is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel.
    grid_ : Grid
        The axes of the grid.
    log_marginal_likelihood_value_ : float
        Of the interpolated model at `kernel_`, in normalised units.
    n_iter_ : int
        Evaluations of the likelihood.
    n_samples_seen_ : int
        Rows in the model, those of `partial_fit` included.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_info_ : dict
        Why training stopped, the numerical rank of Kuu, and jitter added to the noise.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    LOVEPredictor : Measured low-rank variances over this and other models.

    Notes
    -----
    Reading costs O(n 7^d), each evaluation O(m r^2) for m grid points and a grid covariance of rank
    r; interpolation errs by the third power of the grid's spacing. In three columns r is above a
    thousand where length scales are below a third of a column's range: set grid_size, or a lower
    bound for them, where that is too slow. Float64 on the CPU.

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

    _parameter_constraints = shared_parameters(
        "kernel",
        "alpha",
        "optimizer",
        "n_restarts_optimizer",
        "normalize_y",
        "n_targets",
        "random_state",
        "memory_budget",
        "callbacks",
        "max_seconds",
        "verbose",
    ) | {
        "grid_size": [
            StrOptions({"auto"}),
            Interval(Integral, 6, None, closed="left"),
            "array-like",
        ],
        "structure": [StrOptions({"auto", "product", "additive"})],
        "feature_extractor": [None, "array-like"],
        "n_lanczos": [Interval(Integral, 1, None, closed="left"), None],
        "extrapolation": [StrOptions({"extend", "error"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
    }
    # Rows are summed up, never kept.
    copy_X_train = False

    def __init__(
        self,
        kernel: Any = None,
        *,
        alpha: Any = 1e-10,
        grid_size: Any = "auto",
        structure: Any = "auto",
        feature_extractor: Any = None,
        n_lanczos: Any = 100,
        extrapolation: Any = "extend",
        optimizer: Any = "auto",
        n_restarts_optimizer: Any = 0,
        normalize_y: Any = False,
        n_targets: Any = None,
        random_state: Any = None,
        max_iter: Any = 100,
        memory_budget: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.grid_size = grid_size
        self.structure = structure
        self.feature_extractor = feature_extractor
        self.n_lanczos = n_lanczos
        self.extrapolation = extrapolation
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.normalize_y = normalize_y
        self.n_targets = n_targets
        self.random_state = random_state
        self.max_iter = max_iter
        self.memory_budget = memory_budget
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> KISSGPRegressor:
        """Train the hyperparameters and compute what predictions need.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. Where it differs
            from row to row, every evaluation reads the rows again.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input, kernels or settings the model cannot honour.
        MemoryError
            For a grid, or a covariance of its points, that would not fit, before any work; in
            training, where shorter length scales have made that covariance too large.
        """
        monitor = make_monitor(self)
        table = self._read_table(X, y, noise_variance)
        random_state, generator = seeded(self.random_state)
        layers, network, held = check_layers(self.feature_extractor), None, None
        if layers is not None:
            network, table, held = learned_features(table, layers, random_state)
        grid = self._plan_grid(table, network is not None)
        budget = budget_of(self.memory_budget)
        kernel = kernel_on_grid(self.kernel, table, grid, network is not None, budget)
        rows = summed(kernel, table)
        # A network fits the rows that it has seen too well to learn the noise from them.
        unseen = rows if held is None or not held.any() else summed(kernel, table, held)
        count = len(table.X) if unseen is rows else int(held.sum())
        problem = GridProblem.make(kernel.kernel, kernel, unseen, count)
        events = FitEvents(self, table.X, table.y)
        monitor.callbacks = [*monitor.callbacks, lambda step: events.step()]
        try:
            result = train_on_grid(problem, self, monitor, random_state, generator)
        finally:
            monitor.close()
        self._remember(None)
        self._network = network
        self._y_train_mean, self._y_train_std = table.y_mean, table.y_std
        self._finish(kernel, rows, result, monitor)
        self.n_samples_seen_ = len(table.X)
        events.end()
        return self

    def _plan_grid(self, table: Table, on_features: bool) -> Grid:
        X, budget = table.X, budget_of(self.memory_budget)
        if on_features:
            # All that features can be is in (-1, 1): no row will ever lie outside.
            ends = np.ones((1, X.shape[1]))
            X = np.vstack([X, -ends, ends])
        return plan_grid(X, self.grid_size, self.structure, budget)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, noise_variance: Any = None) -> KISSGPRegressor:
        """Add rows to the model, exactly, with the hyperparameters as they are.

        The target's scale and the grid's spacing stay; the grid grows where rows lie outside it.

        Parameters
        ----------
        X : array-like of shape (n, d)
            New rows.
        y : array-like of shape (n,) or (n, t)
            Their targets.
        noise_variance : float or array-like of shape (n,), optional
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
            For a grid that would not fit once grown.
        """
        if not hasattr(self, "kernel_"):
            return self.fit(X, y, noise_variance)
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, reset=False
        )
        known = check_noise(self.alpha, len(X))
        given = check_noise_variance(noise_variance, len(X))
        check_n_targets(self._n_outputs(), y)
        if given is not None:
            known = known + given / noise_unit(self._y_train_std)
        Y = ((y - self._y_train_mean) / self._y_train_std).reshape(len(X), -1)
        X = self._features(X)
        self._check_inside(X)
        grid, numbers = self.grid_, None
        if not grid.covers(X).all():
            grid = self.grid_.extended(X)
            self._check_grid(grid)
            numbers = self.grid_.numbers_in(grid)
        kept = self._kept if numbers is None else self._kept.moved(numbers, grid)
        self._kept = kept.plus(grid, X, Y, known, *self._white_and_prior())
        self.grid_ = grid
        self.n_samples_seen_ += len(X)
        self._remember(None)
        self._set_likelihood()
        return self

    def _finish(
        self, kernel: GridKernel, rows: Rows, result: TrainingResult | None, monitor: Monitor
    ) -> None:
        compiled = kernel.kernel
        theta = compiled.theta0 if result is None else torch.as_tensor(result.theta)
        self.kernel_ = compiled.to_sklearn(theta)
        self.grid_ = kernel.grid
        self.n_iter_ = 0 if result is None else result.n_iter
        self.history_ = monitor.history()
        self._kept = KeptRows.of(rows, *self._white_and_prior())
        reason = "nothing to train" if result is None else result.stop_reason
        self.solver_info_ = {"stop_reason": reason}
        self._set_likelihood()
        warn_once(unfinished(reason, self, f"{self.n_iter_} gradient evaluations"))

    def _set_likelihood(self) -> None:
        posterior = self._build_posterior()
        self._remember(posterior)
        self.log_marginal_likelihood_value_ = posterior.evaluation.value
        self.solver_info_["rank"] = len(posterior.evaluation.inner)
        self.solver_info_["jitter"] = posterior.evaluation.jitter

    # ------------------------------------------------------------------ what predictions need

    def _rows(self, X: Any) -> np.ndarray:
        return self._seen(super()._rows(X))

    def _seen(self, X: np.ndarray) -> np.ndarray:
        """Validated rows as the posterior sees them."""
        features = self._features(X)
        self._check_inside(features)
        return features

    def _features(self, X: np.ndarray) -> np.ndarray:
        return X if self._network is None else apply_network(self._network, X)

    def _check_inside(self, X: np.ndarray) -> None:
        if self.extrapolation == "error" and not (inside := self.grid_.covers(X)).all():
            raise ValueError(
                f"{int((~inside).sum())} of {len(X)} rows lie outside the grid; the first is row "
                f"{int(np.flatnonzero(~inside)[0])}. Use extrapolation='extend', or fit on a range "
                "that contains them."
            )

    def _check_grid(self, grid: Grid) -> None:
        widest = max(len(axes) for axes in grid.components)
        check_memory(
            30.0 * grid.n_points * 7**widest,
            f"The grid extended to the new rows ({grid.n_points:,} points)",
            "leave out rows far away from the others, or fit again with a smaller grid_size",
            budget_of(self.memory_budget),
        )

    def _n_outputs(self) -> int:
        return self._kept.moments.rhs.shape[1]

    def _compiled(self) -> TorchKernel:
        return compile_kernel(self.kernel_, self.grid_.n_features)

    def _white_and_prior(self) -> tuple[float, float]:
        kernel = GridKernel(self._compiled(), self.grid_)
        theta = kernel.kernel.theta0
        with torch.no_grad():
            return float(kernel.noise(theta)), float(kernel.prior(theta))

    def _problem(self) -> GridProblem:
        kernel = GridKernel(self._compiled(), self.grid_, budget_of(self.memory_budget))
        rows = self._kept.rows(self.grid_)
        return GridProblem.make(kernel.kernel, kernel, rows, self._kept.moments.n)

    def _build_posterior(self) -> GridPosterior:
        problem = self._problem()
        theta = problem.kernel.theta0
        evaluation = grid_marginal_likelihood(problem, theta, eval_gradient=False)
        return GridPosterior(problem.grid_kernel, theta, evaluation, self.n_lanczos)

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        m, outside = len(X), int((~self.grid_.covers(X)).sum())
        rank = self.solver_info_["rank"]
        need = 24.0 * m * m + 48.0 * outside**2 + 24.0 * m * rank
        remedy = "ask for fewer rows at a time, or for return_std"
        if what == "sample_y":
            if outside == 0:
                return  # samples come from the grid, not from a joint covariance
            # The singular values of the covariance, too.
            need += 48.0 * m * m
            remedy = "ask for fewer rows at a time, or for rows inside the grid only"
        check_memory(
            need,
            f"{what} for {m} rows, {outside} of them outside the grid (an {m} x {m} covariance)",
            remedy,
            budget_of(self.memory_budget),
        )

    def _likelihood_at(
        self, theta: torch.Tensor, eval_gradient: bool
    ) -> tuple[float, torch.Tensor | None]:
        """Of the interpolated model."""
        if self._kept.known is None:
            raise ValueError(
                "The rows have noise variances of their own, and the model keeps only their sums "
                "at the trained hyperparameters: read log_marginal_likelihood_value_, or fit again."
            )
        result = grid_marginal_likelihood(self._problem(), theta, eval_gradient)
        return result.value, result.grad
