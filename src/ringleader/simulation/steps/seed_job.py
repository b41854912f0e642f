"""run_seed: one seed by names that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable

from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.rules import PRODUCT
from ringleader.simulation.steps.seeded_run import StepResult, simulate_steps


def run_seed(
    seed: int,
    *,
    size: int | None = None,
    bug: str | None = None,
    with_membership: bool = False,
    trace: Callable[[str], None] | None = None,
) -> StepResult:
    """Run one seed, with a planted bug or the membership machine if asked for."""
    simulate = simulate_with_membership if with_membership else simulate_steps
    rules = PLANTED_BUGS[bug] if bug else PRODUCT
    return simulate(seed, size=size, rules=rules, trace=trace)
