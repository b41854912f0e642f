"""Links inside one process over a socketpair, for in-process worlds and tests."""

from __future__ import annotations

import socket

from ringleader.transport.socket_link import SocketLink


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected non-blocking sockets."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    return left, right


def memory_link_pair(left: int = 0, right: int = 1) -> tuple[SocketLink, SocketLink]:
    """Return both ends of a link: the one ``left`` holds, then the one ``right``
    holds."""
    a, b = socket_pair()
    return SocketLink(a, right, "memory"), SocketLink(b, left, "memory")
