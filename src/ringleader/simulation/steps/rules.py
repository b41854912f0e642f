"""StepRules: what is simulated. The product, or the product with one planted bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringleader.membership.member import Member, View
from ringleader.membership.steps.decide import Partition, decide
from ringleader.membership.steps.lineage import Statuses
from ringleader.membership.steps.plan import StepPlan
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.toy_model import NUM_QUANTA

Assign = Callable[[View, StepPlan], dict[Member, tuple[int, ...]]]


def decide_plan(view: View, statuses: Statuses, partition: Partition) -> StepPlan:
    """Return the plan of a view, as the product decides it."""
    return decide(view, statuses, partition=partition)


def assign_first(view: View, plan: StepPlan) -> dict[Member, tuple[int, ...]]:
    """Return the quanta of the first step of a view: kept ones, and orphans in turn."""
    members = view.members
    table = {m: list(plan.quanta.get(m, ())) for m in members}
    taken = {q for quanta in table.values() for q in quanta}
    orphans = [q for q in range(NUM_QUANTA) if q not in taken]
    for index, quantum in enumerate(orphans):
        table[members[(index + plan.version) % len(members)]].append(quantum)
    return {m: tuple(quanta) for m, quanta in table.items()}


def assign_next(view: View, version: int) -> dict[Member, tuple[int, ...]]:
    """Return the quanta of a later step; they move from member to member."""
    members = view.members
    num = len(members)
    return {
        m: tuple(range((i + version) % num, NUM_QUANTA, num))
        for i, m in enumerate(members)
    }


@dataclass(frozen=True, slots=True)
class StepRules:
    """The functions under test, and faults of the data side that can be planted."""

    member: Callable[[Member], StepMember] = StepMember
    decide: Callable[[View, Statuses, Partition], StepPlan] = decide_plan
    assign: Assign = assign_first
    """Gives the quanta of the first step of a view, from its plan."""

    num_buffers: int = 2
    """Result buffers; versions take turns in them."""
    names_attempts: bool = True
    """Buckets are stored under the name of their attempt."""
    drops_void: bool = True
    waits_for_gather: bool = True
    """A source sends its state only at the version of the plan."""
    waits_for_stable: bool = True
    """A state is published only when it is final."""
    knows_table: bool = True
    """The table is made from the plan, not from what a member remembers."""
    aborts_codec: bool = True
    keeps_early_frames: bool = True
    """Frames of a view that is promised and not yet installed wait."""


PRODUCT = StepRules()
