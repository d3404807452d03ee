"""A very large number of weights, of which a step changes a few."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(eq=False)
class SampledWeights:
    """w = u + Phi_p' b: m numbers u for each column, of which steps change a few, and s numbers b.

    The columns are the t means and the c dense columns of C. b acts on all units but the first
    `head`, which hold the triangle of the dense columns.

    Attributes
    ----------
    coef : Tensor of shape (q, m / q, k)
        u.
    shared : Tensor of shape (s, k)
        b, in double precision.
    a : Tensor of shape (s + v, k)
        Phi w at the support rows and at the scores' rows. A step updates it in O((s + v) u).
    """

    coef: Float[Tensor, "q units k"]
    shared: Float64[Tensor, "s k"]
    a: Float64[Tensor, "sv k"]
    head: int

    def copy(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.coef.clone(), self.shared.clone(), self.a.clone()

    def assign(self, copy: tuple[Tensor, Tensor, Tensor]) -> None:
        for mine, kept in zip((self.coef, self.shared, self.a), copy, strict=True):
            mine.copy_(kept)


class RunningMean:
    """The mean of the weights over the last steps (Polyak and Juditsky 1992).

    The mean averages out the noise that steps of a constant size leave in the weights. Entries that
    a step does not change are added when they are next drawn, so that a step costs O(u + s). The
    window begins again at every power of two of checks, so that it covers at least the last half of
    the steps.

    Parameters
    ----------
    weights : SampledWeights
    t : int
        Number of columns that are averaged, from the first. The others are copied.
    """

    moving = ("_checks", "_from", "_coef", "_last", "_shared", "_a")

    def __init__(self, weights: SampledWeights, t: int):
        self.weights, self.t = weights, t
        self._checks = 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """Begin a new window at step `now`."""
        w, t = self.weights, self.t
        self._from = now
        self._coef = torch.zeros_like(w.coef[:, :, :t])
        self._last = torch.full((w.coef.shape[1],), float(now)).to(w.coef)
        self._shared = torch.zeros_like(w.shared[:, :t])
        self._a = torch.zeros_like(w.a[:, :t])

    def before(self, index: Tensor, now: int) -> None:
        """Add entries that are about to change in step `now`."""
        span = (now - self._last[index])[None, :, None]
        self._coef[:, index] += span * self.weights.coef[:, index, : self.t]
        self._last[index] = float(now)

    def after(self) -> None:
        """Add the shared weights after a step."""
        self._shared += self.weights.shared[:, : self.t]
        self._a += self.weights.a[:, : self.t]

    def mean(self, now: int) -> SampledWeights | None:
        """The mean over the window, or None if it is empty; O(m)."""
        self._checks += 1
        count = now - self._from
        if count == 0:
            return None
        self.before(torch.arange(len(self._last), device=self._last.device), now)
        w, t = self.weights, self.t
        coef, shared, a = w.copy()
        coef[:, :, :t], shared[:, :t] = self._coef / count, self._shared / count
        a[:, :t] = self._a / count
        out = SampledWeights(coef, shared, a, w.head)
        if self._checks & (self._checks - 1) == 0:
            self.begin(now)
        return out
