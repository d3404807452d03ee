"""A kernel on a grid: Toeplitz along every axis, Kronecker over axes, block diagonal over grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..._validation import check_memory
from ...kernels import MAX_POWER, Node, Term, TorchKernel
from ...linalg.blocks import look_up
from ...linalg.operators import slope
from ._grid import Grid, keys_weights
from ._sparse import CPU

# Smallest noise variance, as a share of the prior variance. A smaller one is raised and reported.
SMALLEST_NOISE = 1e-9
# Pairs of rows whose covariances are computed at a time.
_BLOCK_PAIRS = 2**18
# Up to this many points a dense factor is faster than two Fourier transforms.
_DENSE_POINTS = 256
# Axes with more points are long: their matrices are decomposed in halves, or, if a budget allows at
# most this share of the rank, for the largest eigenvalues alone. The decomposition of 4,000 points
# takes 14, 3.5 or, for a rank of 400, .5 seconds.
LONG_AXIS, _SMALL_PART = 1000, 0.4
# Vectors of the space for the largest eigenvalues beside their number, and the share of the largest
# eigenvalue there below which others are mostly rounding.
_SPARE, _SURE = 16, 1e-13
# Eigenvalues below this fraction of the largest are mostly rounding.
_ROUNDING = 100 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class GridFactor:
    """A factor of the grid's covariance, Kuu = F F'.

    Attributes
    ----------
    F : Tensor of shape (m, r)
        Eigenvectors times the roots of their eigenvalues.
    blocks : list of Tensor
        Its blocks of each component's terms, in the order of `GridKernel.columns`.
    """

    F: Tensor
    blocks: list[Tensor]

    def duals(self) -> list[Tensor]:
        """(F^+)' of each block, shrunk where the squares of its columns are mostly rounding."""
        out = []
        for F in self.blocks:
            sizes = F.square().sum(0)
            shift = _ROUNDING * sizes.max().clamp_min(torch.finfo(F.dtype).tiny)
            out.append(F / (sizes + shift))
        return out


@dataclass(eq=False)
class GridKernel:
    """The covariance Kuu of the points of a grid, as a function of theta.

    A product grid has one component, an additive grid one for each column. On every component the
    whole kernel acts along the component's axes. The covariance is a sum of terms, each of which is
    a Kronecker product with one Toeplitz matrix per axis. Along a single axis the terms are added
    up.

    Attributes
    ----------
    kernel : TorchKernel
        A sum of products of constants and stationary kernels. With more than one axis in a
        component each must be separable, a product over columns such as RBF.
    grid : Grid
    memory_budget : float or None, default=None
        Bytes that `factor` may take; the machine's free memory counts in any case.
    device : torch.device, default=cpu
        Device of everything that is as large as the grid. The kernel is evaluated along the axes,
        and its matrices there are decomposed, on the CPU.
    most_rank : int or None, default=None
        Largest rank of `factor`, which then keeps the largest eigenvalues; None sets no limit.

    Raises
    ------
    ValueError
        For a kernel that is not stationary, or not a product over the columns.
    """

    kernel: TorchKernel
    grid: Grid
    memory_budget: float | None = None
    device: torch.device = CPU
    most_rank: int | None = None

    def __post_init__(self) -> None:
        kernel, grid = self.kernel, self.grid
        self.n_features = kernel.n_features
        self.terms = [(term, term.leaves) for term in kernel.node.products()]
        # Including factors of the noise, which are in no product.
        for leaf in kernel.node.leaves():
            _check_stationary(leaf)
        joint = max(len(axes) for axes in grid.components) > 1
        for leaf in (leaf for _, leaves in self.terms for leaf in leaves):
            _check_factor(leaf, joint)
            if len(grid.components) > 1 and leaf.columns is not None:
                raise ValueError(
                    f"{leaf.label} is restricted to some columns, but structure='additive' sums "
                    "the kernel over all columns: use structure='product', or SGPRRegressor."
                )

    @property
    def n_points(self) -> int:
        return self.grid.n_points

    @property
    def long_axes(self) -> bool:
        """Whether decomposing the matrix of an axis takes more than a tenth of a second."""
        return any(size > LONG_AXIS for shape in self.grid.shapes for size in shape)

    def columns(self, theta: Float[Tensor, " p"]) -> list[list[list[Tensor]]]:
        """First columns of the Toeplitz factors, by component, term and axis; differentiable."""
        return self._nested(self._flat(theta).to(self.device, non_blocking=True))

    def _flat(self, theta: Float[Tensor, " p"]) -> Float[Tensor, " s"]:
        """All numbers of these columns, on the CPU."""
        out = []
        for axes in self.grid.components:
            lags = [torch.from_numpy(axis.step * np.arange(axis.size)) for axis in axes]
            out += [column for values in self._terms(theta, axes, lags) for column in values]
        return torch.cat(out)

    def _nested(self, flat: Float[Tensor, " s"]) -> list[list[list[Tensor]]]:
        """The columns that `flat` has one after the other."""
        # Along a single axis the terms are one.
        counts = [1 if len(axes) == 1 else max(1, len(self.terms)) for axes in self.grid.components]
        shapes = [[shape] * n for shape, n in zip(self.grid.shapes, counts, strict=True)]
        parts = iter(flat.split([size for terms in shapes for shape in terms for size in shape]))
        return [[[next(parts) for _ in shape] for shape in terms] for terms in shapes]

    def slope(
        self,
        theta: Float[Tensor, " p"],
        parts: list[Callable[[list], Tensor]],
        d_noise: Tensor | float,
        raised: bool,
    ) -> Float[Tensor, " p"]:
        """The gradient in theta of a sum of functions of `columns` and of d_noise times the noise.

        The functions are differentiated one after the other, which bounds the memory. One copy to
        a device and one from there.

        Parameters
        ----------
        theta : Tensor of shape (p,)
        parts : list of callable
        d_noise : Tensor or float
            The derivative in the noise variance.
        raised : bool
            Whether the noise is the smallest one, which depends on the prior variance.
        """
        with torch.enable_grad():
            theta = theta.clone().requires_grad_(True)
            flat = self._flat(theta)
            at = flat.detach().to(self.device, non_blocking=True).requires_grad_(True)
            total = torch.zeros_like(at)
            for part in parts:
                total += slope(part(self._nested(at)), at)
            number = torch.as_tensor(d_noise, dtype=total.dtype, device=total.device)
            found = torch.cat([total, number[None]]).cpu()
            noise = self.raised(theta) if raised else self.noise(theta)
            return slope((found[:-1] * flat).sum() + found[-1] * noise, theta)

    def _terms(self, theta: Tensor, axes: tuple, lags: list[Tensor]) -> list[list[Tensor]]:
        columns = [axis.column for axis in axes]
        return along_axes(self.terms, theta, columns, lags, self.n_features)

    def noise(self, theta: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """The variance of the kernel's white noise, the same everywhere; differentiable."""
        X = torch.zeros(1, self.kernel.n_features, dtype=torch.float64)
        return self.kernel.noise(theta, X)[0]

    def prior(self, theta: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """The prior variance of a point, summed over components."""
        columns = self._nested(self._flat(theta))
        return sum(math.prod(c[0] for c in values) for terms in columns for values in terms)

    def raised(self, theta: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """The smallest noise variance, a share of the prior variance."""
        return SMALLEST_NOISE * self.prior(theta)

    def matmul(self, theta: Float[Tensor, " p"], V: Float[Tensor, "m s"]) -> Tensor:
        """Kuu V; O(m log m) a column."""
        return apply_columns(self.columns(theta), self.grid, V)

    def trace(self, columns: list, sums: list[Tensor]) -> Float[Tensor, ""]:
        """tr(G Kuu) from `columns` and the `offset_sums` of each block of G, differentiable."""
        steps = (torch.arange(7, device=self.device) - 3).abs()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for terms, weights in zip(columns, sums, strict=True):
            for values in terms:
                left = weights
                for column in values:
                    near = torch.cat([column, column.new_zeros(4)])[steps]
                    left = torch.tensordot(near, left, dims=([0], [0]))
                total = total + left
        return total

    def factor(self, theta: Float[Tensor, " p"], tol: float) -> GridFactor:
        """F with Kuu - F F' positive semidefinite up to rounding and of trace at most `tol`.

        Its columns are products of eigenvectors of the small factors, without those whose
        eigenvalues add up to `tol`. Smooth kernels need far fewer columns than points.
        """
        cuts = self.cuts(theta, tol)
        m, r = self.n_points, sum(cut.rank for terms in cuts for cut in terms)
        F = torch.zeros(m, r, dtype=torch.float64, device=self.device)
        done, blocks = 0, []
        for terms, shape, start in zip(cuts, self.grid.shapes, self.grid.starts, strict=True):
            for cut in terms:
                block = F[start : start + math.prod(shape), done : done + cut.rank]
                blocks.append(block.copy_(cut.factor(self.device)))
                done += cut.rank
        return GridFactor(F, blocks)

    def cuts(
        self, theta: Float[Tensor, " p"], tol: float, vectors: bool = True
    ) -> list[list[_Cut]]:
        """The eigenpairs of each component's terms that the factor keeps, or only their number.

        Raises
        ------
        MemoryError
            For a factor that does not fit; the message names its rank and how to reduce it.
        """
        columns = self._nested(self._flat(theta))
        n_terms = sum(len(terms) for terms in columns)
        part, most = tol / n_terms, self.most_rank
        cuts = [[_Cut(values, part, most, vectors) for values in terms] for terms in columns]
        m, r = self.n_points, sum(cut.rank for terms in cuts for cut in terms)
        if self.most_rank is not None and r > self.most_rank:
            for cut in (cut for terms in cuts for cut in terms):
                cut.shorten(max(1, cut.rank * self.most_rank // r))
            r = sum(cut.rank for terms in cuts for cut in terms)
        check_memory(
            8 * r * (5 * m + 4 * r),
            f"A grid of {m} points whose covariance has rank {r}",
            "use a smaller grid_size, longer length scales, structure='additive', or a model with "
            "inducing points",
            self.memory_budget,
        )
        return cuts

    def rows(self, theta: Float[Tensor, " p"], X: np.ndarray) -> Tensor:
        """Interpolated covariances of any rows with the grid, W_x K(points around x, grid).

        Outside the grid they use the four points around x of an infinite grid, which is never
        stored. O(m) per row.
        """
        return torch.cat([sum(terms) for terms in self._rows_by_term(theta, X)], 1)

    def coordinates(
        self, theta: Float[Tensor, " p"], X: np.ndarray, factor: GridFactor
    ) -> Float[Tensor, "n r"]:
        """Covariances g of any rows with the coordinates z of f = F z, z ~ N(0, I).

        Within a term the columns of F are orthogonal eigenvectors, so that g = F^+ k(grid, x).
        Directions whose eigenvalues are mostly rounding are shrunk, so that k(x, x) - |g|^2 remains
        positive. O(m r) a row.
        """
        terms = (row for rows in self._rows_by_term(theta, X) for row in rows)
        return torch.cat([row @ dual for row, dual in zip(terms, factor.duals(), strict=True)], 1)

    def _rows_by_term(self, theta: Tensor, X: np.ndarray) -> list[list[Tensor]]:
        """`rows` by component and term."""
        parts = []
        for axes in self.grid.components:
            lags, weights = [], []
            for axis in axes:
                first, v = axis.locate(X[:, axis.column])
                near = first[:, None] + np.arange(4)
                apart = np.abs(near[:, :, None] - np.arange(axis.size)) * axis.step
                lags.append(torch.from_numpy(apart))
                weights.append(torch.from_numpy(keys_weights(v)))
            found = interpolated(self._terms(theta, axes, lags), weights)
            sent = [[part.to(self.device, non_blocking=True) for part in term] for term in found]
            parts.append([reduce(outer_rows, term) for term in sent])
        return parts

    def cross(
        self, theta: Float[Tensor, " p"], X: np.ndarray, Z: np.ndarray | None = None
    ) -> Tensor:
        """W_x K W_z' on an infinite grid for all pairs of rows, or for equal rows without Z.

        On the CPU, because it depends on the rows and not on the grid.
        """
        shape = [] if Z is None else [len(Z)]
        step = max(1, _BLOCK_PAIRS // max([1, *shape]))
        parts = [self._pairs(theta, X[k : k + step], Z) for k in range(0, len(X), step)]
        return torch.cat(parts) if parts else torch.empty(0, *shape)

    def _pairs(self, theta: Tensor, X: np.ndarray, Z: np.ndarray | None = None) -> Tensor:
        """`cross` of one block, with one evaluation of the kernel for each distinct lag."""
        total = 0
        for axes in self.grid.components:
            lags, weights, places = [], [], []
            for axis in axes:
                i, v = axis.locate(X[:, axis.column])
                j, w = (i, v) if Z is None else axis.locate(Z[:, axis.column])
                left, right = (torch.from_numpy(keys_weights(u)) for u in (v, w))
                if Z is not None:
                    i, left = i[:, None], left[:, None]
                apart, place = np.unique(i - j, return_inverse=True)
                # All distances between the four points around x and those around z.
                between = np.abs(apart[:, None] + np.arange(-3, 4)) * axis.step
                lags.append(torch.from_numpy(between))
                places.append(torch.from_numpy(place.reshape((i - j).shape)))
                weights.append((left, right))
            for values in self._terms(theta, axes, lags):
                term = 1
                for (left, right), place, value in zip(weights, places, values, strict=True):
                    along = 0
                    for p, q in np.ndindex(4, 4):
                        near = value[:, p - q + 3][place]
                        along = along + left[..., p] * right[..., q] * near
                    term = term * along
                total = total + term
        return total


def along_axes(
    terms: list[tuple[Term, Sequence[Node]]],
    theta: Float[Tensor, " p"],
    columns: list[int],
    lags: list[Tensor],
    d: int,
) -> list[list[Tensor]]:
    """k at lags along some of d columns, by term; the amplitude is in the first column.

    Along a single column the terms are added up.
    """
    found = []
    for term, leaves in terms:
        values = []
        for column, apart in zip(columns, lags, strict=True):
            unit = torch.zeros(d, dtype=apart.dtype, device=apart.device)
            unit[column] = 1
            X = apart.reshape(-1, 1) * unit
            value = torch.ones_like(X[:, 0])
            for leaf in leaves:
                value = value * leaf.smooth(theta, X, X[:1] * 0)[:, 0]
            values.append(value.reshape(apart.shape))
        values[0] = values[0] * term.amplitude(theta)
        found.append(values)
    if not found:
        return [[torch.zeros_like(apart) for apart in lags]]
    return [[sum(values[0] for values in found)]] if len(columns) == 1 else found


def interpolated(
    terms: list[list[Tensor]], weights: list[Float[Tensor, "m 4"]]
) -> list[list[Tensor]]:
    """Interpolate values (m, 4, s) at the four points around each row; those at the rows (m, s)."""
    return [
        [(w[:, None] @ value)[:, 0] for w, value in zip(weights, values, strict=True)]
        for values in terms
    ]


def outer_rows(left: Float[Tensor, "m a"], right: Float[Tensor, "m b"]) -> Float[Tensor, "m c"]:
    """Products of all pairs of columns, row by row."""
    return (left[:, :, None] * right[:, None]).flatten(1)


def apply_columns(columns: list, grid: Grid, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """Kuu V from the first columns of its Toeplitz factors."""
    out = []
    for terms, shape, start in zip(columns, grid.shapes, grid.starts, strict=True):
        part = V[start : start + math.prod(shape)]
        out.append(sum(kronecker_matmul(values, part) for values in terms))
    return torch.cat(out)


def quadratic_form(columns: list, grid: Grid, V: Float[Tensor, "m s"]) -> Float[Tensor, ""]:
    """tr(V' Kuu V) from the first columns of its Toeplitz factors."""
    return (V * apply_columns(columns, grid, V)).sum()


def toeplitz(column: Float[Tensor, " m"]) -> Float[Tensor, "m m"]:
    """The symmetric matrix with this first column, m^2 numbers; differentiable."""
    steps = torch.arange(len(column), device=column.device)
    return column[(steps[:, None] - steps).abs()]


def toeplitz_matmul(column: Float[Tensor, " m"], V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """The product with V by the circulant matrix of twice the size, O(m log m) a column."""
    ring = torch.cat([column, column[1:-1].flip(0)]) if len(column) > 1 else column
    spectrum = torch.fft.rfft(ring)[:, None] * torch.fft.rfft(V, n=len(ring), dim=0)
    return torch.fft.irfft(spectrum, n=len(ring), dim=0)[: len(column)]


def kronecker_matmul(columns: list[Tensor], V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """The product with V of a Kronecker product of Toeplitz matrices, whose last axis is fastest.

    An axis at a time; O(m sum_j m_j) a column, O(m log m) on long axes.
    """
    sizes = [len(column) for column in columns]
    for axis, (column, size) in enumerate(zip(columns, sizes, strict=True)):
        before, after = math.prod(sizes[:axis]), V.numel() // math.prod(sizes[: axis + 1])
        block = V.reshape(before, size, after)
        if size <= _DENSE_POINTS:
            image = toeplitz(column) @ block
        else:
            flat = block.transpose(0, 1).reshape(size, before * after)
            image = toeplitz_matmul(column, flat).reshape(size, before, after).transpose(0, 1)
        V = image.reshape(V.shape)
    return V


class _Cut:
    """The largest eigenpairs of a term, without a tail of eigenvalues that add up to `tol`.

    Of a long axis no more than `most` are computed, if that is a small part of them.
    """

    def __init__(
        self, columns: list[Tensor], tol: float, most: int | None = None, vectors: bool = True
    ):
        self._pairs = [_eigenpairs(column, most, vectors) for column in columns]
        values = [pair[0] for pair in self._pairs]
        # The sum of the eigenvalues that have not been computed.
        missing = 0.0
        if any(len(v) < len(c) for v, c in zip(values, columns, strict=True)):
            missing = math.prod(float(len(c) * c[0]) for c in columns)
            missing -= math.prod(float(v.sum()) for v in values)
        self._places, self._values = _kept(values, tol - missing)
        self.rank = len(self._places)

    def shorten(self, rank: int) -> None:
        """Keep no more than the `rank` largest eigenpairs."""
        self._places, self._values = self._places[:rank], self._values[:rank]
        self.rank = len(self._places)

    def factor(self, device: torch.device) -> Float[Tensor, "m r"]:
        shape = [len(values) for values, _ in self._pairs]
        where = np.unravel_index(self._places.numpy(), shape)
        block = self._values.sqrt()[None].to(device, non_blocking=True)
        for (_, vectors), chosen in zip(self._pairs, where, strict=True):
            along = vectors[:, torch.from_numpy(chosen)].to(device, non_blocking=True)
            block = (block[:, None, :] * along[None]).flatten(0, 1)
        return block


def _eigenpairs(
    column: Float[Tensor, " m"], most: int | None, vectors: bool
) -> tuple[Tensor, Tensor]:
    """Eigenvalues, and eigenvectors as columns if wanted, of the matrix with this first column."""
    look_up()
    m = len(column)
    if m > LONG_AXIS and most is not None and most <= m * _SMALL_PART:
        return leading_pairs(column, most)
    if m > LONG_AXIS:
        return halved_eigh(column, vectors)
    return torch.linalg.eigh(toeplitz(column))


def halved_eigh(column: Float[Tensor, " m"], vectors: bool = True) -> tuple[Tensor, Tensor]:
    """The eigenpairs by two decompositions of half the size, a quarter of the operations.

    The eigenvectors of a symmetric Toeplitz matrix are symmetric, (u, v, J u), or antisymmetric,
    (u, 0, -J u), where J reverses (Cantoni and Butler 1976). Without `vectors` these are empty.
    """
    m, h = len(column), len(column) // 2
    steps = torch.arange(h, device=column.device)
    A, JC = toeplitz(column[:h]), column[m - 1 - steps[:, None] - steps]
    even, odd = A + JC, A - JC
    if m % 2:
        edge = 2**0.5 * column[1 : h + 1].flip(0)
        even = torch.cat([even, edge[None]])
        even = torch.cat([even, torch.cat([edge, column[:1]])[:, None]], 1)
    if not vectors:
        values = [torch.linalg.eigvalsh(even)]
        look_up()
        values.append(torch.linalg.eigvalsh(odd))
        return torch.cat(values), column.new_empty(m, 0)
    (low, u), _ = torch.linalg.eigh(even), look_up()
    high, w = torch.linalg.eigh(odd)
    V = column.new_zeros(m, m)
    V[:h, : len(low)], V[m - h :, : len(low)] = u[:h], u[:h].flip(0)
    V[:h, len(low) :], V[m - h :, len(low) :] = w, -w.flip(0)
    V *= 2**-0.5
    if m % 2:
        V[h, : len(low)] = u[h]
    return torch.cat([low, high]), V


def leading_pairs(column: Float[Tensor, " m"], rank: int) -> tuple[Tensor, Tensor]:
    """The largest eigenpairs, nearly, so that their matrix is at most the whole one.

    Nystrom's method on a space of slow cosines after two products with the matrix, which are by
    FFT; O(m r^2). Halko, Martinsson and Tropp (2011), algorithm 5.5.
    """
    m = len(column)
    places, waves = torch.arange(m).double() + 0.5, torch.arange(rank + _SPARE).double()
    Q = torch.cos(torch.outer(places, waves) * (math.pi / m)).to(column)
    for _ in range(2):
        look_up()
        Q = torch.linalg.qr(toeplitz_matmul(column, Q))[0]
    look_up()
    image = toeplitz_matmul(column, Q)
    inner = Q.T @ image
    sizes, turn = torch.linalg.eigh((inner + inner.T) / 2)
    sure = sizes > _SURE * sizes[-1]
    F = image @ (turn[:, sure] / sizes[sure].sqrt())
    squares, turn = torch.linalg.eigh(F.T @ F)
    values, turn = squares[-rank:], turn[:, -rank:]
    return values, F @ (turn / values.clamp_min(torch.finfo(F.dtype).tiny).sqrt())


def _kept(values: list[Tensor], tol: float) -> tuple[Tensor, Tensor]:
    """The largest products of eigenvalues: those before the tail that adds up to `tol`."""
    product = torch.ones(1, dtype=torch.float64)
    for v in values:
        product = (product[:, None] * v.clamp_min(0)).flatten()
    order = product.argsort(descending=True)
    sizes = product[order]
    tail = sizes.flip(0).cumsum(0).flip(0)
    # Smaller eigenvalues are rounding errors.
    floor = torch.finfo(torch.float64).eps * float(sizes[0])
    count = max(int(((tail > tol) & (sizes > floor)).sum()), 1)
    return order[:count], sizes[:count]


def _check_stationary(leaf: Node) -> None:
    if leaf.codes:
        raise ValueError(
            f"{leaf.label} compares categories, and a grid cannot interpolate between their codes: "
            "use IterativeGPRegressor, or SGPRRegressor for many rows."
        )
    if not leaf.stationary:
        raise ValueError(
            f"{leaf.label} is not stationary, and on a grid only functions of the difference of "
            "two rows have fast products, with one noise variance for all. Use RBF, Matern, "
            "SpectralMixture or sums and products of these, or IterativeGPRegressor."
        )


def _check_factor(factor: Node, joint: bool) -> None:
    if factor.parts:
        raise ValueError(
            f"{factor.label} is supported on a grid only where it expands to a few products, with "
            f"whole numbers up to {MAX_POWER} as exponents. Write it without a power "
            "(RBF(l) ** 0.5 is RBF(2 ** 0.5 * l)), or use IterativeGPRegressor."
        )
    if joint and not factor.separable:
        raise ValueError(
            f"{factor.label} is not a product over columns, which a product grid needs. Use RBF or "
            "SpectralMixture, structure='additive' (any stationary kernel, one column at a time), "
            "or IterativeGPRegressor."
        )
