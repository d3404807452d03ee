"""Gaussian-process regression trained without the bias of truncated conjugate gradients."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

import torch

from ..._compat import HasMethods, Interval, StrOptions
from ...core import shared_parameters
from ...core.training import Monitor, TrainingResult
from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem, GradientEstimator, TruncatedGradient
from ._iterative import IterativeGPRegressor
from ._plan import ENOUGH_SAMPLES, Plan


class TruncatedGPRegressor(IterativeGPRegressor):
    """What regressors share whose training gradients are noisy and whose predictions are exact.

    The settings of `IterativeGPRegressor` that have one value here are attributes of the class.
    """

    solver = "auto"
    gradient = "auto"
    n_restarts_optimizer = 0
    warm_start_solver = False

    def _plan(self, kernel: TorchKernel, n: int) -> Plan:
        named = isinstance(self.optimizer, str)
        if (named and self.optimizer != "adam") or getattr(self.optimizer, "exact_only", False):
            raise ValueError(
                f"optimizer={self.optimizer!r} needs exact values and gradients; those here are "
                "unbiased, but noisy: use optimizer='adam', an Adam object, or None."
            )
        plan = super()._plan(kernel, n)
        # Only the posterior's part is taken from it: nothing is factorised while training.
        return replace(plan, solver="cg", exact=False, factor_if_ill_conditioned=False)

    def _finish(
        self,
        problem: GPProblem,
        plan: Plan,
        result: TrainingResult | None,
        monitor: Monitor,
        generator: torch.Generator,
    ) -> None:
        super()._finish(problem, plan, result, monitor, generator)
        self.solver_info_ |= {} if result is None else result.state.extra


_SHARED = (
    "kernel",
    "alpha",
    "optimizer",
    "normalize_y",
    "copy_X_train",
    "n_targets",
    "random_state",
    "preconditioner",
    "tol",
    "max_epochs",
    "learning_rate",
    "max_iter",
    "n_iter_no_change",
    "subset_size",
    "posterior",
    "memory_budget",
    "device",
    "dtype",
    "callbacks",
    "max_seconds",
    "verbose",
)


class RRCGRegressor(TruncatedGPRegressor):
    """Gaussian-process regression trained by Russian-roulette conjugate gradients.

    Each training step cuts conjugate gradients short at random and weights what was computed, so
    that the gradient is right on average however few iterations it takes. Plain truncated solves
    favour too long length scales and may diverge. Predictions solve to tolerance.

    Parameters
    ----------
    kernel : kernel instance, default=None
        A scikit-learn kernel; None is that of :class:`IterativeGPRegressor`.
    truncation : TruncationDistribution or None, default=None
        Of the number of iterations, for example ``ExponentialTruncation(0.1, expected_iter=40)``;
        None is ``ExponentialTruncation()``: 20 iterations, and about 20 more. ``FixedTruncation``
        gives plain truncated conjugate gradients, to compare with.
    preconditioner : {"auto", "pivoted_cholesky", "rpcholesky", "nystrom"}, object or None, \
            default="auto"
        Of training and of solves for predictions. "auto" is randomly pivoted Cholesky of rank 200,
        which nearly solves small problems in one iteration.
    n_probes : int, default=10
        Probe vectors of the trace estimate. A pathwise posterior draws as many samples of its own,
        and at least 64.
    probes : {"rademacher", "normal"}, default="rademacher"
        What probe vectors are drawn from.
    reorthogonalize : bool, default=False
        Keep the residuals of conjugate gradients orthogonal against rounding.
    alpha : float or array-like of shape (n,), default=1e-10
        Added to the diagonal, in the units of the (normalised) target squared.
    optimizer : "adam", object or None, default="adam"
        None keeps the kernel's hyperparameters.
    learning_rate : float or "auto", default="auto"
        Of Adam. "auto" is 0.1 up to 50,000 rows and 0.03 above.
    max_iter : int or "auto", default="auto"
        Steps on all rows; "auto" is 100, and 30 after an initialisation on subsets.
    n_iter_no_change : int or None, default=5
        Stop when no log hyperparameter moved by more than 1e-3 in so many steps.
    subset_size : int, "auto" or None, default="auto"
        Rows of an exact fit that initialises the hyperparameters; "auto" is 2,000 for tables of
        more than 3,000 rows, as in :class:`IterativeGPRegressor`, and None starts at the kernel's.
    normalize_y : bool, default=False
        Centre and scale the target before training.
    copy_X_train : bool, default=True
        Keep a copy of X.
    n_targets : int, default=None
        Number of target columns, checked against y.
    random_state : int, RandomState instance or None, default=None
        Seed of probes and truncation points. None draws a new one at each fit.
    posterior : {"auto", "exact", "pathwise", "solve"}, default="auto"
        What answers predictions; "auto" is one Cholesky factorisation up to 20,000 rows.
    tol : float, default=1e-4
        Relative residual of the solves behind predictions; training has none.
    max_epochs : float, default=1000
        Budget of one such solve in epochs (n^2 kernel entries).
    memory_budget : float or "auto", default="auto"
        Bytes that matrices may take; "auto" looks at the machine.
    device : str, default="auto"
        "auto" takes CUDA where there is one.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Of the training products: "auto" is float64 up to 3,000 rows, and where float32 would not
        hold a factor of the kernel matrix.
    callbacks : callable, list of callable or None, default=None
        Called after each evaluation with a `TrainingStep`; a true value stops the training.
    max_seconds : float or None, default=None
        Time budget of the hyperparameters' training; the mean of the last iterates is kept.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel; the mean of the last five iterates.
    X_train_, y_train_ : ndarray
        What predictions are made from; the target normalised.
    alpha_ : ndarray of shape (n,) or (n, t)
        Dual weights H^-1 y.
    log_marginal_likelihood_value_ : float
        At `kernel_`, in normalised units; above 3,000 rows an estimate where the posterior is
        not exact.
    log_marginal_likelihood_std_error_ : float
        Its standard error; 0 where it is exact.
    n_iter_ : int
        Gradient evaluations.
    history_ : dict of lists
        stage, theta, objective, residual, epochs and seconds of each evaluation.
    solver_ : str
        "cg".
    solver_info_ : dict
        As of :class:`IterativeGPRegressor`, and ``orthogonality_loss``: how far rounding has
        spoiled the series at worst; see `skscalablegp.truncation.WeightedSolve`.
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

    _parameter_constraints = shared_parameters(*_SHARED) | {
        "truncation": [HasMethods(["on"]), None],
        "n_probes": [Interval(Integral, 1, None, closed="left")],
        "optimizer": [str, HasMethods(["maximize"]), None],
        "probes": [StrOptions({"rademacher", "normal"})],
        "reorthogonalize": ["boolean"],
    }

    def __init__(
        self,
        kernel: Any = None,
        *,
        truncation: Any = None,
        preconditioner: Any = "auto",
        n_probes: Any = 10,
        probes: Any = "rademacher",
        reorthogonalize: Any = False,
        alpha: Any = 1e-10,
        optimizer: Any = "adam",
        learning_rate: Any = "auto",
        max_iter: Any = "auto",
        n_iter_no_change: Any = 5,
        subset_size: Any = "auto",
        normalize_y: Any = False,
        copy_X_train: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        posterior: Any = "auto",
        tol: Any = 1e-4,
        max_epochs: Any = 1000,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self.kernel = kernel
        self.truncation = truncation
        self.preconditioner = preconditioner
        self.n_probes = n_probes
        self.probes = probes
        self.reorthogonalize = reorthogonalize
        self.alpha = alpha
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.subset_size = subset_size
        self.normalize_y = normalize_y
        self.copy_X_train = copy_X_train
        self.n_targets = n_targets
        self.random_state = random_state
        self.posterior = posterior
        self.tol = tol
        self.max_epochs = max_epochs
        self.memory_budget = memory_budget
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.max_seconds = max_seconds
        self.verbose = verbose

    def _gradient_estimator(self, kernel: TorchKernel, plan: Plan, n: int) -> GradientEstimator:
        estimator = TruncatedGradient(
            self.truncation or "exponential",
            preconditioner=self._preconditioner(plan.solver),
            n_probes=self.n_probes,
            probes=self.probes,
            reorthogonalize=self.reorthogonalize,
        )
        estimator.bound(n)
        return estimator

    def _n_samples(self, plan: Plan) -> int:
        """Training leaves no solved probes to go on with: deviations are what decides."""
        return max(self.n_probes, ENOUGH_SAMPLES)
