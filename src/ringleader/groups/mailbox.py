"""The mail of one group: notices that keep ranks honest, and tagged messages.

Every peer has one mail stream. BROKEN tells everybody why the group ended and who is to
blame; WAITING lets a rank that waits long ask its peer whether both make the same call;
GOODBYE makes a clean end different from a crash. Messages travel by offer and
acceptance, so that nobody stores what nobody asked for.

All methods but ``post`` and ``wake`` belong to the thread that holds the engine.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from ringleader import errors
from ringleader.deadline import Deadline
from ringleader.errors import (
    CallMismatch,
    DeadlineExceeded,
    GroupAborted,
    PeerLost,
    ProtocolError,
    RingleaderError,
)
from ringleader.groups.work import Work
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.memory import socket_pair
from ringleader.wire import header as op_header
from ringleader.wire import mail
from ringleader.wire.mail import Frame, Kind

GRACE_S = 0.05
"""A peer that vanished is blamed once nothing has moved for this long: what it sent
before its end may still be on the way."""
HISTORY = 64
"""Our last calls, for peers that ask about them late."""
WAITS_S = 0.5
"""A peer that said so this lately waits for somebody itself; it says so every 0.2 s."""
MAX_QUESTIONS = 64
"""Frames to a peer that does not read, beyond which we stop asking it."""
FLUSH_S = 0.2
"""How long the notice of the end may take to leave, where a peer reads slowly."""
EXPIRE_S = 0.01
"""Time between two looks at the deadlines of messages; there may be thousands."""
MAX_OFFERS = 4096
MAX_EAGER_BYTES = 1 << 20
"""Per sender: what may lie here unasked for."""

_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message we send."""

    peer: int
    tag: int
    view: memoryview
    dtype: str
    count: int
    deadline: Deadline
    work: Work
    number: int = 0


@dataclass(slots=True, eq=False)
class Wish:
    """A message we want; ``source`` None takes it from anybody."""

    source: int | None
    tag: int
    view: memoryview
    dtype: str
    count: int
    deadline: Deadline
    work: Work
    received: int = 0


@dataclass(slots=True, eq=False)
class _Offer:
    frame: Frame
    peer: int
    payload: bytes | None


class _Box:
    """One peer's mail stream."""

    def __init__(self, peer: int, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.out: deque[tuple[memoryview, Work | None, bool]] = deque()
        """What to send, who waits for that, whether a frame begins there."""
        self.head = bytearray(mail.FRAME_BYTES)
        self.filled = 0
        self.frame: Frame | None = None
        self.payload = _NOTHING
        self.stored = bytearray()
        self.said_goodbye = False
        self.is_gone = False
        self.offers = 0
        self.eager_bytes = 0
        self.stored_bytes = 0
        self.next_number = 0
        self.backlog: deque[Outgoing] = deque()
        self.sending: dict[int, Outgoing] = {}
        self.receiving: dict[int, Wish] = {}

    def drop_unsent(self) -> list[Work]:
        """Forget every frame of which no byte has left; who waited for them."""
        started = list(takewhile(lambda entry: not entry[2], self.out))
        dropped = [work for _, work, _ in self.out if work]
        kept = [work for _, work, _ in started if work]
        self.out = deque(started)
        return [work for work in dropped if work not in kept]


class Mailbox:
    """All mail streams of one rank in one group."""

    def __init__(self, rank: int, socks: dict[int, socket.socket]) -> None:
        self.rank = rank
        self._boxes = {p: _Box(p, s) for p, s in socks.items()}
        self._posted: deque[Outgoing | Wish] = deque()
        self._wishes: list[Wish] = []
        self._offers: list[_Offer] = []
        self._calls: list[tuple[int, bytes]] = [(0, b"")] * HISTORY
        self._waits: dict[int, tuple[int, float]] = {}
        """peer -> (for whom it waits, when it said so)"""
        self._expire_at_s = 0.0
        self._orphans: list[Work] = []
        """Waiting for frames that were dropped at the end."""
        self.current = b""
        """The header of our call under way, or of the last one."""
        self._ear, self._mouth = socket_pair()
        self.aborted: GroupAborted | None = None
        """Set from any thread; the engine raises it at its next look."""

    # -- from any thread -----------------------------------------------------------

    def post(self, item: Outgoing | Wish) -> None:
        """Hand over a message or a wish; somebody who holds the engine picks it up."""
        self._posted.append(item)

    def wake(self) -> None:
        """Make a sleeping engine look around."""
        with contextlib.suppress(OSError):
            self._mouth.send(b"!")

    # -- what the waiter needs -----------------------------------------------------

    def begin(self, sequence: int, header: bytes) -> None:
        """Remember our current call, to compare it with what peers wait for."""
        self.current = header
        self._calls[sequence % HISTORY] = (sequence, header)

    def ask(self, peers: list[int]) -> None:
        """Tell everybody for whom we wait, and in which call."""
        suspect = self.suspect(peers)
        for box in self._boxes.values():
            # Who does not read any more needs no pile of questions.
            if self.current and not box.is_gone and len(box.out) < MAX_QUESTIONS:
                frame = Frame(kind=Kind.WAITING, rank=suspect, length=64)
                self._queue(box.peer, frame, self.current)

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
        wanted = [(self._ear.fileno(), POLLIN)]
        for box in self._boxes.values():
            if not box.is_gone:
                events = POLLIN | (POLLOUT if box.out else 0)
                wanted.append((box.sock.fileno(), events))
        return wanted

    def progress(self, stalled_s: float = 0.0) -> None:
        """Move all mail that can be moved; raises what breaks the group."""
        if self.aborted is not None:
            raise self.aborted
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        while self._posted:
            self._take(self._posted.popleft())
        for box in self._boxes.values():
            if not box.is_gone:
                self._read(box)
                self._write(box)
            elif not box.said_goodbye and stalled_s >= GRACE_S:
                raise PeerLost(box.peer, "vanished: its process ended or was killed")
        if time.monotonic() >= self._expire_at_s:
            self._expire()
            self._expire_at_s = time.monotonic() + EXPIRE_S

    def has_pending(self) -> bool:
        """Whether any message or wish is under way."""
        if self._posted or self._wishes:
            return True
        boxes = self._boxes.values()
        return any(b.out or b.sending or b.receiving or b.backlog for b in boxes)

    # -- the end -------------------------------------------------------------------

    def say_broken(self, error: RingleaderError) -> None:
        """Tell everybody who can still hear why the group ended."""
        name = type(error).__name__
        code = mail.BLAMES.index(name if name in mail.BLAMES else "InternalError")
        peer = getattr(error, "peer", self.rank)
        text = error.text.encode()[: mail.TEXT_BYTES]
        rank = peer if isinstance(peer, int) and peer >= 0 else self.rank
        frame = Frame(kind=Kind.BROKEN, code=code, rank=rank, length=len(text))
        for box in self._boxes.values():
            self._orphans += box.drop_unsent()
        self._tell_all(frame, text)
        self._flush()

    def _flush(self) -> None:
        """Send what is left, for a moment; who does not read sees our end instead."""
        until = Deadline.after(FLUSH_S)
        while True:
            left = [b for b in self._boxes.values() if b.out and not b.is_gone]
            if not left or until.is_over():
                break
            wait_ready([(b.sock.fileno(), POLLOUT) for b in left], until.left_s())
            for box in left:
                self._write(box)
        for box in left:
            with contextlib.suppress(OSError):
                box.sock.shutdown(socket.SHUT_WR)

    def say_goodbye(self) -> None:
        """Tell everybody that we leave on purpose."""
        self._tell_all(Frame(kind=Kind.GOODBYE), b"")

    def _tell_all(self, frame: Frame, payload: bytes) -> None:
        for box in self._boxes.values():
            if not box.is_gone:
                self._queue(box.peer, frame, payload)
                with contextlib.suppress(PeerLost):
                    self._write(box)

    def fail(self, error: BaseException) -> None:
        """Every message under way fails with ``error``."""
        pending: list[Outgoing | Wish] = [*self._posted, *self._wishes]
        for box in self._boxes.values():
            pending += [*box.backlog, *box.sending.values(), *box.receiving.values()]
            for _, work, _ in box.out:
                if work and not work.done():
                    work.finish(error)
            box.out.clear()
            box.backlog.clear()
            box.sending.clear()
            box.receiving.clear()
        self._posted.clear()
        self._wishes.clear()
        for work in [*self._orphans, *(item.work for item in pending)]:
            if not work.done():
                work.finish(error)
        self._orphans.clear()

    def close(self) -> None:
        """Hang up. Idempotent."""
        for box in self._boxes.values():
            box.sock.close()
            box.is_gone = True
        self._ear.close()
        self._mouth.close()

    def who_vanished(self) -> list[int]:
        """Peers whose stream ended without a goodbye."""
        boxes = self._boxes.values()
        return [b.peer for b in boxes if b.is_gone and not b.said_goodbye]

    # -- bytes in and out ----------------------------------------------------------

    def _queue(
        self,
        peer: int,
        frame: Frame,
        payload: bytes | memoryview,
        work: Work | None = None,
    ) -> None:
        box = self._boxes[peer]
        first = None if len(payload) else work
        box.out.append((memoryview(mail.encode(frame)), first, True))
        if len(payload):
            box.out.append((memoryview(payload), work, False))

    def _write(self, box: _Box) -> None:
        while box.out:
            view, work, _ = box.out[0]
            try:
                sent = box.sock.send(view)
            except BlockingIOError:
                return
            except OSError:
                box.is_gone = True  # reading tells how it ended, if it said anything
                return
            if sent < len(view):
                box.out[0] = (view[sent:], work, False)
                continue
            box.out.popleft()
            if work:
                work.finish()

    def _read(self, box: _Box) -> None:
        while not box.is_gone:
            target = box.payload
            if box.frame is None:
                target = memoryview(box.head)[box.filled :]
            try:
                received = box.sock.recv_into(target) if len(target) else 0
            except BlockingIOError:
                return
            except OSError:
                box.is_gone = True
                return
            if len(target) and not received:
                box.is_gone = True
                return
            self._advance(box, received)

    def _advance(self, box: _Box, received: int) -> None:
        """Account for ``received`` bytes; act on a frame once it is complete."""
        if box.frame is None:
            box.filled += received
            if box.filled < mail.FRAME_BYTES:
                return
            box.filled = 0
            box.frame = mail.decode(box.head, box.peer)
            box.payload = self._room_for(box, box.frame)
        else:
            box.payload = box.payload[received:]
        if not box.payload:
            box.payload = _NOTHING  # an empty view would still keep the tensor
            frame, box.frame = box.frame, None
            self._act(box, frame)

    def _room_for(self, box: _Box, frame: Frame) -> memoryview:
        """Where the payload goes: a wish's tensor, or a small buffer of its own."""
        if frame.kind is not Kind.DATA:
            box.stored = bytearray(frame.length)
            return memoryview(box.stored)
        wish = box.receiving.get(frame.message)
        if wish is None or frame.length > len(wish.view) - wish.received:
            raise ProtocolError(box.peer, "sent message data that nobody accepted")
        start = wish.received
        wish.received += frame.length
        return wish.view[start : start + frame.length]

    # -- frames --------------------------------------------------------------------

    def _act(self, box: _Box, frame: Frame) -> None:
        payload = bytes(box.stored)
        if frame.kind is Kind.BROKEN:
            raise _rebuild(frame, payload, box.peer)
        if frame.kind is Kind.GOODBYE:
            box.said_goodbye = True
        elif frame.kind is Kind.WAITING:
            self._waits[box.peer] = (frame.rank, time.monotonic())
            self.compare(box.peer, payload)
        elif frame.kind is Kind.OFFER:
            self._offered(box, frame, payload)
        elif frame.kind is Kind.ACCEPT:
            self._accepted(box, frame)
        else:
            self._received(box, frame)

    def compare(self, peer: int, theirs: bytes) -> None:
        """``peer`` waits for us in a call: is it the one we made under that number?"""
        call = op_header.decode(theirs, peer)
        sequence, mine = self._calls[call.sequence % HISTORY]
        if sequence != call.sequence or not mine:
            return
        ours = op_header.decode(mine, self.rank)
        if not same_call(ours, call):
            raise mismatch(peer, call, self.rank, ours)

    # -- messages ------------------------------------------------------------------

    def _take(self, item: Outgoing | Wish) -> None:
        if isinstance(item, Outgoing):
            self._boxes[item.peer].backlog.append(item)
            self._offer_next(self._boxes[item.peer])
            return
        for offer in self._offers:
            if _fits(item, offer):
                self._offers.remove(offer)
                self._match(item, offer)
                return
        self._wishes.append(item)

    def _offer_next(self, box: _Box) -> None:
        """Offer what waits, as far as the peer's patience goes."""
        while box.backlog and len(box.sending) < MAX_OFFERS:
            message = box.backlog.popleft()
            message.number = box.next_number
            box.next_number += 1
            box.sending[message.number] = message
            size = len(message.view)
            is_eager = (
                size <= mail.EAGER_BYTES and box.eager_bytes + size <= MAX_EAGER_BYTES
            )
            # A copy, so that the caller may reuse the tensor at once.
            payload = bytes(message.view) if is_eager else b""
            frame = Frame(
                kind=Kind.OFFER,
                code=int(is_eager),
                length=len(payload),
                dtype=message.dtype,
                tag=message.tag,
                message=message.number,
                count=message.count,
            )
            self._queue(box.peer, frame, payload)
            if is_eager:
                box.eager_bytes += size
                message.work.finish()
            self._write(box)

    def _offered(self, box: _Box, frame: Frame, payload: bytes) -> None:
        box.offers += 1
        box.stored_bytes += len(payload)
        if box.offers > MAX_OFFERS or box.stored_bytes > MAX_EAGER_BYTES:
            raise ProtocolError(box.peer, "offers more messages than it may")
        offer = _Offer(frame, box.peer, payload if frame.code else None)
        for wish in self._wishes:
            if _fits(wish, offer):
                self._wishes.remove(wish)
                self._match(wish, offer)
                return
        self._offers.append(offer)

    def _match(self, wish: Wish, offer: _Offer) -> None:
        box, frame = self._boxes[offer.peer], offer.frame
        if (frame.dtype, frame.count) != (wish.dtype, wish.count):
            text = (
                f"sent {frame.count} x {frame.dtype} with tag {frame.tag}, but rank "
                f"{self.rank} receives {wish.count} x {wish.dtype}"
            )
            wish.work.finish(CallMismatch(offer.peer, text))
            raise CallMismatch(offer.peer, text)
        wish.work.source = offer.peer
        box.offers -= 1
        self._queue(offer.peer, Frame(kind=Kind.ACCEPT, message=frame.message), b"")
        if offer.payload is not None:
            if len(offer.payload) != len(wish.view):
                raise ProtocolError(offer.peer, "message length and count disagree")
            box.stored_bytes -= len(offer.payload)
            wish.view[:] = offer.payload
            wish.work.finish()
        elif not len(wish.view):
            wish.work.finish()
        else:
            box.receiving[frame.message] = wish
        self._write(box)

    def _accepted(self, box: _Box, frame: Frame) -> None:
        message = box.sending.pop(frame.message, None)
        if message is None:
            raise ProtocolError(box.peer, "accepted a message we never offered")
        if message.work.done():  # it travelled with its offer
            box.eager_bytes -= len(message.view)
        else:
            self._send_data(box, message)
        self._offer_next(box)

    def _send_data(self, box: _Box, message: Outgoing) -> None:
        view = message.view
        while view:
            piece, view = view[: mail.DATA_BYTES], view[mail.DATA_BYTES :]
            frame = Frame(kind=Kind.DATA, message=message.number, length=len(piece))
            self._queue(box.peer, frame, piece, None if view else message.work)
        self._write(box)

    def _received(self, box: _Box, frame: Frame) -> None:
        wish = box.receiving[frame.message]
        if wish.received == len(wish.view):
            del box.receiving[frame.message]
            wish.work.finish()

    def _expire(self) -> None:
        """A wish nobody answered just fails; anything half-way breaks the group."""
        for wish in [w for w in self._wishes if w.deadline.is_over()]:
            self._wishes.remove(wish)
            who = wish.source if wish.source is not None else "any rank"
            text = f"sent nothing with tag {wish.tag} in {wish.deadline.after_s:.1f} s"
            wish.work.finish(DeadlineExceeded(who, text))
        for box in self._boxes.values():
            for message in box.sending.values():
                if not message.work.done() and message.deadline.is_over():
                    raise DeadlineExceeded(box.peer, _not_taken(message))
            for wish in box.receiving.values():
                if wish.deadline.is_over():
                    text = f"stopped in the middle of the message with tag {wish.tag}"
                    raise DeadlineExceeded(box.peer, text)


def _not_taken(message: Outgoing) -> str:
    return (
        f"did not receive our message with tag {message.tag} "
        f"({message.count} x {message.dtype}) in {message.deadline.after_s:.1f} s"
    )


def _fits(wish: Wish, offer: _Offer) -> bool:
    return wish.tag == offer.frame.tag and wish.source in (None, offer.peer)


def same_call(ours: op_header.Header, theirs: op_header.Header) -> bool:
    """Whether two headers announce one operation; parts of all_to_all may differ."""
    if ours.operation == "all_to_all":
        return theirs.operation == "all_to_all" and ours.dtype == theirs.dtype
    return ours == theirs


def mismatch(
    peer: int, theirs: op_header.Header, rank: int, ours: op_header.Header
) -> CallMismatch:
    """The error that prints both calls."""
    text = (
        f"called {theirs} while rank {rank} called {ours}; every rank of a group must "
        "make the same calls in the same order"
    )
    return CallMismatch(peer, text)


def _rebuild(frame: Frame, payload: bytes, reporter: int) -> RingleaderError:
    """The error behind a BROKEN notice, with a word on who told us."""
    kind: Callable[..., RingleaderError] = getattr(errors, mail.BLAMES[frame.code])
    text = bytes(payload).decode(errors="replace")
    if frame.rank != reporter:
        text = f"{text} (reported by rank {reporter})"
    if issubclass(kind, errors.PeerError):  # type: ignore[arg-type]
        return kind(frame.rank, text)
    return kind(f"rank {reporter}: {text}")
