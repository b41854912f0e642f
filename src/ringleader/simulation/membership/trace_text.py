"""Names and sentences for traces."""

from __future__ import annotations

from collections.abc import Iterable

from ringleader.membership.member import Member, ViewId
from ringleader.membership.messages import (
    Ack,
    Commit,
    Heartbeat,
    Message,
    Propose,
    Refuse,
    Status,
)


def name(member: Member) -> str:
    """``ada.1`` is the second life of ada; ``ada.0'`` has a copy of her key."""
    is_copy = member.incarnation[4] != "0"
    return f"{member.node[:3]}.{int(member.incarnation[:4], 16)}{chr(39) * is_copy}"


def names(members: Iterable[Member]) -> str:
    """Many of them."""
    return " ".join(name(m) for m in members)


def title(view_id: ViewId) -> str:
    """``7@ada`` is the seventh view, led by ada."""
    return f"{view_id.counter}@{view_id.leader[:3]}"


def tell(message: Message) -> str:
    """A message in a few words."""
    match message:
        case Heartbeat(report=report):
            return f"beat: prefers {name(report.prefers)}, hears {names(report.hears)}"
        case Propose(id=view_id, members=members):
            return f"freeze for {title(view_id)}: {names(members)}"
        case Status(id=view_id):
            return f"frozen for {title(view_id)}"
        case Commit(view=view):
            return f"install {title(view.id)}: {names(view.members)}"
        case Ack(id=view_id):
            return f"installed {title(view_id)}"
        case Refuse(id=view_id, promised=promised):
            return f"not {title(view_id)}, promised {title(promised)}"
        case _:
            return "goodbye"
