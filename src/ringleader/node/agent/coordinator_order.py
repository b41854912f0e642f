"""The order of a round's nodes where a coordinator has given them ranks. Pure.

A coordinator gives a restarted worker its rank back, and the round should, too. So the
ring follows those ranks, unless the measured ring is much faster. Which node is rank 0
is not decided here but by seniority: the ring is only rotated to start there. See
docs/decisions/0014-coordinator-ranks.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from ringleader.ids import NodeId
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering.link_plan import link_between

WORTH_MOVING = 2.0
"""How much faster the slowest hop of the measured ring must be to go before the ranks.
Short measurements of one network differ by less."""


def coordinator_ranks(nodes: Collection[NodeId], view: ViewState) -> dict[NodeId, int]:
    """Return the ranks that a coordinator gave ``nodes``.

    Empty unless all of them have one and no two have the same: else some are not
    registered, or at another coordinator.
    """
    found = {node: view.states[node].coordinator_rank for node in nodes}
    ranks = set(found.values())
    return found if len(ranks) == len(found) and -1 not in ranks else {}


def order_ring(ring: Sequence[NodeId], view: ViewState) -> list[NodeId]:
    """Return the nodes of a ring in the order of their ranks at the coordinator.

    Nodes of one host stay adjacent. Returns ``ring`` as it is if there are no ranks, or
    if its slowest hop is ``WORTH_MOVING`` times as fast.
    """
    ranks = coordinator_ranks(ring, view)
    if not ranks:
        return list(ring)
    first_of_host: dict[str, int] = {}
    for node in sorted(ring, key=ranks.__getitem__):
        first_of_host.setdefault(view.states[node].host, ranks[node])
    by_rank = sorted(
        ring, key=lambda node: (first_of_host[view.states[node].host], ranks[node])
    )
    if _slowest_hop(ring, view) >= WORTH_MOVING * _slowest_hop(by_rank, view):
        return list(ring)
    return by_rank


def _slowest_hop(ring: Sequence[NodeId], view: ViewState) -> float:
    """Return the bytes per second of the slowest hop; unmeasured ones do not count."""
    hops = zip(ring, [*ring[1:], *ring[:1]], strict=True)
    links = (link_between(view.states, a, b) for a, b in hops)
    return min((link.out_bytes_per_s for link in links if link), default=inf)
