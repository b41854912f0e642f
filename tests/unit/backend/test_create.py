"""Ranks that ask torch for a group again meet again, whatever failed before."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, Store

from ringleader.backend.create import create_process_group
from ringleader.backend.process_group import RingleaderGroup
from ringleader.errors import ConfigError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads


@pytest.mark.timeout(60)
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
        request = SimpleNamespace(
            timeout=timedelta(seconds=10),
            group_rank=rank,
            group_size=2,
            store=store,
            group_id="0",
            global_ranks_in_group=[0, 1],
        )
        try:
            return create_process_group(request, None)
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
