"""scikit-learn's trees as one operator of torch, which scikit-learn itself evaluates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from .._compat import TreeNodes, boosted_nodes, first_scores, grown_nodes
from ..kernels import NotExportable

_OPERATOR = "skscalablegp::trees"


class Ensemble(NamedTuple):
    """The sum of the leaves in which rows end, and a baseline, behind the inverse of a link.

    Attributes
    ----------
    trees : list of TreeNodes
        Values of leaves have shape (k, q).
    baseline : ndarray of shape (q,)
    link : {"identity", "log", "logit", "multinomial", "each"}
        With "logit" the one sum becomes two probabilities; with "each" trees are not added.
    single : bool
        Whether rows are rounded to single precision before they are compared, as in scikit-learn's
        random forests.
    """

    trees: list[TreeNodes]
    baseline: np.ndarray
    link: str
    single: bool


class TreesModule(nn.Module):
    """A fitted estimator of trees as one operator: rows (m, d) to (m, q).

    The operator has no gradient, and for an ONNX file there is its ensemble.

    Parameters
    ----------
    name : str
        Of the estimator, for messages.
    predict : callable
        Maps rows (m, d) to (m, q) or (m,), by the code of the estimator.
    ensemble : Ensemble
        The same as arrays.
    """

    def __init__(self, name: str, predict: Callable[[np.ndarray], np.ndarray], ensemble: Ensemble):
        super().__init__()
        self.name, self.predict, self.ensemble = name, predict, ensemble
        self._q = len(ensemble.baseline) + (ensemble.link == "logit")

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        EVALUATED[id(self)] = self
        return torch.ops.skscalablegp.trees(X, id(self), self._q)


# The modules under evaluation. The operator takes a number, because it takes no objects.
EVALUATED: WeakValueDictionary[int, TreesModule] = WeakValueDictionary()


def _predicted(X, key, q):
    found = np.asarray(EVALUATED[key].predict(X.detach().cpu().numpy()))
    return torch.as_tensor(found.reshape(-1, q)).to(X, copy=True)


def _no_gradient(ctx: Any, gradient: Tensor) -> NoReturn:
    raise NotExportable(f"{_ZERO}: leave out members and mean functions of trees.")


torch.library.define(_OPERATOR, "(Tensor X, int key, int q) -> Tensor")
torch.library.impl(_OPERATOR, "default", _predicted)
torch.library.register_fake(_OPERATOR, lambda X, key, q: X.new_empty(X.shape[0], q))
torch.library.register_autograd(_OPERATOR, _no_gradient)

_ZERO = (
    "Trees are constant between their thresholds, so that their gradient in the rows would be zero "
    "by construction"
)


def refuse_trees(module: nn.Module) -> None:
    """Raise NotExportable if a part of a module are trees."""
    names = {part.name for part in module.modules() if isinstance(part, TreesModule)}
    if names:
        raise NotExportable(
            f"A model with {', '.join(sorted(names))} cannot be exported as a torch module. {_ZERO}"
            ": write a file by export_onnx, or fit the model without trees."
        )


def trees_module(model: Any) -> TreesModule:
    """A fitted estimator of scikit-learn over trees: predictions (m, 1), or probabilities (m, c).

    Raises
    ------
    NotExportable
        For boosting that begins at the predictions of another estimator or knows categories.
    """
    if hasattr(model, "_baseline_prediction"):
        ensemble = _histograms(model)
    else:
        ensemble = (_boosted if hasattr(model, "init_") else _forest)(model)
    predict = model.predict_proba if hasattr(model, "classes_") else model.predict
    return TreesModule(type(model).__name__, predict, ensemble)


def each_module(forest: Any) -> TreesModule:
    """The predictions of all k trees of a forest: (m, k)."""

    def predict(X: np.ndarray) -> np.ndarray:
        return np.stack([tree.predict(X) for tree in forest.estimators_], 1)

    trees = [grown_nodes(tree, False) for tree in forest.estimators_]
    ensemble = Ensemble(trees, np.zeros(len(trees)), "each", single=True)
    return TreesModule(type(forest).__name__, predict, ensemble)


def _forest(model: Any) -> Ensemble:
    """The mean of a forest; also a single tree."""
    grown = getattr(model, "estimators_", [model])
    trees = [grown_nodes(tree, hasattr(model, "classes_")) for tree in grown]
    trees = [tree._replace(value=tree.value / len(trees)) for tree in trees]
    return Ensemble(trees, np.zeros(trees[0].value.shape[1]), "identity", single=True)


def _boosted(model: Any) -> Ensemble:
    """Gradient boosting of trees without histograms."""
    if model.init not in (None, "zero"):
        raise NotExportable(
            f"{type(model).__name__}(init={type(model.init).__name__}()) cannot be exported: "
            "leave out init."
        )
    baseline, classes = first_scores(model), hasattr(model, "classes_")
    # The exponential loss is that of half the log odds.
    odds = 2.0 if classes and model.loss == "exponential" else 1.0
    trees = [grown_nodes(tree, False) for tree in model.estimators_.flat]
    trees = _in_columns(trees, len(baseline), odds * model.learning_rate)
    link = "identity" if not classes else "multinomial" if len(baseline) > 1 else "logit"
    return Ensemble(trees, odds * baseline, link, single=True)


def _histograms(model: Any) -> Ensemble:
    """Histogram-based gradient boosting."""
    boosted = boosted_nodes(model)
    if boosted is None:
        raise NotExportable(
            f"{type(model).__name__} with categorical features cannot be exported: encode the "
            "categories as numbers before, and fit without categorical_features."
        )
    trees, baseline, link = boosted
    return Ensemble(_in_columns(trees, len(baseline), 1.0), baseline, link, single=False)


def _in_columns(trees: list[TreeNodes], q: int, factor: float) -> list[TreeNodes]:
    """Trees of one output each, one after the other, with their values in its column of q."""
    return [
        tree._replace(value=factor * tree.value * np.eye(q)[number % q])
        for number, tree in enumerate(trees)
    ]
