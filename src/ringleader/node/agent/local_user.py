"""``is_own_process``: whether the other end of a Unix socket belongs to this user."""

from __future__ import annotations

import os
import socket
import struct

_LOCAL_PEERCRED = 1
"""macOS and BSD, of level 0: ``struct xucred``, which begins with a version and the
user id."""
_XUCRED_BYTES = 76


def is_own_process(sock: socket.socket) -> bool:
    """Return whether a process of this user connected ``sock``, by the kernel's word.

    The socket lies in a folder that other users cannot enter. This holds also if
    somebody has changed the rights of that folder.
    """
    return peer_user(sock) == os.geteuid()


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the process that connected ``sock``."""
    if hasattr(socket, "SO_PEERCRED"):  # Linux
        found = sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        return int(struct.unpack("3i", found)[1])
    found = sock.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES)
    return int(struct.unpack_from("2I", found)[1])
