"""Chooses the layers of each stage of a pipeline over unlike machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from ringleader.errors import ConfigError
from ringleader.parallel.plan.memory import MemoryNeed, Span, rank_need, size
from ringleader.parallel.plan.partition import equal_counts, partition
from ringleader.parallel.plan.profile import LayerProfile, MachineProfile
from ringleader.parallel.plan.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The layers of each stage, and what was measured to choose them."""

    schedule: Schedule
    layers: tuple[LayerProfile, ...]
    machines: tuple[MachineProfile, ...]
    """One per rank of the pipeline."""
    counts: tuple[int, ...]
    """Number of layers of each stage."""
    is_given: bool = False
    """True if the user chose the split; the speed is then not measured."""

    def spans(self) -> list[Span]:
        """Return the first layer of each stage, and the first after it."""
        return list(pairwise(accumulate(self.counts, initial=0)))

    def spans_of(self, rank: int) -> list[Span]:
        """Return the spans of the stages of one rank."""
        spans = self.spans()
        return [spans[stage] for stage in self.schedule.stages_of(rank)]

    def seconds_of(self, rank: int) -> float:
        """Return the time that a rank computes for one micro-batch."""
        return sum(self.machines[rank].seconds(*span) for span in self.spans_of(rank))

    def need_of(self, rank: int) -> MemoryNeed:
        """Return the memory that a rank needs."""
        return rank_need(self.layers, self.spans_of(rank), self.schedule, rank)

    def step_seconds(self) -> float:
        """Predict the time of a step."""
        ranks = self.schedule.ranks
        seconds = [
            self.machines[stage % ranks].seconds(*span)
            for stage, span in enumerate(self.spans())
        ]
        return self.schedule.step_seconds(seconds)

    def with_counts(self, counts: Sequence[int]) -> PipelinePlan:
        """Return the plan for another division of the layers."""
        return replace(self, counts=tuple(counts))

    def equal_split(self) -> PipelinePlan:
        """Return the plan with the same number of layers in each stage."""
        return self.with_counts(equal_counts(len(self.layers), self.schedule.stages))

    def lacks(self) -> list[int]:
        """Return the ranks whose memory does not suffice."""
        return [
            rank
            for rank, machine in enumerate(self.machines)
            if self.need_of(rank).total > machine.memory_bytes
        ]


def choose_plan(
    layers: Sequence[LayerProfile],
    machines: Sequence[MachineProfile],
    schedule: Schedule,
) -> PipelinePlan:
    """Return the plan whose slowest stage is fastest, of those that fit in memory.

    Raises ConfigError with the arithmetic if none was found that fits.
    """
    start = _unplanned(layers, machines, schedule)
    count, ranks, stages = len(layers), schedule.ranks, schedule.stages

    def seconds(stage: int, begin: int, end: int) -> float:
        return machines[stage % ranks].seconds(begin, end)

    def fullness(stage: int, begin: int, end: int) -> float:
        rank = stage % ranks
        need = rank_need(layers, [(begin, end)], schedule, rank).total
        return need * schedule.stages_per_rank / max(1, machines[rank].memory_bytes)

    def seconds_if_it_fits(stage: int, begin: int, end: int) -> float:
        fits = fullness(stage, begin, end) <= 1
        return seconds(stage, begin, end) if fits else inf

    closest = start
    for cost in (seconds, seconds_if_it_fits, fullness):
        counts = partition(count, stages, cost)
        if counts is not None:
            closest = start.with_counts(counts)
            if not closest.lacks():
                return closest
    raise ConfigError(shortage(closest))


def without(plan: PipelinePlan, rank: int) -> PipelinePlan | None:
    """Return the plan for all other machines; None if there is none."""
    machines = plan.machines[:rank] + plan.machines[rank + 1 :]
    if not machines:
        return None
    fewer = replace(plan.schedule, ranks=plan.schedule.ranks - 1)
    try:
        return choose_plan(plan.layers, machines, fewer)
    except ConfigError:
        return None


def fixed_plan(
    layers: Sequence[LayerProfile],
    machines: Sequence[MachineProfile],
    schedule: Schedule,
    counts: Sequence[int],
) -> PipelinePlan:
    """Return the plan for a split that the user gave; raises ConfigError if wrong."""
    start, stages = _unplanned(layers, machines, schedule), schedule.stages
    if len(counts) != stages or min(counts) < 1 or sum(counts) != len(layers):
        text = f"split={list(counts)}: {stages} numbers of 1 or more are needed, whose"
        raise ConfigError(f"{text} sum is {len(layers)}, the number of layers")
    plan = replace(start, counts=tuple(counts), is_given=True)
    if plan.lacks():
        raise ConfigError(shortage(plan))
    return plan


def _unplanned(
    layers: Sequence[LayerProfile],
    machines: Sequence[MachineProfile],
    schedule: Schedule,
) -> PipelinePlan:
    """Return a plan without a split."""
    schedule.check()
    if len(layers) < schedule.stages:
        text = f"the model has {len(layers)} layers for {schedule.stages} stages"
        raise ConfigError(f"{text}; use fewer machines, or name smaller layers")
    return PipelinePlan(
        schedule=schedule, layers=tuple(layers), machines=tuple(machines), counts=()
    )


def shortage(plan: PipelinePlan) -> str:
    """Return why a plan does not fit: per rank, what it needs and what it has."""
    lines = ["the model does not fit. The division that comes closest:"]
    for rank, machine in enumerate(plan.machines):
        need = plan.need_of(rank)
        missing = need.total - machine.memory_bytes
        verdict = f"; {size(missing)} too little" if missing > 0 else ""
        lines.append(
            f"  rank {rank} ({machine.name}), {layer_words(plan, rank)}: needs {need}; "
            f"has {size(machine.memory_bytes)}{verdict}"
        )
    lines.append(
        "Add a machine, use a smaller micro-batch (more microbatches, or a smaller "
        "batch), or an optimizer with less state."
    )
    return "\n".join(lines)


def layer_words(plan: PipelinePlan, rank: int) -> str:
    """Return the layers of a rank for people.

    The numbers count the layers of the model from 0.
    """
    spans = plan.spans_of(rank)
    parts = [f"{b}" if e == b + 1 else f"{b} to {e - 1}" for b, e in spans]
    word = "layer" if sum(e - b for b, e in spans) == 1 else "layers"
    return f"{word} {' and '.join(parts)}"
