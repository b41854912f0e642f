"""Tagged messages: offered, matched with a receive, accepted and sent.

A message is announced by an OFFER, which carries the payload if it is small. The
receiver answers ACCEPT once there is a matching receive, and the rest follows as DATA,
straight into the receiver's tensor. So a rank stores only a bounded amount per peer of
what it has not asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import (
    CallMismatch,
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
)
from ringleader.groups.control_stream import ControlStream
from ringleader.groups.work import Work
from ringleader.wire.control_frames import DATA_BYTES, EAGER_BYTES, Frame, Kind

MAX_OFFERS = 4096
MAX_EAGER_BYTES = 1 << 20
"""Payload per sender that is stored before a receive asks for it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """Properties that both ends of a message know."""

    tag: int
    view: memoryview
    dtype: str
    count: int
    deadline: Deadline
    work: Work


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing(_Message):
    """A message that this rank sends."""

    peer: int
    number: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class PendingRecv(_Message):
    """A receive that waits for a message; ``source`` None accepts any sender."""

    source: int | None
    received: int = 0


@dataclass(slots=True, eq=False)
class _Offer:
    frame: Frame
    peer: int
    payload: bytes | None


@dataclass(slots=True)
class _Ledger:
    """Unfinished messages between this rank and one peer."""

    offers: int = 0
    """Offers of the peer that are not yet accepted."""
    stored_bytes: int = 0
    """Payload of the peer that is stored here."""
    eager_bytes: int = 0
    """Payload of this rank that is stored at the peer."""
    next_number: int = 0
    backlog: deque[Outgoing] = field(default_factory=deque)
    sending: dict[int, Outgoing] = field(default_factory=dict)
    receiving: dict[int, PendingRecv] = field(default_factory=dict)


class Messages:
    """All messages of one rank in one group."""

    def __init__(self, rank: int, streams: Mapping[int, ControlStream]) -> None:
        self.rank = rank
        self._streams = streams
        self._ledgers = {peer: _Ledger() for peer in streams}
        self._recvs: list[PendingRecv] = []
        self._offers: list[_Offer] = []
        self._left: set[int] = set()

    def is_pending(self) -> bool:
        """Whether any message or receive is unfinished."""
        ledgers = self._ledgers.values()
        busy = any(x.sending or x.receiving or x.backlog for x in ledgers)
        return bool(self._recvs) or busy

    def take(self, item: Outgoing | PendingRecv) -> None:
        """Begin to send a message, or match a receive with an offer."""
        if isinstance(item, Outgoing):
            if item.peer in self._left:
                self._refuse(item, item.peer)
                return
            self._ledgers[item.peer].backlog.append(item)
            self._offer_next(item.peer)
            return
        for offer in self._offers:
            if _fits(item, offer):
                self._offers.remove(offer)
                self._match(item, offer)
                return
        if self._cannot_match(item):
            last = max(self._left, default=self.rank)
            self._refuse(item, last if item.source is None else item.source)
            return
        self._recvs.append(item)

    def act(self, peer: int, frame: Frame, payload: bytes) -> None:
        """Process a received frame that belongs to a message."""
        if frame.kind is Kind.OFFER:
            self._offered(peer, frame, payload)
        elif frame.kind is Kind.ACCEPT:
            self._accepted(peer, frame)
        else:
            self._received(peer, frame)

    def room_for(self, peer: int, frame: Frame) -> memoryview | None:
        """The memory of the receiving tensor for DATA; None for other frames."""
        if frame.kind is not Kind.DATA:
            return None
        recv = self._ledgers[peer].receiving.get(frame.message)
        if recv is None or frame.length > len(recv.view) - recv.received:
            raise ProtocolError(peer, "sent data of a message that was not accepted")
        start = recv.received
        recv.received += frame.length
        return recv.view[start : start + frame.length]

    def drain(self) -> list[Work]:
        """Forget all messages; return the work that waited for them."""
        items: list[Outgoing | PendingRecv] = list(self._recvs)
        for ledger in self._ledgers.values():
            items += [*ledger.backlog, *ledger.sending.values()]
            items += ledger.receiving.values()
            ledger.backlog.clear()
            ledger.sending.clear()
            ledger.receiving.clear()
        self._recvs.clear()
        return [item.work for item in items]

    def leave(self, peer: int) -> None:
        """Fail all messages to and from ``peer``, which said goodbye."""
        self._left.add(peer)
        ledger = self._ledgers[peer]
        unsent = [*ledger.backlog, *ledger.sending.values()]
        ledger.backlog.clear()
        ledger.sending.clear()
        for message in unsent:
            self._refuse(message, peer)
        for recv in [w for w in self._recvs if self._cannot_match(w)]:
            self._recvs.remove(recv)
            self._refuse(recv, peer)

    def _cannot_match(self, recv: PendingRecv) -> bool:
        if recv.source is None:
            return len(self._left) == len(self._streams)
        return recv.source in self._left

    def _refuse(self, item: Outgoing | PendingRecv, peer: int) -> None:
        if not item.work.done():
            text = f"left the group; its message with tag {item.tag} is lost"
            item.work.finish(PeerLost(peer, text))

    # -- sending -------------------------------------------------------------------

    def _offer_next(self, peer: int) -> None:
        """Offer queued messages, up to the limit of offers."""
        ledger, stream = self._ledgers[peer], self._streams[peer]
        while ledger.backlog and len(ledger.sending) < MAX_OFFERS:
            message = ledger.backlog.popleft()
            message.number = ledger.next_number
            ledger.next_number += 1
            ledger.sending[message.number] = message
            size = len(message.view)
            stored = ledger.eager_bytes + size
            is_eager = size <= EAGER_BYTES and stored <= MAX_EAGER_BYTES
            # A copy, so that the caller can reuse the tensor at once.
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
            stream.queue(frame, payload)
            if is_eager:
                ledger.eager_bytes = stored
                message.work.finish()
            stream.write()

    def _accepted(self, peer: int, frame: Frame) -> None:
        ledger = self._ledgers[peer]
        message = ledger.sending.pop(frame.message, None)
        if message is None:
            raise ProtocolError(peer, "accepted a message that was not offered")
        if message.work.done():  # its payload was in the offer
            ledger.eager_bytes -= len(message.view)
        else:
            self._send_data(self._streams[peer], message)
        self._offer_next(peer)

    def _send_data(self, stream: ControlStream, message: Outgoing) -> None:
        view = message.view
        while view:
            piece, view = (
                view[:DATA_BYTES],
                view[DATA_BYTES:],
            )
            frame = Frame(kind=Kind.DATA, message=message.number, length=len(piece))
            stream.queue(frame, piece, None if view else message.work)
        stream.write()

    # -- receiving -----------------------------------------------------------------

    def _offered(self, peer: int, frame: Frame, payload: bytes) -> None:
        ledger = self._ledgers[peer]
        ledger.offers += 1
        ledger.stored_bytes += len(payload)
        if ledger.offers > MAX_OFFERS or ledger.stored_bytes > MAX_EAGER_BYTES:
            raise ProtocolError(peer, "exceeds the limit of offered messages")
        offer = _Offer(frame, peer, payload if frame.code else None)
        for recv in self._recvs:
            if _fits(recv, offer):
                self._recvs.remove(recv)
                self._match(recv, offer)
                return
        self._offers.append(offer)

    def _match(self, recv: PendingRecv, offer: _Offer) -> None:
        peer, frame = offer.peer, offer.frame
        ledger, stream = self._ledgers[peer], self._streams[peer]
        if (frame.dtype, frame.count) != (recv.dtype, recv.count):
            text = (
                f"sent {frame.count} x {frame.dtype} with tag {frame.tag}, but rank "
                f"{self.rank} receives {recv.count} x {recv.dtype}"
            )
            recv.work.finish(CallMismatch(peer, text))
            raise CallMismatch(peer, text)
        recv.work.source = peer
        ledger.offers -= 1
        stream.queue(Frame(kind=Kind.ACCEPT, message=frame.message))
        if offer.payload is not None:
            if len(offer.payload) != len(recv.view):
                raise ProtocolError(peer, "message length and count disagree")
            ledger.stored_bytes -= len(offer.payload)
            recv.view[:] = offer.payload
            recv.work.finish()
        elif not len(recv.view):
            recv.work.finish()
        else:
            ledger.receiving[frame.message] = recv
        stream.write()

    def _received(self, peer: int, frame: Frame) -> None:
        receiving = self._ledgers[peer].receiving
        recv = receiving[frame.message]
        if recv.received == len(recv.view):
            del receiving[frame.message]
            recv.work.finish()

    def expire(self) -> None:
        """Fail receives without an offer; raise if a message is late half-way."""
        for recv in [w for w in self._recvs if w.deadline.is_over()]:
            self._recvs.remove(recv)
            who = recv.source if recv.source is not None else "any rank"
            text = f"sent nothing with tag {recv.tag} in {recv.deadline.after_s:.1f} s"
            recv.work.finish(DeadlineExceeded(who, text))
        for peer, ledger in self._ledgers.items():
            for message in ledger.sending.values():
                if not message.work.done() and message.deadline.is_over():
                    raise DeadlineExceeded(peer, _not_taken(message))
            for recv in ledger.receiving.values():
                if recv.deadline.is_over():
                    text = f"stopped in the middle of the message with tag {recv.tag}"
                    raise DeadlineExceeded(peer, text)


def _not_taken(message: Outgoing) -> str:
    return (
        f"did not receive our message with tag {message.tag} "
        f"({message.count} x {message.dtype}) in {message.deadline.after_s:.1f} s"
    )


def _fits(recv: PendingRecv, offer: _Offer) -> bool:
    return recv.tag == offer.frame.tag and recv.source in (None, offer.peer)
