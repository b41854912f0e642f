"""Measures the machines of data-parallel training, and shares out the batch."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from ringleader.parallel.measurement.exchange import exchange
from ringleader.parallel.measurement.layers import Layer, parts_of
from ringleader.parallel.measurement.measure import measure
from ringleader.parallel.measurement.optimizer_size import optimizer_ratio
from ringleader.parallel.measurement.sample import example_rows, sample_of
from ringleader.parallel.microbatch_runner import device_of
from ringleader.parallel.options import Options
from ringleader.parallel.plan.data_plan import DataPlan, choose_shares
from ringleader.parallel.plan.profile import slowest_of


def plan_data(model: nn.Module, options: Options) -> DataPlan:
    """Return the share of each data rank; all ranks must call it.

    The example is the batch of one data rank; the batch of all has as many times its
    rows. Raises ConfigError if the model does not fit.
    """
    whole_rows, microbatches = example_rows(options), options.microbatches or 1
    device, world = device_of(model), dist.get_world_size()
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
    wide = (options.tensor or world) if "tensor" in options.parts else 1
    data = world // wide
    shards = data * wide if "fsdp" in options.parts else wide
    if options.shard == "hybrid":
        shards = len(options.hosts[0]) if options.hosts else 1
    largest = max(
        sum(p.nbytes for p in part.module.parameters()) for part in parts_of(model)
    )
    return choose_shares(
        DataPlan(
            strategy=options.strategy,
            machines=tuple(
                slowest_of(machines[rank * wide : (rank + 1) * wide])
                for rank in range(data)
            ),
            model=whole,
            measured_rows=sample.rows,
            batch=whole_rows * data,
            microbatches=microbatches,
            shards=shards,
            parameter_shards=wide if options.shard == "grad" else shards,
            gathered_bytes=largest if "fsdp" in options.parts else 0,
        )
    )
