"""Support rows, at which f is known exactly, as control variate and as preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ...linalg.solvers import cholesky_with_jitter
from ._basis import SampledBasis

# Eigenvalues below this many rounding errors of the largest one are noise, and not flattened.
_ROUNDING = 100
# Share of the support rows' eigenvectors that the preconditioner flattens; the rest are noise.
_FLATTENED = 0.4


@dataclass(frozen=True, eq=False)
class SupportRows:
    """Rows fixed before training, at the hyperparameters of the start.

    Attributes
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    rows : Rows
        The s rows.
    check : Rows
        v further rows at which f is known, from which scores are computed. The start fits the
        support rows too well for that.
    """

    kernel: TorchKernel
    theta: Float64[Tensor, " p"]
    rows: Rows
    check: Rows

    @property
    def X(self) -> Float[Tensor, "s d"]:
        """The support rows."""
        return self.rows.X

    @cached_property
    def inverse(self) -> Float[Tensor, "s s"]:
        """The inverse of k(X, X) with jitter; O(s^3)."""
        X = self.X.double()
        K = self.kernel.cross(self.theta, X, X)
        K = K + 1e-4 * K.diagonal().mean() * torch.eye(len(X), dtype=K.dtype, device=K.device)
        return torch.cholesky_inverse(cholesky_with_jitter(K)[0]).to(self.X)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def all_rows(self) -> Float[Tensor, "sv d"]:
        """The support rows, followed by the scores' rows."""
        return torch.cat([self.X, self.check.X])

    def cross(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b s"]:
        """k(X, support rows)."""
        return self.kernel.cross(self.theta, X, self.X)

    def regression(self, cross: Float[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        """The matrix A of the regression of f(X) on f(support rows); O(b s^2)."""
        return cross @ self.inverse.to(cross)


def support_gram(
    support: SupportRows,
    basis: SampledBasis,
    evaluations: Callable[..., Iterator[tuple[Tensor, Tensor]]] = SampledBasis.evaluations,
    skip: int = 0,
) -> Float64[Tensor, "sv s"]:
    """phi phi_p' summed over all units but the first `skip`, with phi at all rows; O(s^2 m).

    `evaluations(basis, theta, X)` iterates over the basis.
    """
    X, s = support.all_rows, len(support)
    gram = torch.zeros(len(X), s, dtype=torch.float64, device=X.device)
    for index, phi in evaluations(basis, support.theta, X):
        phi = by_unit(phi, basis.per_unit)[:, :, index >= skip].flatten(1)
        gram += (phi @ phi[:s].T).double()
    return gram


def by_unit(phi: Float[Tensor, "b qu"], per_unit: int) -> Float[Tensor, "b q u"]:
    """Columns of an evaluation as (function of the unit, unit)."""
    return phi.reshape(len(phi), per_unit, -1)


@dataclass(frozen=True, eq=False)
class Flattening:
    """P = I - Phi_p' Q Phi_p, which lowers the largest eigenvalues of the Hessian.

    The largest eigenvalue limits the length of gradient steps and the smallest their progress, and
    P brings the two closer together. P is dense over the m weights, so that its part of a step is
    kept as s numbers, Phi_p' b.

    Attributes
    ----------
    Q : Tensor of shape (s, s)
    gram : Tensor of shape (s + v, s)
        Phi Phi_p' over the weights that b acts on, at all rows of `SupportRows`.
    level : float
        Largest eigenvalue of P times the Hessian of a batch, so that steps of 1 / level are safe.
    """

    Q: Float64[Tensor, "s s"]
    gram: Float64[Tensor, "sv s"]
    level: float

    @classmethod
    def none(cls, gram: Float64[Tensor, "sv s"]) -> Flattening:
        """P = I, for optimisers without a preconditioner."""
        return cls(torch.zeros_like(gram[: gram.shape[1]]), gram, 1.0)

    @classmethod
    def build(
        cls,
        support: SupportRows,
        gram: Float64[Tensor, "sv s"],
        rows: Rows,
        curvature: float,
        n: float,
    ) -> Flattening:
        """P from the spectrum at the support rows, and its level from a batch of other rows.

        Parameters
        ----------
        support, gram
            See `support_gram`.
        rows : Rows
            As many as a step has.
        curvature : float
            Second derivative of minus the log likelihood of a row.
        n : float
            Number of rows of the table.

        Notes
        -----
        O(s^3 + b^3), once. After Ma and Belkin (2017), Diving into the shallows.
        """
        X, s = rows.X, len(support)
        # The Hessian is a sum over rows, to which a row of count k contributes k times.
        root = support.rows.weight.to(gram).sqrt()
        eigenvalues, vectors = torch.linalg.eigh(gram[:s] * root[:, None] * root)
        kept = max(1, int(_FLATTENED * s))
        top, rest = eigenvalues[-kept:].clamp_min(0), eigenvalues[-kept - 1 :][:1].clamp_min(0)
        hessian = curvature * n / s * top + 1
        floor = curvature * n / s * rest + 1
        # The rest is rounding.
        lost = _ROUNDING * torch.finfo(X.dtype).eps
        weights = torch.where(top > lost * top[-1], (1 - floor / hessian) / top, 0.0)
        Q = (vectors[:, -kept:] * weights) @ vectors[:, -kept:].T * root[:, None] * root
        cross = support.cross(X).double()
        batch = support.kernel.cross(support.theta, X.double(), X.double()) - cross @ Q @ cross.T
        root = rows.weight.to(batch).sqrt()
        batch = batch * root[:, None] * root
        largest = torch.linalg.eigvalsh(batch)[-1].clamp_min(0)
        level = curvature * n / len(X) * float(largest) + 1
        return cls(Q, gram, max(level, float(floor)))
