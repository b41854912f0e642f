"""What members say to each other, and its bytes: bounded, typed, nothing unknown.

Heartbeat    all to all     I am here, this is what I see, and back with your stamp
Propose      leader ->      freeze: stop what you do, this is to be the next view
Status       -> leader      I am frozen, and this is my payload
Commit       leader ->      install: the view, with everybody's payload
Ack          -> leader      it is installed here
Refuse       -> leader      no: I have promised a later view
Goodbye      all to all     I leave on purpose

Every message may be lost, doubled, late or out of order; ``machine.py`` says why that
does no harm.
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
"""A commit of 64 members with full payloads: 4.2 MB. Nothing longer is decoded."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Stamp = Annotated[int, Meta(ge=0, le=1 << 62)]


class Report(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """What a node sees and wants; the same in its heartbeats to all."""

    view: ViewId
    """The view it has installed."""

    promised: ViewId
    """The latest view it is frozen for, or ``view``."""

    num_members: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)]
    """How many its view has."""

    prefers: Member
    """The node it wants as leader; itself, unless a more senior one invites it."""

    hears: Members
    """Its peers that are alive as it sees them."""

    invites: Members
    """Whom it would lead; only where it prefers itself."""

    suspects: Annotated[tuple[tuple[Member, Count], ...], Meta(max_length=MAX_MEMBERS)]
    """Peers that are silent, each with the last refutation heard from it."""

    clones: Annotated[tuple[tuple[Member, Member], ...], Meta(max_length=MAX_MEMBERS)]
    """Proven copies of a key: (the life that is kept, the life that is refused)."""

    refreshes: Count
    """How often it has asked for a new view of the same members."""


class _Message(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """What all messages have in common: how they are encoded."""


class Heartbeat(_Message, frozen=True, tag="beat", gc=False):
    """I am here. Times are stamps of the sender's clock, of use to it alone."""

    number: Count
    """Grows with every heartbeat of the sender: an older one is out of date."""

    sent_us: Stamp
    echo_us: Stamp
    """Your stamp, from the last heartbeat I had from you; zero: none yet."""

    held_us: Stamp
    """How long I had it before I sent this one."""

    refutation: Count
    """Raised when a suspicion of me reaches me."""

    report: Report


class Propose(_Message, frozen=True, tag="propose", gc=False):
    """Freeze for this view, then send your status."""

    id: ViewId
    members: Members


class Status(_Message, frozen=True, tag="status", gc=False):
    """I am frozen for this view."""

    id: ViewId
    payload: Payload
    refreshes: Count
    """The refreshes that this payload satisfies."""


class Commit(_Message, frozen=True, tag="commit", gc=False):
    """Install this view."""

    view: View


class Ack(_Message, frozen=True, tag="ack", gc=False):
    """I have installed this view."""

    id: ViewId


class Refuse(_Message, frozen=True, tag="refuse", gc=False):
    """I have promised a later view than this one."""

    id: ViewId
    promised: ViewId


class Goodbye(_Message, frozen=True, tag="bye", gc=False):
    """I leave on purpose; do not wait for me."""


Message = Heartbeat | Propose | Status | Commit | Ack | Refuse | Goodbye

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode(data: bytes | bytearray | memoryview, sender: Member) -> Message:
    """The message in ``data``, which came over the link to ``sender``.

    Anything malformed, oversized, contradictory or in another node's name is a
    ProtocolError.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        text = f"a membership message of {len(data)} bytes; {MAX_MESSAGE_BYTES} is most"
        raise ProtocolError(str(sender), text)
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        text = f"a membership message that makes no sense: {exc}"
        raise ProtocolError(str(sender), text) from exc
    fault = _fault(message, sender)
    if fault:
        text = f"a {type(message).__name__} message that contradicts itself: {fault}"
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
    return "a node is listed twice" if _has_double(members) else None


def _fault_of_report(report: Report, sender: Member) -> str | None:
    if _has_double(report.hears) or _has_double(report.invites):
        return "a node is listed twice"
    if report.promised < report.view:
        return f"view {report.view} is installed, and only {report.promised} promised"
    if report.invites and report.prefers != sender:
        return "it invites others and follows another node"
    return None


def _has_double(members: tuple[Member, ...]) -> bool:
    return len({m.node for m in members}) < len(members)
