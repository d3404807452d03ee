"""Scalable Gaussian processes with scikit-learn's interface.

Start here:

- `AutoGPRegressor` and `AutoGPClassifier` compare models within a time budget.
- `IterativeGPRegressor` is the exact process, a drop-in replacement for scikit-learn's regressor.
- `NNGPRegressor`, from the nearest rows, is for hundreds of thousands of rows.
- `KISSGPRegressor`, on a grid, is for one to three columns and any number of rows.
- `SVGPRegressor` and `SVGPClassifier`, with inducing points, are for fast predictions and classes.

Methods from papers: `RRCGRegressor`, `SSRFFRegressor`, `RFFRegressor`, `SGPRRegressor`,
`PoERegressor`, `SCGDDKLRegressor`, `MinimaxDKLRegressor`, `BSGDDKLRegressor`, `QSGPRegressor`,
`QSGPClassifier`, `QSRVMRegressor`, `LOVEPredictor`.

Wrappers of other regressors: `HeteroscedasticRegressor`, `MeanFunctionRegressor`,
`StackedGPRegressor`.

The file ``__init__.pyi`` lists the public names, for editors and type checkers and for this module,
which imports each of them when it is first used.
"""

import ast
import logging
import pkgutil
from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

# Fits log their stages and choices at the level INFO. Which of that is shown is up to the program.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def _listed() -> dict[str, str]:
    """The module of every public name, such as ".models.grid"; "." for modules of this package."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    imports = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: f".{line.module or ''}" for line in imports for alias in line.names}


_HOMES = _listed()
__all__ = sorted(name for name, home in _HOMES.items() if home != ".") + ["__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home == ".":
        return import_module(f".{name}", __name__)
    globals()[name] = value = getattr(import_module(home, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
