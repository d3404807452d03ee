"""What all stages of one training share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._fast_columns import FastColumn
from .training import Budget, Monitor


class Run:
    """The monitor and the random generators that all stages of one training share.

    Parameters
    ----------
    monitor : Monitor
    generator : torch.Generator
        For random numbers from torch.
    random_state : RandomState
        For random numbers from NumPy and scikit-learn.
    """

    # The fast column of the table, where a start sees only some of its rows.
    fast: FastColumn | None = None

    def __init__(
        self, monitor: Monitor, generator: torch.Generator, random_state: np.random.RandomState
    ):
        self.monitor, self.generator, self.random_state = monitor, generator, random_state

    @property
    def restarts(self) -> np.random.RandomState:
        """Generator of additional starting points of an optimiser."""
        return self.random_state

    @property
    def budget(self) -> Budget:
        """The time that the fit may take, and what has ended it."""
        return self.monitor.budget

    def silent(self, share: str | float) -> Run:
        """A run for auxiliary fits, with a share of the remaining time.

        Callbacks do not see its steps; an interrupt ends both runs.
        """
        monitor = Monitor(budget=self.budget.share(share))
        run = Run(monitor, self.generator, self.random_state)
        run.fast = self.fast
        return run

    def reports(self, **facts: Any) -> None:
        """Add entries to the report of the fit, if this run has one."""
