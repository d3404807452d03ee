"""The names of the preconditioners."""

from __future__ import annotations

from typing import Any

from torch import Generator

from ..._named import named
from ..operators import SelfAdjointOperator
from ._base import IdentityPreconditioner, Preconditioner, PreconditionerConfig
from ._nystrom import Nystrom
from ._pic import PIC
from ._pivoted_cholesky import PivotedCholesky

PRECONDITIONERS = {
    "pivoted_cholesky": PivotedCholesky,
    "rpcholesky": lambda: PivotedCholesky(randomized=True),
    "nystrom": Nystrom,
    "pic": PIC,
}


def resolve_preconditioner(preconditioner: Any) -> PreconditionerConfig | Preconditioner | None:
    """Return the settings that a name stands for; None and objects are returned unchanged.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    others = "None, or an object such as PivotedCholesky(rank=200)"
    kinds = PreconditionerConfig | Preconditioner | None
    return named("preconditioner", preconditioner, PRECONDITIONERS, others, kinds=kinds)


def build_preconditioner(
    preconditioner: Any, operator: SelfAdjointOperator, generator: Generator | None = None
) -> Preconditioner:
    """Build the preconditioner of an operator from a name or settings; None is the identity."""
    config = resolve_preconditioner(preconditioner)
    if config is None:
        return IdentityPreconditioner(operator.shape[0], operator.dtype, operator.device)
    # Operators without entries to read are given no preconditioner that is built from them.
    return config.build(operator, generator)  # type: ignore[arg-type]
