"""Checks the step protocol of elastic runs in its simulator, and how fast that is.

    .venv/bin/python benchmarks/step_protocol.py --out FILE [--part NAME] [--seeds N]

Parts, each kept in FILE with its date when it is done:

    rate        seeds per minute of CPU time with 8 nodes
    bugs        for each planted bug the first seed that finds it, the first in which
                its own invariant does, and the first if only that one is checked
    membership  seeds with the product's membership machine below
    majority    seeds with partition="majority"
    seeds       seeds of the product; none may violate an invariant

A later call continues where FILE ends: planted bugs that were found are not looked for
again, and ``--seeds N`` goes on after the last seed until N were run in all. FILE is
written every few seconds, so a run may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

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

PARTS = ("rate", "bugs", "membership", "majority", "seeds")


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
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = Report(options.out)
    simulate_steps(0)  # everything is imported and warm
    spare_collector()
    num = options.other_seeds
    jobs: dict[str, Callable[[], None]] = {
        "rate": partial(measure_rate, report),
        "bugs": partial(find_bugs, report),
        "membership": partial(run, report, "membership", simulate_with_membership, num),
        "majority": partial(
            run, report, "majority", partial(simulate_steps, partition="majority"), num
        ),
        "seeds": partial(run, report, "seeds", simulate_steps, options.seeds),
    }
    for part in options.part or PARTS:
        jobs[part]()
        print(f"{part}: {json.dumps(report.parts[part])}", flush=True)
    print(json.dumps(report.parts["verdict"]))


def measure_rate(report: Report) -> None:
    """Measure the rate with 8 nodes."""
    num = 200
    begin_s = time.process_time()
    failed = [s for s in range(num) if simulate_steps(s, size=8).failure is not None]
    rate = round(60 * num / (time.process_time() - begin_s))
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    found = {"seeds": num, "failed": failed, "seeds_per_cpu_min": rate, "load": load}
    report.keep("rate", found)


def run(
    report: Report, part: str, simulate: Callable[[int], StepResult], until: int
) -> None:
    """Run the seeds that are missing from a part."""
    found = report.parts.get(part) or {"seeds": 0, "failed": [], "cpu_s": 0.0}
    found = {**dict.fromkeys(COUNTS, 0), **found}
    written_s, begin_s = time.monotonic(), time.process_time()
    before_s = found["cpu_s"]
    for seed in range(found["seeds"], until):
        result = simulate(seed)
        found["seeds"] = seed + 1
        for name in COUNTS:
            found[name] += getattr(result, f"num_{name}")
        if result.failure:
            found["failed"].append([seed, result.failure])
            print(f"{part}: seed {seed}: {result.failure}", flush=True)
        is_last = seed == until - 1
        if is_last or result.failure or time.monotonic() > written_s + WRITE_S:
            written_s = time.monotonic()
            found["cpu_s"] = round(before_s + time.process_time() - begin_s, 1)
            found["seeds_per_cpu_min"] = round(60 * found["seeds"] / found["cpu_s"])
            report.keep(part, found)


def find_bugs(report: Report) -> None:
    """Find each planted bug that was not found yet."""
    found = {k: v for k, v in report.parts.get("bugs", {}).items() if k != "date"}
    for name in PLANTED_BUGS:
        if name not in found or found[name]["seed"] is None:
            found[name] = find_bug(name)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
            report.keep("bugs", found)


def find_bug(name: str) -> dict[str, Any]:
    """Return which seeds find a planted bug, and the invariant of the first one."""
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
    return {
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
