"""StreamListener takes connections that arrive as gRPC streams, not at a port."""

from __future__ import annotations

import contextlib
import socket
from collections import deque

from ringleader.deadline import Deadline
from ringleader.errors import PeerUnreachable
from ringleader.transport.listener import Listener
from ringleader.transport.star.stream_socket import StreamSocket


class StreamListener(Listener):
    """A listener for connections handed to it by the thread that runs gRPC."""

    def __init__(self) -> None:
        woken, self._waker = socket.socketpair()
        woken.setblocking(False)
        self._waker.setblocking(False)
        super().__init__(woken, None, unix_sock=None, unix_name=b"")
        self._handed: deque[tuple[StreamSocket, int]] = deque()
        self._lost = ""

    def hand(self, sock: StreamSocket, from_rank: int) -> None:
        """Add a connection of ``from_rank``, a rank of the world. Any thread."""
        self._handed.append((sock, from_rank))
        self._wake()

    def lose(self, reason: str) -> None:
        """End the wait for connections: rank 0, which carries them, is lost."""
        self._lost = reason
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody waits
            self._waker.send(b"\0")

    def _poll(self, deadline: Deadline) -> None:
        if self._lost:
            raise PeerUnreachable(0, self._lost)
        super()._poll(deadline)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            listening.recv(4096)
        while self._handed:
            sock, from_rank = self._handed.popleft()
            name = f"rank {from_rank}"
            self._begin_handshake(sock, name, name)

    def close(self) -> None:
        """See Listener."""
        super().close()
        self._waker.close()
        while self._handed:
            self._handed.popleft()[0].close()
