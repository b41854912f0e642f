"""``python -m ringleader.simulation.steps``: run many seeds, or trace one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context

from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seed_job import run_seed
from ringleader.simulation.steps.seeded_run import StepResult


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status is 0 if none of them failed."""
    options = _parse(arguments)
    if options.seed is not None:
        trace = _print if options.trace else None
        return _report_one(_job(options)(options.seed, trace=trace))
    return _report_all(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.steps", description=__doc__
    )
    parser.add_argument(
        "--seeds", type=int, default=1000, help="number of seeds to run"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--nodes",
        type=int,
        help="number of nodes (default: 2 to 8, depending on the seed)",
    )
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--trace", action="store_true", help="print every event of that seed"
    )
    parser.add_argument(
        "--bug", choices=sorted(PLANTED_BUGS), help="plant a bug; it must be found"
    )
    parser.add_argument(
        "--membership",
        action="store_true",
        help="views come from the membership machine instead of an adversary",
    )
    return parser.parse_args(arguments)


def _job(options: argparse.Namespace) -> Callable[..., StepResult]:
    return partial(
        run_seed,
        size=options.nodes,
        bug=options.bug,
        with_membership=options.membership,
    )


def _report_one(result: StepResult) -> int:
    _print(f"seed {result.seed}: {result.failure or 'clean'}")
    _print(_counts([result]))
    return 1 if result.failure else 0


def _report_all(options: argparse.Namespace) -> int:
    begin_s = time.perf_counter()
    results: list[StepResult] = []
    for result in _run_seeds(options):
        results.append(result)
        if result.failure:
            _print(f"seed {result.seed}: {result.failure}")
    took_s = time.perf_counter() - begin_s
    failed = sorted(r.seed for r in results if r.failure)
    _print(
        f"{len(results)} seeds in {took_s:.1f} s with {options.jobs} processes: "
        f"{60 * len(results) / took_s:,.0f} seeds/min; {len(failed)} failed"
    )
    _print(_counts(results))
    if failed:
        _print(f"to trace the first failure: --seed {failed[0]} --trace")
    return 1 if failed else 0


def _counts(results: list[StepResult]) -> str:
    names = ("events", "views", "delivered", "gathers", "adopted", "forks", "crashes")
    totals = {n: sum(getattr(r, f"num_{n}") for r in results) for n in names}
    return ", ".join(f"{total:,} {name}" for name, total in totals.items())


def _run_seeds(options: argparse.Namespace) -> Iterator[StepResult]:
    seeds = range(options.first, options.first + options.seeds)
    if options.jobs == 1:
        yield from map(_job(options), seeds)
        return
    with get_context("spawn").Pool(options.jobs) as pool:
        yield from pool.imap_unordered(_job(options), seeds, chunksize=25)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
