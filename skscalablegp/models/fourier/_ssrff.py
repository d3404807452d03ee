"""Gaussian-process regression with random Fourier features whose bias is removed."""

from __future__ import annotations

from typing import Any

import torch

from ...core import ExactProcess, FactorBudget, FitRun, GPRegressorBase, train_planned
from ...core.data import Table
from ...kernels import TorchKernel
from ...linalg.gradients import ExactEvaluation
from ...linalg.truncation import resolve_truncation
from ._plan import SeriesPlan, plan_series
from ._training import check_features


class SSRFFRegressor(GPRegressorBase):
    """Gaussian processes by unbiased random features; exact up to 2,000 rows (``small_table``).

    A series leads from the gradient with `min_components` random features to that of the exact
    kernel matrix. Each training step computes the first term and one random increment of the
    series, weighted by the inverse of its probability. The gradient is therefore unbiased, but so
    noisy that training takes about 100 times as many steps (Potapczynski et al. 2021).
    :class:`RRCGRegressor` is more practical. Predictions are those of the exact process. See
    :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. It must have a spectral density. None means the default kernel of
        :class:`IterativeGPRegressor`.
    truncation : {"reciprocal", "exponential", "geometric"} or object, default="reciprocal"
        Distribution of the term at which a series is truncated. Terms are counted in units of
        `component_step` functions.
    min_components : int or "auto", default="auto"
        Number of random Fourier functions (sines and cosines) that every step uses. It is rounded
        up to a multiple of `component_step`. The functions are divided equally among the products
        of the kernel that have a stationary factor. Tables of no more rows have no series: each
        step is exact. "auto" is 500; for up to 2,000 rows, with `optimizer` at its default, it
        means the exact process, trained by BFGS in far fewer steps.
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
        2,000 rows, unless `min_components` or `optimizer` is given. "method" never does.
    optimizer : {"auto", "adam", "bfgs"}, object or None, default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is
        "adam", or "bfgs" for the exact process of a small table. Optimisers that need exact values,
        as "bfgs" does, are refused if the series is used.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 100, which is few for gradients with so much
        noise.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        frequencies and the terms of the series.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. This state is the
        mean of the last five iterates. Up to half of the budget is reserved for the factorisation
        behind predictions. If that allows only some of the rows, these are in `X_train_`, and a
        warning says so.
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
        Step size of the optimiser, for optimisers that have one. "auto" is 0.1 up to 50,000 rows
        and 0.03 above.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. A step without progress moves no log hyperparameter by more than 1e-3.
    component_step : int, default=100
        Number of random Fourier functions that each term of the series adds. The last term of the
        series is the exact matrix.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel, at the mean of the last five iterates.
    X_train_, y_train_ : ndarray
        The rows from which predictions are made, and their normalised targets.
    alpha_ : ndarray of shape (n,) or (n, t)
        The dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        The exact log marginal likelihood at `kernel_`, in units of the normalised target.
    n_iter_ : int
        The number of training steps.
    n_samples_seen_ : int
        The number of training rows.
    history_ : dict of lists
        stage, iteration, theta, objective (NaN, since it is unknown), objective_name, residual,
        probe_residual, epochs and seconds of each step.
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
    RFFRegressor : The same features, biased, with training and predictions in linear time.

    Notes
    -----
    The last term of the series is exact, so that a step may cost O(n^3) time and O(n^2) memory.

    References
    ----------
    A. Potapczynski, L. Wu, D. Biderman, G. Pleiss, J. P. Cunningham (2021), Bias-free scalable
    Gaussian processes via randomized truncations.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import SSRFFRegressor
    >>> X, y = make_friedman2(n_samples=200, noise=1.0, random_state=0)
    >>> gp = SSRFFRegressor(min_components=100, component_step=50, normalize_y=True,
    ...                     random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.9)
    True
    """

    _named = {"truncation": resolve_truncation}

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        truncation="reciprocal",
        min_components="auto",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="auto",
        max_iter="auto",
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
        component_step=100,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    _centres = True
    _sums_rows = True

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> SeriesPlan:
        n, d = table.X.shape
        plan = plan_series(self, n, d, run.machine, n_params=kernel.n_params)
        m = min(plan.min_components.value or 2, n)
        check_features(run, "min_components", kernel, m, n)
        return plan

    def _fit_method(self, table: Table, kernel: TorchKernel, plan: SeriesPlan, run: FitRun) -> None:
        problem = table.problem(kernel, torch.float64, run.device, keep=True)
        if not table.here:
            # Predictions need all rows in one process.
            table = table.whole()
            self._keep_table(table)
        run.preview = lambda model, step: model._finish(kernel, step.theta)
        factor = FactorBudget(problem, run)
        result = train_planned(problem, plan.gradient, plan.training, run)
        problem.workspace.release()
        jitter = factor.finish(
            "factor", table, self._keep_table, lambda: self._finish(kernel, result.theta)
        )
        run.ended(result.stop_reason, n_iter=result.n_iter, planned=result.planned)
        run.reports(
            jitter=jitter,
            summary=f"gradients from random features, exact predictions on {run.device}",
        )

    def _finish(self, kernel: TorchKernel, theta: Any) -> float:
        """Set the attributes of the model with these hyperparameters; returns the jitter."""
        trained = kernel.to_sklearn(torch.as_tensor(theta))
        return self._keep_exactly(ExactProcess(self._table(), trained)).jitter

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        evaluation = super()._keep_exactly(process)
        self.alpha_ = evaluation.weights.cpu().numpy().reshape(self.y_train_.shape)
        return evaluation
