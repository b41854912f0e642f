"""StarRoutes: how the ranks of a group reach each other in a star."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerLost, PeerUnreachable
from ringleader.transport import tcp_socket
from ringleader.transport.dialer import Greet
from ringleader.transport.socket_link import SocketLink
from ringleader.transport.star.star import Star
from ringleader.transport.star.stream_socket import StreamLink, StreamSocket
from ringleader.wire import hello as wire


class StarRoutes:
    """Routes of one group. ``ranks`` are the ranks of its members in the world."""

    def __init__(self, star: Star, ranks: Sequence[int]) -> None:
        self._star = star
        self._ranks = ranks
        self._root: int | str = "rank 0 of the star"
        if 0 in ranks:
            self._root = list(ranks).index(0)

    def dialer(self, to: int, deadline: Deadline) -> StreamDialer:
        """Return what opens connections to rank ``to`` of the group."""
        return StreamDialer(self._star, self._ranks[to], self._root, deadline)

    def link(self, sock: socket.socket, peer: int) -> SocketLink:
        """Return a link over an open connection."""
        assert isinstance(sock, StreamSocket)
        sock.root = self._root
        return StreamLink(sock, peer)

    def name_root(self, socks: Iterable[socket.socket]) -> None:
        """Let errors of the connections name rank 0 as this group does."""
        for sock in socks:
            assert isinstance(sock, StreamSocket)
            sock.root = self._root


class StreamDialer:
    """Opens connections to one rank of a star."""

    def __init__(
        self, star: Star, to: int, root: int | str, deadline: Deadline
    ) -> None:
        self._star = star
        self._to = to
        self._root = root
        self._deadline = deadline

    def open(self, greet: Greet) -> tuple[socket.socket, wire.HelloReply]:
        """Return a connection to the rank, and its answer to the hello.

        A connection that ends before the answer is tried again: the rank may be
        restarting.
        """
        pauses = tcp_socket.retry_pauses()
        while True:
            sock = self._star.open(self._to)
            try:
                return sock, greet(sock, self._deadline)
            except (PeerLost, DeadlineExceeded) as exc:
                sock.close()
                if sock.is_root_lost:
                    raise PeerUnreachable(self._root, sock.reason) from exc
                if self._deadline.is_over() or isinstance(exc, DeadlineExceeded):
                    raise
            except BaseException:
                sock.close()
                raise
            tcp_socket.sleep_before_retry(pauses, self._deadline)
