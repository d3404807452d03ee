"""The base class of all estimators: their parameters, kernel, priors and posterior."""

from __future__ import annotations

import inspect
import weakref
from abc import ABC
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from .._compat import CallbackMixin
from .._devices import device_or_cpu
from .._named import NamedSettings, keep_settings
from .._validation import check_memory
from ..kernels import ThetaPrior, TorchKernel, check_no_columns, compile_kernel, with_column_numbers
from ._defaults import default_priors
from ._exact_process import ExactProcess
from ._fitted import LeftOut
from ._parameters import PARAMETERS, rules_of
from ._plan import Machine
from .data import n_columns
from .posteriors import Posterior

# Posteriors hold torch tensors, which must neither be in __dict__ nor be pickled.
_POSTERIORS: weakref.WeakKeyDictionary[Any, Posterior] = weakref.WeakKeyDictionary()


class GPModel(CallbackMixin, NamedSettings, ABC):
    """Base class of all estimators.

    The fitted attributes are NumPy arrays. The posterior is made from them on demand and cached
    outside ``__dict__``, so that models can be pickled. `fit` runs inside a `FitRun`, whose
    ``n_iter_`` marks a fitted model. scikit-learn's rules for the parameters come from the table in
    ``_parameters``.
    """

    # Whether kernels without a compiled form are accepted, and with them rows that are not vectors.
    _any_kernel: bool = False
    # The name of a likelihood that far targets do not disturb, if the class accepts one.
    _robust_likelihood: str = ""
    # Whether fits need rows through sums only, so that each rank may have rows of its own.
    _sums_rows: bool = False
    # The exact process, if it replaces the method.
    _exact: ExactProcess | None = None

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            arguments = inspect.signature(cls.__init__).parameters
            defaults = {name: argument.default for name, argument in arguments.items()}
            rules = rules_of(defaults, PARAMETERS)
            # A user's subclass may have parameters of its own, with rules of its own or none. Those
            # that it shares with its base class accept what they accept there.
            for base in reversed(cls.__mro__):
                given = vars(base).get("_parameter_constraints", {})
                rules |= {name: given[name] for name in defaults if name in given}
            cls._parameter_constraints = rules

    def _set(self, arguments: dict[str, Any]) -> None:
        """Set the arguments of the constructor, given as ``locals()``, as attributes."""
        keep_settings(self, arguments)

    @property
    def _repr_html_(self) -> Any:
        """scikit-learn's diagram, and below it the report of the fit."""
        diagram = super()._repr_html_
        return lambda: diagram() + self._report_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += self._report_html()
        return bundle

    def _report_html(self) -> str:
        report = vars(self).get("fit_report_")
        return "" if report is None else report._repr_html_()

    def _own_kernel(self, X: np.ndarray) -> Kernel | None:
        """A copy of `kernel` with column numbers in place of names; None for the default kernel.

        Raises
        ------
        ValueError
            For columns that X does not have, and for categories that are not whole numbers.
        """
        kernel = self._numbered_kernel(X)
        if kernel is not None:
            check_categories(compile_kernel(kernel, n_columns(X), self._any_kernel), X)
        return kernel

    def _numbered_kernel(self, X: np.ndarray) -> Kernel | None:
        """`_own_kernel` without the check of categories, for callers that compile the kernel."""
        if self.kernel is None:
            return None
        names = getattr(self, "feature_names_in_", None)
        return with_column_numbers(clone(self.kernel), n_columns(X), names)

    def _kernel_of_features(self) -> Kernel | None:
        """A copy of `kernel` for the outputs of a network, which are no columns of X."""
        if self.kernel is None:
            return None
        check_no_columns(self.kernel)
        return clone(self.kernel)

    # The attribute with the value that training has maximised, without the priors.
    _objective = "log_marginal_likelihood_value_"

    def _priors(
        self, kernel: Kernel, shape: tuple[int, int], noisy: bool, run: Any
    ) -> dict[str, Any] | None:
        """The priors of the hyperparameters, with "auto" resolved; None without any.

        Parameters
        ----------
        kernel : Kernel
            The user's or the default kernel.
        shape : tuple of int
            Numbers of rows and columns.
        noisy : bool
            Whether the WhiteKernel of the default kernel is the only noise.
        run : FitRun
        """
        settings = self.get_params(deep=False)
        run.priors = settings.get("priors")
        if isinstance(run.priors, str):
            own = settings["kernel"] is not None or settings["optimizer"] is None or not noisy
            chosen = None, "only the trained noise of the default kernel has a prior"
            if not own:
                chosen = default_priors(kernel, *shape)
            run.priors = run.chose("priors", *chosen)
        return run.priors

    def _trained_kernels(self) -> list[Kernel]:
        """All kernels whose hyperparameters were trained."""
        return [self.kernel_]

    def _prior_facts(self, priors: dict[str, Any] | None) -> dict[str, float]:
        """Entries of the report on priors: log prior and log posterior; none without priors."""
        if not priors:
            return {}
        kernels = self._trained_kernels()
        value = sum(ThetaPrior(kernel, priors)(kernel.theta)[0] for kernel in kernels)
        return {"log_prior": value, "log_posterior": getattr(self, self._objective) + value}

    def _kernel_sees_rows(self) -> bool:
        """Whether the columns of `kernel_` are those of X, and not the outputs of a network."""
        return self.get_params(deep=False).get("feature_extractor") is None

    def _column_units(self) -> np.ndarray | float:
        """The units of the kernel's length scales, in those of X."""
        return 1.0

    def _neighbours(self) -> np.ndarray | None:
        """A point of the model and those next to it, in the kernel's columns; None without any.

        Where such points are not correlated, they have a function of their own whatever the kernel.
        """
        return None

    def _left_out(self, X: Any, y: Any, noise_variance: Any, rows: np.ndarray) -> LeftOut | None:
        """Predictions of training rows without their own targets; here there is no closed form."""
        return None

    def _training_only(self) -> tuple[str, ...]:
        """The fitted attributes that no prediction reads; compact files leave them out."""
        return ("history_",)

    def _saved_state(self, compact: bool) -> dict[str, Any]:
        """The attributes that a file keeps; if `compact`, those that predictions need."""
        state = dict(vars(self))
        if not compact or "n_iter_" not in state:
            return state
        left = [name for name in self._training_only() if name in state]
        kept = {name: value for name, value in state.items() if name not in left}
        return kept | {"_left_out_of_file": left}

    def __getattr__(self, name: str) -> Any:
        """Raise the error about an attribute that does not exist, or does not any more."""
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in vars(self).get("_left_out_of_file", ()):
            message += (
                ", which was left out of the compact file from which it was loaded: save the model "
                "with compact=False to keep it"
            )
        raise AttributeError(message, name=name, obj=self)

    def _build_posterior(self) -> Posterior:
        """Make the posterior of the method from the fitted attributes."""
        raise NotImplementedError

    def _posterior(self) -> Posterior:
        check_is_fitted(self, "n_iter_")
        posterior = self._remembered()
        if posterior is None:
            exact = self._exact
            posterior = exact.posterior(self._fit_device())[0] if exact else self._build_posterior()
            self._remember(posterior)
        return posterior

    def _remembered(self) -> Posterior | None:
        """The cached posterior, if there is one."""
        return _POSTERIORS.get(self)

    def _remember(self, posterior: Posterior | None) -> None:
        """Cache the posterior for the lifetime of the model; None empties the cache."""
        if posterior is None:
            _POSTERIORS.pop(self, None)
        else:
            _POSTERIORS[self] = posterior

    def _budget(self) -> float | None:
        """The memory budget in bytes; None stands for the free memory of the machine."""
        return None if self.memory_budget == "auto" else float(self.memory_budget)

    def _check_memory(self, need_bytes: float, what: str, remedy: str) -> None:
        """Raise a MemoryError as ``FitRun.check_memory`` does, after a fit."""
        check_memory(need_bytes, what, remedy, self._budget(), device=self._fit_device())

    def _device_of(self, inner: GPModel) -> str:
        """The parameter `device` of an estimator inside this one that leaves it open."""
        return self.device

    def _fit_device(self) -> torch.device:
        """The device of the fit if this machine has it, else the CPU."""
        return device_or_cpu(getattr(self, "device_", "cpu"))

    def _posterior_device(self) -> torch.device:
        """Where factors and predictions are computed."""
        return Machine.on(self._fit_device()).device


def check_categories(kernel: TorchKernel, X: np.ndarray) -> None:
    """Raise a ValueError if codes of categories are not whole numbers."""
    for j in kernel.coded:
        wrong = X[:, j][X[:, j] != np.rint(X[:, j])]
        if len(wrong):
            raise ValueError(
                f"kernel={kernel.kernel} expects categories in column {j}, which are whole "
                f"numbers, but X has {wrong[0]:.6g} there. Encode the column with OrdinalEncoder, "
                "and do not scale it."
            )
