"""Helper threads are given where cores are idle, and the reason is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.collectives.helper_threads import (
    MAX_HELPERS,
    MAX_RANKS,
    RankCores,
    choose_helper_threads,
)
from ringleader.engine.shared_memory.helpers import HELPED_BYTES
from ringleader.transport.shm_segment import Geometry


def ranks(size: int, cores: int, **facts: object) -> list[RankCores]:
    one = RankCores(cores=frozenset(range(cores)))
    return [replace(one, **facts) for _ in range(size)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "cores", "torch_threads", "helpers"),
    [
        (2, 2, 1, 0),
        (2, 4, 1, 0),
        (2, 8, 1, 1),
        (2, 16, 1, 3),
        (4, 16, 1, 1),
        (8, 16, 1, 0),
        (2, 16, 8, 0),
        (2, 16, 3, 2),
        (2, 128, 1, MAX_HELPERS),
        (MAX_RANKS + 1, 128, 1, 0),
    ],
)
def test_ranks_and_helpers_take_at_most_half_of_the_cores(
    size: int, cores: int, torch_threads: int, helpers: int
) -> None:
    count, reason = choose_helper_threads(
        ranks(size, cores, torch_threads=torch_threads)
    )
    assert count == helpers
    assert f"{size} ranks" in reason


def test_a_quota_counts_like_fewer_cores() -> None:
    count, reason = choose_helper_threads(ranks(2, 16, quota=3.5))
    assert count == 0
    assert "3 cores (of 16, by cgroup quota)" in reason


def test_ranks_outside_the_group_are_counted() -> None:
    assert choose_helper_threads(ranks(2, 16, num_local=8))[0] == 0


def test_ranks_that_are_bound_to_cores_of_their_own_do_not_share_them() -> None:
    bound = [
        RankCores(cores=frozenset(range(r * 8, r * 8 + 8)), num_local=2)
        for r in range(2)
    ]
    assert choose_helper_threads(bound)[0] == 3


def test_the_rank_with_the_fewest_decides_and_is_named() -> None:
    mixed = ranks(2, 16)
    mixed[1] = replace(mixed[1], asked=1)
    assert choose_helper_threads(mixed) == (
        1,
        "rank 1: RINGLEADER_HELPER_THREADS is 1",
    )


def test_what_is_asked_for_is_done_unless_it_is_impossible() -> None:
    assert choose_helper_threads(ranks(2, 2, asked=2))[0] == 2
    count, reason = choose_helper_threads(ranks(2, 16, asked=2, can_help=False))
    assert count == 0
    assert "OpenMP" in reason


def test_parts_of_a_relay_are_large_enough_to_be_shared() -> None:
    for size in range(2, MAX_RANKS + 1):
        geometry = Geometry(size)
        part = geometry.helped_part_bytes(2)
        assert HELPED_BYTES <= part <= geometry.device_part_bytes
