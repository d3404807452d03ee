"""Trees in ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

from .._compat import TreeNodes
from ._trees import EVALUATED

# Attributes that are tensors; the others are lists of integers.
_TENSORS = "nodes_splits", "nodes_modes", "leaf_weights"


def translations() -> dict[Any, Callable[..., Any]]:
    """For the exporter: what becomes of the operator of trees.

    A node of ONNX's trees finds the leaves: it has thresholds in the precision of the rows, and
    sends missing entries to a side of their own. Their values are then gathered and added.
    """
    from onnx import TensorProto, numpy_helper
    from onnxscript import opset18 as op
    from onnxscript.onnx_opset import opset_ai_onnx_ml5 as ml

    def constant(values: Any) -> Any:
        return op.Constant(value=numpy_helper.from_array(np.ascontiguousarray(values)))

    def trees(X: Any, key: int, q: int) -> Any:
        ensemble = EVALUATED[key].ensemble
        dtype = np.dtype(np.float32 if X.dtype == TensorProto.FLOAT else np.float64)
        kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
        rows = op.Cast(op.Cast(X, to=TensorProto.FLOAT), to=kind) if ensemble.single else X
        attributes, starts, values = _nodes([_with_a_split(t) for t in ensemble.trees], dtype)
        for name, value in attributes.items():
            if isinstance(value, np.ndarray):
                tensor = name in _TENSORS
                attributes[name] = (
                    numpy_helper.from_array(value) if tensor else value.astype(int).tolist()
                )
        leaf = op.Cast(ml.TreeEnsemble(rows, **attributes), to=TensorProto.INT64)
        of = op.Gather(constant(values), op.Add(leaf, constant(starts)))
        if ensemble.link == "each":
            return op.Squeeze(of, constant(np.array([2])))
        added = op.ReduceSum(of, constant(np.array([1])), keepdims=0)
        raw = op.Add(added, constant(ensemble.baseline.astype(dtype)))
        if ensemble.link == "logit":
            return op.Concat(op.Sigmoid(op.Neg(raw)), op.Sigmoid(raw), axis=1)
        if ensemble.link == "multinomial":
            return op.Softmax(raw, axis=1)
        return op.Exp(raw) if ensemble.link == "log" else raw

    return {torch.ops.skscalablegp.trees.default: trees}


def _nodes(
    trees: list[TreeNodes], dtype: np.dtype
) -> tuple[dict[str, Any], Int64[np.ndarray, " k"], Float[np.ndarray, "n q"]]:
    """A node with an output for each of k trees, the number of the leaf among the tree's own.

    Returns
    -------
    attributes : dict
    starts : ndarray of shape (k,)
        The number of each tree's first leaf among all n leaves.
    values : ndarray of shape (n, q)
    """
    sizes = [len(tree.left) for tree in trees]
    owner = np.repeat(np.arange(len(trees)), sizes)
    begin = np.cumsum([0, *sizes[:-1]])
    sides = [np.concatenate([getattr(t, side) for t in trees]) for side in ("left", "right")]
    feature, threshold, missing, value = map(np.concatenate, list(zip(*trees, strict=True))[2:])
    split = sides[0] >= 0
    # Splits and leaves have numbers of their own.
    number = np.where(split, np.cumsum(split), np.cumsum(~split)) - 1
    starts = np.cumsum(np.bincount(owner[~split])) - np.bincount(owner[~split])
    threshold = threshold[split]
    attributes: dict[str, Any] = {
        "n_targets": len(trees),
        "tree_roots": number[begin],
        "nodes_featureids": feature[split],
        "nodes_splits": _rounded_down(threshold) if dtype == np.float32 else threshold,
        "nodes_modes": np.zeros(len(threshold), np.uint8),
        "nodes_missing_value_tracks_true": missing[split],
        "leaf_targetids": owner[~split],
        "leaf_weights": (number - starts[owner])[~split].astype(dtype),
    }
    for name, side in zip(("true", "false"), sides, strict=True):
        child = (side + begin[owner])[split]
        attributes |= {f"nodes_{name}nodeids": number[child], f"nodes_{name}leafs": ~split[child]}
    return attributes, starts, value[~split].astype(dtype)


def _with_a_split(tree: TreeNodes) -> TreeNodes:
    """A tree of one leaf as two of them, because the root must be a split."""
    if len(tree.left) > 1:
        return tree
    one = np.zeros(3, int)
    sides = np.array([1, -1, -1]), np.array([2, -1, -1])
    return TreeNodes(*sides, one, one * 0.0, one > 0, np.repeat(tree.value, 3, 0))


def _rounded_down(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The largest numbers of single precision that are not larger: the same rows are below them."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return np.where(single > values, np.nextafter(single, np.float32(-np.inf)), single)
