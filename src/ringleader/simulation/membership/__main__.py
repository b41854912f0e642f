"""``python -m ringleader.simulation.membership``: many seeds, or one with its story."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context

from ringleader.simulation.membership.seeded_run import Outcome, simulate


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status says whether all of them were clean."""
    options = _parse(arguments)
    if options.seed is not None:
        trace = _print if options.trace else None
        return _report_one(simulate(options.seed, size=options.nodes, trace=trace))
    return _report_all(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.membership", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    parser.add_argument("--nodes", type=int, help="nodes (default: 3 to 8, by seed)")
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--trace", action="store_true", help="tell what happens in it")
    return parser.parse_args(arguments)


def _report_one(outcome: Outcome) -> int:
    verdict = outcome.failure or "clean"
    _print(f"seed {outcome.seed}: {verdict}")
    _print(
        f"{outcome.size} nodes, {outcome.num_views} views, {outcome.num_messages} "
        f"messages; at rest {outcome.settled_s:.2f} s after the last fault"
    )
    return 1 if outcome.failure else 0


def _report_all(options: argparse.Namespace) -> int:
    begin_s = time.perf_counter()
    outcomes: list[Outcome] = []
    for outcome in _play(options):
        outcomes.append(outcome)
        if outcome.failure:
            _print(f"seed {outcome.seed}: {outcome.failure}")
    took_s = time.perf_counter() - begin_s
    failed = [o.seed for o in outcomes if o.failure]
    settled_s = sorted(o.settled_s for o in outcomes)
    _print(
        f"{len(outcomes)} seeds in {took_s:.1f} s with {options.jobs} processes: "
        f"{60 * len(outcomes) / took_s:,.0f} seeds/min; {len(failed)} failed"
    )
    _print(
        f"{sum(o.num_views for o in outcomes):,} views, "
        f"{sum(o.num_messages for o in outcomes):,} messages, "
        f"{sum(o.virtual_s for o in outcomes) / 3600:.1f} h of virtual time; at rest "
        f"after {settled_s[len(settled_s) // 2]:.2f} s (median), "
        f"{settled_s[int(len(settled_s) * 0.99)]:.2f} s (p99), "
        f"{settled_s[-1]:.2f} s (worst)"
    )
    if failed:
        _print(f"see one: --seed {failed[0]} --trace")
    return 1 if failed else 0


def _play(options: argparse.Namespace) -> Iterator[Outcome]:
    seeds = range(options.first, options.first + options.seeds)
    play = partial(simulate, size=options.nodes)
    if options.jobs == 1:
        yield from map(play, seeds)
        return
    with get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(play, seeds, chunksize=25)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
