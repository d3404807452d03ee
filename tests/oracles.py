"""Independent answers: dense float64 algebra, problems with known spectra, z-scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from skscalablegp.linalg.operators import LinearOperator


class DenseOperator(LinearOperator):
    """A given symmetric positive definite matrix as a whole.

    Parameters
    ----------
    H : Tensor of shape (n, n)
        The whole matrix, including the noise.
    noise : Tensor of shape (n,), optional
        The part of the diagonal that is noise; zero by default.
    derivatives : Tensor of shape (p, n, n), optional
        dH/dtheta. By default there are none, and gradients are empty.
    """

    def __init__(
        self,
        H: Float[Tensor, "n n"],
        noise: Float[Tensor, " n"] | None = None,
        derivatives: Float[Tensor, "p n n"] | None = None,
    ):
        super().__init__(len(H), H.dtype, H.device)
        self.H = H
        self.noise = H.new_zeros(len(H)) if noise is None else noise
        self.derivatives = H.new_zeros(0, *H.shape) if derivatives is None else derivatives

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        self._count(self.H.numel())
        return self.H.to(V.dtype) @ V

    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        self._count(self.H[idx].numel())
        return self.H[idx]

    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        self._count(len(idx) ** 2)
        return self.H[idx[:, None], idx]

    def diag(self) -> Float[Tensor, " n"]:
        return self.H.diagonal().clone()

    def bilinear_grad(self, left, right=None):
        self._count(self.H.numel())
        if right is None:
            return torch.einsum("ij,pij->p", left, self.derivatives).double()
        products = torch.einsum("pij,js->pis", self.derivatives, right)
        return torch.einsum("is,pis->p", left, products).double()

    def to_dense(self) -> Float[Tensor, "n n"]:
        self._count(self.H.numel())
        return self.H.clone()


@dataclass(frozen=True, eq=False)
class Problem:
    """A dense H = K + diag(noise), right-hand sides, and what dense algebra says about them."""

    name: str
    H: torch.Tensor
    noise: torch.Tensor
    B: torch.Tensor

    def operator(self, dtype: torch.dtype = torch.float64) -> DenseOperator:
        return DenseOperator(self.H.to(dtype), self.noise.to(dtype))

    def relative_residuals(self, V: torch.Tensor) -> torch.Tensor:
        norms = self.B.norm(dim=0)
        residuals = (self.B - self.H @ V.double()).norm(dim=0)
        return torch.where(norms > 0, residuals / norms, residuals)

    @property
    def condition(self) -> float:
        values = torch.linalg.eigvalsh(self.H)
        return float(values[-1] / values[0])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def spectrum_problem(condition: float, n: int = 40, s: int = 5, seed: int = 0) -> Problem:
    """Random eigenvectors, eigenvalues spaced evenly in the logarithm from 1 to 1 / condition."""
    Q, _ = torch.linalg.qr(normal(n, n, seed=seed))
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), n, dtype=torch.float64)
    H = (Q * values) @ Q.T
    noise = torch.full((n,), 0.5 * values[-1].item(), dtype=torch.float64)
    return Problem(f"condition-{condition:.0e}", (H + H.T) / 2, noise, normal(n, s, seed=seed + 1))


def kernel_problem(
    n: int = 60,
    s: int = 5,
    noise: float = 1e-2,
    *,
    d: int = 2,
    duplicates: bool = False,
    heteroscedastic: bool = False,
    seed: int = 0,
) -> Problem:
    """Squared exponential kernel on standard normal inputs."""
    X = normal(n, d, seed=seed)
    if duplicates:
        X[n // 2 :] = X[: n - n // 2].clone()
    levels = torch.full((n,), noise, dtype=torch.float64)
    if heteroscedastic:
        levels *= torch.logspace(-1, 2, n, dtype=torch.float64)
    K = torch.exp(-0.5 * torch.cdist(X, X).square())
    B = normal(n, s, seed=seed + 1)
    B[:, 0] = torch.sin(X[:, 0])
    kind = "duplicates" if duplicates else "heteroscedastic" if heteroscedastic else "kernel"
    return Problem(f"{kind}-n{n}", K + torch.diag(levels), levels, B)


def with_zero_column(problem: Problem) -> Problem:
    B = problem.B.clone()
    B[:, 1] = 0
    return Problem("zero-column", problem.H, problem.noise, B)


def z_score(values: torch.Tensor, expected: float) -> float:
    """Standard errors between the mean of independent draws and what it should be."""
    return float((values.mean() - expected) / (values.std() / len(values) ** 0.5))


PROBLEMS = [
    spectrum_problem(1e1),
    spectrum_problem(1e3),
    spectrum_problem(1e6),
    spectrum_problem(1e2, s=1),
    kernel_problem(),
    kernel_problem(duplicates=True),
    kernel_problem(heteroscedastic=True),
    kernel_problem(n=1, s=2),
    kernel_problem(n=2, s=2),
    with_zero_column(kernel_problem()),
]


def slope_by_differences(function, step):
    """The slope of ``function(t)`` at 0 from central differences with a step and half of it.

    The error is of fourth order: functions drawn from rough kernels hold high frequencies.
    """
    wide, narrow = ((function(h) - function(-h)) / (2 * h) for h in (step, step / 2))
    return (4 * narrow - wide) / 3
