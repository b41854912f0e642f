"""FullDisk: a file on a disk that is full for a moment."""

from __future__ import annotations

import errno
import os
from io import FileIO


class FullDisk:
    """A file with room for ``room`` more bytes: the next write fails, then all succeed.

    Stands in for the ``FileIO`` it wraps.
    """

    def __init__(self, file: FileIO, room: int) -> None:
        self._file = file
        self._room = room

    def write(self, data: memoryview) -> int:
        """Write as much as there is room for; raises ENOSPC once when there is none."""
        if not self._room:
            self._room = 1 << 30
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._file.write(data[: self._room])
        self._room -= done
        return done

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
