"""The nearest-neighbour Gaussian process.

Half of this file documents the parameters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..._compat import fit_context
from ..._end import End
from ...core import (
    Choice,
    ExactProcess,
    FitRun,
    GPRegressorBase,
    StartRows,
    affordable_size,
    failing_softly,
    random_rows,
    train_planned,
)
from ...core.data import Table
from ...core.training import Budget, TrainingResult
from ...kernels import TorchKernel
from ...linalg.blocks import watched
from ...linalg.gradients import (
    ExactEvaluation,
    ExactGradient,
    GPProblem,
    GradientEstimator,
    GradientState,
)
from ._full_scale import Belief, Earlier, FullScale, earlier_rows, inducing_rows
from ._local import Shared
from ._metric import Metric
from ._objectives import (
    VALUES,
    FullScaleGradient,
    LocalGradient,
    Scaled,
    Scales,
    neighbours_of,
)
from ._plan import NeighborPlan, plan
from ._posterior import NeighborPosterior
from ._wide import Correction, Judged, WideFit

# The gain, in nats per row, for which "auto" takes a larger number of neighbours.
_WORTH = 0.02
# Rows that may be added to a model with wide neighbourhoods, as a share of those of its fit.
_ADDED = 0.2
# Rows whose share of the last step is timed.
_TIMED_ROWS = 2000
# Number of rows of the calibration, which costs as much as their prediction.
_CALIBRATION = 2000


class NNGPRegressor(GPRegressorBase):
    """Gaussian processes of the nearest rows; exact up to 2,000 rows (``small_table``).

    A row is predicted by the exact Gaussian process of its nearest training rows. These are a few
    hundred rows, nearest by the distance that the kernel defines. The hyperparameters maximise the
    density of held-out rows given their neighbours. Fits take seconds to minutes (measured up to a
    million rows), and predictions 0.1 to four milliseconds per row. See
    :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. None means ``ConstantKernel() * Matern(nu=1.5) + WhiteKernel()`` with one length
        scale per column. Training starts at the scale of the data. Periodic kernels are refused,
        since they define no distance by which to search for neighbours.
    n_inducing : int or "auto", default="auto"
        Number of inducing points. With q of them, the process is the sum of a process of rank q,
        which all rows determine, and of a residual process, which neighbours predict (full-scale
        Vecchia). If the table has no more rows, the model is the exact Gaussian process, unless
        ``small_table="method"``. "auto" is none: on kin40k and on simulated tables, held-out rows
        have the same density if the same time is spent on more neighbours.
    n_neighbors : int or "auto", default="auto"
        Number of training rows from which a new row is predicted. If the table has no more rows,
        the model is the exact Gaussian process. "auto" is all rows up to 2,000. Above, it is 200 in
        training, and then 50, 100, 200 or 400. This is the smallest number for which the mean log
        density of held-out rows is within 0.02 of the highest, wide neighbourhoods included. Time
        grows with the third power of this number.
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
        2,000 rows, all of which are neighbours, unless `n_neighbors` is given. "method" never does.
    optimizer : "auto", "bfgs", "fmin_l_bfgs_b", "lbfgs", "adam", callable, object or None, \
            default="auto"
        Method that trains the hyperparameters; None keeps them at their initial values. "auto" is a
        quasi-Newton method.
    max_iter : int or "auto", default="auto"
        Maximum number of training steps. "auto" is 25 after the exact start (30 for Adam), and 100
        otherwise.
    objective : {"leave_one_out", "blocks", "subset", "vecchia"}, default="leave_one_out"
        Objective that the hyperparameters maximise. "leave_one_out" is the log density of rows
        given their nearest other rows, which measures what predictions do. "blocks" is the
        likelihood of neighbourhoods that are treated as independent. "subset" is the exact
        likelihood of random rows and the fastest. These two do not measure how well rows are
        predicted. "vecchia" is Vecchia's approximation of the likelihood of all rows, in which each
        row is given its 30 nearest neighbours among those before it in a random order, and the
        inducing points if there are any; a step costs O(n).
    n_restarts_optimizer : int, default=0
        Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
        of the kernel.
    calibrate : bool, default=True
        Whether to calibrate the predictive distribution on the training rows. The kernel, noise
        included, is then multiplied by the number that maximises the log density of up to 2,000
        held-out rows; with ``objective="leave_one_out"`` these are not the rows of the objective.
        Equal rows are left out together. Means do not change. Kernels without an amplitude are not
        calibrated.
    local_scale : bool, default=True
        Whether standard deviations follow the errors of the nearest training rows. Calibration then
        also multiplies variances by a power of the mean squared error of the 30 nearest rows, in
        units of their own variances, if the held-out rows show a clear gain. Without ``calibrate``
        it has no effect. Set it to False inside an estimator that learns the size of errors itself,
        such as `HeteroscedasticRegressor`.
    n_wide_neighbors : int or "auto", default="auto"
        Number of rows of wide neighbourhoods, which correct predictions from the nearest rows. 0
        means none. The fit divides the table into small groups of close rows, 17 by default, and
        solves an exact Gaussian process of the rows nearest to each group. The predictions of
        those around a new row are combined, and a multiple of how they differ from the prediction
        from its nearest rows is added to it. They are used if rows held out of all of them clearly
        gain log density. Predictions then need fewer neighbours. "auto" is 1,000, and 0 on tables
        of more than 300,000 rows or if the hyperparameters are not trained. They have fewer rows if
        the time budget requires it, and there are none if it allows less than twice the neighbours
        that would be best without them. For m rows each, a fit costs O(n m^2.5), about three
        processor minutes for 200,000 rows by default, and a prediction O(m). The model stores 480
        bytes for each row of the table with one target in single precision. It has no effect with
        inducing points.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the rows
        on which the hyperparameters are trained, and the restarts.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Neighbours are found
        on the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It applies to the small systems of
        predictions. "auto" is float64 up to 10,000 rows and float32 above. Training is always
        float64, and so are variances that float32 cannot resolve.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. They share the small systems of
        training, of calibration, of wide neighbourhoods and of predictions for at least 64 rows.
        Each process receives the table once, and has its own index of neighbours. None means this
        process, unless a :class:`joblib.parallel_config` context says otherwise. On a GPU it has no
        effect.
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
        Number of rows in the exact fit from which training starts. "auto" is 1,000, or 3,000 with
        ``objective="subset"``, which trains on no other rows. None starts at the hyperparameters of
        the kernel; with ``objective="subset"`` it means 3,000.
    n_centers : int, default=1000
        Number of rows whose neighbourhoods the objective consists of. These are the held-out rows,
        or the centres of the blocks; they are the same in every step.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained kernel.
    n_neighbors_ : int
        The number of training rows from which a row is predicted.
    n_inducing_ : int
        The number of inducing points.
    local_power_ : float
        The power of the errors of the nearest rows by which variances are multiplied; zero if they
        are not.
    n_wide_neighbors_ : int
        The number of rows of wide neighbourhoods; zero without any.
    wide_weight_ : float
        By which the difference between the predictions of wide neighbourhoods and of the nearest
        rows is multiplied; zero without wide neighbourhoods.
    X_train_, y_train_ : ndarray
        The rows from which predictions are made, and their normalised targets.
    log_marginal_likelihood_value_ : float
        The training objective at `kernel_`, in units of the normalised target: the log likelihood
        of the subset, or the mean log density of the rows in the objective times the number of
        training rows. It is exact if all rows are neighbours. Of leave-one-out densities it is a
        pseudo-likelihood, which is higher than the marginal likelihood. NaN if `max_seconds` left
        no time for it.
    n_iter_ : int
        The number of training steps in all stages.
    n_samples_seen_ : int
        The number of rows in `fit` and in all calls of `partial_fit`.
    history_ : dict of lists
        stage, iteration, theta, objective, objective_name, residual, probe_residual, epochs and
        seconds of each step.
    fit_report_ : FitReport
        How the fit ended, what "auto" chose and why, parameters without effect, and seconds by
        stage. `print` shows it as text.
    device_, dtype_ : str
        The device and the precision of predictions.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        The names of the columns, if X has any.

    See Also
    --------
    IterativeGPRegressor : The exact posterior of the whole table.
    PoERegressor : A product of exact processes of parts of the table.

    Notes
    -----
    With m neighbours, a training step on b rows costs O(b m^3), and a predicted row O(m^3) plus a
    search in a k-d tree. For the distance, columns are divided by their length scales, the terms of
    a sum are weighted by their shares of the variance, and categories are compared by their
    covariances. Above 30,000 rows in more than five dimensions, the search is approximate. It may
    pass over a row for one that is at most 1.5 times as far. Exported models search exactly.

    Where errors are larger in some parts of the table than in others, one noise level is too small
    there. Calibration then lets the variance follow the errors that the nearest rows had, each
    predicted from the nearer ones.

    Inducing points are training rows, chosen by k-means++ in the distance of the kernel. With m
    neighbours and q inducing points, the posterior of their weights costs O(n (30^2 q + q^2)) once,
    and a row O(m^2 q) more. Neighbours are the same as without them: neighbours by the correlation
    of the residual process were no better on kin40k and on simulated tables. Leave-one-out
    predictions remove a row from the weights' posterior by a rank-one update. Models with inducing
    points have no exported form.

    Joint covariances and samples use Vecchia's approximation: new rows are ordered from coarse to
    fine, and each is predicted from its training neighbours and up to m earlier new rows. The
    result is scaled to the standard deviations of single rows.

    References
    ----------
    R. Allison, A. Stephenson, F. Samuel, E. O. Pyzer-Knapp (2023), Leveraging locality and
    robustness to achieve massively scalable Gaussian process regression, arXiv:2306.14731.

    T. Gyger, R. Furrer, F. Sigrist (2025), Vecchia-inducing-points full-scale approximations for
    Gaussian processes, arXiv:2507.05064, sections 2 and 3.

    A. V. Vecchia (1988), Estimation and model identification for continuous spatial processes.

    M. Katzfuss, J. Guinness (2021), A general framework for Vecchia approximations of Gaussian
    processes.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman2
    >>> from skscalablegp import NNGPRegressor
    >>> X, y = make_friedman2(n_samples=600, noise=1.0, random_state=0)
    >>> gp = NNGPRegressor(n_neighbors=50, random_state=0).fit(X, y)
    >>> bool(gp.score(X, y) > 0.99)
    True
    """

    # Files of versions without inducing points have none of these.
    n_inducing_: int = 0
    _inducing: Any = None
    _belief: Any = None
    # Nor have older files wide neighbourhoods.
    n_wide_neighbors_: int = 0
    wide_weight_: float = 0.0
    _wide: Any = None

    # Seed of the order of the rows, if the rows before a row matter.
    _order_seed = 0

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_inducing="auto",
        n_neighbors="auto",
        alpha=1e-10,
        normalize_y="auto",
        priors="auto",
        small_table="exact",
        optimizer="auto",
        max_iter="auto",
        objective="leave_one_out",
        n_restarts_optimizer=0,
        calibrate=True,
        local_scale=True,
        n_wide_neighbors="auto",
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        n_jobs=None,
        callbacks=None,
        checkpoint=None,
        verbose=0,
        copy_X_train=True,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=5,
        subset_size="auto",
        n_centers=1000,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> NeighborPlan:
        (n, d), t = table.X.shape, table.targets.shape[1]
        made = plan(self, n, d, run.machine, n_targets=t, n_params=kernel.n_params)
        if not made.exact_instead:
            # Refuses kernels that have no metric, before any work.
            Metric(kernel, kernel.theta0, torch.tensor(np.ascontiguousarray(table.X[:2])))
        return made

    def _fit_method(
        self, table: Table, kernel: TorchKernel, plan: NeighborPlan, run: FitRun
    ) -> None:
        self.n_neighbors_, self.local_power_, self._scale = plan.n_neighbors.value, 0.0, 1.0
        self.n_inducing_, self._inducing, self._belief = plan.n_inducing.value, None, None
        self._keep_wide(None)
        self._n_earlier = plan.n_earlier
        if self.n_inducing_ or self.objective == "vecchia":
            self._order_seed = int(torch.randint(2**31 - 1, (), generator=run.generator))
        self.dtype_ = plan.dtype.value
        problem = table.problem(kernel, torch.float64, run.device, keep=False)
        self.n_inducing_ = self._affordable_points(problem, run)
        # Earlier and later stages have objectives of their own.
        run.preview = lambda model, step: model._keep(
            kernel, step.theta, step.objective if step.stage == "full" else np.nan
        )
        result = self._train(problem, plan, run)
        run.finish("value", lambda: self._keep_in_time(kernel, result, run.budget))
        run.ended(result.stop_reason, n_iter=result.n_iter, planned=result.planned)
        if self.n_inducing_:
            theta = torch.as_tensor(result.theta)
            if self._belief is None or not np.array_equal(self._belief[0], result.theta):
                # The calibrated kernel is the trained one times a number, with the same neighbours.
                near = result.state.extra.get("earlier")
                run.finish("inducing points", lambda: self._shared(problem, theta, near))
        self._remember(run.finish("index", self._build_posterior))
        run.reports(summary=f"a row is predicted from {self.n_neighbors_} of {len(table.X):,} rows")

    def _train(self, problem: GPProblem, settings: NeighborPlan, run: FitRun) -> TrainingResult:
        """Train; keep the objective's rows, for `log_marginal_likelihood`."""
        n = len(problem.X)
        self._kind, self._near = self.objective, None
        self._seen = random_rows(n, settings.n_rows, run.generator).numpy()
        if self._kind == "subset":
            of_start = StartRows.of(problem)
            self._seen, run.fast = of_start.chosen(self._seen), of_start.fast
        part, estimator = self._objective_on(problem)
        result = train_planned(part, estimator, settings.training, run)
        if self._kind == "vecchia":
            self._keep_objective(problem, estimator, result, run)
        found: dict[int, Scaled] = {}
        asked = self.calibrate or len(settings.compared) > 1
        fixed = self.optimizer is None or problem.kernel.n_params == 0
        if asked and not (fixed or run.stopped):
            with run.stage("calibration", optional=True), watched(run.budget.check):
                self._calibrate(found, problem, settings, result, run)
        if not found:
            found[settings.compared[0]] = Scaled(torch.as_tensor(result.theta), 1.0, np.nan)
        wide = self._choose(found, problem, settings, run)
        self._keep_wide(wide)
        best = found[self.n_neighbors_]
        self.local_power_, self._scale = best.power, best.scale
        if best.scale != 1.0 or self.n_neighbors_ != settings.compared[0]:
            # The likelihood is that of rows given as many neighbours as predictions take.
            result = replace(result, theta=best.theta.numpy(), value=float("nan"))
        if self._kind in VALUES:
            near = result.state.extra.get("near")
            if near is None or near.shape[1] != self.n_neighbors_:
                theta, rows = torch.as_tensor(result.theta), torch.as_tensor(self._seen)
                search = partial(neighbours_of, problem, theta, rows, self.n_neighbors_)
                near = run.finish("neighbours", search)
            self._near = near.cpu().numpy()
        return result

    def _keep_objective(
        self, problem: GPProblem, estimator: Any, result: TrainingResult, run: FitRun
    ) -> None:
        """Keep the neighbours and the inducing points of the likelihood of all rows."""
        given = problem, torch.as_tensor(result.theta), result.state
        extra = run.finish("neighbours", lambda: estimator.prepared(*given)).extra
        self._near = extra["near"].cpu().numpy()
        if self.n_inducing_:
            self._inducing = extra["inducing"].cpu().numpy()

    def _calibrate(
        self,
        found: dict[int, Scaled],
        problem: GPProblem,
        settings: NeighborPlan,
        result: TrainingResult,
        run: FitRun,
    ) -> None:
        """Scale the kernel by leave-one-out, for each number of neighbours that is compared."""
        # Predictions of the rows in the training objective are too good to determine the scale.
        # They still show which number of neighbours is better.
        n, seen = len(problem.X), self._seen if self.objective == "leave_one_out" else ()
        others = torch.as_tensor(np.setdiff1d(np.arange(n), seen))
        scaled = self.calibrate and len(others) > 0
        if self.calibrate and not scaled:
            run.follow(settings.ignoring("calibrate", because="training has predicted all rows"))
        if not len(others):
            others = torch.arange(n)
        theta = torch.as_tensor(result.theta)
        scales = Scales(problem, theta, self.n_jobs)
        if scaled and not scales.free:
            why = "no hyperparameters scale the whole kernel"
            run.follow(settings.ignoring("calibrate", because=why))
        scaled = scaled and scales.free
        if not (scaled or len(settings.compared) > 1):
            return
        rows = others[random_rows(len(others), _CALIBRATION, run.generator)].to(problem.X.device)
        near = neighbours_of(problem, theta, rows, max(settings.compared))
        shared = None
        if self.n_inducing_:
            result.state.extra["earlier"] = self._earlier(problem, theta)
            shared = self._shared(problem, theta, result.state.extra["earlier"])
        for m in settings.compared:
            run.budget.check()
            given = getattr(torch, self.dtype_), scaled, self.local_scale, shared
            found[m] = scales.best(rows, near[:, :m], *given)

    def _choose(
        self,
        found: dict[int, Scaled],
        problem: GPProblem,
        settings: NeighborPlan,
        run: FitRun,
    ) -> Correction | None:
        """Set the number of neighbours; return the correction by wide neighbourhoods.

        It is the smallest number that is hardly worse than the best, wide neighbourhoods included.
        """
        fit, judged, why = self._judged_wide(problem, found, settings, run)
        density = {m: one.after if one.clear else one.before for m, one in judged.items()}
        if not judged:
            density = {m: one.density for m, one in found.items()}
        self.n_neighbors_ = m = _fewest(density)
        if len(density) > 1:
            *some, last = sorted(density)
            numbers = f"{', '.join(map(str, some))} and {last}"
            reason = f"of {numbers} the fewest within {_WORTH} of the highest log "
            reason += f"density of held-out rows, {max(density.values()):.3f}"
            run.follow(replace(settings, n_neighbors=Choice(m, reason)))
        if found[m].scale != 1.0:
            run.reports(scale=found[m].scale)
        wide = None
        if fit is not None and m in judged:
            why = fit.why(judged[m])
            # They were solved with the kernel of the first number.
            ratio = found[m].scale / next(iter(found.values())).scale
            wide = fit.correction(judged[m], ratio) if judged[m].clear else None
        run.chose("n_wide_neighbors", 0 if wide is None else wide.wide.rows.shape[1], why)
        if settings.n_wide.value and wide is None and self.n_wide_neighbors != "auto":
            run.ignores("n_wide_neighbors", why)
        return wide

    def _judged_wide(
        self,
        problem: GPProblem,
        found: dict[int, Scaled],
        settings: NeighborPlan,
        run: FitRun,
    ) -> tuple[WideFit | None, dict[int, Judged], str]:
        """What held-out rows say about wide neighbourhoods for each number of neighbours.

        If there are none, nothing and why.
        """
        n_wide, why = settings.n_wide
        if not n_wide:
            return None, {}, why
        if run.stopped:
            return None, {}, "the fit ended before they were solved"
        fit, judged, why = None, [], "there was no time"
        with run.stage("wide neighbourhoods", optional=True), failing_softly() as failed:
            m, one = next(iter(found.items()))
            dtype = getattr(torch, self.dtype_)
            base = NeighborPosterior(problem, one, m, dtype, n_jobs=self.n_jobs)
            models = [base.rescaled(one, m) for m, one in found.items()]
            best = list(found).index(_fewest({m: one.density for m, one in found.items()}))
            fit = WideFit(base, models, best, n_wide, run.budget, run.generator, dtype)
            judged, why = fit.find()
        if failed:
            return None, {}, f"they could not be solved: {failed[0]}"
        if not judged and run.stopped:
            why = "the fit ended before all of them were solved"
        return fit, dict(zip(found, judged, strict=False)), why

    def _keep_wide(self, found: Correction | None) -> None:
        """Keep them as numbers and arrays, from which later predictions build them."""
        self.wide_weight_ = 0.0 if found is None else found.weight
        self.n_wide_neighbors_ = 0 if found is None else found.wide.rows.shape[1]
        self._wide = None if found is None else found.arrays()

    def _kept_wide(self, problem: GPProblem) -> Correction | None:
        return None if self._wide is None else Correction.from_arrays(self._wide, problem.X.device)

    def _objective_on(self, problem: GPProblem) -> tuple[GPProblem, GradientEstimator]:
        """The problem whose likelihood training maximised, and the estimator that evaluates it."""
        seen = torch.as_tensor(self._seen, device=problem.X.device)
        if self._kind == "subset":
            return problem.random_part(seen), ExactGradient()
        if self._kind == "vecchia":
            settings = self.n_inducing_, self._n_earlier, self._order_seed
            return problem, FullScaleGradient(*settings, self.n_jobs)
        return problem, LocalGradient(seen, self.n_neighbors_, self._kind, self.n_jobs)

    def _earlier(self, problem: GPProblem, theta: torch.Tensor) -> Earlier:
        """The neighbours of each row among the rows before it."""
        points = Metric(problem.kernel, theta, problem.X).points
        return earlier_rows(points, self._n_earlier, self._order_seed)

    def _shared(
        self, problem: GPProblem, theta: torch.Tensor, earlier: Earlier | None = None
    ) -> Shared:
        """What all rows share at these hyperparameters; kept as arrays for later predictions."""
        if self._inducing is None:
            self._inducing = inducing_rows(problem, theta, self.n_inducing_, self._order_seed)
        process = FullScale(problem, theta, torch.as_tensor(self._inducing))
        earlier = self._earlier(problem, theta) if earlier is None else earlier
        belief = process.sums(earlier).belief()
        self._belief = [part.cpu().numpy() for part in (theta, *belief)]
        return process.shared(belief)

    def _kept_shared(self, problem: GPProblem, theta: torch.Tensor) -> Shared | None:
        """The same from the arrays; None without inducing points, as during training."""
        if self._belief is None:
            return None
        at, *belief = (torch.as_tensor(part).to(problem.X) for part in self._belief)
        process = FullScale(problem, theta, torch.as_tensor(self._inducing))
        if torch.allclose(at.cpu(), theta.cpu(), rtol=1e-12):
            return process.shared(Belief(*belief))
        return process.shared(process.sums(self._earlier(problem, theta)).belief())

    def _affordable_points(self, problem: GPProblem, run: FitRun) -> int:
        """As many inducing points as there is time for, which is reserved."""

        def evaluate(m: int, rows: int) -> None:
            some, theta = problem.subset(torch.arange(rows)), problem.kernel.theta0
            FullScale(some, theta, torch.arange(m)).sums(self._earlier(some, theta)).belief()

        n = len(problem.X)
        m = affordable_size("n_inducing", self.n_inducing_, n, evaluate, run)
        some = min(n, _TIMED_ROWS)
        if m:
            run.budget.reserve_for(lambda: evaluate(min(m, some), some), n / some)
        return m

    def _keep_in_time(self, kernel: TorchKernel, result: TrainingResult, budget: Budget) -> None:
        """As `_keep`, with an unknown value if the time ends its computation."""
        part = Budget(budget.for_result())
        with budget.may_end(lambda reason: reason is End.MAX_SECONDS), watched(part.check):
            self._keep(kernel, result.theta, result.value)

    def _keep(self, kernel: TorchKernel, theta: np.ndarray, value: float) -> None:
        """Set the fitted attributes; `value` includes the log prior, and is NaN if unknown."""
        self.kernel_ = kernel.to_sklearn(torch.as_tensor(theta))
        self._remember(None)
        share = len(self._seen) / len(self.X_train_) if self._kind == "subset" else 1.0
        self.log_marginal_likelihood_value_ = value - share * kernel.log_prior(theta)[0]
        if not np.isfinite(value):
            found = self._likelihood_at(torch.as_tensor(theta), False)[0]
            self.log_marginal_likelihood_value_ = found

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        self.n_neighbors_, self.local_power_, self._scale = len(process.table.X), 0.0, 1.0
        self._kind, self._seen, self._near = "subset", np.arange(self.n_neighbors_), None
        self.n_inducing_, self._inducing, self._belief = 0, None, None
        self._keep_wide(None)
        return super()._keep_exactly(process)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, noise_variance=None, sample_weight=None) -> NNGPRegressor:
        """Add rows to the model; the hyperparameters and the target's scale do not change.

        Costs O(n) for n rows in all, which are copied: ten rows take milliseconds beside a few
        thousand, and a third of a second beside a million. Wide neighbourhoods keep their rows, so
        that new rows count only among the nearest ones. After more than a fifth of the fit's rows
        has been added, predictions are those of the nearest rows alone. With inducing points, which
        remain the same rows, the posterior of their weights is computed anew. The first call is a
        `fit`. A search that was exact, as up to 30,000 rows, remains so until more than 1,000 rows
        plus 2% of the others have been added; the index is then built anew, and may be approximate.

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
            The model as if all rows had been given at once with ``optimizer=None``, the same number
            of neighbours, the same `local_power_` and the same wide neighbourhoods.

        Raises
        ------
        ValueError
            For rows unlike those of the first call.
        """
        if not hasattr(self, "n_iter_"):
            return self.fit(X, y, noise_variance, sample_weight)
        before = self._posterior()
        with FitRun(self) as run:
            more = self._read_more(X, y, noise_variance, sample_weight, run)
            old, m = len(self.X_train_), self.n_neighbors_
            n = self._append(more)
            settings = plan(self, *self.X_train_.shape, run.machine)
            precision = settings.dtype.value
            if m == old or self.n_neighbors != "auto":
                self.n_neighbors_ = settings.n_neighbors.value
            if settings.exact_instead:
                self._join_exactly(run, "use a smaller n_neighbors or n_inducing")
            elif (
                self.n_neighbors_ == m < old
                and self.dtype_ == precision
                and not self.n_inducing_
                and self._wide_suits(n)
            ):
                after = before.plus(self._trained_problem(), len(more.X))
                self._remember(after)
            else:
                self._exact, self.dtype_ = None, precision
                if self._inducing is None:  # A small table has been an exact process until now.
                    self.n_inducing_ = settings.n_inducing.value
                    self._n_earlier = settings.n_earlier
                if self.n_inducing_:
                    joined = self._trained_problem()
                    given = joined, joined.kernel.theta0
                    run.finish("inducing points", lambda: self._shared(*given))
                if self.n_neighbors_ != m or not self._wide_suits(n):
                    # Their weight was learned beside another number of neighbours, or fewer rows.
                    self._keep_wide(None)
                self._remember(run.finish("index", self._build_posterior))
            if self._kind == "vecchia":
                self._near = None
                theta = self._trained_kernel().theta0
                self.log_marginal_likelihood_value_ = self._likelihood_at(theta, False)[0]
            elif self._kind != "subset":
                # A mean over the same rows, times the number of rows.
                self.log_marginal_likelihood_value_ *= n / old
            run.reports(summary=f"a row is predicted from {self.n_neighbors_} of {n:,} rows")
            run.ended(End.CONVERGED, n_iter=1, because="rows were added; the kernel is unchanged")
        return self

    def _wide_suits(self, n: int) -> bool:
        """Whether few of n rows were added to those of which wide neighbourhoods consist.

        Among many more rows, the nearest ones alone are better than with neighbourhoods of few.
        """
        return self._wide is None or n <= (1 + _ADDED) * self._wide[-1]

    # ------------------------------------------------------------------ prediction

    def _training_only(self) -> tuple[str, ...]:
        return (*super()._training_only(), "_near", "_seen")

    def _build_posterior(self) -> NeighborPosterior:
        problem, dtype = self._trained_problem(), getattr(torch, self.dtype_)
        theta = problem.kernel.theta0
        scaled = Scaled(theta, self._scale, np.nan, self.local_power_)
        given = scaled, self.n_neighbors_, dtype, self._kept_shared(problem, theta)
        posterior = NeighborPosterior(problem, *given, self.n_jobs)
        return posterior.corrected(self._kept_wide(problem))

    def _has_low_rank_form(self) -> bool:
        return False

    def _likelihood_at(self, theta, eval_gradient):
        """Value and gradient of the training objective, without priors."""
        part, estimator = self._objective_on(self._trained_problem())
        state = GradientState()
        if self._near is not None:
            state.extra["near"] = torch.as_tensor(self._near, device=part.X.device)
        if self._inducing is not None:
            state.extra["inducing"] = torch.as_tensor(self._inducing)
        found, _ = estimator.estimate(part, theta, state)
        return float(found.value), found.grad


def _fewest(density: dict[int, float]) -> int:
    """The smallest number of neighbours that is hardly worse than the best.

    The first one if no density is finite, as without a calibration.
    """
    finite = {m: value for m, value in density.items() if np.isfinite(value)}
    if not finite:
        return next(iter(density))
    return min(m for m, value in finite.items() if value >= max(finite.values()) - _WORTH)
