"""The table of preconditioners; each row goes through the whole contract."""

import pytest
from contracts.preconditioner_contract import PreconditionerContract

from skscalablegp.preconditioners import PIC, Nystrom, PivotedCholesky

ROWS = {
    "pivoted_cholesky": lambda rank: PivotedCholesky(rank),
    "rpcholesky": lambda rank: PivotedCholesky(rank, randomized=True),
    "remainder": lambda rank: PivotedCholesky(rank, remainder=True),
    "nystrom": lambda rank: Nystrom(rank),
    "pic": lambda rank: PIC(rank, block_size=9),
}


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS.keys())
class TestPreconditioners(PreconditionerContract):
    pass
