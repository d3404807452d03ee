"""Factorisations and products in blocks, so that none is deaf for long.

A call into LAPACK or BLAS hears neither Ctrl-C nor the clock, and ends when the slowest of its
threads does. Large ones are therefore cut into tasks of a fraction of a second, which workers do
side by side (``linalg/parallel``). Between them Python serves signals, and `look_up` looks at the
time budget of the fit under way. Every number is computed by one task, whose shape depends on the
sizes alone: results are the same for any number of workers. Small calls, and those of a GPU, are
left whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..parallel import map_in_order

# Operations of a call that is left whole, about a tenth of a second of one core; rows up to which a
# factorisation and an inverse are: of what LAPACK splits over threads, only the first one holds its
# pace beside other work (benchmarks/factors.py). Columns of a block, and rows of a tile at least.
_FLOPS = 4e9
_WHOLE_FACTOR, _WHOLE_INVERSE = 3000, 1000
_BLOCK, _TILE = 256, 512

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


def _each(items: Iterable[Any], work: Callable[[Any], Any]) -> None:
    """Do the work for all items, side by side; none may need what another one writes."""
    look_up()
    for _ in map_in_order(work, items):
        look_up()


def _cut(start: int, stop: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]


def matmul(A: Float[Tensor, "n k"], B: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """A B, some rows at a time where that takes long."""
    rows = max(1, int(_FLOPS / (2 * B.numel() + 1)))
    if rows >= len(A) or A.is_cuda:
        return A @ B
    out = A.new_empty(len(A), B.shape[1])
    _each(_cut(0, len(A), rows), lambda some: torch.mm(A[some], B, out=out[some]))
    return out


def addmm_(S: Float[Tensor, "n m"], A: Float[Tensor, "n k"], B: Float[Tensor, "k m"]) -> None:
    """Add A B to S, some rows at a time where that takes long."""
    rows = max(1, int(_FLOPS / (2 * B.numel() + 1)))
    if rows >= len(A) or A.is_cuda:
        S.addmm_(A, B)
        return
    _each(_cut(0, len(A), rows), lambda some: S[some].addmm_(A[some], B))


def solve_triangular(L: Float[Tensor, "n n"], B: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """L^-1 B for a lower triangle, some columns at a time where that takes long."""
    columns = max(16, int(_FLOPS / max(1, L.numel())))
    if columns >= B.shape[1] or L.is_cuda:
        return torch.linalg.solve_triangular(L, B, upper=False)
    out = B.new_empty(B.shape[1], len(B)).mT

    def solve(some: slice) -> None:
        out[:, some] = torch.linalg.solve_triangular(L, B[:, some], upper=False)

    _each(_cut(0, B.shape[1], columns), solve)
    return out


def cholesky_(A: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], Int[Tensor, ""]]:
    """The lower factor written over A, which LAPACK wants by columns, and its `info`.

    Blocks are taken from the left: after each, what it explains leaves the tiles to its right.
    """
    info = torch.empty((), dtype=torch.int32, device=A.device)
    if len(A) <= _WHOLE_FACTOR or A.is_cuda:
        return torch.linalg.cholesky_ex(A, out=(A, info))
    size = max(_TILE, len(A) // 16)
    for own in _cut(0, len(A), _BLOCK):
        ((corner, info),) = map_in_order(torch.linalg.cholesky_ex, [A[own, own]])
        if int(info) != 0:
            return A, info + own.start
        A[own, own], A[: own.start, own] = corner, 0
        rows = _cut(own.stop, len(A), size)

        def below(some: slice, own: slice = own, corner: Tensor = corner) -> None:
            # From the right, as both lie in memory.
            part = A[some, own]
            part.copy_(torch.linalg.solve_triangular(corner.mT, part, upper=True, left=False))

        def leave(tile: tuple[slice, slice], own: slice = own) -> None:
            A[tile].addmm_(A[tile[0], own], A[tile[1], own].mT, alpha=-1)

        _each(rows, below)
        _each([(some, right) for k, right in enumerate(rows) for some in rows[k:]], leave)
    return A, info


def cholesky_inverse(L: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """(L L')^-1: the inverse of L, then its product with itself, in one new matrix."""
    if len(L) <= _WHOLE_INVERSE or L.is_cuda:
        return torch.cholesky_inverse(L)
    n, cut = len(L), _cut(0, len(L), _BLOCK)
    out = torch.zeros(n, n, dtype=L.dtype, device=L.device)
    for own in cut:
        # Rows of L^-1: -L_ii^-1 (L_i,<i  X_<i), of the rows above.
        eye = torch.eye(own.stop - own.start, dtype=L.dtype, device=L.device)
        (corner,) = map_in_order(partial(solve_triangular, L[own, own]), [eye])

        def row(some: slice, own: slice = own, corner: Tensor = corner) -> None:
            above = slice(some.start, own.start)
            out[own, some] = -corner @ (L[own, above] @ out[above, some])

        _each(cut[: own.start // _BLOCK], row)
        out[own, own] = corner
    for own in cut:
        # Rows further down are still the factor's inverse; those above are finished.
        right = out[own.start :, own].clone()

        def product(some: slice, own: slice = own, right: Tensor = right) -> None:
            out[own, some] = right.mT @ out[own.start :, some]
            if some != own:
                out[some, own] = out[own, some].mT

        _each(cut[: own.start // _BLOCK + 1], product)
    return out
