"""Checks the step protocol of elastic runs in its simulator, and how fast that is.

    .venv/bin/python benchmarks/step_protocol.py --out FILE [--part NAME] [--seeds N]
        [--jobs PROCESSES]

Parts, each kept in FILE with its date when it is done:

    rate        seeds per minute of CPU time with 8 nodes
    bugs        for each planted bug the first seed that finds it, the first in which
                its own invariant does, and the first if only that one is checked
    membership  seeds with the product's membership machine below
    majority    seeds with partition="majority"
    seeds       seeds of the product; none may violate an invariant

A later call continues where FILE ends: planted bugs that were found are not looked for
again, and ``--seeds N`` goes on after the last seed until N were run in all. FILE is
written every few seconds, so a run may be stopped at any time: what is lost is what
the processes have begun. The part rate is always measured in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from ringleader.simulation.seed_runs import spare_collector
from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.oracle import INVARIANTS
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seeded_run import simulate_steps
from ringleader.simulation.steps.step_result import COUNTS, StepResult

BUG_LIMIT = 2000
"""Seeds in which a planted bug must be found."""

NEEDED_RATE = 1000
NEEDED_SEEDS = 100_000
WRITE_S = 10.0

BLOCK = 10
"""Seeds that a process runs before it tells of them."""

PARTS = ("rate", "bugs", "membership", "majority", "seeds")
SIMULATIONS: dict[str, Callable[[int], StepResult]] = {
    "membership": simulate_with_membership,
    "majority": partial(simulate_steps, partition="majority"),
    "seeds": simulate_steps,
}

_A, _B = TypeVar("_A"), TypeVar("_B")


class Workers:
    """Spreads work over processes; without a pool this one does it."""

    def __init__(self, pool: Pool | None) -> None:
        self._pool = pool

    def in_order(self, work: Callable[[_A], _B], on: Iterable[_A]) -> Iterable[_B]:
        """Return results in the order of what they are of."""
        return map(work, on) if self._pool is None else self._pool.imap(work, on)

    def as_done(self, work: Callable[[_A], _B], on: Iterable[_A]) -> Iterable[_B]:
        """Return results in the order in which they are there."""
        if self._pool is None:
            return map(work, on)
        return self._pool.imap_unordered(work, on)


@contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """Yield as many processes; a single one is this one."""
    if jobs == 1:
        _prepare()
        yield Workers(None)
    else:
        with get_context("spawn").Pool(jobs, _begin, (os.getpid(),)) as pool:
            yield Workers(pool)


def _begin(parent: int) -> None:
    """Start a process: it ends with ``parent``, which alone is told of Ctrl-C."""
    if sys.platform == "linux":
        kill_on_death_of_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare()


def _prepare() -> None:
    simulate_steps(0)  # everything is imported and warm
    spare_collector()


class Report:
    """The numbers so far, in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.parts: dict[str, Any] = {}
        self._read()

    def _read(self) -> None:
        """Take what is in the file: parts may be run by several processes."""
        if self.path is not None and self.path.exists():
            self.parts = json.loads(self.path.read_text())

    def keep(self, part: str, found: dict[str, Any]) -> None:
        """Replace the numbers of a part."""
        self._read()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.parts[part] = {**found, "date": now}
        self.parts["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        self.parts["python"] = platform.python_version()
        self.parts["verdict"] = verdict(self.parts)
        if self.path is not None:
            new = self.path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(self.parts, indent=1) + "\n")
            new.replace(self.path)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=1000, help="of the part seeds")
    parser.add_argument("--other-seeds", type=int, default=500, help="of the others")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one process is needed")
    report = Report(options.out)
    parts = options.part or PARTS
    if "rate" in parts:  # before the other processes take the cores
        measure_rate(report)
    with workers(options.jobs) as pool:
        if "bugs" in parts:
            find_bugs(report, pool)
        for part in SIMULATIONS:
            if part in parts:
                wanted = options.seeds if part == "seeds" else options.other_seeds
                run(report, part, wanted, pool)
    for part in parts:
        print(f"{part}: {json.dumps(report.parts[part])}", flush=True)
    print(json.dumps(report.parts["verdict"]))


def measure_rate(report: Report) -> None:
    """Measure the rate with 8 nodes."""
    _prepare()
    num = 200
    begin_s = time.process_time()
    failed = [s for s in range(num) if simulate_steps(s, size=8).failure is not None]
    rate = round(60 * num / (time.process_time() - begin_s))
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    found = {"seeds": num, "failed": failed, "seeds_per_cpu_min": rate, "load": load}
    report.keep("rate", found)


class Block(NamedTuple):
    """Seeds that one process runs."""

    part: str
    first: int
    end: int


class Outcome(NamedTuple):
    """What came of a block."""

    end: int
    counts: dict[str, int]
    failed: list[tuple[int, str]]
    cpu_s: float


def run_block(block: Block) -> Outcome:
    """Run the seeds of a block."""
    simulate, begin_s = SIMULATIONS[block.part], time.process_time()
    counts, failed = dict.fromkeys(COUNTS, 0), []
    for seed in range(block.first, block.end):
        result = simulate(seed)
        for name in COUNTS:
            counts[name] += getattr(result, f"num_{name}")
        if result.failure:
            failed.append((seed, result.failure))
    return Outcome(block.end, counts, failed, time.process_time() - begin_s)


def run(report: Report, part: str, until: int, pool: Workers) -> None:
    """Run the seeds that are missing from a part.

    Blocks are taken in order: the part has all seeds up to the last one.
    """
    found = report.parts.get(part) or {"seeds": 0, "failed": [], "cpu_s": 0.0}
    found = {**dict.fromkeys(COUNTS, 0), **found}
    written_s, cpu_s = time.monotonic(), found["cpu_s"]
    firsts = range(found["seeds"], until, BLOCK)
    blocks = [Block(part, first, min(first + BLOCK, until)) for first in firsts]
    for outcome in pool.in_order(run_block, blocks):
        found["seeds"], cpu_s = outcome.end, cpu_s + outcome.cpu_s
        for name in COUNTS:
            found[name] += outcome.counts[name]
        for seed, failure in outcome.failed:
            found["failed"].append([seed, failure])
            print(f"{part}: seed {seed}: {failure}", flush=True)
        is_due = time.monotonic() > written_s + WRITE_S
        if outcome.end == until or outcome.failed or is_due:
            written_s = time.monotonic()
            found["cpu_s"] = round(cpu_s, 1)
            found["seeds_per_cpu_min"] = round(60 * found["seeds"] / max(cpu_s, 0.1))
            report.keep(part, found)


def find_bugs(report: Report, pool: Workers) -> None:
    """Find each planted bug that was not found yet."""
    found = {k: v for k, v in report.parts.get("bugs", {}).items() if k != "date"}
    missing = [n for n in PLANTED_BUGS if found.get(n, {}).get("seed") is None]
    for name, seeds in pool.as_done(find_bug, missing):
        found[name] = seeds
        print(f"{name}: {json.dumps(seeds)}", flush=True)
        report.keep("bugs", {n: found[n] for n in PLANTED_BUGS if n in found})


def find_bug(name: str) -> tuple[str, dict[str, Any]]:
    """Return which seeds find a planted bug, and the invariant of the first one.

    The name comes with them.
    """
    invariant, rules = PLANTED_BUGS[name]
    first: int | None = None
    violates = ""
    own: int | None = None
    for seed in range(BUG_LIMIT):
        failure = simulate_steps(seed, rules=rules).failure
        if failure is None:
            continue
        caught_by = failure.split(":")[0]
        if first is None:
            first, violates = seed, caught_by
        if caught_by == invariant:
            own = seed
            break
    alone = None
    if own is not None:
        seeds = range(BUG_LIMIT)
        only = partial(simulate_steps, rules=rules, watched=(invariant,))
        hits = (s for s in seeds if (only(s).failure or "").startswith(f"{invariant}:"))
        alone = next(hits, None)
    return name, {
        "seed": first,
        "violates": violates,
        "invariant": invariant,
        "seed_of_invariant": own,
        "seed_of_invariant_alone": alone,
    }


def verdict(parts: dict[str, Any]) -> dict[str, bool]:
    """Return whether each bar is met, as far as it was measured."""
    bugs = {k: v for k, v in parts.get("bugs", {}).items() if k != "date"}
    caught = {
        b["invariant"] for b in bugs.values() if b["seed_of_invariant"] is not None
    }
    ran = [parts[part] for part in PARTS if part in parts and part != "bugs"]
    return {
        f"at least {NEEDED_RATE} seeds per CPU-minute with 8 nodes": (
            parts.get("rate", {}).get("seeds_per_cpu_min", 0) >= NEEDED_RATE
        ),
        f"at least {NEEDED_SEEDS} seeds": (
            parts.get("seeds", {}).get("seeds", 0) >= NEEDED_SEEDS
        ),
        "no seed failed": bool(ran) and not any(part["failed"] for part in ran),
        f"every planted bug is found within {BUG_LIMIT} seeds": (
            bugs.keys() == PLANTED_BUGS.keys()
            and all(b["seed"] is not None for b in bugs.values())
        ),
        "every invariant finds a planted bug": caught >= set(INVARIANTS),
    }


if __name__ == "__main__":
    main()
