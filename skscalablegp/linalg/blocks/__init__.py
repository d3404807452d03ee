"""Large factorisations and products in blocks, with interrupts served between them."""

from ._blocks import (
    addmm_,
    cholesky_,
    cholesky_inverse,
    cholesky_solve,
    look_up,
    matmul,
    solve_triangular,
    watched,
)
