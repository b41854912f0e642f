"""decide: the plan of a view, from what its members reported. Pure.

The only place where it is decided which update a run applies next. Every member
computes it from the payloads of the committed view, so no plan is ever sent.

1. Winner. Of all histories the one with the most samples goes on (then one that need
   not pause, one that was not read from a disk, the least forked, the smaller name).
   Inside a lineage the newest installed view counts, and of its members the one
   furthest ahead: the *top*.
2. Fit. A member whose chain is the top's, or the one before it, has the same state up
   to one result. All others take the state of a fit member (``adopt``).
3. If a fit member lacks the top's last result, it is gathered. If nobody can serve all
   its buckets, the laggards adopt instead.
4. Else, if the fit members together hold all buckets of one attempt at the next step,
   it is gathered: the contribution of a dead member is kept. Buckets of two attempts
   are never mixed.
5. Else the next step is reduced from the retained contributions. Where two members were
   assigned the same quantum, the later assignment counts and the other one is void.
"""

from __future__ import annotations

from typing import Literal

from ringleader.membership.member import Member, View
from ringleader.membership.steps.attempt import (
    Attempt,
    extend_chain,
    first_chain,
    fork_of,
    new_lineage,
    num_forks,
)
from ringleader.membership.steps.lineage import Statuses, keeps_lineage, ruled_out
from ringleader.membership.steps.plan import Gather, Reduce, StepPlan
from ringleader.membership.steps.status import Promise, StepStatus

Partition = Literal["continue", "majority"]


def decide(
    view: View, statuses: Statuses, *, partition: Partition = "continue"
) -> StepPlan:
    """Return the plan of ``view``; ``statuses`` are those of all its members."""
    top = statuses[top_member(view, statuses, partition)]
    lineage, is_fork = _lineage(view, statuses, top)
    fit = _fit(view, statuses, top)
    gather = _gather_for_laggards(top, fit, statuses)
    action = gather or _gather_next(top, fit, statuses) or Reduce()
    chain = top.chain or first_chain(lineage)
    before, last, version = top.chain_before, top.last, top.version
    if isinstance(action, Gather) and action.attempt != last:
        chain, before = extend_chain(chain, action.attempt), chain
        last, version = action.attempt, version + 1
    quanta, void = _keep_quanta(fit, statuses, version)
    return StepPlan(
        lineage=lineage,
        is_fork=is_fork,
        version=version,
        chain=chain,
        chain_before=before,
        last=last,
        action=action,
        sources=tuple(m for m in fit if statuses[m].version == top.version),
        adopt=frozenset(view.members) - frozenset(fit),
        void=void,
        quanta=quanta,
        samples=top.samples,
        ruled_out=ruled_out(statuses),
        pause_reason=_pause_reason(view, statuses, top)
        or _minority_reason(is_fork, partition),
        lacks_state=top.is_torn,
    )


def _pause_reason(view: View, statuses: Statuses, top: StepStatus) -> str:
    late = [str(m) for m in view.members if statuses[m].answers != view.id]
    if late:
        return f"{', '.join(late)} sent an old status instead of the one for this view"
    if top.is_torn:
        return "no member has a complete state"
    return ""


def _minority_reason(is_fork: bool, partition: Partition) -> str:
    if is_fork and partition == "majority":
        return "these members are no majority: others may continue this run"
    return ""


def top_member(
    view: View, statuses: Statuses, partition: Partition = "continue"
) -> Member:
    """Return the member whose state all others get."""
    speaker: dict[object, Member] = {}
    for member in view.members:
        status = statuses[member]
        history = status.lineage or member
        best = speaker.get(history)
        if best is None or _is_ahead(status, statuses[best]):
            speaker[history] = member

    def preference(member: Member) -> tuple[bool, int, bool, bool, int, str]:
        status = statuses[member]
        waits = partition == "majority" and not _keeps_name(statuses, status)
        return _preference(status, must_pause=waits)

    return min(speaker.values(), key=preference)


def _is_ahead(status: StepStatus, other: StepStatus) -> bool:
    return (status.view, status.version) > (other.view, other.version)


def _preference(
    status: StepStatus, *, must_pause: bool
) -> tuple[bool, int, bool, bool, int, str]:
    """Sort key of histories: the smallest wins; at a tie the first in ring order.

    One that must pause wins with more samples: its members wait rather than give up
    what they have done.
    """
    lineage = status.lineage
    forks = num_forks(lineage)
    torn, more = status.is_torn, -status.samples
    return (torn, more, must_pause, not lineage, forks, lineage)


def _lineage(view: View, statuses: Statuses, top: StepStatus) -> tuple[str, bool]:
    if not top.lineage:
        return new_lineage(view.id), False
    if _keeps_name(statuses, top):
        return top.lineage, False
    return fork_of(top.lineage, view.id), True


def _keeps_name(statuses: Statuses, top: StepStatus) -> bool:
    """Return True if the history of ``top`` may go on without a new name."""
    newest = Promise(top.view, top.view_members)
    return not top.lineage or keeps_lineage(statuses, top.lineage, newest)


def _fit(view: View, statuses: Statuses, top: StepStatus) -> list[Member]:
    """Return the members that have the state of ``top``, or lack one result of it."""
    level = [
        m
        for m in view.members
        if statuses[m] is top or (top.chain and statuses[m].chain == top.chain)
    ]
    behind = {
        m
        for m in view.members
        if top.chain_before and statuses[m].chain == top.chain_before
    }
    fit = [m for m in view.members if m in behind or m in level]
    if behind and _gather(top.last, fit, statuses) is None:
        return level
    return fit


def _gather(
    attempt: Attempt | None, fit: list[Member], statuses: Statuses
) -> Gather | None:
    """Return who serves which bucket of ``attempt``; None if one is nowhere."""
    held = {m: h for m in fit if (h := statuses[m].held_of(attempt)) is not None}
    sizes = {h.num_buckets for h in held.values()}
    if attempt is None or len(sizes) != 1:
        return None
    holders: list[Member] = []
    for bucket in range(sizes.pop()):
        holder = next((m for m, h in held.items() if h.buckets >> bucket & 1), None)
        if holder is None:
            return None
        holders.append(holder)
    return Gather(attempt, tuple(holders))


def _gather_for_laggards(
    top: StepStatus, fit: list[Member], statuses: Statuses
) -> Gather | None:
    """Return the gather of the last result of ``top``, if one of ``fit`` lacks it."""
    if all(statuses[m].version == top.version for m in fit):
        return None
    return _gather(top.last, fit, statuses)


def _gather_next(
    top: StepStatus, fit: list[Member], statuses: Statuses
) -> Gather | None:
    """Return the gather of the step after ``top``, if it is complete somewhere."""
    attempts = {
        h.attempt
        for m in fit
        for h in statuses[m].held
        if h.attempt.version == top.version + 1
    }
    gathers = (_gather(a, fit, statuses) for a in sorted(attempts, reverse=True))
    return next((g for g in gathers if g is not None), None)


def _keep_quanta(
    fit: list[Member], statuses: Statuses, version: int
) -> tuple[dict[Member, tuple[int, ...]], frozenset[Member]]:
    """Return the quanta that stay where they are, and the members that lose theirs."""
    level = [m for m in fit if statuses[m].version == version]
    level.sort(
        key=lambda m: statuses[m].quanta_view, reverse=True
    )  # stable: ring order
    kept: dict[Member, tuple[int, ...]] = {}
    void: set[Member] = set()
    taken: set[int] = set()
    for member in level:
        quanta = statuses[member].quanta
        if taken.isdisjoint(quanta):
            kept[member] = quanta
            taken.update(quanta)
        else:
            void.add(member)
    return kept, frozenset(void)
