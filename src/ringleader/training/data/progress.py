"""The data side of the replicated state: position, balance and ledger together.

``Progress`` changes only when a step is delivered, in the same way on all members. The
table of a step in a view follows from it and from what the members of the view kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from ringleader.training.data.stream_state import (
    Read,
    StreamState,
    advance_stream,
    first_state,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What was delivered of the data, and how the work is divided."""

    state: DataState = field(default_factory=DataState)
    balance: Balance = field(default_factory=Balance)
    ledger: Ledger = field(default_factory=Ledger)
    stream: StreamState | None = None
    """How far streamed data were read; None for other data."""

    @classmethod
    def first(cls, spec: DataSpec) -> Progress:
        """Return the progress of a run that begins."""
        return cls(stream=first_state(spec.stream) if spec.stream else None)

    def to_plain(self) -> dict[str, Any]:
        """Return numbers, strings and lists, for checkpoints and newcomers."""
        return {
            "state": self.state.to_plain(),
            "balance": self.balance.to_plain(),
            "ledger": self.ledger.to_plain(),
            "stream": self.stream.to_plain() if self.stream else None,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], spec: DataSpec) -> Progress:
        """Return the progress that ``to_plain`` gave. Raises ConfigError otherwise."""
        stream = plain.get("stream") or {}
        return cls(
            DataState.from_plain(plain.get("state", {}), spec),
            Balance.from_plain(plain.get("balance", {})),
            Ledger.from_plain(plain.get("ledger", {})),
            StreamState.from_plain(stream, spec.stream) if spec.stream else None,
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

    ``kept`` are the quanta that stay with the members of the view that hold them; no
    two members may hold the same (``assignment.overlapping``). ``refill`` gives the
    other quanta to the members that would finish them first; ``shrink`` drops them,
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
    reads: Sequence[Read] = (),
) -> Progress:
    """Return the progress after ``version`` was delivered with the quanta of ``table``.

    ``table`` is that of the attempt that was delivered, its lost members included.
    ``reads`` is what all members read of streamed data.
    """
    step = quanta(spec, progress.state)
    parts = {
        node: union(*(step[index].intervals for index in indices))
        for node, indices in table.quanta.items()
    }
    members = list(table.quanta)
    balance = observe(progress.balance, spec.num_quanta, members, reports)
    if spec.stream is None or progress.stream is None:
        state = advance(spec, progress.state, table.dropped)
        epoch = progress.state.epoch
        ledger = record(progress.ledger, spec, version, epoch, parts)
        return Progress(state, balance, ledger)
    # What was dropped is read again: the readers' states were not delivered.
    ledger = record(progress.ledger, spec, version, 0, parts)
    stream = advance_stream(spec.stream, progress.stream, reads)
    samples = progress.state.samples + sum(read.num_samples for read in reads)
    after = advance(spec, progress.state)
    state = replace(after, epoch=stream.epoch, samples=samples)
    return Progress(state, balance, ledger, stream)


def quanta_of(
    spec: DataSpec, progress: Progress, table: StepTable, node: NodeId
) -> tuple[Quantum, ...]:
    """Return the quanta that ``node`` computes in the next step."""
    step = quanta(spec, progress.state)
    return tuple(step[index] for index in table.quanta.get(node, ()))
