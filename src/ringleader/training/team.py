"""Team: delivers and applies the steps of a run of one member."""

from __future__ import annotations

from dataclasses import replace

from ringleader.groups.caller_observer import phase
from ringleader.ids import NodeId
from ringleader.training.contribution import Contribution
from ringleader.training.control.work_watch import WorkWatch
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.balance import Flag
from ringleader.training.data.data_state import is_over, quanta
from ringleader.training.data.loader import Loaded, Loader
from ringleader.training.data.progress import (
    Progress,
    delivered,
    quanta_of,
    table_of,
)
from ringleader.training.data.stream_state import (
    MAX_STATES_BYTES,
    Read,
    decode_reads,
)
from ringleader.training.data_order import DataOrder
from ringleader.training.kill_points import reach
from ringleader.training.machine_events import MachineEvents
from ringleader.training.sideband import Entry, EntryLayout, Totals
from ringleader.training.state.run_checkpoints import (
    History,
    RunCheckpoints,
    is_writer_too,
)

ALONE = NodeId("alone")


class Team:
    """A run of one member, without a control plane. ``Members`` extends it."""

    def __init__(
        self,
        data: DataOrder,
        contribution: Contribution,
        loader: Loader,
        node: NodeId = ALONE,
        events: MachineEvents | None = None,
    ) -> None:
        self.version = 0
        self.node = node
        self.nodes: tuple[NodeId, ...] = (node,)
        self.rank = 0
        self.contributors: tuple[NodeId, ...] = ()
        self.events = events or MachineEvents(WorkWatch(), lambda: False)
        self.checkpoints: RunCheckpoints | None = None
        self.data = data
        self.contribution = contribution
        self.loader = loader
        update = contribution.update
        self.layout = EntryLayout(
            data.spec.num_quanta,
            len(update.buffers.parameters),
            update.norms.sums.numel(),
            update.norms.counts.numel(),
            MAX_STATES_BYTES if data.spec.stream else 0,
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
        """Enter a view that was installed since; a run of one member has none."""

    def next_quantum(self) -> Loaded | None:
        """Return the next quantum and its batch; None if it turned out to be empty."""
        step = self.contribution.step
        loaded = self.loader.load(step.begin())
        step.current = loaded.quantum
        if loaded.quantum.num_samples:
            return loaded
        step.finish(0.0, 0.0)
        return None

    def start_reduction(self) -> None:
        """Start to send buckets while the last quantum runs backward; here nothing."""

    def complete_step(self) -> bool:
        """Deliver and apply the step if all quanta are done; True if it was applied."""
        if self.contribution.step.pending or self.is_over:
            return False
        self.contribution.seal()
        self.apply(self.own_totals(), None)
        self.begin_step()
        return True

    def own_totals(self) -> Totals:
        """Return the totals of a step to which this member alone contributed."""
        return self.layout.totals([self.own_entry()], self.num_quanta)

    def own_entry(self) -> Entry:
        """Return what this member tells the others about its contribution."""
        flags = self.events.flags()
        if self.checkpoints is not None and self.checkpoints.has_staged(self.version):
            flags |= Flag.SAVED
        entry = self.contribution.entry(self.node, self.data.spec.micro_batch, flags)
        return replace(entry, reads=self.loader.reads(entry.quanta))

    @property
    def num_quanta(self) -> int:
        """Quanta of the running step, of all members together."""
        return len(quanta(self.data.spec, self.progress.state))

    def samples(self, totals: Totals) -> int:
        """Return the samples of a step."""
        if self.data.spec.stream is not None:
            return sum(read.num_samples for read in self.reads(totals))
        step = quanta(self.data.spec, self.progress.state)
        table = totals.table.quanta
        return sum(step[index].num_samples for mine in table.values() for index in mine)

    def apply(self, totals: Totals, result: int | None) -> None:
        """Apply a delivered step: the result of version ``result``, or with None the
        contribution of this member alone."""
        reach("applying")
        with phase("update"):
            self.contribution.update.apply(totals, result)
        self.version += 1
        self.data.progress = delivered(
            self.data.spec,
            self.progress,
            self.version,
            totals.table,
            totals.reports,
            self.reads(totals),
        )
        table = totals.table.quanta
        self.contributors = tuple(node for node, mine in table.items() if mine)
        if self.node in totals.reports:
            told = totals.reports[self.node].flags
            self.events.on_delivered(told, len(table.get(self.node, ())))
        self.contribution.step.clear()
        if self.checkpoints is not None:
            self.checkpoints.publish(self.stable_version, self.history().lineage)

    @property
    def stable_version(self) -> int:
        """The last version that stays in the history of the run for good."""
        return self.version

    def history(self) -> History:
        """Return where the run stands."""
        return History(self.version, self.progress.state.samples)

    def history_to_save(self, totals: Totals) -> History | None:
        """Return where the run stands before a step, if this member saves that."""
        if self.checkpoints is None or not is_writer_too(self.node, totals.reports):
            return None
        return self.history()

    def reads(self, totals: Totals) -> list[Read]:
        """Return what all members read of streamed data for a step."""
        spec = self.data.spec
        if spec.stream is None:
            return []
        found = (decode_reads(r, spec.stream, spec.micro_batch) for r in totals.reads)
        return [read for reads in found for read in reads]

    def begin_step(self) -> None:
        """Take this member's quanta of a step that begins."""
        self.take(table_of(self.data.spec, self.progress, self.nodes))

    def take(self, table: StepTable) -> None:
        """Take this member's quanta of ``table``.

        A contribution with others in it is void: another member computes them. The plan
        of the view does not tell, because the one that made it void may be over before
        the user's thread has seen it.
        """
        mine = quanta_of(self.data.spec, self.progress, table, self.node)
        if not self.contribution.step.is_within(mine):
            self.contribution.drop()
        self.contribution.step.assign(mine)
        self.loader.expect(self.progress, table)

    def close(self) -> None:
        """Stop the loader, and complete the last checkpoint."""
        self.events.close()
        self.loader.close()
        if self.checkpoints is not None:
            self.checkpoints.close(is_over=self.is_over)
