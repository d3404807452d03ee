"""What is being fitted: rows, targets, known noise and the kernel's form, without any theta."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import TorchKernel
from ..operators import KernelOperator, Workspace


@dataclass(frozen=True)
class GPProblem:
    """Data and kernel of one Gaussian-process regression.

    Attributes
    ----------
    kernel : TorchKernel
        The compiled kernel.
    X : Tensor of shape (n, d)
        Rows; their dtype and device are those of all products.
    Y : Tensor of shape (n, t)
        Targets as the model sees them (centred and scaled where asked).
    extra_noise : Tensor of shape (n,) or None
        Known noise variances in the units of Y squared.
    keep : bool
        Whether operators keep H instead of evaluating tiles at each product.
    """

    kernel: TorchKernel
    X: Float[Tensor, "n d"]
    Y: Float[Tensor, "n t"]
    extra_noise: Float[Tensor, " n"] | None = None
    keep: bool = True
    workspace: Workspace = field(default_factory=Workspace, repr=False)

    def operator(self, theta: Float[Tensor, " p"]) -> KernelOperator:
        """H at these hyperparameters; shares one buffer with the operators before it."""
        return KernelOperator(
            self.kernel, theta, self.X, self.extra_noise, keep=self.keep, workspace=self.workspace
        )

    def subset(self, idx: Int[Tensor, " b"]) -> GPProblem:
        """The same regression on some of the rows."""
        noise = None if self.extra_noise is None else self.extra_noise[idx]
        return replace(self, X=self.X[idx], Y=self.Y[idx], extra_noise=noise, workspace=Workspace())

    def to(self, dtype: torch.dtype) -> GPProblem:
        """The same regression in another precision."""
        noise = None if self.extra_noise is None else self.extra_noise.to(dtype)
        return replace(
            self, X=self.X.to(dtype), Y=self.Y.to(dtype), extra_noise=noise, workspace=Workspace()
        )
