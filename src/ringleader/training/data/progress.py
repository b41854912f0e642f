"""The data side of the replicated state: position, balance and ledger together.

``Progress`` changes only when a step is delivered, in the same way on all members. The
table of a step in a view follows from it and from what the members of the view kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringleader.ids import NodeId
from ringleader.training.data.assignment import (
    OnLoss,
    StepTable,
    after_loss,
    orphans,
    quotas,
    spread,
)
from ringleader.training.data.balance import Balance, Report, observe
from ringleader.training.data.data_state import (
    DataSpec,
    DataState,
    Quantum,
    advance,
    quanta,
)
from ringleader.training.data.intervals import union
from ringleader.training.data.ledger import Ledger, record


@dataclass(frozen=True, slots=True)
class Progress:
    """What was delivered of the data, and how the work is divided."""

    state: DataState = field(default_factory=DataState)
    balance: Balance = field(default_factory=Balance)
    ledger: Ledger = field(default_factory=Ledger)

    def to_plain(self) -> dict[str, Any]:
        """Return numbers, strings and lists, for checkpoints and newcomers."""
        return {
            "state": self.state.to_plain(),
            "balance": self.balance.to_plain(),
            "ledger": self.ledger.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], spec: DataSpec) -> Progress:
        """Return the progress that ``to_plain`` gave. Raises ConfigError otherwise."""
        return cls(
            DataState.from_plain(plain.get("state", {}), spec),
            Balance.from_plain(plain.get("balance", {})),
            Ledger.from_plain(plain.get("ledger", {})),
        )


def table_of(
    spec: DataSpec, progress: Progress, members: Sequence[NodeId]
) -> StepTable:
    """Return who computes which quanta of a step that begins."""
    num_quanta = len(quanta(spec, progress.state))
    counts = progress.balance.quotas_for(num_quanta, members)
    return StepTable(spread(counts, range(num_quanta)))


def table_after_loss(
    spec: DataSpec,
    progress: Progress,
    members: Sequence[NodeId],
    kept: Mapping[NodeId, Sequence[int]],
    on_loss: OnLoss = "refill",
) -> StepTable:
    """Return who computes which quanta of a step that goes on in a new view.

    ``kept`` are the quanta that stay with the members of the view that hold them.
    Nobody may claim one of another (``assignment.overlapping`` tells). ``refill``
    gives the others to the members that would finish them first; ``shrink`` drops them,
    unless nothing is left.
    """
    num_quanta = len(quanta(spec, progress.state))
    kept = {member: kept.get(member, ()) for member in members}
    lost = orphans(num_quanta, kept)
    if on_loss == "shrink" and len(lost) < num_quanta:
        return after_loss(num_quanta, members, kept, None)
    balance = progress.balance
    if len(lost) == num_quanta:
        return table_of(spec, progress, members)
    given = quotas(len(lost), members, balance.quantum_s, balance.spares)
    return after_loss(num_quanta, members, kept, given)


def delivered(
    spec: DataSpec,
    progress: Progress,
    version: int,
    table: StepTable,
    reports: Mapping[NodeId, Report],
    slow_links: Collection[NodeId] = (),
) -> Progress:
    """Return the progress after ``version`` was delivered with the quanta of ``table``.

    ``table`` is that of the attempt that was delivered, its lost members included.
    """
    state, step = progress.state, quanta(spec, progress.state)
    parts = {
        node: union(*(step[index].intervals for index in indices))
        for node, indices in table.quanta.items()
    }
    members = list(table.quanta)
    balance = progress.balance
    return Progress(
        advance(spec, state, table.dropped),
        observe(balance, spec.num_quanta, members, reports, slow_links),
        record(progress.ledger, spec, version, state.epoch, parts),
    )


def quanta_of(
    spec: DataSpec, progress: Progress, table: StepTable, node: NodeId
) -> tuple[Quantum, ...]:
    """Return the quanta that ``node`` computes in the next step."""
    step = quanta(spec, progress.state)
    return tuple(step[index] for index in table.quanta.get(node, ()))
