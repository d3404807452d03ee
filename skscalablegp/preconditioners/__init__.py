"""Cheap approximations P of H whose inverse, determinant and samples are known."""

from ._base import IdentityPreconditioner, Preconditioner, PreconditionerConfig
from ._low_rank import LowRankPreconditioner
from ._nystrom import Nystrom
from ._pivoted_cholesky import PivotedCholesky
from ._resolve import PRECONDITIONERS, resolve_preconditioner

__all__ = [
    "PRECONDITIONERS",
    "IdentityPreconditioner",
    "LowRankPreconditioner",
    "Nystrom",
    "PivotedCholesky",
    "Preconditioner",
    "PreconditionerConfig",
    "resolve_preconditioner",
]
