"""A dictionary of kernel functions, each with its own prior precision."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ...core.data import RowSource
from ...core.training import Monitor
from ...kernels import TorchKernel
from ._basis import KernelFunctions
from ._site import noise_of
from ._stepper import QSGPStepper

# Number of rows in a block of the moments.
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The functions k(x, x_i) / k(x_i, x_i) at some rows x_i, and the precisions of their weights.

    Attributes
    ----------
    kernel : TorchKernel
    source : RowSource
        The table.
    rows : ndarray of shape (m,)
        The numbers of these rows.
    points : Tensor of shape (m, d)
        The rows, in the model's units.
    amplitude : Tensor of shape (m,)
        k(x_i, x_i).
    precision : ndarray of shape (m,)
        s_i.
    noise : float
        Initial noise variance.
    unit : float
        Mean square of the targets.
    """

    kernel: TorchKernel
    source: RowSource
    rows: np.ndarray
    points: Float64[Tensor, "m d"]
    amplitude: Float64[Tensor, " m"]
    precision: np.ndarray
    noise: float
    unit: float

    @classmethod
    def of(cls, kernel: TorchKernel, source: RowSource, rows: np.ndarray) -> Dictionary:
        """A dictionary of functions at given rows of a table."""
        unit = float(np.mean([float(Y.square().mean()) for _, Y in source.blocks()])) or 1.0
        points, noise = source.rows(rows)[0], noise_of(kernel, kernel.theta0)
        amplitude = own_values(kernel, points)
        ones = np.full(len(rows), 1.0 / unit)
        return cls(kernel, source, rows, points, amplitude, ones, noise, unit)

    def __len__(self) -> int:
        return len(self.rows)

    def _kept(self, keep: np.ndarray, precision: np.ndarray) -> Dictionary:
        at = torch.as_tensor(keep).to(self.points.device)
        return replace(
            self,
            rows=self.rows[keep],
            points=self.points[at],
            amplitude=self.amplitude[at],
            precision=precision[keep],
        )

    def scaled(self, dtype: torch.dtype) -> KernelFunctions:
        """The functions, scaled so that their prior precisions are 1."""
        scale = 1 / (self.amplitude.cpu().numpy() * np.sqrt(self.precision))
        return KernelFunctions(self.kernel, self.points.to(dtype), torch.as_tensor(scale).to(dtype))

    def after(self, stepper: QSGPStepper, largest: float) -> Dictionary:
        """The dictionary with the best precisions for the weights of a stepper (appendix I.3).

        Functions of a precision above `largest` are dropped.
        """
        mean, diagonal = stepper.folded()[0].cpu().numpy(), stepper.diagonal()[0].cpu().numpy()
        second = (np.square(mean).mean(1) + np.square(diagonal)) / self.precision
        new = 1 / np.maximum(second, 1e-300)
        keep = new < largest
        if not keep.any():
            keep[np.argmin(new)] = True
        return self._kept(keep, new)

    def most_relevant(self, most: int) -> Dictionary:
        """The functions of the smallest s_i, at most `most` of them."""
        if len(self) <= most:
            return self
        keep = np.sort(np.argsort(self.precision, kind="stable")[:most])
        return self._kept(keep, self.precision)

    def without(self, rows: np.ndarray) -> Dictionary:
        """The functions at all but some rows."""
        return self._kept(np.flatnonzero(~np.isin(self.rows, rows)), self.precision)

    def moments(self, source: RowSource, monitor: Monitor) -> tuple[Tensor, Tensor, float, int]:
        """Phi'Phi, Phi'Y, the sum of squares of Y, and the number of their rows; O(n m^2).

        When the time is up or an interrupt comes, the rows end with the current block.
        """
        m, t, points = len(self), source.Y.shape[1], self.points
        gram = torch.zeros(m, m, dtype=torch.float64, device=points.device)
        projection = torch.zeros(m, t, dtype=torch.float64, device=points.device)
        square, n, theta = 0.0, 0, self.kernel.theta0
        with torch.no_grad():
            for X, Y in source.blocks(_ROWS):
                phi = self.kernel.cross(theta, X, points) / self.amplitude
                gram += phi.T @ phi
                projection += phi.T @ Y
                square, n = square + float(Y.square().sum()), n + len(X)
                if n < len(source) and monitor.seconds_left == 0:
                    monitor.end("max_seconds")
                    break
                if monitor.stopped == "interrupted":
                    break
        return gram, projection, max(square, 1e-300), n


def own_values(kernel: TorchKernel, points: Tensor) -> Tensor:
    """k(x_i, x_i), the values of the functions at their own rows; 1 where a function is zero."""
    with torch.no_grad():
        values = kernel.diag(kernel.theta0.to(points.device), points).double()
    return torch.where(values > 0, values, torch.ones_like(values))
