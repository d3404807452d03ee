"""Posteriors as torch modules: tensors in buffers, and operations that can be traced and exported.

A module computes what its posterior computes, by formulas without branches on values. Differences
of variances that rounding makes negative become zero in place of an error.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...kernels import NotExportable, TorchKernel
from ._moments import Moments, reported_variance


class JointMoments(NamedTuple):
    """Moments of q rows together, for each of b sets.

    Attributes
    ----------
    mean : Tensor of shape (b, q, t)
    covariance : Tensor of shape (b, q, q)
        Of the noise-free functions, the same for every target.
    noise : Tensor of shape (b, q)
    """

    mean: Float[Tensor, "b q t"]
    covariance: Float[Tensor, "b q q"]
    noise: Float[Tensor, "b q"]


class PosteriorModule(nn.Module):
    """The moments of a posterior as a function of rows, in the units of the posterior.

    A subclass defines `moments`, and `mean` where it is cheaper alone.
    """

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        """The posterior mean."""
        return self.moments(X).mean

    @abstractmethod
    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        """The mean, the variance and the noise."""

    def forward(self, X: Float[Tensor, "m d"]) -> Moments:
        return self.moments(X)

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        """The joint posterior of q rows for each of b sets; here of single rows only.

        Raises
        ------
        NotExportable
            For several rows, if there is no joint form.
        """
        if X.shape[1] != 1:
            raise NotExportable(
                f"This model has joint posteriors of single rows only, and q is {X.shape[1]}: "
                "optimise one row at a time (q=1), or use a model with inducing points, random "
                "features or nearest neighbours."
            )
        mean, variance, noise = self.moments(X[:, 0])
        return JointMoments(mean[:, None], variance[:, None, None], noise[:, None])


class Affine(nn.Module):
    """(x - shift) / scale for each column."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Any = 0.0, scale: Any = 1.0):
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(shift, dtype=torch.float64).clone())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64).clone())

    def forward(self, X: Float[Tensor, "*m d"]) -> Float[Tensor, "*m d"]:
        return (X - self.shift) / self.scale


class KernelModule(nn.Module):
    """A kernel at fixed hyperparameters; `cross`, `diag` and `noise` also take batches of rows.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    plain : bool, default=True
        Whether it consists of operations that can be exported. Without them it is faster, and
        `cross` takes no batches.

    Raises
    ------
    NotExportable
        For kernels that run NumPy code, if they are to be exported.
    """

    theta: Tensor

    def __init__(self, kernel: TorchKernel, theta: Float[Tensor, " p"], plain: bool = True):
        super().__init__()
        self._node = kernel.node.plain() if plain else kernel.node
        self.register_buffer("theta", theta.detach().double().cpu().clone())

    def make_plain(self) -> None:
        """Change to operations that can be exported."""
        self._node = self._node.plain()

    def cross(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b k d"]) -> Tensor:
        """k(X, Z) without noise."""
        value = self._node.smooth(self.theta, X, Z)
        value = X.new_zeros(1) if value is None else value
        return value.expand(*X.shape[:-1], Z.shape[-2])

    def diag(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """The prior variances."""
        return self._rows(self._node.diag(self.theta, X), X)

    def noise(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """The variances of white noise."""
        return self._rows(self._node.noise(self.theta, X), X)

    def _rows(self, value: Tensor | None, X: Tensor) -> Tensor:
        # A sum with the rows in it, so that the traced result follows their number.
        return X[..., 0] * 0 + (0.0 if value is None else value)


class KernelFeatures(nn.Module):
    """k(X, Z) for fixed rows Z, with the kernel's variances at X.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    Z : Tensor of shape (k, d)
    factor : float, default=1.0
        Factor of the kernel's white noise.
    noise : float, optional
        A variance of the noise in its place.
    plain : bool, default=True
        As in `KernelModule`.
    """

    Z: Tensor

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Tensor,
        Z: Tensor,
        factor: float = 1.0,
        noise: float | None = None,
        plain: bool = True,
    ):
        super().__init__()
        self.kernel, self._factor = KernelModule(kernel, theta, plain), float(factor)
        self.white = None if noise is None else _Constant(noise)
        self.register_buffer("Z", Z.detach().double().cpu().clone())

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m k"]:
        return self.kernel.cross(X, self.Z)

    def prior(self, X: Float[Tensor, "m d"], phi: Float[Tensor, "m k"]) -> Float[Tensor, " m"]:
        """The prior variances."""
        return self.kernel.diag(X)

    def prior_covariance(
        self, X: Float[Tensor, "*b q d"], phi: Float[Tensor, "*b q k"]
    ) -> Float[Tensor, "*b q q"]:
        """The prior covariances."""
        return self.kernel.cross(X, X)

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variances of additive noise."""
        return self._factor * self.kernel.noise(X) if self.white is None else self.white(X)


class WeightFeatures(nn.Module):
    """A finite feature map whose weights have a standard normal prior.

    Parameters
    ----------
    features : nn.Module
        Maps rows (m, d) to (m, q).
    noise : nn.Module or float
        Maps rows to the variances of noise, (m,).
    """

    def __init__(self, features: nn.Module, noise: Any):
        super().__init__()
        self.features = features
        self.white = noise if isinstance(noise, nn.Module) else _Constant(noise)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        return self.features(X)

    def prior(self, X: Float[Tensor, "m d"], phi: Float[Tensor, "m q"]) -> Float[Tensor, " m"]:
        """The prior variances."""
        return phi.square().sum(1)

    def prior_covariance(
        self, X: Float[Tensor, "*b q d"], phi: Float[Tensor, "*b q k"]
    ) -> Float[Tensor, "*b q q"]:
        """The prior covariances."""
        return phi @ phi.mT

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variances of additive noise."""
        return self.white(X)


class _Constant(nn.Module):
    """The same variance for every row."""

    value: Tensor

    def __init__(self, value: float):
        super().__init__()
        self.register_buffer("value", torch.as_tensor(value, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return X[:, 0] * 0 + self.value


class WhiteNoise(nn.Module):
    """The white noise of a kernel."""

    def __init__(self, kernel: TorchKernel, theta: Tensor, plain: bool = True):
        super().__init__()
        self.kernel = KernelModule(kernel, theta, plain)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.kernel.noise(X)


class Dense(nn.Module):
    """Features times a matrix M, or times each of several ones.

    Parameters
    ----------
    matrix : Tensor of shape (q, r) or (s, q, r)
    """

    matrix: Tensor

    def __init__(self, matrix: Float[Tensor, "*s q r"]):
        super().__init__()
        self.register_buffer("matrix", matrix.detach())

    def forward(self, phi: Float[Tensor, "m q"]) -> Float[Tensor, "*s m r"]:
        return phi @ self.matrix

    @property
    def _first(self) -> Float[Tensor, "q r"]:
        return self.matrix if self.matrix.ndim == 2 else self.matrix[0]

    def times(self, w: Float[Tensor, "r t"]) -> Float[Tensor, "q t"]:
        """M w, for the first of several matrices."""
        return self._first @ w

    def precision(self) -> Float[Tensor, "q q"]:
        """(M M')^-1 of a lower triangular matrix, the first of several ones."""
        return torch.cholesky_inverse(self._first)

    def dense(self) -> Dense:
        return self


class Solved(nn.Module):
    """Features times M = L^-T, by triangular solves.

    Parameters
    ----------
    factor : Tensor of shape (q, q)
        L, lower triangular.
    """

    factor: Tensor

    def __init__(self, factor: Float[Tensor, "q q"]):
        super().__init__()
        self.register_buffer("factor", factor.detach())

    def forward(self, phi: Float[Tensor, "m q"]) -> Float[Tensor, "m q"]:
        return torch.linalg.solve_triangular(self.factor, phi.mT, upper=False).mT

    def times(self, w: Float[Tensor, "q t"]) -> Float[Tensor, "q t"]:
        """M w."""
        return torch.linalg.solve_triangular(self.factor.mT, w, upper=True)

    def precision(self) -> Float[Tensor, "q q"]:
        """(M M')^-1."""
        return self.factor @ self.factor.mT

    def dense(self) -> Dense:
        """The same by a product, which every runtime of exported modules has."""
        return Dense(inverse_root(self.factor))


def inverse_root(factor: Float[Tensor, "q q"]) -> Float[Tensor, "q q"]:
    """R = L^-T, with R R' = (L L')^-1."""
    units = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, units, upper=False).T


class LinearModule(PosteriorModule):
    """A mean that is linear in features phi, and a variance that is quadratic in them.

    ``mean = phi W + c`` and ``variance = scale (prior - |psi A|^2 + |psi B|^2)`` with the features
    ``psi = phi V``, of which predictions and exports are computed alike.

    Parameters
    ----------
    features : KernelFeatures or WeightFeatures
    weights : Tensor of shape (q, t)
        W.
    whiten : Dense or Solved, optional
        V, by default the identity.
    minus : nn.Module, optional
        A, by default no prior term.
    plus : Dense or Solved, optional
        B; several of them for latent functions with a covariance each.
    transform : nn.Module, optional
        Applied to rows before everything else.
    scale : float, default=1.0
    constant : Tensor of shape (t,), optional
        c, by default zero.

    Notes
    -----
    A mean costs O(q) a row, a variance O(q r).
    """

    features: Any
    whiten: Any
    weights: Tensor
    constant: Tensor

    def __init__(
        self,
        features: Any,
        weights: Float[Tensor, "q t"],
        whiten: nn.Module | None = None,
        minus: nn.Module | None = None,
        plus: nn.Module | None = None,
        transform: nn.Module | None = None,
        scale: float = 1.0,
        constant: Float[Tensor, " t"] | None = None,
    ):
        super().__init__()
        self.features, self.minus, self.plus = features, minus, plus
        self.transform, self.whiten = transform or nn.Identity(), whiten or nn.Identity()
        self._scale, self._exported = float(scale), False
        constant = weights.new_zeros(weights.shape[1]) if constant is None else constant
        self.register_buffer("weights", weights.detach())
        self.register_buffer("constant", constant.detach())

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.features(self.transform(X)) @ self.weights + self.constant

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, variance, noise = self.latent_moments(X)
        return Moments(mean, variance if variance.ndim == 1 else variance[0], noise)

    def latent_moments(
        self, X: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m t"], Float[Tensor, "*s m"], Float[Tensor, " m"]]:
        """The mean, the variance of each latent function that has one of its own, and the noise."""
        X = self.transform(X)
        phi = self.features(X)
        psi, variance = self.whiten(phi), X[:, 0] * 0
        if self.minus is not None:
            prior = self.features.prior(X, phi)
            variance = self._checked(prior - self.minus(psi).square().sum(1), prior)
        if self.plus is not None:
            variance = variance + self.plus(psi).square().sum(-1)
        mean = phi @ self.weights + self.constant
        return mean, self._scale * variance, self.features.noise(X)

    def joint(self, X: Float[Tensor, "*b q d"]) -> JointMoments:
        sets = X.shape[:-1]
        rows = self.transform(X.flatten(0, -2))
        phi = self.features(rows)
        psi, X, covariance = self.whiten(phi), rows.unflatten(0, sets), rows.new_zeros(())
        if self.minus is not None:
            explained = self.minus(psi).unflatten(0, sets)
            prior = self.features.prior_covariance(X, phi.unflatten(0, sets))
            covariance = prior - explained @ explained.mT
            if not self._exported:
                variance = covariance.diagonal()
                variance.copy_(self._checked(variance, self.features.prior(rows, phi)))
        if self.plus is not None:
            spread = self.plus(psi)
            spread = (spread if spread.ndim == 2 else spread[0]).unflatten(0, sets)
            covariance = covariance + spread @ spread.mT
        noise = self.features.noise(rows).unflatten(0, sets)
        mean = phi.unflatten(0, sets) @ self.weights + self.constant
        return JointMoments(mean, self._scale * covariance, noise)

    def _checked(self, variance: Float[Tensor, " m"], prior: Float[Tensor, " m"]) -> Tensor:
        return variance.clamp_min(0) if self._exported else reported_variance(variance, prior)

    def alone(self) -> LinearModule:
        """The mean without variances."""
        return LinearModule(
            self.features, self.weights, transform=self.transform, constant=self.constant
        )

    def low_rank(self, explained: Float[Tensor, "q k"]) -> LinearModule:
        """The same mean with the variances prior - |psi Y|^2."""
        other = self.alone()
        whitened = isinstance(self.whiten, nn.Identity)
        other.minus = Dense(explained if whitened else self.whiten.times(explained))
        return other

    def exported(self) -> LinearModule:
        """A copy in double precision on the CPU, of operations that can be exported."""
        other = deepcopy(self).double().cpu()
        other._exported = True
        for name in ("whiten", "minus", "plus"):
            if isinstance(root := getattr(other, name), Solved):
                setattr(other, name, root.dense())
        for part in other.modules():
            if isinstance(part, KernelModule):
                part.make_plain()
        return other


class ProcessModule(nn.Module):
    """A posterior with the scaling of rows and targets.

    Parameters
    ----------
    inputs : nn.Module
        Maps rows as users have them to those of the posterior.
    posterior : PosteriorModule
    y_mean, y_std : ndarray of shape () or (t,)
        Mean and scale of the targets.
    """

    posterior: PosteriorModule
    y_mean: Tensor
    y_std: Tensor

    def __init__(self, inputs: nn.Module, posterior: PosteriorModule, y_mean: Any, y_std: Any):
        super().__init__()
        self.inputs, self.posterior = inputs, posterior
        for name, value in (("y_mean", y_mean), ("y_std", y_std)):
            value = torch.as_tensor(value, dtype=torch.float64).reshape(-1).clone()
            self.register_buffer(name, value)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        """Means in the units of the targets."""
        return self.posterior.mean(self.inputs(X)) * self.y_std + self.y_mean

    def moments(
        self, X: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m t"], Float[Tensor, "m t"], Float[Tensor, "m t"]]:
        """Means, variances and noise variances in the units of the targets, (m, t) each."""
        mean, variance, noise = self.posterior.moments(self.inputs(X))
        square = self.y_std.square()
        mean = mean * self.y_std + self.y_mean
        return mean, variance[:, None] * square, noise[:, None] * square

    def joint(
        self, X: Float[Tensor, "b q d"]
    ) -> tuple[Float[Tensor, "b q t"], Float[Tensor, "b t q q"], Float[Tensor, "b t q"]]:
        """Means, covariances and noise variances of q rows together, for each of b sets."""
        rows = self.inputs(X.flatten(0, 1)).unflatten(0, X.shape[:2])
        mean, covariance, noise = self.posterior.joint(rows)
        square = self.y_std.square()
        mean = mean * self.y_std + self.y_mean
        return mean, covariance[:, None] * square[:, None, None], noise[:, None] * square[:, None]
