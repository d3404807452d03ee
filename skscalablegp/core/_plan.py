"""Plans of fits: every choice with its reason, before any work is done.

A family of models has a pure function ``plan(params, n, d, machine)``, which returns a frozen
dataclass derived from `Plan`; `params` is the estimator, of which it reads parameters only. A field
with the name of a parameter is a `Choice`; other fields are settings that follow from the choices.
``run.follow(plan)`` reports it::

    @dataclass(frozen=True, kw_only=True)
    class GridPlan(Plan):
        solver: Choice
        grid_size: Choice

    def plan(params, n, d, machine):
        small = n <= SMALL_TABLE
        return GridPlan(
            solver=resolve(params.solver, "cholesky" if small else "cg", f"{n:,} rows"),
            grid_size=resolve(params.grid_size, n_points(d), f"{d} columns"),
            ignored=ignore("device", because="grids are computed on the CPU"),
        )
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch

from .._devices import precise_device

# Not typing.Self, which the checks of annotations under pytest cannot resolve in a method.
P = TypeVar("P", bound="Plan")


class Choice(NamedTuple):
    """The value that a parameter has in a fit, and the reason."""

    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


class MemoryNeed(NamedTuple):
    """Peak memory of a part of the work, in bytes, its name, and a setting that needs less.

    The texts are those of `check_memory` in ``_validation``.
    """

    bytes: float
    what: str
    remedy: str


@dataclass(frozen=True)
class Machine:
    """The means of a fit, from which plans are made.

    Attributes
    ----------
    device : torch.device
    memory : float or None
        Bytes that matrices may take; None if unknown.
    cores : int
        Number of threads that compute.
    seconds : float or None
        Time budget of the whole fit; None without one.
    compiler : str or None
        What torch compiles with for the device; None without one.
    products_on : torch.device or None
        A device without double precision: it computes products in single precision, and `device` is
        the CPU.
    """

    device: torch.device = torch.device("cpu")
    memory: float | None = None
    cores: int = 1
    seconds: float | None = None
    compiler: str | None = None
    products_on: torch.device | None = None

    @classmethod
    def on(cls, device: torch.device) -> Machine:
        """That of a device for the products, whose other means are unknown."""
        there = precise_device(device)
        return cls(there, products_on=None if there == device else device)

    @property
    def multiplies(self) -> torch.device:
        """The device that computes products."""
        return self.products_on or self.device

    def precision(self, params: Any, dtype: Choice, exact: bool, what: str = "") -> Choice:
        """The precision of what runs on the device, which an exact process does not."""
        if self.products_on is None:
            return dtype
        if params.dtype == "float64":
            raise ValueError(
                f"dtype='float64' contradicts device={str(self.products_on)!r}, which has no "
                "double precision: use dtype='auto' or device='cpu'."
            )
        reason = f"{self.products_on} computes {what}in single precision only"
        return dtype if exact else Choice("float32", reason)

    @property
    def room(self) -> float:
        """Bytes that matrices may take; infinite if unknown."""
        return math.inf if self.memory is None else float(self.memory)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a fit is carried out.

    Attributes
    ----------
    ignored : mapping of str to str
        Parameters that have no effect in this fit, with the reason.
    needs : tuple of MemoryNeed
        Refused by `FitRun.follow` if they do not fit into memory.
    exact_instead : str
        Why the exact process takes the place of the method; empty if the method is used.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[MemoryNeed, ...] = ()
    exact_instead: str = ""

    def ignoring(self: P, *names: str, because: str) -> P:
        """The plan with further parameters that have no effect."""
        return replace(self, ignored={**self.ignored, **ignore(*names, because=because)})

    @property
    def precision(self) -> torch.dtype:
        """The precision that the choice of `dtype` names."""
        return getattr(torch, self.choices["dtype"].value)

    @property
    def choices(self) -> dict[str, Choice]:
        """The fields that are choices, by name; those of plans inside this one come first."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        inner = [value.choices for value in values.values() if isinstance(value, Plan)]
        own = {name: value for name, value in values.items() if isinstance(value, Choice)}
        return {name: choice for part in (*inner, own) for name, choice in part.items()}

    @property
    def without_effect(self) -> dict[str, str]:
        """`ignored`, with that of plans inside this one."""
        parts = [getattr(self, part.name) for part in fields(self)]
        inner = [part.without_effect for part in parts if isinstance(part, Plan)]
        return {name: why for part in (*inner, self.ignored) for name, why in part.items()}


def only_float64(params: Any, reason: str) -> dict[str, Any]:
    """The fields `dtype` and `ignored` of a plan that is in double precision for every `dtype`."""
    ignored = ignore("dtype", because=reason) if params.dtype == "float32" else {}
    return {"dtype": Choice("float64", reason), "ignored": ignored}


def is_auto(value: Any) -> bool:
    """Whether a parameter is "auto"; arrays are compared with no string."""
    return isinstance(value, str) and value == "auto"


def resolve(given: Any, value: Any, reason: str) -> Choice:
    """The user's value of a parameter, or `value` with its reason if that is "auto"."""
    return Choice(value, reason) if is_auto(given) else Choice(given, "as given")


def ignore(*names: str, because: str) -> dict[str, str]:
    """An entry of `Plan.ignored` for each of several parameters."""
    return dict.fromkeys(names, because)
