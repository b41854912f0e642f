"""Process groups of torch whose ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

from torch._C._distributed_c10d import HashStore

from ringleader.backend.create import create_process_group
from ringleader.backend.process_group import RingleaderGroup
from ringleader.testing.threaded_world import run_threads

FORM_S = 90.0


@contextmanager
def formed_groups(
    size: int, limit_s: float = FORM_S
) -> Iterator[list[RingleaderGroup]]:
    """Form a group of ``size`` ranks; its operations may take ``limit_s``."""
    store = HashStore()

    def join(rank: int) -> RingleaderGroup:
        request = SimpleNamespace(
            timeout=timedelta(seconds=FORM_S),
            group_rank=rank,
            group_size=size,
            store=store,
            group_id="0",
            global_ranks_in_group=list(range(size)),
        )
        return create_process_group(request, None)

    made = run_threads([partial(join, rank) for rank in range(size)])
    for each in made:
        each.set_timeout(timedelta(seconds=limit_s))
    try:
        yield made
    finally:
        for each in made:
            each.shutdown()
