"""best_ring finds the optimal ring of a few nodes: no ring has a faster slowest hop.

It makes two passes over all subsets of the nodes. The first finds, by bisection, the
highest speed at which a ring of hops of at least that speed exists. The second finds
the ring of highest gain among these hops; ties go to the ring that comes first in the
order of the nodes, so all nodes find the same one. Both passes take about n^2 * 2^n
steps: 30 ms for 10 nodes.
"""

from __future__ import annotations

from ringleader.topology.hop_table import HopTable, Order, bits

NEVER = -(1 << 200)
"""Less than any gain: no ring continues from here."""


def best_ring(hops: HopTable) -> Order:
    """Return the best order, starting with the host of node 0; needs two nodes or
    more."""
    speeds = hops.speeds()
    low, high = 0, len(speeds) - 1  # at speeds[0] all hops are allowed
    while low < high:
        middle = (low + high + 1) // 2
        if _has_ring(hops, hops.reachable(speeds[middle])):
            low = middle
        else:
            high = middle - 1
    reach = hops.reachable(speeds[low])
    found = [_richest(hops, reach, start) for start in bits(hops.host[0])]
    # Equal gains: the smallest order, whichever start it was found from.
    return min(found, key=lambda each: (-each[0], each[1]))[1]


def _has_ring(hops: HopTable, reach: list[int]) -> bool:
    return any(_returns(hops, reach, start) for start in bits(hops.host[0]))


def _returns(hops: HopTable, reach: list[int], start: int) -> bool:
    """Return whether a path leads from ``start`` through all nodes and back."""
    whole = (1 << hops.size) - 1
    ends = [0] * (whole + 1)  # per set of nodes: where a path through them may end
    ends[1 << start] = 1 << start
    for seen in range(1 << start, whole):
        for at in bits(ends[seen]):
            for there in bits(reach[at] & _open(hops, at, seen)):
                ends[seen | 1 << there] |= 1 << there
    return any(reach[last] >> start & 1 for last in bits(ends[whole]))


def _open(hops: HopTable, at: int, seen: int) -> int:
    """Return the next nodes a path may visit: the rest of the host first."""
    return hops.host[at] & ~seen or (1 << hops.size) - 1 & ~seen


def _richest(hops: HopTable, reach: list[int], start: int) -> tuple[int, Order]:
    """Return the highest gain of a ring from ``start``, and the first such order."""
    whole = (1 << hops.size) - 1
    rest = [[NEVER] * hops.size for _ in range(whole + 1)]
    for last in range(hops.size):
        if reach[last] >> start & 1:
            rest[whole][last] = hops.gain[last][start]
    for seen in range(whole - 1, 0, -1):
        if seen >> start & 1:
            for at in bits(seen):
                rest[seen][at] = max(
                    (
                        hops.gain[at][there] + rest[seen | 1 << there][there]
                        for there in bits(reach[at] & _open(hops, at, seen))
                    ),
                    default=NEVER,
                )
    gain = rest[1 << start][start]
    return gain, _walk(hops, reach, rest, start) if gain > NEVER // 2 else ()


def _walk(hops: HopTable, reach: list[int], rest: list[list[int]], start: int) -> Order:
    """Follow the highest gain; choose the smallest node among equals."""
    order, seen = [start], 1 << start
    while len(order) < hops.size:
        at = order[-1]
        there = next(
            b
            for b in bits(reach[at] & _open(hops, at, seen))
            if hops.gain[at][b] + rest[seen | 1 << b][b] == rest[seen][at]
        )
        order.append(there)
        seen |= 1 << there
    return tuple(order)
