"""What the quadruply stochastic estimators share: from a table to a chevron posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._compat import Interval, StrOptions
from .._validation import resolve_device
from ..features import KernelFunctions, SampledBasis, SeededFourier
from ..kernels import TorchKernel, compile_kernel
from ..objectives import LinearPosterior, Site, linear_posterior, optimal_diagonal
from ..posteriors import ChevronPosterior, ChevronWeights
from ..training import (
    SPARSE_OPTIMIZERS,
    DualStepper,
    Flattening,
    Monitor,
    QSGPStepper,
    RowSource,
    SampledHyperparameters,
    SampledWeights,
    Scaling,
    Stepper,
    StepSizes,
    SupportRows,
    by_unit,
    column_moments,
    support_gram,
    train_steps,
)
from ._fitting import shared_parameters
from ._qsgp_plan import make_plan
from ._qsgp_start import (
    noise_of,
    scaled_for_labels,
    site_of,
    starting_kernel,
    subset_kernel,
    support_weights,
)

_AUTO = StrOptions({"auto"})
_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")

COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "n_features": [Interval(Integral, 2, None, closed="left"), _AUTO],
    "n_dense": [Interval(Integral, 0, None, closed="left"), _AUTO],
    "feature_batch_size": [_COUNT, _AUTO],
    "control_variate_rank": [_COUNT, _AUTO],
    "inference": [StrOptions({"auto", "exact", "stochastic"})],
    "variational_optimizer": [StrOptions(set(SPARSE_OPTIMIZERS))],
    "decay": [Interval(Real, 0, 1, closed="right")],
    "optimizer": [StrOptions({"auto", "adam"}), None],
    "hyperparameter_learning_rate": [Interval(Real, 0, None, closed="left")],
    "freeze": [Interval(Real, 0, 1, closed="both")],
    "subset_size": [_COUNT],
    "standardize": ["boolean"],
    "warm_start": ["boolean"],
} | shared_parameters(
    "kernel",
    "n_restarts_optimizer",
    "random_state",
    "learning_rate",
    "max_iter",
    "n_iter_no_change",
    "batch_size",
    "memory_budget",
    "device",
    "dtype",
    "callbacks",
    "max_seconds",
    "verbose",
)

# What a learning rate of "auto" is.
_RATES = {"preconditioned": 1.0, "adagrad": 0.1, "adam": 0.01}
# Rows that estimate |phi_r|^2, and the numbers that this may take.
_SQUARES_ROWS = 2_000
_SQUARES_WORK = 2e9
# Scores taken in one training.
_CHECKS = 10


@dataclass
class Trained:
    """A posterior as NumPy arrays, and all that training needs to go on.

    Attributes
    ----------
    kernel : Kernel
        scikit-learn kernel at the trained hyperparameters.
    mean : ndarray of shape (q, m / q, t)
    dense : ndarray of shape (q, m / q, c)
    diagonal, squares : ndarray of shape (q, m / q)
    precision : ndarray of shape (m, m) or None
        Of an exact posterior, for what `partial_fit` adds.
    seed : int
        Of the basis.
    points : ndarray of shape (m, d) or None
        Of a kernel basis, in the model's units.
    support_X, support_Y : ndarray
        Support rows in the model's units.
    noise : float
        Noise variance, 0 for labels.
    n_rows, n_steps : int
        Rows seen and steps taken so far.
    plan : QSGPPlan
    score : float
    stop_reason : str
    """

    kernel: Any
    mean: np.ndarray
    dense: np.ndarray
    diagonal: np.ndarray
    squares: np.ndarray
    precision: np.ndarray | None
    seed: int
    points: np.ndarray | None
    support_X: np.ndarray
    support_Y: np.ndarray
    noise: float
    n_rows: int
    n_steps: int
    plan: dict
    summary: str
    exact: bool
    score: float
    stop_reason: str


def scaling_of(est: Any, X: np.ndarray, Y: np.ndarray, normalize_y: bool) -> Scaling:
    """Units of the model; one pass over the data."""
    t, d = Y.shape[1], X.shape[1]
    moments = column_moments(Y) if normalize_y else (np.zeros(t), np.ones(t))
    inputs = column_moments(X) if est.standardize else (np.zeros(d), np.ones(d))
    return Scaling(*inputs, *moments)


def make_basis(
    est: Any, kernel: TorchKernel, m: int, seed: int, points: Tensor | None, features: int, dtype
) -> SampledBasis:
    """The basis that `basis` asks for."""
    device = resolve_device(est.device)
    if points is not None:
        return KernelFunctions(kernel, points.to(device, dtype))
    per_unit = 2 * max(1, len(kernel.node.products()))
    units = max(1, m // per_unit)
    block = max(1, min(256, features // per_unit, units))
    return SeededFourier(kernel, units, seed, block, dtype, device)


class Fit:
    """One fit, step by step; `est` gives the parameters and is not changed."""

    def __init__(
        self,
        est: Any,
        source: RowSource,
        likelihood: str,
        points: np.ndarray | None,
        monitor: Monitor,
        random_state: np.random.RandomState,
    ):
        self.est, self.likelihood, self.monitor = est, likelihood, monitor
        self.points = points
        self.random_state = random_state
        n, d = source.X.shape
        self.device = resolve_device(est.device)
        t = source.Y.shape[1]
        self.n, self.d, self.t = n, d, t
        m_max = None if points is None else len(points)
        self.plan = make_plan(est, n, d, t, m_max, self.device)
        dtype = self.plan.dtype
        self.source = RowSource(source.X, source.Y, source.scaling, dtype, self.device).resident()

    # ------------------------------------------------------------------ start

    def run(self, start: Trained | None = None, n_seen: int = 0) -> Trained:
        """Train from the beginning, or go on from `start`, which has seen `n_seen` rows."""
        if start is None:
            kernel, seed = self._hyperparameters(), int(self.random_state.randint(2**31 - 1))
        else:
            kernel, seed = start.kernel, start.seed
        rng = np.random.default_rng(self.random_state.randint(2**31 - 1))
        compiled = compile_kernel(kernel, self.d)
        points = None if self.points is None else torch.as_tensor(self.points)
        plan = self.plan
        basis = make_basis(
            self.est, compiled, plan.n_features, seed, points, plan.features, plan.dtype
        )
        site = site_of(self.likelihood, noise_of(compiled, compiled.theta0))
        if plan.exact:
            return self._exact(kernel, basis, site, seed, start, n_seen)
        if points is not None and self._is_dual():
            return self._dual(kernel, basis, site, seed, rng, start, n_seen)
        return self._stochastic(kernel, compiled, basis, site, seed, rng, start, n_seen)

    def _is_dual(self) -> bool:
        return self.points is not None

    def _subset(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.random_state.permutation(self.n)[: min(size, self.n)]
        X, Y = RowSource(self.source.X, self.source.Y, self.source.scaling, torch.float64).rows(
            np.sort(rows)
        )
        return X.numpy(), Y.numpy()

    def _hyperparameters(self) -> Any:
        est = self.est
        X, Y = self._subset(est.subset_size)
        kernel = starting_kernel(est.kernel, X, Y)
        compile_kernel(kernel, self.d)
        if est.optimizer is not None and len(X) > 1 and np.ptp(Y) > 0:
            steps = 12 if len(X) <= 200 else 30
            kernel = subset_kernel(
                kernel, X, Y, steps, self.monitor, self.random_state, est.n_restarts_optimizer
            )
            if self.likelihood == "logistic":
                kernel = scaled_for_labels(kernel, X, Y)
        return kernel

    # ------------------------------------------------------------------ full batches

    def _exact(
        self, kernel: Any, basis: Any, site: Site, seed: int, start: Trained | None, n_seen: int
    ) -> Trained:
        theta = basis.kernel.theta0
        X, Y = self.source.rows(slice(None))
        with torch.no_grad():
            full = np.arange(basis.n_blocks)
            part = basis.part(full)
            phi = part.evaluate(theta, X.double())
            m = phi.shape[1]
            if start is not None:
                mean = torch.as_tensor(start.mean).reshape(m, -1).to(phi)
                precision = torch.as_tensor(start.precision).to(phi)
            else:
                mean = torch.zeros(m, self.t).to(phi)
                precision = torch.eye(m).to(phi)
                if isinstance(basis, KernelFunctions):
                    K = part.evaluate(theta, basis.points.double())
                    precision = K + 1e-8 * K.diagonal().mean() * torch.eye(m).to(phi)
            result = linear_posterior(site, phi, Y.double(), mean, precision)
            score = self._exact_score(site, phi, Y.double(), result)
        self.monitor.begin("full", 1)
        stop = "converged"
        if self.monitor.max_seconds is not None:
            stop = "max_seconds" if self.monitor.seconds > self.monitor.max_seconds else stop
        q = basis.per_unit
        zeros = np.zeros((q, m // q))
        return Trained(
            kernel=kernel,
            mean=result.mean.cpu().numpy().reshape(q, m // q, self.t),
            dense=result.factor.cpu().numpy().reshape(q, m // q, m),
            diagonal=zeros,
            squares=zeros,
            precision=result.precision.cpu().numpy(),
            seed=seed,
            points=self.points,
            support_X=np.empty((0, self.d)),
            support_Y=np.empty((0, self.t)),
            noise=site.noise,
            n_rows=n_seen + self.n,
            n_steps=(0 if start is None else start.n_steps) + result.n_steps,
            plan=vars(self.plan) | {"dtype": "float64"},
            summary=str(self.plan),
            exact=True,
            score=score,
            stop_reason=stop,
        )

    @staticmethod
    def _exact_score(site: Site, phi: Tensor, Y: Tensor, result: LinearPosterior) -> float:
        f = phi @ result.mean
        std = (phi @ result.factor).square().sum(1, keepdim=True).sqrt().expand_as(f)
        return -float(site.expected(Y, f, std).mean())

    # ------------------------------------------------------------------ steps

    def _support(self, start: Trained | None, compiled: TorchKernel) -> SupportRows:
        theta = compiled.theta0.to(self.device)
        if start is not None and len(start.support_X):
            X, Y = torch.as_tensor(start.support_X), torch.as_tensor(start.support_Y)
        else:
            rows = np.sort(self.random_state.permutation(self.n)[: self.plan.support])
            X, Y = self.source.rows(rows)
        return SupportRows.at(
            compiled, theta, X.to(self.device, self.plan.dtype), Y.to(self.device, self.plan.dtype)
        )

    def _optimizer(self, steps: int):
        est = self.est
        name = est.variational_optimizer
        rate = _RATES[name] if est.learning_rate == "auto" else est.learning_rate
        return SPARSE_OPTIMIZERS[name](rate, est.decay, steps)

    def _stochastic(
        self,
        kernel: Any,
        compiled: TorchKernel,
        basis: Any,
        site: Site,
        seed: int,
        rng: np.random.Generator,
        start: Trained | None,
        n_seen: int,
    ) -> Trained:
        est, plan, n = self.est, self.plan, self.n + n_seen
        with torch.no_grad():
            support = self._support(start, compiled)
            c = plan.n_dense if start is None else start.dense.shape[2]
            head = math.ceil(c / basis.per_unit)
            whole = support_gram(support, basis)
            gram = whole if head == 0 else support_gram(support, basis, head)
            flattening = None
            if est.variational_optimizer == "preconditioned":
                X, _ = self.source.rows(np.sort(rng.choice(self.n, plan.rows, replace=False)))
                flattening = Flattening.build(support, gram, X, site.typical_curvature, n)
            squares = self._squares(basis, support, rng, n)
            if start is None:
                weights = self._first_weights(basis, support, whole, site, squares, c, head)
            else:
                weights = self._resumed(start, basis, support, head)
        hyper = None
        if est.optimizer is not None and est.hyperparameter_learning_rate > 0:
            hyper = SampledHyperparameters(
                compiled,
                lambda old, noise: old if old.noise == 0 else site_of(self.likelihood, noise),
                int(est.freeze * plan.steps),
                est.hyperparameter_learning_rate,
                est.decay,
                plan.steps,
            )
        stepper = QSGPStepper(
            self.source,
            basis,
            site,
            support,
            flattening,
            self._optimizer(plan.steps),
            weights,
            squares,
            StepSizes(plan.rows, max(1, plan.features // (basis.per_unit * basis.block_units))),
            rng,
            hyper,
            n,
        )
        result = self._drive(stepper)
        with torch.no_grad():
            stepper.fold()
            theta = torch.as_tensor(stepper.theta())
        if hyper is not None and result.n_steps:
            stepper.squares = self._squares(basis, support, rng, n, theta.to(self.device))
        t = self.t
        coef = weights.coef.cpu().numpy()
        return Trained(
            kernel=compiled.to_sklearn(theta) if compiled.n_params else kernel,
            mean=np.ascontiguousarray(coef[:, :, :t]),
            dense=np.ascontiguousarray(coef[:, :, t:]),
            diagonal=stepper.diagonal().cpu().numpy(),
            squares=stepper.squares.cpu().numpy(),
            precision=None,
            seed=seed,
            points=self.points,
            support_X=support.X.cpu().numpy(),
            support_Y=support.Y.cpu().numpy(),
            noise=stepper.site.noise,
            n_rows=n,
            n_steps=(0 if start is None else start.n_steps) + result.n_steps,
            plan=vars(plan) | {"dtype": str(plan.dtype).removeprefix("torch.")},
            summary=str(plan),
            exact=False,
            score=result.score,
            stop_reason=result.stop_reason,
        )

    def _drive(self, stepper: Stepper):
        est, steps = self.est, self.plan.steps
        self.monitor.begin("batches", _CHECKS + 2)
        return train_steps(
            stepper,
            max_steps=steps,
            check_every=max(1, steps // _CHECKS),
            monitor=self.monitor,
            n_iter_no_change=est.n_iter_no_change,
            epochs_per_step=self.plan.rows / self.n,
        )

    def _squares(
        self, basis: Any, support: SupportRows, rng: np.random.Generator, n: int, theta=None
    ) -> Tensor:
        """|phi_r|^2 over all rows, from some of them; once, not a step."""
        theta = support.theta if theta is None else theta
        size = int(min(self.n, _SQUARES_ROWS, max(50, _SQUARES_WORK // basis.n_features)))
        X, _ = self.source.rows(np.sort(rng.choice(self.n, size, replace=False)))
        out = torch.empty(basis.per_unit, basis.n_units).to(X)
        with torch.no_grad():
            for part in basis.parts(max(1, 2**24 // (basis.per_unit * size))):
                phi = by_unit(part.evaluate(theta, X), basis.per_unit)
                out[:, part.index] = phi.square().mean(0) * n
        return out

    def _first_weights(
        self,
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
        alpha = support_weights(site, gram, support.Y.double())
        coef = torch.zeros(q, units, self.t + c).to(support.X)
        a = torch.zeros(len(support), self.t + c, dtype=torch.float64, device=support.X.device)
        if self.est.variational_optimizer == "preconditioned":
            a[:, : self.t] = gram @ alpha
        dense = self._dense_start(basis, support, gram, site, c) if c else None
        for part in basis.parts(max(1, 2**24 // (q * len(support)))):
            phi = part.evaluate(support.theta, support.X)
            if self.est.variational_optimizer == "preconditioned":
                mu = (phi.T @ alpha.to(phi)).reshape(q, -1, self.t)
                coef[:, part.index, : self.t] = mu
            if dense is None:
                continue
            columns = dense(phi, part.index)
            coef[:, part.index, self.t :] = columns
            a[:, self.t :] += (phi @ columns.reshape(-1, c)).double()
        return SampledWeights(coef, a, head)

    def _dense_start(self, basis: Any, support: SupportRows, gram: Tensor, site: Site, c: int):
        """Columns of (S + curvature n / s Phi_p'Phi_p)^-1, scaled to what a Cholesky factor has."""
        q = basis.per_unit
        s = len(support)
        weight = site.typical_curvature * self.n / s
        inner = torch.cholesky_inverse(torch.linalg.cholesky(gram + torch.eye(s).to(gram) / weight))
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
        self, start: Trained, basis: Any, support: SupportRows, head: int
    ) -> SampledWeights:
        coef = torch.as_tensor(np.concatenate([start.mean, start.dense], 2)).to(support.X)
        a = torch.zeros(len(support), coef.shape[2], dtype=torch.float64, device=support.X.device)
        for part in basis.parts(max(1, 2**24 // (basis.per_unit * len(support)))):
            phi = part.evaluate(support.theta, support.X)
            a += (phi @ coef[:, part.index].reshape(-1, coef.shape[2])).double()
        return SampledWeights(coef.clone(), a, head)

    def _dual(
        self,
        kernel: Any,
        basis: KernelFunctions,
        site: Site,
        seed: int,
        rng: np.random.Generator,
        start: Trained | None,
        n_seen: int,
    ) -> Trained:
        plan = self.plan
        with torch.no_grad():
            rows = np.sort(self.random_state.permutation(self.n)[: plan.support])
            X, Y = self.source.rows(rows)
            theta = basis.kernel.theta0.to(self.device)
            support = SupportRows.at(basis.kernel, theta, X, Y)
            K = basis.kernel.cross(theta, X.double(), X.double())
            batch, _ = self.source.rows(np.sort(rng.choice(self.n, plan.rows, replace=False)))
            flattening = Flattening.build(support, K, batch, site.typical_curvature, self.n)
            alpha = support_weights(site, K, Y.double())
            coef = torch.zeros(self.n, self.t).to(X)
            if start is not None:
                coef = torch.as_tensor(start.mean[0]).to(X)
                alpha = torch.zeros_like(alpha)
            stepper = DualStepper(
                self.source,
                basis,
                site,
                support,
                torch.as_tensor(rows),
                flattening,
                self._optimizer(plan.steps),
                coef,
                alpha,
                StepSizes(plan.rows, plan.features),
                rng,
            )
        result = self._drive(stepper)
        with torch.no_grad():
            stepper.fold()
            squares = self._squares(basis, support, rng, self.n)
            prior = basis.kernel.diag(theta, basis.points)
            diagonal = optimal_diagonal(squares, site.typical_curvature, prior)
        return Trained(
            kernel=kernel,
            mean=stepper.coef.cpu().numpy()[None],
            dense=np.zeros((1, self.n, 0)),
            diagonal=diagonal.cpu().numpy(),
            squares=squares.cpu().numpy(),
            precision=None,
            seed=seed,
            points=self.points,
            support_X=support.X.cpu().numpy(),
            support_Y=support.Y.cpu().numpy(),
            noise=site.noise,
            n_rows=self.n + n_seen,
            n_steps=(0 if start is None else start.n_steps) + result.n_steps,
            plan=vars(plan) | {"dtype": str(plan.dtype).removeprefix("torch.")},
            summary=str(plan),
            exact=False,
            score=result.score,
            stop_reason=result.stop_reason,
        )


def build_posterior(est: Any, state: Trained) -> ChevronPosterior:
    """The posterior from NumPy arrays; float64 predictions of exact fits, else the training's."""
    dtype = getattr(torch, state.plan["dtype"])
    compiled = compile_kernel(state.kernel, est.n_features_in_)
    points = None if state.points is None else torch.as_tensor(state.points)
    device = torch.device("cpu")
    if points is not None:
        basis: SampledBasis = KernelFunctions(compiled, points.to(dtype))
    else:
        q, units = state.mean.shape[:2]
        block = max(1, min(256, state.plan["features"] // q, units))
        basis = SeededFourier(compiled, units, state.seed, block, dtype, device)
    weights = ChevronWeights(
        *(torch.tensor(a, dtype=dtype) for a in (state.mean, state.dense, state.diagonal))
    )
    augment = None
    if points is not None:
        share = len(points) / max(state.n_rows, 1)
        augment = (compiled, state.noise * share)
    return ChevronPosterior(basis, compiled.theta0, weights, state.noise, augment)
