"""``ringleader.trace`` around real training steps, on all ranks and on one clock."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import ringleader
from ringleader.engine.observer import now_s
from ringleader.tracing.analysis.causes import Causes
from ringleader.tracing.analysis.events import RankTrace, Recording
from ringleader.tracing.analysis.parts import step_parts
from ringleader.tracing.recorder import to_ns
from tests.kit.reference import backward

STEPS = 4
BUCKET_MB = 0.02
"""Several buckets per step, which are averaged while the backward pass goes on."""


def traced_steps(rank: int, size: int) -> None:
    """DistributedDataParallel in a trace and in torch's profiler at the same time."""
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        entered_s = now_s()
        with (
            profile(activities=[ProfilerActivity.CPU]),
            ringleader.trace(path) as trace,
        ):
            for _ in range(STEPS):
                optimizer.zero_grad()
                backward(model(torch.ones(8, 64) * (rank + 1)).square().mean())
                optimizer.step()
            trained_s = now_s()
        if rank != 0:
            assert trace.recording is None
            assert trace.report == ""
            return
        events = json.loads(path.read_text())
    assert trace.recording is not None
    assert "mean" in trace.report
    _check_file(events, size)
    _check_steps(trace.recording, to_ns(entered_s), to_ns(trained_s))
    _check_operations(trace.recording, size)


def _check_file(found: dict[str, object], size: int) -> None:
    events = found["traceEvents"]
    assert isinstance(events, list)
    steps = [(e["pid"], e["name"]) for e in events if e.get("cat") == "step"]
    numbers = range(1, STEPS + 1)
    assert sorted(steps) == [(r, f"step {n}") for r in range(size) for n in numbers]
    spans = [e["pid"] for e in events if e.get("name") == "optimizer"]
    assert sorted(spans) == sorted(list(range(size)) * STEPS)


def _check_steps(recording: Recording, entered_ns: int, trained_ns: int) -> None:
    """Steps follow each other without a gap, and their parts add up."""
    for rank, parts in step_parts(recording, Causes(recording)).items():
        trace = recording.ranks[rank]
        assert trace.is_complete
        assert trace.num_dropped == 0
        for step, after in pairwise(trace.steps):
            assert abs(after.begin_ns - step.end_ns) <= 1  # rounded by the clock
        for step in trace.steps:
            each = parts[step.number]
            found = each.compute_ns + each.encode_ns + each.wire_ns
            found += each.waiting_ns + each.other_ns
            assert abs(found - (step.end_ns - step.begin_ns)) <= 1
            assert each.exposed_ns > 0
    mine = recording.ranks[0].steps
    assert entered_ns <= mine[0].begin_ns <= mine[-1].end_ns <= trained_ns


def _check_operations(recording: Recording, size: int) -> None:
    """All ranks made the same calls; none ended before another began it."""
    calls = [_calls(recording.ranks[rank]) for rank in range(size)]
    assert len(calls[0]) >= STEPS
    for other in calls[1:]:
        assert other.keys() == calls[0].keys()
    errors = [recording.ranks[rank].clock_error_ns for rank in range(size)]
    for key in calls[0]:
        begins = [
            each[key][0] - error for each, error in zip(calls, errors, strict=True)
        ]
        ends = [each[key][1] + error for each, error in zip(calls, errors, strict=True)]
        assert max(begins) <= min(ends), "an all_reduce needs all ranks"


def _calls(trace: RankTrace) -> dict[tuple[str, int, int], tuple[int, int]]:
    """The gradients' calls: (group, number, bytes) -> (begin, end)."""
    return {
        (each.group, each.sequence, each.num_bytes): (each.begin_ns, each.end_ns)
        for each in trace.operations
        if each.name == "all_reduce"
    }
