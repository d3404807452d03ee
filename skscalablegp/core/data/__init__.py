"""Tables and sources of rows, with their scaling."""

from ._rows import BLOCK_ROWS, RowSource, Scaling, column_moments, target_moments
from ._subsets import centroid_subsets, random_rows
from ._table import Table, known_noise, n_columns
