"""The control stream to one peer: queues and writes frames, reads and returns them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile

from ringleader.errors import PeerLost
from ringleader.groups.work import Work
from ringleader.transport.link import POLLIN, POLLOUT
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.star.stream_socket import explain
from ringleader.wire import control_frames
from ringleader.wire.control_frames import Frame

_NOTHING = memoryview(b"")

RoomFor = Callable[[int, Frame], memoryview | None]
"""(peer, frame) -> memory for the payload; None stores it in a new buffer."""


class ControlStream:
    """Frames to and from one peer. Used by one thread at a time; never blocks."""

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.out: deque[tuple[memoryview, Work | None, bool]] = deque()
        """(bytes to send, work to finish then, whether a frame begins there)."""
        self.said_goodbye = False
        self.is_gone = False
        self._head = bytearray(control_frames.FRAME_BYTES)
        self._filled = 0
        self._frame: Frame | None = None
        self._left = _NOTHING
        self._stored = bytearray()
        self._sent = self._received = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left so far; encrypted ones where the stream encrypts."""
        sock = self.sock
        return sock.sent_bytes if isinstance(sock, SecureSocket) else self._sent

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived so far, counted like the sent ones."""
        sock = self.sock
        return sock.received_bytes if isinstance(sock, SecureSocket) else self._received

    def lost(self) -> PeerLost:
        """Return the error of a stream that ended without a goodbye."""
        text = "vanished: its process ended or was killed"
        return explain(self.sock, PeerLost(self.peer, text))

    def wanted(self) -> tuple[int, int]:
        """Descriptor and events to wait for."""
        return self.sock.fileno(), POLLIN | (POLLOUT if self.out else 0)

    def queue(
        self, frame: Frame, payload: bytes | memoryview = b"", work: Work | None = None
    ) -> None:
        """Queue a frame; ``work`` is finished once its last byte has been sent."""
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
                    self.out[0] = (view, work, False)  # part of the frame has been sent
                return
            except OSError:
                self.is_gone = True  # reading may still find a notice of the end
                return
            self._sent += sent
            if sent < len(view):
                self.out[0] = (view[sent:], work, False)
                continue
            self.out.popleft()
            if work:
                work.finish()

    def drop_unsent(self) -> list[Work]:
        """Drop frames of which no byte was sent; return the work waiting for them."""
        started = list(takewhile(lambda entry: not entry[2], self.out))
        dropped = [work for _, work, _ in self.out if work]
        kept = [work for _, work, _ in started if work]
        self.out = deque(started)
        return [work for work in dropped if work not in kept]

    def read(self, room_for: RoomFor) -> Iterator[tuple[Frame, bytes]]:
        """Receive what is there; yield every complete frame with its payload."""
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
            self._received += received
            frame = self._advance(received, room_for)
            if frame is not None:
                yield frame, bytes(self._stored)

    def _advance(self, received: int, room_for: RoomFor) -> Frame | None:
        """Account for ``received`` bytes; return the frame if it is complete."""
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
        self._left = _NOTHING  # an empty view would keep the tensor alive
        frame, self._frame = self._frame, None
        return frame
