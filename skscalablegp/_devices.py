"""Devices: which ones this machine has, what they can do, and how much memory they have left."""

from __future__ import annotations

from typing import Any

import torch

# Kinds of devices besides the CPU, in the order in which "auto" looks for one. On an Apple GPU
# "auto" stays on the CPU, because it has no double precision, which most fits need.
_KINDS = ("cuda", "xpu", "mps")
_CHOSEN_BY_AUTO = ("cuda", "xpu")
# What classes need double precision for, so that they refuse devices without it. All others leave
# it to the CPU: on such a device they compute products, batches or networks in single precision.
_NEEDS = {
    "KISSGPRegressor": "sums over the rows and factors of the covariance of a grid",
    "NNGPRegressor": "variances given near rows, which are small differences",
    "PoERegressor": "factorisations of covariances with little noise",
    "QSGPClassifier": "the values at the support rows, which add up the changes of all steps",
    "QSGPRegressor": "the values at the support rows, which add up the changes of all steps",
    "QSRVMRegressor": "the posterior of the relevance weights",
    "RFFRegressor": "the factor of sums of features over all rows",
    "SGPRRegressor": "the factor of sums over all rows",
    "SSRFFRegressor": "the factor of sums of features over all rows",
}


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


def needs_float64(estimator: Any) -> str:
    """What an estimator, or a user's subclass of it, needs double precision for; may be empty."""
    return next((why for cls in type(estimator).__mro__ if (why := _NEEDS.get(cls.__name__))), "")


def check_device(estimator: Any, device: torch.device) -> None:
    """Raise a ValueError for a device without the precision that an estimator needs."""
    why = needs_float64(estimator)
    if why and not has_float64(device):
        raise ValueError(
            f"device={str(device)!r} has no double precision, which {type(estimator).__name__} "
            f"needs for {why}: use device='cpu'."
        )


def device_or_cpu_for(estimator: Any, device: str) -> str:
    """The device, or the CPU where one of several estimators cannot use it."""
    refused = needs_float64(estimator) and not has_float64(resolve_device(device))
    return "cpu" if refused else device


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
