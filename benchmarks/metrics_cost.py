"""What metrics cost an all_reduce: short blocks of calls with and without, in turns.

Two ranks in processes of their own switch metrics after every block of ten calls:
on, off, off, so that all kinds of blocks see the same machine. Compared are low
quantiles of the times of single calls. The two kinds of "off" differ by chance alone:
if they differ by more than the bar, the machine is too busy to decide, and the result
says so. Beside the measured cost stands the time of the observer's events, measured
alone; it explains the cost, but does not decide.

    PYTHONPATH=. .venv/bin/python -m benchmarks.metrics_cost --json FILE.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import ringleader
from benchmarks import results_file
from ringleader.groups import calls as calls_module
from ringleader.groups.group import Group, handle_of
from ringleader.groups.group_metrics import GroupMetrics
from ringleader.metrics.registry import Registry
from ringleader.transport.free_ports import free_ports

SIZES = {"4 B": 1, "64 KiB": 16 << 10, "1 MiB": 1 << 18}
KINDS = ("on", "off", "off again")
BLOCK = 10
WARM_UP = 3
"""Calls after a switch that are not timed: the first ones prepare the next."""
QUANTILE = 0.1
"""Of the times of single calls: calls that no other process disturbed."""
LIMIT = 0.01
WAITS = "ringleader_collective_waits_total"


def main() -> None:
    """Measure both links and all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    bars = []
    for transport in ("auto", "tcp"):
        name = "shared memory" if transport == "auto" else "TCP"
        found[name] = measure(transport, options.turns)
        bars.append(judge(name, found[name]["1 MiB"]))
    found["bars"] = bars
    if options.json:
        results_file.save(options.json, found)


def judge(name: str, seen: dict[str, float]) -> dict[str, object]:
    """The bar for 1 MiB; missed also if the machine was too busy to decide."""
    text = f"1 MiB over {name}: metrics cost less than 1 %"
    both = f"{seen['cost']:+.2%}, off beside off {seen['noise']:+.2%}"
    is_quiet = abs(seen["noise"]) < LIMIT
    if not is_quiet:
        both += ": the machine was too busy to decide"
    return results_file.bar(text, both, is_met=is_quiet and seen["cost"] < LIMIT)


def measure(transport: str, num_turns: int) -> dict[str, Any]:
    """Run both ranks and return what rank 0 found."""
    peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.metrics_cost", "--worker"),
                json.dumps([peers, rank, transport, num_turns]),
            ],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a rank failed")
    result: dict[str, Any] = json.loads(texts[0])
    for size, seen in result.items():
        print(f"{transport:5} {size:7}", seen, flush=True)
    return result


def work(given: list[Any]) -> None:
    """One rank."""
    peers, rank, transport, num_turns = given
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with ringleader.group(peers, rank, transport=transport) as group:
        for size, count in SIZES.items():
            found[size] = compare(group, count, num_turns)
    if rank == 0:
        print(json.dumps(found))


def compare(group: Group, count: int, num_turns: int) -> dict[str, Any]:
    """Times with metrics beside those without."""
    tensor = torch.ones(count)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    before = ringleader.metrics.snapshot().value(WAITS)
    for turn in range(num_turns):
        first = turn % len(KINDS)
        for kind in (*KINDS[first:], *KINDS[:first]):
            # Both switch, so that the blocks after them differ in nothing else.
            (
                ringleader.metrics.disable
                if kind == "on"
                else ringleader.metrics.enable
            )()
            (
                ringleader.metrics.enable
                if kind == "on"
                else ringleader.metrics.disable
            )()
            times[kind] += block(group, tensor)
    ringleader.metrics.disable()
    waits = ringleader.metrics.snapshot().value(WAITS) - before
    low = {
        kind: sorted(found)[int(QUANTILE * len(found))] for kind, found in times.items()
    }
    per_call = waits / (num_turns * (BLOCK + WARM_UP))
    observer_s = event_s(group, per_call)
    off_s = (low["off"] + low["off again"]) / 2
    return {
        **{f"{kind} us": round(seconds * 1e6, 2) for kind, seconds in low.items()},
        "cost": round(low["on"] / off_s - 1, 5),
        "noise": round(low["off again"] / low["off"] - 1, 5),
        "waits per call": round(per_call, 2),
        "events us": round(observer_s * 1e6, 3),
        "events": round(observer_s / off_s, 5),
    }


def block(group: Group, tensor: torch.Tensor) -> list[float]:
    """The times of the calls of one block."""
    for _ in range(WARM_UP):
        group.all_reduce(tensor, "mean")
    times = []
    for _ in range(BLOCK):
        began_s = time.perf_counter()
        group.all_reduce(tensor, "mean")
        times.append(time.perf_counter() - began_s)
    return times


def event_s(group: Group, waits_per_call: float) -> float:
    """What observing takes per call: a watched run and its waits, measured alone."""
    handle = handle_of(group)
    observer = GroupMetrics(handle, Registry())

    def nothing(_address: int) -> None:
        pass

    watched = observer.watch(calls_module.example("all_reduce", 1 << 20), nothing)
    peer, times = 1 - handle.rank, []
    for _ in range(20):
        began_s = time.perf_counter()
        for _ in range(1000):
            watched(0)
        middle_s = time.perf_counter()
        for _ in range(1000):
            since_s = time.perf_counter()
            observer.waited(peer, since_s, time.perf_counter())
        end_s = time.perf_counter()
        times.append(
            (middle_s - began_s) / 1000 + waits_per_call * (end_s - middle_s) / 1000
        )
    return min(times)


if __name__ == "__main__":
    main()
