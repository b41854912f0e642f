"""The Unix socket over which ranks of one host exchange descriptors of shared memory.

The socket alone admits nobody: its name is random and told only in the answer to a
hello, the hello on it must repeat the incarnation that came with the control stream,
and where the system tells which user is on the other side, it must be ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import sys
import tempfile

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerLost
from ringleader.transport import tcp_socket
from ringleader.transport.listening_socket import BACKLOG

YES, NO = b"\1", b"\0"

_CREDENTIALS = struct.Struct("3i")
"""Result of SO_PEERCRED: process, user and group id."""


def unix_socket_path(name: bytes) -> str | bytes:
    """Return the address of the Unix socket that an answer names.

    "@name" is in Linux's abstract namespace: there is no file, and other network
    namespaces do not see it. Elsewhere it is a file in the temporary directory, removed
    on close.
    """
    if name.startswith(b"@"):
        return b"\0" + name[1:]
    return os.path.join(tempfile.gettempdir(), os.path.basename(name.decode()))


def open_unix_listener() -> tuple[socket.socket | None, bytes]:
    """Return (listening socket, its name); (None, b"") without Unix sockets."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        return None, b""
    prefix = b"@" if sys.platform == "linux" else b""
    name = prefix + b"rl-" + secrets.token_hex(10).encode()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(unix_socket_path(name))
        if not prefix:
            os.chmod(unix_socket_path(name), 0o600)
    except OSError as exc:
        sock.close()
        raise ConfigError(f"cannot open a Unix socket: {exc.strerror or exc}") from exc
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock, name


def remove_unix_name(name: bytes) -> None:
    """Remove the file of a Unix socket, where it has one."""
    if name and not name.startswith(b"@"):
        with contextlib.suppress(OSError):
            os.unlink(unix_socket_path(name))


def is_same_user(sock: socket.socket) -> bool:
    """Return whether our own user is on the other side, where the system can tell.

    Abstract sockets have no permissions, so on Linux the kernel is asked; elsewhere the
    mode of the file has already kept other users out.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return bool(user == os.geteuid())


def send_fd(doorbell: socket.socket, fd: int, rank: int) -> None:
    """Send a descriptor with one byte; on an empty Unix socket this cannot block."""
    try:
        socket.send_fds(doorbell, [YES], [fd])
    except OSError as exc:
        raise PeerLost(rank, f"while sharing memory: {exc.strerror or exc}") from exc


def receive_fd(doorbell: socket.socket, rank: int, deadline: Deadline) -> int:
    """Receive one descriptor; surplus ones are closed, none at all is PeerLost."""
    tcp_socket.wait_readable(doorbell, rank, deadline)
    try:
        data, fds, _, _ = socket.recv_fds(doorbell, 1, 4)
    except OSError as exc:
        raise PeerLost(rank, f"while sharing memory: {exc.strerror or exc}") from exc
    for extra in fds[1:]:
        os.close(extra)
    if not data or not fds:
        raise PeerLost(rank, "sent no descriptor of its shared memory")
    return fds[0]
