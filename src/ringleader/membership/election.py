"""Leader election: pure functions from the peers' reports to the leader of a node.

Two nodes are mutual when each hears the other. A node prefers the most senior among
itself and the mutual peers that prefer themselves and invite it. A node that prefers
itself invites its mutual peers, the most senior first, each only if it is mutual with
all that were invited before it. Peers that follow a more senior node are left out.

At rest the result depends only on who hears whom. The most senior node of all prefers
itself, so it invites its first clique, and all of these prefer it. Among the others the
same holds for the most senior node that remains, and so on (``expected_views`` computes
it). If every node hears every other, there is one leader: the most senior node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from typing import NamedTuple

from ringleader.membership.events import Health
from ringleader.membership.member import MAX_MEMBERS, Member
from ringleader.membership.peer import Peer


class InviteChoice(NamedTuple):
    """The nodes that a node which prefers itself would lead."""

    invites: tuple[Member, ...]
    """By seniority, without the node itself."""

    is_conflict: bool
    """True if members of the current view no longer all hear each other, or a
    newcomer does not hear them all; ``invites`` then disturbs the view least."""


def preferred_leader(me: Member, peers: Iterable[Peer]) -> Member:
    """Return the node that ``me`` wants as its leader."""
    best = me
    for peer in peers:
        is_open = peer.is_mutual and not peer.is_barred
        if peer.invites_me and peer.member < best and is_open:
            best = peer.member
    return best


def choose_invitees(
    me: Member,
    peers: Iterable[Peer],
    incumbents: Collection[Member],
    *,
    is_patient: bool,
) -> InviteChoice:
    """Return whom ``me`` invites, given that it prefers itself.

    While ``is_patient``, healthy members of the current view are not set against each
    other, and newcomers wait until they hear all of them: links open and break one by
    one, and the next moment often resolves the conflict.
    """
    candidates = sorted(
        (p for p in peers if _is_candidate(me, p)),
        key=lambda p: (p.health is Health.SUSPECT, p.member),
    )
    first = _clique(candidates)
    if len(first) == len(candidates):
        return InviteChoice(_members(first), is_conflict=False)
    kept = [
        p for p in candidates if p.member in incumbents and p.health is Health.HEALTHY
    ]
    calm = _clique([p for p in candidates if p not in kept], kept)
    is_conflict = _members(calm) != _members(first)
    return InviteChoice(_members(calm if is_patient else first), is_conflict)


def _is_candidate(me: Member, peer: Peer) -> bool:
    if not peer.is_mutual or peer.is_barred or peer.report is None:
        return False
    return peer.report.prefers >= me


def _clique(candidates: Iterable[Peer], start: Sequence[Peer] = ()) -> list[Peer]:
    """Return, greedily, each candidate that is mutual with all chosen before it."""
    chosen = list(start)
    names = {p.member for p in chosen}
    for peer in candidates:
        if len(chosen) == MAX_MEMBERS - 1:
            break
        if names <= peer.hears and all(peer.member in p.hears for p in chosen):
            chosen.append(peer)
            names.add(peer.member)
    return chosen


def _members(peers: Iterable[Peer]) -> tuple[Member, ...]:
    return tuple(sorted(p.member for p in peers))


def expected_views(
    nodes: Iterable[Member], mutual: Set[frozenset[Member]]
) -> list[tuple[Member, ...]]:
    """Return the views at rest if exactly the pairs in ``mutual`` hear each other."""
    left = sorted(nodes)
    views = []
    while left:
        view: list[Member] = []
        for node in left:
            is_room = len(view) < MAX_MEMBERS
            if is_room and all(frozenset((node, o)) in mutual for o in view):
                view.append(node)
        views.append(tuple(view))
        left = [node for node in left if node not in view]
    return views
