"""Ranks that ask torch for the same group meet, and no others."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import AllreduceOptions, HashStore, Store

from ringleader.backend.create import create_process_group
from ringleader.backend.process_group import RingleaderGroup
from ringleader.errors import ConfigError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads


def request_of(world_rank: int, ranks: list[int], store: Store) -> SimpleNamespace:
    """Return what torch passes to the creator of a group of ``ranks``."""
    return SimpleNamespace(
        timeout=timedelta(seconds=90),
        group_rank=ranks.index(world_rank),
        group_size=len(ranks),
        store=store,
        group_id="3",
        global_ranks_in_group=ranks,
    )


def test_groups_with_the_same_id_and_store_do_not_meet() -> None:
    """new_subgroups(group=half): both halves form their group at the same time.

    Was: ranks 0 and 3 met, and so did 1 and 2. They added their values up without an
    error, or with "two processes have rank 0".
    """
    store = HashStore()

    def add_up(world_rank: int) -> float:
        time.sleep(0.3 * (world_rank in (1, 2)))  # 0 and 3, of different halves, first
        half = [0, 1] if world_rank < 2 else [2, 3]
        group = create_process_group(request_of(world_rank, half, store), None)
        value = torch.tensor([2.0**world_rank])
        work = group.allreduce([value], AllreduceOptions())
        assert work is not None
        work.wait()
        group.shutdown()
        return value.item()

    sums = run_threads([lambda r=r: add_up(r) for r in range(4)])  # type: ignore[misc]
    assert sums == [3.0, 3.0, 12.0, 12.0]


def test_ranks_meet_again_after_an_attempt_that_failed_on_one_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Was: each counted its own attempts, and they waited for each other for ever."""
    store, wrap = HashStore(), RingleaderGroup.wrap
    broken = {1}

    def fail_once(group: Group, store: Store, *rest: Any) -> RingleaderGroup:  # noqa: ANN401
        made = wrap(group, store, *rest)  # communicates: the other rank succeeds
        if group.rank in broken:
            broken.remove(group.rank)
            raise ConfigError("on purpose")
        return made

    monkeypatch.setattr(RingleaderGroup, "wrap", fail_once)

    def form(rank: int) -> RingleaderGroup | None:
        try:
            return create_process_group(request_of(rank, [0, 1], store), None)
        except ConfigError:
            return None

    def form_both() -> list[RingleaderGroup | None]:
        return run_threads([lambda r=r: form(r) for r in range(2)])  # type: ignore[misc]

    first, failed = form_both()
    assert first is not None
    assert failed is None
    first.shutdown()
    for _ in range(2):  # also a group that was destroyed in order
        groups = form_both()
        for group in groups:
            assert group is not None
            group.shutdown()
