"""StreamSocket is a rank's end of a connection that a gRPC stream carries.

It is one side of a socketpair; ``pump.py`` moves the bytes between the other side and
the stream. So links and control streams see an ordinary non-blocking socket.
"""

from __future__ import annotations

import contextlib
import socket

from ringleader.errors import PeerLost
from ringleader.transport.socket_link import SocketLink


class StreamSocket(socket.socket):
    """A non-blocking socket that knows why its stream ended."""

    reason = ""
    """Why the stream was lost; empty while it is open, or if the peer closed it."""
    is_root_lost = False
    """True if it ended because the connection to rank 0 was lost."""
    root: int | str = 0
    """How errors name rank 0: its rank in the group, or a text."""


def stream_socket_pair() -> tuple[StreamSocket, socket.socket]:
    """Return the rank's end and the end of the pump."""
    left, right = socket.socketpair()
    rank_end = StreamSocket(fileno=left.detach())
    rank_end.setblocking(False)
    right.setblocking(False)
    return rank_end, right


def hang_up(pump_end: socket.socket) -> None:
    """Close the pump's end; a forked child may hold a copy, so shut it down, too."""
    with contextlib.suppress(OSError):
        pump_end.shutdown(socket.SHUT_RDWR)
    pump_end.close()


class StreamLink(SocketLink):
    """A link over a StreamSocket."""

    def __init__(self, sock: StreamSocket, peer: int) -> None:
        super().__init__(sock, peer, "grpc")
        self._stream = sock

    def try_send(self, view: memoryview) -> int:
        """See Link."""
        try:
            return super().try_send(view)
        except PeerLost as exc:
            raise explain(self._stream, exc) from exc

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        try:
            return super().try_recv_into(view)
        except PeerLost as exc:
            raise explain(self._stream, exc) from exc


def explain(sock: socket.socket, exc: PeerLost) -> PeerLost:
    """Return the error with the reason that the stream gave, naming who is lost."""
    if not isinstance(sock, StreamSocket) or not sock.reason:
        return exc
    return PeerLost(sock.root if sock.is_root_lost else exc.peer, sock.reason)
