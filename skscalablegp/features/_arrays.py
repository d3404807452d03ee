"""Frozen torch objects as NumPy ones and back, so that fitted models pickle without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch


def _map(tree: Any, kind: type, convert: Callable) -> Any:
    if isinstance(tree, kind):
        return convert(tree)
    if isinstance(tree, tuple):
        return tuple(_map(item, kind, convert) for item in tree)
    if is_dataclass(tree):
        changes = {f.name: _map(getattr(tree, f.name), kind, convert) for f in fields(tree)}
        return replace(tree, **changes)
    return tree


def to_numpy(tree: Any) -> Any:
    """The same frozen dataclass with an ndarray in the place of every tensor."""
    return _map(tree, torch.Tensor, lambda tensor: tensor.cpu().numpy())


def to_torch(tree: Any) -> Any:
    """What `to_numpy` was given, on the CPU."""
    return _map(tree, np.ndarray, torch.from_numpy)
