"""Empirical Bayes with one prior precision for each weight, most of which become infinite."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.training import Monitor, Stepper
from ...linalg.solvers import cholesky_with_jitter
from ._dictionary import Dictionary

# Number of functions up to which single ones are dropped, and how many an update may drop so.
_DROPPED_SINGLY, _DROPS = 512, 16
# Log evidence per target, in nats, that a function has to add. MacKay's updates keep clusters of
# functions that add less.
_WORTH = 0.5


class RelevanceStepper(Stepper):
    """Maximises the ELBO over q(w), the precisions S = diag(s) and the noise, and drops functions.

    With q(w) at its optimum for the current s, the update is s_i = (1 - s_i Sigma_ii) / mu_i^2.
    This is MacKay's form of the stationary point of the ELBO in s_i, which converges faster than
    s_i = 1 / (mu_i^2 + Sigma_ii). The rows enter through moments only, so that a step costs O(m^3)
    for m remaining functions.

    Parameters
    ----------
    dictionary : Dictionary
        The functions, with their initial precisions and noise.
    source : RowSource
        The rows of the fit.
    largest : float
        Functions with a larger s are dropped.
    monitor : Monitor
        Its time budget limits the rows.
    """

    objective_name = "log evidence less half a nat a function, a row and target"

    def __init__(self, dictionary: Dictionary, source: RowSource, largest: float, monitor: Monitor):
        self.dictionary, self.noise, self.largest = dictionary, dictionary.noise, largest
        self.gram, self.projection, self.square, self.n = dictionary.moments(source, monitor)
        self.precision = torch.as_tensor(dictionary.precision).to(self.gram, copy=True)
        self.flops = 2.0 * len(dictionary) ** 3
        self.active: Int64[Tensor, " r"] = torch.arange(len(dictionary), device=self.gram.device)
        self._solve()

    @property
    def t(self) -> int:
        return self.projection.shape[1]

    def _solve(self) -> None:
        """q(w) of the remaining functions, and the log evidence."""
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
        """Drop the function that adds least to the log evidence, if it adds less than `_WORTH`.

        MacKay's updates only approach an infinite s_i. The evidence there has a closed form
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
