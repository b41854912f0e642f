"""The mail of one group: notices that keep ranks honest, and tagged messages.

Every peer has one mail stream. BROKEN tells everybody why the group ended and who is to
blame; WAITING lets a rank that waits long ask its peer whether both make the same call;
GOODBYE makes a clean end different from a crash. The rest is messages.

All methods but ``post`` and ``wake`` belong to the thread that holds the engine.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from ringleader import errors
from ringleader.deadline import Deadline
from ringleader.errors import GroupAborted, PeerLost, RingleaderError
from ringleader.groups.control_stream import ControlStream
from ringleader.groups.messages import Messages, Outgoing, PendingRecv
from ringleader.groups.mismatch import call_mismatch, is_same_call
from ringleader.groups.work import Work
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.memory_link import socket_pair
from ringleader.wire import header as op_header
from ringleader.wire.control_frames import BLAMES, TEXT_BYTES, Frame, Kind

GRACE_S = 0.05
"""A peer that vanished is blamed once nothing has moved for this long: what it sent
before its end may still be on the way."""
HISTORY = 64
"""Our last calls, for peers that ask about them late."""
HISTORY_SENT = 16
"""Of those, how many are told to a peer whose history is not ours."""
WAITS_S = 0.5
"""A peer that said so this lately waits for somebody itself; it says so every 0.2 s."""
MAX_QUESTIONS = 64
"""Frames to a peer that does not read, beyond which we stop asking it."""
FLUSH_S = 0.2
"""How long the notice of the end may take to leave, where a peer reads slowly."""
EXPIRE_S = 0.01
"""Time between two looks at the deadlines of messages; there may be thousands."""


class ControlChannel:
    """All mail streams of one rank in one group."""

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
        self._waits: dict[int, tuple[int, float]] = {}
        """peer -> (for whom it waits, when it said so)"""
        self._expire_at_s = 0.0
        self._orphans: list[Work] = []
        """Waiting for frames that were dropped at the end."""
        self.current = b""
        """The header of our call under way, or of the last one."""
        self._wake_recv, self._wake_send = wake
        self.aborted: GroupAborted | None = None
        """Set from any thread; the engine raises it at its next look."""

    @classmethod
    def open(cls, rank: int, socks: dict[int, socket.socket]) -> ControlChannel:
        """The channel over ``socks``, with a pair of sockets to wake its thread."""
        return cls(rank, socks, socket_pair())

    # -- from any thread -----------------------------------------------------------

    def post(self, item: Outgoing | PendingRecv) -> None:
        """Hand over a message or a receive to the thread that holds the engine."""
        self._posted.append(item)

    def wake(self) -> None:
        """Make a sleeping engine look around."""
        with contextlib.suppress(OSError):
            self._wake_send.send(b"!")

    # -- what the waiter needs -----------------------------------------------------

    def begin(self, sequence: int, header: bytes) -> None:
        """Remember our current call, to compare it with what peers wait for."""
        self.current = header
        self._calls[sequence % HISTORY] = (sequence, header)

    def ask(self, peers: list[int]) -> None:
        """Tell everybody for whom we wait, and in which call."""
        suspect = self.suspect(peers)
        for stream in self._streams.values():
            # Who does not read any more needs no pile of questions.
            if self.current and not stream.is_gone and len(stream.out) < MAX_QUESTIONS:
                frame = Frame(kind=Kind.WAITING, rank=suspect, length=64)
                stream.queue(frame, self.current)

    def send_history(self, peer: int) -> None:
        """Tell ``peer`` our last calls; it finds the first that was not its own."""
        for sequence, header in sorted(self._calls)[-HISTORY_SENT:]:
            if sequence:
                frame = Frame(kind=Kind.WAITING, rank=peer, length=64)
                self._streams[peer].queue(frame, header)

    def suspect(self, peers: list[int]) -> int:
        """Who holds us up: a rank that waits for nobody, reached from ``peers``.

        Of ranks in a ring all but one wait for a neighbour that waits in turn.
        """
        fresh_s = time.monotonic() - WAITS_S
        seen: list[int] = []
        ahead = list(peers)
        while ahead:
            peer = ahead.pop(0)
            if peer in seen or peer == self.rank:
                continue
            seen.append(peer)
            waits_for, said_s = self._waits.get(peer, (peer, 0.0))
            if said_s < fresh_s:
                return peer
            ahead.append(waits_for)
        return peers[0]

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events that mean news."""
        streams = [
            stream.wanted() for stream in self._streams.values() if not stream.is_gone
        ]
        return [(self._wake_recv.fileno(), POLLIN), *streams]

    def progress(self, stalled_s: float = 0.0) -> None:
        """Move all mail that can be moved; raises what breaks the group."""
        if self.aborted is not None:
            raise self.aborted
        with contextlib.suppress(BlockingIOError):
            self._wake_recv.recv(4096)
        while self._posted:
            self._messages.take(self._posted.popleft())
        for stream in self._streams.values():
            if not stream.is_gone:
                for frame, payload in stream.read(self._messages.room_for):
                    self._act(stream, frame, payload)
                stream.write()
            elif not stream.said_goodbye and stalled_s >= GRACE_S:
                raise PeerLost(stream.peer, "vanished: its process ended or was killed")
        if time.monotonic() >= self._expire_at_s:
            self._messages.expire()
            self._expire_at_s = time.monotonic() + EXPIRE_S

    def has_pending(self) -> bool:
        """Whether any message or receive is under way."""
        if self._posted or self._messages.is_pending():
            return True
        return any(stream.out for stream in self._streams.values())

    # -- the end -------------------------------------------------------------------

    def say_broken(self, error: RingleaderError) -> None:
        """Tell everybody who can still hear why the group ended."""
        name = type(error).__name__
        code = BLAMES.index(name if name in BLAMES else "InternalError")
        peer = getattr(error, "peer", self.rank)
        text = error.text.encode()[:TEXT_BYTES]
        rank = peer if isinstance(peer, int) and peer >= 0 else self.rank
        frame = Frame(kind=Kind.BROKEN, code=code, rank=rank, length=len(text))
        for stream in self._streams.values():
            self._orphans += stream.drop_unsent()
        self._tell_all(frame, text)
        self._flush()

    def _flush(self) -> None:
        """Send what is left, for a moment; who does not read sees our end instead."""
        until = Deadline.after(FLUSH_S)
        while True:
            left = [b for b in self._streams.values() if b.out and not b.is_gone]
            if not left or until.is_over():
                break
            wait_ready([(b.sock.fileno(), POLLOUT) for b in left], until.left_s())
            for stream in left:
                stream.write()
        for stream in left:
            with contextlib.suppress(OSError):
                stream.sock.shutdown(socket.SHUT_WR)

    def say_goodbye(self) -> None:
        """Tell everybody that we leave on purpose."""
        self._tell_all(Frame(kind=Kind.GOODBYE), b"")

    def _tell_all(self, frame: Frame, payload: bytes) -> None:
        for stream in self._streams.values():
            if not stream.is_gone:
                stream.queue(frame, payload)
                stream.write()

    def fail(self, error: BaseException) -> None:
        """Every message under way fails with ``error``."""
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
        """Hang up. Idempotent."""
        for stream in self._streams.values():
            stream.sock.close()
            stream.is_gone = True
        self._wake_recv.close()
        self._wake_send.close()

    def who_vanished(self) -> list[int]:
        """Peers whose stream ended without a goodbye."""
        streams = self._streams.values()
        return [b.peer for b in streams if b.is_gone and not b.said_goodbye]

    def has_left(self, peer: int | str) -> bool:
        """Whether ``peer`` said goodbye: it closed the group, or its program ended."""
        return any(b.said_goodbye for b in self._streams.values() if b.peer == peer)

    # -- frames --------------------------------------------------------------------

    def _act(self, stream: ControlStream, frame: Frame, payload: bytes) -> None:
        if frame.kind is Kind.BROKEN:
            raise _rebuild(frame, payload, stream.peer)
        if frame.kind is Kind.GOODBYE:
            stream.said_goodbye = True
            self._messages.leave(stream.peer)
        elif frame.kind is Kind.WAITING:
            self._waits[stream.peer] = (frame.rank, time.monotonic())
            self.compare(stream.peer, payload)
        else:
            self._messages.act(stream.peer, frame, payload)

    def compare(self, peer: int, theirs: bytes) -> None:
        """``peer`` waits for us in a call: is it the one we made under that number?"""
        call = op_header.decode(theirs, peer)
        sequence, mine = self._calls[call.sequence % HISTORY]
        if sequence != call.sequence or not mine:
            return
        ours = op_header.decode(mine, self.rank)
        if not is_same_call(ours, call):
            raise call_mismatch(peer, call, self.rank, ours)


def _rebuild(frame: Frame, payload: bytes, reporter: int) -> RingleaderError:
    """The error behind a BROKEN notice, with a word on who told us."""
    kind: Callable[..., RingleaderError] = getattr(errors, BLAMES[frame.code])
    text = bytes(payload).decode(errors="replace")
    if frame.rank != reporter and "(reported by" not in text:
        text = f"{text} (reported by rank {reporter})"
    if issubclass(kind, errors.PeerError):  # type: ignore[arg-type]
        return kind(frame.rank, text)
    return kind(f"rank {reporter}: {text}")
