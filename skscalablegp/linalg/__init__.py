"""Operators, preconditioners, solvers, truncated series and gradients: tensors in, tensors out."""

from ._blocks import addmm_, cholesky_inverse, matmul, watched
