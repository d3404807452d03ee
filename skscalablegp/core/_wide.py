"""Starts for tables with hardly more rows than columns: few length scales in place of many.

The rows of such a table do not determine a length scale for each column. The likelihood is highest
where hundreds of them explain the noise, and predictions are then far too sure. Here all columns
share one length scale, in units of their spread, but for those that the likelihood asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from ..linalg.gradients import ExactGradient, GPProblem, exact_marginal_likelihood
from ..workers import one_thread
from ._layout import Layout, Start
from ._training_run import Run
from .data import RandomOrder, problem_spread, problem_square
from .training import Monitor, QuasiNewton, StopTraining, TrainingResult, train

# A table is wide up to this number of rows for each column, from so many columns on. On 60 drawn
# tables (60 to 300 rows, 20 to 300 columns, of which 1, 3, 10, all or none matter, or a few factors
# of all), one length scale for each column had a larger NLPD than the columns found here in all but
# one up to two rows a column, by .03 to 70, and in most up to three.
_ROWS_A_COLUMN, _FEWEST_COLUMNS = 2, 30
# Nats by which the likelihood must rise for an own length scale, beside the logarithm of the number
# of columns among which it was the best: that much is gained by chance. On 60 drawn tables, fewer
# than 4 let in columns that cost up to .4 nats a new row, and more left out columns that matter.
_PRICE = 4.0
# Rows on which the models are trained, and largest number of entries of the rows on which single
# columns are tried, with the fewest and the most of these rows.
_TRAINED, _ENTRIES, _FEWEST_TRIED, _MOST_TRIED = 600, 3e7, 100, 300
# Columns that are tried again after the first one has been found, columns that are tried on all
# rows, and columns whose covariances are factorised together.
_AGAIN, _ON_ALL, _TOGETHER = 200, 8, 16
# Shared length scales in units of the root of the number of columns, which is about the distance
# between two rows; and noise variances in units of the target's mean square.
_SHARED, _NOISE = (0.5, 1.0, 3.0), (0.1, 0.5)
# Length scales of a single column in units of its spread, and the noise beside it where no other
# column matters, with which it is tried.
_OWN, _NOISE_BESIDE = (1.0, 3.0), (0.15, 0.6)
# The shared length scale with which the other columns hardly matter, in units of their distance.
_FAR = 1e3
# Steps of training and the gain in nats at which they end, and the largest share of own length
# scales, in units of the number of rows.
_STEPS, _GAIN, _MOST_SHARE = 40, 0.05, 0.2
# Number of columns that the report names.
_NAMED = 5


def is_wide_table(n: float, d: int) -> bool:
    """Whether n rows do not determine d length scales, and d is not small."""
    return d >= _FEWEST_COLUMNS and n <= _ROWS_A_COLUMN * d


def is_wide(problem: GPProblem) -> bool:
    """Whether the rows cannot tell a length scale for each column, and the kernel has so many.

    Only a constant times one stationary kernel of all columns, plus noise, counts. A kernel with
    priors of its length scales does not need this.
    """
    kernel = problem.kernel
    if not (problem.has_rows and kernel.vectors and kernel.n_features >= _FEWEST_COLUMNS):
        return False
    if kernel.numpy_code or kernel.coded or any("length_scale" in name for name in kernel.priors):
        return False
    layout = Layout.of(kernel)
    if layout.n_lengths != kernel.n_features or len(layout.columns) != kernel.n_features:
        return False
    terms = kernel.stationary_terms()
    single = terms is not None and len(terms) == 1 and len(terms[0].leaves) == 1
    # Rows that stand for a larger table have the same share of its prior.
    n = sum(problem.each(_count)) / problem.prior_weight
    return single and is_wide_table(n, kernel.n_features) and problem_square(problem) > 0


def _count(problem: GPProblem) -> int:
    return len(problem.X)


def wide_start(problem: GPProblem, theta: np.ndarray, run: Run) -> Start:
    """Choose the columns with length scales of their own, by forward selection.

    Parameters
    ----------
    problem : GPProblem
        A wide table.
    theta : ndarray of shape (p,)
        The given start, whose amplitude and noise are used.
    run : Run
        Callbacks do not see these steps. The rows do not depend on the run's random numbers.

    Returns
    -------
    start : Start

    Notes
    -----
    Up to 600 rows m, and r of at most 300 rows for trials: O(d r^3) for the first column and
    O(r^3) for each other one, and O(m^3 + d m^2) for each of up to forty steps after them.
    """
    search = _Selection(problem, theta, run)
    run.monitor.begin("starts")
    with run.budget.may_end():
        search.share()
        search.release()
    return search.start()


class _Selection:
    """Forward selection of the columns of one table."""

    def __init__(self, problem: GPProblem, theta: np.ndarray, run: Run):
        self._run, self._layout, self._given = run, Layout.of(problem.kernel), theta
        assert self._layout.lengths is not None
        self._lengths = self._layout.lengths
        self._bounds = problem.kernel.bounds.numpy()
        self._spread = problem_spread(problem, self._layout.columns)
        self._unit = problem_square(problem)
        self._generator = torch.Generator().manual_seed(0)
        self._order = RandomOrder.drawn(len(problem.X), self._generator)
        self._problem = problem
        self._part = self._rows(_TRAINED)
        d = len(self._spread)
        tried = int(min(_MOST_TRIED, max(_FEWEST_TRIED, math.sqrt(_ENTRIES / d))))
        self._found: dict[int, np.ndarray] = {}
        self._few = self._part if tried >= len(self._part.X) else self._rows(tried)
        self._candidates = np.arange(d)
        self._own: tuple[int, ...] = ()
        self._best = Start("", theta, tied=self._groups(()))

    def _rows(self, m: int) -> GPProblem:
        rows = self._order[:m].to(self._problem.X.device)
        return replace(self._problem.random_part(rows).to(torch.float64), keep=True)

    def start(self) -> Start:
        own, d = self._own, len(self._spread)
        origin = f"one value for {d - len(own):,} of {d:,} columns, in units of their spread"
        if own:
            more = " and others" if len(own) > _NAMED else ""
            origin += ", and others for " + ", ".join(f"x{j}" for j in own[:_NAMED]) + more
        return replace(self._best, origin=origin, value=self._best.value / len(self._part.X))

    def _groups(self, own: tuple[int, ...]) -> np.ndarray:
        """Groups of theta: the length scales of all columns but the own ones are one."""
        shared = np.zeros(len(self._bounds), dtype=bool)
        shared[self._lengths] = True
        shared[[self._layout.length(j) for j in own]] = False
        first = np.where(shared, np.flatnonzero(shared)[0], np.arange(len(shared)))
        return np.unique(first, return_inverse=True)[1]

    def share(self) -> None:
        """Train models with one length scale for all columns; keep the best."""
        root = math.sqrt(len(self._spread))
        starts = []
        for factor, level in product(_SHARED, _NOISE):
            theta = self._given.copy()
            theta[self._lengths] = np.log(factor * root * self._spread)
            theta[self._layout.noise] = math.log(level * self._unit)
            found = exact_marginal_likelihood(self._part, torch.as_tensor(theta), False)
            starts.append((found.value + self._part.log_prior(theta)[0], theta))
        starts.sort(key=lambda start: -start[0])
        for _, theta in starts[:2]:
            self._try(theta, (), 0.0)

    def release(self) -> None:
        """Give columns length scales of their own, as long as the likelihood asks for it."""
        most = int(_MOST_SHARE * len(self._part.X))
        while len(self._own) < most:
            found = self._promising()
            if found is None:
                return
            theta, j = found
            price = _PRICE + math.log(len(self._spread) - len(self._own))
            if not self._try(theta, (*self._own, j), price):
                return

    def _try(self, theta: np.ndarray, own: tuple[int, ...], price: float) -> bool:
        """Train a model; whether it is the best one so far, by more than a price in nats."""
        tied = self._groups(own)
        result = self._trained(np.clip(theta, *self._bounds.T), tied)
        if result is None or not result.value > self._best.value + price:
            return False
        self._best, self._own = Start("", result.theta, result.value, tied=tied), own
        return True

    def _trained(self, theta: np.ndarray, tied: np.ndarray) -> TrainingResult | None:
        budget = self._run.budget.share(1.0)
        try:
            result = train(
                replace(self._part, tied=tied),
                ExactGradient(),
                QuasiNewton(final_gain=_GAIN),
                theta,
                self._bounds,
                max_iter=_STEPS,
                monitor=Monitor(budget=budget),
                generator=self._generator,
            )
        except torch.linalg.LinAlgError:
            return None
        if budget.ended is not None:
            raise StopTraining(budget.ended)
        return result

    # ------------------------------------------------------------------ trials of single columns

    def _promising(self) -> tuple[np.ndarray, int] | None:
        """The column whose own length scale promises most, and the hyperparameters with it."""
        left = np.setdiff1d(self._candidates, self._own)
        best = self._ranked(self._few, left)
        if not self._own:
            self._candidates = np.array(best[:_AGAIN])
        if self._few is not self._part:
            best = self._ranked(self._part, np.array(best[:_ON_ALL]))
        return (self._found[best[0]], best[0]) if best else None

    def _ranked(self, part: GPProblem, columns: np.ndarray) -> list[int]:
        """The columns by the likelihood with each one's own length scale, the best first."""
        values, self._found = np.full(len(columns), -math.inf), {}
        for theta, length in product(list(self._beside()), _OWN):
            own = np.log(length * self._spread[columns])
            trials = _Trials(part, self._lengths, theta)
            for start in range(0, len(columns), _TOGETHER):
                self._run.budget.check()
                some = slice(start, start + _TOGETHER)
                value = trials.values(columns[some], own[some])
                for k in np.flatnonzero(value > values[some]) + start:
                    values[k] = value[k - start]
                    at = theta.copy()
                    at[self._layout.length(int(columns[k]))] = own[k]
                    self._found[int(columns[k])] = at
        order = np.argsort(-values, kind="stable")
        return [int(columns[k]) for k in order if math.isfinite(values[k])]

    def _beside(self) -> Iterator[np.ndarray]:
        """Hyperparameters to which a column is added: the best ones, and without the others."""
        yield self._best.theta
        root = math.sqrt(len(self._spread))
        shared = self._groups(self._own)[self._lengths]
        shared = shared == np.bincount(shared).argmax()
        variances = self._problem.kernel.variances.copy()
        variances[self._layout.noise] = False
        others = [(level, _FAR) for level in _NOISE_BESIDE]
        if not self._own:
            others.append((_NOISE_BESIDE[-1], 1.0))
        for level, factor in others:
            theta = self._best.theta.copy()
            theta[variances] = np.maximum(theta[variances], math.log(self._unit))
            theta[self._layout.noise] = math.log(level * self._unit)
            lengths = theta[self._lengths]
            lengths[shared] = np.log(factor * root * self._spread[shared])
            yield np.clip(theta, *self._bounds.T)


class _Trials:
    """Likelihoods with other length scales of single columns.

    The distances between rows change by the differences of one column, so that each trial costs
    O(r^3) whatever the number of columns.
    """

    def __init__(self, part: GPProblem, lengths: slice, theta: np.ndarray):
        self._part, self._theta, self._lengths = part, torch.as_tensor(theta), lengths
        terms = part.kernel.stationary_terms()
        assert terms is not None  # `is_wide` has checked that.
        self._leaf: Any = terms[0].leaves[0]
        self._amplitude = terms[0].amplitude(self._theta)
        scale = self._leaf.profile.factor**0.5 / torch.exp(self._theta[lengths])
        Z = (part.X - part.X.mean(0)) * scale.to(part.X)
        norms = Z.square().sum(1)
        self._apart = (norms[:, None] + norms - 2 * Z @ Z.T).clamp_min_(0)
        self._noise = part.noise(self._theta)
        self._known = part.repeated(self._theta, False)[0] + part.log_prior(theta)[0]

    def values(self, columns: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Log likelihood plus log prior with each of these logarithms; minus infinity without."""
        Y, leaf = self._part.Y, self._leaf
        n, t = Y.shape
        with one_thread():
            x = self._part.X[:, columns].T.contiguous()
            before = self._theta[self._lengths][columns]
            more = torch.exp(-2 * torch.as_tensor(own)) - torch.exp(-2 * before)
            more = (leaf.profile.factor * more).to(x)[:, None, None]
            u = ((x[:, :, None] - x[:, None, :]).square() * more + self._apart).clamp_min_(0)
            u = u.view(-1, n)
            K = leaf.at(self._theta, u.sqrt_() if leaf.profile.kink else u)
            K = (K * self._amplitude.to(K)).view(-1, n, n)
            K.diagonal(dim1=1, dim2=2).add_(self._noise)
            L, failed = torch.linalg.cholesky_ex(K)
            half = torch.linalg.solve_triangular(L, Y.expand(len(L), n, t), upper=False)
            logs = L.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * n * math.log(2 * math.pi)
            value = -0.5 * half.square().sum((1, 2)) - t * logs
            value[(failed > 0) | value.isnan()] = -math.inf
        return value.cpu().numpy() + self._known
