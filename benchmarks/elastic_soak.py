"""Trains for long while a member is killed every half minute.

    .venv/bin/python benchmarks/elastic_soak.py --minutes 60

Four members; one of the last three gets SIGKILL every ``--every`` seconds and comes
back as a newcomer. Goodput is the number of applied steps times the mean step of the
first quiet seconds, per second of the whole run. Memory, descriptors and threads of the
member that is never killed must be in the last third of the run as in the first. Every
step of every member is compared as in elastic_kills.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from machine import describe
from results_file import bar, dated, save

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_soak import NAMES, SIZE, Soak
from tests.kit.elastic_world import World

QUIET_S = 20.0
GOODPUT = 0.85
MORE = {"rss": 8e6, "descriptors": 1.0, "threads": 1.0}
"""How much more the last third may use: that is flat."""


def run(chosen: argparse.Namespace) -> dict[str, object]:
    """Run the world and return what was measured, with the verdicts."""
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), SIZE) as world:
        soak, failure, samples = Soak(world, chosen.seed), "", 0
        soak.begin(QUIET_S)
        first, began_s = soak.version, time.monotonic()
        last, next_s = first, began_s
        try:
            while time.monotonic() < began_s + 60 * chosen.minutes:
                next_s += chosen.every
                soak.follow(next_s - time.monotonic())
                soak.kill_one()
                last = soak.version
                used = soak.usages[-1]
                print(f"{soak.kills} kills, version {last}, {used}", flush=True)
            samples = world.check_ledger()
        except AssertionError as exc:
            failure = f"{type(exc).__name__}: {exc}"
        seconds = time.monotonic() - began_s
        goodput = (last - first) * soak.step_s / seconds
        used_s = {name: soak.thirds(name) for name in NAMES}
        flat = {n: late - early <= MORE[n] for n, (early, late) in used_s.items()}
        return {
            "minutes": round(seconds / 60, 1),
            "kills": soak.kills,
            "steps": last - first,
            "step_s": round(soak.step_s, 4),
            "usage_in_first_and_last_third": used_s,
            "samples_in_ledger": samples,
            "steps_compared": world.checks,
            "largest_difference": world.largest_difference,
            "bars": [
                bar("no wrong value, no hang", failure or "none", is_met=not failure),
                bar("goodput >= 85 %", round(goodput, 4), is_met=goodput >= GOODPUT),
                *(bar(f"{n} flat", used_s[n], is_met=flat[n]) for n in NAMES),
            ],
        }


def main() -> None:
    """Run it and save the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=dated("elastic-soak"))
    chosen = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    results = {**describe(), "load_before": load, "every_s": chosen.every}
    save(chosen.out, {**results, **run(chosen)})


if __name__ == "__main__":
    main()
