"""The model of quadruply stochastic training, solved by full batches and linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ..._end import End
from ...core.data import RowSource
from ...core.likelihoods import Likelihood, LikelihoodTerms
from ...core.posteriors import FeatureWeights, Posterior, shifted
from ...kernels import compile_kernel
from ...linalg.blocks import look_up, watched
from ...linalg.gradients import Rows
from ...linalg.solvers import cholesky_with_jitter
from ...workers import Workers
from ._basis import Functions
from ._noise import NoiseAtRows, noise_of
from ._process import full_map
from ._stepper import OBJECTIVE
from ._steps import Fit, Trained

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
    constant : ndarray of shape (t,) or None
        Constants of the latent functions; None without classes.
    """

    functions: Functions
    mean: np.ndarray
    factor: np.ndarray
    noise: float
    n_rows: float
    lower_bound: float
    constant: np.ndarray | None = None

    # Fits that continue and fitted attributes read these of any model.
    method = inference = "exact"
    dtype = "float64"

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
        return shifted(functions.posterior(FeatureWeights(factor, mean)), self.constant)


class Belief(NamedTuple):
    """q(w) = N(mean, (L L')^-1).

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    factor : Tensor of shape (m, m)
        L.
    expected : float
        The expected log likelihood of all rows and targets, for a Gaussian likelihood without the
        variance of the function.
    """

    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]
    expected: float


@dataclass(eq=False)
class BatchRows:
    """The functions at some rows, and the targets.

    A function more, the root of the constants' variance, stands for constants that are trained.

    Attributes
    ----------
    noise : NoiseAtRows
    phi : Tensor of shape (n, m)
    Y : Tensor of shape (n, t)
    std : Tensor of shape (n, 1)
        Standard deviations of the function, which Newton steps change; zero for a Gaussian
        likelihood, which needs none.
    latest : Tensor of shape (n, 1)
        Those of the last step's precision, of which `std` is a mean over steps.
    """

    noise: NoiseAtRows
    phi: Float64[Tensor, "n m"]
    Y: Float64[Tensor, "n t"]

    def __post_init__(self) -> None:
        self.std = self.latest = self.phi.new_zeros(len(self.phi), 1)

    @classmethod
    def of(cls, given: RowSource | Rows, functions: Functions, noise: NoiseAtRows) -> BatchRows:
        """The m functions at all of some rows; O(n m d), for kernel functions O(n m^2)."""
        rows = given.take(slice(None))
        X, m, d = rows.X, functions.n_components, rows.X.shape[1]
        full = full_map(functions, d, noise.variance, X.device)
        phi = torch.empty(len(X), m + n_constants(noise), dtype=torch.float64, device=X.device)
        phi[:, m:] = noise.constant_variance**0.5
        size = max(1, int(_WORK / (m * max(m, d))))
        for start in range(0, len(X), size):
            phi[start : start + size, :m] = full.evaluate(X[start : start + size].double())
            look_up()
        return cls(noise.at(rows), phi, rows.Y.double())

    def terms(self, mean: Tensor, std: Float64[Tensor, "n 1"]) -> LikelihoodTerms:
        """The expected log likelihood under this mean of the weights."""
        return self.noise.terms(self.Y, self.phi @ mean, std.square())


@dataclass(frozen=True, eq=False)
class FullBatch:
    """A Gaussian prior of the weights, and all rows.

    Attributes
    ----------
    rows : Workers
        The `BatchRows`, which only sums are asked of.
    noise : NoiseAtRows
        Of no particular rows.
    n_rows : float
        The number of rows, or the sum of their weights.
    mean : Tensor of shape (m, t)
        Mean of the prior.
    factor : Tensor of shape (m, m)
        Lower Cholesky factor of the prior's precision.
    """

    rows: Workers
    noise: NoiseAtRows
    n_rows: float
    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]

    def loss(self, mean: Tensor, eval_gradient: bool = True) -> tuple[float, Tensor]:
        """Minus the ELBO as a function of the mean, and its gradient or zeros."""
        away = self.factor.T @ (mean - self.mean)
        value, slope = self.rows.sum(_likelihood_of, eval_gradient, mean)
        return float(0.5 * away.square().sum() - value), self.factor @ away - slope

    def lower_bound(self, q: Belief) -> float:
        """The ELBO in nats, over rows and targets; the log evidence for a Gaussian likelihood."""
        (m, t), prior = self.mean.shape, self.factor
        trace = float(_solved(q.factor, prior).square().sum())
        log_det = 2 * float((prior.diagonal().log() - q.factor.diagonal().log()).sum())
        away = prior.T @ (q.mean - self.mean)
        bound = q.expected - 0.5 * float(away.square().sum()) - 0.5 * t * (trace - m - log_det)
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
    O(n m^2 + m^3) a step. All that is asked of the rows are sums and largest values.
    """
    rows, mean, prior = batch.rows, batch.mean, batch.factor @ batch.factor.T
    if batch.noise.gaussian:
        factor, _ = cholesky_with_jitter(prior + rows.sum(_precision_of)[0])
        mean = mean - torch.cholesky_solve(batch.loss(mean)[1], factor)
        yield Belief(mean, factor, float(rows.sum(_likelihood_of, False, mean)[0]))
        return
    precision = prior
    unit = max(rows.call(_prior_std, batch.factor)) or 1.0
    for step in range(1, max_iter + 1):
        new = prior + rows.sum(_curvature_of, mean)[0]
        # Only half of the change is made, because mean and curvature would otherwise oscillate.
        precision = new if step < 3 else 0.5 * (new + precision)
        factor, _ = cholesky_with_jitter(precision)
        loss, gradient = batch.loss(mean)
        change = torch.cholesky_solve(gradient, factor)
        # The step is halved until it does not raise the loss.
        halves = (0.5**k * change for k in range(30))
        lower = (h for h in halves if batch.loss(mean - h, eval_gradient=False)[0] <= loss)
        change = next(lower, torch.zeros_like(mean))
        moved, largest = map(max, zip(*rows.call(_moved, step, factor, mean, change), strict=True))
        mean = mean - change
        expected = rows.sum(_expected_of, mean)[0]
        yield Belief(mean, factor, float(expected))
        if moved <= tol * max(largest, unit):
            return


def _solved(L: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(L, right, upper=False)


def _std(phi: Tensor, L: Tensor) -> Tensor:
    """Standard deviations (n, 1) of the functions' values; O(n m^2)."""
    return _solved(L, phi.T).square().sum(0)[:, None].sqrt()


# ---------------------------------------------------------------- of the rows at hand


def _precision_of(rows: BatchRows) -> tuple[Tensor]:
    """Phi' N^-1 Phi for the noise N."""
    return (rows.phi.T @ (rows.phi / rows.noise.variances_of_means(rows.Y)[:, None]),)


def _likelihood_of(rows: BatchRows, eval_gradient: bool, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The expected log likelihood, and its gradient in the weights' mean or zeros."""
    terms = rows.terms(mean, rows.std)
    slope = rows.phi.T @ terms.d_mean if eval_gradient else torch.zeros_like(mean)
    return terms.value.sum(), slope


def _expected_of(rows: BatchRows, mean: Tensor) -> tuple[Tensor]:
    """The expected log likelihood with the variances of the last precision."""
    return (rows.terms(mean, rows.latest).value.sum(),)


def _prior_std(rows: BatchRows, factor: Tensor) -> float:
    """The rows begin with the standard deviations under the prior; the largest one."""
    rows.std = _std(rows.phi, factor)
    return float(rows.std.max()) if len(rows.std) else 0.0


def _curvature_of(rows: BatchRows, mean: Tensor) -> tuple[Tensor]:
    """Phi' Lambda Phi."""
    curvature = -2 * rows.terms(mean, rows.std).d_variance / rows.Y.shape[1]
    return (rows.phi.T @ (curvature * rows.phi),)


def _moved(
    rows: BatchRows, step: int, factor: Tensor, mean: Tensor, change: Tensor
) -> tuple[float, float]:
    """Move the standard deviations; how far a value moves at most, and the largest value."""
    if not len(rows.phi):
        return 0.0, 0.0
    rows.latest = _std(rows.phi, factor)
    std = rows.latest if step < 3 else 0.5 * (rows.latest + rows.std)
    moved = max(float((rows.phi @ change).abs().max()), float((std - rows.std).abs().max()))
    rows.std = std
    return moved, float((rows.phi @ mean).abs().max())


def n_constants(noise: NoiseAtRows) -> int:
    """The number of functions that stand for trained constants."""
    return int(noise.constant_variance > 0)


def full_batch(
    functions: Functions,
    noise: NoiseAtRows,
    rows: Workers,
    given: Any,
    past: ExactModel | None = None,
) -> FullBatch:
    """All functions at all rows, and the prior of their weights or a past model in its place.

    `given` are the rows themselves, of which only their number and that of their targets are read.
    """
    if past is None:
        m = functions.n_components + n_constants(noise)
        mean, factor = torch.zeros(m, given.Y.shape[1]).double(), torch.eye(m).double()
    else:
        mean, factor = torch.as_tensor(past.mean), torch.as_tensor(past.factor)
    on = rows.own.phi.device
    return FullBatch(rows, noise, given.n_rows, mean.to(on), factor.to(on))


def believed(
    functions: Functions, batch: FullBatch, q: Belief, past: ExactModel | None = None
) -> ExactModel:
    """A distribution of the weights as a model; rows and evidence of a past model are added."""
    noise, m = batch.noise, len(q.mean) - n_constants(batch.noise)
    constant = None
    if noise.likelihood.classes:
        moved = noise.constant_variance**0.5 * q.mean[m:].sum(0)
        constant = noise.latent(moved[None])[0].cpu().numpy()
    # Given the constants, the precision of the weights is its leading block, and so is its factor.
    return ExactModel(
        functions,
        # A pickle keeps the strides of whole arrays only, and answers have the same bits with them.
        np.ascontiguousarray(q.mean[:m].cpu().numpy()),
        np.ascontiguousarray(q.factor[:m, :m].cpu().numpy()),
        noise.variance,
        batch.n_rows + (past.n_rows if past else 0),
        batch.lower_bound(q) + (past.lower_bound if past else 0.0),
        constant,
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
    compiled = compile_kernel(kernel, rows.X.shape[1])
    noise = NoiseAtRows.of(likelihood, noise_of(compiled, compiled.theta0), rows.Y)
    if likelihood.classes:
        noise = noise.learning_constants(rows.Y, rows.weight)
    functions = Functions.at(kernel, rows.X.numpy())
    batch = full_batch(functions, noise, Workers(BatchRows.of(rows, functions, noise)), rows)
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
    batch, model, n_iter, reason = None, None, 0, End.CONVERGED
    with run.stage("basis", optional=True), watched(run.budget.check):
        rows = fit.source.work.put(BatchRows.of, functions, noise)
        batch = full_batch(functions, noise, rows, fit.source, past)
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
            run.monitor.record_score(theta, bound / (batch.n_rows * fit.t), float(n_iter))
        if n_iter == max_iter and not noise.gaussian:
            reason = End.MAX_ITER
    return Trained(model, ending.reason or reason, n_iter)
