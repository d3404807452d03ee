"""What the quadruply stochastic estimators share: parameters, and from a table to a posterior."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array

from ..._compat import FitEvents, Interval, StrOptions
from ...core import make_monitor, seeded, shared_parameters, training_device, unfinished, warn_once
from ...core.data import RowSource, Scaling
from ...core.likelihoods import Likelihood
from ...core.training import Monitor
from ...kernels import compile_kernel
from ._dual import dual_fit
from ._exact import exact_fit
from ._fit import Fit
from ._optimizers import SPARSE_OPTIMIZERS
from ._posterior import ChevronPosterior
from ._site import Site
from ._start import noise_of
from ._state import Trained, build_posterior, make_basis, scaling_of
from ._steps import stochastic_fit

# Rows that the typical curvature of a likelihood comes from.
_CURVATURE_ROWS = 1000

_AUTO = StrOptions({"auto"})
_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")

COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "n_features": [Interval(Integral, 2, None, closed="left"), _AUTO],
    "n_dense": [Interval(Integral, 0, None, closed="left"), _AUTO],
    "feature_batch_size": [_COUNT, _AUTO],
    "control_variate_rank": [_COUNT, _AUTO],
    "inference": [StrOptions({"auto", "exact", "stochastic"})],
    "variational_optimizer": [StrOptions(set(SPARSE_OPTIMIZERS))],
    "decay": [Interval(Real, 0, 1, closed="right")],
    "optimizer": [StrOptions({"auto", "adam"}), None],
    "hyperparameter_learning_rate": [Interval(Real, 0, None, closed="left")],
    "freeze": [Interval(Real, 0, 1, closed="both")],
    "subset_size": [_COUNT],
    "standardize": ["boolean"],
    "warm_start": ["boolean"],
} | shared_parameters(
    "kernel",
    "n_restarts_optimizer",
    "random_state",
    "learning_rate",
    "max_iter",
    "n_iter_no_change",
    "batch_size",
    "memory_budget",
    "device",
    "dtype",
    "callbacks",
    "max_seconds",
    "verbose",
)


def train_model(fit: Fit, start: Trained | None = None, n_seen: int = 0) -> Trained:
    """Train from the beginning, or go on from `start`, which has seen `n_seen` other rows."""
    if start is None:
        # The basis first: it is then the same for any number of rows.
        seed = int(fit.random_state.randint(2**31 - 1))
        kernel = fit.hyperparameters()
    else:
        fit.start_from(start)
        kernel, seed = start.kernel, start.seed
    rng = np.random.default_rng(fit.random_state.randint(2**31 - 1))
    compiled = compile_kernel(kernel, fit.d)
    points = None if fit.points is None else torch.as_tensor(fit.points)
    basis = make_basis(
        fit.est, compiled, fit.plan, seed, points, None if start is None else start.block
    )
    few = fit.source.rows(slice(0, _CURVATURE_ROWS))[1].double()
    site = Site.of(fit.likelihood, noise_of(compiled, compiled.theta0), few)
    if fit.plan.exact:
        return exact_fit(fit, kernel, basis, site, seed, start, n_seen)
    if points is not None:
        return dual_fit(fit, kernel, basis, site, seed, rng, start, n_seen)
    return stochastic_fit(fit, kernel, compiled, basis, site, seed, rng, start, n_seen)


class QSGPMixin:
    """Training and fitted attributes; a subclass reads tables and answers predictions."""

    _fast_products = False

    def _fitted(self) -> bool:
        return hasattr(self, "_state")

    def _points(
        self, X: np.ndarray, source: RowSource, random_state: np.random.RandomState
    ) -> np.ndarray | None:
        """Points of a kernel basis in the model's units."""
        if isinstance(self.basis, str) and self.basis == "fourier":
            return None
        if isinstance(self.basis, str):
            rows: Any = slice(None)
            if self.n_features != "auto" and self.n_features < len(X):
                rows = np.sort(random_state.permutation(len(X))[: self.n_features])
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
        if not (self.warm_start and self._fitted()):
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

    def _train_on(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        likelihood: Likelihood,
        normalize_y: bool,
        start: Trained | None,
        n_seen: int = 0,
    ) -> None:
        """Train on (n, t) targets; fitted attributes change only when that has succeeded."""
        monitor = make_monitor(self)
        random_state, _ = seeded(self.random_state)
        events = FitEvents(self, X, Y)
        monitor.callbacks = [*monitor.callbacks, lambda step: events.step()]
        scaling = scaling_of(self, X, Y, normalize_y) if start is None else self._scaling
        source = RowSource(X, Y, scaling, torch.float64, training_device(self.device))
        points = self._points(X, source, random_state) if start is None else start.points
        try:
            fit = Fit(self, source, likelihood, points, monitor, random_state)
            state = train_model(fit, start, n_seen)
        finally:
            monitor.close()
        self.likelihood_ = likelihood
        self._keep(state, monitor, scaling)
        warn_once(unfinished(state.stop_reason, self, f"{state.n_steps} steps"))
        events.end()

    def _keep(self, state: Trained, monitor: Monitor, scaling: Scaling) -> None:
        self._state = state
        self.kernel_ = state.kernel
        self.coef_ = state.mean.reshape(-1, state.mean.shape[2])
        self.inference_ = "exact" if state.exact else "stochastic"
        self.n_basis_ = len(self.coef_)
        self.lower_bound_ = -state.score
        self.n_iter_ = state.n_steps
        self.history_ = monitor.history()
        self.device_, self.dtype_ = str(training_device(self.device)), state.plan["dtype"]
        self.solver_info_ = {
            "status": state.stop_reason,
            "stop_reason": state.stop_reason,
            "plan": state.summary,
        }
        self._keep_scaling(scaling)
        self._remember(None)

    def _build_posterior(self) -> ChevronPosterior:
        return build_posterior(self, self._state)
