"""Feature maps x -> phi(x): random Fourier features of a prior, and neural networks."""

from ._fourier import PriorFeatures, frequencies_per_product, sample_prior_features
from ._network import (
    ACTIVATIONS,
    LimitedNetwork,
    Network,
    check_features,
    has_first_layer,
    make_network,
    network_from_numpy,
    network_to_numpy,
    weigh_inputs,
)
