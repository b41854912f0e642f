"""Measures the star over gRPC, with 4 ranks on this machine.

The flat TCP ring and Gloo run in the same processes and are called in turn. Then come
256 MB once, and 1,000 steps in which the workers are always faster than rank 0.

    .venv/bin/python benchmarks/star.py --json benchmarks/results/star-DATE.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from machine import describe
from torch._C._distributed_c10d import FileStore

from ringleader.groups.formation import group as form_group
from ringleader.groups.group import Group
from ringleader.testing.processes import Ready, spawn_ranks
from ringleader.transport.free_ports import free_ports

SIZE = 4
LIMIT_S = 600.0
ROUNDS = {4 << 10: 200, 64 << 20: 7}
LARGE_BYTES = 256_000_000
STEPS = 1000


def main() -> None:
    """Measure, print the result and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as home:
        peers = [f"127.0.0.1:{port}" for port in free_ports(SIZE)]
        with spawn_ranks(
            SIZE,
            work,
            peers,
            str(Path(home) / "gloo"),
            transport="grpc",
            timeout_s=LIMIT_S,
        ) as ranks:
            result, *_ = [rank.result(LIMIT_S) for rank in ranks]
    found = {"machine": describe(), "load_before": load, "ranks": SIZE, **result}
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


def work(
    group: Group, _ready: Ready, peers: list[str], gloo_file: str
) -> dict[str, Any]:
    """Run all measurements on one rank; the figures are those of rank 0."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT_S)
    store = FileStore(gloo_file, SIZE)
    dist.init_process_group(
        "gloo", store=store, rank=group.rank, world_size=SIZE, timeout=limit
    )
    result: dict[str, Any] = {"median_ms": {}}
    with form_group(peers, group.rank, transport="tcp") as ring:
        calls = {
            "star over grpc": lambda t: group.all_reduce(t, algorithm="star"),
            "ring over grpc": lambda t: group.all_reduce(t, algorithm="ring"),
            "ring over tcp": lambda t: ring.all_reduce(t, algorithm="ring"),
            "gloo": dist.all_reduce,
        }
        for num_bytes, rounds in ROUNDS.items():
            taken = compare(calls, num_bytes, rounds)
            result["median_ms"][str(num_bytes)] = taken
        result["chosen_for_64_MiB"] = group.choice("all_reduce", 64 << 20)
    dist.destroy_process_group()
    result |= large(group)
    result |= run_ahead(group)
    return result


def compare(calls: dict[str, Any], num_bytes: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, made in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            tensor = torch.full((num_bytes // 4,), dist.get_rank() + 1.0)
            dist.barrier()
            start_s = time.perf_counter()
            call(tensor)
            if turn:  # the first one warms up
                times[name].append(1e3 * (time.perf_counter() - start_s))
            assert bool((tensor == SIZE * (SIZE + 1) / 2).all())
    return {name: round(statistics.median(t), 3) for name, t in times.items()}


def large(group: Group) -> dict[str, Any]:
    """All_reduce 256 MB; return the seconds and how much rank 0's memory grew."""
    tensor = torch.full((LARGE_BYTES // 4,), group.rank + 1.0)
    group.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.perf_counter()
    group.all_reduce(tensor)
    taken_s = time.perf_counter() - start_s
    assert bool((tensor == SIZE * (SIZE + 1) / 2).all())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"large_s": round(taken_s, 2), "large_grown_mib": round(grown / 1024, 1)}


def run_ahead(group: Group) -> dict[str, Any]:
    """Make 1,000 steps in which the workers never wait for rank 0."""
    start_s = time.perf_counter()
    values, works = [], []
    for step in range(STEPS):
        values.append(torch.full((1024,), float(step * SIZE + group.rank)))
        works.append(group.all_reduce(values[-1], algorithm="star", async_op=True))
        if group.rank == 0:
            time.sleep(0.001)
            works[-1].wait()
    for pending in works:
        pending.wait()
    want = sum(range(SIZE))
    wrong = sum(bool(v.ne(i * SIZE**2 + want).any()) for i, v in enumerate(values))
    return {
        "steps": STEPS,
        "wrong_steps": wrong,
        "steps_s": round(time.perf_counter() - start_s, 2),
    }


if __name__ == "__main__":
    main()
