"""The order of the nodes in a ring: the slowest hop decides how fast the ring is.

In a ring all-reduce every node sends the same number of bytes to the next one, all at
the same time, so the ring is as fast as its slowest hop and one slow link that can be
avoided must be. Bytes go one way round, so the direction is chosen too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from ringleader.errors import ConfigError
from ringleader.topology.exact_ring_search import best_ring
from ringleader.topology.heuristic_ring_search import good_ring
from ringleader.topology.hop_table import HopTable, Id

MAX_EXACT = 10
"""Nodes for which the best ring is computed, in 0.1 s at most; 12 would take 0.8 s."""

RATE_STEP = 1.25
"""A short measurement is off by some 10 %. Bandwidths within one such step count as
equal, so that two measurements of one network give one ring."""


@dataclass(frozen=True, slots=True)
class Ring(Generic[Id]):
    """Nodes in ring order. It never changes: who leaves or joins makes another one."""

    order: tuple[Id, ...]
    bytes_per_s: float = 0.0
    """Of the slowest hop; 0 when it has none, or one that nobody measured."""

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.order)

    def rank(self, node: Id) -> int | None:
        """Its place in the ring; None when it is not in it."""
        return self.order.index(node) if node in self.order else None

    def next(self, node: Id) -> Id:
        """Who receives from ``node``."""
        return self.order[(self._place(node) + 1) % self.size]

    def prev(self, node: Id) -> Id:
        """Who sends to ``node``."""
        return self.order[self._place(node) - 1]

    def hops(self) -> list[tuple[Id, Id]]:
        """Who sends to whom; none in a ring of one."""
        if self.size < 2:
            return []
        return [(node, self.next(node)) for node in self.order]

    def _place(self, node: Id) -> int:
        place = self.rank(node)
        if place is None:
            raise ConfigError(f"ring: {node} is not one of its {self.size} nodes")
        return place


def ring_order(
    ids: Collection[Id],
    bandwidth: Mapping[tuple[Id, Id], float],
    latency: Mapping[tuple[Id, Id], float] | None = None,
    *,
    same_host: Iterable[Collection[Id]] = (),
) -> tuple[Id, ...]:
    """The order in which the slowest hop is as fast as it can be.

    ``bandwidth[a, b]`` is what b receives from a, in bytes per second; a pair that is
    missing carries nothing. Among equals the larger sum of bandwidths wins, then the
    smaller sum of latencies, then the order of the ids: everybody who knows the same
    figures finds the same ring. Groups in ``same_host`` stay together. The order starts
    with the smallest id, or with its host. Best possible up to ``MAX_EXACT`` nodes,
    good beyond.
    """
    nodes = sorted(ids)
    if len(set(nodes)) < len(nodes):
        twice = next(a for a, b in pairwise(nodes) if a == b)
        raise ConfigError(f"ring order: {twice} is in the list twice")
    hops = HopTable.between(nodes, bandwidth, latency or {}, same_host)
    if len(nodes) < 2:
        return tuple(nodes)
    search = best_ring if len(nodes) <= MAX_EXACT else good_ring
    return tuple(nodes[i] for i in search(hops))


def merge_close_rates(
    rates: Mapping[tuple[Id, Id], float],
) -> dict[tuple[Id, Id], float]:
    """Rates of which those that differ by chance are equal.

    From the fastest down: what is within a step of it counts as equally fast, and the
    next one below begins another level. A fixed grid would have its lines somewhere,
    and the links of many a network would lie on both sides of one.
    """
    level = math.inf
    levels = {}
    for rate in sorted(set(rates.values()), reverse=True):
        if rate * RATE_STEP < level:
            level = rate
        levels[rate] = level
    return {pair: levels[rate] for pair, rate in rates.items()}
