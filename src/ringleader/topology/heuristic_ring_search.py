"""good_ring finds a good ring of many nodes, where an exact search would take too long.

The highest speed at which a ring is found is searched for by bisection. A ring of given
hops is found by depth-first search: continue to the node with the fewest exits,
backtrack at dead ends, and give up after a number of steps. Then nodes are moved and
segments reversed as long as that increases the gain without a slower hop. Nothing is
random: all nodes find the same ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringleader.topology.hop_table import HopTable, Order, bits, hops_of

NUM_STARTS, STEPS_PER_NODE = 16, 8
"""A search goes wrong early and notices late, so many short tries find more than one
long one: 512 steps each for 64 nodes, 0.1 s for all. Home networks need one step per
node."""

MAX_PASSES = 20
"""Passes of improvements over the whole ring. Nearly all rings need five or fewer."""

MAX_STRETCH = 3
"""Nodes that are moved together."""


def good_ring(hops: HopTable) -> Order:
    """Return an order that starts with the host of node 0; needs two nodes or more."""
    speeds = hops.speeds()
    low, high = 0, len(speeds) - 1
    ring = None
    while low < high:
        middle = (low + high + 1) // 2
        found = _find_ring(hops, hops.reachable(speeds[middle]))
        if found is None:
            high = middle - 1
        else:
            ring = found
            low = max(middle, speeds.index(hops.slowest(found)))
    if ring is None:
        ring = _find_ring(hops, hops.reachable(speeds[0]))
    assert ring is not None, "with all hops allowed the first path is a ring"
    return _turn(hops, _improve(hops, list(ring), speeds[low]))


def _find_ring(hops: HopTable, reach: list[int]) -> list[int] | None:
    """Return a ring of the hops in ``reach``, or None if none was found in time."""
    into = _turned_around(reach)
    if not all(reach) or not all(into):
        return None
    starts = sorted(range(hops.size), key=lambda a: (reach[a].bit_count(), a))
    tries = (_walk(hops, reach, into, start) for start in starts[:NUM_STARTS])
    return next((ring for ring in tries if ring is not None), None)


def _walk(
    hops: HopTable, reach: list[int], into: list[int], start: int
) -> list[int] | None:
    """Search depth-first for a path through all nodes that returns to ``start``."""
    whole = (1 << hops.size) - 1
    order, seen = [start], 1 << start
    choices = [_choices(hops, reach, into, order, seen)]
    for _ in range(STEPS_PER_NODE * hops.size):
        if seen == whole and reach[order[-1]] >> start & 1:
            return order
        there = next(choices[-1], None)
        if there is None:
            choices.pop()
            seen ^= 1 << order.pop()
            if not choices:
                return None
            continue
        order.append(there)
        seen |= 1 << there
        choices.append(_choices(hops, reach, into, order, seen))
    return None


def _turned_around(reach: list[int]) -> list[int]:
    """Return, per node, the nodes that reach it."""
    into = [0] * len(reach)
    for a, mask in enumerate(reach):
        for b in bits(mask):
            into[b] |= 1 << a
    return into


def _choices(
    hops: HopTable, reach: list[int], into: list[int], order: list[int], seen: int
) -> Iterator[int]:
    """Return the next nodes after the end of ``order``, the most urgent first."""
    start, at = order[0], order[-1]
    new = (1 << hops.size) - 1 & ~seen
    ahead = reach[at] & (hops.host[at] & new or new)
    here, from_here, to_start = 1 << at, new | 1 << at, new | 1 << start
    must = 0  # nodes that only this one can still reach
    left = new
    while left:  # as bits(new), without a generator: most of the time is spent here
        low = left & -left
        left ^= low
        node = low.bit_length() - 1
        sources = into[node] & from_here
        if not sources or not reach[node] & to_start:
            return iter(())
        if sources == here:
            must |= low
    if must:
        ahead &= must if must & (must - 1) == 0 else 0
    urgency = sorted(bits(ahead), key=lambda b: ((reach[b] & new).bit_count(), b))
    return iter(urgency)


def _improve(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    for _ in range(MAX_PASSES):
        before = hops.total(ring)
        ring = _reverse_stretches(hops, _move_stretches(hops, ring, at_least), at_least)
        if hops.total(ring) == before:
            break
    return ring


def _move_stretches(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    """Move up to three consecutive nodes elsewhere where that is better."""
    size = len(ring)
    for length in range(1, min(MAX_STRETCH, size - 2) + 1):
        for _ in range(size):
            stretch, rest = ring[:length], ring[length:]
            where = _better_place(hops, stretch, rest, at_least)
            if where is not None:
                ring = rest[:where] + stretch + rest[where:]
            ring = ring[1:] + ring[:1]
    return ring


def _better_place(
    hops: HopTable, stretch: list[int], rest: list[int], at_least: int
) -> int | None:
    """Return the index in ``rest`` where the segment gains most; None to keep it."""
    gain, rate = hops.gain, hops.rate
    first, last = stretch[0], stretch[-1]
    closing = gain[rest[-1]][rest[0]]
    best = gain[rest[-1]][first] + gain[last][rest[0]] - closing
    found = None
    if rate[rest[-1]][rest[0]] < at_least:
        return None
    for i in range(1, len(rest)):
        a, b = rest[i - 1], rest[i]
        more = gain[a][first] + gain[last][b] - gain[a][b]
        is_fast = rate[a][first] >= at_least and rate[last][b] >= at_least
        if more > best and is_fast and _fits(hops, rest[:i] + stretch + rest[i:]):
            best, found = more, i
    return found


def _fits(hops: HopTable, ring: list[int]) -> bool:
    return len(set(hops.host)) == hops.size or hops.keeps_hosts_together(ring)


def _reverse_stretches(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    """Reverse segments where that is better; hops differ by direction."""
    size = len(ring)
    for i in range(size - 1):
        for j in range(i + 2, size + 1):
            turned = ring[:i] + ring[i:j][::-1] + ring[j:]
            if _is_better(hops, (ring, turned), (i, j), at_least):
                ring = turned
    return ring


def _is_better(
    hops: HopTable,
    rings: tuple[list[int], list[int]],
    at: tuple[int, int],
    at_least: int,
) -> bool:
    """Return whether the second ring, which differs between ``at``, is better."""
    (old, new), (i, j) = rings, at
    size = len(old)
    differing = range(i - 1, min(j, size))  # of the hops that differ; -1 wraps around
    before = after = 0
    for k in differing:
        a, b = new[k], new[(k + 1) % size]
        if hops.rate[a][b] < at_least:
            return False
        after += hops.gain[a][b]
        before += hops.gain[old[k]][old[(k + 1) % size]]
    return after > before and _fits(hops, new)


def _turn(hops: HopTable, ring: Sequence[int]) -> Order:
    """Return the same ring, rotated to start where the host of node 0 starts."""
    home = hops.host[0]
    begins = [
        i
        for i, (before, node) in enumerate(hops_of([ring[-1], *ring[:-1]]))
        if home >> node & 1 and not home >> before & 1
    ]
    at = begins[0] if begins else ring.index(0)
    return (*ring[at:], *ring[:at])
