"""Measures the machines of data-parallel training, and shares out the batch."""

from __future__ import annotations

from torch import nn

from ringleader.parallel.grid import Grid
from ringleader.parallel.measurement.exchange import exchange
from ringleader.parallel.measurement.layers import Layer, parts_of
from ringleader.parallel.measurement.measure import measure
from ringleader.parallel.measurement.optimizer_size import optimizer_ratio
from ringleader.parallel.measurement.sample import example_rows, sample_of
from ringleader.parallel.microbatch_runner import device_of
from ringleader.parallel.options import Options
from ringleader.parallel.plan.data_plan import DataPlan, choose_shares
from ringleader.parallel.plan.profile import MachineProfile, slowest_of


def plan_data(model: nn.Module, options: Options, grid: Grid) -> DataPlan:
    """Return the share of each data rank; all ranks must call it.

    The example is the batch of one data rank; the batch of all has as many times its
    rows. Raises ConfigError if the model does not fit.
    """
    whole_rows, microbatches = example_rows(options), options.microbatches or 1
    device = device_of(model)
    sample = sample_of(options, max(1, whole_rows // microbatches), device)
    measured = measure(
        model,
        [Layer("model", model)],
        sample,
        optimizer_ratio(options.optimizer),
        cuts=False,
    )
    held = sum(each.nbytes for each in [*model.parameters(), *model.buffers()])
    (whole,), machines = exchange(measured, device, held)
    groups: list[list[MachineProfile]] = [[] for _ in range(grid.data)]
    for rank, machine in enumerate(machines):
        groups[grid.data_rank(rank)].append(machine)
    shards = grid.shard * grid.tensor
    largest = max(
        (sum(p.nbytes for p in part.module.parameters()) for part in parts_of(model)),
        default=whole.parameter_bytes,
    )
    return choose_shares(
        DataPlan(
            strategy=options.strategy,
            machines=tuple(map(slowest_of, groups)),
            model=whole,
            measured_rows=sample.rows,
            batch=whole_rows * grid.data,
            microbatches=microbatches,
            shards=shards,
            parameter_shards=grid.tensor if options.shard == "grad" else shards,
            gathered_bytes=largest if "fsdp" in options.parts else 0,
        )
    )
