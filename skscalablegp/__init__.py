"""Scalable Gaussian processes with scikit-learn's interface."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

__all__ = [
    "BSGDDKLRegressor",
    "HeteroscedasticRegressor",
    "IterativeGPRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "MinimaxDKLRegressor",
    "NNGPRegressor",
    "PoERegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMRegressor",
    "RFFRegressor",
    "RRCGRegressor",
    "SCGDDKLRegressor",
    "SGPRRegressor",
    "SSRFFRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "StackedGPRegressor",
    "__version__",
]

# Editors and type checkers read these imports; Python makes each when its name is first used.
if TYPE_CHECKING:
    from .meta import (
        HeteroscedasticRegressor,
        LOVEPredictor,
        MeanFunctionRegressor,
        StackedGPRegressor,
    )
    from .models.deep import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor
    from .models.experts import PoERegressor
    from .models.fourier import RFFRegressor, SSRFFRegressor
    from .models.grid import KISSGPRegressor
    from .models.inducing import SGPRRegressor, SVGPClassifier, SVGPRegressor
    from .models.iterative import IterativeGPRegressor, RRCGRegressor
    from .models.neighbors import NNGPRegressor
    from .models.sampled import QSGPClassifier, QSGPRegressor, QSRVMRegressor

_HOMES = {
    "meta": (
        *("HeteroscedasticRegressor", "LOVEPredictor"),
        *("MeanFunctionRegressor", "StackedGPRegressor"),
    ),
    "models.deep": ("BSGDDKLRegressor", "MinimaxDKLRegressor", "SCGDDKLRegressor"),
    "models.experts": ("PoERegressor",),
    "models.fourier": ("RFFRegressor", "SSRFFRegressor"),
    "models.grid": ("KISSGPRegressor",),
    "models.inducing": ("SGPRRegressor", "SVGPClassifier", "SVGPRegressor"),
    "models.iterative": ("IterativeGPRegressor", "RRCGRegressor"),
    "models.neighbors": ("NNGPRegressor",),
    "models.sampled": ("QSGPClassifier", "QSGPRegressor", "QSRVMRegressor"),
}
_MODULES = (
    *("datasets", "gradients", "inspection", "kernels", "likelihoods", "metrics"),
    *("preconditioners", "priors", "solvers", "training", "truncation"),
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = found = getattr(import_module(f".{home}", __name__), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
