"""``fsdp``: every rank has a shard of each parameter and of the optimizer's state.

Torch's ``fully_shard`` gathers a block of layers just before it is used. The rest of
the model, such as embeddings and norms between blocks, is one more block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ringleader.backend.underlying_group import ringleader_group
from ringleader.errors import ConfigError
from ringleader.groups.group import handle_of
from ringleader.parallel.blocks import find_blocks
from ringleader.parallel.grid import Grid, check_hosts, divide, hybrid_sizes
from ringleader.parallel.microbatch_runner import (
    MicrobatchRunner,
    Synchronize,
    device_of,
)
from ringleader.parallel.options import Options
from ringleader.parallel.strategies.tensor import shard_layers
from ringleader.parallel.sync_batch_norm import SyncBatchNorm


def make_grid(options: Options) -> Grid:
    """Shard over all data ranks, or over those of each host."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = (options.tensor or world) if "tensor" in options.parts else 1
    if options.shard != "hybrid":
        shards = divide(world, tensor, "tensor groups")
        return Grid(rank, tuple(range(world)), shard=shards, tensor=tensor)
    hosts = options.hosts if options.hosts is not None else hosts_of_world()
    check_hosts(hosts, world)
    copies, shards = hybrid_sizes(hosts, tensor)
    # torch orders the ranks of each group, whatever their order in a mesh is.
    ranks = tuple(rank for host in sorted(map(sorted, hosts)) for rank in host)
    return Grid(rank, ranks, replicate=copies, shard=shards, tensor=tensor)


def hosts_of_world() -> list[list[int]]:
    """Return the ranks of each host, as the group found out when it formed."""
    world = dist.group.WORLD
    assert world is not None
    ours = ringleader_group(world)
    if ours is None:
        raise ConfigError(
            f"shard='hybrid': the backend {world.name()!r} does not tell which ranks "
            "share a host; give hosts=[[0, 1], [2, 3]]"
        )
    return handle_of(ours).network.host_lists()


def place(grid: Grid, model: nn.Module, options: Options) -> MicrobatchRunner:
    """Shard layers over the tensor ranks of the grid, then all over its data ranks."""
    names = ["shard"] if grid.replicate == 1 else ["replicate", "shard"]
    mesh = grid.mesh(
        device_of(model).type, [*names, "tensor"] if grid.tensor > 1 else names
    )
    if options.batch_norm == "sync" and grid.data > 1:
        model = SyncBatchNorm.convert_sync_batchnorm(model, grid.data_group)
    if grid.tensor > 1:
        shard_layers(model, mesh["tensor"], options.plan)
        mesh = mesh[tuple(names)]
    synchronize, finish = shard_blocks(model, mesh, options, grid)
    return MicrobatchRunner(
        model, synchronize, options=options, grid=grid, finish=finish
    )


def shard_blocks(
    model: nn.Module, mesh: DeviceMesh, options: Options, grid: Grid
) -> tuple[Synchronize, Callable[[], None]]:
    """Apply ``fully_shard`` to the blocks and the rest of the model."""
    reduce_dtype = torch.float32 if options.dtype else None
    policy = MixedPrecisionPolicy(param_dtype=options.dtype, reduce_dtype=reduce_dtype)
    root_policy = MixedPrecisionPolicy(
        param_dtype=options.dtype, reduce_dtype=reduce_dtype, output_dtype=reduce_dtype
    )
    # fully_shard refuses parameters without dimensions; they stay whole.
    scalars = {each for each in model.parameters() if each.ndim == 0}
    frees = options.shard != "grad"
    blocks = find_blocks(model, options.blocks)
    for block in blocks:
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=frees,
            ignored_params=scalars,
        )
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=root_policy,
        reshard_after_forward=False,
        ignored_params=scalars,
    )
    root = model
    assert isinstance(root, FSDPModule)
    units = [each for each in blocks if isinstance(each, FSDPModule)]
    ahead = 1 if options.prefetch is None else options.prefetch
    if ahead:
        gather_ahead(root, units, ahead)

    has_failed = False

    @contextmanager
    def synchronize(is_last: bool) -> Iterator[None]:
        nonlocal has_failed
        if has_failed:  # FSDP keeps gradients of it, which zero_grad does not reach
            text = "step: an earlier step failed in the middle"
            raise ConfigError(f"{text}; call parallelize again and load a checkpoint")
        root.set_requires_gradient_sync(is_last)
        # What was not freed after forward is not freed between micro-batches.
        root.set_reshard_after_backward(is_last, recurse=not frees)
        has_failed = True
        yield
        has_failed = False

    trained = [each for each in scalars if each.requires_grad]
    return synchronize, lambda: average(trained, grid)


def gather_ahead(root: FSDPModule, units: Sequence[FSDPModule], ahead: int) -> None:
    """Gather the next ``ahead`` blocks while one computes, in both directions."""
    for i, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch([*units[i + 1 : i + 1 + ahead]])
        before = [*units[max(0, i - ahead) : i]]
        unit.set_modules_to_backward_prefetch(before[::-1])
    # Without this, a gather on a CPU ends before the block computes.
    root._set_unshard_async_op(True)


def average(parameters: Sequence[nn.Parameter], grid: Grid) -> None:
    """Average the gradients of parameters that are not sharded, in one all_reduce."""
    if not parameters:
        return
    zero = torch.zeros_like
    grads = [zero(p) if p.grad is None else p.grad for p in parameters]
    flat: Tensor = torch.stack([grad.double() for grad in grads])
    dist.all_reduce(flat, group=grid.data_group)
    flat /= grid.data
    for parameter, value in zip(parameters, flat, strict=True):
        parameter.grad = value.to(parameter.dtype)
