"""What a trace costs, on and off, and whether the parts of a step are its length.

Two ranks on this machine. Calls: all_reduces in blocks, with the trace on and off in
turn, in the same processes and over the same links. Off: the same blocks in processes
that import this library and an older checkout in turn (``--before FOLDER``, made by
``git worktree add FOLDER COMMIT``). The fastest block counts: whatever else the
machine does only adds to it. Steps: DDP steps, timed by the program itself and
compared with the sum of the parts in the trace.

    .venv/bin/python benchmarks/trace_cost.py [--before FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES = {"4 KiB": 1 << 10, "1 MiB": 1 << 18}
"""float32 elements."""
CALLS = {"4 KiB": 400, "1 MiB": 40}
"""Calls of one block."""
STEPS = 40
OFF_PERCENT = 1.0
SUM_PERCENT = 2.0


def main() -> None:
    """Measure and print; workers are started by this file, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--before", type=Path, help="checkout without traces")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    from machine import describe
    from results_file import bar, save

    found: dict[str, Any] = {"machine": describe(), "load": os.getloadavg()[0]}
    bars = []
    for transport in ("tcp", "auto"):
        (calls,) = run("calls", transport, options.blocks)
        found[f"calls, {transport}"] = calls
        for size, times in calls.items():
            print(
                f"{transport:4} {size}: off {times['off_us']:.1f} us, on "
                f"{times['on_us']:.1f} us ({times['on_us'] - times['off_us']:+.1f})"
            )
        if options.before:
            off = compare(transport, options.before, options.blocks, options.rounds)
            found[f"off, {transport}"] = off
            for size, each in off.items():
                text = f"off costs less than {OFF_PERCENT:g} %: {size}, {transport}"
                cost = each["percent"]
                bars.append(bar(text, f"{cost:+.2f} %", is_met=cost < OFF_PERCENT))
    (steps,) = run("steps", "tcp", STEPS)
    found["steps"] = steps
    text = f"the parts are the step within {SUM_PERCENT:g} %"
    is_met = steps["off_by_percent"] <= SUM_PERCENT
    bars.append(bar(text, f"{steps['off_by_percent']:.3f} %", is_met=is_met))
    if options.json:
        save(options.json, {**found, "bars": bars})


def compare(
    transport: str, before: Path, blocks: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Return the best times of this library without a trace, and of ``before``."""
    times: dict[str, dict[str, list[float]]] = {
        s: {"now": [], "before": []} for s in SIZES
    }
    for _ in range(rounds):
        for which, folder in (("before", before), ("now", None)):
            (calls,) = run("off", transport, blocks, folder)
            for size, each in calls.items():
                times[size][which].append(each["off_us"])
    found = {}
    for size, both in times.items():
        now, then = (min(both[which]) for which in ("now", "before"))
        percent = 100 * (now / then - 1)
        found[size] = {"now_us": now, "before_us": then, "percent": percent}
    return found


def run(
    what: str, transport: str, count: int, folder: Path | None = None
) -> list[dict[str, Any]]:
    """Run two ranks and return what rank 0 prints."""
    from ringleader.transport.free_ports import free_ports

    peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if folder is not None:
        environment["PYTHONPATH"] = str(folder / "src")
    ranks = []
    for rank in range(2):
        task = {"what": what, "transport": transport, "count": count}
        argv = [sys.executable, __file__, "--worker"]
        argv.append(json.dumps({**task, "rank": rank, "peers": peers}))
        ranks.append(
            subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        )
    said = [process.communicate(timeout=600)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"a rank failed: {said}")
    return [json.loads(line) for line in said[0].splitlines() if line[:1] == "{"]


def work(task: dict[str, Any]) -> None:
    """Be one rank."""
    found = steps(task) if task["what"] == "steps" else calls(task)
    if task["rank"] == 0:
        print(json.dumps(found), flush=True)


def calls(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the best time of a call, with the trace on and off in turn."""
    import torch

    import ringleader

    group = ringleader.group(task["peers"], task["rank"], transport=task["transport"])
    found = {}
    for size, count in SIZES.items():
        tensor = torch.zeros(count)
        times: dict[str, list[float]] = {"off_us": [], "on_us": []}
        for _ in range(task["count"]):
            times["off_us"].append(block(group, tensor, CALLS[size]))
            if task["what"] == "calls":
                with ringleader.trace():
                    times["on_us"].append(block(group, tensor, CALLS[size]))
        found[size] = {name: min(t) for name, t in times.items() if t}
    group.close()
    return found


def block(group: Any, tensor: Any, num_calls: int) -> float:  # noqa: ANN401
    """Return the microseconds per call of one block."""
    group.all_reduce(tensor)  # prepared anew when the trace begins or ends
    group.barrier()
    since_s = time.perf_counter()
    for _ in range(num_calls):
        group.all_reduce(tensor)
    return (time.perf_counter() - since_s) / num_calls * 1e6


def steps(task: dict[str, Any]) -> dict[str, float]:
    """Return by how much the parts of DDP steps miss what the program measures."""
    import torch
    import torch.distributed as dist

    import ringleader
    from ringleader.tracing.analysis.summary import summarize

    host, _, port = task["peers"][0].partition(":")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, RINGLEADER_TRANSPORT="tcp")
    dist.init_process_group("ringleader", rank=task["rank"], world_size=2)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ends_s = []
    with ringleader.trace() as trace:
        for _ in range(task["count"]):
            model(torch.ones(32, 512)).square().mean().backward()
            optimizer.step()
            ends_s.append(time.perf_counter())
            optimizer.zero_grad()
    dist.destroy_process_group()
    if trace.recording is None:
        return {}
    parts = summarize(trace.recording).steps[0]
    errors = []
    for number in range(2, task["count"] + 1):
        each = parts[number]
        found_ns = each.compute_ns + each.encode_ns + each.wire_ns + each.other_ns
        measured_s = ends_s[number - 1] - ends_s[number - 2]
        errors.append(abs((found_ns + each.waiting_ns) / 1e9 / measured_s - 1))
    return {
        "steps": len(errors),
        "off_by_percent": 100 * statistics.median(errors),
        "off_by_percent_at_most": 100 * max(errors),
    }


if __name__ == "__main__":
    main()
