"""Noise that depends on the input, over any regressor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .._compat import fit_context
from ..core import FitRun, GPPredictionBase
from ..core.data import numbered
from ..core.training import Budget
from ..models.experts import PoERegressor
from ._below import mean_square, told_noise
from ._errors import Errors
from ._noise import (
    FEWEST_ROWS,
    NoiseModel,
    best_noise,
    constant,
    level,
    predicted_by_folds,
    supported,
)
from ._noisy import NoisyRegressorBase
from ._scaled import Scaled
from ._unseen import Trial, Unseen, conclude

# Largest number of closed-form leave-one-out rows; each costs more than a prediction.
_LEFT_OUT = 10_000
# A row is known from the errors of so few copies, which are predicted with its target: the noise
# model predicts it without them. Of more copies each one tells little of another.
_FEW_COPIES = 5
# Parameters that have no effect without held-out rows.
_OF_NOISE = ("residuals", "validation_fraction", "noise_estimator", "tails")


class HeteroscedasticRegressor(NoisyRegressorBase):
    """Standard deviations that depend on the row, for any regressor.

    The inner regressor predicts rows that it was not fitted to. A second regressor, the noise
    model, learns from these predictions how large the errors are at each row; the errors are
    divided by the inner regressor's standard deviations if it has any. Predictions have the mean of
    the inner regressor, fitted on all rows, and its standard deviations times the factor of the
    noise model. See :ref:`default_sizes`.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It may come from this package or from
        scikit-learn, with or without ``return_std``, and may be a pipeline; None is a
        `PoERegressor`. Where its memory budget, device or precision is "auto", the setting of this
        estimator applies.
    noise_estimator : regressor, default=None
        Regressor that learns the size of the errors. It may be any regressor with scikit-learn's
        interface. Its target is the logarithm of the squared standardised error; its features are
        the columns of X, the predicted mean and the logarithm of the standard deviation. None
        compares boosted trees on that target, boosted trees with a gamma loss on the squared
        errors, up to 2,000 rows a Gaussian process, and the product of the best of both targets.
        The variation of every candidate is shrunk by the factor that suits held-out rows best. A
        constant replaces every candidate that does not predict held-out rows better, and is always
        used below 100 rows.
    residuals : {"auto", "leave_one_out", "held_out"} or int, default="auto"
        Method that predicts training rows without having seen them. "leave_one_out" needs no
        further fit, but a regressor with a closed form: exact and iterative processes, experts,
        Fourier features, inducing points and nearest neighbours. A `StackedGPRegressor` has
        held-out rows of its own. An int is the number of cross-fitting folds. "held_out" fits once
        more, without a share of the rows. "auto" takes "leave_one_out" if there is a closed form;
        otherwise it takes 5 folds if fewer than 2,000 rows would be held out, and "held_out" if
        there are more.
    tails : {"normal", "student", "empirical", "auto"}, default="normal"
        Shape of the distribution from which quantiles and intervals are computed. "student" is
        Student's t, and "empirical" takes the quantiles of the standardised errors of held-out
        rows. "auto" fits each shape to each half of these errors and takes the shape with the
        lowest CRPS on the other halves, in which outer quantiles have more weight. With fewer than
        20 rows the shape is normal.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. "held_out" uses it, and above 10,000 rows so do the
        means from which the noise model learns. The regressor that predicts is fitted on all rows
        in the end.
    n_refits : int, default=0
        Number of times that the regressor is fitted again with the learned noise. Its ``fit``
        receives the noise as `noise_variance`, or as weights where it takes `sample_weight`.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds the
        regressor if that has no seed of its own.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept. Up to 60% of it is
        for a first fit: to all rows if there is a closed form, and otherwise without the held-out
        rows that evaluate it. Further folds, and a fit to all rows, begin only if the time of the
        first fit shows that they end in time. If no time is left to learn the noise, standard
        deviations have one factor, from the errors on held-out rows. A regressor of another
        package, or a pipeline, is stopped only between two fits, never within one.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine. It also
        applies to the regressor if that has "auto".
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It also applies to the
        regressor if that has "auto"; two different devices are an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It also applies to the regressor if that has
        "auto"; two different precisions are an error.
    n_jobs : int or None, default=None
        Number of processes that share the work, as in joblib. Fits of members and of folds are
        divided among them; each process receives the table once, and the results are those of one
        process. None means this process, unless a :class:`joblib.parallel_config` context says
        otherwise. This process makes all fits if `max_seconds`, `callbacks` or `checkpoint` is set,
        because these look at every step.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. The steps are those of the regressor; regressors of other packages
        have none.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimator_ : regressor
        The regressor, fitted on all rows; without the held-out rows if time was too short.
    noise_estimators_ : list of regressor
        The fitted regressors whose predictions are multiplied, one or two; none if a constant is as
        good.
    noise_gain_ : float
        Increase of the mean log density of held-out rows over that with constant noise.
    n_residuals_ : int
        Number of rows with predictions by a model that was fitted without them.
    kernel_ : kernel instance
        The kernel of the regressor, if it has one.
    log_marginal_likelihood_value_, log_marginal_likelihood_std_error_, lower_bound_ : float
        Those of the regressor, as far as it has them.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the members' fits.
    fit_report_ : FitReport
        How the fit ended, seconds by stage, and the choices of `residuals`, `noise_estimator` and
        `tails`.
    device_, dtype_ : str
        Device of the fit, and precision of the predictions.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    SVGPRegressor : Likelihoods with heavy tails, with one noise level for all rows.

    Notes
    -----
    The mean among the features of the noise model comes from fits that have not seen the row's
    fold, at the same hyperparameters, even where the errors are those of a closed form. A mean that
    leaves out one row alone can reveal the target of this row.

    Candidates for the noise model are compared on rows that were left out alone, and predict copies
    of a row without one another. The error of a neighbour of such a row knows its target, though.
    Where there is a closed form, the best candidate is therefore fitted again for each fold, to
    errors of a fit without the fold, and is used as far as it predicts the errors of the fold:
    with less variation, or not at all, if new or repeated inputs lose by it. No variance is
    smaller than the number of held-out rows with so small a variance supports: with k of them,
    the mean squared error at inputs that occur once, over k.

    The factor multiplies the whole standard deviation, including that of the latent function,
    because the function is known better where the noise is small. Regressors outside this package
    do not separate the uncertainty of the function from noise, so that ``include_noise=False`` is
    an error for them.

    References
    ----------
    K. Kersting, C. Plagemann, P. Pfaff, W. Burgard (2007), Most likely heteroscedastic Gaussian
    process regression.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import HeteroscedasticRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(400, 1))
    >>> y = np.sin(6 * X[:, 0]) + X[:, 0] ** 2 * rng.standard_normal(400)
    >>> gp = HeteroscedasticRegressor(random_state=0).fit(X, y)
    >>> low, high = gp.predict_std([[0.1], [0.9]])
    >>> bool(high > 3 * low)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        estimator=None,
        noise_estimator=None,
        *,
        residuals="auto",
        tails="normal",
        validation_fraction=0.2,
        n_refits=0,
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
    def fit(self, X, y, noise_variance=None) -> HeteroscedasticRegressor:
        """Fit the regressor, and the noise model to its errors on rows that it was not fitted to.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. The regressor
            receives it; the noise that is learned is added to it.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input or settings the model cannot honour, such as ``residuals="leave_one_out"`` for
            a regressor without a closed form.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            X, y, known = self._read_rows(X, y, noise_variance, run)
            fresh = self._opened(PoERegressor() if self.estimator is None else self.estimator, run)
            told, refits = told_noise(fresh, known), self.n_refits
            if known is not None and "noise_variance" not in told:
                raise ValueError(
                    f"{type(fresh).__name__}.fit takes no noise_variance: fit without it, or use a "
                    "regressor of skscalablegp."
                )
            if refits and not told_noise(fresh, np.ones(1)):
                refits = 0
                reason = f"{type(fresh).__name__}.fit takes no noise_variance and no weights"
                run.ignores("n_refits", reason)
            held = int(self.validation_fraction * len(X))
            unseen = Unseen(
                run, X, y, known, self.residuals, held, _LEFT_OUT, common=False, within=True
            )
            trial, late = self._rounds(fresh, unseen, refits, run)
            self._report_residuals(trial, unseen, run)
            # Meanwhile callbacks receive the model that has been evaluated.
            trial = unseen.refitted(trial, lambda model, _: model._finish(self._learned))
            self._finish(replace(self._learned, inner=trial.inner))
            self._conclude(trial, late, run)
        return self

    def _rounds(
        self, fresh: Any, unseen: Unseen, refits: int, run: FitRun
    ) -> tuple[Trial, list[str]]:
        """Fit the regressor and learn its noise, again and again with the noise of the last round.

        Returns
        -------
        trial : Trial
        late : list of str
            What time did not allow.
        """
        known, extra, kept = unseen.known, 0.0, None
        for left in reversed(range(1 + refits)):
            with run.budget.may_end(keep=kept is not None, inner=True):
                share = run.budget.share("rounds").share(1 / (1 + left))
                trial = unseen.tried(fresh, share, _preview)
                # A later round replaces the one before only if it ends.
                if kept is None or not trial.cut:
                    scaled, late = self._noise_of(trial, unseen, known, extra, run)
                    kept = trial, late
                    self._finish(scaled)
            if run.stopped or trial.cut or not left:
                break
            noise = self._learned.moments(unseen.X)[2]
            unseen = unseen.but(known=noise if known is None else known + noise)
            # Known noise that the regressor received is not part of its own predictions.
            extra = float(np.mean(noise)) if "noise_variance" in unseen.told(fresh) else 0.0
        return kept

    def _noise_of(
        self, trial: Trial, unseen: Unseen, known: Any, extra: float, run: FitRun
    ) -> tuple[Scaled, list[str]]:
        """The noise model and the tails of a regressor, from its errors on rows it has not seen."""
        left, n = trial.left, len(unseen.X)
        self.n_residuals_ = len(left.rows)
        scaled = Scaled(trial.inner, extra=extra)
        if not len(left.rows):
            return scaled, []
        if left.std is None or not left.std.min() > 0:
            # Standard deviations of zero, as those of DummyRegressor, say nothing of errors.
            scaled = replace(scaled, extra=mean_square(unseen.y[left.rows] - left.mean))
        contained = unseen.told(trial.fresh).get("noise_variance", np.zeros(n))
        known = np.zeros(n) if known is None else known
        errors_of = partial(
            Errors.of, y=unseen.y, extra=scaled.extra, contained=contained, known=known
        )
        found = errors_of(left)
        # Errors that are all zero, as those of a single row, say nothing of its deviation.
        rows, squares = found.rows, found.squares
        model = level(squares if squares.any() else np.ones(len(rows)))
        logs, late = np.full(len(rows), model.level), []
        # A mean without one row alone would reveal the row's target. Without means of folds, the
        # columns and the standard deviation are the only features.
        means = np.full(n, np.nan)
        means[left.rows] = left.feature_mean
        sees_mean = bool(np.isfinite(means).sum() >= FEWEST_ROWS)
        if len(rows) >= FEWEST_ROWS:
            late = ["the noise model"]
            share = run.budget.share("noise")
            with run.stage("noise"), share.may_end():
                if not run.stopped and share.left != 0:
                    use = np.isfinite(means) if sees_mean else np.ones(n, bool)
                    found, seen = found.some(use), means if sees_mean else None
                    folds = [(errors_of(a).some(use), errors_of(b)) for a, b in left.folds]
                    model, logs, found = self._best_noise(found, folds, seen, unseen, share)
                    late = []
        elif self.noise_estimator is not None:
            few = f"{len(rows)} rows are too few to learn more than a constant"
            run.ignores("noise_estimator", few)
        if late:
            run.ignores("noise_estimator", "there was no time for a noise model")
        z = found.errors / np.sqrt(found.total * np.exp(logs))
        scaled = replace(scaled, noise=model, sees_mean=sees_mean)
        return scaled.with_tails(self._best_tails(z, run, self.tails)), late

    def _best_noise(
        self,
        found: Errors,
        folds: list[tuple[Errors, Errors]],
        means: np.ndarray | None,
        unseen: Unseen,
        share: Budget,
    ) -> tuple[NoiseModel, np.ndarray, Errors]:
        """The noise model of errors, and its logarithms for errors that it has not seen.

        Where a row was left out alone, the errors of its neighbours know its target. The folds have
        errors of fits without the fold at the other rows, and at its own rows: if there are any,
        the model is used as far as the former predict the latter.
        """
        X, random_state, numbers = unseen.X, unseen.run.random_state, numbered(unseen.X)
        counts = np.bincount(numbers)[numbers]
        groups = np.where(counts <= _FEW_COPIES, numbers, len(X) + np.arange(len(X)))
        given = groups[found.rows] if (counts[found.rows] > 1).any() else None
        F, squares = found.features(X, means), found.squares
        model, logs = best_noise(F, squares, self.noise_estimator, random_state, share.check, given)
        judges = found
        if model.parts and folds:
            tables = [(a.features(X, means), a.squares, b.features(X, means)) for a, b in folds]
            logs = predicted_by_folds(model, tables, share.check)
            judges = Errors.joined([new for _, new in folds])
        repeated = counts[judges.rows] > 1
        model, logs = supported(model, logs, judges.squares, judges.variance, repeated)
        if model.parts:
            return model, logs, judges
        model = constant(squares, counts[found.rows] > 1)
        return model, np.full(len(squares), model.level), found

    def _report_residuals(self, trial: Trial, unseen: Unseen, run: FitRun) -> None:
        """How rows were predicted by models that have not seen them."""
        if not self.n_residuals_:
            unpredicted = "no held-out rows could be predicted"
            run.ignores(_OF_NOISE, unpredicted)
            return
        below, n = type(trial.inner).__name__, len(unseen.X)
        if not trial.own:
            run.chose("residuals", unseen.way, f"{below} has no closed form, and {n:,} rows")
        elif trial.left.how == "held_out":
            why = f"{below} keeps held-out rows of its own"
            run.chose("residuals", "held_out", why)
            run.ignores("validation_fraction", why)
            return
        else:
            run.chose("residuals", "leave_one_out", "there is a closed form")
        if unseen.way != "held_out":
            run.ignores("validation_fraction", "no rows are held out")

    def _finish(self, scaled: Scaled) -> None:
        """The fitted model."""
        self.estimator_ = scaled.inner
        self.noise_estimators_ = [part.regressor for part in scaled.noise.parts]
        self.noise_gain_ = scaled.noise.gain
        self._share(scaled.inner)
        self._keep(scaled)

    def _conclude(self, trial: Trial, late: list[str], run: FitRun) -> None:
        """Report how the fits ended."""
        noise = self._learned.noise
        gain = f" (mean log density {noise.gain:.3g} above that with a constant)"
        run.reports(
            summary=f"standard deviations of {type(self.estimator_).__name__} times {noise.name}, "
            f"from errors at {self.n_residuals_:,} rows{gain if noise.parts else ''}; "
            f"{self._learned.tails.name} tails"
        )
        late = late if trial.whole else [*late, f"{type(self.estimator_).__name__} on all rows"]
        conclude(run, [trial], late)


def _preview(model: HeteroscedasticRegressor, below: GPPredictionBase) -> None:
    model._finish(Scaled(below))
