"""Fitted models outside of scikit-learn: torch modules, ONNX files and models for BoTorch."""

from ..kernels import NotExportable
from ._torch import GPModule, to_torch

__all__ = ["GPModule", "NotExportable"]
