"""The control channel of one group: notices between ranks, and tagged messages.

There is one control stream per peer. BROKEN tells all ranks why the group ended and
which rank caused it; WAITING lets a rank that waits long ask its peers whether they
make the same call; GOODBYE distinguishes a clean end from a crash. The other frames
carry messages.

Only the thread that holds the engine may call the methods, except ``post`` and
``wake``, which any thread may call.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable

from ringleader import errors
from ringleader.deadline import Deadline
from ringleader.errors import GroupAborted, RingleaderError
from ringleader.groups.control_stream import ControlStream
from ringleader.groups.messages import Messages, Outgoing, PendingRecv
from ringleader.groups.mismatch import call_mismatch, is_same_call
from ringleader.groups.work import Work
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.memory_link import socket_pair
from ringleader.wire import header as op_header
from ringleader.wire.control_frames import ERROR_NAMES, TEXT_BYTES, Frame, Kind

GRACE_S = 0.05
"""A peer that vanished is blamed once nothing has moved for this long: what it sent
before its end may still be on the way."""
HISTORY = 64
"""Calls of this rank that are remembered, for peers that ask about them late."""
HISTORY_SENT = 16
"""Number of them that are sent to a peer whose history differs."""
WAITS_S = 0.5
"""A peer that sent WAITING this recently still waits; it repeats it every 0.2 s."""
SAME_CALL_S = 2.0
"""The same for a WAITING in the call that runs here: a busy machine sends the next one
late, and a peer that is blamed for that is the wrong one."""
MAX_QUESTIONS = 64
"""Unsent frames to a peer beyond which no more WAITING is queued for it."""
FLUSH_S = 0.2
"""Time limit for sending the notice of the end to peers that read slowly."""
EXPIRE_S = 0.01
"""Time between two checks of the deadlines of messages; there may be thousands."""


class ControlChannel:
    """All control streams of one rank in one group."""

    def __init__(
        self,
        rank: int,
        socks: dict[int, socket.socket],
        wake: tuple[socket.socket, socket.socket],
    ) -> None:
        self.rank = rank
        self._streams = {p: ControlStream(p, s) for p, s in socks.items()}
        self._messages = Messages(rank, self._streams)
        self._posted: deque[Outgoing | PendingRecv] = deque()
        self._calls: list[tuple[int, bytes]] = [(0, b"")] * HISTORY
        self._waits: dict[int, tuple[int, int, float]] = {}
        """peer -> (rank it waits for, number of the call, when it said so)."""
        self._expire_at_s = 0.0
        self._orphans: list[Work] = []
        """Work that waited for frames which were dropped at the end."""
        self.current = b""
        """The header of this rank's running or last call."""
        self._wake_recv, self._wake_send = wake
        self.aborted: GroupAborted | None = None
        """Set from any thread; the engine raises it at its next check."""

    @classmethod
    def open(cls, rank: int, socks: dict[int, socket.socket]) -> ControlChannel:
        """The channel over ``socks``, with a pair of sockets to wake its thread."""
        return cls(rank, socks, socket_pair())

    def streams(self) -> list[ControlStream]:
        """The streams to all peers, to read their counters; from any thread."""
        return list(self._streams.values())

    # -- from any thread -----------------------------------------------------------

    def post(self, item: Outgoing | PendingRecv) -> None:
        """Hand over a message or a receive to the thread that holds the engine."""
        self._posted.append(item)

    def wake(self) -> None:
        """Wake a sleeping engine."""
        with contextlib.suppress(OSError):
            self._wake_send.send(b"!")

    # -- for the waiter ------------------------------------------------------------

    def begin(self, sequence: int, header: bytes) -> None:
        """Remember the current call, to compare it with those that peers wait in."""
        self.current = header
        self._calls[sequence % HISTORY] = (sequence, header)

    def ask(self, peers: list[int]) -> None:
        """Tell all peers which rank this one waits for, and in which call."""
        suspect = self.suspect(peers)
        for stream in self._streams.values():
            # A peer that does not read gets no more questions.
            if self.current and not stream.is_gone and len(stream.out) < MAX_QUESTIONS:
                frame = Frame(kind=Kind.WAITING, rank=suspect, length=64)
                stream.queue(frame, self.current)

    def send_history(self, peer: int) -> None:
        """Send the last calls to ``peer``, which finds the first that differs."""
        for sequence, header in sorted(self._calls)[-HISTORY_SENT:]:
            if sequence:
                frame = Frame(kind=Kind.WAITING, rank=peer, length=64)
                self._streams[peer].queue(frame, header)

    def suspect(self, peers: list[int]) -> int:
        """The rank that delays this one: ``peers`` wait for it, and it does not wait.

        In a ring all ranks but one wait for a neighbour that waits itself.
        """
        now_s, current = time.monotonic(), self._sequence(self.current, self.rank)
        seen: list[int] = []
        ahead = list(peers)
        while ahead:
            peer = ahead.pop(0)
            if peer in seen or peer == self.rank:
                continue
            seen.append(peer)
            waits_for, call, said_s = self._waits.get(peer, (peer, 0, -math.inf))
            if now_s - said_s > (SAME_CALL_S if call == current else WAITS_S):
                return peer
            ahead.append(waits_for)
        return peers[0]

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events to wait for."""
        streams = [s.wanted() for s in self._streams.values() if not s.is_gone]
        return [(self._wake_recv.fileno(), POLLIN), *streams]

    def progress(self, stalled_s: float = 0.0) -> None:
        """Move all frames that can be moved; raise if one of them breaks the group."""
        # First take the wake-ups, then look what they were for: one that comes in
        # between ends the next sleep.
        with contextlib.suppress(BlockingIOError):
            self._wake_recv.recv(4096)
        if self.aborted is not None:
            raise self.aborted
        while self._posted:
            self._messages.take(self._posted.popleft())
        for stream in self._streams.values():
            if not stream.is_gone:
                for frame, payload in stream.read(self._messages.room_for):
                    self._act(stream, frame, payload)
                stream.write()
            elif not stream.said_goodbye and stalled_s >= GRACE_S:
                raise stream.lost()
        if time.monotonic() >= self._expire_at_s:
            self._messages.expire()
            self._expire_at_s = time.monotonic() + EXPIRE_S

    def has_pending(self) -> bool:
        """Whether any message or receive is unfinished."""
        if self._posted or self._messages.is_pending():
            return True
        return any(stream.out for stream in self._streams.values())

    # -- the end -------------------------------------------------------------------

    def say_broken(self, error: RingleaderError) -> None:
        """Tell all reachable peers why the group ended."""
        name = type(error).__name__
        code = ERROR_NAMES.index(name if name in ERROR_NAMES else "InternalError")
        peer = getattr(error, "peer", self.rank)
        text = error.text.encode()[:TEXT_BYTES]
        rank = peer if isinstance(peer, int) and peer >= 0 else self.rank
        frame = Frame(kind=Kind.BROKEN, code=code, rank=rank, length=len(text))
        for stream in self._streams.values():
            self._orphans += stream.drop_unsent()
        self._tell_all(frame, text)
        self._flush()

    def _flush(self) -> None:
        """Send what is left, for a moment; slow peers see only the connection end."""
        until = Deadline.after(FLUSH_S)
        while True:
            left = [s for s in self._streams.values() if s.out and not s.is_gone]
            if not left or until.is_over():
                break
            wait_ready([(s.sock.fileno(), POLLOUT) for s in left], until.left_s())
            for stream in left:
                stream.write()
        for stream in left:
            with contextlib.suppress(OSError):
                stream.sock.shutdown(socket.SHUT_WR)

    def say_goodbye(self) -> None:
        """Tell all peers that this rank leaves on purpose."""
        self._tell_all(Frame(kind=Kind.GOODBYE), b"")

    def _tell_all(self, frame: Frame, payload: bytes) -> None:
        for stream in self._streams.values():
            if not stream.is_gone:
                stream.queue(frame, payload)
                stream.write()

    def fail(self, error: BaseException) -> None:
        """Fail every unfinished message with ``error``."""
        waiting = [*self._orphans, *(item.work for item in self._posted)]
        waiting += self._messages.drain()
        for stream in self._streams.values():
            waiting += [work for _, work, _ in stream.out if work]
            stream.out.clear()
        self._posted.clear()
        self._orphans.clear()
        for work in waiting:
            if not work.done():
                work.finish(error)

    def close(self) -> None:
        """Close all streams. Idempotent."""
        for stream in self._streams.values():
            stream.sock.close()
            stream.is_gone = True
        self._wake_recv.close()
        self._wake_send.close()

    def vanished_peers(self) -> list[int]:
        """Peers whose stream ended without a goodbye."""
        streams = self._streams.values()
        return [s.peer for s in streams if s.is_gone and not s.said_goodbye]

    def has_left(self, peer: int | str) -> bool:
        """Whether ``peer`` said goodbye: it closed the group, or its program ended."""
        return any(s.said_goodbye for s in self._streams.values() if s.peer == peer)

    # -- frames --------------------------------------------------------------------

    def _act(self, stream: ControlStream, frame: Frame, payload: bytes) -> None:
        if frame.kind is Kind.BROKEN:
            raise _rebuild(frame, payload, stream.peer)
        if frame.kind is Kind.GOODBYE:
            stream.said_goodbye = True
            self._messages.leave(stream.peer)
        elif frame.kind is Kind.WAITING:
            call = self._sequence(payload, stream.peer)
            self._waits[stream.peer] = (frame.rank, call, time.monotonic())
            self.compare(stream.peer, payload)
        else:
            self._messages.act(stream.peer, frame, payload)

    @staticmethod
    def _sequence(header: bytes, peer: int) -> int:
        return op_header.decode(header, peer).sequence if header else 0

    def compare(self, peer: int, theirs: bytes) -> None:
        """Raise CallMismatch if ``theirs`` differs from our call with that number."""
        call = op_header.decode(theirs, peer)
        sequence, mine = self._calls[call.sequence % HISTORY]
        if sequence != call.sequence or not mine:
            return
        ours = op_header.decode(mine, self.rank)
        if not is_same_call(ours, call):
            raise call_mismatch(peer, call, self.rank, ours)


def _rebuild(frame: Frame, payload: bytes, reporter: int) -> RingleaderError:
    """The error in a BROKEN notice, naming the rank that reported it."""
    kind: Callable[..., RingleaderError] = getattr(errors, ERROR_NAMES[frame.code])
    text = bytes(payload).decode(errors="replace")
    if frame.rank != reporter and "(reported by" not in text:
        text = f"{text} (reported by rank {reporter})"
    if issubclass(kind, errors.PeerError):  # type: ignore[arg-type]
        return kind(frame.rank, text)
    return kind(f"rank {reporter}: {text}")
