"""scikit-learn's trees as torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from .._compat import TreeNodes, boosted_nodes, grown_nodes
from ..kernels import NotExportable


class TreesModule(nn.Module):
    """The values of the leaves in which rows end: (m, d) -> (m, k, q) for k trees.

    All trees are walked at once, a level at a time. The comparisons are those of scikit-learn, so
    that in double precision every row ends in the same leaf. The gradient in the rows is zero.

    Parameters
    ----------
    trees : sequence of TreeNodes
    single : bool
        Whether rows are rounded to single precision before they are compared, as in scikit-learn's
        random forests.

    Notes
    -----
    O(k) operations for each level of the deepest tree and each row.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    child: Tensor
    missing: Tensor
    value: Tensor

    def __init__(self, trees: Sequence[TreeNodes], single: bool):
        super().__init__()
        sizes = [len(tree.left) for tree in trees]
        starts = np.cumsum([0, *sizes[:-1]])
        own = [np.arange(size) for size in sizes]
        left, right = (
            np.concatenate(
                [np.where(s < 0, o, s) + a for s, o, a in zip(side, own, starts, strict=True)]
            )
            for side in ([tree.left for tree in trees], [tree.right for tree in trees])
        )
        threshold = np.concatenate([tree.threshold for tree in trees])
        # Rows in single precision are below the same thresholds, rounded down.
        threshold = _rounded_down(threshold) if single else threshold
        self._single, self._depth = single, max(_depth(tree) for tree in trees)
        feature = np.concatenate([np.maximum(tree.feature, 0) for tree in trees])
        missing = np.concatenate([tree.missing_left for tree in trees]).astype(np.int64)
        arrays = {"roots": starts, "feature": feature, "threshold": threshold, "missing": missing}
        arrays["value"] = np.concatenate([tree.value for tree in trees])
        # Left and right in one array, so that a comparison gives the place of the child.
        arrays["child"] = np.stack([right, left], 1).reshape(-1)
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(np.ascontiguousarray(array)))

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m k q"]:
        rows = X.detach()
        rows = rows.float().to(rows.dtype) if self._single else rows
        node = self.roots.expand(X.shape[0], -1)
        for _ in range(self._depth):
            x = rows.gather(1, self.feature[node])
            left = (x <= self.threshold[node]).long()
            node = self.child[2 * node + torch.where(x.isnan(), self.missing[node], left)]
        # A sum over no columns, so that a gradient of zero exists.
        return self.value[node] + X[:, :0].sum(1)[:, None, None]


def _rounded_down(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The largest numbers of single precision that are not larger."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    below = np.nextafter(single, np.float32(-np.inf))
    return np.where(single > values, below, single).astype(np.float64)


def _depth(tree: TreeNodes) -> int:
    """Number of levels below the root; children come after their parents."""
    level = np.zeros(len(tree.left), int)
    for node in np.flatnonzero(tree.left >= 0):
        level[[tree.left[node], tree.right[node]]] = level[node] + 1
    return int(level.max())


class BoostedModule(nn.Module):
    """Boosted trees: the sum of their leaves for each of q outputs, behind the inverse link.

    Parameters
    ----------
    model : HistGradientBoostingRegressor or HistGradientBoostingClassifier
        Fitted.
    """

    baseline: Tensor

    def __init__(self, model: Any):
        super().__init__()
        boosted = boosted_nodes(model)
        if boosted is None:
            raise NotExportable(
                f"{type(model).__name__} with categorical features cannot be exported: encode the "
                "categories as numbers before, and fit without categorical_features."
            )
        trees, baseline, self._link = boosted
        self._q = len(baseline)
        self.trees = TreesModule(trees, single=False)
        self.register_buffer("baseline", torch.tensor(baseline))

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor:
        """Predictions (m,) of a regressor, or probabilities (m, c)."""
        leaves = self.trees(X)[:, :, 0]
        raw = leaves.unflatten(1, (-1, self._q)).sum(1) + self.baseline
        if self._link == "multinomial":
            return torch.softmax(raw, 1)
        if self._link == "logit":
            return torch.cat([torch.sigmoid(-raw), torch.sigmoid(raw)], 1)
        return torch.exp(raw[:, 0]) if self._link == "log" else raw[:, 0]


class GradientBoostedModule(nn.Module):
    """Gradient boosting of trees without histograms: predictions (m,), or probabilities (m, c).

    Parameters
    ----------
    model : GradientBoostingRegressor or GradientBoostingClassifier
        Fitted.

    Raises
    ------
    NotExportable
        For boosting that begins at the predictions of another estimator.
    """

    baseline: Tensor
    rate: Tensor
    odds: Tensor

    def __init__(self, model: Any):
        super().__init__()
        if model.init not in (None, "zero"):
            raise NotExportable(
                f"{type(model).__name__}(init={type(model.init).__name__}()) cannot be exported: "
                "leave out init."
            )
        self.trees = TreesModule([grown_nodes(t, False) for t in model.estimators_.flat], True)
        self._q, self._classes = model.estimators_.shape[1], hasattr(model, "classes_")
        # The exponential loss is that of half the log odds.
        odds = 2.0 if self._classes and model.loss == "exponential" else 1.0
        self.register_buffer("rate", torch.tensor(model.learning_rate, dtype=torch.float64))
        self.register_buffer("odds", torch.tensor(odds, dtype=torch.float64))
        row = np.zeros((1, model.n_features_in_))
        raw = model.decision_function(row) if self._classes else model.predict(row)
        added = self._added(torch.as_tensor(row)).numpy()
        self.register_buffer("baseline", torch.tensor(np.reshape(raw, (1, -1)) - added))

    def _added(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        """What the trees add to the baseline."""
        return self.rate * self.trees(X)[:, :, 0].unflatten(1, (-1, self._q)).sum(1)

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor:
        raw = self._added(X) + self.baseline
        if not self._classes:
            return raw[:, 0]
        if self._q > 1:
            return torch.softmax(raw, 1)
        raw = self.odds * raw
        return torch.cat([torch.sigmoid(-raw), torch.sigmoid(raw)], 1)


class ForestModule(nn.Module):
    """The mean of a forest: predictions (m,), or probabilities (m, c); also a single tree.

    Parameters
    ----------
    model : estimator
        A fitted forest or tree of scikit-learn.
    """

    def __init__(self, model: Any):
        super().__init__()
        classes = hasattr(model, "classes_")
        trees = [grown_nodes(tree, classes) for tree in getattr(model, "estimators_", [model])]
        self.trees, self._classes = TreesModule(trees, single=True), classes

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor:
        mean = self.trees(X).mean(1)
        return mean if self._classes else mean[:, 0]

    def spread(self, X: Float[Tensor, "m d"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Mean and variance of the trees' predictions."""
        each = self.trees(X)[:, :, 0]
        mean = each.mean(1)
        return mean, (each - mean[:, None]).square().mean(1)
