"""Optimisers (values of ``optimizer=``), the argument of callbacks, and the report of a fit."""

from .core import FitReport as FitReport
from .core.training import LBFGS as LBFGS
from .core.training import Adam as Adam
from .core.training import CallableOptimizer as CallableOptimizer
from .core.training import NaturalGradient as NaturalGradient
from .core.training import Optimizer as Optimizer
from .core.training import QuasiNewton as QuasiNewton
from .core.training import TrainingStep as TrainingStep

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
