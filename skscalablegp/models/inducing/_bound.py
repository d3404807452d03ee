"""The evidence lower bound of a sparse variational Gaussian process, and its derivatives.

In whitened coordinates u = f(Z) = L v with k(Z, Z) = L L', the belief is q(v) = N(m, S) and
a(x) = L^-1 k(Z, x) gives q(f(x)) = N(a'm, k(x, x) - a'a + a'S a). Everything here is in closed form
down to k(Z, X), k(Z, Z) and the diagonal. Autograd differentiates only the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from ...core.likelihoods import Likelihood
from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ...linalg.solvers import cholesky_with_jitter

# Jitter on the diagonal of k(Z, Z), relative to the mean prior variance, for the precision in which
# k(Z, Z) was computed: with close points the matrix is singular.
JITTER = {torch.float64: 1e-8, torch.float32: 1e-6}
# Largest jitter relative to the noise: it counts as noise of the function itself.
_OF_NOISE = 1e-5


def _default_constant(belief: Any, mean: Float64[Tensor, "m q"]) -> None:
    """Set the constants of a new belief to zero, unless they are given."""
    if belief.constant is None:
        object.__setattr__(belief, "constant", mean.new_zeros(mean.shape[1]))


@dataclass(frozen=True, eq=False)
class WhitenedBelief:
    """q(v) = N(mean, covariance) over whitened inducing values.

    Attributes
    ----------
    mean : Tensor of shape (m, q)
        One column for each latent function.
    covariance : Tensor of shape (s, m, m)
        s is q, or 1 if the latent functions share the covariance.
    log_det : Tensor of shape (s,)
        Of the covariances.
    constant : Tensor of shape (q,)
        The prior means of the latent functions; zero by default.
    """

    mean: Float64[Tensor, "m q"]
    covariance: Float64[Tensor, "s m m"]
    log_det: Float64[Tensor, " s"]
    constant: Float64[Tensor, " q"] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _default_constant(self, self.mean)

    def divergence(self) -> float:
        """KL(q(v) || N(0, I)), summed over latent functions."""
        m, q = self.mean.shape
        shared = q // len(self.covariance)
        trace = self.covariance.diagonal(dim1=1, dim2=2).sum()
        return 0.5 * float(self.mean.square().sum() + shared * (trace - self.log_det.sum()) - m * q)

    def divergence_from(self, other: NaturalBelief) -> float:
        """KL from another belief, summed over latent functions; O(s m^3)."""
        (m, q), S, P = self.mean.shape, self.covariance, other.precision
        shared, L = q // len(S), torch.linalg.cholesky(P)
        apart = self.mean - other.whitened().mean
        moved = P[0] @ apart if len(P) == 1 else torch.einsum("qij,jq->iq", P, apart)
        log_dets = self.log_det.sum() + 2 * L.diagonal(dim1=1, dim2=2).log().sum()
        trace = (P * S).sum()
        return 0.5 * float((apart * moved).sum() + shared * (trace - log_dets) - m * q)


@dataclass(frozen=True, eq=False)
class NaturalBelief:
    """The belief as S^-1 and S^-1 m, in which natural-gradient steps are weighted averages.

    Attributes
    ----------
    precision : Tensor of shape (s, m, m)
    shift : Tensor of shape (m, q)
    constant : Tensor of shape (q,)
        As in `WhitenedBelief`.
    """

    precision: Float64[Tensor, "s m m"]
    shift: Float64[Tensor, "m q"]
    constant: Float64[Tensor, " q"] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _default_constant(self, self.shift)

    @classmethod
    def prior(
        cls,
        m: int,
        q: int,
        s: int,
        device: torch.device,
        constant: Float64[Tensor, " q"] | None = None,
    ) -> NaturalBelief:
        """q(v) = N(0, I), with these constants."""
        eye = torch.eye(m, dtype=torch.float64, device=device)
        constant = eye.new_zeros(q) if constant is None else constant.to(device)
        return cls(eye.repeat(s, 1, 1), eye.new_zeros(m, q), constant)

    @classmethod
    def of(cls, belief: WhitenedBelief) -> NaturalBelief:
        """The same belief in these parameters; O(s m^3)."""
        P = torch.cholesky_inverse(torch.linalg.cholesky(belief.covariance))
        if len(P) == 1:
            return cls(P, P[0] @ belief.mean, belief.constant)
        return cls(P, torch.einsum("qij,jq->iq", P, belief.mean), belief.constant)

    def whitened(self) -> WhitenedBelief:
        """Mean and covariance; O(s m^3) when they are asked for the first time."""
        return self._whitened

    @cached_property
    def _whitened(self) -> WhitenedBelief:
        factors = [cholesky_with_jitter(P)[0] for P in self.precision]
        S = torch.stack([torch.cholesky_inverse(L) for L in factors])
        log_det = torch.stack([-2 * L.diagonal().log().sum() for L in factors])
        if len(S) == 1:
            mean = torch.cholesky_solve(self.shift, factors[0])
        else:
            mean = torch.einsum("qij,jq->iq", S, self.shift)
        return WhitenedBelief(mean, S, log_det, self.constant)

    def towards(self, other: NaturalBelief, rate: float) -> NaturalBelief:
        """A natural-gradient step of length `rate`, which is a weighted average.

        `other` is the belief from the statistics of rows and the prior. Khan and Lin (2017),
        equations 11 and 12.
        """
        precision = torch.lerp(self.precision, other.precision, rate)
        shift = torch.lerp(self.shift, other.shift, rate)
        return NaturalBelief(precision, shift, torch.lerp(self.constant, other.constant, rate))

    def plus(self, rows: RowStatistics) -> NaturalBelief:
        """The belief multiplied by the likelihood terms of rows."""
        precision, shift = self.precision + rows.precision, self.shift + rows.shift
        return NaturalBelief(precision, shift, self.constant)


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Statistics of rows about v, with w = -2 d_variance for each latent function.

    Attributes
    ----------
    precision : Tensor of shape (s, m, m)
        A diag(w) A'.
    shift : Tensor of shape (m, q)
        A (d_mean + w mean).
    d_mean : Tensor of shape (m, q)
        A d_mean, the gradient of the expected log likelihood in the belief's mean.
    slope, curvature : Tensor of shape (q,)
        Sums of d_mean and of w: the derivatives in the constants of the latent functions.
    """

    precision: Float64[Tensor, "s m m"]
    shift: Float64[Tensor, "m q"]
    d_mean: Float64[Tensor, "m q"]
    slope: Float64[Tensor, " q"]
    curvature: Float64[Tensor, " q"]

    def __add__(self, other: RowStatistics) -> RowStatistics:
        names = [field.name for field in fields(self)]
        return RowStatistics(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, eq=False)
class Whitening:
    """L L' = k(Z, Z) + jitter I.

    Attributes
    ----------
    factor, inverse : Tensor of shape (m, m)
        L and L^-1.
    jitter : float
        The amount added to the diagonal, in the kernel's units.
    fraction : float
        The first jitter that was added, relative to the mean diagonal entry.
    """

    factor: Float64[Tensor, "m m"]
    inverse: Float64[Tensor, "m m"]
    jitter: float
    fraction: float

    @classmethod
    def of(cls, K: Float[Tensor, "m m"], noise: float = 0.0) -> Whitening:
        """In float64 for any precision of K; O(m^3).

        With a noise variance, the jitter of a matrix in double precision is far below it.
        """
        fraction, double = JITTER[K.dtype], K.dtype == torch.float64
        K = K.detach().double()
        scale = float(K.diagonal().mean())
        if double and min(noise, scale) > 0:
            fraction = min(fraction, _OF_NOISE * noise / scale)
        eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
        jitter = fraction * scale
        L, more = cholesky_with_jitter(torch.add(K, eye, alpha=jitter), max_jitter=1e-2)
        inverse = torch.linalg.solve_triangular(L, eye, upper=False)
        return cls(L, inverse, jitter + more, fraction)

    @classmethod
    def at(
        cls, kernel: TorchKernel, theta: Float[Tensor, " p"], Z: Float[Tensor, "m d"]
    ) -> Whitening:
        """That of inducing points, for the kernel's noise."""
        return cls.of(kernel.cross(theta, Z, Z), float(kernel.noise(theta, Z[:1]).min()))


@dataclass(frozen=True, eq=False)
class KernelValues:
    """The kernel at inducing points and rows.

    Attributes
    ----------
    inducing, cross, diag, noise : Tensor
        k(Z, Z), or None if its gradient is computed elsewhere; k(Z, X), the diagonal of k(X, X),
        and the noise variances.
    """

    inducing: Float[Tensor, "m m"] | None
    cross: Float[Tensor, "m b"]
    diag: Float[Tensor, " b"]
    noise: Float[Tensor, " b"]

    def backward(self, grad: KernelValues) -> None:
        """Add the gradient of the negative bound to every leaf that the values depend on."""
        products = [
            backward_sum(value, -getattr(grad, name).to(value, non_blocking=True))
            for name, value in vars(self).items()
            if value is not None and value.requires_grad
        ]
        if products:
            sum(products).backward()


def backward_sum(value: Tensor, grad: Tensor) -> Float[Tensor, ""]:
    """A number whose gradient in `value` is `grad`.

    ``torch.autograd.backward(value, grad)`` would import compilers at its first call, for half a
    second.
    """
    return (value * grad).sum()


@dataclass(frozen=True, eq=False)
class BoundEvaluation:
    """The bound on some rows.

    Attributes
    ----------
    value, expected : float
        The expected log likelihood, minus the divergence and without it.
    rows : RowStatistics or None
        The statistics for the next belief.
    grad : KernelValues or None
        The gradients in the values of the kernel, for all other parameters.
    """

    value: float
    expected: float
    rows: RowStatistics | None = None
    grad: KernelValues | None = None


@torch.no_grad()
def variational_bound(
    likelihood: Likelihood,
    belief: WhitenedBelief,
    K: KernelValues,
    rows: Rows,
    generator: Generator | None = None,
    eval_gradient: bool = True,
    white: Whitening | None = None,
    value_only: bool = False,
) -> BoundEvaluation:
    """The bound on one batch, and its gradients in the values of the kernel.

    Parameters
    ----------
    likelihood : Likelihood
    belief : WhitenedBelief
    K : KernelValues
        At the inducing points and the batch.
    rows : Rows
        Those of the batch. The targets of a row count as often as its weight says; known noise
        is that of `K`.
    generator : Generator, optional
        For likelihoods that use random draws.
    eval_gradient : bool, default=True
        Whether to compute the gradients in the values of the kernel.
    white : Whitening, optional
        That of ``K.inducing``, if it has been computed already.
    value_only : bool, default=False
        Whether to leave out the statistics of the rows, a third of the work, and the gradients.

    Notes
    -----
    O(b m^2 + m^3) for each covariance of the belief. Products with rows have the rows' precision,
    and are on their device; sums and m x m factors are float64, where the belief is. Hensman et
    al. (2013), equation 4; Hensman et al. (2015), equation 8.
    """
    white = Whitening.of(K.inducing) if white is None else white
    A = white.inverse.to(K.cross, non_blocking=True) @ K.cross
    S = belief.covariance
    excess = S - torch.eye(len(A), dtype=S.dtype, device=S.device)
    # T_s = L^-T (S_s - I) A serves the variances and their gradient.
    T = (white.inverse.T @ excess).to(A, non_blocking=True) @ A
    mean = A.T @ belief.mean.to(A, non_blocking=True)
    variance = K.diag[:, None] + (K.cross * T).sum(1).T
    variance = variance.clamp_min(torch.finfo(A.dtype).eps * float(K.diag.max()))
    centre = mean + belief.constant.to(mean, non_blocking=True)
    terms = likelihood.expected(rows.Y, centre, variance, K.noise, generator)
    own = rows.weight.to(terms.value)
    total = float((own * terms.value).to(S.device).sum(dtype=S.dtype))
    value = total - belief.divergence()
    if value_only:
        return BoundEvaluation(value, total)
    each = own.to(mean)[..., None]
    g_mean, g_var = each * terms.d_mean, each * terms.d_variance
    # Latent functions that share a covariance contribute equally to its derivative. Where log p is
    # convex, the negative precision is left out, since it could make the belief improper.
    shared = mean.shape[1] // len(T)
    w = (-2 / shared * g_var).clamp_min(0)
    summed = lambda part: part.to(S.device).to(S.dtype)  # noqa: E731
    P = summed(torch.stack([(A * w_s) @ A.T for w_s in w.T]))
    d_mean = summed(A @ g_mean)
    slope, curvature = summed(g_mean.sum(0)), summed(w.sum(0)).expand(mean.shape[1])
    found = RowStatistics(P, summed(A @ (g_mean + w * mean)), d_mean, slope, curvature)
    if not eval_gradient:
        return BoundEvaluation(value, total, found)
    left_out = g_var.clamp_min(0)
    weighted = -shared * P
    if bool((left_out > 0).any()):
        weighted = weighted + summed(torch.stack([2 * (A * g) @ A.T for g in left_out.T]))
    cross = (white.inverse.T @ belief.mean).to(A, non_blocking=True) @ g_mean.T
    for T_s, g_s in zip(T, g_var.T, strict=True):
        cross.addcmul_(T_s, g_s, value=2)
    inducing = inducing_gradient(white, belief.mean @ d_mean.T + (excess @ weighted).sum(0))
    grad = KernelValues(inducing, cross, g_var.sum(1), own * terms.d_noise)
    return BoundEvaluation(value, total, found, grad)


def inducing_gradient(white: Whitening, D: Float64[Tensor, "m m"]) -> Float64[Tensor, "m m"]:
    """The gradient in k(Z, Z) of a function of A = L^-1 k(Z, X), given its gradient G in A.

    Parameters
    ----------
    white : Whitening
    D : Tensor of shape (m, m)
        G A'.

    Notes
    -----
    Reverse-mode differentiation of a Cholesky factor (Murray 2016, section 3.1), with L' dL = -D.
    """
    lower = D.tril(-1)
    symmetric = lower + lower.T
    symmetric.diagonal().copy_(D.diagonal())
    gradient = -0.5 * (white.inverse.T @ symmetric @ white.inverse)
    # The jitter is proportional to the mean of the diagonal.
    gradient.diagonal().add_(white.fraction * gradient.diagonal().mean())
    return gradient
