"""Factorisations and products in blocks, so that none is deaf for long.

A call into LAPACK or BLAS hears neither Ctrl-C nor the clock. Large ones are therefore cut into
calls of at most a second or so, between which Python serves signals and `look_up` looks at the time
budget of the fit under way. Small ones, and those of a GPU, are left whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Operations of one call, about half a second of one core; rows up to which calls are whole, and
# columns of a block.
_FLOPS = 1.5e10
_WHOLE = 3000
_BLOCK = 512

_LOOK_UP: ContextVar[Callable[[], None] | None] = ContextVar("look_up", default=None)


@contextmanager
def watched(look_up: Callable[[], None]) -> Iterator[None]:
    """Call `look_up` between blocks; what it raises ends the work."""
    token = _LOOK_UP.set(look_up)
    try:
        yield
    finally:
        _LOOK_UP.reset(token)


def look_up() -> None:
    """Called between blocks."""
    check = _LOOK_UP.get()
    if check is not None:
        check()


def _whole(A: Tensor) -> bool:
    return len(A) <= _WHOLE or A.is_cuda


def matmul(A: Float[Tensor, "n k"], B: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """A B, some rows at a time where that takes long."""
    rows = max(1, int(_FLOPS / (2 * B.numel() + 1)))
    if rows >= len(A) or A.is_cuda:
        return A @ B
    out = A.new_empty(len(A), B.shape[1])
    for start in range(0, len(A), rows):
        look_up()
        torch.mm(A[start : start + rows], B, out=out[start : start + rows])
    return out


def addmm_(S: Float[Tensor, "n m"], A: Float[Tensor, "n k"], B: Float[Tensor, "k m"]) -> None:
    """Add A B to S, some rows at a time where that takes long."""
    rows = max(1, int(_FLOPS / (2 * B.numel() + 1)))
    if rows >= len(A) or A.is_cuda:
        S.addmm_(A, B)
        return
    for start in range(0, len(A), rows):
        look_up()
        S[start : start + rows].addmm_(A[start : start + rows], B)


def cholesky_(A: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], Int[Tensor, ""]]:
    """The lower factor written over A, which LAPACK wants by columns, and its `info`.

    Blocks are taken from the left: after each, what it explains leaves the columns to its right.
    """
    info = torch.empty((), dtype=torch.int32, device=A.device)
    if _whole(A):
        L, info = torch.linalg.cholesky_ex(A, out=(A, info))
        return L, info
    n = len(A)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        look_up()
        corner, info = torch.linalg.cholesky_ex(A[start:stop, start:stop])
        if int(info) != 0:
            return A, info + start
        A[start:stop, start:stop] = corner
        if stop == n:
            break
        below = torch.linalg.solve_triangular(corner, A[stop:, start:stop].mT, upper=False).mT
        A[stop:, start:stop] = below
        width = max(1, int(_FLOPS / (2 * below.numel())))
        for left in range(stop, n, width):
            look_up()
            right = min(left + width, n)
            A[left:, left:right].addmm_(
                below[left - stop :], below[left - stop : right - stop].mT, alpha=-1
            )
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        A[:start, start:stop] = 0
    return A, info


def cholesky_inverse(L: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """(L L')^-1: the inverse of L, then its product with itself, in one new matrix."""
    if _whole(L):
        return torch.cholesky_inverse(L)
    n = len(L)
    # Columns of the inverse of L, from the right: each needs those of L that it stands on only.
    out = torch.zeros(n, n, dtype=L.dtype, device=L.device)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        look_up()
        eye = torch.eye(stop - start, dtype=L.dtype, device=L.device)
        corner = torch.linalg.solve_triangular(L[start:stop, start:stop], eye, upper=False)
        # Rows of L^-1: -L_ii^-1 (L_i,<i  X_<i), of the rows above.
        out[start:stop, :start] = -corner @ matmul(L[start:stop, :start], out[:start, :start])
        out[start:stop, start:stop] = corner
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        look_up()
        # Rows further down are still the factor's inverse; those above are finished.
        out[start:stop, :stop] = matmul(out[start:, start:stop].mT, out[start:, :stop])
        out[:start, start:stop] = out[start:stop, :start].mT
    return out
