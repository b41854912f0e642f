"""Helper threads are given where cores are idle, and the reason is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.collectives.helper_threads import (
    MAX_HELPERS,
    MAX_RANKS,
    Decision,
    RankCores,
    choose_helper_threads,
    has_idle_core,
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
        (2, 6, 1, 1),
        (2, 8, 1, 2),
        (2, 16, 1, 5),
        (3, 8, 1, 0),
        (4, 8, 1, 0),
        (4, 16, 1, 2),
        (6, 16, 1, 0),
        (8, 16, 1, 0),
        (8, 32, 1, 2),
        (2, 8, 2, 1),
        (2, 16, 3, 2),
        (4, 16, 2, 1),
        (2, 16, 9, 0),
        (2, 128, 1, MAX_HELPERS),
        (MAX_RANKS + 1, 128, 1, 0),
    ],
)
def test_ranks_and_helpers_leave_a_quarter_of_the_cores(
    size: int, cores: int, torch_threads: int, helpers: int
) -> None:
    found = choose_helper_threads(ranks(size, cores, torch_threads=torch_threads))
    assert found.count == helpers
    assert found.in_background
    assert f"{size} ranks" in found.reason


@pytest.mark.parametrize(
    ("size", "cores", "torch_threads", "helpers"),
    [(2, 16, 4, 3), (2, 16, 8, 7), (4, 16, 4, 3), (2, 4, 2, 1), (2, 32, 14, 7)],
)
def test_torchs_own_threads_help_a_rank_that_waits(
    size: int, cores: int, torch_threads: int, helpers: int
) -> None:
    found = choose_helper_threads(ranks(size, cores, torch_threads=torch_threads))
    assert found.count == helpers
    assert not found.in_background


def test_background_threads_are_helped_on_all_ranks_or_none() -> None:
    mixed = ranks(2, 16, torch_threads=3)
    assert choose_helper_threads(mixed).in_background
    mixed[1] = replace(mixed[1], torch_threads=8)
    found = choose_helper_threads(mixed)
    assert (found.count, found.in_background) == (2, False)


def test_a_quota_counts_like_fewer_cores() -> None:
    found = choose_helper_threads(ranks(2, 16, quota=3.5))
    assert found.count == 0
    assert "3 cores (of 16, by cgroup quota)" in found.reason


def test_ranks_outside_the_group_are_counted() -> None:
    assert choose_helper_threads(ranks(2, 16, num_local=8)).count == 0


def test_ranks_that_are_bound_to_cores_of_their_own_do_not_share_them() -> None:
    bound = [
        RankCores(cores=frozenset(range(r * 8, r * 8 + 8)), num_local=2)
        for r in range(2)
    ]
    assert choose_helper_threads(bound).count == 5


def test_the_rank_with_the_fewest_decides_and_is_named() -> None:
    mixed = ranks(2, 16)
    mixed[1] = replace(mixed[1], asked=1)
    assert choose_helper_threads(mixed) == Decision(
        1, "rank 1: RINGLEADER_HELPER_THREADS is 1"
    )


def test_what_is_asked_for_is_done_unless_it_is_impossible() -> None:
    assert choose_helper_threads(ranks(2, 2, asked=2)).count == 2
    found = choose_helper_threads(ranks(2, 16, asked=2, can_help=False))
    assert found.count == 0
    assert "OpenMP" in found.reason


@pytest.mark.parametrize(
    ("size", "cores", "facts", "has_one"),
    [
        (8, 16, {}, True),
        (2, 4, {}, True),
        (2, 2, {}, False),
        (4, 2, {}, False),
        (9, 16, {}, False),
        (2, 16, {"torch_threads": 8}, False),
        (2, 16, {"torch_threads": 7}, True),
        (2, 16, {"num_local": 9}, False),
        (2, 16, {"quota": 3.5}, False),
        (2, 16, {"asked": 0, "can_help": False}, True),
    ],
)
def test_a_rank_waits_without_sleeping_where_it_has_a_core_for_that(
    size: int, cores: int, facts: dict[str, object], has_one: bool
) -> None:
    assert has_idle_core(0, ranks(size, cores, **facts)) == has_one


def test_parts_of_a_relay_are_large_enough_to_be_shared() -> None:
    for size in range(2, MAX_RANKS + 1):
        geometry = Geometry(size)
        part = geometry.helped_part_bytes(2)
        assert HELPED_BYTES <= part <= geometry.device_part_bytes
