"""`save`, `load` and `saved_size`."""

from __future__ import annotations

import os
from typing import Any

from ..storage import (
    Contents,
    ModelFileError,
    checked_source,
    checked_target,
    contents,
    opened,
    said_by,
    structure_of,
)
from ._codec import ModelDecoder, ModelEncoder

# The number of the schema that this version writes. Files of all schemas up to it are read.
SCHEMA = 1


def save(model, path: str | os.PathLike[str], *, compact: bool = False) -> int:
    """Write a fitted model into a file that contains no code.

    The file is in the safetensors format: arrays as tensors, everything else as JSON in the header.
    It is written to a temporary file in the same folder and then renamed, so that a reader never
    sees a partial file.

    Parameters
    ----------
    model : estimator
        An estimator of this package, or one of scikit-learn, such as a `Pipeline` or a
        `GridSearchCV`, with or without such estimators inside. Objects of scikit-learn need ``pip
        install skscalablegp[files]``.
    path : str or path-like
        The file, which is replaced if it exists.
    compact : bool, default=False
        Whether to keep only what predictions need. Models whose posterior needs no training rows
        (inducing points, random features, grids, deep kernels, low-rank variances over these) are
        saved without them. Methods that need the rows, such as ``log_marginal_likelihood(theta)``,
        then raise an error. `saved_size` returns the size of a file before it is written.

    Returns
    -------
    size : int
        The size of the file in bytes.

    Raises
    ------
    TypeError
        For a model with objects or functions that files cannot contain; nothing is written then.
        For a class or a function of your own, `register` says how to have it saved.
    ValueError
        For an estimator with a parameter that it cannot have, which `fit` would refuse, too.
    OSError
        If the file cannot be written. An existing file is then left as it was.

    See Also
    --------
    load, saved_size, register

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import make_friedman1
    >>> import skscalablegp
    >>> X, y = make_friedman1(n_samples=60, random_state=0)
    >>> model = skscalablegp.SVGPRegressor(max_iter=10, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.safetensors"
    ...     size = skscalablegp.save(model, path)
    ...     again = skscalablegp.load(path)
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    target, contents = checked_target(path), _contents(model, compact)
    contents.write(target)
    return contents.size


def saved_size(model, *, compact: bool = False) -> int:
    """The size of the file that `save` would write, in bytes.

    Parameters
    ----------
    model : estimator
    compact : bool, default=False
        As in `save`.

    Returns
    -------
    size : int

    Raises
    ------
    TypeError
        As `save` does.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skscalablegp import RFFRegressor
    >>> from skscalablegp.files import saved_size
    >>> X, y = make_friedman1(n_samples=1000, random_state=0)
    >>> model = RFFRegressor(n_components=50, max_iter=5, random_state=0).fit(X, y)
    >>> saved_size(model, compact=True) < saved_size(model) / 2
    True
    """
    return _contents(model, compact).size


def load(path: str | os.PathLike[str]):
    """Read a model that `save` has written.

    The model predicts, samples, reports and continues as the one that was saved. No code from the
    file runs: the classes of its objects come from a fixed table and from `register`. A file from
    an untrusted source can still hold a model with wrong predictions.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    model : estimator

    Raises
    ------
    ModelFileError
        For a damaged file, a file of another kind, and one of a later version of this package.
    ImportError
        For a model with objects of scikit-learn, without skops.
    OSError
        If the file cannot be read.

    See Also
    --------
    save

    Examples
    --------
    >>> import tempfile
    >>> import skscalablegp
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     size = skscalablegp.save(skscalablegp.NNGPRegressor(n_neighbors=30), file.name)
    ...     skscalablegp.load(file.name)
    NNGPRegressor(n_neighbors=30)
    """
    source = checked_source(path)
    written = ""
    try:
        with opened(source) as tensors:
            structure = structure_of(tensors, "skscalablegp", SCHEMA)
            written = ", ".join(f"{name} {v}" for name, v in structure["written_by"].items())
            decoder = ModelDecoder(tensors, structure["checksums"])
            model = decoder(structure["model"])
            if decoder.used != tensors.names:
                raise ModelFileError("it has tensors that no part of the model uses")
            return model
    except (OSError, ImportError):
        raise
    except Exception as error:
        raise said_by(source, error, written, "cannot be loaded") from error


def _contents(model: Any, compact: bool) -> Contents:
    return contents(
        "skscalablegp", SCHEMA, ModelEncoder(compact), compact=bool(compact), model=model
    )
