"""Training of the quadruply stochastic estimators, from a table to a posterior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..._end import End
from ..._validation import check_points
from ...core import FitRun, Given, own_rows
from ...core.data import RowSource, Scaling
from ...core.likelihoods import Likelihood
from ...core.posteriors import Posterior
from ...kernels import compile_kernel
from ._basis import Functions
from ._exact import ExactModel, exact_process, train_by_full_batches
from ._noise import NoiseAtRows, noise_of
from ._plan import SampledPlan, TableSize, pivot_limit, plan
from ._process import pivots
from ._start import Start, exact_start_of
from ._steps import Fit, Trained, train_by_steps

# Number of rows from which the typical curvature of a likelihood is computed.
_CURVATURE_ROWS = 1000
# Largest number of Newton steps of the exact process on the start's rows.
_PROCESS_STEPS = 30
# Seconds after which Newton steps on the start's rows end if the fit was interrupted.
_INTERRUPTED_SECONDS = 1.0
# Kernel functions are chosen until the variance of every row, given these functions, is below this
# share of the noise (or of one over the likelihood's curvature).
_LEFT_OPEN = 1e-2


class QSGPMixin:
    """Training and fitted attributes. Subclasses read tables and make predictions."""

    _sums_rows = True

    def _train(
        self,
        run: FitRun,
        source: RowSource,
        likelihood: Likelihood,
        past: Any = None,
        n_seen: float = 0,
        grows: bool = False,
    ) -> None:
        """Plan, start from an exact fit, and train.

        Parameters
        ----------
        run : FitRun
        source : RowSource
            The rows, in units of the model.
        likelihood : Likelihood
        past : ExactModel, SampledModel or None
            The model that training continues from.
        n_seen : float, default=0
            Number of other rows that this model has seen.
        grows : bool, default=False
            Whether these are the first rows of a stream.
        """
        n, t, kernel = len(source), source.Y.shape[1], self._own_kernel(source.X)
        points = past.functions.points if past else self._points(source, run.random_state)
        size = TableSize(n, t, None if points is None else len(points))
        chosen = plan(self, kernel, size, likelihood, past, grows)
        run.follow(chosen)
        if chosen.functions == "pivots" or len([] if points is None else points) == n:
            # The functions are those of rows that are found among all, or of all.
            source = source.here()
        self.likelihood_ = likelihood
        self._keep_scaling(source.scaling)
        seen = self.n_samples_seen_ if n_seen else 0
        run.begin(source.X, source.Y, seen, source.n_rows)

        def show(model: Any, now: Start) -> None:
            model._keep(_process(now, likelihood, run))

        # The basis is drawn first, so that it does not depend on the number of rows.
        seed = 0 if past else int(run.random_state.randint(2**31 - 1))
        start = Start(past.functions.kernel) if past else None
        start = start or exact_start_of(chosen.start, likelihood, source, run, show)
        trained = Trained(None, start.reason, 0)
        if not run.stopped:
            fit = Fit(source, run, chosen.steps, past, n_seen)
            noise = _typical_noise(start.kernel, likelihood, fit)
            functions = _functions(chosen, start.kernel, seed, points, fit, noise)
            if functions is not None and chosen.steps is None:
                trained = train_by_full_batches(fit, functions, noise, chosen.max_iter.value)
            elif functions is not None:
                trained = train_by_steps(fit, functions, noise)
        model = trained.model
        if model is None:
            model = run.finish("start's rows", lambda: past or _process(start, likelihood, run))
        self._keep(model)
        run.ended(
            trained.reason,
            n_iter=start.n_iter + trained.n_iter,
            planned=chosen.planned,
            rate="variational_learning_rate",
        )
        run.reports(summary=chosen.summary(model.functions.n_components))
        if model.inference == "stochastic":
            run.reports(epochs=trained.n_iter * chosen.steps.batch_size / n)

    def _source_of(
        self, given: Given, likelihood: Likelihood, run: FitRun, past: Any = None
    ) -> RowSource:
        """The given rows, in units of their own or of a past model."""
        scaling = self._scaling if past else scaling_of(self, given, likelihood, run)
        return given.source(scaling, likelihood, run.device, torch.float64, reset=past is None)

    def _points(self, source: RowSource, random_state: np.random.RandomState) -> np.ndarray | None:
        """Points of a kernel basis in the model's units; None if the settings name none."""
        if not isinstance(self.basis, str):
            points = check_points("basis", self.basis, source.X.shape[1])
            return source.scaling.inputs(points, torch.float64, torch.device("cpu")).numpy()
        if self.basis != "rows":
            return None
        rows: Any = slice(None)
        if self.n_components != "auto" and self.n_components < len(source):
            rows = np.sort(random_state.permutation(len(source))[: self.n_components])
        return source.take(rows).X.cpu().numpy()

    def _check_growing(self) -> None:
        if isinstance(self.basis, str) and self.basis == "rows":
            raise ValueError(
                f'{type(self).__name__}.partial_fit cannot add rows to basis="rows", whose '
                'functions are the rows themselves: use basis="fourier", or an array of points.'
            )

    def _past(self, X: np.ndarray, t: int) -> Any:
        """The model that `fit` continues from with warm_start; None for a table that differs."""
        if own_rows() is not None and self.warm_start:
            raise ValueError(
                "warm_start needs all rows in one process: leave it out, or use "
                "distribute(rows='replicated')."
            )
        if not (self.warm_start and "_state" in vars(self)):
            return None
        state, points = self._state, self._state.functions.points
        if X.shape[1] != len(self._scaling.x_mean) or t != state.n_targets:
            return None
        pivots = pivot_limit(self, self.likelihood_, len(X)) > 0
        fourier = isinstance(self.basis, str) and self.basis != "rows" and not pivots
        if fourier != (points is None):
            return None
        if isinstance(self.basis, str) and not fourier:
            # Functions at the rows of another table are not suitable for this one.
            rows = self._scaling.inputs(X, torch.float64, torch.device("cpu")).numpy()
            unknown = {point.tobytes() for point in points} - {row.tobytes() for row in rows}
            if unknown or not (pivots or len(rows) == len(points)):
                return None
        return state

    def _keep(self, model: Any) -> None:
        self._state = model
        self.kernel_ = model.functions.kernel
        self.coef_ = model.coef(self.n_features_in_)
        self.inference_ = model.inference
        self.n_basis_ = len(self.coef_)
        self.lower_bound_ = model.lower_bound
        self.dtype_ = model.dtype

    def _build_posterior(self) -> Posterior:
        return self._state.posterior(self.n_features_in_, self._fit_device())


def _process(start: Start, likelihood: Likelihood, run: FitRun) -> ExactModel:
    """The exact process on the rows of a start, for a fit that ends with it."""
    begun = run.budget.seconds

    def late() -> bool:
        spent = run.budget.seconds - begun
        hasty = run.budget.ended is End.INTERRUPTED and spent > _INTERRUPTED_SECONDS
        return run.budget.left == 0 or hasty

    return exact_process(start.kernel, likelihood, start.rows, _PROCESS_STEPS, late)


def _typical_noise(kernel: Any, likelihood: Likelihood, fit: Fit) -> NoiseAtRows:
    """The likelihood with the kernel's noise, its curvature at the first rows, and constants."""
    some, compiled = fit.source.take(slice(0, _CURVATURE_ROWS)), compile_kernel(kernel, fit.d)
    variance = noise_of(compiled, compiled.theta0)
    noise = NoiseAtRows.of(likelihood, variance, some.Y.double(), some.noise)
    if fit.past is None and likelihood.classes:
        labels, counts = fit.source.labels()
        return noise.learning_constants(torch.as_tensor(labels), counts)
    constant = None if fit.past is None else fit.past.constant
    return noise if constant is None else replace(noise, constant=torch.as_tensor(constant))


def _functions(
    chosen: SampledPlan,
    kernel: Any,
    seed: int,
    points: np.ndarray | None,
    fit: Fit,
    noise: NoiseAtRows,
) -> Functions | None:
    """The basis functions; None if the time is up before they are chosen."""
    if fit.past is not None:
        return fit.past.functions
    run, most = fit.run, chosen.n_components.value
    if chosen.functions == "points":
        return Functions.at(kernel, points)
    if chosen.functions == "fourier":
        return Functions.fourier(kernel, fit.d, most, chosen.n_drawn, seed)
    tol = _LEFT_OPEN / noise.curvature
    with run.stage("functions", optional=True):
        # At rows that determine the function at the other rows.
        X = fit.source.take(slice(None)).X
        rows, left = pivots(compile_kernel(kernel, fit.d), X, most, tol, run.budget.check)
        why = "given these, every row's variance is below a hundredth of the noise"
        if left > tol:
            why = f"as many as a few seconds allow for {fit.n:,} rows"
        run.chose("n_components", len(rows), why)
        return Functions.at(kernel, X[rows].cpu().numpy())
    return None


def scaling_of(model: Any, given: Given, likelihood: Likelihood, run: FitRun) -> Scaling:
    """Units of the model; codes of categories keep theirs."""
    d, kernel = given.X.shape[1], model._own_kernel(given.X)
    mean, scale = given.robust_moments() if model.standardize else (np.zeros(d), np.ones(d))
    if kernel is not None:
        coded = compile_kernel(kernel, d).coded
        mean[coded], scale[coded] = 0.0, 1.0
    shared = given.known is not None and model.normalize_y == "auto"
    return Scaling(mean, scale, *given.target_units(run, likelihood, shared))
