"""Finite maps x -> phi(x) whose inner products are, or average to, a kernel."""

from ._fourier import PriorFeatures, frequencies_per_product, sample_prior_features
from ._network import (
    ACTIVATIONS,
    Network,
    check_features,
    make_network,
    network_from_numpy,
    network_to_numpy,
)
