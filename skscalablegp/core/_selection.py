"""Choosing inducing points among the rows."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Generator, Tensor

from ..kernels import TorchKernel
from .data import random_rows

INDUCING_METHODS = ("kmeans++", "conditional_variance", "random")

# Number of rows from which inducing points are chosen, and one in how many points may be far rows.
_CANDIDATES, _FAR_SHARE = 5000, 8
# Share of the prior variance below which the chosen rows explain a row.
_EXPLAINED = 1e-8


def candidates(
    n: int, far: Int[np.ndarray, " k"], n_inducing: int, generator: Generator
) -> Int[Tensor, " c"]:
    """Rows among which points are chosen: random ones, and some of those with a far entry.

    A row that is far from every inducing point adds its prior variance over twice the noise to the
    bound's loss, often more than all other rows together. A few such rows would keep the
    hyperparameters from suiting the others, unless they are inducing points themselves.
    """
    rows = random_rows(n, max(_CANDIDATES, 2 * n_inducing), generator)
    if not len(far) or len(rows) == n:
        return rows
    some = random_rows(len(far), max(1, n_inducing // _FAR_SHARE), generator)
    return torch.cat([rows, torch.as_tensor(far)[some]]).unique()


def select_inducing(
    kernel: TorchKernel,
    theta: Float64[Tensor, " p"],
    X: Float[Tensor, "n d"],
    n_inducing: int,
    method: str,
    generator: Generator,
) -> Int[Tensor, " m"]:
    """Row numbers of inducing points.

    Parameters
    ----------
    kernel : TorchKernel
        Its feature space defines the distances, so that units do not matter.
    theta : Tensor of shape (p,)
        Log hyperparameters.
    X : Tensor of shape (n, d)
        Candidates.
    n_inducing : int
        The number of points. There are fewer if there are not as many different rows.
    method : {"kmeans++", "conditional_variance", "random"}
        "kmeans++" draws each point with a probability proportional to the squared distance from the
        nearest chosen point (Arthur and Vassilvitskii 2007). "conditional_variance" takes the row
        of largest variance given the chosen ones (Burt et al. 2020, section 4.1). "random" draws
        rows uniformly.
    generator : Generator
        For the draws.

    Returns
    -------
    rows : Tensor of shape (m,)
        Distinct row numbers in the order of their choice.

    Notes
    -----
    It costs O(n m d) time; "conditional_variance" costs O(n m^2) time and O(n m) memory.
    """
    n = len(X)
    if n_inducing >= n:
        return torch.arange(n)
    if method == "random":
        return torch.randperm(n, generator=generator)[:n_inducing]
    with torch.no_grad():
        pick = _by_distance if method == "kmeans++" else _by_variance
        return pick(kernel, theta, X, n_inducing, generator)


def _by_distance(
    kernel: TorchKernel, theta: Tensor, X: Tensor, m: int, generator: Generator
) -> Int[Tensor, " m"]:
    diag = kernel.diag(theta, X)
    limit = _EXPLAINED * float(diag.max())
    first = int(torch.randint(len(X), (), generator=generator))
    chosen, nearest = [first], torch.full_like(diag, float("inf"))
    while True:
        z = chosen[-1]
        squared = diag + diag[z] - 2 * kernel.cross(theta, X[z : z + 1], X)[0]
        nearest = torch.minimum(nearest, squared)
        nearest[z] = 0
        weight = nearest.double().cpu().cumsum(0)
        if len(chosen) == m or not float(nearest.max()) > limit:
            return torch.tensor(chosen)
        drawn = torch.rand((), generator=generator, dtype=torch.float64) * weight[-1]
        following = int(torch.searchsorted(weight, drawn, right=True))
        chosen.append(min(following, len(X) - 1))


def _by_variance(
    kernel: TorchKernel, theta: Tensor, X: Tensor, m: int, generator: Generator
) -> Int[Tensor, " m"]:
    """The pivots of a greedy Cholesky factorisation of k(X, X)."""
    left = kernel.diag(theta, X).clone()
    limit = _EXPLAINED * float(left.max())
    factor, chosen = X.new_empty(m, len(X)), []
    for k in range(m):
        z = int(left.argmax())
        if not float(left[z]) > limit:
            break
        chosen.append(z)
        row = kernel.cross(theta, X[z : z + 1], X)[0] - factor[:k, z] @ factor[:k]
        factor[k] = row / left[z].sqrt()
        left = (left - factor[k].square()).clamp_min(0)
        left[z] = 0
    # For a kernel that is noise alone, all rows are equally good.
    return torch.tensor(chosen or [0])
