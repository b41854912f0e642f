"""Groups that name a backend per device, and torch's debugging of collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    DebugLevel,
    get_debug_level,
    set_debug_level,
)
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from tests.kit.reference import backward, check, mse, net, single, tensor

CPU = torch.device("cpu")


def use(group: Any, rank: int, size: int) -> None:  # noqa: ANN401
    """Collectives of many kinds, objects and DDP on CPU tensors."""
    mine = tensor(50, seed=rank).float()
    everybody = [tensor(50, seed=r).float() for r in range(size)]
    reduced = mine.clone()
    dist.all_reduce(reduced, group=group)
    check(reduced, torch.stack(everybody).sum(0))
    work = dist.all_reduce(reduced, group=group, async_op=True)
    assert work is not None
    work.wait()
    rows = torch.empty(size * 50)
    dist.all_gather_into_tensor(rows, mine, group=group)
    check(rows, torch.cat(everybody))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": r} for r in range(size)]
    dist.broadcast(mine, src=0, group=group)
    check(mine, everybody[0])
    model = DDP(single(net()), process_group=group)
    backward(mse(model, rank, 0))
    dist.barrier(group=group)


def is_mixed(group: Any, backends: dict[str, str]) -> bool:  # noqa: ANN401
    """Check what the group says about its devices; whether torch mixes backends."""
    config = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    told = {d: group._get_backend(torch.device(d)).name() for d in backends}
    assert config == told, "the configuration is what tensors meet"
    assert told == backends or set(told.values()) == {"ringleader"}
    return told == backends


def ours_for_the_cpu_gloo_for_cuda(rank: int, size: int) -> None:
    backend = "cpu:ringleader,cuda:gloo"
    assert dist.is_backend_available(backend)
    group: Any = dist.new_group(backend=backend)
    is_mixed(group, {"cpu": "ringleader", "cuda": "gloo"})
    use(group, rank, size)
    dist.destroy_process_group(group)


def gloo_for_the_cpu_ours_for_cuda(rank: int, size: int) -> None:
    group: Any = dist.new_group(backend="cpu:gloo,cuda:ringleader")
    mixes = is_mixed(group, {"cpu": "gloo", "cuda": "ringleader"})
    assert mixes == (group.__class__ is dist.ProcessGroup)
    use(group, rank, size)
    dist.destroy_process_group(group)


def detailed_debugging(rank: int, size: int) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: torch wraps backends, and leaves our group be."""
    level = get_debug_level()
    set_debug_level(DebugLevel.DETAIL)
    try:
        for backend in ("ringleader", "cpu:gloo,cuda:ringleader"):
            group = dist.new_group(backend=backend)
            use(group, rank, size)
            dist.destroy_process_group(group)
    finally:
        set_debug_level(level)
