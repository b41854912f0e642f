"""The Unix socket through which ranks of one host share memory: its name, who may come.

Nobody is let in by the door alone. Its name is random and told only in an answer, the
hello must repeat the incarnation that came with the mail stream, and where the system
says which user is on the other side, it must be ours.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import tempfile

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerLost
from ringleader.transport import tcp

YES, NO = b"\1", b"\0"

_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED tells: process, user, group."""


def unix_socket_path(door: bytes) -> str | bytes:
    """The Unix socket address behind the name in an answer.

    "@name" is Linux's abstract namespace: no file, and other network namespaces do not
    see it. Elsewhere it is a file in the temporary directory, removed on close.
    """
    if door.startswith(b"@"):
        return b"\0" + door[1:]
    return os.path.join(tempfile.gettempdir(), os.path.basename(door.decode()))


def open_unix_listener() -> tuple[socket.socket | None, bytes]:
    """(listening socket, its name); (None, b"") where there are no such sockets."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        return None, b""
    prefix = b"@" if sys.platform == "linux" else b""
    door = prefix + b"rl-" + secrets.token_hex(10).encode()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(unix_socket_path(door))
        if not prefix:
            os.chmod(unix_socket_path(door), 0o600)
    except OSError as exc:
        sock.close()
        raise ConfigError(f"cannot open a Unix socket: {exc.strerror or exc}") from exc
    sock.listen(tcp.BACKLOG)
    sock.setblocking(False)
    return sock, door


def is_same_user(sock: socket.socket) -> bool:
    """Whether our own user is on the other side, as far as the system tells.

    Abstract sockets have no permissions, so on Linux the kernel is asked; elsewhere the
    mode of the file has already kept the others out.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return bool(user == os.geteuid())


def send_fd(doorbell: socket.socket, fd: int, rank: int) -> None:
    """One byte with a descriptor on an empty Unix socket: it cannot block."""
    try:
        socket.send_fds(doorbell, [YES], [fd])
    except OSError as exc:
        raise PeerLost(rank, f"while sharing memory: {exc.strerror or exc}") from exc


def receive_fd(doorbell: socket.socket, rank: int, deadline: Deadline) -> int:
    """One descriptor; surplus ones are closed, none at all is an error."""
    tcp.wait_readable(doorbell, rank, deadline)
    try:
        data, fds, _, _ = socket.recv_fds(doorbell, 1, 4)
    except OSError as exc:
        raise PeerLost(rank, f"while sharing memory: {exc.strerror or exc}") from exc
    for extra in fds[1:]:
        os.close(extra)
    if not data or not fds:
        raise PeerLost(rank, "sent no segment")
    return fds[0]
