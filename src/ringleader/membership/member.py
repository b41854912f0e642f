"""Member, View and ViewId: the values that membership agrees on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ringleader.ids import Incarnation, NodeId, short

MAX_MEMBERS: Final = 64
"""Members of one view. A home has ten; all-to-all heartbeats of 64 are 5 Mbit/s."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024
"""Payload of a member in a view: a profile or a step number, never weights."""

MAX_COUNTER: Final = 1 << 53
"""Out of reach: one view per millisecond for 285,000 years."""


class Member(NamedTuple):
    """One life of a node, from process start to end. The smaller one is more senior."""

    started_ms: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
    """The node's own clock when its process started. It never changes and may be
    wrong."""

    node: Annotated[NodeId, Meta(pattern=r"^[a-z2-7]{52}\Z")]
    incarnation: Annotated[Incarnation, Meta(pattern=r"^[0-9a-f]{16}\Z")]

    def __str__(self) -> str:
        return f"{short(self.node)}/{self.incarnation[:4]}"


class ViewId(NamedTuple):
    """The id of a view, its epoch: unique, and later views compare greater."""

    counter: Annotated[int, Meta(ge=0, le=MAX_COUNTER)]
    leader: Annotated[NodeId, Meta(pattern=r"^[a-z2-7]{52}\Z")]
    incarnation: Annotated[Incarnation, Meta(pattern=r"^[0-9a-f]{16}\Z")]

    def __str__(self) -> str:
        return f"{self.counter}@{short(self.leader)}/{self.incarnation[:4]}"


NO_VIEW: Final = ViewId(0, NodeId("a" * 52), Incarnation("0" * 16))
"""Smaller than every real view id: what a node has before its first view."""

Payload = Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)]
Members = Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]


class View(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The members of one epoch in ring order, and the payload of each."""

    id: ViewId
    members: Members
    payloads: Annotated[tuple[Payload, ...], Meta(max_length=MAX_MEMBERS)]

    @property
    def leader(self) -> Member:
        """The member that proposed this view."""
        return next(m for m in self.members if m.node == self.id.leader)

    def payload_of(self, member: Member) -> bytes:
        """Return the payload of ``member`` in this view."""
        return self.payloads[self.members.index(member)]


Order = Callable[[Sequence[Member], Mapping[Member, bytes]], Sequence[Member]]
"""Returns the ring order: (members by seniority, their payloads) -> the same
members."""


def by_seniority(
    members: Sequence[Member], payloads: Mapping[Member, bytes]
) -> Sequence[Member]:
    """Return the default ring order: the most senior member first."""
    return sorted(members)
