"""Fitted models for Bayesian optimisation with BoTorch."""

from __future__ import annotations

from ._torch import require


def as_botorch(model):
    """A fitted regressor as a model of BoTorch.

    Acquisition functions differentiate its posterior with respect to the rows, at the cost of
    predictions of the model. Tables may therefore be larger than BoTorch's own models allow.

    Parameters
    ----------
    model : estimator
        A fitted regressor of this package, or a `Pipeline` of scalers and one.

    Returns
    -------
    model : botorch.models.model.Model
        Its ``posterior(X)`` takes rows of shape (..., q, d) in the units of the training table, and
        has means and covariances in those of the targets. ``condition_on_observations(X, Y)``
        returns a model with more rows at the same hyperparameters, by `partial_fit` where the model
        has it. ``draw_functions(n, random_state)`` draws whole functions, for Thompson sampling.
        Put several of them into ``botorch.models.ModelList`` for several outcomes.

    Raises
    ------
    ImportError
        If BoTorch, the extra ``[botorch]``, is missing.
    NotExportable
        A TypeError, as in `to_torch`: among others for models with trees.
    NotFittedError
        Before `fit`.

    See Also
    --------
    draw_functions : The functions of Thompson sampling, without BoTorch.

    Notes
    -----
    Grids and products of experts have posteriors of single rows only: q must be 1. Joint posteriors
    of nearest neighbours condition the rows in their order, as in Vecchia's approximation.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skscalablegp import SVGPRegressor, as_botorch
    >>> X = np.linspace(0, 6, 80)[:, None]
    >>> gp = SVGPRegressor(n_inducing=20, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> as_botorch(gp).posterior(torch.zeros(5, 2, 1, dtype=torch.float64)).mean.shape
    torch.Size([5, 2, 1])
    """
    require("botorch", "botorch")
    from ._botorch import BoTorchModel

    return BoTorchModel(model)
