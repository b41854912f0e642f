"""``python -m ringleader.simulation.steps``: run many seeds, or trace one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from ringleader.simulation.seed_runs import add_seed_options, run_program
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seed_job import run_seed
from ringleader.simulation.steps.seeded_run import StepResult


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status is 0 if none of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.steps", description=__doc__
    )
    add_seed_options(parser, least_nodes=2)
    parser.add_argument(
        "--bug", choices=sorted(PLANTED_BUGS), help="plant a bug; it must be found"
    )
    parser.add_argument(
        "--membership",
        action="store_true",
        help="views come from the membership machine instead of an adversary",
    )
    options = parser.parse_args(arguments)
    run = partial(
        run_seed,
        size=options.nodes,
        bug=options.bug,
        with_membership=options.membership,
    )
    return run_program(options, run, _summary)


def _summary(results: Sequence[StepResult]) -> str:
    names = ("events", "views", "delivered", "gathers", "adopted", "forks", "crashes")
    totals = {n: sum(getattr(r, f"num_{n}") for r in results) for n in names}
    return ", ".join(f"{total:,} {name}" for name, total in totals.items())


if __name__ == "__main__":
    sys.exit(main())
