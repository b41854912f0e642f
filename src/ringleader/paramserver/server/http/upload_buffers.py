"""Buffers for the bodies of updates. A body that breaks off is kept for resuming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ringleader.paramserver.server.update_headers import UpdateKey

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class UploadBuffer:
    """A body that is being received, by one request at a time."""

    key: UpdateKey
    data: Bytes
    filled: int = 0
    is_over: bool = False
    """It was dropped, or another request continues it."""

    @property
    def is_whole(self) -> bool:
        """True if the whole body has arrived."""
        return self.filled == len(self.data)

    def add(self, piece: bytes) -> bool:
        """Append a piece; return False if the body gets longer than announced."""
        end = self.filled + len(piece)
        if end > len(self.data):
            return False
        self.data[self.filled : end] = np.frombuffer(piece, np.uint8)
        self.filled = end
        return True

    def end(self) -> Bytes:
        """End this upload and return its buffer."""
        data, self.data = self.data, np.empty(0, np.uint8)
        self.is_over = True
        return data


@dataclass(slots=True)
class UploadBuffers:
    """Holds at most one upload per worker, and limits the memory of all together.

    The limit includes complete bodies that are being processed.
    """

    max_bytes: int
    _uploads: dict[str, UploadBuffer] = field(default_factory=dict)
    _taken_bytes: int = 0

    def begin(self, worker: str, key: UpdateKey, total: int) -> UploadBuffer | None:
        """Begin an upload in place of the worker's last; None if memory is short."""
        self.drop(worker)
        if self.num_bytes + total > self.max_bytes:
            return None
        # Not a bytearray: that would write zeros to all of it, in the event loop.
        upload = self._uploads[worker] = UploadBuffer(key, np.empty(total, np.uint8))
        return upload

    def resume(self, worker: str, key: UpdateKey) -> UploadBuffer | None:
        """Continue an upload in a new request; None if nothing of it was kept.

        This ends the request that received it before. Its connection may be broken
        without the server knowing, and what it delivers late must not be added.
        """
        found = self._uploads.get(worker)
        if found is None or found.key != key:
            return None
        filled = found.filled
        upload = self._uploads[worker] = UploadBuffer(key, found.end(), filled)
        return upload

    def take(self, worker: str) -> Bytes:
        """Remove and return a complete body. Call ``release`` after processing it."""
        body = self._uploads.pop(worker).end()
        self._taken_bytes += len(body)
        return body

    def release(self, body: Bytes) -> None:
        """Return the memory of a body that was taken."""
        self._taken_bytes -= len(body)

    def drop(self, worker: str) -> None:
        """Drop the upload of a worker."""
        if worker in self._uploads:
            self._uploads.pop(worker).end()

    def sweep(self, is_useful: Callable[[str, UpdateKey], bool]) -> None:
        """Drop the uploads that are no longer useful."""
        for worker, upload in list(self._uploads.items()):
            if not is_useful(worker, upload.key):
                self.drop(worker)

    @property
    def num_bytes(self) -> int:
        """Bytes in use, including those reserved for uploads under way."""
        waiting = sum(len(upload.data) for upload in self._uploads.values())
        return waiting + self._taken_bytes
