"""Planted bugs: each breaks one rule of the protocol, and the simulator must find it.

A bug of ``decide`` is planted by changing what it is told, or what it answers. There is
at least one for each invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.decide import Partition, top_member
from ringleader.membership.steps.lineage import Statuses
from ringleader.membership.steps.plan import Gather, Reduce, StepPlan
from ringleader.membership.steps.status import (
    Ended,
    HeldResult,
    Promise,
    StepStatus,
    held_result,
)
from ringleader.membership.steps.step_member import StepMember
from ringleader.simulation.steps.rules import StepRules, decide_plan
from ringleader.simulation.steps.toy_model import NUM_BUCKETS

Decide = Callable[[View, Statuses, Partition], StepPlan]
Told = dict[Member, StepStatus]
Report = TypeVar("Report", StepStatus, HeldResult)


def replace(report: Report, **changes: object) -> Report:
    """Return a copy with some fields changed."""
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return type(report)(**{**fields, **changes})


def _told(change: Callable[[StepStatus, Told], Told]) -> Decide:
    """Return ``decide`` with statuses changed by ``change(top, statuses)``."""

    def decide_wrongly(
        view: View, statuses: Statuses, partition: Partition
    ) -> StepPlan:
        top = statuses[top_member(view, statuses)]
        return decide_plan(view, change(top, dict(statuses)), partition)

    return decide_wrongly


# -- what the members are said to have -------------------------------------------------


def _compare_versions(top: StepStatus, told: Told) -> Told:
    """Members of one lineage at one version are taken for equal."""
    for member, status in told.items():
        if (status.lineage, status.version) == (top.lineage, top.version):
            told[member] = replace(status, chain=top.chain)
    return told


def _compare_lineages(top: StepStatus, told: Told) -> Told:
    """A member of the same lineage is taken to be one step behind, however far."""
    for member, status in told.items():
        if status.lineage == top.lineage and status.version < top.version:
            behind = top.version - 1
            last = Attempt(status.view, behind) if behind else None
            told[member] = replace(
                status, version=behind, chain=top.chain_before, last=last, held=()
            )
    return told


def _trust_the_holder(top: StepStatus, told: Told) -> Told:
    """Whoever has a version is taken to hold its result."""
    for member, status in told.items():
        if status.chain == top.chain and status.last is not None:
            held = held_result(status.last, NUM_BUCKETS, (1 << NUM_BUCKETS) - 1)
            told[member] = replace(status, held=(held,))
    return told


def _mix_attempts(top: StepStatus, told: Told) -> Told:
    """Buckets of all attempts at the next step are taken for those of one."""
    following = [
        h.attempt
        for s in told.values()
        for h in s.held
        if h.attempt.version == top.version + 1
    ]
    for member, status in told.items():
        held = tuple(
            replace(h, attempt=max(following)) if h.attempt in following else h
            for h in status.held
        )
        told[member] = replace(status, held=held)
    return told


# -- lineages --------------------------------------------------------------------------


def _ignore_promises(top: StepStatus, told: Told) -> Told:
    """Only installed views count; interrupted view changes are ignored."""
    return {m: replace(s, promised=()) for m, s in told.items()}


def _count_forks(top: StepStatus, told: Told) -> Told:
    """A member counts for a view although it has gone on in a fork since."""
    newest = Promise(top.view, top.view_members)
    for member, status in told.items():
        if status.view > newest.id and member in newest.members:
            told[member] = replace(status, promised=(newest,))
    return told


def _count_the_dead(top: StepStatus, told: Told) -> Told:
    """A member that has ended counts as present, for every part of a split."""
    for ended in {e for s in told.values() for e in s.ended}:
        if ended.promised == top.view:
            told[ended.member] = replace(top, promised=(), ended=())
    return told


def _forget_last_promises(top: StepStatus, told: Told) -> Told:
    """A member that has ended leaves the majority, whatever it promised before."""
    for member, status in told.items():
        ended = tuple(Ended(e.member, top.view) for e in status.ended)
        told[member] = replace(status, ended=ended)
    return told


# -- plans and members -----------------------------------------------------------------


def _ignore_delivered(view: View, statuses: Statuses, partition: Partition) -> StepPlan:
    """The step is reduced again although one member has delivered it."""
    plan = decide_plan(view, statuses, partition)
    top = statuses[top_member(view, statuses)]
    if not isinstance(plan.action, Gather) or plan.action.attempt != top.last:
        return plan
    return StepPlan(
        lineage=plan.lineage,
        is_fork=plan.is_fork,
        version=plan.version - 1,
        chain=plan.chain_before,
        chain_before=b"",
        last=None,
        action=Reduce(),
        sources=tuple(m for m in view.members if statuses[m].chain == top.chain_before),
        adopt=plan.adopt,
        void=plan.void,
        pause_reason=plan.pause_reason,
    )


class _Unfrozen(StepMember):
    """Goes on with the attempt of the old view after its status."""

    def freeze(self, view_id: ViewId, members: Iterable[Member]) -> bool:
        attempt = self.attempt
        is_new = super().freeze(view_id, members)
        self.attempt = attempt
        return is_new

    def bucket_done(self, attempt: Attempt, bucket: int) -> bool:
        frozen, self._is_frozen = self._is_frozen, False
        is_new = super().bucket_done(attempt, bucket)
        self._is_frozen = frozen
        return is_new

    def deliver(self, view_id: ViewId, samples: int) -> bool:
        frozen, self._is_frozen = self._is_frozen, False
        is_delivered = super().deliver(view_id, samples)
        self._is_frozen = frozen
        return is_delivered


class _Mixing(StepMember):
    """Keeps the buckets of another attempt at the same step."""

    def begin(self, attempt: Attempt, num_buckets: int) -> bool:
        partial = self.partial
        if partial is not None and attempt.view != self.view.id:
            self.partial = held_result(attempt, num_buckets, partial.buckets)
        return super().begin(attempt, num_buckets)


PLANTED_BUGS: Final[dict[str, StepRules]] = {
    "compare_versions": StepRules(decide=_told(_compare_versions)),  # I1
    "mix_attempts": StepRules(
        decide=_told(_mix_attempts), member=_Mixing, names_attempts=False
    ),  # I2
    "compare_lineages": StepRules(decide=_told(_compare_lineages)),  # I3
    "deliver_after_status": StepRules(member=_Unfrozen),  # I4
    "ignore_promises": StepRules(decide=_told(_ignore_promises)),  # I5
    "keep_void": StepRules(drops_void=False),  # I6
    "trust_the_holder": StepRules(decide=_told(_trust_the_holder)),  # I7
    "one_buffer": StepRules(num_buffers=1),  # I8
    "copy_before_gather": StepRules(waits_for_gather=False),  # I9
    "publish_at_once": StepRules(waits_for_stable=False),  # I10
    "keep_all_results": StepRules(num_buffers=1000),  # I11
    "assign_from_memory": StepRules(knows_table=False),  # I12
    "commit_codec_early": StepRules(aborts_codec=False),  # I13
    "ignore_delivered": StepRules(decide=_ignore_delivered),
    "drop_early_frames": StepRules(keeps_early_frames=False),
    "count_forks": StepRules(decide=_told(_count_forks)),
    "count_the_dead": StepRules(decide=_told(_count_the_dead)),
    "forget_last_promises": StepRules(decide=_told(_forget_last_promises)),
}
"""The rules with one bug each, by its name. The first 13 are those of I1 to I13."""
