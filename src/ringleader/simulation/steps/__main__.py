"""``python -m ringleader.simulation.steps``: run many seeds, or trace one."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from ringleader.simulation.seed_runs import add_seed_options, run_program
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seed_job import run_seed
from ringleader.simulation.steps.step_result import describe


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status is 0 if none of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.steps", description=__doc__
    )
    add_seed_options(parser, least_nodes=2)
    add = parser.add_argument
    bugs = sorted(PLANTED_BUGS)
    add("--bug", choices=bugs, help="plant a bug; it must be found")
    modes = ("continue", "majority")
    text = "what a part of a split does (default: depending on the seed)"
    add("--partition", choices=modes, help=text)
    text = "views come from the membership machine instead of an adversary"
    add("--membership", action="store_true", help=text)
    options = parser.parse_args(arguments)
    job = partial(
        run_seed,
        size=options.nodes,
        bug=options.bug,
        partition=options.partition,
        with_membership=options.membership,
    )
    return run_program(options, job, describe)


if __name__ == "__main__":
    sys.exit(main())
