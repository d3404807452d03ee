"""Files as a stranger may write them: parts changed at will, and checksums that are right."""

import hashlib
import json

import numpy as np

from skscalablegp.storage._container import DTYPES


class Forged:
    """A file taken apart: its header, its structure, and the bytes of its tensors."""

    def __init__(self, path):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        self.header = json.loads(raw[8 : 8 + length])
        self.metadata = self.header.pop("__metadata__")
        self.structure = json.loads(self.metadata["structure"])
        data = raw[8 + length :]
        self.data = {name: data[slice(*it["data_offsets"])] for name, it in self.header.items()}

    def array(self, name):
        entry = self.header[name]
        return np.frombuffer(self.data[name], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()

    def put(self, name, array):
        codes = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
        self.header[name] = {"dtype": codes[array.dtype], "shape": [*array.shape]}
        self.data[name] = array.tobytes()

    def write(self, path, structure=None, header=None):
        """With right offsets and checksums; both JSON texts may be given."""
        if structure is None:
            sums = {name: hashlib.sha256(data).hexdigest() for name, data in self.data.items()}
            self.structure["checksums"] = sums
            structure = json.dumps(self.structure)
        self.metadata["structure"] = structure
        self.metadata["sha256"] = hashlib.sha256(structure.encode()).hexdigest()
        at, described = 0, {"__metadata__": self.metadata}
        for name, entry in self.header.items():
            offsets = [at, at := at + len(self.data[name])]
            described[name] = {**entry, "data_offsets": offsets}
        text = (json.dumps(described) if header is None else header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(self.data.values()))
        return path


def places(node, path=()):
    """(parent, key) of every value inside a structure of dictionaries and lists."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
