"""Objects that each rank makes from rows of its own, and what rank 0 asks of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._ranks import Ranks


class Parts:
    """An object of each rank for the rows that this rank alone has; the handle of rank 0.

    Functions of modules answer for the rows of one rank; sums and lists of their answers travel to
    rank 0, and rows only where they are asked for by number. Rows of rank 0 have the first numbers.

    Parameters
    ----------
    ranks : Ranks
    number : int
        Under which the ranks keep the objects.
    own : object
        That of rank 0.
    sizes : list of int
        The numbers of rows of the ranks.
    """

    def __init__(self, ranks: Ranks, number: int, own: Any, sizes: list[int]):
        self.ranks, self.own, self.sizes, self._number = ranks, own, sizes, number
        ranks.own(self, number)
        ranks.keep(number, self)

    @classmethod
    def read(cls, ranks: Ranks, make: Callable[..., Any], *args: Any) -> Parts:
        """Parts made by ``make(call, *args)`` from the arguments of the call under way.

        Raises
        ------
        ValueError
            If one rank refuses its arguments, which the message names.
        """
        number = ranks.new_number()
        own, said, sizes = ranks.together(_read, number, make, args)
        refused = [f"rank {rank}: {why}" for rank, why in enumerate(said) if why]
        if refused:
            raise ValueError(f"The rows of {refused[0]}")
        return cls(ranks, number, own, sizes)

    def derived(
        self, make: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> Parts:
        """Parts of the same rows made by ``make(part, *args, *tensors)``."""
        number = self.ranks.new_number()
        own = self.ranks.together(_derive, self._number, number, make, args, tensors=tensors)
        return Parts(self.ranks, number, own, self.sizes)

    def some(self, rows: np.ndarray, make: Callable[..., Any]) -> Parts:
        """Parts of some rows, by ascending number, made by ``make(part, own)``.

        `own` are the numbers within the part, of which there may be none.
        """
        number, ends = self.ranks.new_number(), [0, *accumulate(self.sizes)]
        given = self._number, number, make, ends
        own = self.ranks.together(_derive_some, *given, tensors=[torch.from_numpy(rows)])
        sizes = np.diff(np.searchsorted(rows, ends)).tolist()
        return Parts(self.ranks, number, own, sizes)

    def total(
        self, work: Callable[..., tuple[Tensor, ...]], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """The sums over ranks of the tensors ``work(part, *args, *tensors)``, by one reduction."""
        return self.ranks.together(_total, self._number, work, args, tensors=tensors)

    def total_of(
        self,
        rows: Tensor | np.ndarray,
        work: Callable[..., tuple[Tensor, ...]],
        *args: Any,
        along: Sequence[Tensor] = (),
        tensors: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """The sums over ranks of ``work(part, own, *args, *along, *tensors)`` for rows by number.

        `own` are the numbers within the part, of which there may be none. The tensors of `along`
        have an entry for each row, of which a rank gets those of its own rows.
        """
        ends, wanted = [0, *accumulate(self.sizes)], torch.as_tensor(rows).cpu()
        given = self._number, work, args, ends, len(along)
        return self.ranks.together(_total_of, *given, tensors=[wanted, *along, *tensors])

    def each(
        self, work: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> list[Any]:
        """The small answers ``work(part, *args, *tensors)`` of all ranks, in their order."""
        return self.ranks.together(_each, self._number, work, args, tensors=tensors)

    def picked(
        self,
        work: Callable[..., Any],
        rows: np.ndarray,
        *args: Any,
        tensors: Sequence[Tensor] = (),
    ) -> tuple[list[np.ndarray], list[Any]]:
        """The answers ``work(part, own, *args, *tensors)`` for rows by number, and their places.

        `own` are the numbers within the part. Ranks without such rows do not answer.
        """
        ends = [0, *accumulate(self.sizes)]
        wanted = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        given = self._number, work, args, ends
        found = self.ranks.together(_picked, *given, tensors=[wanted, *tensors])
        of = np.searchsorted(ends, wanted.numpy(), side="right") - 1
        places = [np.flatnonzero(of == rank) for rank in range(self.ranks.size)]
        return [p for p in places if len(p)], [f for f in found if f is not None]


# ---------------------------------------------------------------- on all ranks


def _own(ranks: Ranks, number: int) -> Any:
    kept = ranks.kept(number)
    return kept if ranks.rank else kept.own


def _keep(ranks: Ranks, number: int, made: Any) -> Any:
    """Keep an object; rank 0 does so in the handle."""
    if ranks.rank:
        ranks.keep(number, made)
    return made


def _read(ranks: Ranks, number: int, make: Callable, args: tuple) -> tuple[Any, list, list]:
    made, why = None, ""
    try:
        made = make(ranks.arguments, *args)
    except (ValueError, TypeError) as error:
        # The rank waits for the error of rank 0, which is that of all.
        why = str(error)
    said = ranks.exchange("rows", f"{0 if made is None else len(made)} {why}")
    found = [text.partition(" ") for text in said]
    if not any(why for *_, why in found):
        _keep(ranks, number, made)
    return made, [why for *_, why in found], [int(size) for size, *_ in found]


def _derive(
    ranks: Ranks, number: int, new: int, make: Callable, args: tuple, *tensors: Tensor
) -> Any:
    return _keep(ranks, new, make(_own(ranks, number), *args, *tensors))


def _derive_some(
    ranks: Ranks, number: int, new: int, make: Callable, ends: list[int], wanted: Tensor
) -> Any:
    mine = _numbers_within(ranks, ends, wanted)
    return _keep(ranks, new, make(_own(ranks, number), mine))


def _total(
    ranks: Ranks, number: int, work: Callable, args: tuple, *tensors: Tensor
) -> tuple[Tensor, ...]:
    return _summed(ranks, work(_own(ranks, number), *args, *tensors))


def _total_of(
    ranks: Ranks,
    number: int,
    work: Callable,
    args: tuple,
    ends: list[int],
    n_along: int,
    wanted: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    begin, end = ends[ranks.rank : ranks.rank + 2]
    held = (wanted >= begin) & (wanted < end)
    along = [tensor[held.to(tensor.device)] for tensor in tensors[:n_along]]
    mine = _numbers_within(ranks, ends, wanted)
    return _summed(ranks, work(_own(ranks, number), mine, *args, *along, *tensors[n_along:]))


def _summed(ranks: Ranks, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    flat = ranks.total(torch.cat([part.reshape(-1) for part in found]))
    pieces = flat.split([part.numel() for part in found])
    return tuple(piece.view_as(part) for piece, part in zip(pieces, found, strict=True))


def _each(ranks: Ranks, number: int, work: Callable, args: tuple, *tensors: Tensor) -> list[Any]:
    return gathered(ranks, work(_own(ranks, number), *args, *tensors))


def _picked(
    ranks: Ranks,
    number: int,
    work: Callable,
    args: tuple,
    ends: list[int],
    wanted: Tensor,
    *tensors: Tensor,
) -> list[Any]:
    mine = _numbers_within(ranks, ends, wanted)
    return gathered(ranks, work(_own(ranks, number), mine, *args, *tensors) if len(mine) else None)


def _numbers_within(ranks: Ranks, ends: list[int], wanted: Tensor) -> np.ndarray:
    """Those of the rows by number that this rank has, as numbers within its part."""
    begin, end = ends[ranks.rank : ranks.rank + 2]
    rows = wanted.cpu().numpy()
    return rows[(rows >= begin) & (rows < end)] - begin


def gathered(ranks: Ranks, answer: Any) -> list[Any]:
    """The answers of all ranks, at rank 0; an empty list at the others."""
    data = torch.frombuffer(bytearray(pickle.dumps(answer)), dtype=torch.uint8)
    said = ranks.exchange("sizes", str(len(data)))
    sizes = list(map(int, said))
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(data)] = data
    parts = zip(ranks.gather(padded), sizes, strict=False)
    return [pickle.loads(part[:size].numpy().tobytes()) for part, size in parts]
