"""What a lossy codec left out of an update, added to the next one."""

from __future__ import annotations

import numpy as np

from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector


class ErrorFeedback:
    """Packs updates and keeps the residual; with an exact codec there is none."""

    def __init__(self, manifest: Manifest, codec: str) -> None:
        self.wire_name = bodies.wire_name(codec)
        self._manifest = manifest
        self._codec = codec
        self._residual: Vector = np.zeros(
            manifest.num_parameters if self.is_lossy else 0, np.float32
        )
        self._lost: Vector = self._residual

    @property
    def is_lossy(self) -> bool:
        """Whether the server sees other values than we computed."""
        return self.wire_name != "none"

    def pack(self, update: Update) -> bytes:
        """The body of an update."""
        if not self.is_lossy:
            return bodies.pack_update(self._manifest, update, self._codec)
        meant = Update(update.parameters + self._residual, update.buffers)
        body = bodies.pack_update(self._manifest, meant, self._codec)
        seen = bodies.read_update(self._manifest, body, self.wire_name)
        self._lost = meant.parameters - seen.parameters
        return body

    def counted(self) -> None:
        """The last body counts: what it lost is owed from now on."""
        self._residual = self._lost
