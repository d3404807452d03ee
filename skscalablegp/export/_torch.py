"""Fitted models as torch modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from .._predicted import core_of
from ..core import FittedProcess, GPModel, fitted_process
from ..core.posteriors import ProcessModule
from ..kernels import NotExportable
from ._members import probability_module, process_module, split_steps
from ._trees import refuse_trees


class GPModule(nn.Module):
    """A fitted regressor as a function of rows, which `to_torch` makes.

    Everything that predictions need is in buffers, in the units of the training table, so that
    ``state_dict``, ``to``, ``torch.export`` and ``torch.compile`` work as for any module.

    Parameters
    ----------
    steps : sequence of nn.Module
        Transformations of the rows before the model.
    process : ProcessModule
        The posterior with the scaling of rows and targets.
    return_std : bool
        Whether calls return standard deviations, too.
    n_features : int
        Number of columns.

    See Also
    --------
    to_torch : Makes such a module.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skscalablegp import SGPRRegressor, to_torch
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> module = to_torch(SGPRRegressor(random_state=0).fit(X, np.sin(X[:, 0])))
    >>> module.n_features, module.return_std
    (1, True)
    """

    def __init__(
        self, steps: list[nn.Module], process: ProcessModule, return_std: bool, n_features: int
    ):
        super().__init__()
        self.steps, self.process = nn.Sequential(*steps), process
        self.return_std, self.n_features = return_std, n_features

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what calls return."""
        return ("mean", "std") if self.return_std else ("mean",)

    def unit(self, X: Float[Tensor, "m d"]) -> float:
        """What errors of the outputs are compared with: the standard deviation of the targets.

        Targets that were not normalised have the scale of their predictions.
        """
        scale = self.process.y_std.max()
        return float(scale if scale != 1 else self.process.mean(self.steps(X)).std(0).max())

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor | tuple[Tensor, Tensor]:
        """Predict rows.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Rows in the units of the training table, in the module's precision.

        Returns
        -------
        mean : Tensor of shape (m,) or (m, t)
            In the units of the target.
        std : Tensor of shape (m,) or (m, t)
            Standard deviations as those of `predict`; only if `return_std` is set.
        """
        check_columns(X, self.n_features)
        X = self.steps(X)
        if not self.return_std:
            return _squeezed(self.process.mean(X))
        mean, variance, noise = self.process.moments(X)
        # The root has no derivative at zero.
        std = (variance + noise).clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
        return _squeezed(mean), _squeezed(std)


def check_columns(X: Tensor, d: int) -> None:
    """Raise an error for rows that are no tensor of shape (..., d)."""
    if not isinstance(X, Tensor):
        raise TypeError(
            f"X must be a torch tensor of shape (m, {d}), got a {type(X).__name__}: convert it by "
            "torch.as_tensor(X, dtype=torch.float64)."
        )
    if X.dim() < 2 or X.shape[-1] != d:
        raise ValueError(
            f"X must have shape (m, {d}), with the columns of the training table, got "
            f"{tuple(X.shape)}: reshape it or select these columns."
        )


def _squeezed(values: Tensor) -> Tensor:
    return values[:, 0] if values.shape[1] == 1 else values


class ClassModule(nn.Module):
    """A fitted classifier as a function of rows, which `to_torch` makes.

    Parameters
    ----------
    steps : sequence of nn.Module
        Transformations of the rows before the model.
    below : nn.Module
        Maps rows to probabilities.
    classes : list
        The labels, in the order of the probabilities.
    n_features : int
        Number of columns.

    See Also
    --------
    to_torch : Makes such a module.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skscalablegp import SVGPClassifier, to_torch
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> y = np.where(np.sin(X[:, 0]) > 0, "high", "low")
    >>> module = to_torch(SVGPClassifier(n_inducing=15, random_state=0).fit(X, y))
    >>> module.classes
    ['high', 'low']
    """

    outputs = ("probabilities",)

    def __init__(self, steps: list[nn.Module], below: nn.Module, classes: list, n_features: int):
        super().__init__()
        self.steps, self.below = nn.Sequential(*steps), below
        self.classes, self.n_features = classes, n_features

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Predict rows.

        Parameters
        ----------
        X : Tensor of shape (m, d)
            Rows in the units of the training table, in the module's precision.

        Returns
        -------
        probabilities : Tensor of shape (m, c)
            In the order of `classes`.
        """
        check_columns(X, self.n_features)
        return self.below(self.steps(X))

    def unit(self, X: Float[Tensor, "m d"]) -> float:
        """What errors of the outputs are compared with: one, for probabilities."""
        return 1.0


def to_torch(model, return_std: bool = True) -> GPModule | ClassModule:
    """A fitted model as a torch module, with the scaling of rows and targets inside.

    The module needs torch alone. It is differentiable in its input, and `torch.export` accepts it
    with any number of rows.

    Parameters
    ----------
    model : estimator
        A fitted regressor or classifier of this package, a `Pipeline` that ends in one, after steps
        that scale columns (StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler), or a search
        over these. Members of stacks and automatic models may be scikit-learn's linear models.
    return_std : bool, default=True
        Whether the module of a regressor returns standard deviations beside means. Without them it
        is smaller: an exact model of n rows needs an n x n matrix for its standard deviations, and
        its rows for the mean.

    Returns
    -------
    module : GPModule or ClassModule
        Maps rows (m, d), float64, to means (m,) or (m, t), and standard deviations; that of a
        classifier to probabilities (m, c). It is in double precision on the CPU;
        ``module.float()`` and ``module.to("cuda")`` convert it.

    Raises
    ------
    NotExportable
        A TypeError, before any work: for kernels that run their own NumPy code, for standard
        deviations that need a linear solve for every row, for automatic models of tables with
        categories or dates, for models and members of other packages, and for models with trees,
        whose gradient in the rows would be zero by construction: `export_onnx` writes these.
    NotFittedError
        Before `fit`.

    See Also
    --------
    export_onnx : A file that ONNX Runtime evaluates without torch.
    as_botorch : A model for Bayesian optimisation.

    Notes
    -----
    The module computes in double precision, also for a model with ``dtype="float32"``, which itself
    predicts in single precision. It checks the number of columns alone: they must be in the order
    and in the units of the training table, and categories must be the codes that the model was
    fitted with. Missing values, as NaN, are for `AutoGPRegressor` and `AutoGPClassifier` only.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skscalablegp import SVGPRegressor, to_torch
    >>> X = np.linspace(0, 6, 80)[:, None]
    >>> gp = SVGPRegressor(n_inducing=20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = to_torch(gp)(torch.tensor([[1.0], [2.0]], dtype=torch.float64))
    >>> bool(np.allclose(mean.numpy(), gp.predict([[1.0], [2.0]])))
    True
    """
    module = traceable(model, return_std)
    refuse_trees(module)
    return module


def traceable(model: Any, return_std: bool) -> GPModule | ClassModule:
    """The module of `to_torch`, which may have trees."""
    return_std, last = bool(return_std), core_of(model)
    module: GPModule | ClassModule
    if isinstance(last, GPModel) and is_classifier(last):
        check_is_fitted(last)
        steps, _ = split_steps(model)
        classes, d = last.classes_.tolist(), model.n_features_in_
        module = ClassModule(steps, probability_module(last), classes, d)
    else:
        steps, process = process_of(model)
        module = GPModule(
            steps, process_module(process, return_std), return_std, model.n_features_in_
        )
    return module.eval().requires_grad_(False)


def require(extra: str, *names: str) -> None:
    """Raise an ImportError that names the extra if one of these packages is missing."""
    for name in names:
        try:
            import_module(name)
        except ImportError:
            raise ImportError(
                f"This needs the package {name}: pip install 'skscalablegp[{extra}]'."
            ) from None


def process_of(model: Any) -> tuple[list[nn.Module], FittedProcess]:
    """The steps before a fitted regressor, and its process.

    Raises
    ------
    NotExportable
        For regressors of other packages, and for steps that do more than scale columns.
    """
    steps, regressor = split_steps(model)
    check_is_fitted(regressor)
    process = fitted_process(regressor)
    if process is None:
        raise NotExportable(
            f"{type(regressor).__name__} cannot be exported: give a regressor of skscalablegp, or "
            "a Pipeline that ends in one."
        )
    return steps, process
