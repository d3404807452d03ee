"""Kernel interpolation on grids (KISS-GP)."""

from ._grid import make_grid, varying_columns
from ._grid_kernel import GridKernel, kronecker_matmul, toeplitz, toeplitz_matmul
from ._kissgp import KISSGPRegressor
from ._moments import grid_moments
from ._objective import (
    CommonNoise,
    GridGradient,
    GridProblem,
    NoiseByRow,
    grid_marginal_likelihood,
    rows_on_grid,
)
from ._polynomials import cell_polynomials, local_polynomials, offset_sums, value_polynomials
from ._posterior import GridPosterior
from ._products import ProductGradient, RowProbes, evaluate_products
