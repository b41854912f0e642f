"""Trains for long while a member is killed every half minute.

    .venv/bin/python benchmarks/elastic_soak.py --minutes 60

Four members; one of the last three gets SIGKILL every ``--every`` seconds and comes
back as a newcomer. Goodput is the number of applied steps times the median step of the
first quiet seconds, per second of the whole run. Memory, descriptors and threads of the
member that is never killed must stay flat.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_world import World

SIZE = 4
PAUSE_S = 0.01
QUIET_S = 10.0


def follow(world: World, seconds: float) -> None:
    """Handle reports for some time."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        world.handle(min(left_s, 0.1))


def soak(minutes: float, every_s: float, seed: int) -> dict[str, object]:
    """Run the world and return what was measured."""
    chosen, usages, kills = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), SIZE) as world:
        for index in range(SIZE):
            world.start(index, joins=False)
        world.wait_complete()
        steady = world.alive[0]
        for member in world.alive.values():
            member.tell(pause_s=PAUSE_S)
        follow(world, 2.0)
        before, began_s = steady.version, time.monotonic()
        follow(world, QUIET_S)
        step_s = (time.monotonic() - began_s) / max(1, steady.version - before)
        usages.append(world.ask(steady, "usage"))
        first, began_s = steady.version, time.monotonic()
        while time.monotonic() < began_s + 60 * minutes:
            follow(world, every_s)
            index = chosen.randrange(1, SIZE)
            if index in world.alive:
                killed_s = world.kill(world.alive[index])
                kills += 1
                world.wait_for_step(killed_s, list(world.alive.values()))
                world.start(index, joins=True)
            for member in world.alive.values():
                member.tell(pause_s=PAUSE_S)
            usages.append(world.ask(steady, "usage"))
            print(f"{kills} kills, version {steady.version}, {usages[-1]}", flush=True)
        seconds = time.monotonic() - began_s
        samples = world.check_ledger()
        return {
            "minutes": round(seconds / 60, 1),
            "kills": kills,
            "steps": steady.version - first,
            "step_s": round(step_s, 4),
            "goodput": round((steady.version - first) * step_s / seconds, 3),
            "usage": {
                name: [usages[0][name], round(statistics.median(_late(usages, name)))]
                for name in ("rss", "descriptors", "threads")
            },
            "samples_in_ledger": samples,
            "steps_compared": world.checks,
            "largest_difference": world.largest_difference,
        }


def _late(usages: list[dict[str, object]], name: str) -> list[int]:
    """Return the last third of the measurements."""
    return [int(str(usage[name])) for usage in usages[-max(1, len(usages) // 3) :]]


def main() -> None:
    """Run it, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    results = {**describe(), **soak(chosen.minutes, chosen.every, chosen.seed)}
    print(json.dumps(results, indent=1))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
