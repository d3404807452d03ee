"""The form of posteriors over weights, from which low-rank variances are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WeightForm:
    """A posterior of ``f(x) = phi(x)' w + r(x)`` with the prior w ~ N(0, I).

    Random features have no remainder r. Inducing points, whose whitened values are the weights,
    have a remainder that does not depend on the data. Posteriors return this form from
    ``weight_form()``.

    Attributes
    ----------
    features : callable
        Maps rows (m, d) to phi, (m, q).
    precision : Tensor of shape (q, q)
        I + A, the inverse of the posterior covariance of the weights.
    prior : callable
        Maps rows to the prior variances of f, (m,), including the remainder.
    prior_covariance : callable
        Maps rows to the prior covariances of f, (m, m), including the remainder.
    has_rest : bool
        Whether there is a remainder r.
    """

    features: Callable[[Tensor], Float[Tensor, "m q"]]
    precision: Float[Tensor, "q q"]
    prior: Callable[[Tensor], Float[Tensor, " m"]]
    prior_covariance: Callable[[Tensor], Float[Tensor, "m m"]]
    has_rest: bool = False
