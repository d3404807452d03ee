"""Relevance vector machines from a large dictionary of kernel functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process.kernels import WhiteKernel

from ..._compat import fit_context
from ..._end import End
from ...core import (
    SMALL_TABLE,
    FitRun,
    MinibatchGPRegressorBase,
    is_auto,
    rows_to_check,
    warn_if_rough,
)
from ...core.data import RowSource, whole_groups, with_equal_inputs
from ...core.likelihoods import Gaussian
from ...core.posteriors import FeatureWeights, LinearPosterior
from ...core.training import train_steps
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem
from ...linalg.solvers import cholesky_with_jitter
from ._base import scaling_of
from ._basis import KernelFunctions
from ._exact import exact_process
from ._plan import plan_relevance
from ._posterior import fitted_scales
from ._process import ProcessMap
from ._relevance import (
    MOMENT_ROWS,
    Dictionary,
    RelevanceModel,
    RelevanceStepper,
    own_values,
    reduced,
    whole_model,
)
from ._start import Start, exact_start_of, random_part, rows_of

# Largest number of functions with full batches if there is no time, or after an interrupt.
_MOST_IN_HASTE, _MOST_INTERRUPTED = 1024, 512
# From this number of rows on there may be a warning. It appears if the loss against the exact
# process is above this many nats per row, and above this many standard errors.
_FEWEST_HELD_OUT, _BEHIND, _DOUBT = 100, 0.15, 3.0
# The loss from which on a small table keeps all functions. Up to so many rows, where functions cost
# little, it keeps them unless the loss is below the next number by that many standard errors.
_WHOLE, _FEW_ROWS, _WHOLE_OF_FEW, _WHOLE_DOUBT = 0.1, 150, 0.05, 2.0
# From this number of rows on variances are scaled.
_FEWEST = 10
# Below these numbers of rows there are five folds, and two.
_FIVE, _TWO = 200, 500
# Smallest gain of an update in a fold, in log evidence per row and target.
_TOL = 1e-4
# Largest number of rows that are held out at a time.
_MOST_HELD = 20_000
# Number of rows of the exact process.
_EXACT_ROWS = 1000


class QSRVMRegressor(MinibatchGPRegressorBase):
    """Relevance vector machine: a sparse sum of kernel functions at some of the rows.

    Every basis function has its own prior precision s_i. Maximising the evidence drives most of
    these to infinity. The functions with s_i below `max_precision` remain, and the cost of
    predictions is proportional to their number. Dictionaries of up to 2,048 functions are trained
    by full batches. Larger ones are first reduced by up to twelve rounds of quadruply stochastic
    steps, after each of which s_i = 1 / (mu_i^2 + c_ii^2). If more than 2,048 functions are left,
    those with the smallest s_i remain. See :ref:`default_sizes`.

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
        but at most 10,000. For up to 2,000 rows "auto" drops no function if held-out rows have a
        mean log density that is more than 0.1 higher under the exact Gaussian process with the same
        kernel. For up to 150 rows, functions are dropped only if held-out rows show clearly that it
        is at most 0.05 higher. With a number, functions are always dropped.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so unless a kernel is given, which is then a prior for y in its own units.
    standardize : bool, default=True
        Whether to subtract the mean of each column of X and divide by its standard deviation.
    optimizer : {"bfgs"} or None, default="bfgs"
        Method that trains the hyperparameters; None keeps them at their initial values. "bfgs"
        takes length scales and noise from an exact Gaussian process on `subset_size` rows.
    max_iter : int, default=500
        Maximum number of training steps. It counts full-batch updates of all precisions.
    batch_size : int, default=500
        Number of rows in a training step. Dictionaries of up to 2,048 functions take no such steps
        and ignore this parameter, the next two and `dtype`.
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel. They apply to the exact start only.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        dictionary, the draws and the subset.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. A fit
        that would take more is refused before it starts.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions are made
        there too.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It applies to the rounds of steps, where
        "auto" is float32; everything else is in float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y. They share their relevance vectors.
    n_iter_no_change : int or None, default=3
        Number of steps or scores without progress after which training ends; None switches this
        rule off. It counts full-batch updates.
    tol : float, default=1e-06
        Smallest improvement of a score that counts as progress. The score is the log evidence
        per row and target.
    subset_size : int or None, default=1000
        Number of rows in the exact fit from which training starts. None skips this fit.
    component_batch_size : int or "auto", default="auto"
        Number of basis functions in one random draw. "auto" is a tenth of the dictionary, at least
        1,024.
    control_variate_rank : int or "auto", default="auto"
        Number of support rows, at which the latent function is computed exactly. "auto" is 500 for
        up to 20,000 rows and 1,000 for more.
    max_precision : float, default=10000.0
        Prior precision above which a basis function is removed from the model. Its unit is that of
        the target's mean square.

    Attributes
    ----------
    kernel_ : kernel instance
        The kernel of the functions, with the trained noise.
    relevance_ : ndarray of shape (r,)
        Indices of the rows whose functions remain, ascending.
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
        Log evidence of the functions that remain, summed over rows and targets.
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
    the noise has settled, functions that add less than 0.5 to the log evidence per target are
    dropped, and functions that would add more than 1.5 are restored. The smallest noise that a
    fit can learn has a standard deviation of 1e-5 of the target's root mean square for up to 4,096
    rows, and of 1e-3 for more.

    A relevance vector machine has no uncertainty about the functions that it has dropped, and
    therefore hardly any far from the relevance vectors. Predictive variances are instead those of a
    Gaussian process with the same kernel and the relevance vectors as inducing points, times a
    factor that fits the errors at held-out rows. With 10 rows or more, the updates are repeated
    without a fifth of the rows to choose this factor: five times below 200 rows, twice below 500,
    otherwise once.

    The held-out rows also show whether the functions suffice. With ``n_components="auto"`` and up
    to 2,000 rows, all functions stay if the mean log density of these rows is more than 0.1 higher
    under an exact process.
    The model is then this process, and `precision_` is the diagonal of the prior precision of its
    weights. Otherwise a warning suggests QSGPRegressor if an exact process is better by more than
    0.15 and three standard errors.

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

    _sums_rows = True

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components="auto",
        normalize_y="auto",
        standardize=True,
        optimizer="bfgs",
        max_iter=500,
        batch_size=500,
        n_restarts_optimizer=0,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        n_targets=None,
        n_iter_no_change=3,
        tol=1e-06,
        subset_size=1000,
        component_batch_size="auto",
        control_variate_rank="auto",
        max_precision=10000.0,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, noise_variance=None, sample_weight=None) -> QSRVMRegressor:
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
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            with equal targets are merged before the fit, so that weights and repeated rows give the
            same model. A memory map is searched for equal rows, and then copied, only with weights.

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
            given = self._given(X, y, None, sample_weight)
            scaling = scaling_of(self, given, Gaussian(), run)
            source = given.source(scaling, Gaussian(), run.device, torch.float64)
            source = source.here() if len(given) <= MOMENT_ROWS else source
            n = len(source)
            plan = plan_relevance(self, self._own_kernel(source.X), n)
            self._keep_scaling(source.scaling)
            run.follow(plan)
            run.begin(source.X, source.Y, n_rows=source.n_rows)
            # The dictionary is drawn first, so that it does not depend on the start's rows.
            m, chosen = plan.n_components.value, np.arange(n)
            if m < n:
                chosen = np.sort(run.random_state.permutation(n)[:m])

            def dictionary_of(kernel: Any, rows: np.ndarray) -> Dictionary:
                compiled = compile_kernel(kernel, source.X.shape[1])
                return Dictionary.of(compiled, source, rows, self.max_precision, given.numbers)

            def show(model: Any, now: Start) -> None:
                functions = dictionary_of(now.kernel, now.index)
                rows = source.subset(now.index)
                model._keep(RelevanceStepper(functions, rows, run.budget).model())

            start = exact_start_of(plan.start, Gaussian(), source, run, show)
            dictionary = dictionary_of(start.kernel, chosen)
            dictionary, n_rounds, n_iter = reduced(dictionary, plan, self, run)
            # The cost of the weights is cubic in their number, so that a short time allows fewer.
            most = plan.most
            if run.stopped:
                interrupted = run.budget.ended is End.INTERRUPTED
                most = min(most, _MOST_INTERRUPTED if interrupted else _MOST_IN_HASTE)
            last, budget = dictionary.most_relevant(most), run.budget
            stepper = run.finish("moments", lambda: RelevanceStepper(last, source, budget))
            budget.reserve("weights")
            run.preview = lambda model, step: model._keep(stepper.model())
            run.monitor.begin("full", self.max_iter, objective=stepper.objective_name)
            result = train_steps(
                stepper,
                max_steps=self.max_iter,
                check_every=1,
                monitor=run.monitor,
                n_iter_no_change=self.n_iter_no_change,
                tol=self.tol,
            )
            model, scale = stepper.model(), 1.0
            with run.stage("calibration", optional=True):
                run.budget.check()
                comparison = compared(last, source, run, self.max_iter)
                if comparison is not None and self._keeps_all(comparison, source, run):
                    model = whole_model(dictionary_of(start.kernel, np.arange(n)))
                elif comparison is not None:
                    scale = comparison.scale
            kernel, rows = last.kernel, rows_to_check(n, run).numpy()
            warn_if_rough(GPProblem(kernel, source.take(rows)), kernel.theta0, n, run)
            run.finish("weights", lambda: self._keep(model))
            self._variance_scale = scale
            run.ended(result.stop_reason, n_iter=start.n_iter + n_iter + result.n_steps)
            run.reports(summary=f"{m} functions, {n_rounds} rounds of steps, then full batches")
        return self

    def _keeps_all(self, comparison: Comparison, source: RowSource, run: FitRun) -> bool:
        """Whether to keep all functions, because the exact process may predict better.

        Only small tables keep them; others get a warning if the difference is large.
        """
        n, loss, doubt = len(source), comparison.loss, comparison.doubt
        possible = is_auto(self.n_components) and n <= SMALL_TABLE and not run.stopped
        few = n <= _FEW_ROWS
        if possible and (loss + _WHOLE_DOUBT * doubt > _WHOLE_OF_FEW if few else loss > _WHOLE):
            why = (
                "with fewer functions, the mean log density of held-out rows may be lower "
                f"than under the exact process (by {loss:.2f} +- {doubt:.2f})"
            )
            run.chose("n_components", n, f"{why}, so that no function is dropped")
            return True
        if n >= _FEWEST_HELD_OUT and loss - _DOUBT * doubt > _BEHIND:
            run.warn(
                "a sparse model does not suffice for these rows. The mean log density of held-out "
                f"rows is {loss:.2f} higher under an exact process: use QSGPRegressor."
            )
        return False

    def _keep(self, model: RelevanceModel) -> None:
        dictionary, weights = model.dictionary, model.weights
        rows = dictionary.rows[model.active.cpu().numpy()]
        self.relevance_ = dictionary.given[rows]
        self.relevance_vectors_ = dictionary.source.originals(rows)[0].astype(np.float64)
        self.precision_ = weights.precision.cpu().numpy() * dictionary.unit
        self.coef_ = weights.mean.cpu().numpy()
        self.coef_covariance_cholesky_ = cholesky_with_jitter(weights.covariance.cpu())[0].numpy()
        self.noise_variance_ = float(weights.noise)
        self.kernel_ = _with_noise(dictionary.kernel.kernel, self.noise_variance_)
        self.lower_bound_ = weights.evidence
        self.dtype_ = "float64"
        self._process_factor = model.process()[1].factor.cpu().numpy()
        self._variance_scale = 1.0

    def _build_posterior(self) -> LinearPosterior:
        kernel, device = compile_kernel(self.kernel_, self.n_features_in_), self._fit_device()
        points = self._scaling.inputs(self.relevance_vectors_, torch.float64, device)
        process = ProcessMap(KernelFunctions(kernel, points), self.noise_variance_)
        plain = torch.tensor(self.coef_).to(device) / own_values(kernel, points)[:, None]
        factor = torch.tensor(self._process_factor).to(device)
        weights = FeatureWeights(factor, process.factor.T @ plain)
        # The targets have selected the functions, and a precision for each.
        return process.posterior(weights, scale=self._variance_scale, learned=True)


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


class Comparison(NamedTuple):
    """Predictions of held-out rows, with those of the exact process.

    Attributes
    ----------
    scale : float
        Factor of the variances that fits the errors.
    loss : float
        Nats per row by which the exact process is better.
    doubt : float
        The standard error of the loss.
    """

    scale: float
    loss: float
    doubt: float


def compared(
    dictionary: Dictionary, source: RowSource, run: FitRun, max_iter: int
) -> Comparison | None:
    """Train without some rows, several times, and predict them; None for too few rows.

    Every fold is trained with the same kernel on the rows that it does not hold out.
    """
    n, predictions = len(source), []
    if n < _FEWEST:
        return None
    order, groups = with_equal_inputs(run.random_state.permutation(n), source.X, source.weight)
    ends = np.cumsum([len(fold) for fold in np.array_split(order, 5)]).tolist()
    folds = np.split(order, sorted({whole_groups(groups, end) for end in ends} - {n}))
    for fold in folds[: 5 if n < _FIVE else 2 if n < _TWO else 1]:
        held = np.sort(fold[:_MOST_HELD])
        rest = np.setdiff1d(np.arange(n), held)
        others = source.subset(rest)
        functions = dictionary.without(held, others)
        if len(functions) == 0:
            return None
        stepper = _trained(functions, others, run, max_iter)
        some = source.take(held)
        X, Y = some.X, some.Y
        functions, weights = stepper.model().process()
        mean, variance, _ = functions.posterior(weights).moments(X)
        rows = rows_of(source, *random_part(source, rest, _EXACT_ROWS, run.random_state))
        process = exact_process(dictionary.kernel.kernel, Gaussian(), rows, 1)
        exact, spread, _ = process.posterior(X.shape[1], X.device).moments(X)
        nlls = _nlls((Y - exact).cpu().numpy(), spread.cpu().numpy() + process.noise)
        noise = np.full(len(held), stepper.noise)
        errors = variance.cpu().numpy(), (Y - mean).cpu().numpy()
        found = *errors, noise, nlls, source.weight[held]
        predictions.append(found)
    variance, error, noise, of_exact, counts = map(np.concatenate, zip(*predictions, strict=True))
    scale, _ = fitted_scales(variance, error, noise, counts=counts)
    behind = _nlls(error, scale * variance + noise) - of_exact
    loss = np.average(behind, weights=counts)
    spread = np.average(np.square(behind - loss), weights=counts)
    return Comparison(scale, loss, (spread / counts.sum()) ** 0.5)


def _trained(
    functions: Dictionary, source: RowSource, run: FitRun, max_iter: int
) -> RelevanceStepper:
    """The updates of one fold, until one gains little; checks the time after each."""
    stepper, score = RelevanceStepper(functions, source, run.budget), np.inf
    for _ in range(max_iter):
        stepper.step()
        run.budget.check()
        last, score = score, stepper.score()
        if score > last - _TOL:
            break
    return stepper


def _nlls(error: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Negative log densities per row and target, up to a constant."""
    return 0.5 * (np.log(variance) + np.square(error).mean(1) / variance)
