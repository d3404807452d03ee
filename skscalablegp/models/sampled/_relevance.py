"""Empirical Bayes with one precision a weight: most go to infinity, the rest are relevant."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.training import Monitor, Stepper
from ...linalg.solvers import cholesky_with_jitter
from ._dictionary import Dictionary

# Functions up to which they are dropped one at a time, and how many an update may drop so.
_DROPPED_SINGLY, _DROPS = 512, 16
# Nats a target that a function must be worth: MacKay's updates keep clusters of them that are not.
_WORTH = 0.5


class RelevanceStepper(Stepper):
    """Maximises the ELBO over q(w), the precisions S = diag(s) and the noise; functions drop out.

    With q(w) at its optimum for the current s, s_i = (1 - s_i Sigma_ii) / mu_i^2 (MacKay's form of
    the stationary point of the ELBO in s_i, which converges faster than s_i = 1 / (mu_i^2 +
    Sigma_ii)). Everything needed of the rows is in moments, so that a step costs O(m^3) in the
    functions that are left.

    Parameters
    ----------
    dictionary : Dictionary
        The functions, with their starting precisions and noise.
    source : RowSource
        Rows that are fitted.
    largest : float
        Functions with a larger s are dropped.
    monitor : Monitor
        For its clock.
    """

    objective_name = "log evidence less half a nat a function, a row and target"

    def __init__(self, dictionary: Dictionary, source: RowSource, largest: float, monitor: Monitor):
        self.dictionary, self.noise, self.largest = dictionary, dictionary.noise, largest
        self.gram, self.projection, self.square, self.n = dictionary.moments(source, monitor)
        self.precision = torch.as_tensor(dictionary.precision).to(self.gram, copy=True)
        self.active: Int64[Tensor, " r"] = torch.arange(len(dictionary), device=self.gram.device)
        self._solve()

    @property
    def t(self) -> int:
        return self.projection.shape[1]

    def _solve(self) -> None:
        """q(w) of the functions that are left, and the log evidence."""
        a, s = self.active, self.precision[self.active]
        H = self.gram[a][:, a] / self.noise + torch.diag(s)
        L, _ = cholesky_with_jitter(H)
        self.covariance = torch.cholesky_inverse(L)
        b = self.projection[a] / self.noise
        self.mean = torch.cholesky_solve(b, L)
        fit = self.square / self.noise - float((b * self.mean).sum())
        log_det = 2 * float(L.diagonal().log().sum()) - float(s.log().sum())
        rows = self.n * np.log(2 * np.pi * self.noise)
        self.evidence = -0.5 * (self.t * (log_det + rows) + fit)

    def step(self) -> None:
        a = self.active
        s = self.precision[a]
        determined = (1 - s * self.covariance.diagonal()).clamp_min(1e-12)
        self.precision[a] = self.t * determined / self.mean.square().sum(1).clamp_min(1e-300)
        residual = self.square - 2 * float((self.mean * self.projection[a]).sum())
        residual += float((self.mean * (self.gram[a][:, a] @ self.mean)).sum())
        free = self.t * max(self.n - float(determined.sum()), 1e-3 * self.n)
        self.noise = max(residual / free, 1e-6 * self.dictionary.unit)
        keep = self.precision[a] < self.largest
        if bool(keep.any()):
            self.active = a[keep]
        self._solve()
        if len(self.active) <= _DROPPED_SINGLY:
            for _ in range(_DROPS):
                if not self._drop_one():
                    break

    def _drop_one(self) -> bool:
        """Drop the function without which the evidence is largest, if it is worth little.

        MacKay's updates only approach an infinite s_i, but the gain from it is known in closed form
        (Tipping and Faul 2003, Fast marginal likelihood maximisation).
        """
        a, s = self.active, self.precision[self.active]
        if len(a) == 1:
            return False
        G = self.gram[a][:, a] / self.noise
        S = (G.diagonal() - ((G @ self.covariance) * G).sum(1)).clamp_min(0)
        Q = self.projection[a] / self.noise - G @ self.mean
        share = (S / s).clamp(max=1 - 1e-12)
        gain = Q.square().sum(1) / (S - s).clamp_max(-1e-300) - self.t * torch.log1p(-share)
        best = int(gain.argmax())
        if float(gain[best]) <= -2 * self.t * _WORTH:
            return False
        self.active = torch.cat([a[:best], a[best + 1 :]])
        self._solve()
        return True

    def score(self) -> float:
        worth = self.t * _WORTH * len(self.active)
        return (worth - self.evidence) / (self.n * self.t)

    def theta(self) -> np.ndarray:
        return np.array([np.log(self.noise), float(len(self.active))])

    def snapshot(self) -> tuple:
        return self.active.clone(), self.precision.clone(), self.noise

    def restore(self, snapshot: tuple) -> None:
        self.active, self.precision, self.noise = snapshot[0], snapshot[1].clone(), snapshot[2]
        self._solve()
