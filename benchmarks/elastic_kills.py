"""Kills members of elastic runs at every named point, in every role, and checks all.

    .venv/bin/python benchmarks/elastic_kills.py --kills 2000        # on the loopback
    .venv/bin/python benchmarks/elastic_kills.py --kills 500 --lan   # in namespaces

Members are processes that train a float64 model; a killed one comes back as a newcomer.
After every step of every member the parameters are compared, bit for bit with those of
the others and within 1e-9 with a single process (numpy). After every world the ledger
must hold each sample once. The gap of a kill is the time from the kill to the next
applied step on the last of the survivors: detection, view change, the dead member's
share computed again, and the reduction. Its overhead is the gap less one median step.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from machine import describe

from ringleader.simulation.lan import VirtualLan, lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_killer import Killer, Tally, cases
from tests.kit.elastic_world import World

MAX_FAILURES = 5


def kill_in_world(
    size: int, kills: int, tally: Tally, net: VirtualLan | None, seed: int
) -> None:
    """Kill ``kills`` members of one world, or until something is wrong."""
    until = tally.num_kills + kills
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), size, net)
        with world:
            killer, found = Killer(world, tally, seed), cases(size, seed)
            case: tuple[str, str] | None = None
            try:
                killer.begin()
                while tally.num_kills < until:
                    case = next(found)
                    killer.kill_once(case)
                tally.samples += world.check_ledger()
            except AssertionError as exc:
                text = f"{size} members, {case}, kill {tally.num_kills}: {exc}"
                tally.failures.append(text)
                print(f"  FAILED: {text}", flush=True)
            finally:
                tally.checks += world.checks
                tally.largest_difference = max(
                    tally.largest_difference, world.largest_difference
                )


def silence(size: int, times: int, tally: Tally, net: VirtualLan | None) -> None:
    """Stop a member, or cut its cable, and wait for the others and its return."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), size, net)
        with world:
            killer = Killer(world, tally, 0)
            try:
                killer.begin()
                for turn in range(times):
                    victim = world.alive[turn % size]
                    others = [m for m in world.alive.values() if m is not victim]
                    since_s = time.monotonic()
                    if net is not None:
                        net.cut(victim.index)
                    else:
                        world.kill(victim, signal.SIGSTOP)
                    after_s = world.wait_for_step(since_s + 0.2, others)
                    tally.silent_s.append(after_s - since_s)
                    if net is not None:
                        net.mend(victim.index)
                    else:
                        world.kill(victim, signal.SIGCONT)
                    world.wait_complete()
                tally.samples += world.check_ledger()
            except AssertionError as exc:
                tally.failures.append(f"silent member: {exc}")
                print(f"  FAILED: silent member: {exc}", flush=True)


def quantiles(values: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest value."""
    if not values:
        return {}
    ordered = sorted(values)
    at = min(len(ordered) - 1, int(0.99 * len(ordered)))
    return {
        "p50": round(statistics.median(ordered), 4),
        "p99": round(ordered[at], 4),
        "max": round(ordered[-1], 4),
    }


def report(tally: Tally) -> dict[str, object]:
    """Return the results of one kind of world."""
    return {
        "kills": tally.num_kills,
        "kills_by_point_and_role": dict(sorted(tally.kills.items())),
        "points_not_reached": dict(sorted(tally.not_reached.items())),
        "failures": tally.failures,
        "gap_s": quantiles(tally.gaps_s),
        "overhead_s": quantiles(tally.overheads_s),
        "silent_s": quantiles(tally.silent_s),
        "median_step_s": round(statistics.median(tally.steps_s or [0]), 4),
        "steps_compared": tally.checks,
        "samples_in_ledgers": tally.samples,
        "largest_difference": tally.largest_difference,
    }


def run_size(size: int, chosen: argparse.Namespace) -> Tally:
    """Kill in worlds of one size until there were enough kills."""
    tally, began_s = Tally(), time.monotonic()
    made = lan(hosts=size, rate="1gbit") if chosen.lan else nullcontext()
    with made as net:
        wanted, turn = chosen.kills // len(chosen.sizes.split(",")), 0
        while tally.num_kills < wanted and len(tally.failures) < MAX_FAILURES:
            kills = min(chosen.world_kills, wanted - tally.num_kills)
            kill_in_world(size, kills, tally, net, chosen.seed + turn)
            turn += 1
            took_s, gaps = time.monotonic() - began_s, quantiles(tally.gaps_s)
            text = f"{size} members: {tally.num_kills} kills in {took_s:.0f} s"
            print(f"{text}, gap {gaps}", flush=True)
        if chosen.silent and size > 1:
            silence(size, chosen.silent, tally, net)
    return tally


def main() -> None:
    """Run all worlds, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--sizes", default="2,3,4")
    parser.add_argument("--silent", type=int, default=3)
    parser.add_argument("--lan", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--world-kills", type=int, default=250)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    worlds: dict[str, object] = {}
    num_failures = 0
    for size in map(int, chosen.sizes.split(",")):
        tally = run_size(size, chosen)
        num_failures += len(tally.failures)
        worlds[str(size)] = report(tally)
        print(json.dumps(worlds[str(size)], indent=1), flush=True)
        if chosen.out is not None:
            results = {**describe(), "lan": chosen.lan, "worlds": worlds}
            chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{num_failures} failures")
    sys.exit(bool(num_failures))


if __name__ == "__main__":
    main()
