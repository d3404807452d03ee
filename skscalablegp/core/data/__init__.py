"""Tables and sources of rows, with their scaling."""

from ._batches import counted_batches
from ._columns import (
    BLOCK_ROWS,
    Columns,
    Ends,
    Moments,
    column_limits,
    column_spread,
    limit_rows,
    limited,
    standardised_limits,
    target_scales,
)
from ._merging import (
    Merged,
    alone,
    have_merged,
    merged,
    numbered,
    rows_before_merging,
    whole_groups,
    with_equal_inputs,
)
from ._rows import RowSource, Scaling
from ._sharded_table import AbsentArray, ShardedTable
from ._subsets import RandomOrder, centroid_subsets, random_rows
from ._table import (
    Table,
    known_noise,
    n_columns,
    problem_spread,
    problem_square,
    problem_varies,
)
