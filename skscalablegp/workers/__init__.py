"""Who shares work: threads of this process, joblib's jobs, workers of Dask, and ranks.

:func:`distribute` makes the fits and predictions inside it shared by all processes that were
started together, for example by torchrun. Rank 0 trains the model; products with the kernel matrix
are computed by all ranks.
"""

from ._distribute import check_settings as check_settings
from ._distribute import distribute as distribute
from ._distribute import met_at as met_at
from ._fingerprint import call_parts as call_parts
from ._fingerprint import differing as differing
from ._fingerprint import fitted_parts as fitted_parts
from ._fingerprint import versions as versions
from ._life import Life as Life
from ._life import RankError as RankError
from ._pool import map_in_order as map_in_order
from ._pool import n_workers as n_workers
from ._pool import one_thread as one_thread
from ._pool import run as run
from ._pool import threads as threads
from ._ranks import Ranks as Ranks
from ._ranks import leading as leading
from ._workers import RankWorkers as RankWorkers
from ._workers import Workers as Workers
from ._workers import shares as shares
from ._workers import workers as workers
