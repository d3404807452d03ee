"""The likelihood of rows, with their noise variances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.likelihoods import Likelihood, LikelihoodTerms
from ...kernels import TorchKernel


@dataclass(frozen=True)
class NoiseAtRows:
    """log p(y | f) of some rows, concave in f (Evans and Nair 2020, appendix H).

    Attributes
    ----------
    likelihood : Likelihood
    variance : float
        Noise variance that all rows have; 0 for a likelihood without additive noise.
    curvature : float
        Typical curvature of minus log p, by which step sizes are scaled.
    known : Tensor of shape (b,) or float
        Known noise of the rows, in addition to `variance`.
    """

    likelihood: Likelihood
    variance: float
    curvature: float
    known: Tensor | float = 0.0

    moving: ClassVar[tuple[str, ...]] = ("variance", "curvature")

    @classmethod
    def of(
        cls,
        likelihood: Likelihood,
        variance: float,
        Y: Float[Tensor, "n t"],
        known: Tensor | float = 0.0,
    ) -> NoiseAtRows:
        """The curvature is computed from the targets of some rows.

        `known` is the known noise of these rows, which the result does not keep.

        Raises
        ------
        ValueError
            For additive noise without a variance.
        """
        if not likelihood.additive:
            variance = 0.0
        elif not variance > 0:
            raise ValueError(
                f"likelihood={likelihood!r} needs a positive noise variance, got {variance!r}: "
                "use a kernel with a WhiteKernel of a positive noise_level."
            )
        return cls(likelihood, variance, likelihood.curvature(Y, _constant(variance, Y) + known))

    def at(self, known: Tensor | float) -> NoiseAtRows:
        """The same likelihood for rows of known noise."""
        return replace(self, known=known)

    def variances(self, Y: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """The rows' noise variances."""
        return _constant(self.variance, Y) + self.known

    @property
    def gaussian(self) -> bool:
        """Whether E log p is quadratic in the mean, which makes products of two draws unbiased."""
        return self.likelihood.conjugate

    def terms(
        self, Y: Float[Tensor, "b t"], mean: Float[Tensor, "b t"], variance: Float[Tensor, "b 1"]
    ) -> LikelihoodTerms:
        """The expectation of log p for f ~ N(mean, variance), and its derivatives."""
        return self.likelihood.expected(Y, mean, variance, self.variances(Y))


def _constant(variance: float, Y: Tensor) -> Float[Tensor, " b"]:
    # In double precision, so that single precision rounds only once.
    return torch.full((len(Y),), variance, dtype=torch.float64, device=Y.device)


def noise_of(kernel: TorchKernel, theta: Tensor) -> float:
    """The variance of the kernel's white noise."""
    row = torch.zeros(1, kernel.n_features, dtype=torch.float64)
    with torch.no_grad():
        return float(kernel.noise(theta.cpu(), row)[0])
