"""The posterior of an interpolated model, from caches on the grid."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn

from ...core.posteriors import (
    JOINT_ROWS,
    LowRankForm,
    MeanDraws,
    Moments,
    Moved,
    Posterior,
    PosteriorModule,
    inverse_root,
    normal,
    prior_draws,
    reported_variance,
)
from ...kernels import TorchKernel, compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._grid_kernel import GridKernel
from ._module import GridModule, Interpolation, Outside, Polynomials
from ._polynomials import cell_polynomials, local_polynomials, value_polynomials
from ._sparse import CPU, SparseMatrix

# Bytes of k(x, grid) for a block of rows outside the grid.
_BLOCK_BYTES = 2**26
# Up to this number of columns polynomials in a cell are cheaper. A variance has 7^d coefficients.
_POLYNOMIAL_COLUMNS = 3
# Number of products that building the polynomials may always take. If more are needed, they must
# pay off over the rows of the request.
_SHARED_PRODUCTS = 1e9
# Points of the last axis in one block of covariances.
_STENCIL_BLOCK = 64
# Share of the posterior's trace over the grid that samples leave out.
_CUT_SHARE = 1e-6
# Cost of a product in a sparse matrix, in units of one in a dense matrix, and numbers in one block
# of samples.
_SPARSE_COST = 40
# Length scale of a drawn error of interpolation, in steps of the grid: at a distance of one step
# its correlation is exp(-8).
_CORRELATED = 0.25
_SAMPLE_BLOCK = 2**18


class GridPosterior(Posterior):
    """Mean, variance and samples by interpolation of the posterior on the grid.

    On the grid the posterior covariance is C = F (I + A)^-1 F' = E E', so that variances are sums
    of squares and cannot be negative. Within a cell the variance w' C w is a polynomial of degree 6
    a column, which takes O(7^d) per row on a product grid, for any rank. The mean squared
    interpolation error at the rows, as far as it exceeds the noise, is added to every variance; it
    is that of a function, which nearby rows of a cell share.

    For rows outside the grid the kernel is that of an infinite grid. With g the covariance of f(x)
    and z, where f = F z on the grid, the mean is g' E[z] and the variance k(x, x) - |g|^2 +
    g' cov(z) g. No term is larger than the prior, so that little precision is lost. Such a row
    costs O(m r) and is always exact.

    Rows are located in the grid on the CPU, where predictions end. What is as large as the grid is
    on the device of its kernel.

    Parameters
    ----------
    grid_kernel : GridKernel
        The prior.
    theta : Tensor of shape (p,)
        Log hyperparameters.
    evaluation : GridEvaluation
        The factors of the likelihood at theta, or a `ProductEvaluation`.
    """

    dtype, device = torch.float64, CPU

    def __init__(self, grid_kernel: GridKernel, theta: Float[Tensor, " p"], evaluation: Any):
        self.grid_kernel, self.theta, self.evaluation = grid_kernel, theta, evaluation
        self.weights = evaluation.weights
        components = grid_kernel.grid.components
        widest = min(max(len(axes) for axes in components), _POLYNOMIAL_COLUMNS)
        self.width = 4 * 7**widest * len(components)

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With the caches on the grid, and F or the grid's covariances for rows beyond it."""
        kernel, grid = self.grid_kernel, self.grid_kernel.grid
        outside, spread = self._outside_module(with_variance), None
        if self._axes is not None:
            cells = [axis.cells for axis in self._axes]
            mean: Any = Polynomials(np.stack(self._mean_polynomials), cells)
            if with_variance:
                spread = Polynomials(self._variance_polynomials[None], cells)
        else:
            mean = Interpolation(self.mean_on_grid, grid)
            if with_variance:
                spread = Interpolation(self.root, grid)
        noise = float(self.noise(torch.zeros(1, 1))[0])
        parts = mean, spread, outside, noise, float(self.evaluation.misfit), self._explains
        return GridModule(kernel, self.theta, *parts)

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """W_x F z for draws of the coordinates z; beyond the grid, what z determines there.

        The error of interpolation, a part of all variances, is a function that varies within a
        cell: rows in one cell share it, and rows in others do not.
        """
        kernel, (r, t) = self.grid_kernel, self.weights.shape
        eps = normal(r, t * n_samples, generator=generator).to(self.weights.device)
        apart = inverse_root(self.evaluation.cholesky) @ eps
        z = (self.weights[:, :, None] + apart.reshape(r, t, n_samples)).flatten(1)
        values = Interpolation(self.evaluation.factor.F @ z, kernel.grid)
        outside = Outside(z, duals=self.evaluation.factor.duals())
        module = GridModule(kernel, self.theta, values, None, outside)
        draws = MeanDraws(module, (t, n_samples))
        if self._error is None:
            return draws
        return Moved(prior_draws(self._error, self._error.theta0, (t, n_samples), generator), draws)

    @cached_property
    def _error(self) -> TorchKernel | None:
        """The covariance of the error of interpolation, which ends within a cell; None for none."""
        misfit, kernel = float(self.evaluation.misfit), self.grid_kernel
        if not misfit > 0:
            return None
        scales = np.full(kernel.n_features, np.inf)
        for axis in (axis for axes in kernel.grid.components for axis in axes):
            scales[axis.column] = min(scales[axis.column], _CORRELATED * axis.step)
        finite = np.isfinite(scales)
        scales[~finite] = 1e5 * scales[finite].max()
        return compile_kernel(misfit * RBF(scales), len(scales))

    def _missed(self, rows: np.ndarray) -> Tensor | float:
        """The covariance (n, n) of the error of interpolation at some rows."""
        error, X = self._error, torch.from_numpy(rows)
        return 0.0 if error is None else error.cross(error.theta0, X, X)

    def _missed_draws(
        self, rows: np.ndarray, shape: tuple[int, int], generator: torch.Generator
    ) -> Float[Tensor, "n t s"]:
        """Draws of the error of interpolation at some rows, for few of them exactly."""
        if len(rows) > JOINT_ROWS:
            draws = prior_draws(self._error, self._error.theta0, shape, generator)
            return draws(torch.from_numpy(rows))
        L, _ = cholesky_with_jitter(self._missed(rows))
        eps = torch.randn(len(rows), shape[0] * shape[1], generator=generator, dtype=L.dtype)
        return (L @ eps).reshape(len(rows), *shape)

    # Whether `root` is one of the explained covariance in place of the posterior's.
    _explains = False

    def _outside_module(self, with_variance: bool) -> Outside:
        plus = inverse_root(self.evaluation.cholesky) if with_variance else None
        return Outside(self.weights, plus=plus, duals=self.evaluation.factor.duals())

    def low_rank_form(self) -> LowRankForm:
        # Exact variances cost no more, because they are polynomials within a cell.
        return LowRankForm(self, len(self.evaluation.inner))

    def joint_need(self, X: Float[Tensor, "m d"], what: str) -> tuple[float, str, str]:
        m, outside, sampling = len(X), int((~self._split(X)[1]).sum()), what == "sample_y"
        rank = self.evaluation.rank or self.grid_kernel.n_points
        # Samples also take the singular values of the covariance.
        need = (72 if sampling else 24) * m * m + 48 * outside**2 + 24 * m * rank
        return (
            # Inside the grid, samples come from it and not from a joint covariance.
            0 if sampling and outside == 0 else need,
            f"{what} for {m} rows, {outside} of them outside the grid (an {m} x {m} covariance)",
            "ask for fewer rows at a time, for return_std, or for rows inside the grid only",
        )

    def root_variance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Variances of rows inside the grid without polynomials."""
        F = self.evaluation.factor.F
        return self._whitened(self.interpolate(X.numpy(), F)).square().sum(1).cpu()

    # ------------------------------------------------------------------ caches

    @cached_property
    def mean_on_grid(self) -> Float[Tensor, "m t"]:
        """F E[z]. The sums in Kuu W' H^-1 Y would have terms n / noise times as large."""
        return self.evaluation.factor.F @ self.weights

    @cached_property
    def _mean_of_points(self) -> Float[Tensor, "m t"]:
        """`mean_on_grid` on the CPU: a row takes only 4^d of its numbers."""
        return self.mean_on_grid.cpu()

    @cached_property
    def root(self) -> Float[Tensor, "m r"]:
        """E with E E' the posterior covariance of the grid's points."""
        return self._whitened(self.evaluation.factor.F)

    @cached_property
    def _sampling_root(self) -> tuple[Float[Tensor, "m k"], float]:
        """S in single precision and a scale c, with c^2 S S' close to E E'; on the CPU.

        S has the principal components of the root, without a share `_CUT_SHARE` of the trace.
        """
        values, vectors = torch.linalg.eigh(self.root.T @ self.root)
        values = values.cpu()
        share = values.clamp_min(0).cumsum(0)
        kept = share > _CUT_SHARE * share[-1]
        scale = float(values.clamp_min(0)[-1]) ** 0.5
        if scale == 0:
            return torch.zeros(len(self.root), 1), 1.0
        if 1e-12 < scale < 1e12:
            scale = 1.0  # such numbers fit into single precision
        first = int(len(kept) - kept.sum())
        return (self.root @ vectors[:, first:] / scale).float().cpu(), scale

    @property
    def _axes(self):
        """The axes of a product grid small enough for polynomials, else None."""
        components = self.grid_kernel.grid.components
        single = len(components) == 1 and len(components[0]) <= _POLYNOMIAL_COLUMNS
        return components[0] if single else None

    @cached_property
    def _mean_polynomials(self) -> list[np.ndarray]:
        shape = [axis.size for axis in self._axes]
        return [value_polynomials(mean.reshape(shape)) for mean in self._mean_of_points.numpy().T]

    @cached_property
    def _variance_polynomials(self) -> np.ndarray:
        return local_polynomials(covariance_stencil(self.root, [a.size for a in self._axes]))

    @property
    def _columns(self) -> int:
        """Number of columns of the root."""
        return self.evaluation.rank

    # ------------------------------------------------------------------ predictions

    def mean(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n t"]:
        """The posterior mean; O(4^d) a row."""
        rows, inside = self._split(X)
        out = self._mean_inside(rows, inside)
        for part, g in self._outside(rows, inside):
            out[part] = (g @ self.weights).cpu().numpy()
        return torch.from_numpy(out)

    def moments(self, X: Float[Tensor, "n d"]) -> Moments:
        rows, inside = self._split(X)
        mean, variance = self._mean_inside(rows, inside), self._variance_inside(rows, inside)
        for part, g in self._outside(rows, inside):
            mean[part] = (g @ self.weights).cpu().numpy()
            with torch.no_grad():
                own = self.grid_kernel.cross(self.theta, rows[part])
            left = own - g.square().sum(1).cpu()
            variance[part] = (left + self._whitened(g).square().sum(1).cpu()).numpy()
        return Moments(torch.from_numpy(mean), self._reported(variance), self.noise(X))

    def _mean_inside(self, rows: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Means (n, t); those of rows outside the grid are undefined."""
        out = np.empty((len(rows), self.weights.shape[1]))
        if self._axes is not None:
            for target, coefficients in enumerate(self._mean_polynomials):
                out[inside, target] = cell_polynomials(self._axes, rows[inside], coefficients)
        else:
            out[inside] = self.interpolate(rows[inside], self._mean_of_points).numpy()
        return out

    def _variance_inside(self, rows: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Variances (n,); those of rows outside the grid are undefined."""
        out, axes, some = np.empty(len(rows)), self._axes, rows[inside]
        r, d = self._columns, len(axes or ())
        shared = self.grid_kernel.n_points * r * 7**d
        # Building the polynomials may cost more than these variances without them.
        dear = shared > _SHARED_PRODUCTS and len(some) * r * (4**d + r) < shared
        if axes is not None and not dear:
            out[inside] = cell_polynomials(axes, some, self._variance_polynomials)
        else:
            out[inside] = self.root_variance(torch.from_numpy(some)).numpy()
        return out

    # Rounding of variances, in units of that of the prior variance.
    _rounding = 1.0

    def _reported(self, variance: np.ndarray) -> Float[Tensor, " n"]:
        scale = (self._prior() * self._rounding).expand(len(variance))
        return reported_variance(torch.from_numpy(variance), scale) + self.evaluation.misfit

    def covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        rows, inside = self._split(X)
        G = self.interpolate(rows[inside], self.evaluation.factor.F)
        root = self._whitened(G)
        missed = self._missed(rows)
        if inside.all():
            return (root @ root.T).cpu() + missed
        inner, outer = (torch.from_numpy(np.flatnonzero(part)) for part in (inside, ~inside))
        g = torch.cat([g for _, g in self._outside(rows, inside)])
        with torch.no_grad():
            prior = self.grid_kernel.cross(self.theta, rows[~inside], rows[~inside])
        left = prior - (g @ g.T).cpu()
        exact = self._whitened(g)
        beside = (root @ exact.T).cpu()
        covariance = torch.empty(len(rows), len(rows), dtype=torch.float64)
        covariance[inner[:, None], inner] = (root @ root.T).cpu()
        covariance[inner[:, None], outer] = beside
        covariance[outer[:, None], inner] = beside.T
        covariance[outer[:, None], outer] = (exact @ exact.T).cpu() + (left + left.T) / 2
        return covariance + missed

    def sample(self, X, n_samples, random_state):
        """Joint draws mean + W_x S z for k columns of S; O(n^3) outside the grid.

        The cheaper of (W_x S) z, O(n k s), and W_x (S z), O(m k s + n s), with the cost of sparse
        products taken into account. Deviations are drawn in single precision, block by block within
        the cache of a core, and added to the mean in double precision.
        """
        rows, inside = self._split(X)
        if not inside.all():
            return super().sample(X, n_samples, random_state)
        n, t = len(rows), self.weights.shape[1]
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        S, scale = self._sampling_root
        z = torch.randn(S.shape[1], t * n_samples, generator=generator)
        W = self.grid_kernel.grid.interpolate(rows).astype(np.float32)
        sparse = _SPARSE_COST * W.nnz
        by_grid = t * n_samples * (S.numel() + sparse) < S.shape[1] * (sparse + n * t * n_samples)
        right = (S @ z).numpy() if by_grid else z
        left = W if by_grid else torch.from_numpy(W @ S.numpy())
        white = float(self.noise(X[:1])[0]) ** 0.5 / scale
        mean = self.mean(X).numpy()[:, :, None]
        out = np.empty((n, t * n_samples))
        for part in torch.arange(n).split(max(1, _SAMPLE_BLOCK // (t * n_samples))):
            block = slice(int(part[0]), int(part[-1]) + 1)
            draws = torch.as_tensor(left[block] @ right)
            if white > 0:
                draws.add_(torch.randn(draws.shape, generator=generator), alpha=white)
            if scale != 1:
                draws = draws.double().mul_(scale)
            draws = draws.numpy().reshape(len(part), t, n_samples)
            np.add(draws, mean[block], out=out[block].reshape(draws.shape))
        drawn = torch.from_numpy(out).reshape(n, t, n_samples)
        if self._error is not None:
            drawn += self._missed_draws(rows, (t, n_samples), generator)
        return drawn

    def noise(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        with torch.no_grad():
            return self.grid_kernel.noise(self.theta).expand(len(X)).clone()

    # ------------------------------------------------------------------ parts

    def interpolate(self, rows: np.ndarray, V: Float[Tensor, "m s"]) -> Float[Tensor, "n s"]:
        """W_x V, on the device of V."""
        return SparseMatrix(self.grid_kernel.grid.interpolate(rows), V.device) @ V

    def _whitened(self, G: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """G L^-T: covariances with z, whitened by its exact posterior covariance."""
        L = self.evaluation.cholesky
        return torch.linalg.solve_triangular(L, G.T, upper=False).T

    def _prior(self) -> Tensor:
        with torch.no_grad():
            return self.grid_kernel.prior(self.theta)

    def _split(self, X: Tensor) -> tuple[np.ndarray, np.ndarray]:
        rows = X.cpu().double().numpy()
        return rows, self.grid_kernel.grid.covers(rows)

    def _outside(self, rows: np.ndarray, inside: np.ndarray):
        """Blocks of rows outside the grid, with the covariances of f and z there."""
        where = np.flatnonzero(~inside)
        step = max(1, _BLOCK_BYTES // (8 * 4 * self.grid_kernel.n_points))
        for start in range(0, len(where), step):
            part = where[start : start + step]
            with torch.no_grad():
                yield part, self._covariances(rows[part])

    def _covariances(self, rows: np.ndarray) -> Float[Tensor, "n r"]:
        """The covariances of f at some rows and z, whose posterior mean is `weights`."""
        return self.grid_kernel.coordinates(self.theta, rows, self.evaluation.factor)


def covariance_stencil(root: Float[Tensor, "m r"], shape: list[int]) -> np.ndarray:
    """Entries of E E' at offsets -3 to 3 along every axis, (points..., 7...); O(m r 7^d / 2)."""
    *lead, last = shape
    E = root.reshape(*shape, -1)
    out = root.new_zeros(*shape, *[7] * len(shape))
    for offset in np.ndindex(*[7] * len(lead)):
        shift = [k - 3 for k in offset]
        if shift < [0] * len(lead) or any(abs(k) >= s for k, s in zip(shift, lead, strict=True)):
            continue  # the mirror image has it, or no points are so far apart
        here = tuple(slice(max(0, -k), s - max(0, k)) for k, s in zip(shift, lead, strict=True))
        there = tuple(slice(max(0, k), s - max(0, -k)) for k, s in zip(shift, lead, strict=True))
        mirror = [6 - k for k in offset]
        # All pairs of a block are one matrix product, faster than the seven diagonals one by one.
        for start in range(0, last, _STENCIL_BLOCK):
            stop, first = min(start + _STENCIL_BLOCK, last), max(start - 3, 0)
            near = E[(*there, slice(first, stop + 3))]
            pairs = E[(*here, slice(start, stop))] @ near.mT
            for k in range(-3, 4):
                low, high = max(start, -k), min(stop, last - k)
                if low >= high:
                    continue
                apart = start + k - first
                diagonal = pairs.diagonal(apart, -2, -1)
                values = diagonal.narrow(-1, low - start - max(0, -apart), high - low)
                out[(*here, slice(low, high), *offset, k + 3)] = values
                out[(*there, slice(low + k, high + k), *mirror, 3 - k)] = values
    return out.cpu().numpy()
