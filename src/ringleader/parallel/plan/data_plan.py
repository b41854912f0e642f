"""Chooses how many rows of each batch a machine gets, if all have the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from ringleader.errors import ConfigError
from ringleader.parallel.plan.memory import MemoryNeed, size
from ringleader.parallel.plan.profile import LayerProfile, MachineProfile
from ringleader.parallel.plan.shares import batch_weights
from ringleader.parallel.plan.table import aligned, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """The part of each batch that each data rank gets, and what it follows from."""

    strategy: str
    machines: tuple[MachineProfile, ...]
    """One per data rank; the whole model is one layer."""
    model: LayerProfile
    measured_rows: int
    batch: int
    """Rows of all ranks together."""
    microbatches: int
    shards: int = 1
    """Ranks that share gradients and optimizer state."""
    parameter_shards: int = 1
    gathered_bytes: int = 0
    """Parameters that are whole while their layers compute."""
    weights: tuple[float, ...] = ()

    def rows_of(self, rank: int) -> float:
        """Return the rows of a rank per step."""
        return self.weights[rank] * self.batch

    def row_seconds(self, rank: int) -> float:
        """Return the time of one row."""
        return self.machines[rank].layer_seconds[0] / self.measured_rows

    def fixed(self) -> MemoryNeed:
        """Return what every rank needs for the model, without a batch."""
        model = self.model
        return MemoryNeed(
            parameters=model.parameter_bytes // self.parameter_shards
            + self.gathered_bytes,
            gradients=model.gradient_bytes // self.shards,
            optimizer=model.optimizer_bytes // self.shards,
            activations=0,
        )

    def need_of(self, rank: int) -> MemoryNeed:
        """Return what a rank needs during a step."""
        rows = self.rows_of(rank) / self.microbatches
        per_row = self.model.activation_bytes / self.measured_rows
        return replace(self.fixed(), activations=round(rows * per_row))

    def most_rows(self, rank: int) -> float:
        """Return how many rows fit in a rank's memory."""
        room = self.machines[rank].memory_bytes - self.fixed().total
        per_row = self.model.activation_bytes / self.measured_rows
        if room <= 0:
            return 0.0
        return room / per_row * self.microbatches if per_row else inf

    def step_seconds(self, weights: Sequence[float]) -> float:
        """Predict the time of a step without communication."""
        ranks = range(len(self.machines))
        return max(weights[r] * self.batch * self.row_seconds(r) for r in ranks)


def choose_shares(plan: DataPlan) -> DataPlan:
    """Return the plan with the shares; ConfigError if the model does not fit."""
    ranks = range(len(plan.machines))
    if any(plan.most_rows(rank) < 1 for rank in ranks):
        raise ConfigError(shortage(plan))
    weights = batch_weights(
        [plan.row_seconds(rank) for rank in ranks],
        [plan.most_rows(rank) for rank in ranks],
        plan.batch,
    )
    return replace(plan, weights=tuple(weights))


def shortage(plan: DataPlan) -> str:
    """Return why not even one row fits: per rank, what it needs and what it has."""
    lines = [f"the model does not fit with strategy {plan.strategy!r}:"]
    one_row = 1 / plan.batch
    small = replace(plan, weights=(one_row,) * len(plan.machines))
    for rank, machine in enumerate(plan.machines):
        need = small.need_of(rank)
        missing = need.total - machine.memory_bytes
        verdict = f"; {size(missing)} too little" if missing > 0 else ""
        lines.append(
            f"  data rank {rank} ({machine.name}) needs {need}; has "
            f"{size(machine.memory_bytes)}{verdict}"
        )
    if plan.shards > 1:
        lines.append("Torch divides parameters evenly, whatever a machine's memory is.")
    lines.append("Use more machines, 'fsdp' or 'pipeline', or a smaller optimizer.")
    return "\n".join(lines)


def report(plan: DataPlan) -> str:
    """Return the plan as a table, with the reason."""
    ranks = range(len(plan.machines))
    slowest = max(plan.row_seconds(rank) for rank in ranks)
    head = f"ringleader: {plan.strategy} over {len(ranks)} data ranks; batches of "
    rows = [["rank", "machine", "speed", "rows", "share", "needs", "has"]]
    for rank in ranks:
        machine = plan.machines[rank]
        rows.append(
            [
                str(rank),
                machine.name,
                f"{slowest / plan.row_seconds(rank):.2f}x",
                f"{plan.rows_of(rank):.1f}",
                f"{plan.weights[rank]:.0%}",
                size(plan.need_of(rank).total),
                size(machine.memory_bytes),
            ]
        )
    lines = [
        "  Speed is measured: forward and backward of the model, per row. The rows are "
        "in proportion to it, as far as memory allows.",
        _prediction(plan),
        "  Use it: ringleader.shard(dataset, batch, weights=trainer.shares, "
        "rank=trainer.data_rank, size=trainer.data_size).",
    ]
    return "\n".join([f"{head}{plan.batch} rows", *aligned(rows), *lines])


def _prediction(plan: DataPlan) -> str:
    count = len(plan.machines)
    equal = [1 / count] * count
    ours, theirs = plan.step_seconds(plan.weights), plan.step_seconds(equal)
    text = (
        f"  Predicted: {duration(ours)} per step, without communication; equal batches"
    )
    full = [str(r) for r in range(count) if plan.most_rows(r) < plan.batch / count]
    if full:
        return f"{text} do not fit in the memory of rank {', '.join(full)}."
    return f"{text} would take {duration(theirs)}, {theirs / ours:.2f} times as long."
