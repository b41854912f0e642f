"""What a rank really waits for: a rank that is late, or a link that is slow.

A wait names the peer whose bytes came last. That peer may itself wait for another one,
so the chain is followed, on the common clock, to a rank that had not begun the
operation (it is late: it computes longer), or to bytes that are on their way (the link
is slow).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ringleader.tracing.analysis.events import Operation, Recording, Wait

Key = tuple[str, int]
"""Group and number of an operation."""


@dataclass(frozen=True, slots=True, order=True)
class Late:
    """The rank had not begun the operation yet."""

    rank: int


@dataclass(frozen=True, slots=True, order=True)
class SlowLink:
    """Bytes were on their way from ``source`` to ``target``."""

    source: int
    target: int


@dataclass(frozen=True, slots=True, order=True)
class Unexplained:
    """Nothing is known of the rank that was waited for."""

    rank: int


Cause = Late | SlowLink | Unexplained


class Causes:
    """Explains the waits of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._operations: dict[Key, dict[int, Operation]] = {}
        self._waits: dict[tuple[int, Key], list[Wait]] = {}
        for rank, trace in recording.ranks.items():
            for operation in trace.operations:
                key = operation.group, operation.sequence
                self._operations.setdefault(key, {})[rank] = operation
            for wait in trace.waits:
                found = self._waits.setdefault((rank, (wait.group, wait.sequence)), [])
                found.append(wait)
        for waits in self._waits.values():
            waits.sort(key=lambda each: each.begin_ns)

    def explain(self, rank: int, wait: Wait) -> Iterator[tuple[int, int, Cause]]:
        """Yield (begin, end, cause) of the pieces of a wait of ``rank``.

        A piece ends where another rank begins the operation.
        """
        key = wait.group, wait.sequence
        begins = {each.begin_ns for each in self._operations.get(key, {}).values()}
        inner = sorted(t for t in begins if wait.begin_ns < t < wait.end_ns)
        edges = [wait.begin_ns, *inner, wait.end_ns]
        for begin_ns, end_ns in pairwise(edges):
            middle_ns = (begin_ns + end_ns) // 2
            yield begin_ns, end_ns, self._cause(rank, wait.peer, key, middle_ns)

    def _cause(self, rank: int, peer: int, key: Key, at_ns: int) -> Cause:
        """Follow the chain of waiting ranks from ``rank``, which waits for ``peer``."""
        trail = [rank]
        while peer not in trail:
            if peer not in self._recording.ranks:
                return Unexplained(peer)
            operation = self._operations.get(key, {}).get(peer)
            is_complete = self._recording.ranks[peer].is_complete
            if operation is None and not is_complete:
                return Late(peer)  # it died, or was cut off, before the operation
            if operation is not None and at_ns < operation.begin_ns:
                return Late(peer)
            further = self._waits_for(peer, key, at_ns)
            if further is None:  # it is busy, or done: its bytes are on their way
                return SlowLink(peer, trail[-1])
            trail.append(peer)
            peer = further
        circle = [*trail[trail.index(peer) :], peer]
        pairs = zip(circle[1:], circle, strict=False)  # each waits for the next one
        return min((SlowLink(a, b) for a, b in pairs), key=self._speed)

    def _waits_for(self, rank: int, key: Key, at_ns: int) -> int | None:
        waits = self._waits.get((rank, key), [])
        at = bisect_right(waits, at_ns, key=lambda each: each.begin_ns) - 1
        if at < 0 or waits[at].end_ns <= at_ns:
            return None
        return waits[at].peer

    def _speed(self, link: SlowLink) -> float:
        return self._recording.links.get((link.source, link.target), float("inf"))
