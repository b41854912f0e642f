"""``Collector``: puts the batches of all ranks together, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ringleader.tracing.analysis.clock import Clock, Offset
from ringleader.tracing.analysis.events import (
    Event,
    Links,
    Operation,
    RankTrace,
    Recording,
)
from ringleader.tracing.batch import MAX_LINKS, Batch

MAX_OFFSETS = 4096


@dataclass(slots=True)
class _Kept:
    """What has come of one rank."""

    events: deque[Event]
    offsets: deque[Offset] = field(default_factory=lambda: deque(maxlen=MAX_OFFSETS))
    machine: str = ""
    link_kind: str = ""
    num_dropped: int = 0
    num_replaced: int = 0
    is_complete: bool = False


class Collector:
    """Keeps the last ``limit`` events of each rank."""

    def __init__(self, size: int, limit: int) -> None:
        self._kept = {rank: _Kept(deque(maxlen=limit)) for rank in range(size)}
        self._links: Links = {}

    def add(self, rank: int, batch: Batch) -> None:
        """Keep what a rank has sent."""
        kept = self._kept[rank]
        room = (kept.events.maxlen or 0) - len(kept.events)
        kept.num_replaced += max(0, len(batch.events) - room)
        kept.events.extend(batch.events)
        kept.offsets.extend(batch.offsets)
        kept.machine, kept.link_kind = batch.machine, batch.link_kind
        kept.num_dropped = batch.num_dropped
        kept.is_complete = batch.is_last
        if len(self._links) + len(batch.links) <= MAX_LINKS:
            self._links.update(batch.links)

    def missing(self) -> set[int]:
        """Return the ranks that have not sent their last batch."""
        return {rank for rank, kept in self._kept.items() if not kept.is_complete}

    def recording(self) -> Recording:
        """Return everything on the clock of rank 0."""
        traces = {rank: _trace(rank, kept) for rank, kept in self._kept.items()}
        return Recording(traces, self._links)


def _trace(rank: int, kept: _Kept) -> RankTrace:
    clock = Clock(kept.offsets)
    trace = RankTrace(
        rank,
        kept.machine,
        kept.link_kind,
        num_dropped=kept.num_dropped + kept.num_replaced,
        is_complete=kept.is_complete,
        clock_error_ns=clock.error_ns,
    )
    operations: dict[tuple[str, int], Operation] = {}
    for event in kept.events:
        converted = clock.convert_event(event)
        if isinstance(converted, Operation):
            operations[converted.group, converted.sequence] = converted
        else:
            trace.add(converted)
    trace.operations = list(operations.values())
    return trace
