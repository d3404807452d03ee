"""Optimisers of the log hyperparameters within their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import scipy.optimize
import scipy.special
from sklearn.base import BaseEstimator

from ..._end import End
from ..._named import keep_settings
from ..._validation import check_number

# Maps theta to the objective (NaN if unknown) and its gradient.
Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Optimum(NamedTuple):
    """The last iterate, and an inverse Hessian if the method has one.

    `reason` is a member of `End` or its value, such as "stagnated" if no better point was found
    although the gradient is not small; None means that the number of steps tells.
    """

    theta: np.ndarray
    metric: np.ndarray | None = None
    reason: str | None = None


@runtime_checkable
class Optimizer(Protocol):
    """The protocol of optimisers; user-defined optimisers derive from this class.

    `maximize` calls ``evaluate``, which may raise StopTraining. Its argument ``metric`` is an
    inverse Hessian from an earlier run, which most methods ignore.

    Attributes
    ----------
    exact_only : bool
        Whether values and gradients must be exact.
    patient : bool
        Whether the method makes many small steps with noisy gradients. Training then ends when the
        iterates hardly move, and the last ones are averaged.
    redraws : bool
        Whether the method measures the noise of the gradients itself, and needs the Fisher
        information of random rows.
    compare_starts : bool
        Whether a fit compares several starts before the first step.
    deviations : bool
        Whether the method moves the logarithms of standard deviations instead of variances.
    """

    exact_only: bool = False
    patient: bool = False
    redraws: bool = False
    compare_starts: bool = True
    deviations: bool = False

    def maximize(
        self,
        evaluate: Evaluate,
        theta: np.ndarray,
        bounds: np.ndarray,
        max_iter: int,
        metric: np.ndarray | None = None,
    ) -> Optimum: ...


class Adam(BaseEstimator, Optimizer):
    """Adam on transformed hyperparameters, projected onto their bounds after each step.

    Parameters
    ----------
    learning_rate : float, default=0.1
        Approximate size of the largest change of a log hyperparameter in one step (Lin et al. 2024
        use 0.1 up to 50,000 rows).
    decay : float, default=1.0
        Ratio of the last to the first learning rate, with geometric steps between them. Values
        below 1 average out the noise of stochastic gradients.
    transform : {"log", "softplus"}, default="log"
        The variables that the steps change. "log" changes logarithms, so that a step multiplies a
        hyperparameter by a factor. "softplus" changes u, where log(1 + exp(u)) is the
        hyperparameter, as in the papers: large hyperparameters change by amounts instead of
        factors, and small ones change slowly. In an estimator "softplus" applies to the standard
        deviations of signal and noise instead of their variances, as in Lin et al. (2024).
    """

    patient = True

    @property
    def deviations(self) -> bool:
        return self.transform == "softplus"

    def __init__(self, learning_rate: float = 0.1, *, decay: float = 1.0, transform: str = "log"):
        keep_settings(self, locals())

    def maximize(self, evaluate, theta, bounds, max_iter, metric=None) -> Optimum:
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("decay", self.decay, positive=True)
        if self.transform not in list(TRANSFORMS):
            raise ValueError(
                f"Unknown transform {self.transform!r} of Adam: use one of {sorted(TRANSFORMS)}."
            )
        forward, backward, slope = TRANSFORMS[self.transform]
        theta = theta.copy()
        first, second = np.zeros_like(theta), np.zeros_like(theta)
        for k in range(1, max_iter + 1):
            _, grad = evaluate(theta)
            u = forward(theta)
            grad = grad * slope(u)
            first += 0.1 * (grad - first)
            second += 0.001 * (grad**2 - second)
            unit = (first / (1 - 0.9**k)) / (np.sqrt(second / (1 - 0.999**k)) + 1e-12)
            rate = self.learning_rate * self.decay ** ((k - 1) / max(max_iter - 1, 1))
            theta = np.clip(backward(u + rate * unit), bounds[:, 0], bounds[:, 1])
        return Optimum(theta)


def _softplus_inverse(theta: np.ndarray) -> np.ndarray:
    """u with log(1 + exp(u)) = exp(theta)."""
    value = np.exp(theta)
    return value + np.log(-np.expm1(-value))


def _log_softplus(u: np.ndarray) -> np.ndarray:
    return np.log(np.logaddexp(0.0, u))


def _log_softplus_slope(u: np.ndarray) -> np.ndarray:
    """d theta / du."""
    return scipy.special.expit(u) / np.logaddexp(0.0, u)


# theta -> u, u -> theta, and d theta / du.
TRANSFORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "log": (np.array, np.array, np.ones_like),
    "softplus": (_softplus_inverse, _log_softplus, _log_softplus_slope),
}


class LBFGS(BaseEstimator, Optimizer):
    """SciPy's L-BFGS-B, for objectives whose value and gradient are exact.

    The objective is divided by the size of its gradient at the start, since SciPy's first step is
    as long as the gradient. Otherwise the first step of a large table may leave the region in which
    the covariance matrix can be factorised.

    Parameters
    ----------
    tol : float, default=1e-8
        Relative improvement of the objective at which the optimiser ends (SciPy's ``ftol``).
        Training begins at a start that some steps have improved, from where a larger tolerance
        would end the slow way along a ridge.
    scaled : bool, default=True
        Whether to scale the objective; False makes the same steps as scikit-learn.
    """

    exact_only = True

    def __init__(self, tol: float = 1e-8, *, scaled: bool = True):
        self.tol = tol
        self.scaled = scaled

    def maximize(self, evaluate, theta, bounds, max_iter, metric=None) -> Optimum:
        check_number("tol", self.tol)
        first_value, first_grad = evaluate(theta)
        size = max(abs(first_value), 1.0)
        scale = max(5.0 * float(np.linalg.norm(first_grad)), 1.0) if self.scaled else 1.0

        def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
            if np.array_equal(point, theta):
                return -first_value / scale, -first_grad / scale
            value, grad = evaluate(point)
            return -value / scale, -grad / scale

        result = scipy.optimize.minimize(
            negative,
            theta,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={
                "maxiter": max_iter,
                "maxfun": 2 * max_iter,
                # SciPy's tolerances are relative to max(|objective|, 1): undo the scaling.
                "ftol": self.tol * min(size / scale, 1.0),
                "gtol": 1e-5 / scale,
            },
        )
        # SciPy returns 1 if a limit of iterations or evaluations was reached.
        reason = End.MAX_ITER if result.status == 1 else End.CONVERGED
        free = np.clip(theta + first_grad, bounds[:, 0], bounds[:, 1]) - theta
        if result.status == 2 and not result.nit and np.abs(free).max() > self.tol * size:
            reason = End.STAGNATED
        return Optimum(result.x, reason=reason)


class CallableOptimizer(Optimizer):
    """scikit-learn's form: ``optimizer(obj_func, initial_theta, bounds) -> (theta, minimum)``."""

    exact_only = True

    def __init__(self, function: Callable):
        if not callable(function):
            raise TypeError(
                "function must be callable, as function(obj_func, initial_theta, bounds); got "
                f"{function!r}."
            )
        self.function = function

    def maximize(self, evaluate, theta, bounds, max_iter, metric=None) -> Optimum:
        def objective(theta: np.ndarray, eval_gradient: bool = True) -> Any:
            value, grad = evaluate(np.asarray(theta, dtype=float))
            return (-value, -grad) if eval_gradient else -value

        best, _ = self.function(objective, theta, bounds=bounds)
        best = np.asarray(best, dtype=float)
        if best.shape != theta.shape or not np.isfinite(best).all():
            raise ValueError(
                f"The callable given as optimizer must return (theta, minimum) with {theta.size} "
                f"finite numbers as theta, got {best!r}."
            )
        return Optimum(best, reason=End.CONVERGED)
