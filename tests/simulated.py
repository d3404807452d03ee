"""A GPU for machines that have none: tensors that report its device and refuse to mix with others.

    with simulated() as gpu:
        model = RFFRegressor(device="cuda").fit(X, y)
    gpu.waits, gpu.sent, gpu.fetched, gpu.peak

A tensor of the device holds its numbers in a tensor of the CPU, on which operations run. What a
GPU would refuse is refused: operands on two devices, indices of the device into rows of the host,
random numbers from a generator of another device, dtypes that it lacks, allocations beyond its
memory. What it would wait for is counted by line: numbers that the host reads, results whose shape
depends on values, and copies between the two. The rules are those of PyTorch for CUDA tensors.

The tensors belong to the thread and the block that made them. After the block they are of no use,
so that a model which still holds one is found out.
"""

from __future__ import annotations

import collections
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import skscalablegp

_PACKAGE = str(Path(skscalablegp.__file__).parent) + "/"
aten = torch.ops.aten

# For PyTorch's own code the tensors are on this device, which has no memory and no threads.
_INSIDE = torch.device("meta")

# A GPU has to finish before their results, or the shapes of them, are known.
_WAITING = {
    aten._local_scalar_dense.default,
    aten._linalg_check_errors.default,
    aten._linalg_eigh.default,
    aten._linalg_svd.default,
    aten.linalg_eig.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
_INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_COPIES = {aten._to_copy.default, aten.copy_.default}
# They change the shape of a tensor in place, which PyTorch then has to know of its wrapper as well.
_RESHAPING = {
    aten.t_.default,
    aten.transpose_.default,
    aten.squeeze_.default,
    aten.squeeze_.dim,
    aten.unsqueeze_.default,
    aten.as_strided_.default,
}
# The same with other memory, which the tensors here cannot follow.
_REPLACING = {aten.resize_.default, aten.set_.source_Tensor, aten.set_.source_Storage}
# Two numbers of the host may stand beside tensors of the device.
_TWO_NUMBERS = {aten.where.self, aten.clamp.Tensor, aten.clamp_.Tensor}

_FACTORIES = (
    "arange empty empty_like eye full full_like linspace logspace normal ones ones_like rand "
    "rand_like randint randint_like randn randn_like randperm scalar_tensor tril_indices "
    "triu_indices zeros zeros_like empty_strided"
).split()

# What the names of devices say that PyTorch has on them.
_WITHOUT = {"cuda": (), "xpu": (), "mps": (torch.float64, torch.complex128)}


class DeviceTensor(torch.Tensor):
    """A tensor of a simulated device."""

    held: torch.Tensor
    owner: SimulatedDevice

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor, owner: SimulatedDevice) -> DeviceTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=_INSIDE,
        )
        made.held, made.owner = held, owner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        # The mode comes first where it is on: in the block and the thread of the device.
        raise RuntimeError(f"{func} has a tensor of a simulated device in another thread or block")

    device = property(lambda self: self.owner.device)
    is_cuda = property(lambda self: self.owner.device.type == "cuda")
    is_mps = property(lambda self: self.owner.device.type == "mps")
    is_xpu = property(lambda self: self.owner.device.type == "xpu")
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self):
        return 0

    def __repr__(self, *, tensor_contents=None):
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def numpy(self, *args, **kwargs):
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )

    __array__ = numpy

    def __reduce_ex__(self, protocol):
        raise TypeError("a tensor of a device would be pickled")

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def tolist(self):
        return self.cpu().tolist()

    def cpu(self, *args, **kwargs):
        return self.to("cpu")

    def new_tensor(self, data, *, dtype=None, device=None, **settings):
        where = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=where, **settings)

    def __getitem__(self, index):
        return super().__getitem__(self.owner.indices(index))

    def __setitem__(self, index, value):
        super().__setitem__(self.owner.indices(index), value)


class DeviceGenerator(torch.Generator):
    """Random numbers of a simulated device; `torch.Generator` makes them within the block."""

    device: Any = None


class SimulatedDevice(TorchDispatchMode):
    """A device, and what has happened on it.

    Attributes
    ----------
    device : torch.device
    memory : int
        Bytes that it has.
    allocated, peak : int
        Bytes that its tensors take, and took at most.
    waits : Counter
        How often the host waited for it, by line of the package. Copies wait unless they are sent
        with ``non_blocking=True``.
    sent, fetched : Counter
        Copies to the device and from it, by line; with `bytes_sent` and `bytes_fetched` in total.
    launches : Counter
        Operations on it by name; views are none.
    """

    def __init__(self, name: str, memory: int, lacks: tuple[torch.dtype, ...] | None = None):
        super().__init__()
        self.device = torch.device(name)
        self.memory, self.allocated, self.peak = memory, 0, 0
        self.lacks = _WITHOUT[self.device.type] if lacks is None else lacks
        self._held: dict[int, list[int]] = {}
        self._thread = threading.get_ident()
        self.forget()

    def forget(self) -> None:
        """Count from zero."""
        self.waits: collections.Counter[str] = collections.Counter()
        self.sent: collections.Counter[str] = collections.Counter()
        self.fetched: collections.Counter[str] = collections.Counter()
        self.launches: collections.Counter[str] = collections.Counter()
        self.bytes_sent = self.bytes_fetched = 0
        self.peak = self.allocated

    def free(self) -> int:
        """Bytes that the driver reports as free."""
        return self.memory - self.allocated

    # ------------------------------------------------------------ names

    def is_here(self, device: Any) -> bool:
        """Whether `device` names this one."""
        if device is None:
            return False
        device = torch.device(device)
        if device.type not in ("cpu", "meta", self.device.type) or (device.index or 0) > 0:
            raise RuntimeError(f"{device} is not there: the simulated device is {self.device}")
        return device.type in (self.device.type, "meta")

    def indices(self, index: Any) -> Any:
        """Lists and arrays among indices become tensors of the device, as in PyTorch."""
        if isinstance(index, tuple):
            return tuple(self.indices(i) for i in index)
        if isinstance(index, list | range) or (isinstance(index, np.ndarray) and index.ndim):
            return torch.as_tensor(np.asarray(index), device=self.device)
        return index

    # ------------------------------------------------------------ counts

    def wait(self, what: collections.Counter[str] | None = None) -> None:
        place = _place()
        self.waits[place] += 1
        if what is not None:
            what[place] += 1

    def hold(self, tensor: torch.Tensor) -> DeviceTensor:
        """The tensor as one of the device; its memory counts until nothing holds it."""
        if tensor.dtype in self.lacks:
            raise TypeError(
                f"Cannot convert a tensor to {tensor.dtype}: {self.device.type} has no such dtype. "
                "Please use float32 instead."
            )
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if key:
            held = self._held.setdefault(key, [0, size])
            if not held[0]:
                self.allocated += size
            held[0] += 1
            weakref.finalize(tensor, self._release, key).atexit = False
            if self.allocated > self.memory:
                # Tensors of cycles that Python has not found yet.
                gc.collect()
            if self.allocated > self.memory:
                raise torch.OutOfMemoryError(
                    f"{self.device.type.upper()} out of memory. Tried to allocate {size} bytes. "
                    f"GPU 0 has a total capacity of {self.memory} bytes."
                )
            self.peak = max(self.peak, self.allocated)
        return DeviceTensor(tensor, self)

    def _release(self, key: int) -> None:
        held = self._held[key]
        held[0] -= 1
        if not held[0]:
            self.allocated -= held[1]
            del self._held[key]

    # ------------------------------------------------------------ operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _COPIES:
            return self._copy(func, args, kwargs)
        flat = list(_tensors((*args, *kwargs.values())))
        ours = [a for a in flat if isinstance(a, DeviceTensor)]
        named = kwargs.get("device")
        if not ours and (named is None or not self.is_here(named)):
            return func(*args, **kwargs)
        if func in _REPLACING:
            raise NotImplementedError(f"{func} on a simulated device")
        if func in _RESHAPING:
            func(args[0].held, *args[1:], **kwargs)
            with no_dispatch():
                return func(*args, **kwargs)
        if ours:
            args = self._checked(func, args, kwargs, flat)
            if func in _WAITING or _reads_a_mask(func, args):
                self.wait()
        if not getattr(func, "is_view", False):
            self.launches[_name(func)] += 1
        return self._run(func, ours, args, kwargs)

    def _run(self, func, ours, args, kwargs):
        named = kwargs.get("device")
        leaves = named is not None and not self.is_here(named)
        if named is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        inner = {name: _inside(value) for name, value in kwargs.items()}
        out = func(*map(_inside, args), **inner)
        if leaves:
            return out
        # An operation in place answers with its own argument.
        known = {id(a.held): a for a in ours}

        def outside(result):
            if isinstance(result, list | tuple):
                return type(result)(map(outside, result))
            if not isinstance(result, torch.Tensor):
                return result
            same = known.get(id(result))
            return self.hold(result) if same is None else same

        return outside(out)

    def _checked(self, func, args, kwargs, flat):
        """The arguments of an operation on tensors of the device, if PyTorch would accept them."""
        hosts = [a for a in flat if not isinstance(a, DeviceTensor)]
        if func in _INDEXED:
            args, hosts = self._indexed(args, hosts)
        if not hosts:
            return args
        numbers = [a for a in hosts if a.ndim == 0]
        many = len(numbers) > (2 if func in _TWO_NUMBERS else 1)
        listed = [a for part in args if isinstance(part, list | tuple) for a in part]
        apart = any(a is b for a in listed for b in numbers) and func not in _INDEXED
        written = any(a is b for a in _written(func, args, kwargs) for b in hosts)
        if len(numbers) < len(hosts) or many or apart or written or func not in _with_numbers():
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{self.device} and cpu! {func} has {[tuple(a.shape) for a in hosts]} on the host, "
                f"at {_place()}"
            )
        return args

    def _indexed(self, args, hosts):
        """Indices of the host are sent to rows of the device, not the other way round."""
        rows, indices = args[0], [i for i in args[1] if i is not None]
        if not isinstance(rows, DeviceTensor) and any(isinstance(i, DeviceTensor) for i in indices):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"(cpu), at {_place()}"
            )
        here = [i for i in indices if not isinstance(i, DeviceTensor)]
        for _ in here:
            self.wait(self.sent)
        return args, [a for a in hosts if not any(a is i for i in here)]

    def _copy(self, func, args, kwargs):
        into = func is aten.copy_.default
        source, target = args[1 if into else 0], args[0]
        from_here = isinstance(source, DeviceTensor)
        if into:
            to_here = isinstance(target, DeviceTensor)
        else:
            named = kwargs.get("device")
            to_here = from_here if named is None else self.is_here(named)
            kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        lazy = kwargs.pop("non_blocking", False) or (into and len(args) > 2 and args[2])
        if from_here and not to_here:
            self.wait(self.fetched)
            self.bytes_fetched += source.nbytes
        elif to_here and not from_here:
            self.sent[_place()] += 1
            self.bytes_sent += source.nbytes
            if not lazy:
                self.waits[_place()] += 1
        elif to_here:
            self.launches["copy"] += 1
        with torch.no_grad():
            if into:
                _inside(target).copy_(_inside(source))
                return target
            out = func(_inside(source), **kwargs)
        return self.hold(out) if to_here else out


def _place() -> str:
    """The innermost line of the package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return f"{name.removeprefix(_PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _inside(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_inside, value))
    return value.held if isinstance(value, DeviceTensor) else value


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@cache
def _name(func) -> str:
    return func._schema.name.removeprefix("aten::")


@cache
def _written_names(func) -> tuple[tuple[int, str], ...]:
    arguments = func._schema.arguments
    return tuple(
        (i, a.name)
        for i, a in enumerate(arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )


def _written(func, args, kwargs) -> list[Any]:
    """The arguments that an operation writes to."""
    found = [
        kwargs.get(name, args[i] if i < len(args) else None) for i, name in _written_names(func)
    ]
    return [a for value in found for a in (value if isinstance(value, list | tuple) else [value])]


@cache
def _with_numbers() -> set:
    """Operations by element, which read a number of the host as an argument."""
    tagged = set()
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in getattr(packet, "overloads", list)():
            func = getattr(packet, overload)
            if torch.Tag.pointwise in func.tags:
                tagged.add(func)
    more = "masked_fill.Tensor masked_fill_.Tensor where.self fill.Tensor fill_.Tensor "
    more += "index.Tensor index_put.default index_put_.default _index_put_impl_.default"
    for name in more.split():
        packet, overload = name.split(".")
        tagged.add(getattr(getattr(aten, packet), overload))
    return tagged


def _reads_a_mask(func, args) -> bool:
    """Whether rows are chosen by a mask, which has to be counted first."""
    if func not in _INDEXED:
        return False
    masks = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return masks and not (len(args) > 2 and args[2].numel() == 1)  # that fills, and reads nothing


# ---------------------------------------------------------------- PyTorch within the block


def _factory(gpu: SimulatedDevice, make: Callable) -> Callable:
    """A function that makes a tensor on the device that is named, by a generator of that device."""

    def made(*args, **kwargs):
        here = gpu.is_here(kwargs.get("device"))
        generator = kwargs.get("generator")
        if generator is not None and here != isinstance(generator, DeviceGenerator):
            raise RuntimeError(
                f"Expected a '{gpu.device.type if here else 'cpu'}' device type for generator but "
                f"found '{'cpu' if here else gpu.device.type}'"
            )
        if here:
            kwargs["device"] = _INSIDE
            if kwargs.get("dtype") in gpu.lacks:
                raise TypeError(f"{gpu.device.type} has no {kwargs['dtype']}")
        return make(*args, **kwargs)

    return made


def _from_data(gpu: SimulatedDevice, make: Callable) -> Callable:
    """`torch.tensor` and `torch.as_tensor`: what is made on the host may be sent."""

    def made(data, *args, device=None, requires_grad=False, **kwargs):
        if isinstance(data, torch.Tensor) and make is not _TENSOR:
            moved = data if device is None else data.to(device)
            dtype = kwargs.get("dtype", args[0] if args else None)
            return moved if dtype is None else moved.to(dtype)
        out = make(data, *args, **kwargs)
        if gpu.is_here(device):
            out = out.to(_INSIDE)
        return out.requires_grad_() if requires_grad else out

    return made


_TENSOR = torch.tensor
_TO = torch.Tensor.to


def _to(gpu: SimulatedDevice) -> Callable:
    def moved(self, *args, **kwargs):
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        if "other" in kwargs:
            other = kwargs.pop("other")
            args = (other.device, other.dtype)

        def inside(value):
            if isinstance(value, str | torch.device):
                return _INSIDE if gpu.is_here(value) else torch.device("cpu")
            return value

        if "device" in kwargs:
            kwargs["device"] = inside(kwargs["device"])
        return _TO(self, *map(inside, args), **kwargs)

    return moved


def _random(gpu: SimulatedDevice, fill: Callable) -> Callable:
    """Methods that fill a tensor with random numbers of its own device."""

    def filled(self, *args, generator=None, **kwargs):
        here = isinstance(self, DeviceTensor)
        if generator is not None and here != isinstance(generator, DeviceGenerator):
            raise RuntimeError(
                f"Expected a '{self.device.type}' device type for generator but found another"
            )
        return fill(self, *args, generator=generator, **kwargs)

    return filled


def _generator(gpu: SimulatedDevice) -> Callable:
    """`torch.Generator`, which also makes generators of the device."""
    original = torch.Generator

    class AnyGenerator(type(original)):
        """Generators that were made before the block, too, are what signatures ask for."""

        def __instancecheck__(cls, value):
            return isinstance(value, original)

    class Generator(original, metaclass=AnyGenerator):
        def __new__(cls, device="cpu"):
            if not gpu.is_here(device):
                return original()
            made = DeviceGenerator.__new__(DeviceGenerator)
            made.device = gpu.device
            return made

    return Generator


def _modules(gpu: SimulatedDevice) -> Iterator[tuple[Any, str, Any]]:
    """What PyTorch says about the machine: `module`, `name` and the answer."""
    kind = gpu.device.type
    free = lambda *_: (gpu.free(), gpu.memory)  # noqa: E731
    module = getattr(torch, kind)
    yield module, "is_available", lambda: True
    yield module, "device_count", lambda: 1
    yield module, "synchronize", lambda *_: gpu.wait()
    yield module, "empty_cache", lambda: None
    if kind == "mps":
        yield torch.backends.mps, "is_available", lambda: True
        yield module, "recommended_max_memory", lambda: gpu.memory
        yield module, "driver_allocated_memory", lambda: gpu.allocated
        yield module, "current_allocated_memory", lambda: gpu.allocated
        return
    yield module, "mem_get_info", free
    yield module, "memory_reserved", lambda *_: gpu.allocated
    yield module, "memory_allocated", lambda *_: gpu.allocated
    facts = mock.Mock(name="properties", total_memory=gpu.memory, has_fp64=not gpu.lacks)
    yield module, "get_device_properties", lambda *_: facts
    yield module, "get_device_name", lambda *_: "simulated"
    yield module, "get_device_capability", lambda *_: (0, 0)


@contextmanager
def simulated(
    name: str = "cuda:0", memory: int = 8 << 30, lacks: tuple[torch.dtype, ...] | None = None
) -> Iterator[SimulatedDevice]:
    """PyTorch sees one device of this name within the block.

    Parameters
    ----------
    name : {"cuda:0", "mps:0", "xpu:0"}
    memory : int
        Bytes; more raise `torch.OutOfMemoryError`.
    lacks : tuple of torch.dtype, optional
        Dtypes that it does not have; by default those that MPS lacks, on MPS.
    """
    gpu = SimulatedDevice(name, memory, lacks)
    changes = [(torch, made, _factory(gpu, getattr(torch, made))) for made in _FACTORIES]
    changes += [
        (torch, made, _from_data(gpu, getattr(torch, made))) for made in ("tensor", "as_tensor")
    ]
    changes += [(torch.Tensor, "to", _to(gpu)), (torch, "Generator", _generator(gpu))]
    for fill in ("normal_", "uniform_", "random_", "exponential_", "bernoulli_"):
        changes.append((torch.Tensor, fill, _random(gpu, getattr(torch.Tensor, fill))))
    for fill in ("bernoulli", "multinomial", "poisson"):
        changes.append((torch, fill, _random(gpu, getattr(torch, fill))))
    changes += _modules(gpu)
    with ExitStack() as stack:
        for owner, attribute, value in changes:
            stack.enter_context(mock.patch.object(owner, attribute, value, create=True))
        with gpu:
            yield gpu
