"""scikit-learn's objects as bytes, by skops, with the package's own models cut out of them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from sklearn.utils import check_array

from ..storage import ModelFileError, parse
from ._classes import is_registered, name_of

# What a file may contain in addition to scikit-learn's public estimators, NumPy's arrays and
# Python's containers, which skops knows. Functions among them are called by an estimator's own code
# only.
_NAMES = {
    "numpy": "dtype max mean median min ma.MaskedArray ma.core.MaskedArray",
    "sklearn._loss.loss": "HalfTweedieLoss HalfTweedieLossIdentity",
    "sklearn.calibration": "_CalibratedClassifier _SigmoidCalibration",
    "sklearn.compose._column_transformer": "_RemainderColsList make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.feature_selection._mutual_info": "mutual_info_classif mutual_info_regression",
    "sklearn.feature_selection._univariate_selection": "f_classif f_regression",
    "sklearn.metrics._classification": "accuracy_score balanced_accuracy_score brier_score_loss"
    " f1_score log_loss",
    "sklearn.metrics._ranking": "roc_auc_score",
    "sklearn.metrics._regression": "max_error mean_absolute_error mean_absolute_percentage_error"
    " mean_squared_error median_absolute_error r2_score root_mean_squared_error",
    "sklearn.metrics._scorer": "_MultimetricScorer _PassthroughScorer _Scorer",
    "sklearn.model_selection._split": "GroupKFold KFold LeaveOneOut PredefinedSplit RepeatedKFold"
    " RepeatedStratifiedKFold ShuffleSplit StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn.tree._tree": "Tree",
    "sklearn.utils._bunch": "Bunch",
    "sklearn.utils._metadata_requests": "MetadataRequest MethodMetadataRequest",
    # Boosting with categories checks its other columns by a partial of this function; `check_trees`
    # refuses partials of any other one.
    "sklearn.utils.validation": "check_array",
    "functools": "partial",
    __name__: "Place",
}
TYPES = {f"{module}.{name}" for module, names in _NAMES.items() for name in names.split()}
# Compiled objects whose state is not checked; estimators that have them work without, too.
_SEARCH_TREES = ("sklearn.neighbors._kd_tree.", "sklearn.neighbors._ball_tree.")

# Largest number of parts of the archive in which skops keeps its arrays.
_MOST_PARTS = 100_000


class Place:
    """Stands for a value of the package inside an object of scikit-learn.

    Parameters
    ----------
    number : int
        Its number among them.
    """

    def __init__(self, number: int):
        self.number = number


def dumps(value: Any) -> tuple[bytes, list[str], list[Any]]:
    """An object of scikit-learn as bytes.

    Returns
    -------
    data : bytes
        The archive that skops makes.
    types : list of str
        All types in it beside those that skops trusts.
    models : list
        What was cut out: objects that have a name in files.

    Raises
    ------
    TypeError
        For an object with types that files may not have.
    ImportError
        Without skops.
    """
    skops = _skops()
    models: list[Any] = []

    def cut(part: Any) -> Any:
        if _is_foreign(part):
            raise TypeError(f"files may not have functools.partial of {part.func!r}")
        named = part if isinstance(part, type | FunctionType) else type(part)
        if name_of(named) is None or (isinstance(part, type) and not is_registered(part)):
            return part
        models.append(part)
        return Place(len(models) - 1)

    try:
        data = skops.dumps(_replaced(value, cut, {}))
    except skops.exceptions.UnsupportedTypeException as error:
        raise TypeError(f"skops cannot save it: {error}") from None
    types = skops.get_untrusted_types(data=data)
    unknown = [name for name in types if name not in TYPES]
    if unknown:
        own = [name for name in unknown if name.partition(".")[0] not in ("sklearn", "numpy")]
        remedy = ""
        if own:
            remedy = ": call skscalablegp.files.register with it before save, and before load"
        elif any(name.startswith(_SEARCH_TREES) for name in unknown):
            remedy = ": fit with algorithm='brute', which finds the same neighbours without a tree"
        raise TypeError(
            f"inside a {type(value).__name__}, files may not have {', '.join(unknown)}{remedy}"
        )
    return data, types, models


def loads(data: np.ndarray) -> Any:
    """The inverse of `dumps`, with a `Place` for each part that was cut out.

    Raises
    ------
    ModelFileError
        For types that files may not have, and for an archive that skops has not made.
    """
    skops = _skops()
    raw = data.tobytes()
    _check_archive(raw)
    types = skops.get_untrusted_types(data=raw)
    if wrong := set(types) - TYPES:
        raise ModelFileError(f"it has types of scikit-learn that files may not have {wrong}")
    value = skops.loads(raw, trusted=types)
    check_trees(value)
    return value


def restored(value: Any, models: Sequence[Any]) -> Any:
    """The object with the models in their places."""
    return _replaced(value, lambda part: models[part.number] if type(part) is Place else part, {})


def _skops() -> Any:
    try:
        import skops.io
        import skops.io.exceptions
    except ImportError:
        raise ImportError(
            "This model has parts of scikit-learn, which need skops in files: "
            "pip install skscalablegp[files]"
        ) from None
    return skops.io


def _replaced(value: Any, change: Callable[[Any], Any], made: dict[int, tuple[Any, Any]]) -> Any:
    """The value with changed parts; everything around them is copied, and nothing else."""
    if id(value) in made:
        return made[id(value)][1]
    new = change(value)
    made[id(value)] = value, new
    if new is not value:
        return new
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        parts = [_replaced(part, change, made) for part in value]
        new = value if _same(parts, value) else type(value)(parts)
    elif isinstance(value, dict):
        parts = {key: _replaced(part, change, made) for key, part in value.items()}
        new = value if _same(parts.values(), value.values()) else _refilled(value, parts)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        parts = [_replaced(part, change, made) for part in np.asarray(value).flat]
        if not _same(parts, np.asarray(value).flat):
            new = value.copy()
            for place, part in zip(np.ndindex(value.shape), parts, strict=True):
                np.asarray(new)[place] = part
    elif type(value).__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__"):
        parts = {key: _replaced(part, change, made) for key, part in vars(value).items()}
        if not _same(parts.values(), vars(value).values()):
            cls: Any = type(value)
            new = cls.__new__(cls)
            vars(new).update(parts)
    made[id(value)] = value, new
    return new


def _same(new: Any, old: Any) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))


def _refilled(value: dict, parts: dict) -> dict:
    new = type(value)()
    new.update(parts)
    return new


# ------------------------------------------------------------------ untrusted archives


def _check_archive(raw: bytes) -> None:
    """Refuse archives that would unpack to more than they are, and all that skops does not make."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        parts = archive.infolist()
        names = {part.filename for part in parts}
        if len(names) < len(parts) or len(parts) > _MOST_PARTS or "schema.json" not in names:
            raise ModelFileError("its archive has repeated names, too many parts, or no schema")
        for part in parts:
            plain = part.compress_type == zipfile.ZIP_STORED and not part.flag_bits & 1
            if not plain or part.file_size != part.compress_size or "/" in part.filename:
                raise ModelFileError(
                    f"its archive has the part {part.filename!r:.60}, which skops does not write"
                )
        if sum(part.file_size for part in parts) > len(raw):
            raise ModelFileError("the parts of its archive overlap")
        parse(archive.read("schema.json"), "the structure of its scikit-learn parts", len(raw))
        for part in parts:
            if part.filename.endswith(".npy"):
                with archive.open(part) as file:
                    _check_array(file, part.file_size)


def _check_array(file: Any, size: int) -> None:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ModelFileError("its archive has an array in an unknown format")
    shape, _, dtype = read[version](file)
    count = int(np.prod([int(k) for k in shape], dtype=object))
    if dtype.hasobject or count * dtype.itemsize + file.tell() != size:
        raise ModelFileError("its archive has an array that its bytes do not fill")


def check_trees(value: Any) -> None:
    """Refuse trees whose nodes point outside or in cycles, which compiled code does not check.

    Partial functions are refused, too, apart from those that boosting with categories has.
    """

    def look(part: Any) -> Any:
        if _is_foreign(part):
            raise ModelFileError(f"it has a partial of {part.func!r:.60}, which files may not have")
        kind = f"{type(part).__module__}.{type(part).__name__}"
        if kind == "sklearn.tree._tree.Tree":
            _check_nodes(part.children_left, part.children_right, part.feature, part.n_features)
        elif kind.endswith("_hist_gradient_boosting.predictor.TreePredictor"):
            nodes = part.nodes
            inner = nodes["is_leaf"] == 0
            left = np.where(inner, nodes["left"].astype(np.int64), -1)
            right = np.where(inner, nodes["right"].astype(np.int64), -1)
            _check_nodes(left, right, nodes["feature_idx"], None)
            sets = len(part.raw_left_cat_bitsets)
            if (inner & (nodes["is_categorical"] != 0) & (nodes["bitset_idx"] >= sets)).any():
                raise ModelFileError("it has a tree whose categories are missing")
        return part

    _replaced(value, look, {})


def _is_foreign(part: Any) -> bool:
    """Whether it is a partial function that boosting with categories does not have."""
    return isinstance(part, partial) and (part.func is not check_array or bool(part.args))


def _check_nodes(left: Any, right: Any, feature: Any, n_features: int | None) -> None:
    own = np.arange(len(left))
    inner = left >= 0
    for child in (left[inner], right[inner]):
        if (child <= own[inner]).any() or (child >= len(left)).any():
            raise ModelFileError("it has a tree whose nodes point outside of it or in cycles")
    used = feature[inner]
    if (used < 0).any() or (n_features is not None and (used >= n_features).any()):
        raise ModelFileError("it has a tree over columns that do not exist")
