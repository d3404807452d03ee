"""P = L L' + diag(noise) with a solve that stays accurate in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ._base import Preconditioner, randn


@dataclass(frozen=True, eq=False)
class LowRankPreconditioner(Preconditioner):
    """P = D^1/2 (I + U diag(spectrum) U') D^1/2, D = diag(noise), U' U = I.

    The Woodbury formula subtracts nearly equal numbers and loses float32 as soon as
    ``|L|**2 / noise`` passes 1e7. Here the part of a vector along U and the part orthogonal to it
    are scaled each for itself, and the projection is applied twice,

        P^-1 = D^-1/2 ((I - U U')^2 + U diag(1 / (1 + spectrum)) U') D^-1/2,

    which is symmetric and positive semi-definite whatever the rounding of U, and errs along U
    by the square of the rounding only. Build it with `from_factor`.

    Attributes
    ----------
    basis : Tensor of shape (n, k)
        U, orthonormal columns, in the working precision.
    spectrum : Tensor of shape (k,)
        Squared singular values of D^-1/2 L, float64.
    sqrt_noise : Tensor of shape (n,)
        Square roots of the noise in use.
    n_floored : int
        Rows whose noise was (nearly) zero and was raised to the smallest usable value.

    Notes
    -----
    O(n k) memory; ``solve`` costs four products of that size for each column.
    """

    basis: Float[Tensor, "n k"]
    spectrum: Float[Tensor, " k"]
    sqrt_noise: Float[Tensor, " n"]
    n_floored: int = 0

    @classmethod
    def from_factor(
        cls, L: Float[Tensor, "n k"], noise: Float[Tensor, " n"], scale: float = 1.0
    ) -> LowRankPreconditioner:
        """P = L L' + diag(noise), O(n k^2), the factorisation in float64.

        Parameters
        ----------
        L : Tensor of shape (n, k)
            Any low-rank factor, k <= n.
        noise : Tensor of shape (n,)
            May differ from row to row. Entries below ``10 eps * scale`` (eps of L's dtype) are
            raised to it and counted in ``n_floored``. A factor that is not finite is left out: the
            solver that meets the matrix reports it.
        scale : float
            Size of the diagonal of H.
        """
        sqrt_noise, n_floored = _usable_noise(noise, L.dtype, scale)
        if not bool(L.isfinite().all()):
            L = L[:, :0]  # the solver that meets the matrix itself reports it
        Q, R = torch.linalg.qr(L.double() / sqrt_noise[:, None])
        V, singular, _ = torch.linalg.svd(R)
        return cls(
            (Q @ V).to(L.dtype),
            singular.square(),
            sqrt_noise.to(L.dtype),
            n_floored,
        )

    @classmethod
    def from_matrix(
        cls, H: Float[Tensor, "n n"], noise: Float[Tensor, " n"]
    ) -> LowRankPreconditioner:
        """P = H from the eigenvectors of D^-1/2 (H - D) D^-1/2, O(n^3) in float64.

        Eigenvalues below the rounding of H's trace are left out; so is a matrix that is not finite.
        """
        scale = float(H.diagonal().double().mean())
        sqrt_noise, n_floored = _usable_noise(noise, H.dtype, scale)
        K = H.double().clone()
        K.diagonal().sub_(noise)
        if not bool(K.isfinite().all()):
            K = torch.zeros_like(K)
        spectrum, basis = torch.linalg.eigh(K / sqrt_noise[:, None] / sqrt_noise)
        negligible = torch.finfo(H.dtype).eps * len(H) * scale / sqrt_noise.square().max()
        kept = spectrum > negligible
        return cls(basis[:, kept].to(H.dtype), spectrum[kept], sqrt_noise.to(H.dtype), n_floored)

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def noise(self) -> Float[Tensor, " n"]:
        return self.sqrt_noise.square()

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        U, D = self.basis, self.sqrt_noise[:, None]
        Y = R / D
        along = U.mT @ Y
        Y.addmm_(U, along, alpha=-1)
        shrunk = along / (1 + self.spectrum).to(U.dtype)[:, None]
        Y.addmm_(U, shrunk.sub_(U.mT @ Y))
        return Y.div_(D)

    def log_det(self) -> float:
        return float(2 * self.sqrt_noise.double().log().sum() + self.spectrum.log1p().sum())

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        U = self.basis
        n, k = U.shape
        E = randn(n + k, s, generator, U.dtype, U.device)
        factor = self.spectrum.sqrt().to(U.dtype)[:, None]
        return E[:n].addmm(U, factor * E[n:]).mul_(self.sqrt_noise[:, None])


def _usable_noise(
    noise: Float[Tensor, " n"], dtype: torch.dtype, scale: float
) -> tuple[Float[Tensor, " n"], int]:
    """Square roots in float64 of noise that `dtype` can resolve, and how many were raised to it."""
    floor = 10 * torch.finfo(dtype).eps * max(scale, torch.finfo(dtype).tiny)
    return noise.double().clamp_min(floor).sqrt(), int((noise < floor).sum())
