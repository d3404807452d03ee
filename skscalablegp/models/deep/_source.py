"""Rows in the units of deep kernels."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from ...core.data import RowSource, column_ranges
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem, Repeats

# Largest table, in entries, that is stored as tensors.
_RESIDENT_NUMBERS = 2**24


def noise_of(source: RowSource) -> np.ndarray:
    """The known noise variance of every row, zero for rows without any."""
    return np.zeros(len(source)) if source.noise is None else source.noise


def exact_problem(kernel: Kernel, source: RowSource) -> GPProblem:
    """The exact process of rows in the model's units."""
    X, Y = source.rows(slice(None))
    noise, k = torch.as_tensor(noise_of(source)).to(X), source.weights(slice(None))
    repeats = None if k is None else Repeats(k.to(X), torch.zeros_like(noise))
    return GPProblem(compile_kernel(kernel, X.shape[1]), X, Y, noise, repeats=repeats)


def ranges(source: RowSource) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest value of each column that is not far.

    A network multiplies a far entry by weights that it has learned on others.
    """
    scaling = source.scaling
    low, high = ((end - scaling.x_mean) / scaling.x_scale for end in column_ranges(source.X))
    return torch.as_tensor(low).to(source.dtype), torch.as_tensor(high).to(source.dtype)


def resident(source: RowSource) -> RowSource:
    """Small tables become tensors; memory maps are left where they are."""
    return source.resident() if source.X.size + source.Y.size <= _RESIDENT_NUMBERS else source
