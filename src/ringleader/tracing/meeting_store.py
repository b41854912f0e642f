"""``find_meeting``: the store in which the ranks of this program have met."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ringleader.deadline import Deadline
from ringleader.groups.launcher_store import open_store, opened_store
from ringleader.settings.launch import Launch
from ringleader.settings.run import run_settings

OPEN_S = 20.0


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
    if found is None and not _is_elastic():
        return None
    launch = Launch.from_environment()
    if found is None:
        found = open_store(launch, Deadline.after(OPEN_S))
    return Meeting(found, launch.rank, launch.size)


def _is_elastic() -> bool:
    """Return whether the launcher has a store that the program does not use.

    Members of an elastic run meet through the agents.
    """
    run = run_settings()
    return run is not None and bool(run.agent)
