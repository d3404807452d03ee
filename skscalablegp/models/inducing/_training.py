"""Training of sparse variational models: start, steps, calibration and further rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ..._end import End
from ...core import FitRun, candidates, select_inducing
from ...core.data import RowSource, column_spread
from ...core.likelihoods import without_own_target
from ...core.training import train_steps
from ...kernels import TorchKernel
from ...workers import Workers
from ._bound import NaturalBelief, WhitenedBelief, Whitening
from ._collapsed import collapsed_bound
from ._plan import SparsePlan
from ._stepper import (
    PASS_ROWS,
    SparseFit,
    SparseModel,
    SparseStepper,
    SparseTraining,
    drawn_rows,
)

# Rows of the start's exact likelihood.
START_ROWS = 500
# Steps of a start that is followed by training on all rows.
START_STEPS = 50
# Starting values of the noise, relative to the target's mean square, and rows that decide.
_NOISE = (1e-4, 5e-4, 2e-3, 5e-3, 0.015)
# If the first number is the best noise, training starts at the second.
_MUCH_NOISE = ((0.06, 0.015), (0.1, 0.015), (0.3, 0.03), (1.0, 0.06))
_NOISE_ROWS = 4096
# Number of scores of a training, and the fewest steps between two of them: a score costs as much as
# a step.
_CHECKS, _BETWEEN_CHECKS = 20, 4
# Largest change of a belief that counts as converged, when rows are added.
_ABSORBED = 1e-6


def best_noise(
    model: SparseModel,
    theta: Tensor,
    Z: Tensor,
    source: RowSource,
    unit: float,
    generator: Generator,
) -> Tensor:
    """The default kernel's theta with a noise, its last entry, that suits the inducing points.

    The exact likelihood of a few rows chooses less noise than inducing points need. The noise is
    therefore the best on a grid, by the collapsed bound of some thousand rows plus the prior. If a
    large value of the grid is best, training starts below it: once the points have moved, less
    noise suffices, and high noise would keep them from moving. It does not start so far below that
    the steps could not return.
    """
    taken = source.counted(*drawn_rows(source, _NOISE_ROWS, generator))
    least = max(float(theta[-1]), math.log(_NOISE[0] * unit))
    grid = [(level, level) for level in (math.log(f * unit) for f in _NOISE) if level > least]
    grid += [(math.log(f * unit), math.log(start * unit)) for f, start in _MUCH_NOISE]
    some, trials, share = Workers(taken).sum, [], taken.n_rows / source.n_rows
    for level, start in [(least, least), *grid]:
        trial = theta.clone()
        trial[-1] = level
        value = collapsed_bound(model.kernel, trial, Z, some, block_rows=_NOISE_ROWS).value
        # The prior is weighted as in the steps, where it is added to the bound of all rows.
        value += share * model.kernel.log_prior(trial.cpu().numpy())[0]
        trials.append((value, max(start, least)))
    theta = theta.clone()
    theta[-1] = max(trials)[1]
    return theta


def choose_points(
    model: SparseModel,
    theta: Tensor,
    weights: list[Tensor],
    source: RowSource,
    plan: SparsePlan,
    generator: Generator,
) -> Tensor:
    """Inducing points in the kernel's units: the user's, or some of the rows."""
    m, inducing = plan.n_inducing.value, plan.inducing
    if not isinstance(inducing, str):
        Z = torch.as_tensor(inducing).to(source.device, source.dtype)
    else:
        some = candidates(len(source), source.far_rows(), m, generator)
        Z = source.take(some).X
    with torch.no_grad():
        Z = model.features(weights, Z)
    if isinstance(inducing, str):
        chosen = select_inducing(model.kernel, theta, Z, m, inducing, generator)
        Z = Z[chosen.to(Z.device)]
    return Z


def point_units(kernel: TorchKernel, theta: Tensor, spread: Tensor) -> Tensor:
    """Units in which points are trained: the length scales, if the kernel has any."""
    leaves = [leaf for term in kernel.stationary_terms() or [] for leaf in term.leaves]
    if not leaves:
        return spread
    scale = torch.full_like(spread, float("inf"))
    for leaf in leaves:
        seen = list(leaf.seen_columns(len(spread)))
        scale[seen] = torch.minimum(scale[seen], leaf.length_scale.value(theta).to(spread))
    return torch.minimum(torch.maximum(scale, 0.05 * spread), 4 * spread)


def begin(
    training: SparseTraining, theta: Tensor, generator: Generator, choose_noise: bool = False
) -> SparseStepper:
    """The stepper at the starting hyperparameters.

    With `choose_noise`, the default kernel's noise is chosen by `best_noise`.
    """
    model, source = training.model, training.source
    theta = theta.to(source.device)
    Z = choose_points(model, theta, training.weights, source, training.plan, generator)
    if choose_noise:
        theta = best_noise(model, theta, Z, source, training.unit, generator)
    spread = torch.as_tensor(column_spread(Z.detach().cpu().numpy())).to(Z)
    return SparseStepper(training, theta, Z, point_units(model.kernel, theta, spread), generator)


def train_batches(stepper: SparseStepper, run: FitRun) -> tuple[int, End]:
    """Train on batches; the number of steps, and the reason for their end."""
    steps = stepper.plan.max_iter.value
    run.monitor.begin("full", _CHECKS + 2, stepper.objective_name)
    # Without a score there is only the start, which is kept after a first interrupt.
    with run.budget.may_end(not run.stopped) as ending:
        result = train_steps(
            stepper,
            max_steps=steps,
            check_every=max(_BETWEEN_CHECKS, steps // _CHECKS),
            monitor=run.monitor,
            epochs_per_step=stepper.plan.batch_size / len(stepper.source),
            keep_best=False,
        )
    if ending.reason is not None:
        return 0, ending.reason
    return result.n_steps, result.stop_reason


def finished(stepper: SparseStepper, n_steps: int) -> tuple[SparseFit, int]:
    """The model on all rows after training, and the final number of steps."""
    if not n_steps and not stepper.belief.closed:
        n_steps = stepper.first_step()
    return stepper.fitted(), n_steps


@torch.no_grad()
def left_out(
    model: SparseModel, source: RowSource, fit: SparseFit, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Means and variances (n, q) of the latent functions at each row, without its own target.

    Of a row with a weight, one observation is left out.
    """
    inverse, parts = Whitening.at(model.kernel, fit.theta, fit.Z).inverse, []
    for some in source.blocks(PASS_ROWS):
        X = model.features(fit.weights, some.X)
        values = model.values(fit.theta, fit.Z, X, some.noise)
        A = (inverse.to(X) @ values.cross).double()
        known = torch.stack([((S @ A) * A).sum(0) for S in fit.belief.covariance], 1)
        rest = (values.diag.double() - A.square().sum(0)).clamp_min(0)[:, None]
        mean = A.T @ fit.belief.mean + fit.belief.constant
        terms = model.likelihood.expected(
            some.Y.double(), mean, known + rest, values.noise.double(), generator
        )
        mean, known = without_own_target(terms, mean, known)
        parts.append((mean, known + rest))
    return torch.cat([m for m, _ in parts]), torch.cat([v for _, v in parts])


def absorb(
    model: SparseModel,
    source: RowSource,
    fit: SparseFit,
    run: FitRun,
    generator: Generator,
    max_iter: int,
) -> tuple[WhitenedBelief, int, End]:
    """The belief after further rows, the number of passes over them and the reason for their end.

    The current belief is the prior. A Gaussian likelihood needs one pass. Bui, Nguyen and Turner
    (2017), section 3, with fixed inducing points and hyperparameters.
    """
    prior = belief = NaturalBelief.of(fit.belief)
    passes = 1 if model.likelihood.conjugate else max_iter
    done, reason, white = 0, End.MAX_ITER, Whitening.at(model.kernel, fit.theta, fit.Z)
    run.monitor.begin("new rows", passes, "lower bound per row")
    with run.budget.may_end(lambda reason: done or reason is not End.INTERRUPTED) as ending:
        while done < passes and reason is End.MAX_ITER:
            whitened = belief.whitened()
            fit = replace(fit, belief=whitened)
            value, total = -whitened.divergence_from(prior), None
            with torch.no_grad():
                for some in source.blocks(PASS_ROWS):
                    bound = fit.bound(model, some, generator, False, white)[1]
                    total = bound.rows if total is None else total + bound.rows
                    value += bound.expected
            done += 1
            rate = 1.0 if model.likelihood.conjugate else max(0.3, 1 / (done + 1))
            belief = belief.towards(prior.plus(total), rate)
            moved = float((belief.whitened().mean - whitened.mean).abs().max())
            if model.likelihood.conjugate or moved < _ABSORBED * max(
                1.0, float(whitened.mean.abs().max())
            ):
                reason = End.CONVERGED
            run.preview = lambda model, _, now=belief: model._set_belief(now.whitened())
            run.monitor.record_score(fit.theta.cpu().numpy(), value / len(source), done)
    return belief.whitened(), done, ending.reason or reason
