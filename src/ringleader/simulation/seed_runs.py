"""Runs many seeds of a simulation, or traces one, as a program."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar


class SeedOutcome(Protocol):
    """What the program needs of the result of one seed."""

    @property
    def seed(self) -> int:
        """The seed."""

    @property
    def failure(self) -> str | None:
        """The violated invariant; None if there is none."""


_R = TypeVar("_R", bound=SeedOutcome)

RunSeed = Callable[..., _R]
"""Runs one seed; takes ``trace=`` and can be sent to another process."""

Summarize = Callable[[Sequence[_R]], str]
"""Returns one line about results."""


def add_seed_options(parser: argparse.ArgumentParser, least_nodes: int) -> None:
    """Add the options that all simulations of seeds have."""
    parser.add_argument(
        "--seeds", type=int, default=1000, help="number of seeds to run"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--nodes",
        type=int,
        help=f"number of nodes (default: {least_nodes} to 8, depending on the seed)",
    )
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--trace", action="store_true", help="print every event of that seed"
    )


def run_program(
    options: argparse.Namespace, run_seed: RunSeed[_R], summarize: Summarize[_R]
) -> int:
    """Run the seeds of ``options``; return the exit status, 0 if none failed."""
    if options.seed is None:
        return _run_many(options, run_seed, summarize)
    result = run_seed(options.seed, trace=_print if options.trace else None)
    _print(f"seed {result.seed}: {result.failure or 'clean'}")
    _print(summarize([result]))
    return 1 if result.failure else 0


def _run_many(
    options: argparse.Namespace, run_seed: RunSeed[_R], summarize: Summarize[_R]
) -> int:
    begin_s = time.perf_counter()
    results: list[_R] = []
    for result in _results(options, run_seed):
        results.append(result)
        if result.failure:
            _print(f"seed {result.seed}: {result.failure}")
    took_s = time.perf_counter() - begin_s
    failed = sorted(r.seed for r in results if r.failure)
    _print(
        f"{len(results)} seeds in {took_s:.1f} s with {options.jobs} processes: "
        f"{60 * len(results) / took_s:,.0f} seeds/min; {len(failed)} failed"
    )
    _print(summarize(results))
    if failed:
        _print(f"to trace the first failure: --seed {failed[0]} --trace")
    return 1 if failed else 0


def spare_collector() -> None:
    """Keep the garbage collector away from what was imported: it takes 20 % else."""
    gc.freeze()
    gc.set_threshold(50_000)


def _results(options: argparse.Namespace, run_seed: RunSeed[_R]) -> Iterator[Any]:
    seeds = range(options.first, options.first + options.seeds)
    if options.jobs == 1:
        spare_collector()
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(options.jobs, spare_collector) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=25)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
