"""run_seed: one seed by names that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable

from ringleader.errors import ConfigError
from ringleader.membership.steps.decide import Partition
from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.rules import PRODUCT
from ringleader.simulation.steps.seeded_run import simulate_steps
from ringleader.simulation.steps.step_result import StepResult


def run_seed(
    seed: int,
    *,
    size: int | None = None,
    bug: str | None = None,
    partition: Partition | None = None,
    with_membership: bool = False,
    trace: Callable[[str], None] | None = None,
) -> StepResult:
    """Run one seed, with a planted bug or the membership machine if asked for."""
    rules = PLANTED_BUGS[bug].rules if bug else PRODUCT
    if not with_membership:
        return simulate_steps(
            seed, size=size, rules=rules, partition=partition, trace=trace
        )
    if partition == "majority":
        raise ConfigError("the membership machine is simulated in one mode: continue")
    return simulate_with_membership(seed, size=size, rules=rules, trace=trace)
