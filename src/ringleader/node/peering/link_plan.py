"""Which links are still to be measured, and what the figures mean for the ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.link_probe import HOST
from ringleader.node.protocol import node_state as seats
from ringleader.node.protocol.node_state import Seat
from ringleader.topology.cluster_graph import ClusterGraph, Node
from ringleader.topology.link_profile import LinkProfile, measurement_rounds


def decode_all(payloads: Mapping[Member, bytes]) -> dict[Member, Seat]:
    """The seats of the members that sent one which makes sense."""
    found = {}
    for member, data in payloads.items():
        try:
            found[member] = seats.decode(data, member.node)
        except ProtocolError:
            continue  # it takes part in the view, and in no job
    return found


def order(
    members: Sequence[Member], payloads: Mapping[Member, bytes]
) -> Sequence[Member]:
    """The ring in which the slowest hop is fastest; members without figures last."""
    known = {m.node: seat for m, seat in decode_all(payloads).items()}
    by_node = {member.node: member for member in members}
    ring = build_graph(known).ring_order()
    rest = [member for member in sorted(members) if member.node not in known]
    return [*(by_node[node] for node in ring), *rest]


def build_graph(known: Mapping[NodeId, Seat]) -> ClusterGraph:
    """Return the graph of the nodes and links that the seats describe."""
    made = ClusterGraph()
    for node, seat in known.items():
        made.add_node(
            Node(
                id=node,
                profile=seat.profile,
                addresses=tuple((address, seat.port) for address in seat.addresses),
                host_token=seat.host,
            )
        )
    for a in known:
        for b in known:
            link = link_between(known, a, b) if a < b else None
            if link is not None and known[a].host != known[b].host:
                made.set_link(a, b, link)
    return made


def link_between(
    known: Mapping[NodeId, Seat], source: NodeId, to: NodeId
) -> LinkProfile | None:
    """The link as either end measured it; the one that sent knows no better."""
    if known[source].host == known[to].host:
        return HOST
    theirs = known[to].links.get(source)
    return theirs.mirrored() if theirs else known[source].links.get(to)


def to_measure(known: Mapping[NodeId, Seat], mine: NodeId) -> list[NodeId]:
    """Whom we should ask for a probe, in an order in which few of us want the same.

    Of each pair the smaller id asks.
    """
    nodes = sorted(known)
    place = nodes.index(mine)
    pairs = [pair for meeting in measurement_rounds(len(nodes)) for pair in meeting]
    others = [nodes[b] for a, b in pairs if a == place]
    return [other for other in others if link_between(known, mine, other) is None]


def is_measured(known: Mapping[NodeId, Seat], nodes: Sequence[NodeId]) -> bool:
    """Whether all links between ``nodes`` are known."""
    return all(
        link_between(known, a, b) is not None for a in nodes for b in nodes if a < b
    )
