"""Kills members of elastic runs at every named point, in every role, and checks all.

    .venv/bin/python benchmarks/elastic_kills.py --lan --kills 2000   # namespaces: root
    .venv/bin/python benchmarks/elastic_kills.py --kills 100          # on the loopback

Members are processes that train a float64 model; a killed one comes back as a newcomer.
After every step of every member the parameters are compared, bit for bit with those of
the others and within 1e-9 with a single process (numpy). After every world the ledger
must hold each sample once. The gap of a kill is the time until each survivor has
applied a step of a view without the dead: detection, view change, the dead member's
share computed again, and the reduction. Its overhead is the gap less the median of the
five steps before. Silent machines are stopped (SIGSTOP), or their cable is cut.

The results of today are continued: several short runs are as good as a long one. On a
machine with many cores several processes may run at once, each with a file of its own:

    ... elastic_kills.py --lan --kills 250 --seed 1 --fresh --out 1.json   # 2, 3, ...
    ... elastic_kills.py --lan --kills 0 --silent 0 --add 1.json 2.json --out FILE

Copies of state have a mode and results of their own: a machine falls behind with a
complete state, or is new, and something is lost while it copies that of the others
(``tests/kit/elastic_copies.py``). Whoever had a complete state must train on:

    ... elastic_kills.py --lan --copies 200       # and --seed, --fresh, --out, --add
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec
from machine import describe
from results_file import bar, dated, save

from ringleader.simulation.lan import VirtualLan, lan

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit.elastic_copies import Copies, CopyFaults
from tests.kit.elastic_copies import cases as cases_of_copies
from tests.kit.elastic_killer import Killer, cases, matrix
from tests.kit.elastic_tally import Tally, quantiles
from tests.kit.elastic_world import Member, World

MAX_FAILURES = 5
"""In worlds of one size; then the rest of its kills is left out."""
KILLS, TWO_NODES = 2000, 100
P50_S, P99_S, SILENT_S = 0.2, 0.5, 5.0
COPIES, PART_COPIES = 200, 6
"""Faults during copies that are wanted, and those in one world."""
PART_KILLS = 50
"""Kills in a world after which the results are saved."""


class Bench:
    """The results of today, and what adds to them."""

    def __init__(self, file: Path, *, is_lan: bool) -> None:
        self._file = file
        self._is_lan = is_lan
        self._tallies: dict[int, Tally] = {}
        self._parts: list[dict[str, object]] = []

    def load(self) -> None:
        """Continue what was measured before."""
        if self._file.exists():
            self.add(self._file)

    def add(self, file: Path) -> None:
        """Add what another process has measured; nothing counts twice."""
        found = json.loads(file.read_text())
        if found["lan"] != self._is_lan:
            sys.exit(f"{file}: measured {'with' if found['lan'] else 'without'} --lan")
        if any(part in self._parts for part in found["parts"]):
            sys.exit(f"{file}: it was added before, in part or in full")
        self._parts += found["parts"]
        for size, plain in found["worlds"].items():
            tally = self._tallies.setdefault(int(size), Tally())
            tally.add(msgspec.convert(plain, Tally))

    def run(self, sizes: list[int], kills: int, silent: int, seed: int | None) -> None:
        """Kill in worlds of several sizes."""
        seed = len(self._parts) + 1 if seed is None else seed
        part = {
            "began": time.strftime("%H:%M:%S"),
            "load_before": round(os.getloadavg()[0], 2),
            "sizes": sizes,
            "seed": seed,
        }
        self._parts.append(part)
        began_s, before = time.monotonic(), self._num_kills()
        for place, size in enumerate(sizes):
            share = kills * (place + 1) // len(sizes) - kills * place // len(sizes)
            made = lan(hosts=size, rate="1gbit") if self._is_lan else nullcontext()
            with made as net:
                self._run_size(size, share, silent, net, seed)
            part["kills"] = self._num_kills() - before
            part["minutes"] = round((time.monotonic() - began_s) / 60, 2)
            self.save()

    def _num_kills(self) -> int:
        return sum(tally.num_kills for tally in self._tallies.values())

    def _run_size(
        self, size: int, kills: int, silent: int, net: VirtualLan | None, seed: int
    ) -> None:
        tally = self._tallies.setdefault(size, Tally())
        until, allowed = tally.num_kills + kills, len(tally.failures) + MAX_FAILURES
        world = 0
        while tally.num_kills < until and len(tally.failures) < allowed:
            began_s, before = time.monotonic(), tally.num_kills
            self._kill_in_world(size, until, net, 1000 * seed + world)
            world += 1
            done, took_s = tally.num_kills - before, time.monotonic() - began_s
            print(f"{size} members: {done} kills in {took_s:.0f} s", flush=True)
        if silent:
            silence(size, silent, tally, net)

    def _kill_in_world(
        self, size: int, until: int, net: VirtualLan | None, seed: int
    ) -> None:
        """Kill in one world until there were enough, or something is wrong."""
        tally, case = self._tallies[size], ("", "")
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), size, net)
            with world:
                killer, found = Killer(world, tally, seed), cases(size, seed)
                try:
                    killer.begin()
                    while tally.num_kills < until:
                        parts = tally.num_kills // PART_KILLS
                        case = next(found)
                        killer.kill_once(case)
                        if tally.num_kills // PART_KILLS > parts:
                            self.save()
                    tally.samples_in_ledgers += world.check_ledger()
                except AssertionError as exc:
                    kind = type(exc).__name__
                    text = f"{kind} at {case}, kill {tally.num_kills}: {exc}"
                    tally.failures.append(text)
                    print(f"  FAILED: {size} members: {text}", flush=True)
            note_world(tally, world)

    def save(self) -> None:
        """Write everything to the file."""
        save(self._file, {**self.results(), "worlds": self._plain()})

    def _plain(self) -> dict[str, object]:
        return {str(s): msgspec.to_builtins(t) for s, t in self._tallies.items()}

    def results(self) -> dict[str, object]:
        """Return what is said of the measurements, without these."""
        table = {
            f"{size} members": {
                name: {
                    "kills": cell.kills,
                    "gap_ms": quantiles(cell.gaps_ms),
                    "overhead_ms": quantiles(cell.overheads_ms),
                }
                for name, cell in sorted(tally.cells.items())
            }
            for size, tally in self._tallies.items()
        }
        tallies = self._tallies.values()
        return {
            **describe(),
            "lan": self._is_lan,
            "parts": self._parts,
            "kills": self._num_kills(),
            "steps_compared": sum(t.steps_compared for t in tallies),
            "samples_in_ledgers": sum(t.samples_in_ledgers for t in tallies),
            "largest_difference": max(t.largest_difference for t in tallies),
            "step_s": quantiles([s for t in tallies for s in t.steps_s]),
            "overhead_s": quantiles([s for t in tallies for s in t.overheads_s]),
            "table": table,
        }

    def judge(self) -> bool:
        """Save the results with a verdict per bar; True if all are met."""
        tallies = self._tallies
        failures = [text for t in tallies.values() for text in t.failures]
        ended, wrong, hangs = (
            sum(text.startswith(kind) for text in failures)
            for kind in ("Ended", "Failed", "Hang")
        )
        wanted = [(s, "/".join(c)) for s in tallies for c in matrix(s)]
        missing = [f"{n} ({s})" for s, n in wanted if n not in tallies[s].cells]
        overheads = quantiles([s for t in tallies.values() for s in t.overheads_s])
        ways = [w for t in tallies.values() for w in t.silent_s.values()]
        silent_s = max((s for way in ways for s in way), default=0.0)
        two = two_nodes(tallies.get(2, Tally()))
        num_kills = self._num_kills()
        slow = "p50 <= 0.2 s, p99 <= 0.5 s"
        bars = [
            bar(f">= {KILLS} kills", num_kills, is_met=num_kills >= KILLS),
            bar("every point in every role", missing or "all", is_met=not missing),
            bar("0 wrong sums", wrong, is_met=not wrong),
            bar("0 hangs", hangs, is_met=not hangs),
            bar("0 survivors that end", ended, is_met=not ended),
            bar(
                f"overhead of a kill: {slow}",
                overheads,
                is_met=bool(overheads)
                and overheads["p50"] <= P50_S
                and overheads["p99"] <= P99_S,
            ),
            bar("silent machine <= 5 s", silent_s, is_met=0 < silent_s <= SILENT_S),
            bar(
                "2 nodes, either one killed, 100 of 100",
                two,
                is_met=min(two.values()) >= TWO_NODES
                and 2 in tallies
                and not tallies[2].failures,
            ),
        ]
        results = self.results()
        table = {**results, "bars": bars, "failures": failures, "worlds": self._plain()}
        save(self._file, table)
        return all(each["verdict"] == "met" for each in bars)


def two_nodes(tally: Tally) -> dict[str, int]:
    """Return how often the leader and how often the other of two was killed."""
    return {
        role: sum(c.kills for n, c in tally.cells.items() if n.endswith(f"/{role}"))
        for role in ("leader", "other")
    }


def note_world(tally: Tally, world: World) -> None:
    """Add what a world has compared."""
    tally.steps_compared += world.checks
    tally.largest_difference = max(tally.largest_difference, world.largest_difference)


def silence(size: int, times: int, tally: Tally, net: VirtualLan | None) -> None:
    """Silence members in turn, and wait for the others and for its return."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), size, net)
        with world:
            try:
                Killer(world, tally, 0).begin()
                for turn in range(times):
                    for way in ("SIGSTOP", "cable cut")[: 1 if net is None else 2]:
                        found_s = silence_one(world, world.alive[turn % size], way)
                        tally.silent_s.setdefault(way, []).append(round(found_s, 3))
                tally.samples_in_ledgers += world.check_ledger()
            except AssertionError as exc:
                text = f"{type(exc).__name__} with a silent member: {exc}"
                tally.failures.append(text)
                print(f"  FAILED: {text}", flush=True)
        note_world(tally, world)


def silence_one(world: World, victim: Member, way: str) -> float:
    """Return how long the others made no step without a member that is silent."""
    others = [member for member in world.alive.values() if member is not victim]
    world.is_split = True
    since_s = time.monotonic()
    if way == "SIGSTOP":
        world.kill(victim, signal.SIGSTOP)
    elif world.net is not None:
        world.net.cut(victim.index)
    without = [world.nodes[victim.index]]
    after_s = world.wait_for_step(since_s, others, without=without)
    if way == "SIGSTOP":
        world.kill(victim, signal.SIGCONT)
    elif world.net is not None:
        world.net.mend(victim.index)
    world.wait_complete()
    world.is_split, world.weights = False, {}
    return after_s - since_s


def run_copies(file: Path, chosen: argparse.Namespace) -> bool:
    """Add faults during copies to the results; True if all bars are met."""
    found, parts = Copies(), []
    known = [file] if file.exists() and not chosen.fresh else []
    for each in [*known, *chosen.add]:
        plain = json.loads(each.read_text())
        found.add(msgspec.convert(plain["copies"], Copies))
        parts += plain["parts"]
    seed = len(parts) + 1 if chosen.seed is None else chosen.seed
    if chosen.copies:
        parts.append({"began": time.strftime("%H:%M:%S"), "seed": seed})
    sizes = [*map(int, chosen.sizes.split(","))]
    until, number = found.num_faults + chosen.copies, 0
    while found.num_faults < until and len(found.failures) < MAX_FAILURES:
        size = sizes[number % len(sizes)]
        made = lan(hosts=size, rate="1gbit") if chosen.lan else nullcontext()
        with made as net, tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), size, net)
            case, every = None, cases_of_copies(size, 1000 * seed + number, net)
            with world:
                faults = CopyFaults(world, found, 1000 * seed + number)
                try:
                    faults.begin()
                    for case in itertools.islice(every, PART_COPIES):
                        faults.carry_out(case)
                        if found.num_faults >= until:
                            break
                except AssertionError as exc:
                    text = f"{size} members: {type(exc).__name__} at {case}: {exc}"
                    found.failures.append(text)
                    print(f"  FAILED: {text}", flush=True)
            found.steps_compared += world.checks
        number += 1
        print(f"{found.num_faults} faults in copies", flush=True)
        save_copies(file, found, parts, is_lan=chosen.lan)
    return save_copies(file, found, parts, is_lan=chosen.lan)


def save_copies(
    file: Path, found: Copies, parts: list[dict[str, object]], *, is_lan: bool
) -> bool:
    """Write the results of faults during copies; True if all bars are met."""
    lost = len(found.failures)
    bars = [
        bar(f">= {COPIES} faults", found.num_faults, is_met=found.num_faults >= COPIES),
        bar("0 lost states, wrong sums or hangs", lost, is_met=not lost),
    ]
    results = {"lan": is_lan, "parts": parts, "faults": found.num_faults}
    waits = {"wait_s": quantiles(found.waits_s)}
    copies = {"copies": msgspec.to_builtins(found)}
    save(file, {**describe(), **results, **waits, "bars": bars, **copies})
    return all(each["verdict"] == "met" for each in bars)


def main() -> None:
    """Run all worlds, and save the results with the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of this part")
    parser.add_argument("--sizes", default="2,3,4")
    parser.add_argument("--silent", type=int, default=3, help="per size and way")
    parser.add_argument("--copies", type=int, help="faults during copies, nothing else")
    parser.add_argument("--lan", action="store_true")
    parser.add_argument("--out", type=Path, help="instead of today's results")
    parser.add_argument("--fresh", action="store_true", help="continue nothing")
    parser.add_argument("--seed", type=int, help="another one for each process")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FILE")
    chosen = parser.parse_args()
    if chosen.copies is not None:
        name = "elastic-copies" if chosen.lan else "elastic-copies-loopback"
        sys.exit(not run_copies(chosen.out or dated(name), chosen))
    if not (chosen.kills or chosen.silent or chosen.add):
        parser.error("nothing to do: give --kills, --silent or --add")
    name = "elastic-kills" if chosen.lan else "elastic-kills-loopback"
    file = chosen.out or dated(name)
    bench = Bench(file, is_lan=chosen.lan)
    if not chosen.fresh:
        bench.load()
    for each in chosen.add:
        bench.add(each)
    if chosen.kills or chosen.silent:
        sizes = [*map(int, chosen.sizes.split(","))]
        bench.run(sizes, chosen.kills, chosen.silent, chosen.seed)
    sys.exit(not bench.judge())


if __name__ == "__main__":
    main()
