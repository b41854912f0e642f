"""Planted bugs: each breaks one rule of the protocol, and the simulator must find it.

There is at least one for each invariant. A bug of ``decide`` is planted without a copy
of its code: the product's function is called with statuses in which something is
missing or wrong, as if it had not looked at them properly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import torch
from torch import Tensor

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
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.residuals import Residuals

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
        top = statuses[top_member(view, statuses, partition)]
        return decide_plan(view, change(top, dict(statuses)), partition)

    return decide_wrongly


# -- what the members are said to have -------------------------------------------------


def _compare_versions(top: StepStatus, told: Told) -> Told:
    """Compare versions instead of chains.

    Two members at the same version count as equal, although they may have delivered
    different attempts at it.
    """
    for member, status in told.items():
        if (status.lineage, status.version) == (top.lineage, top.version):
            told[member] = replace(status, chain=top.chain)
    return told


def _compare_lineages(top: StepStatus, told: Told) -> Told:
    """Compare lineages instead of chains.

    A member of the same lineage that is several steps behind is told to gather the last
    result alone, as if it lacked no other.
    """
    for member, status in told.items():
        if status.lineage == top.lineage and status.version < top.version:
            behind = top.version - 1
            last = Attempt(status.view, behind) if behind else None
            told[member] = replace(
                status, version=behind, chain=top.chain_before, last=last, held=()
            )
    return told


def _trust_the_holder(top: StepStatus, told: Told) -> Told:
    """Assume that every member still holds the result of its version.

    One that copied its state from another member never had it. Like the product's, its
    data side sends what is in the buffer, so the others deliver something else than the
    sum.
    """
    for member, status in told.items():
        if status.chain == top.chain and status.last is not None:
            held = held_result(status.last, NUM_BUCKETS, (1 << NUM_BUCKETS) - 1)
            told[member] = replace(status, held=(held,))
    return told


def _mix_attempts(top: StepStatus, told: Told) -> Told:
    """Complete the next step from buckets of different attempts at it."""
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
    """Ignore view changes that were interrupted: they may be complete elsewhere."""
    return {m: replace(s, promised=()) for m, s in told.items()}


def _count_forks(top: StepStatus, told: Told) -> Told:
    """Let a member vote for a view although it has gone on in a fork since.

    It no longer knows what else it promised after that view.
    """
    newest = Promise(top.view, top.view_members)
    for member, status in told.items():
        if status.view > newest.id and member in newest.members:
            told[member] = replace(status, promised=(newest,))
    return told


def _count_the_dead(top: StepStatus, told: Told) -> Told:
    """Count a dead member as present, so that each part of a split has its vote."""
    for ended in {e for s in told.values() for e in s.ended}:
        if ended.promised == top.view:
            told[ended.member] = replace(top, promised=(), ended=())
    return told


def _forget_last_promises(top: StepStatus, told: Told) -> Told:
    """Stop counting a dead member even if it may have formed a later view."""
    for member, status in told.items():
        ended = tuple(Ended(e.member, top.view) for e in status.ended)
        told[member] = replace(status, ended=ended)
    return told


# -- plans and members -----------------------------------------------------------------


def _ignore_delivered(view: View, statuses: Statuses, partition: Partition) -> StepPlan:
    """Reduce a step again although one member has delivered it."""
    plan = decide_plan(view, statuses, partition)
    top = statuses[top_member(view, statuses, partition)]
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


# -- buffers and residuals -------------------------------------------------------------


class _OneBuffer(FlatBuffers):
    """Every result is written over the one before it."""

    def result(self, version: int) -> dict[str, Tensor]:
        return super().result(0)


class _AllBuffers(FlatBuffers):
    """Every result has memory of its own, and none is given back."""

    def result(self, version: int) -> dict[str, Tensor]:
        while len(self._results) <= version:
            new = {kind: torch.empty_like(a) for kind, a in self.contribution.items()}
            self._results.append(new)
        return self._results[version]


class _HastyResiduals(Residuals):
    """Takes new residuals when an attempt begins, not when it is delivered."""

    def begin(self, attempt: Attempt) -> None:
        self._sets.reverse()
        super().begin(attempt)


class PlantedBug(NamedTuple):
    """Rules with one bug, and the invariant that it breaks."""

    invariant: str
    rules: StepRules


def _decides(change: Callable[[StepStatus, Told], Told]) -> StepRules:
    return StepRules(decide=_told(change))


_MIXING = StepRules(decide=_told(_mix_attempts), member=_Mixing)

PLANTED_BUGS: Final[dict[str, PlantedBug]] = {
    "compare_versions": PlantedBug("I1", _decides(_compare_versions)),
    "mix_attempts": PlantedBug("I2", _MIXING),
    "skip_spares": PlantedBug("I3", StepRules(waits_for_all=False)),
    "deliver_after_status": PlantedBug("I4", StepRules(member=_Unfrozen)),
    "ignore_promises": PlantedBug("I5", _decides(_ignore_promises)),
    "keep_void": PlantedBug("I6", StepRules(drops_void=False)),
    "compare_lineages": PlantedBug("I7", _decides(_compare_lineages)),
    "one_buffer": PlantedBug("I8", StepRules(buffers=_OneBuffer)),
    "copy_before_gather": PlantedBug("I9", StepRules(waits_for_gather=False)),
    "publish_at_once": PlantedBug("I10", StepRules(waits_for_stable=False)),
    "keep_all_results": PlantedBug("I11", StepRules(buffers=_AllBuffers)),
    "assign_from_memory": PlantedBug("I12", StepRules(asks_plan=False)),
    "commit_codec_early": PlantedBug("I13", StepRules(residuals=_HastyResiduals)),
    "overwrite_in_place": PlantedBug("I14", StepRules(keeps_state=False)),
    "trust_the_holder": PlantedBug("I2", _decides(_trust_the_holder)),
    "ignore_delivered": PlantedBug("I7", StepRules(decide=_ignore_delivered)),
    "miss_void": PlantedBug("I6", StepRules(looks_back=False)),
    "drop_early_frames": PlantedBug("I7", StepRules(keeps_early_frames=False)),
    "count_forks": PlantedBug("I5", _decides(_count_forks)),
    "count_the_dead": PlantedBug("I5", _decides(_count_the_dead)),
    "forget_last_promises": PlantedBug("I5", _decides(_forget_last_promises)),
    "enter_half_copied": PlantedBug("I14", StepRules(completes_copy=False)),
}
"""The first 14 are those of I1 to I14, in this order."""
