"""Events that a membership state machine takes in, and actions that it returns."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.messages import Message


class Health(StrEnum):
    """Health of a peer, as this node sees it."""

    UNKNOWN = "unknown"
    """Its link is open and nothing has arrived over it yet."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Silent for longer than usual, or its link broke. It stays a member."""
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
    """True if its process is known to have ended: its host refused a new link."""


class MessageReceived(msgspec.Struct, frozen=True, gc=False):
    """``message`` arrived over the link to ``peer``."""

    peer: Member
    message: Message


class SetPayload(msgspec.Struct, frozen=True, gc=False):
    """The payload that this node contributes to the next view."""

    data: bytes
    view: ViewId | None = None
    """The proposed view that it was made for; it is ignored if that is no longer the
    one that this node is frozen for. None: for whichever is next."""


class RefreshView(msgspec.Struct, frozen=True, gc=False):
    """A request for a new view of the same members, with their current payloads."""


class SuspectPeer(msgspec.Struct, frozen=True, gc=False):
    """The caller has a reason to doubt that ``peer`` is alive: ask it for a sign."""

    peer: Member
    why: str


class LeaveCluster(msgspec.Struct, frozen=True, gc=False):
    """This node ends on purpose."""


class MachineSlept(msgspec.Struct, frozen=True, gc=False):
    """This machine was asleep, while its monotonic clock stood still: what peers told
    before is old."""


LinkEvent = LinkUp | LinkDown | MessageReceived

Event = (
    Tick
    | LinkUp
    | LinkDown
    | MessageReceived
    | SetPayload
    | RefreshView
    | MachineSlept
    | SuspectPeer
    | LeaveCluster
)


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send ``message`` to ``to``; drop it if the link is gone or too slow."""

    to: Member
    message: Message


class FreezeView(msgspec.Struct, frozen=True, gc=False):
    """Stop working: this view, or a later one, is about to be installed."""

    id: ViewId
    leader: Member
    members: tuple[Member, ...]
    """The members of the promised view, by seniority."""


class InstallView(msgspec.Struct, frozen=True, gc=False):
    """This view is in force here; it ends the freeze."""

    view: View


GOODBYE = "it said goodbye"
"""The reason of a change to DEAD if the process of the peer ended in order."""

RESTARTED = "its node restarted"
"""The reason of a change to DEAD if another life of the node has taken its place. The
old one may run all the same: stopped, cut off, or with a copied key."""


class HealthChanged(msgspec.Struct, frozen=True, gc=False):
    """The health of ``peer`` has changed to ``health``; ``why`` tells the reason."""

    peer: Member
    health: Health
    why: str
    is_proven: bool = False
    """True if its process is known to have ended: its host refused a new link, it said
    goodbye, or its agent attests it. Another life of its node proves nothing."""
    promised: ViewId | None = None
    """The latest view that it had promised when it ended; None if that is not known,
    because it had been silent for some time or its end is not proven."""


class PeerForgotten(msgspec.Struct, frozen=True, gc=False):
    """The record of this life of a peer is deleted; close its link if any."""

    peer: Member


class KeyCloned(msgspec.Struct, frozen=True, gc=False):
    """Two live processes use one key. The node that finds itself refused ends."""

    kept: Member
    refused: Member


class Split(msgspec.Struct, frozen=True, gc=False):
    """Another leader with members of its own came into sight.

    Two parts of the cluster were separated and have met again; one view will remain.
    """

    leader: Member
    """The other leader. The more senior of the two stays."""
    id: ViewId


Action = (
    Send | FreezeView | InstallView | HealthChanged | PeerForgotten | KeyCloned | Split
)
