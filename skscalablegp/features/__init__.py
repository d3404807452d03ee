"""Finite maps x -> phi(x) whose inner products are, or average to, a kernel."""

from ._arrays import to_numpy, to_torch
from ._fourier import PriorFeatures, sample_prior_features
from ._spectra import Frequencies, NoSpectralDensity, register_spectrum

__all__ = [
    "Frequencies",
    "NoSpectralDensity",
    "PriorFeatures",
    "register_spectrum",
    "sample_prior_features",
    "to_numpy",
    "to_torch",
]
