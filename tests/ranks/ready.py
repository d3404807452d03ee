"""Imported once by the process from which ranks are forked: the package, with checked shapes."""

import checked_shapes

checked_shapes.install("skscalablegp")

import torch  # noqa: E402

# The threads of OpenMP do not survive a fork.
torch.set_num_threads(1)

import torch.distributed  # noqa: E402

import skscalablegp  # noqa: E402
import skscalablegp.workers  # noqa: E402, F401
