"""The length scales in a kernel, and the columns to which they belong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, Kernel, Matern, RationalQuadratic

# Kernels whose length scale is a distance between rows.
OF_DISTANCES = (RBF, Matern, RationalQuadratic)


def length_scales(
    kernel: Any, columns: list[int], name: str = "kernel_"
) -> Iterator[tuple[str, Kernel, list[int], np.ndarray]]:
    """The parts of a kernel with length scales: name, part, columns of X, and the scales."""
    params = kernel.get_params(deep=False)
    if "columns" in params:
        columns = [columns[j] for j in np.atleast_1d(params["columns"])]
    if "length_scale" in params:
        scales = np.atleast_1d(params["length_scale"])
        yield f"{name}: {type(kernel).__name__}", kernel, columns, scales
    for key, part in params.items():
        if isinstance(part, Kernel):
            yield from length_scales(part, columns, f"{name}.{key}")
