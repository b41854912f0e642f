"""What can happen to a node, and what it then wants done."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.messages import Message


class Health(StrEnum):
    """What a node thinks of a peer."""

    UNKNOWN = "unknown"
    """Its link is open and nothing came over it yet."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Silent for longer than usual, or its link broke. It keeps its place."""
    DEAD = "dead"


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed; due at ``MembershipMachine.wake_at_s``."""


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """A link to ``peer`` is open; both sides have proven who they are."""

    peer: Member


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """No link to ``peer`` is open any more."""

    peer: Member
    gone: bool
    """Its process is known to have ended: its host refused a new link."""


class MessageReceived(msgspec.Struct, frozen=True, gc=False):
    """``peer`` said something over its link."""

    peer: Member
    message: Message


class SetPayload(msgspec.Struct, frozen=True, gc=False):
    """What this node hangs on the next view."""

    data: bytes


class RefreshView(msgspec.Struct, frozen=True, gc=False):
    """Make a new view of the same members, with the payloads they have now."""


class LeaveCluster(msgspec.Struct, frozen=True, gc=False):
    """This node ends on purpose."""


LinkEvent = LinkUp | LinkDown | MessageReceived

Event = (
    Tick | LinkUp | LinkDown | MessageReceived | SetPayload | RefreshView | LeaveCluster
)


class Send(msgspec.Struct, frozen=True, gc=False):
    """Say ``message`` to ``to``; drop it if the link is gone or too slow."""

    to: Member
    message: Message


class FreezeView(msgspec.Struct, frozen=True, gc=False):
    """Stop working: this view, or a later one, is about to be installed."""

    id: ViewId
    leader: Member


class InstallView(msgspec.Struct, frozen=True, gc=False):
    """This view is in force here; it ends the freeze."""

    view: View


class HealthChanged(msgspec.Struct, frozen=True, gc=False):
    """The health of ``peer`` is another one, and why."""

    peer: Member
    health: Health
    why: str


class PeerForgotten(msgspec.Struct, frozen=True, gc=False):
    """This life of a peer is over and no longer shown; close its link if any."""

    peer: Member


class KeyCloned(msgspec.Struct, frozen=True, gc=False):
    """Two live processes use one key. A node that reads of itself as refused ends."""

    kept: Member
    refused: Member


class Split(msgspec.Struct, frozen=True, gc=False):
    """Two groups with a leader each have found each other; one view will remain."""

    leader: Member
    """The other leader. The more senior one stays."""
    id: ViewId


Action = (
    Send | FreezeView | InstallView | HealthChanged | PeerForgotten | KeyCloned | Split
)
