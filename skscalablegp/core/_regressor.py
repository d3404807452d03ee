"""Base classes of regressors that keep their training table (a grid keeps its sums)."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from .._compat import fit_context
from .._validation import (
    check_n_targets,
    validated,
)
from ..kernels import ObjectRows, TorchKernel, compile_kernel
from ..linalg.gradients import GPProblem, exact_marginal_likelihood
from ._defaults import KNOWN_NOISE, table_kernel
from ._edge import answers
from ._exact import fit_exactly
from ._exact_process import ExactProcess
from ._fitted import LeftOut
from ._given import GivenRows, GivenShards, own_rows
from ._model import check_categories
from ._prediction import GPPredictionBase
from ._run import FitRun
from .data import Table, have_merged, known_noise, n_columns
from .posteriors import Affine

# The largest variance whose square single precision can hold.
_LARGEST_SINGLE = 1e30


# Not typing.Self, which the checks of annotations under pytest cannot resolve in a method.
T = TypeVar("T", bound="TableRegressorBase")


class TableRegressorBase(GPPredictionBase):
    """A regressor with a kernel that keeps its training table."""

    # The point from which rows are measured, to keep their digits in single precision.
    _origin: np.ndarray | float = 0.0

    # Whether fits measure rows from their mean, where only differences of rows matter.
    _centres: bool = False

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self: T, X, y, noise_variance=None, sample_weight=None) -> T:
        """Train the hyperparameters and compute what predictions need.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Training rows.
        y : array-like of shape (n,) or (n, t)
            Targets.
        noise_variance : float or array-like of shape (n,), optional
            Known noise variance of each row, in the target's own units squared. Split by
            cross-validation when metadata routing is on.
        sample_weight : float or array-like of shape (n,), optional
            Weight of each row. A row of weight k counts as k equal rows, each with the noise of
            one, and a row of weight zero is left out. Weights need not be whole numbers. Equal rows
            are merged before the fit, so that weights and repeated rows give the same model; they
            need noise.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            For invalid input or settings.
        MemoryError
            If the work would not fit into memory; raised before it starts.
        """
        with FitRun(self) as run:
            table = self._read_table(X, y, noise_variance, run, sample_weight)
            kernel = self._compile_kernel(table, run)
            table = table.centred(kernel) if self._centres else table
            plan = self._planned(table, kernel, run)
            run.follow(plan)
            if plan.exact_instead:
                table = table.whole()
            some = table.sample()
            run.begin(some.X, some.y, n_rows=table.n_rows)
            self._keep_table(table)
            if plan.exact_instead:
                fit_exactly(table, kernel, plan.stages, run)
            else:
                self._fit_method(table, kernel, plan, run)
        return self

    def _planned(self, table: Table, kernel: TorchKernel, run: FitRun) -> Any:
        """The plan of a fit, before any work; refuses kernels that the method cannot use.

        If the exact process may take the place of the method, `stages` of the plan are the settings
        of its training.
        """
        raise NotImplementedError

    def _fit_method(self, table: Table, kernel: TorchKernel, plan: Any, run: FitRun) -> None:
        """Train by the method, set the fitted attributes and report."""
        raise NotImplementedError

    def _has_low_rank_form(self) -> bool:
        return True

    def _accepted_rows(self, kernel: Any) -> dict[str, Any]:
        """Arguments of `validate_data` for the rows that a kernel accepts."""
        if not self._any_kernel or kernel is None or kernel.requires_vector_input:
            return {"dtype": np.float64}
        return {"dtype": None, "ensure_2d": False}

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "n_iter_")
        return validated(self, X, reset=False, **self._accepted_rows(self.kernel_))

    def _read_table(
        self,
        X: Any,
        y: Any,
        noise_variance: Any,
        run: FitRun,
        sample_weight: Any = None,
        copy: bool | None = None,
    ) -> Table:
        """The validated table, in which equal rows have been merged into one.

        Also sets the attributes of `validate_data` and `_noise_given`. `copy` says whether X is
        copied; the default is the parameter `copy_X_train`.
        """
        ranks = own_rows()
        if ranks is not None:
            return GivenShards.read(ranks).table(run)
        given = GivenRows.read(self, *self._read_own_rows(X, y), noise_variance, sample_weight)
        copy = self.copy_X_train if copy is None else copy
        if copy and isinstance(given.merging.rows, slice):
            given = replace(given, X=given.X.copy())
        return given.table(run)

    def _read_own_rows(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Validated rows and targets in double precision."""
        accepted = self._accepted_rows(self.kernel)
        X, y = validated(self, X, y, multi_output=True, y_numeric=True, **accepted)
        check_n_targets(self.n_targets, y)
        return X, y.astype(np.float64)

    def _read_more(
        self, X: Any, y: Any, noise_variance: Any, sample_weight: Any, run: FitRun
    ) -> Table:
        """Further rows for `partial_fit` in the model's units, equal ones merged into one."""
        X, y = validated(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, reset=False
        )
        check_n_targets(self._n_outputs(), y)
        check_categories(self._trained_kernel(), X)
        given = GivenRows.read(self, X, y.astype(np.float64), noise_variance, sample_weight)
        more = given.in_units(self._y_train_mean, self._y_train_std)
        self._noise_given |= noise_variance is not None
        run.begin(more.X, more.y, self.n_samples_seen_, n_rows=more.n_rows)
        return more

    def _training_noise(self, X: np.ndarray, noise_variance: Any) -> np.ndarray | None:
        kept = getattr(self, "X_train_", None)
        if kept is None:  # A grid keeps sums of its rows.
            return super()._training_noise(X, noise_variance)
        # The time budget has left a random part of the rows, whose numbers are unknown.
        return self._noise_train if len(kept) == len(X) else None

    # The table, as attributes of the fitted model.
    _ROWS = ("X_train_", "y_train_", "_noise_train", "_counts_train", "_within_train")
    # What the rows stand for; None where each stands for itself, which `Table` fills.
    _counts_train: Any = None
    _within_train: Any = None

    def _left_out(self, X, y, noise_variance, rows) -> LeftOut | None:
        if self._counts_train is None:
            return super()._left_out(X, y, noise_variance, rows)
        if np.array_equal(X, self.X_train_):
            return self._left_out_of(self._table(), None, X, y, rows)
        found = GivenRows.read(self, X, np.asarray(y, dtype=np.float64), noise_variance).merging
        return self._left_out_of(self._table(), found, X, y, rows)

    def _join_exactly(self, run: FitRun, remedy: str) -> None:
        """Make the exact process of the table, which rows have joined, the fitted model."""
        process = ExactProcess(self._table(), self.kernel_)
        n = len(process.table.X)
        run.check_memory(24 * n * n, f"The exact process of {n} rows", remedy)
        evaluation = run.finish("factor", lambda: self._keep_exactly(process))
        run.reports(jitter=evaluation.jitter, summary=f"the exact process of {n} rows")

    def _append(self, more: Table) -> int:
        """Append such rows to the table; returns the number of rows."""
        self._keep_table(self._table().joined(more))
        return len(self.X_train_)

    def _compile_kernel(self, table: Table, run: FitRun) -> TorchKernel:
        """The kernel as torch functions; the default kernel starts at values from the table."""
        kernel = self._numbered_kernel(table.X)
        if kernel is None:
            kernel = self._default_kernel(table)
        d = n_columns(table.X)
        noisy = table.noise_range()[1] < KNOWN_NOISE
        priors = self._priors(kernel, (len(table.X), d), noisy, run)
        compiled = compile_kernel(kernel, d, self._any_kernel, priors)
        self._check_categories(table, compiled)
        self._check_kernel(kernel, compiled, table)
        table.check_separable(compiled)
        return compiled

    def _check_categories(self, table: Table, kernel: TorchKernel) -> None:
        """Raise a ValueError if codes of categories are not whole numbers."""
        table.each(_check_categories, kernel)

    def _check_kernel(self, kernel: Kernel, compiled: TorchKernel, table: Table) -> None:
        """Refuse kernels of noise alone, and variances that the precision cannot hold."""
        if not self._any_kernel and not compiled.node.products():
            raise ValueError(
                f"kernel={kernel} is noise alone and has no function to learn: add a kernel such "
                "as RBF() to it, or use IterativeGPRegressor, which accepts it."
            )
        if self.dtype == "float32" and np.max(kernel.diag(table.sample().X[:1])) > _LARGEST_SINGLE:
            raise ValueError(
                f"kernel={kernel} has variances above {_LARGEST_SINGLE:g}, which dtype='float32' "
                "cannot hold: use dtype='float64'."
            )

    def _default_kernel(self, table: Table) -> Kernel:
        """The default kernel at the values from which training starts."""
        return table_kernel(table)

    def _trained_kernel(self) -> TorchKernel:
        """`kernel_` as torch functions."""
        rows = vars(self).get("X_train_")
        d = self.n_features_in_ if rows is None else n_columns(rows)
        return compile_kernel(self.kernel_, d, self._any_kernel)

    def _trained_problem(self, dtype: torch.dtype = torch.float64, keep: bool = False) -> GPProblem:
        """The training table with the trained kernel."""
        return self._table().problem(self._trained_kernel(), dtype, self._fit_device(), keep)

    def _keep_table(self, table: Table) -> None:
        """Make the table part of the fitted model; rows of several ranks are in none."""
        rows: tuple[Any, ...] = (table.X, table.y, table.noise) if table.here else (None,) * 3
        self.X_train_, self.y_train_, self._noise_train = rows
        self._y_train_mean, self._y_train_std = table.y_mean, table.y_std
        self._origin = table.origin
        repeats = table.counts, table.within
        self._counts_train, self._within_train = repeats if have_merged(*repeats) else (None, None)

    def _table(self) -> Table:
        """The table that the fitted model keeps."""
        if self.X_train_ is None:
            raise ValueError(
                f"This {type(self).__name__} was fitted to rows of several ranks, which it does "
                "not keep: read the attributes of the fit, or fit in one process."
            )
        table = Table(
            self.X_train_,
            self.y_train_,
            self._y_train_mean,
            self._y_train_std,
            self._noise_train,
            self._origin,
        )
        if self._counts_train is None:
            return table
        return replace(table, counts=self._counts_train, within=self._within_train)

    def _with_rows(self: T, X: np.ndarray, y: np.ndarray, noise_variance: Any = None) -> T:
        """As in the base class; without ``partial_fit``, by a fit in the units of the kernel."""
        if hasattr(self, "partial_fit"):
            return super()._with_rows(X, y, noise_variance)
        other, settings = self._grown(X, y, noise_variance), self.get_params(deep=False)
        table = _parted(other._table())
        given = {"sample_weight": table.counts}
        if np.ptp(table.noise) > 0:
            given["noise_variance"] = table.noise
        # In the units of the kernel, neither the mean nor the scale is computed again.
        alpha = 0.0 if "noise_variance" in given else table.noise[0]
        fixed = {"kernel": self.kernel_, "optimizer": None, "normalize_y": False, "alpha": alpha}
        fit = clone(self).set_params(**fixed).fit(table.X, table.y, **given)
        fit._y_train_mean, fit._y_train_std = table.y_mean, table.y_std
        fit._noise_given = other._noise_given
        return fit.set_params(**settings)

    def _grown(self: T, X: np.ndarray, y: np.ndarray, noise_variance: Any) -> T:
        """A copy whose table has further rows, which predictions do not know yet."""
        other, mean, std = copy(self), self._y_train_mean, self._y_train_std
        known = self._own_noise(len(X), std) + known_noise(noise_variance, len(X), std)
        other.n_samples_seen_ += len(X)
        other._noise_given |= noise_variance is not None
        other._append(Table(X, (y - mean) / std, mean, std, known))
        return other

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        if "ensure_2d" in self._accepted_rows(self.kernel_):
            posterior = self._posterior()
            return ObjectRows.of(X).to(dtype=posterior.dtype, device=posterior.device)
        return super()._inputs(X - self._origin)

    def _input_module(self) -> torch.nn.Module:
        return Affine(self._origin)

    def _value_at(self, theta: Any, eval_gradient: bool, kept: str):
        """Objective of training and its gradient at theta; without theta the attribute `kept`."""
        check_is_fitted(self, "kernel_")
        if theta is None:
            if eval_gradient:
                raise ValueError("Gradient can only be evaluated for theta!=None")
            return np.float64(getattr(self, kept))
        theta = torch.as_tensor(np.asarray(theta, dtype=np.float64))
        p = len(self.kernel_.theta)
        if theta.shape != (p,):
            raise ValueError(
                f"theta must have shape ({p},), with the logarithm of each hyperparameter of "
                f"kernel_ that is not fixed; got {tuple(theta.shape)}."
            )
        if self._exact is None:
            value, grad = self._likelihood_at(theta, eval_gradient)
        else:
            self._check_dense_memory("log_marginal_likelihood", copies=3 if eval_gradient else 1)
            result = self._exact.likelihood(theta, eval_gradient, self._fit_device())
            value, grad = result.value, result.grad
        value = np.float64(value)
        if not eval_gradient:
            return value
        assert grad is not None  # It was asked for.
        return value, grad.cpu().numpy()

    def _check_dense_memory(self, what: str, copies: int) -> None:
        n = len(self.X_train_)
        self._check_memory(
            copies * 8 * n * n,
            f"{what} with {n} rows ({copies} float64 {n} x {n} matrices)",
            "evaluate it on fewer rows, or read log_marginal_likelihood_value_, which needs no "
            "matrix",
        )

    @abstractmethod
    def _likelihood_at(
        self, theta: torch.Tensor, eval_gradient: bool
    ) -> tuple[float, torch.Tensor | None]:
        """Value and gradient of the objective of training."""


def _check_categories(table: Table, kernel: TorchKernel) -> None:
    check_categories(kernel, table.X)


class GPRegressorBase(TableRegressorBase):
    """A regressor that keeps its table and has a log marginal likelihood."""

    @answers
    def log_marginal_likelihood(
        self, theta=None, eval_gradient: bool = False, clone_kernel: bool = True
    ):
        """The log marginal likelihood of the training data, in normalised target units.

        Parameters
        ----------
        theta : array-like of shape (p,), optional
            Logarithms of the hyperparameters; the trained ones by default.
        eval_gradient : bool, default=False
            Whether to also return the gradient with respect to theta.
        clone_kernel : bool, default=True
            If False, `kernel_` is set to `theta`, as in scikit-learn. This changes the predictions
            of the model, so use it on a copy only.

        Returns
        -------
        value : float
            The log marginal likelihood, summed over targets.
        gradient : ndarray of shape (p,)
            Only with `eval_gradient`.

        Raises
        ------
        ValueError
            For a gradient without theta, or a theta of the wrong shape.
        MemoryError
            If the matrices do not fit into memory.
        NotFittedError
            Before `fit`.

        Notes
        -----
        Exact models compute it by a Cholesky factorisation in float64, O(n^3). For approximate
        models it is the likelihood of the approximation. Without theta the value stored by `fit`
        is returned.
        """
        answer = self._value_at(theta, eval_gradient, "log_marginal_likelihood_value_")
        if theta is not None and not clone_kernel:
            self.kernel_.theta = np.asarray(theta, dtype=np.float64)
            self._exact = self._exact and replace(self._exact, kernel=self.kernel_)
            self._remember(None)
        return answer

    def _likelihood_at(self, theta, eval_gradient):
        """Value and gradient of the exact likelihood; approximate models override this."""
        self._check_dense_memory("log_marginal_likelihood", copies=3 if eval_gradient else 1)
        problem = self._trained_problem(keep=True)
        result = exact_marginal_likelihood(problem, theta, eval_gradient, self._max_jitter())
        return result.value, result.grad

    def _max_jitter(self) -> float:
        """Largest jitter of exact factorisations, as a multiple of the mean diagonal entry."""
        return 1e-3


def _parted(table: Table) -> Table:
    """The table with two rows in place of each whose targets differ, which a fit merges again.

    Halves of the weight, at equal distances from the mean, have the targets' mean and scatter.
    """
    both = np.repeat(np.arange(len(table.X)), 1 + (table.within > 0))
    first = np.append(True, both[1:] != both[:-1])
    share = np.where(table.within > 0, 0.5, 1.0)[both]
    apart = np.sqrt(table.within / (table.counts * table.targets.shape[1]))[both]
    Y = table.targets[both] + np.where(first, apart, -apart)[:, None]
    parts = table.rows(both)
    return replace(parts, y=Y.reshape(parts.y.shape), counts=share * parts.counts)
