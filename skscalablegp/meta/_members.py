"""The regressors that an automatic estimator compares, in the order in which it fits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..core import GAIN_PER_ROW, SMALL_TABLE
from ..core.training import QuasiNewton
from ..models.deep import SCGDDKLRegressor
from ..models.inducing import SVGPClassifier
from ..models.iterative import IterativeGPRegressor
from ..models.neighbors import NNGPRegressor
from ._boosters import BOOSTERS, BoosterClassifier, BoosterRegressor, CatBoost, required
from ._trees import BoostedClasses, BoostedTrees, RandomizedTrees

# With fewer rows trees have too few rows a leaf to gain, and five fits of them take most of the
# time.
_FEWEST_FOR_TREES = 200
# Rows of the exact process on a larger table. Its length scales tell which columns matter.
_EXACT_ROWS = 1500
# Above this number of rows, held-out rows choose the size of trees.
_CHOSEN_TREES = 10_000
# Steps of logistic regression, and number of randomised trees for classes.
_LOGISTIC_STEPS, _RANDOM_TREES = 1000, 200
# Rows a second of fits in steps, a quarter of what one core does beside the steps (measured on
# 1,000,000 rows of 10 columns: benchmarks/budgets.py --rows 1000000 --columns 10 --clock cpu).
_NEIGHBORS_A_SECOND, _POINTS_A_SECOND = 30_000, 10_000
# Rows a second of neighbours that train nothing, which only need an index: from the same run.
_INDEXED_A_SECOND = 100_000
# Rows a second of the exact process, and the fewest. On two drawn functions of 10 and 26 columns
# fits to 300, 500 and 1,000 rows had the lowest NLL after 0.25, 0.5 and 1 seconds of one core, and
# those to 1,500 rows had hardly begun after 0.25 seconds.
_EXACT_A_SECOND, _FEWEST_EXACT = 1000, 300
# Rows a second of boosted trees, which end their growth in time by themselves: a hundred trees of
# 31 leaves on 8,000 rows of 26 columns take 0.4 seconds of one core, and 0.23 on 2,000 rows.
_BOOSTED_A_SECOND = 20_000
# The share of the time of boosted trees is large, because the trees leave what they do not need to
# others. With a share of 1, a time limit cut them on hotel; this share and a cheaper encoding of
# levels reduced the NLL after ten processor seconds from -0.145 to -0.286 (suite.py --tables hotel
# --clock cpu). Shares of the time of members that need little, and of those that usually gain most.
_LITTLE, _MUCH = 0.3, 2.0
# Members that can represent fine structure.
_PROCESSES = ("exact", "neighbors")
# Number of neighbourhoods where nothing is trained and the likelihood is only evaluated.
_CENTERS = 100
# Number of neighbourhoods whose density training maximises, at least and at most, and for each
# second of the whole budget. Four to eight steps of three seconds with 200 of them reduced the NLPD
# by 0.03 to 0.06 on two tables of the suite's half for choices (hotel, pol); one step with 1,000
# reduced it by nothing.
_TRAINED_CENTERS, _CENTERS_A_SECOND = (200, 1000), 20
# Up to this number of rows boosted trees for classes are small and learn slowly.
_FEW_FOR_CLASSES = 50_000
# Above these numbers of rows, all rows need more time than the other members.
_MOST_ITERATIVE, _MOST_DEEP = 10_000, 50_000


@dataclass(frozen=True)
class Candidate:
    """A regressor that is not fitted yet.

    Attributes
    ----------
    name : str
    make : callable
        ``make(kernel)`` gives the regressor, with the trained kernel of the exact process or None.
    rows : int or None
        Largest number of rows that it is fitted to.
    shared : bool
        Whether it needs the kernel of the exact process.
    starts : bool
        Whether its training starts from that kernel, where there is one.
    rate : float or None
        Rows for each second of its time, which limit the rows of a fit in steps: under a budget the
        work beside the steps must not take more than about a quarter of it.
    fewest : int
        Smallest number of rows to which `rate` limits a fit.
    part : float
        Its time under a budget, relative to that of others.
    follows : tuple of str
        Cheaper members that it refines. It is fitted after all others, and under a budget earlier
        if one of these is the best so far.
    again : callable or None
        ``again(kernel)`` gives the regressor of a refit, which keeps the trained kernel.
    some : ndarray or None
        The rows that it is fitted to, where they have been drawn already.
    """

    name: str
    make: Callable[[Any], Any]
    rows: int | None = None
    shared: bool = False
    rate: float | None = None
    fewest: int = 5000
    part: float = 1.0
    follows: tuple[str, ...] = ()
    again: Callable[[Any], Any] | None = None
    some: np.ndarray | None = None
    starts: bool = False

    @property
    def waits(self) -> bool:
        """Whether it depends on the kernel of the exact process."""
        return self.shared or self.starts


def _linear(kernel: Any) -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))


def _shared_neighbors(kernel: Any) -> Any:
    return NNGPRegressor(kernel, normalize_y=True, optimizer=None, n_centers=_CENTERS)


def _all_rows(kernel: Any) -> Any:
    return IterativeGPRegressor(kernel, normalize_y=True, optimizer=None)


def _trained_neighbors(kernel: Any, n: int, seconds: float | None) -> Any:
    """Training starts from the kernel of the exact process, where there is one."""
    centers = _TRAINED_CENTERS[1]
    if seconds is not None:
        centers = int(np.clip(_CENTERS_A_SECOND * seconds, *_TRAINED_CENTERS))
    # The scores of the documentation are without wide neighbourhoods, which take most of a fit.
    settings = dict(n_centers=centers, n_wide_neighbors=0)
    if kernel is None:
        return NNGPRegressor(**settings)
    # The kernel has been trained: other starts would only take time.
    optimizer = QuasiNewton(gain_tol=max(0.5, GAIN_PER_ROW * n), compare_starts=False)
    return NNGPRegressor(
        kernel, normalize_y=True, optimizer=optimizer, subset_size=None, **settings
    )


def known_candidates(n: int, seconds: float | None = None) -> dict[str, Candidate]:
    """All members by name, for a fit of n rows in so many seconds, in the order of their cost."""
    small = n <= SMALL_TABLE
    every = (
        Candidate("linear", _linear, part=_LITTLE),
        Candidate(
            "trees",
            lambda kernel: BoostedTrees(compared=n > _CHOSEN_TREES),
            rate=_BOOSTED_A_SECOND,
            part=_MUCH,
        ),
        Candidate(
            "exact",
            lambda kernel: IterativeGPRegressor(),
            None if small else _EXACT_ROWS,
            rate=_EXACT_A_SECOND,
            fewest=_FEWEST_EXACT,
            part=_MUCH,
        ),
        Candidate("neighbors", _shared_neighbors, shared=True, rate=_INDEXED_A_SECOND, part=_MUCH),
        Candidate("iterative", _all_rows, shared=True, follows=_PROCESSES),
        Candidate(
            "trained_neighbors",
            lambda kernel: _trained_neighbors(kernel, n, seconds),
            rate=_NEIGHBORS_A_SECOND,
            part=_MUCH,
            follows=_PROCESSES,
            again=_shared_neighbors,
            starts=True,
        ),
        Candidate("randomized_trees", lambda kernel: RandomizedTrees(), follows=("trees",)),
        Candidate("deep", lambda kernel: SCGDDKLRegressor(), follows=_PROCESSES),
        Candidate("catboost", lambda kernel: CatBoost()),
        Candidate("lightgbm", lambda kernel: BoosterRegressor("lightgbm", "LGBMRegressor")),
    )
    return {each.name: each for each in every}


def default_names(n: int) -> list[str]:
    """Names of the members that are compared on n rows."""
    if n < _FEWEST_FOR_TREES:
        return ["exact", "linear"]
    if n <= SMALL_TABLE:
        return ["linear", "exact", "trees", "randomized_trees"]
    names = ["linear", "trees", "exact", "neighbors"]
    if n <= _MOST_ITERATIVE:
        names.append("iterative")
    names.append("trained_neighbors")
    return [*names, "randomized_trees", "deep"] if n <= _MOST_DEEP else names


def class_candidates(members: Any, n: int) -> list[Candidate]:
    """The classifiers that the parameter `members` stands for; raises as `candidates` does."""

    def logistic(kernel: Any) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=_LOGISTIC_STEPS))

    def randomized(kernel: Any) -> Any:
        return ExtraTreesClassifier(_RANDOM_TREES, min_samples_leaf=2)

    every = (
        Candidate("linear", logistic, part=_LITTLE),
        Candidate("trees", lambda kernel: BoostedClasses(small=n <= _FEW_FOR_CLASSES)),
        Candidate("randomized_trees", randomized),
        Candidate("inducing", lambda kernel: SVGPClassifier(), rate=_POINTS_A_SECOND, part=_MUCH),
    )
    known = {each.name: each for each in every}
    # Boosters join where they are asked for.
    for name, kind in zip(BOOSTERS, ("CatBoostClassifier", "LGBMClassifier"), strict=True):
        known[name] = Candidate(name, lambda kernel, of=(name, kind): BoosterClassifier(*of))
    names = ["linear", "inducing"] if n < _FEWEST_FOR_TREES else [each.name for each in every]
    return _chosen(members, known, names, "predict_proba")


def candidates(members: Any, n: int, seconds: float | None = None) -> list[Candidate]:
    """The regressors that the parameter `members` stands for, for a fit in so many seconds.

    Raises
    ------
    ValueError
        For an empty list, an unknown name, a name that occurs twice, or an object that is no
        regressor.
    ImportError
        For a member whose package is not installed.
    """
    return _chosen(members, known_candidates(n, seconds), default_names(n), "predict")


def _chosen(
    members: Any, known: dict[str, Candidate], names: list[str], method: str
) -> list[Candidate]:
    """The given members, or those with the default names."""
    if isinstance(members, str):
        return [known[name] for name in names]
    found: list[Candidate] = []
    for each in members:
        pair = isinstance(each, Sequence) and not isinstance(each, str) and len(each) == 2
        if isinstance(each, str) and each in known:
            if each in BOOSTERS:
                required(each)
            found.append(known[each])
        elif pair and isinstance(each[0], str) and hasattr(each[1], "fit"):
            if not hasattr(each[1], method):
                raise ValueError(f"members: {each[0]!r} has no {method}, but is {each[1]!r}.")
            found.append(Candidate(each[0], lambda kernel, own=each[1]: own))
        else:
            raise ValueError(
                f"members must be 'auto' or a list of names out of {sorted(known)} and of pairs of "
                f"a name and an estimator, got {each!r}."
            )
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not found or twice:
        said = f"{twice[0]!r} twice" if twice else "an empty list"
        raise ValueError(f"members must hold at least one member, each name once, got {said}.")
    needs = [each.name for each in found if each.shared]
    if needs and "exact" not in names[: names.index(needs[0])]:
        found = [each for each in found if each.name != "exact"]
        found.insert([each.name for each in found].index(needs[0]), known["exact"])
    return found
