"""ring_order computes the order of nodes whose slowest hop is as fast as possible.

In a ring all-reduce every node sends the same number of bytes to the next node, all at
the same time. The slowest hop therefore sets the speed of the whole ring, and a slow
link that can be avoided must be. Bytes travel in one direction only, so the direction
of the ring is chosen too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

from ringleader.errors import ConfigError
from ringleader.topology.exact_ring_search import best_ring
from ringleader.topology.heuristic_ring_search import good_ring
from ringleader.topology.hop_table import HopTable, Id, Order

MAX_EXACT = 10
"""Up to this many nodes the best ring is computed, in at most 0.1 s. 12 nodes would
take 0.8 s."""

MAX_REMEMBERED = 4
"""Rings that are kept: of the cluster and of a few runs. A table of 64 nodes takes
0.3 MB."""

RATE_STEP = 1.25
"""A short measurement is off by about 10 %. Rates within this factor count as equal, so
that two measurements of the same network give the same ring."""


def ring_order(
    ids: Collection[Id],
    bandwidth: Mapping[tuple[Id, Id], float],
    latency: Mapping[tuple[Id, Id], float] | None = None,
    *,
    same_host: Iterable[Collection[Id]] = (),
) -> tuple[Id, ...]:
    """Return the order in which the slowest hop is as fast as it can be.

    ``bandwidth[a, b]`` is what b receives from a, in bytes per second; a missing pair
    carries nothing. Ties are broken by the larger sum of bandwidths, then the smaller
    sum of latencies, then the order of the ids, so all nodes that know the same figures
    compute the same ring. Nodes of one group in ``same_host`` stay adjacent. The order
    starts with the smallest id, or with its host. The result is optimal up to
    ``MAX_EXACT`` nodes and heuristic beyond.
    """
    nodes = sorted(ids)
    if len(set(nodes)) < len(nodes):
        twice = next(a for a, b in pairwise(nodes) if a == b)
        raise ConfigError(f"ring order: {twice} is in the list twice")
    hops = HopTable.between(nodes, bandwidth, latency or {}, same_host)
    if len(nodes) < 2:
        return tuple(nodes)
    return tuple(nodes[i] for i in _search(hops))


@lru_cache(MAX_REMEMBERED)
def _search(hops: HopTable) -> Order:
    """Return the ring. Most views have the links of the one before."""
    search = best_ring if hops.size <= MAX_EXACT else good_ring
    return search(hops)


def merge_close_rates(
    rates: Mapping[tuple[Id, Id], float],
) -> dict[tuple[Id, Id], float]:
    """Return ``rates`` with values that differ only by noise made equal.

    Starting from the fastest rate, all rates within ``RATE_STEP`` of it become equal;
    the next slower rate starts a new level. A fixed grid would not do: the rates of a
    real network can lie on both sides of one of its lines.
    """
    level = math.inf
    levels = {}
    for rate in sorted(set(rates.values()), reverse=True):
        if rate * RATE_STEP < level:
            level = rate
        levels[rate] = level
    return {pair: levels[rate] for pair, rate in rates.items()}
