"""Length scales at which the likelihood shows whether a column matters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..linalg.gradients import GPProblem, fisher_information
from .training import rows_of_information

# The logarithm of a length scale shows in the likelihood if its information is at least the second
# number, in nats; the first is the number of times that shorter ones are computed.
_PASSES, _VISIBLE = 3, 0.5


def visible(
    problem: GPProblem,
    places: slice,
    theta: np.ndarray,
    least: np.ndarray,
    check: Callable[[], None],
) -> np.ndarray | None:
    """The hyperparameters with length scales shortened to where their information is one nat.

    The information falls with the fourth power of a long length scale.

    Parameters
    ----------
    problem : GPProblem
    places : slice
        Where the logarithms of the length scales are.
    theta : ndarray of shape (p,)
    least : ndarray of shape (d,)
        No length scale becomes shorter than these.
    check : callable
        Called before each pass; raises an error to end them.

    Returns
    -------
    theta : ndarray of shape (p,) or None
        None without a Cholesky factor.
    """
    theta, rows = theta.copy(), rows_of_information(len(theta))
    # Differences cannot resolve very small information: each pass shortens the rest.
    for _ in range(_PASSES):
        check()
        generator = torch.Generator().manual_seed(0)
        try:
            found = fisher_information(problem, torch.as_tensor(theta), rows, generator)
        except torch.linalg.LinAlgError:
            return None
        information = found.diagonal()[places].clamp(min=1e-300).numpy()
        if information.min() > _VISIBLE:
            break
        shown = theta[places] + np.minimum(np.log(information) / 4, 0.0)
        theta[places] = np.minimum(theta[places], np.maximum(shown, least))
    return theta
