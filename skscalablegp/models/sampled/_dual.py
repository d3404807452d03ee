"""Steps for kernel functions at all rows: natural gradients, which touch the drawn rows only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ._batch import NUMBERS
from ._estimates import BasisDraw, Control, Projection, Squares, optimal_diagonal
from ._stepper import SampledStepper
from ._weights import SampledWeights


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

    def __init__(self, *args: Any, support_index: Int64[Tensor, " s"], **settings: Any):
        super().__init__(*args, **settings)
        self.support_index, s = support_index, len(self.support)
        gram, share = self.flattening.gram, self.n / s
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
        theta = self.support.theta
        if self.sampler.n_blocks >= self.basis.n_units:
            parts = self.basis.parts(max(1, NUMBERS // len(X)))
            return sum(p.evaluate(theta, X) @ self._own(p.index) for p in parts)
        part, scale = self.sampler.functions()
        at_support = part.evaluate(theta, self.support.X)
        draw = BasisDraw(part.evaluate(theta, X), self._own(part.index), scale, at_support)
        return self._control(cross).function(draw)

    def _control(self, cross: Float[Tensor, "b s"]) -> Control:
        """The control variate, given k(X, support rows)."""
        a = self.weights.a[: len(self.support)].to(cross)
        if self.control_variate == "regression":
            return Projection(self.support.regression(cross), a)
        if self.control_variate == "squares" and self.noise.gaussian:
            return Squares(a, self.noise.curvature / len(self.support))
        return Control()

    def _score(self, w: SampledWeights) -> float:
        """Minus the expected log likelihood, without the ELBO's log|K|, which would cost O(n^3)."""
        f = w.a[len(self.support) :]
        if not bool(torch.isfinite(f).all()):
            return float("nan")
        value = float(self._check_terms(f, self._variance).value.mean())
        return -value / self.t / self._check_count

    def diagonal(self) -> Float[Tensor, "q units"]:
        prior = self.support.kernel.diag(self.support.theta, self.basis.points)
        return optimal_diagonal(self.squares, self.curvature, prior)

    def folded(self) -> Float[Tensor, "q units k"]:
        coef = self._better.coef.clone()
        coef[0, self.support_index] += self._better.shared.to(coef)
        return coef
