"""What the simulator knows of a network: wires between nodes, and each node's card.

A wire joins one ordered pair of nodes. A card is what all wires of one node share: on a
LAN the middle of a star has n-1 peers and one network card, so its wires are not n-1
times as fast as one. Islands are groups of nodes joined by trunks, one per ordered pair
of islands, shared by everything that crosses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self

from ringleader.errors import ConfigError


class Wire(NamedTuple):
    """One direction between two nodes, or one direction of a trunk."""

    latency_s: float
    bytes_per_s: float


class Node(NamedTuple):
    """What one node can do, whomever it talks to; infinity means no limit."""

    egress_bytes_per_s: float = math.inf
    ingress_bytes_per_s: float = math.inf
    reduce_bytes_per_s: float = math.inf


def _is_sensible(wire: Wire) -> bool:
    return 0 <= wire.latency_s < math.inf and wire.bytes_per_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Who is joined to whom, how fast. Bandwidth is payload, without packet headers."""

    nodes: tuple[Node, ...]
    """The card and the reduce speed of every rank."""

    wire: Wire
    """Between any two nodes for which nothing below says otherwise."""

    special: Mapping[tuple[int, int], Wire] = field(default_factory=dict)
    """Ordered pairs of ranks whose wire is different."""

    island_of: tuple[int, ...] = ()
    """The island of every rank; empty when all are on one."""

    trunk: Wire | None = None
    """What joins each ordered pair of islands, shared by all pairs of ranks across."""

    def __post_init__(self) -> None:
        if bool(self.island_of) != (self.trunk is not None):
            raise ConfigError("network: islands need a trunk, and a trunk islands")
        if self.island_of and len(self.island_of) != len(self.nodes):
            raise ConfigError(
                f"network: {len(self.nodes)} nodes, islands for {len(self.island_of)}"
            )
        wires = [self.wire, *self.special.values(), *filter(None, [self.trunk])]
        wrong = [w for w in wires if not _is_sensible(w)]
        if wrong:
            raise ConfigError(
                f"network: need latency >= 0 and rate > 0, got {wrong[0]}"
            )
        if min(chain.from_iterable(self.nodes), default=1.0) <= 0:
            raise ConfigError("network: the rates of a node must be > 0")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def is_uniform(self) -> bool:
        """Whether every rank sees the same network as every other."""
        return not self.special and not self.island_of and len(set(self.nodes)) <= 1

    def trunk_of(self, source: int, to: int) -> tuple[int, int] | None:
        """The ordered pair of islands that the pair of ranks crosses, if any."""
        if not self.island_of or self.island_of[source] == self.island_of[to]:
            return None
        return self.island_of[source], self.island_of[to]

    def wire_of(self, source: int, to: int) -> Wire:
        """The wire of an ordered pair; across islands at most as fast as the trunk."""
        wire = self.special.get((source, to), self.wire)
        if self.trunk is None or self.trunk_of(source, to) is None:
            return wire
        rate = min(wire.bytes_per_s, self.trunk.bytes_per_s)
        return Wire(max(wire.latency_s, self.trunk.latency_s), rate)

    @classmethod
    def uniform(
        cls,
        size: int,
        *,
        latency_s: float,
        bytes_per_s: float,
        card_bytes_per_s: float | None = None,
        reduce_bytes_per_s: float = math.inf,
    ) -> Self:
        """A switch; each card is as fast as a wire unless its own rate is given."""
        if size < 1:
            raise ConfigError(f"network: needs at least one node, got {size}")
        card = bytes_per_s if card_bytes_per_s is None else card_bytes_per_s
        node = Node(card, card, reduce_bytes_per_s)
        return cls(nodes=(node,) * size, wire=Wire(latency_s, bytes_per_s))


def one_slow_link(
    network: Network, slow: Wire, *, pair: tuple[int, int] = (0, 1)
) -> Network:
    """The same network with one slow wire, both ways. Every algorithm uses 0 and 1."""
    a, b = pair
    if not (0 <= a < network.size and 0 <= b < network.size and a != b):
        raise ConfigError(f"network: no pair {pair} among {network.size} ranks")
    special = {**network.special, (a, b): slow, (b, a): slow}
    return Network(
        nodes=network.nodes,
        wire=network.wire,
        special=special,
        island_of=network.island_of,
        trunk=network.trunk,
    )


def islands(network: Network, num_islands: int, trunk: Wire) -> Network:
    """The same nodes on islands of consecutive ranks, as equal as they can be."""
    if not 1 <= num_islands <= network.size:
        raise ConfigError(
            f"network: {num_islands} islands cannot share {network.size} nodes"
        )
    of = tuple(rank * num_islands // network.size for rank in range(network.size))
    return Network(
        nodes=network.nodes,
        wire=network.wire,
        special=network.special,
        island_of=of,
        trunk=trunk,
    )


def two_islands(network: Network, trunk: Wire) -> Network:
    """Two houses and the line between them."""
    return islands(network, 2, trunk)
