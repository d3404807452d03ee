"""Optimisers of the hyperparameters, values of ``optimizer=``, and what callbacks see."""

from .core.training import LBFGS, Adam, CallableOptimizer, Optimizer, QuasiNewton, TrainingStep

__all__ = ["LBFGS", "Adam", "CallableOptimizer", "Optimizer", "QuasiNewton", "TrainingStep"]
