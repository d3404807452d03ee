"""scikit-learn kernel objects as differentiable torch functions.

Every module named after a kernel registers it: importing them here fills the registry.
"""

from . import (  # noqa: F401
    _dot_product,
    _exp_sine_squared,
    _matern,
    _rational_quadratic,
    _rbf,
    _white,
)
from ._compile import TorchKernel, compile_kernel, default_kernel
from ._frequencies import (
    Draws,
    Frequencies,
    NoSpectralDensity,
    ScaledFrequencies,
    no_spectral_density,
)
from ._nodes import MAX_POWER, Node, Term
from ._registry import Layout, register_kernel
from ._slots import Slot
from ._spectral_mixture import SpectralMixture
from ._stationary import Profile, Stationary

__all__ = [
    "Draws",
    "Frequencies",
    "Layout",
    "MAX_POWER",
    "Node",
    "NoSpectralDensity",
    "Profile",
    "ScaledFrequencies",
    "Slot",
    "SpectralMixture",
    "Stationary",
    "Term",
    "TorchKernel",
    "compile_kernel",
    "default_kernel",
    "no_spectral_density",
    "register_kernel",
]
