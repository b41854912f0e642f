"""HopTable holds the value of every possible hop of a ring, as integers.

Integers, because their sums do not depend on the order of addition: two nodes that
search for the best ring must agree, to the last bit, which of two orders is better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from ringleader.errors import ConfigError

Id = TypeVar("Id", bound=str)

MEMORY_BYTES_PER_S = 5e9
"""Rate of a hop inside a host that was not measured; shared memory reaches it
easily."""

LATENCY_BITS = 48
"""Bits for the nanoseconds of a whole ring: 78 hours."""

MAX_LATENCY_S = 3600.0
"""Small enough that 64 of them fit; no hop takes longer."""

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HopTable:
    """The nodes 0 .. n-1 and the value of a hop from one to another."""

    rate: tuple[tuple[int, ...], ...]
    """rate[a][b]: bytes per second from a to b; 0 if there is no link."""

    gain: tuple[tuple[int, ...], ...]
    """Compares rings whose slowest hops are equally fast. Gains are added up: more
    bytes per second first, then less latency."""

    host: Order
    """host[a]: the nodes that share memory with a, itself included, as a bit mask."""

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.rate)

    @classmethod
    def between(
        cls,
        ids: Sequence[Id],
        bandwidth: Mapping[tuple[Id, Id], float],
        latency: Mapping[tuple[Id, Id], float],
        same_host: Iterable[Collection[Id]],
    ) -> Self:
        """Return the hops between ``ids``, numbered in that order."""
        number = {each: i for i, each in enumerate(ids)}
        host = _hosts(number, same_host)

        known, waits = _whole(bandwidth, 1e15), _whole(latency, MAX_LATENCY_S, 1e9)
        inside = int(MEMORY_BYTES_PER_S)
        rate, gain = [], []
        for a, near in zip(ids, host, strict=True):
            usual = [inside * (near >> j & 1) for j in range(len(ids))]
            row = [known.get((a, b), r) for b, r in zip(ids, usual, strict=True)]
            wait = [waits.get((a, b), 0) for b in ids]
            both = zip(row, wait, strict=True)
            rate.append(tuple(row))
            gain.append(tuple([(r << LATENCY_BITS) - w for r, w in both]))
        return cls(tuple(rate), tuple(gain), host)

    def slowest(self, order: Sequence[int]) -> int:
        """Return bytes per second of the slowest hop of a ring."""
        return min(self.rate[a][b] for a, b in hops_of(order))

    def total(self, order: Sequence[int]) -> int:
        """Return the sum of the gains of a ring."""
        return sum(self.gain[a][b] for a, b in hops_of(order))

    def speeds(self) -> list[int]:
        """Return all different rates, slowest first."""
        nodes = range(self.size)
        return sorted({self.rate[a][b] for a in nodes for b in nodes if a != b})

    def reachable(self, at_least: int) -> list[int]:
        """Return, per node, the nodes it reaches at this rate, as bit masks."""
        return _masks(self.rate, at_least)

    def reached_from(self, at_least: int) -> list[int]:
        """Return, per node, the nodes that reach it at this rate, as bit masks."""
        return _masks(zip(*self.rate, strict=True), at_least)

    def keeps_hosts_together(self, order: Sequence[int]) -> bool:
        """Return whether the nodes of each host are adjacent in the ring."""
        ends = sum(not self.host[a] >> b & 1 for a, b in hops_of(order))
        num_hosts = len(set(self.host))
        return ends == (num_hosts if num_hosts > 1 else 0)


def hops_of(order: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return the hops of a ring, the last one back to the start."""
    return zip(order, (*order[1:], order[0]), strict=True)


def bits(mask: int) -> Iterable[int]:
    """Yield the numbers in a bit mask, smallest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _masks(rates: Iterable[Sequence[int]], at_least: int) -> list[int]:
    """Return, per row, where it is that fast, without the diagonal."""
    marks = ["".join(["01"[r >= at_least] for r in reversed(row)]) for row in rates]
    return [int(mark, 2) & ~(1 << a) for a, mark in enumerate(marks)]


def _whole(
    values: Mapping[tuple[Id, Id], float], most: float, per_unit: float = 1.0
) -> dict[tuple[Id, Id], int]:
    """Return the values as integers between 0 and ``most``; many are equal."""
    levels = {v: int(max(0.0, min(v, most)) * per_unit) for v in set(values.values())}
    return {pair: levels[value] for pair, value in values.items()}


def _hosts(number: Mapping[Id, int], same_host: Iterable[Collection[Id]]) -> Order:
    host = [1 << i for i in range(len(number))]
    for group in same_host:
        members = [number[each] for each in group if each in number]
        mask = sum(1 << i for i in members)
        for i in members:
            if host[i] != 1 << i:
                name = next(each for each, at in number.items() if at == i)
                raise ConfigError(f"ring order: {name} is on two hosts; name one")
            host[i] = mask
    return tuple(host)
