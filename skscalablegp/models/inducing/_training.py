"""Sparse variational models from starting values to a trained one, and beyond it to new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ...core import FitRun, random_rows
from ...core.data import Scaling
from ...core.training import StopTraining, TrainingStep, train_steps
from ...kernels import TorchKernel
from ._bound import NaturalBelief, WhitenedBelief, Whitening, variational_bound
from ._collapsed import collapsed_bound
from ._selection import select_inducing
from ._stepper import SparseFit, SparseModel, SparseRows, SparseSettings, SparseStepper

# Rows among which inducing points are chosen, and rows of the start's exact likelihood.
CANDIDATES = 5000
START_ROWS = 500
# Steps of a start that other steps follow.
START_STEPS = 50
# Where noise may start, of the target's mean square, and rows that decide it.
_NOISE = (1e-4, 5e-4, 2e-3, 5e-3, 0.015)
# Where the bound is best with as much as this, noise starts at the second number.
_MUCH_NOISE = ((0.3, 0.03), (1.0, 0.06))
_NOISE_ROWS = 4096
_CHECKS = 20
# A belief that new rows move by less than this has converged.
_ABSORBED = 1e-6


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """What one fit works with.

    Attributes
    ----------
    model : SparseModel
    rows : SparseRows
    settings : SparseSettings
    inputs : Scaling
        What rows pass through.
    weights : list of Tensor
        Of the network, where training starts; it changes them.
    unit : float
        The target's mean square.
    whole : bool
        Whether all rows are points: the bound is then the exact likelihood, which is maximised.
    planned : bool
        Whether the steps are no fewer than "auto" would take.
    """

    model: SparseModel
    rows: SparseRows
    settings: SparseSettings
    inputs: Scaling
    weights: list[Tensor]
    unit: float
    whole: bool
    planned: bool


def best_noise(
    model: SparseModel,
    theta: Tensor,
    Z: Tensor,
    rows: SparseRows,
    unit: float,
    generator: Generator,
) -> Tensor:
    """A default kernel's theta whose last entry, its noise, covers what the points leave open.

    An exact likelihood of a few rows explains them with less noise than inducing points can. The
    best of a grid by the collapsed bound of some thousand rows and the prior; a low grid, because
    the points will explain more once they have moved, and high noise keeps them from it. Where much
    more noise is better still it starts higher: training could not raise it so far in its steps.
    """
    chosen = random_rows(len(rows), _NOISE_ROWS, generator)
    least = max(float(theta[-1]), math.log(_NOISE[0] * unit))
    grid = [(level, level) for level in (math.log(f * unit) for f in _NOISE) if level > least]
    grid += [(math.log(f * unit), math.log(start * unit)) for f, start in _MUCH_NOISE]
    trials = []
    for level, start in [(least, least), *grid]:
        trial = theta.clone()
        trial[-1] = level
        value = collapsed_bound(model.kernel, trial, Z, lambda: iter([rows.take(chosen)])).value
        # As in the steps, whatever is known of the noise counts beside all rows.
        value += len(chosen) / len(rows) * model.kernel.log_prior(trial.cpu().numpy())[0]
        trials.append((value, max(start, least)))
    theta = theta.clone()
    theta[-1] = max(trials)[1]
    return theta


def choose_points(
    model: SparseModel,
    theta: Tensor,
    weights: list[Tensor],
    rows: SparseRows,
    settings: SparseSettings,
    generator: Generator,
) -> Tensor:
    """Inducing points in the kernel's units: the user's, or some of the rows."""
    if not isinstance(settings.inducing, str):
        Z = torch.as_tensor(settings.inducing).to(rows.noise)
    else:
        n = min(len(rows), max(CANDIDATES, 2 * settings.n_inducing))
        Z = rows.take(random_rows(len(rows), n, generator))[0]
    with torch.no_grad():
        Z = model.features(weights, Z)
    if isinstance(settings.inducing, str):
        ours = select_inducing(
            model.kernel, theta, Z, settings.n_inducing, settings.inducing, generator
        )
        Z = Z[ours.to(Z.device)]
    return Z


def point_units(kernel: TorchKernel, theta: Tensor, spread: Tensor) -> Tensor:
    """How far points move along each column: length scales, where the kernel has some."""
    leaves = [leaf for term in kernel.stationary_terms() or [] for leaf in term.leaves]
    if not leaves:
        return spread
    scale = torch.full_like(spread, float("inf"))
    for leaf in leaves:
        seen = list(leaf.seen_columns(len(spread)))
        scale[seen] = torch.minimum(scale[seen], leaf.length_scale.value(theta).to(spread))
    return torch.minimum(torch.maximum(scale, 0.05 * spread), 4 * spread)


def begin(
    plan: SparsePlan, theta: Tensor, generator: Generator, choose_noise: bool = False
) -> SparseStepper:
    """Everything in place at starting hyperparameters.

    With `choose_noise`, the noise of the default kernel is chosen first.
    """
    model, rows, settings = plan.model, plan.rows, plan.settings
    theta = theta.to(rows.noise.device)
    Z = choose_points(model, theta, plan.weights, rows, settings, generator)
    if choose_noise:
        theta = best_noise(model, theta, Z, rows, plan.unit, generator)
    spread = Z.std(0, correction=0)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    units = point_units(model.kernel, theta, spread)
    return SparseStepper(model, rows, theta, Z, plan.weights, units, settings, generator)


def train_batches(stepper: SparseStepper, run: FitRun) -> tuple[int, str]:
    """Steps taken, and why they ended."""
    settings = stepper.settings
    run.monitor.begin("full", _CHECKS + 2, stepper.objective_name)
    try:
        result = train_steps(
            stepper,
            max_steps=settings.max_iter,
            check_every=max(1, settings.max_iter // _CHECKS),
            monitor=run.monitor,
            epochs_per_step=settings.batch_size / len(stepper.rows),
            keep_best=False,
        )
    except KeyboardInterrupt:
        if run.stopped:
            raise
        # Nothing was scored yet: the start is what there is.
        return 0, run.monitor.end("interrupted")
    return result.n_steps, result.stop_reason


def finished(stepper: SparseStepper, n_steps: int) -> tuple[SparseFit, int]:
    """The model on all rows after so many steps, and the steps that there were in the end."""
    if not n_steps and not stepper.belief.closed:
        n_steps = stepper.first_step()
    return stepper.fitted(), n_steps


@torch.no_grad()
def left_out(
    model: SparseModel, rows: SparseRows, fit: SparseFit, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Means and variances (n, q) of each row's latent functions without that row's own target.

    The row's site, N(r / w, 1 / w) with the likelihood's expected curvature w, is divided out of
    q(a'v) (Vehtari et al. 2016, section 3.2): one pass instead of n fits.
    """
    K = model.kernel.cross(fit.theta, fit.Z, fit.Z)
    inverse, parts = Whitening.of(K).inverse, []
    for X, Y, extra in rows.blocks():
        values = model.values(fit.theta, fit.Z, model.features(fit.weights, X), extra)
        A = (inverse.to(X) @ values.cross).double()
        known = torch.stack([((S @ A) * A).sum(0) for S in fit.belief.covariance], 1)
        rest = (values.diag.double() - A.square().sum(0)).clamp_min(0)[:, None]
        mean = A.T @ fit.belief.mean
        terms = model.likelihood.expected(
            Y.double(), mean, known + rest, values.noise.double(), generator
        )
        w = (-2 * terms.d_variance).clamp_min(0)
        share = (1 - w * known).clamp_min(0.05)
        parts.append(((mean - known * (terms.d_mean + w * mean)) / share, known / share + rest))
    return torch.cat([m for m, _ in parts]), torch.cat([v for _, v in parts])


def _show(belief: NaturalBelief, model: Any, step: TrainingStep) -> None:
    model._set_belief(belief.whitened())


def absorb(
    model: SparseModel,
    rows: SparseRows,
    fit: SparseFit,
    run: FitRun,
    generator: Generator,
    max_iter: int,
) -> tuple[WhitenedBelief, int, str]:
    """The belief after further rows, the one before them as the prior; in one step if Gaussian.

    Also the passes over the rows, and why they ended. Bui, Nguyen and Turner (2017), section 3,
    with the inducing points and hyperparameters held.
    """
    prior = belief = NaturalBelief.of(fit.belief)
    passes = 1 if model.likelihood.conjugate else max_iter
    done, reason = 0, "max_iter"
    run.monitor.begin("new rows", passes, "lower bound a row")
    try:
        while done < passes and reason == "max_iter":
            whitened = belief.whitened()
            value, total = -whitened.divergence_from(prior), None
            with torch.no_grad():
                for X, Y, extra in rows.blocks():
                    K = model.values(fit.theta, fit.Z, model.features(fit.weights, X), extra)
                    said = variational_bound(
                        model.likelihood, whitened, K, Y, 1.0, generator, eval_gradient=False
                    )
                    total = said.rows if total is None else total + said.rows
                    value += said.value + whitened.divergence()
            done += 1
            rate = 1.0 if model.likelihood.conjugate else max(0.3, 1 / (done + 1))
            belief = belief.towards(prior.plus(total), rate)
            moved = float((belief.whitened().mean - whitened.mean).abs().max())
            if model.likelihood.conjugate or moved < _ABSORBED * max(
                1.0, float(whitened.mean.abs().max())
            ):
                reason = "converged"
            run.preview = partial(_show, belief)
            run.monitor.record_score(fit.theta.cpu().numpy(), value / len(rows), done)
    except StopTraining as stop:
        reason = run.monitor.end(str(stop))
    except KeyboardInterrupt:
        if not done:
            raise
        reason = run.monitor.end("interrupted")
    return belief.whitened(), done, reason
