"""Checks the step protocol of elastic runs in its simulator, and how fast that is.

    .venv/bin/python benchmarks/step_protocol.py [--seeds N] [--out FILE]

Three parts: seeds of the product (none may violate an invariant), seeds with the
product's membership machine below, and for each planted bug the first seed that finds
it. Rates are seeds per minute of CPU time of one core.
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

from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seeded_run import StepResult, simulate_steps

COUNTS = ("events", "views", "delivered", "gathers", "adopted", "forks", "crashes")
BUG_LIMIT = 2000
"""Seeds in which a planted bug must be found."""


def main() -> None:
    """Run all parts; write the numbers after each of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--membership-seeds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-bugs", action="store_true")
    options = parser.parse_args()
    report: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }

    def note(part: str, found: object) -> None:
        report[part] = found
        print(f"{part}: {json.dumps(found)}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(report, indent=1) + "\n")

    eight = partial(simulate_steps, size=8)
    note("8 nodes", run_seeds(eight, range(200)))
    if not options.skip_bugs:
        for name in PLANTED_BUGS:
            note(f"planted bug {name}", find_bug(name))
    seeds = range(options.membership_seeds)
    note("with membership", run_seeds(simulate_with_membership, seeds))
    seeds = range(options.first, options.first + options.seeds)
    note("2 to 8 nodes", run_seeds(simulate_steps, seeds))


def run_seeds(simulate: Callable[[int], StepResult], seeds: range) -> dict[str, object]:
    """Return what happened in these seeds, and how many of them failed."""
    begin_s = time.process_time()
    totals = dict.fromkeys(COUNTS, 0)
    failed: list[tuple[int, str]] = []
    for seed in seeds:
        result = simulate(seed)
        for name in COUNTS:
            totals[name] += getattr(result, f"num_{name}")
        if result.failure:
            failed.append((seed, result.failure))
    took_s = time.process_time() - begin_s
    return {
        "seeds": len(seeds),
        "first": seeds.start,
        "failed": failed,
        "seeds_per_cpu_min": round(60 * len(seeds) / took_s),
        **totals,
    }


def find_bug(name: str) -> dict[str, object]:
    """Return the first seed that finds a planted bug, and the invariant it breaks."""
    for seed in range(BUG_LIMIT):
        failure = simulate_steps(seed, rules=PLANTED_BUGS[name]).failure
        if failure:
            return {"seed": seed, "violates": failure.split(":")[0]}
    return {"seed": None, "violates": None}


if __name__ == "__main__":
    main()
