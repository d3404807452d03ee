"""Starting hyperparameters, compared before training so that no fit begins where it cannot learn.

At length scales of one standard deviation, two rows of thirty independent columns are far apart.
The covariance matrix is then diagonal, its gradient is zero, and noise explains the target: the
likelihood has an optimum at which the model has learned nothing. Starts that know which columns
matter, or at which distance rows are neighbours, lie in the basin of a better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, reduce
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._end import End
from ..kernels import SumOverColumns
from ..linalg.gradients import (
    ExactGradient,
    GPProblem,
    exact_marginal_likelihood,
    log_density,
)
from ._fast_columns import StartRows, starting_lengths
from ._layout import Layout, Start
from ._leave_one_out import left_out
from ._signal import FEWEST_ROWS, Signal, simple_signals
from ._training_run import Run
from ._visible import visible
from ._wide import is_wide, wide_start
from .data import RandomOrder, problem_spread, problem_square, problem_varies
from .training import Monitor, QuasiNewton, StopTraining, train

# Number of rows whose likelihood compares all starts, of rows on which the best are trained, and of
# rows that simple models see.
_COMPARED, _TRAINED, _ASKED = 300, 600, 2000
# Number of steps of that training, and of starts that are trained; if they explain nothing although
# simple models do, so many more follow.
_STEPS, _FINALISTS, _FURTHER = 8, 2, 4
# It ends earlier if a step promises less than this, in nats: along a ridge where amplitude and
# length scales grow together, further steps change both by much and gain nothing.
_GAIN = 0.5
# Number of times that columns with long length scales are tried again, and the gain in nats for
# which a shorter one is kept.
_TRIES, _WORTH = 2, 2.0
# Nats by which the likelihood may fall for each column whose length scale is shortened to where it
# shows, which is half a nat in theory. Without a limit the NLPD of onehot-5of130-1500 was 0.81 in
# place of 0.64 (benchmarks/starts.py).
_PRICE = 1.5
# Columns that simple models use are tried with these length scales in units of their spread, too,
# and with these shares of the noise.
_STEEP, _LESS_NOISE = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16), (1.0, 1 / 3)
# Length scales of a summand of one column, in units of its spread, and the number of sweeps.
_OF_SUMMAND, _SWEEPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 3.0, 10.0), 2
# Factors of the variance of all summands, and of the noise, between these sweeps.
_AMPLITUDES, _NOISES_OF_SUM = (1 / 3, 1.0, 3.0, 10.0, 30.0), (1 / 3, 1.0, 2.0)
# Length scales in units of the columns' spread times the root of the number of columns, which is
# about the distance between two rows.
_FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
# Factors for the columns that matter, and the largest factor of the other columns.
_OF_RELEVANT, _FAR = (1 / 4, 1 / 2, 1.0, 2.0), 4.0
# A column matters if its relevance is at least this share of the largest; both shares are tried.
_SHARES = (0.05, 0.01)
# Noise variances in units of the target's mean square.
_NOISE = (1.0, 0.1, 0.01)
# Seconds of a time budget below which simple models are not fitted, and starts not trained.
_TIME_FOR_MODELS, _TIME_FOR_TRAINING = 1.0, 0.3
# Fewest columns for which it is worth estimating which matter.
_FEWEST_COLUMNS = 2
# A model has found the signal if it explains this share of what a simple model explains.
_FOUND = 0.3


def choose_start(
    problem: GPProblem,
    theta: np.ndarray,
    run: Run,
    max_iter: int | None = None,
    keep_steps: bool = True,
    ask: Callable[..., list[Signal]] | None = None,
    as_given: bool = False,
) -> Start:
    """The best of several starts, by the likelihood of some rows.

    The candidates are the given hyperparameters; length scales between a sixteenth of the root of
    the number of columns and four times that root, in units of the columns' spread; and long ones
    for all columns but those that boosted trees or a linear model use. Each comes with several
    noise variances. The likelihood of a few hundred rows ranks them, the best ones of different
    origin are trained for a few steps, and the better one is the start. If it explains little of
    what a simple model explains, further ones are trained.

    A wide table has the start of `wide_start` in place of these, most of whose length scales are
    tied.

    Callbacks do not see these steps. The rows do not depend on the run's random numbers.

    Parameters
    ----------
    problem : GPProblem
        The rows, and the kernel with its bounds.
    theta : ndarray of shape (p,)
        The given start, which is one of the candidates.
    run : Run
        Its monitor decides what there is time for: the comparison of likelihoods always, the
        others if the budget allows.
    max_iter : int, optional
        A limit of training, which holds for each start, too.
    keep_steps : bool, default=True
        Whether the start is where its few steps have led. If not, they only show which start is
        better: noisy gradients do not hold a position on a ridge that exact ones have reached.
    ask : callable, optional
        Stands for `simple_signals`, for example if several kernels on the same rows share them.
    as_given : bool, default=False
        Whether all length scales of a wide table are free, as those of the user's kernel are.

    Returns
    -------
    start : Start

    Notes
    -----
    O(m^3) for each of up to a hundred candidates (m = 300 rows), of up to seventy steps (m = 600),
    and of one to eleven likelihoods for each column that these steps have left out (m = 600).
    """
    given = Start("the given values", np.asarray(theta, dtype=float))
    if not _comparable(problem):
        return given
    if is_wide(problem) and not as_given:
        return wide_start(problem, given.theta, run)
    steps = _STEPS if max_iter is None else min(_STEPS, max_iter)
    search = _Search(problem, given, run, steps, ask)
    run.monitor.begin("starts")
    with run.budget.may_end():
        search.compare()
        if isinstance(problem.kernel.node, SumOverColumns):
            search.sweep(problem.kernel.node)
        else:
            search.train()
            if keep_steps:
                search.reconsider()
                search.release()
    return search.best if keep_steps else search.best_before_steps


def _comparable(problem: GPProblem) -> bool:
    """Whether the kernel has length scales, and the rows a covariance that is cheap to compute."""
    kernel = problem.kernel
    if not (problem.has_rows and kernel.vectors and len(problem.X) > 1 and kernel.n_params):
        return False
    return problem_varies(problem) and not kernel.numpy_code and len(Layout.of(kernel).own) > 0


class _Search:
    """The candidates of one fit, and the best start so far."""

    def __init__(
        self,
        problem: GPProblem,
        given: Start,
        run: Run,
        steps: int,
        ask: Callable[..., list[Signal]] | None = None,
    ):
        self._run, self.best, self._steps = run, given, steps
        self._ask = ask or simple_signals
        self._given, self._layout = given, Layout.of(problem.kernel)
        self._bounds = problem.kernel.bounds.numpy()
        # The rows do not depend on the seed, because exact fits do not depend on one.
        self._generator = torch.Generator().manual_seed(0)
        self._order = RandomOrder.drawn(len(problem.X), self._generator)
        self._problem, self._start_rows = problem, StartRows.of(problem, run.fast)
        self._ranked: list[Start] = []
        self._signals: list[Signal] = []
        self._kept: tuple[np.ndarray, Tensor] | None = None

    @property
    def best_before_steps(self) -> Start:
        """The best start, without the steps that were made to find it."""
        before = self.best.before
        return self.best if before is None else replace(self.best, theta=before)

    def _rows(self, m: int) -> GPProblem:
        """m random rows, some of them neighbours if the table asks for it, in double precision."""
        rows = torch.as_tensor(self._start_rows.chosen(self._order[:m].cpu().numpy()))
        part = self._problem.random_part(rows.to(self._problem.X.device)).to(torch.float64)
        return replace(part, keep=True)

    # ------------------------------------------------------------------ the comparison

    def compare(self) -> None:
        """Rank all candidates by the likelihood of some rows."""
        part = self._rows(_COMPARED)
        self._rank(part, [self._given, *self._isotropic()])
        n, d = self._problem.X.shape
        asks = n >= FEWEST_ROWS and d >= _FEWEST_COLUMNS and self._layout.lengths is not None
        if asks and self._run.budget.allows(_TIME_FOR_MODELS):
            self._signals = self._ask(*self._start_rows.read(self._order[:_ASKED].numpy()))
            self._rank(part, [*self._relevant()])
        self._rank(part, [*self._fast()])

    def _rank(self, part: GPProblem, starts: list[Start]) -> None:
        valued = []
        for start in starts:
            value = self._value(part, start.theta)
            if math.isfinite(value):
                valued.append(replace(start, value=value))
        # Sorting is stable: of equals, the given values come first.
        self._ranked = sorted([*self._ranked, *valued], key=lambda start: -start.value)
        if self._ranked:
            self.best = self._ranked[0]

    def _isotropic(self) -> Iterator[Start]:
        """All length scales longer or shorter by the same factor."""
        spread, layout = self._spread, self._layout
        for factor in _FACTORS:
            theta = self._given.theta.copy()
            if layout.lengths is None:
                theta[layout.own] += math.log(factor)
            else:
                theta[layout.lengths] = self._lengths(spread * math.sqrt(len(spread)) * factor)
            yield from self._noises("the spread of the columns", theta)

    def _relevant(self) -> Iterator[Start]:
        """Short length scales for the columns that simple models use, long ones for the others."""
        spread, root = self._spread, math.sqrt(len(self._layout.columns))
        for signal in self._signals:
            relevance = signal.relevance[self._layout.columns]
            if not signal.clear or relevance.max() <= 0:
                continue
            share = relevance / relevance.max()
            scales = [
                np.where(share >= s, 1.0, np.inf) * np.sqrt((share >= s).sum()) for s in _SHARES
            ]
            scales.append(np.sqrt(share.sum() / np.maximum(share, 1e-6)))
            distinct = {tuple(scale): scale for scale in scales}
            for scale, factor in product(distinct.values(), _OF_RELEVANT):
                theta = self._given.theta.copy()
                scale = np.minimum(scale * factor, _FAR * root)
                theta[self._layout.lengths] = self._lengths(spread * scale)
                yield from self._noises(f"the columns used by {signal.model}", theta)

    def _fast(self) -> Iterator[Start]:
        """Short length scales for a column over whose range the target varies many times."""
        fast, columns = self._start_rows.fast, list(self._layout.columns)
        if fast is None or fast.column not in columns or self._layout.n_lengths != len(columns):
            return
        place, given = columns.index(fast.column), self.best.theta[self._layout.lengths]
        for lengths in starting_lengths(fast.width, place, self._spread, given):
            theta = self._given.theta.copy()
            theta[self._layout.lengths] = lengths
            yield from self._noises(f"neighbours in column {fast.column}", theta)

    @cached_property
    def _spread(self) -> np.ndarray:
        return problem_spread(self._problem, self._layout.columns)

    def _lengths(self, scale: np.ndarray) -> np.ndarray:
        """Logarithms for one length scale a column, or for a single one for all."""
        size = self._layout.n_lengths
        return np.log(scale) if size == len(scale) else np.full(size, np.log(scale).mean())

    def _noises(self, origin: str, theta: np.ndarray) -> Iterator[Start]:
        """The same length scales with several noise variances, within the bounds."""
        unit = problem_square(self._problem)
        for level in _NOISE if len(self._layout.noise) and unit > 0 else (None,):
            at = theta.copy()
            if level is not None:
                at[self._layout.noise] = math.log(level * unit)
            yield Start(origin, np.clip(at, *self._bounds.T))

    def sweep(self, node: SumOverColumns) -> None:
        """Choose the length scale of one column after the other, in place of a few steps.

        In a sum over columns, another length scale changes one summand only, so that each trial
        costs a factorisation, whatever the number of columns.
        """
        part, layout, best = self._rows(_COMPARED), self._layout, self.best
        if layout.n_lengths != len(layout.columns):
            return
        spread = self._spread

        def summand(theta: np.ndarray, column: int) -> Tensor:
            smooth = node.summands[column].smooth(torch.as_tensor(theta), part.X, part.X)
            assert smooth is not None  # Only white noise has no smooth part.
            return smooth

        def value(theta: np.ndarray, K: Tensor) -> float:
            self._run.budget.check()
            return _value_with(part, theta, K)

        theta, swept = best.theta.copy(), list(node.single)
        summands = {column: summand(theta, column) for column in swept}
        total = reduce(torch.add, summands.values())
        top = value(theta, total)
        for _ in range(_SWEEPS):
            theta, top, scale = self._rescaled(value, theta, top, total)
            total = total * scale
            summands = {column: own * scale for column, own in summands.items()}
            for column in swept:
                rest, place = total - summands[column], layout.length(column)
                noises = _LESS_NOISE if self._is_used(column) else (1.0,)
                before = theta.copy()
                for factor in _OF_SUMMAND:
                    tried = before.copy()
                    tried[place] = math.log(factor * spread[column])
                    tried = np.clip(tried, *self._bounds.T)
                    own = summand(tried, column)
                    for less in noises:
                        again = tried.copy()
                        again[self._layout.noise] += math.log(less)
                        again = np.clip(again, *self._bounds.T)
                        if (reached := value(again, rest + own)) > top:
                            theta, top, summands[column] = again, reached, own
                total = rest + summands[column]
                # The budget may end the sweep at any column.
                self.best = replace(best, theta=theta, value=top)
            near = np.log(_OF_SUMMAND[-2] * spread)
            swept = [j for j in swept if theta[layout.length(j)] < near[j]]

    def _rescaled(
        self, value: Callable[..., float], theta: np.ndarray, top: float, total: Tensor
    ) -> tuple[np.ndarray, float, float]:
        """Choose the variance of all summands, and return its factor after theta and the value.

        They share a variance that is right for all columns; a few that matter need more.
        """
        signal = self._problem.kernel.variances.copy()
        signal[self._layout.noise] = False
        before, factor = theta, 1.0
        for scale, less in product(_AMPLITUDES, _NOISES_OF_SUM):
            tried = before.copy()
            tried[signal] += math.log(scale)
            tried[self._layout.noise] += math.log(less)
            inside = np.array_equal(tried, np.clip(tried, *self._bounds.T))
            if inside and (reached := value(tried, total * scale)) > top:
                theta, top, factor = tried, reached, scale
        return theta, top, factor

    def _is_used(self, column: int) -> bool:
        """Whether a simple model that predicts held-out rows uses this column of the kernel."""
        clear = (s.relevance[self._layout.columns] for s in self._signals if s.clear)
        return any(r[column] > _SHARES[-1] * r.max() for r in clear)

    # ------------------------------------------------------------------ a few steps

    def train(self) -> None:
        """Train the best candidates of different origin for a few steps; keep the best."""
        seen: dict[str, Start] = {}
        for start in self._ranked:
            seen.setdefault(start.origin, start)
        first, part = list(seen.values())[:_FINALISTS], self._rows(_TRAINED)
        trained = self._trained(part, first)
        if not trained or len(part.X) < FEWEST_ROWS or not self._missed(part, trained[0]):
            return
        others = [start for start in self._ranked if all(start is not one for one in first)]
        self._trained(part, others[:: max(1, len(others) // _FURTHER)][:_FURTHER], trained)

    def reconsider(self) -> None:
        """Try columns that training has left out again, in addition to those that it uses.

        A column that adds little to others may look like noise while their length scales are
        wrong. Its own then grows, and with it the distance to any slope: only a comparison of
        likelihoods shows that the column matters now.
        """
        part, d = self._rows(_TRAINED), len(self._layout.columns)
        several = self._layout.n_lengths == d > 1
        if not several or len(part.X) < FEWEST_ROWS or self.best.before is None:
            return
        settled = self._trained(part, [self.best])
        near = self._lengths(2 * math.sqrt(d) * self._spread)
        for _ in range(_TRIES if settled else 0):
            best, gains = self.best, []
            for j in map(int, np.flatnonzero(best.theta[self._layout.lengths] > near)):
                self._run.budget.check()
                tried = [
                    (self._value(part, theta), theta)
                    for theta in self._with_column(j, float(near[j]), best.theta)
                ]
                value, theta = max(tried, key=lambda one: one[0])
                if (value - best.value) * len(part.X) > _WORTH:
                    gains.append((value, j, theta))
            joined = self._joined(part, best, sorted(gains, key=lambda one: -one[0]))
            if joined is best:
                return
            self._trained(part, [joined], [best])

    def release(self) -> None:
        """Shorten length scales whose columns would not show in the likelihood of all rows.

        A column that adds less than the noise of a few rows hides is left out there: its length
        scale grows until its slope vanishes, and no step of training on all rows brings it back.
        It therefore begins where the Fisher information of its logarithm is one nat. The
        information falls with the fourth power of a long length scale. Where the given values are
        the start, no length scale becomes shorter than the given one. If the likelihood then falls
        by much more than half a nat for each of these columns, they were rightly left out.
        """
        places, problem, least = self._layout.lengths, self._problem, self._bounds[:, 0]
        several = self._layout.n_lengths == len(self._layout.columns)
        if places is None or not several or self.best.before is None:
            return
        if self.best.origin == self._given.origin:
            least = np.maximum(least, self._given.theta)
        theta = visible(problem, places, self.best.theta, least[places], self._run.budget.check)
        if theta is None:
            return
        part = self._rows(_TRAINED)
        fall = self._value(part, self.best.theta) - self._value(part, theta)
        if fall * len(problem.X) <= _PRICE * (theta != self.best.theta).sum():
            self.best = replace(self.best, theta=theta)

    def _joined(
        self, part: GPProblem, start: Start, gains: list[tuple[float, int, np.ndarray]]
    ) -> Start:
        """The start with all columns that add a gain to those before them, the best one first."""
        for _, j, theta in gains:
            both = start.theta.copy()
            both[self._layout.length(j)] = theta[self._layout.length(j)]
            noise = self._layout.noise
            both[noise] = np.minimum(both[noise], theta[noise])
            value = self._value(part, both)
            if value > start.value:
                start = Start(start.origin, both, value)
        return start

    def _with_column(self, j: int, near: float, theta: np.ndarray) -> Iterator[np.ndarray]:
        """The hyperparameters with a shorter length scale of column j, shorter ones for one that
        simple models use; what a steep function explains has been taken for noise.
        """
        theta = theta.copy()
        theta[self._layout.length(j)] = near
        yield np.clip(theta, *self._bounds.T)
        if not self._is_used(j):
            return
        for length, noise in product(_STEEP, _LESS_NOISE):
            steep = theta.copy()
            steep[self._layout.length(j)] = math.log(length * self._spread[j])
            steep[self._layout.noise] += math.log(noise)
            yield np.clip(steep, *self._bounds.T)

    def _value(self, part: GPProblem, theta: np.ndarray) -> float:
        """Log likelihood plus log prior, in nats a row; minus infinity without a factor."""
        if isinstance(part.kernel.node, SumOverColumns):
            return _value_with(part, theta, self._smooth(part, theta))
        try:
            found = exact_marginal_likelihood(part, torch.as_tensor(theta), eval_gradient=False)
        except torch.linalg.LinAlgError:
            return -math.inf
        return (found.value + part.log_prior(theta)[0]) / len(part.X)

    def _smooth(self, part: GPProblem, theta: np.ndarray) -> Tensor:
        """The covariance without noise, kept while only the noise variances change."""
        shape = np.delete(theta, self._layout.noise)
        if self._kept is None or not np.array_equal(self._kept[0], shape):
            self._kept = shape, part.kernel.cross(torch.as_tensor(theta), part.X, part.X)
        return self._kept[1]

    def _trained(
        self, part: GPProblem, starts: list[Start], before: Iterable[Start] = ()
    ) -> list[Start]:
        """The starts after a few steps, with those before, the best first."""
        done = list(before)
        for start in starts:
            if not self._run.budget.allows(_TIME_FOR_TRAINING):
                break
            budget = self._run.budget.share(1.0)
            try:
                result = train(
                    part,
                    ExactGradient(),
                    QuasiNewton(final_gain=_GAIN),
                    start.theta,
                    self._bounds,
                    max_iter=self._steps,
                    monitor=Monitor(budget=budget),
                    generator=self._generator,
                )
            except torch.linalg.LinAlgError:
                continue
            if budget.ended is End.INTERRUPTED:
                raise StopTraining(budget.ended)
            if math.isfinite(result.value):
                value = result.value / len(part.X)
                done.append(Start(start.origin, result.theta, value, start.theta))
        done.sort(key=lambda start: -start.value)
        if done:
            self.best = done[0]
        return done

    def _missed(self, part: GPProblem, start: Start) -> bool:
        """Whether this start explains little of what a simple model explains."""
        best = self._signals[0] if self._signals else None
        if best is None or not best.clear:
            return False
        unexplained = left_out(part, torch.as_tensor(start.theta)).unexplained
        return 1 - unexplained < _FOUND * best.explained


def _value_with(part: GPProblem, theta: np.ndarray, K: Float[Tensor, "n n"]) -> float:
    """Log likelihood plus log prior in nats a row, from the covariance without noise."""
    X, Y, H, at = part.X, part.Y, K.clone(), torch.as_tensor(theta)
    H.diagonal().add_(part.noise(at))
    L, failed = torch.linalg.cholesky_ex(H)
    if failed:
        return -math.inf
    density = log_density(L, Y, torch.cholesky_solve(Y, L)) + part.repeated(at, False)[0]
    return (density + part.log_prior(theta)[0]) / len(X)
