"""The posterior of a model with inducing points."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...core.likelihoods import Gaussian, Likelihood
from ...core.posteriors import Dense, KernelFeatures, LinearPosterior, MeanAndVariance
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._bound import WhitenedBelief, Whitening


class InducingPosterior(LinearPosterior):
    """The process given a belief about whitened inducing values; keeps no training rows.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    Z : Tensor of shape (m, d)
        Inducing points in the kernel's units, on the device of predictions.
    belief : WhitenedBelief
        q(v). The targets of a regressor share one covariance.
    likelihood : Likelihood, optional
        For the additive noise of new observations; Gaussian by default.
    transform : nn.Module, optional
        Applied to rows before the kernel.

    Notes
    -----
    Building it costs O(m^3). A mean costs O(m) per row, and a variance O(m^2). Titsias (2009),
    equation 6.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Float64[Tensor, " p"],
        Z: Float64[Tensor, "m d"],
        belief: WhitenedBelief,
        likelihood: Likelihood | None = None,
        transform: nn.Module | None = None,
    ):
        self.likelihood = likelihood or Gaussian()
        factor = self.likelihood.variance_factor()
        with torch.no_grad():
            whiten = Dense(Whitening.at(kernel, theta, Z).inverse.T)
        root = Dense(torch.stack([cholesky_with_jitter(S)[0] for S in belief.covariance]))
        super().__init__(
            KernelFeatures(kernel, theta, Z, factor, plain=False),
            belief.mean,
            root,
            learned=transform is not None,
            process=(kernel, theta, whiten),
            transform=transform,
            constant=belief.constant,
        )

    def latent_moments(self, X: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor]:
        """Means (b, q) and variances (b, s) of the latent functions."""
        mean, variance, _ = self.linear.latent_moments(X.double())
        return mean, variance.mT

    def leave_copies_out(self, rows, X, Y, known, copies) -> MeanAndVariance | None:
        """A row tells the inducing values alone, so that its own target is all that it takes."""
        if not copies.stay.any():
            return super().leave_copies_out(rows, X, Y, known, copies)
        place = copies.place
        return self.leave_one_out(rows[place], X[place], copies.Y, known[place])
