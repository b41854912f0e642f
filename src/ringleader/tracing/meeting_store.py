"""``find_meeting``: the store in which the ranks of this program have met."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ringleader.groups.launcher_store import opened_store
from ringleader.settings.launch import Launch


@dataclass(frozen=True, slots=True)
class Meeting:
    """The store, and the place of this process among those that use it."""

    store: Store
    rank: int
    size: int


def find_meeting() -> Meeting | None:
    """Return the store of torch's world or of ``ringleader.group``; None without."""
    if dist.is_available() and dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        return Meeting(store, dist.get_rank(), dist.get_world_size())
    found = opened_store()
    if found is None:
        return None
    launch = Launch.from_environment()
    return Meeting(found, launch.rank, launch.size)
