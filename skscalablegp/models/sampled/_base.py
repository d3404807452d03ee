"""Training of the quadruply stochastic estimators, from a table to a posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..._validation import check_points
from ...core import LARGEST_FEATURE_SIGNAL, FitRun
from ...core.data import RowSource, Scaling, column_moments, target_moments
from ...core.likelihoods import Likelihood
from ...core.posteriors import Posterior
from ...kernels import compile_kernel
from ._basis import Functions
from ._exact import ExactModel, exact_process, train_exact
from ._fit import Fit, Trained
from ._plan import Plan, Settings, check_room, make_plan, report, report_past
from ._process import pivots
from ._site import Site, noise_of
from ._start import Start, first_rows, trained_start
from ._steps import train_steps

# Number of rows from which the typical curvature of a likelihood is computed.
_CURVATURE_ROWS = 1000
# Largest number of Newton steps of the exact process on the start's rows.
_PROCESS_STEPS = 30
# Seconds after which Newton steps on the start's rows end if the fit was interrupted.
_INTERRUPTED_SECONDS = 1.0
# Kernel functions are chosen until the variance of every row, given these functions, is below this
# share of the noise (or of one over the likelihood's curvature).
_LEFT_OPEN = 1e-2
_TRAIN = {"exact": train_exact, "steps": train_steps, "dual": train_steps}


class QSGPMixin:
    """Training and fitted attributes. Subclasses read tables and make predictions."""

    def _train(  # noqa: PLR0913, C901 (the parts of one fit)
        self,
        run: FitRun,
        X: np.ndarray,
        Y: np.ndarray,
        likelihood: Likelihood,
        normalize_y: bool,
        past: Any = None,
        n_seen: int = 0,
        grows: bool = False,
        noise_variance: Any = None,
    ) -> None:
        """Plan, start from an exact fit, and train on (n, t) targets.

        Parameters
        ----------
        run : FitRun
        X, Y : ndarray of shape (n, d), (n, t)
        likelihood : Likelihood
        normalize_y : bool
        past : ExactModel, SampledModel or None
            The model that training continues from.
        n_seen : int, default=0
            Number of other rows that this model has seen.
        grows : bool, default=False
            Whether these are the first rows of a stream. If so, functions are not chosen for them
            alone.
        noise_variance : float, array-like of shape (n,), or None
            Known noise of the rows, in squared units of the target.
        """
        settings, (n, t) = Settings.of(self, kernel=self._own_kernel(X)), Y.shape
        shared = noise_variance is not None and getattr(self, "normalize_y", None) == "auto"
        units = self.standardize, normalize_y, settings.kernel, shared, likelihood.heavy_tails
        scaling = self._scaling if past else scaling_of(X, Y, *units)
        noise = self._noise_of(noise_variance, n, scaling, likelihood, past is None)
        source = RowSource(X, Y, scaling, torch.float64, run.device, noise)
        points = past.functions.points if past else self._points(X, source, run.random_state)
        most = 0 if past or grows else settings.pivots(likelihood, n)
        plan = make_plan(
            settings, likelihood, n, None if points is None else len(points), past, most
        )
        check_room(plan, n, t, run, stepwise=isinstance(settings.basis, str))
        report(plan, settings, likelihood, n, run)
        self.likelihood_ = likelihood
        self._keep_scaling(scaling)
        run.begin(X, Y, seen=n_seen)

        trained = Trained(None, "converged", 0)
        if past is None:
            # The basis is drawn first, so that it does not depend on the number of rows.
            seed = int(run.random_state.randint(2**31 - 1))

            def process(start: Start) -> ExactModel:
                rows, begun = (start.X, start.Y, _PROCESS_STEPS, start.known), run.budget.seconds

                def late() -> bool:
                    spent = run.budget.seconds - begun
                    hasty = run.budget.ended == "interrupted" and spent > _INTERRUPTED_SECONDS
                    return run.budget.left == 0 or hasty

                return exact_process(start.kernel, likelihood, *rows, late)

            # The error of random features is proportional to the signal's variance.
            largest = LARGEST_FEATURE_SIGNAL if plan.basis == "fourier" else None
            start = first_rows(settings, likelihood, source, run, largest)
            run.budget.reserve("weights")
            with run.stage("start", optional=True):
                start = trained_start(
                    start,
                    settings,
                    likelihood,
                    run,
                    lambda model, at: model._keep(process(at)),
                    smooth=not plan.exact,
                )
            kernel, n_iter = start.kernel, start.n_iter
            trained = Trained(None, start.reason, 0)
        else:
            report_past(settings, run)
            kernel, n_iter = past.functions.kernel, 0
        if not run.stopped:
            fit = Fit(settings, plan, source, likelihood, run, past, n_seen)
            compiled = compile_kernel(kernel, fit.d)
            few = fit.source.rows(slice(0, _CURVATURE_ROWS))[1].double()
            known = fit.source.known(slice(0, _CURVATURE_ROWS))
            site = Site.of(likelihood, noise_of(compiled, compiled.theta0), few, known)
            functions = None
            if past is not None:
                functions = past.functions
            elif plan.basis == "pivots":
                with run.stage("functions", optional=True):
                    functions = self._chosen(plan, kernel, source, site, run)
            elif plan.basis == "points":
                functions = Functions.at(kernel, points)
            else:
                functions = Functions.fourier(
                    kernel, fit.d, plan.n_components, plan.components, seed
                )
            if functions is not None:
                trained = _TRAIN[plan.method](fit, functions, site)
        model = trained.model
        if model is None:
            # Training ended before its first step. The model is that of the start's rows, or the
            # past one.
            model = run.finish("start's rows", lambda: past or process(start))
        self._keep(model)
        run.ended(
            trained.reason,
            n_iter=n_iter + trained.n_iter,
            planned=plan.planned,
            rate="variational_learning_rate",
        )
        run.reports(summary=plan.summary(model.functions.n_components))
        if model.inference == "stochastic":
            run.reports(epochs=trained.n_iter * plan.rows / n)

    def _noise_of(
        self, noise_variance: Any, n: int, scaling: Scaling, likelihood: Likelihood, reset: bool
    ) -> np.ndarray | None:
        """Known noise of the rows in the model's units; None for classifiers."""
        return None

    def _chosen(
        self, plan: Plan, kernel: Any, source: RowSource, site: Site, run: FitRun
    ) -> Functions:
        """Kernel functions at rows that determine the function at the other rows."""
        X = source.rows(slice(None))[0]
        tol = _LEFT_OPEN / site.curvature
        rows, left = pivots(
            compile_kernel(kernel, X.shape[1]), X, plan.n_components, tol, run.budget.check
        )
        why = "given these, every row's variance is below a hundredth of the noise"
        if left > tol:
            why = f"as many as a few seconds allow for {len(X):,} rows"
        run.chose("n_components", len(rows), why)
        run.chose("n_dense", len(rows), "solved exactly")
        return Functions.at(kernel, X[rows].cpu().numpy())

    def _points(
        self, X: np.ndarray, source: RowSource, random_state: np.random.RandomState
    ) -> np.ndarray | None:
        """Points of a kernel basis in the model's units; None if the settings name none."""
        if isinstance(self.basis, str) and self.basis != "rows":
            return None
        if isinstance(self.basis, str):
            rows: Any = slice(None)
            if self.n_components != "auto" and self.n_components < len(X):
                rows = np.sort(random_state.permutation(len(X))[: self.n_components])
            return source.rows(rows)[0].cpu().numpy()
        points = check_points("basis", self.basis, X.shape[1])
        return source.scaling.inputs(points, torch.float64, torch.device("cpu")).numpy()

    def _check_growing(self) -> None:
        if isinstance(self.basis, str) and self.basis == "rows":
            raise ValueError(
                f'{type(self).__name__}.partial_fit cannot add rows to basis="rows", whose '
                'functions are the rows themselves: use basis="fourier", or an array of points.'
            )

    def _past(self, X: np.ndarray, t: int) -> Any:
        """The model that `fit` continues from with warm_start; None for a table that differs."""
        if not (self.warm_start and "_state" in vars(self)):
            return None
        state, points = self._state, self._state.functions.points
        if X.shape[1] != len(self._scaling.x_mean) or t != state.n_targets:
            return None
        settings = Settings.of(self)
        pivots = settings.pivots(self.likelihood_, len(X)) > 0
        fourier = isinstance(self.basis, str) and self.basis != "rows" and not pivots
        if fourier != (points is None):
            return None
        if isinstance(self.basis, str) and not fourier:
            # Functions at the rows of another table do not suit this one.
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


def scaling_of(
    X: np.ndarray,
    Y: np.ndarray,
    standardize: bool,
    normalize_y: bool,
    kernel: Any,
    shared: bool = False,
    robust: bool = False,
) -> Scaling:
    """Units of the model, from one pass over the data; codes of categories keep theirs."""
    d = X.shape[1]
    mean, scale = column_moments(X, robust=True) if standardize else (np.zeros(d), np.ones(d))
    coded = [] if kernel is None else compile_kernel(kernel, d).coded
    mean[coded], scale[coded] = 0.0, 1.0
    return Scaling(mean, scale, *target_moments(Y, normalize_y, shared, robust))
