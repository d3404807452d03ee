"""The model of quadruply stochastic training, solved by full batches and linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ...core.likelihoods import Likelihood
from ...core.posteriors import FeatureWeights, Posterior
from ...kernels import compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions
from ._fit import Fit, Trained
from ._noise import NoiseAtRows, noise_of
from ._process import FullMap, full_map
from ._start import Rows
from ._stepper import OBJECTIVE

# Largest number of multiplications between two checks of the time.
_WORK = 2e9


@dataclass(frozen=True, eq=False)
class ExactModel:
    """A Gaussian distribution of all weights of a model, as NumPy arrays.

    Attributes
    ----------
    functions : Functions
    mean : ndarray of shape (m, t)
        Means of the weights, whose prior is standard normal (kernel functions are whitened).
    factor : ndarray of shape (m, m)
        Lower Cholesky factor of their precision.
    noise : float
        Noise variance of predictions, 0 for labels.
    n_rows : float
        Number of rows so far, or the sum of their weights.
    lower_bound : float
        The ELBO in nats.
    """

    functions: Functions
    mean: np.ndarray
    factor: np.ndarray
    noise: float
    n_rows: float
    lower_bound: float

    # Fits that continue and fitted attributes read these of any model.
    method = inference = "exact"
    dtype = "float64"

    @property
    def n_dense(self) -> int:
        return len(self.mean)

    @property
    def n_targets(self) -> int:
        return self.mean.shape[1]

    def coef(self, d: int) -> np.ndarray:
        """Means (m, t) of the weights of the functions themselves."""
        functions = full_map(self.functions, d, self.noise, torch.device("cpu"))
        return functions.plain(torch.tensor(self.mean)).numpy()

    def posterior(self, d: int, device: torch.device) -> Posterior:
        """The posterior."""
        factor, mean = (torch.tensor(a).to(device) for a in (self.factor, self.mean))
        functions = full_map(self.functions, d, self.noise, device)
        return functions.posterior(FeatureWeights(factor, mean))


class Belief(NamedTuple):
    """q(w) = N(mean, (L L')^-1).

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    factor : Tensor of shape (m, m)
        L.
    variance : Tensor of shape (n, 1)
        Variance of the function at the rows; zero for a Gaussian likelihood, which needs none.
    """

    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]
    variance: Float64[Tensor, "n 1"]


@dataclass(frozen=True)
class FullBatch:
    """A Gaussian prior of the weights, and all rows.

    Attributes
    ----------
    noise : NoiseAtRows
    phi : Tensor of shape (n, m)
        The functions at the rows.
    Y : Tensor of shape (n, t)
    mean : Tensor of shape (m, t)
        Mean of the prior.
    factor : Tensor of shape (m, m)
        Lower Cholesky factor of the prior's precision.
    """

    noise: NoiseAtRows
    phi: Float64[Tensor, "n m"]
    Y: Float64[Tensor, "n t"]
    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]

    def loss(self, mean: Tensor, variance: Tensor) -> tuple[float, Tensor]:
        """Minus the ELBO as a function of the mean, and its gradient."""
        f, away = self.phi @ mean, self.factor.T @ (mean - self.mean)
        terms = self.noise.terms(self.Y, f, variance)
        value = 0.5 * away.square().sum() - terms.value.sum()
        return float(value), self.factor @ away - self.phi.T @ terms.d_mean

    def lower_bound(self, q: Belief) -> float:
        """The ELBO in nats, over rows and targets; the log evidence for a Gaussian likelihood."""
        (m, t), prior = self.mean.shape, self.factor
        trace = float(_solved(q.factor, prior).square().sum())
        log_det = 2 * float((prior.diagonal().log() - q.factor.diagonal().log()).sum())
        bound = -self.loss(q.mean, q.variance)[0] - 0.5 * t * (trace - m - log_det)
        if self.noise.gaussian:
            # The sum over rows of variance over noise is m - trace.
            bound -= 0.5 * t * (m - trace)
        return bound


def newton_steps(batch: FullBatch, max_iter: int, tol: float = 1e-6) -> Iterator[Belief]:
    """The optimum of the ELBO over Gaussians with one covariance for all targets.

    For a Gaussian likelihood this is Bayesian linear regression, in one step. For others the
    precision is the prior's plus Phi' Lambda Phi, with Lambda the mean curvature (Price's theorem).
    Updates of the precision alternate with Newton steps of the mean until neither changes.

    Parameters
    ----------
    batch : FullBatch
    max_iter : int
        Largest number of steps.
    tol : float, default=1e-6
        Steps end when no function value changes by more, relative to the largest one and to the
        largest standard deviation under the prior.

    Yields
    ------
    belief : Belief
        The distribution after every step. The last one is the optimum.

    Notes
    -----
    O(n m^2 + m^3) a step.
    """
    noise, phi, Y = batch.noise, batch.phi, batch.Y
    mean, prior = batch.mean, batch.factor @ batch.factor.T
    if noise.gaussian:
        factor, _ = cholesky_with_jitter(
            prior + phi.T @ (phi / noise.variances_of_means(Y)[:, None])
        )
        none = phi.new_zeros(len(phi), 1)
        gradient = batch.loss(mean, none)[1]
        yield Belief(mean - torch.cholesky_solve(gradient, factor), factor, none)
        return
    precision, std = prior, _std(phi, batch.factor)
    unit = float(std.max()) or 1.0
    for step in range(1, max_iter + 1):
        f = phi @ mean
        curvature = -2 * noise.terms(Y, f, std.square()).d_variance / Y.shape[1]
        new = prior + phi.T @ (curvature * phi)
        # Only half of the change is made, because mean and curvature would otherwise oscillate.
        precision = new if step < 3 else 0.5 * (new + precision)
        factor, _ = cholesky_with_jitter(precision)
        loss, gradient = batch.loss(mean, std.square())
        change = torch.cholesky_solve(gradient, factor)
        change = _accepted(change, loss, lambda w, at=std**2: batch.loss(w, at)[0], mean)
        mean = mean - change
        own_std = _std(phi, factor)
        new_std = own_std if step < 3 else 0.5 * (own_std + std)
        moved = torch.maximum((phi @ change).abs().max(), (new_std - std).abs().max())
        std = new_std
        yield Belief(mean, factor, own_std.square())
        if float(moved) <= tol * max(float(f.abs().max()), unit):
            return


def _solved(L: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(L, right, upper=False)


def _std(phi: Tensor, L: Tensor) -> Tensor:
    """Standard deviations (n, 1) of the functions' values; O(n m^2)."""
    return _solved(L, phi.T).square().sum(0)[:, None].sqrt()


def _accepted(
    change: Tensor, loss: float, loss_at: Callable[[Tensor], float], mean: Tensor
) -> Tensor:
    """The step, halved until it does not raise the loss."""
    for _ in range(30):
        if loss_at(mean - change) <= loss:
            return change
        change = 0.5 * change
    return torch.zeros_like(change)


def full_batch(
    functions: FullMap,
    noise: NoiseAtRows,
    X: Tensor,
    Y: Tensor,
    past: ExactModel | None = None,
    check: Callable[[], None] = lambda: None,
) -> FullBatch:
    """The functions at all rows, and the prior of their weights or a past model in its place.

    O(n m d), for kernel functions O(n m^2); `check` is called after each part.
    """
    m, t = functions.n_features, Y.shape[1]
    blocks = []
    for rows in X.double().split(max(1, int(_WORK / (m * max(m, X.shape[1]))))):
        blocks.append(functions.evaluate(rows))
        check()
    phi = torch.cat(blocks)
    mean, factor = torch.zeros(m, t).to(phi), torch.eye(m).to(phi)
    if past is not None:
        mean, factor = (torch.as_tensor(a).to(phi) for a in (past.mean, past.factor))
    return FullBatch(noise, phi, Y.double(), mean, factor)


def believed(
    functions: Functions, batch: FullBatch, q: Belief, past: ExactModel | None = None
) -> ExactModel:
    """A distribution of the weights as a model; rows and evidence of a past model are added."""
    return ExactModel(
        functions,
        q.mean.cpu().numpy(),
        q.factor.cpu().numpy(),
        batch.noise.variance,
        batch.noise.n_rows(batch.Y) + (past.n_rows if past else 0),
        batch.lower_bound(q) + (past.lower_bound if past else 0.0),
    )


def exact_process(
    kernel: Any,
    likelihood: Likelihood,
    rows: Rows,
    max_iter: int,
    late: Callable[[], bool] = lambda: False,
) -> ExactModel:
    """The exact process on some rows, for a fit that ends with its start; O(s^3).

    When `late` returns True, Newton steps end.
    """
    (X, Y, known), d = map(torch.as_tensor, rows[:3]), rows.X.shape[1]
    counts = None if rows.counts is None else torch.as_tensor(rows.counts)
    compiled = compile_kernel(kernel, d)
    noise = NoiseAtRows.of(likelihood, noise_of(compiled, compiled.theta0), Y).at(known, counts)
    functions = Functions.at(kernel, rows.X)
    batch = full_batch(full_map(functions, d, noise.variance, X.device), noise, X, Y)
    for belief in newton_steps(batch, max_iter):
        last = belief
        if late():
            break
    return believed(functions, batch, last)


def train_by_full_batches(
    fit: Fit, functions: Functions, noise: NoiseAtRows, max_iter: int
) -> Trained:
    """Train by full batches; after a stop or an interrupt the model of the last step remains."""
    # A model may not be the prior of rows that it was already fitted to.
    run, past = fit.run, fit.past if fit.n_seen > 0 else None
    batch, model, n_iter, reason = None, None, 0, "converged"
    with run.stage("basis", optional=True):
        X, Y = fit.source.rows(slice(None))
        full = full_map(functions, fit.d, noise.variance, run.device)
        noise = noise.at(fit.source.known(slice(None)), fit.source.weights(slice(None)))
        batch = full_batch(full, noise, X, Y, past, run.budget.check)
    if batch is None:
        return Trained(None, run.budget.ended, 0)
    theta = compile_kernel(functions.kernel, fit.d).theta0.numpy()
    run.monitor.begin("full", max_iter, objective=OBJECTIVE)
    with run.budget.may_end() as ending:
        run.budget.check()
        for q in newton_steps(batch, max_iter):
            n_iter, model = n_iter + 1, believed(functions, batch, q, past)
            run.preview = lambda copy, step, now=model: copy._keep(now)
            bound = model.lower_bound - (past.lower_bound if past else 0.0)
            run.monitor.record_score(theta, bound / (noise.n_rows(Y) * fit.t), float(n_iter))
        if n_iter == max_iter and not noise.gaussian:
            reason = "max_iter"
    return Trained(model, ending.reason or reason, n_iter)
