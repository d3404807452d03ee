"""Gaussian-process regression trained without the bias of truncated conjugate gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sklearn.base import clone

from ...core import FitRun
from ...core.training import resolve_optimizer
from ...kernels import TorchKernel
from ...linalg.gradients import TruncatedGradient
from ...linalg.truncation import resolve_truncation
from ._base import SolvedGPRegressor, has_spectral_density
from ._plan import ENOUGH_SAMPLES, FLOAT64_ROWS, Plan, decide_sizes
from ._solves import Solves, for_variances, is_auto, named_preconditioner, preconditioned

# The preconditioner of training has one column for so many rows, and 200 at most.
_ROWS_A_RANK = 40


class RRCGRegressor(SolvedGPRegressor):
    """Gaussian-process regression trained by Russian-roulette conjugate gradients.

    Each training step cuts conjugate gradients short at random and weights what was computed, so
    that the gradient is right on average however few iterations it takes. Plain truncated solves
    favour too long length scales and may diverge. Predictions solve to tolerance.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None is that of :class:`IterativeGPRegressor`.
    priors : dict of str to Prior, "auto" or None, default="auto"
        Prior distributions of hyperparameters, by name; training adds their log density to its
        objective. From `skscalablegp.priors`, by the names in ``kernel.hyperparameters`` (those of
        the default kernel are ``"k1__k1__constant_value"``, ``"k1__k2__length_scale"`` and
        ``"k2__noise_level"``), in the units of the kernel: variances are those of the normalised
        target. "auto" gives the noise of the default kernel a prior where there are at most 120
        rows, and at most 15 a column, of three columns or more; None gives none.
    truncation : {"exponential", "geometric", "reciprocal", "fixed"} or object, \
            default="exponential"
        Distribution of the term at which a series is truncated. The terms are the iterations of
        conjugate gradients. "exponential" is 20 iterations and about 20 more, and begins later
        where the two estimates of a step differ by more than a tenth; ``ExponentialTruncation(0.05,
        min_iter=20)`` and others that say where they begin stay as they are. "fixed" gives plain
        truncated conjugate gradients, to compare with.
    preconditioner : {"auto", "pivoted_cholesky", "rpcholesky", "nystrom"}, object or None, \
            default="auto"
        Preconditioner of the iterative linear solver. It serves training and the solves for
        predictions. "auto" is randomly pivoted Cholesky: of rank 200 for predictions, while
        training takes a fortieth of the rows where that is less. A larger rank would solve small
        tables within the terms that every truncation computes, and nothing would be left to cut.
    n_probes : int or "auto", default=10
        Number of probe vectors for the trace in the gradient. A pathwise posterior draws as many
        samples of its own, and at least 64. "auto" is 10.
    probes : {"rademacher", "normal", "preconditioned"}, default="preconditioned"
        Distribution of the probe vectors. Normals of the covariance of the preconditioner have the
        smallest variance; the paper's are "rademacher" or "normal".
    n_draws : int, default=8
        Number of truncation points over which each of the two solutions of a step is averaged. The
        paper's is 1, which is noisier; more of them cost iterations only where they are later.
    reorthogonalize : bool or "auto", default="auto"
        Whether to reorthogonalise the residuals of conjugate gradients. Without it, rounding spoils
        the series once the noise is small, and with it the unbiasedness. "auto" does so up to 3,000
        rows, where it costs little: O(n (n_probes + t)) memory for each iteration.
    alpha : float or array-like of shape (n,), default=1e-10
        Known noise variance, added to the diagonal of the kernel matrix, in squared units of y, or
        of the normalised target if normalize_y=True. The default is relative to the target's
        variance in any case.
    optimizer : {"natural", "adam"}, object or None, default="natural"
        Method that trains the hyperparameters; None keeps them at their initial values. "natural"
        measures its own progress and ends when the mean gradient is within its noise, see
        :class:`~skscalablegp.training.NaturalGradient`; "adam" is the paper's. Unbiased, but noisy
        gradients rule out those that need exact ones.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. Only Adam has one; "auto" is 0.1
        up to 50,000 rows and 0.03 above.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. On all rows; "auto" is 200, and 50 after an initialisation
        on subsets (Adam: 100 and 30).
    n_iter_no_change : int or None, default=5
        Number of steps or scores without progress after which training ends; None switches this
        rule off. Only Adam uses this rule; a step without progress moves no log hyperparameter by
        more than 1e-3.
    training_max_epochs : float, "auto" or None, default="auto"
        Budget of all linear solves during training on all rows, in solver epochs; None sets no
        limit. "auto" is None.
    subset_size : int, "auto" or None, default="auto"
        Number of rows in the exact fit from which training starts. "auto" is 2,000 for tables of
        more than 3,000 rows, as in :class:`IterativeGPRegressor`, and None starts at the kernel's
        own hyperparameters.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    copy_X_train : bool, default=True
        Whether to store a copy of X; otherwise a reference to X is stored.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time.
    posterior : {"auto", "exact", "pathwise", "solve"}, default="auto"
        Method that computes predictive variances. "auto" is one Cholesky factorisation up to 20,000
        rows.
    solver_tol : float, default=1e-4
        Relative residual at which a linear solve ends. It applies to the solves for predictions;
        training does not use it.
    solver_max_epochs : float, default=1000
        Budget of one linear solve, in epochs; one epoch evaluates n^2 kernel entries. It applies to
        the solves for predictions.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 up to 3,000 rows, and where
        float32 would not hold a factor of the kernel matrix.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
        With Adam this is the mean of the last iterates. Up to a half is for the factorisation or
        the solve behind predictions; where it allows a part of the rows only, `X_train_` are these,
        and a warning says so.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel; of Adam the mean of the last five iterates.
    X_train_, y_train_ : ndarray
        What predictions are made from; the target normalised.
    alpha_ : ndarray of shape (n,) or (n, t)
        Dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        At `kernel_`, in normalised units; above 3,000 rows an estimate where the posterior is
        not exact.
    log_marginal_likelihood_std_error_ : float
        Its standard error, plus the bias that the quadrature may have; 0 where it is exact. Both
        are NaN where the time budget or an interrupt left no time for an estimate.
    n_iter_ : int
        Gradient evaluations, all stages together.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective (where it is known), objective_name, residual, epochs and
        seconds of each evaluation.
    solver_ : str
        "cg".
    fit_report_ : FitReport
        Status, what "auto" chose and why, parameters without effect, epochs, seconds by stage,
        residuals and jitter; `print` shows it as text.
        ``cut_steps`` counts the training steps that left a series before its residual fell below
        1e-3. ``orthogonality_loss`` says how far rounding has spoiled the series at worst; see
        `skscalablegp.truncation.WeightedSolve`.
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
    IterativeGPRegressor : Solves to tolerance while training, too.
    skscalablegp.truncation : Distributions of the number of iterations.

    Notes
    -----
    A step costs max(J) products with n_probes + t columns at most, J the truncation points, and
    O(n^2) memory or, tiled, O(n (n_probes + t)).

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

    def __init__(
        self,
        kernel: Any = None,
        *,
        priors: Any = "auto",
        truncation: Any = "exponential",
        preconditioner: Any = "auto",
        n_probes: Any = 10,
        probes: Any = "preconditioned",
        n_draws: Any = 8,
        reorthogonalize: Any = "auto",
        alpha: Any = 1e-10,
        optimizer: Any = "natural",
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
        n_iter_no_change: Any = 5,
        training_max_epochs: Any = "auto",
        subset_size: Any = "auto",
        normalize_y: Any = "auto",
        copy_X_train: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        posterior: Any = "auto",
        solver_tol: Any = 1e-4,
        solver_max_epochs: Any = 1000,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ plan

    _named = {"truncation": resolve_truncation, "preconditioner": named_preconditioner}

    def _plan(self, kernel: TorchKernel, n: int, run: FitRun) -> Plan:
        self._check_optimizer()
        sizes = decide_sizes(
            n,
            run,
            solver="auto",
            posterior=self.posterior,
            subset_size=self.subset_size if self.optimizer is not None else None,
            exact=False,
            has_spectral_density=has_spectral_density(kernel, self.posterior),
            dtype=self.dtype,
        )
        solver = preconditioned("cg", self.preconditioner)
        in_training, why = solver.preconditioner, "that of conjugate gradients by name"
        if is_auto(self.preconditioner):
            in_training = preconditioner_of_training(in_training, n)
            if in_training.rank < solver.preconditioner.rank:
                why = "of training; a larger rank would leave nothing to cut"
            run.chose("preconditioner", in_training, why)
        n_probes = 10 if self.n_probes == "auto" else self.n_probes
        run.chose("n_probes", n_probes, "their noise is small beside the truncation's")
        orthogonal = n <= FLOAT64_ROWS if is_auto(self.reorthogonalize) else self.reorthogonalize
        run.chose("reorthogonalize", orthogonal, f"{n:,} rows: what it costs beside a product")
        gradient = TruncatedGradient(
            self.truncation,
            preconditioner=in_training,
            n_probes=n_probes,
            probes=self.probes,
            n_draws=self.n_draws,
            reorthogonalize=orthogonal,
        )
        gradient.bound(n)
        if sizes.posterior == "exact":
            run.ignores(
                ("solver_tol", "solver_max_epochs"),
                "predictions factorise the matrix, training has no tolerance",
            )
        return Plan(
            # Training never factorises, whatever the conditioning.
            replace(sizes, factor_if_ill_conditioned=False),
            gradient,
            Solves(
                solver,
                for_variances("auto", self.preconditioner),
                self.solver_tol,
                self.solver_max_epochs,
            ),
            # Training leaves no solved probes to go on with: deviations are what decides.
            max(n_probes, ENOUGH_SAMPLES),
        )

    def _check_optimizer(self) -> None:
        named = isinstance(self.optimizer, str)
        if self.optimizer is None or (named and self.optimizer in ("natural", "adam")):
            return
        if named or resolve_optimizer(self.optimizer, informed=True).exact_only:
            raise ValueError(
                f"optimizer={self.optimizer!r} needs exact values and gradients; those here are "
                "unbiased, but noisy: use optimizer='natural', optimizer='adam', an object of "
                "theirs, or None."
            )


def preconditioner_of_training(chosen: Any, n: int) -> Any:
    """What "auto" trains n rows with: the preconditioner of the solves, but no larger rank.

    Parameters
    ----------
    chosen : PivotedCholesky
        Of the solves for predictions.
    n : int
    """
    return clone(chosen).set_params(rank=max(1, min(chosen.rank, n // _ROWS_A_RANK)))
