"""Factorisations and products in blocks, so that interrupts and time budgets are served.

During a call into LAPACK or BLAS neither Ctrl-C nor the clock is noticed, and the call ends with
the slowest of its threads. Large calls are therefore cut into tasks of a fraction of a second,
which the workers of ``workers`` share. Between tasks Python handles signals, and `look_up`
checks the time budget of the current fit. Each number is computed by one task, and the shapes of
the tasks depend on the sizes alone, so that results are the same for any number of workers. Small
calls, and all calls on a GPU, are made as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._clock import look_up
from ...workers import map_in_order

# A task has at most _MOST_FLOPS operations, a tenth of a second of one core. Tasks of a product
# have _FEW_FLOPS, but at least _ROWS rows, because each of them reads the whole other factor.
_FEW_FLOPS, _MOST_FLOPS, _ROWS, _COLUMNS = 5e8, 4e9, 256, 64
# Largest sizes at which LAPACK factorises or inverts as a whole. Its threads wait in a busy loop
# for milliseconds after every call, and take the cores from the workers. Three exact fits at once
# suffer most from it (benchmarks/cores.py --part exact --condition three).
_WHOLE_FACTOR, _WHOLE_INVERSE = 1000, 1000
# Rows and columns of a tile of a factor, and of a block of an inverse.
_BLOCK = 192


def _each(items: Iterable[Any], work: Callable[[Any], Any]) -> None:
    """Do the work for all items in parallel; no item may need what another one writes."""
    look_up()
    for _ in map_in_order(work, items):
        look_up()


def _cut(start: int, stop: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, stop)) for at in range(start, stop, size)]


def matmul(A: Float[Tensor, "n k"], B: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """A B as a new matrix; large products are shared among the workers by rows of A."""
    rows = task_rows(B.numel())
    if rows >= len(A) or not A.is_cpu:
        return A @ B
    out = A.new_empty(len(A), B.shape[1])
    _each(_cut(0, len(A), rows), lambda some: torch.mm(A[some], B, out=out[some]))
    return out


def addmm_(
    S: Float[Tensor, "n m"], A: Float[Tensor, "n k"], B: Float[Tensor, "k m"], alpha: float = 1.0
) -> None:
    """Add alpha A B to S in place; large products are shared among the workers by rows of A."""
    rows = task_rows(B.numel())
    if rows >= len(A) or not A.is_cpu:
        S.addmm_(A, B, alpha=alpha)
        return
    _each(_cut(0, len(A), rows), lambda some: S[some].addmm_(A[some], B, alpha=alpha))


def add_gram_(S: Float[Tensor, "m m"], A: Float[Tensor, "n m"]) -> None:
    """Add A' A to the lower triangle of S in place; above it S is undefined.

    Large products are shared among the workers by rows of S.
    """
    if not A.is_cpu:
        S.addmm_(A.T, A)
        return

    def add(some: slice) -> None:
        S[some, : some.stop].addmm_(A[:, some].T, A[:, : some.stop])

    _each(_cut(0, len(S), min(_ROWS, task_rows(A.numel()))), add)


def task_rows(size: int) -> int:
    """The rows of a product with a matrix of so many entries that make a task."""
    flops = 2 * size + 1
    return max(1, int(_FEW_FLOPS / flops), min(_ROWS, int(_MOST_FLOPS / flops)))


def solve_triangular(L: Float[Tensor, "n n"], B: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """L^-1 B for a lower triangle; large solves are shared among the workers by columns of B."""
    # With fewer columns, reading L would take most of the time.
    columns = max(_COLUMNS, int(_MOST_FLOPS / max(1, L.numel())))
    if columns >= B.shape[1] or not L.is_cpu:
        return torch.linalg.solve_triangular(L, B, upper=False)
    out = B.new_empty(B.shape[1], len(B)).mT

    def solve(some: slice) -> None:
        out[:, some] = torch.linalg.solve_triangular(L, B[:, some], upper=False)

    _each(_cut(0, B.shape[1], columns), solve)
    return out


def cholesky_(A: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], Int[Tensor, ""]]:
    """Write the lower Cholesky factor over A, and return it with LAPACK's `info` (0 for success).

    A should be stored by columns: LAPACK then works in place, and products need no copies.
    """
    info = torch.zeros((), dtype=torch.int32, device=A.device)
    if len(A) <= _WHOLE_FACTOR or not A.is_cpu:
        return torch.linalg.cholesky_ex(A, out=(A, info))
    work = _Factorisation(A, _cut(0, len(A), _BLOCK))
    _each(((i, j) for j in range(len(work.cut)) for i in range(j, len(work.cut))), work.tile)
    return A, info + work.info


class _Factorisation:
    """One Cholesky factorisation in tiles, in which a tile waits only for those that it needs.

    A tile needs the tiles to its left in its own row and in the row of its column's diagonal tile,
    and then that diagonal tile. All of these come earlier in the order of the columns, so that
    another worker has done them or is at work on them.
    """

    def __init__(self, A: Float[Tensor, "n n"], cut: list[slice]):
        self.A, self.cut, self.info = A, cut, 0
        self._corners: list[Tensor] = []
        self._done = [0] * len(cut)  # finished tiles of each row
        self._changed = threading.Condition()

    def tile(self, place: tuple[int, int]) -> None:
        try:
            self._compute(*place)
        except BaseException:
            self.info = -1  # No task waits for this tile any more.
            raise
        finally:
            with self._changed:
                self._done[place[0]] += 1
                self._changed.notify_all()

    def _compute(self, i: int, j: int) -> None:
        A, rows, own = self.A, self.cut[i], self.cut[j]
        tile, left = A[rows, own], slice(0, own.start)
        if not (self._ready(i, j) and self._ready(j, j)):
            return
        tile.addmm_(A[rows, left], A[own, left].mT, alpha=-1)
        if i == j:
            corner, info = torch.linalg.cholesky_ex(tile)
            if int(info) != 0:
                self.info = int(info) + own.start
                return
            self._corners.append(corner)
            tile.copy_(corner)
            A[left, own] = 0
        elif self._ready(j, j + 1):
            # Solved from the right, because of the order in which both are stored.
            corner = self._corners[j].mT
            tile.copy_(torch.linalg.solve_triangular(corner, tile, upper=True, left=False))

    def _ready(self, i: int, count: int) -> bool:
        """Wait until `count` tiles of row i are finished; False if there is no factor."""
        with self._changed:
            self._changed.wait_for(lambda: self.info != 0 or self._done[i] >= count)
        return self.info == 0


def cholesky_solve(B: Float[Tensor, "n t"], L: Float[Tensor, "n n"]) -> Float[Tensor, "n t"]:
    """(L L')^-1 B, block row by block row; LAPACK would first copy a large L."""
    if len(L) <= _WHOLE_FACTOR or not L.is_cpu:
        return torch.cholesky_solve(B, L)
    x, cut = B.clone(), _cut(0, len(L), _WHOLE_FACTOR)
    for own in cut:
        look_up()
        addmm_(x[own], L[own, : own.start], x[: own.start], alpha=-1)
        x[own] = torch.linalg.solve_triangular(L[own, own], x[own], upper=False)
    for own in reversed(cut):
        look_up()
        addmm_(x[own], L[own.stop :, own].mT, x[own.stop :], alpha=-1)
        x[own] = torch.linalg.solve_triangular(L[own, own].mT, x[own], upper=True)
    return x


def cholesky_inverse(L: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """(L L')^-1 from the inverse of L and its product with itself, within one new matrix."""
    if len(L) <= _WHOLE_INVERSE or not L.is_cpu:
        return torch.cholesky_inverse(L)
    n, cut = len(L), _cut(0, len(L), _BLOCK)
    out = torch.zeros(n, n, dtype=L.dtype, device=L.device)
    for own in cut:
        # With X = L^-1, block row i of X is -L_ii^-1 L_i,<i X_<i, from the block rows above it.
        eye = torch.eye(own.stop - own.start, dtype=L.dtype, device=L.device)
        (corner,) = map_in_order(partial(solve_triangular, L[own, own]), [eye])

        def row(some: slice, own: slice = own, corner: Tensor = corner) -> None:
            above = slice(some.start, own.start)
            out[own, some] = -corner @ (L[own, above] @ out[above, some])

        _each(cut[: own.start // _BLOCK], row)
        out[own, own] = corner
    for own in cut:
        # Block rows from this one on still hold L^-1; those above hold the result.
        right = out[own.start :, own].clone()

        def product(some: slice, own: slice = own, right: Tensor = right) -> None:
            out[own, some] = right.mT @ out[own.start :, some]
            if some != own:
                out[some, own] = out[own, some].mT

        _each(cut[: own.start // _BLOCK + 1], product)
    return out
