"""Steps for kernel functions at all rows: natural gradients, which touch the drawn rows only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ._estimates import optimal_diagonal
from ._stepper import SampledStepper
from ._weights import SampledWeights


@dataclass(eq=False)
class DualStepper(SampledStepper):
    """Trains the mean of q(w) for phi_i = k(., x_i) at all n rows, with S = K.

    The gradient of minus the ELBO is K (r + mu), with r the derivative of minus the log likelihood
    in f = K mu. The natural gradient is r + mu, which has an entry for each row; a step changes
    only the entries of its own rows. The estimate of f at these rows comes from other,
    independently drawn functions and from the support rows. A step costs O(b u d + b s^2) for u
    drawn functions. Weights are residuals over the noise variance, so that sums of few of them are
    noisy. Draws of all functions cost O(b n d), but are often cheaper in total, because they need
    far fewer steps.

    Parameters are those of `SampledStepper`, and `support_index`, the numbers of the support rows.
    The shared weights belong to the support rows.
    """

    objective_name = "expected log likelihood per row and target"

    support_index: Int64[Tensor, " s"] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        s, gram = len(self.support), self.flattening.gram
        share = self.n / s
        square = self.support.rows.weight.to(gram)[:, None] * gram[:s].square()
        c = optimal_diagonal(share * square.sum(0), self.curvature, gram[:s].diagonal())
        self._variance = share * (gram[s:].square() @ c.square())[:, None]

    def _step(self, rows: np.ndarray) -> None:
        source = self.sampler.source
        some = source.take(rows)
        X, Y, noise = some.X, some.Y, self.noise.at(some)
        index = torch.as_tensor(rows).to(X.device, non_blocking=True)
        everywhere = self.support.kernel.cross(self.support.theta, X, self._rows)
        f = self._function(X, everywhere[:, : len(self.support)])
        variance = self._variance.mean().to(f).expand(len(f), 1)
        slope = noise.terms(Y, f, variance).d_mean
        gradient = self.n / len(rows) * (self._own(index) - slope)
        self._move(index, gradient[None], everywhere.T)

    def _own(self, index: Tensor) -> Float[Tensor, "u t"]:
        """The weights of some rows, including the shared ones of support rows."""
        out = self.weights.coef[0, index]
        at = torch.searchsorted(self.support_index, index).clamp_max(len(self.support_index) - 1)
        known = self.support_index[at] == index
        out[known] += self.weights.shared[at[known]].to(out)
        return out

    def _function(self, X: Float[Tensor, "b d"], cross: Float[Tensor, "b s"]) -> Tensor:
        """f at the rows, exact from all functions or estimated from drawn ones."""
        theta, support = self.support.theta, self.support
        if self.sampler.n_blocks >= self.basis.n_units:
            return sum(phi @ self._own(i) for i, phi in self.basis.evaluations(theta, X))
        part = self.sampler.functions()
        own = self._own(part.index)
        f = part.scale * (part.evaluate(theta, X) @ own)
        if self.control_variate == "regression":
            a = self.weights.a[: len(support)].to(cross)
            drawn = part.scale * (part.evaluate(theta, support.X) @ own)
            f = f + support.regression(cross) @ (a - drawn)
        return f

    def _score(self, w: SampledWeights) -> float:
        """Minus the expected log likelihood, without the ELBO's log|K|, which would cost O(n^3)."""
        f = w.a[len(self.support) :]
        if not bool(torch.isfinite(f).all()):
            return float("nan")
        terms, count = self._check_terms(f, self._variance)
        return -float(terms.value.mean()) / self.t / count

    def diagonal(self) -> Float[Tensor, "q units"]:
        prior = self.support.kernel.diag(self.support.theta, self.basis.points)
        return optimal_diagonal(self.squares, self.curvature, prior)

    def folded(self) -> Float[Tensor, "q units k"]:
        coef = self._better.coef.clone()
        coef[0, self.support_index] += self._better.shared.to(coef)
        return coef
