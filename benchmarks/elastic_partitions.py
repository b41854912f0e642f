"""Cuts the network of elastic runs in two, mends it, and checks what becomes of them.

    .venv/bin/python benchmarks/elastic_partitions.py --times 5

Every machine is a network namespace; the cut drops packets between the parts, as a
pulled cable between two switches does. Both parts go on. When the network is mended,
they must be one run again within 10 s: the history with more samples goes on, and the
ledger holds each sample once, computed by machines of the winning part while the
network was cut. Every run is cut once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import describe
from results_file import bar, dated, save

from ringleader.simulation.lan import VirtualLan, lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_partition import SHAPES, Split, split_and_heal
from tests.kit.elastic_world import World

APART_S = 3.0
ONE_RUN_S = 10.0


def measure(shape: str, times: int, net: VirtualLan) -> dict[str, Any]:
    """Split and heal several runs, each of them once.

    A machine that is lost again and again waits for longer every time before it is a
    member again, so a run that is split often would measure that wait.
    """
    failures: list[str] = []
    splits: list[Split] = []
    for turn in range(times):
        try:
            splits.append(split_one_run(SHAPES[shape], net, fast=turn % 2))
        except AssertionError as exc:
            failures.append(f"{type(exc).__name__}: {exc}")
            print(f"  FAILED: {exc}", flush=True)
    return {
        "failures": failures,
        "times": len(splits),
        "both_go_on_s": [round(split.both_go_on_s, 2) for split in splits],
        "one_run_s": [round(split.one_run_s, 2) for split in splits],
    }


def split_one_run(parts: Sequence[Sequence[int]], net: VirtualLan, fast: int) -> Split:
    """Start a run, split it and heal it."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), sum(map(len, parts)), net)
        with world:
            try:
                for index in range(world.size):
                    world.start(index, joins=False)
                return split_and_heal(world, net, parts, APART_S, fast=fast)
            finally:
                net.heal()


def main() -> None:
    """Run all shapes, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="runs of each shape")
    parser.add_argument("--out", type=Path, default=dated("elastic-partitions"))
    chosen = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    results: dict[str, object] = {**describe(), "load_before": load}
    bars = []
    for shape, parts in SHAPES.items():
        began_s = time.monotonic()
        with lan(hosts=sum(map(len, parts)), rate="1gbit") as net:
            found = measure(shape, chosen.times, net)
        print(f"{shape}: {time.monotonic() - began_s:.0f} s", flush=True)
        results[shape] = found
        slowest = max(found["one_run_s"], default=0.0)
        is_whole = not found["failures"] and found["times"] == chosen.times
        text = found["failures"] or f"{found['times']} times, at most {slowest} s"
        name = f"{shape}: one run <= 10 s, the rule honoured, nothing counted twice"
        bars.append(bar(name, text, is_met=is_whole and slowest <= ONE_RUN_S))
    save(chosen.out, {**results, "bars": bars})
    sys.exit(any(each["verdict"] != "met" for each in bars))


if __name__ == "__main__":
    main()
