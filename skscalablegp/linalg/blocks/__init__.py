"""Large factorisations and products in blocks, between which signals are served."""

from ._blocks import addmm_, cholesky_, cholesky_inverse, look_up, matmul, solve_triangular, watched
