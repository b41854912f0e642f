"""Bodies of updates on their way in, kept when the line breaks so that they resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ringleader.paramserver.assignment import Key


@dataclass(slots=True)
class Upload:
    """One body, as far as it has come."""

    key: Key
    data: NDArray[np.uint8]
    filled: int = 0

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


@dataclass(slots=True)
class Uploads:
    """At most one upload per worker, and a limit for all of them together."""

    most_bytes: int
    _uploads: dict[str, Upload] = field(default_factory=dict)

    def begin(self, worker: str, key: Key, total: int) -> Upload | None:
        """A new upload instead of what the worker had; None if memory is short."""
        self.drop(worker)
        if self.num_bytes + total > self.most_bytes:
            return None
        # Not a bytearray: that would write zeros to all of it, in the event loop.
        upload = self._uploads[worker] = Upload(key, np.empty(total, np.uint8))
        return upload

    def kept(self, worker: str, key: Key) -> Upload | None:
        """What has come of this update."""
        found = self._uploads.get(worker)
        return found if found is not None and found.key == key else None

    def drop(self, worker: str, upload: Upload | None = None) -> None:
        """Forget what a worker has sent; if given, only that upload."""
        if upload is None or self._uploads.get(worker) is upload:
            self._uploads.pop(worker, None)

    def sweep(self, is_useful: Callable[[str, Key], bool]) -> None:
        """Forget whatever can no longer count."""
        for worker, upload in list(self._uploads.items()):
            if not is_useful(worker, upload.key):
                del self._uploads[worker]

    @property
    def num_bytes(self) -> int:
        """Memory that is taken, or promised."""
        return sum(len(upload.data) for upload in self._uploads.values())
