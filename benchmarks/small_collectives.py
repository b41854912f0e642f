"""Compares small collectives of torch.distributed on our backend with Gloo.

    python benchmarks/small_collectives.py [--bytes 1024] [--rounds 5] [-k REGEX]

Two ranks with one compute thread each; our backend in shared memory and over TCP, and
Gloo, in turns. Synchronous calls, and calls with ``async_op=True`` that are waited for
at once. Every call is timed by itself on each rank: a busy machine disturbs a part of
the calls, so the 5th percentile shows what a call takes and the median what a user of
this machine sees. ``empty`` is what torch takes of it, with a backend that does nothing
(empty_backend.py). The results of the day are in results/.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import empty_backend
import torch.distributed as dist
import torch_stack
from rank_groups import GLOO, OURS, Competitor, MakeTask, RankGroup, in_turns, machine
from results_file import bar, dated, save

OPERATIONS: dict[str, MakeTask] = {
    "all_gather_into_tensor": torch_stack.all_gather,
    "reduce_scatter_tensor": torch_stack.reduce_scatter,
    "broadcast": torch_stack.broadcast,
    "all_to_all_single": torch_stack.all_to_all,
    "all_reduce": torch_stack.all_reduce,
    "barrier": torch_stack.barrier,
}
if hasattr(dist, "all_gather_single"):  # in torch 2.13 the others became deprecated
    OPERATIONS |= {
        "all_gather_single": partial(torch_stack.all_gather, name="all_gather_single"),
        "reduce_scatter_single": partial(
            torch_stack.reduce_scatter, name="reduce_scatter_single"
        ),
    }
SHM, TCP = "shared memory", "TCP"
LIMIT_US = 20.0
"""The bar of a synchronous call in shared memory."""
Times = dict[str, list[float]]
"""Group -> seconds of all calls, in each round of the rank that took longer."""


def measure(
    name: str, task: MakeTask, groups: Sequence[RankGroup], options: argparse.Namespace
) -> Times:
    """Time an operation in all groups, in turns."""
    times: Times = {group.title: [] for group in groups}
    calls = {}
    for group in groups:
        group.forget()
        group.prepare(name, task, options.bytes)
        calls[group.title] = group.calls_for(name, options.batch_s)
    for number in range(options.rounds):
        for group in in_turns(groups, number):
            ranks = group.time_each(name, calls[group.title])
            times[group.title] += max(ranks, key=statistics.median)
    return times


def summary(times: Times) -> dict[str, dict[str, float]]:
    """Return percentiles in microseconds, and Gloo's median divided by ours."""
    result = {}
    medians = {title: statistics.median(seconds) for title, seconds in times.items()}
    for title, seconds in times.items():
        result[title] = {
            "calls": len(seconds),
            "p5_us": round(sorted(seconds)[len(seconds) // 20] * 1e6, 1),
            "median_us": round(medians[title] * 1e6, 1),
            "faster_than_gloo": round(medians[GLOO] / medians[title], 2),
        }
    return result


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--bytes", type=int, default=1024)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--batch-s", type=float, default=0.1)
    made.add_argument("-k", default="", metavar="REGEX", help="only these rows")
    made.add_argument("--no-file", action="store_true", help="write no results")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    options = parse(arguments)
    groups = [
        RankGroup(Competitor(title=SHM, backend=OURS)),
        RankGroup(Competitor(title=TCP, backend=OURS, transport="tcp")),
        RankGroup(Competitor(title=GLOO, backend=GLOO)),
    ]
    load, rows = os.getloadavg()[0], {}
    print(f"{'p5 / median, us':32} {SHM:>17} {TCP:>17} {'Gloo':>17}   faster than Gloo")
    try:
        for mode, name in itertools.product(("sync", "async"), OPERATIONS):
            title = f"{name}, {mode}"
            if not re.search(options.k, title):
                continue
            task = partial(OPERATIONS[name], async_op=mode == "async")
            rows[title] = found = summary(measure(title, task, groups, options))
            cells = [
                f"{each['p5_us']:7} / {each['median_us']:7}" for each in found.values()
            ]
            ratios = [f"{each['faster_than_gloo']}x" for each in found.values()]
            print(f"{title:32} {' '.join(cells)}   {', '.join(ratios[:2])}", flush=True)
    finally:
        for group in groups:
            group.stop()
    print(f"\nload before {load:.1f}, after {os.getloadavg()[0]:.1f}\n")
    bars = [
        bar(
            f"{title}, {options.bytes} bytes in shared memory <= {LIMIT_US:g} us",
            row[SHM],
            is_met=row[SHM]["median_us"] <= LIMIT_US,
        )
        for title, row in rows.items()
        if title.endswith(", sync")
    ]
    floors = empty_backend.measure()
    print("empty, us:", floors)
    results = {
        "machine": machine(),
        "load_before": round(load, 2),
        "empty_us": floors,
        "rows": rows,
    }
    if not options.no_file:
        save(dated("small-collectives"), {**results, "bars": bars})
    return 0


if __name__ == "__main__":
    sys.exit(main())
