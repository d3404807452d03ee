"""Count the places where a GPU would have to be waited for, on a machine that has none.

Reading a number of a tensor (`float`, `bool`, `int`, `.item()`) and moving one to the host
(`.cpu()`, `.numpy()`, `.tolist()`) stop the queue of a device. On the CPU they cost nothing, so
that nobody notices them: here they are counted.
"""

from __future__ import annotations

import collections
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

# Their results have shapes that depend on values, so a device is waited for as well.
_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten._unique2.default,
}

# Their results are Python numbers in another form.
_NUMBERS = {torch.ops.aten.lift_fresh.default, torch.ops.aten.scalar_tensor.default}


class Synchronisations(TorchDispatchMode):
    """The number of waits so far, and where in the package they happened.

    Tensors are on the host that came from `.cpu()`, that were made without a device, and that were
    computed from such tensors alone; those may be read freely. All others count as the device's,
    as they would be if the table were on a GPU.
    """

    def __init__(self):
        super().__init__()
        self.places: collections.Counter[str] = collections.Counter()
        self._host: weakref.WeakSet = weakref.WeakSet()
        self._device: weakref.WeakSet = weakref.WeakSet()

    @property
    def count(self) -> int:
        return sum(self.places.values())

    def wait(self) -> None:
        """Count one, with the innermost line of the package that asked."""
        frames = [f for f in traceback.extract_stack() if "skscalablegp" in Path(f.filename).parts]
        last = frames[-1] if frames else None
        self.places[f"{Path(last.filename).name}:{last.lineno}" if last else "elsewhere"] += 1

    def is_host(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        # a number that no operation has made is a Python number that torch has wrapped
        return storage in self._host or (tensor.ndim == 0 and storage not in self._device)

    def mark(self, result, host: bool = True) -> None:
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor):
                (self._host if host else self._device).add(tensor.untyped_storage())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
        host = all(self.is_host(t) for t in tensors) and kwargs.get("device") is None
        if not host and (func in _WAITING or _reads_a_mask(func, args)):
            self.wait()
        out = func(*args, **kwargs)
        self.mark(out, host or func in _NUMBERS)
        return out


def _reads_a_mask(func, args) -> bool:
    """Whether rows are chosen by a mask, which has to be counted first."""
    if func not in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default):
        return False
    masks = any(i is not None and i.dtype == torch.bool for i in args[1])
    return masks and not (len(args) > 2 and args[2].numel() == 1)  # that fills, and reads nothing


def _leaving(counter: Synchronisations, move):
    """A method that brings numbers to the host: counted, and its result is there."""

    def counted(self, *args, **kwargs):
        if not counter.is_host(self):
            counter.wait()
        result = move(self, *args, **kwargs)
        if isinstance(result, torch.Tensor):
            result = result.clone()
            counter.mark(result)
        return result

    return counted


def _entering(move):
    """`Tensor.to`: where it names a device, its result is there."""

    def moved(self, *args, **kwargs):
        result = move(self, *args, **kwargs)
        names = (*args, *kwargs.values())
        if any(isinstance(a, torch.device | torch.Tensor | str) for a in names):
            with no_dispatch():
                return result.clone()
        return result

    return moved


def _making(counter: Synchronisations, make):
    """`torch.tensor` and the like: on the host where no device is named."""

    def made(*args, **kwargs):
        result = make(*args, **kwargs)
        if kwargs.get("device") is None:
            counter.mark(result)
            return result
        with no_dispatch():
            return result.clone()

    return made


@contextmanager
def synchronisations(monkeypatch) -> Iterator[Synchronisations]:
    """Count within the block."""
    counter = Synchronisations()
    with monkeypatch.context() as patch:
        for name in ("cpu", "numpy", "tolist", "__array__"):
            patch.setattr(torch.Tensor, name, _leaving(counter, getattr(torch.Tensor, name)))
        patch.setattr(torch.Tensor, "to", _entering(torch.Tensor.to))
        for name in ("tensor", "as_tensor", "from_numpy"):
            patch.setattr(torch, name, _making(counter, getattr(torch, name)))
        with counter:
            yield counter
