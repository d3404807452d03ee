"""Inducing points: collapsed (SGPR) and by random batches (SVGP)."""

from ._bound import KernelValues, NaturalBelief, WhitenedBelief, Whitening, variational_bound
from ._classifier import SVGPClassifier
from ._collapsed import collapsed_bound
from ._posterior import InducingPosterior
from ._sgpr import SGPRRegressor
from ._stepper import SparseModel
from ._svgp import SVGPRegressor
