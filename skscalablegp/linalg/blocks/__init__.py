"""Large factorisations and products in blocks, with interrupts served between them."""

from ..._clock import look_up, watched
from ._blocks import (
    add_gram_,
    addmm_,
    cholesky_,
    cholesky_inverse,
    cholesky_solve,
    matmul,
    solve_triangular,
    task_rows,
)
