"""Link plan: which links to measure, and the ring order that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from ringleader.ids import NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.link_probe import SHARED_MEMORY
from ringleader.node.protocol.node_state import NodeState, decode_all
from ringleader.topology.cluster_graph import ClusterGraph, Node
from ringleader.topology.link_profile import LinkProfile, measurement_rounds
from ringleader.topology.mlx_hostfile import MlxHost, format_hostfile


def ring_order(
    members: Sequence[Member], payloads: Mapping[Member, bytes]
) -> Sequence[Member]:
    """Return the ring whose slowest hop is fastest; members without a state last."""
    known = {m.node: state for m, state in decode_all(payloads).items()}
    by_node = {member.node: member for member in members}
    ring = build_graph(known).ring_order()
    rest = [member for member in sorted(members) if member.node not in known]
    return [*(by_node[node] for node in ring), *rest]


def mlx_hostfile(ring: Mapping[NodeId, NodeState]) -> str:
    """Return a ring, given in its order, for ``mlx.launch``; empty if it is none.

    The order of a view was found when the view began; finding it again takes 20 ms of a
    core with 50 nodes.
    """
    if not _build_nodes(ring).can_form_ring():
        return ""
    hosts = [MlxHost(each.profile.host, each.addresses[0]) for each in ring.values()]
    return format_hostfile(hosts)


def build_graph(known: Mapping[NodeId, NodeState]) -> ClusterGraph:
    """Return the graph of the nodes and links that the node states describe."""
    made = _build_nodes(known)
    for a, b in combinations(sorted(known), 2):
        link = link_between(known, a, b)
        if link is not None and link is not SHARED_MEMORY:
            made.set_link(a, b, link)
    return made


def _build_nodes(known: Mapping[NodeId, NodeState]) -> ClusterGraph:
    made = ClusterGraph()
    for node, state in known.items():
        made.add_node(
            Node(
                id=node,
                profile=state.profile,
                addresses=tuple((address, state.port) for address in state.addresses),
                host_token=state.host,
            )
        )
    return made


def link_between(
    known: Mapping[NodeId, NodeState], source: NodeId, to: NodeId
) -> LinkProfile | None:
    """Return the link as either end measured it, seen from ``source``.

    Both measurements are equally good; the one at ``to`` is taken first.
    """
    if known[source].host == known[to].host:
        return SHARED_MEMORY
    theirs = known[to].links.get(source)
    return theirs.mirrored() if theirs else known[source].links.get(to)


def to_measure(known: Mapping[NodeId, NodeState], mine: NodeId) -> list[NodeId]:
    """Return the nodes that ``mine`` should probe, in order.

    Of each pair the smaller id asks. The order follows a tournament schedule, so that
    few nodes ask the same one at the same time.
    """
    nodes = sorted(known)
    others = [nodes[b] for b in _asked_by(nodes.index(mine), len(nodes))]
    return [other for other in others if link_between(known, mine, other) is None]


@lru_cache(8)
def _asked_by(index: int, num_nodes: int) -> list[int]:
    """Return whom a node asks, in order. Most views have as many nodes as before."""
    rounds = measurement_rounds(num_nodes)
    return [b for pairs in rounds for a, b in pairs if a == index]


def is_measured(known: Mapping[NodeId, NodeState], nodes: Sequence[NodeId]) -> bool:
    """Return whether all links between ``nodes`` are known."""
    return all(
        link_between(known, a, b) is not None for a in nodes for b in nodes if a < b
    )
