"""Checks that an update must pass before it is stored and counted.

``check_update`` decodes the body: its length, zstd frame, names, dtypes and shapes must
be those that the manifest and the codec imply, and every value finite. ``update_norms``
compares the norm with the model and with the updates of other workers.
"""

from __future__ import annotations

import math

import numpy as np

from ringleader.errors import ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector

MAX_NORM = 1e6
"""Largest norm of the changes of buffers."""
_PIECE = 1 << 16
"""Values per call of numpy, few enough to stay in the second-level cache."""


def check_update(
    manifest: Manifest, body: bytes | memoryview, codec: str
) -> tuple[Update, float]:
    """Decode the body of an update; return it and the norm of its parameters.

    Raises ProtocolError if it fails a check.
    """
    update = bodies.read_update(manifest, body, codec)
    if (moved := norm_of(update.buffers)) > MAX_NORM:
        text = f"the norm {moved:.3g} of its buffers is above {MAX_NORM:g}"
        raise ProtocolError("the worker", f"update refused: {text}")
    return update, norm_of(update.parameters)


def norm_of(vector: Vector) -> float:
    """Return the norm of a vector; ProtocolError if it is not finite."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, len(vector), _PIECE):
            piece = vector[i : i + _PIECE]
            total += float(np.dot(piece, piece))
    if math.isnan(total):
        raise ProtocolError("the worker", "update refused: a value is not a number")
    if math.isinf(total):
        raise ProtocolError("the worker", "update refused: its norm is not finite")
    return math.sqrt(total)
