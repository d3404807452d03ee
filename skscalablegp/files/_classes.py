"""The fixed table of what a file may name: classes and functions, each under one name.

A name in a file is looked up here and nowhere else. Nothing is imported because a file says so:
only modules in this table are, when a file has one of their classes.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import torch
from sklearn.gaussian_process import kernels as sklearn_kernels

Entry = TypeVar("Entry")

# Public modules, whose classes may be values of parameters.
_SETTINGS = ("kernels", "likelihoods", "priors", "solvers", "preconditioners", "truncation")
_SETTINGS += ("gradients", "training")

# Classes of fitted state, and functions in it, by the folder or the module that defines them. They
# belong here as soon as a fitted estimator has them in its ``__dict__``; `save` refuses those that
# are missing.
_STATE = {
    "core": "Choice ExactProcess LeftOut Record",
    "core.data": "Scaling Table",
    "features": "DenseNetwork LimitedNetwork ModuleNetwork PriorFeatures _Block _Copies _First",
    "kernels": "BumpFrequencies CategoryCovariance CodeFrequencies Constant Equality"
    " GammaMixtureFrequencies Gaussian Linear Matern12 Matern32 Matern52 NumpyKernel OnColumns"
    " Periodic PowerNode ProductNode RationalQuadratic ScaledFrequencies Slot SpectralComponent"
    " SpreadFrequencies Stationary SumNode SumOverColumns ThetaPrior TorchKernel White"
    " ZeroElsewhere",
    "meta": "BoostedClasses BoostedTrees Leaderboard LeaderboardRow NoiseModel NoisePart"
    " NormalScores RandomizedTrees Scaled ScoredColumns TableEncoder Tails TargetCodes _Categories"
    " _Dates _Numbers _Standardised",
    "metrics": "_PredictiveScorer _crps_of _interval_score_of _moments _nlpd_of _pinball_of"
    " _share_inside predict_interval predict_quantiles",
    "models.deep": "DeepFeatures",
    "models.grid": "Axis CommonNoise FixedNoise Grid GridFeatures GridMoments NoiseByRow",
    "models.iterative": "PathwiseSamples Solves",
    "models.sampled": "ExactModel Functions SampledModel",
}

# Layers of networks that are given as modules, and are made of their own attributes only.
_LAYERS = ("Sequential", "Linear", "Bilinear", "LayerNorm", "Identity", "Flatten", "Unflatten")
_LAYERS += ("ReLU", "LeakyReLU", "PReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Tanh")
_LAYERS += ("Sigmoid", "Softplus", "Softsign", "Softmax", "Hardtanh", "ModuleList", "ParameterList")
_KERNELS = ("ConstantKernel", "WhiteKernel", "RBF", "Matern", "RationalQuadratic", "ExpSineSquared")
_KERNELS += ("DotProduct", "PairwiseKernel", "CompoundKernel", "Sum", "Product", "Exponentiation")

_REGISTERED: dict[str, Any] = {}


@cache
def table() -> dict[str, Any]:
    """All entries of the package by name. The estimators' modules are imported."""
    package = import_module(__package__.rpartition(".")[0])
    found = {f"sklearn.{name}": getattr(sklearn_kernels, name) for name in _KERNELS}
    found |= {f"torch.{name}": getattr(torch.nn, name) for name in _LAYERS}
    found |= {name: getattr(package, name) for name in package.__all__}
    for name in _SETTINGS:
        module = import_module(f"{package.__name__}.{name}")
        found |= {f"{name}.{entry}": getattr(module, entry) for entry in module.__all__}
    # Public modules also offer functions, which are no values of parameters.
    found = {name: entry for name, entry in found.items() if isinstance(entry, type)}
    for folder, names in _STATE.items():
        defined = _defined_in(import_module(f"{package.__name__}.{folder}"))
        stem = folder.rpartition(".")[2]
        found |= {f"{stem}.{name}": defined[name] for name in names.split()}
    return found


def _defined_in(module: ModuleType) -> dict[str, Any]:
    """What a module has, or the modules in a folder define."""
    if not hasattr(module, "__path__"):
        return vars(module)
    parts = [import_module(f"{module.__name__}.{it.name}") for it in iter_modules(module.__path__)]
    return {
        name: entry
        for part in parts
        for name, entry in vars(part).items()
        if getattr(entry, "__module__", "") == part.__name__
    }


@cache
def _names() -> dict[Any, str]:
    return {entry: name for name, entry in table().items()}


def name_of(entry: Any) -> str | None:
    """The name under which files have a class or a function; None if they may not."""
    for name, registered in _REGISTERED.items():
        if registered is entry:
            return name
    return _names().get(entry) if isinstance(entry, type | FunctionType) else None


def entry_of(name: str) -> Any:
    """The class or the function with this name; None if there is none."""
    return _REGISTERED[name] if name in _REGISTERED else table().get(name)


def is_registered(entry: Any) -> bool:
    """Whether a user has registered it."""
    return any(registered is entry for registered in _REGISTERED.values())


def register(entry: Entry, name: str | None = None) -> Entry:
    """Allow files to contain objects of a class of your own, or a function of your own.

    Call it before `save` and, in the process that reads the file, before `load`, with the same name
    for the same code. Objects are saved as their attributes; `load` makes them without a call of
    ``__init__``. A function is saved as its name alone.

    Parameters
    ----------
    entry : class or function
        For example a kernel, a likelihood, a callback, or a function that makes a network.
    name : str, optional
        Its name in files; by default ``"module.qualified_name"``.

    Returns
    -------
    entry : class or function
        The argument, so that this is also a decorator.

    Raises
    ------
    TypeError
        For anything but a class or a function.
    ValueError
        For a name that stands for something else.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skscalablegp.files import register
    >>> @register
    ... class Warped(RBF):
    ...     pass
    """
    if not isinstance(entry, type | FunctionType):
        raise TypeError(f"register takes a class or a function, got {entry!r:.100}.")
    if name is None:
        name = f"{entry.__module__}.{entry.__qualname__}"
    if not isinstance(name, str) or not name or len(name) > 200 or not name.isascii():
        raise ValueError(f"name must be 1 to 200 ASCII characters, got {name!r:.100}.")
    known = entry_of(name)
    if known is not None and not _same(known, entry):
        raise ValueError(f"{name!r} stands for {known!r} already: give another name.")
    _REGISTERED[name] = entry
    return entry


def _same(known: Any, entry: Any) -> bool:
    """Whether one is the other, or a later definition of it in the same place, as in notebooks."""
    places = [(part.__module__, part.__qualname__) for part in (known, entry)]
    return known is entry or places[0] == places[1]
