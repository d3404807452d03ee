"""Relevance vector machines from a large dictionary of kernel functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process.kernels import WhiteKernel

from ..._compat import fit_context
from ...core import (
    LARGEST_FEATURE_SIGNAL,
    SMALL_TABLE,
    FitRun,
    MinibatchGPRegressorBase,
    rows_to_check,
    warn_if_rough,
)
from ...core.data import RowSource
from ...core.likelihoods import Gaussian
from ...core.posteriors import FeatureWeights
from ...core.training import train_steps
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem
from ...linalg.solvers import cholesky_with_jitter
from ._base import scaling_of
from ._basis import KernelFunctions
from ._exact import exact_process
from ._fit import Fit
from ._plan import Settings, make_plan
from ._posterior import fitted_scale
from ._process import ProcessMap, ProcessPosterior
from ._qsgp import QSGPRegressor
from ._relevance import AllRows, Dictionary, RelevanceStepper, own_values
from ._site import Site
from ._start import Start, first_rows, trained_start
from ._steps import make_stepper

# Up to this number of functions precisions are trained by full batches. Larger dictionaries are
# first reduced by steps, to the second number if there is no time for steps, or to the third one
# after an interrupt.
_EXACT, _EXACT_IN_HASTE, _EXACT_INTERRUPTED = 2048, 1024, 512
# Largest number of rounds of steps, and the steps of each.
_ROUNDS, _ROUND_STEPS = 12, 40
# Smallest gain of an update in a fold, in log evidence per row and target.
_FOLD_TOL = 1e-4
# From the first number of rows on variances are scaled, and from the second on there may be a
# warning. It appears if the loss against the exact process is above this many nats per row, and
# above this many standard errors.
_FEWEST_CHECKED, _FEWEST_JUDGED, _BEHIND, _DOUBT = 10, 100, 0.15, 3.0
# The loss from which on a small table keeps all functions. Up to so many rows, where functions cost
# little, it keeps them unless the loss is below the next number by that many standard errors.
_WHOLE, _FEW_ROWS, _WHOLE_OF_FEW, _WHOLE_DOUBT = 0.1, 150, 0.05, 2.0
# Number of rows of the exact process.
_START_ROWS = 1000
# Number of functions in the models that callbacks receive during rounds.
_GLIMPSE = 512


class QSRVMRegressor(MinibatchGPRegressorBase):
    """Relevance vector machine: a sparse sum of kernel functions at some of the rows.

    Every basis function has its own prior precision s_i. Maximising the evidence drives most of
    these to infinity. The functions with s_i below `max_precision` remain, and the cost of
    predictions is proportional to their number. Dictionaries of up to 2,048 functions are trained
    by full batches. Larger ones are first reduced by up to twelve rounds of quadruply stochastic
    steps, after each of which s_i = 1 / (mu_i^2 + c_ii^2). If more than 2,048 functions are left,
    those with the smallest s_i remain.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its units are those of the standardised columns. None is Constant *
        Matern(nu=1.5) + White, or Constant * RBF + White if its evidence on the rows of the start
        is higher. There is one length scale per column for up to 30 columns, and for more if there
        are at most 2,000 rows, and at least ten for each column. For up to 200 columns the start
        compares this with a single length scale.
    n_components : int or "auto", default="auto"
        Number of basis functions; each random frequency contributes two, a sine and a cosine. Here
        they are kernel functions at this many random rows, the dictionary. "auto" takes all rows,
        but at most 10,000. For up to 2,000 rows "auto" drops no function if the exact Gaussian
        process with the same kernel predicts held-out rows better, by 0.1 nats a row; for up to
        150 rows, unless they show clearly that it is no more than 0.05 nats better. With a number,
        functions are always dropped.
    max_precision : float, default=10000.0
        Prior precision above which a basis function is removed from the model. Its unit is that of
        the target's mean square.
    batch_size : int, default=500
        Number of rows in a training step. Dictionaries of up to 2,048 functions take no such steps
        and ignore this parameter, the next two and `dtype`.
    component_batch_size : int or "auto", default="auto"
        Number of basis functions in one random draw. "auto" is a tenth of the dictionary, at least
        1,024.
    control_variate_rank : int or "auto", default="auto"
        Number of support rows, at which the latent function is computed exactly. "auto" is 500 for
        up to 20,000 rows and 1,000 for more.
    optimizer : {"bfgs"} or None, default="bfgs"
        Method that trains the hyperparameters; None keeps them at their initial values. "bfgs"
        takes length scales and noise from an exact Gaussian process on `subset_size` rows.
    subset_size : int or None, default=1000
        Number of rows in the exact fit from which training starts. None skips this fit.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel. They apply to the exact start only.
    max_iter : int, default=500
        Maximum number of training steps. It counts full-batch updates of all precisions.
    tol : float, default=1e-06
        Smallest improvement of a score that counts as progress. Its unit is nats of log evidence
        per row and target.
    n_iter_no_change : int or None, default=3
        Number of steps or scores without progress after which training ends; None switches this
        rule off. It counts full-batch updates.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    standardize : bool, default=True
        Whether to subtract the mean of each column of X and divide by its standard deviation.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y. They share their relevance vectors.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        dictionary, the draws and the subset.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. A fit that
        would take more is refused before it starts.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions are made
        there too.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It applies to the rounds of steps, where
        "auto" is float32; everything else is in float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    kernel_ : kernel instance
        The kernel of the functions, with the trained noise.
    relevance_ : ndarray of shape (r,)
        Numbers of the rows whose functions remain, ascending.
    relevance_vectors_ : ndarray of shape (r, d)
        These rows, in the units of X.
    precision_ : ndarray of shape (r,)
        The prior precisions s_i, for functions scaled to 1 at their own row, in units of the
        target's mean square.
    coef_ : ndarray of shape (r, t)
        Means of the weights of these functions.
    coef_covariance_cholesky_ : ndarray of shape (r, r)
        Lower Cholesky factor of the weights' covariance.
    noise_variance_ : float
        The noise variance in normalised units.
    lower_bound_ : float
        Log evidence of the functions that remain, in nats, summed over rows and targets.
    n_iter_ : int
        Steps of the exact start and of the rounds, and updates of all precisions.
    history_ : dict of lists
        stage, iteration, theta (during updates the log noise and the number of functions),
        objective (what is maximised), objective_name, residual, epochs and seconds of each step or
        score.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto", ignored parameters and seconds.
    n_samples_seen_ : int
        Number of rows.
    device_, dtype_ : str
        Device and precision of training.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    QSGPRegressor : A Gaussian process, without sparsity.

    Notes
    -----
    The moments cost O(n m^2) and an update O(m^3) for m functions, whose number falls quickly. When
    the noise has settled, functions that add less than half a nat of log evidence per target are
    dropped, and functions that would add more than 1.5 nats come back. The smallest noise that a
    fit can learn has a standard deviation of 1e-5 of the target's root mean square for up to 4,096
    rows, and of 1e-3 for more.

    A relevance vector machine has no uncertainty about the functions that it has dropped, and
    therefore hardly any far from the relevance vectors. Predictive variances are instead those of a
    Gaussian process with the same kernel and the relevance vectors as inducing points, times a
    factor that fits the errors at held-out rows. With 10 rows or more, the updates are repeated
    without a fifth of the rows to choose this factor: five times below 200 rows, twice below 500,
    otherwise once.

    The held-out rows also show whether the functions suffice. With ``n_components="auto"`` and up
    to 2,000 rows, all functions stay if an exact process is better by more than 0.1 nats per row.
    The model is then this process, and `precision_` is the diagonal of the prior precision of its
    weights. Otherwise a warning suggests QSGPRegressor if an exact process is better by more than
    0.15 nats per row and three standard errors.

    References
    ----------
    M. E. Tipping (2001), Sparse Bayesian learning and the relevance vector machine.

    T. W. Evans, P. B. Nair (2020), Quadruply stochastic Gaussian processes, appendix I.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import QSRVMRegressor
    >>> X = np.linspace(-10, 10, 200)[:, None]
    >>> y = np.sinc(X[:, 0] / np.pi)
    >>> model = QSRVMRegressor(n_components=200, random_state=0).fit(X, y)
    >>> len(model.relevance_) < 25
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel: Any = None,
        *,
        n_components: Any = "auto",
        max_precision: Any = 10000.0,
        batch_size: Any = 500,
        component_batch_size: Any = "auto",
        control_variate_rank: Any = "auto",
        optimizer: Any = "bfgs",
        subset_size: Any = 1000,
        n_restarts_optimizer: Any = 0,
        max_iter: Any = 500,
        tol: Any = 1e-06,
        n_iter_no_change: Any = 3,
        normalize_y: Any = "auto",
        standardize: Any = True,
        n_targets: Any = None,
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> QSRVMRegressor:
        """Train on a table.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : None, default=None
            Not available, because the evidence has one noise variance for all rows. Predictions
            accept the known noise of new rows.

        Returns
        -------
        self : QSRVMRegressor

        Raises
        ------
        ValueError
            For a dictionary larger than the table, and for a noise_variance.
        MemoryError
            If the dictionary's matrix does not fit.
        """
        if noise_variance is not None:
            raise ValueError(
                "QSRVMRegressor has one noise variance for all rows and takes no noise_variance: "
                "fit without it, or use QSGPRegressor or SVGPRegressor."
            )
        with FitRun(self) as run:
            X, Y = self._read_rows(X, y)
            n = len(X)
            m = self._size(n, run)
            settings = self._settings(self._own_kernel(X))
            self._report(settings, m > _EXACT, run)
            units = self.standardize, run.normalizes(Y), settings.kernel
            self._keep_scaling(scaling_of(X, Y, *units))
            run.begin(X, Y)
            source = RowSource(X, Y, self._scaling, torch.float64, run.device)
            # The dictionary is drawn first, so that it does not depend on the start's rows.
            chosen = np.sort(run.random_state.permutation(n)[:m]) if m < n else np.arange(n)
            start = first_rows(settings, Gaussian(), source, run, LARGEST_FEATURE_SIGNAL)
            run.budget.reserve("weights")
            with run.stage("start", optional=True):
                start = trained_start(
                    start,
                    settings,
                    Gaussian(),
                    run,
                    lambda model, now: model._keep_process(now, source, run),
                    smooth=True,
                )
            dictionary = Dictionary.of(compile_kernel(start.kernel, X.shape[1]), source, chosen)
            dictionary, n_rounds, n_iter = self._shrunk(start.kernel, dictionary, settings, run)
            # The cost of the weights is cubic in their number, so that a short time allows fewer.
            hasty = _EXACT_IN_HASTE
            if run.budget.ended == "interrupted":
                hasty = _EXACT_INTERRUPTED
            few = dictionary.most_relevant(min(_EXACT, hasty) if run.stopped else _EXACT)
            stepper = run.finish("moments", lambda: self._stepper(few, source, run))
            run.budget.reserve("weights")
            run.preview = lambda model, step: model._keep(start.kernel, stepper)
            run.monitor.begin("full", self.max_iter, objective=stepper.objective_name)
            result = train_steps(
                stepper,
                max_steps=self.max_iter,
                check_every=1,
                monitor=run.monitor,
                n_iter_no_change=self.n_iter_no_change,
                tol=self.tol,
            )
            scale, kept = 1.0, stepper
            with run.stage("calibration", optional=True):
                run.budget.check()
                scale, whole = self._checked(start.kernel, few, source, run)
                if whole:
                    kept = AllRows.of(compile_kernel(start.kernel, X.shape[1]), source)
            kernel, rows = compile_kernel(start.kernel, X.shape[1]), rows_to_check(n, run).numpy()
            warn_if_rough(GPProblem(kernel, *source.rows(rows)), kernel.theta0, n, run)
            run.finish("weights", lambda: self._keep(start.kernel, kept))
            self._variance_scale = scale
            run.ended(result.stop_reason, n_iter=start.n_iter + n_iter + result.n_steps)
            run.reports(summary=f"{m} functions, {n_rounds} rounds of steps, then full batches")
        return self

    def _settings(self, kernel: Any) -> Settings:
        """The settings of the exact start and of the rounds of steps."""
        if self.optimizer not in ("bfgs", None):
            raise ValueError(f"Unknown optimizer={self.optimizer!r}: use 'bfgs' or None.")
        steps = QSGPRegressor(
            kernel,
            n_components=2,
            basis="fourier",
            n_dense=0,
            covariance="chevron",
            batch_size=self.batch_size,
            control_variate_rank=self.control_variate_rank,
            inference="stochastic",
            decay=0.3,
            optimizer=self.optimizer,
            subset_size=self.subset_size,
            n_restarts_optimizer=self.n_restarts_optimizer,
            max_iter=_ROUND_STEPS,
            dtype="float32" if self.dtype == "auto" else self.dtype,
        )
        return Settings.of(steps)

    def _size(self, n: int, run: FitRun) -> int:
        """The number of functions in the dictionary; raises an error if the memory is too small."""
        auto = self.n_components == "auto"
        m = run.chose("n_components", min(n, 10_000) if auto else self.n_components, f"{n:,} rows")
        if m > n:
            raise ValueError(
                f"n_components={m} is more than the {n} rows of the table: use a smaller number."
            )
        run.check_memory(
            8 * 8 * min(m, _EXACT) ** 2,
            f"A dictionary of {m} functions",
            f"use fewer, for example n_components={max(1, m // 4)}",
        )
        return m

    def _report(self, settings: Settings, rounds: bool, run: FitRun) -> None:
        run.chose("dtype", settings.dtype, "of the rounds of steps")
        if not rounds:
            for name in ("batch_size", "component_batch_size", "control_variate_rank", "dtype"):
                run.ignores(name, f"dictionaries of up to {_EXACT:,} functions take no such steps")
        if self.optimizer is None:
            run.ignores("n_restarts_optimizer", "optimizer=None keeps the kernel's hyperparameters")

    def _shrunk(
        self, kernel: Any, dictionary: Dictionary, settings: Settings, run: FitRun
    ) -> tuple[Dictionary, int, int]:
        """Reduce the dictionary by rounds of steps; returns it, and the numbers of both.

        A round that is stopped counts with the steps taken so far. If it is stopped before its
        first step, the dictionary does not change.
        """
        source, n_rounds, n_iter = dictionary.source, 0, 0
        if len(dictionary) <= _EXACT:
            return dictionary, n_rounds, n_iter
        plan = make_plan(settings, Gaussian(), len(source), None)
        run.chose("control_variate_rank", plan.support, "of the rounds")
        run.chose("component_batch_size", self._drawn(len(dictionary)), "of the first round")
        fit = Fit(settings, plan, source, Gaussian(), run)
        site = Site(Gaussian(), dictionary.noise, 1 / dictionary.noise)
        while len(dictionary) > _EXACT and n_rounds < _ROUNDS and not run.stopped:
            m, stepper = len(dictionary), None
            fit.plan = replace(plan, n_components=m, components=self._drawn(m))
            rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
            with run.stage("support", optional=True):
                stepper = make_stepper(fit, dictionary.scaled(plan.dtype), site, rng)
            if stepper is None:
                break
            few = source.subset(fit.split()[0])

            def show(model: Any, score: float, now: Any = (dictionary, stepper, few)) -> None:
                left = now[0].after(now[1], self._largest(now[0])).most_relevant(_GLIMPSE)
                model._keep(kernel, model._stepper(left, now[2], run))

            n_iter += fit.drive(stepper, show).n_steps
            dictionary = dictionary.after(stepper, self._largest(dictionary))
            n_rounds += 1
        return dictionary, n_rounds, n_iter

    def _drawn(self, m: int) -> int:
        size = self.component_batch_size
        return min(max(min(m, 1024), m // 10) if size == "auto" else size, m)

    def _largest(self, dictionary: Dictionary) -> float:
        """The value of s_i above which functions are dropped."""
        return self.max_precision / dictionary.unit

    def _stepper(self, dictionary: Dictionary, source: RowSource, run: FitRun) -> RelevanceStepper:
        return RelevanceStepper(dictionary, source, self._largest(dictionary), run.budget)

    def _checked(
        self, kernel: Any, dictionary: Dictionary, source: RowSource, run: FitRun
    ) -> tuple[float, bool]:
        """The factor of the variances that fits held-out rows, and whether to keep all functions.

        Every fold is trained with the same kernel on the rows that it does not hold out. If the
        exact process with this kernel may predict the held-out rows better, a small table keeps all
        functions; another table gets a warning if the difference is large.
        """
        n, d = source.X.shape
        if n < _FEWEST_CHECKED:
            return 1.0, False
        variances, errors, exact = [], [], []
        folds = np.array_split(run.random_state.permutation(n), 5)
        for held in map(np.sort, folds[: 5 if n < 200 else 2 if n < 500 else 1]):
            rest, functions = np.setdiff1d(np.arange(n), held), dictionary.without(held)
            if len(functions) == 0:
                return 1.0, False
            stepper = self._stepper(functions, source.subset(rest), run)
            score = np.inf
            for _ in range(self.max_iter):
                stepper.step()
                run.budget.check()
                last, score = score, stepper.score()
                if score > last - _FOLD_TOL:
                    break
            X, Y = source.rows(held)
            mean, variance, _ = ProcessPosterior(*_process(stepper)).moments(X)
            variances.append(variance.cpu().numpy())
            errors.append((Y - mean).cpu().numpy())
            few = source.rows(run.random_state.permutation(rest)[:_START_ROWS])
            process = exact_process(kernel, Gaussian(), *(rows.cpu().numpy() for rows in few), 1)
            mean, variance, _ = process.posterior(d, X.device).moments(X)
            exact.append(_nlls((Y - mean).cpu().numpy(), variance.cpu().numpy() + process.noise))
        variance, error = np.concatenate(variances), np.concatenate(errors)
        scale = fitted_scale(variance, error, stepper.noise)
        behind = _nlls(error, scale * variance + stepper.noise) - np.concatenate(exact)
        loss, error_of_loss = behind.mean(), behind.std() / len(behind) ** 0.5
        whole = self.n_components == "auto" and n <= SMALL_TABLE and not run.stopped
        if n <= _FEW_ROWS:
            worse = loss + _WHOLE_DOUBT * error_of_loss > _WHOLE_OF_FEW
        else:
            worse = loss > _WHOLE
        if whole and worse:
            why = (
                f"held-out rows do not show that a sparse model is as good as the exact process "
                f"({loss:.2f} +- {error_of_loss:.2f} nats a row behind)"
            )
            run.chose("n_components", n, f"{why}, so that no function is dropped")
            return 1.0, True
        if n >= _FEWEST_JUDGED and loss - _DOUBT * error_of_loss > _BEHIND:
            run.warn(
                "a sparse model does not suffice for these rows. An exact process is "
                f"{loss:.2f} nats a row better on held-out rows: use QSGPRegressor."
            )
        return scale, False

    def _keep_process(self, start: Start, source: RowSource, run: FitRun) -> None:
        """The model of the start's rows, before any function has been dropped."""
        few = source.subset(start.rows)
        dictionary = Dictionary.of(
            compile_kernel(start.kernel, source.X.shape[1]), source, start.rows
        )
        self._keep(start.kernel, self._stepper(dictionary, few, run))

    def _keep(self, kernel: Any, stepper: RelevanceStepper | AllRows) -> None:
        dictionary = stepper.dictionary
        active = dictionary.rows[stepper.active.cpu().numpy()]
        order = np.argsort(active)
        self.relevance_ = active[order]
        self.relevance_vectors_ = np.asarray(dictionary.source.X[self.relevance_], dtype=np.float64)
        self.precision_ = stepper.precision[stepper.active].cpu().numpy()[order] * dictionary.unit
        self.coef_ = stepper.mean.cpu().numpy()[order]
        covariance = stepper.covariance.cpu()[order][:, order]
        self.coef_covariance_cholesky_ = cholesky_with_jitter(covariance)[0].numpy()
        self.noise_variance_ = float(stepper.noise)
        self.kernel_ = _with_noise(kernel, self.noise_variance_)
        self.lower_bound_ = stepper.evidence
        self.dtype_ = "float64"
        self._process_factor = _process(stepper, order)[1].factor.cpu().numpy()
        self._variance_scale = 1.0

    def _build_posterior(self) -> ProcessPosterior:
        kernel, device = compile_kernel(self.kernel_, self.n_features_in_), self._fit_device()
        points = self._scaling.inputs(self.relevance_vectors_, torch.float64, device)
        process = ProcessMap(KernelFunctions(kernel, points), self.noise_variance_, device)
        plain = torch.tensor(self.coef_).to(device) / own_values(kernel, points)[:, None]
        factor = torch.tensor(self._process_factor).to(device)
        weights = FeatureWeights(factor, process.factor.T @ plain)
        # The targets have selected the functions, and a precision for each.
        return ProcessPosterior(process, weights, self._variance_scale, learned=True)


def _nlls(error: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Negative log densities per row and target, up to a constant."""
    return 0.5 * (np.log(variance) + np.square(error).mean(1) / variance)


def _process(
    stepper: RelevanceStepper | AllRows, order: np.ndarray | slice = slice(None)
) -> tuple[ProcessMap, FeatureWeights]:
    """The process behind predictions, and the distribution of its weights.

    The mean is that of the relevance vector machine. The variance is that of a Gaussian process
    with the same kernel and the relevance vectors as inducing points, because the machine has no
    uncertainty about the functions that it has dropped.
    """
    at, dictionary = stepper.active[order], stepper.dictionary
    points = dictionary.points[at]
    basis = KernelFunctions(dictionary.kernel, points)
    process = ProcessMap(basis, stepper.noise, points.device)
    unit = dictionary.amplitude[at]
    K = process.factor @ process.factor.T
    seen, _ = cholesky_with_jitter(
        K + unit[:, None] * stepper.gram[at][:, at] * unit / stepper.noise
    )
    # The factor of I + L^-1 G L^-T, without products that would lose digits.
    factor = torch.linalg.solve_triangular(process.factor, seen, upper=False)
    mean = process.factor.T @ (stepper.mean[order] / unit[:, None])
    return process, FeatureWeights(factor, mean)


def _with_noise(kernel: Any, noise: float) -> Any:
    """The kernel with another variance of its white noise."""
    params = kernel.get_params()
    names = [name for name, value in params.items() if isinstance(value, WhiteKernel)]
    kernel = kernel.clone_with_theta(kernel.theta)
    if len(names) != 1 or len(names[0].split("__")) != 1:
        return kernel
    bounds = params[names[0]].noise_level_bounds
    if not isinstance(bounds, str):
        bounds = (min(bounds[0], noise), max(bounds[1], noise))
    return kernel.set_params(**{names[0]: WhiteKernel(noise, bounds)})
