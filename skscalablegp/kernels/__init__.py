"""scikit-learn kernel objects as differentiable torch functions.

Importing this package imports every module in it, so that a kernel is one file: the one that
registers it.
"""

from importlib import import_module
from pkgutil import iter_modules

from ._categorical import Categorical, LowRankCategorical
from ._columns import Columns, check_no_columns, with_column_numbers
from ._compile import TorchKernel, compile_kernel, default_kernel
from ._frequencies import (
    Draws,
    Frequencies,
    NoSpectralDensity,
    ScaledFrequencies,
    no_spectral_density,
)
from ._nodes import MAX_POWER, Node, NotExportable, SumOverColumns, Term
from ._numpy import ObjectRows
from ._priors import Gamma, HalfCauchy, LogNormal, Prior, ThetaPrior
from ._registry import Layout, register_kernel
from ._slots import Slot
from ._spectral_mixture import SpectralMixture
from ._stationary import Profile, Stationary, root

__all__ = [
    "Categorical",
    "Columns",
    "Draws",
    "Frequencies",
    "Layout",
    "LowRankCategorical",
    "MAX_POWER",
    "Node",
    "NoSpectralDensity",
    "ObjectRows",
    "NotExportable",
    "Profile",
    "ScaledFrequencies",
    "Slot",
    "SpectralMixture",
    "Stationary",
    "Term",
    "TorchKernel",
    "check_no_columns",
    "compile_kernel",
    "default_kernel",
    "no_spectral_density",
    "register_kernel",
    "root",
    "with_column_numbers",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
