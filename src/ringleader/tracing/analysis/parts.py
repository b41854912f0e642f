"""The parts of a step: compute, encode, wire, waiting for a rank or a link, other.

The script computes unless it is blocked. While it is blocked, each moment belongs to
what the engine did in it. So the parts of a step add up to the step exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from ringleader.tracing.analysis.causes import Cause, Causes
from ringleader.tracing.analysis.events import Operation, RankTrace, Recording, Step

Run = tuple[int, int]
"""(begin, end)."""


class Idle(Enum):
    """What the script does while the engine does nothing for it."""

    COMPUTE = "compute"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Active:
    """The engine worked, and so much of it in a codec or a compressor."""

    encode_share: float


Label = Cause | Active | Idle
Labelled = tuple[int, int, Label]
"""(begin, end, what was done)."""


@dataclass(slots=True)
class Parts:
    """Where the time of one step, or of several, went on one rank."""

    step_ns: int = 0
    compute_ns: int = 0
    encode_ns: int = 0
    wire_ns: int = 0
    """Bytes were moved and added."""
    other_ns: int = 0
    """The script waited while no operation ran, as when threads take turns."""
    waits_ns: dict[Cause, int] = field(default_factory=dict)
    hidden_ns: int = 0
    """Time of operations while the script computed; no part of the sum."""
    num_operations: int = 0
    num_bytes: int = 0
    codecs: set[str] = field(default_factory=set)

    @property
    def waiting_ns(self) -> int:
        """All waiting together."""
        return sum(self.waits_ns.values())

    @property
    def exposed_ns(self) -> int:
        """The time in which the script waited for communication."""
        return self.step_ns - self.compute_ns

    def share(self, part_ns: int) -> float:
        """Return a part as a share of the step."""
        return part_ns / self.step_ns if self.step_ns else 0.0

    def __add__(self, other: Parts) -> Parts:
        causes = [*self.waits_ns, *other.waits_ns]
        return Parts(
            step_ns=self.step_ns + other.step_ns,
            compute_ns=self.compute_ns + other.compute_ns,
            encode_ns=self.encode_ns + other.encode_ns,
            wire_ns=self.wire_ns + other.wire_ns,
            other_ns=self.other_ns + other.other_ns,
            waits_ns={
                each: self.waits_ns.get(each, 0) + other.waits_ns.get(each, 0)
                for each in dict.fromkeys(causes)
            },
            hidden_ns=self.hidden_ns + other.hidden_ns,
            num_operations=self.num_operations + other.num_operations,
            num_bytes=self.num_bytes + other.num_bytes,
            codecs=self.codecs | other.codecs,
        )


def step_parts(recording: Recording, causes: Causes) -> dict[int, dict[int, Parts]]:
    """Return the parts of every step of every rank: rank -> number -> parts."""
    return {
        rank: dict(_rank_parts(trace, causes))
        for rank, trace in recording.ranks.items()
    }


def _rank_parts(trace: RankTrace, causes: Causes) -> Iterator[tuple[int, Parts]]:
    operations = sorted(trace.operations, key=lambda each: each.begin_ns)
    busy = union((each.begin_ns, each.end_ns) for each in operations)
    timeline = deque(script_timeline(trace, causes))
    for step in sorted(trace.steps, key=lambda each: each.begin_ns):
        parts = Parts(step_ns=step.end_ns - step.begin_ns)
        while timeline and timeline[0][0] < step.end_ns:
            begin_ns, end_ns, label = timeline.popleft()
            _add_part(parts, label, end_ns - begin_ns)
            if label is Idle.COMPUTE:
                parts.hidden_ns += total(clip(busy, (begin_ns, end_ns)))
        for each in _begun_in(operations, step):
            parts.num_operations += 1
            parts.num_bytes += each.num_bytes
            parts.codecs.add(each.codec)
        yield step.number, parts


def _begun_in(operations: Sequence[Operation], step: Step) -> Sequence[Operation]:
    first = bisect_left(operations, step.begin_ns, key=lambda each: each.begin_ns)
    last = bisect_left(operations, step.end_ns, key=lambda each: each.begin_ns)
    return operations[first:last]


def _add_part(parts: Parts, label: Label, part_ns: int) -> None:
    if label is Idle.COMPUTE:
        parts.compute_ns += part_ns
    elif label is Idle.OTHER:
        parts.other_ns += part_ns
    elif isinstance(label, Active):
        encode_ns = round(part_ns * label.encode_share)
        parts.encode_ns += encode_ns
        parts.wire_ns += part_ns - encode_ns
    else:
        parts.waits_ns[label] = parts.waits_ns.get(label, 0) + part_ns


def script_timeline(trace: RankTrace, causes: Causes) -> list[Labelled]:
    """Return what the script did or waited for in its steps, without a gap."""
    steps = sorted((each.begin_ns, each.end_ns) for each in trace.steps)
    blocked = union((each.begin_ns, each.end_ns) for each in trace.blocked)
    waited_for = within(activity(trace, causes), blocked)
    waits = paint([(a, b, Idle.OTHER) for a, b in blocked], waited_for)
    return paint([(a, b, Idle.COMPUTE) for a, b in steps], within(waits, steps))


def activity(trace: RankTrace, causes: Causes) -> list[Labelled]:
    """Return what the engine of a rank did, as disjoint runs in order."""
    waits: list[Labelled] = []
    waits_ns: dict[tuple[str, int], int] = {}
    for wait in trace.waits:
        waits += causes.explain(trace.rank, wait)
        key = wait.group, wait.sequence
        waits_ns[key] = waits_ns.get(key, 0) + wait.end_ns - wait.begin_ns
    active: list[Labelled] = []
    for each in trace.operations:
        active_ns = each.end_ns - each.begin_ns
        active_ns -= waits_ns.get((each.group, each.sequence), 0)
        share = min(1.0, each.encode_ns / active_ns) if active_ns > 0 else 0.0
        active.append((each.begin_ns, each.end_ns, Active(share)))
    encodes: list[Labelled] = [
        (each.begin_ns, each.end_ns, Active(1.0)) for each in trace.encodes
    ]
    return paint(paint(encodes, active), waits)


def paint(below: Iterable[Labelled], above: Iterable[Labelled]) -> list[Labelled]:
    """Return disjoint runs in order: ``above``, and ``below`` where it shows."""
    top = _disjoint(above)
    found = list(top)
    at = 0
    for begin, end, label in _disjoint(below):
        while at < len(top) and top[at][1] <= begin:
            at += 1
        i, start = at, begin
        while i < len(top) and top[i][0] < end:
            if start < top[i][0]:
                found.append((start, top[i][0], label))
            start = max(start, top[i][1])
            i += 1
        if start < end:
            found.append((start, end, label))
    return sorted(found, key=lambda each: each[0])


def _disjoint(runs: Iterable[Labelled]) -> list[Labelled]:
    """Cut what overlaps an earlier run: two groups can be busy at the same time."""
    found: list[Labelled] = []
    for begin, end, label in sorted(runs, key=lambda each: each[:2]):
        start = max(begin, found[-1][1]) if found else begin
        if start < end:
            found.append((start, end, label))
    return found


def union(runs: Iterable[Run]) -> list[Run]:
    """Return the same time as disjoint runs in order."""
    found: list[Run] = []
    for begin, end in sorted(runs):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif begin < end:
            found.append((begin, end))
    return found


def within(labelled: Iterable[Labelled], runs: Sequence[Run]) -> list[Labelled]:
    """Return the parts of labelled runs that lie in disjoint ``runs``."""
    return [
        (start, stop, label)
        for begin, end, label in labelled
        for start, stop in clip(runs, (begin, end))
    ]


def clip(runs: Sequence[Run], whole: Run) -> list[Run]:
    """Return the parts of disjoint runs that lie in ``whole``."""
    first = max(0, bisect_right(runs, whole[0], key=lambda each: each[0]) - 1)
    found = []
    for begin, end in islice(runs, first, None):
        if begin >= whole[1]:
            break
        start, stop = max(begin, whole[0]), min(end, whole[1])
        if start < stop:
            found.append((start, stop))
    return found


def total(runs: Iterable[Run]) -> int:
    """Return the length of disjoint runs together."""
    return sum(end - begin for begin, end in runs)
