"""``chrome_events``: a recording in the Chrome trace format, for ui.perfetto.dev.

A rank is a process of the trace. Its rows are the steps, what the script did (compute,
or what it waited for), the operations and the waits inside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ringleader.tracing.analysis.causes import Causes
from ringleader.tracing.analysis.events import RankTrace, Recording
from ringleader.tracing.analysis.parts import (
    Active,
    Idle,
    Label,
    activity,
    script_timeline,
)
from ringleader.tracing.analysis.table import describe

ROWS = ("steps", "script", "operations", "waiting", "phases")
STEPS, SCRIPT, OPERATIONS, WAITING, PHASES = range(5)
ENCODES_MOSTLY = 0.5

JsonObject = dict[str, Any]


def chrome_events(recording: Recording) -> Iterator[JsonObject]:
    """Yield the events of all ranks; times begin at 0 and are microseconds."""
    causes = Causes(recording)
    machines = {rank: trace.machine for rank, trace in recording.ranks.items()}
    begins = [_first_ns(trace) for trace in recording.ranks.values()]
    zero_ns = min((each for each in begins if each is not None), default=0)
    for rank, trace in sorted(recording.ranks.items()):
        yield from _names(trace)
        for event in _rank_events(trace, causes, machines):
            event["pid"] = rank
            event["ts"] = (event["ts"] - zero_ns) / 1000
            yield event


def _first_ns(trace: RankTrace) -> int | None:
    lists = (trace.steps, trace.operations, trace.blocked, trace.spans, trace.waits)
    return min((each.begin_ns for found in lists for each in found), default=None)


def _names(trace: RankTrace) -> Iterator[JsonObject]:
    name = f"rank {trace.rank} {trace.machine}".rstrip()
    meta: JsonObject = {"ph": "M", "pid": trace.rank}
    yield {**meta, "name": "process_name", "args": {"name": name}}
    yield {**meta, "name": "process_sort_index", "args": {"sort_index": trace.rank}}
    for number, row in enumerate(ROWS):
        yield {**meta, "tid": number, "name": "thread_name", "args": {"name": row}}
        sort = {"sort_index": number}
        yield {**meta, "tid": number, "name": "thread_sort_index", "args": sort}


def _rank_events(
    trace: RankTrace, causes: Causes, machines: dict[int, str]
) -> Iterator[JsonObject]:
    for step in trace.steps:
        yield _complete(
            STEPS, f"step {step.number}", "step", step.begin_ns, step.end_ns
        )
    for begin_ns, end_ns, label in script_timeline(trace, causes):
        yield _complete(SCRIPT, *_name(label, machines), begin_ns, end_ns)
    for span in trace.spans:
        yield _complete(PHASES, span.name, "span", span.begin_ns, span.end_ns)
    for each in trace.operations:
        event = _complete(
            OPERATIONS, each.name, "operation", each.begin_ns, each.end_ns
        )
        event["args"] = {
            "bytes": each.num_bytes,
            "algorithm": each.algorithm,
            "codec": each.codec,
            "group": each.group,
            "number": each.sequence,
            "encode_us": each.encode_ns / 1000,
        }
        yield event
    for begin_ns, end_ns, label in activity(trace, causes):
        if not isinstance(label, Active):
            yield _complete(WAITING, *_name(label, machines), begin_ns, end_ns)


def _name(label: Label, machines: dict[int, str]) -> tuple[str, str]:
    """Return the name and the category of what was done."""
    if isinstance(label, Idle):
        return label.value, label.value
    if not isinstance(label, Active):
        return f"waiting for {describe(label, machines)}", "wait"
    name = "encode" if label.encode_share >= ENCODES_MOSTLY else "wire"
    return name, name


def _complete(
    row: int, name: str, category: str, begin_ns: int, end_ns: int
) -> JsonObject:
    return {
        "ph": "X",
        "tid": row,
        "name": name,
        "cat": category,
        "ts": begin_ns,
        "dur": (end_ns - begin_ns) / 1000,
    }
