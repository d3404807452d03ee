"""Sparse variational models from starting values to a trained one, and beyond it to new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ...core.training import Monitor, QuasiNewton, TrainingResult, train, train_steps
from ...kernels import TorchKernel
from ...linalg.gradients import ExactGradient, GPProblem
from ._bound import NaturalBelief, WhitenedBelief, Whitening, variational_bound
from ._collapsed import collapsed_bound
from ._selection import select_inducing
from ._stepper import FactorBelief, SparseModel, SparseRows, SparseSettings, SparseStepper

# Rows among which inducing points are chosen, and rows of the start's exact likelihood.
CANDIDATES = 5000
START_ROWS = 500
_START_STEPS = 50
# Where noise may start, of the target's mean square, and rows that decide it.
_NOISE = (1e-4, 5e-4, 2e-3, 5e-3, 0.015)
_NOISE_ROWS = 4096
_CHECKS = 20


@dataclass(frozen=True, eq=False)
class SparseFit:
    """Where training ended.

    Attributes
    ----------
    theta, Z : Tensor
    weights : list of Tensor
        Of the network.
    belief : WhitenedBelief
    value : float
        The bound on all rows.
    n_iter : int
    stop_reason : str
    """

    theta: Tensor
    Z: Tensor
    weights: list[Tensor]
    belief: WhitenedBelief
    value: float
    n_iter: int
    stop_reason: str


def exact_start(
    kernel: TorchKernel,
    X: Tensor,
    Y: Tensor,
    noise: Tensor,
    monitor: Monitor,
    generator: Generator,
    max_iter: int = _START_STEPS,
) -> TrainingResult:
    """Hyperparameters that maximise the exact marginal likelihood of a few rows."""
    problem = GPProblem(kernel, X.double(), Y.double(), noise.double())
    monitor.begin("start", max_iter)
    return train(
        problem,
        ExactGradient(),
        QuasiNewton(),
        kernel.theta0.numpy(),
        kernel.bounds.numpy(),
        max_iter=max_iter,
        monitor=monitor,
        generator=generator,
    )


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
    best of a grid by the collapsed bound of some thousand rows; a low grid, because the points will
    explain more once they have moved, and high noise keeps them from it.
    """
    chosen = torch.randperm(len(rows), generator=generator)[:_NOISE_ROWS].sort().values
    least = max(float(theta[-1]), math.log(_NOISE[0] * unit))
    grid = [least, *(math.log(f * unit) for f in _NOISE if math.log(f * unit) > least)]
    trials = []
    for level in grid:
        trial = theta.clone()
        trial[-1] = level
        value = collapsed_bound(model.kernel, trial, Z, lambda: iter([rows.take(chosen)])).value
        trials.append((value, trial))
    return max(trials, key=lambda pair: pair[0])[1]


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
        chosen = torch.randperm(len(rows), generator=generator)[:n].sort().values
        Z = rows.take(chosen)[0]
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
    slots = [leaf.length_scale for t in kernel.stationary_terms() or [] for leaf in t.leaves]
    if not slots:
        return spread
    scales = torch.stack([slot.value(theta).expand(len(spread)) for slot in slots])
    scale = scales.min(0).values.to(spread)
    return torch.minimum(torch.maximum(scale, 0.05 * spread), 4 * spread)


def train_sparse(
    model: SparseModel,
    rows: SparseRows,
    theta: Tensor,
    weights: list[Tensor],
    settings: SparseSettings,
    monitor: Monitor,
    generator: Generator,
    unit: float | None = None,
) -> SparseFit:
    """From starting hyperparameters to the trained model and its bound on all rows.

    With a `unit`, the target's mean square, the noise of the default kernel is chosen first.
    """
    Z = choose_points(model, theta, weights, rows, settings, generator)
    if unit is not None:
        theta = best_noise(model, theta, Z, rows, unit, generator)
    spread = Z.std(0, correction=0)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    stepper = SparseStepper(
        model,
        rows,
        theta,
        Z,
        weights,
        point_units(model.kernel, theta, spread),
        settings,
        generator,
    )
    n_steps, reason = 0, "nothing to train"
    natural = not isinstance(stepper.belief, FactorBelief)
    closed = model.likelihood.conjugate and natural
    if settings.max_iter and not (closed and stepper._adam is None):
        monitor.begin("full", _CHECKS + 2)
        run = train_steps(
            stepper,
            max_steps=settings.max_iter,
            check_every=max(1, settings.max_iter // _CHECKS),
            monitor=monitor,
            epochs_per_step=settings.batch_size / len(rows),
            keep_best=False,
        )
        n_steps, reason = run.n_steps, run.stop_reason
    if n_steps == 0 and not closed:
        # Where training was stopped before it began, the belief would be the prior.
        n_steps = _first_step(stepper)
    theta, Z = stepper._theta.detach(), stepper.Z.detach()
    weights = [w.detach() for w in weights]
    with torch.no_grad():
        belief, value = _whole(model, rows, theta, Z, weights, stepper, closed)
    return SparseFit(theta, Z, weights, belief, value, n_steps, reason)


def _first_step(stepper: SparseStepper) -> int:
    before = stepper.snapshot()
    stepper.step()
    if math.isfinite(stepper.score()):
        return 1
    stepper.restore(before)
    return 0


def _whole(model, rows, theta, Z, weights, stepper, closed) -> tuple[WhitenedBelief, float]:
    """The bound on all rows; a Gaussian likelihood gets its best belief, a natural step of 1."""
    if closed:

        def blocks():
            for X, Y, extra in rows.blocks():
                yield model.features(weights, X), Y, extra

        best = collapsed_bound(model.kernel, theta, Z, blocks)
        return best.belief.whitened(), best.value
    belief = stepper.belief.whitened()
    value = -belief.divergence()
    for batch in rows.blocks():
        bound = stepper._evaluate(batch, 1.0, False)[1]
        value += bound.value + belief.divergence()
    return belief, value


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


def absorb(
    model: SparseModel,
    rows: SparseRows,
    fit: SparseFit,
    generator: Generator,
    max_iter: int = 30,
    tol: float = 1e-6,
) -> WhitenedBelief:
    """The belief after further rows, the one before them as the prior; in one step if Gaussian.

    Bui, Nguyen and Turner (2017), section 3, with the inducing points and hyperparameters held.
    """
    eye = torch.eye(len(fit.Z), dtype=torch.float64, device=fit.Z.device)
    factors = [torch.linalg.cholesky(S) for S in fit.belief.covariance]
    precision = torch.stack([torch.cholesky_solve(eye, L) for L in factors])
    mean = fit.belief.mean
    shift = (
        precision[0] @ mean if len(precision) == 1 else torch.einsum("qij,jq->iq", precision, mean)
    )
    prior = belief = NaturalBelief(precision, shift)
    for k in range(1 if model.likelihood.conjugate else max_iter):
        whitened, total = belief.whitened(), None
        with torch.no_grad():
            for X, Y, extra in rows.blocks():
                K = model.values(fit.theta, fit.Z, model.features(fit.weights, X), extra)
                said = variational_bound(
                    model.likelihood, whitened, K, Y, 1.0, generator, eval_gradient=False
                ).rows
                total = said if total is None else total + said
        rate = 1.0 if model.likelihood.conjugate else max(0.3, 1 / (k + 2))
        belief = belief.towards(prior.plus(total), rate)
        moved = float((belief.whitened().mean - whitened.mean).abs().max())
        if moved < tol * max(1.0, float(whitened.mean.abs().max())):
            break
    return belief.whitened()
