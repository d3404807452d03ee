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
from sklearn.gaussian_process.kernels import Kernel

from .._compat import check_parameters
from ..core import GPModel
from ..core.likelihoods import Likelihood
from ..kernels import compile_kernel
from ..storage import ModelFileError

# Arrays of finite numbers, by the name of the attribute that holds them: sizes in letters, of which
# equal ones are equal in one object. A dimension with a question mark may be missing, and "class."
# before a name stands for that class alone. Where None is possible, the check is left out.
NUMBERS = {
    "X_train_": "n d",
    "y_train_": "n t?",
    "_noise_train": "n",
    "_counts_train": "n",
    "_residual": "n t",
    "_within_train": "n",
    "alpha_": "n t?",
    "_origin": "d?",
    "Table.origin": "d?",
    "_y_train_mean": "t?",
    "_y_train_std": "t?",
    "inducing_points_": "m q",
    "variational_mean_": "m t",
    "variational_cov_": "t m m",
    "latent_constant_": "t",
    "class_prior_": "c",
    "_power_losses": "g?",
    "coef_": "m t",
    "coef_precision_cholesky_": "m m",
    "coef_covariance_cholesky_": "m m",
    "_process_factor": "m m",
    "relevance_vectors_": "m d",
    "precision_": "m m?",
    "shift_": "m t",
    "weights_": "k",
    "held_out_mean_": "h",
    "held_out_std_": "h",
    "held_out_proba_": "h c",
    "Scaling.x_mean": "d",
    "Scaling.x_scale": "d",
    "Scaling.y_mean": "t",
    "Scaling.y_scale": "t",
    "GridFeatures.x_mean": "d",
    "GridFeatures.x_scale": "d",
    "GridFeatures.centre": "q",
    "GridFeatures.spread": "q",
    "GridMoments.rhs": "p t",
    "GridMoments.total": "t",
    "SampledModel.mean": "q u t",
    "SampledModel.dense": "q u c",
    "SampledModel.diagonal": "q u",
    "SampledModel.support_X": "s d",
    "SampledModel.support_Y": "s t",
    "SampledModel.support_share": "s",
    "SampledModel.constant": "t",
    "ExactModel.mean": "m t",
    "ExactModel.factor": "m m",
    "ExactModel.constant": "t",
    "Functions.points": "p d",
    "Table.y": "n t?",
    "Table.y_mean": "t?",
    "Table.y_std": "t?",
    "Table.noise": "n",
    "Table.counts": "n",
    "Table.within": "n",
    "LeftOut.mean": "h t?",
    "LeftOut.std": "h t?",
    "NormalScores.values": "k",
    "NormalScores.scores": "k",
    "Tails.nodes": "k",
    "Tails.values": "k",
    "ScaledFrequencies.base": "f d",
    "GammaMixtureFrequencies.base": "f d",
    "GammaMixtureFrequencies.uniforms": "f",
    "BumpFrequencies.base": "f d",
    "BumpFrequencies.signs": "f d",
    "CodeFrequencies.uniforms": "f",
    "PathwiseSamples.prior_weights": "q s",
    "PathwiseSamples.representer_weights": "n s",
}
# Arrays of whole numbers that are not negative, and below the size that follows the sign.
INDICES = {
    "_near": "r k < n",
    "_seen": "r < n",
    "relevance_": "m",
    "held_out_": "h",
    "LeftOut.rows": "h",
}
# Lists of finite arrays, and of indices below a size.
LISTS = ("_tensors", "_weights", "GridFeatures.weights", "_sums")
INDEX_LISTS = {"experts_": "n"}
# Finite numbers, positive if the name is followed by a sign.
SCALARS = ("noise_variance_ +", "_scale +", "local_power_", "_variance_scale +")
SCALARS += ("n_features_in_ +", "n_neighbors_ +", "n_iter_", "n_samples_seen_ +")
# Attributes that are either all present or all absent.
TOGETHER = [("X_train_", "y_train_", "_noise_train"), ("_y_train_mean", "_y_train_std")]
TOGETHER += [("variational_mean_", "variational_cov_", "latent_constant_")]
TOGETHER += [("_counts_train", "_within_train"), ("Table.counts", "Table.within")]
# Arrays and numbers that divide.
_POSITIVE = {"_y_train_std", "Scaling.x_scale", "Scaling.y_scale", "GridFeatures.x_scale"}
_POSITIVE |= {"GridFeatures.spread", "Table.y_std", "_counts_train", "Table.counts"}
_POSITIVE |= {"SampledModel.support_share", "class_prior_"}
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
    _check_arrays(cls.__name__, state, sizes)
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
    _check_arrays(cls.__name__, values, {})


# ------------------------------------------------------------------ arrays


def _check_arrays(owner: str, state: Mapping[str, Any], sizes: dict[str, int]) -> None:
    for name, value in state.items():
        own = f"{owner}.{name}"
        dims = NUMBERS.get(own, NUMBERS.get(name))
        if dims is not None and value is not None and not _of_objects(name, value):
            _check_array(name, value, dims, sizes, "f")
            if (own in _POSITIVE or name in _POSITIVE) and not (np.asarray(value) > 0).all():
                raise ModelFileError(f"{name} has numbers that are not positive")
        if name in LISTS or own in LISTS:
            for k, part in enumerate(() if value is None else value):
                _check_array(f"{name}[{k}]", part, None, {}, "f")
    for name, value in state.items():
        spec = INDICES.get(f"{owner}.{name}", INDICES.get(name))
        if spec is not None and value is not None:
            dims, _, below = spec.partition(" < ")
            _check_array(name, value, dims, sizes, "iu")
            _check_indices(name, value, sizes.get(below))
        if name in INDEX_LISTS and value is not None:
            for k, part in enumerate(value):
                _check_array(f"{name}[{k}]", part, "k", {}, "iu")
                _check_indices(f"{name}[{k}]", part, sizes.get(INDEX_LISTS[name]))


def _of_objects(name: str, value: Any) -> bool:
    """Rows that are not numeric, which some kernels take."""
    return name == "X_train_" and isinstance(value, np.ndarray) and value.dtype.kind in "OU"


def _check_array(name: str, value: Any, dims: str | None, sizes: dict[str, int], kind: str) -> None:
    if isinstance(value, float | np.floating):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in kind:
        raise ModelFileError(f"{name} is not an array of numbers of the right type")
    ends = (value.min(initial=0), value.max(initial=0)) if kind == "f" else ()
    if not all(abs(float(end)) < _LARGEST_NUMBER for end in ends):
        raise ModelFileError(f"{name} contains NaN, infinity or numbers that no fit produces")
    if dims is None:
        return
    letters = dims.split()
    while len(letters) > value.ndim and letters[-1].endswith("?"):
        letters.pop()
    if len(letters) != value.ndim:
        raise ModelFileError(f"{name} has the shape {value.shape}, not ({dims})")
    for letter, size in zip(letters, value.shape, strict=True):
        if sizes.setdefault(letter.rstrip("?"), size) != size:
            raise ModelFileError(f"{name} has the shape {value.shape}, which does not fit the rest")


def _check_indices(name: str, value: np.ndarray, below: int | None) -> None:
    if value.size and (value.min() < 0 or (below is not None and value.max() >= below)):
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
