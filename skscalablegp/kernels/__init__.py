"""scikit-learn kernel objects as differentiable torch functions."""

from ._compile import TorchKernel, compile_kernel, default_kernel
from ._leaves import Constant, Linear, Periodic, Stationary, White
from ._nodes import MAX_POWER, Leaf, Node, PowerNode
from ._registry import Layout, register_kernel
from ._slots import Slot, StationaryTerm
from ._spectral_mixture import SpectralComponent, SpectralMixture

__all__ = [
    "MAX_POWER",
    "Constant",
    "Layout",
    "Leaf",
    "Linear",
    "Node",
    "PowerNode",
    "Periodic",
    "Slot",
    "SpectralComponent",
    "SpectralMixture",
    "Stationary",
    "StationaryTerm",
    "TorchKernel",
    "White",
    "compile_kernel",
    "default_kernel",
    "register_kernel",
]
