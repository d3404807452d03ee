"""The rows and settings that all ways of training share, and the driver of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._end import End
from ...core import FitRun
from ...core.data import RowSource, whole_groups, with_equal_inputs
from ...core.training import StepsResult, train_steps
from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ._basis import SampledBasis
from ._optimizers import SparseAdaGrad, SparseSGD
from ._plan import StepPlan
from ._stepper import SampledStepper
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
    reason : End
        Why training ended.
    n_iter : int
        Number of steps.
    """

    model: Any
    reason: End
    n_iter: int


@dataclass(eq=False)
class Fit:
    """The rows and settings of one fit.

    Attributes
    ----------
    source : RowSource
        Rows in the model's units; they are converted to the precision of training.
    run : FitRun
    steps : StepPlan or None
        None for full batches.
    past : ExactModel, SampledModel or None
        The model that training continues from.
    n_seen : float
        Number of other rows that this model has seen.
    """

    source: RowSource
    run: FitRun
    steps: StepPlan | None = None
    past: Any = None
    n_seen: float = 0

    def __post_init__(self) -> None:
        dtype = torch.float64 if self.steps is None else self.steps.torch_dtype
        self.source = self.source.converted(dtype).resident()
        self.n, self.d, self.t = len(self.source), self.source.X.shape[1], self.source.Y.shape[1]

    @property
    def n_rows(self) -> float:
        """Number of rows of the model, or the sum of their weights."""
        return self.source.n_rows + self.n_seen

    @property
    def n_total(self) -> float:
        """Number of rows of the model, where rows of the table are counted once."""
        return self.n * (self.n_rows / self.source.n_rows)

    @property
    def calibrates(self) -> bool:
        """Whether the scores' rows are held out of batches to fit the scale of the variances.

        They are not after a warm start, because the past model was already trained on them.
        """
        return self.steps.calibrates and (self.past is None or self.n_seen > 0)

    def evaluations(
        self, basis: SampledBasis, theta: Tensor, X: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole basis at some rows, in parts; checks the time after each."""
        for found in basis.evaluations(theta, X):
            yield found
            self.run.budget.check()

    def check_range(self, K: Tensor) -> None:
        """Refuse a covariance (s, s) whose sum over all rows overflows in the steps' precision.

        Raises
        ------
        ValueError
        """
        if not float(K.abs().max()) < torch.finfo(self.source.dtype).max / max(self.n, 1):
            raise ValueError(
                f"The kernel's variance is too large for steps in {self.steps.dtype.value}, as it "
                "is for large targets: use normalize_y=True, smaller units of y, or "
                'dtype="float64".'
            )

    @cached_property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the support rows and of the scores' rows, disjoint if rows suffice."""
        s, order = self.steps.control_variate_rank.value, self.run.random_state.permutation(self.n)
        order, groups = with_equal_inputs(order, self.source.X, self.source.weight)
        first = s if s < self.n else 0
        end = whole_groups(groups, min(first + max(50, s // 2), self.n))
        return np.sort(order[:s]), np.sort(order[first:end])

    def support(self, compiled: TorchKernel) -> SupportRows:
        """The support rows, those of the past model if there is one, and rows for the scores."""
        source, (support, check) = self.source, self.split
        if self.past is not None and not self.steps.dual:
            arrays = self.past.support_X, self.past.support_Y
            X, Y = (torch.as_tensor(a).to(source.device, source.dtype) for a in arrays)
            rows = Rows.of(X, Y, weight=self._past_counts())
        else:
            rows = source.take(support)
        theta = compiled.theta0.to(source.device)
        return SupportRows(compiled, theta, rows, source.take(check))

    def share(self, support: SupportRows) -> np.ndarray:
        """Counts of the support rows in units of their mean in the table."""
        return support.rows.weight.double().cpu().numpy() * (self.n_total / self.n_rows)

    def _past_counts(self) -> Tensor:
        """Counts of the past model's support rows, where the mean count is that of this table."""
        return torch.as_tensor(self.past.shares * (self.n_rows / self.n_total))

    def optimizer(self) -> SparseSGD:
        """The optimiser of the variational parameters."""
        steps = self.steps
        kind = SparseAdaGrad if steps.adaptive else SparseSGD
        rate = steps.variational_learning_rate.value
        return kind(rate, steps.decay, steps.n_steps, self.run.budget.spent)

    def drive(self, stepper: SampledStepper, show: Callable[[Any, float], None]) -> StepsResult:
        """Take all steps; `show` sets the model and its score in a copy of the estimator."""
        run, steps = self.run, self.steps
        run.preview = lambda model, step: show(model, -step.objective)
        run.monitor.begin("batches", _CHECKS + 2, objective=stepper.objective_name)
        return train_steps(
            stepper,
            max_steps=steps.n_steps,
            check_every=max(1, steps.n_steps // _CHECKS),
            monitor=run.monitor,
            n_iter_no_change=steps.n_iter_no_change,
            epochs_per_step=steps.batch_size / self.n,
            keep_best=not stepper.ascends,
            retreat=None if stepper.ascends else _WORSE,
        )

    def squares(self, basis: SampledBasis, theta: Tensor, rng: np.random.Generator) -> Tensor:
        """|phi_r|^2 over all rows, estimated from some of them; checks the time."""
        size = int(min(self.n, _SQUARES_ROWS, max(50, _SQUARES_WORK // basis.n_features)))
        rows = np.sort(rng.choice(self.n, size, replace=False))
        some = self.source.take(rows)
        out = torch.empty(basis.per_unit, basis.n_units).to(some.X)
        for index, phi in self.evaluations(basis, theta, some.X):
            square = by_unit(phi, basis.per_unit).square() * some.weight[:, None, None]
            out[:, index] = square.mean(0) * self.n_total
        return out
