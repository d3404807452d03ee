"""Predictions from nearest training rows as a torch module."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ...core.posteriors import JointMoments, KernelModule, Moments, PosteriorModule, regressed
from ...linalg.gradients import GPProblem
from ._local import NEAREST, coarse_to_fine, gather
from ._metric import Metric
from ._objectives import Scaled, local_factor
from ._wide import Correction, combination, corrected_moments, n_combined

# Noise that keeps equal new rows from being singular, relative to the prior variance.
_SAME = 1e-12


class NeighborModule(PosteriorModule):
    """`NeighborPosterior` in double precision, with a search through all rows.

    Parameters
    ----------
    problem : GPProblem
        All training rows.
    scaled : Scaled
        As in `NeighborPosterior`.
    metric : Metric
    n_neighbors : int
    correction : Correction or None, default=None

    Notes
    -----
    O(n q + m^3 / 3) a row. Memory of the order of n numbers; with wide neighbourhoods also of their
    weights and row numbers.
    """

    def __init__(
        self,
        problem: GPProblem,
        scaled: Scaled,
        metric: Metric,
        n_neighbors: int,
        correction: Correction | None = None,
    ):
        super().__init__()
        theta = scaled.theta
        self.kernel, self.metric = KernelModule(problem.kernel, theta), metric.module()
        self._m, self._power, self._scale = n_neighbors, scaled.power, scaled.scale
        points = torch.as_tensor(metric(problem.X), dtype=torch.float64)
        every = torch.arange(len(problem.X), device=problem.X.device)[:, None]
        noise = gather(problem, theta, problem.X, every)[1][:, 0]
        tensors = {
            "points": points,
            "norms": points.square().sum(1),
            "rows": problem.X,
            "targets": problem.Y,
            "known": noise,
        }
        self._numbers: tuple[float, float, float] | None = None
        if correction is not None:
            *numbers, wide, _ = correction
            self._numbers, self._combined = tuple(numbers), n_combined(wide)
            tensors |= {
                "centres": points[wide.groups.long().cpu()].mean(1),
                "weights": wide.weights,
            }
            self.register_buffer("wide_rows", wide.rows.long().cpu())
        for name, value in tensors.items():
            self.register_buffer(name, value.detach().double().cpu().clone())

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        """Each row given its training neighbours and the nearest rows before it, as in `chain`.

        The correlations depend on the order, which is that of `NeighborPosterior`.
        """
        sets, (b, q) = X.shape[:2], X.shape[:2]
        points = self.metric(X.flatten(0, 1)).detach().unflatten(0, sets)
        order = coarse_to_fine(points)
        back = order.argsort(1)
        X, points = (part.gather(1, order[:, :, None].expand_as(part)) for part in (X, points))
        mean, variance, noise = (part.unflatten(0, sets) for part in self.moments(X.flatten(0, 1)))
        near = self._near(points.flatten(0, 1)).unflatten(0, sets)
        half = X.new_zeros(b, 0, q)
        for i in range(q):
            # The nearest earlier rows, as many as there are training neighbours.
            c = min(self._m, i)
            apart = torch.cdist(points[:, i : i + 1], points[:, :i])[:, 0]
            before = apart.topk(c, largest=False).indices[:, :, None]
            Z = torch.cat([self.rows[near[:, i]], X.gather(1, before.expand(b, c, X.shape[2]))], 1)
            own = self.kernel.diag(X[:, i : i + 1])
            known = torch.cat([self.known[near[:, i]], (_SAME * own).expand(b, c)], 1)
            H = self.kernel.cross(Z, Z) + torch.diag_embed(known)
            k = self.kernel.cross(Z, X[:, i : i + 1])
            w = torch.linalg.solve(H, k)
            left = (own[:, 0] - (w * k).sum((1, 2))).clamp_min(torch.finfo(X.dtype).tiny)
            unit = torch.zeros(q, dtype=X.dtype, device=X.device)
            unit[i] = 1
            row = w[:, self._m :].mT @ half.gather(1, before.expand(b, c, q))
            half = torch.cat([half, row + left.sqrt()[:, None, None] * unit], 1)
        # Correlations from the chain, and the variances of single rows.
        half = half * (variance.sqrt() / half.norm(dim=2))[:, :, None]
        half = half.gather(1, back[:, :, None].expand_as(half))
        mean = mean.gather(1, back[:, :, None].expand_as(mean))
        return JointMoments(mean, half @ half.mT, noise.gather(1, back))

    def moments(self, X: Float[Tensor, "b d"]) -> Moments:
        mean, variance, half = self.alone(X)
        if self._numbers is not None:
            given = mean, variance, self.kernel.diag(X), self._wide_mean(X)
            mean, variance = corrected_moments(self._numbers, *given)
        white = self.kernel.noise(X)
        if self._power > 0:
            surprise = half[:, :NEAREST, 1:].square().mean((1, 2))
            factor = local_factor(self._scale * surprise, self._power)
            variance, white = factor * variance, factor * white
        return Moments(mean, variance, white)

    def alone(
        self, X: Float[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"], Float[Tensor, "b m s"]]:
        """Means and latent variances from the nearest rows, and L^-1 k beside L^-1 Y.

        Without the correction and the factors of local errors.
        """
        near = self._near(self.metric(X))
        Z = self.rows[near]
        k = self.kernel.cross(Z, X[:, None])
        return regressed(self.kernel, X, Z, self.known[near], k, self.targets[near])

    def _near(self, points: Float[Tensor, "b q"]) -> Int64[Tensor, "b m"]:
        # Squared distances but for the norms of the new rows, which do not change the order.
        away = self.norms - 2 * points @ self.points.T
        return away.topk(self._m, largest=False).indices

    def _wide_mean(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
        """The combined means of the nearest wide neighbourhoods."""
        points, centres = self.metric(X), self.centres
        away = centres.square().sum(1) - 2 * points @ centres.T
        near = away.topk(self._combined, largest=False).indices
        shares = combination(centres[near] - points[:, None])
        Z, a = self.rows[self.wide_rows[near].flatten(1)], self.weights[near]
        a = (shares[:, :, None, None] * a).flatten(1, 2)
        return (self.kernel.cross(Z, X[:, None]) * a).sum(1)


class Calibrated(nn.Module):
    """Draws (m, t, s) of the neighbours alone, with the mean and the variances of a module.

    Parameters
    ----------
    draws : nn.Module
    module : NeighborModule
        With the correction and the factors of local errors.
    """

    def __init__(self, draws: nn.Module, module: NeighborModule):
        super().__init__()
        self.draws, self.module = draws, module

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t s"]:
        old_mean, old, _ = self.module.alone(X)
        mean, variance, _ = self.module.moments(X)
        ratio = torch.where(old > 0, variance / old.clamp_min(torch.finfo(old.dtype).tiny), 1.0)
        away = self.draws(X) - old_mean[:, :, None]
        return mean[:, :, None] + ratio.sqrt()[:, None, None] * away
