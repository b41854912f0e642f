"""StepRules: what is simulated. The product, or the product with one planted bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringleader.membership.member import View
from ringleader.membership.steps.decide import Partition, decide
from ringleader.membership.steps.lineage import Statuses
from ringleader.membership.steps.plan import StepPlan
from ringleader.membership.steps.step_member import StepMember
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.residuals import Residuals


def decide_plan(view: View, statuses: Statuses, partition: Partition) -> StepPlan:
    """Return the plan of a view, as the product decides it."""
    return decide(view, statuses, partition=partition)


@dataclass(frozen=True, slots=True)
class StepRules:
    """The code under test, and what the simulated run around it may do wrong."""

    member: Callable[..., StepMember] = StepMember
    decide: Callable[[View, Statuses, Partition], StepPlan] = decide_plan
    buffers: type[FlatBuffers] = FlatBuffers
    residuals: type[Residuals] = Residuals

    drops_void: bool = True
    """A contribution is dropped if others compute the same quanta."""
    looks_back: bool = True
    """It is also if that was so by the plan of an earlier view, which the user's thread
    never entered."""
    waits_for_all: bool = True
    """A reduction waits for all members, also for those that have no work."""
    waits_for_gather: bool = True
    """A source sends its state only at the version of the plan."""
    waits_for_stable: bool = True
    """A state is published only when it is final."""
    keeps_state: bool = True
    """A member that has a complete state keeps it until it has another one."""
    completes_copy: bool = True
    """A member enters the history of a copied state when all of it has arrived."""
    asks_plan: bool = True
    """The quanta that members keep are those of the plan, not those of the last table
    that a member remembers."""
    keeps_early_frames: bool = True
    """Frames of a view that is promised and not yet installed wait."""


PRODUCT = StepRules()
