"""The model of BoTorch, whose base class needs that package."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from sklearn.pipeline import Pipeline
from torch import Tensor

from ..core import fitted_process
from ._functions import FunctionDraws, draw_functions
from ._torch import check_columns, process_of, to_torch


class BoTorchModel(Model):
    """A fitted regressor as a model of BoTorch, which `as_botorch` makes.

    Parameters
    ----------
    regressor : estimator
        Fitted.
    """

    def __init__(self, regressor: Any):
        super().__init__()
        # Classifiers have modules of probabilities, but no posterior of targets.
        process_of(regressor)
        self._regressor = regressor
        self.module = to_torch(regressor)

    @property
    def num_outputs(self) -> int:
        """The number of targets."""
        return len(self.module.process.y_mean)

    @property
    def batch_shape(self) -> torch.Size:
        """Models are not batched."""
        return torch.Size([])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The joint posterior of q rows for each of a batch.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Rows in the units of the training table.
        output_indices : list of int, optional
            The targets; all by default.
        observation_noise : bool or Tensor of shape (..., q, t), default=False
            Whether to add the kernel's white noise; a tensor of variances is added in its place.
        posterior_transform : callable, optional
            Applied to the posterior.

        Returns
        -------
        posterior : GPyTorchPosterior

        Raises
        ------
        ValueError
            For rows, targets or variances that do not fit the model.
        """
        check_columns(X, self.module.n_features)
        chosen = self._chosen(output_indices)
        batch, (q, d) = X.shape[:-2], X.shape[-2:]
        rows = X.reshape(-1, q, d).double()
        mean, covariance, noise = self.module.process.joint(self.module.steps(rows))
        if isinstance(observation_noise, Tensor):
            if observation_noise.shape != (*X.shape[:-1], self.num_outputs):
                raise ValueError(
                    f"observation_noise must have shape {(*X.shape[:-1], self.num_outputs)}, a "
                    "variance for each row and target, got "
                    f"{tuple(observation_noise.shape)}: expand it to that shape."
                )
            covariance = covariance + torch.diag_embed(observation_noise.mT.reshape_as(mean.mT))
        elif observation_noise:
            covariance = covariance + torch.diag_embed(noise)
        # An operator computes its factor only when it is needed, with jitter if necessary.
        parts = [
            MultivariateNormal(
                mean[..., k].reshape(*batch, q),
                to_linear_operator(covariance[:, k].reshape(*batch, q, q)),
            )
            for k in chosen
        ]
        joint = parts[0]
        if len(parts) > 1:
            joint = MultitaskMultivariateNormal.from_independent_mvns(parts)
        found = GPyTorchPosterior(joint)
        return found if posterior_transform is None else posterior_transform(found)

    def _chosen(self, output_indices: list[int] | None) -> list[int]:
        t = self.num_outputs
        chosen = list(range(t) if output_indices is None else output_indices)
        for k in chosen:
            if not -t <= k < t:
                raise ValueError(
                    f"output_indices must name targets from 0 to {t - 1}, got {k}: the model has "
                    f"{t} of them."
                )
        return chosen

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> BoTorchModel:
        """A model with further rows at the same hyperparameters; this one does not change.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        Y : Tensor of shape (n, t)
        noise : Tensor of shape (n, t), optional
            Known noise variances.

        Returns
        -------
        model : BoTorchModel

        Raises
        ------
        NotImplementedError
            For batches of tables, such as fantasies.
        ValueError
            For tables whose rows or columns do not fit.
        """
        if X.dim() != 2 or Y.dim() != 2:
            raise NotImplementedError(
                f"condition_on_observations takes one table, X of shape (n, d) and Y of shape "
                f"(n, t); got {tuple(X.shape)} and {tuple(Y.shape)}. Acquisition functions that "
                "need batches of fantasies, such as qKnowledgeGradient, are not supported."
            )
        check_columns(X, self.module.n_features)
        if Y.shape != (len(X), self.num_outputs):
            raise ValueError(
                f"Y must have shape {(len(X), self.num_outputs)}, a row for each row of X and a "
                f"column for each target, got {tuple(Y.shape)}: add or remove entries."
            )
        rows, y = X.detach().cpu().double().numpy(), Y.detach().cpu().double().numpy()
        known = None if noise is None else noise.detach().cpu().double().numpy()
        if y.shape[1] == 1:
            y, known = y[:, 0], None if known is None else np.broadcast_to(known, Y.shape)[:, 0]
        return BoTorchModel(_with_rows(self._regressor, rows, y, known))

    def draw_functions(self, n_samples: int = 1, random_state: Any = 0) -> FunctionDraws:
        """Whole functions from the posterior, see `skscalablegp.draw_functions`."""
        return draw_functions(self._regressor, n_samples, random_state)


def _with_rows(model: Any, X: np.ndarray, y: np.ndarray, noise: np.ndarray | None) -> Any:
    """A copy of a fitted regressor with further rows."""
    if isinstance(model, Pipeline):
        last = _with_rows(model.steps[-1][1], model[:-1].transform(X), y, noise)
        other = copy(model)
        other.steps = [*model.steps[:-1], (model.steps[-1][0], last)]
        return other
    return fitted_process(model).with_rows(X, y, noise)
