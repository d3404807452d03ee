"""Gaussian-process regression trained without the bias of truncated conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone

from ...core import (
    Choice,
    Machine,
    StageSettings,
    exact_summary,
    ignore,
    is_auto,
    resolve,
    small_table_rows,
)
from ...core.training import check_noisy_optimizer
from ...linalg.gradients import TruncatedGradient
from ...linalg.solvers import Cholesky, Solver
from ...linalg.truncation import resolve_truncation
from ._base import SolvedGPRegressor
from ._plan import (
    ENOUGH_SAMPLES,
    FACTORISED,
    FLOAT64_ROWS,
    IterativePlan,
    plan_both,
    with_training,
)
from ._solves import Solves, for_variances, named_preconditioner, preconditioned, solver_name

# In training the preconditioner's rank is n divided by this number, and 200 at most.
_ROWS_A_RANK = 40


class RRCGRegressor(SolvedGPRegressor):
    """Gaussian processes by Russian-roulette CG; exact up to 2,000 rows (``small_table``).

    Each training step truncates conjugate gradients at a random iteration and weights the terms
    that were computed, so that the gradient is unbiased for any number of iterations. Plain
    truncation is biased towards long length scales, and training with it may diverge. Solves for
    predictions run until they reach their tolerance. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None means the default kernel of :class:`IterativeGPRegressor`.
    truncation : {"auto", "exponential", "geometric", "reciprocal", "fixed"} or object, \
            default="auto"
        Distribution of the term at which a series is truncated. The terms are iterations of
        conjugate gradients. "auto" is "exponential". For up to 2,000 rows, if `optimizer` is
        "auto", too, nothing is truncated, because exact gradients cost less and have no noise.
        "exponential" always computes 20 iterations and on average about 20 more; it starts to
        truncate later if the two estimates of a step differ by more than a tenth. Objects that say
        where truncation starts, such as ``ExponentialTruncation(0.05, min_iter=20)``, are not
        changed. "fixed" is plain truncated conjugate gradients, for comparison.
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
        2,000 rows, unless `truncation`, `optimizer` or another `posterior` is given. "method" never
        does.
    optimizer : {"auto", "natural", "adam"}, object or None, default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is
        "natural", or BFGS where `truncation` leaves the gradients exact. "natural" measures its own
        progress and ends when the mean gradient is within its noise, see
        :class:`~skscalablegp.training.NaturalGradient`. "adam" is the method of the paper.
        Optimisers that need exact gradients are refused, since truncated ones are noisy.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. The limit applies to training on all rows. "auto" is 200,
        and 50 after a start on subsets (100 and 30 for Adam).
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time.
    preconditioner : {"auto", "pivoted_cholesky", "rpcholesky", "nystrom"}, object or None, \
            default="auto"
        Preconditioner of the iterative linear solver. It is used in training and in the solves for
        predictions. "auto" is randomly pivoted Cholesky, of rank 200 for predictions and of rank n
        / 40, at most 200, in training. With a larger rank, small tables would be solved within the
        iterations that every truncation includes.
    posterior : {"auto", "exact", "neighbors", "pathwise", "solve"}, default="auto"
        Method that computes predictive variances. "auto" is "exact", one Cholesky factorisation, up
        to 20,000 rows (40,000 on a GPU), and as in :class:`IterativeGPRegressor` above.
    n_probes : int, default=10
        Number of probe vectors for the trace in the gradient. A pathwise posterior draws the same
        number of samples of its own, but at least 64.
    probes : {"rademacher", "normal", "preconditioned"}, default="preconditioned"
        Distribution of the probe vectors. "preconditioned" draws from a normal distribution with
        the preconditioner's covariance and the diagonal of the kernel matrix, which gives the
        smallest variance. The paper uses "rademacher" or "normal".
    solver_tol : float, default=1e-4
        Relative residual at which a linear solve ends. It applies to the solves for predictions;
        training does not use it.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. With Adam, this state
        is the mean of the last iterates. Up to half of the budget is reserved for the factorisation
        or the solve behind predictions. If that allows only some of the rows, these are in
        `X_train_`, and a warning says so.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 up to 3,000 rows and for
        badly conditioned kernel matrices, and float32 otherwise.
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
        more than 3,000 rows, as in :class:`IterativeGPRegressor`. None starts at the
        hyperparameters of the kernel.
    solver_max_epochs : float, default=1000
        Budget of one linear solve, in epochs; one epoch evaluates n^2 kernel entries. It applies to
        the solves for predictions.
    training_max_epochs : float, "auto" or None, default="auto"
        Budget of all linear solves during training on all rows, in solver epochs; None sets no
        limit. "auto" is None.
    n_draws : int, default=8
        Number of truncation points over which each of the two solutions of a step is averaged. The
        paper uses 1, which is noisier. Further draws cost iterations only if they are later than
        the others.
    reorthogonalize : bool or "auto", default="auto"
        Whether to reorthogonalise the residuals of conjugate gradients. If the noise is small,
        rounding errors spoil the series without it, and gradients are no longer unbiased. "auto"
        does so up to 3,000 rows, where it is cheap. It takes O(n (n_probes + t)) memory for each
        iteration.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel; with Adam, at the mean of the last five iterates.
    X_train_, y_train_ : ndarray
        The rows from which predictions are made, and their normalised targets.
    alpha_ : ndarray of shape (n,) or (n, t)
        The dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood at `kernel_`, in units of the normalised target. If the
        posterior is not exact and there are more than 3,000 rows, it is a stochastic Lanczos
        estimate.
    log_marginal_likelihood_std_error_ : float
        Standard error of that value plus the possible bias of the quadrature; 0 if the value is
        exact. The bias is not included if no bound is known: with a preconditioner of another class
        or one that was built before, or if single precision cannot represent the noise. Value and
        error are NaN if the time budget or an interrupt left no time for an estimate.
    n_iter_ : int
        The number of gradient evaluations in all stages.
    n_samples_seen_ : int
        The number of training rows.
    history_ : dict of lists
        stage, iteration, theta, objective (NaN if unknown), objective_name, residual,
        probe_residual, epochs and seconds of each evaluation.
    solver_ : str
        "cg", or "cholesky" if nothing was truncated.
    fit_report_ : FitReport
        How the fit ended, what "auto" chose and why, parameters without effect, seconds by
        stage, solver epochs, residuals and jitter. `print` shows it as text. ``cut_steps`` is the
        number of training steps that truncated a series before its residual fell below 1e-3.
        ``orthogonality_loss`` is the largest loss of orthogonality by rounding, see
        `skscalablegp.truncation.WeightedSolve`.
    posterior_ : str
        "exact", "neighbors", "pathwise" or "solve".
    device_, dtype_ : str
        The device and the precision of training.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        The names of the columns, if X has any.

    See Also
    --------
    IterativeGPRegressor : Solves to a tolerance in training, too.
    skscalablegp.truncation : Distributions of the number of iterations.

    Notes
    -----
    A step costs at most max(J) products of the kernel matrix with n_probes + t columns, where J are
    the truncation points. It takes O(n^2) memory, or O(n (n_probes + t)) if the matrix is tiled.

    References
    ----------
    A. Potapczynski, L. Wu, D. Biderman, G. Pleiss, J. P. Cunningham (2021), Bias-free scalable
    Gaussian processes via randomized truncations.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import RRCGRegressor
    >>> from skscalablegp.truncation import ExponentialTruncation
    >>> X, y = make_friedman2(n_samples=200, noise=1.0, random_state=0)
    >>> gp = RRCGRegressor(truncation=ExponentialTruncation(0.1), normalize_y=True, random_state=0)
    >>> bool(gp.fit(X, y).score(X, y) > 0.99)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        truncation="auto",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="auto",
        max_iter="auto",
        random_state=None,
        preconditioner="auto",
        posterior="auto",
        n_probes=10,
        probes="preconditioned",
        solver_tol=1e-4,
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
        training_max_epochs="auto",
        n_draws=8,
        reorthogonalize="auto",
    ):
        self._set(locals())

    # ------------------------------------------------------------------ plan

    _named = {
        "truncation": lambda name: resolve_truncation(_law(name)),
        "preconditioner": named_preconditioner,
    }

    def _plan(self, n: int, d: int, machine: Machine, **of_kernel: Any) -> TruncatedPlan:
        return plan(self, n, d, machine, **of_kernel)


@dataclass(frozen=True, kw_only=True)
class TruncatedPlan(IterativePlan):
    """The plan of a fit whose series may be truncated; see `IterativePlan` for the other fields.

    Attributes
    ----------
    truncation, reorthogonalize : Choice
        Of the parameters. None stands for no truncation.
    """

    truncation: Choice
    reorthogonalize: Choice | None = None

    def describe(self, dtype: str, machine: Machine) -> str:
        """A summary in one sentence."""
        summary = super().describe(dtype, machine)
        exact = self.solver.value == "cholesky"
        return f"{exact_summary(self.n)}, {summary}" if exact else summary


def plan(
    params: Any, n: int, d: int, machine: Machine, *, n_params: int = 1, spectral: bool = True
) -> TruncatedPlan:
    """The plan of an `RRCGRegressor`; see that of ``_plan.py`` for the parameters."""
    check_noisy_optimizer(
        params.optimizer, type(params).__name__, ("natural", "adam"), informed=True
    )
    resolve_truncation(_law(params.truncation), more=("auto",))
    # Twenty iterations and the products of a gradient cost more than a small factorisation.
    automatic = is_auto(params.truncation) and is_auto(params.optimizer)
    small = automatic and params.posterior in ("auto", "exact") and n <= small_table_rows(params)
    factorises = None if small else False
    exact, subsets, choices = plan_both(params, n, d, machine, factorises, True, spectral)
    noisy = is_auto(params.optimizer) and not exact
    solver = Cholesky() if exact else preconditioned("cg", params.preconditioner)
    unused: tuple[str, ...] = ("solver_tol", "solver_max_epochs")
    if exact:
        unused += ("preconditioner", "n_probes", "probes", "n_draws", "reorthogonalize")
        choices["ignored"] = ignore(*unused, because=FACTORISED)
        choices["truncation"] = Choice(None, f"{n:,} rows: exact gradients cost less")
    else:
        choices |= _truncated(params, n, solver)
        if choices["posterior"].value == "exact":
            why = "predictions factorise the matrix, training has no tolerance"
            choices["ignored"] = ignore(*unused, because=why)
    start = TruncatedPlan(
        **choices,
        solver=Choice(solver_name(solver), "the only one"),
        stages=replace(
            StageSettings.of(
                params,
                max_epochs=params.training_max_epochs,
                subsets=subsets,
                # Training never factorises the matrix, even if it is badly conditioned.
                precision="adapted" if is_auto(params.dtype) else "given",
                as_scikit_learn=params.kernel is not None,
                natural=True,
            ),
            **({"optimizer": "natural"} if noisy else {}),
        ),
        solves=Solves(
            solver,
            for_variances("auto", params.preconditioner),
            params.solver_tol,
            params.solver_max_epochs,
        ),
    )
    return with_training(start, n_params)


def _truncated(params: Any, n: int, solver: Solver) -> dict[str, Any]:
    """The fields of a plan with a gradient whose series are truncated."""
    chosen, why = solver.preconditioner, "the default of solver='cg'"
    if is_auto(params.preconditioner):
        smaller = preconditioner_of_training(chosen, n)
        if smaller.rank < chosen.rank:
            why = "in training; a larger rank would leave nothing to truncate"
        chosen = smaller
    by_cost = n <= FLOAT64_ROWS, f"{n:,} rows: by its cost"
    orthogonal = resolve(params.reorthogonalize, *by_cost)
    gradient = TruncatedGradient(
        _law(params.truncation),
        preconditioner=chosen,
        n_probes=params.n_probes,
        probes=params.probes,
        n_draws=params.n_draws,
        reorthogonalize=orthogonal.value,
    )
    gradient.bound(n)
    return {
        "truncation": resolve(params.truncation, "exponential", f"{n:,} rows"),
        "preconditioner": Choice(chosen, why),
        "reorthogonalize": orthogonal,
        "estimator": gradient,
        # Training leaves no solved probes, so that the accuracy of variances decides.
        "n_samples": max(params.n_probes, ENOUGH_SAMPLES),
    }


def _law(truncation: Any) -> Any:
    """The distribution of "auto" if terms are truncated."""
    return "exponential" if is_auto(truncation) else truncation


def preconditioner_of_training(chosen: Any, n: int) -> Any:
    """The preconditioner that "auto" uses in training: that of the solves, with a smaller rank.

    Parameters
    ----------
    chosen : PivotedCholesky
        Of the solves for predictions.
    n : int
    """
    return clone(chosen).set_params(rank=max(1, min(chosen.rank, n // _ROWS_A_RANK)))
