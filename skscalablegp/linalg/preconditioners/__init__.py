"""Preconditioners, which are approximations of H that are cheap to invert."""

from ._base import IdentityPreconditioner, Preconditioner, PreconditionerConfig, pick_generator
from ._low_rank import LowRankPreconditioner
from ._nystrom import Nystrom
from ._pic import PIC
from ._pivoted_cholesky import PivotedCholesky
from ._resolve import build_preconditioner, resolve_preconditioner
