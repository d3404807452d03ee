"""Gaussian-process regression by iterative linear solves.

Two thirds of this file document and list the parameters.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from sklearn.utils import Tags

from ..._validation import validated
from ...core import GPPredictionBase, Machine, is_auto
from ...core.data import Table, n_columns
from ...core.posteriors import ExactPosterior
from ...kernels import compile_kernel, default_kernel
from ...linalg.gradients import ExactGradient, resolve_gradient
from ._base import SolvedGPRegressor
from ._plan import IterativePlan, plan
from ._solves import named_preconditioner, named_solver


class IterativeGPRegressor(SolvedGPRegressor):
    """Gaussian process regression that is exact up to 20,000 rows, and iterative above.

    It is a drop-in replacement for :class:`sklearn.gaussian_process.GaussianProcessRegressor`.
    Up to 3,000 rows the hyperparameters maximise the exact likelihood. Larger tables start with
    nested random subsets, and up to 8,000 rows steps on all rows follow. From 8,000 to 100,000 rows
    (on a CPU) the subsets, of up to 6,000 rows, determine the hyperparameters (above 20,000 rows
    together with neighbourhoods), and held-out rows the scale of the kernel. All rows predict: by
    one factorisation up to 20,000 rows, by one linear solve above, whose end neighbours correct.
    ``train_on="all"``, or any value of ``solver``, ``gradient`` or ``optimizer`` other than "auto",
    selects training on all rows, with gradients from preconditioned conjugate gradients. Before a
    fit, predictions are those of the prior. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None means ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length
        scale per column, and training starts at the scale of the data. Any kernel can be used:
        those without a compiled form are evaluated by their own NumPy code.
    alpha : float or array-like of shape (n,), default=1e-10
        Known noise variance, added to the diagonal of the kernel matrix, in squared units of y, or
        of the normalised target if normalize_y=True. The default is relative to the variance of y.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    priors : dict of str to Prior, "auto" or None, default="auto"
        Prior distributions of hyperparameters, by name; training adds their log density to its
        objective. The values are objects from `skscalablegp.priors`. The keys are names from
        ``kernel.hyperparameters``, such as ``"k1__k2__length_scale"``. Variances are those of the
        normalised target. "auto" puts a prior on the noise level of the default kernel for at least
        three columns, at most 120 rows, and at most 15 rows per column. None means no priors.
    optimizer : "auto", "natural", "bfgs", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or \
            None, default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is a
        quasi-Newton method if values and gradients are exact or a subset has given the curvature,
        and "natural" otherwise (above 100,000 rows, or with ``subset_size=None``); see
        :mod:`skscalablegp.training`. "adam" is the method of the paper. A callable has
        scikit-learn's signature. For up to 500 rows and a given kernel, "auto" and "fmin_l_bfgs_b"
        also run scikit-learn's optimiser from every start and keep the better optimum.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. The limit applies to training on all rows, or to each
        subset where these alone are trained. "auto" is 100, and 25 after a start on a subset (200
        and 50 for natural gradients, 100 and 30 for Adam).
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel. Ignored unless the likelihood is exact.
    train_on : {"auto", "subsets", "all"}, default="auto"
        Rows on which the hyperparameters are trained. "all" starts with the subsets and continues
        with all rows. "subsets" ends with the subsets, and errors of left-out rows give the scale
        of the kernel. "auto" is "subsets" from 8,000 to 100,000 rows on a CPU, unless a solver,
        gradient, optimizer or subset_size is given. Small tables have no subsets.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time.
    solver : {"auto", "cholesky", "cg", "block_cg", "ap", "sgd", "sdd", "adasap"} or object, \
            default="auto"
        Solver for the linear systems of a training step. "auto" chooses by the number of rows;
        `solver_` has the choice. "block_cg" shares search directions among the right-hand sides and
        needs the fewest epochs. "ap" and "adasap" read blocks of rows and give the best results
        with small budgets.
    preconditioner : {"auto", "pivoted_cholesky", "rpcholesky", "nystrom"}, object or None, \
            default="auto"
        Preconditioner of the iterative linear solver. "auto" is randomly pivoted Cholesky of rank
        200 for solvers given as "cg" or "block_cg"; a solver object keeps its own.
    gradient : {"auto", "exact", "standard", "pathwise"} or object, default="auto"
        Estimator of the gradient of the log marginal likelihood. "auto" is "exact" if the matrix is
        factorised. Otherwise it is "pathwise" if predictions use its samples, and "standard" with
        probes drawn from the preconditioner's covariance if they do not; without a preconditioner
        and up to 3,000 rows it is "pathwise" with exact samples. The solver, probes and tolerance
        of a gradient object apply to the whole fit.
    posterior : {"auto", "exact", "neighbors", "pathwise", "solve"}, default="auto"
        Method that computes predictive variances. "exact" is one Cholesky factorisation.
        "neighbors" computes a variance from the 256 training rows with the largest covariances; it
        is never below the exact one. These rows also predict what the last solve has left of the
        targets. With ``solver="auto"`` the solve ends when the errors of rows that were held out of
        it no longer fall, from 8,000 distinct rows on; with a solver given by name, only the time
        limit ends it early. Such a mean costs as much as a variance. "pathwise" uses `n_probes`
        posterior samples, and "solve" solves a linear system for each prediction. Means use all
        rows in any case; covariances, draws and functions have the distribution of the variances,
        so that those of s samples are combinations of these. "auto" is "exact" up to 20,000 rows
        (40,000 on a GPU), "neighbors" up to 100,000 on a CPU, and "pathwise" otherwise; with an
        iterative solver given by name, "solve" up to 3,000 rows and "pathwise" above.
    n_probes : int or "auto", default="auto"
        Number of probe vectors for the trace in the gradient. They are also the samples of a
        pathwise posterior. "auto" is 32 if only gradients use them, and 64 if variances do.
    solver_tol : float, default=0.01
        Relative residual at which a linear solve ends. Solves for variances continue to 1e-4, and
        further if the noise variance is below 1% of the signal variance.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. Up to half of the
        budget is reserved for the factorisation or the solve behind predictions. If that allows
        only some of the rows, these are in `X_train_`, and a warning says so.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 up to 3,000 rows and for
        badly conditioned kernel matrices, and float32 otherwise. Predictions are computed in
        float64 unless this is "float32"; with "auto", an exact posterior of more than 8,000 rows is
        in float32 if the noise makes the matrix well conditioned.
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
        Step size of the optimiser, for optimisers that have one. Only Adam has one. "auto" is 0.1
        up to 50,000 rows and 0.03 above.
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only Adam uses it: progress is a change of a log hyperparameter by more than 1e-3.
    subset_size : int, "auto" or None, default="auto"
        Number of rows in the exact fit from which training starts. "auto" is 2,000 for tables of
        more than 3,000 rows, several subsets of up to 6,000 rows where subsets alone are trained,
        and ten neighbourhoods of 2,000 rows above 100,000 rows on a CPU (50,000 on a GPU). For
        smaller tables it is None, which starts at the hyperparameters of the kernel.
    solver_max_epochs : float, default=1000
        Budget of one linear solve, in epochs; one epoch evaluates n^2 kernel entries.
    solver_warm_start : bool, default=True
        Whether each solve starts from the solution of the previous step, with the same probe
        vectors.
    products : {"auto", "tiles", "compiled", "keops"}, default="auto"
        How products with the kernel matrix are computed where it is not stored. "tiles" are torch's
        own operations on one tile after another. "compiled" lets ``torch.compile`` fuse them, which
        takes seconds to minutes once for each form of a kernel. "keops" needs pykeops and a C++
        compiler. "auto" is "compiled" on a CUDA device for which torch has a compiler, and "tiles"
        otherwise, and for kernels that cannot be compiled.
    training_max_epochs : float, "auto" or None, default="auto"
        Budget of all linear solves during training on all rows, in solver epochs; None sets no
        limit. "auto" is 600 if a subset has given the curvature and `max_iter` is "auto" too, and
        None otherwise; if systems are badly conditioned, steps are then fewer and longer.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel.
    X_train_, y_train_ : ndarray
        The rows from which predictions are made, and their normalised targets.
    alpha_ : ndarray of shape (n,) or (n, t)
        The dual weights H^-1 y. Where variances come from neighbours, one distinct row in 50 (at
        least 400 and at most 2,048) is held out of the last solve, from 8,000 distinct rows on.
        The weights of these rows are zero. With a solver given by name, rows are held out only with
        ``train_on="subsets"`` and a kernel whose variances are all free.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood at `kernel_`, in units of the normalised target. If the
        posterior is not exact and there are more than 3,000 rows, it is a stochastic Lanczos
        estimate. Rows that are held out of the last solve add, by the chain rule, their log
        densities given the rows of the solve and the held-out ones before them. Like predictions,
        these come from the nearest rows.
    log_marginal_likelihood_std_error_ : float
        Standard error of that value plus the possible bias of the quadrature; 0 if the value is
        exact. What held-out rows would learn from rows beyond their nearest ones is not included,
        nor is the bias if no bound is known: with a preconditioner of another class or one that was
        built before, or if single precision cannot represent the noise. Value and error are NaN if
        the time budget or an interrupt left no time for an estimate.
    n_iter_ : int
        The number of gradient evaluations in all stages.
    n_samples_seen_ : int
        The number of training rows.
    history_ : dict of lists
        stage, iteration, theta, objective (NaN if unknown), objective_name, residual,
        probe_residual, epochs and seconds of each evaluation.
    solver_ : str
        The solver that was used: "cholesky" or "block_cg" for "auto", otherwise the name of the
        given solver or of the gradient object's solver.
    fit_report_ : FitReport
        How the fit ended, what "auto" chose and why, parameters without effect, seconds by
        stage, solver epochs, residuals and jitter. `print` shows it as text.
    posterior_ : str
        "exact", "neighbors", "pathwise" or "solve".
    device_, dtype_ : str
        The device and the precision of training.
    n_features_in_ : int
        The number of columns of X; missing if rows are not vectors.
    feature_names_in_ : ndarray of shape (d,)
        The names of the columns, if X has any.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact regression up to a few thousand rows.

    Notes
    -----
    A training step costs O(n^3) for small tables, and O(k n^2) for larger ones, where k is the
    number of solver epochs (tens). Memory is O(n^2) if that is available and O(n) otherwise.

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

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        optimizer="auto",
        max_iter="auto",
        n_restarts_optimizer=0,
        train_on="auto",
        random_state=None,
        solver="auto",
        preconditioner="auto",
        gradient="auto",
        posterior="auto",
        n_probes="auto",
        solver_tol=0.01,
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
        subset_size="auto",
        solver_max_epochs=1000,
        solver_warm_start=True,
        products="auto",
        training_max_epochs="auto",
    ):
        self._set(locals())

    # ------------------------------------------------------------------ before a fit

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def _answering(self, X: Any) -> tuple[GPPredictionBase, np.ndarray]:
        return super()._answering(X) if "n_iter_" in vars(self) else self._given_no_rows(X)

    def _given_no_rows(self, X: Any) -> tuple[GPPredictionBase, np.ndarray]:
        """A copy of the estimator that is fitted to no rows, whose posterior is the prior."""
        self._validate_params()
        model = copy(self)
        X = validated(model, X, **self._accepted_rows(self.kernel))
        t, d = self.n_targets or 1, n_columns(X)
        table = Table(X[:0], np.zeros((0, t)), np.zeros(t), np.ones(t), np.zeros(0))
        kernel = model._own_kernel(X)
        compiled = compile_kernel(kernel or default_kernel(d), d, any_kernel=True)
        model._keep_table(table)
        model.kernel_, model.n_iter_ = compiled.kernel, 0
        problem = table.problem(compiled, torch.float64, model._fit_device(), keep=False)
        model._remember(ExactPosterior.of(problem, compiled.theta0)[0])
        return model, X

    # ------------------------------------------------------------------ plan

    _named = {
        "solver": named_solver,
        "preconditioner": named_preconditioner,
        "gradient": lambda name: ExactGradient() if name == "exact" else None,
    }

    def _object(self, name: str, value: Any) -> Any:
        """As in the base class; a gradient given by name gets the estimator's settings."""
        if name != "gradient" or str(value) not in ("standard", "pathwise"):
            return super()._object(name, value)
        return resolve_gradient(
            value,
            solver="block_cg" if is_auto(self.solver) else self.solver,
            preconditioner=self.preconditioner,
            n_probes=32 if is_auto(self.n_probes) else self.n_probes,
            solver_tol=self.solver_tol,
            solver_max_epochs=self.solver_max_epochs,
            solver_warm_start=self.solver_warm_start,
        )

    def _plan(self, n: int, d: int, machine: Machine, **of_kernel: Any) -> IterativePlan:
        return plan(self, n, d, machine, **of_kernel)
