"""Which ranks are there: small messages through torch's key-value store, and signs of life."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .._clock import now

# Seconds between two heartbeats.
_BEAT = 0.5
# After a message has failed, a rank without a heartbeat for so many seconds is named as the cause.
_SILENT = 3.0
_NO_STORE = (
    "rank 0, or the launcher beside it, which keeps torch's key-value store, has ended or cannot "
    "be reached"
)


class RankError(RuntimeError):
    """A rank has ended, has failed, or makes different calls than the others."""


class Life:
    """The signs of life of all ranks, and values that they exchange through the store.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks, with keys of its own.
    rank : int
    names : sequence of str
        What messages call the ranks.
    timeout : float
        Seconds without a heartbeat after which a rank is considered lost.
    patience : float
        Seconds that the other ranks wait for one that is alive but busy with something else.
    """

    def __init__(
        self, store: Any, rank: int, names: Sequence[str], timeout: float, patience: float
    ):
        self.rank, self.size, self._names = rank, len(names), names
        self.timeout, self._patience = float(timeout), float(patience)
        self.store, self._beats = store.clone(), store.clone()
        for connection in (self.store, self._beats):
            connection.set_timeout(timedelta(seconds=self.timeout))
        self._silence = dict.fromkeys(range(self.size), 0.0)
        self._left: dict[int, str] = {}
        self._notice, self._lost, self._stages = "", 0.0, 0
        self._stop, self._pause = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)

    def begin(self) -> None:
        """Wait for all ranks, and begin to watch them."""
        self._say(0)
        self.gather("arrived", "")
        self._thread.start()

    def end(self, why: str = "") -> None:
        """Tell the others that this rank takes part no longer; `why` if others may wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _BEAT)
        try:
            self._say(-1, why or "its context has ended")
            if not why and not self._notice:
                self.gather("end", "")
            elif self.rank == 0:
                # The others read what has happened: the store may end with this process.
                silent, until = self._silent(_SILENT), now() + _SILENT
                others = [f"life/{rank}" for rank in range(self.size) if rank not in silent]
                while now() < until and any(v.endswith(b"|") for v in self.store.multi_get(others)):
                    self._pause.wait(_BEAT / 10)
        except RuntimeError:
            pass  # No other rank is left that could be informed.

    # ------------------------------------------------------------------ values

    def gather(self, what: str, value: str) -> list[str]:
        """The values of all ranks for one step of the program, which all of them reach."""
        stage = self._stages
        self._stages += 1
        begun, pause = now(), 1e-3
        keys = [f"{stage}/{what}/{rank}" for rank in range(self.size)]
        self._reach(lambda: self.store.set(keys[self.rank], value))
        while not self._reach(lambda: self.store.check(keys)):
            self.check()
            self._pause.wait(pause)
            pause = min(2 * pause, 0.05)
            if pause == 0.05:
                self._look_for(keys, now() - begun)
        return [found.decode() for found in self._reach(lambda: self.store.multi_get(keys))]

    def _look_for(self, keys: list[str], waited: float) -> None:
        """Raise if a rank will not reach this step."""
        there = [self._reach(lambda key=key: self.store.check([key])) for key in keys]
        missing = [rank for rank, found in enumerate(there) if not found]
        for rank in self._left.keys() & set(missing):
            raise RankError(
                f"{self._names[rank]} does not take part in this call: {self._left[rank]}. All "
                "ranks must make the same calls inside distribute()."
            )
        if missing and waited > self._patience:
            did = "make this call" if self._stages > 1 else "start"
            raise RankError(
                f"{self._named(missing)} did not {did} within {self._patience:g} s. All ranks must "
                "make the same calls inside distribute(); raise `patience` for slow ones."
            )

    def _reach(self, ask: Any) -> Any:
        try:
            return ask()
        except RuntimeError as error:
            raise RankError(_NO_STORE) from error

    # ------------------------------------------------------------------ life

    def _say(self, beat: int, left: str = "") -> None:
        self.store.set(f"life/{self.rank}", f"{beat}|{left}")

    def _watch(self) -> None:
        keys = [f"life/{rank}" for rank in range(self.size)]
        last: dict[int, tuple[str, float]] = {}
        beat = 0
        while not self._stop.wait(_BEAT):
            beat += 1
            try:
                self._beats.set(keys[self.rank], f"{beat}|")
                found = [value.decode() for value in self._beats.multi_get(keys)]
                if self._beats.check(["failed"]):
                    self._notice = self._beats.get("failed").decode()
            except RuntimeError:
                self._lost = self._lost or now()
                continue
            self._lost = 0.0
            for rank, value in enumerate(found):
                at, left = value.partition("|")[::2]
                if left:
                    self._left[rank] = left
                if rank not in last or last[rank][0] != at:
                    last[rank] = at, now()
                self._silence[rank] = now() - last[rank][1]

    def check(self) -> None:
        """Raise if a rank has failed or has been silent for too long."""
        if self._notice:
            raise RankError(self._notice)
        if self._lost and now() - self._lost > _SILENT:
            raise RankError(_NO_STORE)
        if silent := self._silent(self.timeout):
            raise RankError(
                self.fail(f"no sign of life of {self._named(silent)} for {self.timeout:g} s")
            )

    def fail(self, why: str) -> str:
        """Tell all ranks that one has failed; returns what the first one to fail has said."""
        try:
            self.store.compare_set("failed", "", why)
            self._notice = self.store.get("failed").decode()
        except RuntimeError:
            self._notice = why
        return self._notice

    def blame(self, error: BaseException) -> RankError:
        """The error for a message that has failed, which names the rank to blame."""
        for _ in range(int(3 * _SILENT / _BEAT)):
            if self._notice or self._lost:
                return RankError(self._notice or _NO_STORE)
            if silent := self._silent(_SILENT) or list(self._left):
                return RankError(self.fail(f"{self._named(silent)} has ended or cannot be reached"))
            self._pause.wait(_BEAT)
        first = str(error).partition("\n")[0]
        return RankError(
            self.fail(f"a message between ranks failed, although all ranks are running: {first}")
        )

    def _silent(self, seconds: float) -> list[int]:
        return [r for r, s in self._silence.items() if s > seconds and r not in self._left]

    def _named(self, ranks: list[int]) -> str:
        return ", ".join(self._names[rank] for rank in ranks)
