"""Distributions of the number of terms of a series: values of ``truncation=``."""

from .linalg.truncation import ExponentialTruncation as ExponentialTruncation
from .linalg.truncation import FixedTruncation as FixedTruncation
from .linalg.truncation import GeometricTruncation as GeometricTruncation
from .linalg.truncation import ReciprocalTruncation as ReciprocalTruncation
from .linalg.truncation import Truncation as Truncation
from .linalg.truncation import TruncationDistribution as TruncationDistribution

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
