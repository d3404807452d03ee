"""What the values in a file have to be: the shapes of arrays, the types of fields, sane kernels.

A file with right checksums can still come from an untrusted source. The tables here are by the
names of attributes, which mean the same in all classes. What they do not list has any shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import Float, Float64
from sklearn.gaussian_process.kernels import Kernel

from .._compat import check_parameters
from ..core import GPModel
from ..core.likelihoods import Likelihood
from ..kernels import compile_kernel
from ..storage import ModelFileError


def _by_name(names: Mapping[str, str]) -> dict[str, str]:
    return {name: form for form, all_of_it in names.items() for name in all_of_it.split()}


# Arrays of finite numbers by form, with the names of the attributes that hold them, apart from what
# a dataclass declares with its shape. A form has sizes in letters, of which equal ones are equal
# in one object. A dimension with a question mark may be missing, and "each" stands for the arrays
# in a list. "Class." before a name stands for that class alone. Where None is possible, there is
# no check.
NUMBERS = _by_name(
    {
        "n d": "X_train_",
        "n t?": "y_train_ alpha_ Table.y",
        "n t": "_residual",
        "n": "_noise_train _within_train Table.noise Table.within",
        "n | positive": "_counts_train Table.counts",
        "d?": "_origin Table.origin",
        "d": "Scaling.x_mean GridFeatures.x_mean",
        "d | positive": "Scaling.x_scale GridFeatures.x_scale",
        "t?": "_y_train_mean Table.y_mean",
        "t? | positive": "_y_train_std Table.y_std",
        "t": "latent_constant_ Scaling.y_mean GridMoments.total SampledModel.constant"
        " ExactModel.constant",
        "t | positive": "Scaling.y_scale",
        "t m m": "variational_cov_",
        "1 m m": "SVGPRegressor.variational_cov_",
        "m t": "variational_mean_ coef_ shift_ ExactModel.mean",
        "m m": "coef_precision_cholesky_ coef_covariance_cholesky_ _process_factor"
        " ExactModel.factor",
        "m m?": "precision_",
        "m q": "inducing_points_",
        "m d": "relevance_vectors_",
        "c | positive": "class_prior_",
        "g?": "_power_losses",
        "h": "held_out_mean_ held_out_std_",
        "h c": "held_out_proba_",
        "h t?": "LeftOut.mean LeftOut.std",
        "k": "weights_ NormalScores.values NormalScores.scores Tails.nodes Tails.values",
        "q": "GridFeatures.centre",
        "q | positive": "GridFeatures.spread",
        "q u t": "SampledModel.mean",
        "q u c": "SampledModel.dense",
        "q u": "SampledModel.diagonal",
        "s d": "SampledModel.support_X",
        "s t": "SampledModel.support_Y",
        "s | positive": "SampledModel.support_share",
        "p t": "GridMoments.rhs",
        "p d": "Functions.points",
        "each": "_tensors _weights GridFeatures.weights _sums",
    }
)
# Arrays of whole numbers that are not negative, and below a size.
INDICES = _by_name(
    {
        "r k | n": "_near",
        "r | n": "_seen",
        "m": "relevance_",
        "h": "held_out_ LeftOut.rows",
        "each k | n": "experts_",
    }
)
# Finite numbers, positive if the name is followed by a sign.
SCALARS = ("noise_variance_ +", "_scale +", "local_power_", "_variance_scale +")
SCALARS += ("n_features_in_ +", "n_neighbors_ +", "n_iter_", "n_samples_seen_ +")
# Attributes that are either all present or all absent.
TOGETHER = [("X_train_", "y_train_", "_noise_train"), ("_y_train_mean", "_y_train_std")]
TOGETHER += [("variational_mean_", "variational_cov_", "latent_constant_")]
TOGETHER += [("_counts_train", "_within_train"), ("Table.counts", "Table.within")]
# Whole numbers in fitted state stay below the first, others below the second: fits take numbers up
# to 1e30, and squares of these and their inverses must have squares.
_LARGEST, _LARGEST_NUMBER = 2**48, 1e100


def complete(value: Any) -> None:
    """Give an object of an earlier version the parameters and fields that it did not have then.

    They take their defaults, which mean what the earlier version did: latent functions had no
    constants, and powers of probabilities did not know the shares of the classes.
    """
    cls, state = type(value), vars(value)
    if isinstance(value, GPModel):
        for name, parameter in signature(cls.__init__).parameters.items():
            if name != "self" and name not in state:
                state[name] = parameter.default
        mean, classes = state.get("variational_mean_"), state.get("classes_")
        if isinstance(mean, np.ndarray) and mean.ndim == 2:
            state.setdefault("latent_constant_", np.zeros(mean.shape[1]))
        if isinstance(classes, np.ndarray) and "_state" in state:
            state.setdefault("probability_power_", 1.0)
        if isinstance(classes, np.ndarray) and state.keys() & {
            "probability_power_",
            "temperature_",
        }:
            state.setdefault("class_prior_", np.full(len(classes), 1 / max(len(classes), 1)))
    elif is_dataclass(cls):
        for field in fields(cls):
            if field.name not in state and field.default is not MISSING:
                state[field.name] = field.default


def check(value: Any) -> None:
    """Raise a ModelFileError for an object that no fit has made."""
    cls, state = type(value), vars(value)
    if is_dataclass(cls):
        _check_fields(cls, state)
    if isinstance(value, Kernel):
        _check_kernel(value, cls.__name__, None)
    sizes: dict[str, int] = {}
    if type(state.get("n_features_in_")) is int:
        sizes["d"] = state["n_features_in_"]
    _check_arrays(cls, state, sizes)
    if isinstance(value, GPModel):
        _check_model(value, state)


def check_record(cls: type, values: Mapping[str, Any]) -> None:
    """The same for a `Record`, which stands for an object of the class `cls`."""
    if not is_dataclass(cls):
        raise ModelFileError(f"a {cls.__name__} has no fields")
    defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    values = defaults | dict(values)
    if {field.name for field in fields(cls)} != set(values):
        raise ModelFileError(f"a {cls.__name__} has other fields")
    _check_fields(cls, values, of_records=True)
    _check_arrays(cls, values, {})


# ------------------------------------------------------------------ arrays


@cache
def _declared(cls: type) -> dict[str, str]:
    """The forms of the arrays of numbers that a dataclass declares."""
    return {
        name: part.dim_str
        for name, hint in (_hints(cls) if is_dataclass(cls) else {}).items()
        for part in get_args(hint) or (hint,)
        if getattr(part, "dtype", None) in (Float, Float64)
    }


def _check_arrays(cls: type, state: Mapping[str, Any], sizes: dict[str, int]) -> None:
    for forms, kind in ((NUMBERS | _declared(cls), "f"), (INDICES, "iu")):
        for name, value in state.items():
            form = forms.get(f"{cls.__name__}.{name}", forms.get(name))
            if form is None or value is None or _of_objects(name, value):
                continue
            dims, _, rule = form.partition(" | ")
            if not dims.startswith("each"):
                _check_array(name, value, dims, sizes, kind)
                _check_numbers(name, value, rule, sizes)
                continue
            for k, part in enumerate(value):
                _check_array(f"{name}[{k}]", part, dims[5:], {}, kind)
                _check_numbers(f"{name}[{k}]", part, rule, sizes)


def _of_objects(name: str, value: Any) -> bool:
    """Rows that are not numeric, which some kernels take."""
    return name == "X_train_" and isinstance(value, np.ndarray) and value.dtype.kind in "OU"


def _check_array(name: str, value: Any, dims: str, sizes: dict[str, int], kind: str) -> None:
    if isinstance(value, float | np.floating | torch.Tensor):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kind:
        raise ModelFileError(f"{name} is not an array of numbers of the right type")
    ends = (value.min(initial=0), value.max(initial=0)) if kind == "f" else ()
    if not all(abs(float(end)) < _LARGEST_NUMBER for end in ends):
        raise ModelFileError(f"{name} contains NaN, infinity or numbers that no fit produces")
    if not dims:
        return
    letters = dims.split()
    while len(letters) > value.ndim and letters[-1].endswith("?"):
        letters.pop()
    if len(letters) != value.ndim:
        raise ModelFileError(f"{name} has the shape {value.shape}, not ({dims})")
    for letter, size in zip(letters, value.shape, strict=True):
        right = int(letter) if letter.isdigit() else sizes.setdefault(letter.rstrip("?"), size)
        if right != size:
            raise ModelFileError(f"{name} has the shape {value.shape}, which does not fit the rest")


def _check_numbers(name: str, value: np.ndarray, rule: str, sizes: Mapping[str, int]) -> None:
    if rule == "positive" and not (np.asarray(value) > 0).all():
        raise ModelFileError(f"{name} has numbers that are not positive")
    if np.asarray(value).dtype.kind in "iu" and value.size:
        if value.min() < 0 or (rule in sizes and value.max() >= sizes[rule]):
            raise ModelFileError(f"{name} refers to rows that do not exist")


# ------------------------------------------------------------------ fields


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _check_fields(cls: type, state: Mapping[str, Any], of_records: bool = False) -> None:
    """The fields of a dataclass are there, and have the types that it declares."""
    hints = _hints(cls)
    for field in fields(cls):
        if field.name not in state:
            raise ModelFileError(f"a {cls.__name__} has no {field.name}")
        if not _fits(state[field.name], hints[field.name], of_records):
            raise ModelFileError(
                f"{field.name} of a {cls.__name__} has the invalid value {state[field.name]!r:.60}"
            )


def _fits(value: Any, hint: Any, of_records: bool) -> bool:
    """Whether a value has a declared type; declarations that are no types of values say nothing."""
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part, of_records) for part in get_args(hint))
    if origin in (tuple, list):
        parts = get_args(hint)
        return isinstance(value, origin) and all(
            _fits(item, parts[0], of_records) for item in value if len(set(parts) - {...}) == 1
        )
    if hint in (int, float, bool):
        return _is_number(value, hint)
    if hint in (str, NoneType, np.ndarray, slice):
        return type(value) is hint
    if of_records and isinstance(hint, type) and issubclass(hint, torch.Tensor):
        return isinstance(value, np.ndarray)
    if of_records or not isinstance(hint, type):
        return True
    return isinstance(value, hint)


def _is_number(value: Any, hint: type) -> bool:
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is int:
        whole = isinstance(value, int | np.integer) and type(value) is not bool
        return whole and abs(int(value)) < _LARGEST
    return isinstance(value, float | int | np.floating | np.integer) and type(value) is not bool


# ------------------------------------------------------------------ models


def _check_model(model: GPModel, state: Mapping[str, Any]) -> None:
    check_parameters(model)
    if not isinstance(state.get("likelihood_"), Likelihood | None):
        raise ModelFileError("likelihood_ is not a likelihood")
    for names in TOGETHER:
        # Compact files leave out all of them, if any.
        there = [name in state for name in names if name not in state.get("_left_out_of_file", ())]
        if any(there) and not all(there):
            raise ModelFileError(f"a {type(model).__name__} has not all of {', '.join(names)}")
    for spec in SCALARS:
        name, _, sign = spec.partition(" ")
        value, whole = state.get(name, 1), name.startswith("n_")
        right = _is_number(value, int if whole else float) and np.isfinite(value)
        if not (right and (value > 0 if sign else value >= 0)):
            raise ModelFileError(f"{name} is {value!r:.60}, which is not possible")
    _check_targets(state)
    _check_grid(state)
    if "n_iter_" in state and state.get("kernel_") is not None:
        d = state.get("n_features_in_") if model._kernel_sees_rows() else None
        _check_kernel(state["kernel_"], "kernel_", d)


def _check_targets(state: Mapping[str, Any]) -> None:
    """There is one mean and one scale of targets, or one for each target."""
    y, below = state.get("y_train_"), getattr(state.get("estimator_"), "_y_train_mean", None)
    if isinstance(y, np.ndarray):
        t = y.shape[1] if y.ndim == 2 else 1
    elif "estimator_" in state:
        t = 1 if below is None else np.size(below)
    else:
        return
    for name in ("_y_train_mean", "_y_train_std"):
        if np.size(state.get(name, 0.0)) not in (1, t):
            raise ModelFileError(f"{name} is for {np.size(state[name])} targets, and there are {t}")


def _check_grid(state: Mapping[str, Any]) -> None:
    """The sums on a grid have an entry for each of its points."""
    grid, moments = state.get("grid_"), getattr(state.get("_kept"), "moments", None)
    if grid is not None and moments is not None and len(moments.rhs) != grid.n_points:
        raise ModelFileError(f"a grid of {grid.n_points} points has {len(moments.rhs)} sums")


def _check_kernel(kernel: Any, name: str, d: int | None) -> None:
    """Hyperparameters are numbers in their ranges, as many as there are columns."""
    if not isinstance(kernel, Kernel):
        raise ModelFileError(f"{name} is not a kernel")
    theta = np.asarray(kernel.theta, dtype=float)
    if not np.isfinite(theta).all() or np.isnan(np.asarray(kernel.bounds, dtype=float)).any():
        raise ModelFileError(f"{name} has hyperparameters that are not numbers")
    if d is not None:
        compile_kernel(kernel, d, any_kernel=True)
