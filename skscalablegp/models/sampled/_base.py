"""What the quadruply stochastic estimators share: from a table to a posterior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from ...core import FitRun
from ...core.data import RowSource
from ...core.likelihoods import Likelihood
from ...core.posteriors import Posterior
from ...kernels import compile_kernel
from ._basis import SampledBasis
from ._dual import dual_diagonal, dual_state, make_dual_stepper
from ._exact import exact_process, exact_state, full_batch, optimum
from ._fit import Fit
from ._plan import Settings, check_room, make_plan, report, report_past
from ._site import Site
from ._start import Start, noise_of, starting_point
from ._steps import calibrates, fitted_stepper_scales, make_stepper, state_of
from ._trained import Trained, build_posterior, make_basis, scaling_of

# Rows that the typical curvature of a likelihood comes from.
_CURVATURE_ROWS = 1000
# Newton steps of the exact process on the start's rows.
_PROCESS_STEPS = 30


class QSGPMixin:
    """Training and fitted attributes; a subclass reads tables and answers predictions."""

    def _train(
        self,
        run: FitRun,
        X: np.ndarray,
        Y: np.ndarray,
        likelihood: Likelihood,
        normalize_y: bool,
        past: Trained | None,
        n_seen: int = 0,
    ) -> None:
        """Plan, exact start, and training to the end, on (n, t) targets.

        Parameters
        ----------
        run : FitRun
        X, Y : ndarray of shape (n, d), (n, t)
        likelihood : Likelihood
        normalize_y : bool
        past : Trained or None
            What the fit goes on from.
        n_seen : int, default=0
            Other rows that the past has seen.
        """
        settings = replace(Settings.of(self), kernel=self._own_kernel(X))
        units = self.standardize, normalize_y, settings.kernel
        scaling = self._scaling if past else scaling_of(X, Y, *units)
        source = RowSource(X, Y, scaling, torch.float64, run.device)
        points = past.points if past else self._points(X, source, run.random_state)
        n, t = Y.shape
        m = None if points is None else len(points)
        plan = make_plan(settings, likelihood, n, m, past)
        check_room(plan, n, t, run, stepwise=isinstance(settings.basis, str))
        report(plan, settings, likelihood, n, run)
        self.likelihood_ = likelihood
        self._keep_scaling(scaling)
        run.begin(X, Y, seen=n_seen)

        n_iter = 0
        if past is None:
            # The basis first: it is then the same for any number of rows.
            seed = int(run.random_state.randint(2**31 - 1))

            def process(start: Start) -> Trained:
                return exact_process(start.kernel, likelihood, start.X, start.Y, _PROCESS_STEPS)

            with run.stage("start"):
                start = starting_point(
                    settings, likelihood, source, run, lambda model, at: model._keep(process(at))
                )
            kernel, n_iter, reason = start.kernel, start.n_iter, start.reason
        else:
            report_past(run)
            kernel, seed, reason = past.kernel, past.seed, "converged"
        state = None
        if not run.stopped:
            fit = Fit(settings, plan, source, likelihood, run, points, past, n_seen)
            compiled = compile_kernel(kernel, fit.d)
            basis = make_basis(
                compiled,
                None if points is None else torch.as_tensor(points),
                plan.n_components,
                plan.components,
                seed,
                plan.dtype,
                run.device,
                None if past is None else past.block,
            )
            few = fit.source.rows(slice(0, _CURVATURE_ROWS))[1].double()
            site = Site.of(likelihood, noise_of(compiled, compiled.theta0), few)
            train = {"exact": self._exact, "steps": self._steps, "dual": self._dual}[plan.method]
            state, reason, steps = train(fit, kernel, basis, site, seed)
            n_iter += steps
        if state is None:
            # Training ended before it had begun: the start's rows have a model, or the past is one.
            def rest() -> Trained:
                return past or process(start)

            state = run.finish("start's rows", rest)
        self._keep(state)
        run.ended(reason, n_iter=n_iter, planned=plan.planned, rate="variational_learning_rate")
        run.reports(summary=str(plan))

    def _exact(
        self, fit: Fit, kernel: Any, basis: SampledBasis, site: Site, seed: int
    ) -> tuple[Trained | None, str, int]:
        """Full batches: the state, why they ended, and the steps."""
        run = fit.run
        # Of rows that it has already seen, a posterior is no prior.
        past = fit.past if fit.n_seen > 0 else None
        batch = None
        with run.stage("basis", optional=True):
            X, Y = fit.source.rows(slice(None))
            batch = full_batch(basis, site, X, Y, past, run)
        if batch is None:
            return None, run.monitor.stopped, 0

        def state(q: Any, bound: float) -> Trained:
            return exact_state(kernel, basis, batch, q, bound, seed, fit.points, past)

        def seen(q: Any, bound: float) -> None:
            run.preview = lambda model, step: model._keep(state(q, bound))

        theta = basis.kernel.theta0.numpy()
        with torch.no_grad():
            found = optimum(batch, fit.plan.steps, run, theta, seen)
        kept = None if found.q is None else state(found.q, found.bound)
        return kept, found.reason, found.n_iter

    def _steps(
        self, fit: Fit, kernel: Any, basis: SampledBasis, site: Site, seed: int
    ) -> tuple[Trained | None, str, int]:
        """Steps of sampled rows and functions."""
        run, stepper, scales = fit.run, None, None
        rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
        with run.stage("support", optional=True):
            stepper = make_stepper(fit, basis, site, rng)
        if stepper is None:
            return None, run.monitor.stopped, 0

        def show(model: Any, score: float) -> None:
            model._keep(state_of(fit, stepper, kernel, seed, score))

        result = fit.drive(stepper, show)
        if calibrates(fit):
            with run.stage("calibration", optional=True):
                scales = fitted_stepper_scales(fit, stepper)
        if stepper.hyperparameters is not None and result.n_steps and not run.stopped:
            with run.stage("squares", optional=True):
                theta = torch.as_tensor(stepper.theta()).to(run.device)
                stepper.squares = fit.squares(basis, stepper.support, rng, theta)
        state = run.finish(
            "weights", lambda: state_of(fit, stepper, kernel, seed, result.score, scales)
        )
        return state, result.stop_reason, result.n_steps

    def _dual(
        self, fit: Fit, kernel: Any, basis: SampledBasis, site: Site, seed: int
    ) -> tuple[Trained | None, str, int]:
        """Steps for kernel functions at all rows."""
        run, stepper = fit.run, None
        rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
        with run.stage("support", optional=True):
            stepper = make_dual_stepper(fit, basis, site, rng)
        if stepper is None:
            return None, run.monitor.stopped, 0

        def state(rng: np.random.Generator) -> Trained:
            with torch.no_grad():
                diagonal: Tensor = dual_diagonal(fit, basis, site, stepper.support, rng)
                return dual_state(fit, stepper, kernel, seed, diagonal)

        def show(model: Any, score: float) -> None:
            model._keep(state(np.random.default_rng(0)))

        result = fit.drive(stepper, show)
        kept = run.finish("weights", lambda: state(rng))
        return kept, result.stop_reason, result.n_steps

    def _points(
        self, X: np.ndarray, source: RowSource, random_state: np.random.RandomState
    ) -> np.ndarray | None:
        """Points of a kernel basis in the model's units."""
        if isinstance(self.basis, str) and self.basis == "fourier":
            return None
        if isinstance(self.basis, str):
            rows: Any = slice(None)
            if self.n_components != "auto" and self.n_components < len(X):
                rows = np.sort(random_state.permutation(len(X))[: self.n_components])
            return source.rows(rows)[0].cpu().numpy()
        points = check_array(self.basis, dtype=np.float64, input_name="basis")
        if points.shape[1] != X.shape[1]:
            raise ValueError(
                f"basis has points of {points.shape[1]} columns, but X has {X.shape[1]}."
            )
        return source.scaling.inputs(points, torch.float64, torch.device("cpu")).numpy()

    def _check_growing(self) -> None:
        if isinstance(self.basis, str) and self.basis == "rows":
            raise ValueError(
                'partial_fit cannot add to basis="rows", whose functions are the rows: use '
                'basis="fourier", or an array of points.'
            )

    def _past(self, X: np.ndarray, t: int) -> Trained | None:
        """What `fit` goes on from, if it is to and this table can."""
        if not (self.warm_start and "_state" in vars(self)):
            return None
        state, fourier = self._state, isinstance(self.basis, str) and self.basis == "fourier"
        if X.shape[1] != len(self._scaling.x_mean) or t != state.mean.shape[2]:
            return None
        if fourier != (state.points is None):
            return None
        if isinstance(self.basis, str) and not fourier:
            rows = self._scaling.inputs(X, torch.float64, torch.device("cpu")).numpy()
            return state if np.array_equal(rows, state.points) else None
        return state

    def _keep(self, state: Trained) -> None:
        self._state = state
        self.kernel_ = state.kernel
        self.coef_ = state.mean.reshape(-1, state.mean.shape[2])
        self.inference_ = "exact" if state.exact else "stochastic"
        self.n_basis_ = len(self.coef_)
        self.lower_bound_ = state.lower_bound
        self.dtype_ = state.dtype

    def _build_posterior(self) -> Posterior:
        return build_posterior(self._state, self.n_features_in_, self._fit_device())
