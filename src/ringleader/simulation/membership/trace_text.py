"""Renders members, views and messages as short text for traces."""

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


def name_of(member: Member) -> str:
    """``ada.1`` is the second incarnation of ada; ``ada.0'`` runs with a copied key."""
    is_copy = member.incarnation[4] != "0"
    return f"{member.node[:3]}.{int(member.incarnation[:4], 16)}{chr(39) * is_copy}"


def names_of(members: Iterable[Member]) -> str:
    return " ".join(name_of(m) for m in members)


def view_name(view_id: ViewId) -> str:
    """``7@ada`` is view number 7, led by ada."""
    return f"{view_id.counter}@{view_id.leader[:3]}"


def describe(message: Message) -> str:
    """Describe a message in a few words."""
    match message:
        case Heartbeat(report=report):
            prefers = name_of(report.prefers)
            return f"heartbeat: prefers {prefers}, hears {names_of(report.hears)}"
        case Propose(id=view_id, members=members):
            return f"freeze for {view_name(view_id)}: {names_of(members)}"
        case Status(id=view_id):
            return f"frozen for {view_name(view_id)}"
        case Commit(view=view):
            return f"install {view_name(view.id)}: {names_of(view.members)}"
        case Ack(id=view_id):
            return f"installed {view_name(view_id)}"
        case Refuse(id=view_id, promised=promised):
            return f"not {view_name(view_id)}, promised {view_name(promised)}"
        case _:
            return "goodbye"
