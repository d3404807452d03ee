"""The distance between rows that a kernel implies, and the search for nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from ...core.data import limited
from ...kernels import Node, TorchKernel

# Largest number of dimensions of the space in which categories become points.
_MOST_DIRECTIONS = 64
# Dimensions whose spread is below this share of the widest are left out of the search.
_NEGLIGIBLE = 1e-6
_FAR = 1e30
# Added points are searched one by one up to this number plus this share of the points in the tree;
# with more of them, a new tree is faster.
_FEW_BESIDE, _SHARE_BESIDE = 1000, 0.02
# Up to this number of points or of dimensions the search is exact, since it is fast. Above, a point
# may be passed over for one that is at most 1 + _SLACK times as far.
_EXACT_POINTS, _EXACT_DIMENSIONS, _SLACK = 30_000, 5, 0.5


class Metric:
    """Maps rows to points whose squared distance is close to 1 - correlation for close rows.

    The squared distances of the factors of a product are added. Those of the terms of a sum are
    added in proportion to their variances.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    X : Tensor of shape (n, d)
        The rows among which neighbours will be searched.

    Raises
    ------
    ValueError
        If the kernel has no such map.
    """

    def __init__(self, kernel: TorchKernel, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]):
        terms = kernel.node.products()
        amplitudes = [float(term.amplitude(theta)) for term in terms]
        shares: dict[Node, float] = {}
        for term, amplitude in zip(terms, amplitudes, strict=True):
            for leaf in term.leaves:
                shares[leaf] = shares.get(leaf, 0.0) + amplitude / max(sum(amplitudes), 1e-300)
        self._parts = [_points(leaf, theta, X, share**0.5) for leaf, share in shares.items()]
        points = self._joined(X)
        # A far entry in one dimension must not make the others negligible.
        near = limited(points)
        self._centre = near.mean(0)
        spread = np.abs(near - self._centre).max(0)
        self._least = _NEGLIGIBLE * spread.max(initial=0.0)
        self._kept = spread > self._least
        # If all rows are equal, one dimension is kept, so that the tree has points.
        self._kept[:1] |= not self._kept.any()
        self._codes = {j: X[:, j].round().unique() for j in kernel.coded}
        self.points = self._chosen(points)

    def covers(self, X: Float[Tensor, "m d"]) -> bool:
        """Whether rows vary only in the dimensions that are kept, and have known categories."""
        varies = np.abs(self._joined(X) - self._centre).max(0) > self._least
        known = (torch.isin(X[:, j].round(), codes).all() for j, codes in self._codes.items())
        return not varies[~self._kept].any() and all(known)

    def module(self) -> nn.Module:
        """The map as a torch module."""
        return MetricModule(self._parts, self._centre, self._kept)

    def __call__(self, X: Float[Tensor, "m d"]) -> Float[np.ndarray, "m q"]:
        return self._chosen(self._joined(X))

    def _joined(self, X: Tensor) -> np.ndarray:
        with torch.no_grad():
            return torch.cat([part(X) for part in self._parts], 1).cpu().numpy()

    def _chosen(self, points: np.ndarray) -> np.ndarray:
        return np.clip((points - self._centre)[:, self._kept], -_FAR, _FAR)


class MetricModule(nn.Module):
    """The map of a `Metric`, in double precision on the CPU."""

    def __init__(self, parts: list[nn.Module], centre: np.ndarray, kept: np.ndarray):
        super().__init__()
        # Copies, since the metric's own parts stay on its device.
        self.parts = nn.ModuleList(deepcopy(parts)).cpu()
        self.register_buffer("kept", torch.as_tensor(np.flatnonzero(kept)))
        self.register_buffer("centre", torch.as_tensor(centre[kept], dtype=torch.float64))

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        joined = torch.cat([part(X) for part in self.parts], 1)
        return (joined[:, self.kept] - self.centre).clamp(-_FAR, _FAR)


def _points(leaf: Node, theta: Tensor, X: Tensor, weight: float) -> nn.Module:
    """The map from rows (m, d) to points (m, q) for one elementary kernel."""
    d = X.shape[1]
    if leaf.codes:
        return _of_categories(leaf, theta, X, weight)
    if leaf.profile is not None:
        scale = weight * 0.5**0.5 / leaf.length_scale.value_like(theta, X)
        return _Points(_scaled, leaf, scale)
    if leaf.n_exact_features(d):
        unit = weight / (2 * leaf.diag(theta, X).mean()) ** 0.5
        return _Points(_features, leaf.plain(), theta, unit)
    raise ValueError(
        f"{leaf.label} has no distance by which to search for neighbours: use "
        "IterativeGPRegressor, or a kernel made of RBF, Matern, RationalQuadratic, DotProduct, "
        "Categorical and LowRankCategorical. A periodic kernel needs kernels.Columns for its one "
        "column."
    )


class _Points(nn.Module):
    """A map from rows to points by a leaf of the kernel and some tensors."""

    def __init__(self, work: Callable[..., Tensor], leaf: Node, *tensors: Tensor):
        super().__init__()
        self._work, self._leaf = work, leaf
        for k, value in enumerate(tensors):
            self.register_buffer(f"tensor{k}", value.detach().clone())

    def forward(self, rows: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        return self._work(self._leaf, rows, *self.buffers())


def _scaled(leaf: Node, rows: Tensor, scale: Tensor) -> Tensor:
    """The columns of a stationary kernel in units of its length scales."""
    return leaf.seen(rows) * scale


def _features(leaf: Node, rows: Tensor, theta: Tensor, unit: Tensor) -> Tensor:
    """The exact features of a kernel."""
    return leaf.exact_features(theta, rows) * unit


def _categories(leaf: Node, rows: Tensor, theta: Tensor, known: Tensor, basis: Tensor) -> Tensor:
    """Points whose inner products are the covariances between known categories."""
    return leaf.smooth(theta, rows, known) @ basis


def _of_categories(leaf: Node, theta: Tensor, X: Tensor, weight: float) -> nn.Module:
    """The map of rows with the categories in X."""
    leaf, codes = leaf.plain(), X[:, sorted(leaf.coded(X.shape[1]))].round()
    _, where = np.unique(codes.cpu().numpy(), axis=0, return_index=True)
    known = X[torch.as_tensor(where, device=X.device)]
    values, vectors = torch.linalg.eigh(leaf.smooth(theta, known, known))
    most = values.argsort(descending=True)[:_MOST_DIRECTIONS]
    most = most[values[most] > 1e-9 * values.max()]
    unit = weight / (2 * values.sum() / len(known)) ** 0.5
    basis = vectors[:, most] / values[most].sqrt() * unit
    return _Points(_categories, leaf, theta, known, basis)


def slack(n: int, q: int) -> float:
    """The share by which a neighbour may be farther than the nearest of n points (n, q)."""
    return _SLACK if n > _EXACT_POINTS and q > _EXACT_DIMENSIONS else 0.0


class Index:
    """Searches a k-d tree, and a short list of points that were added after it was built.

    Among many points of many dimensions the search is approximate, which is several times faster.
    What it returns for a point does not depend on the other points that are searched for.

    Parameters
    ----------
    points : ndarray of shape (n, q)
    """

    def __init__(self, points: np.ndarray):
        self._tree, self._more = cKDTree(points), points[:0]
        self._slack = slack(*points.shape)

    @property
    def points(self) -> np.ndarray:
        """All points, in the order of their numbers."""
        return np.concatenate([self._tree.data, self._more]) if len(self._more) else self._tree.data

    @property
    def n_in_tree(self) -> int:
        """The number of points in the tree, which come before the others."""
        return self._tree.n

    def plus(self, points: np.ndarray) -> Index:
        """A new index that also has these points, numbered after the others."""
        more = np.concatenate([self._more, points])
        if len(more) > _FEW_BESIDE + _SHARE_BESIDE * self._tree.n:
            return Index(np.concatenate([self._tree.data, more]))
        index = copy(self)
        index._more = more
        return index

    def nearest(self, points: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances to the m nearest points and their numbers, (b, m) each."""
        k = min(m, self._tree.n)
        settings = dict(eps=self._slack, workers=torch.get_num_threads())
        # Close points after each other: they share parts of the tree, which then stay in the cache.
        order = cKDTree(points, balanced_tree=False, compact_nodes=False).indices
        answers = self._tree.query(points[order], np.arange(1, k + 1), **settings)
        away, found = (answer[order.argsort()] for answer in answers)
        if not len(self._more):
            return away, found
        beside = cdist(points, self._more)
        numbers = np.broadcast_to(np.arange(len(self._more)) + self._tree.n, beside.shape)
        away, found = np.hstack([away, beside]), np.hstack([found, numbers])
        first = np.argsort(away, axis=1, kind="stable")[:, :m]
        return np.take_along_axis(away, first, 1), np.take_along_axis(found, first, 1)


def others_near(
    index: Index, points: Float[np.ndarray, "s q"], rows: Int[Tensor, " s"], m: int
) -> Int[Tensor, "s m"]:
    """The m nearest of all other rows for rows of the table, which are these points."""
    found = torch.as_tensor(index.nearest(points, m + 1)[1])
    own = found == rows[:, None].cpu()
    # With many copies of a row, the search may return only copies and not the row itself.
    own[~own.any(1), -1] = True
    return found[~own].reshape(len(rows), m).to(rows)
