"""Conversion of frozen dataclasses of tensors to NumPy records, which fitted models hold."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch


class Record(NamedTuple):
    """The class and the fields of a dataclass, with arrays in place of tensors."""

    cls: type
    values: dict[str, Any]


def to_numpy(tree: Any) -> Any:
    """A frozen dataclass as a Record, with an ndarray in place of every tensor."""
    if isinstance(tree, torch.Tensor):
        return tree.cpu().numpy()
    if isinstance(tree, tuple):
        return tuple(to_numpy(item) for item in tree)
    if is_dataclass(tree):
        return Record(type(tree), {f.name: to_numpy(getattr(tree, f.name)) for f in fields(tree)})
    return tree


def to_torch(tree: Any) -> Any:
    """The inverse of `to_numpy`, on the CPU."""
    if isinstance(tree, np.ndarray):
        return torch.tensor(tree)
    if isinstance(tree, Record):
        return tree.cls(**{name: to_torch(value) for name, value in tree.values.items()})
    if isinstance(tree, tuple):
        return tuple(to_torch(item) for item in tree)
    return tree
