"""``ddp``: every rank has the whole model, gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringleader.parallel.grid import Grid, divide
from ringleader.parallel.microbatch_runner import MicrobatchRunner, Synchronize
from ringleader.parallel.options import Options
from ringleader.parallel.sync_batch_norm import SyncBatchNorm


def make_grid(options: Options) -> Grid:
    """See ``Strategy``."""
    world = dist.get_world_size()
    tensor = (options.tensor or world) if "tensor" in options.parts else 1
    copies = divide(world, tensor, "tensor groups")
    ranks = tuple(range(world))
    return Grid(dist.get_rank(), ranks, replicate=copies, tensor=tensor)


def place(grid: Grid, model: nn.Module, options: Options) -> MicrobatchRunner:
    """Wrap the model in torch's DDP; with tensor parallel layers, replicate those."""
    if "tensor" in options.parts:
        from ringleader.parallel.strategies import fsdp

        return fsdp.place(grid, model, options)
    if options.batch_norm == "sync":
        model = SyncBatchNorm.convert_sync_batchnorm(model)
    return MicrobatchRunner(
        *replicate(model),
        options=options,
        grid=grid,
        autocast=options.dtype,
    )


def replicate(
    model: nn.Module, group: dist.ProcessGroup | None = None
) -> tuple[DistributedDataParallel, Synchronize]:
    """Return the model in DDP, and what switches its all_reduce off."""
    # parallelize() has compared and broadcast the state. Buffers are not broadcast in
    # each forward: those of SyncBatchNorm are equal.
    wrapped = DistributedDataParallel(
        model,
        process_group=group,
        forward_sync_buffers=False,
        init_sync=False,
        gradient_as_bucket_view=True,
    )

    @contextmanager
    def synchronize(is_last: bool) -> Iterator[None]:
        if is_last:
            yield
        else:
            with wrapped.no_sync():
                yield

    return wrapped, synchronize
