"""Training with kernel functions at all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._basis import KernelFunctions
from ._bounds import optimal_diagonal
from ._dual_stepper import DualStepper
from ._fit import Fit
from ._site import Site
from ._start import support_weights
from ._state import Trained
from ._stepper import StepSizes
from ._support import Flattening


def dual_fit(
    fit: Fit,
    kernel: Any,
    basis: KernelFunctions,
    site: Site,
    seed: int,
    rng: np.random.Generator,
    start: Trained | None,
    n_seen: int,
) -> Trained:
    """Train by `DualStepper`."""
    plan = fit.plan
    with torch.no_grad():
        support, rows = fit.support(None, basis.kernel), fit.split()[0]
        X, theta = support.X, support.theta
        K = basis.kernel.cross(theta, support.all_rows.double(), X.double())
        fit.check_range(K)
        batch, _ = fit.source.rows(np.sort(rng.choice(fit.n, plan.rows, replace=False)))
        flattening = Flattening.build(support, K, batch, site.curvature, fit.n)
        alpha = support_weights(site, K[: len(X)], support.Y.double())
        coef = torch.zeros(fit.n, fit.t).to(X)
        if start is not None:
            coef = torch.as_tensor(start.mean[0]).to(X)
            alpha = torch.zeros_like(alpha)
        stepper = DualStepper(
            fit.source,
            basis,
            site,
            support,
            torch.as_tensor(rows),
            flattening,
            fit.optimizer(plan.steps),
            coef,
            alpha,
            StepSizes(plan.rows, plan.features),
            rng,
        )
    result = fit.drive(stepper)
    with torch.no_grad():
        stepper.fold()
        squares = fit.squares(basis, support, rng, fit.n)
        prior = basis.kernel.diag(theta, basis.points)
        diagonal = optimal_diagonal(squares, site.curvature, prior)
    return Trained(
        kernel=kernel,
        mean=stepper.coef.cpu().numpy()[None],
        dense=np.zeros((1, fit.n, 0)),
        diagonal=diagonal.cpu().numpy(),
        squares=squares.cpu().numpy(),
        precision=None,
        seed=seed,
        points=fit.points,
        support_X=support.X.cpu().numpy(),
        support_Y=support.Y.cpu().numpy(),
        noise=site.noise,
        curvature=site.curvature,
        n_rows=fit.n + n_seen,
        n_steps=(0 if start is None else start.n_steps) + result.n_steps,
        plan=vars(plan) | {"dtype": str(plan.dtype).removeprefix("torch.")},
        block=basis.block_units,
        summary=str(plan),
        exact=False,
        score=result.score,
        stop_reason=result.stop_reason,
    )
