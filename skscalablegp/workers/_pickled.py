"""Objects as bytes and, apart from them, their large tensors and arrays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    # Kernels that are defined in a script can then be sent to other processes.
    from cloudpickle import Pickler as CloudPickler
except ImportError:
    from pickle import Pickler as CloudPickler

# Tensors on the CPU and arrays of fewer bytes are among the bytes of their object.
_LEAST_BYTES = 2**12
# Arrays with these types of entries stay apart.
_SENT = "?bhilqBefd"


def pickled(thing: Any, anywhere: bool = False) -> tuple[bytes, list[Tensor]]:
    """Return an object without its large tensors and arrays, and these as tensors.

    With `anywhere` it can be made anew where the caller's program is not known.
    """
    pickler = (_AnywherePickler if anywhere else _Pickler)()
    pickler.dump(thing)
    return pickler.into.getvalue(), pickler.tensors


def unpickled(data: Any, tensor: Callable[..., Tensor]) -> Any:
    """Make an object anew; `tensor` returns one tensor after the other.

    It gets the shape, the type of the entries and the type of the device. The order is that of
    `pickled`, each tensor once.
    """
    return _Unpickler(data, tensor).load()


class _Pickler(pickle.Pickler):
    def __init__(self):
        self.into, self.tensors = io.BytesIO(), list[Tensor]()
        super().__init__(self.into, protocol=5)
        # Their places by identity, which nothing else has as long as they are here.
        self._places: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, obj: Any) -> tuple | None:
        """What stands for a tensor or an array that stays apart."""
        array = type(obj) is np.ndarray and obj.dtype.isnative and obj.dtype.char in _SENT
        if not array and (type(obj) is not Tensor or obj.layout != torch.strided):
            return None
        if obj.nbytes < _LEAST_BYTES and (array or obj.is_cpu):
            # torch would pickle all of which a tensor is a part.
            return None if array else (obj.detach().numpy(),)
        place, _ = self._places.setdefault(id(obj), (len(self.tensors), obj))
        if place == len(self.tensors):
            # torch warns of arrays that are not writable.
            found = torch.from_numpy(np.require(obj, None, ["C", "W"])) if array else obj.detach()
            self.tensors.append(found.contiguous())
        found = self.tensors[place]
        return place, array, tuple(found.shape), found.dtype, found.device.type


class _AnywherePickler(_Pickler, CloudPickler):
    """Pickles functions and classes of the caller's program by value."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Any, tensor: Callable[..., Tensor]):
        super().__init__(io.BytesIO(data))
        self._next, self._tensors = tensor, list[Tensor]()

    def persistent_load(self, known: Any) -> Any:
        place, *spec = known
        if not spec:
            return torch.from_numpy(place)
        if place == len(self._tensors):
            self._tensors.append(self._next(*spec[1:]))
        found = self._tensors[place]
        return found.numpy() if spec[0] else found
