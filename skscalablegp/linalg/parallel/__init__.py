"""Who shares work: threads of this process, joblib's jobs, workers of Dask, and ranks."""

from ._pool import map_in_order, n_workers, one_thread, run, threads
from ._workers import RankWorkers, Workers, shares, workers
