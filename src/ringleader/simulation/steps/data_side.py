"""DataSide: gradients, residuals, work and data of one member, by the code of a run.

The buffers, the codec's residuals, the work of a step, the table of quanta, the cursor,
the debt and the ledger are those of ``training``; only the model is a toy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ringleader.ids import NodeId
from ringleader.membership.member import View, ViewId
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import StepPlan
from ringleader.simulation.steps.rules import StepRules
from ringleader.simulation.steps.toy_model import (
    NUM_BUCKETS,
    SPEC,
    Values,
    gradient,
    quantize,
)
from ringleader.training.data.assignment import OnLoss, StepTable
from ringleader.training.data.balance import Flag, Report
from ringleader.training.data.data_state import Quantum, quanta
from ringleader.training.data.progress import (
    Progress,
    delivered,
    quanta_of,
    table_after_loss,
    table_of,
)
from ringleader.training.data_order import DataOrder
from ringleader.training.local_step import LocalStep

Array = NDArray[np.float64]


class Entry(NamedTuple):
    """What a member tells all others in the sideband."""

    node: NodeId
    quanta: tuple[int, ...]
    report: Report


Content = float | Entry | tuple[Entry, ...]
"""What a bucket holds: a sum. Bucket 0 holds an entry, and its result all members'."""


class PureResults:
    """Results of pure functions of equal arguments: computed once for all members."""

    def __init__(self, on_loss: OnLoss) -> None:
        self.on_loss = on_loss
        self._tables: dict[tuple[int, ViewId], tuple[Progress, StepTable]] = {}
        self._delivered: dict[tuple[int, Attempt], tuple[Progress, Progress]] = {}
        self._plain: dict[int, tuple[Progress, dict[str, Any]]] = {}

    def table(self, progress: Progress, view: View, plan: StepPlan | None) -> StepTable:
        """Return the table of a step in a view; ``plan`` if it is the first one."""
        key = (id(progress), view.id)
        if key not in self._tables:
            nodes = [member.node for member in view.members]
            if plan is None:
                table = table_of(SPEC, progress, nodes)
            else:
                kept = {m.node: mine for m, mine in plan.quanta.items()}
                table = table_after_loss(SPEC, progress, nodes, kept, self.on_loss)
            self._tables[key] = (progress, table)
        return self._tables[key][1]

    def after(
        self, progress: Progress, attempt: Attempt, entries: tuple[Entry, ...]
    ) -> Progress:
        """Return the progress after a delivered attempt."""
        key = (id(progress), attempt)
        if key not in self._delivered:
            taken = {q for entry in entries for q in entry.quanta}
            indices = range(len(quanta(SPEC, progress.state)))
            table = StepTable(
                {entry.node: entry.quanta for entry in entries},
                tuple(q for q in indices if q not in taken),
            )
            reports = {entry.node: entry.report for entry in entries}
            after = delivered(SPEC, progress, attempt.version, table, reports)
            self._delivered[key] = (progress, after)
        return self._delivered[key][1]

    def plain(self, progress: Progress) -> dict[str, Any]:
        """Return progress as it is sent and written."""
        key = id(progress)
        if key not in self._plain:
            order = DataOrder(SPEC)
            order.progress = progress
            self._plain[key] = (progress, order.state_dict())
        return self._plain[key][1]


class DataSide:
    """The data of a machine from its start to its crash: it computes and stores."""

    def __init__(self, rules: StepRules, pure: PureResults, model: Values) -> None:
        self.rules = rules
        self.pure = pure
        self.model = model
        dtypes = (torch.float64, torch.float32)  # of unlike types: one bucket each
        self.buffers = rules.buffers([torch.zeros(1, dtype=t) for t in dtypes])
        self.buffers.allocate()
        self.residuals = rules.residuals(self.buffers, "int8")
        self.order = DataOrder(SPEC)
        self.work = LocalStep()
        self.table: StepTable | None = None
        self.clean_residuals: Values = (0.0, 0.0)
        """What the next attempt must add: what the last delivered one left."""
        self._encoded: dict[int, tuple[Attempt, float]] = {}
        self._complete: set[tuple[Attempt, int]] = set()
        self._gradient = [self.buffers.part(index).numpy() for index in (0, 1)]
        self._results: dict[int, list[Array]] = {}
        self._entries: list[tuple[Entry, ...]] = [(), ()]

    # -- the work of a step ------------------------------------------------------------

    def assign(self, table: StepTable, node: NodeId, *, is_void: bool) -> None:
        """Take the quanta of a table that are this member's.

        ``is_void``: the plan of the view in force says that others compute its quanta.
        """
        self.table = table
        mine = quanta_of(SPEC, self.order.progress, table, node)
        must_drop = not self.work.is_within(mine)
        if must_drop and (is_void or self.rules.looks_back) and self.rules.drops_void:
            self.drop_contribution()
        self.work.assign(mine)

    def table_from_memory(self, view: View) -> StepTable:
        """Return the table of a step as if nobody else had a say in it. Planted bug."""
        nodes = [member.node for member in view.members]
        known = self.table.quanta if self.table is not None and self.work.done else {}
        kept = {node: known[node] for node in nodes if node in known}
        return table_after_loss(SPEC, self.order.progress, nodes, kept)

    def compute(self, count: int, quantum_s: float) -> None:
        """Compute some of the quanta that are left of the step."""
        sums = [0.0, 0.0]
        for _ in range(count):
            quantum = self.work.begin()
            for index, value in enumerate(gradient(self.model, quantum)):
                sums[index] += value
            self.work.finish(quantum.num_samples, quantum_s)
        for part, value in zip(self._gradient, sums, strict=True):
            part[0] += value

    def contribution(self) -> tuple[Quantum, ...]:
        """Return the quanta in the gradient buffer."""
        return tuple(self.work.done)

    def drop_contribution(self) -> None:
        """Forget the contribution to the next step."""
        self.work.clear()
        self.buffers.zero()

    def encode(self, attempt: Attempt) -> tuple[Values, Values]:
        """Begin an attempt in the codec.

        Return what is sent of the gradient, and the residuals that were added to it.
        """
        self.residuals.begin(attempt)
        sent, added = [], []
        for index in (0, 1):
            before, after = self.residuals.parts(index)
            added.append(before.item())
            wanted = float(self._gradient[index][0]) + added[-1]
            sent.append(quantize(wanted))
            after.fill_(wanted - sent[-1])
            self._encoded[index] = (attempt, wanted - sent[-1])
        return (sent[0], sent[1]), (added[0], added[1])

    def encoded(self, attempt: Attempt, bucket: int) -> None:
        """Note that a bucket of an attempt was reduced, so its residual is complete."""
        self.residuals.written(attempt, bucket - 1)
        self._complete.add((attempt, bucket - 1))

    def entry(self, node: NodeId, flags: Flag) -> Entry:
        """Return the sideband entry of this member."""
        quantum_s = self.work.quantum_s(SPEC.micro_batch)
        return Entry(node, self.work.quanta, Report(quantum_s, flags))

    # -- results -----------------------------------------------------------------------

    def open_result(self, version: int, held: int) -> None:
        """Let an engine write into the buckets of a result that are not held."""
        for bucket in range(NUM_BUCKETS):
            if not held >> bucket & 1:
                self.store(version, bucket, () if bucket == 0 else math.nan)

    def store(self, version: int, bucket: int, value: Content) -> None:
        """Write a bucket of a result."""
        if isinstance(value, tuple):
            self._entries[version % 2] = cast("tuple[Entry, ...]", value)
        else:
            self._result(version)[bucket - 1][0] = value

    def stored(self, version: int, bucket: int) -> Content:
        """Return a bucket of a result."""
        if bucket == 0:
            return self._entries[version % 2]
        return float(self._result(version)[bucket - 1][0])

    def _result(self, version: int) -> list[Array]:
        memory = id(self.buffers.result(version))
        if memory not in self._results:
            parts = (self.buffers.result_part(version, index) for index in (0, 1))
            self._results[memory] = [part.numpy() for part in parts]
        return self._results[memory]

    @property
    def num_results(self) -> int:
        """For how many results memory was used."""
        return len(self._results)

    def result(self, version: int) -> Values:
        """Return the gradient of a result."""
        first, second = self._result(version)
        return float(first[0]), float(second[0])

    def num_samples(self, version: int) -> int:
        """Return how many samples are in a result."""
        step = quanta(SPEC, self.order.progress.state)
        mine = [q for entry in self._entries[version % 2] for q in entry.quanta]
        return sum(step[index].num_samples for index in mine)

    def deliver(self, attempt: Attempt, model: Values) -> None:
        """Take the model and the position after a delivered attempt."""
        entries = self._entries[attempt.version % 2]
        self.model = model
        self.order.progress = self.pure.after(self.order.progress, attempt, entries)
        self.residuals.deliver(attempt)
        first, second = (self._left_by(attempt, index) for index in (0, 1))
        self.clean_residuals = (first, second)
        self._complete.clear()
        self.drop_contribution()

    def _left_by(self, attempt: Attempt, index: int) -> float:
        """Return the residual that a delivered attempt leaves of a bucket."""
        encoded, left = self._encoded.get(index, (None, 0.0))
        is_known = encoded == attempt and (attempt, index) in self._complete
        return left if is_known else 0.0

    # -- copies ------------------------------------------------------------------------

    def adopt(self, model: Values, data: dict[str, Any]) -> None:
        """Take the state of another member."""
        self.model = model
        self.order.load_state_dict(data)
        self._encoded.clear()
        self.residuals.clear()
        self.clean_residuals = (0.0, 0.0)
        self.drop_contribution()
