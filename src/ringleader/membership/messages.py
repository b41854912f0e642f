"""Messages between members, and their bytes: typed, bounded, without unknown fields.

Heartbeat    all to all     sender is alive; its report; echo of the receiver's stamp
Propose      leader ->      freeze: stop working, this is to be the next view Status
-> leader      frozen; here is my payload Commit       leader ->      install: the view,
with the payloads of all members Ack          -> leader      installed Refuse       ->
leader      a later view is already promised Goodbye      all to all     the sender
leaves on purpose

Every message may be lost, duplicated, late or reordered; ``state_machine.py`` explains
why that does no harm.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ringleader.errors import ProtocolError
from ringleader.membership.member import (
    MAX_MEMBERS,
    MAX_PAYLOAD_BYTES,
    Member,
    Members,
    Payload,
    View,
    ViewId,
)

MAX_MESSAGE_BYTES: Final = MAX_MEMBERS * (MAX_PAYLOAD_BYTES + 256) + 1024
"""A commit of 64 members with full payloads: 4.2 MB. Longer data is not decoded."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Stamp = Annotated[int, Meta(ge=0, le=1 << 62)]


class Report(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """What a node sees and wants; the same in its heartbeats to all peers."""

    view: ViewId
    """The view it has installed."""

    promised: ViewId
    """The latest view it is frozen for, or ``view``."""

    num_members: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)]
    """Number of members of its view."""

    prefers: Member
    """The node it wants as leader: itself, unless a more senior one invites it."""

    hears: Members
    """Its peers that are alive as it sees them."""

    invites: Members
    """The nodes it would lead; only if it prefers itself."""

    suspects: Annotated[tuple[tuple[Member, Count], ...], Meta(max_length=MAX_MEMBERS)]
    """Silent peers, each with the last refutation heard from it."""

    clones: Annotated[tuple[tuple[Member, Member], ...], Meta(max_length=MAX_MEMBERS)]
    """Proven copies of a key: (the life that is kept, the life that is refused)."""

    refreshes: Count
    """How often it has asked for a new view of the same members."""


class _Message(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Base of all messages: how they are encoded."""


class Heartbeat(_Message, frozen=True, tag="beat", gc=False):
    """Sign of life. Times are stamps of the sender's own clock."""

    number: Count
    """Grows with every heartbeat of the sender; a smaller one is out of date."""

    sent_us: Stamp
    echo_us: Stamp
    """The receiver's stamp from its last heartbeat to the sender; zero if none."""

    held_us: Stamp
    """Time between the arrival of that stamp and this message."""

    refutation: Count
    """Raised when the sender learns that somebody suspects it."""

    report: Report


class Propose(_Message, frozen=True, tag="propose", gc=False):
    """Freeze for this view, then send a status."""

    id: ViewId
    members: Members


class Status(_Message, frozen=True, tag="status", gc=False):
    """The sender is frozen for this view."""

    id: ViewId
    payload: Payload
    refreshes: Count
    """The refreshes that this payload satisfies."""


class Commit(_Message, frozen=True, tag="commit", gc=False):
    """Install this view."""

    view: View


class Ack(_Message, frozen=True, tag="ack", gc=False):
    """The sender has installed this view."""

    id: ViewId


class Refuse(_Message, frozen=True, tag="refuse", gc=False):
    """The sender has promised a later view than this one."""

    id: ViewId
    promised: ViewId


class Goodbye(_Message, frozen=True, tag="bye", gc=False):
    """The sender leaves on purpose; do not wait for it."""


Message = Heartbeat | Propose | Status | Commit | Ack | Refuse | Goodbye

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _ENCODER.encode(message)


class SharedEncoder:
    """Encodes a message that goes to several peers in turn, as a view does, once."""

    def __init__(self) -> None:
        self._last: Message | None = None
        self._body = b""

    def __call__(self, message: Message) -> bytes:
        """Return the bytes of a message."""
        if message is not self._last:
            self._last, self._body = message, encode(message)
        return self._body


def decode(data: bytes | bytearray | memoryview, sender: Member) -> Message:
    """Return the message in ``data``, which came over the link to ``sender``.

    Raises ProtocolError if it is malformed, oversized, contradictory or in the name of
    another node.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        text = (
            f"sent {len(data)} bytes as membership message; limit {MAX_MESSAGE_BYTES}"
        )
        raise ProtocolError(str(sender), text)
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        text = f"sent a malformed membership message: {exc}"
        raise ProtocolError(str(sender), text) from exc
    fault = _fault(message, sender)
    if fault:
        text = (
            f"sent a {type(message).__name__} message that contradicts itself: {fault}"
        )
        raise ProtocolError(str(sender), text)
    return message


def _fault(message: Message, sender: Member) -> str | None:
    match message:
        case Heartbeat(report=report):
            return _fault_of_report(report, sender)
        case Propose(id=name, members=members):
            return _fault_of_view(name, members, sender)
        case Commit(view=view):
            if len(view.payloads) != len(view.members):
                return f"{len(view.payloads)} payloads for {len(view.members)} members"
            return _fault_of_view(view.id, view.members, sender)
        case _:
            return None


def _fault_of_view(
    name: ViewId, members: tuple[Member, ...], sender: Member
) -> str | None:
    if (name.leader, name.incarnation) != (sender.node, sender.incarnation):
        return f"view {name} is led by another node"
    if sender not in members:
        return "its leader is not a member"
    return "a node is listed twice" if _has_duplicate(members) else None


def _fault_of_report(report: Report, sender: Member) -> str | None:
    if _has_duplicate(report.hears) or _has_duplicate(report.invites):
        return "a node is listed twice"
    if report.promised < report.view:
        return f"view {report.view} is installed, and only {report.promised} promised"
    if report.invites and report.prefers != sender:
        return "it invites others and follows another node"
    return None


def _has_duplicate(members: tuple[Member, ...]) -> bool:
    return len({m.node for m in members}) < len(members)
