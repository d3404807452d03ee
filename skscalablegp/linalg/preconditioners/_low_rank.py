"""P = L L' + diag(noise) with solves that are accurate in float32."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..blocks import addmm_, matmul
from ..operators import LinearOperator
from ._base import Preconditioner, randn

# The part of the diagonal that L L' leaves out is ignored below this share of the noise.
_LEFT_OUT = 0.01


@dataclass(frozen=True, eq=False)
class LowRankPreconditioner(Preconditioner):
    """P = D^1/2 (I + U diag(spectrum) U') D^1/2, D = diag(noise), U' U = I.

    The Woodbury formula subtracts nearly equal numbers, and loses all digits of float32 when
    ``|L|**2 / noise`` exceeds 1e7. Here the part of a vector within the span of U and the part
    orthogonal to it are scaled separately, and the projection is applied twice,

        P^-1 = D^-1/2 ((I - U U')^2 + U diag(1 / (1 + spectrum)) U') D^-1/2.

    This is symmetric and positive semi-definite for any rounding of U, and its error along U is
    only the square of that rounding. Objects are made by `from_factor` and `from_matrix`.

    Attributes
    ----------
    basis : Tensor of shape (n, k)
        U, orthonormal columns, in the working precision.
    spectrum : Tensor of shape (k,)
        Squared singular values of D^-1/2 L, float64.
    sqrt_noise : Tensor of shape (n,)
        Square roots of the noise variances, the smallest of which were raised to a usable value.
    lower : float or None
        As in `Preconditioner`: 1, because H - L L' - diag(noise) is positive semi-definite, or less
        if D is larger than the noise by a `rest`; None if a noise variance was raised.

    Notes
    -----
    O(n k) memory. ``solve`` takes four products with U for each column.
    """

    basis: Float[Tensor, "n k"]
    spectrum: Float[Tensor, " k"]
    sqrt_noise: Float[Tensor, " n"]
    lower: float | None = None

    @classmethod
    def from_factor(
        cls,
        L: Float[Tensor, "n k"],
        noise: Float[Tensor, " n"],
        scale: float = 1.0,
        rest: float = 0.0,
    ) -> LowRankPreconditioner:
        """P = L L' + diag(noise + rest) in O(n k^2), factorised in float64.

        Parameters
        ----------
        L : Tensor of shape (n, k)
            A low-rank factor with k <= n, such that K - L L' is positive semi-definite. A factor
            that is not finite is ignored, because the solver will meet the same problem in H and
            report it.
        noise : Tensor of shape (n,)
            Noise variances. Those below ``10 eps * scale`` (eps of L's dtype) are raised to that
            value.
        scale : float, default=1.0
            Size of the diagonal of H.
        rest : float, default=0.0
            Variance that stands for the diagonal of K - L L'.
        """
        least = _usable_noise(noise, L.dtype, scale)
        sqrt_noise = (least.square() + rest).sqrt()
        if not bool(L.isfinite().all()):
            L = L[:, :0]
        Q, R = torch.linalg.qr(L.double() / sqrt_noise[:, None])
        V, singular, _ = torch.linalg.svd(R)
        lower = _bound(noise, least)
        if lower is not None:
            lower = float((least / sqrt_noise).square().min())
        return cls((Q @ V).to(L.dtype), singular.square(), sqrt_noise.to(L.dtype), lower)

    @classmethod
    def from_matrix(
        cls, H: Float[Tensor, "n n"], noise: Float[Tensor, " n"]
    ) -> LowRankPreconditioner:
        """P = H from the eigenvectors of D^-1/2 (H - D) D^-1/2, in O(n^3) and float64.

        Eigenvalues below the rounding error of H's trace are omitted. If the matrix is not finite,
        P is diag(noise).
        """
        scale = float(H.diagonal().double().mean())
        sqrt_noise = _usable_noise(noise, H.dtype, scale)
        K = H.double().clone()
        K.diagonal().sub_(noise)
        if not bool(K.isfinite().all()):
            K = torch.zeros_like(K)
        spectrum, basis = torch.linalg.eigh(K / sqrt_noise[:, None] / sqrt_noise)
        negligible = torch.finfo(H.dtype).eps * len(H) * scale / sqrt_noise.square().max()
        kept = spectrum > negligible
        lower = _bound(noise, sqrt_noise)
        return cls(basis[:, kept].to(H.dtype), spectrum[kept], sqrt_noise.to(H.dtype), lower)

    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> LowRankPreconditioner:
        """The same P, without the bound, which belongs to the operator that it was built from."""
        return replace(self, lower=None)

    def with_diagonal_of(self, operator: LinearOperator) -> LowRankPreconditioner:
        """L L' + D with the D that gives it the diagonal of H; O(n k^2).

        P itself replaces the part of the kernel that L L' leaves out by nothing. Where the noise is
        far smaller than this part, draws from N(0, P) make noisy probes for traces.
        """
        L = self.basis.double() * self.spectrum.sqrt() * self.sqrt_noise.double()[:, None]
        noise = self.sqrt_noise.double().square()
        # Rounding, or an operator that has changed since L was computed, may leave less than noise.
        left = torch.maximum(operator.diag().double() - L.square().sum(1), noise)
        if float(left.sum()) <= (1 + _LEFT_OUT) * float(noise.sum()):
            return self  # Another factorisation would only rotate the draws.
        scale = float(operator.diag().double().mean())
        return self.from_factor(L.to(self.basis.dtype), left, scale)

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def noise(self) -> Float[Tensor, " n"]:
        return self.sqrt_noise.square()

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        U, D = self.basis, self.sqrt_noise[:, None]
        Y = R / D
        along = matmul(U.mT, Y)
        addmm_(Y, U, along, alpha=-1)
        shrunk = along / (1 + self.spectrum).to(U.dtype)[:, None]
        addmm_(Y, U, shrunk.sub_(matmul(U.mT, Y)))
        return Y.div_(D)

    def log_det(self) -> float:
        return float(2 * self.sqrt_noise.double().log().sum() + self.spectrum.log1p().sum())

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        U = self.basis
        n, k = U.shape
        E = randn(n + k, s, generator, U.dtype, U.device)
        factor = self.spectrum.sqrt().to(U.dtype)[:, None]
        return E[:n].addmm(U, factor * E[n:]).mul_(self.sqrt_noise[:, None])


def _bound(noise: Float[Tensor, " n"], usable: Float[Tensor, " n"]) -> float | None:
    """1 if no noise variance was raised.

    Otherwise rounding in L L' may be larger than the noise, so that no bound is known.
    """
    return 1.0 if bool((usable <= noise.double().sqrt()).all()) else None


def _usable_noise(
    noise: Float[Tensor, " n"], dtype: torch.dtype, scale: float
) -> Float[Tensor, " n"]:
    """Square roots, in float64, of the variances, raised to the smallest that `dtype` resolves."""
    floor = 10 * torch.finfo(dtype).eps * max(scale, torch.finfo(dtype).tiny)
    return noise.double().clamp_min(floor).sqrt()
