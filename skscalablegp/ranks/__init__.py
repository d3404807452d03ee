"""One fit on several processes, which may be on several machines.

:func:`distribute` makes the fits and predictions inside it shared by all processes that were
started together, for example by torchrun. Rank 0 trains the model; products with the kernel matrix
are computed by all ranks.
"""

from ._distribute import distribute as distribute
from ._distribute import met_at as met_at
from ._fingerprint import call_parts as call_parts
from ._fingerprint import fitted_parts as fitted_parts
from ._fingerprint import versions as versions
from ._life import RankError
from ._ranks import Ranks
from ._ranks import alone as alone
from ._ranks import gathered as gathered
from ._ranks import leading as leading

__all__ = ["RankError", "Ranks"]
