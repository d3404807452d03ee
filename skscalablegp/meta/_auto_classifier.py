"""The automatic classifier: it compares and weights models within a time budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import MetaEstimatorMixin
from sklearn.utils.validation import check_is_fitted

from .._compat import fit_context
from ..core import FitRun, GPClassifierBase
from ..core.likelihoods import best_power, class_shares, losses_of_powers, towards_shares
from ..core.posteriors import Posterior
from ..models.inducing import SVGPClassifier
from ._auto_base import AutoBase, Trial
from ._comparison import Comparison
from ._division import DividedTable, divided
from ._leaderboard import in_words
from ._members import Candidate, class_candidates
from ._pool import LEAST_WEIGHT, TIE, mixture_weights

# Smaller probabilities are raised to this one, so that a single row cannot decide a comparison.
LEAST_PROBABILITY = 1e-6
# Weight, in rows, of the temperature one.
_AT_ONE = 20.0
# With fewer rows folds keep the hyperparameters of all rows, because training them in each fold
# would take most of the time.
_FEW = 200
# Steps of inducing points for two classes with a given kernel, and their weight: the probabilities
# differ from those of many steps by less than 1e-3.
_QUICK = {"max_iter": 8, "variational_learning_rate": 0.8}
# More classes need smaller steps. On 16 tables of 60 to 190 rows and 3 to 10 classes the log loss
# after these differs from that after 300 small steps by 0.012 on average, and by 0.011 after the
# thirty steps of the default, whose draws are random.
_QUICK_MANY = {"max_iter": 10, "variational_learning_rate": 0.5}


@dataclass(frozen=True, eq=False)
class ValidatedClasses:
    """A fitted classifier, and its probabilities of rows that it was not fitted to.

    Attributes
    ----------
    name : str
    fresh : classifier
        The classifier before the fit.
    inner : classifier
        The fitted classifier.
    probabilities : ndarray of shape (m, c)
        Those of the held-out rows, in the order of the outer classifier's classes; NaN where there
        was no time.
    n_predicted : int
        How many held-out rows it has predicted.
    refits : bool
        Whether a fit on more rows may replace it.
    seconds : float
        Of its fit.
    """

    name: str
    fresh: Any
    inner: Any
    probabilities: Float[np.ndarray, "m c"]
    n_predicted: int
    refits: bool
    seconds: float

    def fitted_again(self, inner: Any) -> ValidatedClasses:
        """The same member with a classifier that was fitted to more rows."""
        return replace(self, inner=inner, refits=False)


class AutoGPClassifier(AutoBase, MetaEstimatorMixin, GPClassifierBase):
    """Calibrated probabilities without settings: models are compared on held-out rows.

    The models, called members, are logistic regression, trees and a Gaussian process with inducing
    points. They are fitted one after another, the cheapest first, to all rows but the held-out
    ones. After each fit, weights are computed from the probabilities of the held-out rows; a single
    member keeps all the weight unless the log loss of a mixture is lower by more than 0.001. A
    temperature, which held-out rows determine, makes the probabilities more or less extreme. In the
    remaining time, the members that have weight are fitted again to all rows. Whenever the time
    ends, the model that predicts has been evaluated on held-out rows. See :ref:`default_sizes`.

    Tables may have numbers, categories, booleans, dates and missing values.

    Parameters
    ----------
    members : list or "auto", default="auto"
        Names of members, and pairs of a name and a regressor, in the order of their fits. Here
        these are classifiers with ``predict_proba``; the names are "linear" (logistic regression),
        "trees" (the average of five boosted classifiers), "randomized_trees", "inducing"
        (`SVGPClassifier`), and "catboost" and "lightgbm" (boosted trees of these packages, if they
        are installed). "auto" compares those of this package and of scikit-learn that suit the
        number of rows.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. At most 10,000 rows are held out; up to 2,000 rows
        five folds replace them.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        classifiers if they have no seed of their own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. None fits all
        members, and repeats identically. Sixty seconds suit most tables.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. A
        member that needs more is dropped.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" leaves it to each member.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. Fits of members and of folds are
        divided among them; each process receives the table once, and the results are those of one
        process. None means this process, unless a :class:`joblib.parallel_config` context says
        otherwise. This process makes all fits if `max_seconds`, `callbacks` or `checkpoint` is set,
        because these look at every step.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the classifiers of this package.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (c,)
        The labels.
    leaderboard_ : Leaderboard
        The members with their log loss on held-out rows as NLL, their weights, seconds and, where
        they were dropped, the reason; it prints as a table.
    explain_ : str
        What predicts, and how it was chosen.
    members_ : list of str
        Names of the members that predict.
    estimators_ : list of classifier
        These members, fitted.
    weights_ : ndarray of shape (k,)
        Their weights.
    temperature_ : float
        Log ratios of the probabilities to `class_prior_` are divided by it. It is infinite where
        held-out rows do not show that the members know more than the shares of the classes.
    class_prior_ : ndarray of shape (c,)
        Shares of the classes, with one more row divided among them.
    held_out_ : ndarray of shape (m,)
        Indices of the held-out rows; all rows where folds are used.
    held_out_proba_ : ndarray of shape (m, c)
        Probabilities of these rows by the weighted members that had not seen them, before the
        temperature.
    encoding_ : list of str
        How the columns that are no plain numbers were encoded.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the members' fits.
    fit_report_ : FitReport
        How the fit ended, and seconds by stage.
    device_, dtype_ : str
        Device of the fit, and precision of the predictions.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    SVGPClassifier : The Gaussian process among the members.

    Notes
    -----
    The cost is O(n log n) in the number n of rows. Probabilities of a mixture are the weighted
    averages of the members' probabilities. Below 200 rows the folds of a Gaussian process share the
    hyperparameters that all rows have determined.

    References
    ----------
    C. Guo, G. Pleiss, Y. Sun, K. Weinberger (2017), On calibration of modern neural networks
    (temperatures).
    D. H. Wolpert (1992), Stacked generalization.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import AutoGPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(150, 2))
    >>> y = np.where(X[:, 0] + 0.2 * rng.standard_normal(150) > 0, "right", "left")
    >>> gp = AutoGPClassifier(random_state=0).fit(X, y)
    >>> gp.predict([[-0.9, 0.0], [0.9, 0.0]]).tolist()
    ['left', 'right']
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        members="auto",
        *,
        validation_fraction=0.2,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        n_jobs=None,
        callbacks=None,
        checkpoint=None,
        verbose=0,
    ):
        self._set(locals())

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y) -> AutoGPClassifier:
        """Compare the members, weight them, choose the temperature, and refit them on all rows.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d)
            Training rows: numbers, categories, booleans, dates and missing values.
        y : array-like of shape (n,)
            Labels of two or more classes.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input or settings the model cannot honour, such as a single class.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            X, y = self._read_mixed(X, y, run)
            y = self._numbered(y)
            self.class_prior_ = class_shares(y, len(self.classes_))
            run.begin(X, y)
            tried = class_candidates(self.members, len(X))
            if isinstance(self.members, str):
                run.chose("members", [each.name for each in tried], f"{len(X):,} rows")
            self._members = []
            codes, fraction = self._encoder.codes_, self.validation_fraction
            rows = divided(X, y, None, run, codes=codes, fraction=fraction, classes=True)
            compared = Comparison(run, "members for classes")
            self._compare(tried, rows, compared)
            self._choose_temperature(rows)
            refitted = [] if run.stopped else self._refit(rows, compared)
            self._conclude(rows, refitted, compared)
        return self

    def _width(self) -> int:
        return len(self.classes_)

    def _answer(self, inner: Any, X: np.ndarray) -> np.ndarray:
        return self._completed(inner, X)

    def _member(
        self, candidate: Candidate, fresh: Any, trial: Trial, rows: DividedTable
    ) -> ValidatedClasses:
        return ValidatedClasses(
            candidate.name,
            fresh,
            trial.inner,
            trial.found,
            trial.n_predicted,
            trial.refits,
            trial.seconds,
        )

    def _shares_kernel(self, candidate: Candidate, n: int) -> bool:
        return candidate.name == "inducing" and n < _FEW

    def _fixed(self, fresh: Any, inner: Any) -> Any:
        fixed, quick = super()._fixed(fresh, inner), _QUICK_MANY
        if len(self.classes_) == 2:
            quick = _QUICK
        return fixed.set_params(**quick) if isinstance(fixed, SVGPClassifier) else fixed

    def _completed(self, inner: Any, X: np.ndarray) -> np.ndarray:
        """Probabilities (m, c) of all classes, of which the rows of a fit may have lacked some."""
        known = np.zeros((len(X), len(self.classes_)))
        known[:, inner.classes_] = inner.predict_proba(X)
        return known

    def _weigh(self, rows: DividedTable) -> None:
        """Weights of the members so far; the model predicts by them."""

        def weigh(members: np.ndarray, common: np.ndarray) -> np.ndarray:
            found = [self._members[k].probabilities for k in members]
            loss = np.stack([_losses(each, rows, common) for each in found])
            single = int(np.argmin(loss.mean(1)))
            if len(loss) > 1:
                mixture = mixture_weights(-loss)
                mixture = np.where(mixture < LEAST_WEIGHT, 0.0, mixture)
                mixture = mixture / mixture.sum()
                pooled = np.tensordot(mixture, found, 1)
                if loss[single].mean() - _losses(pooled, rows, common).mean() > TIE:
                    return mixture
            return np.eye(len(loss))[single]

        self._weights, self.temperature_ = self._weights_by(rows, weigh)[0], 1.0
        self._pool_again(rows)

    def _pool_again(self, rows: DividedTable) -> None:
        chosen = [(w, m) for w, m in zip(self._weights, self._members, strict=True) if w > 0]
        self.members_ = [m.name for _, m in chosen]
        self.estimators_ = [m.inner for _, m in chosen]
        self.weights_ = np.array([w for w, _ in chosen])
        seen = np.sort(rows.order[: min(m.n_predicted for _, m in chosen)])
        self.held_out_ = rows.held[seen]
        self.held_out_proba_ = sum(w * m.probabilities[seen] for w, m in chosen)

    def _previewed(self, model: Any, below: Any) -> None:
        if not self._members:
            model.members_, model.estimators_, model.weights_ = [""], [below], np.ones(1)
            model.temperature_ = 1.0

    def _choose_temperature(self, rows: DividedTable) -> None:
        """The temperature with the smallest log loss of held-out rows.

        It is larger where these rows' probabilities are not clearly better than the shares of the
        classes, and infinite, so that these predict, where they are not better at all.
        """
        scored = np.isin(self.held_out_, rows.held[rows.scored])
        scored = scored if scored.any() else np.ones(len(scored), bool)
        p = torch.as_tensor(np.maximum(self.held_out_proba_[scored], LEAST_PROBABILITY))
        y = torch.as_tensor(rows.y[self.held_out_[scored]])
        # These rows have also chosen the weights of the members.
        n_trained = len(self._members) - 1
        losses = losses_of_powers(p, y, torch.as_tensor(self.class_prior_), n_trained=n_trained)
        power = best_power(losses, at_one=_AT_ONE)
        self.temperature_ = 1 / power if power > 0 else np.inf

    def _conclude(self, rows: DividedTable, refitted: list[str], compared: Comparison) -> None:
        """The leaderboard, the explanation and the report."""
        common = rows.common([each.n_predicted for each in self._members])
        scores = {
            each.name: (float(_losses(each.probabilities, rows, common).mean()), np.nan)
            for each in self._members
        }
        shown = in_words(self.members_, self.weights_.tolist())
        how = "folds" if rows.cross_fitted else "held-out rows"
        said = (
            f"{shown} by the log loss of {self._n_scored:,} of "
            f"{len(rows.y):,} rows ({how}), with temperature {self.temperature_:.2g}"
        )
        self._end([said], scores, refitted, compared)

    # ------------------------------------------------------------------ predictions

    def _probabilities(self, X: np.ndarray) -> np.ndarray:
        pooled = sum(
            weight * self._completed(inner, X)
            for weight, inner in zip(self.weights_, self.estimators_, strict=True)
        )
        pooled = torch.as_tensor(np.maximum(pooled, LEAST_PROBABILITY))
        shares = torch.as_tensor(self.class_prior_)
        return towards_shares(pooled, shares, 1 / self.temperature_).numpy()

    def _build_posterior(self) -> Posterior:
        raise TypeError("An average of classifiers has no posterior of its own: see estimators_.")

    def _by_blocks(self, X: Any, answer: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return answer(self._encoded(X))


def _losses(found: np.ndarray, rows: DividedTable, scored: np.ndarray) -> np.ndarray:
    """Minus the log probability of each scored row's class."""
    y = rows.y[rows.held[scored]]
    return -np.log(np.maximum(found[scored][np.arange(len(y)), y], LEAST_PROBABILITY))
