"""A link over MPI messages.

The bytes travel in pieces. A piece is copied into a buffer of this link and sent in
synchronous mode, which ends when the receiver has taken it: so at most ``depth`` pieces
are on the way, and a slow reader fills nobody's memory. An empty message is the end of
the stream.

MPI has no descriptors to poll. While a caller sleeps, or sent pieces are on the way,
the poller (poller.py) asks MPI in its stead and rings the link's bell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from ringleader.errors import PeerLost
from ringleader.transport.link import POLLIN
from ringleader.transport.memory_link import socket_pair

BULK = (128 << 10, 4)
CONTROL = (32 << 10, 2)
"""Length of a piece, and number of pieces on the way, for each kind of stream."""


def _leak(buffer: bytearray) -> None:
    """Keep a buffer for ever: MPI may still use it, even after Python has ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))


class Step(Enum):
    """What a step of the poller found."""

    BUSY = 1
    """Somebody waits: ask again soon."""
    QUIET = 2
    OVER = 3


class Watcher(Protocol):
    """Interface the link needs from the poller."""

    def watch(self, link: MpiLink, *, soon: bool) -> None:
        """Call ``link.step()`` until it is over; ``soon``: somebody sleeps."""
        ...


class MpiLink:
    """One end of a link to a rank of MPI. The poller may use it at the same time."""

    kind = "mpi"
    sends_behind = False

    def __init__(
        self,
        mpi: Any,  # noqa: ANN401 - mpi4py has no types
        comm: Any,  # noqa: ANN401
        peer: int,
        route: tuple[int, int, int],
        watcher: Watcher,
        shape: tuple[int, int] = BULK,
    ) -> None:
        """``route`` is the MPI rank of the peer, the tag to send and to receive."""
        self.peer = peer
        self._mpi, self._comm, self._watcher = mpi, comm, watcher
        self._place, self._send_tag, self._recv_tag = route
        self._piece, self._depth = shape
        self._lock = threading.RLock()
        self._bell_recv, self._bell_send = socket_pair()
        self._process = os.getpid()
        self._sent: deque[tuple[Any, bytearray]] = deque()
        self._free: list[bytearray] = []
        self._posted: deque[tuple[Any, bytearray]] = deque()
        self._ready: deque[tuple[memoryview, bytearray]] = deque()
        """Received bytes that were not read yet, and the buffer that they are in."""
        self._status = mpi.Status()
        self._end = ""
        """Why nothing more is received; empty while the stream is open."""
        self.may_end: Callable[[], bool] = lambda: True
        """Whether the end may be told now. That of a bulk stream waits for the control
        stream, which says why the peer has ended."""
        self._is_closed = False
        self.sent_bytes = self.received_bytes = 0
        """See Link."""
        self._wants = (False, False)
        for _ in range(self._depth):
            self._post(bytearray(self._piece))

    # -- Link ----------------------------------------------------------------------

    def try_send_behind(self, view: memoryview) -> int:
        """See Link."""
        return self.try_send(view)

    def stop_sending(self) -> None:
        """See Link."""

    def try_send(self, view: memoryview) -> int:
        """See Link."""
        with self._lock:
            self._move()
            if self._has_ended():
                raise PeerLost(self.peer, self._end)
            if not len(view) or self._end or len(self._sent) >= self._depth:
                return 0
            buffer = self._free.pop() if self._free else bytearray(self._piece)
            size = min(len(view), self._piece)
            buffer[:size] = view[:size]
            self._issend(buffer, size)
            self.sent_bytes += size
        self._watcher.watch(self, soon=False)
        return size

    def try_recv_into(self, view: memoryview) -> int:
        """See Link."""
        with self._lock:
            if not self._ready:
                self._move()
            if not self._ready:
                if len(view) and self._has_ended():
                    raise PeerLost(self.peer, self._end)
                return 0
            source, buffer = self._ready[0]
            size = min(len(view), len(source))
            view[:size] = source[:size]
            self.received_bytes += size
            if size < len(source):
                self._ready[0] = (source[size:], buffer)
            else:
                self._ready.popleft()
                if not self._end:
                    self._post(buffer)
            return size

    def arm(self, *, sending: bool, receiving: bool) -> list[tuple[int, int]] | None:
        """See Link."""
        with self._lock:
            self._wants = (sending, receiving)
            self._quiet()
            if self._has_work():
                return None
        self._watcher.watch(self, soon=True)
        return [(self._bell_recv.fileno(), POLLIN)]

    def disarm(self) -> None:
        """See Link."""
        with self._lock:
            self._wants = (False, False)
            self._quiet()

    def close(self) -> None:
        """See Link. What was sent still arrives; the poller sees to it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._bell_recv.close()
        self._bell_send.close()
        if os.getpid() != self._process or self._mpi.Is_finalized():
            return  # in a forked child and after its end MPI must not be called
        with self._lock:
            self._wants = (False, False)
            if not self._end:
                self._say_end()
        self._watcher.watch(self, soon=True)

    # -- the poller ----------------------------------------------------------------

    def step(self) -> Step:
        """Move what can be moved; tell whether there is more to watch for."""
        with self._lock:
            if self._is_closed:
                self._discard()
                # The peer's last pieces are taken, too: else it would never end.
                if self._sent:
                    return Step.BUSY
                return Step.OVER if self._end else Step.QUIET
            if any(self._wants) and self._has_work():
                self._wants = (False, False)
                with contextlib.suppress(OSError):
                    self._bell_send.send(b"!")
            else:
                self._move()
            return Step.BUSY if self._sent or any(self._wants) else Step.OVER

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events that the poller waits for: none."""
        return []

    def is_leaving(self) -> bool:
        """Return whether the link is closed and what it sent is still on the way."""
        return self._is_closed and bool(self._sent)

    def abandon(self) -> None:
        """Give up what is on the way, to a peer that does not take it."""
        with self._lock:
            self._lose("gave up waiting for it")
            self._give_up_sends()

    # -- MPI -----------------------------------------------------------------------

    def _issend(self, buffer: bytearray, size: int) -> None:
        message = [memoryview(buffer)[:size], self._mpi.BYTE]
        try:
            request = self._comm.Issend(message, self._place, self._send_tag)
        except self._mpi.Exception as exc:
            self._lose(f"MPI cannot send to it ({exc})")
            return
        self._sent.append((request, buffer))

    def _say_end(self) -> None:
        """Send the end of the stream: empty, so MPI takes it at once."""
        empty = bytearray(1)
        message = [memoryview(empty)[:0], self._mpi.BYTE]
        with contextlib.suppress(self._mpi.Exception):
            request = self._comm.Isend(message, self._place, self._send_tag)
            if not request.Test():
                self._sent.append((request, empty))

    def _post(self, buffer: bytearray) -> None:
        try:
            request = self._comm.Irecv(
                [buffer, self._mpi.BYTE], self._place, self._recv_tag
            )
        except self._mpi.Exception as exc:
            self._lose(f"MPI cannot receive from it ({exc})")
            return
        self._posted.append((request, buffer))

    def _move(self) -> None:
        """Take note of pieces that have arrived here or there."""
        try:
            while self._sent and self._sent[0][0].Test():
                self._free.append(self._sent.popleft()[1])
            while self._posted and self._posted[0][0].Test(self._status):
                buffer = self._posted.popleft()[1]
                size = self._status.Get_count(self._mpi.BYTE)
                if size == 0:
                    self._lose("closed the connection")
                else:
                    self._ready.append((memoryview(buffer)[:size], buffer))
        except self._mpi.Exception as exc:
            self._lose(f"connection lost (MPI: {exc})")
            self._give_up_sends()

    def _lose(self, why: str) -> None:
        """Note the end of the stream, and take back the posted receives."""
        self._end = self._end or why
        while self._posted:
            request, buffer = self._posted.popleft()
            try:
                request.Cancel()
                is_back = request.Test()
            except self._mpi.Exception:
                is_back = False
            if not is_back:  # a piece is already on its way into it
                _leak(buffer)

    def _give_up_sends(self) -> None:
        for _, buffer in self._sent:
            _leak(buffer)
        self._sent.clear()

    def _has_work(self) -> bool:
        """Whether what the caller waits for is here."""
        self._move()
        sending, receiving = self._wants
        if (sending or receiving) and self._has_ended():
            return True
        if receiving and self._ready:
            return True
        return sending and not self._end and len(self._sent) < self._depth

    def _has_ended(self) -> bool:
        return bool(self._end) and self.may_end()

    def _discard(self) -> None:
        self._move()
        while self._ready:
            _, buffer = self._ready.popleft()
            if not self._end:
                self._post(buffer)

    def _quiet(self) -> None:
        """Take back a ring of the bell."""
        with contextlib.suppress(OSError):
            self._bell_recv.recv(64)
