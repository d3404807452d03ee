"""The white noise of a deep kernel as a function of its hyperparameters, and the inverse."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel
from torch import Tensor

from ...kernels import TorchKernel, compile_kernel

# Upper bound of a noise variance that the kernel does not specify, in units of the normalised
# target.
LARGEST_NOISE = 1e3
# A level of noise that other white noise leaves no room for, as a factor of the present one.
_NO_ROOM = 1e-300


def with_white_noise(kernel: Kernel, width: int, noise: float, least: float) -> TorchKernel:
    """The kernel on the outputs of a network, with white noise added if it has none.

    Parameters
    ----------
    kernel : Kernel
    width : int
        Number of outputs of the network.
    noise, least : float
        Starting value and lower bound of the noise variance that is added.

    Raises
    ------
    ValueError
        For a kernel of noise alone, and for noise that differs between rows.
    """
    compiled = compile_kernel(kernel, width)
    if not compiled.node.products():
        raise ValueError(
            f"kernel={kernel} is noise alone and has no function to learn: add a kernel such as "
            "RBF() to it."
        )
    first, second = compiled.noise(compiled.theta0, torch.arange(2.0)[:, None].expand(2, width))
    if first != second:
        raise ValueError(
            f"kernel={kernel} multiplies a WhiteKernel by a kernel whose variance differs between "
            "rows, but features need the same noise in all rows: add the WhiteKernel instead, or "
            "give the rows' variances to fit as noise_variance."
        )
    if float(first) > 0:
        return compiled
    return compile_kernel(kernel + WhiteKernel(noise, (least, LARGEST_NOISE)), width)


class WhiteNoise:
    """The noise variance s2 of a kernel, which is the same in all rows.

    Training moves s2 rather than noise levels, because exact passes give its optimum. The levels
    that are not fixed follow by a common factor.

    Parameters
    ----------
    kernel : TorchKernel

    Attributes
    ----------
    free : Tensor of bool, of shape (p,)
        The entries of theta that are noise levels.
    tied : bool
        Whether the noise follows from other hyperparameters: all levels are fixed, but multiplied
        by a constant that is not.
    """

    def __init__(self, kernel: TorchKernel):
        self.kernel = kernel
        free = [part for part in kernel.kernel.hyperparameters if not part.fixed]
        marks = [[part.name.endswith("noise_level")] * part.n_elements for part in free]
        self.free = torch.tensor(sum(marks, []), dtype=torch.bool)
        theta = kernel.theta0
        self.tied = not bool(self.free.any()) and self.at(theta) != self.at(theta + 1)

    def log(self, theta: Float64[Tensor, " p"]) -> Float64[Tensor, ""]:
        """log s2 at theta, differentiable."""
        return self.kernel.noise(theta, theta.new_zeros(1, self.kernel.n_features))[0].log()

    def at(self, theta: Float64[Tensor, " p"]) -> float:
        """s2 at theta."""
        return float(self.log(theta.detach()).exp())

    def bounds(self, theta: Float64[Tensor, " p"]) -> tuple[float, float]:
        """The smallest and the largest s2 that the bounds of the levels allow at theta."""
        low, high = (self._levels(theta, end) for end in self.kernel.bounds.T)
        return self.at(low), self.at(high)

    def _levels(self, theta: Tensor, levels: Tensor | float) -> Float64[Tensor, " p"]:
        theta = theta.detach().cpu()
        return torch.where(self.free, torch.as_tensor(levels, dtype=theta.dtype), theta)

    def moved(self, theta: Float64[Tensor, " p"], noise: float) -> Float64[Tensor, " p"]:
        """theta with levels at which s2 is `noise`, as far as their bounds permit."""
        fixed = self.at(self._levels(theta, -math.inf))
        now = self.at(theta) - fixed
        if not now > 0:
            return theta.detach().clone()
        factor = math.log(max((noise - fixed) / now, _NO_ROOM))
        levels = (theta.detach().cpu() + factor).clamp(*self.kernel.bounds.T)
        return self._levels(theta, levels).to(theta.device)
