"""Cuts the network of elastic runs in two, mends it, and checks what becomes of them.

    .venv/bin/python benchmarks/elastic_partitions.py --times 5

Every machine is a network namespace; the cut drops packets between the parts, as a
pulled cable between two switches does. Both parts go on. When the network is mended,
they must be one run again within 10 s: the history with more samples goes on, and the
ledger holds each sample once, computed by machines of the winning part while the
network was cut.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

from ringleader.simulation.lan import VirtualLan, lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_partition import SHAPES, split_and_heal
from tests.kit.elastic_world import World

APART_S = 3.0
ONE_RUN_S = 10.0


def measure(shape: str, times: int, net: VirtualLan) -> dict[str, object]:
    """Split and heal one world again and again."""
    parts = SHAPES[shape]
    found: dict[str, object] = {"times": 0, "failures": []}
    alone_s: list[float] = []
    healed_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), sum(map(len, parts)), net)
        with world:
            try:
                for index in range(world.size):
                    world.start(index, joins=False)
                for turn in range(times):
                    split = split_and_heal(world, net, parts, APART_S, fast=turn % 2)
                    alone_s.append(split.both_go_on_s)
                    healed_s.append(split.one_run_s)
                    if split.one_run_s > ONE_RUN_S:
                        text = f"one run after {split.one_run_s:.1f} s"
                        raise AssertionError(text)
            except AssertionError as exc:
                found["failures"] = [str(exc)]
                print(f"  FAILED: {exc}", flush=True)
    return {
        **found,
        "times": len(healed_s),
        "both_go_on_s": [round(s, 2) for s in alone_s],
        "one_run_s": [round(s, 2) for s in healed_s],
    }


def main() -> None:
    """Run all shapes, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    results: dict[str, object] = dict(describe())
    failed = False
    for shape, parts in SHAPES.items():
        began_s = time.monotonic()
        with lan(hosts=sum(map(len, parts)), rate="1gbit") as net:
            results[shape] = found = measure(shape, chosen.times, net)
        print(
            shape, json.dumps(found), f"{time.monotonic() - began_s:.0f} s", flush=True
        )
        failed |= bool(found["failures"])
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
