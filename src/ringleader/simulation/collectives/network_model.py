"""NetworkModel describes the links between nodes and the network card of each node.

A link joins one ordered pair of nodes. All links of a node share its network card
(NIC): the center of a star has n-1 peers but one NIC, so its links together are no
faster than one. Islands are groups of nodes joined by trunks, one per ordered pair of
islands, shared by all traffic between the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self

from ringleader.errors import ConfigError


class LinkModel(NamedTuple):
    """One direction of a link between two nodes, or of a trunk."""

    latency_s: float
    bytes_per_s: float


class NodeSpeed(NamedTuple):
    """Limits of one node, shared by all its peers; infinity means no limit."""

    egress_bytes_per_s: float = math.inf
    ingress_bytes_per_s: float = math.inf
    reduce_bytes_per_s: float = math.inf


def _is_valid(link: LinkModel) -> bool:
    return 0 <= link.latency_s < math.inf and link.bytes_per_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """Nodes and links. Bandwidth counts payload, without packet headers."""

    nodes: tuple[NodeSpeed, ...]
    """NIC and reduction speed of every rank."""

    link: LinkModel
    """Link between any two nodes without an override or a trunk."""

    link_overrides: Mapping[tuple[int, int], LinkModel] = field(default_factory=dict)
    """Links of ordered pairs of ranks that differ from ``link``."""

    island_of: tuple[int, ...] = ()
    """Island of every rank; empty if there is only one."""

    trunk: LinkModel | None = None
    """Link of each ordered pair of islands, shared by all pairs of ranks across."""

    def __post_init__(self) -> None:
        if bool(self.island_of) != (self.trunk is not None):
            raise ConfigError("network: island_of and trunk must be given together")
        if self.island_of and len(self.island_of) != len(self.nodes):
            raise ConfigError(
                f"network: {len(self.nodes)} nodes, islands for {len(self.island_of)}"
            )
        links = [self.link, *self.link_overrides.values(), *filter(None, [self.trunk])]
        wrong = [each for each in links if not _is_valid(each)]
        if wrong:
            raise ConfigError(
                f"network: need latency >= 0 and rate > 0, got {wrong[0]}"
            )
        if min(chain.from_iterable(self.nodes), default=1.0) <= 0:
            raise ConfigError("network: the rates of a node must be > 0")

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def is_uniform(self) -> bool:
        """Whether the network looks the same from every rank."""
        return (
            not self.link_overrides and not self.island_of and len(set(self.nodes)) <= 1
        )

    def crossed_islands(self, source: int, to: int) -> tuple[int, int] | None:
        """Return the islands of two ranks as an ordered pair; None if it is one."""
        if not self.island_of or self.island_of[source] == self.island_of[to]:
            return None
        return self.island_of[source], self.island_of[to]

    def link_between(self, source: int, to: int) -> LinkModel:
        """Return the link of an ordered pair, limited by the trunk between islands."""
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
        """Nodes at one switch; ``nic_bytes_per_s`` defaults to the rate of a link."""
        if size < 1:
            raise ConfigError(f"network: needs at least one node, got {size}")
        nic = bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s
        node = NodeSpeed(nic, nic, reduce_bytes_per_s)
        return cls(nodes=(node,) * size, link=LinkModel(latency_s, bytes_per_s))


def one_slow_link(
    network: NetworkModel, slow: LinkModel, *, pair: tuple[int, int] = (0, 1)
) -> NetworkModel:
    """Return a copy with one slow link, both ways; all algorithms use (0, 1)."""
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
    """Return a copy with consecutive ranks on islands of nearly equal size."""
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
