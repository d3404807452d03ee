"""Fitted models as ONNX files."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..kernels import NotExportable
from ._torch import ClassModule, GPModule, require, to_torch

# The largest error of a file, in standard deviations of the targets, by precision.
_ERROR = {"float32": 1e-4, "float64": 1e-6}


def export_onnx(
    model: Any,
    path: Any,
    return_std: bool = True,
    *,
    dtype: str = "float64",
    rows: Any = None,
) -> None:
    """Write a fitted model as an ONNX file, which needs neither torch nor this package.

    The file has the input "X" of shape (m, d), for any m, and the outputs "mean" and "std", of
    shape (m,) or (m, t), in the units of the table. The scaling is inside. The output of a
    classifier is "probabilities" (m, c), and the file's metadata have its labels as a JSON list
    "classes".

    Parameters
    ----------
    model : estimator
        A fitted regressor or classifier of this package, or a `Pipeline` of scalers and one, as in
        `to_torch`.
    path : str or path-like
        The file; an existing one is replaced.
    return_std : bool, default=True
        Whether the file predicts standard deviations, too. For an exact model of n rows they need
        an n x n matrix; nothing else does.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the input, the outputs and all computations. Files in single precision are half
        the size.
    rows : array-like of shape (m, d), default=None
        Rows at which a file in single precision is compared with the model before it is written.
        They are required with ``dtype="float32"``, because the error of single precision depends on
        the model: a few hundred typical rows are enough.

    Raises
    ------
    ImportError
        If the packages of the extra ``[onnx]`` are missing.
    NotExportable
        A TypeError, as in `to_torch`, before anything is written.
    ValueError
        For another dtype, without rows where they are required, and if the error at these rows is
        above 1e-4 of the target's standard deviation, or of a probability, in single precision
        (1e-6 in double).
    NotFittedError
        Before `fit`.

    See Also
    --------
    to_torch : The same as a torch module.

    Notes
    -----
    Categories enter as the codes that the model was fitted with. Columns are in the order of the
    training table; names of a data frame are not kept. Nearest neighbours are found by comparing a
    row with all training rows, and small systems are solved by elimination, because ONNX has no
    Cholesky factorisation.

    Examples
    --------
    >>> import numpy as np
    >>> from skscalablegp import SGPRRegressor, export_onnx
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> gp = SGPRRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
    >>> export_onnx(gp, "model.onnx")  # doctest: +SKIP
    """
    require("onnx", "onnx", "onnxscript")
    if not hasattr(torch.onnx, "ONNXProgram"):
        raise ImportError(f"ONNX files need torch 2.6 or newer, and this is {torch.__version__}.")
    if dtype not in _ERROR:
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}.")
    if dtype == "float32" and rows is None:
        raise ValueError(
            "dtype='float32' needs rows=, typical rows at which the file is compared with the "
            "model: single precision is too little for some models."
        )
    exact = to_torch(model, return_std)
    checked = None if rows is None else np.asarray(rows, dtype=np.float64)
    if checked is not None and (checked.ndim != 2 or checked.shape[1] != exact.n_features):
        raise ValueError(f"rows must have shape (m, {exact.n_features}), got {checked.shape}.")
    module = to_torch(model, return_std).to(getattr(torch, dtype))
    if checked is not None:
        _check(exact, module, checked, dtype)
    _written(module, dtype).save(str(Path(path)))


def _check(exact: Any, module: Any, rows: np.ndarray, dtype: str) -> None:
    """Raise a ValueError if the precision is too little for the model at these rows."""
    X = torch.as_tensor(rows)
    with torch.no_grad():
        pairs = zip(_listed(exact(X)), _listed(module(X.to(getattr(torch, dtype)))), strict=True)
        unit = exact.unit(X)
        error = max(float((found.double() - right).abs().max()) for right, found in pairs)
    if not error <= _ERROR[dtype] * unit:
        of = "" if exact.outputs == ("probabilities",) else " of the target's standard deviation"
        raise ValueError(
            f"In dtype={dtype!r} predictions at these rows would be wrong by up to "
            f"{error / unit:.1e}{of}, more than {_ERROR[dtype]:g}: use dtype='float64'."
        )


def _listed(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def _written(module: GPModule | ClassModule, dtype: str) -> Any:
    """The module as an ONNX program."""
    X = torch.zeros(3, module.n_features, dtype=getattr(torch, dtype))
    shapes = ({0: torch.export.Dim("rows")},)
    with _silent("torch.onnx"), torch.no_grad():
        program = torch.onnx.export(
            module, (X,), None, dynamo=True, verbose=False, input_names=["X"], dynamic_shapes=shapes
        )
    graph = program.model.graph
    if dtype == "float64" and any(node.op_type == "Erf" for node in graph):
        raise NotExportable(
            "ONNX Runtime has no error function in double precision, which the probit link needs: "
            "use dtype='float32', or Bernoulli(link='logit')."
        )
    # Names of operations, such as "mean", must not be those of outputs.
    for name in set(graph.initializers) & set(module.outputs):
        value = graph.initializers.pop(name)
        value.name = f"constant_{name}"
        graph.register_initializer(value)
    for number, node in enumerate(graph):
        for output in node.outputs:
            output.name = f"v{number}_{output.index()}"
    for output, name in zip(graph.outputs, module.outputs, strict=True):
        output.name = name
    if isinstance(module, ClassModule):
        program.model.metadata_props["classes"] = json.dumps(module.classes)
    return program


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without the exporter's messages below errors, and without warnings of its packages."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
