"""What regressors and classifiers with inducing points share."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel

from ..._compat import FitEvents, Interval
from ..._validation import check_inducing, check_memory, resolve_dtype
from ...core import (
    budget_of,
    make_monitor,
    seeded,
    shared_parameters,
    stop_after,
    unfinished,
    warn_once,
)
from ...core.data import RowSource, Scaling
from ...core.likelihoods import Gaussian, Likelihood
from ...features import Network, make_network, network_from_numpy, network_to_numpy
from ...kernels import compile_kernel, default_kernel
from ._bound import WhitenedBelief
from ._posterior import InducingPosterior, InducingSpace
from ._selection import INDUCING_METHODS
from ._stepper import SparseModel, SparseRows, SparseSettings
from ._training import START_ROWS, SparseFit, absorb, exact_start, train_sparse

# Up to so many rows products are float64.
_FLOAT64_ROWS = 3000
_BATCH = 1024
_EPOCHS = 8
# Fewest steps of tables up to 200 rows, and of larger ones; most steps.
_STEPS = (30, 80, 400)

PARAMETERS = shared_parameters(
    "kernel",
    "random_state",
    "learning_rate",
    "max_iter",
    "batch_size",
    "memory_budget",
    "device",
    "dtype",
    "callbacks",
    "max_seconds",
    "verbose",
) | {
    "n_inducing": [Interval(Integral, 1, None, closed="left"), str],
    "inducing": [str, "array-like"],
    "optimize_inducing": ["boolean"],
    "likelihood": [str, Likelihood],
    "feature_extractor": [None, "array-like", callable],
    "optimizer": [str, None],
    "natural_rate": [Interval(Real, 0, 1, closed="right")],
}


class SparseMixin:
    """Settings from parameters, training, and fitted attributes; the tables are the subclass's."""

    _largest_default = 512

    # ------------------------------------------------------------------ what parameters mean

    def _n_inducing(self, n: int) -> int:
        if isinstance(self.n_inducing, str):
            if self.n_inducing != "auto":
                raise ValueError(f"n_inducing must be a number or 'auto', got {self.n_inducing!r}.")
            return min(n, self._largest_default)
        return min(n, int(self.n_inducing))

    def _sparse_settings(self, n: int, scaling: Scaling) -> SparseSettings:
        if self.optimizer not in ("natural", "adam", None):
            raise ValueError(
                f"Unknown optimizer {self.optimizer!r}: use 'natural' (natural gradients for the "
                "variational distribution), 'adam', or None to keep the kernel as it is."
            )
        inducing = self.inducing
        if isinstance(inducing, str):
            if inducing not in INDUCING_METHODS:
                raise ValueError(
                    f"Unknown inducing={inducing!r}: use one of {INDUCING_METHODS} or an array of "
                    "shape (m, d)."
                )
            m = self._n_inducing(n)
        else:
            inducing = check_inducing(inducing, len(scaling.x_mean))
            inducing = (inducing - scaling.x_mean) / scaling.x_scale
            m = len(inducing)
        batch = min(n, _BATCH if self.batch_size == "auto" else int(self.batch_size))
        steps = self.max_iter
        if steps == "auto":
            fewest = _STEPS[0] if n <= 200 else _STEPS[1]
            steps = int(np.clip(_EPOCHS * n / batch, fewest, _STEPS[2]))
        rate = 0.05 if self.learning_rate == "auto" else float(self.learning_rate)
        return SparseSettings(
            m,
            inducing,
            self.optimize_inducing,
            self.optimizer,
            batch,
            int(steps),
            rate,
            float(self.natural_rate),
        )

    def _network(self, d: int) -> Network | None:
        extractor = self.feature_extractor
        return None if extractor is None else make_network(d, extractor)

    def _check_sizes(self, m: int, n_factors: int, batch: int) -> None:
        check_memory(
            8 * m * m * (6 + 6 * n_factors) + 8 * m * batch * (4 + 2 * n_factors),
            f"{m} inducing points with {n_factors} covariances of {m} x {m}",
            f"use fewer, for example n_inducing={max(1, m // 4)}",
            budget_of(self.memory_budget),
        )

    def _kernel_and_scaling(
        self, scaling: Scaling, network: Network | None, unit: float, likelihood: Likelihood
    ) -> tuple[Kernel, Scaling]:
        """The kernel in its own units, and what rows pass through before it.

        Rows keep their units where the kernel sees them, but for a shift that stationary kernels
        do not notice and single precision needs; a network gets standardised ones.
        """
        d = len(scaling.x_mean)
        width, spread = (d, scaling.x_scale) if network is None else (network.n_features, 1.0)
        if self.kernel is None:
            kernel = self._default_kernel(width, spread, unit, likelihood)
        else:
            kernel = clone(self.kernel)
        if network is not None:
            return kernel, scaling
        shift = scaling.x_mean if compile_kernel(kernel, d).stationary else np.zeros(d)
        return kernel, replace(scaling, x_mean=shift, x_scale=np.ones(d))

    def _default_kernel(
        self, width: int, spread: Any, unit: float, likelihood: Likelihood
    ) -> Kernel:
        """With white noise where that is the likelihood's."""
        kernel = default_kernel(width, spread, unit)
        return kernel if likelihood.additive else kernel.k1

    # ------------------------------------------------------------------ training

    def _train_sparse(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        noise: np.ndarray,
        scaling: Scaling,
        likelihood: Likelihood,
        n_outputs: int,
        device: torch.device,
    ) -> tuple[SparseModel, SparseRows, SparseFit]:
        """Fit, and set every fitted attribute when that has succeeded."""
        monitor = make_monitor(self)
        _, generator = seeded(self.random_state)
        n, d = X.shape
        network = self._network(d)
        noisy = likelihood.additive
        targets = (Y - scaling.y_mean) / scaling.y_scale
        if not noisy:
            targets = likelihood.start_targets(torch.as_tensor(targets)).numpy()
        unit = float(np.mean(np.square(targets)))
        unit = unit if np.isfinite(unit) and unit > 0 else 1.0
        kernel, inputs = self._kernel_and_scaling(scaling, network, unit, likelihood)
        compiled = compile_kernel(kernel, d if network is None else network.n_features)
        settings = self._sparse_settings(n, inputs)
        dtype = resolve_dtype(self.dtype, n, threshold=_FLOAT64_ROWS)
        source = RowSource(X, Y, inputs, dtype, device).resident()
        rows = SparseRows(source, torch.as_tensor(noise).to(device, dtype))
        model = SparseModel(compiled, likelihood, n_outputs, network)
        self._check_sizes(settings.n_inducing, model.n_factors, settings.batch_size)
        self._check_rows(model, rows, X)
        weights = [] if network is None else network.initial(generator, dtype)
        weights = [w.to(device) for w in weights]
        events = FitEvents(self, X, Y)
        monitor.callbacks = [*monitor.callbacks, lambda step: events.step()]
        try:
            theta, done, reason = self._start(model, rows, settings, monitor, generator)
            started = done > 0 and self.kernel is None
            if reason is not None:
                # The exact likelihood of all rows is what the bound is with all rows as points;
                # after an interrupt, too, nothing is left to train.
                settings = replace(settings, max_iter=0)
            fit = train_sparse(
                model,
                rows,
                theta.to(device),
                weights,
                settings,
                monitor,
                generator,
                unit if noisy and started and reason is None and likelihood.conjugate else None,
            )
        finally:
            monitor.close()
        fit = replace(
            fit,
            n_iter=fit.n_iter + done,
            stop_reason=fit.stop_reason if reason is None else reason,
        )
        self._keep(model, fit, inputs, monitor, settings, source)
        events.end()
        steps = f"{fit.n_iter} steps"
        warn_once(unfinished(fit.stop_reason, self, steps))
        return model, rows, fit

    def _check_rows(self, model: SparseModel, rows: SparseRows, X: np.ndarray) -> None:
        """Refuse rows that this likelihood cannot take."""

    def _start(self, model, rows, settings, monitor, generator):
        """Starting theta, evaluations spent, and why training ended if that was all of it."""
        kernel, n = model.kernel, len(rows)
        if self.optimizer is None or kernel.n_params == 0:
            return kernel.theta0, 0, None
        whole = (
            n <= min(START_ROWS, settings.n_inducing)
            and isinstance(settings.inducing, str)
            and model.likelihood.conjugate
            and model.network is None
            and settings.optimizer == "natural"
        )
        steps = min(settings.max_iter, 50)
        if not whole and (self.kernel is not None or model.network is not None or n < 100):
            return kernel.theta0, 0, None
        chosen = torch.randperm(n, generator=generator)[:START_ROWS].sort().values
        X, Y, noise = rows.take(chosen)
        if whole:
            result = exact_start(kernel, X, Y, noise, monitor, generator, steps)
            return torch.as_tensor(result.theta), result.n_iter, result.stop_reason
        targets = self._start_targets(model, Y)
        theta, result = self._subset_theta(model, X, targets, noise, monitor, generator, steps)
        return theta, result.n_iter, stop_after(result.stop_reason)

    def _start_targets(self, model: SparseModel, Y: torch.Tensor) -> torch.Tensor:
        return model.likelihood.start_targets(Y)

    def _subset_theta(self, model, X, Y, noise, monitor, generator, steps):
        """Theta of the default kernel from a few rows, and how their training ended."""
        kernel, p = model.kernel, model.kernel.n_params
        if not model.likelihood.additive:
            # A regression needs noise, which comes last among its parameters.
            unit = float(Y.square().mean()) or 1.0
            noisy = kernel.kernel + WhiteKernel(0.1 * unit, (1e-5 * unit, 1e5 * unit))
            kernel = compile_kernel(noisy, kernel.n_features)
        result = exact_start(kernel, X, Y, noise, monitor, generator, steps)
        return torch.as_tensor(result.theta[:p]), result

    # ------------------------------------------------------------------ fitted state

    def _keep(self, model, fit: SparseFit, inputs, monitor, settings, source) -> None:
        self._remember(None)
        dtype, device, n = source.dtype, source.device, len(source)
        kernel = model.kernel
        self._keep_scaling(inputs)
        self.kernel_ = kernel.to_sklearn(fit.theta.cpu())
        self.likelihood_ = model.likelihood
        # Single precision is where points were trained, double is where they are used.
        Z = fit.Z.cpu().double().numpy()
        self.inducing_points_ = Z if model.network is not None else Z + inputs.x_mean
        self._set_belief(fit.belief)
        self._weights = network_to_numpy(fit.weights)
        self.log_marginal_likelihood_value_ = fit.value
        self.n_iter_ = fit.n_iter
        self.n_rows_seen_ = n
        self.history_ = monitor.history()
        failed = fit.stop_reason in ("diverged", "max_seconds", "interrupted")
        self.solver_info_ = {
            "status": fit.stop_reason if failed else "converged",
            "epochs": 0.0,
            "stop_reason": fit.stop_reason,
            "plan": f"{len(Z)} inducing points, batches of {settings.batch_size}, up to "
            f"{settings.max_iter} steps in {str(dtype).removeprefix('torch.')} on {device}",
        }
        self.device_, self.dtype_ = str(device), str(dtype).removeprefix("torch.")

    def _set_belief(self, belief: WhitenedBelief) -> None:
        self.variational_mean_ = belief.mean.cpu().numpy()
        self.variational_cov_ = belief.covariance.cpu().numpy()

    def _model_points(self) -> torch.Tensor:
        """Inducing points as the kernel takes them."""
        shift = 0.0 if self._weights else self._scaling.x_mean
        return torch.tensor(self.inducing_points_ - shift)

    def _belief(self) -> WhitenedBelief:
        S = torch.tensor(self.variational_cov_)
        return WhitenedBelief(torch.tensor(self.variational_mean_), S, torch.linalg.slogdet(S)[1])

    def _build_posterior(self) -> InducingPosterior:
        """The posterior from fitted attributes alone, float64 on the CPU."""
        network = self._network(self.n_features_in_)
        width = self.n_features_in_ if network is None else network.n_features
        kernel = compile_kernel(self.kernel_, width)
        transform = None
        if network is not None:
            weights = network_from_numpy(self._weights)

            def transform(X):
                return network(weights, X)

        space = InducingSpace(
            kernel, kernel.theta0, self._model_points(), torch.device("cpu"), transform
        )
        noise = self.likelihood_ if self.likelihood_.additive else Gaussian()
        return InducingPosterior(space, self._belief(), noise)

    def _absorb(self, X: np.ndarray, Y: np.ndarray, noise: np.ndarray, n_outputs: int) -> None:
        """Further rows into the belief; hyperparameters and inducing points stay."""
        network = self._network(self.n_features_in_)
        width = self.n_features_in_ if network is None else network.n_features
        kernel = compile_kernel(self.kernel_, width)
        source = RowSource(X, Y, self._scaling, torch.float64)
        rows = SparseRows(source, torch.as_tensor(noise))
        model = SparseModel(kernel, self.likelihood_, n_outputs, network)
        self._check_rows(model, rows, X)
        weights = network_from_numpy(self._weights)
        Z = self._model_points()
        held = SparseFit(kernel.theta0, Z, weights, self._belief(), 0.0, 0, "")
        belief = absorb(model, rows, held, torch.Generator().manual_seed(self.n_rows_seen_))
        self._remember(None)
        self._set_belief(belief)
        self.n_rows_seen_ += len(X)
