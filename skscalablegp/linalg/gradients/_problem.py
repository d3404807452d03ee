"""The data and the kernel of a regression, without hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import TorchKernel
from ..operators import KernelOperator, Workspace, kernel_operator, slope
from ._rows import Rows


@dataclass(frozen=True)
class GPProblem:
    """Data and kernel of one Gaussian-process regression.

    Attributes
    ----------
    kernel : TorchKernel
        The compiled kernel.
    rows : Rows
        The samples, in the units of the model; their dtype and device are those of all products.
    keep : bool
        Whether operators store H rather than evaluate tiles at each product.
    workspace : Workspace
        What computes products, and the buffer that all operators of the problem share, so that only
        the last one is valid.
    products : {"tiles", "compiled", "keops"}
        How operators compute products without storage.
    prior_weight : float
        Weight of the log prior in training. On rows that stand for a larger table it is their share
        of the table, so that prior and likelihood have the same proportions as on all rows.
    pair_weight : float
        Weight of what merged rows add to the likelihood of their means, as in `random_part`.
    tied : ndarray of shape (p,) or None
        Numbers, from 0, of the groups of hyperparameters that training moves together: the
        differences of their logarithms remain. None moves each by itself.
    """

    # Whether `X` and `Y` are the rows themselves, rather than a summary of them.
    has_rows: ClassVar[bool] = True

    kernel: TorchKernel
    rows: Rows
    keep: bool = True
    workspace: Workspace = field(default_factory=Workspace, repr=False)
    prior_weight: float = 1.0
    products: str = "tiles"
    pair_weight: float = 1.0
    tied: np.ndarray | None = None

    @property
    def X(self) -> Float[Tensor, "n d"]:
        """The inputs."""
        return self.rows.X

    @property
    def Y(self) -> Float[Tensor, "n t"]:
        """The targets."""
        return self.rows.Y

    def operator(self, theta: Float[Tensor, " p"]) -> KernelOperator:
        """H at these hyperparameters; it replaces the problem's former operators."""
        return kernel_operator(
            self.kernel,
            theta,
            self.X,
            self.rows.noise,
            keep=self.keep,
            workspace=self.workspace,
            products=self.products,
            counts=self.rows.weight,
        )

    def total(self, work: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
        """The sums over all parts of the rows of ``work(part, *args)``.

        A problem in one process is its own only part. If ranks have rows of their own, each adds
        up those for its part, which is a problem, too; `work` is then a function of a module.
        """
        return work(self, *args)

    def blocks(self, size: int) -> Iterator[Rows]:
        """As `Rows.blocks`."""
        return self.rows.blocks(size)

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """The answers ``work(part, *args)`` for each part of the rows, in their order."""
        return [work(self, *args)]

    def whole(self) -> GPProblem:
        """The same regression with all rows in this process, for methods that need few rows."""
        return self

    def row_noise(
        self, theta: Float[Tensor, " p"], rows: Tensor | slice = slice(None)
    ) -> Float[Tensor, " m"]:
        """Noise variances of single observations at some rows; differentiable in theta."""
        some = self.rows.take(rows)
        return self.kernel.noise(theta, some.X) + some.noise

    def noise(
        self, theta: Float[Tensor, " p"], rows: Tensor | slice = slice(None)
    ) -> Float[Tensor, " m"]:
        """Noise variances of Y at some rows, which are means if rows have been merged."""
        some = self.rows.take(rows)
        return some.noise_of_means(self.kernel.noise(theta, some.X) + some.noise)

    def repeated_at(
        self, theta: Float[Tensor, " p"], rows: Tensor | slice = slice(None)
    ) -> Float[Tensor, " m"]:
        """What each of some rows adds to the log likelihood if rows have been merged."""
        some = self.rows.take(rows)
        single = self.kernel.noise(theta, some.X) + some.noise
        return self.pair_weight * some.log_density(single)

    def repeated(
        self, theta: Float[Tensor, " p"], eval_gradient: bool = True
    ) -> tuple[float, Float[Tensor, " p"]]:
        """What merged rows add to the log likelihood of their means, and its gradient; O(n)."""
        at = theta.detach().double().cpu()
        if not self.rows.merged:  # Beside few rows two passes through noise take long.
            return 0.0, torch.zeros_like(at)
        with torch.set_grad_enabled(eval_gradient):
            at = at.clone().requires_grad_(eval_gradient)
            value = self.to(torch.float64).repeated_at(at).sum()
            grad = slope(value, at) if eval_gradient else torch.zeros_like(at)
        return float(value.detach()), grad.cpu()

    def subset(self, idx: Int[Tensor, " b"]) -> GPProblem:
        """The same regression on a subset of the rows, which stands for all of them."""
        weight = self.prior_weight * len(idx) / len(self.X)
        rows, workspace = self.rows.take(idx), Workspace(self.workspace.device)
        return replace(self, rows=rows, workspace=workspace, prior_weight=weight)

    def random_part(self, idx: Int[Tensor, " b"]) -> GPProblem:
        """The same regression on random rows of the table.

        Merged rows are rarer there than in the table: of n rows, 3 % of which are copies, 1,000
        random ones hardly have a pair. With all copies of the 1,000 rows, equal targets would
        reduce the noise to nothing, because so few rows tell noise from fine structure badly.
        """
        part = self.subset(idx)
        share = len(idx) / len(self.X)
        return replace(part, pair_weight=share * self.pair_weight)

    def log_prior(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The weighted log density of theta under the kernel's priors, and its gradient."""
        value, grad = self.kernel.log_prior(theta)
        return self.prior_weight * value, self.prior_weight * grad

    def to(self, dtype: torch.dtype) -> GPProblem:
        """The same regression in another precision."""
        workspace = Workspace(self.workspace.device)
        return replace(self, rows=self.rows.to(dtype), workspace=workspace)
