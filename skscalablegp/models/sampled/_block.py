"""Steps of the mean that use all functions at the rows of a batch: block ascent in the dual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.likelihoods import LikelihoodTerms
from ...linalg.operators import ONE
from ._noise import NoiseAtRows
from ._stepper import QSGPStepper

# Rounding of a Gram matrix, as a multiple of its trace in units of the precision.
_ROUNDING = 10
# Newton steps for one batch, the shortest one, and the gain of a row in nats at which they end.
_NEWTON_STEPS, _SHORTEST, _GAIN = 8, 1e-3, 1e-4
# Weight of a batch in the running mean of the likelihood's curvature.
_NEW = 0.1


@dataclass(eq=False)
class BlockStepper(QSGPStepper):
    """Trains the mean of q(w) by second-order steps in dual weights, one for each row.

    At the optimum w = Phi' alpha, where alpha is the derivative of the expected log likelihood in
    f. These n numbers (per target) are kept, and w is always Phi' alpha. A step maximises the bound
    over the alpha of its rows B, given all others: the posterior mode of a Gaussian process at
    these rows with the covariance Phi_B Phi_B' and the mean that the other rows give,

        d alpha = (Phi_B Phi_B' + s2 I)^-1 (y_B - f_B - s2 alpha_B)

    for a Gaussian likelihood, and a few Newton steps for others (`block_change`). All directions
    within a batch converge at once, and the noise of the batches ends at the optimum, because every
    row's step is zero there. Steps therefore need neither a rate that decays nor a mean over steps.
    The dense columns of C remain at the posterior given the support rows. Likelihoods that are not
    Gaussian also depend on the variance of f at the rows, which `batch_variance` finds: the sum
    over weights that are independent in q(w) may be far too large or too small.

    A step costs O(b m (d + t) + b^2 m + b^3), independent of n. After Shalev-Shwartz and Zhang
    (2013), Stochastic dual coordinate ascent methods for regularized loss minimization, with random
    blocks of rows and exact solves of these.

    The parameters are those of `QSGPStepper`, and these:

    Parameters
    ----------
    calibrate : callable, optional
        Called with this stepper before step `release`; returns the scales of variances. The
        held-out rows are then no longer needed and take part in steps.
    release : int, default=0
    support_index : Tensor of shape (s,)
        The numbers of the support rows.
    """

    calibrate: Callable[[Any], tuple[float, float]] | None = None
    release: int = 0
    support_index: Int64[Tensor, " s"] = field(kw_only=True)

    ascends = True
    moving = (*QSGPStepper.moving, "dual", "scales")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flops = float(self.sampler.n_rows**2 * self.basis.n_features)
        # alpha of the start is zero except at support rows; O(s m).
        w, t = self.weights, self.t
        alpha = w.shared[:, :t].clone()
        w.coef.copy_(self._folded(w))
        w.shared.zero_()
        w.coef[:, :, :t] = 0
        for index, phi in self.basis.evaluations(self._theta, self.support.X):
            w.coef[:, index, :t] = self._pulled(phi, alpha)
        self.dual = torch.zeros(len(self.sampler.source), t, dtype=torch.float64, device=w.a.device)
        self.dual[self.support_index] = alpha

    def _pulled(self, phi: Float[Tensor, "b qu"], alpha: Tensor) -> Float[Tensor, "q u t"]:
        """phi' alpha, by unit."""
        return (phi.T @ alpha.to(phi)).reshape(self.basis.per_unit, -1, alpha.shape[1])

    def refresh(self) -> None:
        """f at the scores' rows, and the diagonal's part of its variance; O(v m).

        Steps find the curvature, on which the closed form of the diagonal depends.
        """
        w, t, s = self.weights, self.t, len(self.support)
        w.a[s:, :t], self._sparse_variance = 0, 0.0
        for index, phi in self.basis.evaluations(self._theta, self._rows[s:]):
            w.a[s:, :t] += (phi @ w.coef[:, index, :t].flatten(0, 1)).double()
            self._sparse_variance = self._sparse_variance + self._of_diagonal(phi, index)

    def step(self) -> None:
        if self.calibrate is not None and self.scales is None and self._steps >= self.release:
            self.refresh()
            self.scales = self.calibrate(self)
        if self.scales is not None:
            self.sampler.held = np.empty(0, dtype=np.int64)
        with torch.no_grad():
            self._step(self.sampler.rows())
        self._steps += 1

    def _step(self, rows: np.ndarray) -> None:
        source, t = self.sampler.source, self.t
        some = source.take(rows)
        X, Y, noise = some.X, some.Y, self.noise.at(some)
        kept, coef = [], self.weights.coef[:, :, :t]
        gram = torch.zeros(len(X), len(X), dtype=torch.float64, device=X.device)
        f = torch.zeros(len(X), t, dtype=torch.float64, device=X.device)
        for units, phi in self.basis.evaluations(self._theta, X):
            kept.append((units, phi))
            gram += (phi @ phi.T).double()
            f += (phi @ coef[:, units].flatten(0, 1)).double()
        index = torch.as_tensor(rows).to(X.device)
        rounding = _ROUNDING * torch.finfo(X.dtype).eps
        variance = torch.zeros_like(f[:, :1])
        if not noise.gaussian:
            variance = batch_variance(gram, self.curvature, self.n, noise.counts, rounding)
        gram += noise.constant_variance
        change, curvature = block_change(
            noise, Y.double(), f, variance, gram, self.dual[index], rounding
        )
        self.noise = self.noise.moved(change)
        self.curvature += _NEW * (curvature - self.curvature)
        self.dual[index] += change
        for units, phi in kept:
            coef[:, units] += self._pulled(phi, change)

    def score(self) -> float:
        self.refresh()
        return self._score(self.weights)

    def snapshot(self) -> tuple:
        return *super().snapshot(), self.dual.clone()

    def restore(self, snapshot: tuple) -> None:
        super().restore(snapshot[:-1])
        self.dual.copy_(snapshot[-1])


def batch_variance(
    gram: Float64[Tensor, "b b"],
    curvature: float,
    n: float,
    counts: Float[Tensor, "*#b"] = ONE,
    rounding: float = 0.0,
) -> Float64[Tensor, "b 1"]:
    """The variance of f at the rows of a batch, each given the others and its own observation.

    Each of the other rows stands for n / b rows of the table: the leave-one-out variance under
    their observations of noise variance b / (n curvature) is 1 / (H^-1)_ii minus this noise, with
    H the Gram matrix plus the noise. O(b^3).

    Parameters
    ----------
    gram : Tensor of shape (b, b)
        Phi_B Phi_B'.
    curvature : float
        Of minus log p, the inverse variance of one observation.
    n : float
        Rows of the table after equal ones were merged.
    counts : Tensor of shape (b,) or (), default=1
        How many equal rows each row stands for.
    rounding : float, default=0.0
        As in `block_change`.
    """
    one = torch.full_like(gram[0], curvature) * counts.to(gram)
    rest = len(gram) / (n * one) + rounding * float(gram.diagonal().sum())
    factor = torch.linalg.cholesky(gram + torch.diag(rest))
    others = (1 / torch.cholesky_inverse(factor).diagonal() - rest).clamp_min(0)
    return (others / (1 + others * one))[:, None]


def block_change(
    noise: NoiseAtRows,
    Y: Float64[Tensor, "b t"],
    f: Float64[Tensor, "b t"],
    variance: Float64[Tensor, "b 1"],
    gram: Float64[Tensor, "b b"],
    dual: Float64[Tensor, "b t"],
    rounding: float = 0.0,
) -> tuple[Float64[Tensor, "b t"], float]:
    """The change of the dual weights of some rows to the mode given all others; O(b^3).

    With m the mean of f that the other rows give and K the Gram matrix, the mode is the maximum of
    E log p(y | f) - 1/2 (f - m)' K^-1 (f - m), at which alpha = K^-1 (f - m) is the derivative of
    the first term. Newton steps find it, each halved until the value rises. Rasmussen and Williams
    (2006), algorithm 3.1. A Gaussian likelihood needs one.

    Parameters
    ----------
    noise : NoiseAtRows
        Of these rows.
    Y, f : Tensor of shape (b, t)
        Targets and means of f.
    variance : Tensor of shape (b, 1)
        Variances of f, which do not matter under a Gaussian likelihood.
    gram : Tensor of shape (b, b)
        Phi_B Phi_B'.
    dual : Tensor of shape (b, t)
        alpha_B.
    rounding : float, default=0.0
        Damping for the rounding of the Gram matrix, in units of its trace.

    Returns
    -------
    change : Tensor of shape (b, t)
    curvature : float
        The mean curvature of minus E log p, for one row and target.
    """
    if noise.gaussian:
        weight = 1 / noise.variances_of_means(Y)[:, None]
        change = _newton_change(weight, weight * (Y - f) - dual, gram, rounding)
        return change, noise.curvature
    outside, alpha = f - gram @ dual, dual
    terms = noise.terms(Y, f, variance)
    value = _value(terms, alpha, f - outside)
    for _ in range(_NEWTON_STEPS):
        weight = (-2 * terms.d_variance / Y.shape[1]).clamp_min(0)
        change, step, gain = _newton_change(weight, terms.d_mean - alpha, gram, rounding), 1.0, 0.0
        while step > _SHORTEST:
            new = alpha + step * change
            moved = gram @ new
            new_terms = noise.terms(Y, outside + moved, variance)
            gain = _value(new_terms, new, moved) - value
            if gain > 0:
                alpha, terms, value = new, new_terms, value + gain
                break
            step /= 2
        if gain <= _GAIN * len(Y):
            break
    curvature = -2 * terms.d_variance.sum() / Y.shape[1] / float(noise.counts.expand(len(Y)).sum())
    return alpha - dual, float(curvature)


def _value(terms: LikelihoodTerms, alpha: Tensor, moved: Tensor) -> float:
    """E log p(y | f) minus half of alpha' K alpha, with `moved` K alpha."""
    return float(terms.value.sum() - 0.5 * (alpha * moved).sum())


def _newton_change(
    weight: Float64[Tensor, "b 1"],
    away: Float64[Tensor, "b t"],
    gram: Float64[Tensor, "b b"],
    rounding: float,
) -> Float64[Tensor, "b t"]:
    """(I + W K)^-1 away, with W the curvatures `weight` of the rows."""
    root = weight.sqrt()
    inner = root * gram * root.T
    inner.diagonal().add_(1 + rounding * float(inner.diagonal().sum()))
    return away - root * torch.cholesky_solve(root * (gram @ away), torch.linalg.cholesky(inner))
