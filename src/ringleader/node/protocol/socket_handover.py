"""Starting a process with one end of a socket pair, and taking it over in there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import IO


def start_with_socket(
    command: Sequence[str],
    sock: socket.socket,
    *,
    log: IO[bytes] | None = None,
    folder: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` so that ``take_socket`` in it returns ``sock``.

    It prints its errors to ``log``, by default where this process does, and works in
    ``folder``.

    The process gets a process group of its own: Ctrl-C in the terminal reaches the
    parent only, which ends the child by closing its end of the socket pair.
    """
    if sys.platform == "win32":
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
        assert process.stdin is not None
        process.stdin.write(sock.share(process.pid))
        process.stdin.close()
        return process
    fd = sock.fileno()
    return subprocess.Popen(
        [*command, str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        cwd=folder,
        start_new_session=True,
    )


def take_socket(argv: Sequence[str]) -> socket.socket:
    """Return the socket that ``start_with_socket`` passed to this process."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    sock = socket.socket(fileno=int(argv[0]))
    os.set_inheritable(sock.fileno(), False)
    return sock
