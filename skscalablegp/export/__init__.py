"""Fitted models outside of scikit-learn: torch modules, ONNX files and models for BoTorch."""

from ..kernels import NotExportable
from ._functions import FunctionDraws, draw_functions
from ._members import predictor_module, probability_module, split_steps
from ._onnx import export_onnx
from ._onnx_trees import translations
from ._optimisation import as_botorch
from ._own import ScoresModule
from ._posteriors import ScaledModule
from ._torch import ClassModule, GPModule, to_torch

__all__ = ["ClassModule", "FunctionDraws", "GPModule", "NotExportable"]
