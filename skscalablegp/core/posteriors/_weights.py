"""What low-rank variances need to know of a posterior over weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WeightForm:
    """A posterior as ``f(x) = phi(x)' w + r(x)`` with a prior w ~ N(0, I) that data have sharpened.

    Random features have no rest r; inducing points, whose whitened values are the weights, leave
    one, which data do not reach. A posterior that has such a form returns it from a method
    ``weight_form()``, and `love` then serves it.

    Attributes
    ----------
    features : callable
        Rows (m, d) to phi, (m, q).
    precision : Tensor of shape (q, q)
        I + A, the inverse of the weights' posterior covariance.
    prior : callable
        Rows to the prior variances of f, (m,), the rest included.
    prior_covariance : callable
        Rows to the prior covariances of f, (m, m), the rest included.
    has_rest : bool
        Whether there is an r.
    """

    features: Callable[[Tensor], Float[Tensor, "m q"]]
    precision: Float[Tensor, "q q"]
    prior: Callable[[Tensor], Float[Tensor, " m"]]
    prior_covariance: Callable[[Tensor], Float[Tensor, "m m"]]
    has_rest: bool = False
