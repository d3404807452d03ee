"""Empirical Bayes along with the variational parameters: Adam on sampled ELBO gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from ...kernels import TorchKernel
from ._basis import BasisPart
from ._bounds import (
    BasisDraw,
    Projection,
    likelihood_bound,
    mean_estimate,
    sampled_squares,
    sampled_variance,
)
from ._site import Site

# Steps from one change of theta to the next.
EVERY = 10


class SampledHyperparameters:
    """Frozen at first, then Adam with exponential decay.

    The control variate keeps the basis of the start (appendix F.3), so that what is known at the
    support rows stays known.

    Parameters
    ----------
    kernel : TorchKernel
    freeze : int
        Steps before the first change.
    learning_rate : float
        Of Adam at its first step.
    decay : float
        Of the learning rate over all steps.
    n_steps : int
        Steps in all.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        freeze: int,
        learning_rate: float,
        decay: float,
        n_steps: int,
    ):
        self.kernel, self.freeze = kernel, freeze
        self.learning_rate = learning_rate
        self.decay = decay ** (EVERY / max(1, n_steps - freeze))
        self.bounds = kernel.bounds
        self._first = torch.zeros(kernel.n_params, dtype=torch.float64)
        self._second = torch.zeros_like(self._first)
        self._count = 0

    def due(self, step: int) -> bool:
        """Whether theta changes after this step."""
        return step >= self.freeze and step % EVERY == 0 and self.kernel.n_params > 0

    def gradient(
        self,
        theta: Float64[Tensor, " p"],
        site: Site,
        X: Tensor,
        Y: Tensor,
        left: tuple[BasisPart, BasisDraw],
        right: tuple[BasisPart, BasisDraw],
        third: tuple[BasisPart, Tensor, float],
        control: Projection,
        n: int,
    ) -> Float64[Tensor, " p"]:
        """Of the estimated minus ELBO, with the features' and the noise's share.

        The weights of both draws and `control` have the dense columns of C after the t means.
        """
        theta = theta.detach().requires_grad_(True)
        draws = [
            BasisDraw(part.evaluate(theta, X), d.weights, d.scale, d.phi_support)
            for part, d in (left, right)
        ]
        part, diagonal, scale = third
        phi, t = part.evaluate(theta, X), Y.shape[1]
        of_mean = Projection(control.A, control.a[:, :t])
        of_dense = Projection(control.A, control.a[:, t:])
        mean = [_columns(d, slice(t)) for d in draws]
        dense = [_columns(d, slice(t, None)) for d in draws]
        if site.gaussian:
            noise = self.kernel.noise(theta, X[:1].double())[0] + site.known
            noise = noise.to(X).expand(len(X))[:, None]
            square = (phi.square() @ diagonal.square()[:, None] / noise).sum() * scale * n / len(X)
            square = square + sampled_squares(*dense, n, of_dense, noise)
            fit = mean_estimate(Y, *mean, noise, n, of_mean) + t * square
            rows = t * torch.log(noise).sum() + (Y.square() / noise).sum()
            loss = 0.5 * (fit + n / len(Y) * rows)
        else:
            middle = 0.5 * sum(of_dense.function(d) for d in dense)
            variance = sampled_variance(middle, phi, diagonal[:, None], scale**0.5)
            loss = -likelihood_bound(site, Y, mean[0], variance, n, of_mean)
        (gradient,) = torch.autograd.grad(loss, theta, allow_unused=True)
        return torch.zeros_like(theta) if gradient is None else gradient.double()

    def step(self, theta: Float64[Tensor, " p"], site: Site, *batch) -> tuple[Tensor, Site]:
        """The next theta, within its bounds, and the likelihood with its noise."""
        gradient = self.gradient(theta, site, *batch).cpu()
        if not bool(torch.isfinite(gradient).all()):
            return theta, site
        self._count += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient.square()
        mean = self._first / (1 - 0.9**self._count)
        root = (self._second / (1 - 0.999**self._count)).sqrt()
        rate = self.learning_rate * self.decay**self._count
        new = theta.detach().cpu() - rate * mean / (root + 1e-12)
        new = torch.minimum(torch.maximum(new, self.bounds[:, 0]), self.bounds[:, 1]).to(theta)
        if not site.likelihood.additive:
            return new, site
        row = torch.zeros(1, self.kernel.n_features, dtype=torch.float64)
        return new, replace(site, noise=float(self.kernel.noise(new.cpu(), row)[0]))


def _columns(draw: BasisDraw, columns: slice) -> BasisDraw:
    return BasisDraw(draw.phi, draw.weights[:, columns], draw.scale, draw.phi_support)
