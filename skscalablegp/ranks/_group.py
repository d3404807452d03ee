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

from ._life import Life, RankError

# Seconds between two checks, during a wait, that all ranks are alive.
_LOOK = timedelta(seconds=0.5)
# The others wait for the next task of rank 0 for as long as it lives.
_WHILE_ALIVE = timedelta(days=30)


class Group:
    """The collective operations of one context.

    Tensors of a GPU travel by nccl if each rank has a GPU of its own, otherwise through the memory
    of the machines by gloo.

    Attributes
    ----------
    sent : int
        Bytes that this rank has sent: a broadcast to p ranks counts p - 1 times at rank 0, a sum
        counts once at each other rank.
    """

    def __init__(self, life: Life, timeout: float):
        self.rank, self.size, self.life, self.sent = life.rank, life.size, life, 0
        self._gloo = dist.new_group(backend="gloo", timeout=_WHILE_ALIVE)
        self._nccl = None
        places = life.gather("place", _place())
        if all(places) and len(set(places)) == self.size and dist.is_nccl_available():
            self._nccl = dist.new_group(backend="nccl", timeout=timedelta(seconds=timeout))

    def device(self, kind: str) -> torch.device:
        """The device of this kind that belongs to this rank."""
        if kind != "cuda":
            return torch.device(kind)
        own = int(os.environ.get("LOCAL_RANK", self.rank)) % max(torch.cuda.device_count(), 1)
        return torch.device("cuda", own)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The tensor of rank 0 on all ranks, written into `tensor`, which is contiguous."""
        self.sent += (self.size - 1) * tensor.nbytes if self.rank == 0 else 0
        return self._move(dist.broadcast, tensor, src=0)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, at rank 0; the others get a tensor without meaning."""
        self.sent += tensor.nbytes if self.rank else 0
        return self._move(dist.reduce, tensor.contiguous(), dst=0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of the same shape on the CPU, at rank 0; the others get none.

        A rank may wait in it for as long as the others live, which messages to one rank do not
        allow.
        """
        self.sent += tensor.nbytes if self.rank else 0
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.rank == 0 else []
        try:
            work = dist.gather(tensor, parts or None, 0, group=self._gloo, async_op=True)
        except RuntimeError as error:
            raise self.life.blame(error) from error
        self._wait(work)
        return parts

    def send(self, tensor: Tensor, to: int) -> None:
        """Send a tensor of the CPU to one rank."""
        self.sent += tensor.nbytes
        self._wait_apart(self._begun(dist.isend, tensor.contiguous(), to))

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        """A tensor that one rank sends, written into `tensor`, which is contiguous."""
        self._wait_apart(self._begun(dist.irecv, tensor, source))
        return tensor

    def _begun(self, operation: Any, tensor: Tensor, other: int) -> Any:
        try:
            return operation(tensor, other, group=self._gloo)
        except RuntimeError as error:
            raise self.life.blame(error) from error

    def _move(self, operation: Any, tensor: Tensor, **to: int) -> Tensor:
        direct = tensor.device.type == "cpu" or self._nccl is not None
        moved = tensor if direct else tensor.cpu()
        group = self._gloo if moved.device.type == "cpu" else self._nccl
        try:
            work = operation(moved, group=group, async_op=True, **to)
        except RuntimeError as error:
            raise self.life.blame(error) from error
        self._wait(work)
        return tensor if direct else tensor.copy_(moved)

    def _wait(self, work: Any) -> None:
        while True:
            try:
                work.wait(_LOOK)
            except RuntimeError:
                if work.is_completed():
                    # It has failed, or has ended just after the look, which is no failure.
                    return self._ended(work)
                try:
                    self.life.check()
                except RankError:
                    _abandon(work)
                    raise
            else:
                return

    def _ended(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise self.life.blame(error) from error

    def _wait_apart(self, work: Any) -> None:
        """Wait for a message to or from one rank, which a wait with a limit would cancel."""
        ended, failures = threading.Event(), []

        def wait() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                failures.append(error)
            finally:
                ended.set()

        threading.Thread(target=wait, daemon=True).start()
        while not ended.wait(_LOOK.total_seconds()):
            try:
                self.life.check()
            except RankError:
                _abandon(work)
                raise
        for error in failures:
            raise self.life.blame(error) from error

    def close(self, broken: bool) -> None:
        """Release the connections; those of a broken group do not wait for anybody."""
        for group in filter(None, (self._gloo, self._nccl)):
            if broken:
                _abandon(group)
            else:
                dist.destroy_process_group(group)


def _abandon(waiting: Any) -> None:
    """Never end an object of torch, because its end would wait for messages of a lost rank."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(waiting))


def _place() -> str:
    """The GPU of this rank; empty without one."""
    if not torch.cuda.is_available():
        return ""
    local = int(os.environ.get("LOCAL_RANK", 0))
    return f"{socket.gethostname()} {local}" if local < torch.cuda.device_count() else ""
