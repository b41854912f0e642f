"""``python -m ringleader.simulation.membership``: run many seeds, or trace one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from typing import Final

from ringleader.membership.config import MembershipConfig
from ringleader.simulation.membership.seeded_run import SeedResult, simulate

PROFILES: Final = {"lan": None, "training": MembershipConfig.for_training()}


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status is 0 if none of them failed."""
    options = _parse(arguments)
    if options.seed is not None:
        trace = _print if options.trace else None
        run_seed = partial(simulate, size=options.nodes, config=_config(options))
        return _report_one(run_seed(options.seed, trace=trace))
    return _report_all(options)


def _config(options: argparse.Namespace) -> MembershipConfig | None:
    return PROFILES[options.profile]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.membership", description=__doc__
    )
    parser.add_argument(
        "--seeds", type=int, default=1000, help="number of seeds to run"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--nodes",
        type=int,
        help="number of nodes (default: 3 to 8, depending on the seed)",
    )
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), default="lan", help="times to use"
    )
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--trace", action="store_true", help="print every event of that seed"
    )
    return parser.parse_args(arguments)


def _report_one(result: SeedResult) -> int:
    verdict = result.failure or "clean"
    _print(f"seed {result.seed}: {verdict}")
    _print(
        f"{result.size} nodes, {result.num_views} views, {result.num_messages} "
        f"messages; converged {result.converged_s:.2f} s after the last fault"
    )
    return 1 if result.failure else 0


def _report_all(options: argparse.Namespace) -> int:
    begin_s = time.perf_counter()
    results: list[SeedResult] = []
    for result in _run_seeds(options):
        results.append(result)
        if result.failure:
            _print(f"seed {result.seed}: {result.failure}")
    took_s = time.perf_counter() - begin_s
    failed = [o.seed for o in results if o.failure]
    converged_s = sorted(o.converged_s for o in results)
    _print(
        f"{len(results)} seeds in {took_s:.1f} s with {options.jobs} processes: "
        f"{60 * len(results) / took_s:,.0f} seeds/min; {len(failed)} failed"
    )
    _print(
        f"{sum(o.num_views for o in results):,} views, "
        f"{sum(o.num_messages for o in results):,} messages, "
        f"{sum(o.virtual_s for o in results) / 3600:.1f} h of virtual time; converged "
        f"after {converged_s[len(converged_s) // 2]:.2f} s (median), "
        f"{converged_s[int(len(converged_s) * 0.99)]:.2f} s (p99), "
        f"{converged_s[-1]:.2f} s (worst)"
    )
    if failed:
        _print(f"to trace the first failure: --seed {failed[0]} --trace")
    return 1 if failed else 0


def _run_seeds(options: argparse.Namespace) -> Iterator[SeedResult]:
    seeds = range(options.first, options.first + options.seeds)
    run_seed = partial(simulate, size=options.nodes, config=_config(options))
    if options.jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=25)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
