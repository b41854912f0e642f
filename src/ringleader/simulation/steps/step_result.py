"""StepResult: what happened in one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ringleader.errors import RingleaderError
from ringleader.simulation.membership.invariants import InvariantViolation
from ringleader.simulation.steps.oracle import Oracle, StepViolation

COUNTS: Final = (
    "events",
    "views",
    "delivered",
    "gathers",
    "adopted",
    "forks",
    "crashes",
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one seed."""

    seed: int
    failure: str | None
    """The violated invariant, or the error of the product; None if there is none."""
    size: int
    num_events: int
    num_views: int
    num_delivered: int
    num_gathers: int
    num_adopted: int
    num_forks: int
    num_crashes: int


def failure_of(run: Callable[[], None], tell: Callable[[str], None]) -> str | None:
    """Return how a run fails; None if it does not."""
    try:
        run()
    except (StepViolation, InvariantViolation, RingleaderError) as violation:
        tell(f"VIOLATION {violation}")
        return str(violation)
    return None


def result_of(
    seed: int,
    failure: str | None,
    oracle: Oracle,
    *,
    size: int,
    num_events: int,
    num_crashes: int,
) -> StepResult:
    """Return the result of a seed from what the oracle has seen."""
    return StepResult(
        seed=seed,
        failure=failure,
        size=size,
        num_events=num_events,
        num_views=oracle.num_views,
        num_delivered=oracle.num_delivered,
        num_gathers=oracle.num_gathers,
        num_adopted=oracle.num_adopted,
        num_forks=oracle.num_forks,
        num_crashes=num_crashes,
    )


def totals(results: Sequence[StepResult]) -> dict[str, int]:
    """Return the sums of all counts."""
    return {name: sum(getattr(r, f"num_{name}") for r in results) for name in COUNTS}


def describe(results: Sequence[StepResult]) -> str:
    """Return the counts of some seeds as a line."""
    return ", ".join(f"{total:,} {name}" for name, total in totals(results).items())
