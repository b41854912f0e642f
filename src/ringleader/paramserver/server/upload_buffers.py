"""Bodies of updates on their way in, kept when the line breaks so that they resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ringleader.paramserver.server.update_headers import UpdateKey

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class UploadBuffer:
    """One body, as far as it has come; it belongs to one request at a time."""

    key: UpdateKey
    data: Bytes
    filled: int = 0
    is_over: bool = False
    """It was dropped, or another request goes on with it."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""
        return self.filled == len(self.data)

    def add(self, piece: bytes) -> bool:
        """Append; False if that is more than was announced."""
        end = self.filled + len(piece)
        if end > len(self.data):
            return False
        self.data[self.filled : end] = np.frombuffer(piece, np.uint8)
        self.filled = end
        return True

    def end(self) -> Bytes:
        """Nothing is added any more; what has come."""
        data, self.data = self.data, np.empty(0, np.uint8)
        self.is_over = True
        return data


@dataclass(slots=True)
class UploadBuffers:
    """At most one upload per worker, and a limit for all of them together.

    The limit also holds for bodies that are whole and being processed.
    """

    max_bytes: int
    _uploads: dict[str, UploadBuffer] = field(default_factory=dict)
    _taken_bytes: int = 0

    def begin(self, worker: str, key: UpdateKey, total: int) -> UploadBuffer | None:
        """A new upload instead of what the worker had; None if memory is short."""
        self.drop(worker)
        if self.num_bytes + total > self.max_bytes:
            return None
        # Not a bytearray: that would write zeros to all of it, in the event loop.
        upload = self._uploads[worker] = UploadBuffer(key, np.empty(total, np.uint8))
        return upload

    def resume(self, worker: str, key: UpdateKey) -> UploadBuffer | None:
        """What has come of this update; a line that still sends it sends in vain.

        Such a line may be broken without the server knowing: what it delivers late
        must not get in between.
        """
        found = self._uploads.get(worker)
        if found is None or found.key != key:
            return None
        filled = found.filled
        upload = self._uploads[worker] = UploadBuffer(key, found.end(), filled)
        return upload

    def take(self, worker: str) -> Bytes:
        """The whole body of a worker; to be released when it has been processed."""
        body = self._uploads.pop(worker).end()
        self._taken_bytes += len(body)
        return body

    def release(self, body: Bytes) -> None:
        """A body that was taken is no longer needed."""
        self._taken_bytes -= len(body)

    def drop(self, worker: str) -> None:
        """Forget what a worker has sent."""
        if worker in self._uploads:
            self._uploads.pop(worker).end()

    def sweep(self, is_useful: Callable[[str, UpdateKey], bool]) -> None:
        """Forget whatever can no longer count."""
        for worker, upload in list(self._uploads.items()):
            if not is_useful(worker, upload.key):
                self.drop(worker)

    @property
    def num_bytes(self) -> int:
        """Memory that is taken, or promised."""
        waiting = sum(len(upload.data) for upload in self._uploads.values())
        return waiting + self._taken_bytes
