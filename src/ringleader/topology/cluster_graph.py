"""ClusterGraph holds the nodes of a cluster and the measured links between them.

Nodes are stored by id, never by index, so a node that leaves cannot shift the ranks or
links of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from ringleader.errors import ConfigError
from ringleader.ids import NodeId, short
from ringleader.topology.hop_table import MEMORY_BYTES_PER_S
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.mlx_hostfile import MlxHost, format_hostfile
from ringleader.topology.node_profile import NodeProfile
from ringleader.topology.ring_order import merge_close_rates, ring_order

Address = tuple[str, int]
"""Host and port. Nodes of one machine share the host and differ in the port."""

Pair = tuple[NodeId, NodeId]

LATENCY_STEP_S = 1e-3
"""Latencies are rounded to this before they are compared; in a LAN all become 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the cluster."""

    id: NodeId
    profile: NodeProfile
    addresses: tuple[Address, ...] = ()
    """Addresses it listens on, the best one first."""

    host_token: str = ""
    """Equal on nodes that can share memory; empty if unknown."""


class ClusterGraph:
    """Nodes and links of a cluster. Use it from one thread at a time."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, Node] = {}
        self._links: dict[Pair, LinkProfile] = {}

    def add_node(self, node: Node) -> None:
        """Insert a node, or replace what is stored for it; its links stay."""
        self._nodes[node.id] = node

    def set_link(self, a: NodeId, b: NodeId, link: LinkProfile) -> None:
        """Store the link that ``a`` measured with ``b``, replacing an older one."""
        for node in (a, b):
            if node not in self._nodes:
                text = f"{short(node)} is unknown; add the node first"
                raise ConfigError(f"topology: {text}")
        if a == b:
            raise ConfigError(f"topology: {short(a)} has no link to itself")
        self._links[min(a, b), max(a, b)] = link if a < b else link.mirrored()

    def link(self, a: NodeId, b: NodeId) -> LinkProfile | None:
        """Return the link between two nodes, seen from ``a``; None if not measured."""
        found = self._links.get((min(a, b), max(a, b)))
        return found.mirrored() if found is not None and a > b else found

    def nodes(self) -> list[Node]:
        """Return all nodes, sorted by id."""
        return [self._nodes[each] for each in sorted(self._nodes)]

    def hosts(self) -> list[list[NodeId]]:
        """Return the nodes grouped by host; hosts and nodes are sorted by id."""
        found: dict[str, list[NodeId]] = {}
        for node in self.nodes():
            found.setdefault(node.host_token or node.id, []).append(node.id)
        return list(found.values())

    def ring_order(self) -> tuple[NodeId, ...]:
        """Return the ring order of all nodes; see ``ring_order.py``."""
        return ring_order(
            list(self._nodes),
            merge_close_rates(self._rates()),
            self._latencies(),
            same_host=self.hosts(),
        )

    def ring_trouble(self) -> str:
        """Return why the nodes cannot form a ring; empty when they can."""
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
                return f"{who} both use {host}:{port}; give one of them another port"
        return ""

    def can_form_ring(self) -> bool:
        """Return whether there are two or more nodes, all with their own address."""
        return not self.ring_trouble()

    def mlx_hostfile(self) -> str:
        """Return the ring in the format that ``mlx.launch --hostfile`` reads."""
        trouble = self.ring_trouble()
        if trouble:
            raise ConfigError(f"MLX: no ring: {trouble}")
        nodes = [self._nodes[each] for each in self.ring_order()]
        return format_hostfile(
            [MlxHost(n.profile.host, n.addresses[0][0]) for n in nodes]
        )

    def _rates(self) -> dict[Pair, float]:
        """Return bytes per second of every measured hop and every hop in a host."""
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
            # Differences below one step are noise.
            latency_s = LATENCY_STEP_S * round(link.latency_s / LATENCY_STEP_S)
            both[a, b] = both[b, a] = latency_s
        return both
