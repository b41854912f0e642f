"""Tagged messages: offered, matched with a wish, accepted, sent.

A message travels as OFFER, with its payload when it is small; the receiver answers
ACCEPT once somebody wants it, and the rest follows as DATA straight into the tensor of
who asked. So nobody stores what nobody asked for, beyond a bounded amount per peer.
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
from ringleader.groups.box import Box
from ringleader.groups.work import Work
from ringleader.wire import mail
from ringleader.wire.mail import Frame, Kind

MAX_OFFERS = 4096
MAX_EAGER_BYTES = 1 << 20
"""Per sender: what may lie here unasked for."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """What both ends of a message know of it."""

    tag: int
    view: memoryview
    dtype: str
    count: int
    deadline: Deadline
    work: Work


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing(_Message):
    """A message we send."""

    peer: int
    number: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Wish(_Message):
    """A message we want; ``source`` None takes it from anybody."""

    source: int | None
    received: int = 0


@dataclass(slots=True, eq=False)
class _Offer:
    frame: Frame
    peer: int
    payload: bytes | None


@dataclass(slots=True)
class _Ledger:
    """What is under way between us and one peer."""

    offers: int = 0
    """Of the peer, not yet accepted."""
    stored_bytes: int = 0
    """Of the peer, lying here."""
    eager_bytes: int = 0
    """Of ours, lying there."""
    next_number: int = 0
    backlog: deque[Outgoing] = field(default_factory=deque)
    sending: dict[int, Outgoing] = field(default_factory=dict)
    receiving: dict[int, Wish] = field(default_factory=dict)


class Messages:
    """All messages of one rank in one group."""

    def __init__(self, rank: int, boxes: Mapping[int, Box]) -> None:
        self.rank = rank
        self._boxes = boxes
        self._ledgers = {peer: _Ledger() for peer in boxes}
        self._wishes: list[Wish] = []
        self._offers: list[_Offer] = []
        self._left: set[int] = set()

    def is_pending(self) -> bool:
        """Whether any message or wish is under way."""
        ledgers = self._ledgers.values()
        busy = any(x.sending or x.receiving or x.backlog for x in ledgers)
        return bool(self._wishes) or busy

    def take(self, item: Outgoing | Wish) -> None:
        """Begin to send a message, or to look for one that is wanted."""
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
        if self._is_hopeless(item):
            self._refuse(
                item,
                max(self._left, default=self.rank)
                if item.source is None
                else item.source,
            )
            return
        self._wishes.append(item)

    def act(self, peer: int, frame: Frame, payload: bytes) -> None:
        """A frame about messages has come."""
        if frame.kind is Kind.OFFER:
            self._offered(peer, frame, payload)
        elif frame.kind is Kind.ACCEPT:
            self._accepted(peer, frame)
        else:
            self._received(peer, frame)

    def room_for(self, peer: int, frame: Frame) -> memoryview | None:
        """Data goes straight into the tensor of who asked for it."""
        if frame.kind is not Kind.DATA:
            return None
        wish = self._ledgers[peer].receiving.get(frame.message)
        if wish is None or frame.length > len(wish.view) - wish.received:
            raise ProtocolError(peer, "sent message data that nobody accepted")
        start = wish.received
        wish.received += frame.length
        return wish.view[start : start + frame.length]

    def drain(self) -> list[Work]:
        """Forget everything; who waited for it."""
        items: list[Outgoing | Wish] = list(self._wishes)
        for ledger in self._ledgers.values():
            items += [*ledger.backlog, *ledger.sending.values()]
            items += ledger.receiving.values()
            ledger.backlog.clear()
            ledger.sending.clear()
            ledger.receiving.clear()
        self._wishes.clear()
        return [item.work for item in items]

    def leave(self, peer: int) -> None:
        """``peer`` said goodbye: nothing more comes from it, nothing is taken by it."""
        self._left.add(peer)
        ledger = self._ledgers[peer]
        unsent = [*ledger.backlog, *ledger.sending.values()]
        ledger.backlog.clear()
        ledger.sending.clear()
        for message in unsent:
            self._refuse(message, peer)
        for wish in [w for w in self._wishes if self._is_hopeless(w)]:
            self._wishes.remove(wish)
            self._refuse(wish, peer)

    def _is_hopeless(self, wish: Wish) -> bool:
        if wish.source is None:
            return len(self._left) == len(self._boxes)
        return wish.source in self._left

    def _refuse(self, item: Outgoing | Wish, peer: int) -> None:
        if not item.work.done():
            text = f"left the group; no message with tag {item.tag} can pass any more"
            item.work.finish(PeerLost(peer, text))

    # -- sending -------------------------------------------------------------------

    def _offer_next(self, peer: int) -> None:
        """Offer what waits, as far as the peer's patience goes."""
        ledger, box = self._ledgers[peer], self._boxes[peer]
        while ledger.backlog and len(ledger.sending) < MAX_OFFERS:
            message = ledger.backlog.popleft()
            message.number = ledger.next_number
            ledger.next_number += 1
            ledger.sending[message.number] = message
            size = len(message.view)
            stored = ledger.eager_bytes + size
            is_eager = size <= mail.EAGER_BYTES and stored <= MAX_EAGER_BYTES
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
            box.queue(frame, payload)
            if is_eager:
                ledger.eager_bytes = stored
                message.work.finish()
            box.write()

    def _accepted(self, peer: int, frame: Frame) -> None:
        ledger = self._ledgers[peer]
        message = ledger.sending.pop(frame.message, None)
        if message is None:
            raise ProtocolError(peer, "accepted a message we never offered")
        if message.work.done():  # it travelled with its offer
            ledger.eager_bytes -= len(message.view)
        else:
            self._send_data(self._boxes[peer], message)
        self._offer_next(peer)

    def _send_data(self, box: Box, message: Outgoing) -> None:
        view = message.view
        while view:
            piece, view = view[: mail.DATA_BYTES], view[mail.DATA_BYTES :]
            frame = Frame(kind=Kind.DATA, message=message.number, length=len(piece))
            box.queue(frame, piece, None if view else message.work)
        box.write()

    # -- receiving -----------------------------------------------------------------

    def _offered(self, peer: int, frame: Frame, payload: bytes) -> None:
        ledger = self._ledgers[peer]
        ledger.offers += 1
        ledger.stored_bytes += len(payload)
        if ledger.offers > MAX_OFFERS or ledger.stored_bytes > MAX_EAGER_BYTES:
            raise ProtocolError(peer, "offers more messages than it may")
        offer = _Offer(frame, peer, payload if frame.code else None)
        for wish in self._wishes:
            if _fits(wish, offer):
                self._wishes.remove(wish)
                self._match(wish, offer)
                return
        self._offers.append(offer)

    def _match(self, wish: Wish, offer: _Offer) -> None:
        peer, frame = offer.peer, offer.frame
        ledger, box = self._ledgers[peer], self._boxes[peer]
        if (frame.dtype, frame.count) != (wish.dtype, wish.count):
            text = (
                f"sent {frame.count} x {frame.dtype} with tag {frame.tag}, but rank "
                f"{self.rank} receives {wish.count} x {wish.dtype}"
            )
            wish.work.finish(CallMismatch(peer, text))
            raise CallMismatch(peer, text)
        wish.work.source = peer
        ledger.offers -= 1
        box.queue(Frame(kind=Kind.ACCEPT, message=frame.message))
        if offer.payload is not None:
            if len(offer.payload) != len(wish.view):
                raise ProtocolError(peer, "message length and count disagree")
            ledger.stored_bytes -= len(offer.payload)
            wish.view[:] = offer.payload
            wish.work.finish()
        elif not len(wish.view):
            wish.work.finish()
        else:
            ledger.receiving[frame.message] = wish
        box.write()

    def _received(self, peer: int, frame: Frame) -> None:
        receiving = self._ledgers[peer].receiving
        wish = receiving[frame.message]
        if wish.received == len(wish.view):
            del receiving[frame.message]
            wish.work.finish()

    def expire(self) -> None:
        """A wish nobody answered just fails; anything half-way breaks the group."""
        for wish in [w for w in self._wishes if w.deadline.is_over()]:
            self._wishes.remove(wish)
            who = wish.source if wish.source is not None else "any rank"
            text = f"sent nothing with tag {wish.tag} in {wish.deadline.after_s:.1f} s"
            wish.work.finish(DeadlineExceeded(who, text))
        for peer, ledger in self._ledgers.items():
            for message in ledger.sending.values():
                if not message.work.done() and message.deadline.is_over():
                    raise DeadlineExceeded(peer, _not_taken(message))
            for wish in ledger.receiving.values():
                if wish.deadline.is_over():
                    text = f"stopped in the middle of the message with tag {wish.tag}"
                    raise DeadlineExceeded(peer, text)


def _not_taken(message: Outgoing) -> str:
    return (
        f"did not receive our message with tag {message.tag} "
        f"({message.count} x {message.dtype}) in {message.deadline.after_s:.1f} s"
    )


def _fits(wish: Wish, offer: _Offer) -> bool:
    return wish.tag == offer.frame.tag and wish.source in (None, offer.peer)
