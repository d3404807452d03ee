"""The start of quadruply stochastic training: an exact Gaussian process on some of the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Kernel,
    Product,
    Sum,
    WhiteKernel,
)
from torch import Tensor

from ..._end import End
from ...core import (
    SMALL_TABLE,
    FitRun,
    StageSettings,
    StartRows,
    below_the_noise_bound,
    chosen_start,
    data_scaled_kernel,
    exact_start,
    is_wide_table,
    label_prior,
    target_unit,
    with_default_noise,
)
from ...core.data import RowSource, column_spread, rows_before_merging
from ...core.likelihoods import Likelihood
from ...core.training import QuasiNewton, TrainingResult
from ...kernels import TorchKernel, compile_kernel, default_kernel
from ...linalg.gradients import GPProblem, Rows
from ...linalg.solvers import cholesky_with_jitter
from ._noise import NoiseAtRows
from ._plan import StartPlan

# Up to this number of columns the default kernel has a length scale for each. Regressions on small
# tables, which are nearly exact processes, have them with so many rows per column, too; so have
# wide tables, where most of them are tied.
_ARD_COLUMNS, _ROWS_A_COLUMN = 30, 10
# Up to this number the start compares such a kernel with one that has a single length scale.
_COMPARED_COLUMNS = 200
# Signal variances that are compared for labels, and the number of rows of this comparison.
_AMPLITUDES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_LAPLACE_ROWS = 500
# Largest number of halvings of a Newton step that is too long.
_HALVINGS = 30
# Largest number of steps of the exact start.
_STEPS = 100


def rows_of(source: RowSource, index: np.ndarray, weight: np.ndarray | None = None) -> Rows:
    """Some rows of a table in double precision, with weights of their own or given ones."""
    part = source.converted(torch.float64, torch.device("cpu"))
    rows = part.take(index)
    return rows if weight is None else replace(rows, weight=torch.as_tensor(weight).double())


def random_part(
    source: RowSource, of: np.ndarray, size: int, random_state: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Random ones of the rows `of`, as they were before equal rows were merged.

    Returns their numbers, and how many of the drawn rows each stands for.
    """

    def draw(n: int, size: int) -> np.ndarray:
        return random_state.permutation(n)[:size]

    index, counts = rows_before_merging(source.weight[of], size, draw)
    return of[index], counts


@dataclass(frozen=True)
class Start:
    """The start of training: hyperparameters, and the rows from which they come.

    Attributes
    ----------
    kernel : Kernel
    index : ndarray of shape (s,)
        The numbers of the rows, ascending; none if the kernel is that of a past model.
    rows : Rows or None
    n_iter : int
        Number of steps of the exact fit.
    reason : End
        Why the exact fit ended.
    """

    kernel: Kernel
    index: Any = ()
    rows: Any = None
    n_iter: int = 0
    reason: End = End.CONVERGED


def exact_start_of(
    plan: StartPlan,
    likelihood: Likelihood,
    source: RowSource,
    run: FitRun,
    preview: Callable[[Any, Start], None],
) -> Start:
    """Train the hyperparameters on some rows, unless the plan, the time or an interrupt forbids it.

    Parameters
    ----------
    plan : StartPlan
    likelihood : Likelihood
        If its noise is not additive, the signal variance is chosen afterwards.
    source : RowSource
    run : FitRun
    preview : callable
        Sets the model of a start in a copy of the estimator.
    """
    n = len(source)

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = rows_of(source, rows)
        return some.X.numpy(), likelihood.start_targets(some.Y).numpy()

    of_start = StartRows(n, source.X.shape[1], read)
    drawn = random_part(source, np.arange(n), plan.rows, run.random_state)
    index, counts = of_start.counted(*drawn)
    rows, run.fast = rows_of(source, index, counts), of_start.fast
    kernel = _starting_kernel(plan, likelihood, rows, n)
    if not compile_kernel(kernel, rows.X.shape[1]).node.products():
        raise ValueError(
            f"kernel={kernel} is noise alone and has no function to learn: add a kernel such as "
            "RBF() to it."
        )
    start = Start(kernel, index, rows)
    run.budget.reserve("weights")
    with run.stage("start", optional=True):
        start = _Training(start, plan, likelihood, run, preview).trained()
    return start


def _starting_kernel(plan: StartPlan, likelihood: Likelihood, rows: Rows, n: int) -> Kernel:
    """The user's kernel or the default one, with the white noise that the model needs."""
    X, Y = rows.X.numpy(), likelihood.start_targets(rows.Y).numpy()
    kernel, d = plan.kernel, X.shape[1]
    unit, largest = target_unit(Y, rows.weight.numpy()), plan.largest_signal
    if kernel is None:
        several = likelihood.conjugate and _ROWS_A_COLUMN * d <= n <= SMALL_TABLE
        several |= likelihood.conjugate and is_wide_table(n, d)
        if d <= _ARD_COLUMNS or several:
            return data_scaled_kernel(X, Y, largest, rows.weight.numpy())
        spread = float(np.sqrt(np.mean(X.var(axis=0)) * d)) or 1.0
        signal, lengths = (1e-5 * unit, (largest or 1e5) * unit), (1e-3 * spread, 1e3 * spread)
        return default_kernel(1, spread, unit).set_params(
            k1__k1__constant_value_bounds=signal, k1__k2__length_scale_bounds=lengths
        )
    compiled = compile_kernel(kernel, d)
    noise = compiled.noise(compiled.theta0, torch.as_tensor(X[:1], dtype=torch.float64))
    if float(noise[0]) > 0:
        return kernel
    return with_default_noise(kernel, unit)


@dataclass(frozen=True, eq=False)
class _Training:
    """Training of a start's hyperparameters by the exact marginal likelihood; O(s^3) a step."""

    start: Start
    plan: StartPlan
    likelihood: Likelihood
    run: FitRun
    preview: Callable[[Any, Start], None]

    def trained(self) -> Start:
        """The start after training; the same one if there is nothing to train."""
        start, run = self.start, self.run
        targets = self.likelihood.start_targets(start.rows.Y).numpy()
        n_params = compile_kernel(start.kernel, start.rows.X.shape[1]).n_params
        if not (self.plan.trains and n_params and len(targets) > 1 and np.ptp(targets) > 0):
            return start
        best = self._train(start.kernel)
        n_iter = best.result.n_iter
        for other in self._others(targets):
            if run.stopped:
                break
            trial = self._train(other(best.compiled.kernel))
            n_iter += trial.result.n_iter
            best = trial if trial.evidence > best.evidence else best
            run.chose("kernel", best.compiled.node.label, "the higher evidence on the start's rows")
        run.reports(start=best.origin)
        if self.plan.every_row and self.likelihood.conjugate and not run.stopped:
            # Less noise, if predictions of the rows gain, because functions can follow it.
            settings, problem = StageSettings(QuasiNewton(), _STEPS), self._problem(best.compiled)
            found = below_the_noise_bound(problem, best.compiled, best.result, settings, run)
            best = best._replace(compiled=found[0], result=found[1])
            n_iter = max(n_iter, best.result.n_iter)
        kernel = run.finish("start's kernel", lambda: self._at(best.compiled, best.result.theta))
        return replace(start, kernel=kernel, n_iter=n_iter, reason=best.result.stop_reason)

    def _train(self, kernel: Kernel) -> _Trained:
        start, run, X = self.start, self.run, self.start.rows.X.numpy()
        priors = None
        if self.plan.kernel is None and self.likelihood.classes:
            single = np.ndim(kernel.k1.k2.length_scale) == 0
            spread = column_spread(X, start.rows.weight.numpy())
            unit = np.linalg.norm(spread) if single else spread * math.sqrt(len(spread))
            priors = {"k1__k2__length_scale": label_prior(unit)}
        compiled = compile_kernel(kernel, X.shape[1], priors=priors)

        def show(model: Any, step: Any) -> None:
            self.preview(model, replace(start, kernel=self._at(compiled, step.theta)))

        run.preview = show
        problem = self._problem(compiled)
        chosen = chosen_start(problem, run)
        problem = replace(problem, tied=chosen.tied)
        restarts = self.plan.n_restarts
        result = exact_start(problem, run, max_iter=_STEPS, n_restarts=restarts, theta=chosen.theta)
        evidence = result.value - 0.5 * compiled.n_params * math.log(len(X))
        return _Trained(compiled, result, chosen.describe(), evidence)

    def _problem(self, kernel: TorchKernel) -> GPProblem:
        """The regression on the rows, centred if the kernel depends on differences only."""
        rows, targets = self.start.rows, self.likelihood.start_targets(self.start.rows.Y)
        # Centred rows keep their digits. The jitter is relative to the target, which may be small.
        X = rows.X - torch.as_tensor(kernel.origin(rows.X.numpy().mean(axis=0)))
        known = rows.noise + 1e-10 * float(targets.square().mean())
        return GPProblem(kernel, replace(rows, X=X, Y=targets, noise=known))

    def _at(self, compiled: TorchKernel, theta: np.ndarray) -> Kernel:
        kernel = compiled.to_sklearn(torch.as_tensor(theta))
        if self.likelihood.additive:
            return kernel
        return scaled_signal(kernel, self.likelihood, self.start.rows, self.plan.kernel is not None)

    def _others(self, targets: np.ndarray) -> Iterator[Callable[[Kernel], Kernel]]:
        """Functions that change the best default kernel so far into one to compare it with."""
        if self.plan.kernel is not None:
            return
        default, X = self.start.kernel.k1, self.start.rows.X.numpy()
        if np.ndim(default.k2.length_scale) == 0 and 1 < X.shape[1] <= _COMPARED_COLUMNS:
            largest = default.k1.constant_value_bounds[1] / default.k1.constant_value
            counts = self.start.rows.weight.numpy()
            yield lambda best: data_scaled_kernel(X, targets, largest, counts)
        if self.plan.compares_smooth:
            # The default kernel with a smooth factor in place of the Matern kernel.
            yield lambda best: clone(best).set_params(
                k1__k2=RBF(best.k1.k2.length_scale, best.k1.k2.length_scale_bounds)
            )


class _Trained(NamedTuple):
    """A trained kernel, and a sentence on where its training began.

    The evidence is the log likelihood less what the rows say about the hyperparameters (Schwarz
    1978).
    """

    compiled: TorchKernel
    result: TrainingResult
    origin: str
    evidence: float


def scaled_signal(kernel: Kernel, likelihood: Likelihood, rows: Rows, own: bool) -> Kernel:
    """The kernel of a regression, with the best signal variance for another likelihood.

    A regression on labels -1 and 1, or on counts, gives the shape of the kernel, but the latent
    function is larger. Its variance maximises the Laplace evidence (Rasmussen and Williams 2006,
    algorithm 3.1), summed over the columns of Y.

    Parameters
    ----------
    kernel : Kernel
    likelihood : Likelihood
    rows : Rows
    own : bool
        Whether the kernel is the user's, whose bounds hold. Those of the default kernel move along.
    """
    some = rows.take(slice(_LAPLACE_ROWS))
    X, Y, compiled = some.X, some.Y, compile_kernel(kernel, rows.X.shape[1])
    noise = NoiseAtRows(likelihood, 0.0, 1.0, counts=some.weight)
    if likelihood.classes:
        noise = noise.learning_constants(Y, noise.counts)
    square = likelihood.start_targets(rows.Y).square().mean()
    unit = float(compiled.diag(compiled.theta0, X).mean()) / float(square)

    def evidence(kernel: Kernel) -> float:
        compiled = compile_kernel(kernel, X.shape[1])
        K = compiled.cross(compiled.theta0, X, X)
        return sum(value for _, value in _laplace(noise, K, Y))

    trials = [_times(kernel, a / unit, own) for a in _AMPLITUDES]
    if all(trial == kernel for trial in trials):
        return kernel
    return max(trials, key=evidence)


def _times(kernel: Kernel, factor: float, own: bool) -> Kernel:
    """The kernel with every term times a factor, as far as fixed values and bounds allow.

    The factor goes into the first free constant of a term. A term without constants gets a new one.
    """
    if isinstance(kernel, Sum):
        return _times(kernel.k1, factor, own) + _times(kernel.k2, factor, own)
    if isinstance(kernel, WhiteKernel) or len(kernel.theta) == 0:
        return kernel
    constants = _constants(kernel)
    if not constants:
        return ConstantKernel(factor) * kernel
    free = [name for name, leaf in constants.items() if len(leaf.theta)]
    if not free:
        return kernel
    leaf = constants[free[0]]
    value, bounds = leaf.constant_value * factor, np.ravel(leaf.constant_value_bounds)
    if own:
        value = float(np.clip(value, *bounds))
    else:
        bounds = (value * 1e-5, value * 1e5)
    leaf = ConstantKernel(value, tuple(bounds))
    return clone(kernel).set_params(**{free[0]: leaf}) if free[0] else leaf


def _constants(kernel: Kernel, name: str = "") -> dict[str, ConstantKernel]:
    """The constant factors of a product by their parameter names, in order."""
    if isinstance(kernel, ConstantKernel):
        return {name: kernel}
    if not isinstance(kernel, Product):
        return {}
    prefix = name and name + "__"
    return _constants(kernel.k1, prefix + "k1") | _constants(kernel.k2, prefix + "k2")


def _laplace(noise: NoiseAtRows, K: Tensor, Y: Tensor) -> list[tuple[Tensor, float]]:
    """alpha = K^-1 f at the mode of the posterior, and the Laplace evidence, of each column of Y.

    The variance of the constants is added to the covariance K.
    """
    constants = torch.as_tensor(noise.constant).expand(Y.shape[1])
    K, eye = K + noise.constant_variance, torch.eye(len(Y), dtype=K.dtype, device=K.device)
    return [
        _laplace_of(replace(noise, constant=constant), K, y, eye)
        for constant, y in zip(constants, Y.T, strict=True)
    ]


def _laplace_of(noise: NoiseAtRows, K: Tensor, y: Tensor, eye: Tensor) -> tuple[Tensor, float]:
    alpha, f, none = torch.zeros_like(y), torch.zeros_like(y), torch.zeros_like(y)

    def log_density(f: Tensor) -> Tensor:
        return noise.counted(noise.likelihood.log_density(y, noise.latent(f), none)).sum()

    value = float(log_density(f))
    for _ in range(20):
        _, slope, curvature, _ = map(
            noise.counted, noise.likelihood.derivatives(y, noise.latent(f), none)
        )
        W = (-curvature).clamp_min(1e-10)
        root = W.sqrt()
        L = torch.linalg.cholesky(eye + root[:, None] * K * root)
        b = W * f + slope
        inner = torch.cholesky_solve((root * (K @ b))[:, None], L)[:, 0]
        change = b - root * inner - alpha
        for _ in range(_HALVINGS):
            f = K @ (alpha + change)
            new = float(-0.5 * (alpha + change) @ f + log_density(f))
            if new > value - 1e-4:
                break
            change = 0.5 * change
        alpha = alpha + change
        if not new - value >= 1e-4:
            break
        value = new
    return alpha, value - float(L.diagonal().log().sum())


def support_weights(noise: NoiseAtRows, gram: Tensor, Y: Tensor) -> Tensor:
    """alpha such that f = gram alpha is the mode of the posterior given these rows; O(s^3).

    The constants then move by the sum of alpha times their variance.

    Parameters
    ----------
    noise : NoiseAtRows
    gram : Tensor of shape (s, s)
        phi_p phi_p'.
    Y : Tensor of shape (s, t)
    """
    if not noise.likelihood.additive:
        return torch.stack([alpha for alpha, _ in _laplace(noise, gram, Y.to(gram))], 1)
    noisy = gram + torch.diag(noise.variances_of_means(Y).to(gram))
    return torch.cholesky_solve(Y.to(gram), cholesky_with_jitter(noisy)[0])
