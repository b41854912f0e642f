"""``pipeline``: each rank has some layers, and passes activations to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from ringleader.errors import ConfigError
from ringleader.parallel.announce import announce
from ringleader.parallel.grid import Grid, divide
from ringleader.parallel.measurement.exchange import exchange
from ringleader.parallel.measurement.layers import Layer, check_layers, find_layers
from ringleader.parallel.measurement.measure import Measurement, measure
from ringleader.parallel.measurement.optimizer_size import optimizer_ratio
from ringleader.parallel.measurement.sample import (
    Sample,
    example_rows,
    sample_of,
)
from ringleader.parallel.microbatch_runner import device_of
from ringleader.parallel.options import Options
from ringleader.parallel.pipeline.gradient_sums import TiedParameters
from ringleader.parallel.pipeline.runner import PipelineRunner
from ringleader.parallel.pipeline.sharded_stages import check_shardable, shard_stages
from ringleader.parallel.pipeline.stage_module import StageModule, drop_layers
from ringleader.parallel.pipeline.torch_schedule import Stages
from ringleader.parallel.plan.pipeline_plan import (
    PipelinePlan,
    choose_plan,
    fixed_plan,
)
from ringleader.parallel.plan.profile import MachineProfile, slowest_of
from ringleader.parallel.plan.report import report
from ringleader.parallel.plan.schedule import Schedule, ScheduleName

MICROBATCHES_PER_STAGE = 4
"""Unless the user says how many; a fifth of the time is then lost to filling."""


def place(grid: Grid, model: nn.Module, options: Options) -> PipelineRunner:
    """Measure the machines, choose the layers of each, and keep those of this rank."""
    device = device_of(model)
    sample, schedule = _sample(options, grid, device)
    layers = find_layers(model, options.layers)
    check_layers(model, layers, sample)
    measured = measure(
        model,
        layers,
        sample,
        optimizer_ratio(options.optimizer),
        seconds=None if options.split is None else 0.0,
    )
    plan = _plan(model, measured, schedule, grid, options)
    announce(report(plan, sample.rows, grid.data), dry_run=options.dry_run)
    stage = grid.stage_of(grid.rank)
    modules = _modules(layers, measured, plan, stage, sample)
    ties = _ties(layers, plan, grid)
    is_sharded = "fsdp" in options.parts
    if is_sharded:
        check_shardable(model, layers)
    kept = {i for b, e in plan.spans_of(stage) for i in range(b, e)}
    drop_layers(model, layers, kept)
    if is_sharded:
        shard_stages(modules, grid.mesh(device.type, ("stage", "shard"))["shard"])
    group = _pipeline_group(grid)
    bounds = [
        (measured.boundaries[b], measured.boundaries[e])
        for b, e in plan.spans_of(stage)
    ]
    stages = Stages(modules, bounds, schedule, stage, device, group)
    ends = (measured.boundaries[0], measured.boundaries[-1])
    return PipelineRunner(model, stages, grid, sample, ends, ties)


def make_grid(options: Options) -> Grid:
    """See ``Strategy``."""
    world = dist.get_world_size()
    stages = world
    if options.strategy != "pipeline":
        stages = options.stages or 2
    elif options.stages not in (None, world):
        text = f"stages={options.stages} and {world} ranks: each rank has one place in"
        raise ConfigError(f"{text} the pipeline; use strategy='pipeline+ddp'")
    rank, ranks = dist.get_rank(), tuple(range(world))
    copies = divide(world, stages, "stages")
    if "fsdp" in options.parts:
        return Grid(rank, ranks, stage=stages, shard=copies)
    return Grid(rank, ranks, stage=stages, replicate=copies)


def _sample(
    options: Options, grid: Grid, device: torch.device
) -> tuple[Sample, Schedule]:
    """Return the micro-batch to measure with, and the schedule that cuts it."""
    if options.loss is None:
        raise ConfigError("pipeline: give loss=, which the last stage computes")
    rows, ranks, count = example_rows(options), grid.stage, options.microbatches
    if count is None:
        count = max(ranks, min(MICROBATCHES_PER_STAGE * ranks, rows // ranks * ranks))
    schedule = Schedule(
        name=ScheduleName(options.schedule or "1f1b"),
        ranks=ranks,
        microbatches=count,
        stages_per_rank=options.stages_per_rank or _default_stages(options),
    )
    schedule.check()
    if rows < count:
        text = f"the example has {rows} rows for {count} micro-batches"
        raise ConfigError(f"pipeline: {text}; give a larger one, or fewer microbatches")
    return sample_of(options, rows // count, device), schedule


def _default_stages(options: Options) -> int:
    return 2 if options.schedule == ScheduleName.INTERLEAVED else 1


def _plan(
    model: nn.Module,
    measured: Measurement,
    schedule: Schedule,
    grid: Grid,
    options: Options,
) -> PipelinePlan:
    """Return the plan, the same on all ranks; every rank computes it itself."""
    device = device_of(model)
    held = sum(each.nbytes for each in [*model.parameters(), *model.buffers()])
    layers, machines = exchange(measured, device, held)
    if "fsdp" in options.parts:  # parameters and gradients are whole during a step
        layers = [
            replace(each, optimizer_bytes=each.optimizer_bytes // grid.shard)
            for each in layers
        ]
    places: list[list[MachineProfile]] = [[] for _ in range(grid.stage)]
    for rank, machine in enumerate(machines):
        places[grid.stage_of(rank)].append(machine)
    each = [slowest_of(replicas) for replicas in places]
    if options.split is not None:
        return fixed_plan(layers, each, schedule, options.split)
    return choose_plan(layers, each, schedule)


def _modules(
    layers: Sequence[Layer],
    measured: Measurement,
    plan: PipelinePlan,
    rank: int,
    sample: Sample,
) -> list[StageModule]:
    return [
        StageModule(
            layers[begin:end],
            sample.precision,
            is_first=begin == 0,
            takes_tuple=measured.boundaries[begin].is_tuple,
        )
        for begin, end in plan.spans_of(rank)
    ]


def _pipeline_group(grid: Grid) -> dist.ProcessGroup:
    """Return the ranks that hold the stages for this rank's share of the data."""
    (group,) = _groups(grid, [tuple(range(grid.stage))])
    assert group is not None
    return group


def _groups(
    grid: Grid, stage_sets: Sequence[tuple[int, ...]]
) -> list[dist.ProcessGroup | None]:
    """Return a group for each set of stages; None where this rank is not in it.

    All ranks must call it, because it forms process groups.
    """
    found: list[dist.ProcessGroup | None] = []
    for stages in stage_sets:
        mine = None
        for share in range(grid.data):
            ranks = [grid.ranks[stage * grid.data + share] for stage in stages]
            group = dist.new_group(ranks)
            if grid.rank in ranks:
                assert isinstance(group, dist.ProcessGroup)
                mine = group
        found.append(mine)
    return found


def _ties(
    layers: Sequence[Layer], plan: PipelinePlan, grid: Grid
) -> list[TiedParameters]:
    """Return this rank's parameters of which other stages have a copy, too."""
    holders: dict[nn.Parameter, set[int]] = {}
    for rank in range(grid.stage):
        for begin, end in plan.spans_of(rank):
            for layer in layers[begin:end]:
                for parameter in layer.module.parameters():
                    holders.setdefault(parameter, set()).add(rank)
    shared: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter, ranks in holders.items():
        if len(ranks) > 1 and parameter.requires_grad:
            shared.setdefault(tuple(sorted(ranks)), []).append(parameter)
    stage = grid.stage_of(grid.rank)
    return [
        TiedParameters(tuple(parameters), group, is_first=stages[0] == stage)
        for (stages, parameters), group in zip(
            shared.items(), _groups(grid, list(shared)), strict=True
        )
        if group is not None and stage in stages
    ]
