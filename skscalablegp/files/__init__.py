"""Files of models that contain no code: `save` and `load`.

A file is in the safetensors format, which many programs read: arrays as tensors, and the structure
of the model as JSON in the header. A checksum covers every tensor.
"""

from ..storage import ModelFileError
from ._classes import register
from ._files import load, save, saved_size

# `load` and `save` are listed by the package itself.
__all__ = ["ModelFileError", "register", "saved_size"]
