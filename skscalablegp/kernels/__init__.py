"""scikit-learn kernel objects as differentiable torch functions."""

from ._compile import TorchKernel, compile_kernel, default_kernel
from ._leaves import Constant, Linear, Periodic, Stationary, White
from ._nodes import Leaf, Node
from ._registry import Layout, register_kernel
from ._slots import Slot, StationaryTerm
from ._spectral_mixture import SpectralComponent, SpectralMixture

__all__ = [
    "Constant",
    "Layout",
    "Leaf",
    "Linear",
    "Node",
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
