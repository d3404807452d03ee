"""Fitted models as ONNX files."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..kernels import NotExportable
from ..storage import checked_target
from ._onnx_trees import translations
from ._torch import ClassModule, GPModule, require, traceable

# The largest error of a file, in standard deviations of the targets, by precision.
_ERROR = {"float32": 1e-4, "float64": 1e-6}


def export_onnx(
    model,
    path,
    return_std: bool = True,
    *,
    dtype: str = "float64",
    rows=None,
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
        `to_torch`. It may also have scikit-learn's trees, forests and gradient boosting.
    path : str or path-like
        The file; an existing one is replaced.
    return_std : bool, default=True
        Whether the file predicts standard deviations, too. For an exact model of n rows, only they
        need an n x n matrix.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the input and the outputs. With "float32" the computations are in single
        precision, too, and the file has half the size, if this is accurate enough at `rows`. If
        not, they are in double precision between a cast of the input and casts of the outputs.
    rows : array-like of shape (m, d), default=None
        Rows at which a file is compared with the model before it is written. They are required with
        ``dtype="float32"``, because the error of single precision depends on the model: a few
        hundred typical rows are enough.

    Raises
    ------
    ImportError
        If the packages of the extra ``[onnx]`` are missing.
    NotExportable
        A TypeError, as in `to_torch`, before anything is written; but trees are no reason.
    ValueError
        For another dtype, without rows where they are required, and if the error at these rows is
        above 1e-4 of the target's standard deviation, or of a probability, with "float32" (1e-6
        with "float64").
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
    Cholesky factorisation. From torch 2.13 on, the conversion of nearest neighbours takes about ten
    seconds; with earlier versions its time grows with ``n_neighbors``, by about a second each.

    The mean of an exact model is a sum of kernel values times weights, whose absolute sum is often
    10,000 times the mean. The mean is then lost if each kernel value is rounded to single
    precision, even if rows are centred and scaled before and distances are computed from
    differences. The file's metadata say under "computed_in" which precision the computations have.

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
    path, exact = checked_target(path), traceable(model, return_std)
    checked = None if rows is None else _checked(rows, exact.n_features)
    module: Any = traceable(model, return_std).to(getattr(torch, dtype))
    computed_in = dtype
    if checked is not None:
        error = _error(exact, module, checked, dtype)
        if dtype == "float32" and not error <= _ERROR[dtype]:
            module, computed_in = _InDouble(exact), "float64"
            error = _error(exact, module, checked, dtype)
        if np.isnan(error):
            raise ValueError(
                f"The predictions at the {len(checked)} rows= are not all numbers: leave out rows "
                "with missing or infinite entries."
            )
        if not error <= _ERROR[dtype]:
            of = "" if module.outputs == ("probabilities",) else " of the target's deviation"
            raise ValueError(
                f"In dtype={dtype!r} predictions at these rows would be wrong by up to "
                f"{error:.1e}{of}, more than {_ERROR[dtype]:g}: use dtype='float64'."
            )
    program = _written(module, dtype, computed_in)
    program.save(str(path))


def _checked(rows: Any, d: int) -> Float[np.ndarray, "m d"]:
    """The rows at which a file is compared with its model."""
    try:
        checked = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"rows must hold numbers ({error}): give typical rows of the training table."
        ) from None
    if checked.ndim != 2 or checked.shape[1] != d or not len(checked):
        raise ValueError(
            f"rows must have shape (m, {d}), got {checked.shape}: give one or more typical rows, "
            "such as some of the training table."
        )
    return checked


class _InDouble(nn.Module):
    """A module in double precision whose input and outputs are in single precision."""

    def __init__(self, module: GPModule | ClassModule):
        super().__init__()
        self.module, self.n_features = module, module.n_features
        self.outputs, self.classes = module.outputs, getattr(module, "classes", None)

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor | tuple[Tensor, ...]:
        found = self.module(X.double())
        return found.float() if isinstance(found, Tensor) else tuple(f.float() for f in found)


def _error(exact: Any, module: Any, rows: np.ndarray, dtype: str) -> float:
    """The largest error of the module at these rows, in units of the target."""
    X = torch.as_tensor(rows)
    with torch.no_grad():
        pairs = zip(_listed(exact(X)), _listed(module(X.to(getattr(torch, dtype)))), strict=True)
        error = max(float((found.double() - right).abs().max()) for right, found in pairs)
        return error / exact.unit(X)


def _listed(outputs: Any) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def _written(module: Any, dtype: str, computed_in: str) -> Any:
    """The module as an ONNX program."""
    X = torch.zeros(3, module.n_features, dtype=getattr(torch, dtype))
    shapes = ({0: torch.export.Dim("rows")},)
    with _silent("torch.onnx"), torch.no_grad():
        program = torch.onnx.export(
            module,
            (X,),
            None,
            dynamo=True,
            verbose=False,
            input_names=["X"],
            dynamic_shapes=shapes,
            custom_translation_table=translations(),
        )
    graph = program.model.graph
    if computed_in == "float64" and any(node.op_type == "Erf" for node in graph):
        raise NotExportable(
            "ONNX Runtime has no error function in double precision, which the probit link needs: "
            "use dtype='float32' if that is accurate enough, or Bernoulli(link='logit')."
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
    program.model.metadata_props["computed_in"] = computed_in
    if getattr(module, "classes", None) is not None:
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
