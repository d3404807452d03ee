"""Products of experts: exact posteriors of parts of a table, combined at each row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.posteriors import (
    ExactPosterior,
    KernelFeatures,
    MeanAndVariance,
    Moments,
    Posterior,
    PosteriorModule,
)
from ...linalg.operators import KernelOperator, noise_of_means
from ...workers import run, workers

# New rows that an expert predicts at a time, and rows or columns of the inverse factor in a block.
_ROWS = 1024
_BLOCK = 128
# Number of an expert's rows whose distances from a new row determine how near the expert is.
SHOWN = 64
# Training rows at which single precision is checked, and its largest relative error there.
_CHECKED_ROWS, _RELATIVE_ERROR = 32, 1e-3


# Of k experts at m rows.
Means, Variances = Float[Tensor, "k m t"], Float[Tensor, "k m"]


class Combination(NamedTuple):
    """A combined prediction.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    variance : Tensor of shape (m,)
        Latent.
    beta : Tensor of shape (k, m)
        The power to which the density of each of a row's experts was raised.
    """

    mean: Float[Tensor, "m t"]
    variance: Float[Tensor, " m"]
    beta: Float[Tensor, "k m"]


def poe(mean: Means, variance: Variances, prior: Variances) -> Combination:
    r"""The product of the experts' densities, which is far too confident if there are many experts.

    Parameters
    ----------
    mean : Tensor of shape (k, m, t)
        The experts' means.
    variance : Tensor of shape (k, m)
        Their latent variances, positive.
    prior : Tensor of shape (k, m)
        Their prior variances, which are not used.

    Returns
    -------
    combination : Combination

    Notes
    -----
    Far from all data the variance is the prior variance divided by k. Hinton (2002), Training
    products of experts; equations 7 and 8 of Deisenroth and Ng (2015).
    """
    return _product(mean, variance, torch.ones_like(variance))


def gpoe(mean: Means, variance: Variances, prior: Variances) -> Combination:
    r"""The product of powers that sum to 1 and are larger for experts with more information.

    The powers are the reductions of entropy :math:`\frac12\log(p_k / v_k)`, divided by their sum.
    Far from all data they are equal, and the result is the prior.

    Parameters
    ----------
    mean, variance, prior
        See `poe`.

    Returns
    -------
    combination : Combination

    Notes
    -----
    Variances tend to be too large: if all experts have the same variance, so has the result. Cao
    and Fleet (2014), Generalized product of experts for automatic and principled fusion of Gaussian
    process predictions; equations 11 and 12 of Deisenroth and Ng (2015).
    """
    # The last term matters only if no expert has any information.
    beta = _entropy_reduction(variance, prior) + torch.finfo(variance.dtype).eps
    return _product(mean, variance, beta / beta.sum(0))


def bcm(mean: Means, variance: Variances, prior: Variances) -> Combination:
    r"""The Bayesian committee machine: the product divided by the common prior to the power k - 1.

    Parameters
    ----------
    mean, variance, prior
        See `poe`; the prior has mean zero and is the same for all experts.

    Returns
    -------
    combination : Combination

    Notes
    -----
    Tresp (2000), A Bayesian committee machine; equations 15 and 16 of Deisenroth and Ng (2015).
    """
    base = torch.zeros_like(mean[0]), prior[0]
    return _product(mean, variance, torch.ones_like(variance), base)


def rbcm(mean: Means, variance: Variances, prior: Variances) -> Combination:
    r"""The robust Bayesian committee machine: powers :math:`\frac12\log(p / v_k)`, not normalised.

    Parameters
    ----------
    mean, variance, prior
        See `bcm`.

    Returns
    -------
    combination : Combination
        A single expert has the power 1.

    Notes
    -----
    Equations 21 and 22 of Deisenroth and Ng (2015), Distributed Gaussian processes.
    """
    beta = _entropy_reduction(variance, prior)
    if len(beta) == 1:
        beta = torch.ones_like(beta)
    base = torch.zeros_like(mean[0]), prior[0]
    return _product(mean, variance, beta, base)


def grbcm(mean: Means, variance: Variances, prior: Variances) -> Combination:
    r"""The generalised robust Bayesian committee machine, which divides by a global expert.

    The first expert has a random part of the table, and every other one has that part and its own.
    Given the common part, the experts are closer to independent. If the experts grow with the
    table, the combination converges to the exact posterior.

    Parameters
    ----------
    mean, variance, prior
        See `poe`; the first expert is the global one.

    Returns
    -------
    combination : Combination
        The power is 1 for the second expert and :math:`\frac12\log(v_1 / v_k)` for later ones.

    Notes
    -----
    Equations 11 to 13 of Liu, Cai, Wang and Ong (2018), Generalized robust Bayesian committee
    machine for large-scale Gaussian process regression.
    """
    if len(mean) == 1:
        return _product(mean, variance, torch.ones_like(variance))
    beta = _entropy_reduction(variance[1:], variance[:1])
    beta[0] = 1.0
    combined = _product(mean[1:], variance[1:], beta, (mean[0], variance[0]))
    rest = (1 - beta.sum(0))[None]
    return combined._replace(beta=torch.cat([rest, beta]))


# The rules by name; the first two need no common prior.
COMBINATIONS = {rule.__name__: rule for rule in (poe, gpoe, bcm, rbcm, grbcm)}


def _entropy_reduction(
    variance: Float[Tensor, "k m"], prior: Float[Tensor, "#k m"]
) -> Float[Tensor, "k m"]:
    """The reduction of entropy in nats, without small negative values from rounding."""
    return (0.5 * torch.log(prior / variance)).clamp_min(0)


def _product(
    mean: Float[Tensor, "k m t"],
    variance: Float[Tensor, "k m"],
    beta: Float[Tensor, "k m"],
    base: tuple[Float[Tensor, "m t"], Float[Tensor, " m"]] | None = None,
) -> Combination:
    """prod_k N(mean_k, variance_k)^beta_k, times base^(1 - sum beta) if there is a base."""
    share = beta / variance
    precision, weighted = share.sum(0), (share[..., None] * mean).sum(0)
    if base is not None:
        rest = (1 - beta.sum(0)) / base[1]
        precision, weighted = precision + rest, weighted + rest[:, None] * base[0]
    return Combination(weighted / precision[:, None], 1 / precision, beta)


class ExpertPosterior(ExactPosterior):
    """One part's exact posterior, whose variances may come from a product in single precision.

    A triangular solve in double precision takes twice the time of a product with the inverse
    factor in single precision.
    """

    inverse: Tensor | None = None
    _least: float = 0.0

    def invert(self) -> None:
        """Keep L^-1 in single precision if variances at some training rows are accurate with it.

        Variances are smallest at training rows, where the subtraction loses the most digits.
        """
        n = len(self.factor)
        some = self.operator.X[:: max(1, n // _CHECKED_ROWS)]
        exact = self.variance(some)
        self.inverse = some.new_zeros(n, n, dtype=torch.float32)
        for start in range(0, n, _BLOCK):
            # These columns of the inverse are zero above their first row.
            below, width = self.factor[start:, start:], min(_BLOCK, n - start)
            units = torch.eye(n - start, width, dtype=self.factor.dtype, device=self.device)
            part = torch.linalg.solve_triangular(below, units, upper=False)
            self.inverse[start:, start : start + width] = part
        self._least = float(exact.min())
        error = (self._in_single(some)[1] - exact).abs()
        if not bool((error <= _RELATIVE_ERROR * exact).all()):
            self.inverse = None

    def _shown(self, n_common: int) -> Float[Tensor, "s d"]:
        """A few rows of the part's own, which stand for the others."""
        rows = self.operator.X[n_common:]
        m = min(len(rows), SHOWN)
        return rows[torch.arange(m, device=rows.device) * len(rows) // max(m, 1)]

    def shown_module(self, n_common: int) -> KernelFeatures:
        """The covariances with these rows as a torch module."""
        return KernelFeatures(self.operator.kernel, self.operator.theta, self._shown(n_common))

    def similarity(self, X: Float[Tensor, "m d"], n_common: int) -> Float[Tensor, " m"]:
        """The largest prior correlation with one of a few rows of the part's own."""
        rows = self._shown(n_common)
        shown = KernelOperator(self.operator.kernel, self.operator.theta, rows)
        cross, own = shown.cross(X), shown.cross(shown.X).prior_diag()
        found = (cross.to_dense() / own.sqrt()).amax(1) / cross.prior_diag().sqrt()
        return found.nan_to_num()

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        if self.inverse is None:
            return super().moments(X)
        mean, variance = self._in_single(X)
        # Accuracy was not checked for variances as small as these.
        small = ~(variance >= self._least)
        if small.any():
            variance[small] = super().moments(X[small]).variance
        return Moments(mean, variance, self.noise(X))

    def _in_single(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        cross = self.cross(X)
        K, prior = cross.to_dense(), cross.prior_diag()
        single, explained = K.float(), prior.new_zeros(len(X), dtype=torch.float32)
        for start in range(0, K.shape[1], _BLOCK):
            stop = start + _BLOCK
            part = single[:, :stop] @ self.inverse[start:stop, :stop].T
            explained += part.square().sum(1)
        return K @ self.weights, prior - explained


class ExpertsPosterior(Posterior):
    """Exact posteriors of parts of a table under one combination rule.

    Parameters
    ----------
    experts : sequence of ExpertPosterior
        One for each part.
    combination : str
        A name of `COMBINATIONS`.
    parts : sequence of ndarray
        The rows of the table that each expert has.
    n_experts : int
        Number of experts that predict a row: those nearest to it, by the kernel. With "grbcm", the
        global one is always one of them.

    Notes
    -----
    The mean of a row needs the variances of its experts, so that a row costs sum_k n_k^2 operations
    over them with or without variances.
    """

    def __init__(
        self,
        experts: Sequence[ExpertPosterior],
        combination: str,
        parts: Sequence[np.ndarray],
        n_experts: int,
    ):
        self.experts, self.combination, self.parts = list(experts), combination, parts
        self._q = min(n_experts, len(self.experts))
        first = self.experts[0]
        self.dtype, self.device = first.dtype, first.device
        # Two blocks of the largest expert, and the moments of all experts.
        widest = max(max(expert.width for expert in self.experts), SHOWN)
        self.width = 2 * widest + len(self.experts) * (first.weights.shape[1] + 2)

    def combine(self, X: Float[Tensor, "m d"]) -> Combination:
        """The combined mean and latent variance, of which ranks compute those of their rows."""
        # One process of joblib: to send the factors takes longer than most predictions.
        by = workers(self, len(X), 1, device=self.device)
        found = by.call(ExpertsPosterior._own_combined, along=[X])
        means, variances, betas = zip(*found, strict=True)
        return Combination(torch.cat(means), torch.cat(variances), torch.cat(betas, dim=1))

    def _own_combined(self, X: Float[Tensor, "m d"]) -> Combination:
        chosen = self._nearest(X)
        return self._combined(X, chosen, *self._each(X, chosen))

    def _nearest(self, X: Float[Tensor, "m d"]) -> Int[Tensor, "q m"]:
        """The numbers of each row's experts, in ascending order."""
        k = len(self.parts)
        if self._q == k:
            return torch.arange(k, device=self.device)[:, None].expand(k, len(X))
        near = self._similarities(X)
        if self.common:
            near[0] = torch.inf
        return near.topk(self._q, dim=0).indices.sort(dim=0).values

    def _similarities(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "k m"]:
        """The largest prior correlation of each row with one of a few rows of each expert."""
        starts = [0, *[self.common] * (len(self.experts) - 1)]
        pairs = zip(self.experts, starts, strict=True)
        return torch.stack(
            run([partial(e.similarity, X, start) for e, start in pairs], self.device)
        )

    def _each(
        self, X: Float[Tensor, "m d"], chosen: Int[Tensor, "q m"]
    ) -> tuple[Float[Tensor, "q m t"], Float[Tensor, "q m"]]:
        """The means and latent variances of each row's experts."""
        cells = [
            (expert, places)
            for k, expert in enumerate(self.experts)
            for places in (chosen == k).nonzero().split(_ROWS)
            if len(places)
        ]
        found = run([partial(e.moments, X[at[:, 1]]) for e, at in cells], self.device)
        variances = X.new_empty(chosen.shape, dtype=self.dtype)
        means = variances.new_empty(*chosen.shape, self.experts[0].weights.shape[1])
        for (_, places), (mean, variance, _) in zip(cells, found, strict=True):
            at = tuple(places.T)
            means[at], variances[at] = mean, variance
        return means, variances

    def _combined(
        self, X: Float[Tensor, "m d"], chosen: Tensor, means: Tensor, variances: Tensor
    ) -> Combination:
        if len(chosen) == 1:
            return Combination(means[0], variances[0], torch.ones_like(variances))
        priors = self._priors(X).gather(0, chosen)
        # At training rows without noise the variance is zero, and its inverse infinite.
        variances = variances.clamp_min(torch.finfo(variances.dtype).eps * priors)
        return COMBINATIONS[self.combination](means, variances, priors)

    def _priors(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "k m"]:
        """Prior variances of each expert."""
        return torch.stack([expert.cross(X).prior_diag() for expert in self.experts])

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With the inverse factors of all experts, sum_k n_k^2 numbers; a mean needs them, too."""
        return ExpertsModule(self.experts, self.combination, self.common, self._q)

    @property
    def common(self) -> int:
        """Rows that the experts share, which come first in each part."""
        return len(self.parts[0]) if self.combination == "grbcm" else 0

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.combine(X).mean

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        combined = self.combine(X)
        return Moments(combined.mean, combined.variance, self.noise(X))

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance:
        noise = known + self.noise(X)
        chosen, means, variances, _ = self._without(rows, X, Y, known, noise)
        combined = self._combined(X, chosen, means, variances)
        return combined.mean, combined.variance + noise

    def leave_copies_out(self, rows, X, Y, known, copies) -> MeanAndVariance:
        """The experts that have a row see its equal rows again, before they are combined."""
        white, place = self.noise(X), copies.place
        noise = white + known
        of_means = noise_of_means(noise, copies.counts)
        found = self._without(rows, X, Y, of_means - white, of_means)
        chosen, means, variances, left = (part[:, place] for part in found)
        seen, less = copies.others_seen(means, variances, noise[place], Y)
        means, variances = means.where(~left[..., None], seen), variances.where(~left, less)
        combined = self._combined(X[place], chosen, means, variances)
        return combined.mean, combined.variance + noise[place]

    def _without(
        self, rows: Tensor, X: Tensor, Y: Tensor, known: Tensor, noise: Tensor
    ) -> tuple[Tensor, ...]:
        """Experts that have a row leave it out; the others predict it as usual.

        `known` and `noise` are the noise of Y besides the white noise, and all of it.

        Returns
        -------
        chosen, means, variances : Tensor of shape (q, k), (q, k, t) and (q, k)
            The rows' experts, and their latent moments.
        left : Tensor of bool of shape (q, k)
            Which of them have left out the row.
        """
        chosen = self._nearest(X)
        means, variances = self._each(X, chosen)
        left = torch.zeros_like(chosen, dtype=torch.bool)
        for k, (part, expert) in enumerate(zip(self.parts, self.experts, strict=True)):
            order = np.argsort(part)
            places = np.searchsorted(part, rows.cpu().numpy(), sorter=order).clip(max=len(part) - 1)
            places = torch.as_tensor(order[places], device=rows.device)
            inside = torch.as_tensor(part, device=rows.device)[places] == rows
            inside = (inside & (chosen == k).any(0)).nonzero()[:, 0]
            inside = inside[places[inside].argsort()]
            own = places[inside], X[inside], Y[inside], known[inside]
            slots = (chosen[:, inside] == k).byte().argmax(0)
            means[slots, inside], total = expert.leave_one_out(*own)
            variances[slots, inside] = (total - noise[inside]).clamp_min(0)
            left[slots, inside] = True
        return chosen, means, variances, left

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The mean of the experts' noise variances, which are equal if they share a kernel."""
        return torch.stack([expert.noise(X) for expert in self.experts]).mean(0)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        r"""The covariance of a weighted sum of the experts' functions.

        With :math:`c_k = \sqrt{\beta_k}\, v / v_k` at each row, the sum of independent functions
        :math:`\sum_k c_k f_k` has the combined variance v; its covariance is
        :math:`\sum_k c_k(x)\, C_k(x, x')\, c_k(x')`, which is positive semidefinite.

        Raises
        ------
        ValueError
            For rules that divide by a prior, which define densities of single rows only.
        """
        if len(self.experts) == 1:
            return self.experts[0].covariance(X)
        if self.combination not in ("poe", "gpoe"):
            raise ValueError(
                f"combination={self.combination!r} divides by the density of single rows, which "
                f"defines no joint distribution of {len(self.experts)} experts: use "
                "return_std=True, or combination='gpoe'."
            )
        chosen = self._nearest(X)
        combined = self._combined(X, chosen, *self._each(X, chosen))
        betas = X.new_zeros(len(self.experts), len(X)).scatter_(0, chosen, combined.beta)
        total = X.new_zeros(len(X), len(X))
        for expert, beta in zip(self.experts, betas, strict=True):
            if not beta.any():
                continue
            own = expert.covariance(X)
            least = torch.finfo(own.dtype).eps * expert.cross(X).prior_diag()
            variance = own.diagonal().clamp_min(least)
            c = beta.sqrt() * combined.variance / variance
            total += c[:, None] * own * c
        return total


class ExpertsModule(PosteriorModule):
    """`ExpertsPosterior`, every expert of which predicts every row.

    Parameters
    ----------
    experts : sequence of ExpertPosterior
    combination : str
    n_common : int
        Rows that all experts share.
    n_experts : int
        Number of experts whose predictions of a row are combined.
    """

    def __init__(
        self,
        experts: Sequence[ExpertPosterior],
        combination: str,
        n_common: int,
        n_experts: int,
    ):
        super().__init__()
        self._combination, self._q, self._common = combination, n_experts, n_common
        self.experts = nn.ModuleList(expert.module() for expert in experts)
        shown = list(enumerate(experts)) if n_experts < len(experts) else []
        self.shown = nn.ModuleList(e.shown_module(n_common if k else 0) for k, e in shown)
        # Prior variances of the rows that stand for an expert's part.
        for k, module in enumerate(self.shown):
            self.register_buffer(f"own{k}", module.kernel.diag(module.Z))

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        found = [expert.moments(X) for expert in self.experts]
        means, variances, noises = (torch.stack(parts) for parts in zip(*found, strict=True))
        noise = noises.mean(0)
        priors = torch.stack([expert.features.kernel.diag(X) for expert in self.experts])
        if len(self.shown):
            near = self._nearest(X)
            means = means.gather(0, near[:, :, None].expand(-1, -1, means.shape[2]))
            variances, priors = (part.gather(0, near) for part in (variances, priors))
        if self._q == 1:
            return Moments(means[0], variances[0], noise)
        variances = torch.maximum(variances, torch.finfo(variances.dtype).eps * priors)
        combined = COMBINATIONS[self._combination](means, variances, priors)
        return Moments(combined.mean, combined.variance, noise)

    def _nearest(self, X: Float[Tensor, "m d"]) -> Int[Tensor, "q m"]:
        near = []
        for k, shown in enumerate(self.shown):
            correlation = shown(X) / getattr(self, f"own{k}").sqrt()
            near.append((correlation.amax(1) / shown.kernel.diag(X).sqrt()).nan_to_num())
        near = torch.stack(near)
        if self._common:
            near = torch.cat([near[:1] * 0 + torch.inf, near[1:]])
        return near.topk(self._q, dim=0).indices.sort(dim=0).values
