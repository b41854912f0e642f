"""Links inside one process: a socketpair, for in-process worlds and tests."""

from __future__ import annotations

import socket

from ringleader.transport.socket_link import SocketLink


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that never block."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def memory_link_pair(left: int = 0, right: int = 1) -> tuple[SocketLink, SocketLink]:
    """The two ends of one link: what ``left`` holds to reach ``right``, and back."""
    a, b = socket_pair()
    return SocketLink(a, right, "memory"), SocketLink(b, left, "memory")
