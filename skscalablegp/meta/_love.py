"""Constant-time variances over any regressor with fast products."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._compat import fit_context
from .._end import End
from .._validation import validated
from ..core import FitRun, GivenRows, GPPredictionBase, fitted_process
from ..core.posteriors import AUTO_RANK, LowRank, LowRankForm, Posterior
from ..models.grid import KISSGPRegressor
from ..models.iterative import SolvedGPRegressor
from ._below import MetaRegressorBase, fit_below

# Rows of each kind at which the variance is compared with exact solves, and the largest number of
# rows that Lanczos starts from.
_HELD_ROWS = 30
_PROBE_ROWS = 1000
# The error at the measured rows must be this many times smaller than variance_tol, which holds for
# all rows.
_MARGIN = 10


class LOVEPredictor(MetaRegressorBase):
    """Low-rank variances, covariances and samples for a Gaussian-process regressor.

    The fit computes, once, a rank-k approximation of the inverse covariance matrix by the Lanczos
    method. After that a variance costs O(k) on a grid, O(m k) with m random features or inducing
    points, and O(n k) with n training rows. The fit also measures the largest difference from exact
    variances, at some rows of the table and at new rows between and near them, and raises the rank
    until this error is small enough. If low-rank variances would not be cheaper than exact ones,
    predictions use exact ones. See :ref:`default_sizes`.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It belongs to this package and has fast products:
        KISSGPRegressor (the default), IterativeGPRegressor, RFFRegressor, SGPRRegressor and others.
        A fitted regressor wrapped in ``sklearn.frozen.FrozenEstimator`` is used as it is, without a
        copy; if it changes, fit this estimator again.
    variance_rank : int or None, default=100
        Rank of the low-rank approximation of the variances. A fit tries this rank first; None is
        the full rank, which is exact up to rounding.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It chooses the rows at
        which the error is measured, and seeds the regressor if that has no seed of its own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. It also limits the
        regressor, unless that has a smaller budget of its own. Variances of the first rank are
        always computed.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. It also
        applies to the regressor if that has "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also applies to the
        regressor if that has "auto"; two different devices are an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also applies to the regressor if that has
        "auto"; two different precisions are an error.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the regressor, followed by a score of stage
        "variances" for each rank.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    max_variance_rank : int or "auto", default="auto"
        Largest rank that a fit tries. "auto" is 1,600; if that is not enough, exact variances are
        used. With an int, a ConvergenceWarning says if the error is still above `variance_tol` at
        that rank.
    variance_tol : float, default=0.0001
        Accepted error of the variances, as a fraction of the target's mean square. The error is the
        largest absolute one at the measured rows.

    Attributes
    ----------
    estimator_ : regressor
        The fitted regressor.
    variance_rank_ : int
        Number of Lanczos vectors in use; the full rank if variances are exact.
    variance_error_ : float
        Largest absolute error of the variance at the measured rows, in units of the target's mean
        square; 0 if variances are exact.
    kernel_ : kernel instance
        The kernel of the regressor.
    log_marginal_likelihood_value_, log_marginal_likelihood_std_error_, lower_bound_ : float
        Those of the regressor, as far as it has them.
    n_iter_ : int
        The regressor's training steps.
    n_samples_seen_ : int
        Number of rows that the regressor was fitted to.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each of the
        regressor's steps, unless it is frozen, and of each rank.
    fit_report_ : FitReport
        How the fit ended, seconds by stage, ``variance_rank`` and ``variance_error``. The status is
        "max_iter" if `max_variance_rank` has ended the growth of the rank, otherwise that of the
        regressor's fit.
    device_, dtype_ : str
        Device and precision of the regressor's predictions.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    Notes
    -----
    The approximation is a Galerkin projection: its variances are never below the exact ones, up to
    rounding.

    References
    ----------
    G. Pleiss, J. R. Gardner, K. Q. Weinberger, A. G. Wilson (2018), Constant-time predictive
    distributions for Gaussian processes.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import KISSGPRegressor, LOVEPredictor
    >>> X = np.random.default_rng(0).uniform(size=(300, 2))
    >>> y = np.sin(5 * X[:, 0]) + X[:, 1]
    >>> gp = LOVEPredictor(KISSGPRegressor(grid_size=10, solver="cg")).fit(X, y)
    >>> mean, std = gp.predict(X[:3], return_std=True)
    >>> bool(gp.variance_error_ < 1e-4)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        estimator=None,
        *,
        variance_rank=100,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        max_variance_rank="auto",
        variance_tol=1e-4,
    ):
        self._set(locals())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = self.estimator if self.estimator is not None else KISSGPRegressor()
        tags.target_tags.multi_output = get_tags(inner).target_tags.multi_output
        return tags

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, noise_variance=None, sample_weight=None) -> LOVEPredictor:
        """Fit the regressor unless it is frozen, then prepare low-rank variances.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows. The error is measured at some of them, and at rows between and near them.
        y : array-like of shape (n,) or (n, t)
            Targets. For a frozen regressor they only determine the unit of the error.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. The regressor
            receives it; for a frozen one it is an error.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row: a row of weight k counts as k equal rows. The regressor receives it,
            so that this must be one that takes weights; for a frozen one it is an error.

        Returns
        -------
        self : object
            The fitted predictor.

        Raises
        ------
        TypeError
            For a regressor whose posterior has no fast products, or that takes no weights.
        ValueError
            For input or settings the model cannot honour, and for columns that are not those of a
            frozen regressor.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            checked, targets = validated(
                self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
            )
            given = GivenRows(self, checked, targets)
            if sample_weight is not None or not isinstance(self.estimator, FrozenEstimator):
                given = GivenRows.read(self, checked, targets, sample_weight=sample_weight)
            checked = given.X
            run.begin(checked, given.y, n_rows=given.n_rows)
            held = _between(checked, run.random_state)
            probes = checked[:: max(1, len(checked) // _PROBE_ROWS)]
            frozen = isinstance(self.estimator, FrozenEstimator)
            if frozen:
                inner = self._frozen(X, noise_variance, sample_weight, run)
            else:
                own = {"noise_variance": noise_variance, "sample_weight": sample_weight}
                inner = self._fitted(X, y, own, held, probes, run)
            form = _form(inner)
            run.device = inner._fit_device()
            run.chose("dtype", _dtype(inner), "the regressor's")
            why = "above half of the full rank, exact variances cost no more"
            run.chose("max_variance_rank", min(AUTO_RANK, form.full // 2), why)
            # The target in the units of the posterior.
            process = fitted_process(inner)
            table = replace(given, model=inner).in_units(process.y_mean, process.y_std)
            scale = max(table.mean_square(), np.finfo(float).tiny)
            made = self._grown(inner, form, held, probes, scale, run)
            self._finish(inner, made, scale)
            self._conclude(inner, frozen, run)
        return self

    def _frozen(
        self, X: Any, noise_variance: Any, sample_weight: Any, run: FitRun
    ) -> GPPredictionBase:
        """The inner regressor, which was fitted before."""
        inner = self.estimator.estimator
        _check_ours(inner)
        check_is_fitted(inner, "n_iter_")
        validated(inner, X, skip_check_array=True, reset=False)
        for name, value in (("noise_variance", noise_variance), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"LOVEPredictor does not fit a frozen regressor again: pass {name} where it "
                    "is fitted."
                )
        run.ignores(("device", "dtype"), "a frozen regressor is not fitted again")
        return inner

    def _fitted(
        self,
        X: Any,
        y: Any,
        own: dict[str, Any],
        held: np.ndarray,
        probes: np.ndarray,
        run: FitRun,
    ) -> GPPredictionBase:
        """The inner regressor, fitted under the budget and the callbacks of this fit."""
        given = KISSGPRegressor() if self.estimator is None else self.estimator
        _check_ours(given)
        known = {name: value for name, value in own.items() if value is not None}
        if "sample_weight" in known and not has_fit_parameter(given, "sample_weight"):
            raise TypeError(
                f"{type(given).__name__} takes no sample_weight, which LOVEPredictor passes to its "
                "regressor: use KISSGPRegressor or IterativeGPRegressor, or repeat the rows."
            )
        inner = self._opened(given, run)

        def preview(model: LOVEPredictor, below: GPPredictionBase) -> None:
            form, rank = _form(below), self._first(below)
            growing = form.growing(*_inputs(below, held, probes), rank, rank)
            model._finish(below, next(growing), 1.0)

        # Products with the table's matrix take time; other low-rank forms take hardly any.
        solved = isinstance(inner, SolvedGPRegressor)
        share = run.budget.share("regressor of variances") if solved else None
        fit_below(inner, run, X, y, preview, share, **known)
        return inner

    def _first(self, inner: GPPredictionBase) -> int:
        """The rank at which growth begins."""
        return _form(inner).full if self.variance_rank is None else self.variance_rank

    def _grown(
        self,
        inner: GPPredictionBase,
        form: LowRankForm,
        held: np.ndarray,
        probes: np.ndarray,
        scale: float,
        run: FitRun,
    ) -> LowRank:
        """Variances with a small enough error, or of the largest rank that the time allows."""
        first, given, made = self._first(inner), self.max_variance_rank, None
        most = None if given == "auto" else max(first, given)
        what = f"Low-rank variances of rank {first}"
        run.check_memory(form.need(min(first, form.full)), what, "use a smaller variance_rank")
        doublings = math.ceil(math.log2(max(1.0, min(most or AUTO_RANK, form.full) / first)))
        run.monitor.begin("variances", 1 + doublings, "minus the variances' error")
        run.preview = lambda model, step: model._finish(inner, made, scale)
        rows = _inputs(inner, held, probes)
        # Without variances of any rank, a first interrupt ends the search at the smallest rank.
        with run.budget.may_end(lambda reason: made is not None or not run.stopped):
            for made in form.growing(*rows, first, most):
                run.monitor.record_score(inner.kernel_.theta, -made.error / scale, 0.0)
                if run.stopped or made.error <= self.variance_tol * scale / _MARGIN:
                    break
        if made is None:
            made = next(form.growing(*rows, first, most))
        run.monitor.close()
        return made

    def _finish(self, inner: GPPredictionBase, made: LowRank, scale: float) -> None:
        """The fitted predictor with these variances."""
        self.estimator_ = inner
        self._share(inner)
        self.n_samples_seen_ = inner.n_samples_seen_
        process = fitted_process(inner)
        self._noise_given = process.noise_given
        self._y_train_mean, self._y_train_std = process.y_mean, process.y_std
        self.variance_rank_, self.variance_error_ = made.rank, made.error / scale
        self._basis = made.basis
        self.dtype_ = _dtype(inner)
        self._remember(made.posterior)

    def _conclude(self, inner: GPPredictionBase, frozen: bool, run: FitRun) -> None:
        """Report how the two fits ended."""
        error, rank = self.variance_error_, self.variance_rank_
        run.reports(
            variance_rank=rank,
            variance_error=error,
            summary=f"variances of rank {rank} over {type(inner).__name__}, whose error is "
            f"{error:.1e} of the target's mean square",
        )
        status, because = End.CONVERGED, ""
        if not frozen:
            status, because = End(inner.fit_report_.status), inner.fit_report_.stop_reason
        if error > self.variance_tol and not run.stopped:
            reason = (
                f"the variances' error {error:.1e} is above variance_tol={self.variance_tol:g} at "
                f"rank {rank}: raise max_variance_rank"
            )
            run.warn(f"{reason}.")
            if status.complete:
                status, because = End.MAX_ITER, reason
        run.ended(status, n_iter=inner.n_iter_, because=because)

    # ------------------------------------------------------------------ predictions

    def _has_low_rank_form(self) -> bool:
        return True

    def _build_posterior(self) -> Posterior:
        basis, form = self._basis, _form(self.estimator_)
        if basis is not None:
            basis = torch.tensor(basis, dtype=form.below.dtype, device=form.below.device)
        return form.posterior(basis)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        return fitted_process(self.estimator_).inputs(X)

    def _input_module(self) -> torch.nn.Module:
        return fitted_process(self.estimator_).input_module()

    def _left_out(self, X, y, noise_variance, rows):
        """Those of the regressor, which knows its rows; low-rank variances have no closed form."""
        process = fitted_process(self.estimator_)
        return process.left_out(X, y, noise_variance, rows) if self._basis is None else None

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        fitted_process(self.estimator_).check_joint_memory(X, what)


def _check_ours(inner: Any) -> None:
    if not (isinstance(inner, GPPredictionBase) and inner._has_low_rank_form()):
        raise TypeError(
            f"LOVEPredictor needs fast products with the covariance matrix, and "
            f"{type(inner).__name__} has none: use KISSGPRegressor, IterativeGPRegressor, or "
            "another regressor of skscalablegp over rows, random features or inducing points."
        )


def _form(inner: GPPredictionBase) -> LowRankForm:
    return fitted_process(inner).posterior.low_rank_form()


def _inputs(inner: GPPredictionBase, *parts: np.ndarray) -> list[torch.Tensor]:
    return [fitted_process(inner).inputs(part) for part in parts]


def _dtype(inner: GPPredictionBase) -> str:
    return str(fitted_process(inner).posterior.dtype).removeprefix("torch.")


def _between(X: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Rows of X, midpoints of pairs of rows, and rows whose columns come from different rows."""
    first, second, *mixed = random_state.randint(len(X), size=(2 + X.shape[1], _HELD_ROWS))
    beside = np.column_stack([X[rows, j] for j, rows in enumerate(mixed)])
    return np.concatenate([X[first], (X[first] + X[second]) / 2, beside])
