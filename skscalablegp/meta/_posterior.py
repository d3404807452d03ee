"""Constant-time variances for any posterior with fast products (Pleiss et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..core.posteriors import (
    KernelPosterior,
    Posterior,
    explained_weights,
    joint_normal,
    krylov_basis,
    reported_variance,
    whitened,
)
from ..features import sample_prior_features
from ..kernels import NoSpectralDensity
from ..linalg.solvers import CG, MaxIterations, RelativeResidual, solve
from ..models.grid import GridPosterior

# Rows whose average column of K starts Lanczos where all rows would cost too much.
_PROBE_ROWS = 1000
# Up to here a joint covariance is factorised; more rows are sampled through random features.
_JOINT_ROWS = 1000
_SAMPLE_PAIRS = 1000
# Bytes of features of training rows at a time.
_BLOCK_BYTES = 2**26


class LOVEPosterior(KernelPosterior):
    """The mean of another posterior with variances from k Lanczos vectors.

    ``variance(x) = k(x, x) - |B' k(X, x)|^2`` with B B' the Galerkin approximation of H^-1 in a
    Krylov space, O(n k) a row. It is never below the exact variance.

    Parameters
    ----------
    posterior : Posterior
        Whose mean and operator are used.
    basis : Tensor of shape (n, k)
        B.
    """

    def __init__(self, posterior: Posterior, basis: Float[Tensor, "n k"]):
        super().__init__(posterior.operator, posterior.weights)
        self.basis = basis

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        cross = self.cross(X)
        prior = cross.prior_diag()
        return reported_variance(prior - cross.matmul(self.basis).square().sum(1), prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross = self.cross(X)
        explained = cross.matmul(self.basis)
        return cross.prior_covariance().addmm_(explained, explained.T, alpha=-1)

    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m t s"]:
        """Joint draws: from the covariance up to 1,000 rows, then by Matheron's rule.

        A prior draw g through random features is moved by k(x, X) B B' (y - g(X) - noise), whose
        covariance is the one above: O((n k + (n + m) q) s) for q features, linear in the rows.
        """
        if len(X) <= _JOINT_ROWS:
            return joint_normal(self, X, n_samples, random_state)
        op, t = self.operator, self.weights.shape[1]
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        try:
            features = sample_prior_features(
                op.kernel, op.kernel.n_features, _SAMPLE_PAIRS, generator, device=op.device
            )
        except NoSpectralDensity:
            return joint_normal(self, X, n_samples, random_state)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=op.dtype).to(op.device)

        w = normal(features.n_features, t * n_samples)
        step = max(1, _BLOCK_BYTES // (8 * features.n_features))
        with torch.no_grad():
            at_rows, at_new = (
                torch.cat([features.evaluate(op.theta, part) @ w for part in rows.split(step)])
                for rows in (op.X, X)
            )
        at_rows = at_rows + op.noise.sqrt()[:, None] * normal(op.shape[0], t * n_samples)
        at_new = at_new - self.cross(X).matmul(self.basis @ (self.basis.T @ at_rows))
        at_new = at_new + self.noise(X).sqrt()[:, None] * normal(*at_new.shape)
        return self.mean(X)[:, :, None] + at_new.reshape(len(X), t, n_samples)


class LOVEWeights(Posterior):
    """The mean of a posterior over weights with variances from k Lanczos vectors.

    ``variance(x) = prior(x) - |Y' phi(x)|^2``, O(q k) a row beside the features themselves.

    Parameters
    ----------
    posterior : Posterior
        One with a ``weight_form``.
    explained : Tensor of shape (q, k)
        Y with I - Y Y' close to the weights' posterior covariance, from above.
    """

    def __init__(self, posterior: Any, explained: Float[Tensor, "q k"]):
        self._below, self._form, self.explained = posterior, posterior.weight_form(), explained

    @property
    def dtype(self) -> torch.dtype:
        return self._below.dtype

    @property
    def device(self) -> torch.device:
        return self._below.device

    @property
    def width(self) -> int:
        return self._below.width

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self._below.mean(X)

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.noise(X)

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        prior = self._form.prior(X)
        explained = self._form.features(X) @ self.explained
        return reported_variance(prior - explained.square().sum(1), prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        explained = self._form.features(X) @ self.explained
        return self._form.prior_covariance(X) - explained @ explained.T

    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m t s"]:
        """Joint draws of the weights, O(q k) each; from the covariance where f has a rest."""
        if self._form.has_rest:
            return joint_normal(self, X, n_samples, random_state)
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        phi, mean = self._form.features(X), self.mean(X)
        (q, t), kind = (phi.shape[1], mean.shape[1]), {"dtype": phi.dtype}
        eps = torch.randn(q, t * n_samples, generator=generator, **kind).to(phi.device)
        # (I - Y Y')^1/2 = I - U (1 - (1 - s^2)^1/2) U' with Y = U s V'.
        U, s, _ = torch.linalg.svd(self.explained, full_matrices=False)
        shrunk = 1 - (1 - s.square()).clamp_min(0).sqrt()
        draws = phi @ (eps - U @ (shrunk[:, None] * (U.T @ eps)))
        white = torch.randn(draws.shape, generator=generator, **kind).to(phi.device)
        draws = draws + white * self.noise(X).sqrt()[:, None]
        return mean[:, :, None] + draws.reshape(len(X), t, n_samples)


@dataclass(frozen=True, eq=False)
class LOVEResult:
    """A posterior with low-rank caches, and what is known about its error.

    Attributes
    ----------
    posterior : Posterior
    rank : int
        Lanczos vectors in use.
    error : float
        Mean absolute error of the variance at the held rows, in units of `scale`.
    basis : ndarray or None
        What `with_basis` needs to rebuild the posterior.
    """

    posterior: Posterior
    rank: int
    error: float
    basis: np.ndarray | None


def with_basis(posterior: Any, rank: int, basis: np.ndarray | None) -> Posterior:
    """The posterior of a `LOVEResult` again, from the one below and stored arrays."""
    if isinstance(posterior, GridPosterior):
        return posterior.with_rank(rank)
    made = torch.tensor(basis, dtype=posterior.dtype, device=posterior.device)
    kind = LOVEPosterior if posterior.weight_form() is None else LOVEWeights
    return kind(posterior, made)


def love(
    posterior: Any,
    held: Float[Tensor, "h d"],
    probes: Float[Tensor, "p d"],
    *,
    rank: int,
    max_rank: int,
    tol: float,
    scale: float,
) -> LOVEResult:
    """Build the caches, measure their error, and let them grow until it is below `tol`.

    Parameters
    ----------
    posterior : Posterior
        On a grid, with a ``weight_form``, or with an operator that multiplies.
    held : Tensor of shape (h, d)
        Rows at which variances are compared with exact ones.
    probes : Tensor of shape (p, d)
        Training rows whose average features start Lanczos over weights.
    rank : int
        Lanczos vectors to begin with.
    max_rank : int
        Where growth ends.
    tol : float
        Largest mean absolute error of the variance, in units of `scale`.
    scale : float
        The target's mean square, as the posterior sees it.

    Raises
    ------
    TypeError
        For a posterior without fast products.
    """
    if isinstance(posterior, GridPosterior):
        exact = posterior.with_rank(None).root_variance(held)
        full = len(posterior.evaluation.inner)

        def measured(k: int) -> tuple[Posterior, float, None]:
            made = posterior.with_rank(k)
            return made, float((made.root_variance(held) - exact).abs().mean()) / scale, None

        return _grown(measured, rank, min(max_rank, full), tol)
    form = posterior.weight_form()
    if form is not None:
        exact = posterior.variance(held)
        inner = form.precision - torch.eye(len(form.precision)).to(form.precision)
        start = form.features(probes[:_PROBE_ROWS]).mean(0)

        def measured(k: int) -> tuple[Posterior, float, np.ndarray]:
            Y = explained_weights(inner, start, k)
            made = LOVEWeights(posterior, Y)
            error = float((made.variance(held) - exact).abs().mean()) / scale
            return made, error, Y.cpu().numpy()

        return _grown(measured, rank, min(max_rank, len(inner)), tol)
    if not all(hasattr(getattr(posterior, "operator", None), name) for name in ("matmul", "cross")):
        raise TypeError(
            f"{type(posterior).__name__} has no fast products with its covariance matrix, which "
            "LOVEPredictor needs: wrap a KISSGPRegressor, an IterativeGPRegressor, or a regressor "
            "with random features or inducing points."
        )
    return _love_on_rows(posterior, held, rank, max_rank, tol, scale)


def _grown(measured: Any, rank: int, most: int, tol: float) -> LOVEResult:
    """The rank doubles until the error is below `tol` or the rank is `most`."""
    while True:
        rank = min(rank, most)
        made, error, basis = measured(rank)
        if error <= tol or rank >= most:
            return LOVEResult(made, rank, error, basis)
        rank *= 2


def _love_on_rows(posterior, held, rank, max_rank, tol, scale) -> LOVEResult:
    op = posterior.operator
    cross = op.cross(held).to_dense()
    prior = op.cross(held).prior_diag()
    solved = solve(
        op, cross.T.contiguous(), CG(), stopping=RelativeResidual(1e-6) | MaxIterations(1000)
    ).value
    exact = prior - (cross.T * solved).sum(0)
    basis = krylov_basis(op, _average_column(op)[:, None], min(rank, op.shape[0]))
    while True:
        B = whitened(op, basis)
        errors = (prior - (cross @ B).square().sum(1) - exact).abs()
        error = float(errors.mean()) / scale
        size = basis.shape[1]
        result = LOVEResult(LOVEPosterior(posterior, B), size, error, B.cpu().numpy())
        if error <= tol or size >= min(max_rank, op.shape[0]):
            return result
        if 2 * size >= op.shape[0] and max_rank >= op.shape[0]:
            # Half of all directions did not do: take all, which is exact.
            basis = torch.eye(op.shape[0], dtype=op.dtype, device=op.device)
            continue
        # A new probe: the covariances of the row that is served worst, without what is known.
        probe = cross[int(errors.argmax())]
        probe = probe - basis @ (basis.T @ probe)
        if float(probe.norm()) == 0:
            return result
        more = max(1, min(size, max_rank - size, op.shape[0] - size))
        basis = krylov_basis(op, probe[:, None], more, basis)
        if basis.shape[1] == size:
            return result


def _average_column(op: Any) -> Float[Tensor, " n"]:
    """The mean of (some) columns of H."""
    n = op.shape[0]
    chosen = torch.arange(0, n, max(1, n // _PROBE_ROWS), device=op.device)
    return op.rows(chosen).mean(0)
