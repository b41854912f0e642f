"""Checks that an update must pass before it is stored and counted.

``check_update`` decodes the body: its length, zstd frame, names, dtypes and shapes must
be those that the manifest and the codec imply. Then every value must be finite, and the
norm below a fixed limit. ``NormFilter`` compares the norm with those of recent updates.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

import numpy as np

from ringleader.errors import ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest

MAX_NORM = 1e6
"""Largest norm of an update. A larger gradient means that its model has diverged."""
MAX_NORM_RATIO = 1000.0
"""Largest ratio of the norm of an update to the median of recent norms."""
_MIN_NORMS = 8
"""Norms that must be known before others are compared with their median."""
_PIECE = 1 << 16
"""Values per call of numpy, few enough to stay in the second-level cache."""


def check_update(
    manifest: Manifest, body: bytes | memoryview, codec: str
) -> tuple[Update, float]:
    """Decode the body of an update; return it and its norm.

    Raises ProtocolError if it fails a check.
    """
    update = bodies.read_update(manifest, body, codec)
    return update, norm_of(update)


def norm_of(update: Update) -> float:
    """Return the norm of an update; ProtocolError if it is not finite or too large."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for vector in (update.parameters, update.buffers):
            for i in range(0, len(vector), _PIECE):
                piece = vector[i : i + _PIECE]
                total += float(np.dot(piece, piece))
    if math.isnan(total):
        raise ProtocolError("the worker", "update refused: a value is not a number")
    if not total <= MAX_NORM**2:
        shown = f"its norm {math.sqrt(total):.3g} is above {MAX_NORM:g}"
        raise ProtocolError("the worker", f"update refused: {shown}")
    return math.sqrt(total)


class NormFilter:
    """Compares the norm of each update with the norms of the last accepted ones."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=32)

    def check(self, norm: float) -> None:
        """Remember the norm; ProtocolError if it is far above the recent ones."""
        if len(self._norms) >= _MIN_NORMS:
            usual = statistics.median(self._norms)
            if norm > MAX_NORM_RATIO * usual > 0:
                text = f"its norm {norm:.3g} is above {MAX_NORM_RATIO:g} times the"
                raise ProtocolError(
                    "the worker", f"update refused: {text} usual {usual:.3g}"
                )
        self._norms.append(norm)
