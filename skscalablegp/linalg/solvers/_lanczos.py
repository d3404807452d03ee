"""Lanczos tridiagonalisation from several start vectors at once, and log|H| from it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._validation import check_integer
from ..operators import ChosenRows, LinearOperator, SelfAdjointOperator, column_dots
from ..preconditioners import IdentityPreconditioner, Preconditioner


@dataclass(frozen=True, eq=False)
class Lanczos:
    """Q_c' H Q_c = T_c for every start vector c, with orthonormal columns of Q_c.

    With a preconditioner, T belongs to P^-1/2 H P^-1/2, and the basis holds P^1/2 Q, which is
    orthonormal in the inner product of P^-1. For an operator with its own inner product the basis
    is orthonormal in that one.

    Attributes
    ----------
    diagonal : Tensor of shape (s, k)
        Diagonals of T, float64; 1 in the rows after the Krylov space of a vector is exhausted.
    off_diagonal : Tensor of shape (s, k - 1)
        Off-diagonals of T, float64; 0 from where the Krylov space is exhausted.
    basis : Tensor of shape (s, k, n)
        Transposed bases; 0 in the rows after the Krylov space is exhausted.
    """

    diagonal: Float[Tensor, "s k"]
    off_diagonal: Float[Tensor, "s k1"]
    basis: Float[Tensor, "s k n"]

    def matrix(self) -> Float[Tensor, "s k k"]:
        """The tridiagonal matrices T as full matrices."""
        T = torch.diag_embed(self.diagonal)
        off = self.off_diagonal
        return T + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)


def lanczos(
    operator: SelfAdjointOperator,
    V: Float[Tensor, "n s"],
    n_steps: int,
    *,
    preconditioner: Preconditioner | None = None,
) -> Lanczos:
    """Tridiagonalise H from every column of V, with one product a step for all columns.

    Parameters
    ----------
    operator : SelfAdjointOperator
        H.
    V : Tensor of shape (n, s)
        Start vectors.
    n_steps : int
        The number of steps k, at most n.
    preconditioner : Preconditioner, optional
        Tridiagonalise P^-1/2 H P^-1/2 from P^-1/2 V instead. No square root is computed. An
        operator with an inner product of its own takes no preconditioner.

    Notes
    -----
    k epochs. Every vector is made orthogonal to all former ones, twice, which takes O(n s k^2)
    operations and O(n s k) memory, and twice that memory with a preconditioner.
    """
    paired = operator.dual if preconditioner is None else preconditioner.solve
    steps = _steps(V, n_steps, paired)
    vectors = next(steps)
    while True:
        try:
            vectors = steps.send(operator.image(*vectors))
        except StopIteration as ended:
            return ended.value


def _steps(
    V: Float[Tensor, "n s"], n_steps: int, paired: Callable[[Tensor], Tensor]
) -> Generator[tuple[Tensor, Tensor], Tensor, Lanczos]:
    """The steps of `lanczos`: yields W and its dual Z, and takes their image H W."""
    n, s = V.shape
    k = min(check_integer("n_steps", n_steps, example=30), n)
    eps = torch.finfo(V.dtype).eps
    diagonal = torch.ones(s, k, dtype=torch.float64, device=V.device)
    off = torch.zeros(s, k, dtype=torch.float64, device=V.device)
    basis = V.new_zeros(s, k, n)
    W, Z = V, paired(V)
    dual = basis if Z is W else basis.clone()
    beta = column_dots(W, Z).clamp_min(0).sqrt()
    alive, previous = beta > 0, torch.zeros_like(V)
    largest = torch.zeros_like(beta)
    for j in range(k):
        scale = torch.where(alive, 1 / beta, 0.0).to(V.dtype)
        W, Z = W * scale, Z * scale
        basis[:, j], dual[:, j] = W.mT, Z.mT
        image = yield W, Z
        alpha = column_dots(Z, image)
        diagonal[:, j] = torch.where(alive, alpha, 1.0)
        if j + 1 == k:
            break
        image.addcmul_(W, alpha.to(V.dtype), value=-1)
        if j:
            image.addcmul_(previous, off[:, j - 1].to(V.dtype), value=-1)
        _orthogonalize(image, basis[:, : j + 1], dual[:, : j + 1])
        previous, W = W, image
        Z = paired(W)
        beta = column_dots(W, Z).clamp_min(0).sqrt()
        largest = torch.maximum(largest, alpha.abs())
        alive = alive & (beta > 10 * eps * largest)
        off[:, j] = torch.where(alive, beta, 0.0)
    return Lanczos(diagonal, off[:, : k - 1], basis)


def _orthogonalize(
    W: Float[Tensor, "n s"], basis: Float[Tensor, "s j n"], dual: Float[Tensor, "s j n"]
) -> None:
    """Subtract basis' (dual W) from W for every column, twice, which suffices."""
    columns = W.mT.unsqueeze(2)
    for _ in range(2):
        coefficients = torch.bmm(dual, columns)
        columns = torch.baddbmm(columns, basis.mT, coefficients, alpha=-1)
    W.copy_(columns.squeeze(2).mT)


def quadrature_log(lanczos: Lanczos) -> Float[Tensor, " s"]:
    """e1' log(T) e1 for every start vector: Gauss quadrature of the logarithm."""
    values, vectors = torch.linalg.eigh(lanczos.matrix())
    weights = vectors[:, 0].square()
    return (weights * values.clamp_min(torch.finfo(values.dtype).tiny).log()).sum(1)


def radau(lanczos: Lanczos, lower: float) -> Lanczos:
    """Change the last diagonal entries so that `lower` is an eigenvalue of every T.

    This turns Gauss quadrature into Gauss-Radau quadrature with a node at `lower`. If no eigenvalue
    of the matrix is below `lower`, its value for the logarithm is at most the true one, while
    `quadrature_log` of the unchanged T is at least the true one (Golub and Meurant, 2010, section
    6.2). A T of one row is returned unchanged.
    """
    k = lanczos.diagonal.shape[1]
    if k < 2:
        return lanczos
    T = lanczos.matrix()[:, :-1, :-1]
    # Rounding may leave an eigenvalue of T slightly below `lower`.
    at = torch.linalg.eigvalsh(T)[:, 0].mul(1 - 1e-6).clamp_max(lower)
    off = lanczos.off_diagonal[:, -1]
    b = torch.zeros_like(T[:, :, 0])
    b[:, -1] = off.square()
    shifted = T - torch.diag_embed(at[:, None].expand(-1, k - 1))
    last = at + torch.linalg.solve(shifted, b)[:, -1]
    diagonal = lanczos.diagonal.clone()
    diagonal[:, -1] = torch.where(off > 0, last, diagonal[:, -1])
    return Lanczos(diagonal, lanczos.off_diagonal, lanczos.basis)


class LogDet:
    """log|H| by stochastic Lanczos quadrature, whose products may be those of a solve.

    log|H| = log|P| + n E[u' log(P^-1/2 H P^-1/2) u] for u uniform on the sphere. For z ~ N(0, P)
    the direction of P^-1/2 z is such a u. Each term is scaled by n rather than by |P^-1/2 z|^2,
    which avoids the variance of that length, so that the error vanishes as P approaches H.

    Parameters
    ----------
    operator : LinearOperator
        H.
    n_probes : int, default=16
        Number of probes s. With a single probe the error is nan.
    n_steps : int, default=30
        Number of Lanczos steps k, at most n. Fewer than n steps leave a bias, which the error
        includes if `lower` is given.
    generator : torch.Generator, optional
        Draws the probes; seed 0 by default.
    preconditioner : Preconditioner, optional
        P, the identity by default.
    lower : float, optional
        A lower bound on the eigenvalues of P^-1/2 H P^-1/2. It is 1 if P consists of a part of K
        and the whole noise; see ``Preconditioner.lower``. The estimate is then the midpoint between
        the results of Gauss and Gauss-Radau quadrature, and half their distance is added to the
        standard error.

    Attributes
    ----------
    pending : Tensor of shape (n, s) or None
        The vectors of which the next step needs the products; None after the last one.

    Notes
    -----
    k epochs, O(n s k^2) further operations, and s eigenproblems of size k in float64.
    """

    def __init__(
        self,
        operator: LinearOperator,
        n_probes: int = 16,
        n_steps: int = 30,
        generator: torch.Generator | None = None,
        preconditioner: Preconditioner | None = None,
        lower: float | None = None,
    ):
        n = operator.shape[0]
        check_integer("n_probes", n_probes, example=16)
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        P = preconditioner or IdentityPreconditioner(n, operator.dtype, operator.device)
        self._operator, self._preconditioner, self._lower = operator, P, lower
        probes = P.sample(n_probes, generator)
        paired = operator.dual if preconditioner is None else preconditioner.solve
        self._steps = _steps(probes, n_steps, paired)
        self._found: Lanczos | None = None
        self.pending: Tensor | None = next(self._steps)[1]

    def take(self, image: Float[Tensor, "n s"]) -> None:
        """Go on with the products of the pending vectors."""
        try:
            self.pending = self._steps.send(image)[1]
        except StopIteration as ended:
            self.pending, self._found = None, ended.value

    def estimate(self) -> tuple[float, float]:
        """Take the remaining steps; log|H| and its error.

        The error is the standard error of the mean over the probes, plus the largest possible bias
        if `lower` is given.
        """
        while self.pending is not None:
            self.take(self._operator.matmul(self.pending))
        found, bias = self._found, 0.0
        assert found is not None  # The last step has returned it.
        n, n_probes = self._operator.shape[0], len(found.diagonal)
        terms = n * quadrature_log(found)
        # With n steps Gauss quadrature is exact.
        if self._lower is not None and found.diagonal.shape[1] < n:
            below = n * quadrature_log(radau(found, self._lower))
            terms, bias = (terms + below) / 2, float((terms - below).mean().abs()) / 2
        error = float(terms.std() / n_probes**0.5) if n_probes > 1 else float("nan")
        return self._preconditioner.log_det() + float(terms.mean()), error + bias


class WithLogDet(LinearOperator):
    """H, each product of which also takes a step of the estimate of log|H|.

    To evaluate the entries of H takes longer than to multiply them by a few more vectors.

    Parameters
    ----------
    operator : LinearOperator
        H.
    log_det : LogDet
        The estimate.
    """

    def __init__(self, operator: LinearOperator, log_det: LogDet):
        super().__init__(operator.shape[0], operator.dtype, operator.device)
        self.noise, self.threaded = operator.noise, operator.threaded
        self._operator, self._log_det = operator, log_det

    @property
    def epochs(self) -> float:
        return self._operator.epochs

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        pending = self._log_det.pending
        if pending is None:
            return self._operator.matmul(V)
        products = self._operator.matmul(torch.cat([V, pending.to(V)], 1))
        own, others = products.split([V.shape[1], pending.shape[1]], 1)
        self._log_det.take(others.to(pending.dtype, memory_format=torch.contiguous_format))
        return own.contiguous()

    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        return self._operator.rows(idx)

    def chosen(self, idx: Int[Tensor, " b"] | slice) -> ChosenRows:
        return self._operator.chosen(idx)

    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        return self._operator.block(idx)

    def diag(self) -> Float[Tensor, " n"]:
        return self._operator.diag()

    def bilinear_grad(
        self, left: Float[Tensor, "n s"], right: Float[Tensor, "n s"] | None = None
    ) -> Float[Tensor, " p"]:
        return self._operator.bilinear_grad(left, right)

    def to_dense(self) -> Float[Tensor, "n n"]:
        return self._operator.to_dense()
