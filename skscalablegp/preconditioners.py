"""Preconditioners: values of ``preconditioner=``."""

from .linalg.preconditioners import PIC as PIC
from .linalg.preconditioners import Nystrom as Nystrom
from .linalg.preconditioners import PivotedCholesky as PivotedCholesky
from .linalg.preconditioners import Preconditioner as Preconditioner

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
