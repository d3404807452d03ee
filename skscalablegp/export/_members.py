"""Fitted estimators of this package and of scikit-learn as torch modules.

Estimators of scikit-learn are listed by their exact class. For those of this package that are no
processes there is `own_module`, and for posteriors over others `posterior_module`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    ElasticNetCV,
    HuberRegressor,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeCV,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)
from torch import Tensor, nn

from .._predicted import inner_of
from ..core import FittedProcess, fitted_process
from ..core.posteriors import Affine, Posterior, PosteriorModule, ProcessModule
from ..kernels import NotExportable
from ._trees import trees_module

# Mean, variance (None for a regressor without any), and the part of it that is no noise.
PredictorMoments = tuple[Float[Tensor, " m"], Float[Tensor, " m"] | None, Float[Tensor, " m"]]


@singledispatch
def posterior_module(posterior: Posterior, with_variance: bool = True) -> PosteriorModule:
    """The moments of a posterior as a torch module; posteriors of members are in ``_posteriors``.

    Raises
    ------
    NotExportable
        If there is no such form.
    """
    return posterior.module(with_variance)


@singledispatch
def posterior_functions(
    posterior: Posterior, n_samples: int, generator: torch.Generator
) -> nn.Module:
    """Draws of whole functions without noise, as a torch module: (m, d) -> (m, t, n_samples).

    Raises
    ------
    NotExportable
        If there is no such form.
    """
    return posterior.functions(n_samples, generator)


def process_module(process: FittedProcess, with_variance: bool = True) -> ProcessModule:
    """The process as a torch module, in the units of the rows and the targets.

    Raises
    ------
    NotExportable
        If a part of it is not made of torch operations alone.
    """
    below = posterior_module(process.posterior, with_variance)
    return ProcessModule(process.input_module(), below, process.y_mean, process.y_std)


@singledispatch
def own_module(part: Any) -> nn.Module | None:
    """The module of an estimator of this package that is no process; None if there is none."""
    make = getattr(part, "_as_module", None)
    return None if make is None else make()


class PredictorModule(nn.Module):
    """A fitted regressor of a single target; a subclass has variances, too.

    Parameters
    ----------
    below : nn.Module
        Maps rows (m, d) to predictions (m,) or (m, 1).
    """

    def __init__(self, below: nn.Module):
        super().__init__()
        self.below = below

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The predictions."""
        return self.below(X).flatten()

    def moments(self, X: Float[Tensor, "m d"]) -> PredictorMoments:
        """The predictions and their variances."""
        mean = self.mean(X)
        return mean, None, torch.zeros_like(mean)

    def covariance(self, X: Float[Tensor, "b q d"]) -> Float[Tensor, "b q q"]:
        """Covariances of the noise-free function at q rows; zero for regressors without any."""
        zero = X[:, :, 0] * 0
        return zero[:, :, None] * zero[:, None]


class ProcessPredictor(PredictorModule):
    """A regressor of this package."""

    below: ProcessModule

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.below.mean(X)[:, 0]

    def moments(self, X: Float[Tensor, "m d"]) -> PredictorMoments:
        mean, latent, noise = (part[:, 0] for part in self.below.moments(X))
        return mean, latent + noise, latent.clamp_min(0)

    def covariance(self, X: Float[Tensor, "b q d"]) -> Float[Tensor, "b q q"]:
        return self.below.joint(X)[1][:, 0]


class BehindSteps(PredictorModule):
    """A regressor at the end of a pipeline."""

    below: PredictorModule

    def __init__(self, steps: list[nn.Module], below: PredictorModule):
        super().__init__(below)
        self.steps = nn.Sequential(*steps)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.below.mean(self.steps(X))

    def moments(self, X: Float[Tensor, "m d"]) -> PredictorMoments:
        return self.below.moments(self.steps(X))

    def covariance(self, X: Float[Tensor, "b q d"]) -> Float[Tensor, "b q q"]:
        return self.below.covariance(self.steps(X.flatten(0, 1)).unflatten(0, X.shape[:2]))


class Linear(nn.Module):
    """X w + b: (m, q)."""

    weights: Tensor
    intercept: Tensor

    def __init__(self, model: Any):
        super().__init__()
        weights = np.atleast_2d(np.asarray(model.coef_, np.float64)).T
        self.register_buffer("weights", torch.tensor(weights))
        self.register_buffer("intercept", torch.tensor(np.ravel(model.intercept_).astype(float)))

    def forward(self, X: Float[Tensor, "m d"]) -> Tensor:
        return X @ self.weights + self.intercept


class BayesianLinear(PredictorModule):
    """Linear regression with the variance of its weights; all of the variance is noise."""

    spread: Tensor
    centre: Tensor
    least: Tensor

    def __init__(self, model: BayesianRidge | ARDRegression):
        super().__init__(Linear(model))
        d = len(model.coef_)
        kept = np.ones(d, dtype=bool)
        if isinstance(model, ARDRegression):
            kept = model.lambda_ < model.threshold_lambda
        covariance, least = np.zeros((d, d)), 1 / model.alpha_
        covariance[np.ix_(kept, kept)] = model.sigma_
        # Earlier versions of scikit-learn measure rows from zero.
        centre = np.broadcast_to(np.asarray(model.X_offset_, np.float64), d)
        std = model.predict(centre[None], return_std=True)[1]
        centre = centre if np.isclose(std[0] ** 2, least, rtol=1e-12) else np.zeros(d)
        for name, value in (("spread", covariance), ("centre", centre), ("least", least)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def moments(self, X: Float[Tensor, "m d"]) -> PredictorMoments:
        mean, rows = self.mean(X), X - self.centre
        variance = ((rows @ self.spread) * rows).sum(1) + self.least
        return mean, variance, torch.zeros_like(mean)


class Logistic(nn.Module):
    """Logistic regression: probabilities (m, c)."""

    def __init__(self, model: LogisticRegression):
        super().__init__()
        if getattr(model, "multi_class", "auto") not in ("auto", "deprecated") or (
            model.solver == "liblinear" and len(model.classes_) > 2
        ):
            raise NotExportable(
                "LogisticRegression with one regression for each class cannot be exported: leave "
                "out multi_class, and use another solver than 'liblinear'."
            )
        self.linear, self._two = Linear(model), len(model.classes_) == 2

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        raw = self.linear(X)
        if self._two:
            return torch.cat([torch.sigmoid(-raw), torch.sigmoid(raw)], 1)
        return torch.softmax(raw, 1)


def _or(value: Any, default: float) -> Any:
    return default if value is None else value


def _min_max(step: MinMaxScaler) -> nn.Module:
    if step.clip:
        raise NotExportable(
            "MinMaxScaler(clip=True) cannot be exported: leave out clip, or scale the rows before."
        )
    return Affine(-step.min_ / step.scale_, 1 / step.scale_)


_Table = dict[type, Callable[[Any], nn.Module]]
_STEPS: _Table = {
    StandardScaler: lambda step: Affine(_or(step.mean_, 0.0), _or(step.scale_, 1.0)),
    MaxAbsScaler: lambda step: Affine(0.0, step.scale_),
    RobustScaler: lambda step: Affine(_or(step.center_, 0.0), _or(step.scale_, 1.0)),
    MinMaxScaler: _min_max,
}
_LINEAR = (LinearRegression, Ridge, RidgeCV, Lasso, LassoCV, ElasticNet, ElasticNetCV)
_FORESTS = (RandomForestRegressor, ExtraTreesRegressor, DecisionTreeRegressor, ExtraTreeRegressor)
_BOOSTED = (HistGradientBoostingRegressor, GradientBoostingRegressor)
_REGRESSORS: _Table = dict.fromkeys((*_LINEAR, HuberRegressor), Linear)
_REGRESSORS |= dict.fromkeys((BayesianRidge, ARDRegression), BayesianLinear)
_REGRESSORS |= dict.fromkeys((*_FORESTS, *_BOOSTED), trees_module)
_CLASSIFIERS: _Table = {
    LogisticRegression: Logistic,
    HistGradientBoostingClassifier: trees_module,
    GradientBoostingClassifier: trees_module,
    RandomForestClassifier: trees_module,
    ExtraTreesClassifier: trees_module,
    DecisionTreeClassifier: trees_module,
    ExtraTreeClassifier: trees_module,
}


def _made(part: Any, table: _Table, what: str, remedy: str) -> nn.Module:
    """The module of a part by its exact class.

    Raises
    ------
    NotExportable
        For a class without a module.
    """
    if type(part) in table:
        return table[type(part)](part)
    found = own_module(part)
    if found is not None:
        return found
    known = ", ".join(kind.__name__ for kind in table)
    raise NotExportable(
        f"{type(part).__name__} cannot be exported as {what}: {known} can. {remedy}"
    )


def split_steps(model: Any) -> tuple[list[nn.Module], Any]:
    """The steps of pipelines and searches as modules, and the estimator behind them.

    Raises
    ------
    NotExportable
        For steps that do more than scale columns.
    """
    steps: list[nn.Module] = []
    while True:
        if isinstance(model, Pipeline):
            remedy = "Transform the rows before, and export the last step alone."
            steps += [
                _made(step, _STEPS, "a step of a Pipeline", remedy)
                for _, step in model.steps[:-1]
                if step is not None and step != "passthrough"
            ]
        inner = inner_of(model)
        if inner is None:
            return steps, model
        model = inner


def predictor_module(regressor: Any, with_variance: bool = True) -> PredictorModule:
    """A fitted regressor of a single target, which may be a pipeline.

    Raises
    ------
    NotExportable
        For regressors of other packages that have no module, and for steps of pipelines without
        one.
    """
    steps, core = split_steps(regressor)
    process = fitted_process(core)
    if process is not None:
        below: nn.Module = ProcessPredictor(process_module(process, with_variance))
    else:
        remedy = "Leave out this member, or export the other members one by one."
        below = _made(core, _REGRESSORS, "a member or a mean function", remedy)
    if not isinstance(below, PredictorModule):
        below = PredictorModule(below)
    return BehindSteps(steps, below) if steps else below


def drawn_functions(regressor: Any, n_samples: int, generator: torch.Generator) -> nn.Module | None:
    """Draws of the noise-free functions of a fitted regressor, (m, d) to (m, t, s).

    They are in the units of y. None for regressors of other packages, which have no draws.
    """
    steps, core = split_steps(regressor)
    process = fitted_process(core)
    if process is None:
        return None
    functions = posterior_functions(process.posterior, n_samples, generator)
    mean, std = np.reshape(process.y_mean, (-1, 1)), np.reshape(process.y_std, (-1, 1))
    return nn.Sequential(*steps, process.input_module(), functions, Affine(-mean / std, 1 / std))


def probability_module(classifier: Any) -> nn.Module:
    """A fitted classifier, which may be a pipeline: rows (m, d) to probabilities (m, c).

    Raises
    ------
    NotExportable
        For classifiers of other packages that have no module.
    """
    steps, core = split_steps(classifier)
    remedy = "Leave out this member, or export the other members one by one."
    return nn.Sequential(*steps, _made(core, _CLASSIFIERS, "a member", remedy))
