"""One peer's mail stream: frames queued and written, frames read and handed out."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile

from ringleader.groups.work import Work
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.secure_socket import SecureSocket
from ringleader.wire import control_frames
from ringleader.wire.control_frames import Frame

_NOTHING = memoryview(b"")

RoomFor = Callable[[int, Frame], memoryview | None]
"""(peer, frame) -> where its payload goes; None: into a buffer of its own."""


class ControlStream:
    """The mail between us and one peer. One thread at a time; never blocks."""

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.out: deque[tuple[memoryview, Work | None, bool]] = deque()
        """What to send, who waits for that, whether a frame begins there."""
        self.said_goodbye = False
        self.is_gone = False
        self._head = bytearray(control_frames.FRAME_BYTES)
        self._filled = 0
        self._frame: Frame | None = None
        self._left = _NOTHING
        self._stored = bytearray()

    def wanted(self) -> tuple[int, int]:
        """Descriptor and events that mean news."""
        return self.sock.fileno(), POLLIN | (POLLOUT if self.out else 0)

    def queue(
        self, frame: Frame, payload: bytes | memoryview = b"", work: Work | None = None
    ) -> None:
        """Put a frame in line; ``work`` is finished once its last byte has left."""
        first = None if len(payload) else work
        self.out.append((memoryview(control_frames.encode(frame)), first, True))
        if len(payload):
            self.out.append((memoryview(payload), work, False))

    def write(self) -> None:
        """Send what can be sent."""
        while self.out and not self.is_gone:
            view, work, _ = self.out[0]
            try:
                sent = self.sock.send(view)
            except BlockingIOError:
                if isinstance(self.sock, SecureSocket) and self.sock.owes:
                    self.out[0] = (view, work, False)  # part of it is on its way
                return
            except OSError:
                self.is_gone = True  # reading tells how it ended, if it said anything
                return
            if sent < len(view):
                self.out[0] = (view[sent:], work, False)
                continue
            self.out.popleft()
            if work:
                work.finish()

    def drop_unsent(self) -> list[Work]:
        """Forget every frame of which no byte has left; who waited for them."""
        started = list(takewhile(lambda entry: not entry[2], self.out))
        dropped = [work for _, work, _ in self.out if work]
        kept = [work for _, work, _ in started if work]
        self.out = deque(started)
        return [work for work in dropped if work not in kept]

    def read(self, room_for: RoomFor) -> Iterator[tuple[Frame, bytes]]:
        """Receive what is there; every frame once it is complete, with its payload."""
        while not self.is_gone:
            target = self._left
            if self._frame is None:
                target = memoryview(self._head)[self._filled :]
            try:
                received = self.sock.recv_into(target) if len(target) else 0
            except BlockingIOError:
                return
            except OSError:
                received = 0
            if len(target) and not received:
                self.is_gone = True
                return
            frame = self._advance(received, room_for)
            if frame is not None:
                yield frame, bytes(self._stored)

    def _advance(self, received: int, room_for: RoomFor) -> Frame | None:
        """Account for ``received`` bytes; the frame once it is complete."""
        if self._frame is None:
            self._filled += received
            if self._filled < control_frames.FRAME_BYTES:
                return None
            self._filled = 0
            self._frame = control_frames.decode(self._head, self.peer)
            room = room_for(self.peer, self._frame)
            self._stored = bytearray(0 if room is not None else self._frame.length)
            self._left = memoryview(self._stored) if room is None else room
        else:
            self._left = self._left[received:]
        if self._left:
            return None
        self._left = _NOTHING  # an empty view would still keep the tensor
        frame, self._frame = self._frame, None
        return frame
