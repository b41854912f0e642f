"""Assigns the quanta of a step to members, when it begins and after a loss.

Every quantum goes to the member that would finish it first. For quanta of equal size
that gives the shortest step. All members compute the same table from replicated values:
the members in ring order, their quantum times, and the quanta that members kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ringleader.errors import InternalError
from ringleader.ids import NodeId

Quotas = dict[NodeId, int]
"""How many quanta each member computes, in ring order."""

OnLoss = Literal["refill", "shrink"]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The assignment of the quanta of one step; equal on all members of a view."""

    quanta: Mapping[NodeId, tuple[int, ...]]
    """Indices of the quanta that each member of the view computes, in ring order."""
    dropped: tuple[int, ...] = ()
    """Quanta that nobody computes in this step; they become debt."""


def quotas(
    num_quanta: int,
    members: Sequence[NodeId],
    quantum_s: Mapping[NodeId, float],
    spares: Collection[NodeId] = (),
) -> Quotas:
    """Divide quanta among members in ring order.

    A member whose quantum time is unknown gets one quantum to be measured by, unless
    none is known: then all get equally many. ``spares`` get none, unless all members
    are spares.
    """
    workers = [m for m in members if m not in spares] or list(members)
    known = [m for m in workers if m in quantum_s]
    counts = dict.fromkeys(members, 0)
    if known:
        probed = [m for m in workers if m not in quantum_s][:num_quanta]
        counts.update(dict.fromkeys(probed, 1))
    else:
        known, quantum_s = workers, dict.fromkeys(workers, 1.0)
    heap = [(quantum_s[m], place, m) for place, m in enumerate(known)]
    heapq.heapify(heap)
    for _ in range(num_quanta - sum(counts.values())):
        _, place, member = heap[0]
        counts[member] += 1
        finish_s = (counts[member] + 1) * quantum_s[member]
        heapq.heapreplace(heap, (finish_s, place, member))
    return counts


def spread(counts: Quotas, indices: Sequence[int]) -> dict[NodeId, tuple[int, ...]]:
    """Assign neighbouring quanta of ``indices`` to each member, as many as counted."""
    if sum(counts.values()) != len(indices):
        raise InternalError(f"{counts} for {len(indices)} quanta")
    table, begin = {}, 0
    for member, count in counts.items():
        table[member] = tuple(indices[begin : begin + count])
        begin += count
    return table


def overlapping(
    num_quanta: int, kept: Mapping[NodeId, Sequence[int]]
) -> frozenset[NodeId]:
    """Return the members whose quanta conflict with those of members before them.

    They claim a quantum that the step does not have, or that another member has, too,
    so nothing of their contribution may be counted.
    """
    taken: set[int] = set()
    wrong = set()
    for member, indices in kept.items():
        mine = set(indices)
        is_valid = all(0 <= index < num_quanta for index in mine)
        if len(mine) < len(indices) or not is_valid or mine & taken:
            wrong.add(member)
        else:
            taken |= mine
    return frozenset(wrong)


def orphans(num_quanta: int, kept: Mapping[NodeId, Sequence[int]]) -> tuple[int, ...]:
    """Return the quanta of a step that no member kept."""
    taken = {index for indices in kept.values() for index in indices}
    return tuple(index for index in range(num_quanta) if index not in taken)


def after_loss(
    num_quanta: int,
    members: Sequence[NodeId],
    kept: Mapping[NodeId, Sequence[int]],
    given: Quotas | None,
) -> StepTable:
    """Return the table of a step that goes on in a new view.

    Members keep the quanta ``kept``. Each member takes ``given`` many of the other
    quanta in addition; if that is None, they are dropped (``shrink``).
    """
    mine = {member: tuple(sorted(kept.get(member, ()))) for member in members}
    if wrong := overlapping(num_quanta, mine):
        raise InternalError(f"quanta {mine} of {num_quanta}: {sorted(wrong)}")
    lost = orphans(num_quanta, mine)
    if given is None:
        return StepTable(mine, lost)
    more = spread(given, lost)
    return StepTable({m: tuple(sorted((*mine[m], *more[m]))) for m in members})
