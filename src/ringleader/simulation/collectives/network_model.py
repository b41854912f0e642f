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


class LinkModel(NamedTuple):
    """One direction between two nodes, or one direction of a trunk."""

    latency_s: float
    bytes_per_s: float


class NodeSpeed(NamedTuple):
    """What one node can do, whomever it talks to; infinity means no limit."""

    egress_bytes_per_s: float = math.inf
    ingress_bytes_per_s: float = math.inf
    reduce_bytes_per_s: float = math.inf


def _is_valid(link: LinkModel) -> bool:
    return 0 <= link.latency_s < math.inf and link.bytes_per_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """Who is joined to whom, how fast. Bandwidth is payload, without packet headers."""

    nodes: tuple[NodeSpeed, ...]
    """The card and the reduce speed of every rank."""

    link: LinkModel
    """Between any two nodes for which nothing below says otherwise."""

    link_overrides: Mapping[tuple[int, int], LinkModel] = field(default_factory=dict)
    """Ordered pairs of ranks whose wire is different."""

    island_of: tuple[int, ...] = ()
    """The island of every rank; empty when all are on one."""

    trunk: LinkModel | None = None
    """What joins each ordered pair of islands, shared by all pairs of ranks across."""

    def __post_init__(self) -> None:
        if bool(self.island_of) != (self.trunk is not None):
            raise ConfigError("network: islands need a trunk, and a trunk islands")
        if self.island_of and len(self.island_of) != len(self.nodes):
            raise ConfigError(
                f"network: {len(self.nodes)} nodes, islands for {len(self.island_of)}"
            )
        links = [self.link, *self.link_overrides.values(), *filter(None, [self.trunk])]
        wrong = [w for w in links if not _is_valid(w)]
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
        return (
            not self.link_overrides and not self.island_of and len(set(self.nodes)) <= 1
        )

    def crossed_islands(self, source: int, to: int) -> tuple[int, int] | None:
        """The ordered pair of islands that the pair of ranks crosses, if any."""
        if not self.island_of or self.island_of[source] == self.island_of[to]:
            return None
        return self.island_of[source], self.island_of[to]

    def link_between(self, source: int, to: int) -> LinkModel:
        """The wire of an ordered pair; across islands at most as fast as the trunk."""
        link = self.link_overrides.get((source, to), self.link)
        if self.trunk is None or self.crossed_islands(source, to) is None:
            return link
        rate = min(link.bytes_per_s, self.trunk.bytes_per_s)
        return LinkModel(max(link.latency_s, self.trunk.latency_s), rate)

    @classmethod
    def uniform(
        cls,
        size: int,
        *,
        latency_s: float,
        bytes_per_s: float,
        nic_bytes_per_s: float | None = None,
        reduce_bytes_per_s: float = math.inf,
    ) -> Self:
        """A switch; each card is as fast as a wire unless its own rate is given."""
        if size < 1:
            raise ConfigError(f"network: needs at least one node, got {size}")
        card = bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s
        node = NodeSpeed(card, card, reduce_bytes_per_s)
        return cls(nodes=(node,) * size, link=LinkModel(latency_s, bytes_per_s))


def one_slow_link(
    network: NetworkModel, slow: LinkModel, *, pair: tuple[int, int] = (0, 1)
) -> NetworkModel:
    """The same network with one slow wire, both ways. Every algorithm uses 0 and 1."""
    a, b = pair
    if not (0 <= a < network.size and 0 <= b < network.size and a != b):
        raise ConfigError(f"network: no pair {pair} among {network.size} ranks")
    link_overrides = {**network.link_overrides, (a, b): slow, (b, a): slow}
    return NetworkModel(
        nodes=network.nodes,
        link=network.link,
        link_overrides=link_overrides,
        island_of=network.island_of,
        trunk=network.trunk,
    )


def islands(network: NetworkModel, num_islands: int, trunk: LinkModel) -> NetworkModel:
    """The same nodes on islands of consecutive ranks, as equal as they can be."""
    if not 1 <= num_islands <= network.size:
        raise ConfigError(
            f"network: {num_islands} islands cannot share {network.size} nodes"
        )
    of = tuple(rank * num_islands // network.size for rank in range(network.size))
    return NetworkModel(
        nodes=network.nodes,
        link=network.link,
        link_overrides=network.link_overrides,
        island_of=of,
        trunk=trunk,
    )
