"""File locks, which the system releases when their process ends, however it ends.

They belong to the open file and not to the process, so that two nodes in one process
exclude each other as two processes do.
"""

from __future__ import annotations

import errno
import os
import sys

_FAR_AWAY = 1 << 30
"""Windows locks bytes, and nobody else can read locked bytes; so a byte is locked
that no file of ours has."""


_HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}


def try_lock(descriptor: int) -> bool:
    """Lock an open file; return False while somebody else holds the lock.

    Raises OSError where files cannot be locked, as on some network file systems.
    """
    try:
        _lock(descriptor)
    except OSError as exc:
        if exc.errno in _HELD:
            return False
        raise
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR_AWAY, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def unlock(descriptor: int) -> None:
        """Release the lock; a child that inherited the file does not keep it."""
        os.lseek(descriptor, _FAR_AWAY, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(descriptor: int) -> None:
        """Release the lock; a child that inherited the file does not keep it."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
