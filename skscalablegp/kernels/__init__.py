"""scikit-learn kernel objects as differentiable torch functions."""

from ._compile import TorchKernel, compile_kernel, default_kernel
from ._leaves import Constant, Linear, Periodic, Stationary, White
from ._nodes import MAX_POWER, Leaf, Node, PowerNode
from ._registry import Layout, register_kernel
from ._slots import Slot, StationaryTerm
from ._spectra import Frequencies, NoSpectralDensity, find_draw, no_spectral_density
from ._spectral_mixture import SpectralComponent, SpectralMixture

__all__ = [
    "Constant",
    "Frequencies",
    "Layout",
    "Leaf",
    "Linear",
    "MAX_POWER",
    "NoSpectralDensity",
    "Node",
    "Periodic",
    "PowerNode",
    "Slot",
    "SpectralComponent",
    "SpectralMixture",
    "Stationary",
    "StationaryTerm",
    "TorchKernel",
    "White",
    "compile_kernel",
    "default_kernel",
    "find_draw",
    "no_spectral_density",
    "register_kernel",
]
