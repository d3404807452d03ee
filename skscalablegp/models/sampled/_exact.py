"""Quadruply stochastic models without the stochastic part: full batches and linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from ...core import FitRun
from ...core.likelihoods import Likelihood
from ...core.training import StopTraining
from ...kernels import compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions, SampledBasis
from ._site import Site
from ._start import noise_of
from ._stepper import OBJECTIVE
from ._trained import Trained

# Multiplications between two looks at the clock.
_WORK = 2e9


@dataclass(frozen=True)
class LinearPosterior:
    """q(w) = N(mean, C C') with every entry of the lower triangular C.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    factor : Tensor of shape (m, m)
        C.
    precision : Tensor of shape (m, m)
        (C C')^-1.
    std : Tensor of shape (n, 1)
        Of the function at the rows.
    """

    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]
    precision: Float64[Tensor, "m m"]
    std: Float64[Tensor, "n 1"]


@dataclass(frozen=True)
class FullBatch:
    """A Gaussian prior of the weights, and all rows.

    Attributes
    ----------
    site : Site
    phi : Tensor of shape (n, m)
        The basis at the rows.
    Y : Tensor of shape (n, t)
    mean : Tensor of shape (m, t)
        Of the prior.
    precision : Tensor of shape (m, m)
        Of the prior.
    """

    site: Site
    phi: Float64[Tensor, "n m"]
    Y: Float64[Tensor, "n t"]
    mean: Float64[Tensor, "m t"]
    precision: Float64[Tensor, "m m"]

    @cached_property
    def _log_det(self) -> Tensor:
        return 2 * cholesky_with_jitter(self.precision)[0].diagonal().log().sum()

    def loss(self, mean: Tensor, std: Tensor) -> tuple[float, Tensor]:
        """Minus the ELBO as a function of the mean, and its gradient."""
        f, away = self.phi @ mean, mean - self.mean
        pull = self.precision @ away
        terms = self.site.terms(self.Y, f, std.square())
        value = 0.5 * (away * pull).sum() - terms.value.sum()
        return float(value), pull - self.phi.T @ terms.d_mean

    def lower_bound(self, q: LinearPosterior) -> float:
        """The ELBO in nats, over rows and targets; of a Gaussian optimum the log evidence."""
        t = self.Y.shape[1]
        log_det = self._log_det + 2 * q.factor.diagonal().abs().log().sum()
        trace = ((self.precision @ q.factor) * q.factor).sum()
        divergence = 0.5 * t * float(trace - len(self.precision) - log_det)
        return -self.loss(q.mean, q.std)[0] - divergence


def newton_steps(batch: FullBatch, max_iter: int, tol: float = 1e-6) -> Iterator[LinearPosterior]:
    """The optimum of the ELBO over all Gaussians that share one covariance over targets.

    For a Gaussian likelihood this is Bayesian linear regression, one step. For others the
    precision is the prior's plus Phi' Lambda Phi with Lambda the mean curvature (Price's theorem),
    and Newton steps alternate with it until both stand still.

    Parameters
    ----------
    batch : FullBatch
    max_iter : int
        Most steps.
    tol : float, default=1e-6
        Stop when no function value moves by more, relative to the largest and to the largest
        standard deviation under the prior.

    Yields
    ------
    posterior : LinearPosterior
        After every step; the last is the optimum.

    Notes
    -----
    O(n m^2 + m^3) a step.
    """
    site, phi, Y = batch.site, batch.phi, batch.Y
    mean, precision = batch.mean, batch.precision
    # Of the prior; a Gaussian likelihood does not ask.
    std = phi.new_zeros(len(phi), 1) if site.gaussian else _std(phi, _factor(precision))
    unit = float(std.max()) or 1.0
    for step in range(1, max_iter + 1):
        f = phi @ mean
        curvature = -2 * site.terms(Y, f, std.square()).d_variance / Y.shape[1]
        new = batch.precision + phi.T @ (curvature * phi)
        # Mean and curvature would chase each other back and forth: go half of the way.
        precision = new if site.gaussian or step < 3 else 0.5 * (new + precision)
        factor = _factor(precision)
        loss, gradient = batch.loss(mean, std)
        change = factor @ (factor.T @ gradient)
        if not site.gaussian:
            change = _accepted(change, loss, lambda w, std=std: batch.loss(w, std)[0], mean)
        mean = mean - change
        own_std = _std(phi, factor)
        new_std = 0.5 * (own_std + std) if not site.gaussian and step > 2 else own_std
        moved = torch.cat([(phi @ change).abs().max()[None], (new_std - std).abs().max()[None]])
        std = new_std
        yield LinearPosterior(mean, factor, precision, own_std)
        if site.gaussian or float(moved.max()) <= tol * max(float(f.abs().max()), unit):
            return


def _factor(precision: Tensor) -> Tensor:
    """C, lower triangular, with C C' = precision^-1."""
    reverse = torch.linalg.cholesky(precision.flip(0, 1))
    eye = torch.eye(len(precision)).to(precision)
    return torch.linalg.solve_triangular(reverse, eye, upper=False).flip(0, 1).T


def _std(phi: Tensor, factor: Tensor) -> Tensor:
    """Standard deviations (n, 1) of the functions' values; O(n m^2)."""
    return (phi @ factor).square().sum(1, keepdim=True).sqrt()


def _accepted(
    change: Tensor, loss: float, loss_at: Callable[[Tensor], float], mean: Tensor
) -> Tensor:
    """The step, halved until it is no loss."""
    for _ in range(30):
        if loss_at(mean - change) <= loss:
            return change
        change = 0.5 * change
    return torch.zeros_like(change)


@dataclass(frozen=True)
class Optimum:
    """Where full batches ended.

    Attributes
    ----------
    q : LinearPosterior or None
        None if the end came before the first step.
    bound : float
        Its lower bound.
    n_iter : int
    reason : str
    """

    q: LinearPosterior | None
    bound: float
    n_iter: int
    reason: str


def full_batch(
    basis: SampledBasis, site: Site, X: Tensor, Y: Tensor, past: Trained | None, run: FitRun | None
) -> FullBatch:
    """The basis at all rows, with its prior or with a past posterior in the prior's place.

    O(n m d); looks at the clock of a run where there is one.
    """
    theta = basis.kernel.theta0.to(X.device)
    with torch.no_grad():
        step = max(1, int(_WORK / (basis.n_features * X.shape[1])))
        part, blocks = basis.part(np.arange(basis.n_blocks)), []
        for rows in X.double().split(step):
            blocks.append(part.evaluate(theta, rows))
            if run is not None:
                run.monitor.check_time()
        phi = torch.cat(blocks)
        m = phi.shape[1]
        if past is not None:
            mean = torch.as_tensor(past.mean).reshape(m, -1).to(phi)
            precision = torch.as_tensor(past.precision).to(phi)
        else:
            mean = torch.zeros(m, Y.shape[1]).to(phi)
            precision = basis.prior_precision(theta)
    return FullBatch(site, phi, Y.double(), mean, precision)


def optimum(batch: FullBatch, max_iter: int, run: FitRun, theta: np.ndarray, seen: Any) -> Optimum:
    """Newton steps under a run's monitor; `seen` is called with each posterior.

    A stop or an interrupt keeps what the last step had reached.
    """
    q, bound, n_iter = None, float("nan"), 0
    run.monitor.begin("full", max_iter, objective=OBJECTIVE)
    try:
        run.monitor.check_time()
        for q in newton_steps(batch, max_iter):
            n_iter, bound = n_iter + 1, batch.lower_bound(q)
            seen(q, bound)
            run.monitor.record_score(theta, bound / batch.Y.numel(), float(n_iter))
    except StopTraining as stop:
        return Optimum(q, bound, n_iter, run.monitor.end(str(stop)))
    except KeyboardInterrupt:
        return Optimum(q, bound, n_iter, run.monitor.end("interrupted"))
    converged = n_iter < max_iter or batch.site.gaussian
    return Optimum(q, bound, n_iter, "converged" if converged else "max_iter")


def exact_state(
    kernel: Any,
    basis: SampledBasis,
    batch: FullBatch,
    q: LinearPosterior,
    bound: float,
    seed: int,
    points: np.ndarray | None,
    past: Trained | None = None,
) -> Trained:
    """A posterior of full batches as arrays."""
    per_unit, (m, t), n = basis.per_unit, q.mean.shape, len(batch.Y)
    d = basis.kernel.n_features
    rows = n
    if past is not None:
        # A past posterior was the prior: the evidence of both is the sum.
        bound, rows = bound + past.lower_bound, rows + past.n_rows
    return Trained(
        kernel=kernel,
        mean=q.mean.cpu().numpy().reshape(per_unit, m // per_unit, t),
        dense=q.factor.cpu().numpy().reshape(per_unit, m // per_unit, m),
        diagonal=np.zeros((per_unit, m // per_unit)),
        precision=q.precision.cpu().numpy(),
        seed=seed,
        block=basis.block_units,
        points=points,
        support_X=np.empty((0, d)),
        support_Y=np.empty((0, t)),
        noise=batch.site.noise,
        curvature=batch.site.curvature,
        n_rows=rows,
        dtype="float64",
        lower_bound=bound,
    )


def exact_process(
    kernel: Any, likelihood: Likelihood, X: np.ndarray, Y: np.ndarray, steps: int
) -> Trained:
    """The exact process on some rows: what there is where a fit ends with its start. O(s^3)."""
    compiled = compile_kernel(kernel, X.shape[1])
    rows, targets = torch.as_tensor(X), torch.as_tensor(Y)
    basis = KernelFunctions(compiled, rows)
    site = Site.of(likelihood, noise_of(compiled, compiled.theta0), targets)
    batch = full_batch(basis, site, rows, targets, None, None)
    *_, q = newton_steps(batch, steps)
    return exact_state(kernel, basis, batch, q, batch.lower_bound(q), 0, X)
