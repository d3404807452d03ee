"""Work over the cores: tasks side by side, each of them in one thread."""

from ._pool import map_in_order, n_workers, one_thread, run
