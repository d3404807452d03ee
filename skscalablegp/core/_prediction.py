"""Predictions of all regressors: the answers of a posterior as NumPy arrays."""

from __future__ import annotations

from copy import copy
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from .._frames import INTERVAL, as_data_frame
from .._validation import (
    check_coverage,
    check_noise,
    check_noise_variance,
    check_return_flags,
    check_share,
    validated,
)
from ..linalg.gradients import ExactEvaluation
from ._edge import answers
from ._exact_process import ExactProcess
from ._fitted import FittedProcess, LeftOut
from ._model import GPModel
from ._warn import warn_once
from .data import Merged, Table
from .posteriors import Affine, Copies, MeanAndVariance, Posterior, draw_observations

# The default of `alpha` is a jitter relative to the target's variance, in any units.
_DEFAULT_ALPHA = 1e-10
# Posteriors whose users have been warned that predictions leave out known noise.
_TOLD: WeakSet[Posterior] = WeakSet()


class GPPredictionBase(MultiOutputMixin, RegressorMixin, GPModel):
    """Prediction and sampling over a posterior, in the target's own units.

    A subclass defines ``fit``, which sets ``_y_train_mean`` and ``_y_train_std`` of shape () or
    (t,), and ``_build_posterior``, which makes the posterior from fitted NumPy arrays.
    """

    # Whether equal rows with several targets are one, with the mean of their targets.
    _sums_targets: bool = True
    # Whether `fit` was given noise_variance.
    _noise_given: bool = False
    # Fitted attributes of the method, which are None if the exact process replaces it.
    _of_method: tuple[str, ...] = ()

    def _keep_exactly(self, process: ExactProcess) -> ExactEvaluation:
        """Make the exact process the fitted model; returns the evaluation of its likelihood."""
        for name in self._of_method:
            setattr(self, name, None)
        self._exact, self.kernel_, self.dtype_ = process, process.kernel, "float64"
        posterior, evaluation = process.posterior(self._fit_device())
        setattr(self, self._objective, evaluation.value)
        self._remember(posterior)
        return evaluation

    def _n_outputs(self) -> int:
        """The number t of targets."""
        return np.size(self._y_train_mean)

    def _alpha_in_y_units(self) -> bool:
        """Whether `alpha` is in squared units of y although the fit may normalise y.

        With ``normalize_y="auto"`` users do not ask for normalisation, which therefore must not
        change the meaning of an alpha that they set.
        """
        return self.normalize_y == "auto" and not np.array_equal(self.alpha, _DEFAULT_ALPHA)

    def _shares_scale(self, noise_variance: Any) -> bool:
        """Whether all targets are divided by the same number, which known noise requires."""
        known = noise_variance is not None or self._alpha_in_y_units()
        return self.normalize_y == "auto" and known

    def _own_noise(self, n: int, y_std: np.ndarray) -> np.ndarray:
        """`alpha` for n rows in normalised units, (n,)."""
        return check_noise(self.alpha, n) / self._own_unit(y_std)

    def _own_unit(self, y_std: np.ndarray) -> float:
        """The normalised unit of variances in which `alpha` is."""
        return float(np.square(np.ravel(y_std)[0])) if self._alpha_in_y_units() else 1.0

    def _has_low_rank_form(self) -> bool:
        """Whether the posterior of a fit will have a ``low_rank_form``."""
        return False

    def _leaves_out(self) -> str:
        """How ``left_out`` of a fitted process is expected to predict rows; empty if it does not.

        The values are those of `LeftOut.how`.
        """
        return "leave_one_out"

    def _fitted_process(self) -> FittedProcess:
        return FittedProcess(
            self._posterior(),
            self._rows,
            self._inputs,
            self._y_train_mean,
            self._y_train_std,
            self._left_out,
            self._check_joint_memory,
            self._noise_given,
            self._input_module,
            self._with_rows,
        )

    def _with_rows(self, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> Any:
        """A copy with further rows at the same hyperparameters; this model does not change.

        Raises
        ------
        NotImplementedError
            Without a ``partial_fit`` and stored training rows.
        """
        if not hasattr(self, "partial_fit"):
            raise NotImplementedError(
                f"{type(self).__name__} stores no training rows and has no partial_fit: fit it "
                "again with the new rows."
            )
        other = copy(self)  # Fits replace arrays and never change them.
        other._remember(self._remembered())
        given = {} if noise_variance is None else {"noise_variance": noise_variance}
        return other.partial_fit(X, y, **given)

    def _left_out(
        self, X: np.ndarray, y: np.ndarray, noise_variance: Any, rows: np.ndarray
    ) -> LeftOut | None:
        """Predictions of training rows without their own targets; None without a closed form.

        Parameters
        ----------
        X, y, noise_variance
            The arguments of `fit`.
        rows : ndarray of shape (k,)
            Row numbers in increasing order.
        """
        known = self._training_noise(X, noise_variance)
        if known is None:
            return None
        at = self._inputs(X[rows])
        places = torch.as_tensor(rows, device=at.device)
        Y = (y[rows].reshape(len(rows), -1) - self._y_train_mean) / self._y_train_std
        Y, known = (torch.tensor(np.ascontiguousarray(part)).to(at) for part in (Y, known[rows]))
        return self._as_left_out(rows, self._posterior().leave_one_out(places, at, Y, known))

    def _left_out_of(
        self, table: Table, found: Merged | None, X: np.ndarray, y: np.ndarray, rows: np.ndarray
    ) -> LeftOut | None:
        """As `_left_out`, for the posterior of a merged table: of equal rows one is left out.

        Parameters
        ----------
        table : Table
            The rows of the posterior, with targets and noise in its units.
        found : Merged or None
            How rows of X have become those of the table. None if X has the table's own rows, which
            are left out as a whole.
        X, y, rows
            As in `_left_out`.
        """
        if found is not None and not np.array_equal(found.counts, table.counts):
            return None  # The fit has had weights, or other rows have joined.
        groups = rows if found is None else found.groups[rows]
        chosen, place = np.unique(groups, return_inverse=True)
        at = self._inputs(X[chosen] if found is None else X[found.rows][chosen])
        counts = table.counts[chosen]
        stay = np.zeros(len(counts)) if found is None else counts - 1
        own = (y[rows].reshape(len(rows), -1) - self._y_train_mean) / self._y_train_std
        parts = table.targets[chosen], table.noise[chosen], counts, stay, own
        tensors = (torch.tensor(np.ascontiguousarray(part)).to(at) for part in parts)
        Y, known, counts, stay, own = tensors
        of, place = (torch.as_tensor(part, device=at.device) for part in (chosen, place))
        copies = Copies(counts, stay, place, own)
        return self._as_left_out(rows, self._posterior().leave_copies_out(of, at, Y, known, copies))

    def _as_left_out(self, rows: np.ndarray, predicted: MeanAndVariance | None) -> LeftOut | None:
        """Means and variances of normalised targets in the units of the targets."""
        if predicted is None:
            return None
        mean, variance = (part.cpu().double().numpy() for part in predicted)
        std = np.sqrt(variance)[:, None] * self._y_train_std
        mean = mean * self._y_train_std + self._y_train_mean
        return LeftOut(rows, squeeze(mean), squeeze(std), "leave_one_out")

    def _training_noise(self, X: np.ndarray, noise_variance: Any) -> np.ndarray | None:
        """Noise variances of the training rows in normalised units; None if they are unknown."""
        scale = np.atleast_1d(self._y_train_std)
        known = check_noise_variance(noise_variance, len(X), len(scale))
        if known is None and self._noise_given:
            return None
        noise = np.zeros(len(X)) if known is None else known[:, 0] / scale[0] ** 2
        if "alpha" in self.get_params(deep=False):
            noise = noise + self._own_noise(len(X), self._y_train_std)
        return noise

    def _expected_targets(self, X: np.ndarray) -> np.ndarray:
        """Predictions (m, t) of targets."""
        return self._fitted_process().mean(X)

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return validated(self, X, dtype=np.float64, reset=False)

    def _answering(self, X: Any) -> tuple[GPPredictionBase, np.ndarray]:
        """The model that makes the predictions, and the validated rows.

        The model is this one, or the prior if a subclass predicts before a fit.
        """
        return self, self._rows(X)

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        """Validated rows as a tensor for the posterior."""
        posterior = self._posterior()
        # A reordered data frame arrives with negative strides, which torch refuses.
        X = np.ascontiguousarray(X)
        return torch.tensor(X, dtype=posterior.dtype, device=posterior.device)

    def _input_module(self) -> torch.nn.Module:
        """`_inputs` as a torch module, without the conversion of arrays."""
        return Affine()

    def _new_noise(
        self, noise_variance: Any, X: np.ndarray, include_noise: Any = True
    ) -> np.ndarray | None:
        """Known noise variances of new rows, (m, t) in squared target units; None without any."""
        posterior = self._posterior()
        known = check_noise_variance(noise_variance, len(X), self._n_outputs())
        if known is None:
            if include_noise and self._noise_given and posterior not in _TOLD:
                _TOLD.add(posterior)
                warn_once(
                    f"{type(self).__name__} was fitted with noise_variance. Predictions without "
                    "it are for noise-free values. Pass the noise_variance of the new rows to get "
                    "intervals, standard deviations and samples of observations, or "
                    "noise_variance=0 to leave it out.",
                    UserWarning,
                )
            return None
        if not include_noise:
            raise ValueError(
                "noise_variance is a part of the noise, which include_noise=False leaves out. Give "
                "only one of the two."
            )
        if not posterior.likelihood.additive:
            raise ValueError(
                f"noise_variance is the variance of additive noise, which likelihood="
                f"{posterior.likelihood!r} does not have. Leave it out."
            )
        return known

    def _mean_and_std(
        self, X: np.ndarray, known: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of observations, from one evaluation of the kernel."""
        mean, variance, noise = self._fitted_process().moments(X)
        return squeeze(mean), _deviations(variance + noise, known)

    def _std(self, X: np.ndarray, include_noise: bool, known: np.ndarray | None) -> np.ndarray:
        if include_noise:
            return self._mean_and_std(X, known)[1]
        return _deviations(self._fitted_process().variance(X), known)

    def _quantiles(
        self, X: np.ndarray, q: np.ndarray, include_noise: bool, noise_variance: Any
    ) -> np.ndarray:
        """(m, t, k) quantiles in the target's own units."""
        known = self._new_noise(noise_variance, X, include_noise)
        return self._fitted_process().quantiles(X, q, bool(include_noise), known)

    @answers
    def predict(self, X, return_std: bool = False, return_cov: bool = False, noise_variance=None):
        """Predict the mean of y, and on request its standard deviation or covariance.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        return_std : bool, default=False
            Whether to also return standard deviations. They include the white noise of the kernel
            and exclude `alpha`, as in scikit-learn.
        return_cov : bool, default=False
            Whether to also return the joint covariance of all m rows.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, in squared units of the target. They are
            added to the variances and to the diagonal of the covariance. A model whose `fit` was
            given noise_variance warns once if uncertainty is predicted without it; pass 0 for
            observations without such noise.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, t)
            Posterior mean in the target's own units.
        std : ndarray of shape (m,) or (m, t)
            Standard deviations; only with `return_std`.
        cov : ndarray of shape (m, m) or (m, m, t)
            Covariance; only with `return_cov`.

        Raises
        ------
        RuntimeError
            If both `return_std` and `return_cov` are set.
        MemoryError
            If the covariance of all rows does not fit into memory; raised before any work is done.
        ValueError
            If a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.
        """
        check_return_flags(return_std, return_cov)
        model, X = self._answering(X)
        known = model._new_noise(
            noise_variance, X, return_std or return_cov or noise_variance is not None
        )
        if return_cov:
            model._check_joint_memory(X, "return_cov=True")
        if return_std:
            return model._mean_and_std(X, known)
        mean = squeeze(model._fitted_process().mean(X))
        if return_cov:
            return mean, model._covariance(X, known)
        return mean

    @answers
    def predict_std(self, X, include_noise: bool = True, noise_variance=None) -> np.ndarray:
        """Predict standard deviations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        include_noise : bool, default=True
            Whether the standard deviations are those of new observations, with the white noise of
            the kernel and `noise_variance`, or those of the latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        std : ndarray of shape (m,) or (m, t)
            In the target's own units.

        Raises
        ------
        ValueError
            If `noise_variance` is given although ``include_noise=False``.
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.
        """
        model, X = self._answering(X)
        return model._std(X, include_noise, model._new_noise(noise_variance, X, include_noise))

    @answers
    def predict_quantiles(
        self,
        X,
        q,
        include_noise: bool = True,
        noise_variance=None,
        *,
        as_frame: bool = False,
    ):
        """Predict quantiles of new observations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        q : float or array-like of shape (k,)
            Probabilities, strictly between 0 and 1.
        include_noise : bool, default=True
            Whether to include noise, as in `predict_std`. Without it the quantiles are those of
            the latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.
        as_frame : bool, default=False
            Whether to return a pandas data frame with the index of X. It has a column for each
            probability, also if q is one number; with several targets, the numbers of the targets
            are a level of columns above.

        Returns
        -------
        quantiles : ndarray of shape (m,) or (m, t), or (m, k) or (m, t, k), or DataFrame
            In the target's own units; the last axis is there only if q is an array.

        Raises
        ------
        ImportError
            If ``as_frame=True`` and pandas is not installed.
        ValueError
            For probabilities outside (0, 1), or if `noise_variance` is given although
            ``include_noise=False``.
        NotImplementedError
            For a user-defined likelihood without a ``cdf``.
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.

        Notes
        -----
        The predictive distribution is normal, or it is that of a normal latent function plus the
        noise of `likelihood`, such as Student's t. In the second case quantiles are found by root
        finding, to double precision.
        """
        q = check_share(q, "q")
        model, rows = self._answering(X)
        out = model._quantiles(rows, np.atleast_1d(q), include_noise, noise_variance)
        out = out[:, 0] if out.shape[1] == 1 else out
        if as_frame:
            return as_data_frame(out, X, np.atleast_1d(q))
        return out if q.ndim else out[..., 0]

    def _log_density(self, X: np.ndarray, Y: np.ndarray, noise_variance: Any) -> np.ndarray:
        """(m, t) log densities of targets (m, t) in their own units."""
        known = self._new_noise(noise_variance, X)
        return self._fitted_process().log_density(X, Y, known)

    @answers
    def log_predictive_density(self, X, y, noise_variance=None) -> np.ndarray:
        """Log predictive densities of observations, one for each row.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows.
        y : array-like of shape (m,) or (m, t)
            Observed targets, in their own units.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of these observations, as in `predict`.

        Returns
        -------
        log_density : ndarray of shape (m,) or (m, t)
            Natural logarithms, in the target's own units; for counts, log probabilities.

        Raises
        ------
        ValueError
            For targets of another shape, or that are not finite.
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.

        Notes
        -----
        Each row is taken alone: the sum is not a joint density. The predictive distribution is that
        of `predict_quantiles`, with the noise of `likelihood` and any fitted shape of tails. With
        Gaussian noise, the mean over rows is minus the NLPD of `skscalablegp.metrics.nlpd`.
        """
        model, X = self._answering(X)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        Y, t = y.reshape(len(y), -1), model._n_outputs()
        if Y.shape != (len(X), t):
            raise ValueError(
                f"y must hold one value for each row and target, ({len(X)}, {t}); got the shape "
                f"{y.shape}."
            )
        out = model._log_density(X, Y, noise_variance)
        return out[:, 0] if out.shape[1] == 1 else out

    @answers
    def predict_interval(
        self,
        X,
        coverage=0.95,
        include_noise: bool = True,
        noise_variance=None,
        *,
        as_frame: bool = False,
    ):
        """Predict central intervals for new observations.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows to predict.
        coverage : float, default=0.95
            Probability of the interval. The remaining probability is divided equally between
            the two sides.
        include_noise : bool, default=True
            Whether to include noise, as in `predict_std`. Without it the intervals are for the
            latent function.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.
        as_frame : bool, default=False
            Whether to return a pandas data frame with the index of X and the columns "lower" and
            "upper"; with several targets, the numbers of the targets are a level of columns above.

        Returns
        -------
        interval : ndarray of shape (m, 2) or (m, t, 2), or DataFrame
            Lower and upper ends in the target's own units.

        Raises
        ------
        ImportError
            If ``as_frame=True`` and pandas is not installed.
        ValueError
            For a coverage that is not one number in (0, 1), or if `noise_variance` is given
            although ``include_noise=False``.
        NotImplementedError
            For a user-defined likelihood without a ``cdf``.
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.
        """
        ends = check_coverage(coverage)
        model, rows = self._answering(X)
        out = model._quantiles(rows, ends, include_noise, noise_variance)
        out = out[:, 0] if out.shape[1] == 1 else out
        return as_data_frame(out, X, INTERVAL) if as_frame else out

    def _check_joint_memory(self, X: np.ndarray, what: str) -> None:
        """Raise a MemoryError if a joint prediction does not fit, before any work."""
        self._check_memory(*self._posterior().joint_need(self._inputs(X), what))

    def _covariance(self, X: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        posterior = self._posterior()
        rows = self._inputs(X)
        covariance = posterior.covariance(rows)
        covariance.diagonal().add_(posterior.noise(rows))
        covariance = covariance.cpu().double().numpy()
        covariance = covariance[:, :, None] * np.square(self._y_train_std)
        if known is not None:
            np.einsum("iit->it", covariance)[...] += known
        return squeeze(covariance)

    @answers
    def sample_y(self, X, n_samples: int = 1, random_state=0, noise_variance=None) -> np.ndarray:
        """Draw joint samples of y from the posterior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Rows at which to sample.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed of the random draws.
        noise_variance : float, array-like of shape (m,) or (m, t), default=None
            Known noise variances of the new observations, as in `predict`.

        Returns
        -------
        samples : ndarray of shape (m, n_samples) or (m, t, n_samples)
            In the target's own units.

        Raises
        ------
        MemoryError
            If the covariance of all rows does not fit into memory; raised before any work is done.
        ValueError
            If a product of experts has no joint covariance ("bcm", "rbcm" and "grbcm").
        NotFittedError
            Before `fit`, unless the estimator then returns prior predictions.
        """
        model, X = self._answering(X)
        known = model._new_noise(noise_variance, X)
        model._check_joint_memory(X, "sample_y")
        posterior = model._posterior()
        rows = model._inputs(X)
        if known is not None:
            known = known / np.square(model._y_train_std)
        random_state = check_random_state(random_state)
        draws = draw_observations(posterior, rows, known, n_samples, random_state)
        # Further passes over many draws cost more than drawing them: work in place, if at all.
        draws = draws.cpu().double().numpy()
        if np.any(model._y_train_std != 1):
            draws *= np.atleast_1d(model._y_train_std)[:, None]
        if np.any(model._y_train_mean != 0):
            draws += np.atleast_1d(model._y_train_mean)[:, None]
        return draws[:, 0] if draws.shape[1] == 1 else draws


def squeeze(values: np.ndarray) -> np.ndarray:
    """Drop the last axis of a single target, as scikit-learn does."""
    return values[..., 0] if values.shape[-1] == 1 else values


def _deviations(variance: np.ndarray, known: np.ndarray | None) -> np.ndarray:
    """Standard deviations from variances (m, t) and known noise variances (m, t) or None."""
    return squeeze(np.sqrt(variance if known is None else variance + known))
