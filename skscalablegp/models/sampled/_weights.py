"""Very many weights of which a step changes a few, and what is known about all of them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor


class SampledWeights:
    """w = u + Phi_p' b: m stored numbers a column, changed where drawn, and s shared ones.

    Columns are the t means and the c dense columns of C. b acts on all units but the first `head`,
    where the dense columns' triangle ends.

    Attributes
    ----------
    coef : Tensor of shape (q, m / q, k)
        u.
    shared : Tensor of shape (s, k)
        b, in double precision.
    a : Tensor of shape (s + v, k)
        Phi w at the support rows and at those of the scores, kept up to date in O((s + v) u).
    """

    def __init__(
        self,
        coef: Float[Tensor, "q units k"],
        shared: Float64[Tensor, "s k"],
        a: Float64[Tensor, "sv k"],
        head: int,
    ):
        self.coef, self.shared, self.a, self.head = coef, shared, a, head

    def copy(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.coef.clone(), self.shared.clone(), self.a.clone()

    def assign(self, copy: tuple[Tensor, Tensor, Tensor]) -> None:
        for mine, kept in zip((self.coef, self.shared, self.a), copy, strict=True):
            mine.copy_(kept)


class RunningMean:
    """The mean of the last steps' weights (Polyak and Juditsky 1992), kept where they are drawn.

    The noise of steps of a constant size stays in each of them and averages out over them. Entries
    that a step does not touch are counted when they are next drawn, so that a step costs O(u + s).
    Windows begin anew as their number doubles: the mean is that of the last half at least.

    Parameters
    ----------
    weights : SampledWeights
    t : int
        Columns that are averaged, from the first; others are taken as they are.
    """

    def __init__(self, weights: SampledWeights, t: int):
        self.weights, self.t = weights, t
        self._checks = 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """Forget what was."""
        w, t = self.weights, self.t
        self._from = now
        self._coef = torch.zeros_like(w.coef[:, :, :t])
        self._last = torch.full((w.coef.shape[1],), float(now)).to(w.coef)
        self._shared = torch.zeros_like(w.shared[:, :t])
        self._a = torch.zeros_like(w.a[:, :t])

    def before(self, index: Tensor, now: int) -> None:
        """Some entries are about to change in step `now`."""
        span = (now - self._last[index])[None, :, None]
        self._coef[:, index] += span * self.weights.coef[:, index, : self.t]
        self._last[index] = float(now)

    def after(self) -> None:
        """A step is over."""
        self._shared += self.weights.shared[:, : self.t]
        self._a += self.weights.a[:, : self.t]

    def mean(self, now: int) -> SampledWeights | None:
        """The mean of the window; None if it is empty. O(m)."""
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
