"""Tensors from rank 0 to all ranks, and sums over ranks; waits end when a rank is lost."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore

from ._life import Life, RankError

# Seconds between two checks, during a wait, that all ranks are alive.
_LOOK = 0.5
# The others wait for the next task of rank 0 for as long as it lives.
_WHILE_ALIVE = timedelta(days=30)


class Group:
    """The collective operations of one context.

    Tensors of a GPU travel by nccl if each rank has a GPU of its own, otherwise through the memory
    of the machines by gloo.

    Parameters
    ----------
    life : Life
    host : str, optional
        The address of this machine by which others reach it, unless GLOO_SOCKET_IFNAME says so;
        by default that of the machine's name, which is often a loopback address.

    Attributes
    ----------
    bytes_sent : int
        Bytes that this rank has sent: a broadcast to p ranks counts p - 1 times at rank 0, a sum
        counts once at each other rank.
    """

    def __init__(self, life: Life, host: str = ""):
        self.rank, self.size, self.life, self.bytes_sent = life.rank, life.size, life, 0
        member = PrefixStore("gloo", life.store), self.rank, self.size
        self._gloo: Any = dist.ProcessGroupGloo(*member, _gloo_options(host))
        self._nccl: Any = None
        place = f"{socket.gethostname()} {self.device('cuda').index}"
        places = life.gather("place", place if torch.cuda.is_available() else "")
        if all(places) and len(set(places)) == self.size and dist.is_nccl_available():
            member = PrefixStore("nccl", life.store), self.rank, self.size
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=life.timeout)
            self._nccl = dist.ProcessGroupNCCL(*member, options)

    def device(self, kind: str) -> torch.device:
        """The device of this kind that belongs to this rank."""
        if kind != "cuda":
            return torch.device(kind)
        own = int(os.environ.get("LOCAL_RANK", self.rank)) % max(torch.cuda.device_count(), 1)
        return torch.device("cuda", own)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The tensor of rank 0 on all ranks, written into `tensor`, which is contiguous."""
        self.bytes_sent += (self.size - 1) * tensor.nbytes if self.rank == 0 else 0
        return self._move("broadcast", tensor)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, at rank 0; the others get a tensor without meaning."""
        self.bytes_sent += tensor.nbytes if self.rank else 0
        return self._move("reduce", tensor.contiguous())

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape and on the CPU, at rank 0; the others get none."""
        self.bytes_sent += tensor.nbytes if self.rank else 0
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.rank == 0 else []
        self._do(self._gloo.gather, parts, tensor)
        return parts

    def _move(self, operation: str, tensor: Tensor) -> Tensor:
        direct = tensor.device.type == "cpu" or self._nccl is not None
        moved = tensor if direct else tensor.cpu()
        group = self._gloo if moved.device.type == "cpu" else self._nccl
        self._do(getattr(group, operation), moved)
        return tensor if direct else tensor.copy_(moved)

    def _do(self, operation: Any, *args: Any) -> None:
        """Begin to exchange messages, and wait for their end while all ranks live."""
        ended = threading.Event()
        try:
            work = operation(*args, root=0)
            future = work.get_future()
            future.add_done_callback(lambda _: ended.set())
            # A wait with a limit would cancel a message to or from one rank when it ends.
            while not ended.wait(_LOOK):
                self.life.check()
            future.wait()
        except RankError:
            _abandon(work)
            raise
        except RuntimeError as error:
            raise self.life.blame(error) from error

    def close(self, broken: bool) -> None:
        """Release the connections; those of a broken group do not wait for anybody."""
        if broken:
            _abandon(self._gloo)
            _abandon(self._nccl)
        elif hasattr(self._nccl, "shutdown"):  # Not before torch 2.6.
            self._nccl.shutdown()
        self._gloo = self._nccl = None


def _abandon(waiting: Any) -> None:
    """Never end an object of torch, because its end would wait for messages of a lost rank."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(waiting))


def _gloo_options(host: str) -> Any:
    if not host or "GLOO_SOCKET_IFNAME" in os.environ:
        return _WHILE_ALIVE
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._threads = _WHILE_ALIVE, 2
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return options
