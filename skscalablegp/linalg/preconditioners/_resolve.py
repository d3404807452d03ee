"""The table of preconditioner names."""

from __future__ import annotations

from torch import Generator

from ..._named import named
from ..operators import LinearOperator
from ._base import IdentityPreconditioner, Preconditioner, PreconditionerConfig
from ._nystrom import Nystrom
from ._pivoted_cholesky import PivotedCholesky

PRECONDITIONERS = {
    "pivoted_cholesky": PivotedCholesky,
    "rpcholesky": lambda: PivotedCholesky(randomized=True),
    "nystrom": Nystrom,
}


def resolve_preconditioner(preconditioner) -> PreconditionerConfig | Preconditioner | None:
    """A name from the table becomes its settings; None and objects come back as they are.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None
        What a user may write.
    """
    others = "None, or an object such as PivotedCholesky(rank=200)"
    kinds = PreconditionerConfig | Preconditioner | None
    return named("preconditioner", preconditioner, PRECONDITIONERS, others, kinds=kinds)


def build_preconditioner(
    preconditioner, operator: LinearOperator, generator: Generator | None = None
) -> Preconditioner:
    """What a user may write, built for an operator; None is the identity."""
    config = resolve_preconditioner(preconditioner)
    if config is None:
        return IdentityPreconditioner(operator.shape[0], operator.dtype, operator.device)
    return config.build(operator, generator)
