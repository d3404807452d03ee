"""Preconditioners: values of ``preconditioner=``."""

from .linalg.preconditioners import Nystrom as Nystrom
from .linalg.preconditioners import PivotedCholesky as PivotedCholesky
from .linalg.preconditioners import Preconditioner as Preconditioner

__all__ = sorted(name for name in globals() if not name.startswith("_"))
