"""Carries a control stream over MPI: between one end of a socket pair and a link.

The control channel of a group polls sockets, so it gets the other end of the pair.
"""

from __future__ import annotations

import socket

from ringleader.errors import PeerLost
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.mpi.link import MpiLink, Step

_BUFFER_BYTES = 32 << 10
_NOTHING = memoryview(b"")


class ControlPump:
    """Moves bytes both ways; only the poller's thread uses it."""

    def __init__(self, link: MpiLink, sock: socket.socket) -> None:
        self._link = link
        self._sock = sock
        self._out_buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._in_buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._out = _NOTHING
        """Bytes from the socket that the link has not taken."""
        self._in = _NOTHING
        self._is_deaf = False
        """Whether the link has ended."""
        self._is_leaving = False
        """Whether the group has closed its end of the socket pair."""

    def step(self) -> Step:
        """Move what can be moved; OVER once the group has closed its end."""
        moved = self._move_out()
        moved = self._move_in() or moved
        if self._is_leaving and not self._out:
            self._sock.close()
            self._link.close()
            return Step.OVER
        return Step.BUSY if moved or self._out else Step.QUIET

    def has_told_all(self) -> bool:
        """Return whether the group has all that the peer ever sent, or has gone."""
        return self._is_leaving or (self._is_deaf and not self._in)

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events to wait for."""
        events = (0 if self._out or self._is_leaving else POLLIN) | (
            POLLOUT if self._in else 0
        )
        return [(self._sock.fileno(), events)] if events else []

    def is_leaving(self) -> bool:
        """Return whether bytes of a closed group are still on the way."""
        return self._is_leaving

    def abandon(self) -> None:
        """Give up what is on the way, to a peer that does not take it."""
        self._out, self._is_leaving = _NOTHING, True
        self._link.abandon()

    def _move_out(self) -> bool:
        if not self._out and not self._is_leaving:
            try:
                size = self._sock.recv_into(self._out_buffer)
            except BlockingIOError:
                return False
            except OSError:
                size = 0
            self._is_leaving = size == 0
            self._out = self._out_buffer[:size]
        if not self._out:
            return False
        try:
            sent = self._link.try_send(self._out)
        except PeerLost:
            sent = len(self._out)
        self._out = self._out[sent:]
        return sent > 0

    def _move_in(self) -> bool:
        if self._is_deaf and not self._in:
            return False
        if not self._in:
            try:
                size = self._link.try_recv_into(self._in_buffer)
            except PeerLost:
                self._is_deaf = True
                self._end_in()
                return True
            self._in = self._in_buffer[:size]
        if not self._in:
            return False
        try:
            sent = self._sock.send(self._in)
        except BlockingIOError:
            return False
        except OSError:  # the group has closed its end
            sent = len(self._in)
        self._in = self._in[sent:]
        return sent > 0

    def _end_in(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._is_leaving = True
