"""Empirical Bayes: a prior precision for each function of a dictionary. Most become infinite."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.data import RowSource
from ...core.training import Monitor, Stepper
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions
from ._site import noise_of
from ._stepper import QSGPStepper

# Number of rows in a block of the moments.
_ROWS = 4096
# Up to the first number of functions single ones are dropped; an update may drop the second number.
_DROPPED_SINGLY, _DROPS = 512, 16
# Log evidence per target, in nats, that a function has to add. MacKay's updates keep clusters of
# functions that add less.
_WORTH = 0.5


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The functions k(x, x_i) / k(x_i, x_i) at some rows x_i, and the precisions of their weights.

    Attributes
    ----------
    kernel : TorchKernel
    source : RowSource
        The table.
    rows : ndarray of shape (m,)
        The numbers of these rows.
    points : Tensor of shape (m, d)
        The rows, in the model's units.
    amplitude : Tensor of shape (m,)
        k(x_i, x_i).
    precision : ndarray of shape (m,)
        s_i.
    noise : float
        Initial noise variance.
    unit : float
        Mean square of the targets.
    """

    kernel: TorchKernel
    source: RowSource
    rows: np.ndarray
    points: Float64[Tensor, "m d"]
    amplitude: Float64[Tensor, " m"]
    precision: np.ndarray
    noise: float
    unit: float

    @classmethod
    def of(cls, kernel: TorchKernel, source: RowSource, rows: np.ndarray) -> Dictionary:
        """A dictionary of functions at given rows of a table."""
        unit = float(np.mean([float(Y.square().mean()) for _, Y in source.blocks()])) or 1.0
        points, noise = source.rows(rows)[0], noise_of(kernel, kernel.theta0)
        amplitude = own_values(kernel, points)
        ones = np.full(len(rows), 1.0 / unit)
        return cls(kernel, source, rows, points, amplitude, ones, noise, unit)

    def __len__(self) -> int:
        return len(self.rows)

    def _kept(self, keep: np.ndarray, precision: np.ndarray) -> Dictionary:
        at = torch.as_tensor(keep).to(self.points.device)
        return replace(
            self,
            rows=self.rows[keep],
            points=self.points[at],
            amplitude=self.amplitude[at],
            precision=precision[keep],
        )

    def scaled(self, dtype: torch.dtype) -> KernelFunctions:
        """The functions, scaled so that their prior precisions are 1."""
        scale = 1 / (self.amplitude.cpu().numpy() * np.sqrt(self.precision))
        return KernelFunctions(self.kernel, self.points.to(dtype), torch.as_tensor(scale).to(dtype))

    def after(self, stepper: QSGPStepper, largest: float) -> Dictionary:
        """The dictionary with the best precisions for the weights of a stepper (appendix I.3).

        Functions of a precision above `largest` are dropped.
        """
        mean, diagonal = stepper.folded()[0].cpu().numpy(), stepper.diagonal()[0].cpu().numpy()
        second = (np.square(mean).mean(1) + np.square(diagonal)) / self.precision
        new = 1 / np.maximum(second, 1e-300)
        keep = new < largest
        if not keep.any():
            keep[np.argmin(new)] = True
        return self._kept(keep, new)

    def most_relevant(self, most: int) -> Dictionary:
        """The functions of the smallest s_i, at most `most` of them."""
        if len(self) <= most:
            return self
        keep = np.sort(np.argsort(self.precision, kind="stable")[:most])
        return self._kept(keep, self.precision)

    def without(self, rows: np.ndarray) -> Dictionary:
        """The functions at all but some rows."""
        return self._kept(np.flatnonzero(~np.isin(self.rows, rows)), self.precision)

    def moments(self, source: RowSource, monitor: Monitor) -> tuple[Tensor, Tensor, float, int]:
        """Phi'Phi, Phi'Y, the sum of squares of Y, and the number of their rows; O(n m^2).

        When the time is up or an interrupt comes, the rows end with the current block.
        """
        m, t, points = len(self), source.Y.shape[1], self.points
        gram = torch.zeros(m, m, dtype=torch.float64, device=points.device)
        projection = torch.zeros(m, t, dtype=torch.float64, device=points.device)
        square, n, theta = 0.0, 0, self.kernel.theta0
        with torch.no_grad():
            for X, Y in source.blocks(_ROWS):
                phi = self.kernel.cross(theta, X, points) / self.amplitude
                gram += phi.T @ phi
                projection += phi.T @ Y
                square, n = square + float(Y.square().sum()), n + len(X)
                if n < len(source) and monitor.seconds_left == 0:
                    monitor.end("max_seconds")
                    break
                if monitor.stopped == "interrupted":
                    break
        return gram, projection, max(square, 1e-300), n


def own_values(kernel: TorchKernel, points: Tensor) -> Tensor:
    """k(x_i, x_i), the values of the functions at their own rows; 1 in place of 0."""
    with torch.no_grad():
        values = kernel.diag(kernel.theta0.to(points.device), points).double()
    return torch.where(values > 0, values, torch.ones_like(values))


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


@dataclass(frozen=True, eq=False)
class AllRows:
    """The exact process, in the form of a machine that has dropped no function.

    With A = diag(k(x_i, x_i)), the weights of the functions k(x, x_i) / k(x_i, x_i) have the prior
    precision A^-1 k(X, X) A^-1 and the posterior mean A (k(X, X) + noise I)^-1 Y.

    Attributes
    ----------
    dictionary, noise, gram, active, precision, mean, covariance, evidence
        As of `RelevanceStepper` after its last step. `precision` is the diagonal.
    """

    dictionary: Dictionary
    noise: float
    gram: Tensor
    active: Tensor
    precision: Tensor
    mean: Tensor
    covariance: Tensor
    evidence: float

    @classmethod
    def of(cls, kernel: TorchKernel, source: RowSource) -> AllRows:
        """O(n^3) for n rows."""
        n = len(source)
        dictionary = Dictionary.of(kernel, source, np.arange(n))
        noise = max(dictionary.noise, 1e-6 * dictionary.unit)
        (X, Y), unit = source.rows(np.arange(n)), dictionary.amplitude
        Y = Y.double()
        with torch.no_grad():
            K = kernel.cross(kernel.theta0.to(X.device), X, X).double()
        eye = torch.eye(n, dtype=K.dtype, device=K.device)
        L, _ = cholesky_with_jitter(K + noise * eye)
        weights = torch.cholesky_solve(Y, L)
        log_det = 2 * float(L.diagonal().log().sum())
        evidence = float((Y * weights).sum()) + Y.shape[1] * (log_det + n * np.log(2 * np.pi))
        phi, precision = K / unit, K / unit / unit[:, None]
        gram = phi.T @ phi
        H, _ = cholesky_with_jitter(gram / noise + precision)
        return cls(
            dictionary,
            noise,
            gram,
            torch.arange(n, device=K.device),
            precision.diagonal(),
            unit[:, None] * weights,
            torch.cholesky_inverse(H),
            -0.5 * evidence,
        )
