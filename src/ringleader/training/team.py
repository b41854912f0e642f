"""Team: how a member's contribution becomes a delivered step. Here: of one member."""

from __future__ import annotations

from typing import Any

from ringleader.ids import NodeId
from ringleader.training.contribution import Contribution
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.balance import Flag
from ringleader.training.data.data_state import Quantum, is_over, quanta
from ringleader.training.data.progress import (
    Progress,
    delivered,
    quanta_of,
    table_of,
)
from ringleader.training.data.quantum_loader import QuantumLoader
from ringleader.training.data_order import DataOrder
from ringleader.training.kill_points import reach
from ringleader.training.sideband import Entry, EntryLayout, Totals

ALONE = NodeId("alone")


class Team:
    """A run of one member, without a control plane. ``Members`` extends it."""

    def __init__(
        self,
        data: DataOrder,
        contribution: Contribution,
        loader: QuantumLoader,
        node: NodeId = ALONE,
    ) -> None:
        self.version = 0
        self.node = node
        self.nodes: tuple[NodeId, ...] = (node,)
        self.rank = 0
        self.contributors: tuple[NodeId, ...] = ()
        self.flags = Flag(0)
        """What the others are told with the next step."""
        self.data = data
        self.contribution = contribution
        self.loader = loader
        update = contribution.update
        self.layout = EntryLayout(
            data.spec.num_quanta,
            len(update.buffers.parameters),
            update.norms.sums.numel(),
            update.norms.counts.numel(),
        )

    @property
    def progress(self) -> Progress:
        """What was delivered of the data."""
        return self.data.progress

    @property
    def is_over(self) -> bool:
        """True if all epochs were delivered."""
        return is_over(self.data.spec, self.progress.state)

    def start(self) -> None:
        """Begin the first step."""
        self.begin_step()

    def follow(self) -> None:
        """Enter views that came since; there are none here."""

    def next_quantum(self) -> tuple[Quantum, Any]:
        """Return the next quantum and its batch."""
        quantum = self.contribution.step.begin()
        return quantum, self.loader.load(quantum)

    def start_reduction(self) -> None:
        """Let buckets leave while the last quantum runs backward; not needed here."""

    def complete_step(self) -> bool:
        """Deliver and apply the step if all quanta are done; True if it was applied."""
        if self.contribution.step.pending or self.is_over:
            return False
        self.apply(self.own_totals(), None)
        self.begin_step()
        return True

    def own_totals(self) -> Totals:
        """Return the totals of a step to which this member alone contributed."""
        return self.layout.totals([self.own_entry()], self.num_quanta)

    def own_entry(self) -> Entry:
        """Return what this member tells the others about its contribution."""
        return self.contribution.entry(
            self.node, self.data.spec.micro_batch, self.flags
        )

    @property
    def num_quanta(self) -> int:
        """Quanta of the running step, of all members together."""
        return len(quanta(self.data.spec, self.progress.state))

    def apply(self, totals: Totals, result: int | None) -> None:
        """Apply a delivered step; ``result`` None: of this member alone."""
        reach("applying")
        self.contribution.update.apply(totals, result)
        self.version += 1
        self.data.progress = delivered(
            self.data.spec, self.progress, self.version, totals.table, totals.reports
        )
        table = totals.table.quanta
        self.contributors = tuple(node for node, mine in table.items() if mine)
        self.contribution.step.clear()

    def begin_step(self) -> None:
        """Take this member's quanta of a step that begins."""
        self.take(table_of(self.data.spec, self.progress, self.nodes))

    def take(self, table: StepTable) -> None:
        """Take this member's quanta of ``table``."""
        mine = quanta_of(self.data.spec, self.progress, table, self.node)
        self.contribution.step.assign(mine)
        self.loader.expect(self.progress, table)

    def close(self) -> None:
        """Stop the loader."""
        self.loader.close()
