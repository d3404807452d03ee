"""The likelihood of rows, with their noise variances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.likelihoods import CONSTANT_VARIANCE, Likelihood, LikelihoodTerms
from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ...linalg.operators import ONE, noise_of_means


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
    counts : Tensor of shape (b,) or (), default=1
        How many equal rows each row stands for.
    constant : Tensor of shape (t,) or float
        Constants of the latent functions, which are added to f.
    constant_variance : float
        Variance of their normal prior; 0 if they are not trained.
    """

    likelihood: Likelihood
    variance: float
    curvature: float
    known: Tensor | float = 0.0
    counts: Float[Tensor, "*#b"] = ONE
    constant: Tensor | float = 0.0
    constant_variance: float = 0.0

    moving: ClassVar[tuple[str, ...]] = ("variance", "curvature", "constant")

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

    def learning_constants(self, Y: Float[Tensor, "n t"], counts: Any = None) -> NoiseAtRows:
        """The same with constants that explain the targets, around which they are trained."""
        constant = self.likelihood.constant(Y, Y.shape[1], counts).to(torch.float64)
        return replace(self, constant=constant, constant_variance=CONSTANT_VARIANCE)

    def moved(self, change: Float[Tensor, "b t"]) -> NoiseAtRows:
        """The same after a change of the dual weights of some rows.

        A constant has a kernel of its own, its variance.
        """
        if self.constant_variance == 0:
            return self
        step = self.constant_variance * change.sum(0)
        return replace(self, constant=self.constant + step.to(self.constant))

    def latent(self, f: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """f (b, t), or the functions of one target, with the constants."""
        return f + torch.as_tensor(self.constant).to(f)

    def at(self, rows: Rows) -> NoiseAtRows:
        """The same likelihood at some rows, with their noise and weights."""
        return replace(self, known=rows.noise, counts=rows.weight)

    def variances(self, Y: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """The noise variances of single rows."""
        return _constant(self.variance, Y) + self.known

    def variances_of_means(self, Y: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """The noise variances of the means of the rows that each row stands for."""
        single = self.variances(Y)
        return noise_of_means(single, self.counts.to(single))

    def counted(self, values: Tensor) -> Tensor:
        """Values of single rows (b, ...), times the number of rows that each stands for."""
        return values * self.counts.to(values).reshape(-1, *[1] * (values.ndim - 1))

    @property
    def gaussian(self) -> bool:
        """Whether E log p is quadratic in the mean, which makes products of two draws unbiased."""
        return self.likelihood.conjugate

    def terms(
        self, Y: Float[Tensor, "b t"], mean: Float[Tensor, "b t"], variance: Float[Tensor, "b 1"]
    ) -> LikelihoodTerms:
        """The expectation of log p for f ~ N(mean, variance) plus the constants.

        It comes with its derivatives. Rows that stand for several have the sums over these.
        """
        terms = self.likelihood.expected(Y, self.latent(mean), variance, self.variances(Y))
        return LikelihoodTerms(*map(self.counted, terms))


def _constant(variance: float, Y: Tensor) -> Float[Tensor, " b"]:
    # In double precision, so that single precision rounds only once.
    return torch.full((len(Y),), variance, dtype=torch.float64, device=Y.device)


def noise_of(kernel: TorchKernel, theta: Tensor) -> float:
    """The variance of the kernel's white noise."""
    row = torch.zeros(1, kernel.n_features, dtype=torch.float64)
    with torch.no_grad():
        return float(kernel.noise(theta.cpu(), row)[0])
