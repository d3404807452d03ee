"""What every way of training a quadruply stochastic model begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._validation import resolve_device
from ...core.data import RowSource
from ...core.likelihoods import Likelihood
from ...core.training import Monitor, Stepper, StepsResult, train_steps
from ...kernels import TorchKernel, compile_kernel
from ._basis import SampledBasis
from ._optimizers import SPARSE_OPTIMIZERS, SparseOptimizer
from ._plan import check_room, make_plan
from ._site import Site
from ._start import scaled_signal, starting_kernel, subset_kernel
from ._state import Trained
from ._support import SupportRows, by_unit

# What a learning rate of "auto" is.
_RATES = {"preconditioned": 1.0, "adagrad": 0.1, "adam": 0.01}
# Rows that estimate |phi_r|^2, and the numbers that this may take.
_SQUARES_ROWS = 2_000
_SQUARES_WORK = 2e9
# Scores taken in one training.
_CHECKS = 20
# Fewer rows are all trained on; of more some choose the scale of variances.
_HELD_FROM = 2_000
# Rows, or their share if that is more, which then are not support rows.
_HELD, _HELD_SHARE = 200, 0.1
# Nats a row by which a score may be worse than the best before steps become smaller.
_WORSE = 0.02


class Fit:
    """One fit, in parts; `est` gives the parameters and is not changed."""

    def __init__(
        self,
        est: Any,
        source: RowSource,
        likelihood: Likelihood,
        points: np.ndarray | None,
        monitor: Monitor,
        random_state: np.random.RandomState,
    ):
        self.est, self.likelihood, self.monitor = est, likelihood, monitor
        self.points = points
        self.random_state = random_state
        self._chosen: tuple[np.ndarray, np.ndarray] | None = None
        # Why the start was the end, if so: what follows then only makes a model of it.
        self.stopped: str | None = None
        n, d = source.X.shape
        self.device = resolve_device(est.device)
        t = source.Y.shape[1]
        self.n, self.d, self.t = n, d, t
        m = None if points is None else len(points)
        self.plan = make_plan(est, n, d, t, m, self.device)
        self.calibrates = (
            points is None
            and not self.plan.exact
            and est.covariance == "support"
            and likelihood.additive
            and n >= _HELD_FROM
        )
        if self.calibrates:
            most = max(1, n - max(_HELD, int(_HELD_SHARE * n)))
            self.plan = replace(self.plan, support=min(self.plan.support, most))
        dtype = self.plan.dtype
        self.source = RowSource(source.X, source.Y, source.scaling, dtype, self.device).resident()

    def start_from(self, start: Trained) -> None:
        """The size of a model that goes on is that of its past."""
        q, units, c = start.dense.shape
        self.plan = replace(self.plan, exact=start.exact, n_features=q * units, n_dense=c)
        check_room(self.plan, self.est, self.n, self.t, self.device)

    def check_range(self, K: Tensor) -> None:
        """Refuse covariances (s, s) whose sums over all rows the steps' precision cannot hold.

        Raises
        ------
        ValueError
        """
        name = str(self.plan.dtype).removeprefix("torch.")
        if not float(K.abs().max()) < torch.finfo(self.plan.dtype).max / max(self.n, 1):
            raise ValueError(
                f"The kernel's variance is too large for steps in {name}, as it is where the "
                'targets are: use normalize_y=True, smaller units of y, or dtype="float64".'
            )

    def _subset(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.random_state.permutation(self.n)[: min(size, self.n)]
        X, Y = RowSource(self.source.X, self.source.Y, self.source.scaling, torch.float64).rows(
            np.sort(rows)
        )
        return X.numpy(), Y.numpy()

    def hyperparameters(self) -> Any:
        """The kernel of the exact start; O(subset_size^3) a step."""
        est = self.est
        X, Y = self._subset(est.subset_size)
        targets = self.likelihood.start_targets(torch.as_tensor(Y)).numpy()
        kernel = starting_kernel(est.kernel, X, targets)
        compile_kernel(kernel, self.d)
        if est.optimizer is not None and len(X) > 1 and np.ptp(targets) > 0:
            steps = 12 if len(X) <= 200 else 100
            kernel, self.stopped = subset_kernel(
                kernel, X, targets, steps, self.monitor, self.random_state, est.n_restarts_optimizer
            )
            if not self.likelihood.additive:
                site = Site(self.likelihood, 0.0, 1.0)
                kernel = scaled_signal(kernel, site, X, Y, est.kernel is not None)
        return kernel

    def support(self, start: Trained | None, compiled: TorchKernel) -> SupportRows:
        """Support rows, those of the past where there is one, and rows for the scores."""
        theta = compiled.theta0.to(self.device)
        if start is not None and len(start.support_X):
            X, Y = torch.as_tensor(start.support_X), torch.as_tensor(start.support_Y)
        else:
            X, Y = self.source.rows(self.split()[0])
        return SupportRows.at(
            compiled,
            theta,
            X.to(self.device, self.plan.dtype),
            Y.to(self.device, self.plan.dtype),
            *self.source.rows(self.split()[1]),
        )

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the support rows and of those of the scores, others where there are others."""
        if self._chosen is None:
            s, order = self.plan.support, self.random_state.permutation(self.n)
            check = order[s:] if s < self.n else order
            self._chosen = np.sort(order[:s]), np.sort(check[: max(50, s // 2)])
        return self._chosen

    def optimizer(self, steps: int) -> SparseOptimizer:
        """Of the variational parameters."""
        est = self.est
        name = est.variational_optimizer
        rate = _RATES[name] if est.learning_rate == "auto" else est.learning_rate
        return SPARSE_OPTIMIZERS[name](rate, est.decay, steps, self.monitor.spent)

    def drive(self, stepper: Stepper) -> StepsResult:
        """All steps, or none where the start was stopped."""
        est, steps = self.est, self.plan.steps
        self.monitor.begin("batches", _CHECKS + 2)
        result = train_steps(
            stepper,
            max_steps=0 if self.stopped else steps,
            check_every=max(1, steps // _CHECKS),
            monitor=self.monitor,
            n_iter_no_change=est.n_iter_no_change,
            epochs_per_step=self.plan.rows / self.n,
            retreat=_WORSE,
        )
        return replace(result, stop_reason=self.stopped or result.stop_reason)

    def squares(
        self,
        basis: SampledBasis,
        support: SupportRows,
        rng: np.random.Generator,
        n: int,
        theta: Tensor | None = None,
    ) -> Tensor:
        """|phi_r|^2 over all rows, from some of them; once, not a step."""
        theta = support.theta if theta is None else theta
        size = int(min(self.n, _SQUARES_ROWS, max(50, _SQUARES_WORK // basis.n_features)))
        X, _ = self.source.rows(np.sort(rng.choice(self.n, size, replace=False)))
        out = torch.empty(basis.per_unit, basis.n_units).to(X)
        with torch.no_grad():
            for part in basis.parts(max(1, 2**24 // (basis.per_unit * size))):
                phi = by_unit(part.evaluate(theta, X), basis.per_unit)
                out[:, part.index] = phi.square().mean(0) * n
        return out
