"""Patches of functions of torch.distributed for our groups.

``monitored_barrier`` refuses every backend but Gloo, and ``_set_pg_timeout`` ignores
every backend but Gloo and NCCL, by comparing names. The patches call our groups'
methods. So does ``broadcast_object_list`` where a group survives the loss of ranks:
torch's serializes only the objects of the source. Asynchronous checkpoints get a group
of their own, and so does the reducer of DistributedDataParallel. For all other groups
torch's own code runs unchanged.
"""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ringleader.backend import async_checkpoints, ddp_reducer


def install() -> None:
    """Replace the functions. Called once, when the backend is registered."""
    barrier, set_timeout = c10d.monitored_barrier, c10d._set_pg_timeout
    objects = c10d.broadcast_object_list

    @wraps(barrier)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        if not _is_ours(group):
            barrier(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, int | float):
            timeout = timedelta(seconds=timeout)
        chosen: Any = group or c10d._get_default_group()
        chosen.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    @wraps(set_timeout)
    def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        if not _is_ours(group):
            set_timeout(timeout, group)
            return
        chosen: Any = group or c10d._get_default_group()
        chosen.set_timeout(timeout)

    @wraps(objects)
    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        chosen: Any = (group or c10d._get_default_group()) if _is_ours(group) else None
        if not hasattr(chosen, "broadcast_objects"):
            objects(object_list, src, group, device, group_src)
            return
        if src is None and group_src is None:
            src = 0
        root = c10d._canonicalize_group_rank(chosen, src, group_src)
        chosen.broadcast_objects(object_list, root)

    c10d.broadcast_object_list = broadcast_object_list
    dist.broadcast_object_list = broadcast_object_list
    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
    c10d._set_pg_timeout = _set_pg_timeout
    async_checkpoints.install(_is_ours)
    ddp_reducer.install()


def _is_ours(group: Any) -> bool:
    """Return whether it is a ringleader group and this rank is a member."""
    if not dist.is_initialized() or group is c10d.GroupMember.NON_GROUP_MEMBER:
        return False
    from ringleader.backend.process_group import RingleaderGroup

    return isinstance(group or c10d._get_default_group(), RingleaderGroup)
