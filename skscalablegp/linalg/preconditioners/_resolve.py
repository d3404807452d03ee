"""The table of preconditioner names."""

from __future__ import annotations

from ._base import Preconditioner, PreconditionerConfig
from ._nystrom import Nystrom
from ._pivoted_cholesky import PivotedCholesky

PRECONDITIONERS = {
    "pivoted_cholesky": lambda: PivotedCholesky(),
    "rpcholesky": lambda: PivotedCholesky(randomized=True),
    "nystrom": lambda: Nystrom(),
}


def resolve_preconditioner(
    preconditioner,
) -> PreconditionerConfig | Preconditioner | None:
    """A name from the table becomes its settings; None and objects come back as they are.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None
        What a user may write.
    """
    if preconditioner is None:
        return None
    if isinstance(preconditioner, str):
        if preconditioner in PRECONDITIONERS:
            return PRECONDITIONERS[preconditioner]()
    elif isinstance(preconditioner, PreconditionerConfig | Preconditioner):
        return preconditioner
    known = ", ".join(repr(name) for name in sorted(PRECONDITIONERS))
    raise ValueError(
        f"Unknown preconditioner {preconditioner!r}: use one of {known}, None, or an object such "
        "as PivotedCholesky(rank=200)."
    )
