"""Error feedback: adds what a lossy codec left out of an update to the next one."""

from __future__ import annotations

import numpy as np

from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector

_DECAY = 0.95
"""Share of the residual that SparseLoCo keeps: most of it is never sent, and it would
grow old."""


class ErrorFeedback:
    """Encodes updates and keeps the residual, which is empty for an exact codec."""

    def __init__(self, manifest: Manifest, codec: str) -> None:
        self.wire_name = bodies.wire_name(codec)
        self._manifest = manifest
        self._codec = codec
        self._decay = np.float32(_DECAY if codec == SparseChunks.name else 1.0)
        self._residual: Vector = np.zeros(
            manifest.num_parameters if self.is_lossy else 0, np.float32
        )
        self._next_residual: Vector = self._residual

    @property
    def is_lossy(self) -> bool:
        """True if the server decodes other values than were computed."""
        return self.wire_name != "none"

    def pack(self, update: Update) -> bytes:
        """Encode the sum of the update and the residual as a body."""
        if not self.is_lossy:
            return bodies.pack_update(self._manifest, update, self._codec)
        wanted = update.parameters + self._decay * self._residual
        exact = Update(wanted, update.buffers)
        body = bodies.pack_update(self._manifest, exact, self._codec)
        decoded = bodies.read_update(self._manifest, body, self.wire_name)
        self._next_residual = exact.parameters - decoded.parameters
        return body

    def counted(self) -> None:
        """Keep the error of the last body as the residual: the server counted it."""
        self._residual = self._next_residual
