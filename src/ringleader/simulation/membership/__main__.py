"""``python -m ringleader.simulation.membership``: run many seeds, or trace one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from ringleader.membership.config import MembershipConfig
from ringleader.simulation.membership.seeded_run import SeedResult, simulate
from ringleader.simulation.seed_runs import add_seed_options, run_program

PROFILES: Final = {"lan": None, "training": MembershipConfig.for_training()}


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; the exit status is 0 if none of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m ringleader.simulation.membership", description=__doc__
    )
    add_seed_options(parser, least_nodes=3)
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), default="lan", help="times to use"
    )
    options = parser.parse_args(arguments)
    config = PROFILES[options.profile]
    run_seed = partial(simulate, size=options.nodes, config=config)
    return run_program(options, run_seed, _summary)


def _summary(results: Sequence[SeedResult]) -> str:
    converged_s = sorted(r.converged_s for r in results)
    return (
        f"{sum(r.num_views for r in results):,} views, "
        f"{sum(r.num_messages for r in results):,} messages, "
        f"{sum(r.virtual_s for r in results) / 3600:.1f} h of virtual time; converged "
        f"after {converged_s[len(converged_s) // 2]:.2f} s (median), "
        f"{converged_s[int(len(converged_s) * 0.99)]:.2f} s (p99), "
        f"{converged_s[-1]:.2f} s (worst)"
    )


if __name__ == "__main__":
    sys.exit(main())
