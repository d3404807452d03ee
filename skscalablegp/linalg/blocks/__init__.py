"""Large factorisations and products in blocks, with interrupts served between them."""

from ._blocks import (
    add_gram_,
    addmm_,
    cholesky_,
    cholesky_inverse,
    cholesky_solve,
    look_up,
    matmul,
    solve_triangular,
    task_rows,
    watched,
)
