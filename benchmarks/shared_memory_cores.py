"""Measures helper threads: collectives in shared memory with and without, beside Gloo.

The ranks of one host hold one group per variant of RINGLEADER_HELPER_THREADS and one of
Gloo, and call them alternately, so that a disturbance of the machine affects all. The
time of a call is that of the slowest rank; medians are over all rounds.

    python benchmarks/shared_memory_cores.py --ranks 2,4,8 --variants 0,auto
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

MIB = 1 << 20
VARIABLE = "RINGLEADER_HELPER_THREADS"
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
BAR = 4.0
"""Times Gloo's speed, for all_reduce with helpers as the ranks choose them."""
LIMIT_S = 1800.0
"""For all rounds of one number of ranks."""
ROUND_S = 0.05
"""Calls are repeated for about this long in each round."""


def main() -> None:
    """Measure every number of ranks in turn, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--variants", default="0,auto", help=f"values of {VARIABLE}")
    parser.add_argument("--sizes", default="4,16,64", help="MiB of the whole tensor")
    parser.add_argument("--operations", default="all_reduce", help="or: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch-threads", type=int, default=1, help="of each rank")
    parser.add_argument("--busy", type=int, default=0, help="other busy processes")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    from machine import describe
    from results_file import bar, dated, save

    task = {
        "variants": options.variants.split(","),
        "sizes_mib": [float(size) for size in options.sizes.split(",")],
        "operations": _operations(parser, options.operations),
        "rounds": options.rounds,
        "torch_threads": options.torch_threads,
        "busy": options.busy,
    }
    results: dict[str, Any] = {"machine": describe(), **task}
    bars = []
    for size in (int(text) for text in options.ranks.split(",")):
        found = results[f"{size} ranks"] = measure(size, task)
        ratios = [
            row["auto"]["times_gloo"]
            for name, row in found.items()
            if name.startswith("all_reduce") and "auto" in row
        ]
        if ratios:
            text = f"all_reduce, {size} ranks, at least {BAR:g} times Gloo"
            bars.append(bar(text, ratios, is_met=min(ratios) >= BAR))
    results["bars"] = bars
    save(options.json or dated("shared-memory-cores"), results)


def _operations(parser: argparse.ArgumentParser, text: str) -> list[str]:
    names = list(OPERATIONS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in OPERATIONS]:
        parser.error(f"no operation {unknown[0]}; there are: {', '.join(OPERATIONS)}")
    return names


# -- the parent -----------------------------------------------------------------------


def measure(size: int, task: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks; return their rows, and print them."""
    from ringleader.transport.free_ports import free_ports

    ports = free_ports(1 + size * len(task["variants"]))
    started: list[subprocess.Popen[str]] = []
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(task["busy"])]
    try:
        for rank in range(size):
            spec = {**task, "rank": rank, "size": size, "ports": ports}
            command = [sys.executable, __file__, "--worker", json.dumps(spec)]
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(command, stdout=output, text=True))
        text, _ = started[0].communicate(timeout=LIMIT_S)
        for each in started:
            if each.wait(timeout=60):
                raise SystemExit(f"a rank ended with status {each.returncode}")
    finally:
        for each in (*started, *busy):
            each.kill()
            each.wait()
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    for name, row in found.items():
        if isinstance(row, dict):
            print(f"{size} ranks, {name}: {_line(row)}", flush=True)
        else:
            print(f"{size} ranks, {name}: {row}", flush=True)
    return found


def _line(row: dict[str, Any]) -> str:
    parts = [f"Gloo {row['gloo']['ms']:.2f} ms"]
    for name, cell in row.items():
        if name != "gloo":
            parts.append(f"{name} {cell['ms']:.2f} ms ({cell['times_gloo']:.2f}x)")
    return ", ".join(parts)


# -- a rank ---------------------------------------------------------------------------


class Reasons(logging.Handler):
    """Keeps what the library logs about its helper threads."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        if "helper threads" in record.getMessage():
            self.texts.append(record.getMessage())


def work(spec: dict[str, Any]) -> None:
    """Form all groups, measure, and print the rows on rank 0."""
    import torch
    import torch.distributed as dist

    import ringleader

    torch.set_num_threads(spec["torch_threads"])
    rank, size, ports = spec["rank"], spec["size"], spec["ports"]
    reasons = Reasons()
    logging.getLogger("ringleader").addHandler(reasons)
    logging.getLogger("ringleader").setLevel(logging.INFO)
    address = f"tcp://127.0.0.1:{ports[0]}"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    groups = {}
    for number, variant in enumerate(spec["variants"]):
        os.environ[VARIABLE] = variant
        first = 1 + number * size
        peers = [f"127.0.0.1:{port}" for port in ports[first : first + size]]
        groups[variant] = ringleader.group(peers, rank)
    rows: dict[str, Any] = dict(
        zip((f"choice of {v}" for v in spec["variants"]), reasons.texts, strict=True)
    )
    for operation in spec["operations"]:
        for mib in spec["sizes_mib"]:
            calls = make_calls(operation, int(mib * MIB) // 4, groups)
            rows[f"{operation} {mib:g} MiB"] = time_all(calls, spec["rounds"])
    for group in groups.values():
        group.close()
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(rows), flush=True)


def make_calls(
    operation: str, count: int, groups: dict[str, Any]
) -> dict[str, Callable[[], object]]:
    """Return the call of each variant, after a look at the values that it gives."""
    import torch
    import torch.distributed as dist

    size, rank = dist.get_world_size(), dist.get_rank()
    count -= count % size
    whole, part = torch.zeros(count), torch.zeros(count // size)
    parts = list(whole.chunk(size))
    gloo: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "all_gather": lambda: dist.all_gather(parts, part),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    calls = {"gloo": gloo[operation]}
    for name, group in groups.items():
        ours: dict[str, Callable[[], object]] = {
            "all_reduce": lambda g=group: g.all_reduce(whole),  # type: ignore[misc]
            "reduce_scatter": lambda g=group: g.reduce_scatter(part, parts),  # type: ignore[misc]
            "all_gather": lambda g=group: g.all_gather(parts, part),  # type: ignore[misc]
            "broadcast": lambda g=group: g.broadcast(whole, 0),  # type: ignore[misc]
        }
        calls[name] = ours[operation]
    right = {
        "all_reduce": (whole, size * (size + 1) / 2),
        "reduce_scatter": (part, size * (size + 1) / 2),
        "all_gather": (parts[-1], float(size)),
        "broadcast": (whole, 1.0),
    }
    for name, call in calls.items():
        whole.fill_(rank + 1)
        part.fill_(rank + 1)
        call()
        result, value = right[operation]
        if not bool((result == value).all()):
            raise SystemExit(f"{name}: {operation} gives wrong values")
    whole.zero_()
    part.zero_()
    return calls


def time_all(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    """Return the median time of each call, and how many times faster than Gloo."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(_time(calls[name], repeats[name]))
    median_s = {name: statistics.median(each) for name, each in times.items()}
    return {
        name: {
            "ms": round(median_s[name] * 1e3, 3),
            "times_gloo": round(median_s["gloo"] / median_s[name], 3),
            "rounds_ms": [round(each * 1e3, 3) for each in times[name]],
        }
        for name in calls
    }


def _repeats(call: Callable[[], object]) -> int:
    for _ in range(3):
        call()
    return max(1, min(200, int(ROUND_S / _time(call, 3))))


def _time(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds of one call on the slowest rank."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        call()
    took_s = torch.tensor([(time.perf_counter() - start_s) / repeats])
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return float(took_s)


if __name__ == "__main__":
    main()
