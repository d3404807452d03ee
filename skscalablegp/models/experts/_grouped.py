"""Experts on a device: those of equal size are factorised and predict together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.gradients import GPProblem, sets_marginal_likelihood
from ...linalg.operators import kernel_between_sets
from ._gradient import Experts
from ._posterior import SHOWN, ExpertPosterior, ExpertsPosterior

# Covariances with experts' rows that are computed at a time.
_BLOCK = 2**26


class Group(NamedTuple):
    """Experts with equally many rows.

    Attributes
    ----------
    numbers : list of int
        Their numbers among all experts.
    sets : Tensor of shape (k, b)
        The rows of each.
    X : Tensor of shape (k, b, d)
    factor : Tensor of shape (k, b, b)
        Cholesky factors of the noisy covariances.
    weights : Tensor of shape (k, b, t)
    """

    numbers: list[int]
    sets: Int[Tensor, "k b"]
    X: Float[Tensor, "k b d"]
    factor: Float[Tensor, "k b b"]
    weights: Float[Tensor, "k b t"]


def build_groups(
    problem: GPProblem, theta: Float[Tensor, " p"], parts: Sequence[np.ndarray]
) -> tuple[list[Group], float, float]:
    """The factors of all parts, the sum of their log likelihoods, and the largest jitter."""
    groups, value, jitter = [], 0.0, 0.0
    for numbers, sets in Experts(problem, parts, None).sets:
        found = sets_marginal_likelihood(problem, theta, sets, eval_gradient=False)
        assert found.factor is not None
        groups.append(Group(numbers, sets, problem.X[sets], found.factor, found.weights))
        value, jitter = value + float(found.values.sum()), max(jitter, found.jitter)
    return groups, value, jitter


class GroupedExpertsPosterior(ExpertsPosterior):
    """`ExpertsPosterior` of experts with the same kernel, on a device.

    The number of operations, and of waits, does not depend on the number of experts. Only
    leave-one-out predictions, joint covariances and exports go from one expert to the next.

    Parameters
    ----------
    problem : GPProblem
        The whole table.
    theta : Tensor of shape (p,)
        The hyperparameters of all experts.
    groups : sequence of Group
    combination, parts, n_experts
        As in `ExpertsPosterior`.
    """

    def __init__(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        groups: Sequence[Group],
        combination: str,
        parts: Sequence[np.ndarray],
        n_experts: int,
    ):
        self.problem, self.theta, self.groups = problem, theta.detach().double().cpu(), groups
        self.combination, self.parts = combination, parts
        self._q = min(n_experts, len(parts))
        self.dtype, self.device = problem.X.dtype, problem.X.device
        widest, t = max(max(map(len, parts)), SHOWN), problem.Y.shape[1]
        self.width = 2 * widest + len(parts) * (t + 2 + SHOWN)

    @cached_property
    def experts(self) -> list[ExpertPosterior]:  # type: ignore[override]
        """One posterior for each part, for what is computed expert by expert."""
        made: dict[int, ExpertPosterior] = {}
        for group in self.groups:
            for k, rows, factor, weights in zip(
                group.numbers, group.sets, group.factor, group.weights, strict=True
            ):
                problem = replace(self.problem.subset(rows), keep=False)
                made[k] = ExpertPosterior(problem.operator(self.theta), weights, factor)
        return [made[k] for k in range(len(made))]

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        with torch.no_grad():
            return self.problem.kernel.noise(self.theta, X).to(self.dtype)

    def _priors(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "k m"]:
        with torch.no_grad():
            prior = self.problem.kernel.diag(self.theta, X).to(self.dtype)
        return prior.expand(len(self.parts), len(X))

    def _similarities(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "k m"]:
        near = X.new_empty(len(self.parts), len(X))
        prior = self._priors(X)[0].sqrt()
        for group in self.groups:
            start = 0 if 0 in group.numbers else self.common
            rows = group.X[:, start:]
            m = min(rows.shape[1], SHOWN)
            rows = rows[:, torch.arange(m, device=X.device) * rows.shape[1] // max(m, 1)]
            flat = rows.flatten(0, 1)
            with torch.no_grad():
                cross = self.problem.kernel.cross(self.theta, X, flat)
                own = self.problem.kernel.diag(self.theta, flat)
            found = (cross / own.sqrt()).unflatten(1, rows.shape[:2]).amax(2)
            near[group.numbers] = (found / prior[:, None]).nan_to_num().T
        return near

    def _each(
        self, X: Float[Tensor, "m d"], chosen: Int[Tensor, "q m"]
    ) -> tuple[Float[Tensor, "q m t"], Float[Tensor, "q m"]]:
        q, m = chosen.shape
        pairs = chosen.flatten()
        order = pairs.argsort(stable=True)
        # The one wait: how many rows each expert predicts.
        counts = torch.zeros(len(self.parts), dtype=torch.long, device=self.device)
        counts = counts.scatter_add_(0, pairs, torch.ones_like(pairs)).cpu().numpy()
        starts = np.cumsum(counts) - counts
        means = X.new_empty(q * m, self.problem.Y.shape[1])
        variances, prior = X.new_empty(q * m), self._priors(X)[0]
        for group in self.groups:
            own, begin = counts[group.numbers], starts[group.numbers]
            b, done = group.X.shape[1], 0
            while done < own.max():
                active = np.flatnonzero(own > done)
                step = max(1, min(_BLOCK // (b * len(active)), int(own.max()) - done))
                slots = done + np.arange(step)
                inside = slots < own[active][:, None]
                places = np.where(inside, begin[active][:, None] + slots, begin[active][:, None])
                at = order[self._sent(places)]
                found = self._predicted(group, self._sent(active), X[at % m])
                kept = self._sent(np.flatnonzero(inside))
                at = at.flatten()[kept]
                means[at] = found[0].flatten(0, 1)[kept]
                variances[at] = prior[at % m] - found[1].flatten()[kept]
                done += step
        return means.unflatten(0, (q, m)), variances.unflatten(0, (q, m))

    def _predicted(
        self, group: Group, active: Int[Tensor, " a"], X: Float[Tensor, "a c d"]
    ) -> tuple[Float[Tensor, "a c t"], Float[Tensor, "a c"]]:
        """Means, and the variances that the data explain, of rows of their own for some experts."""
        with torch.no_grad():
            K = kernel_between_sets(self.problem.kernel, self.theta, X, group.X[active])
        half = torch.linalg.solve_triangular(group.factor[active], K.mT, upper=False)
        return K @ group.weights[active], half.square().sum(1)

    def _sent(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers).to(self.device, non_blocking=True)
