"""Models of the size of errors as a function of the row, and the choice between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from torch import nn

from ..core import fitted_process, reporting_only
from ..core.data import Columns
from ..core.posteriors import Affine
from ..core.training import QuasiNewton, StopTraining
from ..models.fourier import RFFRegressor
from ._below import few_threads, with_kernel

# With fewer rows the noise is constant.
FEWEST_ROWS = 100
# Smallest mean square, for regressors that make no errors.
_LEAST = 1e-12
# Where k errors are zero, the next one may still be of the usual size. No variance is smaller than
# the mean square of this number of such errors among k rows. If they are as rare, this variance has
# the largest expected log density. On 26 drawn tables with repeated rows half as many cost up to
# 0.4 nats at the next copies, and twice as many lose a tenth of what the noise model gains.
_MISSES = 1.0
# Rounds in which the rows with the least variance and the level of the others are found.
ROUNDS = 3
# Factors on the variation of a model, until neither new nor repeated inputs lose by it.
_SHRUNK = (1.0, 0.5, 0.25)
# With fewer rows of a kind, new or repeated, their mean gain says nothing.
_FEWEST_OF_A_KIND = 20
# Up to this number of rows folds are cheap, and a Gaussian process of the log squares is compared.
_FEW_ROWS = 2000
# Features further away than this, in units of their spread, leave the process out: rounding of
# their squares is as large as the squared distances of the other rows.
_FARTHEST = 1e7
# A model must be better than a constant by this many standard errors, because the best of many
# candidates seems better than it is.
_DOUBT = 2.0
# Number added to squares before their logarithm, and floors of the squares under a gamma density.
_LOG_FLOOR, _GAMMA_FLOORS = 1e-4, (1e-4, 1e-2)
# Up to this number of rows a tree whose leaves have forty of four fifths of the rows has at most
# four of them, and the Gaussian process is the only candidate.
_FEWEST_FOR_TREES = 200
# The Gaussian process of the log squares ends when a step gains less than this, because its own
# likelihood stands for the density of held-out rows only roughly.
_GAIN = 1e-4
# Numbers of trees, all of which come from one fit; the largest number on few rows; rows to a tree
# there, where fewer trees learn faster; and powers, which shrink the variation of a model.
_TREES = (5, 10, 20, 40, 80, 160, 320)
_FEW_TREES, _ROWS_A_TREE = 80, 5
_POWERS = np.linspace(0.2, 1.0, 5)
# These leaves suit tables of some hundred rows. With half of the columns at each split, results on
# heavy-tailed errors depend less on the draw of the folds.
_BOOSTING = {
    "max_leaf_nodes": 15,
    "min_samples_leaf": 40,
    "max_features": 0.5,
    "early_stopping": False,
}


@dataclass(frozen=True)
class NoisePart:
    """A fitted regressor of squared errors or of their logarithms.

    Attributes
    ----------
    regressor : regressor
    log_link : bool
        Whether it predicts the squares themselves.
    power : float
        Factor on the predicted logarithms, which shrinks their variation.
    ends : tuple of float
        Smallest and largest logarithm predicted for held-out rows. Predictions are clipped to this
        range.
    floor : float
        Smallest square that it was fitted to, if it predicts squares.
    """

    regressor: Any
    log_link: bool
    power: float
    ends: tuple[float, float]
    floor: float = 0.0

    def logs(self, F: np.ndarray) -> np.ndarray:
        predicted = np.asarray(self.regressor.predict(F), dtype=np.float64)
        return self.power * np.clip(np.log(predicted) if self.log_link else predicted, *self.ends)

    def fitted_again(self, F: np.ndarray, squares: np.ndarray) -> NoisePart:
        """The same part, fitted to squares of other rows, with the hyperparameters of a process."""
        fresh = clone(with_kernel(self.regressor, self.regressor))
        target = np.maximum(squares, self.floor) if self.log_link else np.log(squares + _LOG_FLOOR)
        with reporting_only(evaluated=True):
            return replace(self, regressor=fresh.fit(F, target))


@dataclass(frozen=True)
class NoiseModel:
    """A factor for standard deviations, as a function of a table of features.

    Attributes
    ----------
    level : float
        Logarithm of the mean square after division by the predictions of the parts.
    parts : tuple of NoisePart
        Parts, the logarithms of which are added; none for a constant.
    name : str
        Names of the regressors in the report.
    gain : float
        The rise in the log density of held-out rows over that of a constant, in nats per row.
    least : float
        Logarithm of the smallest product of the parts and a variance, the logarithm of whose root
        is the last feature.
    """

    level: float = 0.0
    parts: tuple[NoisePart, ...] = ()
    name: str = "a constant"
    gain: float = 0.0
    least: float = -np.inf

    def times(self, factor: float) -> NoiseModel:
        """The same, with all factors of standard deviations multiplied by a number."""
        more = 2 * float(np.log(factor))
        return replace(self, level=self.level + more, least=self.least + more)

    def factor(self, F: np.ndarray) -> np.ndarray:
        """Factors of standard deviations, shape (m,), at features of shape (m, q)."""
        logs = sum((part.logs(F) for part in self.parts), np.full(len(F), self.level))
        if self.parts:
            logs = np.maximum(logs, self.least - 2 * F[:, -1])
        return np.exp(0.5 * logs)


@dataclass(frozen=True)
class _Left:
    """A candidate: a regressor, its target, and its predictions of held-out rows.

    `floor` is the smallest square in a target of squares.
    """

    name: str
    regressor: Any
    target: np.ndarray
    log_link: bool
    logs: np.ndarray
    fitted: bool = False
    floor: float = 0.0


class _Score(NamedTuple):
    """The gain of candidates in log density per row, its standard error, and the remaining level.

    `chosen` holds candidates and their powers; the logarithms are added.
    """

    gain: float
    error: float
    level: float
    chosen: tuple[tuple[_Left, float], ...]

    @property
    def logs(self) -> np.ndarray:
        return sum(power * left.logs for left, power in self.chosen)


def _score(squares: np.ndarray, *chosen: tuple[_Left, float]) -> _Score:
    logs = sum(power * left.logs for left, power in chosen)
    scaled = squares * np.exp(-logs)
    level = float(np.log(scaled.mean()))
    gains = 0.5 * (squares - level - logs - scaled * np.exp(-level))
    return _Score(float(gains.mean()), float(gains.std() / len(gains) ** 0.5), level, chosen)


def level(squares: np.ndarray) -> NoiseModel:
    """A constant factor."""
    return NoiseModel(float(np.log(max(np.mean(squares), _LEAST))))


def best_noise(
    F: np.ndarray,
    squares: np.ndarray,
    given: Any,
    random_state: np.random.RandomState,
    check_time: Callable[[], None],
    groups: np.ndarray | None = None,
) -> tuple[NoiseModel, np.ndarray]:
    """The model with the highest density of held-out rows, or a constant if that is as good.

    Parameters
    ----------
    F : ndarray of shape (n, q)
        Features.
    squares : ndarray of shape (n,)
        Squared standardised residuals, positive on average.
    given : regressor or None
        The user's candidate, fitted to logarithms. None compares boosted trees and, on few rows, a
        Gaussian process.
    random_state : RandomState
    check_time : callable
        Called between the fits of candidates; a `StopTraining` ends the comparison.
    groups : ndarray of int of shape (n,), optional
        Equal numbers for rows of equal inputs, which are predicted by models without any of them:
        where two copies differ, each one has an error that tells that of the other.

    Returns
    -------
    model : NoiseModel
    logs : ndarray of shape (n,)
        Predicted logarithms of the mean squares, each by a model that was fitted without the row.

    Notes
    -----
    The logarithm of a squared normal number has a variance of 4.9 and no lower limit. Shrunken
    trees on logarithms are robust against that. Trees under a gamma density, which is the
    likelihood of the squares, learn more if tails are light. The product of the best model of each
    kind, with a power for each, competes with both. A model must beat the constant by two standard
    errors of its gain.
    """
    plain = level(squares)
    flat = np.full(len(F), plain.level)
    if len(F) < FEWEST_ROWS or squares.mean() <= _LEAST:
        return plain, flat
    squares = squares / squares.mean()
    scores: dict[bool, _Score] = {}
    try:
        with few_threads(len(F)):
            for left in _candidates(F, squares, given, groups, random_state, check_time):
                tried = [_score(squares, (left, float(power))) for power in _POWERS]
                tried += filter(None, [scores.get(left.log_link)])
                scores[left.log_link] = max(tried, key=lambda s: s.gain)
    except StopTraining:
        # Only one kind of candidates is better than a constant.
        if not scores:
            raise
    found = list(scores.values())
    if not found:
        return plain, flat
    if len(found) > 1:
        one, two = (score.chosen[0][0] for score in found)
        pairs = product(_POWERS.tolist(), repeat=2)
        found += [_score(squares, (one, p), (two, q)) for p, q in pairs]
    best = max(found, key=lambda s: s.gain)
    if best.gain <= _DOUBT * best.error:
        return plain, flat
    parts = []
    for left, power in best.chosen:
        regressor = left.regressor if left.fitted else left.regressor.fit(F, left.target)
        ends = float(left.logs.min()), float(left.logs.max())
        parts.append(NoisePart(regressor, left.log_link, power, ends, left.floor))
    own = plain.level + best.level
    name = " and ".join(left.name for left, _ in best.chosen)
    return NoiseModel(own, tuple(parts), name, best.gain), own + best.logs


def predicted_by_folds(
    model: NoiseModel,
    folds: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    check_time: Callable[[], None],
) -> np.ndarray:
    """Predicted logarithms at the rows of all folds, by parts that were fitted without the fold.

    For each fold there are features and squares of the other rows, and the features of its own.
    """
    logs = []
    for F, squares, new in folds:
        check_time()
        with few_threads(len(F)):
            parts = [part.fitted_again(F, squares / squares.mean()) for part in model.parts]
            logs.append(model.level + sum(part.logs(new) for part in parts))
    return np.concatenate(logs)


def supported(
    model: NoiseModel,
    logs: np.ndarray,
    squares: np.ndarray,
    variance: np.ndarray,
    repeated: np.ndarray,
) -> tuple[NoiseModel, np.ndarray]:
    """The model as far as held-out rows support it: with a least variance, or a constant.

    Parameters
    ----------
    model : NoiseModel
    logs : ndarray of shape (n,)
        Predicted logarithms for held-out rows, as `best_noise` returns them.
    squares, variance : ndarray of shape (n,)
        Squared standardised residuals of these rows, and the variances that the factors multiply.
    repeated : ndarray of bool of shape (n,)
        The rows whose inputs occur in other rows of the table, too.

    Returns
    -------
    model : NoiseModel
    logs : ndarray of shape (n,)

    Notes
    -----
    Errors at copies of fitted rows may all be zero, and the next one may be of the usual size. With
    the mean square S of errors at inputs that occur once and K(f) rows of a variance below f, the
    least variance f solves f K(f) = S. Both kinds of rows, new
    and repeated inputs, must gain by a standard error: the model is shrunk until they do, or
    becomes a constant.
    """
    plain = level(squares)
    flat = np.full(len(logs), plain.level)
    kinds = _kinds(repeated)
    usual = squares * variance
    usual = usual[~repeated] if np.sum(~repeated) >= _FEWEST_OF_A_KIND else usual
    support = _MISSES * float(usual.mean())
    for power in _SHRUNK if model.parts else ():
        shrunk = plain.level + power * (logs - plain.level)
        shift, least = _least_variance(squares, variance, shrunk, support)
        raised = np.maximum(shrunk + shift, least - np.log(variance))
        gains = 0.5 * (flat - raised + squares * (np.exp(-flat) - np.exp(-raised)))
        gain = float(gains.mean())
        certain = gain > _DOUBT * gains.std() / len(gains) ** 0.5
        if certain and all(_gains(gains[kind]) for kind in kinds):
            own = plain.level + power * (model.level - plain.level) + shift
            parts = tuple(replace(part, power=power * part.power) for part in model.parts)
            return replace(model, level=own, parts=parts, gain=gain, least=least), raised
    kept = constant(squares, repeated)
    return kept, np.full(len(logs), kept.level)


def constant(squares: np.ndarray, repeated: np.ndarray) -> NoiseModel:
    """One factor for all rows, which narrows no kind of rows beyond what its own errors say.

    Where only copies are predicted closely, the mean of all squares would narrow new inputs, too.
    """
    plain = level(squares)
    if plain.level >= 0:
        return plain
    for power in _SHRUNK:
        logs = power * plain.level
        gains = 0.5 * (squares * (1 - np.exp(-logs)) - logs)
        if all(gains[kind].mean() >= 0 for kind in _kinds(repeated)):
            return replace(plain, level=logs)
    return replace(plain, level=0.0)


def _kinds(repeated: np.ndarray) -> list[np.ndarray]:
    """The masks of repeated and of new inputs, if there are enough."""
    return [kind for kind in (repeated, ~repeated) if kind.sum() >= _FEWEST_OF_A_KIND]


def _gains(gains: np.ndarray) -> bool:
    """Whether one kind of rows gains by a standard error.

    With a mean gain above zero, a drawn table of rare large errors lost 0.15 nats at new inputs.
    """
    return bool(gains.mean() >= gains.std() / len(gains) ** 0.5)


def _least_variance(
    squares: np.ndarray, variance: np.ndarray, logs: np.ndarray, support: float
) -> tuple[float, float]:
    """What is added to logarithms of factors, and the logarithm of the least variance.

    Rows with the least variance, whose errors are too small for it, do not calibrate the others.
    """
    shift, least = 0.0, -np.inf
    for _ in range(ROUNDS):
        own = variance * np.exp(logs + shift)
        ordered = np.sort(own)
        below = int((ordered * np.arange(1, len(own) + 1) < support).sum())
        lowest = min(support / max(below, 1), ordered[min(below, len(own) - 1)])
        least = float(np.log(max(lowest, np.finfo(float).tiny)))
        free = own > lowest
        left = (squares[free] * np.exp(-logs[free])).mean() if free.any() else 0.0
        shift = float(np.log(left)) if left > 0 else 0.0
    return shift, least


def _candidates(F, squares, given, groups, random_state, check_time):
    """The candidates, fitted one after the other."""
    n, logs = len(F), np.log(squares + _LOG_FLOOR)
    seed = int(random_state.randint(2**31 - 1))
    kind = KFold if groups is None else GroupKFold
    cv = kind(5 if n <= _FEW_ROWS else 3, shuffle=True, random_state=seed)
    folds = list(cv.split(F, groups=groups))
    if given is not None:
        regressor = clone(given)
        left = cross_val_predict(clone(given), F, logs, cv=folds)
        yield _Left(type(given).__name__, regressor, logs, False, np.asarray(left))
        return
    boosting = HistGradientBoostingRegressor(random_state=seed, **_BOOSTING)
    plain = clone(boosting).set_params(learning_rate=0.05)
    gamma = clone(boosting).set_params(loss="gamma", learning_rate=0.03, l2_regularization=1.0)
    if n > _FEWEST_FOR_TREES:
        yield from _staged("trees on log squares", plain, F, logs, False, folds, check_time)
        for floor in _GAMMA_FLOORS:
            target = np.maximum(squares, floor)
            name = f"trees on squares above {floor:g}, gamma loss"
            for left in _staged(name, gamma, F, target, True, folds, check_time):
                yield replace(left, floor=floor)
    if n <= _FEW_ROWS:
        check_time()
        # A length scale for each feature would follow the noise of few rows. Predictions without a
        # row would not show that, since all rows have determined the hyperparameters.
        scaler, unit = _Standardised(), np.sqrt(F.shape[1])
        signal = ConstantKernel(0.5) * Matern(unit, (0.1 * unit, 100 * unit), nu=1.5)
        process = RFFRegressor(
            signal + WhiteKernel(0.5),
            optimizer=QuasiNewton(tol=_GAIN, compare_starts=False),
            normalize_y=True,
            # So few rows are faster there, and the caller may have asked for no GPU.
            device="cpu",
            random_state=seed,
        )
        scaled = scaler.fit_transform(F)
        if not np.abs(scaled).max() < _FARTHEST:
            return
        with warnings.catch_warnings(), reporting_only(evaluated=True):
            # A length scale at its bound means that the errors have one size everywhere.
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(scaled, logs)
        if groups is None:
            mean = fitted_process(process).left_out(scaled, logs, None, np.arange(n)).mean
        else:
            # A process that follows each error may leave their range between them.
            mean = cross_val_predict(with_kernel(process, process), scaled, logs, cv=folds)
            mean = np.clip(mean, logs.min(), logs.max())
        name = "a Gaussian process of log squares"
        yield _Left(name, make_pipeline(scaler, process), logs, False, mean, fitted=True)


class _Standardised(TransformerMixin, BaseEstimator):
    """Features in units of their robust standard deviations."""

    def fit(self, F: np.ndarray, y: Any = None) -> _Standardised:
        self.mean_, self.scale_ = Columns(F).robust_moments()
        return self

    def transform(self, F: np.ndarray) -> np.ndarray:
        return (F - self.mean_) / self.scale_

    def _as_module(self) -> nn.Module:
        return Affine(self.mean_, self.scale_)


def _staged(name, boosting, F, target, log_link, folds, check_time):
    """Boosted trees of every size as candidates."""
    n = len(F)
    most = _TREES[-1] if n > _FEW_ROWS else min(_FEW_TREES, n // _ROWS_A_TREE)
    sizes = [size for size in _TREES if size <= most]
    rate = boosting.learning_rate * max(1.0, _FEW_TREES / sizes[-1])
    boosting = clone(boosting).set_params(max_iter=sizes[-1], learning_rate=rate)
    left = {size: np.empty(n) for size in sizes}
    for fitted, new in folds:
        check_time()
        model = clone(boosting).fit(F[fitted], target[fitted])
        for size, predicted in enumerate(model.staged_predict(F[new]), 1):
            if size in left:
                left[size][new] = np.log(predicted) if log_link else predicted
    for size, logs in left.items():
        sized = clone(boosting).set_params(max_iter=size)
        yield _Left(f"{size} {name}", sized, target, log_link, logs)
