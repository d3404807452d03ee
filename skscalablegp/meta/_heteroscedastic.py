"""Noise that depends on the input, over any regressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.utils.validation import has_fit_parameter

from .._compat import fit_context
from .._validation import check_noise_variance, validated
from ..core import FitRun, GPPredictionBase
from ..core.posteriors import Posterior
from ..models.experts import PoERegressor
from ._below import fit_below, opened
from ._noise import best_noise, level
from ._scaled import Scaled, ScaledPosterior, Tails, noise_features

# Most rows that are left out in closed form, which costs more than a prediction.
_LEFT_OUT = 10_000
# Held-out rows from which the noise can be learned: below, folds are worth their fits.
_HELD_OUT = 2000
_FOLDS = 5
# Of a time budget, for the fits on all rows.
_FIRST_SHARE = 0.6
# Levels at which shapes of tails are compared.
_LEVELS = np.arange(0.5, 100) / 100
# Fitted attributes that are the regressor's.
_TAKEN = ("kernel_", "log_marginal_likelihood_value_", "lower_bound_")
# What has no effect where no rows were left out.
_OF_NOISE = ("residuals", "validation_fraction", "noise_estimator", "tails")


class HeteroscedasticRegressor(MetaEstimatorMixin, GPPredictionBase):
    """Standard deviations that depend on the row, for any regressor.

    The regressor below predicts rows that it has not seen; how large its errors are there, measured
    in its own standard deviations where it has any, is what a second regressor learns. Predictions
    keep the mean of the regressor, fitted to all rows, and have its standard deviations times what
    was learned.

    Parameters
    ----------
    estimator : regressor, default=None
        Regressor on which this estimator builds. It is any regressor of this package or of
        scikit-learn, with ``return_std`` or without, pipelines included; None is a `PoERegressor`.
        Its settings of budget, device and precision are this one's where it leaves them open.
    noise_estimator : regressor, default=None
        Regressor that learns the size of the errors. It is any regressor of scikit-learn's kind,
        fitted to the logarithms of squared standardised errors by the columns, the predicted mean
        and the logarithm of the standard deviation. None tries boosted trees on logarithms, boosted
        trees with a gamma loss on squares and, up to 2,000 rows, a Gaussian process. Whatever it
        is, it is shrunk as left-out rows advise, and a constant takes its place where it does not
        beat one there.
    residuals : {"auto", "leave_one_out", "held_out"} or int, default="auto"
        Method that predicts training rows without having seen them. "leave_one_out" needs no
        further fit, but a regressor with a closed form: exact and iterative processes, experts,
        Fourier features, inducing points. An int is the number of cross-fitting folds. "held_out"
        fits once more, without a share of the rows. "auto" takes the first that there is; 5 folds
        where fewer than 2,000 rows would be held out.
    validation_fraction : float, default=0.2
        Fraction of the rows that is held out. The final mean is fitted on all rows in any case.
    n_refits : int, default=0
        Number of times that the regressor is fitted again with the learned noise. It is handed to
        its ``fit`` as `noise_variance`, or as weights where that takes `sample_weight`.
    tails : {"normal", "student", "empirical", "auto"}, default="normal"
        Shape of the distribution from which quantiles and intervals are computed. It is normal,
        Student's t, or that of the standardised errors of left-out rows; "auto" takes the one with
        the lowest CRPS on the half of these rows that it was not fitted to.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It also seeds a
        regressor that has no seed of its own.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses what the machine has free. It is passed
        on to a regressor that has no budget of its own.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. It is the regressor's,
        too, where that has "auto"; another one of its own is an error.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. It is the regressor's, too, where that has
        "auto"; another one of its own is an error.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. They see the steps of the regressor, where it is one of this package.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.
        The fit on all rows has 60% of it; noise that there is no time to learn is constant.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    estimator_ : regressor
        The regressor, fitted on all rows.
    noise_estimator_ : regressor or None
        What learned the size of errors; None where a constant is as good.
    noise_gain_ : float
        What that gains over a constant on rows left out, in nats a row.
    n_residuals_ : int
        Rows that were predicted without having been seen.
    kernel_ : kernel instance
        The regressor's, where it has one.
    log_marginal_likelihood_value_, lower_bound_ : float
        The regressor's, whichever it has.
    n_iter_ : int
        Training steps of all fits.
    n_samples_seen_ : int
        Rows of the fit.
    history_ : dict of lists
        stage, iteration, theta, objective and its name, residual, epochs and seconds of each step
        of the fits below.
    fit_report_ : FitReport
        How the fit ended, seconds by stage, and what `residuals`, `noise_estimator` and `tails`
        became.
    device_, dtype_ : str
        Where the fit ran, and in what precision predictions are given.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Their names where X had any.

    See Also
    --------
    SVGPRegressor : Likelihoods with heavy tails, at the same noise everywhere.

    Notes
    -----
    The factor applies to the whole standard deviation, that of the latent function included: where
    noise is small, the function is known better. Regressors outside this package do not tell
    function and noise apart, so that ``include_noise=False`` is an error.

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

    def __init__(
        self,
        estimator: Any = None,
        noise_estimator: Any = None,
        *,
        residuals: Any = "auto",
        validation_fraction: Any = 0.2,
        n_refits: Any = 0,
        tails: Any = "normal",
        random_state: Any = None,
        memory_budget: Any = "auto",
        device: Any = "auto",
        dtype: Any = "auto",
        callbacks: Any = None,
        max_seconds: Any = None,
        verbose: Any = 0,
    ):
        self._set(locals())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    # ------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, noise_variance: Any = None) -> HeteroscedasticRegressor:
        """Fit the regressor, and the size of its errors on rows that it has not seen.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variances, handed to the regressor; what is learned comes on top.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For input or settings the model cannot honour, such as leaving out rows of a regressor
            that has no closed form for it.
        MemoryError
            When the work would not fit, before it starts.
        """
        with FitRun(self) as run:
            X, y = validated(self, X, y, y_numeric=True, dtype=np.float64)
            known = check_noise_variance(noise_variance, len(X), 1)
            known = None if known is None else known[:, 0]
            self._noise_given = known is not None
            run.begin(X, y)
            given = PoERegressor() if self.estimator is None else self.estimator
            fresh = opened(given, self, run, getattr(self, "feature_names_in_", None))
            self.dtype_ = run.chose("dtype", "float64", "predictions; the regressor has its own")
            told, extra = _told(fresh, known, None, run), 0.0
            self.n_residuals_ = 0
            for left in reversed(range(1 + self.n_refits)):
                inner = clone(fresh)
                share = _FIRST_SHARE / (1 + left)
                ended = fit_below(inner, run, X, y, _preview, share, **told)
                run.preview = None
                self._finish(Scaled(inner, extra=extra))
                self._learn(fresh, X, y, known, told, run)
                if run.stopped or not left:
                    break
                noise = self._learned.moments(X)[2]
                extra, told = float(np.mean(noise)), _told(fresh, known, noise, run)
            self._conclude(ended, run)
        return self

    def _learn(self, fresh: Any, X: np.ndarray, y: np.ndarray, known: Any, told: Any, run: FitRun):
        """The size of errors on rows that were left out."""
        found = None if run.stopped else self._unseen(fresh, X, y, told, run)
        if found is None:
            run.ignores(_OF_NOISE, "the fit ended before rows could be predicted without them")
            return
        rows, mean, variance = found
        below, errors = self._learned, y[rows] - mean
        if variance is None:
            extra = max(float(np.mean(np.square(errors))), np.finfo(float).tiny)
            below = replace(below, extra=extra)
        else:
            noise = told.get("noise_variance", np.zeros(len(X)))[rows]
            variance = np.maximum(variance - noise, 1e-12 * variance)
        variance = below.extra + (np.zeros(len(rows)) if variance is None else variance)
        total = variance + (0 if known is None else known[rows])
        squares = np.square(errors) / total
        model = level(squares)
        logs = np.full(len(rows), model.level)
        with run.stage("noise", optional=True):
            model, logs = best_noise(
                noise_features(X[rows], mean, variance),
                squares,
                self.noise_estimator,
                run.random_state,
                run.monitor.check_time,
            )
        tails = self._best_tails(errors / np.sqrt(total * np.exp(logs)), run)
        self.n_residuals_ = len(rows)
        self._finish(replace(below, noise=model, tails=tails))

    def _best_tails(self, z: np.ndarray, run: FitRun) -> Tails:
        """The shape of standardised errors, `z`."""
        if self.tails != "auto":
            return Tails.of(self.tails, z)
        order = run.random_state.permutation(len(z))
        fitted, new = z[order[::2]], z[order[1::2]]
        losses = {}
        for name in ("normal", "student", "empirical"):
            beyond = new[:, None] - Tails.of(name, fitted)(ndtri(_LEVELS))
            losses[name] = np.mean(np.maximum(_LEVELS * beyond, (_LEVELS - 1) * beyond))
        best = min(losses, key=losses.get)
        return Tails.of(run.chose("tails", best, "the lowest CRPS of rows left out"), z)

    def _unseen(self, fresh: Any, X: np.ndarray, y: np.ndarray, told: Any, run: FitRun):
        """Rows, their means, and their variances where there are any; None without time."""
        inner, way, n = self._learned, self.residuals, len(X)
        if way in ("auto", "leave_one_out"):
            rows, found = np.sort(run.random_state.permutation(n)[:_LEFT_OUT]), None
            with run.stage("leave one out", optional=True):
                found = inner.left_out(X, y, told.get("noise_variance"), rows)
            if found is not None:
                run.chose("residuals", "leave_one_out", "there is a closed form")
                return found[0], found[1], found[2] ** 2
            if run.stopped:
                return None
            if way == "leave_one_out":
                raise ValueError(
                    f"{type(fresh).__name__} has no closed form of the predictions for rows left "
                    "out: use residuals='auto'."
                )
            held = int(self.validation_fraction * n)
            few = held < _HELD_OUT
            why = f"no closed form, and {held:,} of {n:,} rows would be held out"
            way = run.chose("residuals", min(_FOLDS, n) if few else "held_out", why)
        if n < 2:
            return None
        if way == "held_out":
            splits = ShuffleSplit(1, test_size=self.validation_fraction)
        else:
            splits = KFold(min(way, n), shuffle=True)
            run.ignores("validation_fraction", "no rows are held out")
        splits.random_state = int(run.random_state.randint(2**31 - 1))
        parts = []
        for fitted, new in splits.split(X):
            below = clone(fresh)
            noises = {k: v[fitted] for k, v in told.items()}
            # What callbacks see meanwhile is the model of all rows.
            seen = lambda model, _: model._finish(inner)  # noqa: E731
            fit_below(below, run, X[fitted], y[fitted], seen, **noises)
            if run.stopped:
                break
            own = told.get("noise_variance", np.zeros(n))[new]
            mean, variance, _ = replace(inner, inner=below).below(X[new])
            parts.append((new, mean, None if variance is None else variance + own))
        if not parts:
            return None
        rows, mean, variance = zip(*parts, strict=True)
        variance = None if variance[0] is None else np.concatenate(variance)
        return np.concatenate(rows), np.concatenate(mean), variance

    def _finish(self, scaled: Scaled) -> None:
        """The fitted model."""
        self._learned, self.estimator_ = scaled, scaled.inner
        self.noise_estimator_, self.noise_gain_ = scaled.noise.regressor, scaled.noise.gain
        for name in _TAKEN:
            if hasattr(scaled.inner, name):
                setattr(self, name, getattr(scaled.inner, name))
        self._y_train_mean, self._y_train_std = np.float64(0), np.float64(1)
        self._remember(self._build_posterior())

    def _conclude(self, ended: tuple[str, str], run: FitRun) -> None:
        """How the fits ended."""
        noise = self._learned.noise
        run.reports(
            summary=f"standard deviations of {type(self.estimator_).__name__} times {noise.name}, "
            f"from {self.n_residuals_:,} rows left out ({noise.gain:.3g} nats a row better than a "
            f"constant); {self._learned.tails.name} tails"
        )
        status, because = ended
        run.ended(status, n_iter=len(run.monitor.steps), because=because)

    # ------------------------------------------------------------------ what predictions need

    def _build_posterior(self) -> Posterior:
        return ScaledPosterior(self._learned)

    def _std(self, X: np.ndarray, include_noise: bool, known: Any) -> np.ndarray:
        self._check_latent(X, include_noise)
        return super()._std(X, include_noise, known)

    def _quantiles(self, X: np.ndarray, q: np.ndarray, include_noise: bool, noise_variance: Any):
        self._check_latent(X, include_noise)
        return super()._quantiles(X, q, include_noise, noise_variance)

    def _check_latent(self, X: np.ndarray, include_noise: bool) -> None:
        """Refuse deviations of a function that the regressor does not tell from noise."""
        if not include_noise and self._learned.core(X[:1])[0] is None:
            raise ValueError(
                f"{type(self.estimator_).__name__} cannot leave the noise out: include_noise=False "
                "is for regressors of skscalablegp."
            )


def _preview(model: HeteroscedasticRegressor, below: GPPredictionBase) -> None:
    model._finish(Scaled(below))


def _told(fresh: Any, known: Any, noise: Any, run: FitRun) -> dict[str, np.ndarray]:
    """What the fit of the regressor is told of the noise of its rows.

    Parameters
    ----------
    fresh : regressor
    known : ndarray of shape (n,) or None
        What the user knows.
    noise : ndarray of shape (n,) or None
        What was learned.
    run : FitRun
    """
    if has_fit_parameter(fresh, "noise_variance"):
        parts = [part for part in (known, noise) if part is not None]
        return {"noise_variance": np.sum(parts, axis=0)} if parts else {}
    if known is not None:
        raise ValueError(f"{type(fresh).__name__}.fit takes no noise_variance.")
    if noise is None:
        return {}
    if has_fit_parameter(fresh, "sample_weight"):
        weight = 1 / np.maximum(noise, 1e-3 * np.median(noise))
        return {"sample_weight": weight / weight.mean()}
    run.ignores("n_refits", f"{type(fresh).__name__}.fit takes no noise_variance and no weights")
    return {}
