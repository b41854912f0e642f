"""All that one node knows about the cluster's machines and the links between them.

Nodes are kept by their id and by nothing else, so whoever leaves takes no other node's
place. A question about the ring is answered from a ``Ring`` that was made at one moment
and does not change; ask for the ring once and use that, where several answers must fit
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from ringleader.errors import ConfigError
from ringleader.ids import NodeId, short
from ringleader.topology.hop_table import MEMORY_BYTES_PER_S
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.mlx_hostfile import MlxHost, format_hostfile, ring_hosts
from ringleader.topology.node_profile import NodeProfile
from ringleader.topology.ring import Ring, merge_close_rates, ring_order

Address = tuple[str, int]
"""Host and port. Nodes of one machine share the first and differ in the second."""

Pair = tuple[NodeId, NodeId]

TICK_S = 1e-3
"""Latencies are compared in these; in a LAN all of them are 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, as far as we know it."""

    id: NodeId
    profile: NodeProfile
    addresses: tuple[Address, ...] = ()
    """Where it listens, the best one first."""

    host_token: str = ""
    """Equal on nodes that can share memory; empty when nobody said."""

    last_seen_s: float = 0.0
    """On our own monotonic clock."""


class Topology:
    """Nodes and links, seen from the node ``local``. Used by one thread at a time."""

    def __init__(self, local: Node) -> None:
        self.local = local.id
        self._nodes = {local.id: local}
        self._links: dict[Pair, LinkProfile] = {}
        self._ring: Ring[NodeId] | None = None

    # -- what is known ---------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """Insert a node, or replace what was known of it; its links stay."""
        self._nodes[node.id] = node
        self._ring = None

    def update_profile(self, node: NodeId, profile: NodeProfile) -> None:
        """What it is has changed, or was found out."""
        self._nodes[node] = replace(self._known(node), profile=profile)

    def mark_seen(self, node: NodeId, now_s: float) -> None:
        """It gave a sign of life."""
        self._nodes[node] = replace(self._known(node), last_seen_s=now_s)

    def remove_node(self, node: NodeId) -> None:
        """Forget a node and its links; it may be gone already."""
        if node == self.local:
            raise ConfigError(f"topology: {short(node)} is ourselves; we stay")
        self._nodes.pop(node, None)
        self._links = {p: link for p, link in self._links.items() if node not in p}
        self._ring = None

    def prune_stale_nodes(self, now_s: float, max_age_s: float) -> list[NodeId]:
        """Remove whom nobody has seen for longer, never ourselves; who it was."""
        stale = [
            node.id
            for node in self.remote_nodes()
            if now_s - node.last_seen_s > max_age_s
        ]
        for each in stale:
            self.remove_node(each)
        return stale

    def set_link(self, a: NodeId, b: NodeId, link: LinkProfile) -> None:
        """What ``a`` measured with ``b``; replaces what was known of the pair."""
        self._known(a), self._known(b)
        if a == b:
            raise ConfigError(f"topology: {short(a)} has no link to itself")
        self._links[min(a, b), max(a, b)] = link if a < b else link.mirrored()
        self._ring = None

    def link(self, a: NodeId, b: NodeId) -> LinkProfile | None:
        """The link between two nodes, seen from ``a``; None if nobody measured it."""
        found = self._links.get((min(a, b), max(a, b)))
        return found.mirrored() if found is not None and a > b else found

    # -- questions about nodes -------------------------------------------------

    def node_count(self) -> int:
        """How many there are, with us."""
        return len(self._nodes)

    def remote_node_count(self) -> int:
        """How many there are beside us."""
        return len(self._nodes) - 1

    def nodes(self) -> list[Node]:
        """All of them, by id."""
        return [self._nodes[each] for each in sorted(self._nodes)]

    def remote_nodes(self) -> list[Node]:
        """All but ourselves, by id."""
        return [node for node in self.nodes() if node.id != self.local]

    def get_node(self, node: NodeId) -> Node | None:
        """What is known of it; None if nothing."""
        return self._nodes.get(node)

    def remote_addresses(self) -> list[Address]:
        """The best address of every other node that has one."""
        return [node.addresses[0] for node in self.remote_nodes() if node.addresses]

    def total_cluster_ram(self) -> int:
        """Bytes of memory of all hosts; nodes of one host count once."""
        hosts = {node.host_token or node.id: node for node in self.nodes()}
        return sum(node.profile.total_ram_bytes for node in hosts.values())

    def hosts(self) -> list[list[NodeId]]:
        """Nodes by the host they share, hosts and nodes by id."""
        found: dict[str, list[NodeId]] = {}
        for node in self.nodes():
            found.setdefault(node.host_token or node.id, []).append(node.id)
        return list(found.values())

    # -- questions about the ring ----------------------------------------------

    def ring(self) -> Ring[NodeId]:
        """The ring of all nodes as they are now."""
        if self._ring is None:
            rates = self._rates()
            order = ring_order(
                list(self._nodes),
                merge_close_rates(rates),
                self._latencies(),
                same_host=self.hosts(),
            )
            hops = Ring(order).hops()
            slowest = min((rates.get(hop, 0.0) for hop in hops), default=0.0)
            self._ring = Ring(order, slowest)
        return self._ring

    def ring_trouble(self) -> str:
        """Why the nodes cannot form a ring; empty when they can."""
        if len(self._nodes) < 2:
            return "there is no other node; start one on another machine"
        owners: dict[Address, NodeId] = {}
        for node in self.nodes():
            if not node.addresses:
                return f"{short(node.id)} has no address; it must say where it listens"
            other = owners.setdefault(node.addresses[0], node.id)
            if other != node.id:
                host, port = node.addresses[0]
                who = f"{short(other)} and {short(node.id)}"
                return f"{who} both say {host}:{port}; give one of them another port"
        return ""

    def can_form_ring(self) -> bool:
        """Whether there are two nodes or more, all with addresses of their own."""
        return not self.ring_trouble()

    def ring_order(self) -> tuple[NodeId, ...]:
        """The nodes in ring order."""
        return self.ring().order

    def ring_rank(self, node: NodeId) -> int | None:
        """The place of a node in the ring; None if we do not know it."""
        return self.ring().rank(node)

    def local_rank(self) -> int:
        """Our own place in the ring."""
        return self.ring().order.index(self.local)

    def ring_next(self, node: NodeId | None = None) -> NodeId:
        """Whom a node sends to; ours if none is named."""
        return self.ring().next(node or self.local)

    def ring_prev(self, node: NodeId | None = None) -> NodeId:
        """Whom a node receives from; ours if none is named."""
        return self.ring().prev(node or self.local)

    def ring_bandwidth(self) -> float:
        """Bytes per second of the slowest hop; 0 where there is none, or unknown."""
        return self.ring().bytes_per_s

    def has_thunderbolt_ring(self) -> bool:
        """Whether all hops of the ring are Thunderbolt cables."""
        hops = self.ring().hops()
        return bool(hops) and all(self._is_thunderbolt(a, b) for a, b in hops)

    def thunderbolt_nodes(self) -> list[NodeId]:
        """The nodes that have a Thunderbolt link to another, by id."""
        pairs = [pair for pair in self._links if self._is_thunderbolt(*pair)]
        return sorted({node for pair in pairs for node in pair})

    def mlx_ring_hosts(self, port: int) -> list[str]:
        """The ring as MLX on this node needs it: ourselves and both sides of us."""
        return ring_hosts(self._mlx_places(), self.local_rank(), port)

    def mlx_hostfile(self) -> str:
        """The ring as ``mlx.launch --hostfile`` reads it."""
        return format_hostfile(self._mlx_places())

    # ----------------------------------------------------------------------------

    def _known(self, node: NodeId) -> Node:
        if node not in self._nodes:
            raise ConfigError(f"topology: {short(node)} is unknown; add the node first")
        return self._nodes[node]

    def _rates(self) -> dict[Pair, float]:
        """Bytes per second of every hop that is known, or needs no wire."""
        rates = {
            pair: MEMORY_BYTES_PER_S
            for ids in self.hosts()
            for pair in permutations(ids, 2)
        }
        for (a, b), link in self._links.items():
            rates[a, b], rates[b, a] = link.out_bytes_per_s, link.in_bytes_per_s
        return rates

    def _latencies(self) -> dict[Pair, float]:
        both = {}
        for (a, b), link in self._links.items():
            # Whatever is quicker than a tick differs by chance.
            both[a, b] = both[b, a] = TICK_S * round(link.latency_s / TICK_S)
        return both

    def _is_thunderbolt(self, a: NodeId, b: NodeId) -> bool:
        link = self.link(a, b)
        return link is not None and link.kind is InterfaceKind.THUNDERBOLT

    def _mlx_places(self) -> Sequence[MlxHost]:
        trouble = self.ring_trouble()
        if trouble:
            raise ConfigError(f"MLX: no ring: {trouble}")
        nodes = [self._nodes[each] for each in self.ring_order()]
        return [MlxHost(n.profile.host, n.addresses[0][0]) for n in nodes]
