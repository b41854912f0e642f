"""The text that is printed before a pipeline runs: the plan, and why it is so."""

from __future__ import annotations

from ringleader.parallel.plan.memory import size
from ringleader.parallel.plan.pipeline_plan import PipelinePlan, layer_words, without
from ringleader.parallel.plan.table import aligned, duration


def report(plan: PipelinePlan, microbatch: int, replicas: int = 1) -> str:
    """Return the plan as a table, with the reason and the predicted time of a step."""
    schedule = plan.schedule
    over = f" in each of {replicas} replicas" if replicas > 1 else ""
    head = (
        f"ringleader: pipeline of {len(plan.layers)} layers over {schedule.ranks} ranks"
        f"{over}; {schedule.name}, {schedule.microbatches} micro-batches of "
        f"{microbatch}"
    )
    columns = ["rank", "machine", "layers", "share", "needs", "has"]
    if not plan.is_given:
        columns[2:2] = ["speed"]
        columns[5:5] = ["time"]
    rows = [columns]
    for rank in range(schedule.ranks):
        cells = _cells(plan, rank)
        rows.append([cells[column] for column in columns])
    reasons = _given(plan) if plan.is_given else _reasons(plan)
    return "\n".join([head, *aligned(rows), *reasons])


def _cells(plan: PipelinePlan, rank: int) -> dict[str, str]:
    machine = plan.machines[rank]
    count = sum(end - begin for begin, end in plan.spans_of(rank))
    return {
        "rank": str(rank),
        "machine": machine.name,
        "speed": f"{_speed(plan, rank):.2f}x",
        "layers": layer_words(plan, rank),
        "share": f"{count / len(plan.layers):.0%}",
        "time": duration(plan.seconds_of(rank)),
        "needs": size(plan.need_of(rank).total),
        "has": size(machine.memory_bytes),
    }


def _given(plan: PipelinePlan) -> list[str]:
    split = list(plan.counts)
    return [f"  The split {split} was given; the speed of the machines is not measured"]


def _speed(plan: PipelinePlan, rank: int) -> float:
    """Return the speed of a machine for the whole model; the slowest has 1."""
    whole = [machine.seconds(0, len(plan.layers)) for machine in plan.machines]
    return max(whole) / whole[rank] if whole[rank] > 0 else 1.0


def _reasons(plan: PipelinePlan) -> list[str]:
    ranks = range(plan.schedule.ranks)
    slowest = max(ranks, key=plan.seconds_of)
    fastest = max(ranks, key=lambda rank: _speed(plan, rank))
    least = min(ranks, key=lambda rank: _speed(plan, rank))
    equal = plan.equal_split()
    ours, theirs = plan.step_seconds(), equal.step_seconds()
    lines = [
        f"  Speed is measured: forward and backward of one micro-batch through all "
        f"layers takes {_whole(plan, fastest)} on rank {fastest}, {_whole(plan, least)}"
        f" on rank {least}.",
        f"  The slowest stage, on rank {slowest}, sets the pace of the others; the "
        "split makes it as fast as memory allows.",
    ]
    if plan.counts == equal.counts:
        lines.append(f"  Predicted: {duration(ours)} per step. It is the equal split.")
    else:
        lines.append(
            f"  Predicted: {duration(ours)} per step; {duration(theirs)} with equal "
            f"numbers of layers {list(equal.counts)}, {theirs / ours:.2f} times as "
            "long."
        )
    if equal.lacks():
        where = ", ".join(f"rank {rank}" for rank in equal.lacks())
        lines.append(f"  Equal numbers of layers would not fit in memory on {where}.")
    return lines + _leave_out(plan)


def _leave_out(plan: PipelinePlan) -> list[str]:
    """Return the advice to do without a machine that holds up the others."""
    best: tuple[float, int] = (plan.step_seconds(), -1)
    for rank in range(plan.schedule.ranks):
        fewer = without(plan, rank)
        if fewer is not None:
            best = min(best, (fewer.step_seconds(), rank))
    seconds, rank = best
    if rank < 0:
        return []
    name = plan.machines[rank].name
    text = f"  Without rank {rank} ({name}) a step would take {duration(seconds)}"
    return [f"{text}, sending not counted: leave it out."]


def _whole(plan: PipelinePlan, rank: int) -> str:
    return duration(plan.machines[rank].seconds(0, len(plan.layers)))
