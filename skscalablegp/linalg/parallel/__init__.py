"""Parallel work: tasks on worker threads, each of which runs single-threaded operations."""

from ._helpers import Helpers, shares
from ._pool import map_in_order, n_workers, one_thread, run, threads
