"""The start of quadruply stochastic training: an exact Gaussian process on some of the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
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

from ...core import (
    SMALL_TABLE,
    FitRun,
    chosen_start,
    data_scaled_kernel,
    exact_start,
    target_unit,
    with_default_noise,
)
from ...core.data import RowSource
from ...core.likelihoods import Likelihood
from ...core.training import TrainingResult
from ...kernels import TorchKernel, compile_kernel, default_kernel
from ...linalg.gradients import GPProblem
from ...linalg.solvers import cholesky_with_jitter
from ._plan import Settings
from ._site import Site

# Up to this number of columns the default kernel has a length scale for each. Regressions on small
# tables, which are nearly exact processes, have them with so many rows per column, too.
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


def starting_kernel(
    kernel: Any, X: np.ndarray, Y: np.ndarray, largest: float | None, ard: bool
) -> Kernel:
    """The user's kernel or the default one, with the white noise that the model needs.

    `largest` bounds the signal variance of the default kernel, in units of the target's variance;
    `ard` gives that kernel a length scale for each column.
    """
    if kernel is None and not ard:
        spread = float(np.sqrt(np.mean(X.var(axis=0)) * X.shape[1])) or 1.0
        unit = target_unit(Y)
        kernel = default_kernel(1, spread, unit)
        signal = (1e-5 * unit, (largest or 1e5) * unit)
        lengths = (1e-3 * spread, 1e3 * spread)
        return kernel.set_params(
            k1__k1__constant_value_bounds=signal, k1__k2__length_scale_bounds=lengths
        )
    if kernel is None:
        return data_scaled_kernel(X, Y, largest)
    compiled = compile_kernel(kernel, X.shape[1])
    noise = compiled.noise(compiled.theta0, torch.as_tensor(X[:1], dtype=torch.float64))
    if float(noise[0]) > 0:
        return kernel
    return with_default_noise(kernel, target_unit(Y))


class Rows(NamedTuple):
    """Rows (s, d), targets (s, t) and their known noise, in the model's units."""

    X: np.ndarray
    Y: np.ndarray
    known: np.ndarray | float

    def problem(self, compiled: TorchKernel, likelihood: Likelihood, origin: np.ndarray):
        """The regression on these rows, less `origin` if the kernel depends on differences only."""
        targets = likelihood.start_targets(torch.as_tensor(self.Y))
        # Centred rows keep their digits. The jitter is relative to the target, which may be small.
        X = torch.as_tensor(self.X - compiled.origin(origin))
        known = self.known + np.full(len(X), 1e-10 * float(targets.square().mean()))
        return GPProblem(compiled, X, targets, torch.as_tensor(known))


@dataclass(frozen=True)
class Start:
    """The start of training: hyperparameters, and the rows from which they come.

    Attributes
    ----------
    kernel : Kernel
    rows : ndarray of shape (s,)
        The numbers of the rows, ascending.
    X, Y : ndarray of shape (s, d), (s, t)
        The rows in the model's units.
    known : ndarray of shape (s,) or float
        Known noise of these rows.
    n_iter : int
        Number of steps of the exact fit.
    reason : str
        Why the exact fit ended.
    """

    kernel: Kernel
    rows: np.ndarray
    X: np.ndarray
    Y: np.ndarray
    known: np.ndarray | float = 0.0
    n_iter: int = 0
    reason: str = "converged"


def first_rows(
    settings: Settings,
    likelihood: Likelihood,
    source: RowSource,
    run: FitRun,
    largest_signal: float | None = None,
) -> Start:
    """Some rows, and the kernel before training.

    Parameters
    ----------
    settings : Settings
    likelihood : Likelihood
    source : RowSource
    run : FitRun
    largest_signal : float, optional
        Bound of the signal variance of the default kernel, in units of the target's mean square.
    """
    order = run.random_state.permutation(len(source))
    rows = np.sort(order[: settings.start_rows])
    few = replace(source, dtype=torch.float64, device=torch.device("cpu"), _resident=None)

    X, Y = (part.numpy() for part in few.rows(rows))
    known = 0.0 if few.noise is None else few.noise[rows]
    targets = likelihood.start_targets(torch.as_tensor(Y)).numpy()
    n, d = len(source), X.shape[1]
    many = likelihood.conjugate and _ROWS_A_COLUMN * d <= n <= SMALL_TABLE
    kernel = starting_kernel(settings.kernel, X, targets, largest_signal, d <= _ARD_COLUMNS or many)
    if not compile_kernel(kernel, X.shape[1]).node.products():
        raise ValueError(
            f"kernel={kernel} is noise alone and has no function to learn: add a kernel such as "
            "RBF() to it."
        )
    return Start(kernel, rows, X, Y, known)


def trained_start(
    start: Start,
    settings: Settings,
    likelihood: Likelihood,
    run: FitRun,
    preview: Callable[[Any, Start], None],
    smooth: bool = False,
) -> Start:
    """Train the hyperparameters by the exact marginal likelihood of the start; O(s^3) a step.

    Parameters
    ----------
    start : Start
    settings : Settings
    likelihood : Likelihood
        If its noise is not additive, the signal variance is chosen afterwards.
    run : FitRun
    preview : callable
        Sets the model of a start in a copy of the estimator.
    smooth : bool, default=False
        Whether a squared exponential is compared with the default kernel. Steps converge far better
        with the noise estimate of a kernel that suits the data.
    """
    X, Y = start.X, start.Y
    targets = likelihood.start_targets(torch.as_tensor(Y)).numpy()
    compiled = compile_kernel(start.kernel, X.shape[1])
    trains = settings.optimizer is not None and settings.subset_size is not None
    if not (trains and compiled.n_params and len(X) > 1 and np.ptp(targets) > 0):
        return start

    def at(compiled: TorchKernel, theta: np.ndarray) -> Kernel:
        kernel = compiled.to_sklearn(torch.as_tensor(theta))
        if likelihood.additive:
            return kernel
        return scaled_signal(kernel, Site(likelihood, 0.0, 1.0), X, Y, settings.kernel is not None)

    def trained(kernel: Kernel) -> _Trained:
        compiled = compile_kernel(kernel, X.shape[1])

        def show(model: Any, step: Any) -> None:
            preview(model, replace(start, kernel=at(compiled, step.theta)))

        run.preview, origin = show, X.mean(axis=0)
        problem = Rows(X, Y, start.known).problem(compiled, likelihood, origin)
        chosen = chosen_start(problem, run)
        result = exact_start(
            problem,
            run,
            max_iter=_STEPS,
            n_restarts=settings.n_restarts_optimizer,
            theta=chosen.theta,
        )
        return _Trained(compiled, result, chosen.describe(), len(X))

    best = trained(start.kernel)
    n_iter = best.result.n_iter
    if settings.kernel is None:
        for other in _others(start, targets, smooth):
            if run.stopped:
                break
            found = trained(other(best.compiled.kernel))
            n_iter += found.result.n_iter
            best = found if found.evidence > best.evidence else best
            run.chose("kernel", best.compiled.node.label, "the higher evidence on the start's rows")
    run.reports(start=best.origin)
    kernel = run.finish("start's kernel", lambda: at(best.compiled, best.result.theta))
    return replace(start, kernel=kernel, n_iter=n_iter, reason=best.result.stop_reason)


class _Trained(NamedTuple):
    """A kernel trained on m rows, and a sentence on where its training began."""

    compiled: TorchKernel
    result: TrainingResult
    origin: str
    m: int

    @property
    def evidence(self) -> float:
        """The log likelihood less what m rows say about the hyperparameters (Schwarz 1978)."""
        return self.result.value - 0.5 * self.compiled.n_params * math.log(self.m)


def _others(start: Start, targets: np.ndarray, smooth: bool) -> list[Callable[[Kernel], Kernel]]:
    """Functions that change the best kernel so far into one to compare it with."""
    own, d = start.kernel.k1, start.X.shape[1]

    def a_column(best: Kernel) -> Kernel:
        largest = own.k1.constant_value_bounds[1] / own.k1.constant_value
        return data_scaled_kernel(start.X, targets, largest)

    others = []
    if np.ndim(own.k2.length_scale) == 0 and 1 < d <= _COMPARED_COLUMNS:
        others.append(a_column)
    return [*others, _squared_exponential] if smooth else others


def _squared_exponential(kernel: Kernel) -> Kernel:
    """The default kernel with a smooth factor in place of the Matern kernel."""
    matern = kernel.k1.k2
    rbf = RBF(matern.length_scale, matern.length_scale_bounds)
    return clone(kernel).set_params(k1__k2=rbf)


def scaled_signal(kernel: Kernel, site: Site, X: np.ndarray, Y: np.ndarray, own: bool) -> Kernel:
    """The kernel of a regression, with the best signal variance for another likelihood.

    A regression on labels -1 and 1, or on counts, gives the shape of the kernel, but the latent
    function is larger. Its variance maximises the Laplace evidence (Rasmussen and Williams 2006,
    algorithm 3.1), summed over the columns of Y.

    Parameters
    ----------
    kernel : Kernel
    site : Site
    X : ndarray of shape (n, d)
    Y : ndarray of shape (n, t)
    own : bool
        Whether the kernel is the user's, whose bounds hold. Those of the default kernel move along.
    """
    rows = torch.as_tensor(X[:_LAPLACE_ROWS], dtype=torch.float64)
    targets = torch.as_tensor(Y[:_LAPLACE_ROWS], dtype=torch.float64)
    compiled = compile_kernel(kernel, X.shape[1])
    start = site.likelihood.start_targets(torch.as_tensor(Y, dtype=torch.float64))
    unit = float(compiled.diag(compiled.theta0, rows).mean()) / float(start.square().mean())

    def evidence(kernel: Kernel) -> float:
        compiled = compile_kernel(kernel, X.shape[1])
        K = compiled.cross(compiled.theta0, rows, rows)
        return sum(_laplace(site, K, y)[1] for y in targets.T)

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


def _laplace(site: Site, K: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """alpha = K^-1 f at the mode of the posterior, and the Laplace evidence."""
    alpha, f, none = torch.zeros_like(y), torch.zeros_like(y), torch.zeros_like(y)
    eye = torch.eye(len(y), dtype=K.dtype)
    value = float(site.likelihood.log_density(y, f, none).sum())
    for _ in range(20):
        _, slope, curvature, _ = site.likelihood.derivatives(y, f, none)
        W = (-curvature).clamp_min(1e-10)
        root = W.sqrt()
        L = torch.linalg.cholesky(eye + root[:, None] * K * root)
        b = W * f + slope
        inner = torch.cholesky_solve((root * (K @ b))[:, None], L)[:, 0]
        change = b - root * inner - alpha
        for _ in range(_HALVINGS):
            f = K @ (alpha + change)
            new = float(-0.5 * (alpha + change) @ f + site.likelihood.log_density(y, f, none).sum())
            if new > value - 1e-4:
                break
            change = 0.5 * change
        alpha = alpha + change
        if not new - value >= 1e-4:
            break
        value = new
    return alpha, value - float(L.diagonal().log().sum())


def support_weights(site: Site, gram: Tensor, Y: Tensor) -> Tensor:
    """alpha such that f = gram alpha is the mode of the posterior given these rows; O(s^3).

    Parameters
    ----------
    site : Site
    gram : Tensor of shape (s, s)
        phi_p phi_p'.
    Y : Tensor of shape (s, t)
    """
    if not site.likelihood.additive:
        return torch.stack([_laplace(site, gram, y)[0] for y in Y.to(gram).T], 1)
    noisy = gram + torch.diag(site.variances(Y).to(gram))
    return torch.cholesky_solve(Y.to(gram), cholesky_with_jitter(noisy)[0])
