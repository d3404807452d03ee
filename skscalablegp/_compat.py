"""The one place that touches private scikit-learn API or looks at a library's version.

Supported: scikit-learn >= 1.6, SciPy >= 1.11. What estimators take from here:

``sobol``
    Scrambled Sobol points, whose seed SciPy 1.15 has renamed.
``fit_context``
    The decorator of ``fit``: validates ``_parameter_constraints`` and, from 1.9 on, tears the
    callbacks down whatever happens. Use ``@fit_context(prefer_skip_nested_validation=True)``.
``check_matplotlib_support``
    The error of displays where matplotlib is missing, in scikit-learn's words.
``Interval``, ``StrOptions``, ``HasMethods``
    The vocabulary of ``_parameter_constraints``.
``CallbackMixin``
    ``sklearn.callback.CallbackSupportMixin`` from scikit-learn 1.9 on, which brings
    ``set_callbacks``; an empty class before. List it first among the bases::

        class IterativeGPRegressor(CallbackMixin, RegressorMixin, BaseEstimator): ...

``FitEvents``
    Tells scikit-learn's callbacks how the fit goes. It does nothing on older versions, and next
    to nothing where no callback is set, so the fit need not ask. The shape of a fit::

        @fit_context(prefer_skip_nested_validation=True)
        def fit(self, X, y, noise_variance=None):
            X, y = validate_data(self, X, y, ...)
            events = FitEvents(self, X, y)                       # once, after the validation
            for state in training:
                ...
                if events.step(lambda: self._attributes_from(state)):
                    break                                        # a callback asks to stop
            ...                                                  # set the fitted attributes
            events.end()                                         # once, fully fitted
            return self

    A callback that wants a working model at this iteration gets one made from ``copy(self)`` and
    the dict that the function passed to ``step`` returns (attribute name to value); the function
    is called only if some callback takes ``fitted_estimator``. A callback that raises, an
    interrupt included, is torn down by ``fit_context``; nothing is left to clean up here.

``NamedEstimators``
    For estimators over a list ``estimators`` of names and estimators. List it first among the
    bases: the parameters of the estimators are then parameters, such as ``trees__max_iter``, and so
    are the estimators by their names.

Metadata routing needs nothing private: ``fit(self, X, y, noise_variance=None)`` alone gives the
class ``set_fit_request(noise_variance=...)``; ``validate_data`` is public since 1.6.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.stats import qmc
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
)
from sklearn.utils.metaestimators import _BaseComposition

if TYPE_CHECKING:  # scikit-learn has no types, and a decorator of none would hide those of fit
    Method = TypeVar("Method", bound=Callable[..., Any])

    def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[Method], Method]: ...
else:
    from sklearn.base import _fit_context as fit_context

try:
    from sklearn.callback import CallbackSupportMixin as CallbackMixin
except ImportError:  # scikit-learn < 1.9

    class CallbackMixin:  # type: ignore[no-redef]
        """Stands where scikit-learn has no callbacks yet."""


HAS_CALLBACKS = hasattr(CallbackMixin, "set_callbacks")


class NamedEstimators(_BaseComposition):
    """Parameters of an estimator over a list of named estimators."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also the estimators by their names, and their parameters.

        Parameters
        ----------
        deep : bool, default=True

        Returns
        -------
        params : dict
        """
        return self._get_params("estimators", deep=deep)

    def set_params(self, **params: Any):
        """Set parameters, estimators by their names, or parameters of these.

        Parameters
        ----------
        **params : dict
            Such as ``trees__max_iter=100``.

        Returns
        -------
        self : estimator
        """
        given = params.get("estimators", self.estimators)
        pairs = given if isinstance(given, list) else []
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return self._set_params("estimators", **params)
        return super().set_params(**params)  # what fit refuses


def sobol(d: int, n: int, seed: int) -> np.ndarray:
    """(n, d) scrambled Sobol points in the unit cube."""
    names = inspect.signature(qmc.Sobol).parameters
    keyword = {"rng" if "rng" in names else "seed": np.random.default_rng(seed)}
    return qmc.Sobol(d, scramble=True, **keyword).random(n)


def callbacks_under_way(estimator: Any) -> dict[str, Any]:
    """The attributes by which ``fit_context`` finds the callbacks that it has to tear down."""
    names = ("_callback_fit_ctx", "_skl_callbacks_to_teardown")
    return {name: vars(estimator)[name] for name in names if name in vars(estimator)}


class FitEvents:
    """The events of one fit, as scikit-learn's callbacks see them.

    Parameters
    ----------
    estimator : estimator
        The estimator being fitted; its ``fit`` is decorated with ``fit_context``.
    X, y : ndarray
        The validated training table and targets.
    """

    def __init__(self, estimator: Any, X: Any, y: Any):
        self._estimator = estimator
        self._data = {"X": X, "y": y}
        self._root = None
        if HAS_CALLBACKS and isinstance(estimator, CallbackMixin):
            self._root = estimator._init_callback_context(max_subtasks=None)
            self._root.call_on_fit_task_begin(estimator=estimator, **self._data)
        # Tasks form a tree that is kept while fit runs: no leaves where nobody listens.
        self._listening = self._root is not None and hasattr(estimator, "_skl_callbacks")

    def step(self, attributes: Callable[[], dict[str, Any]] | None = None) -> bool:
        """Report one finished iteration.

        Parameters
        ----------
        attributes : callable or None
            Returns the fitted attributes of the model as it is now; called only on demand.

        Returns
        -------
        stop : bool
            Whether a callback asks to stop iterating.
        """
        if not self._listening:
            return False
        task = self._root.subcontext(task_name="iteration")
        task.call_on_fit_task_begin(estimator=self._estimator, **self._data)
        stop = task.call_on_fit_task_end(
            estimator=self._estimator, reconstruction_attributes=attributes, **self._data
        )
        return bool(stop)

    def end(self) -> None:
        """Report that the estimator is fitted."""
        if self._root is not None:
            self._root.call_on_fit_task_end(
                estimator=self._estimator, reconstruction_attributes=lambda: {}, **self._data
            )
