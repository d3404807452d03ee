"""The rows, decisions and driver that all ways of training share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import FitRun
from ...core.data import RowSource
from ...core.likelihoods import Likelihood
from ...core.training import Stepper, StepsResult, train_steps
from ...kernels import TorchKernel
from ._basis import BasisPart, SampledBasis
from ._optimizers import SPARSE_OPTIMIZERS, SparseOptimizer
from ._plan import Plan, Settings
from ._support import SupportRows, by_unit

# Number of rows from which |phi_r|^2 is estimated, and the largest number of values computed for
# it.
_SQUARES_ROWS = 2_000
_SQUARES_WORK = 2e9
# Number of scores in one training.
_CHECKS = 20
# Steps become smaller when the score is this far below the best one, in nats per row.
_WORSE = 0.02


class Trained(NamedTuple):
    """The result of training.

    Attributes
    ----------
    model : ExactModel, SampledModel or None
        None if training ended before its first step.
    reason : str
        Why training ended.
    n_iter : int
        Number of steps.
    """

    model: Any
    reason: str
    n_iter: int


class Fit:
    """The rows and decisions of one fit.

    Parameters
    ----------
    settings : Settings
    plan : Plan
    source : RowSource
        Rows in the model's units.
    likelihood : Likelihood
    run : FitRun
    past : ExactModel or SampledModel, optional
        The model that training continues from.
    n_seen : int, default=0
        Number of other rows that this model has seen.
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        source: RowSource,
        likelihood: Likelihood,
        run: FitRun,
        past: Any = None,
        n_seen: int = 0,
    ):
        self.settings, self.plan, self.likelihood, self.run = settings, plan, likelihood, run
        self.past, self.n_seen = past, n_seen
        self.n, self.d, self.t = *source.X.shape, source.Y.shape[1]
        self.source = replace(source, dtype=plan.dtype, _resident=None).resident()
        self._chosen: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n_total(self) -> int:
        """Number of rows of the model."""
        return self.n + self.n_seen

    def parts(self, basis: SampledBasis, units: int) -> Iterator[BasisPart]:
        """The whole basis in parts; checks the time after each."""
        for part in basis.parts(units):
            yield part
            self.run.budget.check()

    def check_range(self, K: Tensor) -> None:
        """Refuse a covariance (s, s) whose sum over all rows overflows in the steps' precision.

        Raises
        ------
        ValueError
        """
        name = str(self.plan.dtype).removeprefix("torch.")
        if not float(K.abs().max()) < torch.finfo(self.plan.dtype).max / max(self.n, 1):
            raise ValueError(
                f"The kernel's variance is too large for steps in {name}, as it is for large "
                'targets: use normalize_y=True, smaller units of y, or dtype="float64".'
            )

    def support(self, compiled: TorchKernel) -> SupportRows:
        """The support rows, those of the past model if there is one, and rows for the scores."""
        theta = compiled.theta0.to(self.source.device)
        if self.past is not None and self.plan.method == "steps":
            X, Y = torch.as_tensor(self.past.support_X), torch.as_tensor(self.past.support_Y)
            known = 0.0
        else:
            X, Y = self.source.rows(self.split()[0])
            known = self.source.known(self.split()[0])
        return SupportRows(
            compiled,
            theta,
            X.to(self.source.device, self.plan.dtype),
            Y.to(self.source.device, self.plan.dtype),
            *self.source.rows(self.split()[1]),
            known,
            self.source.known(self.split()[1]),
        )

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the support rows and of the scores' rows, disjoint if rows suffice."""
        if self._chosen is None:
            s, order = self.plan.support, self.run.random_state.permutation(self.n)
            check = order[s:] if s < self.n else order
            self._chosen = np.sort(order[:s]), np.sort(check[: max(50, s // 2)])
        return self._chosen

    def optimizer(self) -> SparseOptimizer:
        """The optimiser of the variational parameters."""
        settings, steps = self.settings, self.plan.steps
        kind = SPARSE_OPTIMIZERS[settings.variational_optimizer]
        return kind(settings.rate, settings.decay, steps, self.run.budget.spent)

    def drive(
        self, stepper: Stepper, show: Callable[[Any, float], None] | None = None
    ) -> StepsResult:
        """Take all steps.

        `show` sets the current model and its score in a copy of the estimator. Without it callbacks
        receive no model.
        """
        run, steps = self.run, self.plan.steps
        run.preview = None
        if show is not None:
            run.preview = lambda model, step: show(model, -step.objective)
        run.monitor.begin("batches", _CHECKS + 2, objective=stepper.objective_name)
        return train_steps(
            stepper,
            max_steps=steps,
            check_every=max(1, steps // _CHECKS),
            monitor=run.monitor,
            n_iter_no_change=self.settings.n_iter_no_change,
            epochs_per_step=self.plan.rows / self.n,
            retreat=_WORSE,
        )

    def squares(self, basis: SampledBasis, theta: Tensor, rng: np.random.Generator) -> Tensor:
        """|phi_r|^2 over all rows, estimated from some of them; checks the time."""
        size = int(min(self.n, _SQUARES_ROWS, max(50, _SQUARES_WORK // basis.n_features)))
        X, _ = self.source.rows(np.sort(rng.choice(self.n, size, replace=False)))
        out = torch.empty(basis.per_unit, basis.n_units).to(X)
        with torch.no_grad():
            for part in self.parts(basis, max(1, 2**24 // (basis.per_unit * size))):
                phi = by_unit(part.evaluate(theta, X), basis.per_unit)
                out[:, part.index] = phi.square().mean(0) * self.n_total
        return out
