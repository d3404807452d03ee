"""Finite maps x -> phi(x) whose inner products are, or average to, a kernel."""

from ._fourier import PriorFeatures, sample_prior_features
from ._grid import Axis, Grid, keys_weights, make_grid, varying_columns
from ._grid_moments import GridMoments, grid_moments
from ._grid_polynomials import cell_polynomials, local_polynomials, offset_sums, value_polynomials
from ._network import (
    ACTIVATIONS,
    DenseNetwork,
    ModuleNetwork,
    Network,
    check_features,
    make_network,
    network_from_numpy,
    network_to_numpy,
)

__all__ = [
    "ACTIVATIONS",
    "Axis",
    "DenseNetwork",
    "Grid",
    "GridMoments",
    "ModuleNetwork",
    "Network",
    "PriorFeatures",
    "cell_polynomials",
    "check_features",
    "grid_moments",
    "keys_weights",
    "local_polynomials",
    "make_grid",
    "make_network",
    "network_from_numpy",
    "network_to_numpy",
    "offset_sums",
    "sample_prior_features",
    "value_polynomials",
    "varying_columns",
]
