"""Quadruply stochastic training by steps: where weights start, and how they are kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._fit import Fit
from ._hyperparameters import SampledHyperparameters
from ._site import Site
from ._start import support_weights
from ._state import Trained, fitted_scales, support_variance
from ._stepper import QSGPStepper, StepSizes
from ._support import Flattening, SupportRows, by_unit, support_gram
from ._weights import SampledWeights


def stochastic_fit(
    fit: Fit,
    kernel: Any,
    compiled: TorchKernel,
    basis: Any,
    site: Site,
    seed: int,
    rng: np.random.Generator,
    start: Trained | None,
    n_seen: int,
) -> Trained:
    """Train by `QSGPStepper`."""
    est, plan, n = fit.est, fit.plan, fit.n + n_seen
    with torch.no_grad():
        support = fit.support(start, compiled)
        c = plan.n_dense if start is None else start.dense.shape[2]
        head = math.ceil(c / basis.per_unit)
        whole = support_gram(support, basis)
        fit.check_range(whole)
        gram = whole if head == 0 else support_gram(support, basis, head)
        flattening = None
        if est.variational_optimizer == "preconditioned":
            X, _ = fit.source.rows(np.sort(rng.choice(fit.n, plan.rows, replace=False)))
            flattening = Flattening.build(support, gram, X, site.curvature, n)
        squares = fit.squares(basis, support, rng, n)
        if start is None:
            weights = _first_weights(fit, basis, support, whole, site, squares, c, head)
        else:
            weights = _resumed(fit, start, basis, support, head)
    # Rows of the scores that no batch has can say how wide the errors are.
    # A fit that goes on has trained on all of its rows before.
    calibrated = fit.calibrates and (start is None or n_seen > 0)
    hyper = None
    if est.optimizer is not None and est.hyperparameter_learning_rate > 0:
        hyper = SampledHyperparameters(
            compiled,
            int(est.freeze * plan.steps),
            est.hyperparameter_learning_rate,
            est.decay,
            plan.steps,
        )
    stepper = QSGPStepper(
        fit.source,
        basis,
        site,
        support,
        flattening,
        fit.optimizer(plan.steps),
        weights,
        squares,
        StepSizes(plan.rows, max(1, plan.features // (basis.per_unit * basis.block_units))),
        rng,
        hyper,
        n,
        held=fit.split()[1] if calibrated else None,
    )
    result = fit.drive(stepper)
    scale, noise = 1.0, stepper.site.noise
    if calibrated:
        scale, noise = _scales(stepper, compiled, n)
    elif start is not None and site.noise > 0:
        # What held-out rows said once stays true; the noise in units of the kernel's own.
        scale, noise = start.variance_scale, noise * start.noise / site.noise
    with torch.no_grad():
        stepper.fold()
        theta = torch.as_tensor(stepper.theta())
    if hyper is not None and result.n_steps:
        stepper.squares = fit.squares(basis, support, rng, n, theta.to(fit.device))
    t = fit.t
    coef = weights.coef.cpu().numpy()
    return Trained(
        kernel=compiled.to_sklearn(theta) if compiled.n_params else kernel,
        mean=np.ascontiguousarray(coef[:, :, :t]),
        dense=np.ascontiguousarray(coef[:, :, t:]),
        diagonal=stepper.diagonal().cpu().numpy(),
        squares=stepper.squares.cpu().numpy(),
        precision=None,
        seed=seed,
        points=fit.points,
        support_X=support.X.cpu().numpy(),
        support_Y=support.Y.cpu().numpy(),
        noise=noise,
        curvature=stepper.curvature,
        n_rows=n,
        n_steps=(0 if start is None else start.n_steps) + result.n_steps,
        plan=vars(plan) | {"dtype": str(plan.dtype).removeprefix("torch.")},
        block=basis.block_units,
        summary=str(plan),
        exact=False,
        score=result.score,
        stop_reason=result.stop_reason,
        variance_scale=scale,
    )


def _scales(stepper: QSGPStepper, compiled: TorchKernel, n: int) -> tuple[float, float]:
    """A factor of the variance given the support rows, and a noise, that fit held-out rows."""
    support, s = stepper.support, len(stepper.support)
    weight = stepper.curvature * n / s
    with torch.no_grad():
        variance = support_variance(compiled, support.X, weight)
        v = variance(support.theta, support.X_check).double().cpu().numpy()
        residual = support.Y_check.double() - stepper.weights.a[s:, : stepper.t]
    return fitted_scales(v, residual.cpu().numpy(), stepper.site.noise)


def _first_weights(
    fit: Fit,
    basis: Any,
    support: SupportRows,
    gram: Tensor,
    site: Site,
    squares: Tensor,
    c: int,
    head: int,
) -> SampledWeights:
    """The posterior given the support rows alone, as if they were all rows for C."""
    q, units = basis.per_unit, basis.n_units
    s = len(support)
    alpha = support_weights(site, gram[:s], support.Y.double())
    coef = torch.zeros(q, units, fit.t + c).to(support.X)
    a = torch.zeros(len(gram), fit.t + c, dtype=torch.float64, device=support.X.device)
    if fit.est.variational_optimizer == "preconditioned":
        a[:, : fit.t] = gram @ alpha
    dense = _dense_start(fit, basis, support, gram[:s], site, c) if c else None
    for part in basis.parts(max(1, 2**24 // (q * len(support)))):
        everywhere = part.evaluate(support.theta, support.all_rows)
        phi = everywhere[:s]
        if fit.est.variational_optimizer == "preconditioned":
            mu = (phi.T @ alpha.to(phi)).reshape(q, -1, fit.t)
            coef[:, part.index, : fit.t] = mu
        if dense is None:
            continue
        columns = dense(phi, part.index)
        coef[:, part.index, fit.t :] = columns
        a[:, fit.t :] += (everywhere @ columns.reshape(-1, c)).double()
    return SampledWeights(coef, a, head, s)


def _dense_start(fit: Fit, basis: Any, support: SupportRows, gram: Tensor, site: Site, c: int):
    """Columns of (S + curvature n / s Phi_p'Phi_p)^-1, scaled to what a Cholesky factor has."""
    q = basis.per_unit
    s = len(support)
    weight = site.curvature * fit.n / s
    # Features in float32 under a large amplitude leave a Gram matrix that is barely definite.
    factor, _ = cholesky_with_jitter(gram + torch.eye(s).to(gram) / weight)
    inner = torch.cholesky_inverse(factor)
    blocks = math.ceil(math.ceil(c / q) / basis.block_units)
    part = basis.part(np.arange(blocks))
    phi = by_unit(part.evaluate(support.theta, support.X), q)
    first = phi.permute(0, 2, 1).reshape(s, -1)[:, :c].double()
    solved = inner @ first
    root = (1 - (first * solved).sum(0)).clamp_min(1e-6).sqrt()

    def columns(phi: Tensor, index: Tensor) -> Tensor:
        out = -(phi.T @ (solved / root).to(phi)).reshape(q, -1, c)
        number = (index[None] * q + torch.arange(q)[:, None])[:, :, None].to(out.device)
        r = torch.arange(c, device=out.device)
        out = out * (number > r)
        return out + (number == r) * root.to(out)

    return columns


def _resumed(
    fit: Fit, start: Trained, basis: Any, support: SupportRows, head: int
) -> SampledWeights:
    coef = torch.as_tensor(np.concatenate([start.mean, start.dense], 2)).to(support.X)
    rows = support.all_rows
    a = torch.zeros(len(rows), coef.shape[2], dtype=torch.float64, device=rows.device)
    for part in basis.parts(max(1, 2**24 // (basis.per_unit * len(rows)))):
        phi = part.evaluate(support.theta, rows)
        a += (phi @ coef[:, part.index].reshape(-1, coef.shape[2])).double()
    return SampledWeights(coef.clone(), a, head, len(support))
