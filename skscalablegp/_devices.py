"""Devices: which ones this machine has, what they can do, and how much memory they have left."""

from __future__ import annotations

from typing import Any

import torch

# Kinds of devices besides the CPU, in the order in which "auto" looks for one. On an Apple GPU
# "auto" stays on the CPU, because it has no double precision, which most fits need.
_KINDS = ("cuda", "xpu", "mps")
_CHOSEN_BY_AUTO = ("cuda", "xpu")


def available_devices() -> list[str]:
    """Names of the devices that torch sees here, with their numbers."""
    found = ["cpu"]
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        count = 0 if module is None else module.device_count()
        found += [f"{kind}:{i}" for i in range(count)]
    if torch.backends.mps.is_available():
        found.append("mps:0")
    return found


def resolve_device(device: Any = "auto") -> torch.device:
    """The torch device for a string, with an index unless it is the CPU.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda", "xpu", "mps"} or a kind with an index, such as "cuda:1"
        "auto" is CUDA if it is available, else an Intel GPU ("xpu") with double precision, else the
        CPU.

    Raises
    ------
    ValueError
        For unknown names, and for devices that this machine does not have.
    """
    name, available = str(device), available_devices()
    if name == "auto":
        usable = [d for d in available if d.partition(":")[0] in _CHOSEN_BY_AUTO]
        name = next((d for d in usable if has_float64(torch.device(d))), "cpu")
    if name in _KINDS:
        name += ":0"
    if name in available:
        return torch.device(name)
    listed = ", ".join(repr(d) for d in available)
    kind, _, index = name.partition(":")
    if kind not in _KINDS or not index.isdigit():
        raise ValueError(
            f"device={str(device)!r} is unknown: use 'auto', 'cpu', 'cuda', 'xpu', 'mps' or one "
            f"with an index, such as 'cuda:1' (available here: {listed})."
        )
    raise ValueError(
        f"device={str(device)!r} is not available here: torch {torch.__version__} sees {listed}. "
        "Use device='auto' to choose an available one."
    )


def device_or_cpu(name: str) -> torch.device:
    """The device of this name if this machine has it, else the CPU."""
    return torch.device(name if name in available_devices() else "cpu")


def has_float64(device: torch.device) -> bool:
    """Whether the device computes in double precision."""
    if device.type == "xpu":
        return bool(getattr(torch.xpu.get_device_properties(device), "has_fp64", True))
    return device.type != "mps"


def precise_device(device: torch.device) -> torch.device:
    """Where double precision is computed for work on a device: there if it can, else on the CPU."""
    return device if has_float64(device) else torch.device("cpu")


def sum_dtype(device: torch.device) -> torch.dtype:
    """The precision of sums on a device: double if it has that."""
    return torch.float64 if has_float64(device) else torch.float32


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in double precision, on its device if this has that, else on the CPU."""
    return tensor.to(precise_device(tensor.device)).double()


def check_float64(device: torch.device, name: str, needed_for: str) -> None:
    """Refuse a device on which an estimator would lack the precision that it needs.

    Parameters
    ----------
    device : torch.device
    name : str
        Of the estimator.
    needed_for : str
        What double precision is needed for; empty if single precision is enough on the device.

    Raises
    ------
    ValueError
        If the device has no double precision, and the estimator needs that.
    """
    if needed_for and not has_float64(device):
        raise ValueError(
            f"device={str(device)!r} has no double precision, which {name} needs for {needed_for}: "
            "use device='cpu'."
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device other than the CPU; None if unknown.

    What the driver reports as free, plus the memory that torch holds unused.
    """
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    module = getattr(torch, device.type)
    if not hasattr(module, "mem_get_info"):  # Intel GPUs before torch 2.6
        return None
    free, _ = module.mem_get_info(device)
    return free + module.memory_reserved(device) - module.memory_allocated(device)
