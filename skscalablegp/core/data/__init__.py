"""Tables and sources of rows, with their scaling."""

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
from ._rows import (
    BLOCK_ROWS,
    MOVED,
    Moments,
    RowSource,
    Scaling,
    column_limits,
    column_moments,
    column_spread,
    counted_batches,
    limit_rows,
    limited,
    ranges_within,
    rows_beyond,
    standardised_limits,
    target_scales,
    weighted_moments,
)
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
