"""good_ring finds a good ring of many nodes, where an exact search would take too long.

The highest speed at which a ring is found is searched for by bisection. A ring of given
hops is found by depth-first search: continue to the node with the fewest exits,
backtrack at dead ends, and give up after a number of steps. Then nodes are moved and
segments reversed as long as that increases the gain without a slower hop. Nothing is
random: all nodes find the same ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle, islice, pairwise
from operator import or_
from typing import Self

from ringleader.topology.hop_table import HopTable, Order, bits, hops_of

NUM_STARTS, STEPS_PER_NODE = 16, 8
"""A search goes wrong early and notices late, so many short tries find more than one
long one: 512 steps each for 64 nodes, 0.05 s for all. Home networks need one step per
node."""

MAX_PASSES = 20
"""Passes of improvements over the whole ring. Nearly all rings need five or fewer."""

MAX_STRETCH = 3
"""Nodes that are moved together."""

Change = Callable[[HopTable, list[int], int], list[int]]
"""Returns a ring that is not worse; no hop is slower than the last argument."""


def good_ring(hops: HopTable) -> Order:
    """Return an order that starts with the host of node 0; needs two nodes or more."""
    speeds = hops.speeds()
    low, high = 0, len(speeds) - 1
    ring = None
    while low < high:
        middle = (low + high + 1) // 2
        found = _find_ring(Ways.at(speeds[middle], hops))
        if found is None:
            high = middle - 1
        else:
            ring = found
            low = max(middle, speeds.index(hops.slowest(found)))
    if ring is None:
        ring = _find_ring(Ways.at(speeds[0], hops))
    assert ring is not None, "with all hops allowed the first path is a ring"
    return _turn(hops, _improve(hops, list(ring), speeds[low]))


@dataclass(frozen=True, slots=True)
class Ways:
    """The hops of a given rate or faster; nodes are bits of masks."""

    reach: list[int]
    """reach[a]: the nodes that a reaches."""
    into: list[int]
    """into[a]: the nodes that reach a."""
    few_exits: list[int]
    """few_exits[k]: the nodes that reach at most k others."""
    few_sources: list[int]
    host: Order

    @classmethod
    def at(cls, rate: int, hops: HopTable) -> Self:
        """Return the hops of at least ``rate``."""
        reach, into = hops.reachable(rate), hops.reached_from(rate)
        return cls(reach, into, _with_few(reach), _with_few(into), hops.host)


def _with_few(masks: list[int]) -> list[int]:
    """Return, per k, the nodes whose mask holds at most k."""
    exactly = [0] * len(masks)
    for node, mask in enumerate(masks):
        exactly[mask.bit_count()] |= 1 << node
    return [*accumulate(exactly, or_)]


def _find_ring(ways: Ways) -> list[int] | None:
    """Return a ring of these hops, or None if none was found in time."""
    if not all(ways.reach) or not all(ways.into):
        return None
    nodes = range(len(ways.reach))
    starts = sorted(nodes, key=lambda a: ways.reach[a].bit_count())
    tries = (_walk(ways, start) for start in starts[:NUM_STARTS])
    return next((ring for ring in tries if ring is not None), None)


def _walk(ways: Ways, start: int) -> list[int] | None:
    """Search depth-first for a path through all nodes that returns to ``start``."""
    size = len(ways.reach)
    order, new = [start], (1 << size) - 1 & ~(1 << start)
    choices = [_choices(ways, order, new)]
    for _ in range(STEPS_PER_NODE * size):
        if not new and ways.reach[order[-1]] >> start & 1:
            return order
        there = next(choices[-1], None)
        if there is None:
            choices.pop()
            new |= 1 << order.pop()
            if not choices:
                return None
            continue
        order.append(there)
        new &= ~(1 << there)
        choices.append(_choices(ways, order, new))
    return None


def _choices(ways: Ways, order: list[int], new: int) -> Iterator[int]:
    """Return the next nodes after the end of ``order``, the most urgent first.

    None if a node that is ``new`` cannot be reached or left any more, or the start not
    be reached. Only neighbours of the last two nodes have lost a way, and only nodes
    with few ways can have lost all.
    """
    reach, into = ways.reach, ways.into
    start, before, at = order[0], order[-2:][0], order[-1]
    if not into[start] & new:
        return iter(())
    lost = (reach[before] | reach[at]) & new & ways.few_sources[len(order)]
    must = _cut_off(into, lost, new)  # nodes that at most this one can still reach
    lost = into[at] & new & ways.few_exits[len(order)]
    if must & ~reach[at] or _cut_off(reach, lost, new | 1 << start):
        return iter(())
    ahead = reach[at] & (ways.host[at] & new or new)
    if must:
        ahead &= must if must & (must - 1) == 0 else 0
    return iter(sorted(bits(ahead), key=lambda b: (reach[b] & new).bit_count()))


def _cut_off(ways: list[int], nodes: int, others: int) -> int:
    """Return those of ``nodes`` that have no way to one of ``others``."""
    found = 0
    while nodes:  # as bits(nodes), without a generator: most time is spent here
        low = nodes & -nodes
        nodes ^= low
        if not ways[low.bit_length() - 1] & others:
            found |= low
    return found


def _improve(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    """Apply one kind of change after the other until none changes anything."""
    moves = range(1, min(MAX_STRETCH, len(ring) - 2) + 1)
    changes: list[Change] = [partial(_move_stretches, length) for length in moves]
    changes += [_reverse_stretches, _better_direction]
    num_idle = 0
    for change in islice(cycle(changes), MAX_PASSES * len(changes)):
        before, ring = ring, change(hops, ring, at_least)
        num_idle = num_idle + 1 if ring == before else 0
        if num_idle == len(changes):
            break
    return ring


def _move_stretches(
    length: int, hops: HopTable, ring: list[int], at_least: int
) -> list[int]:
    """Move this many consecutive nodes elsewhere where that is better."""
    for _ in range(len(ring)):
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
    leave, leave_rate = gain[last], rate[last]
    best = gain[rest[-1]][first] + leave[rest[0]] - gain[rest[-1]][rest[0]]
    found = None
    if rate[rest[-1]][rest[0]] < at_least:
        return None
    for i, (a, b) in enumerate(pairwise(rest), 1):
        if leave_rate[b] < at_least or rate[a][first] < at_least:
            continue
        row = gain[a]
        more = row[first] + leave[b] - row[b]
        if more > best and _fits(hops, rest[:i] + stretch + rest[i:]):
            best, found = more, i
    return found


def _fits(hops: HopTable, ring: list[int]) -> bool:
    return len(set(hops.host)) == hops.size or hops.keeps_hosts_together(ring)


def _reverse_stretches(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    """Reverse segments where that is better."""
    for i in range(len(ring) - 1):
        ring = _reverse_from(i, hops, ring, at_least)
    return ring


def _reverse_from(i: int, hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    """Reverse segments that begin at ``i`` where that is better.

    Hops differ by direction. The gains inside the segment, as it is and reversed, grow
    with it.
    """
    gain, rate = hops.gain, hops.rate
    size = len(ring)
    kept = turned = 0
    for j in range(i + 2, size + (i > 0)):  # not all nodes, whose ends are one hop
        first, a, last = ring[i], ring[j - 2], ring[j - 1]
        if rate[last][a] < at_least:
            break  # longer segments hold this hop, too
        kept, turned = kept + gain[a][last], turned + gain[last][a]
        before, after = ring[i - 1], ring[j % size]
        if rate[before][last] < at_least or rate[first][after] < at_least:
            continue
        old = gain[before][first] + kept + gain[last][after]
        new = gain[before][last] + turned + gain[first][after]
        if new > old:
            changed = ring[:i] + ring[i:j][::-1] + ring[j:]
            if _fits(hops, changed):
                ring, kept, turned = changed, turned, kept
    return ring


def _better_direction(hops: HopTable, ring: list[int], at_least: int) -> list[int]:
    back = ring[::-1]
    is_better = hops.slowest(back) >= at_least and hops.total(back) > hops.total(ring)
    return back if is_better else ring


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
