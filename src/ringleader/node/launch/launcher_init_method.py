"""``init_process_group`` under mpirun and srun, which set no variables of torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed.constants import default_pg_timeout

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.groups.launcher_store import open_store
from ringleader.settings.launch import Launch


def launcher_rendezvous(
    timeout: timedelta = default_pg_timeout, **_options: object
) -> Iterator[tuple[Store, int, int]]:
    """Yield the store, rank and size of the launcher's job.

    Also sets RANK, WORLD_SIZE and LOCAL_RANK, as torchrun does: programs and torch
    itself (``get_node_local_rank``) read them.
    """
    launch = Launch.from_environment()
    store = open_store(launch, Deadline.after(timeout.total_seconds()))
    variables = {"RANK": launch.rank, "WORLD_SIZE": launch.size}
    if launch.local_rank is not None:
        variables["LOCAL_RANK"] = launch.local_rank
    settings.export({name: str(value) for name, value in variables.items()})
    yield store, launch.rank, launch.size
