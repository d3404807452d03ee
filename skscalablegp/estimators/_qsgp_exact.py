"""Quadruply stochastic models without the stochastic part: full batches and linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..features import KernelFunctions
from ..objectives import LinearPosterior, Site, linear_posterior
from ._qsgp_fit import Fit
from ._qsgp_state import Trained


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
        result = linear_posterior(site, phi, Y.double(), mean, precision)
        score = _expected(site, phi, Y.double(), result)
    fit.monitor.begin("full", 1)
    stop = "converged"
    if fit.monitor.max_seconds is not None:
        stop = "max_seconds" if fit.monitor.seconds > fit.monitor.max_seconds else stop
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
        curvature=site.typical_curvature,
        n_rows=n_seen + fit.n,
        n_steps=(0 if start is None else start.n_steps) + result.n_steps,
        plan=vars(fit.plan) | {"dtype": "float64"},
        block=basis.block_units,
        summary=str(fit.plan),
        exact=True,
        score=score,
        stop_reason=stop,
    )


def _expected(site: Site, phi: Tensor, Y: Tensor, result: LinearPosterior) -> float:
    f = phi @ result.mean
    std = (phi @ result.factor).square().sum(1, keepdim=True).sqrt().expand_as(f)
    return -float(site.expected(Y, f, std).mean())
