"""Quadruply stochastic training by steps: where weights start, how they go and are kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions, SampledBasis
from ._fit import Fit, Trained
from ._hyperparameters import SampledHyperparameters
from ._site import Site, noise_of
from ._start import support_weights
from ._stepper import QSGPStepper, StepSizes
from ._support import Flattening, SupportRows, by_unit, support_gram
from ._trained import SampledModel, fitted_scales, support_variance
from ._weights import SampledWeights


def train_steps(fit: Fit, functions: Functions, site: Site) -> Trained:
    """Steps of sampled rows and functions to the end, and the scale of their variances."""
    run, stepper, scales = fit.run, None, None
    rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
    with run.stage("support", optional=True):
        stepper = make_stepper(fit, functions.basis(fit.d, fit.plan.dtype, run.device), site, rng)
    if stepper is None:
        return Trained(None, run.monitor.stopped, 0)
    result = fit.drive(
        stepper, lambda model, score: model._keep(state_of(fit, stepper, functions, score))
    )
    if calibrates(fit):
        with run.stage("calibration", optional=True):
            scales = fitted_stepper_scales(fit, stepper)
    if stepper.hyperparameters is not None and result.n_steps and not run.stopped:
        with run.stage("squares", optional=True):
            theta = torch.as_tensor(stepper.theta()).to(run.device)
            stepper.squares = fit.squares(stepper.basis, stepper.support, rng, theta)
    model = run.finish("weights", lambda: state_of(fit, stepper, functions, result.score, scales))
    return Trained(model, result.stop_reason, result.n_steps)


def make_stepper(
    fit: Fit, basis: SampledBasis, site: Site, rng: np.random.Generator
) -> QSGPStepper:
    """A stepper at its first weights: the posterior given the support rows, or the past's.

    O(s^2 m + s^3); looks at the clock.
    """
    plan, compiled, past = fit.plan, basis.kernel, fit.past
    with torch.no_grad():
        support = fit.support(compiled)
        head = math.ceil(plan.n_dense / basis.per_unit)
        whole = support_gram(support, basis, fit.parts)
        fit.check_range(whole)
        gram = whole if head == 0 else support_gram(support, basis, fit.parts, head)
        flattening = None
        if fit.settings.variational_optimizer == "preconditioned":
            X, _ = fit.source.rows(np.sort(rng.choice(fit.n, plan.rows, replace=False)))
            flattening = Flattening.build(support, gram, X, site.curvature, fit.n_total)
        squares = fit.squares(basis, support, rng)
        if past is None:
            weights = _first_weights(fit, basis, support, whole, site, head)
        else:
            weights = _resumed(fit, past, basis, support, head)
    hyper = None
    if fit.settings.theta_rate > 0:
        hyper = SampledHyperparameters(
            compiled,
            int(fit.settings.freeze * plan.steps),
            fit.settings.theta_rate,
            fit.settings.decay,
            plan.steps,
        )
    return QSGPStepper(
        fit.source,
        basis,
        site,
        support,
        flattening,
        fit.optimizer(),
        weights,
        squares,
        StepSizes(plan.rows, max(1, plan.components // (basis.per_unit * basis.block_units))),
        rng,
        hyper,
        fit.n_total,
        held=fit.split()[1] if calibrates(fit) else None,
    )


def calibrates(fit: Fit) -> bool:
    """Whether rows of the scores that no batch has say how wide the errors are.

    A fit that goes on has trained on all of its rows before.
    """
    return fit.plan.calibrates and (fit.past is None or fit.n_seen > 0)


def state_of(
    fit: Fit,
    stepper: QSGPStepper,
    functions: Functions,
    score: float,
    scales: tuple[float, float] | None = None,
) -> SampledModel:
    """What a stepper has reached, as arrays of their own.

    Parameters
    ----------
    fit : Fit
    stepper : QSGPStepper
    functions : Functions
        At the hyperparameters of the start.
    score : float
        Minus the lower bound a row and target.
    scales : tuple of float, optional
        Of the variance, and the noise; what the past had where there is one.
    """
    plan, past, t, compiled = fit.plan, fit.past, fit.t, stepper.basis.kernel
    if scales is None:
        scales = 1.0, stepper.site.noise
        if past is not None and stepper.site.noise > 0:
            # What held-out rows said once stays true; the noise in units of the kernel's own.
            own = noise_of(compiled, compiled.theta0)
            scales = past.variance_scale, stepper.site.noise * past.noise / own
    with torch.no_grad():
        coef = stepper.folded().cpu().numpy()
    if compiled.n_params:
        kernel = compiled.to_sklearn(torch.as_tensor(stepper.theta()))
        functions = replace(functions, kernel=kernel)
    return SampledModel(
        functions,
        mean=np.ascontiguousarray(coef[:, :, :t]),
        dense=np.ascontiguousarray(coef[:, :, t:]),
        diagonal=stepper.diagonal().cpu().numpy(),
        support_X=stepper.support.X.cpu().numpy(),
        support_Y=stepper.support.Y.cpu().numpy(),
        noise=scales[1],
        curvature=stepper.curvature,
        n_rows=fit.n_total,
        dtype=str(plan.dtype).removeprefix("torch."),
        lower_bound=-score * fit.n_total * t,
        variance_scale=scales[0],
        by_support=fit.settings.covariance == "support",
    )


def fitted_stepper_scales(fit: Fit, stepper: QSGPStepper) -> tuple[float, float]:
    """A factor of the variance given the support rows, and a noise, that fit held-out rows.

    O(s^3), as often done before: no look at the clock, after whose end it still is worth its time.
    """
    support, s = stepper.support, len(stepper.support)
    weight = stepper.curvature * fit.n_total / s
    with torch.no_grad():
        variance = support_variance(stepper.basis.kernel, support.X, weight)
        v = variance(support.theta, support.X_check).double().cpu().numpy()
        residual = support.Y_check.double() - stepper.weights.a[s:, : stepper.t]
    known = np.broadcast_to(np.asarray(support.known_check), v.shape)
    return fitted_scales(v, residual.cpu().numpy(), stepper.site.noise, known)


def _first_weights(
    fit: Fit,
    basis: Any,
    support: SupportRows,
    gram: Tensor,
    site: Site,
    head: int,
) -> SampledWeights:
    """The posterior given the support rows alone, as if they were all rows for C."""
    q, units, s, c = basis.per_unit, basis.n_units, len(support), fit.plan.n_dense
    preconditioned = fit.settings.variational_optimizer == "preconditioned"
    alpha = support_weights(site.at(support.known), gram[:s], support.Y.double())
    coef = torch.zeros(q, units, fit.t + c).to(support.X)
    a = torch.zeros(len(gram), fit.t + c, dtype=torch.float64, device=support.X.device)
    if preconditioned:
        a[:, : fit.t] = gram @ alpha
    dense = _dense_start(fit, basis, support, gram[:s], site, c) if c else None
    for part in fit.parts(basis, max(1, 2**24 // (q * len(support)))):
        everywhere = part.evaluate(support.theta, support.all_rows)
        phi = everywhere[:s]
        if preconditioned:
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
    fit: Fit, past: SampledModel, basis: Any, support: SupportRows, head: int
) -> SampledWeights:
    coef = torch.as_tensor(np.concatenate([past.mean, past.dense], 2)).to(support.X)
    rows = support.all_rows
    a = torch.zeros(len(rows), coef.shape[2], dtype=torch.float64, device=rows.device)
    for part in fit.parts(basis, max(1, 2**24 // (basis.per_unit * len(rows)))):
        phi = part.evaluate(support.theta, rows)
        a += (phi @ coef[:, part.index].reshape(-1, coef.shape[2])).double()
    return SampledWeights(coef.clone(), a, head, len(support))
