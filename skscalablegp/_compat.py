"""The one place that touches private scikit-learn API or looks at a library's version.

It supports scikit-learn >= 1.6 and SciPy >= 1.11, and provides:

``sobol``
    Scrambled Sobol points; SciPy 1.15 renamed the argument of the seed.
``fit_context``
    The decorator of ``fit``. It validates ``_parameter_constraints`` and, from 1.9 on, tears the
    callbacks down, even after an error. Use ``@fit_context(prefer_skip_nested_validation=True)``.
    Inside ``skscalablegp.distribute()`` the fit is one call of all ranks.
``check_matplotlib_support``
    scikit-learn's error for displays without matplotlib.
``Interval``, ``StrOptions``, ``HasMethods``
    The types of ``_parameter_constraints``.
``CallbackMixin``
    ``sklearn.callback.CallbackSupportMixin`` from scikit-learn 1.9 on, which adds
    ``set_callbacks``; an empty class before. List it first among the bases::

        class IterativeGPRegressor(CallbackMixin, RegressorMixin, BaseEstimator): ...

``FitEvents``
    Reports the progress of a fit to scikit-learn's callbacks. It does nothing on older versions and
    costs almost nothing without callbacks, so that fits call it unconditionally::

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

    A callback that takes ``fitted_estimator`` gets a model made from ``copy(self)`` and from the
    dict of attributes that the function passed to ``step`` returns. The function is not called
    without such a callback. After an error or an interrupt, ``fit_context`` tears the callbacks
    down, so that nothing has to be cleaned up here.

``target_encoder``
    Makes scikit-learn's ``TargetEncoder`` with folds that repeat, in all versions.
``check_parameters``
    scikit-learn's check of an estimator's parameters against its ``_parameter_constraints``.
``ParametersInDiagrams``
    A base class for the tables of parameters in scikit-learn's diagrams. It marks what the method
    ``_shown_parameters`` says, where scikit-learn marks every nested parameter as set by the user.
``grown_nodes``, ``boosted_nodes``
    The nodes of fitted trees as arrays.
``NamedEstimators``
    A base class for estimators over a list ``estimators`` of (name, estimator) pairs. List it first
    among the bases. The estimators, by name, and their parameters, such as ``trees__max_iter``, are
    then parameters.

Metadata routing needs nothing private: ``fit(self, X, y, noise_variance=None)`` alone gives the
class ``set_fit_request(noise_variance=...)``; ``validate_data`` is public since 1.6.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from scipy.stats import qmc
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import TargetEncoder
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metaestimators import _BaseComposition

from ._calls import refusing_weights, remembered, shareable

if TYPE_CHECKING:  # scikit-learn has no types, and an untyped decorator would hide those of fit
    Method = TypeVar("Method", bound=Callable[..., Any])

    def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[Method], Method]: ...
else:
    from sklearn.base import _fit_context

    def fit_context(*, prefer_skip_nested_validation: bool) -> Callable:
        """The decorator of fits, which may be shared by several processes."""
        decorate = _fit_context(prefer_skip_nested_validation=prefer_skip_nested_validation)
        return lambda method: refusing_weights(shareable(remembered(decorate(method))))


try:
    from sklearn.callback import CallbackSupportMixin as CallbackMixin
except ImportError:  # scikit-learn < 1.9

    class CallbackMixin:  # type: ignore[no-redef]
        """Stands in for the class of later versions of scikit-learn."""


HAS_CALLBACKS = hasattr(CallbackMixin, "set_callbacks")


class ParametersInDiagrams:
    """Tables of parameters with marks on those that the user set."""

    _shown_parameters: Callable[[], dict[str, bool]]

    def _get_params_html(self, *args: Any, **kwargs: Any) -> Any:
        table: Any = super()._get_params_html(*args, **kwargs)  # type: ignore[misc]
        marks = {name: mark for name, mark in self._shown_parameters().items() if name in table}
        own = [name for name in table if name in marks]
        first = sorted(own, key=lambda name: not marks[name])
        table.data = {name: table[name] for name in first}
        table.non_default = tuple(name for name in first if marks[name])
        return table


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

    def set_params(self, **params):
        """Set parameters, estimators by their names, or parameters of these.

        Parameters
        ----------
        **params : dict
            For example ``trees__max_iter=100``.

        Returns
        -------
        self : estimator
        """
        given = params.get("estimators", self.estimators)
        pairs = given if isinstance(given, list) else []
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return self._set_params("estimators", **params)
        return super().set_params(**params)  # fit raises the error about `estimators`


def sobol(d: int, n: int, seed: int) -> np.ndarray:
    """(n, d) scrambled Sobol points in the unit cube."""
    names = inspect.signature(qmc.Sobol).parameters
    keyword = {"rng" if "rng" in names else "seed": np.random.default_rng(seed)}
    return qmc.Sobol(d, scramble=True, **keyword).random(n)


def target_encoder(target_type: str, folds: int) -> TargetEncoder:
    """A target encoder whose cross-fitting repeats; scikit-learn 1.9 renamed the seed's place."""
    if inspect.signature(TargetEncoder).parameters["shuffle"].default == "deprecated":
        kind = KFold if target_type == "continuous" else StratifiedKFold
        cv = kind(folds, shuffle=True, random_state=0)
        return TargetEncoder(target_type=target_type, cv=cv)
    return TargetEncoder(target_type=target_type, cv=folds, random_state=0)


def check_parameters(estimator: Any) -> None:
    """Raise scikit-learn's error for a parameter that has a value that it cannot have."""
    estimator._validate_params()


def callbacks_under_way(estimator: Any) -> dict[str, Any]:
    """The attributes in which ``fit_context`` finds the callbacks that it has to tear down."""
    names = ("_callback_fit_ctx", "_skl_callbacks_to_teardown")
    return {name: vars(estimator)[name] for name in names if name in vars(estimator)}


class TreeNodes(NamedTuple):
    """The nodes of a tree. A row goes to the left if its entry is at most the threshold.

    Attributes
    ----------
    left, right : ndarray of shape (k,)
        Numbers of the children; -1 in leaves.
    feature : ndarray of shape (k,)
        The columns that are compared.
    threshold : ndarray of shape (k,)
    missing_left : ndarray of bool of shape (k,)
        Whether rows with a missing entry go to the left.
    value : ndarray of shape (k, q)
        Predictions of the leaves.
    """

    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    value: np.ndarray


def grown_nodes(model: Any, classes: bool) -> TreeNodes:
    """The nodes of a decision tree; with `classes` their values are probabilities."""
    tree = model.tree_
    value = tree.value[:, 0] if classes else tree.value[:, :, 0]
    if classes:  # counts before scikit-learn 1.3
        value = value / value.sum(1, keepdims=True)
    missing = np.asarray(tree.missing_go_to_left, dtype=bool)
    parts = (tree.children_left, tree.children_right, tree.feature, tree.threshold, missing)
    return TreeNodes(*parts, np.asarray(value, dtype=np.float64))


def first_scores(model: Any) -> np.ndarray:
    """What gradient boosting without histograms adds its q trees of each iteration to: (q,)."""
    return np.ravel(model._raw_predict_init(np.zeros((1, model.n_features_in_))))


def boosted_nodes(model: Any) -> tuple[list[TreeNodes], np.ndarray, str] | None:
    """The trees of histogram-based boosting, one after the other for each output and iteration.

    Returns
    -------
    trees : list of TreeNodes
    baseline : ndarray of shape (q,)
        What is added to the sum of the trees of each output.
    link : {"identity", "log", "logit", "multinomial"}
        The function whose inverse gives the prediction. The whole is None with categorical
        features, whose nodes compare sets.
    """
    if model.is_categorical_ is not None and np.any(model.is_categorical_):
        return None
    trees = []
    for nodes in (tree.nodes for iteration in model._predictors for tree in iteration):
        leaf = nodes["is_leaf"] != 0
        left, right = (np.where(leaf, -1, nodes[s].astype(np.int64)) for s in ("left", "right"))
        missing = nodes["missing_go_to_left"] != 0
        at = nodes["feature_idx"], nodes["num_threshold"], missing
        trees.append(TreeNodes(left, right, *at, nodes["value"][:, None]))
    links = {"IdentityLink": "identity", "LogLink": "log", "LogitLink": "logit"}
    name = type(model._loss.link).__name__
    return trees, np.ravel(model._baseline_prediction), links.get(name, "multinomial")


class FitEvents:
    """Reports the events of one fit to scikit-learn's callbacks.

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
        # Tasks form a tree that is kept during the fit; without callbacks it needs no leaves.
        self._listening = self._root is not None and hasattr(estimator, "_skl_callbacks")

    def step(self, attributes: Callable[[], dict[str, Any] | None] | None = None) -> bool:
        """Report one finished iteration.

        Parameters
        ----------
        attributes : callable or None
            Returns the fitted attributes at this iteration; called only if a callback needs them.

        Returns
        -------
        stop : bool
            Whether a callback asks to stop.
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
