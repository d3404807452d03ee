"""Quadruply stochastic models without the stochastic part: full batches and linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.training import StopTraining
from ._basis import KernelFunctions
from ._fit import Fit
from ._newton import MOST_NEWTON_STEPS, LinearPosterior, newton_steps
from ._site import Site
from ._state import Trained


def exact_fit(
    fit: Fit, kernel: Any, basis: Any, site: Site, seed: int, start: Trained | None, n_seen: int
) -> Trained:
    """The ELBO's optimum over all Gaussians; O(n m^2 + m^3)."""
    theta = basis.kernel.theta0
    X, Y = fit.source.rows(slice(None))
    with torch.no_grad():
        full = np.arange(basis.n_blocks)
        part = basis.part(full)
        phi = part.evaluate(theta, X.double())
        m = phi.shape[1]
        # Of rows that it has already seen, a posterior is no prior.
        if start is not None and n_seen > 0:
            mean = torch.as_tensor(start.mean).reshape(m, -1).to(phi)
            precision = torch.as_tensor(start.precision).to(phi)
        else:
            mean = torch.zeros(m, fit.t).to(phi)
            precision = torch.eye(m).to(phi)
            if isinstance(basis, KernelFunctions):
                K = part.evaluate(theta, basis.points.double())
                precision = K + 1e-8 * K.diagonal().mean() * torch.eye(m).to(phi)
        result, stop = _optimum(fit, theta.cpu().numpy(), site, phi, Y.double(), mean, precision)
        std = torch.linalg.vector_norm(phi @ result.factor, dim=1, keepdim=True)
        score = _score(site, Y.double(), phi @ result.mean, std)
    q = basis.per_unit
    zeros = np.zeros((q, m // q))
    return Trained(
        kernel=kernel,
        mean=result.mean.cpu().numpy().reshape(q, m // q, fit.t),
        dense=result.factor.cpu().numpy().reshape(q, m // q, m),
        diagonal=zeros,
        squares=zeros,
        precision=result.precision.cpu().numpy(),
        seed=seed,
        points=fit.points,
        support_X=np.empty((0, fit.d)),
        support_Y=np.empty((0, fit.t)),
        noise=site.noise,
        curvature=site.curvature,
        n_rows=n_seen + fit.n,
        n_steps=(0 if start is None else start.n_steps) + result.n_steps,
        plan=vars(fit.plan) | {"dtype": "float64"},
        block=basis.block_units,
        summary=str(fit.plan),
        exact=True,
        score=score,
        stop_reason=stop,
    )


def _optimum(
    fit: Fit,
    theta: np.ndarray,
    site: Site,
    phi: Tensor,
    Y: Tensor,
    mean: Tensor,
    precision: Tensor,
) -> tuple[LinearPosterior, str]:
    """Where Newton steps end, or what they had reached, and why they ended."""
    result = None
    fit.monitor.begin("full", 1 if site.gaussian else MOST_NEWTON_STEPS)
    try:
        for result in newton_steps(site, phi, Y, mean, precision):
            score = _score(site, Y, phi @ result.mean, result.std)
            fit.monitor.record_score(theta, score, float(result.n_steps))
            if fit.stopped:
                return result, fit.stopped
    except StopTraining as stop:
        return result, str(stop)
    except KeyboardInterrupt:
        if result is None:
            raise
        return result, "interrupted"
    return result, "converged"


def _score(site: Site, Y: Tensor, f: Tensor, std: Tensor) -> float:
    """Minus the expected log likelihood, a row and target."""
    return -float(site.terms(Y, f, std.square()).value.mean()) / Y.shape[1]
