"""Quadruply stochastic training by steps: the rows, first weights, steps, and trained model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._end import End
from ...core import FitRun
from ...core.data import RowSource, whole_groups, with_equal_inputs
from ...core.training import StepsResult, train_steps
from ...kernels import TorchKernel
from ...linalg.gradients import Rows
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions, SampledBasis
from ._block import BlockStepper
from ._noise import NoiseAtRows, noise_of
from ._plan import StepPlan
from ._posterior import SampledModel, fitted_scales, support_variance
from ._start import support_weights
from ._stepper import DualStepper, QSGPStepper, SampledStepper, Sampler, head_functions
from ._support import Flattening, SupportRows, by_unit, support_gram
from ._weights import SampledAdam, SampledWeights, SparseAdaGrad, SparseSGD

# Share of the block steps, the last ones, in which rows that were held out take part.
_RELEASED = 0.3
# Largest ratio of signal and noise variance for block steps. In clearer data sampled steps, which
# stop early on small eigenvalues, predicted held-out training rows better. Chosen on three tables
# (pol, elevators, kin40k), for which there is no bench yet.
_CLEAREST = 250
# Number of rows from which |phi_r|^2 is estimated, and the largest number of values computed for
# it.
_SQUARES_ROWS = 2_000
_SQUARES_WORK = 2e9
# Number of scores in one training.
_CHECKS = 20
# Steps become smaller when the score is this far below the best one, in nats per row.
_WORSE = 0.02


class Trained(NamedTuple):
    """The result of training.

    Attributes
    ----------
    model : ExactModel, SampledModel or None
        None if training ended before its first step.
    reason : End
        Why training ended.
    n_iter : int
        Number of steps.
    """

    model: Any
    reason: End
    n_iter: int


@dataclass(eq=False)
class Fit:
    """The rows and settings of one fit.

    Attributes
    ----------
    source : RowSource
        Rows in the model's units; they are converted to the precision of training.
    run : FitRun
    steps : StepPlan or None
        None for full batches.
    past : ExactModel, SampledModel or None
        The model that training continues from.
    n_seen : float
        Number of other rows that this model has seen.
    n, n_rows, n_total : int, float, float
        Numbers of rows of the table; of rows of the model, or the sum of their weights; and of rows
        of the model, where rows of the table are counted once.
    """

    source: RowSource
    run: FitRun
    steps: StepPlan | None = None
    past: Any = None
    n_seen: float = 0

    def __post_init__(self) -> None:
        dtype = torch.float64 if self.steps is None else self.steps.torch_dtype
        self.source = self.source.converted(dtype).resident()
        self.n, self.d, self.t = len(self.source), self.source.X.shape[1], self.source.Y.shape[1]
        self.n_rows = self.source.n_rows + self.n_seen
        self.n_total = self.n * (self.n_rows / self.source.n_rows)

    @property
    def calibrates(self) -> bool:
        """Whether the scores' rows are held out of batches to fit the scale of the variances.

        They are not after a warm start, because the past model was already trained on them.
        """
        return self.steps.calibrates and (self.past is None or self.n_seen > 0)

    def evaluations(
        self, basis: SampledBasis, theta: Tensor, X: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole basis at some rows, in parts; checks the time after each."""
        for found in basis.evaluations(theta, X):
            yield found
            self.run.budget.check()

    @cached_property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the support rows and of the scores' rows, disjoint if rows suffice."""
        s, order = self.steps.control_variate_rank.value, self.run.random_state.permutation(self.n)
        order, groups = with_equal_inputs(order, self.source.X, self.source.weight)
        first = s if s < self.n else 0
        end = whole_groups(groups, min(first + max(50, s // 2), self.n))
        return np.sort(order[:s]), np.sort(order[first:end])

    def support(self, compiled: TorchKernel) -> SupportRows:
        """The support rows, those of the past model if there is one, and rows for the scores."""
        source, (support, check) = self.source, self.split
        if self.past is not None and not self.steps.dual:
            arrays = self.past.support_X, self.past.support_Y
            X, Y = (torch.as_tensor(a).to(source.device, source.dtype) for a in arrays)
            # Counts whose mean is that of this table.
            rows = Rows.of(X, Y, weight=self.past.shares * (self.n_rows / self.n_total))
        else:
            rows = source.take(support)
        theta = compiled.theta0.to(source.device)
        return SupportRows(compiled, theta, rows, source.take(check))

    def drive(self, stepper: SampledStepper, show: Callable[[Any, float], None]) -> StepsResult:
        """Take all steps; `show` sets the model and its score in a copy of the estimator."""
        run, steps = self.run, self.steps
        run.preview = lambda model, step: show(model, -step.objective)
        run.monitor.begin("batches", _CHECKS + 2, objective=stepper.objective_name)
        return train_steps(
            stepper,
            max_steps=steps.n_steps,
            check_every=max(1, steps.n_steps // _CHECKS),
            monitor=run.monitor,
            n_iter_no_change=steps.n_iter_no_change,
            epochs_per_step=steps.batch_size / self.n,
            keep_best=not stepper.ascends,
            retreat=None if stepper.ascends else _WORSE,
        )

    def squares(self, basis: SampledBasis, theta: Tensor, rng: np.random.Generator) -> Tensor:
        """|phi_r|^2 over all rows, estimated from some of them; checks the time."""
        size = int(min(self.n, _SQUARES_ROWS, max(50, _SQUARES_WORK // basis.n_features)))
        rows = np.sort(rng.choice(self.n, size, replace=False))
        some = self.source.take(rows)
        out = torch.empty(basis.per_unit, basis.n_units).to(some.X)
        for index, phi in self.evaluations(basis, theta, some.X):
            square = by_unit(phi, basis.per_unit).square() * some.weight[:, None, None]
            out[:, index] = square.mean(0) * self.n_total
        return out


def train_by_steps(fit: Fit, functions: Functions, noise: NoiseAtRows) -> Trained:
    """Train by steps of sampled rows and functions, then fit the scale of the variances."""
    run, steps, stepper = fit.run, fit.steps, None
    rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
    basis = functions.basis(fit.d, steps.torch_dtype, run.device)
    with run.stage("support", optional=True):
        stepper = make_stepper(fit, basis, noise, rng, steps.component_batch_size.value)
    if stepper is None:
        return Trained(None, run.budget.ended, 0)
    result = fit.drive(
        stepper, lambda model, score: model._keep(model_of(fit, stepper, functions, score))
    )
    scales = stepper.scales
    if fit.calibrates and scales is None:
        with run.stage("calibration", optional=True):
            scales = fitted_stepper_scales(fit, stepper)
    if steps.theta_rate > 0 and result.n_steps and not run.stopped:
        with run.stage("squares", optional=True):
            theta = torch.as_tensor(stepper.theta()).to(run.device)
            stepper.squares = fit.squares(basis, theta, rng)
    model = run.finish("weights", lambda: model_of(fit, stepper, functions, result.score, scales))
    return Trained(model, result.stop_reason, result.n_steps)


@torch.no_grad()
def make_stepper(
    fit: Fit, basis: SampledBasis, noise: NoiseAtRows, rng: np.random.Generator, n_drawn: int
) -> SampledStepper:
    """A stepper with its first weights, from the posterior given the support rows or from the past.

    `n_drawn` is the number of functions in a draw. O(s^2 m + s^3), or O(s^3) for kernel functions
    at all rows; checks the time.
    """
    steps, compiled, support = fit.steps, basis.kernel, fit.support(basis.kernel)
    head = math.ceil(steps.n_dense.value / basis.per_unit)
    if steps.dual:
        rows = support.all_rows.double()
        gram = compiled.cross(support.theta, rows, support.X.double())
    else:
        gram = support_gram(support, basis, fit.evaluations, head)
    # The sum of a covariance over all rows may overflow in the steps' precision.
    if not float(gram.abs().max()) < torch.finfo(fit.source.dtype).max / max(fit.n, 1):
        raise ValueError(
            f"The kernel's variance is too large for steps in {steps.dtype.value}, as it is for "
            'large targets: use normalize_y=True, smaller units of y, or dtype="float64".'
        )
    fit.run.budget.check()
    sampler = Sampler(
        fit.source,
        basis,
        n_rows=steps.batch_size,
        n_blocks=max(1, n_drawn // (basis.per_unit * basis.block_units)),
        rng=rng,
        n_total=fit.n_total,
        n_counted=fit.n_rows,
    )
    flattening = Flattening.none(gram)
    if steps.preconditioned:
        some = fit.source.take(np.sort(rng.choice(fit.n, steps.batch_size, replace=False)))
        flattening = Flattening.build(support, gram, some, noise.curvature, fit.n_total)
    squares = fit.squares(basis, support.theta, rng)
    weights = _first_weights(fit, basis, support, gram, noise, head)
    noise = noise.moved(weights.shared[:, : fit.t])
    kind = SparseAdaGrad if steps.adaptive else SparseSGD
    rate, spent = steps.variational_learning_rate.value, fit.run.budget.spent
    optimizer = kind(rate, steps.decay, steps.n_steps, spent)
    common = sampler, noise, support, flattening, weights, squares, optimizer
    common += (steps.control_variate,)
    index = torch.as_tensor(fit.split[0]).to(support.X.device)
    if steps.dual:
        return DualStepper(*common, support_index=index)
    hyper, freeze = None, int(steps.freeze * steps.n_steps)
    if steps.theta_rate > 0:
        hyper = SampledAdam(steps.theta_rate, steps.decay, steps.n_steps, freeze)
    if fit.calibrates:
        sampler.held = fit.split[1]
    signal = noise.curvature * float(compiled.diag(support.theta, support.X).mean())
    if steps.whole and signal <= _CLEAREST:
        fit.run.ignores(("component_batch_size", "decay"), "block steps use all functions, no rate")
        release = math.ceil((1 - _RELEASED) * steps.n_steps)
        calibrate = partial(fitted_stepper_scales, fit) if fit.calibrates else None
        return BlockStepper(*common, calibrate=calibrate, release=release, support_index=index)
    share = exact_share(
        noise, steps.control_variate, sampler.n_blocks * basis.block_units / basis.n_units
    )
    return QSGPStepper(*common, hyperparameters=hyper, exact_from=steps.n_steps * (1 - share))


def exact_share(noise: NoiseAtRows, control_variate: str | None, drawn: float) -> float:
    """The share of the steps, the last ones, in which f comes from all functions.

    They at most double the time of training: each of two draws is evaluated at about 1.25 times as
    many rows as all functions are.

    Parameters
    ----------
    noise : NoiseAtRows
    control_variate : {"regression", "squares"} or None
        The last two keep the paper's estimates.
    drawn : float
        Share of the functions in a draw.
    """
    if noise.gaussian or control_variate != "regression" or drawn >= 1:
        return 0.0
    return min(1.0, 2.5 * drawn)


def model_of(
    fit: Fit,
    stepper: SampledStepper,
    functions: Functions,
    score: float,
    scales: tuple[float, float] | None = None,
) -> SampledModel:
    """The current model of a stepper, as copies in arrays.

    Parameters
    ----------
    fit : Fit
    stepper : SampledStepper
    functions : Functions
        The functions at the hyperparameters of the start.
    score : float
        Minus the lower bound per row and target.
    scales : tuple of float, optional
        Scale of the variance, and the noise. The default is that of the past model, if there is
        one.
    """
    past, t, compiled = fit.past, fit.t, stepper.support.kernel
    if scales is None:
        scales = 1.0, stepper.noise.variance
        if past is not None and stepper.noise.variance > 0:
            # Scales chosen before from held-out rows remain valid, in units of the kernel's noise.
            own = noise_of(compiled, compiled.theta0)
            scales = past.variance_scale, stepper.noise.variance * past.noise / own
    constant = None
    if stepper.noise.likelihood.classes:
        constant = stepper.noise.latent(torch.zeros(1, t).double())[0].cpu().numpy()
    with torch.no_grad():
        coef, diagonal = stepper.folded().cpu().numpy(), stepper.diagonal().cpu().numpy()
    counts = stepper.support.rows.weight.double().cpu().numpy()
    if compiled.n_params:
        kernel = compiled.to_sklearn(torch.as_tensor(stepper.theta()))
        functions = replace(functions, kernel=kernel)
    return SampledModel(
        functions,
        mean=np.ascontiguousarray(coef[:, :, :t]),
        dense=np.ascontiguousarray(coef[:, :, t:]),
        diagonal=diagonal,
        support_X=stepper.support.X.cpu().numpy(),
        support_Y=stepper.support.rows.Y.cpu().numpy(),
        noise=scales[1],
        curvature=stepper.curvature,
        n_rows=fit.n_rows,
        dtype=fit.steps.dtype.value,
        lower_bound=float("nan") if fit.steps.dual else -score * fit.n_rows * t,
        variance_scale=scales[0],
        by_support=fit.steps.by_support,
        # Counts in units of their mean in the table.
        support_share=counts * (fit.n_total / fit.n_rows),
        constant=constant,
    )


def fitted_stepper_scales(fit: Fit, stepper: SampledStepper) -> tuple[float, float]:
    """The factor of the variance given the support rows, and the noise, that fit held-out rows.

    O(s^3), without a check of the time, because predictions need it even when the time is up.
    """
    support, s = stepper.support, len(stepper.support)
    weight, check = stepper.curvature * fit.n_total / s, support.check
    given = support_variance(support.kernel, support.X, weight, counts=support.rows.weight)
    v = given.moments(check.X.double()).variance.cpu().numpy()
    residual = check.Y.double() - stepper.weights.a[s:, : stepper.t]
    known, counts = (part.double().cpu().numpy() for part in (check.noise, check.weight))
    trained = stepper.noise.variance
    scale, of_noise = fitted_scales(v, residual.cpu().numpy(), known, trained, counts)
    return scale, trained * of_noise


def _first_weights(
    fit: Fit, basis: SampledBasis, support: SupportRows, gram: Tensor, noise: NoiseAtRows, head: int
) -> SampledWeights:
    """The weights of the past, or the posterior given the support rows.

    Each of these stands for n / s rows in C. The weights are shared ones, except for the first
    entries of the dense columns. The means are zero for optimisers without a preconditioner.
    """
    if fit.past is not None:
        rows = support.all_rows
        coef = torch.as_tensor(np.concatenate([fit.past.mean, fit.past.dense], 2)).to(support.X)
        a = torch.zeros(len(rows), coef.shape[2], dtype=torch.float64, device=rows.device)
        for index, phi in fit.evaluations(basis, support.theta, rows):
            a += (phi @ coef[:, index].flatten(0, 1)).double()
        return SampledWeights(coef, torch.zeros_like(a[: len(support)]), a, head)
    s, c, t, q = len(support), fit.steps.n_dense.value, fit.t, basis.per_unit
    shared = torch.zeros(s, t + c, dtype=torch.float64, device=gram.device)
    coef = torch.zeros(q, basis.n_units, t + c).to(support.X)
    if fit.steps.preconditioned:
        own = noise.at(support.rows)
        shared[:, :t] = support_weights(own, gram[:s], support.rows.Y.double())
    a = gram @ shared
    if c == 0:
        return SampledWeights(coef, shared, a, head)
    # Columns of (I + weight Phi_p'Phi_p)^-1, scaled to those of a Cholesky factor.
    index, phi = head_functions(basis, support, head)
    weight = noise.curvature * fit.n / s * support.rows.weight.to(gram)
    whole = gram[:s] + (phi[:s] @ phi[:s].T).double()
    # Features in float32 under a large amplitude leave a Gram matrix that is barely definite.
    factor, _ = cholesky_with_jitter(whole + torch.diag(1 / weight))
    # Coordinates are numbered unit by unit.
    first = phi[:s].reshape(s, q, head).permute(0, 2, 1).flatten(1)[:, :c].double()
    solved = torch.cholesky_solve(first, factor)
    root = (1 - (first * solved).sum(0)).clamp_min(1e-6).sqrt()
    shared[:, t:] = -solved / root
    number = (index[None] * q + torch.arange(q, device=index.device)[:, None])[:, :, None]
    r = torch.arange(c, device=phi.device)
    own = (phi[:s].T @ shared[:, t:].to(phi)).reshape(q, head, c)
    coef[:, index, t:] = own * (number > r) + (number == r) * root.to(own)
    a[:, t:] = gram @ shared[:, t:] + (phi @ coef[:, index, t:].flatten(0, 1)).double()
    return SampledWeights(coef, shared, a, head)
