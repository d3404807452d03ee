"""The posterior of a model with inducing points."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...core.likelihoods import Gaussian, Likelihood
from ...core.posteriors import (
    KernelFeatures,
    LatentModule,
    LinearModule,
    MeanAndVariance,
    Moments,
    Moved,
    Posterior,
    PosteriorModule,
    WeightCaches,
    WeightDraws,
    WeightForm,
    normal,
    prior_draws,
    reported_variance,
    without_own,
)
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._bound import WhitenedBelief, Whitening


class InducingPosterior(Posterior):
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
    transform : callable, optional
        Applied to rows before the kernel.
    transform_module : callable, optional
        Returns it as a torch module.

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
        transform: Callable[[Tensor], Tensor] | None = None,
        transform_module: Callable[[], nn.Module] | None = None,
    ):
        self._transform_module = transform_module
        self.kernel, self.theta, self.Z, self.belief = kernel, theta, Z, belief
        self.likelihood, self.transform = likelihood or Gaussian(), transform
        with torch.no_grad():
            self.white = Whitening.at(kernel, theta, Z)
        self.weights = self.white.inverse.T @ belief.mean
        self.dtype, self.device, self.width = Z.dtype, Z.device, len(Z)

    @torch.no_grad()
    def _seen(self, X: Float[Tensor, "b d"]) -> Float64[Tensor, "b q"]:
        """The kernel's input for these rows."""
        return X.double() if self.transform is None else self.transform(X.double())

    def _whitened(self, X: Float64[Tensor, "b q"]) -> Float64[Tensor, "m b"]:
        """A = L^-1 k(Z, X)."""
        return self.white.inverse @ self.kernel.cross(self.theta, self.Z, X)

    def latent_moments(self, X: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor]:
        """Means (b, q) and variances (b, s) of the latent functions."""
        X = self._seen(X)
        K = self.kernel.cross(self.theta, self.Z, X)
        A, prior = self.white.inverse @ K, self.kernel.diag(self.theta, X)
        # The variance given the inducing values, and that from their own uncertainty.
        left = reported_variance(prior - A.square().sum(0), prior)
        spread = torch.stack([((S @ A) * A).sum(0) for S in self.belief.covariance], 1)
        return K.T @ self.weights + self.belief.constant, left[:, None] + spread

    def mean(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
        K = self.kernel.cross(self.theta, self.Z, self._seen(X))
        return K.T @ self.weights + self.belief.constant

    def moments(self, X: Float[Tensor, "b d"]) -> Moments:
        mean, variance = self.latent_moments(X)
        return Moments(mean, variance[:, 0], self.noise(X))

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance | None:
        """Assumes the optimal belief; the variance given the inducing values does not change."""
        if self.transform is not None or not self.likelihood.conjugate:
            return None
        mean, variance, noise = self.moments(X)
        A = self._whitened(X)
        spread = ((self.belief.covariance[0] @ A) * A).sum(0)
        mean, left_out = without_own(Y, mean, spread, known + noise)
        return mean, left_out + variance - spread

    def leave_copies_out(self, rows, X, Y, known, copies) -> MeanAndVariance | None:
        """A row tells the inducing values alone, so that its own target is all that it takes."""
        if not copies.stay.any():
            return super().leave_copies_out(rows, X, Y, known, copies)
        place = copies.place
        return self.leave_one_out(rows[place], X[place], copies.Y, known[place])

    def covariance(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        X = self._seen(X)
        A = self._whitened(X)
        prior = self.kernel.cross(self.theta, X, X)
        return prior - A.T @ A + A.T @ self.belief.covariance[0] @ A

    def low_rank_form(self) -> WeightCaches | None:
        """Over weights, which are the whitened inducing values."""
        form = WeightForm(
            features=lambda X: self._whitened(self._seen(X)).T,
            precision=torch.linalg.inv(self.belief.covariance[0]),
            prior=lambda X: self.kernel.diag(self.theta, self._seen(X)),
            prior_covariance=lambda X: self.kernel.cross(self.theta, *[self._seen(X)] * 2),
            has_rest=True,
        )
        return WeightCaches(self, form)

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With m x m matrices for variances; without them with the inducing points alone."""
        factor = self.likelihood.variance_factor()
        features = KernelFeatures(self.kernel, self.theta, self.Z, factor)
        whiten, minus, plus = self.white.inverse.T, None, None
        if with_variance:
            minus = whiten
            plus = whiten @ cholesky_with_jitter(self.belief.covariance[0])[0]
        transform = None if self._transform_module is None else self._transform_module()
        constant = self.belief.constant
        return LinearModule(features, self.weights, minus, plus, whiten, transform, 1.0, constant)

    def with_spread(self, covariance: Float64[Tensor, "m m"]) -> InducingPosterior:
        other = copy(self)
        other.belief = replace(self.belief, covariance=covariance[None])
        return other

    def latent_module(self) -> LatentModule:
        """`latent_moments` as a torch module, with the kernel's white noise."""
        whiten = self.white.inverse.T
        roots = [whiten @ cholesky_with_jitter(S)[0] for S in self.belief.covariance]
        features = KernelFeatures(self.kernel, self.theta, self.Z)
        transform = None if self._transform_module is None else self._transform_module()
        made = whiten, torch.stack(roots), transform, self.belief.constant
        return LatentModule(features, self.weights, *made)

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """g(x) + k(x, Z) L^-T (v - L^-1 g(Z)) for draws g of the prior and v of the belief."""
        (m, t), transform = self.weights.shape, self._transform_module and self._transform_module()
        prior = prior_draws(self.kernel, self.theta, (t, n_samples), generator)
        root = cholesky_with_jitter(self.belief.covariance[0])[0].cpu()
        v = normal(m, t * n_samples, generator=generator)
        v = self.belief.mean.cpu()[:, :, None] + (root @ v).reshape(m, t, n_samples)
        inverse = self.white.inverse.cpu()
        with torch.no_grad():
            g = prior(self.Z.cpu()).flatten(1)
        weights = (inverse.T @ (v.flatten(1) - inverse @ g)).reshape(v.shape)
        features, constant = KernelFeatures(self.kernel, self.theta, self.Z), self.belief.constant
        moved = WeightDraws(features, weights, constant)
        drawn = Moved(prior, moved)
        return drawn if transform is None else nn.Sequential(transform, drawn)

    def noise(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.kernel.noise(self.theta, self._seen(X)) * self.likelihood.variance_factor()
