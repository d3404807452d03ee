"""Preconditioners: values of ``preconditioner=``."""

from .linalg.preconditioners import Nystrom, PivotedCholesky, Preconditioner

__all__ = ["Nystrom", "PivotedCholesky", "Preconditioner"]
