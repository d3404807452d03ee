"""Values without classes in files of the safetensors format, written whole and read with suspicion.

Files of models and checkpoints are made of it.
"""

from ._codec import Decoder as Decoder
from ._codec import Encoder as Encoder
from ._container import Contents as Contents
from ._container import opened as opened
from ._errors import ModelFileError as ModelFileError
from ._json import parse as parse
from ._paths import checked_source as checked_source
from ._paths import checked_target as checked_target
from ._structure import contents as contents
from ._structure import said_by as said_by
from ._structure import structure_of as structure_of
